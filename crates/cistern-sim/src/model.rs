//! What a volume may read as: the history of one writer's line of the volume, sector by sector.
//!
//! A [`Branch`] is the history as one writer sees it. A take-over forks it: the new writer's branch
//! goes on from what it found, the old one's lives on for whoever still talks to the old writer.
//!
//! Every write is an **op** with the ticks of its invocation and reply. Op A comes **before** op B if
//! A had ended before B was invoked; ops that overlap in time have no order until a read shows one.
//! Each sector keeps the ops it may still hold. The rules:
//!
//! - a live read shows an op that no other has surely replaced before the read began (`live`);
//! - a recovered state is a downward-closed set of the history: whoever is visible brings along
//!   everything acknowledged before its invocation, and everything promised (`recovery`).
//!
//! Lenient only where the promises are: writes without a reply may have taken place in whole or in
//! part, block by block.

use std::{collections::BTreeSet, time::Duration};

use cistern_engine::units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::stamp::{OpId, Seen};

mod live;
mod recovery;
mod status;

pub use recovery::{Observed, Scope};

/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;
/// Not yet, or never.
const NEVER: u64 = u64::MAX;

/// What an op does to its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    /// Zeroes: a trim, a WRITE_ZEROES, or what a resize cuts off or adds.
    Zero {
        allocated: bool,
    },
}

/// How far an acknowledged op was promised to last, beyond what flushes promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forced {
    #[default]
    No,
    /// Survives the crash of its host.
    Local,
    /// Survives the loss of its host.
    Store,
}

#[derive(Clone, Debug)]
struct Op {
    id: OpId,
    kind: Kind,
    first: u64,
    count: u64,
    invoked: u64,
    /// Tick of the reply, or of the end of the life in which none came.
    end: u64,
    acknowledged: bool,
    acknowledged_at: Duration,
    forced: Forced,
}

/// One op that a sector may hold.
#[derive(Clone, Debug)]
struct Entry {
    op: OpId,
    /// From then on it is known to be part of the state: a recovery showed it.
    seen_at: u64,
    /// From then on no read shows it.
    superseded_at: u64,
    /// Who was seen in its place.
    superseded_by: Option<OpId>,
    /// It was seen in the committed state, which never goes back.
    committed: bool,
    /// The recovered volume did not show it (beyond its end, or unreadable): nobody knows.
    doubtful: bool,
    /// A recovery showed zeroes that several ops explain: nobody knows whose.
    anonymous: bool,
}

#[derive(Clone, Copy, Debug)]
struct SizeEntry {
    op: OpId,
    sectors: u64,
}

/// The history of a volume as one writer sees it.
#[derive(Clone)]
pub struct Branch {
    ops: Vec<Option<Op>>,
    sectors: Vec<Vec<Entry>>,
    sizes: Vec<SizeEntry>,
    /// Everything acknowledged before this tick survives a crash of the host.
    local_until: u64,
    /// Everything acknowledged before this tick survives the loss of the host.
    store_until: u64,
    /// Invocations of the reads in flight.
    reads: BTreeSet<u64>,
    /// How many openers may still find an older committed state: nothing is pruned meanwhile.
    holds: u32,
}

impl Branch {
    /// A new volume of `sectors`, all zero; it can grow to `sectors_max`.
    pub fn new(sectors: u64, sectors_max: u64) -> Branch {
        let base = Op {
            id: 0,
            kind: Kind::Zero { allocated: false },
            first: 0,
            count: sectors_max,
            invoked: 0,
            end: 0,
            acknowledged: true,
            acknowledged_at: Duration::ZERO,
            forced: Forced::Store,
        };
        Branch {
            ops: vec![Some(base)],
            sectors: vec![vec![Entry::new(0)]; sectors_max as usize],
            sizes: vec![SizeEntry { op: 0, sectors }],
            local_until: 1,
            store_until: 1,
            reads: BTreeSet::new(),
            holds: 0,
        }
    }

    /// The size that the last resize set, in sectors.
    pub fn size(&self) -> u64 {
        self.sizes.last().expect("a volume has a size").sectors
    }

    /// The largest size it may get, in sectors.
    pub fn size_max(&self) -> u64 {
        self.sectors.len() as u64
    }

    fn op(&self, id: OpId) -> &Op {
        self.ops.get(id as usize).and_then(Option::as_ref).expect("entries name ops of this branch")
    }

    fn op_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(id as usize)?.as_mut()
    }

    /// A client sends an op of a new number over `[first, first + count)` sectors.
    pub fn begin(&mut self, id: OpId, kind: Kind, first: u64, count: u64, tick: u64) {
        if self.ops.len() <= id as usize {
            self.ops.resize(id as usize + 1, None);
        }
        assert!(self.ops[id as usize].is_none(), "op numbers are used once");
        self.ops[id as usize] = Some(Op {
            id,
            kind,
            first,
            count,
            invoked: tick,
            end: NEVER,
            acknowledged: false,
            acknowledged_at: Duration::ZERO,
            forced: Forced::No,
        });
        for sector in first..first + count {
            self.sectors[sector as usize].push(Entry::new(id));
        }
    }

    /// A client sends a resize; it is alone. Cut-off or added sectors become zero.
    pub fn begin_resize(&mut self, id: OpId, sectors: u64, tick: u64) {
        let (low, high) = (sectors.min(self.size()), self.size_max());
        self.begin(id, Kind::Zero { allocated: false }, low, high - low, tick);
        self.sizes.push(SizeEntry { op: id, sectors });
    }

    /// The reply: the op is acknowledged. What it replaces is not read any more.
    pub fn acknowledge(&mut self, id: OpId, forced: Forced, tick: u64, now: Duration) {
        let Some(op) = self.op_mut(id) else { return };
        op.end = tick;
        op.acknowledged = true;
        op.acknowledged_at = now;
        op.forced = forced;
        let (first, count, invoked) = (op.first, op.count, op.invoked);
        for sector in first..first + count {
            self.supersede(sector, invoked, id, tick, None);
        }
    }

    /// The reply says that nothing was done.
    pub fn reject(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(id as usize).and_then(Option::take) else { return };
        for sector in op.first..op.first + op.count {
            self.sectors[sector as usize].retain(|e| e.op != id);
        }
        self.sizes.retain(|s| s.op != id);
    }

    /// From `tick` on, nothing that had ended before `before` is read in the place of `by`.
    fn supersede(&mut self, sector: u64, before: u64, by: OpId, tick: u64, seen: Option<OpId>) {
        let oldest_read = self.reads.first().copied().unwrap_or(NEVER);
        let mut entries = std::mem::take(&mut self.sectors[sector as usize]);
        for entry in &mut entries {
            if entry.op != by && self.end(entry) < before {
                entry.superseded_at = entry.superseded_at.min(tick);
                if entry.superseded_by.is_none() {
                    entry.superseded_by = seen;
                }
            }
        }
        if entries.len() > 6 && self.holds == 0 {
            self.prune(&mut entries, oldest_read);
        }
        self.sectors[sector as usize] = entries;
    }

    /// Drops entries that nothing can bring back: surely replaced by what is in the store.
    fn prune(&self, entries: &mut Vec<Entry>, oldest_read: u64) {
        let committed = |e: &&Entry| self.is_certain(e) && self.end(e) < self.store_until;
        let Some(newest) = entries.iter().filter(committed).map(|e| self.op(e.op).invoked).max() else {
            return;
        };
        entries.retain(|e| self.end(e) >= newest || e.superseded_at >= oldest_read);
    }

    /// Whether an op that was sent after `tick` has been acknowledged.
    pub fn acknowledged_since(&self, tick: u64) -> bool {
        self.ops.iter().flatten().any(|op| op.acknowledged && op.invoked > tick)
    }

    /// Keeps everything that a state committed from now on may show.
    pub fn hold(&mut self) {
        self.holds += 1;
    }

    pub fn release(&mut self) {
        self.holds -= 1;
    }

    /// FLUSH was invoked at `invoked` and has succeeded.
    pub fn flushed(&mut self, invoked: u64) {
        self.local_until = self.local_until.max(invoked);
    }

    /// Everything acknowledged before `invoked` was said to be in the store.
    pub fn committed(&mut self, invoked: u64) {
        self.flushed(invoked);
        self.store_until = self.store_until.max(invoked);
    }

    /// The tick before which everything acknowledged is in the store.
    pub fn committed_until(&self) -> u64 {
        self.store_until
    }

    /// Forgets what was promised of the store from `since` on: for a reader who may have come before.
    pub fn forget_promises(&mut self, since: u64) {
        self.store_until = 0;
        for op in self.ops.iter_mut().flatten().filter(|op| op.end >= since) {
            op.forced = Forced::No;
        }
    }

    /// The history of whatever was there at one moment from tick `since` to `until`: what ended meanwhile may have come behind it.
    pub fn as_of(&self, since: u64, until: u64) -> Branch {
        let mut branch = self.clone();
        branch.forget_promises(since);
        let ops = &branch.ops;
        let is_later = |entry: &Entry| ops[entry.op as usize].as_ref().is_some_and(|op| op.end >= since);
        for entry in branch.sectors.iter_mut().flatten().filter(|entry| is_later(entry)) {
            (entry.committed, entry.seen_at) = (false, NEVER);
        }
        branch.end_life(until);
        branch
    }

    /// The life in which this branch was written is over: nothing more will be replied to.
    pub fn end_life(&mut self, tick: u64) {
        for op in self.ops.iter_mut().flatten() {
            op.end = op.end.min(tick);
        }
        self.reads.clear();
    }

    /// The tick before which ops were acknowledged at time `limit` or earlier: the age bound.
    pub fn acknowledged_until(&self, limit: Duration) -> u64 {
        let old = self.ops.iter().flatten().filter(|op| op.acknowledged && op.acknowledged_at <= limit);
        old.map(|op| op.end + 1).max().unwrap_or(0)
    }

    fn end(&self, entry: &Entry) -> u64 {
        self.op(entry.op).end.min(entry.seen_at)
    }

    /// Whether the op took place for sure, at this sector.
    fn is_certain(&self, entry: &Entry) -> bool {
        !entry.doubtful && (entry.seen_at != NEVER || entry.committed || self.op(entry.op).acknowledged)
    }

    fn entry(&self, sector: u64, op: OpId) -> Option<&Entry> {
        self.sectors[sector as usize].iter().find(|e| e.op == op)
    }

    /// An op in words, for reports.
    pub fn describe(&self, id: OpId) -> String {
        match self.ops.get(id as usize).and_then(Option::as_ref) {
            Some(op) => format!(
                "op {} ({:?} sectors {}+{}, ticks {}..{}, {}{})",
                op.id,
                op.kind,
                op.first,
                op.count,
                op.invoked,
                if op.end == NEVER { "open".into() } else { op.end.to_string() },
                if op.acknowledged { "acknowledged" } else { "no reply" },
                match op.forced {
                    Forced::No => "",
                    Forced::Local => ", fua",
                    Forced::Store => ", fua to the store",
                },
            ),
            None => format!("op {id} (not of this history)"),
        }
    }
}

impl Entry {
    fn new(op: OpId) -> Entry {
        Entry {
            op,
            seen_at: NEVER,
            superseded_at: NEVER,
            superseded_by: None,
            committed: false,
            doubtful: false,
            anonymous: false,
        }
    }

    /// Forgets what is known: it may be what the sector holds, and need not.
    fn doubt(&mut self) {
        self.superseded_at = NEVER;
        self.superseded_by = None;
        self.doubtful = true;
    }
}

/// Whether a sector may show an op of this kind as `seen`.
fn shows(kind: Kind, id: OpId, seen: Seen) -> bool {
    match seen {
        Seen::Zero => kind != Kind::Write,
        Seen::Op(op) => kind == Kind::Write && op == id,
        Seen::Garbage | Seen::Unreadable => false,
    }
}

#[cfg(test)]
mod tests;
