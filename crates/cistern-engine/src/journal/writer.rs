//! The writer: the one task that writes to a journal's file after it was opened.
//!
//! Takes what is queued as soon as it is free, so that whatever arrives during one write shares
//! the next, and one sync answers everybody who waits. Where much comes and nobody flushes, a little waits a
//! moment for more. Fills the ring ahead of itself in the first lap. A write for which the disk has no room is tried again until
//! there is some, and meanwhile syncs of what was written go on; every other failure stops the journal for good.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::{
    Shared,
    format::{SUPERBLOCK_SLOTS, Superblock},
    group::Batch,
    recover::UNSYNCED_BLOCKS_MAX,
    staging::STAGED_BLOCKS_MAX,
};
use crate::{
    disk::AlignedBuf,
    error::{Error, Result},
    units::{BLOCK_BYTES, Salt},
};

/// For so long a little waits for more, where nobody waits for it: it is staged, and so acknowledged.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// Without work for so long, the writer fills the ring ahead.
const FILL_AFTER: Duration = Duration::from_millis(2);
/// Blocks filled at a time (1 MiB), while there is nothing else to do and when small groups come closer than that to space
/// never written: so much that one metadata commit serves many syncs, and so little that a flush waits a millisecond
/// for it and not three.
const FILL_BLOCKS: u64 = 256;
/// Batches from this size on (512 KiB) are cheaper to write into unwritten space than to fill for. So are smaller ones
/// while nobody flushes: what a sync would pay for is paid once.
const FILL_FOR_BLOCKS_MAX: u64 = 128;
/// Promised room that was not used for so long is given to the next who waits.
const REGRANT_AFTER: Duration = Duration::from_millis(10);
/// How soon a write is tried again for which the disk had no room.
const NO_ROOM_RETRY: Duration = Duration::from_millis(500);
/// How soon the ring is filled ahead again after the disk had no room for that.
const NO_ROOM_FILL: Duration = Duration::from_secs(10);
/// Blocks that may be written and not synced. Less than what recovery reckons with, by as much as may be staged: the headers of that are made
/// before a sync, and do not tell of it.
const SYNC_BLOCKS_MAX: u64 = UNSYNCED_BLOCKS_MAX - STAGED_BLOCKS_MAX;
/// Without work for so long, a superblock is brought up to date.
const REST_AFTER: Duration = Duration::from_secs(1);

/// What the ring is filled with ahead of the writers: one piece of memory for all of them, who may be hundreds.
static ZEROES: LazyLock<AlignedBuf> =
    LazyLock::new(|| AlignedBuf::zeroed(FILL_BLOCKS as usize * BLOCK_BYTES));

/// The writer's own part of the state.
pub(super) struct JournalWriter {
    shared: Arc<Shared>,
    /// As last synced; the claims, as the next one names them.
    superblock: Superblock,
    /// What the other slot holds, where this is known.
    twin: Option<Superblock>,
    /// In the first lap, positions before this one have been written once.
    prewritten: u64,
    /// For superblocks.
    block: AlignedBuf,
    /// What the disk had no room for: the next to be written, at the place where a part of it may be.
    unwritten: Option<Batch>,
    /// Whether the newest batch was not written when it was tried: a superblock that finds room says nothing about it.
    lacks_room: bool,
    /// When that, or a superblock, is tried again.
    again: Duration,
    /// Until then the ring is not filled ahead.
    fill_from: Duration,
    /// Keeps other writers out until this one is gone, also if the journal was dropped.
    _lock: Box<dyn Send + Sync>,
}

impl Drop for JournalWriter {
    /// However the writer ends, nobody waits for it for ever.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock_after_panic();
        let why = state.stopped().unwrap_or(Error::Closed);
        let waiting = state.stop(why.clone());
        drop(state);
        for answer in waiting {
            let _ = answer.send(Err(why.clone())); // nobody may wait any more
        }
    }
}

impl JournalWriter {
    pub fn new(
        shared: Arc<Shared>,
        superblock: Superblock,
        head: u64,
        lock: Box<dyn Send + Sync>,
    ) -> JournalWriter {
        let prewritten = superblock.prewritten.max(head);
        let block = AlignedBuf::zeroed(BLOCK_BYTES);
        JournalWriter {
            shared,
            superblock,
            twin: None,
            prewritten,
            block,
            unwritten: None,
            lacks_room: false,
            again: Duration::ZERO,
            fill_from: Duration::ZERO,
            _lock: lock,
        }
    }

    /// Writes until the journal is closed or stopped.
    pub async fn run(mut self) {
        loop {
            match self.turn().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(cause) => {
                    self.latch(cause);
                    break;
                }
            }
        }
        self.shared.owner.release().await;
    }

    fn latch(&self, cause: Error) {
        tracing::error!(journal = %self.shared.name, error = %cause, "the journal has stopped");
        let why = Error::Latched(format!(
            "the journal {} failed: {cause}. Nothing more is accepted; what was flushed before is safe",
            self.shared.name
        ));
        let mut state = self.shared.lock();
        // A journal that is closed on a full disk has not failed: whoever waits for it may ask the next one.
        let is_over = matches!(cause, Error::Full(_)) && state.is_closing();
        let told = if is_over { Error::Closed } else { why.clone() };
        let waiting = state.stop(why);
        drop(state);
        for answer in waiting {
            let _ = answer.send(Err(told.clone())); // nobody may wait any more
        }
    }

    /// One round: write what is queued, sync if somebody waits, rest if neither. False: the end.
    async fn turn(&mut self) -> Result<bool> {
        self.gather().await;
        let (claims, batch, is_short) = {
            let mut state = self.shared.lock();
            if state.stopped().is_some() {
                return Ok(false);
            }
            match state.tries(self.shared.env.now() >= self.again) {
                true => {
                    let batch = self.unwritten.take().or_else(|| state.take_batch());
                    (state.take_claims(), batch, state.disk.shortage().is_some())
                }
                false => (None, None, false),
            }
        };
        if let Some((claims, answer)) = claims {
            let kept = self.keep_claims(claims).await?;
            let _ = answer.send(kept); // whoever waited may have given up
        }
        let wrote = batch.is_some();
        if let Some(batch) = batch {
            self.write(batch).await?;
        } else if is_short {
            self.sync(true).await?; // there was no room for a superblock, and nothing else shows whether there is
        }
        if self.shared.lock().sync_is_wanted() {
            self.sync(false).await?;
            return Ok(true);
        }
        if self.shared.lock().disk.holds_back() {
            let left = self.again.saturating_sub(self.shared.env.now());
            self.is_called_within(Some(left)).await;
            return Ok(true);
        }
        if wrote {
            return Ok(true);
        }
        self.rest().await
    }

    /// The disk has no room. Whoever closes the journal does not wait for any.
    fn run_short(&mut self, why: String) -> Result<()> {
        let now = self.shared.env.now();
        self.again = now + NO_ROOM_RETRY;
        let mut state = self.shared.lock();
        let is_new = state.run_short(now, why.clone());
        if state.is_closing() {
            return Err(Error::Full(why));
        }
        drop(state);
        if is_new {
            tracing::error!(
                journal = %self.shared.name, why,
                "the disk of the journal is full: writes wait until there is room on it, and then go on by themselves. \
                 What was written is read, flushed and uploaded as ever. Free space on that disk"
            );
        }
        Ok(())
    }

    /// Something was written that lacked room before.
    fn found_room(&self) {
        let Some(before) = self.shared.lock().found_room() else { return };
        let seconds = self.shared.env.now().saturating_sub(before.since).as_secs();
        tracing::info!(journal = %self.shared.name, seconds, "the disk of the journal has room again: writes go on");
    }

    /// Lets what is queued become a full write, where it may.
    async fn gather(&self) {
        {
            let mut state = self.shared.lock();
            if !state.may_gather() {
                return;
            }
            state.gather();
        }
        self.called_within(GATHER_MAX).await;
    }

    async fn write(&mut self, mut batch: Batch) -> Result<()> {
        batch.durable = self.shared.lock().frontiers().durable; // syncs went on if it was tried before
        if batch.end - batch.durable > SYNC_BLOCKS_MAX {
            self.sync(false).await?;
            batch.durable = self.shared.lock().frontiers().durable;
        }
        assert!(
            batch.end - batch.durable <= SYNC_BLOCKS_MAX,
            "recovery looks no further for what tells a torn end from damage"
        );
        let small = batch.end - batch.start < FILL_FOR_BLOCKS_MAX && !self.shared.lock().streams();
        if small && self.prewritten < batch.end + FILL_BLOCKS {
            self.fill(batch.start).await?;
        }
        let headers = self.shared.scribe.lock().headers(&batch.groups, batch.durable);
        assert_eq!(headers.len(), batch.groups.len(), "a header is kept until its group is in the ring");
        let mut parts: Vec<&[u8]> = Vec::with_capacity(4 * batch.groups.len());
        let mut at = batch.start;
        for (group, header) in batch.groups.iter().zip(&headers) {
            assert_eq!(group.start().0, at, "groups lie one behind the other");
            at = group.next().0;
            parts.push(&header.block);
            parts.extend(group.pieces());
        }
        assert_eq!(at, batch.end, "a batch is its groups");
        match self.shared.ring.write(batch.start, &parts).await {
            Ok(()) => {}
            Err(Error::Full(why)) => {
                (self.unwritten, self.lacks_room) = (Some(batch), true);
                return self.run_short(why);
            }
            Err(e) => return Err(e),
        }
        self.prewritten = self.prewritten.max(batch.end);
        self.lacks_room = false;
        let chains: Vec<_> = headers.iter().map(|header| header.behind).collect();
        let done = self.shared.lock().finish_batch(&batch, &chains);
        self.shared.scribe.lock().forget(batch.end);
        self.found_room();
        for answer in done {
            let _ = answer.send(Ok(())); // whoever waited may have given up
        }
        Ok(())
    }

    /// Syncs what is written, with a superblock where it is due or wanted. False if the disk had no room for that one: the
    /// sync, which needs none, answers whoever waited all the same.
    async fn sync(&mut self, with_superblock: bool) -> Result<bool> {
        let (at, chain, closed, with_superblock) = {
            let state = self.shared.lock();
            let at = state.frontiers();
            let closed = state.is_drained() && at.durable == at.appended;
            (at, state.freed_chain(), closed, with_superblock || state.tail_is_due())
        };
        assert!(
            self.superblock.tail <= at.freed,
            "the tail never goes back: what lies before it is written over"
        );
        debug_assert!(self.superblock.durable <= at.durable, "what is durable stays so");
        let mut next = with_superblock.then(|| Superblock {
            generation: self.superblock.generation + 1,
            tail: at.freed,
            chain,
            durable: at.durable,
            prewritten: self.prewritten,
            closed,
            ..self.superblock.clone()
        });
        if let Some(superblock) = &next
            && !self.write_superblock(superblock).await?
        {
            next = None;
        }
        let has_room = next.is_some() || !with_superblock;
        self.shared.ring.file.sync().await?;
        let done = self.shared.lock().finish_sync(at.written, next.as_ref().map(|sb| sb.tail));
        if let Some(next) = next {
            self.twin = Some(std::mem::replace(&mut self.superblock, next));
        }
        for answer in done {
            let _ = answer.send(Ok(())); // whoever waited may have given up
        }
        Ok(has_room)
    }

    /// Writes a superblock into its slot; false if the disk has no room for it. Then that slot may be torn, and the other one,
    /// which counts, is as it was.
    async fn write_superblock(&mut self, superblock: &Superblock) -> Result<bool> {
        assert_ne!(
            superblock.slot_offset(),
            self.superblock.slot_offset(),
            "a superblock is not written over the newest one"
        );
        let block = &mut self.block;
        superblock.encode(block);
        match self.shared.ring.file.write_at(superblock.slot_offset(), block).await {
            Ok(()) if !self.lacks_room => {
                self.found_room();
                Ok(true)
            }
            Ok(()) => Ok(true),
            Err(Error::Full(why)) => self.run_short(why).map(|()| false),
            Err(e) => Err(e),
        }
    }

    /// Puts these claims into both slots, so that one that rots makes nobody a stranger to its own claim. Where the disk has no room
    /// for them they are not kept, and whoever asked hears that: it has not used them.
    async fn keep_claims(&mut self, claims: Vec<Salt>) -> Result<Result<()>> {
        let before = std::mem::replace(&mut self.superblock.claims, claims);
        for _ in SUPERBLOCK_SLOTS {
            if !self.sync(true).await? {
                self.superblock.claims = before;
                return Ok(Err(Error::Full(format!("for the claim in the journal {}", self.shared.name))));
            }
        }
        Ok(Ok(()))
    }

    /// Whether a superblock lags behind what is known. Neither may at rest: nothing later vouches for the last groups, so
    /// where one slot rots, the other has to tell what was synced.
    fn a_superblock_lags(&self) -> bool {
        let at = self.shared.lock().frontiers();
        let filled = self.prewritten.min(self.first_lap_end());
        let lags =
            |sb: &Superblock| sb.tail != at.freed || sb.durable != at.written || sb.prewritten < filled;
        lags(&self.superblock) || self.twin.as_ref().is_none_or(lags)
    }

    /// Nothing is queued: ends if closing, else waits for work and uses the time.
    async fn rest(&mut self) -> Result<bool> {
        if self.shared.lock().is_drained() {
            // Once more than there are slots, so that both can name as durable what the first sync made so.
            for _ in 0..=SUPERBLOCK_SLOTS.len() {
                if self.a_superblock_lags() || !self.superblock.closed {
                    self.sync(true).await?;
                }
            }
            debug_assert!(
                self.superblock.closed,
                "who opens a journal that was closed need not read all of it"
            );
            return Ok(false);
        }
        let fills = self.fills();
        let lags = self.a_superblock_lags();
        let unused = self.shared.lock().grants_block_others();
        let patience = [(fills, FILL_AFTER), (unused, REGRANT_AFTER), (lags, REST_AFTER)];
        let patience = patience.into_iter().find_map(|(reason, time)| reason.then_some(time));
        if self.is_called_within(patience).await {
            return Ok(true);
        }
        if unused {
            self.shared.lock().grant();
        }
        if fills {
            let written = self.shared.lock().frontiers().written;
            self.fill(written).await?;
            // Pays for the metadata now rather than at the next flush.
            self.sync(false).await?;
        } else if lags {
            self.sync(true).await?;
        }
        Ok(true)
    }

    /// Sleeps until there is work: true. False if there was none for so long.
    async fn is_called_within(&self, patience: Option<Duration>) -> bool {
        {
            let mut state = self.shared.lock();
            if state.has_work() {
                return true;
            }
            state.rest();
        }
        match patience {
            Some(limit) => self.called_within(limit).await,
            None => {
                self.shared.wake.notified().await;
                true
            }
        }
    }

    /// Sleeps until called, or for so long: then false.
    async fn called_within(&self, limit: Duration) -> bool {
        let called = self.shared.env.timeout(limit, self.shared.wake.notified()).await.is_some();
        // A call that comes between the alarm and this line leaves a permit: the next rest is
        // short, nothing is lost.
        called || !self.shared.lock().wakes()
    }

    /// Whether there is something to fill ahead, and room for it as far as is known.
    fn fills(&self) -> bool {
        self.prewritten < self.first_lap_end() && self.shared.env.now() >= self.fill_from
    }

    fn first_lap_end(&self) -> u64 {
        self.superblock.start + self.shared.ring.blocks
    }

    /// Writes zeroes over the next blocks of the first lap that nothing was written to, none of
    /// them before `from`.
    async fn fill(&mut self, from: u64) -> Result<()> {
        assert!(
            self.shared.lock().frontiers().written <= self.prewritten,
            "zeroes are never written over what was written"
        );
        let from = from.max(self.prewritten);
        let blocks = FILL_BLOCKS.min(self.first_lap_end().saturating_sub(from));
        if blocks == 0 || !self.fills() {
            return Ok(());
        }
        match self.shared.ring.write(from, &[&ZEROES[..blocks as usize * BLOCK_BYTES]]).await {
            Ok(()) => self.prewritten = from + blocks,
            // It only makes syncs cheaper, and what it wrote in part holds nothing.
            Err(Error::Full(_)) => self.fill_from = self.shared.env.now() + NO_ROOM_FILL,
            Err(e) => return Err(e),
        }
        Ok(())
    }
}
