//! A real ext4 on a volume whose store refuses everything for a while: reads wait, writes go on, and the file system never hears of it.
//!
//! Every refusal at once, each with a store, a daemon and a mount of its own, for ten seconds. For longer:
//!
//! ```text
//! CISTERN_REFUSED_SECONDS=60 cargo test --workspace --test refusals -- --nocapture
//! ```

use std::{
    fs::File,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    adversary::{Adversary, AdverseAnswer, Objects, Switch},
    filesystem::Kind,
    fixture::random_bytes,
    mount::{BlockDevice, Mounted},
    scratch::Scratch,
    serve::{Cistern, Server},
    tool,
};

const URL: &str = "s3://adverse/tank";
const SECTOR_BYTES: u32 = 512;
const DIRECTORIES: u64 = 12;
const FILE_BYTES: usize = 100_000;
const REFUSED_SECONDS: u64 = 10;
const SMALL: [&str; 6] = ["--journal-size", "64M", "--cache-size", "16M", "--max-dirty-age", "1s"];

/// What a store, a proxy before it or a network says, and may stop saying.
const REFUSALS: &[AdverseAnswer] = {
    use AdverseAnswer::{BodyHtml, HangUp, Silence, Status, StatusHtml};
    &[
        Status(301, "PermanentRedirect"),
        Status(307, "TemporaryRedirect"),
        Status(400, "AuthorizationHeaderMalformed"),
        Status(400, "ExpiredToken"),
        Status(400, "InvalidRequest"),
        Status(400, "InvalidToken"),
        Status(401, "Unauthorized"),
        Status(403, "AccessDenied"),
        Status(403, "InvalidAccessKeyId"),
        Status(403, "QuotaExceeded"),
        Status(403, "RequestTimeTooSkewed"),
        Status(403, "SignatureDoesNotMatch"),
        Status(404, "NoSuchBucket"),
        Status(405, "MethodNotAllowed"),
        Status(409, "OperationAborted"),
        Status(429, "TooManyRequests"),
        Status(500, "InternalError"),
        Status(501, "NotImplemented"),
        Status(503, "SlowDown"),
        StatusHtml(403),
        StatusHtml(407),
        StatusHtml(502),
        BodyHtml,
        HangUp,
        Silence,
    ]
};

/// What is in a file of the tree.
fn content(directory: u64) -> Vec<u8> {
    random_bytes(FILE_BYTES, directory + 1)
}

fn file(root: &Path, directory: u64) -> std::path::PathBuf {
    root.join(format!("d{directory}")).join("file")
}

fn attach(scratch: &Scratch, server: &Server) -> Result<BlockDevice> {
    BlockDevice::attach(scratch, &server.uri(), SECTOR_BYTES)
}

/// A volume with a tree on an ext4 that turns read-only at its first error, all of it in the store.
fn prepare() -> Result<Objects> {
    let (store, scratch) = (Adversary::start()?, Scratch::new("refusals")?);
    let cistern = Cistern::under_test(env!("CARGO_BIN_EXE_cistern")).at(&store, scratch.path());
    cistern.run(&["create", URL, "--size", "64M"])?;
    let server = cistern.serve(&scratch, URL).args(SMALL).start()?;
    let device = attach(&scratch, &server)?;
    Kind::Ext4.make(&device)?;
    tool::run("tune2fs", [Path::new("-e"), Path::new("remount-ro"), device.path()])?;
    let mounted = Kind::Ext4.mount(&scratch, device)?;
    for n in 0..DIRECTORIES {
        let file = file(mounted.dir(), n);
        std::fs::create_dir(file.parent().expect("it has one"))?;
        std::fs::write(file, content(n))?;
    }
    mounted.unmount()?.detach()?;
    server.stop()?;
    Ok(store.objects())
}

/// Reads what is in the store only.
fn read_all(mounted: &Mounted) -> Result<()> {
    for n in 0..DIRECTORIES {
        let found = std::fs::read(file(mounted.dir(), n)).with_context(|| format!("directory {n}"))?;
        ensure!(found == content(n), "directory {n} has another content");
    }
    Ok(())
}

fn write_synced(mounted: &Mounted, name: &str) -> Result<()> {
    let mut file = File::create(mounted.dir().join(name))?;
    file.write_all(&content(99))?;
    file.sync_all().with_context(|| format!("{name} is not durable"))
}

/// `status` shows that requests are tried again, or for how long the store has been away, and what it said. Silence shows when the time of a request is over.
fn shows(refusal: AdverseAnswer, volume: &serde_json::Value) -> Result<()> {
    let (away_ms, retried) = (&volume["store_away_ms"], &volume["store_retried"]);
    let said = volume["store"]["last_error"]["text"].as_str().unwrap_or_default();
    let told = match refusal {
        AdverseAnswer::Silence => return Ok(()),
        AdverseAnswer::Status(status, _) | AdverseAnswer::StatusHtml(status) => status.to_string(),
        _ => String::new(),
    };
    let shows = away_ms.as_u64() > Some(0) || retried.as_u64() > Some(0);
    ensure!(shows && !said.is_empty() && said.contains(&told), "{said:?}, {away_ms} ms, {retried}");
    Ok(())
}

/// Another host serves the volume; everything is refused while the tree is read and a file is written.
fn rides_out(refusal: AdverseAnswer, objects: &Objects, refused_for: Duration) -> Result<()> {
    let (store, scratch) = (Adversary::start()?, Scratch::new("refusal")?);
    store.restore(objects.clone());
    let cistern = Cistern::under_test(env!("CARGO_BIN_EXE_cistern")).at(&store, scratch.path());
    let mut server = cistern.serve(&scratch, URL).args(SMALL).start()?;
    let mounted = Kind::Ext4.mount(&scratch, attach(&scratch, &server)?)?;
    store.switch(Switch::every(refusal));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&mounted).map(|()| begun.elapsed()));
        let writer = scope.spawn(|| write_synced(&mounted, "while-refused"));
        let seen = server.stays_up(refused_for).and_then(|()| server.status());
        store.honest();
        let read_after = reader.join().expect("no panic").context("reads")?;
        writer.join().expect("no panic").context("a write")?;
        ensure!(read_after >= refused_for, "the reads did not need the store: {read_after:?}");
        shows(refusal, &seen?["daemons"][0]["volumes"][0])
    })?;
    write_synced(&mounted, "afterwards")?;
    let device = mounted.unmount()?;
    Kind::Ext4.check(&device)?;
    device.detach()?;
    server.stop()
}

/// No refusal that can pass reaches the file system: no read and no write fails, it stays writable and sound, and `status` says meanwhile
/// what the store says.
#[test]
fn no_refusal_that_passes_reaches_a_file_system() -> Result<()> {
    let seconds =
        std::env::var("CISTERN_REFUSED_SECONDS").map_or(Ok(REFUSED_SECONDS), |text| text.parse())?;
    let objects = prepare()?;
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let run = |refusal: &'static AdverseAnswer| {
            let objects = &objects;
            (refusal, scope.spawn(move || rides_out(*refusal, objects, Duration::from_secs(seconds))))
        };
        let running: Vec<_> = REFUSALS.iter().map(run).collect();
        let ended = running.into_iter().map(|(refusal, case)| (refusal, case.join().expect("no panic")));
        ended.filter_map(|(refusal, done)| Some(format!("{refusal:?}: {:#}", done.err()?))).collect()
    });
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), REFUSALS.len(), wrong.join("\n"));
    println!("{} refusals of {seconds} s: none reached the file system", REFUSALS.len());
    Ok(())
}
