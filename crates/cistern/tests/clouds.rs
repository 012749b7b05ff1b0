//! The main job where the store is not MinIO: on servers of Azure's and of Google Cloud Storage's protocol, and on another one of S3's.

use anyhow::{Result, ensure};
use cistern_harness::{
    azurite::{Azurite, CONTAINER},
    fixture::random_bytes,
    gcs::{BUCKET, Gcs},
    history::History,
    scratch::Scratch,
    serve::Cistern,
    tool,
    versitygw::{self, Versitygw},
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const BLOCKS: u64 = 4 << 10;
/// How often a daemon is killed under load.
const KILLS: usize = 3;

/// Created, written, stopped and opened by another host; a snapshot is read; killed and taken over; every object is intact
/// and accounted for; and nothing is left of what is removed.
fn main_job(scratch: &Scratch, place: &str, environment: Vec<(String, String)>) -> Result<()> {
    let cistern = Cistern::under_test(CISTERN).with_environment(environment);
    let on_host = |url: &str, n: u32| {
        let serve = cistern.serve(scratch, url).state_dir(scratch.file(&format!("state{n}")));
        serve.cache_dir(scratch.file(&format!("cache{n}")))
    };
    let url = format!("{place}/vol");
    cistern.run(&["create", &url, "--size", "2G"])?;
    let first = on_host(&url, 1);
    let server = first.start()?;
    let original = scratch.file("original");
    std::fs::write(&original, random_bytes(96 << 20, 31))?;
    let original = original.display().to_string();
    tool::run("nbdcopy", ["--flush", &original, &server.uri()])?;
    first.ask(&["snapshot", &format!("{url}@whole")])?;
    server.stop()?;
    let server = on_host(&url, 2).start()?;
    same(&server.uri(), &original)?;
    server.stop()?;
    let server = on_host(&format!("{url}@whole"), 3).start()?;
    same(&server.uri(), &original)?;
    server.stop()?;
    check(&cistern, &url)?;

    // A volume of its own: a history knows all that was ever written.
    let killed = format!("{place}/killed");
    cistern.run(&["create", &killed, "--size", "1G"])?;
    let server = on_host(&killed, 4).start()?;
    let mut history = History::new(BLOCKS, 32);
    history.write(server.socket(), 300)?;
    server.wait_clean()?;
    let committed = history.flushed();
    server.kill();
    let refused = on_host(&killed, 5).start_failing()?;
    ensure!(refused.contains("take-over"), "it is claimed: {refused}");
    let server = on_host(&killed, 5).args(["--take-over"]).start()?;
    history.check(server.socket(), committed)?;
    server.stop()?;
    check(&cistern, &killed)?;

    for url in [&url, &killed] {
        cistern.run(&["rm", url, "--now", "--yes"])?;
    }
    let listed = cistern.run(&["ls", place])?.stdout;
    ensure!(!listed.contains("GiB"), "{listed}");
    Ok(())
}

/// Killed again and again while a client writes, opened on the same host and at the end on another one: nothing flushed is missing.
fn killed_under_load(scratch: &Scratch, place: &str, environment: Vec<(String, String)>) -> Result<()> {
    let cistern = Cistern::under_test(CISTERN).with_environment(environment);
    let url = format!("{place}/crashed");
    cistern.run(&["create", &url, "--size", "1G"])?;
    let on_host = |name: &str| {
        let serve = cistern.serve(scratch, &url).state_dir(scratch.file(name));
        serve.cache_dir(scratch.file(&format!("{name}-cache")))
    };
    let serve = on_host("crash");
    let mut server = serve.start()?;
    let mut history = History::new(BLOCKS, 47);
    for round in 0..KILLS {
        history.write_until_killed(server, 20 + 37 * round)?;
        server = serve.start()?;
        let flushed = history.flushed();
        history.check(server.socket(), flushed)?;
    }
    server.wait_clean()?;
    let committed = history.flushed();
    server.kill();
    let server = on_host("elsewhere").args(["--take-over"]).start()?;
    history.check(server.socket(), committed)?;
    server.stop()?;
    check(&cistern, &url)
}

fn same(uri: &str, original: &str) -> Result<()> {
    let script = format!("nbdcopy '{uri}' - | head -c 96M | cmp - '{original}'");
    tool::run("bash", ["-c", &script]).map(drop)
}

fn check(cistern: &Cistern, url: &str) -> Result<()> {
    cistern.run(&["check", "--data", url])?;
    cistern.run(&["check", "--space", url])?;
    cistern.run(&["gc", url]).map(drop)
}

/// Azurite.
#[test]
fn azure() -> Result<()> {
    let scratch = Scratch::new("azure")?;
    let azurite = Azurite::start(&scratch)?;
    main_job(&scratch, &format!("az://{CONTAINER}/volumes"), Azurite::environment(azurite.port()))
}

/// fake-gcs-server.
#[test]
fn google() -> Result<()> {
    let scratch = Scratch::new("google")?;
    let gcs = Gcs::start(&scratch)?;
    main_job(&scratch, &format!("gs://{BUCKET}/volumes"), Gcs::environment(gcs.port()))
}

/// versitygw, where daemons are killed under load as well.
#[test]
fn another_s3() -> Result<()> {
    let scratch = Scratch::new("versitygw")?;
    let server = Versitygw::start(&scratch)?;
    let place = format!("s3://{}/volumes", versitygw::BUCKET);
    main_job(&scratch, &place, Versitygw::environment(server.port()))?;
    killed_under_load(&scratch, &place, Versitygw::environment(server.port()))
}
