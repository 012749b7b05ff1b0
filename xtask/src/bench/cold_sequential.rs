//! Sequential reads of what is nowhere near: how much of a link they use, and how much of a server.
//!
//! Every run has a host of its own with empty directories. MinIO has the objects in the page cache; how
//! fast it hands them to a plain client is measured beside it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cistern_harness::{fio, serve::Cistern};

use super::{
    Plan,
    report::{Bound, Report, median},
    wan::{Cpu, GOOD, Wan},
};

const LIMIT: Duration = Duration::from_secs(600);
const LINK_SHARE_MIN: f64 = 0.9;
const BESIDE_MIB_MIN: f64 = 400.0;
const DEPTHS: [u32; 2] = [1, 8];
/// How many objects a plain client fetches at once.
pub(super) const PLAIN_PARALLEL: usize = 8;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start(plan, "8G")?;
    let mib = if plan.quick { 512 } else { 2048 };
    write(&wan, mib)?;
    let plain = plain_rate(&wan)?;
    for depth in DEPTHS {
        beside(plan, &wan, depth, mib, plain, report)?;
    }
    wan.limit(GOOD, report)?;
    for depth in DEPTHS {
        let mib = if plan.quick { 128 } else { 768 };
        let (rate, cpu) = read(&wan, &wan.cistern(), depth, mib)?;
        let mb = rate * 1.048_576;
        report.row(
            &format!("1 MiB sequential read, cold, depth {depth}, 20 ms and 30 MB/s: of the link's rate"),
            format!("{mb:.1} MB/s"),
            format!("{} MB/s", GOOD.1),
            mb / GOOD.1 as f64,
            Bound::AtLeast(LINK_SHARE_MIN),
        );
        report.note(format!("depth {depth}: {cpu}"));
    }
    Ok(())
}

/// Fills the beginning of the volume with incompressible bytes and leaves.
fn write(wan: &Wan, mib: u64) -> Result<()> {
    let server = wan.host(&wan.cistern_beside(), "writer").args(["--cache-size", "0"]).start()?;
    let size = format!("--size={mib}m");
    let job = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", &size];
    fio::nbd(wan.scratch.path(), &server.uri(), &job, LIMIT)?;
    server.stop()?;
    wan.forget("writer");
    Ok(())
}

/// Without a link: what cistern itself reaches.
fn beside(plan: &Plan, wan: &Wan, depth: u32, mib: u64, plain: f64, report: &mut Report) -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..plan.rounds() {
        let (rate, cpu) = read(wan, &wan.cistern_beside(), depth, mib)?;
        rates.push(rate);
        report.note(format!("depth {depth} from the server beside it: {rate:.0} MiB/s; {cpu}"));
    }
    let rate = median(rates);
    let what = format!("1 MiB sequential read, cold, depth {depth}, from MinIO beside it");
    if depth > 1 {
        let against = format!("curl, {PLAIN_PARALLEL} objects at once, {plain:.0} MiB/s");
        report.row(&what, format!("{rate:.0} MiB/s"), against, rate, Bound::AtLeast(BESIDE_MIB_MIN));
    } else {
        report.note(format!("{what}: {rate:.0} MiB/s"));
    }
    Ok(())
}

/// MiB/s of one pass on a new host, and what it cost.
fn read(wan: &Wan, cistern: &Cistern, depth: u32, mib: u64) -> Result<(f64, String)> {
    let server = wan.host(cistern, "reader").args(["--cache-size", "8G"]).start()?;
    let cpu = Cpu::begin(&[("cistern", server.pid()), ("MinIO", wan.minio.pid())]);
    let (depth, size) = (format!("--iodepth={depth}"), format!("--size={mib}m"));
    let json = fio::nbd(wan.scratch.path(), &server.uri(), &["--rw=read", "--bs=1m", &depth, &size], LIMIT)?;
    let cpu = cpu.shown();
    server.stop()?;
    wan.forget("reader");
    let figures = fio::figures(&json, "read")?;
    let rate = figures.bytes as f64 / (1 << 20) as f64 / (figures.runtime_ms.max(1) as f64 / 1e3);
    Ok((rate, cpu))
}

/// MiB/s at which a plain client gets whole objects from MinIO.
pub(super) fn plain_rate(wan: &Wan) -> Result<f64> {
    let keys = wan.objects("log")?;
    let minio = &wan.minio;
    let begin = Instant::now();
    let bytes: u64 = std::thread::scope(|scope| {
        let part = keys.len().div_ceil(PLAIN_PARALLEL).max(1);
        let threads: Vec<_> = keys.chunks(part).map(|keys| scope.spawn(move || minio.fetch(keys))).collect();
        threads.into_iter().map(|t| t.join().expect("curl's thread does not panic")).sum::<Result<u64>>()
    })
    .context("curl")?;
    Ok(bytes as f64 / (1 << 20) as f64 / begin.elapsed().as_secs_f64())
}
