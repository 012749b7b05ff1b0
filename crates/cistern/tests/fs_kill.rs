//! The power cut: kill -9 of the daemon below mounted filesystems under load, again and again.

use std::path::Path;

use anyhow::{Context, Result};
use cistern_harness::{
    filesystem::Kind,
    fixture::{self, Fixture},
    fsyncs::{Promises, Writers},
    minio::{BUCKET, Minio},
    mount::BlockDevice,
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const WRITERS: usize = 2;

/// How many times a test kills: `CISTERN_KILL_ROUNDS`, or few enough for every day.
fn rounds() -> usize {
    std::env::var("CISTERN_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// Kills the daemon in the middle of load; after every restart the filesystem is consistent and
/// every file that was ever fsynced has its content.
fn kill_and_verify(kind: Kind, server: Server, serve: &Serve, scratch: &Scratch) -> Result<()> {
    rounds_of_kills(kind, server, serve, scratch).with_context(|| serve.log_tail())
}

fn rounds_of_kills(kind: Kind, mut server: Server, serve: &Serve, scratch: &Scratch) -> Result<()> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/fsync_writer.py");
    let mut promises = Promises::default();
    let device = BlockDevice::attach(scratch, &server.uri(), 4096)?;
    kind.make(&device)?;
    device.detach()?;
    for round in 0..rounds() {
        let mounted = kind.mount(scratch, BlockDevice::attach(scratch, &server.uri(), 4096)?)?;
        promises.verify(mounted.dir())?;
        let writers = Writers::start(&program, mounted.dir(), &format!("round{round}"), WRITERS)?;
        writers.await_files(60 + fixture::random_bytes(1, round as u64)[0] as usize, &mut promises)?;
        server.kill();
        writers.finish(&mut promises);
        mounted.crash()?;

        server = serve.start()?;
        // The journal of the filesystem is replayed by mounting; what is left must be clean.
        let mounted = kind.mount(scratch, BlockDevice::attach(scratch, &server.uri(), 4096)?)?;
        promises.verify(mounted.dir())?;
        let device = mounted.unmount()?;
        kind.check(&device)?;
        device.detach()?;
    }
    anyhow::ensure!(promises.len() >= 60 * rounds(), "only {} files were fsynced", promises.len());
    server.stop()
}

fn in_a_directory(kind: Kind) -> Result<()> {
    let volume =
        Fixture::start(CISTERN, &format!("fskill-{}", kind.name()), "8G", &["--journal-size", "512M"])?;
    let Fixture { server, serve, scratch, .. } = volume;
    kill_and_verify(kind, server, &serve, &scratch)
}

/// ext4 below kill -9.
#[test]
fn ext4_survives_kills() -> Result<()> {
    in_a_directory(Kind::Ext4)
}

/// XFS below kill -9.
#[test]
fn xfs_survives_kills() -> Result<()> {
    in_a_directory(Kind::Xfs)
}

/// btrfs below kill -9.
#[test]
fn btrfs_survives_kills() -> Result<()> {
    in_a_directory(Kind::Btrfs)
}

/// XFS below kill -9 with the store in S3.
#[test]
fn xfs_on_s3_survives_kills() -> Result<()> {
    let scratch = Scratch::new("fskill-s3")?;
    let minio = Minio::start(&scratch)?;
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(minio.port()));
    let url = format!("s3://{BUCKET}/vol");
    cistern.run(&["create", &url, "--size", "8G"])?;
    let serve = cistern.serve(&scratch, &url).args(["--journal-size", "512M"]);
    let server = serve.start()?;
    kill_and_verify(Kind::Xfs, server, &serve, &scratch)
}
