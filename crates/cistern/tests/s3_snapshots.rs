//! The life of snapshots and clones on a real S3 server, some of whose requests fail.

use anyhow::{Result, ensure};
use cistern_harness::{
    fixture::random_bytes,
    link::{Conditions, Faults, Link},
    minio::{BUCKET, Minio},
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// In a million requests.
const FAULTS: u32 = 30_000;
const PIECE: u32 = 1 << 20;
/// These take 20 s over a thin link.
const THIN_PIECES: u64 = 10;
const THIN_BYTES_PER_S: u64 = 512 << 10;

fn write(server: &Server, offset: u64, seed: u64) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    client.write(offset, &random_bytes(PIECE as usize, seed))?;
    client.flush()?;
    client.close()
}

/// What was written with this seed is there, in the export of this name.
fn ensure_reads(server: &Server, export: &str, offset: u64, seed: u64) -> Result<()> {
    let mut client = Client::connect(server.socket(), export, Dialect::Simple)?;
    ensure!(client.read(offset, PIECE)? == random_bytes(PIECE as usize, seed), "{export} at {offset}");
    client.close()
}

/// What `serve` shows of a volume that nobody serves.
fn ensure_shows(serve: &Serve, offset: u64, seed: u64) -> Result<()> {
    let server = serve.start()?;
    ensure_reads(&server, "", offset, seed)?;
    server.stop()
}

/// Every verb of snapshots and clones takes a URL in a bucket, beside a daemon and without one, and a request that fails
/// now and then is tried again: no verb fails, and every object is accounted for at the end.
#[test]
fn every_verb_works_in_a_bucket_that_fails_now_and_then() -> Result<()> {
    let scratch = Scratch::new("s3-snapshots")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    link.set(Conditions { faults: Some(Faults { per_million: FAULTS, seed: 24 }), ..Conditions::default() });
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(link.port()));
    let url = format!("s3://{BUCKET}/volumes/tank");
    let at = |name: &str| format!("{url}@{name}");
    let (copy, later) = (format!("s3://{BUCKET}/volumes/copy"), format!("s3://{BUCKET}/volumes/later"));
    cistern.run(&["create", &url, "--size", "64M"])?;
    let serve = cistern.serve(&scratch, &url);

    let server = serve.start()?;
    write(&server, 0, 1)?;
    server.ask(&["snapshot", &at("a")])?;
    write(&server, 0, 2)?;
    server.ask(&["snapshot", &at("b"), "--wait"])?;
    write(&server, u64::from(PIECE), 3)?;
    ensure_reads(&server, "tank@a", 0, 1)?;
    server.ask(&["hold", &at("a"), "backup"])?;
    let held = server.ask(&["ls", &url])?.stdout;
    ensure!(held.contains("backup"), "{held}");
    server.ask(&["clone", &at("a"), &copy])?;
    server.ask(&["rollback", &at("a"), "--leave", "left"])?;
    ensure_reads(&server, "", 0, 1)?;
    server.ask(&["rollback", &at("left"), "--discard"])?;
    ensure_reads(&server, "", u64::from(PIECE), 3)?;
    server.ask(&["release", &at("a"), "backup"])?;
    server.ask(&["flatten", &url])?;
    server.stop()?;

    let changed = serve.ask(&["diff", &at("b")])?.stdout;
    ensure!(changed.contains("data"), "{changed}");
    serve.ask(&["snapshot", &at("c")])?;
    serve.ask(&["rm", &at("b"), "--bookmark"])?;
    let since = serve.ask(&["diff", &at("b"), &at("c")])?.stdout;
    ensure!(since == changed, "by the bookmark: {since}\nby the snapshot: {changed}");
    serve.ask(&["clone", &at("c"), &later])?;
    serve.ask(&["rollback", &at("a"), "--leave", "again"])?;
    ensure_shows(&serve, 0, 1)?;
    serve.ask(&["flatten", &later])?;
    for (clone, seed) in [(&copy, 1), (&later, 2)] {
        let name = clone.rsplit('/').next().unwrap_or_default();
        let elsewhere = cistern.serve(&scratch, clone).state_dir(scratch.file(&format!("state-{name}")));
        ensure_shows(&elsewhere.cache_dir(scratch.file(&format!("cache-{name}"))), 0, seed)?;
        cistern.run(&["check", clone, "--data", "--space"])?;
    }
    serve.ask(&["rm", &copy, "--now", "--yes"])?;
    for name in ["a", "b", "c", "left", "again"] {
        serve.ask(&["rm", &at(name)])?;
    }
    serve.ask(&["flatten", &url])?; // it went on from one of them
    serve.ask(&["snapshot", &at("last")])?;
    let listed = serve.ask(&["ls", &url, "-H"])?.stdout;
    ensure!(listed.lines().count() == 1 && listed.starts_with("last\t"), "no clone needs another: {listed}");
    cistern.run(&["check", &url, "--data", "--space"])?;
    ensure!(link.faults().values().sum::<u64>() > 0, "nothing failed");
    Ok(())
}

/// What a command writes takes as long as the link needs: a segment that is under way for longer than a command waits for an answer
/// gets there.
#[test]
fn a_command_gets_over_a_thin_link() -> Result<()> {
    let scratch = Scratch::new("s3-thin-link")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(link.port()));
    let (url, clone) = (format!("s3://{BUCKET}/volumes/tank"), format!("s3://{BUCKET}/volumes/copy"));
    cistern.run(&["create", &url, "--size", "64M"])?;
    let serve = cistern.serve(&scratch, &url);
    let server = serve.start()?;
    for at in 0..THIN_PIECES {
        write(&server, at * u64::from(PIECE), at)?;
    }
    server.ask(&["snapshot", &format!("{url}@a"), "--wait"])?;
    server.ask(&["clone", &format!("{url}@a"), &clone])?;
    server.stop()?;
    link.set(Conditions { rate: Some(THIN_BYTES_PER_S), ..Conditions::default() });
    serve.ask(&["flatten", &clone])?;
    link.set(Conditions::default());
    cistern.run(&["check", &clone, "--data", "--space"]).map(drop)
}
