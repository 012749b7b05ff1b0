//! FLUSH while write-back uploads to a directory on the journal's disk.
//!
//! Two states of one daemon in turns: write-back paused, and write-back running with so much dirty data that nothing but
//! what it finds on the disk holds it back, and so little that it need not hurry. A running turn neither uses that up nor
//! lets it grow until it must hurry; a paused one comes before it, with less. Takes 55 GB of the scratch directory's disk,
//! where nothing that was overwritten is deleted yet.

use std::{
    fs::File,
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fio::{self, Flushes},
    fixture::{self, random_bytes},
    scratch::Scratch,
    serve::Server,
};

use super::{
    Plan, loads,
    peers::{Peer, Target},
    report::{Bound, Report, median},
};

/// GiB of the journal, and the share of it that is dirty at the begin of a running turn: from 3/8 on the rate of uploads is
/// not limited, from 7/16 on they hurry, and from half on writes are slowed.
const ROOM_GIB: (u64, f64) = (20, 0.377);
const ROOM_GIB_QUICK: (u64, f64) = (5, 0.377);
const VOLUME_GIB: u64 = 9;
/// What of that is dirty at the begin of a paused turn, which adds to it.
const PAUSED_SHARE: f64 = 0.6;
/// With so much of the room dirty uploads hurry.
const HURRY_SHARE: f64 = 0.4375;
/// The part that the measured load writes at random; the filling goes behind it.
const WINDOW_GIB: u64 = 1;
/// Size of the files of the plain writer: an object such as write-back uploads.
const FILE_BYTES: usize = 16 << 20;
/// With no more than this dirty, write-back waits for age.
const IDLE_BYTES: u64 = 640 << 20;
/// A daemon that writes less has filled its journal.
const FILLED_BYTES_PER_S: u64 = 8 << 20;
/// Files that the plain writer keeps.
const FILES: u64 = 64;
const P99_FACTOR_MAX: f64 = 1.5;
const P99_9_FACTOR_MAX: f64 = 2.0;
const SLOWEST_SHARE_MIN: f64 = 0.5;

/// What one turn showed.
struct Turn {
    flushes: Flushes,
    median_iops: f64,
    /// The slowest second of the median second.
    slowest_share: f64,
}

impl Turn {
    /// 4 KiB random writes, one at a time, a FLUSH every ten.
    fn of(target: &Target, seconds: u64) -> Result<Turn> {
        let (runtime, size) = (format!("--runtime={seconds}"), format!("--size={WINDOW_GIB}g"));
        let load =
            ["--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=10", "--norandommap", "--time_based"];
        let log = ["--refill_buffers", "--write_iops_log=series", "--log_avg_msec=1000", &runtime, &size];
        let limit = Duration::from_secs(seconds) + loads::SLACK;
        let json = fio::nbd(target.scratch.path(), &target.uri(), &[&load[..], &log].concat(), limit)?;
        let mut each = fio::per_second(target.scratch.path(), "series")?;
        each.truncate(seconds as usize); // what ended late is not a full second
        let slowest = each.iter().copied().fold(f64::INFINITY, f64::min);
        let median_iops = median(each);
        Ok(Turn { flushes: fio::flushes(&json)?, median_iops, slowest_share: slowest / median_iops })
    }
}

/// Medians of the turns in one state.
struct State {
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    longest_us: f64,
    iops: f64,
    slowest_share: f64,
}

impl State {
    fn of(turns: &[Turn]) -> State {
        let middle = |what: fn(&Turn) -> f64| median(turns.iter().map(what).collect());
        State {
            p50_us: middle(|t| t.flushes.p50_us),
            p99_us: middle(|t| t.flushes.p99_us),
            p99_9_us: middle(|t| t.flushes.p99_9_us),
            longest_us: turns.iter().map(|t| t.flushes.max_us).fold(0.0, f64::max),
            iops: middle(|t| t.median_iops),
            slowest_share: middle(|t| t.slowest_share),
        }
    }

    fn shown(&self) -> String {
        let State { p50_us, p99_us, p99_9_us, longest_us, iops, slowest_share } = self;
        format!(
            "FLUSH p50 {p50_us:.0}, p99 {p99_us:.0}, p99.9 {p99_9_us:.0}, longest {longest_us:.0} us; {iops:.0} IOPS, \
             slowest second {slowest_share:.2} of it"
        )
    }
}

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let Ours { paused, running, mb_per_s: rate, seconds } = ours(plan, report)?;
    report.note(format!("write-back paused: {}", paused.shown()));
    report.note(format!("write-back running at {rate:.0} MB/s: {}", running.shown()));
    rows(&paused, &running, rate, report);
    for peer in [Peer::QemuNbd, Peer::NbdkitFile] {
        beside_peer(plan, peer, rate, seconds, report)?;
    }
    Ok(())
}

/// The same load on another server, alone and beside a writer that does what write-back did.
fn beside_peer(plan: &Plan, peer: Peer, rate: f64, seconds: u64, report: &mut Report) -> Result<()> {
    let target = Target::start(&plan.cistern, peer, WINDOW_GIB, &[])?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        alone.push(Turn::of(&target, seconds)?);
        beside.push(beside_writer(&target.scratch, rate, || Turn::of(&target, seconds))?);
    }
    let (alone, beside) = (State::of(&alone), State::of(&beside));
    report.note(format!("{} alone: {}", peer.name(), alone.shown()));
    report.note(format!(
        "{} beside a writer of 16 MiB files at {rate:.0} MB/s: {}; p99 {:.2} times, p99.9 {:.2} times",
        peer.name(),
        beside.shown(),
        beside.p99_us / alone.p99_us,
        beside.p99_9_us / alone.p99_9_us
    ));
    Ok(())
}

fn rows(paused: &State, running: &State, rate: f64, report: &mut Report) {
    let what = "4 KiB random write, depth 1, FLUSH every 10, write-back on the same disk";
    for (name, running_us, paused_us, most) in [
        ("p99", running.p99_us, paused.p99_us, P99_FACTOR_MAX),
        ("p99.9", running.p99_9_us, paused.p99_9_us, P99_9_FACTOR_MAX),
    ] {
        report.row(
            &format!("{what}: {name} of a FLUSH"),
            format!("{running_us:.0} us beside {rate:.0} MB/s"),
            format!("write-back paused {paused_us:.0} us"),
            running_us / paused_us,
            Bound::AtMost(most),
        );
    }
    report.row(
        &format!("{what}: slowest second of the median second"),
        format!("median {:.0} IOPS", running.iops),
        format!("write-back paused {:.0} IOPS, slowest {:.2}", paused.iops, paused.slowest_share),
        running.slowest_share,
        Bound::AtLeast(SLOWEST_SHARE_MIN),
    );
}

/// What both states of the daemon showed.
struct Ours {
    paused: State,
    running: State,
    /// The median of the MB/s that write-back stored in the running turns.
    mb_per_s: f64,
    /// How long a turn was.
    seconds: u64,
}

/// Both states in turns.
fn ours(plan: &Plan, report: &mut Report) -> Result<Ours> {
    let (room_gib, share) = if plan.quick { ROOM_GIB_QUICK } else { ROOM_GIB };
    let (room, filled_mib) = (format!("{room_gib}G"), room_gib as f64 * share * 1024.0);
    let args = ["--journal-size", &room, "--max-dirty-bytes", &room, "--max-dirty-age", "1h"];
    let target = Target::start(&plan.cistern, Peer::Cistern, VOLUME_GIB, &args)?;
    let daemon = Daemon::of(&target)?;
    daemon.wait_filled()?;
    let seconds = plan.seconds(10);
    let (mut paused, mut running, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        daemon.fill(filled_mib * PAUSED_SHARE)?;
        paused.push(Turn::of(&target, seconds)?);
        daemon.fill(filled_mib)?;
        let (turn, rate) = daemon.beside_uploads(|| Turn::of(&target, seconds))?;
        let dirty_share = daemon.dirty_bytes()? as f64 / (room_gib << 30) as f64;
        let hurried = if dirty_share < HURRY_SHARE { "" } else { ": it hurried in the end" };
        report.note(format!(
            "a running turn: write-back stored {rate:.0} MB/s, {:.0} % of the room is dirty behind it{hurried}",
            100.0 * dirty_share
        ));
        running.push(turn);
        rates.push(rate);
        let rest = daemon.drain()?;
        report.note(format!("a drain after it, with the disk to itself: {rest:.0} MB/s"));
    }
    Ok(Ours { paused: State::of(&paused), running: State::of(&running), mb_per_s: median(rates), seconds })
}

/// The daemon, and how its write-back is held and let go.
struct Daemon<'a> {
    target: &'a Target,
    server: &'a Server,
    url: String,
}

impl Daemon<'_> {
    fn of(target: &Target) -> Result<Daemon<'_>> {
        let (server, url) =
            (target.cistern().context("it is cistern")?, fixture::directory_url(&target.scratch)?);
        Ok(Daemon { target, server, url })
    }

    fn ask(&self, command: &str) -> Result<()> {
        self.server.ask(&[command, &self.url]).map(drop)
    }

    /// Waits until the daemon writes nothing of its own any more: it fills a new journal while it has nothing else to do, and
    /// until then a FLUSH waits for that now and then, in both states.
    fn wait_filled(&self) -> Result<()> {
        let path = format!("/proc/{}/io", self.server.pid());
        let written_bytes = || -> Result<u64> {
            let text = std::fs::read_to_string(&path)?;
            let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
            Ok(line.context("the kernel counts what a process writes")?.trim().parse()?)
        };
        let mut before = written_bytes()?;
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = written_bytes()?;
            if now - before < FILLED_BYTES_PER_S {
                return Ok(());
            }
            before = now;
        }
    }

    /// Writes until so much is dirty, and uploads nothing until somebody resumes.
    fn fill(&self, mib: f64) -> Result<()> {
        self.ask("pause")?;
        let missing_mib = mib as u64 - self.dirty_bytes()?.div_ceil(1 << 20).min(mib as u64);
        if missing_mib == 0 {
            return Ok(());
        }
        let (offset, size) = (format!("--offset={WINDOW_GIB}g"), format!("--size={missing_mib}m"));
        let job = ["--rw=write", "--bs=1m", "--iodepth=4", "--refill_buffers", &offset, &size];
        loads::write(self.target, &job, Duration::ZERO).map(drop)
    }

    /// MB/s at which a drain uploads all there is.
    fn drain(&self) -> Result<f64> {
        let (before, begin) = (stored_bytes(self.server)?, Instant::now());
        self.ask("drain")?;
        let rate = (stored_bytes(self.server)? - before) as f64 / 1e6 / begin.elapsed().as_secs_f64();
        self.server.wait_clean()?;
        Ok(rate)
    }

    /// Lets write-back go, runs `measure`, and gives the MB/s that were stored meanwhile. Fails when everything was: then
    /// write-back was idle for a part of the time.
    fn beside_uploads<T>(&self, measure: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        self.ask("resume")?;
        let (before, begin) = (stored_bytes(self.server)?, Instant::now());
        let measured = measure()?;
        let (stored, took) = (stored_bytes(self.server)? - before, begin.elapsed().as_secs_f64());
        ensure!(self.dirty_bytes()? > IDLE_BYTES, "write-back had nothing left to upload");
        Ok((measured, stored as f64 / 1e6 / took))
    }

    fn dirty_bytes(&self) -> Result<u64> {
        let status = self.server.status()?;
        let dirty = status.pointer("/daemons/0/volumes/0/dirty_bytes").and_then(|n| n.as_u64());
        dirty.context("status has no dirty bytes")
    }
}

/// Bytes of the objects that the store took.
fn stored_bytes(server: &Server) -> Result<u64> {
    let status = server.status()?;
    let kinds = status.pointer("/daemons/0/volumes/0/store/kinds").and_then(|kinds| kinds.as_array());
    let puts = kinds
        .context("status has no store")?
        .iter()
        .filter(|kind| kind["kind"].as_str().is_some_and(|name| name.starts_with("put")));
    Ok(puts.filter_map(|kind| kind["bytes"].as_u64()).sum())
}

/// Runs `measure` beside a writer that does no more than a directory store: files of 16 MiB, each flushed, at this rate.
fn beside_writer<T>(scratch: &Scratch, mb_per_s: f64, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let dir = scratch.dir("files")?;
    let content = random_bytes(FILE_BYTES, 1);
    let is_over = AtomicBool::new(false);
    let each = Duration::from_secs_f64(FILE_BYTES as f64 / 1e6 / mb_per_s);
    let write = || -> Result<()> {
        let begin = Instant::now();
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            let mut file = File::create(dir.join((u64::from(number) % FILES).to_string()))?;
            file.write_all(&content)?;
            file.sync_all()?;
            number += 1;
            // A writer that is late does not rest: the rate is that of the whole turn.
            std::thread::sleep((each * number).saturating_sub(begin.elapsed()));
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        let writer = threads.spawn(write);
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        writer.join().expect("the writer does not panic")?;
        measured
    })
}
