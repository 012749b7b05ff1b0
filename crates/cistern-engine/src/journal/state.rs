//! What the journal knows in memory, and every decision about it, without IO.
//!
//! Owns the frontiers, the index of group starts, the groups kept in memory and those who wait.
//! Invariant: `tail <= freed <= durable <= written <= taken <= appended <= tail + ring_blocks`.
//! Everything here runs under one lock that is never held across IO.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::oneshot;

use super::{
    AppendError, Record,
    format::{CLAIMS_MAX, GROUP_PAYLOAD_BLOCKS_MAX},
    group::{Batch, FoundPayload, Group, Need, OpenGroup, Payload, Slab},
    prepared::Prepared,
    shortage::DiskSpace,
    staging::StagingRoom,
    waiters::{ReplyReceiver, ReplySender, Waiters},
};
use crate::{
    error::{Error, Result},
    units::{Chain, Extent, JournalPos, Mark, Salt},
};

mod outliving;
mod recent;
mod short;

pub(super) use outliving::Outliving;

/// Blocks of one batch (4 MiB): long enough for full speed, short enough that a flush that comes
/// meanwhile waits about two milliseconds.
const BATCH_BLOCKS_MAX: u64 = 1024;
/// Groups of one batch: bounds the writer's memory for headers (256 KiB).
const BATCH_GROUPS_MAX: usize = 64;
/// Blocks that are worth a write of their own (512 KiB) while nobody flushes: each write costs the processor as much as
/// copying a hundred KiB.
const FULL_WRITE_BLOCKS: u64 = 128;
/// Blocks written since somebody last waited for a sync (1 MiB) from which on nobody is expected to.
const STREAM_BLOCKS: u64 = 256;
/// The tail on the medium follows after this part of the ring was freed.
const TAIL_LAG_DIVISOR: u64 = 32;

const _: () = assert!(BATCH_BLOCKS_MAX > GROUP_PAYLOAD_BLOCKS_MAX);

/// How far the journal's life has come.
#[derive(Clone, Debug)]
enum Phase {
    Running,
    /// Takes nothing new; the writer finishes what there is.
    Closing,
    /// For good, and why.
    Stopped(Error),
}

/// The frontiers; all are positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frontiers {
    /// Behind the newest record.
    pub appended: u64,
    /// Behind the newest group that the writer has taken.
    pub taken: u64,
    /// Behind the newest group that was written.
    pub written: u64,
    /// Behind the newest group that was synced.
    pub durable: u64,
    /// What the owner no longer needs lies before.
    pub freed: u64,
    /// As `freed`, as far as the medium knows: before lies space that can be used.
    pub tail: u64,
}

/// The state behind the journal's lock.
pub(super) struct JournalState {
    ring_blocks: u64,
    memory_bytes_max: usize,
    at: Frontiers,
    /// First positions of all groups between `freed` and `appended`.
    starts: VecDeque<u64>,
    /// The chain before each of these groups that was written, and behind the last such one.
    chains: VecDeque<Chain>,
    /// Sealed groups in memory: consecutive, the newest last.
    memory: VecDeque<Arc<Group>>,
    /// Bytes of `memory` and of the open group, and the part of them that is not written.
    memory_bytes: usize,
    queued_bytes: usize,
    /// Bytes of groups that write-back has in its hands, wherever they were found.
    held_bytes: usize,
    open: Option<OpenGroup>,
    slab: Slab,
    /// Those who wait for the writer.
    waiters: Waiters,
    /// What of the staging file is in use, if there is one.
    staging: Option<StagingRoom>,
    /// Everything before is staged or written.
    staged: u64,
    /// Somebody stages.
    is_staging: bool,
    /// Those who wait for room, the first comer first.
    room_waiters: VecDeque<(Need, ReplySender)>,
    /// What was promised to waiters that have not appended yet.
    grants: Vec<Need>,
    /// What the next append takes, whoever waits.
    reserved: Option<Need>,
    /// Claims that the superblock has to name, and who waits for that.
    claims: Option<(Vec<Salt>, ReplySender)>,
    phase: Phase,
    /// While it is short of room nothing is appended, and only syncs are work for the writer.
    pub disk: DiskSpace,
    /// Up to here somebody has waited for a sync.
    flushed: u64,
    rest: Rest,
}

/// What the writer sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It does not sleep.
    No,
    /// Anything that changes.
    Work,
    /// A full write, or somebody who waits.
    FullWrite,
}

impl JournalState {
    /// A journal whose live groups begin at `starts` and end at `head`.
    pub fn new(
        ring_blocks: u64,
        memory_bytes_max: u64,
        tail: u64,
        head: u64,
        starts: VecDeque<u64>,
        chains: VecDeque<Chain>,
    ) -> JournalState {
        debug_assert_eq!(
            chains.len(),
            starts.len() + 1,
            "a chain before each group, and one behind the last"
        );
        debug_assert!(tail <= head && head - tail <= ring_blocks, "what is live is no more than a lap");
        JournalState {
            ring_blocks,
            memory_bytes_max: usize::try_from(memory_bytes_max).unwrap_or(usize::MAX),
            at: Frontiers { appended: head, taken: head, written: head, durable: head, freed: tail, tail },
            starts,
            chains,
            memory: VecDeque::new(),
            memory_bytes: 0,
            queued_bytes: 0,
            held_bytes: 0,
            open: None,
            slab: Slab::default(),
            waiters: Waiters::default(),
            staging: None,
            staged: head,
            is_staging: false,
            room_waiters: VecDeque::new(),
            grants: Vec::new(),
            reserved: None,
            claims: None,
            phase: Phase::Running,
            disk: DiskSpace::default(),
            flushed: head,
            rest: Rest::No,
        }
    }

    pub fn frontiers(&self) -> Frontiers {
        let at = self.at;
        debug_assert!(at.tail <= at.freed && at.freed <= at.durable, "only what is durable is freed: {at:?}");
        debug_assert!(
            at.durable <= at.written && at.written <= at.taken,
            "only what is written is durable: {at:?}"
        );
        debug_assert!(at.taken <= at.appended, "only what was appended is written: {at:?}");
        debug_assert!(at.appended - at.tail <= self.ring_blocks, "the ring holds a lap at most: {at:?}");
        at
    }

    /// Why nothing can be appended any more, if so.
    pub fn refusal(&self) -> Option<Error> {
        match &self.phase {
            Phase::Running => None,
            Phase::Closing => Some(Error::Closed),
            Phase::Stopped(why) => Some(why.clone()),
        }
    }

    pub fn stopped(&self) -> Option<Error> {
        match &self.phase {
            Phase::Stopped(why) => Some(why.clone()),
            Phase::Running | Phase::Closing => None,
        }
    }

    /// Whether nothing can come any more, everything that came is written, and nobody writes to the staging file: that is the next
    /// opening's.
    pub fn is_drained(&self) -> bool {
        matches!(self.phase, Phase::Closing) && self.at.written == self.at.appended && !self.is_staging
    }

    /// Takes nothing new from now on. Appends that wait for room fail.
    pub fn close(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Closing;
            for (_, answer) in self.room_waiters.drain(..) {
                let _ = answer.send(Err(Error::Closed)); // nobody may wait any more
            }
        }
    }

    /// Stops for good; gives those who must be told.
    pub fn stop(&mut self, why: Error) -> Vec<ReplySender> {
        if self.stopped().is_none() {
            self.phase = Phase::Stopped(why);
        }
        let claims = self.claims.take().map(|(_, answer)| answer);
        let rooms = self.room_waiters.drain(..).map(|(_, answer)| answer);
        self.waiters.drain().chain(rooms).chain(claims).collect()
    }

    /// Whether the writer has to be woken; it is told only once.
    pub fn must_wake(&mut self) -> bool {
        let must = match self.rest {
            Rest::No => false,
            Rest::Work => true,
            Rest::FullWrite => !self.may_gather(),
        };
        if must {
            self.rest = Rest::No;
        }
        must
    }

    /// The writer sleeps until something changes.
    pub fn rest(&mut self) {
        self.rest = Rest::Work;
    }

    /// The writer sleeps until what is queued may not gather any more.
    pub fn gather(&mut self) {
        self.rest = Rest::FullWrite;
    }

    /// The writer is awake; whether it was still asleep.
    pub fn wakes(&mut self) -> bool {
        std::mem::replace(&mut self.rest, Rest::No) != Rest::No
    }

    /// Whether so much was written without a flush that none is expected.
    pub fn streams(&self) -> bool {
        self.at.taken.saturating_sub(self.flushed) >= STREAM_BLOCKS
    }

    /// Whether what is queued may wait a moment for more: it is little, and nobody waits for it or is expected to.
    pub fn may_gather(&self) -> bool {
        let queued = self.at.appended - self.at.taken;
        (1..FULL_WRITE_BLOCKS).contains(&queued)
            && self.streams()
            && self.waiters.is_empty()
            && self.room_waiters.is_empty()
            && self.claims.is_none()
            && self.disk.shortage().is_none()
            && matches!(self.phase, Phase::Running)
    }

    /// Whether there is room beside what is reserved and was granted to others; `own` is the grant of who asks.
    fn fits(&self, need: Need, own: Option<usize>) -> bool {
        if self.disk.shortage().is_some() {
            return false; // what cannot be written is not acknowledged
        }
        let free = self.ring_blocks - (self.at.appended - self.at.tail);
        let others = || {
            self.grants
                .iter()
                .enumerate()
                .filter(|(n, _)| Some(*n) != own)
                .map(|(_, grant)| grant)
                .chain(&self.reserved)
        };
        let granted: u64 = others().map(|g| g.blocks).sum();
        // One record is taken whatever its size when nothing else is queued.
        let queue = self.queued_bytes + others().map(|g| g.memory).sum::<usize>();
        need.blocks + granted <= free && (queue == 0 || queue + need.memory <= self.memory_bytes_max)
    }

    /// Appends one record, in several groups where it is long; or several, in one. `placed` gets each part.
    pub fn append(
        &mut self,
        prepared: &Prepared,
        placed: &mut Vec<(Extent, JournalPos)>,
    ) -> Result<JournalPos, AppendError> {
        if let Some(why) = self.refusal() {
            return Err(AppendError::Failed(why));
        }
        let need = Need::of(prepared.payload_blocks());
        let reserved = self.reserved.take();
        debug_assert!(
            reserved.as_ref().is_none_or(|reserved| reserved.blocks >= need.blocks),
            "it was for this one"
        );
        if reserved.is_none() && !self.admit(need) {
            return Err(AppendError::Full);
        }
        let has_room = |open: &OpenGroup| open.takes_together(prepared.records());
        if prepared.is_together() && !self.open.as_ref().is_none_or(has_room) {
            self.seal();
        }
        for (record, payload) in prepared.parts() {
            let pos = self.push(record.clone(), payload);
            placed.extend(record.extent().map(|extent| (extent, pos)));
        }
        Ok(JournalPos(self.at.appended))
    }

    /// Who waits for room goes first: while somebody does, only what was granted is taken.
    fn admit(&mut self, need: Need) -> bool {
        let grant = (0..self.grants.len())
            .filter(|&n| self.grants[n].blocks >= need.blocks)
            .min_by_key(|&n| self.grants[n].blocks);
        let has_room = (grant.is_some() || self.room_waiters.is_empty()) && self.fits(need, grant);
        if let Some(grant) = grant {
            self.grants.swap_remove(grant);
        }
        has_room
    }

    /// Keeps room for a record with so much payload, which is appended next. Whoever begins to wait for room meanwhile does not get it.
    pub fn reserve(&mut self, payload_blocks: u64) -> bool {
        debug_assert!(self.reserved.is_none(), "one at a time");
        let need = Need::of(payload_blocks);
        let has_room = self.admit(need);
        self.reserved = has_room.then_some(need);
        has_room
    }

    /// Gives up what was reserved.
    pub fn unreserve(&mut self) {
        self.reserved = None;
    }

    fn push(&mut self, record: Record, payload: &Payload) -> JournalPos {
        if self.open.as_ref().is_some_and(|open| !open.takes(&record)) {
            self.seal();
        }
        let start = self.at.appended;
        let (open, before) = match &mut self.open {
            Some(open) => {
                let before = open.memory_bytes();
                (open, before)
            }
            None => {
                self.starts.push_back(start);
                (self.open.insert(OpenGroup::new(start)), 0)
            }
        };
        let pos = open.push(record, payload, &mut self.slab);
        let grown = open.memory_bytes() - before;
        self.at.appended = open.next();
        self.memory_bytes += grown;
        self.queued_bytes += grown;
        assert!(
            self.at.appended - self.at.tail <= self.ring_blocks,
            "what is not freed is never written over"
        );
        self.evict();
        pos
    }

    fn seal(&mut self) {
        if let Some(open) = self.open.take() {
            self.memory.push_back(Arc::new(open.seal(&mut self.slab)));
        }
    }

    /// The next groups to write, if there are any.
    pub fn take_batch(&mut self) -> Option<Batch> {
        let first = self.memory.partition_point(|group| group.start().0 < self.at.taken);
        let mut groups = Vec::new();
        let mut blocks = 0;
        for n in first.. {
            if n == self.memory.len() {
                self.seal();
            }
            let Some(group) = self.memory.get(n) else { break };
            if groups.len() == BATCH_GROUPS_MAX || blocks + group.blocks() > BATCH_BLOCKS_MAX {
                break;
            }
            blocks += group.blocks();
            groups.push(group.clone());
        }
        let end = groups.last()?.next().0;
        let start = std::mem::replace(&mut self.at.taken, end);
        assert_eq!(groups[0].start().0, start, "batches are consecutive: recovery ends at a gap");
        Some(Batch { groups, start, end, durable: self.at.durable })
    }

    /// The chain behind everything that was written.
    pub fn written_chain(&self) -> Chain {
        *self.chains.back().expect("there is one more than groups")
    }

    /// The chain at `freed`.
    pub fn freed_chain(&self) -> Chain {
        *self.chains.front().expect("there is one more than groups")
    }

    /// The mark at `pos`, if a group that is not freed begins there and everything before it was written; or if that is
    /// the end.
    pub fn mark_at(&self, pos: u64) -> Option<Mark> {
        let n = self.starts.partition_point(|&start| start < pos);
        if self.starts.get(n).copied().unwrap_or(self.at.appended) != pos {
            return None;
        }
        self.chains.get(n).map(|&chain| Mark { pos: JournalPos(pos), chain })
    }

    /// Every mark from `freed` to the end of what was written, ascending.
    pub fn marks(&self) -> Vec<Mark> {
        let ends = self.starts.iter().copied().chain([self.at.appended]);
        ends.zip(&self.chains).map(|(pos, &chain)| Mark { pos: JournalPos(pos), chain }).collect()
    }

    /// The batch was written; `chains` are those behind each of its groups.
    pub fn finish_batch(&mut self, batch: &Batch, chains: &[Chain]) -> Vec<ReplySender> {
        assert_eq!(self.at.written, batch.start, "batches are written in order");
        assert_eq!(batch.groups.len(), chains.len(), "every group continues the chain");
        self.chains.extend(chains);
        self.at.written = batch.end;
        self.queued_bytes -= batch.groups.iter().map(|g| g.memory_bytes()).sum::<usize>();
        self.staged = self.staged.max(batch.end);
        if let Some(room) = &mut self.staging {
            room.free(batch.end);
        }
        self.evict();
        self.grant();
        self.waiters.outlived(batch.end)
    }

    /// Everything written before `to`, and the superblock that names `tail`, was synced. Gives
    /// those who waited for it.
    pub fn finish_sync(&mut self, to: u64, tail: Option<u64>) -> Vec<ReplySender> {
        assert!(self.at.durable <= to && to <= self.at.written, "what is not written is not durable");
        self.at.durable = to;
        if let Some(tail) = tail {
            assert!(self.at.tail <= tail && tail <= self.at.freed, "only what was freed is written over");
            self.at.tail = tail;
            self.grant();
        }
        self.waiters.synced(to)
    }

    /// Whether somebody waits for a sync of what is written already.
    pub fn sync_is_wanted(&self) -> bool {
        let at = self.at;
        let frees = !self.disk.holds_back() && !self.room_waiters.is_empty() && at.freed > at.tail;
        self.waiters.want_sync(at.written) || frees
    }

    /// Whether the next sync should carry a superblock with the new tail.
    pub fn tail_is_due(&self) -> bool {
        let lag = self.at.freed - self.at.tail;
        let is_due = !self.room_waiters.is_empty() || lag >= self.ring_blocks / TAIL_LAG_DIVISOR;
        lag > 0 && is_due && !self.disk.holds_back()
    }

    /// Whether the writer has something to do at once.
    pub fn has_work(&self) -> bool {
        let is_over = match self.phase {
            Phase::Running => false,
            Phase::Closing => !self.is_staging, // whose end wakes the writer
            Phase::Stopped(_) => true,
        };
        let writes = self.at.taken < self.at.appended || self.claims.is_some();
        self.sync_is_wanted() || is_over || (writes && !self.disk.holds_back())
    }

    /// Registers who waits until everything before `to` is durable. `None`: it is.
    pub fn wait_sync(&mut self, to: u64) -> Result<Option<ReplyReceiver>> {
        if to <= self.at.durable {
            return Ok(None);
        }
        if let Some(why) = self.stopped() {
            return Err(why);
        }
        if to > self.at.appended {
            return Err(Error::Invalid(format!("journal position {to} has not been appended")));
        }
        self.flushed = self.flushed.max(to);
        Ok(Some(self.waiters.wait_sync(to)))
    }

    /// Registers who waits until the superblock names these claims, and no others.
    pub fn wait_claims(&mut self, claims: Vec<Salt>) -> Result<ReplyReceiver> {
        if let Some(why) = self.refusal() {
            return Err(why);
        }
        assert!(claims.len() <= CLAIMS_MAX, "a superblock has room for what it is to name");
        let (answer, receiver) = oneshot::channel();
        self.claims = Some((claims, answer));
        Ok(receiver)
    }

    /// The claims that the superblock does not name yet.
    pub fn take_claims(&mut self) -> Option<(Vec<Salt>, ReplySender)> {
        self.claims.take()
    }

    /// Registers who waits for room. `None`: there is.
    pub fn wait_room(&mut self, payload_blocks: u64) -> Result<Option<ReplyReceiver>> {
        if let Some(why) = self.refusal() {
            return Err(why);
        }
        let need = Need::of(payload_blocks);
        if self.room_waiters.is_empty() && self.fits(need, None) {
            return Ok(None);
        }
        let (answer, receiver) = oneshot::channel();
        self.room_waiters.push_back((need, answer));
        self.grant();
        Ok(Some(receiver))
    }

    /// Whether somebody waits while room is promised to others (who may have given up).
    pub fn grants_block_others(&self) -> bool {
        !self.grants.is_empty() && !self.room_waiters.is_empty()
    }

    /// Lets those go who waited longest, as far as there is room. Older grants are forgotten:
    /// whoever has not used them by now has given up, or waits again.
    pub fn grant(&mut self) {
        self.grants.clear();
        while let Some((need, answer)) = self.room_waiters.front() {
            if !answer.is_closed() && !self.fits(*need, None) {
                break;
            }
            let (need, answer) = self.room_waiters.pop_front().expect("it was just looked at");
            if answer.send(Ok(())).is_ok() {
                self.grants.push(need);
            }
        }
    }

    /// Everything before the group that begins at `to` (or ends there) is no longer needed. Gives
    /// what of it was in memory.
    pub fn free(&mut self, to: u64) -> Vec<Arc<Group>> {
        assert!(to <= self.at.durable, "only what is durable can be committed and freed");
        while self.starts.front().is_some_and(|&start| start < to) {
            let end = self.starts.get(1).copied().unwrap_or(self.at.appended);
            if end > to {
                debug_assert!(false, "journal position {to} is inside a group");
                break;
            }
            self.starts.pop_front();
            self.chains.pop_front();
            self.at.freed = end;
        }
        debug_assert!(!self.chains.is_empty(), "the chain at the tail is known");
        debug_assert!(
            self.starts.front().is_none_or(|&start| start == self.at.freed),
            "groups lie one behind the other"
        );
        let freed = self.memory.partition_point(|group| group.start().0 < self.at.freed);
        let freed: Vec<_> = self.memory.drain(..freed).collect();
        self.memory_bytes -= freed.iter().map(|group| group.memory_bytes()).sum::<usize>();
        freed
    }

    /// The positions of the group that holds `pos`, if it is not freed.
    fn group_around(&self, pos: u64) -> Option<Extent> {
        let n = self.starts.partition_point(|&start| start <= pos).checked_sub(1)?;
        let end = self.starts.get(n + 1).copied().unwrap_or(self.at.appended);
        (pos < end).then(|| Extent::between(self.starts[n], end))
    }

    /// The sealed group that begins at `start`, if it is in memory.
    fn in_memory(&self, start: u64) -> Option<&Arc<Group>> {
        let n = self.memory.partition_point(|group| group.start().0 < start);
        self.memory.get(n).filter(|group| group.start().0 == start)
    }

    /// Where the payload blocks `[pos, pos + blocks)` are.
    pub fn find(&mut self, pos: u64, blocks: u64) -> FoundPayload {
        if pos < self.at.freed {
            return FoundPayload::Freed;
        }
        let Some(around) = self.group_around(pos) else { return FoundPayload::Nowhere };
        let pos = JournalPos(pos);
        let payload = if let Some(group) = self.in_memory(around.start) {
            group.payload(pos, blocks)
        } else if let Some(open) = self.open.as_mut().filter(|_| around.end() == self.at.appended) {
            open.look(&mut self.slab).payload(pos, blocks)
        } else if pos.0 > around.start && blocks <= around.end() - pos.0 {
            return FoundPayload::Disk(around);
        } else {
            None
        };
        payload.map_or(FoundPayload::Nowhere, FoundPayload::Memory)
    }

    /// The group that begins at `start`: itself; or if it is on the disk only, its positions and those of
    /// the groups behind it that are on the disk only, together at most `blocks_max`, but one in any
    /// case. `None` if no durable group begins there.
    pub fn find_groups(&self, start: u64, blocks_max: u64) -> Option<Result<Arc<Group>, Vec<Extent>>> {
        let is_durable = |group: &Extent| group.end() <= self.at.durable;
        debug_assert!(blocks_max > 0, "one group is given in any case");
        let first = self.group_around(start).filter(|g| g.start == start && is_durable(g))?;
        if let Some(group) = self.in_memory(start) {
            return Some(Ok(group.clone()));
        }
        let behind = std::iter::successors(Some(first), |group| self.group_around(group.end()));
        let fits = |group: &Extent| *group == first || group.end() - start <= blocks_max;
        let on_disk = |group: &Extent| is_durable(group) && self.in_memory(group.start).is_none();
        Some(Err(behind.take_while(|group| fits(group) && on_disk(group)).collect()))
    }
}
