//! What a reader waits while write-back and merges of the map have the link, on an aged volume.
//!
//! The reader asks for one block at a time. *Cached*: a window that was read before. *Uncached*:
//! blocks nobody read on this host. The writer keeps to other blocks, at a depth that fills the link.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use cistern_harness::{
    fio::{self, Figures},
    serve::Server,
};

use super::{
    Plan,
    peers::{Peer, Target},
    report::{Bound, Report},
    sampler,
    wan::{Cpu, GOOD, Wan},
};

const LIMIT: Duration = Duration::from_secs(900);
/// The part that is read, in MiB; the rest of the volume is the writer's.
const AGED_MIB: u64 = 2048;
const AGED_MIB_QUICK: u64 = 1024;
/// The window that fits the chunk cache, and does not fit the memory: most of it comes from the disk.
const CACHED_MIB: u64 = 384;
/// Most that may be dirty: soon full, so that write-back goes as fast as it can.
const DIRTY: &str = "256M";
const DIRTY_BYTES: f64 = (256u64 << 20) as f64;
const CACHED_FACTOR_MAX: f64 = 2.0;
const UNCACHED_ROUND_TRIPS_MAX: f64 = 3.0;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start_gentle(plan, "16G")?;
    let aged_mib = if plan.quick { AGED_MIB_QUICK } else { AGED_MIB };
    age(&wan, aged_mib)?;
    let args = ["--cache-size", "8G", "--journal-size", "2G", "--max-dirty-bytes", DIRTY];
    let server = wan.host(&wan.cistern(), "reader").args(args).start()?;
    let plain = Target::start(&wan.cistern(), Peer::QemuNbd, 1, &[])?;
    let reader =
        Reader { server: &server, plain, dir: wan.scratch.dir("reading")?, seconds: plan.seconds(20) };
    reader.warm()?;
    wan.limit(GOOD, report)?;
    let idle_plain = reader.plain()?;
    let idle_cached = reader.cached()?;
    let idle_uncached = reader.uncached(aged_mib / 2, aged_mib / 4)?;
    let under = under_load(&wan, &server, report, || {
        let (mut plain, mut cached) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds() {
            plain.push(reader.plain()?);
            cached.push(reader.cached()?);
        }
        Ok((middle(cached), reader.uncached(aged_mib / 4 * 3, aged_mib / 4)?, middle(plain)))
    })?;
    rows(&(idle_cached, idle_uncached, idle_plain), &under, report);
    wan.widen();
    server.stop()
}

/// Fills the volume's beginning and overwrites it at random with twice its size.
fn age(wan: &Wan, mib: u64) -> Result<()> {
    let server = wan.host(&wan.cistern_beside(), "writer").args(["--cache-size", "0"]).start()?;
    let (size, twice) = (format!("--size={mib}m"), format!("--io_size={}m", 2 * mib));
    let fill = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", &size];
    fio::nbd(wan.scratch.path(), &server.uri(), &fill, LIMIT)?;
    let overwrite =
        ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", "--refill_buffers", &size, &twice];
    fio::nbd(wan.scratch.path(), &server.uri(), &overwrite, LIMIT)?;
    server.stop()?;
    wan.forget("writer");
    Ok(())
}

const RANDOM_READS: [&str; 3] = ["--rw=randread", "--bs=4k", "--time_based"];

struct Reader<'a> {
    server: &'a Server,
    plain: Target,
    dir: PathBuf,
    seconds: u64,
}

impl Reader<'_> {
    /// Reads the window, through the link without limits; twice, as the cache may drop what comes too fast.
    fn warm(&self) -> Result<()> {
        let size = format!("--size={CACHED_MIB}m");
        let pass = ["--rw=read", "--bs=64k", "--iodepth=16", &size];
        (0..2).try_for_each(|_| fio::nbd(&self.dir, &self.server.uri(), &pass, LIMIT).map(drop))
    }

    fn cached(&self) -> Result<Figures> {
        self.read(&["--norandommap", &format!("--size={CACHED_MIB}m")])
    }

    /// No block twice: from `from_mib` on, over `mib`.
    fn uncached(&self, from_mib: u64, mib: u64) -> Result<Figures> {
        self.read(&[&format!("--offset={from_mib}m"), &format!("--size={mib}m")])
    }

    /// The same reads from a server that has a file on the disk that carries journal, cache and store.
    fn plain(&self) -> Result<Figures> {
        self.read_from(&self.plain.uri(), &["--norandommap", &format!("--size={CACHED_MIB}m")])
    }

    fn read(&self, more: &[&str]) -> Result<Figures> {
        self.read_from(&self.server.uri(), more)
    }

    fn read_from(&self, uri: &str, more: &[&str]) -> Result<Figures> {
        let runtime = format!("--runtime={}", self.seconds);
        let args = [&RANDOM_READS[..], &["--iodepth=1", &runtime], more].concat();
        let json = fio::nbd(&self.dir, uri, &args, LIMIT)?;
        fio::figures(&json, "read")
    }
}

/// Runs `measure` while a writer keeps write-back at the link's rate.
fn under_load<T>(
    wan: &Wan,
    server: &Server,
    report: &mut Report,
    measure: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let load = ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", "--refill_buffers"];
    let place = ["--offset=8g", "--size=4g", "--time_based", "--runtime=3600"];
    let cpu = Cpu::begin(&[("cistern", server.pid()), ("MinIO", wan.minio.pid())]);
    let writer = fio::background(&wan.scratch.dir("writing")?, &server.uri(), &[&load[..], &place].concat())?;
    sampler::await_dirty(server, DIRTY_BYTES / 2.0, LIMIT)?;
    let (measured, samples) = sampler::during(server, &wan.link, measure)?;
    drop(writer);
    let (first, last) = (samples.first().context("no samples")?, samples.last().context("no samples")?);
    let rate = (last.up_bytes - first.up_bytes) as f64 / 1e6 / (last.at_s - first.at_s).max(1e-3);
    report.note(format!("write-back and merges uploaded {rate:.1} MB/s meanwhile; {}", cpu.shown()));
    Ok(measured)
}

/// The round with the middle p99; of an even number, the lower.
fn middle(mut rounds: Vec<Figures>) -> Figures {
    rounds.sort_by(|a, b| a.p99_us.total_cmp(&b.p99_us));
    rounds.swap_remove((rounds.len() - 1) / 2)
}

/// Of cached and uncached reads, and of a plain server's.
type Seen = (Figures, Figures, Figures);

fn rows(idle: &Seen, under: &Seen, report: &mut Report) {
    report.note(format!(
        "p99 of qemu-nbd on a raw file: idle {:.0} us, beside the same write-back {:.0} us = {:.2} times",
        idle.2.p99_us,
        under.2.p99_us,
        under.2.p99_us / idle.2.p99_us
    ));
    report.row(
        "4 KiB read, depth 1, cached, p99 while write-back has a link of 20 ms and 30 MB/s",
        format!("{:.0} us", under.0.p99_us),
        format!("idle {:.0} us (medians {:.0} and {:.0} us)", idle.0.p99_us, under.0.p50_us, idle.0.p50_us),
        under.0.p99_us / idle.0.p99_us,
        Bound::NoWorseThan { most: CACHED_FACTOR_MAX, plain: under.2.p99_us / idle.0.p99_us },
    );
    let round_trip_us = GOOD.0 as f64 * 1e3;
    report.row(
        "4 KiB read, depth 1, uncached, p99 under the same load, in round trips",
        format!("{:.1} ms", under.1.p99_us / 1e3),
        format!(
            "idle {:.1} ms (medians {:.1} and {:.1} ms)",
            idle.1.p99_us / 1e3,
            under.1.p50_us / 1e3,
            idle.1.p50_us / 1e3
        ),
        under.1.p99_us / round_trip_us,
        Bound::AtMost(UNCACHED_ROUND_TRIPS_MAX),
    );
    let hits = under.1.p50_us < round_trip_us;
    if hits {
        report.note("most of the uncached reads did not cross the link: neighbours had been fetched".into());
    }
}
