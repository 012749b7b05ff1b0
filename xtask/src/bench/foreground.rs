//! What overwrites as fast as they go lose to the cleaner: on one disk with the store, and where a link carries what both of
//! them send.

use std::time::Duration;

use anyhow::Result;
use cistern_harness::fio;

use super::{
    Plan, beside_cleaner, loads,
    report::{Bound, Report, median},
    space,
    wan::{Cpu, GOOD, Wan},
};

const LIMIT: Duration = Duration::from_secs(900);
const PART_MIN: f64 = 0.8;
/// In use behind the link, all of it.
const BEHIND_LINK_MIB: u64 = 512;
/// Until the journal is as full as it gets, and the link decides.
const RAMP: &str = "--ramp_time=15";
const AS_FAST_AS_IT_GOES: [&str; 5] =
    ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", "--time_based"];

pub fn directory(plan: &Plan, report: &mut Report) -> Result<()> {
    let runtime = format!("--runtime={}", plan.seconds(60));
    let measure = |bound: &str| -> Result<f64> {
        let target = space::filled(plan, &["--space-bound", bound])?;
        let size = format!("--size={}m", space::in_use_mib());
        let own = [&AS_FAST_AS_IT_GOES[..], &[&size, &runtime]].concat();
        Ok(loads::write(&target, &own, Duration::from_secs(60))?.iops)
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        with.push(measure(space::RATIO)?);
        without.push(measure("none")?);
    }
    row(report, "store on the same disk", with, without);
    Ok(())
}

/// One daemon in turns. What is overwritten while there is no bound is above it in the next turn: the cleaner has as much to do
/// as it can.
pub fn link(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start_apart(plan, &format!("{BEHIND_LINK_MIB}M"))?;
    let cache = format!("{}M", BEHIND_LINK_MIB / 16);
    let args = ["--journal-size", "128M", "--cache-size", &cache, "--space-bound", "none", "--grace", "10s"];
    beside_cleaner::fill(&wan, &args, BEHIND_LINK_MIB)?;
    wan.limit(GOOD, report)?;
    let server = wan.host(&wan.cistern(), "both").args(args.iter().copied()).start()?;
    let (size, runtime) = (format!("--size={BEHIND_LINK_MIB}m"), format!("--runtime={}", plan.seconds(60)));
    let own = [&AS_FAST_AS_IT_GOES[..], &["--refill_buffers", RAMP, &size, &runtime]].concat();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        for (bound, turns) in [("none", &mut without), (space::RATIO, &mut with)] {
            server.ask(&["set", &wan.url, &format!("space-bound={bound}")])?;
            server.wait_clean()?;
            let (moved, began_at) = (beside_cleaner::moved_bytes(&server)?, beside_cleaner::ratio(&server)?);
            let cpu = Cpu::begin(&[("cistern", server.pid()), ("MinIO", wan.minio.pid())]);
            let figures = fio::figures(&fio::nbd(wan.scratch.path(), &server.uri(), &own, LIMIT)?, "write")?;
            report.note(format!(
                "behind the link, space-bound {bound}: {:.0} IOPS, {} MB moved, stored per live byte {began_at:.2} to {:.2}; {}",
                figures.iops,
                (beside_cleaner::moved_bytes(&server)? - moved) / 1_000_000,
                beside_cleaner::ratio(&server)?,
                cpu.shown()
            ));
            turns.push(figures.iops);
        }
    }
    row(report, "20 ms and 30 MB/s", with, without);
    wan.widen();
    server.stop()
}

fn row(report: &mut Report, place: &str, with: Vec<f64>, without: Vec<f64>) {
    let (with, without) = (median(with), median(without));
    report.row(
        &format!("4 KiB overwrites as fast as they go, {place}: with the cleaner"),
        format!("{with:.0} IOPS"),
        format!("without {without:.0}"),
        with / without,
        Bound::AtLeast(PART_MIN),
    );
}
