//! The main job where it is not S3: on servers of Azure's and of Google Cloud Storage's protocol.

use anyhow::{Result, ensure};
use cistern_harness::{
    azurite::{Azurite, CONTAINER},
    fixture::random_bytes,
    gcs::{BUCKET, Gcs},
    history::History,
    scratch::Scratch,
    serve::Cistern,
    tool,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const BLOCKS: u64 = 4 << 10;

/// Created, written, stopped and opened by another host; killed and taken over by a third; a snapshot and a clone are read;
/// every object is intact and accounted for; and nothing is left of what is removed.
fn main_job(scratch: &Scratch, place: &str, environment: Vec<(String, String)>) -> Result<()> {
    let cistern = Cistern::under_test(CISTERN).with_environment(environment);
    let url = format!("{place}/vol");
    cistern.run(&["create", &url, "--size", "2G"])?;
    let serve = cistern.serve(scratch, &url);
    let server = serve.start()?;
    let original = scratch.file("original");
    std::fs::write(&original, random_bytes(96 << 20, 31))?;
    let original = original.display().to_string();
    tool::run("nbdcopy", ["--flush", &original, &server.uri()])?;
    cistern.run(&[
        "snapshot",
        &format!("{url}@whole"),
        "--state-dir",
        &scratch.file("state").display().to_string(),
    ])?;
    server.stop()?;

    let host = |n: u32| {
        let serve = serve.clone().state_dir(scratch.file(&format!("state{n}")));
        serve.cache_dir(scratch.file(&format!("cache{n}")))
    };
    let same = |uri: &str| {
        let script = format!("nbdcopy '{uri}' - | head -c 96M | cmp - '{original}'");
        tool::run("bash", ["-c", &script]).map(drop)
    };
    let server = host(2).start()?;
    same(&server.uri())?;
    let mut history = History::new(BLOCKS, 32);
    history.write(server.socket(), 300)?;
    server.wait_clean()?;
    let committed = history.flushed();
    server.kill();

    ensure!(host(3).start_failing()?.contains("take-over"), "it is claimed");
    let server = host(3).args(["--take-over"]).start()?;
    history.check(server.socket(), committed)?;
    server.stop()?;
    cistern.run(&["clone", &format!("{url}@whole"), &format!("{place}/copy")])?;
    let copy = cistern.serve(scratch, format!("{place}/copy")).state_dir(scratch.file("state4"));
    let server = copy.cache_dir(scratch.file("cache4")).start()?;
    same(&server.uri())?;
    server.stop()?;
    cistern.run(&["check", "--data", &url])?;
    cistern.run(&["check", "--space", &url])?;
    cistern.run(&["gc", &url])?;
    let listed = cistern.run(&["ls", place])?.stdout;
    ensure!(listed.contains("vol") && listed.contains("copy"), "{listed}");
    cistern.run(&["rm", &format!("{place}/copy"), "--now", "--yes"])?;
    cistern.run(&["rm", &url, "--now", "--yes"])?;
    ensure!(!cistern.run(&["ls", place])?.stdout.contains("vol"), "it is gone");
    Ok(())
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
