//! 4 KiB random reads of what is local: out of the chunk cache against a raw file, out of memory against memory.
//!
//! Servers run side by side and are measured in turns, so that what disturbs one disturbs the other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fio::{self, Figures},
    fixture,
    scratch::Scratch,
    serve::Server,
};

use super::{
    Plan,
    peers::{Peer, Target},
    report::{Bound, Report, median},
};

/// How the data came to be: consecutive blocks share frames, scattered ones have one each.
const FILLS: [(&str, &[&str]); 2] = [
    ("written in order", &["--rw=write", "--bs=1m", "--iodepth=8"]),
    ("written at random", &["--rw=randwrite", "--bs=4k", "--iodepth=32"]),
];
/// Memory that holds next to nothing of the data: all reads go to the disk.
const LITTLE_MEMORY: &str = "64M";
/// Memory whose share for data holds the hot set.
const MUCH_MEMORY: &str = "1G";
const HOT_MIB: u64 = 64;
/// Reads of everything, before all of it is in the cache: fills are dropped when the disk is busy.
const PASSES_MAX: usize = 20;
/// Seconds of random reads that have to find everything.
const PROBE_S: u64 = 3;
/// One read in so many may miss in a run that counts: a fill that took another's place.
const MISSES_ONE_IN: u64 = 1000;
/// A run or a pass that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(1800);

/// A volume all of whose data is in the chunk cache.
struct Warm {
    server: Server,
    scratch: Scratch,
}

impl Warm {
    /// Fills `mib` MiB of a new volume, uploads, and reads until nothing is missed any more.
    fn start(plan: &Plan, mib: u64, memory: &str, fill: &[&str]) -> Result<Warm> {
        let scratch = Scratch::new("bench-cached")?;
        let url = fixture::directory_url(&scratch)?;
        plan.cistern.run(&["create", &url, "--size", &format!("{mib}M")])?;
        let cache = format!("{}M", mib + mib / 4 + 64);
        let args = ["--cache-size", &cache, "--memory", memory];
        let server = plan.cistern.serve(&scratch, &url).args(args).start()?;
        let warm = Warm { server, scratch };
        let size = format!("--size={mib}m");
        warm.fio(&[fill, &["--refill_buffers", &size]].concat())?;
        warm.server.wait_clean()?;
        for _ in 0..PASSES_MAX {
            warm.fio(&["--rw=read", "--bs=1m", "--iodepth=4", &size])?;
            // What a stream got ahead of its reads counts as no miss, so only random reads tell.
            let misses = warm.misses()?;
            random_reads(&warm.scratch, &warm.server.uri(), mib, PROBE_S)?;
            if warm.misses()? == misses {
                return Ok(warm);
            }
        }
        anyhow::bail!("the cache still misses after {PASSES_MAX} passes")
    }

    fn fio(&self, args: &[&str]) -> Result<()> {
        fio::nbd(self.scratch.path(), &self.server.uri(), args, LIMIT).map(drop)
    }

    fn misses(&self) -> Result<u64> {
        let status = self.server.status()?;
        status.pointer("/daemons/0/cache/misses").and_then(|n| n.as_u64()).context("status has no misses")
    }

    /// Figures of a run, and microseconds of the daemon's CPU time per request.
    fn measure(&self, mib: u64, seconds: u64) -> Result<(Figures, f64)> {
        let (cpu, misses) = (self.server.usage()?.cpu, self.misses()?);
        let figures = random_reads(&self.scratch, &self.server.uri(), mib, seconds)?;
        let cpu = self.server.usage()?.cpu - cpu;
        let (missed, requests) = (self.misses()? - misses, figures.bytes / 4096);
        ensure!(missed * MISSES_ONE_IN <= requests, "{missed} of {requests} reads were not in the cache");
        Ok((figures, cpu.as_secs_f64() * 1e6 / requests as f64))
    }
}

fn random_reads(scratch: &Scratch, uri: &str, mib: u64, seconds: u64) -> Result<Figures> {
    let (size, time) = (format!("--size={mib}m"), format!("--runtime={seconds}"));
    let load = ["--rw=randread", "--bs=4k", "--iodepth=32", "--norandommap", "--time_based", &size, &time];
    fio::figures(&fio::nbd(scratch.path(), uri, &load, LIMIT)?, "read")
}

/// Measures both in turns: medians of ours, of theirs, and of our CPU time per request.
fn in_turns(plan: &Plan, ours: &Warm, theirs: &Target, mib: u64) -> Result<[f64; 3]> {
    let seconds = plan.seconds(10);
    let mut values = [const { Vec::new() }; 3];
    for _ in 0..plan.rounds() {
        let (figures, cpu) = ours.measure(mib, seconds)?;
        let peer = random_reads(&theirs.scratch, &theirs.uri(), mib, seconds)?;
        for (values, value) in values.iter_mut().zip([figures.iops, peer.iops, cpu]) {
            values.push(value);
        }
    }
    Ok(values.map(median))
}

/// Both rows of the table: from the chunk cache on disk, and from memory.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let gib = plan.gib(4);
    for (how, fill) in FILLS {
        let ours = Warm::start(plan, gib << 10, LITTLE_MEMORY, fill)?;
        let theirs = Target::start(&plan.cistern, Peer::QemuNbd, gib, &[])?;
        let [iops, peer, cpu] = in_turns(plan, &ours, &theirs, gib << 10)?;
        report.row(
            &format!("4 KiB random read, depth 32, in the chunk cache, {how}"),
            format!("{iops:.0} IOPS"),
            format!("{} on a raw file {peer:.0}", Peer::QemuNbd.name()),
            iops / peer,
            Bound::AtLeast(0.9),
        );
        report.row(
            &format!("the same: CPU of the whole daemon per request, us, {how}"),
            format!("{cpu:.1} us"),
            "engine, protocol and kernel together".into(),
            cpu,
            Bound::AtMost(12.0),
        );
    }
    let ours = Warm::start(plan, HOT_MIB, MUCH_MEMORY, FILLS[0].1)?;
    let theirs = Target::start(&plan.cistern, Peer::NbdkitMemory, 1, &[])?;
    let (uri, size) = (theirs.uri(), format!("--size={HOT_MIB}m"));
    fio::nbd(theirs.scratch.path(), &uri, &["--rw=write", "--bs=1m", "--refill_buffers", &size], LIMIT)?;
    // Once through in the size that is measured: that is what memory holds.
    ours.fio(&["--rw=randread", "--bs=4k", "--iodepth=32", &size])?;
    let [iops, peer, cpu] = in_turns(plan, &ours, &theirs, HOT_MIB)?;
    report.row(
        "4 KiB random read, depth 32, hot in memory",
        format!("{iops:.0} IOPS, {cpu:.1} us of CPU per request"),
        format!("nbdkit memory {peer:.0}"),
        iops / peer,
        Bound::AtLeast(0.7),
    );
    Ok(())
}
