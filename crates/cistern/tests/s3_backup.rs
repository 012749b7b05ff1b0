//! Copies and backups on a real S3 server, some of whose requests fail.

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
