//! kill -9 of the daemon under load, with and without the local disk, and two writers of one volume.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Result, ensure};
use cistern_harness::{
    fixture::Fixture, history::History, process::Guard, scratch::Scratch, serve::Server, tool,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// The part of the volume that the remembering client uses; the rest is for other load.
const BLOCKS: u64 = 16 << 10;

/// How many times a test kills: `CISTERN_KILL_ROUNDS`, or few enough for every day.
fn rounds() -> usize {
    std::env::var("CISTERN_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

/// Kills the server at a moment between two flushes, while two clients write: one as fast as it can, the other at a
/// rate that leaves room in journal and store, so that it is the kill that ends it.
fn kill_under_load(server: Server, scratch: &Scratch, history: &mut History, flushes: usize) -> Result<()> {
    let mut load = tool::command("fio")?;
    load.current_dir(scratch.path())
        // One process: a job of its own would outlive the guard.
        .args(["--name=load", "--thread", "--ioengine=nbd", "--rw=randwrite", "--bs=32k", "--iodepth=16"])
        .args(["--offset=512m", "--size=256m", "--time_based", "--runtime=600"])
        .arg("--rate=100m")
        .arg(format!("--uri={}", server.uri()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _load = Guard::spawn(load)?;
    history.write_until_killed(server, flushes)
}

/// With the journal at hand, nothing flushed is missing and what is visible is a prefix (P1, P3).
#[test]
fn a_killed_daemon_loses_nothing_flushed() -> Result<()> {
    let volume = Fixture::start(CISTERN, "kill", "1G", &["--journal-size", "256M"])?;
    let Fixture { mut server, serve, scratch, .. } = volume;
    let mut history = History::new(BLOCKS, 11);
    for round in 0..rounds() {
        kill_under_load(server, &scratch, &mut history, 20 + 37 * round)?;
        server = serve.start()?;
        let least = history.flushed();
        history.check(server.socket(), least)?;
    }
    server.stop()?;
    let server = serve.cache_dir(scratch.file("cache2")).start()?; // from the store alone
    let least = history.flushed();
    history.check(server.socket(), least)?;
    server.stop()
}

/// Without the local disk, after a take-over, the store shows a prefix that holds all that was
/// committed before (P2); the first server's journal is not needed.
#[test]
fn a_lost_host_leaves_a_prefix() -> Result<()> {
    let volume = Fixture::start(CISTERN, "lost-host", "1G", &["--max-dirty-age", "1s"])?;
    let Fixture { mut server, mut serve, scratch, .. } = volume;
    let mut history = History::new(BLOCKS, 12);
    let (mut state, mut cache) = ("state".to_owned(), "cache".to_owned());
    for round in 0..rounds() {
        history.write(server.socket(), 200)?;
        server.wait_clean()?;
        let committed = history.flushed();
        kill_under_load(server, &scratch, &mut history, 30 + 41 * round)?;
        for lost in [&state, &cache] {
            std::fs::remove_dir_all(scratch.file(lost))?;
        }
        (state, cache) = (format!("state-{round}"), format!("cache-{round}"));
        serve = serve.state_dir(scratch.file(&state)).cache_dir(scratch.file(&cache));
        let log = serve.start_failing()?;
        ensure!(log.contains("take-over"), "the refusal should name the way out:\n{log}");
        server = serve.clone().args(["--take-over"]).start()?;
        history.check(server.socket(), committed)?;
    }
    server.stop()
}

/// In writethrough mode a FLUSH reaches the store: the lost host loses nothing flushed (P1).
#[test]
fn writethrough_survives_the_loss_of_the_host() -> Result<()> {
    let volume = Fixture::start(CISTERN, "writethrough", "1G", &["--mode", "writethrough"])?;
    let Fixture { server, serve, scratch, .. } = volume;
    let mut history = History::new(BLOCKS, 13);
    history.write_until_killed(server, 25)?;
    let elsewhere = serve.state_dir(scratch.file("state2")).cache_dir(scratch.file("cache2"));
    let server = elsewhere.args(["--take-over"]).start()?;
    let least = history.flushed();
    ensure!(least > 0, "nothing was flushed");
    history.check(server.socket(), least)?;
    server.stop()
}

/// A second writer is refused; one that takes over fences the first, whose data stays exportable (P5).
#[test]
fn two_writers_never_meet() -> Result<()> {
    let volume = Fixture::start(CISTERN, "two-writers", "1G", &["--max-dirty-age", "1s"])?;
    let Fixture { server: first, serve, scratch, cistern, url } = volume;
    let mut history = History::new(BLOCKS, 14);
    history.write(first.socket(), 300)?;
    first.wait_clean()?;

    let elsewhere = cistern
        .serve(&scratch, &url)
        .state_dir(scratch.file("state2"))
        .cache_dir(scratch.file("cache2"))
        .socket(scratch.socket("nbd2"));
    let log = elsewhere.start_failing()?;
    ensure!(log.contains("in use"), "{log}");
    let second = elsewhere.args(["--take-over"]).start()?;
    let committed = history.flushed();
    ensure!(history.check(second.socket(), committed)? == committed, "the second sees what was committed");

    // The first goes on into its journal until it meets the claim, then stops for good.
    let mut lost = History::new(BLOCKS, 15);
    lost.write_until_failure(first.socket())?;
    let status = first.status()?.to_string();
    ensure!(status.to_lowercase().contains("fenced"), "{status}");
    history.check(second.socket(), committed)?;
    first.terminate()?;
    let export = scratch.file("export").display().to_string();
    let state = scratch.file("state").display().to_string();
    cistern.run(&["journal", "export", &url, "--state-dir", &state, "--output", &export])?;
    ensure!(std::fs::metadata(&export)?.len() > 0, "the export is empty");
    ensure!(serve.start_failing()?.contains("in use"), "the second still has it");
    second.stop()?;
    for args in [&[][..], &["--take-over"]] {
        let log = serve.clone().args(args.iter().copied()).start_failing()?;
        let names_ways = log.contains("export") && log.contains("discard");
        ensure!(names_ways, "the refusal should name the ways out:\n{log}");
    }
    let third = cistern.serve(&scratch, &url).state_dir(scratch.file("state3")).start()?;
    history.check(third.socket(), committed)?;
    third.stop()
}

/// A stop waits for the store and releases: another host opens without a take-over, all is there.
#[test]
fn a_clean_stop_hands_over() -> Result<()> {
    let volume = Fixture::start(CISTERN, "hand-over", "1G", &[])?;
    let Fixture { mut server, serve, scratch, cistern, url } = volume;
    let mut history = History::new(BLOCKS, 16);
    for host in 0..4 {
        history.write(server.socket(), 250)?;
        server.stop()?;
        let elsewhere = serve
            .clone()
            .state_dir(scratch.file(&format!("state-{host}")))
            .cache_dir(scratch.file(&format!("cache-{host}")));
        server = elsewhere.start()?;
        let all = history.flushed();
        ensure!(history.check(server.socket(), all)? == all, "everything is there");
    }
    server.stop()?;
    cistern.run(&["check", "--data", &url]).map(drop)
}

/// A file of the store that is damaged is found by `check`, and its bytes are never returned (P6).
#[test]
fn damage_is_an_error_and_never_data() -> Result<()> {
    let volume = Fixture::start(CISTERN, "damage", "1G", &[])?;
    let Fixture { server, serve, scratch, cistern, url } = volume;
    let mut history = History::new(BLOCKS, 17);
    history.write(server.socket(), 300)?;
    server.stop()?;
    cistern.run(&["check", "--data", &url])?;
    let segment = largest_segment(&scratch.file("store/vol"))?;
    let mut bytes = std::fs::read(&segment)?;
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].iter_mut().for_each(|b| *b ^= 0x55);
    std::fs::write(&segment, bytes)?;
    let (out, _) = cistern.run_failing(&["check", "--data", &url])?;
    ensure!((out.stdout + &out.stderr).to_lowercase().contains("corrupt"), "check names the damage");
    let server = serve.cache_dir(scratch.file("cache2")).start()?;
    let least = history.flushed();
    let verdict = history.check(server.socket(), least);
    let error = verdict.expect_err("the damaged range must not read").to_string();
    ensure!(error.contains("error 5"), "EIO is what a client sees, not: {error}");
    Ok(())
}

/// Of a volume in a directory store.
fn largest_segment(place: &Path) -> Result<PathBuf> {
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    for own in std::fs::read_dir(place)? {
        let log = own?.path().join("log");
        for entry in log.is_dir().then(|| std::fs::read_dir(&log)).transpose()?.into_iter().flatten() {
            let entry = entry?;
            files.push((entry.metadata()?.len(), entry.path()));
        }
    }
    files.sort();
    files.pop().map(|(_, path)| path).ok_or_else(|| anyhow::anyhow!("{} has no log", place.display()))
}
