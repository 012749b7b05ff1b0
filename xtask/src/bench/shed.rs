//! What clients feel of the removal of nearly all snapshots of a volume, and of the cleaning of what they held: the same load, below
//! what the disk can do, before it and from its beginning on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fio::{self, Figures},
    fixture,
    serve::Server,
};
use serde_json::Value;

use super::{
    Plan, beside_cleaner, loads,
    peers::{Peer, Target},
    report::{Bound, Report},
};

const LIMIT: Duration = Duration::from_secs(900);
const VOLUME_GIB: u64 = 1;
/// So little that what the snapshots hold is more than the cleaner leaves.
const IN_USE_MIB: u64 = 512;
const SNAPSHOTS: u64 = 1000;
const SNAPSHOTS_QUICK: u64 = 50;
const LOAD: [&str; 8] = [
    "--rw=randrw",
    "--rwmixread=50",
    "--bs=4k",
    "--iodepth=8",
    "--rate_iops=1000,1000",
    "--norandommap",
    "--refill_buffers",
    "--time_based",
];
const FACTOR_MAX: f64 = 1.2;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let count = if plan.quick { SNAPSHOTS_QUICK } else { SNAPSHOTS };
    let args = ["--grace", "10s", "--max-dirty-age", "2s", "--space-bound", "1.3"];
    let target = Target::start(&plan.cistern, Peer::Cistern, VOLUME_GIB, &args)?;
    let server = target.cistern().context("it is cistern")?;
    let url = fixture::directory_url(&target.scratch)?;
    let size = format!("--size={IN_USE_MIB}m");
    loads::write(&target, &["--rw=write", "--bs=1m", "--iodepth=8", &size, "--refill_buffers"], LIMIT)?;
    let load = |seconds: u64| {
        let runtime = format!("--runtime={seconds}");
        let own = [&LOAD[..], &[&size, &runtime]].concat();
        fio::nbd(target.scratch.path(), &server.uri(), &own, LIMIT)
    };
    make(server, &url, count, &load)?;
    server.wait_clean()?;
    let before = Both::of(&load(plan.seconds(60))?)?;
    let moved = beside_cleaner::moved_bytes(server)?;
    let (beside, took) = std::thread::scope(|scope| {
        let running = scope.spawn(|| load(plan.seconds(60)));
        let begin = Instant::now();
        let names: Vec<String> = (1..count).map(|n| format!("{url}@s{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let removed = server.ask(&[&["rm"], &names[..]].concat());
        let took = begin.elapsed();
        removed.map(|_| (running.join().expect("fio's thread does not panic"), took))
    })?;
    let beside = Both::of(&beside?)?;
    report.note(format!(
        "{} snapshots removed in {:.1} s, {} MB moved meanwhile and behind it",
        count - 1,
        took.as_secs_f64(),
        (beside_cleaner::moved_bytes(server)? - moved) / 1_000_000
    ));
    for (what, before, beside) in
        [("reads", before.read, beside.read), ("writes", before.write, beside.write)]
    {
        ensure!(beside.p99_us > 0.0, "there were {what}");
        report.row(
            &format!("4 KiB {what}, p99 beside the removal of {} of {count} snapshots", count - 1),
            format!("{:.2} ms", beside.p99_us / 1e3),
            format!("{:.2} ms before it", before.p99_us / 1e3),
            beside.p99_us / before.p99_us,
            Bound::AtMost(FACTOR_MAX),
        );
    }
    Ok(())
}

/// Makes snapshots one after the other, beside the load: so each holds something.
fn make(server: &Server, url: &str, count: u64, load: &(impl Fn(u64) -> Result<Value> + Sync)) -> Result<()> {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| load(count.div_ceil(20)));
        (0..count).try_for_each(|n| server.ask(&["snapshot", &format!("{url}@s{n}")]).map(drop))?;
        running.join().expect("fio's thread does not panic").map(drop)
    })
}

struct Both {
    read: Figures,
    write: Figures,
}

impl Both {
    fn of(report: &Value) -> Result<Both> {
        Ok(Both { read: fio::figures(report, "read")?, write: fio::figures(report, "write")? })
    }
}
