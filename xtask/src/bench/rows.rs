//! The rows of the table by group: which load, against whom, and the bound.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    link::Link,
    minio::{BUCKET, Minio},
    nbd::{Client, Dialect},
    process,
    scratch::Scratch,
    serve::Server,
};

use super::{
    Plan, loads,
    peers::{self, Peer, Target},
    report::{Bound, Report, median},
};
use crate::step;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;
/// Resident bytes that a daemon may reach under any load.
const RESIDENT_MIB_MAX: f64 = 512.0;
/// Size of the devices that are compared.
const DEVICE_GIB: u64 = 4;
/// The part of them that is written.
const WINDOW_GIB: u64 = 2;

/// Measures each peer `rounds` times, in turns, and gives the medians in the order of `peers`.
fn medians(
    plan: &Plan,
    peers: &[Peer],
    report: &mut Report,
    measure: impl Fn(&Target) -> Result<f64>,
) -> Result<Vec<f64>> {
    let mut values = vec![Vec::new(); peers.len()];
    for round in 0..plan.rounds() {
        for (peer, values) in peers.iter().zip(&mut values) {
            let target = Target::start(&plan.cistern, *peer, DEVICE_GIB, &[])?;
            let value = measure(&target).with_context(|| peer.name())?;
            eprintln!("    {} round {}: {value:.0}", peer.name(), round + 1);
            values.push(value);
            if let Some(server) = target.cistern() {
                resident(report, server, "")?;
            }
        }
    }
    Ok(values.into_iter().map(median).collect())
}

/// Checks the peak of a daemon's memory; only the first row of a name and every miss is kept.
fn resident(report: &mut Report, server: &Server, load: &str) -> Result<()> {
    let mib = server.usage()?.peak_resident_bytes as f64 / MIB;
    if !load.is_empty() || mib > RESIDENT_MIB_MAX {
        let what = format!("resident memory {load}");
        report.row(
            what.trim_end(),
            format!("{mib:.0} MiB"),
            "-".into(),
            mib,
            Bound::AtMost(RESIDENT_MIB_MAX),
        );
    }
    Ok(())
}

/// 4 KiB random writes, depth 32, while the journal has room.
pub fn random_write(plan: &Plan, report: &mut Report) -> Result<()> {
    let peers = [Peer::Cistern, Peer::NbdkitMemory];
    let seconds = plan.seconds(10);
    let iops =
        medians(plan, &peers, report, |t| Ok(loads::random_write(t, WINDOW_GIB, 32, seconds, &[])?.iops))?;
    report.row(
        "4 KiB random write, depth 32, first 10 s",
        format!("{:.0} IOPS", iops[0]),
        format!("nbdkit memory {:.0}", iops[1]),
        iops[0] / iops[1],
        Bound::AtLeast(0.8),
    );
    Ok(())
}

/// The same for a minute: the journal fills and the store sets the pace.
pub fn sustained(plan: &Plan, report: &mut Report) -> Result<()> {
    let peers = [Peer::Cistern, Peer::NbdkitFile];
    let seconds = plan.seconds(60);
    let iops =
        medians(plan, &peers, report, |t| Ok(loads::random_write(t, WINDOW_GIB, 32, seconds, &[])?.iops))?;
    report.row(
        "4 KiB random write, depth 32, sustained 60 s",
        format!("{:.0} IOPS", iops[0]),
        format!("nbdkit file {:.0}", iops[1]),
        iops[0] / iops[1],
        Bound::AtLeast(2.0),
    );
    Ok(())
}

/// A volume that was filled and then overwritten at random with twice its size, against a fresh one.
pub fn aged(plan: &Plan, report: &mut Report) -> Result<()> {
    let gib = plan.gib(DEVICE_GIB);
    let seconds = plan.seconds(10);
    let measure =
        |target: &Target| Ok::<f64, anyhow::Error>(loads::random_write(target, gib, 32, seconds, &[])?.iops);
    let aged = Target::start(&plan.cistern, Peer::Cistern, gib, &[])?;
    let server = aged.cistern().context("it is cistern")?;
    process::reset_peak(server.pid())?;
    let limit = Duration::from_secs(3600);
    let (size, twice) = (format!("--size={gib}g"), format!("--io_size={}g", 2 * gib));
    loads::write(&aged, &["--rw=write", "--bs=1m", "--iodepth=8", &size], limit)?;
    loads::write(
        &aged,
        &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", &size, &twice],
        limit,
    )?;
    let (mut old, mut fresh) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        server.wait_clean()?;
        old.push(measure(&aged)?);
        fresh.push(measure(&Target::start(&plan.cistern, Peer::Cistern, gib, &[])?)?);
    }
    resident(report, server, "while a volume ages")?;
    let (old, fresh) = (median(old), median(fresh));
    report.row(
        "4 KiB random write, depth 32, aged volume",
        format!("{old:.0} IOPS"),
        format!("fresh volume {fresh:.0}"),
        old / fresh,
        Bound::AtLeast(0.8),
    );
    Ok(())
}

/// 4 KiB and FLUSH, one at a time: the price of durability.
pub fn write_flush(plan: &Plan, report: &mut Report) -> Result<()> {
    let seconds = plan.seconds(10);
    let bytes = WINDOW_GIB << 30;
    let (mut ours, mut theirs, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        let scratch = Scratch::new("bench-raw")?;
        let raw = peers::filled(&scratch, WINDOW_GIB)?;
        bare.push(loads::write_and_sync(&raw, bytes, seconds)?.p50_us());
        drop(scratch);
        let target = Target::start(&plan.cistern, Peer::Cistern, DEVICE_GIB, &[])?;
        ours.push(loads::write_and_flush(&target, bytes, seconds)?);
        drop(target);
        let target = Target::start(&plan.cistern, Peer::NbdkitFile, DEVICE_GIB, &[])?;
        theirs.push(loads::write_and_flush(&target, bytes, seconds)?.per_second());
    }
    let rate = median(ours.iter().map(|t| t.per_second()).collect());
    let p50 = median(ours.iter().map(|t| t.p50_us()).collect());
    let (theirs, bare) = (median(theirs), median(bare));
    report.row(
        "4 KiB write and FLUSH, depth 1",
        format!("{rate:.0}/s"),
        format!("nbdkit file {theirs:.0}/s"),
        rate / theirs,
        Bound::AtLeast(1.2),
    );
    report.row(
        "4 KiB write and FLUSH, depth 1, p50",
        format!("{p50:.0} us"),
        format!("pwrite + fdatasync {bare:.0} us"),
        p50 / bare,
        Bound::AtMost(1.6),
    );
    Ok(())
}

/// A flush for every ten writes: what journals of filesystems do.
pub fn flush_every_10(plan: &Plan, report: &mut Report) -> Result<()> {
    let peers = [Peer::Cistern, Peer::NbdkitFile, Peer::QemuNbd];
    let seconds = plan.seconds(10);
    let iops = medians(plan, &peers, report, |t| {
        Ok(loads::random_write(t, WINDOW_GIB, 1, seconds, &["--fsync=10"])?.iops)
    })?;
    report.row(
        "4 KiB random write, depth 1, FLUSH every 10",
        format!("{:.0} IOPS", iops[0]),
        format!("nbdkit file {:.0}, qemu-nbd {:.0}", iops[1], iops[2]),
        iops[0] / iops[1].max(iops[2]),
        Bound::AtLeast(1.2),
    );
    Ok(())
}

/// 128 KiB sequential writes past the end of a small journal: a rate, then another, and no stall.
pub fn sequential(plan: &Plan, report: &mut Report) -> Result<()> {
    const JOURNAL_GIB: u64 = 1;
    let total = plan.gib(8) << 30;
    let target = Target::start(&plan.cistern, Peer::Cistern, 16, &["--journal-size", "1G"])?;
    let server = target.cistern().context("it is cistern")?;
    process::reset_peak(server.pid())?;
    let (times, flush_s) = loads::sequential(&target, total)?;
    // Until three quarters of the journal are written it cannot be full, whatever the store does.
    let before_full = ((JOURNAL_GIB << 30) / 4 * 3 / (128 << 10)) as usize;
    let early = before_full as f64 / 8.0 / times.of_first(before_full);
    let late = (times.len() - before_full) as f64 / 8.0 / (times.total_s() - times.of_first(before_full));
    report.row(
        "128 KiB sequential write, depth 1, journal not full",
        format!("{early:.0} MiB/s"),
        "-".into(),
        early,
        Bound::AtLeast(200.0),
    );
    let per_second: Vec<usize> = (1..=times.total_s() as usize).map(|s| times.within(s as f64)).collect();
    let rates: Vec<String> =
        per_second.windows(2).map(|w| format!("{:.0}", (w[1] - w[0]) as f64 / 8.0)).collect();
    report.row(
        "the same beyond the journal: longest wait of one write",
        format!("{:.2} s at {late:.0} MiB/s, final FLUSH {flush_s:.2} s", times.longest_s()),
        "-".into(),
        times.longest_s(),
        Bound::AtMost(1.0),
    );
    report.note(format!("128 KiB sequential write, MiB/s second by second: {}", rates.join(" ")));
    resident(report, server, "with 128 KiB sequential writes")
}

/// A daemon whose store is a real S3 server behind a counting link.
struct Counted {
    server: Server,
    link: Link,
    _minio: Minio,
    target_scratch: Scratch,
}

impl Counted {
    fn start(plan: &Plan) -> Result<Counted> {
        let scratch = Scratch::new("bench-s3")?;
        let minio = Minio::start(&scratch)?;
        let link = Link::start(minio.port())?;
        let cistern = plan.cistern.clone().with_environment(Minio::environment(link.port()));
        let url = format!("s3://{BUCKET}/vol");
        cistern.run(&["create", &url, "--size", "16G"])?;
        let server = cistern.serve(&scratch, &url).start()?;
        Ok(Counted { server, link, _minio: minio, target_scratch: scratch })
    }

    fn fio(&self, args: &[&str]) -> Result<()> {
        let limit = Duration::from_secs(1800);
        cistern_harness::fio::nbd(self.target_scratch.path(), &self.server.uri(), args, limit).map(drop)
    }
}

/// Requests for 1 GiB of random 4 KiB writes, and while idle.
pub fn requests(plan: &Plan, report: &mut Report) -> Result<()> {
    let s3 = Counted::start(plan)?;
    s3.link.take();
    s3.fio(&["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", "--size=8g", "--io_size=1g"])?;
    s3.server.wait_clean()?;
    let counts = s3.link.take();
    // A writer proves again every 30 s what was proven once, with a GET and a PUT.
    let proofs = counts.of_kind("PUT volume.json");
    let puts = counts.of("PUT").saturating_sub(proofs) as f64;
    let shown = format!("{:?}", counts.requests);
    report.row(
        "PUTs for 1 GiB of random 4 KiB writes",
        format!("{puts:.0}"),
        shown,
        puts,
        Bound::AtMost(80.0),
    );
    let reads = (counts.of("GET") + counts.of("LIST") + counts.of("HEAD")).saturating_sub(proofs) as f64;
    report.row(
        "GET, HEAD and LIST for the same",
        format!("{reads:.0}"),
        "one look whether it is still the writer, a question for an older checkpoint, a listing of old ones"
            .into(),
        reads,
        Bound::AtMost(7.0),
    );
    let uploaded = counts.body_bytes as f64 / GIB;
    report.note(format!("uploaded per byte written at random in 4 KiB pieces: {uploaded:.3}"));
    resident(report, &s3.server, "with random 4 KiB writes to S3")?;

    let watched = Duration::from_secs(plan.seconds(60));
    std::thread::sleep(watched); // the time is what is measured
    let idle = s3.link.take();
    let per_hour = idle.total() as f64 * 3600.0 / watched.as_secs_f64();
    report.row(
        "requests per hour, idle and clean",
        format!("{per_hour:.0}"),
        format!("watched for {} s", watched.as_secs()),
        per_hour,
        Bound::AtMost(0.0),
    );
    s3.server.stop()
}

/// What a sequential GiB costs in CPU time and in bytes on the wire.
pub fn cpu(plan: &Plan, report: &mut Report) -> Result<()> {
    let gib = plan.gib(4);
    let size = format!("--size={gib}g");
    let job = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", &size];
    let target = Target::start(&plan.cistern, Peer::Cistern, 16, &[])?;
    let server = target.cistern().context("it is cistern")?;
    let before = server.usage()?.cpu;
    let begin = Instant::now();
    loads::write(&target, &job, Duration::from_secs(600))?;
    server.wait_clean()?;
    let rate = gib as f64 * 1024.0 / begin.elapsed().as_secs_f64();
    let per_gib = (server.usage()?.cpu - before).as_secs_f64() / gib as f64;
    report.row(
        "CPU per GiB, 1 MiB sequential, incompressible, until it is in the store",
        format!("{per_gib:.2} s ({rate:.0} MiB/s)"),
        "-".into(),
        per_gib,
        Bound::AtMost(1.0),
    );
    resident(report, server, "with 1 MiB sequential writes")?;
    drop(target);

    let s3 = Counted::start(plan)?;
    s3.link.take();
    s3.fio(&job)?;
    s3.server.wait_clean()?;
    let counts = s3.link.take();
    let uploaded = counts.body_bytes as f64 / (gib as f64 * GIB);
    report.row(
        "uploaded per byte written, the same load to S3",
        format!("{uploaded:.3}"),
        format!("{:?}", counts.requests),
        uploaded,
        Bound::AtMost(1.1),
    );
    resident(report, &s3.server, "with 1 MiB sequential writes to S3")?;
    s3.server.stop()
}

/// One request over a whole volume of 100 TiB.
pub fn whole_volume(plan: &Plan, report: &mut Report) -> Result<()> {
    const VOLUME_BYTES: u64 = 100 << 40;
    let target = Target::start(&plan.cistern, Peer::Cistern, VOLUME_BYTES >> 30, &[])?;
    let mut client = Client::connect(&target.socket, "", Dialect::Extended)?;
    ensure!(client.size_bytes() == VOLUME_BYTES, "the volume has {} bytes", client.size_bytes());
    let scatter = |client: &mut Client| -> Result<()> {
        (0..1000).try_for_each(|n| client.write(n * (100 << 30), &[0x77; 4096]))
    };
    let mut time = |name: &str, request: &mut dyn FnMut(&mut Client) -> Result<()>| -> Result<()> {
        let mut times = Vec::new();
        for _ in 0..plan.rounds() {
            scatter(&mut client)?;
            let begin = Instant::now();
            request(&mut client)?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        let ms = median(times);
        report.row(
            &format!("{name} of 100 TiB in one request"),
            format!("{ms:.2} ms"),
            "-".into(),
            ms,
            Bound::AtMost(50.0),
        );
        Ok(())
    };
    time("block status", &mut |c| c.block_status(0, VOLUME_BYTES).map(drop))?;
    time("TRIM", &mut |c| c.trim(0, VOLUME_BYTES))?;
    time("WRITE_ZEROES", &mut |c| c.write_zeroes(0, VOLUME_BYTES))?;
    client.trim(0, VOLUME_BYTES)?;
    let ranges = client.block_status(0, VOLUME_BYTES)?;
    ensure!(ranges == [(VOLUME_BYTES, 3)], "a trimmed volume is one hole, not {ranges:?}");
    client.close()
}

/// The map alone, measured by the engine's own example: updates, then a reopening with lookups.
pub fn map(plan: &Plan, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new("bench-map")?;
    let updates = if plan.quick { "1000000" } else { "100000000" };
    for (mode, count) in [("random", updates), ("open", "10000")] {
        let args = [
            "run",
            "--release",
            "--locked",
            "-p",
            "cistern-engine",
            "--example",
            "map_bench",
            "--",
            mode,
            count,
        ];
        let mut command = step::cargo(&args);
        let out = command.arg(scratch.path()).output().context("cannot run map_bench")?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(
            out.status.success(),
            "map_bench: {}\n{text}{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        text.lines().for_each(|line| report.note(format!("map: {line}")));
    }
    Ok(())
}
