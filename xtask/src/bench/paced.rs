//! Random writes faster than the link for minutes: a lower rate, not a stall; and the link is full.
//!
//! What others published: 25,000 IOPS until the cache was full, then near zero.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fio::{self, Flushes},
    fixture::random_bytes,
    serve::Server,
};

use super::{
    Plan,
    peers::{Peer, Target},
    plot::{self, Series},
    report::{Bound, Report, median},
    sampler::{self, Sample},
    wan::{Cpu, GOOD, Wan},
};

const BLOCK_BYTES: f64 = 4096.0;
/// Most that may be dirty in a full run: what "the journal's target" is in the issue.
const DIRTY: &str = "1G";
const DIRTY_QUICK: &str = "256M";
/// From this share of the greatest amount of dirty bytes on, the link sets the pace.
const FULL_SHARE: f64 = 0.8;
/// An object such as write-back uploads.
const OBJECT_BYTES: usize = 16 << 20;
const RANDOM_WRITES: [&str; 5] =
    ["--rw=randwrite", "--bs=4k", "--norandommap", "--size=8g", "--refill_buffers"];
const SLACK: Duration = Duration::from_secs(300);

/// What a run showed.
struct Run {
    seconds: Vec<f64>,
    samples: Vec<Sample>,
    flushes: Option<Flushes>,
    longest_s: f64,
}

impl Run {
    /// The index of the first second in which the link set the pace.
    fn full_from(&self) -> Result<usize> {
        let most = self.samples.iter().map(|s| s.dirty_bytes).fold(0.0, f64::max);
        let first = self.samples.iter().find(|s| s.dirty_bytes >= most * FULL_SHARE);
        let at = first.context("no samples")?.at_s.ceil() as usize;
        ensure!(at + 5 < self.seconds.len(), "the link set the pace only from second {at} on");
        Ok(at)
    }

    fn slowest(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn save(&self, name: &str, title: &str) -> Result<String> {
        let dirty = self.samples.iter().map(|s| s.dirty_bytes / 1e6).collect();
        let series = [
            Series { name: "requests/s", values: self.seconds.clone() },
            Series { name: "dirty MB", values: dirty },
            Series { name: "uploaded MB/s", values: sampler::upload_rates(&self.samples) },
        ];
        Ok(plot::save(name, title, &series)?.display().to_string())
    }
}

/// A served volume over the good link, with a small room for dirty data.
struct Paced {
    // Dropped in this order.
    server: Server,
    wan: Wan,
}

impl Paced {
    fn start(plan: &Plan, report: &mut Report) -> Result<Paced> {
        let wan = Wan::start_gentle(plan, "16G")?;
        let dirty = if plan.quick { DIRTY_QUICK } else { DIRTY };
        let args = ["--journal-size", "2G", "--max-dirty-bytes", dirty, "--cache-size", "256M"];
        let server = wan.host(&wan.cistern(), "home").args(args).start()?;
        wan.limit(GOOD, report)?;
        Ok(Paced { server, wan })
    }

    /// 4 KiB random writes of incompressible bytes over 8 GiB.
    fn write(&self, depth: u32, seconds: u64, more: &[&str], report: &mut Report) -> Result<Run> {
        let own = [format!("--iodepth={depth}"), format!("--runtime={seconds}")];
        let mut args = RANDOM_WRITES.to_vec();
        args.extend(["--time_based", "--write_iops_log=series", "--log_avg_msec=1000"]);
        args.extend(own.iter().map(String::as_str).chain(more.iter().copied()));
        let scratch = self.wan.scratch.path();
        let cpu = Cpu::begin(&[("cistern", self.server.pid()), ("MinIO", self.wan.minio.pid())]);
        let (json, samples) = sampler::during(&self.server, &self.wan.link, || {
            fio::nbd(scratch, &self.server.uri(), &args, Duration::from_secs(seconds) + SLACK)
        })?;
        report.note(format!("depth {depth}: {}", cpu.shown()));
        let longest_s = fio::figures(&json, "write")?.max_us / 1e6;
        let mut seconds_seen = fio::per_second(scratch, "series")?;
        seconds_seen.truncate(seconds as usize); // what ended late is not a full second
        Ok(Run { seconds: seconds_seen, samples, flushes: fio::flushes(&json).ok(), longest_s })
    }

    /// Flushes of a server that has a file for a store, at the pace of `iops`, while the store takes what the link
    /// carries: the store is on the same disk and processors here, and whoever flushes beside it waits for both.
    fn plain_flushes(&self, iops: f64, seconds: u64) -> Result<Flushes> {
        let object = self.wan.scratch.file("object");
        std::fs::write(&object, random_bytes(OBJECT_BYTES, 1))?;
        let plain = Target::start(&self.wan.cistern(), Peer::NbdkitFile, 8, &[])?;
        let (rate, runtime) = (format!("--rate_iops={iops:.0}"), format!("--runtime={seconds}"));
        let load =
            [&RANDOM_WRITES[..], &["--iodepth=1", "--fsync=10", "--time_based", &rate, &runtime]].concat();
        let limit = Duration::from_secs(seconds) + SLACK;
        let is_over = AtomicBool::new(false);
        let (minio, port) = (&self.wan.minio, self.wan.link.port());
        let upload = |key: &str| -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                minio.put_through(port, key, &object)?;
            }
            Ok(())
        };
        let upload = &upload;
        let json = std::thread::scope(|threads| {
            let uploads = ["plain/1", "plain/2"].map(|key| threads.spawn(move || upload(key)));
            let json = fio::nbd(plain.scratch.path(), &plain.uri(), &load, limit);
            is_over.store(true, Ordering::Relaxed);
            for upload in uploads {
                upload.join().expect("an upload does not panic")?;
            }
            json
        })?;
        fio::flushes(&json)
    }

    /// Without limits what is still dirty is gone in a moment.
    fn finish(self) -> Result<()> {
        self.wan.widen();
        self.server.stop()
    }
}

/// Depth 1 with a flush every ten writes, and depth 32 without flushes.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let seconds = if plan.quick { 60 } else { 600 };
    let paced = Paced::start(plan, report)?;
    let run = paced.write(1, seconds, &["--fsync=10"], report)?;
    let plain = paced.plain_flushes(median(run.seconds.clone()), plan.seconds(60))?;
    paced.finish()?;
    flushed_rows(&run, &plain, report)?;
    let seconds = if plan.quick { 30 } else { 180 };
    let paced = Paced::start(plan, report)?;
    let run = paced.write(32, seconds, &[], report)?;
    paced.finish()?;
    let picture = run.save("paced-depth-32", "4 KiB random writes, depth 32, 20 ms and 30 MB/s")?;
    report.row(
        "4 KiB random write, depth 32, no flush, 30 MB/s: slowest second",
        format!("{:.0} IOPS", run.slowest()),
        format!("median {:.0}, longest request {:.2} s", median(run.seconds.clone()), run.longest_s),
        run.slowest(),
        Bound::AtLeast(1.0),
    );
    report.note(format!("second by second: {picture}"));
    Ok(())
}

fn flushed_rows(run: &Run, plain: &Flushes, report: &mut Report) -> Result<()> {
    let picture =
        run.save("paced-depth-1", "4 KiB random writes, depth 1, FLUSH every 10, 20 ms and 30 MB/s")?;
    let middle = median(run.seconds.clone());
    report.row(
        "4 KiB random write, depth 1, FLUSH every 10, 30 MB/s: slowest second of the median second",
        format!("{:.0} IOPS", run.slowest()),
        format!("median {middle:.0} of {} s", run.seconds.len()),
        run.slowest() / middle,
        Bound::AtLeast(0.5),
    );
    let full_from = run.full_from()?;
    let full = median(run.seconds[full_from..].to_vec());
    report.row(
        "the same, once the link sets the pace: bytes written of the link's rate",
        format!("{full:.0} IOPS = {:.1} MB/s", full * BLOCK_BYTES / 1e6),
        format!("{} MB/s, from second {full_from} on", GOOD.1),
        full * BLOCK_BYTES / (GOOD.1 as f64 * 1e6),
        Bound::AtLeast(0.9),
    );
    let flushes = run.flushes.context("no flushes were timed")?;
    report.row(
        "the same: p99.9 of a FLUSH of its median",
        format!("{:.0} us", flushes.p99_9_us),
        format!(
            "median {:.0} us, longest {:.0} us, {} of them",
            flushes.p50_us, flushes.max_us, flushes.count
        ),
        flushes.p99_9_us / flushes.p50_us,
        Bound::NoWorseThan { most: 10.0, plain: plain.p99_9_us / flushes.p50_us },
    );
    report.note(format!(
        "FLUSH of nbdkit on a file at this pace, beside a store that takes the link's rate: p99.9 {:.0} us = {:.0} \
         times its median {:.0} us, longest {:.0} us",
        plain.p99_9_us,
        plain.p99_9_us / plain.p50_us,
        plain.p50_us,
        plain.max_us
    ));
    report.note(format!("longest write {:.2} s; second by second: {picture}", run.longest_s));
    Ok(())
}

/// How much of the link write-back uses while more is dirty than can be uploaded.
pub fn upload(plan: &Plan, report: &mut Report) -> Result<()> {
    let paced = Paced::start(plan, report)?;
    let run = paced.write(32, plan.seconds(90), &[], report)?;
    paced.finish()?;
    let from = run.samples.iter().position(|s| s.at_s >= run.full_from().unwrap_or(0) as f64);
    let full = &run.samples[from.context("never full")?..];
    let (first, last) = (full.first().context("no samples")?, full.last().context("no samples")?);
    let rate = (last.up_bytes - first.up_bytes) as f64 / 1e6 / (last.at_s - first.at_s);
    report.row(
        "upload of random writes, 20 ms and 30 MB/s: of the link's rate",
        format!("{rate:.2} MB/s over {:.0} s", last.at_s - first.at_s),
        format!("{} MB/s", GOOD.1),
        rate / GOOD.1 as f64,
        Bound::AtLeast(0.95),
    );
    let picture = run.save("upload", "Upload of 4 KiB random writes, depth 32, 20 ms and 30 MB/s")?;
    report.note(format!("second by second: {picture}"));
    Ok(())
}
