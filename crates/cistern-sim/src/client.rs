//! A client of the volume: one connection that sends requests and checks the replies.
//!
//! Runs as a task of the writer's incarnation, so it ends with its host in the middle of whatever it
//! does. Everything it sends and hears goes into the branch of its writer.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cistern_engine::{Error, units::SECTOR_BYTES};
use futures_util::future::BoxFuture;

use crate::{
    device::{Device, trimmed},
    disk::SimDisk,
    model::{BLOCK_SECTORS, Branch, Forced, Kind, Observed, Scope},
    plan::Plan,
    runtime::Sim,
    stamp::{OpId, Seen, seen, stamped},
};

mod album;
mod collect;
mod switch;

pub use album::{Album, take_snapshots};
pub use collect::collect;
pub use switch::Modes;
use switch::{pause, switch};

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Bytes of the largest read.
const READ_BYTES_MAX: u64 = 192 << 10;

/// Attempts within which a request that met damaged replies succeeds.
const HEALING_TRIES: u32 = 12;

/// What all clients of one writer share with the script.
pub struct Line {
    pub sim: Sim,
    pub plan: Plan,
    pub branch: Mutex<Branch>,
    /// Numbers the ops of the whole run.
    pub ops: Arc<AtomicU32>,
    /// The disk that holds this writer's journal.
    pub disk: SimDisk,
    /// What whoever took the volume over found, if somebody has.
    pub successor: Mutex<Option<Observed>>,
    /// Why requests may fail for good.
    pub excuses: Mutex<Excuses>,
    pub modes: Mutex<Modes>,
    /// The snapshots of the whole run.
    pub album: Arc<Album>,
}

/// What the script did to a writer that entitles it to fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excuses {
    pub fenced: bool,
    pub disk_failed: bool,
    pub damaged: bool,
    /// Objects are out of sight now and then.
    pub absent: bool,
    pub closing: bool,
    /// The store does not keep what is there.
    pub overwritten: bool,
}

impl Excuses {
    /// Whether an error is what such a writer may answer.
    pub fn allow(&self, error: &Error) -> bool {
        match error {
            Error::Unreachable(_) | Error::NoRoom(_) => true,
            Error::Fenced { .. } => self.fenced,
            Error::Latched(_) => self.fenced || self.disk_failed || self.damaged || self.overwritten,
            Error::Overwrites(_) => self.overwritten,
            // Who was fenced long ago finds that its successor has deleted what it does not need.
            Error::NotFound(_) => self.damaged || self.absent || self.fenced,
            Error::Corrupt { .. } | Error::Refused(_) => self.damaged,
            Error::Io { .. } | Error::Full(_) => self.disk_failed,
            Error::Closed => self.closing,
            _ => false,
        }
    }
}

/// Whether a client goes on.
enum Mood {
    Content,
    Done,
}

impl Line {
    pub fn branch<T>(&self, f: impl FnOnce(&mut Branch) -> T) -> T {
        f(&mut self.branch.lock().expect("no panic under this lock"))
    }

    pub fn excuse(&self, change: impl FnOnce(&mut Excuses)) {
        change(&mut self.excuses.lock().expect("no panic under this lock"));
    }

    /// A new op number.
    pub fn number(&self) -> OpId {
        self.ops.fetch_add(1, Ordering::Relaxed)
    }

    /// Everything acknowledged before tick `invoked` was said to be in the store.
    pub fn committed(&self, invoked: u64) {
        self.branch(|b| b.committed(invoked));
        self.check_successor();
    }

    /// What this writer was told to be committed must be in what its successor found.
    fn check_successor(&self) {
        let successor = self.successor.lock().expect("no panic under this lock");
        let Some(found) = successor.as_ref() else { return };
        let mut branch = self.branch(|b| b.clone());
        branch.end_life(self.sim.tick());
        if let Err(why) = branch.explain(found, Scope::Store, 0) {
            self.sim.fail(format!("P5: a fenced writer committed what its successor lacks: {why}"));
        }
    }

    /// FLUSH has succeeded.
    pub fn flushed(&self, invoked: u64) {
        // What was durable before may be confirmed; nothing new may become so.
        if let Some(failed) = self.disk.failed_sync()
            && failed < invoked
            && self.branch(|b| b.acknowledged_since(failed))
        {
            self.sim.fail("P8: a flush of new writes succeeded after a failed sync");
        }
        match self.reaches_the_store(invoked) {
            false => self.branch(|b| b.flushed(invoked)),
            true => self.committed(invoked),
        }
    }

    fn forced(&self, fua: bool, invoked: u64) -> Forced {
        match (fua, self.reaches_the_store(invoked)) {
            (false, _) => Forced::No,
            (true, false) => Forced::Local,
            (true, true) => Forced::Store,
        }
    }

    /// An error reply: may this writer answer so?
    fn complain(&self, what: &str, error: &Error) -> Mood {
        self.sim.note(format_args!("client: {what} fails: {error}"));
        let excuses = *self.excuses.lock().expect("no panic under this lock");
        if !excuses.allow(error) {
            self.sim.fail(format!("{what} fails without a reason ({excuses:?}): {error:?}"));
        }
        match error {
            Error::Unreachable(_)
            | Error::NoRoom(_)
            | Error::Corrupt { .. }
            | Error::Refused(_)
            | Error::NotFound(_) => Mood::Content,
            _ => Mood::Done,
        }
    }
}

impl Line {
    /// Sends a request; where damaged replies must heal, again until it succeeds, which it must soon.
    async fn send<'a, T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut tries = 0;
        loop {
            match attempt().await {
                Err(Error::Corrupt { what: object, detail }) if self.plan.heals() => {
                    self.sim.note(format_args!("client: {what} meets damage in {object}: {detail}"));
                    tries += 1;
                    if tries == HEALING_TRIES {
                        self.sim.fail(format!(
                            "P6: the store is sound, but {what} fails for good: {object}: {detail}"
                        ));
                        return Err(Error::Corrupt { what: object, detail });
                    }
                }
                done => return done,
            }
        }
    }
}

/// Sends `count` requests, one after the other.
pub async fn run(line: Arc<Line>, device: Arc<dyn Device>, count: u64) {
    for _ in 0..count {
        let mood = match line.sim.range(0, 100) {
            0..50 => write(&line, &*device).await,
            50..75 => read(&line, &*device).await,
            75..83 => zero(&line, &*device).await,
            83..87 => trim(&line, &*device).await,
            87..96 => flush(&line, &*device).await,
            96 if line.plan.switching => switch(&line, &*device).await,
            97 if line.plan.switching => pause(&line, &*device).await,
            _ => look(&line, &*device).await,
        };
        if matches!(mood, Mood::Done) {
            return;
        }
        let pause = line.plan.pause;
        if !pause.is_zero() {
            let pause = line.sim.time(Duration::ZERO, 2 * pause);
            line.sim.sleep(pause).await;
        }
    }
}

/// A range of sectors inside the volume: hot spots, aligned or not, of mixed size.
fn range(line: &Line, bytes_max: u64) -> (u64, u64) {
    let size = line.branch(|b| b.size());
    let sim = &line.sim;
    let aligned = sim.chance(0.6);
    let most = (bytes_max / SECTOR).min(size).max(1);
    let mut count = match sim.range(0, 4) {
        0 => sim.range(1, 9),
        1 => 8,
        2 => sim.range(1, most + 1),
        _ => sim.range(1, most.isqrt() + 2),
    }
    .min(most);
    let area = if sim.chance(0.6) { (size / 16).max(1) * sim.range(0, 4) } else { sim.range(0, size) };
    let mut first = (area + sim.range(0, (size / 32).max(1))).min(size - 1);
    if aligned {
        first -= first % 8;
        count = count.next_multiple_of(8);
    }
    (first, count.min(size - first))
}

async fn write(line: &Line, device: &dyn Device) -> Mood {
    let (first, count) = range(line, line.plan.write_bytes_max);
    let fua = line.sim.chance(0.08);
    write_at(line, device, first, count, fua).await
}

async fn write_at(line: &Line, device: &dyn Device, first: u64, count: u64, fua: bool) -> Mood {
    let op = line.number();
    let tick = line.sim.tick();
    line.branch(|b| b.begin(op, Kind::Write, first, count, tick));
    line.sim.note(format_args!("client: op {op} writes {first}+{count} fua={fua}"));
    let data = Bytes::from(stamped(op, first, count));
    let reply = line.send("a write", || device.write(first * SECTOR, data.clone(), fua)).await;
    hear(line, op, fua, tick, reply)
}

async fn zero(line: &Line, device: &dyn Device) -> Mood {
    let whole = line.plan.sweeping && line.sim.chance(0.05);
    let (first, count) =
        if whole { (0, line.branch(|b| b.size())) } else { range(line, 4 * line.plan.write_bytes_max) };
    let (op, fua, allocated) = (line.number(), line.sim.chance(0.08), line.sim.chance(0.4));
    let tick = line.sim.tick();
    line.branch(|b| b.begin(op, Kind::Zero { allocated }, first, count, tick));
    line.sim.note(format_args!("client: op {op} zeroes {first}+{count} allocated={allocated} fua={fua}"));
    let reply = line.send("a zero", || device.zero(first * SECTOR, count * SECTOR, allocated, fua)).await;
    hear(line, op, fua, tick, reply)
}

/// Gives up a range; what of it the engine takes reads as zeroes and is a hole.
async fn trim(line: &Line, device: &dyn Device) -> Mood {
    let (first, count) = range(line, 4 * line.plan.write_bytes_max);
    let fua = line.sim.chance(0.08);
    trim_at(line, device, first, count, fua).await
}

async fn trim_at(line: &Line, device: &dyn Device, first: u64, count: u64, fua: bool) -> Mood {
    let (gone, gone_count) = trimmed(first, count);
    let op = line.number();
    let tick = line.sim.tick();
    if gone_count > 0 {
        line.branch(|b| b.begin(op, Kind::Zero { allocated: false }, gone, gone_count, tick));
    }
    line.sim.note(format_args!("client: op {op} trims {first}+{count} fua={fua}"));
    let reply = line.send("a trim", || device.trim(first * SECTOR, count * SECTOR, fua)).await;
    hear(line, op, fua, tick, reply)
}

fn hear(line: &Line, op: OpId, fua: bool, invoked: u64, reply: Result<(), Error>) -> Mood {
    match reply {
        Ok(()) => {
            let (tick, now) = (line.sim.tick(), line.sim.now());
            line.branch(|b| b.acknowledge(op, line.forced(fua, invoked), tick, now));
            line.sim.note(format_args!("client: op {op} acknowledged"));
            if fua && line.disk.failed_sync().is_some_and(|failed| failed < invoked) {
                line.sim.fail("P8: a write with FUA succeeded after a failed sync");
            }
            if fua && line.reaches_the_store(invoked) {
                line.check_successor();
            }
            Mood::Content
        }
        Err(error) => {
            if matches!(error, Error::Unreachable(_) | Error::NoRoom(_)) && !fua {
                line.sim.fail(format!("P9: a write needs a store that is away: {error:?}"));
            }
            line.complain("a write", &error)
        }
    }
}

async fn read(line: &Line, device: &dyn Device) -> Mood {
    let (first, count) = range(line, READ_BYTES_MAX);
    // A few reads begin and end inside sectors; the whole sectors among them are checked.
    let ragged = count > 2 && line.sim.chance(0.1);
    let (skip, cut) = if ragged { (line.sim.range(0, SECTOR), line.sim.range(0, SECTOR)) } else { (0, 0) };
    let tick = line.sim.tick();
    line.branch(|b| b.begin_read(tick));
    let (offset, len) = (first * SECTOR + skip, count * SECTOR - skip - cut);
    match line.send("a read", || device.read(offset, len)).await {
        Ok(bytes) => {
            let lead = if skip > 0 { (SECTOR - skip) as usize } else { 0 };
            let whole = (bytes.len() - lead) / SECTOR_BYTES * SECTOR_BYTES;
            let first = first + u64::from(skip > 0);
            let shown = seen(first, &bytes[lead..lead + whole]);
            let end = line.sim.tick();
            if let Err(why) = line.branch(|b| b.end_read(tick, first, &shown, end)) {
                line.sim.fail(why);
            }
            Mood::Content
        }
        Err(error) => {
            line.branch(|b| b.drop_read(tick));
            line.complain("a read", &error)
        }
    }
}

async fn flush(line: &Line, device: &dyn Device) -> Mood {
    let invoked = line.sim.tick();
    line.sim.note(format_args!("client: flush at tick {invoked}"));
    match device.flush().await {
        Ok(()) => {
            line.sim.note(format_args!("client: flush of tick {invoked} is done"));
            line.flushed(invoked);
            Mood::Content
        }
        Err(error) => line.complain("a flush", &error),
    }
}

/// Looks at what the volume says of itself: its state, and what some range is.
async fn look(line: &Line, device: &dyn Device) -> Mood {
    check_status(line, device);
    if !device.knows_ranges() {
        return Mood::Content;
    }
    let (first, count) = range(line, 4 * READ_BYTES_MAX);
    let tick = line.sim.tick();
    line.branch(|b| b.begin_read(tick));
    let ask = || device.ranges(first * SECTOR, count * SECTOR, 1000);
    let ranges = match line.send("a block status", ask).await {
        Ok(ranges) => ranges,
        Err(error) => {
            line.branch(|b| b.drop_read(tick));
            return line.complain("a block status", &error);
        }
    };
    let covered: u64 = ranges.iter().map(|(len, _)| len).sum();
    let odd = |(len, _): &(u64, _)| *len == 0 || !len.is_multiple_of(SECTOR);
    if ranges.is_empty() || covered > count * SECTOR || ranges.iter().any(odd) {
        line.sim.fail(format!("block status of {count} sectors covers {covered} bytes: {ranges:?}"));
    }
    let ranges: Vec<_> = ranges.into_iter().map(|(len, kind)| (len / SECTOR, kind)).collect();
    let end = line.sim.tick();
    let told = line.branch(|b| b.end_status(tick, first, &ranges, end));
    let unsure = line.excuses.lock().expect("no panic under this lock").damaged;
    if let Err(why) = told
        && !unsure
    {
        line.sim.fail(why);
    }
    Mood::Content
}

/// The frontiers are ordered and the dirty bound holds.
pub fn check_status(line: &Line, device: &dyn Device) {
    let s = device.status();
    let ordered = s.acknowledged >= s.durable && s.acknowledged >= s.uploaded && s.uploaded >= s.committed;
    if !ordered {
        line.sim.fail(format!("the frontiers are out of order: {s:?}"));
    }
    // One request per client may pass the gate at the bound.
    let slack = line.plan.clients * (line.plan.write_bytes_max + (64 << 10));
    if s.dirty_bytes > line.plan.settings.dirty_bytes_max + slack {
        line.sim
            .fail(format!("P2: {} bytes dirty, bound {}", s.dirty_bytes, line.plan.settings.dirty_bytes_max));
    }
    if s.journal_used_bytes > s.journal_bytes {
        line.sim.fail(format!("the journal holds more than it can: {s:?}"));
    }
}

/// Writes every other block of the volume.
pub async fn fill(line: &Line, device: &dyn Device) {
    fill_each(line, device, 2).await;
}

/// Writes every block whose number is a multiple of `step`.
pub async fn fill_each(line: &Line, device: &dyn Device, step: usize) {
    for block in (0..line.branch(|b| b.size()) / BLOCK_SECTORS).step_by(step) {
        write_at(line, device, block * BLOCK_SECTORS, BLOCK_SECTORS, false).await;
    }
}

/// Trims all of the volume.
pub async fn discard_all(line: &Line, device: &dyn Device) {
    trim_at(line, device, 0, line.branch(|b| b.size()), false).await;
}

/// Reads the whole volume, as far as it can be read. What goes wrong on its way is read again.
pub async fn observe(sim: &Sim, device: &dyn Device, damaged: bool, heals: bool) -> Result<Observed, Error> {
    let bytes = device.size_bytes();
    let mut tries = if heals { HEALING_TRIES } else { 0 };
    let mut sectors = Vec::new();
    let mut at = 0;
    while at < bytes {
        let len = (256 << 10).min(bytes - at);
        match device.read(at, len).await {
            Ok(data) => sectors.extend(seen(at / SECTOR, &data)),
            Err(Error::Unreachable(_)) => {
                sim.sleep(Duration::from_secs(2)).await;
                continue;
            }
            Err(Error::Corrupt { what, detail }) if tries > 0 => {
                sim.note(format_args!("read at {at} meets damage in {what}: {detail}"));
                tries -= 1;
                continue;
            }
            Err(error) if damaged => {
                sim.note(format_args!("read at {at} fails: {error}"));
                sectors.resize(((at + len) / SECTOR) as usize, Seen::Unreadable);
            }
            Err(error) => return Err(error),
        }
        at += len;
        tries = if heals { HEALING_TRIES } else { 0 };
    }
    Ok(Observed { size: bytes / SECTOR, sectors })
}
