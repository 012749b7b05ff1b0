//! What two hundred volumes in one daemon cost while nobody uses them: time to start, memory, requests.
//!
//! In directory stores, where the daemon's own meter counts what the store is asked, below everything that tries
//! again. Some in a real S3 server, where the wire counts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    link::Link,
    minio::{BUCKET, Minio},
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Server},
};

use super::{
    Plan,
    report::{Bound, Report, median},
};

const VOLUMES: usize = 200;
/// Volumes whose requests are counted on the wire.
const VOLUMES_IN_S3: usize = 20;
pub(super) const VOLUME: &str = "1G";
/// All journals have their place on the disk from the first moment: 3.1 GiB.
const SETTINGS: &str = "journal-size = \"16M\"\ncache-size = \"256M\"\n";
const UP_S_MAX: f64 = 5.0;
const RESIDENT_MIB_MAX: f64 = 100.0;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let idle = Duration::from_secs(if plan.quick { 20 } else { 60 });
    in_directories(plan, idle, report)?;
    in_s3(plan, idle, report)
}

fn in_directories(plan: &Plan, idle: Duration, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("bench-many")?;
    let store = scratch.dir("store")?;
    let urls: Vec<String> = (0..VOLUMES).map(|n| store.join(name(n)).display().to_string()).collect();
    let (server, first_s) = start(&plan.cistern, &scratch, &urls, &["--create", VOLUME])?;
    report.note(format!(
        "{VOLUMES} volumes in directories, settings {SETTINGS:?}: created and served in {first_s:.2} s"
    ));
    server.stop()?;
    let mut ups = Vec::new();
    for _ in 1..plan.rounds() {
        let (server, up_s) = start(&plan.cistern, &scratch, &urls, &[])?;
        ups.push(up_s);
        server.stop()?;
    }
    let (server, up_s) = start(&plan.cistern, &scratch, &urls, &[])?;
    ups.push(up_s);
    let up_s = median(ups.clone());
    report.row(
        &format!("{VOLUMES} volumes in one daemon: until the last one answers"),
        format!("{up_s:.2} s"),
        format!("{} starts: {ups:.2?}", ups.len()),
        up_s,
        Bound::AtMost(UP_S_MAX),
    );
    let (cpu, before) = (server.usage()?.cpu, requests(&server)?);
    std::thread::sleep(idle); // the time is what is measured
    let asked = requests(&server)? - before;
    let cpu = (server.usage()?.cpu - cpu).as_secs_f64() * 1e3 / idle.as_secs_f64();
    report.row(
        &format!("{VOLUMES} idle volumes: requests to the directories, by the daemon's meter"),
        format!("{asked}"),
        format!("watched for {} s; {cpu:.1} ms of CPU a second", idle.as_secs()),
        asked as f64,
        Bound::AtMost(0.0),
    );
    let usage = server.usage()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let resident = mib(usage.resident_bytes);
    report.row(
        &format!("{VOLUMES} idle volumes: resident memory"),
        format!("{resident:.0} MiB"),
        format!("at its peak, while they were opened, {:.0} MiB", mib(usage.peak_resident_bytes)),
        resident,
        Bound::AtMost(RESIDENT_MIB_MAX),
    );
    let begin = Instant::now();
    server.stop()?;
    report
        .note(format!("{VOLUMES} volumes in directories: stopped in {:.2} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

fn in_s3(plan: &Plan, idle: Duration, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("bench-many")?;
    let minio = Minio::start(&scratch)?;
    let link = Link::start(minio.port())?;
    let cistern = plan.cistern.clone().with_environment(Minio::environment(link.port()));
    let urls: Vec<String> = (0..VOLUMES_IN_S3).map(|n| format!("s3://{BUCKET}/{}", name(n))).collect();
    let (server, _) = start(&cistern, &scratch, &urls, &["--create", VOLUME])?;
    server.stop()?;
    let (server, up_s) = start(&cistern, &scratch, &urls, &[])?;
    link.take();
    std::thread::sleep(idle); // the time is what is measured
    let asked = link.take();
    report.row(
        &format!("{VOLUMES_IN_S3} idle volumes in S3: requests on the wire"),
        format!("{}", asked.total()),
        format!("watched for {} s; up in {up_s:.2} s", idle.as_secs()),
        asked.total() as f64,
        Bound::AtMost(0.0),
    );
    server.stop()
}

pub(super) fn name(volume: usize) -> String {
    format!("v{volume:03}")
}

/// Starts a daemon of all of them, and gives the seconds until each has answered a client.
pub(super) fn start(
    cistern: &Cistern,
    scratch: &Scratch,
    urls: &[String],
    more: &[&str],
) -> Result<(Server, f64)> {
    let settings = scratch.file("settings.toml");
    std::fs::write(&settings, SETTINGS)?;
    let (first, others) = urls.split_first().context("no volumes")?;
    let serve = cistern.serve(scratch, first).args(others.to_vec()).args(["--config"]).args([settings]);
    let serve = serve.args(more.iter().copied());
    let begin = Instant::now();
    let server = serve.start()?;
    for n in 0..urls.len() {
        let mut client = Client::connect(server.socket(), &name(n), Dialect::Simple)?;
        ensure!(client.read(0, 4096)? == [0; 4096], "a new volume is not empty");
        client.close()?;
    }
    Ok((server, begin.elapsed().as_secs_f64()))
}

/// What all stores were asked since the daemon began.
fn requests(server: &Server) -> Result<u64> {
    let status = server.status()?;
    let volumes = status.pointer("/daemons/0/volumes").and_then(|v| v.as_array()).context("no volumes")?;
    ensure!(volumes.len() == VOLUMES, "{} volumes are served", volumes.len());
    let kinds = volumes.iter().filter_map(|volume| volume["store"]["kinds"].as_array()).flatten();
    Ok(kinds.filter_map(|kind| kind["requests"].as_u64()).sum())
}
