//! The write path: pacing, the order point, durability. Parts of blocks are in [`super::partial`].

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    Error, Result,
    courtesy::Courtesy,
    env::Env,
    journal::{Prepared, Record, fit_one_group},
    log::LogWriter,
    space::Space,
    units::{BLOCK_BYTES, Extent, JournalPos},
    volume::{
        ClientId, Mode, RangeKind, Volume,
        collect::Collector,
        flows::Flows,
        live::PAUSED,
        load::Loading,
        locks::Held,
        open::ReadOnlyParts,
        order::{Core, Submitted},
        partial::PartialWrite,
    },
    writeback::{Control, LEFT_BY_DATA, Loads},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// A write takes at most this part of the journal at once; a larger one goes in parts, of which a crash may leave some.
const RING_PART: u64 = 4;

/// What a volume that is open for writing has besides its read path.
pub struct Writer {
    pub env: Env,
    pub core: Arc<Core>,
    pub control: Arc<Control>,
    pub log: LogWriter,
    /// Among those who use the journal's file system.
    pub courtesy: Arc<Courtesy>,
    pub mode: watch::Sender<Mode>,
    pub space: Arc<Space>,
    pub collector: Collector,
    pub resizing: tokio::sync::Mutex<()>,
    /// What write-back makes segments of that does not lie in the journal.
    pub loads: Arc<Loads>,
    pub loading: tokio::sync::Mutex<Loading>,
    /// Taken by the first `close`.
    pub flows: tokio::sync::Mutex<Option<Flows>>,
    /// For snapshots that are shown beside it.
    pub reading: ReadOnlyParts,
}

impl Writer {
    pub fn size_bytes(&self) -> u64 {
        self.core.size_bytes()
    }

    /// Appends a record as soon as it may go; returns the position to make durable.
    pub(super) async fn submit(
        &self,
        client: ClientId,
        record: Record,
        payload: Bytes,
        own: Option<&Arc<Held>>,
    ) -> Result<JournalPos> {
        self.append(client, self.core.journal.prepare(record, payload)?, own).await
    }

    /// The same for all records of one request: at one place in the history, so that no crash and no snapshot has a part of them. Those of
    /// one that is too long for a group come one after the other.
    pub(super) async fn submit_all(
        &self,
        client: ClientId,
        records: Vec<(Record, Bytes)>,
        own: Option<&Arc<Held>>,
    ) -> Result<JournalPos> {
        debug_assert!(!records.is_empty(), "a request does something");
        if records.len() > 1 && fit_one_group(records.iter().map(|(record, _)| record)) {
            return self.append(client, self.core.journal.prepare_together(records)?, own).await;
        }
        let mut to = JournalPos(0);
        for (record, payload) in records {
            to = self.submit(client, record, payload, own).await?;
        }
        Ok(to)
    }

    async fn append(
        &self,
        client: ClientId,
        prepared: Prepared,
        own: Option<&Arc<Held>>,
    ) -> Result<JournalPos> {
        let (blocks, leaves) = (prepared.payload_blocks() + 1, self.leaves(&prepared));
        self.core.pacer.pass(client, blocks * BLOCK).await;
        loop {
            if self.control.above_room(blocks, leaves).is_some() {
                Box::pin(self.wait_below_dirty_max(blocks, leaves)).await?;
            }
            match self.core.submit(&prepared, own)? {
                Submitted::Done { from, to } => {
                    self.control.note_append(from, to, self.env.now());
                    self.core.pacer.note_write(blocks * BLOCK, (to.0 - from.0) * BLOCK);
                    return Ok(to);
                }
                Submitted::Held(held) => Box::pin(held.wait()).await,
                Submitted::NoRoom => Box::pin(self.core.journal.room(blocks)).await?,
            }
        }
    }

    /// Waits until so many blocks more may wait for the store, of which `left` sixteenths of the room are left to others.
    pub(super) async fn wait_below_dirty_max(&self, blocks: u64, left: u64) -> Result<()> {
        while let Some(committed) = self.control.above_room(blocks, left) {
            self.control.drain(JournalPos(committed.0 + 1)).await?;
        }
        Ok(())
    }

    /// Sixteenths of the room for dirty data that a request leaves. Where the store is full, what makes room there has to get in: so data
    /// leaves two for zeroes, and those one for zeroes of a large part of the volume and for operations.
    fn leaves(&self, prepared: &Prepared) -> u64 {
        let zeroed = prepared.records().iter().map(|record| match record {
            Record::Zero { extent, .. } => Some(extent.len * BLOCK),
            _ => None,
        });
        match zeroed.sum::<Option<u64>>() {
            None => LEFT_BY_DATA,
            Some(bytes) if bytes < self.size_bytes() / 16 => 1,
            Some(_) => 0,
        }
    }

    /// Makes everything before `to` as durable as the mode says.
    pub(super) async fn make_durable(&self, to: JournalPos) -> Result<()> {
        let waits = self.core.journal.durable() < to;
        let began = self.env.now();
        let synced = self.core.journal.sync(to).await;
        if waits {
            self.courtesy.synced(began, self.env.now());
        }
        if let Err(e) = &synced {
            self.core.refuse(e.clone());
        }
        synced?;
        self.reach_the_store(to).await
    }

    /// Waits for the commit of everything before `to`, if and as long as the mode asks for it: what
    /// counts is the mode at the moment of the reply.
    async fn reach_the_store(&self, to: JournalPos) -> Result<()> {
        if *self.mode.borrow() != Mode::Writethrough {
            return Ok(());
        }
        let mut mode = self.mode.subscribe();
        tokio::select! {
            biased;
            drained = self.control.drain(to) => drained,
            _ = mode.wait_for(|mode| *mode != Mode::Writethrough) => Ok(()),
        }
    }

    pub async fn flush(&self) -> Result<()> {
        if let Some(e) = self.core.refusal() {
            return Err(e);
        }
        self.make_durable(self.core.journal.appended()).await
    }

    /// Waits until everything before `to` may be acknowledged: with `fua` it is as durable as the mode says, and in any
    /// case it survives the end of this process. A client that reconnects to the next daemon does not send it again.
    async fn settle(&self, to: JournalPos, fua: bool) -> Result<()> {
        if fua {
            return Box::pin(self.make_durable(to)).await;
        }
        let outlived = self.core.journal.outlive(to).await;
        if let Err(e) = &outlived {
            self.core.refuse(e.clone());
        }
        outlived
    }

    pub async fn drain(&self) -> Result<()> {
        if let Some(e) = self.core.refusal() {
            return Err(e);
        }
        let end = self.core.journal.appended();
        self.look(end).await?;
        self.drain_to(end).await
    }

    /// Before somebody hears that everything before `to` is in the store: whether that is this volume's still.
    pub async fn look(&self, to: JournalPos) -> Result<()> {
        let dirty = self.control.committed() < to;
        let looked = tokio::select! {
            biased;
            () = self.control.paused(), if dirty => return Err(Error::Invalid(PAUSED.into())),
            looked = self.log.look() => looked,
        };
        if let Err(lost) = &looked
            && lost.is_lost()
        {
            self.core.refuse(lost.clone());
        }
        looked
    }

    /// Waits until everything before `to` is committed, unless somebody pauses write-back.
    pub async fn drain_to(&self, to: JournalPos) -> Result<()> {
        if self.control.committed() >= to {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.control.paused() => Err(Error::Invalid(PAUSED.into())),
            drained = self.control.drain(to) => drained,
        }
    }

    pub(super) async fn hold(&self, extent: Extent) -> Holding<'_> {
        Holding::take(&self.core, extent).await
    }
}

/// A held extent, released when dropped.
pub(super) struct Holding<'a> {
    core: &'a Core,
    held: Arc<Held>,
}

impl<'a> Holding<'a> {
    pub(super) async fn take(core: &'a Core, extent: Extent) -> Holding<'a> {
        loop {
            match core.hold(extent) {
                Ok(held) => return Holding { core, held },
                Err(blocker) => blocker.wait().await,
            }
        }
    }

    pub(super) fn held(&self) -> &Arc<Held> {
        &self.held
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.core.release(&self.held);
    }
}

/// The blocks that `[offset, offset + len)` touches, and those it covers wholly.
fn blocks_of(offset: u64, len: u64) -> (Extent, Extent) {
    let touched = Extent::between(offset / BLOCK, (offset + len).div_ceil(BLOCK));
    let first = offset.div_ceil(BLOCK);
    let whole = Extent::between(first, ((offset + len) / BLOCK).max(first));
    (touched, whole)
}

impl Volume {
    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or(Error::ReadOnly)
    }

    pub(super) async fn write_bytes(
        &self,
        client: ClientId,
        offset: u64,
        data: Bytes,
        fua: bool,
    ) -> Result<()> {
        let writer = self.writer()?;
        if data.is_empty() {
            return Ok(());
        }
        let most = writer.core.journal.capacity_blocks() / RING_PART * BLOCK;
        let (mut at, mut rest, mut to) = (offset, data, JournalPos(0));
        while !rest.is_empty() {
            let end = ((at + most) / BLOCK * BLOCK).min(at + rest.len() as u64);
            assert!(end > at, "every part brings a write on");
            let part = rest.split_to((end - at) as usize);
            let (touched, whole) = blocks_of(at, part.len() as u64);
            to = if touched == whole {
                writer.submit(client, Record::Write(touched), part, None).await?
            } else {
                // In memory of its own: whoever writes whole blocks does not carry what this needs.
                Box::pin(self.write_partial(client, writer, at, &part, touched)).await?
            };
            at = end;
        }
        writer.settle(to, fua).await
    }

    pub(super) async fn zero_bytes(
        &self,
        client: ClientId,
        offset: u64,
        len: u64,
        allocated: bool,
        fua: bool,
    ) -> Result<()> {
        let writer = self.writer()?;
        if len == 0 {
            return Ok(());
        }
        let (touched, whole) = blocks_of(offset, len);
        let is_to_the_end = |end: u64| end == writer.size_bytes() && !end.is_multiple_of(BLOCK);
        if touched == whole && !is_to_the_end(offset + len) {
            let zero = Record::Zero { extent: whole, allocated };
            let to = writer.submit(client, zero, Bytes::new(), None).await?;
            return writer.settle(to, fua).await;
        }
        // Held, because of the blocks at its ends; and because the volume may grow meanwhile: who writes behind its old end comes
        // later, or came before this looks at the size again.
        let holding = writer.hold(touched).await;
        // The part of the last block behind the end of the volume is zero already, so the block may go as a whole.
        let end = match is_to_the_end(offset + len) {
            true => (offset + len).next_multiple_of(BLOCK),
            false => offset + len,
        };
        let to = Box::pin(self.write_zeroes(client, writer, offset..end, allocated, &holding)).await?;
        drop(holding);
        writer.settle(to, fua).await
    }

    /// Zeroes a held range: its whole blocks as such, and what it has of those at its ends.
    async fn write_zeroes(
        &self,
        client: ClientId,
        writer: &Writer,
        range: Range<u64>,
        allocated: bool,
        holding: &Holding<'_>,
    ) -> Result<JournalPos> {
        let (_, whole) = blocks_of(range.start, range.end - range.start);
        let (mut request, allocation) = (PartialWrite::default(), Some(allocated));
        let (before, behind) = match whole.is_empty() {
            true => (range, 0..0),
            false => (range.start..whole.start * BLOCK, whole.end() * BLOCK..range.end),
        };
        let zeroes = |edge: &Range<u64>| vec![0; (edge.end - edge.start) as usize];
        self.add_partial(&mut request, before.start, &zeroes(&before), allocation).await?;
        if !whole.is_empty() {
            request.zero(whole, allocated);
        }
        self.add_partial(&mut request, behind.start, &zeroes(&behind), allocation).await?;
        self.submit_request(client, writer, request, holding.held()).await
    }

    /// What lies behind the end is never seen: growing zeroes it first, so a crash in between leaves the old
    /// size. Shrinking gives the space back after the fact.
    pub(super) async fn resize_to(&self, size_bytes: u64, force: bool) -> Result<()> {
        let writer = self.writer()?;
        let _one_at_a_time = writer.resizing.lock().await;
        let old = writer.size_bytes();
        let client = ClientId::default();
        let resize = Record::Resize { size_bytes };
        let to = if size_bytes >= old {
            self.zero_bytes(client, old, size_bytes.next_multiple_of(BLOCK) - old, false, false).await?;
            writer.submit(client, resize, Bytes::new(), None).await?
        } else {
            // Held, so that what is acknowledged meanwhile is looked at too.
            let cut = Extent::between(size_bytes / BLOCK, old.div_ceil(BLOCK));
            let holding = writer.hold(cut).await;
            if !force && self.has_data(size_bytes, old).await? {
                return Err(Error::Invalid(format!(
                    "there is data behind byte {size_bytes}: shrinking would drop it. Shrink the filesystem first, \
                     or use --force to drop that data"
                )));
            }
            let to = writer.submit(client, resize, Bytes::new(), None).await?;
            let extent = Extent::between(size_bytes.div_ceil(BLOCK), cut.end());
            let zero = Record::Zero { extent, allocated: false };
            match extent.is_empty() {
                true => to,
                false => writer.submit(client, zero, Bytes::new(), Some(holding.held())).await?,
            }
        };
        writer.make_durable(to).await
    }

    async fn has_data(&self, from: u64, to: u64) -> Result<bool> {
        let mut at = from;
        while at < to {
            let ranges = self.ranges_of(at, to - at, 1024).await?;
            if ranges.iter().any(|(_, kind)| *kind == RangeKind::Data) {
                return Ok(true);
            }
            at += ranges.iter().map(|(len, _)| len).sum::<u64>();
        }
        Ok(false)
    }
}
