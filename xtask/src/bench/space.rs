//! What overwriting costs once space has to come back: room per live byte, bytes put per byte written, and what is left of
//! a volume that was trimmed. In directory stores, with a grace of ten seconds: what is in grace is told apart.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cistern_harness::{
    fixture,
    nbd::{Client, Dialect},
    serve::Server,
    tree,
};
use serde_json::Value;

use super::{
    Plan,
    cleaner_model::Overwrites,
    loads,
    peers::{Peer, Target},
    report::{Bound, Report, median},
    sampler,
};

const MIB: f64 = (1u64 << 20) as f64;
const GRACE: Duration = Duration::from_secs(10);
/// How often the store is looked at while it is overwritten.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Size of the volume, and the part of it that is in use: so much that two rounds of the cleaner are little of what may be garbage.
const VOLUME_GIB: u64 = 4;
/// What waits in it for write-back, an eighth, is more than a fiftieth of what is in use, without what is under way.
const JOURNAL_SIZE: &str = "1G";
const IN_USE: f64 = 0.8;
/// Overwrites come at this pace, which the machine can keep up with beside the cleaner.
const PACE_MIB: u64 = 40;
/// The bound of the volume, and what it is to cost.
pub const RATIO: &str = "1.3";
const RATIO_MAX: f64 = 1.3;
const PUT_PER_BYTE_MAX: f64 = 2.5;
/// How far above the limit of any cleaner at the same ratio, or above a plain one, this one may lie.
const MODEL_MAX: f64 = 1.05;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    overwritten(plan, report, "uniform", 0.0, PUT_PER_BYTE_MAX)?;
    overwritten(plan, report, "zipf 0.99", 0.99, 1.2)?;
    trimmed(plan, report)
}

pub fn in_use_mib() -> u64 {
    ((VOLUME_GIB << 10) as f64 * IN_USE) as u64
}

/// A volume that is filled as far as it is to be in use.
pub fn filled(plan: &Plan, more: &[&str]) -> Result<Target> {
    let grace = format!("{}s", GRACE.as_secs());
    let args = [&["--grace", &grace, "--journal-size", JOURNAL_SIZE], more].concat();
    let target = Target::start(&plan.cistern, Peer::Cistern, VOLUME_GIB, &args)?;
    let size = format!("--size={}m", in_use_mib());
    loads::write(&target, &["--rw=write", "--bs=1m", "--iodepth=8", &size, "--refill_buffers"], GRACE)?;
    target.cistern().context("it is cistern")?.wait_clean()?;
    Ok(target)
}

/// Random overwrites of several times what is in use, the n-th most frequent block n^-`skew` times as often as the first.
fn overwritten(plan: &Plan, report: &mut Report, name: &str, skew: f64, put_max: f64) -> Result<()> {
    let target = filled(plan, &["--space-bound", RATIO])?;
    let server = target.cistern().context("it is cistern")?;
    let url = fixture::directory_url(&target.scratch)?;
    let times = if plan.quick { 1 } else { 5 };
    let (size, rate) = (format!("--size={}m", in_use_mib()), format!("--rate={PACE_MIB}m"));
    let io_size = format!("--io_size={}m", in_use_mib() * times);
    let own = [
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=32",
        "--norandommap",
        "--refill_buffers",
        &size,
        &rate,
        &io_size,
    ];
    let zipf = (skew > 0.0).then(|| format!("--random_distribution=zipf:{skew}"));
    let args: Vec<&str> = own.into_iter().chain(zipf.as_deref()).collect();
    let planned = Duration::from_secs(in_use_mib() * times / PACE_MIB);
    let (before, reached, cpu) = (put_bytes(server)?, written_bytes(server)?, server.usage()?.cpu);
    let look = || ratios(&plan.cistern.run(&["check", &url, "--space", "--json"])?.stdout);
    let (figures, looks) = sampler::looking(LOOK_EVERY, look, || loads::write(&target, &args, planned * 3))?;
    server.wait_clean()?;
    let written = (in_use_mib() * times) as f64 * MIB;
    let put = (put_bytes(server)? - before) / written;
    let reach = (written_bytes(server)? - reached) / written;
    let (warm, with_dead): (Vec<f64>, Vec<f64>) = looks[looks.len() / 4..].iter().copied().unzip();
    let (middle, most) = (median(warm.clone()), warm.iter().copied().fold(0.0, f64::max));
    let cpu = (server.usage()?.cpu - cpu).as_secs_f64();
    report.row(
        &format!(
            "4 KiB overwrites, {name}, {:.0} % full: segments per live byte, at the most",
            IN_USE * 100.0
        ),
        format!("{most:.3}, median {middle:.3}"),
        format!(
            "{} looks, without what waits to be deleted or retired ({:.3} with segments of which nothing is live); \
             {:.0} IOPS, {cpu:.0} s of CPU",
            warm.len(),
            with_dead.iter().copied().fold(0.0, f64::max),
            figures.iops
        ),
        most,
        Bound::AtMost(RATIO_MAX),
    );
    report.row(
        &format!("the same, {name}: bytes put per byte written"),
        format!("{put:.2}"),
        format!(
            "{reach:.2} of them without the cleaner; {:.2} is the uniform limit at that median",
            limit(middle)
        ),
        put,
        Bound::AtMost(put_max),
    );
    let (of, model) = match skew > 0.0 {
        true => {
            let blocks = (in_use_mib() << 8) as usize;
            let overwrites = Overwrites::zipf(blocks, blocks * times as usize, skew);
            ("a plain cleaner in memory", overwrites.put_per_write(reach.min(1.0), middle))
        }
        false => ("the limit", limit(middle)),
    };
    report.row(
        &format!("the same, {name}: of {of} at the same ratio"),
        format!("{:.2}", put / model),
        format!("{model:.2} of it; map, checkpoints and grace included here"),
        put / model,
        Bound::AtMost(MODEL_MAX),
    );
    Ok(())
}

/// Everything is trimmed, and then nothing is done.
fn trimmed(plan: &Plan, report: &mut Report) -> Result<()> {
    let target = filled(plan, &[])?;
    let server = target.cistern().context("it is cistern")?;
    let peak = stored_bytes(&target);
    let read = fetched_bytes(server)?;
    let mut client = Client::connect(&target.socket, "", Dialect::Simple)?;
    for gib in 0..VOLUME_GIB {
        client.trim(gib << 30, 1 << 30)?;
    }
    client.flush()?;
    client.close()?;
    let begin = Instant::now();
    let limit = Duration::from_secs(300);
    while stored_bytes(&target) > peak / 100.0 && begin.elapsed() < limit {
        std::thread::sleep(Duration::from_secs(1)); // nobody tells when it is so far
    }
    let left = stored_bytes(&target);
    report.row(
        "filled, trimmed, left alone: what is left of the peak",
        format!("{:.2} MiB", left / MIB),
        format!(
            "of {:.0} MiB, after {:.0} s; {:.1} MiB read",
            peak / MIB,
            begin.elapsed().as_secs_f64(),
            (fetched_bytes(server)? - read) / MIB
        ),
        left / peak,
        Bound::AtMost(0.01),
    );
    Ok(())
}

/// Stored bytes of segments per live byte, as `check --space` finds them; and the same with those of which nothing is live,
/// which only wait for a checkpoint.
fn ratios(report: &str) -> Result<(f64, f64)> {
    let report: Value = serde_json::from_str(report)?;
    let bytes = |what: &str| report["space"][what]["bytes"].as_f64().context("no sum of bytes");
    let live = report["space"]["live_bytes"].as_f64().context("no live_bytes")?;
    Ok((bytes("segments")? / live, (bytes("segments")? + bytes("dead")?) / live))
}

/// Of the requests that the daemon's meter counts.
fn bytes_of(server: &Server, is_wanted: fn(&str) -> bool) -> Result<f64> {
    let status = server.observed()?;
    let kinds = status.pointer("/daemons/0/volumes/0/store/kinds").and_then(Value::as_array);
    let kinds = kinds.context("no kinds of requests in the status")?;
    let wanted = kinds.iter().filter(|kind| kind["kind"].as_str().is_some_and(is_wanted));
    Ok(wanted.filter_map(|kind| kind["bytes"].as_f64()).sum())
}

fn put_bytes(server: &Server) -> Result<f64> {
    bytes_of(server, |kind| kind.starts_with("put"))
}

/// Of segments with what clients wrote.
fn written_bytes(server: &Server) -> Result<f64> {
    let status = server.status()?;
    let written = status.pointer("/daemons/0/volumes/0/space/counters/written_bytes").and_then(Value::as_f64);
    written.context("no written_bytes in the status")
}

fn fetched_bytes(server: &Server) -> Result<f64> {
    bytes_of(server, |kind| kind.starts_with("get"))
}

/// Everything in the directory.
fn stored_bytes(target: &Target) -> f64 {
    tree::bytes(&target.scratch.path().join("store")) as f64
}

/// Bytes put per byte written that any cleaner needs at this ratio if all blocks are overwritten equally often: with y
/// overwrites per block while a segment waits, ratio = y / (1 - e^-y) and puts = 1 / (1 - e^-y) (docs/design/prices.md).
pub fn limit(ratio: f64) -> f64 {
    let (mut low, mut high) = (1e-6, 50.0);
    for _ in 0..100 {
        let y: f64 = f64::midpoint(low, high);
        if y / -f64::exp_m1(-y) < ratio { low = y } else { high = y }
    }
    1.0 / -f64::exp_m1(-low)
}
