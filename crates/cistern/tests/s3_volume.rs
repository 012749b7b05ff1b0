//! The main job on a real S3 server: created, served, copied, killed, reopened, and what it costs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fio,
    fixture::random_bytes,
    history::History,
    link::Link,
    minio::{BUCKET, Minio},
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
    tool,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const BLOCKS: u64 = 16 << 10;

/// A served volume in a bucket, with the wire to the store counted. Dropped in this order.
struct Bucket {
    server: Server,
    serve: Serve,
    cistern: Cistern,
    url: String,
    link: Link,
    minio: Minio,
    scratch: Scratch,
}

impl Bucket {
    fn start(name: &str, args: &[&str]) -> Result<Bucket> {
        let scratch = Scratch::new(name)?;
        let minio = Minio::start(&scratch)?;
        let link = Link::start(minio.port())?;
        let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(link.port()));
        let url = format!("s3://{BUCKET}/volumes/vol");
        cistern.run(&["create", &url, "--size", "8G"])?;
        let serve = cistern.serve(&scratch, &url).args(args.iter().copied());
        let server = serve.start()?;
        Ok(Bucket { server, serve, cistern, url, link, minio, scratch })
    }
}

/// In and out through the store: another state directory and cache, every byte the same.
#[test]
fn a_copy_comes_back_on_another_host() -> Result<()> {
    let bucket = Bucket::start("s3-copy", &[])?;
    let original = bucket.scratch.file("original");
    std::fs::write(&original, random_bytes(256 << 20, 21))?;
    let original = original.display().to_string();
    tool::run("nbdcopy", ["--flush", &original, &bucket.server.uri()])?;
    bucket.server.stop()?;
    let elsewhere =
        bucket.serve.state_dir(bucket.scratch.file("state2")).cache_dir(bucket.scratch.file("cache2"));
    let server = elsewhere.start()?;
    let script = format!("nbdcopy '{}' - | head -c 256M | cmp - '{original}'", server.uri());
    tool::run("bash", ["-c", &script])?;
    server.stop()?;
    bucket.cistern.run(&["check", "--data", &bucket.url])?;
    bucket.cistern.run(&["info", &bucket.url]).map(drop)
}

/// kill -9 under load with the store in S3: nothing flushed is missing, then the host is lost as
/// well, and what a take-over finds is a prefix with everything committed.
#[test]
fn kills_and_the_loss_of_the_host() -> Result<()> {
    let Bucket { mut server, serve, cistern, url, link, minio, scratch } = Bucket::start("s3-kill", &[])?;
    let mut history = History::new(BLOCKS, 22);
    for round in 0..3 {
        history.write_until_killed(server, 25 + 20 * round)?;
        server = serve.start()?;
        let least = history.flushed();
        history.check(server.socket(), least)?;
    }
    server.wait_clean()?;
    let committed = history.flushed();
    history.write(server.socket(), 500)?;
    server.kill();
    let elsewhere = serve.state_dir(scratch.file("state2")).cache_dir(scratch.file("cache2"));
    let log = elsewhere.start_failing()?;
    ensure!(log.contains("take-over"), "{log}");
    let server = elsewhere.args(["--take-over"]).start()?;
    history.check(server.socket(), committed)?;
    server.stop()?;
    cistern.run(&["check", "--data", &url])?;
    drop((link, minio));
    Ok(())
}

/// 1 GiB in random 4 KiB writes: at most 80 PUTs, eleven of them once in a volume's life, and no overhead. Nothing is read or listed but for the one
/// look with which it says that it is clean, one question whether there was a checkpoint before, and one listing of old checkpoints. A slow
/// machine writes for longer than 30 s: what was proven once is then proven again, with one GET and one PUT of the identity, and there may be a second
/// checkpoint, of three PUTs and a listing.
#[test]
fn random_writes_cost_few_requests() -> Result<()> {
    let bucket = Bucket::start("s3-requests", &["--journal-size", "2G"])?;
    bucket.link.take();
    fio::nbd(
        bucket.scratch.path(),
        &bucket.server.uri(),
        &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=8g", "--io_size=1g", "--norandommap"],
        Duration::from_secs(600),
    )?;
    bucket.server.wait_clean()?;
    let counts = bucket.link.take();
    let proofs = counts.of_kind("PUT volume.json");
    let checkpoints = counts.of_kind("PUT checkpoint");
    ensure!((1..=2).contains(&checkpoints), "{counts:?}");
    ensure!((1..=77 + 3 * checkpoints + proofs).contains(&counts.of("PUT")), "{counts:?}");
    ensure!(counts.of("GET") <= 3 + proofs && counts.of("LIST") <= 3 + checkpoints, "{counts:?}");
    ensure!(counts.of("HEAD") + counts.of("POST") == 0, "{counts:?}");
    ensure!(counts.body_bytes <= (1 << 30) / 10 * 11, "{counts:?}");
    bucket.server.stop()
}

/// A clean volume asks the store for nothing: not when flushed, not for what was just written. Only whoever asks whether
/// it is clean makes it look.
#[test]
fn a_clean_volume_is_silent() -> Result<()> {
    let bucket = Bucket::start("s3-silent", &[])?;
    let mut client = Client::connect(bucket.server.socket(), "", Dialect::Simple)?;
    client.write(0, &random_bytes(1 << 20, 23))?;
    client.flush()?;
    bucket.server.wait_clean()?;
    bucket.link.take();
    for _ in 0..50 {
        client.flush()?;
    }
    ensure!(client.read(1 << 30, 1 << 20)? == vec![0; 1 << 20], "a hole reads as zeroes");
    bucket.server.status()?;
    let counts = bucket.link.take();
    ensure!(counts.total() == 0, "{counts:?}");
    // Whoever asks whether everything is in the store gets an answer that was looked up.
    bucket.server.wait_clean()?;
    let counts = bucket.link.take();
    ensure!(counts.total() == 5 && counts.of_kind("GET volume.json") == 1, "{counts:?}");
    client.close()?;
    bucket.server.stop()
}

/// While the store does not answer, writes, flushes and reads of dirty data go on (P9); when it
/// answers again, everything is uploaded without being asked.
#[test]
fn the_store_may_be_away() -> Result<()> {
    let bucket = Bucket::start("s3-away", &["--max-dirty-age", "1s"])?;
    let mut history = History::new(BLOCKS, 24);
    history.write(bucket.server.socket(), 100)?;
    bucket.server.wait_clean()?;
    bucket.minio.freeze();
    history.write(bucket.server.socket(), 500)?;
    let mut client = Client::connect(bucket.server.socket(), "", Dialect::Simple)?;
    client.write(1 << 30, b"dirty".repeat(4096).get(..4096).expect("long enough"))?;
    client.flush()?;
    ensure!(client.read(1 << 30, 4096)?.starts_with(b"dirty"), "dirty data is readable");
    client.trim(1 << 30, 4096)?;
    client.close()?;
    bucket.minio.thaw();
    bucket.server.wait_clean()?;
    let all = history.flushed();
    ensure!(history.check(bucket.server.socket(), all)? == all, "everything is there");
    bucket.server.stop()
}

/// Volumes of one bucket are created with one probe, which counts for an hour; `probe` itself asks every time.
#[test]
fn an_accepted_bucket_is_not_probed_again() -> Result<()> {
    let scratch = Scratch::new("s3-probed")?;
    let minio = Minio::start(&scratch)?;
    let state = scratch.file("state-of-all");
    let here = [("STATE_DIRECTORY".to_owned(), state.display().to_string())];
    let cistern = Cistern::under_test(CISTERN)
        .with_environment(Minio::environment(minio.port()))
        .with_environment(here);
    let said = |args: &[&str]| Ok::<_, anyhow::Error>(cistern.run(args)?.stderr);
    let create = |name: &str| said(&["create", &format!("s3://{BUCKET}/{name}"), "--size", "1G"]);
    let probed = |said: &str| said.contains("races") && !said.contains("kept the rules when");
    let first = create("one")?;
    ensure!(probed(&first), "{first}");
    for name in ["two", "deeper/three"] {
        let again = create(name)?;
        ensure!(!probed(&again) && again.contains("kept the rules when"), "{again}");
    }
    let asked = said(&["probe", &format!("s3://{BUCKET}/two")])?;
    ensure!(probed(&asked), "{asked}");
    let kept = state.join("probed-stores");
    let text = std::fs::read_to_string(&kept)?;
    let (at_ms, rest) = text.split_once(' ').context("a line of the file")?;
    std::fs::write(&kept, format!("{} {rest}", at_ms.parse::<u64>()? - 3_600_000))?;
    let late = create("four")?;
    ensure!(probed(&late), "{late}");
    Ok(())
}

/// A probe looks through two addresses of one server, which it accepts, and through two servers, which are not one store.
#[test]
fn a_probe_through_several_endpoints() -> Result<()> {
    let (scratch, other) = (Scratch::new("s3-endpoints")?, Scratch::new("s3-other-endpoint")?);
    let (minio, stranger) = (Minio::start(&scratch)?, Minio::start(&other)?);
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(minio.port()));
    let at = |host: &str, minio: &Minio| format!("http://{host}:{}", minio.port());
    let (one, same) = (at("127.0.0.1", &minio), at("localhost", &minio));
    let url = format!("s3://{BUCKET}/tank");
    let said = cistern.run(&["probe", &url, "--endpoint", &one, "--endpoint", &same])?.stderr;
    ensure!(said.contains("each with one winner"), "{said}");
    let (out, code) = cistern.run_failing(&[
        "probe",
        &url,
        "--endpoint",
        &one,
        "--endpoint",
        &at("127.0.0.1", &stranger),
    ])?;
    ensure!(out.stderr.contains("this store cannot hold a volume: put-if-absent"), "{}", out.stderr);
    ensure!(code == 7, "{code}");
    let (out, _) =
        cistern.run_failing(&["probe", &scratch.file("tank").display().to_string(), "--endpoint", &one])?;
    ensure!(out.stderr.contains("only s3:// does"), "{}", out.stderr);
    Ok(())
}

/// The probe knows a good store, and a bucket that is not there is an error that says so.
#[test]
fn probe_and_wrong_addresses() -> Result<()> {
    let bucket = Bucket::start("s3-probe", &[])?;
    bucket.cistern.run(&["probe", &format!("s3://{BUCKET}/probe-here")])?;
    let (out, _) = bucket.cistern.run_failing(&["create", "s3://no-such-bucket/vol", "--size", "1G"])?;
    ensure!(!out.stderr.is_empty(), "an error has a text");
    let (out, _) = bucket.cistern.run_failing(&["create", &bucket.url, "--size", "1G"])?;
    ensure!(out.stderr.contains("already"), "{}", out.stderr);
    let listed = bucket.cistern.run(&["ls", &format!("s3://{BUCKET}/volumes")])?.stdout;
    ensure!(listed.contains("vol"), "{listed}");
    bucket.server.stop()?;
    bucket.cistern.run(&["rm", &bucket.url, "--yes"])?;
    let (_, code) = bucket.cistern.run_failing(&["info", &bucket.url])?;
    ensure!(code != 0);
    Ok(())
}
