//! fio's NBD engine: parallel verified load.

use std::time::Duration;

use anyhow::{Result, ensure};
use cistern_harness::{fio, fixture::Fixture};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const LIMIT: Duration = Duration::from_secs(300);

/// Four connections write random sizes at random places, each checks every byte afterwards.
#[test]
fn four_connections_verify_what_they_wrote() -> Result<()> {
    let volume = Fixture::start(CISTERN, "fio-verify", "2G", &[])?;
    let report = fio::nbd(
        volume.scratch.path(),
        &volume.uri(),
        &[
            "--rw=randwrite",
            "--bsrange=4k-128k",
            "--blockalign=4k",
            "--iodepth=16",
            "--numjobs=4",
            "--size=128m",
            "--offset_increment=256m",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ],
        LIMIT,
    )?;
    let read = fio::figures(&report, "read")?;
    ensure!(read.bytes >= 4 * (100 << 20), "verified only {} bytes", read.bytes);
    Ok(())
}

/// Overwriting the same places with flushes in between leaves the newest data everywhere.
#[test]
fn overwrites_with_flushes_verify() -> Result<()> {
    let volume = Fixture::start(CISTERN, "fio-overwrite", "1G", &[])?;
    fio::nbd(
        volume.scratch.path(),
        &volume.uri(),
        &[
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=8",
            "--size=32m",
            "--io_size=128m",
            "--norandommap",
            "--fsync=16",
            "--verify=crc32c-intel",
            "--do_verify=1",
            "--verify_fatal=1",
            "--serialize_overlap=1",
            "--verify_state_save=0",
            "--loops=2",
        ],
        LIMIT,
    )?;
    Ok(())
}

/// A mix of reads, writes and trims under load ends without an error.
#[test]
fn mixed_load_with_trims() -> Result<()> {
    let volume = Fixture::start(CISTERN, "fio-mixed", "2G", &[])?;
    for rw in ["randrw", "randtrimwrite"] {
        let direction = format!("--rw={rw}");
        fio::nbd(
            volume.scratch.path(),
            &volume.uri(),
            &[
                &direction,
                "--bs=16k",
                "--iodepth=16",
                "--numjobs=2",
                "--size=256m",
                "--io_size=128m",
                "--fsync=64",
            ],
            LIMIT,
        )?;
    }
    Ok(())
}
