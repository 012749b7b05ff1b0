//! A bucket with a quota: what is written waits at it, and discarding or removing snapshots makes room, though the store takes nothing more.
//!
//! The store compares a put with what is stored when the put begins, as gateways do, and not with what is on its way.

use std::time::Duration;

use anyhow::{Result, ensure};
use cistern_harness::{
    adversary::Adversary,
    fixture::random_bytes,
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
};

const MIB: u64 = 1 << 20;
const URL: &str = "s3://adverse/tank";
const SIZE_BYTES: u64 = 512 * MIB;
/// What a test waits for at most, in steps of [`STEP`]: several graces.
const STEPS_MAX: u32 = 1200;
const STEP: Duration = Duration::from_millis(100);

/// A volume in a bucket that has no quota yet.
struct Tank {
    store: Adversary,
    cistern: Cistern,
    serve: Serve,
    _scratch: Scratch,
}

impl Tank {
    fn create() -> Result<Tank> {
        let (store, scratch) = (Adversary::start()?, Scratch::new("quota")?);
        let cistern = Cistern::under_test(env!("CARGO_BIN_EXE_cistern")).at(&store, scratch.path());
        cistern.run(&["create", URL, "--size", "512M"])?;
        let small =
            ["--journal-size", "256M", "--cache-size", "16M", "--max-dirty-age", "1s", "--grace", "10s"];
        let serve = cistern.serve(&scratch, URL).args(small);
        Ok(Tank { store, cistern, serve, _scratch: scratch })
    }
}

fn client(server: &Server) -> Result<Client> {
    Client::connect(server.socket(), "", Dialect::Simple)
}

/// Writes so many MiB from the beginning on, of a content that has this number.
fn write(server: &Server, mib: u64, number: u64) -> Result<()> {
    let mut client = client(server)?;
    for n in 0..mib {
        client.write(n * MIB, &random_bytes(MIB as usize, number * 1000 + n))?;
    }
    client.flush()?;
    client.close()
}

fn shows(server: &Server, mib: u64, number: u64) -> Result<()> {
    let mut client = client(server)?;
    for n in 0..mib {
        let found = client.read(n * MIB, MIB as u32)?;
        ensure!(found == random_bytes(MIB as usize, number * 1000 + n), "MiB {n} is not what was written");
    }
    client.close()
}

fn discard_all(server: &Server) -> Result<()> {
    let mut client = client(server)?;
    for offset in (0..SIZE_BYTES).step_by(32 * MIB as usize) {
        client.trim(offset, 32 * MIB)?;
    }
    client.flush()?;
    client.close()
}

fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..STEPS_MAX {
        if holds()? {
            return Ok(());
        }
        std::thread::sleep(STEP);
    }
    anyhow::bail!("not within {} s: {what}", (STEP * STEPS_MAX).as_secs())
}

/// Until data waits for room; gives what is said of that.
fn until_full(server: &Server) -> Result<String> {
    let mut said = String::new();
    until("the quota is met", || {
        let status = server.status()?;
        let volume = &status["daemons"][0]["volumes"][0];
        said = volume["store_error"].as_str().unwrap_or_default().to_owned();
        Ok(said.contains("QuotaExceeded"))
    })?;
    Ok(said)
}

/// Data waits at a quota, of which a snapshot was made that is removed again, and everything is discarded. Then all is clean though the quota is as it
/// was, what was stored is deleted, and what is written next has room.
#[test]
fn discarding_leads_out_of_a_quota() -> Result<()> {
    let Tank { store, cistern, serve, _scratch } = Tank::create()?;
    let server = serve.start()?;
    store.quota(Some(96 * MIB));
    write(&server, 64, 1)?;
    server.wait_clean()?;
    write(&server, 64, 2)?;
    let said = until_full(&server)?;
    ensure!(said.contains("fstrim") && !said.contains("credentials"), "what helps: {said}");
    shows(&server, 64, 2)?;
    server.ask(&["snapshot", "s3://adverse/tank@late"])?;
    write(&server, 8, 4)?;
    server.ask(&["rm", "s3://adverse/tank@late"])?;
    discard_all(&server)?;
    server.wait_clean()?;
    until("what was discarded is deleted", || Ok(store.stored_bytes() < 16 * MIB))?;
    write(&server, 64, 3)?;
    server.wait_clean()?;
    shows(&server, 64, 3)?;
    server.stop()?;
    cistern.run(&["check", URL, "--data", "--space"])?;
    Ok(())
}

/// A daemon that was killed at a quota starts again there, with all that was flushed, and goes on once the quota is larger.
#[test]
fn a_daemon_starts_at_its_quota() -> Result<()> {
    let Tank { store, cistern, serve, _scratch } = Tank::create()?;
    let server = serve.start()?;
    write(&server, 48, 1)?;
    server.wait_clean()?;
    store.quota(Some(store.stored_bytes()));
    write(&server, 48, 2)?;
    until_full(&server)?;
    server.kill();
    let server = serve.start()?;
    shows(&server, 48, 2)?;
    until_full(&server)?;
    store.quota(None);
    server.wait_clean()?;
    shows(&server, 48, 2)?;
    server.stop()?;
    cistern.run(&["check", URL, "--data"])?;
    Ok(())
}

/// Snapshots hold what a quota allows, and data waits: they are removed, and that makes room for it.
#[test]
fn removing_a_snapshot_leads_out_of_a_quota() -> Result<()> {
    let Tank { store, cistern, serve, _scratch } = Tank::create()?;
    let server = serve.start()?;
    write(&server, 48, 1)?;
    server.ask(&["snapshot", "s3://adverse/tank@old", "--wait"])?;
    store.quota(Some(80 * MIB));
    write(&server, 48, 2)?;
    until_full(&server)?;
    server.ask(&["rm", "s3://adverse/tank@old"])?;
    server.wait_clean()?;
    shows(&server, 48, 2)?;
    server.stop()?;
    cistern.run(&["check", URL, "--data"])?;
    Ok(())
}
