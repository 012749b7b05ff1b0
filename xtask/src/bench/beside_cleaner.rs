//! What reads and flushes wait while the cleaner works: one daemon behind a link, the same load below what link and disk
//! can do, in turns with a bound and with none.
//!
//! What is overwritten while there is no bound is the cleaner's work of the next turn. A turn with a bound begins once the
//! cleaner has moved something, and counts only if it goes on moving.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{fio, serve::Server};
use serde_json::Value;

use super::{
    Plan,
    report::{Bound, Report, median},
    wan::{Cpu, GOOD, Wan},
};

const LIMIT: Duration = Duration::from_secs(900);
/// A round moves something in this time, behind the link.
const ROUND_MAX: Duration = Duration::from_secs(20);
/// In use, all of it, and overwritten.
const IN_USE_MIB: u64 = 1024;
const IN_USE_MIB_QUICK: u64 = 256;
const RATIO: &str = "1.2";
/// Overwrites; the cleaner moves about twice as much at this bound.
const WRITER: [&str; 5] = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--norandommap", "--rate=4m"];
/// Reads of what is nowhere near.
const READER: [&str; 5] = ["--rw=randread", "--bs=4k", "--iodepth=4", "--norandommap", "--rate_iops=100"];
/// Writes with a FLUSH behind each.
const FLUSHER: [&str; 6] =
    ["--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1", "--norandommap", "--rate_iops=50"];
const FACTOR_MAX: f64 = 1.2;

/// What one turn showed.
struct Turn {
    read_p99_us: f64,
    flush_p99_us: f64,
    shown: String,
}

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let mib = if plan.quick { IN_USE_MIB_QUICK } else { IN_USE_MIB };
    let wan = Wan::start_apart(plan, &format!("{mib}M"))?;
    // Write-back goes on all the time, in either turn.
    let aged = ["--journal-size", "256M", "--max-dirty-age", "2s"];
    // Of a sixteenth, which is what the map takes: without, every merge would be read back from the store, and what is
    // read would wait for that instead of the cleaner.
    let cache = format!("{}M", mib / 16);
    let args = [&["--cache-size", &cache, "--space-bound", "none", "--grace", "10s"], &aged[..]].concat();
    fill(&wan, &args, mib)?;
    wan.limit(GOOD, report)?;
    let server = wan.host(&wan.cistern(), "both").args(args.iter().copied()).start()?;
    let load = Load::new(&wan, &server, mib, plan.seconds(60))?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        for (bound, turns) in [("none", &mut alone), (RATIO, &mut beside)] {
            server.ask(&["set", &wan.url, &format!("space-bound={bound}")])?;
            let turn = load.turn(bound != "none")?;
            report.note(format!("space-bound {bound}: {}", turn.shown));
            turns.push(turn);
        }
    }
    rows(&alone, &beside, report);
    wan.widen();
    server.stop()
}

/// Filled in order, and as much overwritten at random, beside the store: so there is more to do than the turns take.
pub fn fill(wan: &Wan, args: &[&str], mib: u64) -> Result<()> {
    let server = wan.host(&wan.cistern_beside(), "both").args(args.iter().copied()).start()?;
    let size = format!("--size={mib}m");
    let order = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", &size];
    fio::nbd(wan.scratch.path(), &server.uri(), &order, LIMIT)?;
    let random = ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", "--refill_buffers", &size];
    fio::nbd(wan.scratch.path(), &server.uri(), &random, LIMIT)?;
    server.stop()
}

/// The load of every turn.
struct Load<'a> {
    wan: &'a Wan,
    server: &'a Server,
    /// Of the three fios: each leaves its files in one of its own.
    dirs: [PathBuf; 3],
    size: String,
    seconds: u64,
}

impl Load<'_> {
    fn new<'a>(wan: &'a Wan, server: &'a Server, mib: u64, seconds: u64) -> Result<Load<'a>> {
        let dirs = [wan.scratch.dir("writer")?, wan.scratch.dir("reader")?, wan.scratch.dir("flusher")?];
        Ok(Load { wan, server, dirs, size: format!("--size={mib}m"), seconds })
    }

    /// Waits until a round that was begun with a bound is over: nothing has been moved for a while.
    fn await_rest(&self) -> Result<()> {
        let (begin, mut moved, mut since) = (Instant::now(), moved_bytes(self.server)?, Instant::now());
        while since.elapsed() < ROUND_MAX {
            ensure!(begin.elapsed() < LIMIT, "the cleaner moves without a bound");
            std::thread::sleep(Duration::from_millis(500)); // nobody tells when it is so far
            let now = moved_bytes(self.server)?;
            if now != moved {
                (moved, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn turn(&self, cleaning: bool) -> Result<Turn> {
        let (uri, runtime) = (self.server.uri(), format!("--runtime={}", self.seconds));
        let [writing, reading, flushing] = &self.dirs;
        let ever = ["--refill_buffers", "--time_based", "--runtime=3600", &self.size];
        let writer = fio::background(writing, &uri, &[&WRITER[..], &ever].concat())?;
        let begin = Instant::now();
        if !cleaning {
            self.await_rest()?;
        }
        let first = moved_bytes(self.server)?;
        while cleaning && moved_bytes(self.server)? == first {
            ensure!(begin.elapsed() < LIMIT, "the cleaner moves nothing");
            std::thread::sleep(Duration::from_millis(200)); // nobody tells when it is so far
        }
        let (before, carried) = (moved_bytes(self.server)?, self.wan.link.carried());
        let began_at = ratio(self.server)?;
        let cpu = Cpu::begin(&[("cistern", self.server.pid()), ("MinIO", self.wan.minio.pid())]);
        let timed = ["--time_based", &runtime, &self.size];
        let (reads, flushes) = std::thread::scope(|scope| {
            let reads = scope.spawn(|| fio::nbd(reading, &uri, &[&READER[..], &timed].concat(), LIMIT));
            let flushes = fio::nbd(flushing, &uri, &[&FLUSHER[..], &timed].concat(), LIMIT);
            (reads.join().expect("fio's thread does not panic"), flushes)
        });
        let moved = moved_bytes(self.server)? - before;
        ensure!(cleaning == (moved > 0), "{moved} bytes were moved");
        drop(writer);
        let after = self.wan.link.carried();
        let (reads, flushes) = (fio::figures(&reads?, "read")?, fio::flushes(&flushes?)?);
        let rate = |bytes: u64| bytes as f64 / 1e6 / self.seconds as f64;
        let shown = format!(
            "reads p50 {:.1}, p99 {:.1} ms ({:.0} a second); FLUSH p50 {:.2}, p99 {:.2} ms ({} of them); moved {:.1} MB/s, \
             stored per live byte {began_at:.2} to {:.2}, link {:.1} MB/s up, {:.1} down; {}",
            reads.p50_us / 1e3,
            reads.p99_us / 1e3,
            reads.iops,
            flushes.p50_us / 1e3,
            flushes.p99_us / 1e3,
            flushes.count,
            rate(moved),
            ratio(self.server)?,
            rate(after.up - carried.up),
            rate(after.down - carried.down),
            cpu.shown()
        );
        Ok(Turn { read_p99_us: reads.p99_us, flush_p99_us: flushes.p99_us, shown })
    }
}

fn rows(alone: &[Turn], beside: &[Turn], report: &mut Report) {
    let reads = |turns: &[Turn]| median(turns.iter().map(|turn| turn.read_p99_us).collect());
    let flushes = |turns: &[Turn]| median(turns.iter().map(|turn| turn.flush_p99_us).collect());
    for (what, alone, beside) in [
        ("4 KiB random read, uncached", reads(alone), reads(beside)),
        ("FLUSH behind a 4 KiB write", flushes(alone), flushes(beside)),
    ] {
        report.row(
            &format!("{what}, p99 beside the cleaner, 20 ms and 30 MB/s"),
            format!("{:.2} ms", beside / 1e3),
            format!("{:.2} ms without", alone / 1e3),
            beside / alone,
            Bound::AtMost(FACTOR_MAX),
        );
    }
}

/// Since the daemon's start.
pub fn moved_bytes(server: &Server) -> Result<u64> {
    space(server, "/counters/moved_bytes")?.as_u64().context("no count of bytes")
}

/// Stored bytes per live byte, as the cleaner knows it; 0 until it does.
pub fn ratio(server: &Server) -> Result<f64> {
    Ok(space(server, "/ratio")?.as_f64().unwrap_or(0.0))
}

fn space(server: &Server, name: &str) -> Result<Value> {
    let status = server.status()?;
    let value = status.pointer(&format!("/daemons/0/volumes/0/space{name}"));
    value.cloned().with_context(|| format!("the status has no {name} of space"))
}
