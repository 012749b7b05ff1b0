//! A bucket that keeps versions: what cistern deletes there stays stored and is paid for. Commands that change it say so.

use std::process::Output;

use anyhow::{Result, ensure};
use cistern_harness::{adversary::Adversary, scratch::Scratch, serve::Cistern};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const URL: &str = "s3://adverse/tank";
const SAID: &str = "keeps versions";

/// Runs the command; gives what it said on stderr.
fn said(cistern: &Cistern, arguments: &[&str]) -> Result<String> {
    let Output { status, stderr, .. } = cistern.command().args(arguments).output()?;
    let stderr = String::from_utf8(stderr)?;
    ensure!(status.success(), "{arguments:?}: {stderr}");
    Ok(stderr)
}

/// `create`, `status`, `check --space` and `rm` say what such a bucket means, each once.
#[test]
fn who_changes_it_is_told() -> Result<()> {
    let (store, scratch) = (Adversary::start()?, Scratch::new("versions")?);
    store.version(Some("3HL4kqtJvjVBH40Nrjfkd"));
    let cistern = Cistern::under_test(CISTERN).at(&store, scratch.path());
    let created = said(&cistern, &["create", URL, "--size", "64M"])?;
    ensure!(created.matches(SAID).count() == 1 && created.contains("noncurrent"), "{created}");
    let server =
        cistern.serve(&scratch, URL).args(["--journal-size", "64M", "--cache-size", "16M"]).start()?;
    let shown = server.ask(&["status"])?.stdout;
    ensure!(shown.contains(SAID), "{shown}");
    let status = server.status()?;
    ensure!(status["daemons"][0]["volumes"][0]["store_keeps_versions"] == true, "{status}");
    server.stop()?;
    let checked = said(&cistern, &["check", URL, "--space"])?;
    ensure!(checked.matches(SAID).count() == 1, "{checked}");
    let removed = said(&cistern, &["rm", URL, "--now", "--yes"])?;
    ensure!(removed.matches(SAID).count() == 1, "{removed}");
    Ok(())
}

/// A bucket without versions, or with suspended versioning, is nothing to speak of.
#[test]
fn nothing_is_said_of_other_buckets() -> Result<()> {
    for version in [None, Some("null")] {
        let (store, scratch) = (Adversary::start()?, Scratch::new("versions")?);
        store.version(version);
        let cistern = Cistern::under_test(CISTERN).at(&store, scratch.path());
        for arguments in [&["create", URL, "--size", "64M"][..], &["rm", URL, "--now", "--yes"]] {
            let said = said(&cistern, arguments)?;
            ensure!(!said.contains(SAID), "{said}");
        }
    }
    Ok(())
}
