//! Copies and backups on a real S3 server, some of whose requests fail.

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fixture::random_bytes,
    link::{Conditions, Faults, Link},
    minio::{BUCKET, Minio},
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Server},
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// In a million requests.
const FAULTS: u32 = 30_000;
const PIECE: u32 = 1 << 20;

fn write(server: &Server, piece: u64, seed: u64) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    client.write(piece * u64::from(PIECE), &random_bytes(PIECE as usize, seed))?;
    client.flush()?;
    client.close()
}

/// From a bucket into another place of it, into a directory and back: a request that fails now and then is tried again, and no verb fails; what
/// arrives is what was sent.
#[test]
fn from_bucket_to_bucket_and_elsewhere() -> Result<()> {
    let scratch = Scratch::new("s3-backup")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    link.set(Conditions { faults: Some(Faults { per_million: FAULTS, seed: 31 }), ..Conditions::default() });
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(link.port()));
    let bucket = format!("s3://{BUCKET}");
    let (url, place) = (format!("{bucket}/volumes/tank"), format!("{bucket}/vault"));
    let directory = scratch.dir("elsewhere")?.join("tank").display().to_string();
    cistern.run(&["create", &url, "--size", "64M"])?;
    let serve = cistern.serve(&scratch, &url);
    let server = serve.start()?;
    for night in 0..3 {
        for piece in 0..8 {
            write(&server, night * 3 + piece, night * 100 + piece)?;
        }
        server.ask(&["backup", &url, "--to", &place, "--keep", "1y:1"])?;
        server.ask(&["copy", &url, &directory])?;
    }
    server.ask(&["snapshot", &format!("{url}@now"), "--wait"])?;
    server.stop()?;
    let now = format!("{url}@now");
    let listed = serve.ask(&["backup", "ls", &place, "-H"])?.stdout;
    ensure!(listed.starts_with("tank\tbackup-") && listed.lines().count() == 1, "{listed}");
    serve.ask(&["backup", "verify", &format!("{place}/tank"), "--against", &now])?;
    serve.ask(&["backup", "verify", &directory, "--against", &now])?;
    // Back into the bucket, from either.
    let back = [format!("{bucket}/back/one"), format!("{bucket}/back/two")];
    serve.ask(&["backup", "restore", &format!("{place}/tank"), &back[0]])?;
    let copies = serve.ask(&["ls", &directory, "-H"])?.stdout;
    let newest = copies.lines().next_back().and_then(|line| line.split('\t').next()).context("copies")?;
    serve.ask(&["copy", &format!("{directory}@{newest}"), &back[1], "--snapshots"])?;
    for back in &back {
        serve.ask(&["backup", "verify", back, "--against", &now])?;
        cistern.run(&["check", back, "--data", "--space"])?;
    }
    ensure!(serve.ask(&["ls", &back[1], "-H"])?.stdout.lines().count() == 3, "the history came along");
    Ok(())
}

/// Whether something of some size lies below a directory, beside what is on its way in. Files come and go meanwhile.
fn holds_a_segment(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name() != ".tmp").any(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => holds_a_segment(&entry.path()),
        Ok(metadata) => metadata.len() > 4 * u64::from(PIECE),
        Err(_) => false,
    })
}

/// The bucket does not answer any more while it is backed up: the command fails in its own time and says so, what came stays, and when the bucket is back, the same
/// command brings the rest.
#[test]
fn a_backup_goes_on_when_its_store_is_back() -> Result<()> {
    const PIECES: u64 = 40;
    let scratch = Scratch::new("s3-backup-away")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(link.port()));
    let url = format!("s3://{BUCKET}/tank");
    let place = scratch.dir("vault")?;
    cistern.run(&["create", &url, "--size", "64M"])?;
    let serve = cistern.serve(&scratch, &url);
    let server = serve.start()?;
    for piece in 0..PIECES {
        write(&server, piece, piece)?;
    }
    server.stop()?;
    serve.ask(&["snapshot", &format!("{url}@now")])?;
    let to = place.display().to_string();
    let backup = ["backup", &url, "--to", &to, "--json", "--rate", "8M"];
    let mut command = cistern.command();
    command.args(backup).arg("--state-dir").arg(scratch.file("state"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    while !holds_a_segment(&place) {
        ensure!(child.try_wait()?.is_none(), "it ended by itself");
    }
    link.set(Conditions {
        faults: Some(Faults { per_million: 1_000_000, seed: 7 }),
        ..Conditions::default()
    });
    let ended = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(7), "{:?}: {said}", ended.status);
    ensure!(said.contains("the same command goes on"), "{said}");
    link.set(Conditions::default());
    let told: serde_json::Value = serde_json::from_str(&serve.ask(&backup)?.stdout)?;
    let rest = told[0]["finished"]["data_bytes"].as_u64().context("it was finished")?;
    ensure!(rest <= (PIECES - 4) * u64::from(PIECE), "{told}");
    serve.ask(&["backup", "verify", &format!("{to}/tank"), "--against", &format!("{url}@now")])?;
    cistern.run(&["check", &format!("{to}/tank"), "--data", "--space"])?;
    Ok(())
}

/// The place that backups go to does not answer for a while: it is waited for, and the backup is complete.
#[test]
fn a_place_that_is_away_is_waited_for() -> Result<()> {
    let scratch = Scratch::new("s3-backup-waits")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(link.port()));
    let url = scratch.dir("tank")?.display().to_string();
    cistern.run(&["create", &url, "--size", "64M"])?;
    let serve = cistern.serve(&scratch, &url);
    let server = serve.start()?;
    for piece in 0..40 {
        write(&server, piece, piece)?;
    }
    server.stop()?;
    let place = format!("s3://{BUCKET}/vault");
    let mut command = cistern.command();
    command.args(["backup", &url, "--to", &place, "--rate", "8M", "--state-dir"]).arg(scratch.file("state"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    while link.carried().up < 4 * u64::from(PIECE) {
        ensure!(child.try_wait()?.is_none(), "it ended by itself");
    }
    link.set(Conditions {
        faults: Some(Faults { per_million: 1_000_000, seed: 7 }),
        ..Conditions::default()
    });
    while link.faults().values().sum::<u64>() < 12 {
        ensure!(child.try_wait()?.is_none(), "it ended by itself");
    }
    link.set(Conditions::default());
    let ended = child.wait_with_output()?;
    ensure!(ended.status.success(), "{:?}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    let name = Path::new(&url).file_name().and_then(|name| name.to_str()).context("a name")?;
    serve.ask(&["backup", "verify", &format!("{place}/{name}")])?;
    Ok(())
}
