//! Receiving a snapshot: what is written counts at the end and as a whole, or is gone back on (`docs/design/backup.md`).
//!
//! An operation begins it and keeps what was there under a hidden name, another one ends it: between them lies whatever was written, and
//! every prefix of that history says so. Never ends what it did not see complete: that is for the caller to know.

mod into;

use crate::{
    Error, Result,
    share::{SHARE_PART_BLOCKS, Share},
    snapshot::{NOT_COMMITTED, Operation, ReceivedState, Receiving},
    stream::ResumeToken,
    units::{BLOCK_BYTES, Extent, Seq, SnapshotId},
    volume::{Piece, RangeKind, SnapshotStatus, Volume, write::Writer},
};

pub use into::{ForeignReceiver, ForeignState, Overwrite, Receiver, ShareReceiver};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are compared or put back at once: 4 MiB.
const STEP_BLOCKS: u64 = 1 << 10;
/// Ranges of them that are looked at at once.
const STEP_RANGES: usize = 256;

impl Volume {
    /// What is being received, if the volume is not complete.
    pub fn receiving(&self) -> Option<Receiving> {
        let writer = self.writer.as_ref()?;
        writer.core.snapshots().receiving().map(|(_, what)| what)
    }

    /// How far that came, for whoever sends the rest; `None` where nothing is being received, or has to begin anew.
    ///
    /// # Errors
    /// Those of the store; whatever stopped the volume.
    pub async fn resume_token(&self) -> Result<Option<ResumeToken>> {
        let Some(Receiving { of, base, shares }) = self.receiving() else { return Ok(None) };
        let places = self.received_places(shares).await?;
        Ok(places.map(|places| ResumeToken { to: of, base, places }))
    }

    /// Of each share the block behind the last one that was received; `None` before the first could have been.
    async fn received_places(&self, shares: u32) -> Result<Option<Vec<u64>>> {
        let snapshots = self.writer.as_ref().ok_or(Error::ReadOnly)?.core.snapshots();
        let Some(begin) = snapshots.filling() else { return Ok(None) };
        self.settle_some_loads().await?;
        let head = self.committed_head().await?;
        let since = Seq(self.committed_place(begin)?);
        let mut places = Vec::new();
        for share in Share::each(shares) {
            places.push(head.last_changed(share, since).await?);
        }
        Ok(Some(places))
    }

    /// Begins to receive a snapshot: keeps what is there. Until it ends nobody else opens the volume for writing.
    ///
    /// # Errors
    /// `Exists` if the volume has that snapshot, or had it and has its bookmark; `Invalid` if it is not complete; whatever stopped it.
    pub async fn begin_receive(&self, what: Receiving) -> Result<()> {
        let (keep, made_ms) = (SnapshotId(self.env.uuid()), self.env.wall_ms());
        self.operate(Operation::Receive { what, keep, made_ms }).await
    }

    /// Says that everything that is written from here on is of that snapshot, each share ascending: then what came is known without a book.
    ///
    /// # Errors
    /// `Invalid` if that is not being received, or it was said already; whatever stopped the volume.
    pub async fn begin_fill(&self, of: SnapshotId) -> Result<()> {
        let (from, made_ms) = (SnapshotId(self.env.uuid()), self.env.wall_ms());
        self.operate(Operation::Fill { of, from, made_ms }).await
    }

    /// Ends it: everything that was written since is that snapshot, under a name.
    ///
    /// # Errors
    /// `Exists` for a name that is taken; `Invalid` if that is not being received; whatever stopped the volume.
    pub async fn end_receive(&self, of: SnapshotId, made: ReceivedState) -> Result<()> {
        self.operate(Operation::Received { of, made: Some(made) }).await
    }

    /// Ends it the other way: writes what was there before over what changed since. If nothing is being received, nothing is done.
    ///
    /// # Errors
    /// Those of the store; whatever stopped the volume. It is not complete then, and this may be called again.
    pub async fn go_back(&self) -> Result<()> {
        self.forget_loads().await;
        let snapshots = self.writer.as_ref().ok_or(Error::ReadOnly)?.core.snapshots();
        let Some((kept, what)) = snapshots.receiving() else { return Ok(()) };
        if snapshots.filling().is_some() {
            // Whoever comes to a half of what follows does not go on with what came.
            self.operate(Operation::Return { of: what.of }).await?;
        }
        self.put_back(kept).await?;
        self.operate(Operation::Received { of: what.of, made: None }).await
    }

    /// Whether the volume maps nothing but holes; if something is being received, whether it did before.
    ///
    /// # Errors
    /// Those of the store; whatever stopped the volume.
    pub async fn maps_nothing(&self) -> Result<bool> {
        let snapshots = self.writer.as_ref().ok_or(Error::ReadOnly)?.core.snapshots();
        let shown = match snapshots.receiving() {
            Some((before, _)) => self.open_snapshot(before).await?,
            None => self.committed_head().await?,
        };
        let mut changes = shown.changes(Seq(0));
        while let Some(changed) = changes.next().await? {
            let kinds = shown.ranges(changed.start * BLOCK, shown.bytes_of(changed), 1).await?;
            if kinds.iter().any(|(_, kind)| *kind != RangeKind::Hole) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the volume shows what one of its snapshots shows. What was written with what it held is read to be compared; of a bookmark
    /// there is nothing to compare with.
    ///
    /// # Errors
    /// Those of the store; whatever stopped the volume.
    pub async fn shows(&self, snapshot: &SnapshotStatus) -> Result<bool> {
        let head = self.committed_head().await?;
        let at = Seq(self.committed_place(&snapshot.name)?);
        if head.size_bytes() != snapshot.size_bytes || !head.goes_on_from(at.0) {
            return Ok(false);
        }
        let (mut base, mut changes) = (None, head.changes(at));
        while let Some(changed) = changes.next().await? {
            if snapshot.is_bookmark {
                return Ok(false);
            }
            if base.is_none() {
                base = Some(self.open_snapshot(&snapshot.name).await?);
            }
            let (offset, len) = (changed.start * BLOCK, head.bytes_of(changed));
            if bytes(base.as_ref().expect("opened above"), offset, len).await?
                != bytes(&head, offset, len).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes what a snapshot shows over what changed since, and gives the volume its size.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` where a rollback left that snapshot; those of the store; whatever stopped the volume.
    pub async fn put_back(&self, name: &str) -> Result<()> {
        let there = self.open_snapshot(name).await?;
        self.resize(there.size_bytes(), true).await?;
        let head = self.committed_head().await?;
        let at = self.committed_place(name)?;
        if !head.goes_on_from(at) {
            return Err(Error::Invalid(format!("snapshot {name} was left by a rollback")));
        }
        let mut changes = head.changes(Seq(at));
        while let Some(changed) = changes.next().await? {
            self.copy(&there, changed).await?;
        }
        Ok(())
    }

    /// Writes an extent of another state.
    async fn copy(&self, there: &Volume, extent: Extent) -> Result<()> {
        let (mut offset, end) = (extent.start * BLOCK, extent.start * BLOCK + there.bytes_of(extent));
        while offset < end {
            for (len, kind) in there.ranges(offset, end - offset, STEP_RANGES).await? {
                match kind {
                    RangeKind::Data => {
                        self.write(offset, bytes(there, offset, len).await?.into(), false).await?
                    }
                    RangeKind::Zero => self.zero(offset, len, true, false).await?,
                    RangeKind::Hole => self.trim(offset, len, false).await?,
                }
                offset += len;
            }
        }
        Ok(())
    }

    /// What changed behind a position, ascending and in steps.
    fn changes(&self, since: Seq) -> Changes<'_> {
        let rest = Extent::new(0, self.size_bytes().div_ceil(BLOCK));
        Changes { volume: self, since, rest, found: Vec::new() }
    }

    /// The block behind the last one of a share that changed behind a position; 0 if none did. What changed nowhere costs nothing.
    async fn last_changed(&self, share: Share, since: Seq) -> Result<u64> {
        let mut left = vec![Extent::new(0, self.size_bytes().div_ceil(BLOCK))];
        while let Some(extent) = left.pop() {
            if share.within(extent).next().is_none() {
                continue;
            }
            let (changed, mut end) = self.changed_in(extent, since).await?;
            if changed.is_empty() && end == extent.end() {
                continue;
            }
            let middle = (extent.start + extent.len / 2).next_multiple_of(SHARE_PART_BLOCKS);
            if middle < extent.end() && extent.len > SHARE_PART_BLOCKS {
                left.push(Extent::between(extent.start, middle));
                left.push(Extent::between(middle, extent.end()));
                continue;
            }
            let mut last = changed.last().copied();
            while end < extent.end() {
                let (changed, behind) = self.changed_in(Extent::between(end, extent.end()), since).await?;
                (last, end) = (changed.last().copied().or(last), behind);
            }
            if let Some(last) = last {
                return Ok(last.extent.end());
            }
        }
        Ok(0)
    }

    /// Bytes of an extent, within the volume.
    fn bytes_of(&self, extent: Extent) -> u64 {
        (extent.end() * BLOCK).min(self.size_bytes()) - extent.start * BLOCK
    }

    /// What is in the store of everything that was acknowledged before this call.
    async fn committed_head(&self) -> Result<Volume> {
        self.drain().await?;
        let writer: &Writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        writer.reading.open(&self.env, None).await
    }

    /// The position of a snapshot, everything before which is in the store by now.
    fn committed_place(&self, name: &str) -> Result<u64> {
        let found = self.snapshot_named(name).and_then(|snapshot| snapshot.at);
        found.filter(|at| *at < NOT_COMMITTED.0).ok_or_else(|| Error::NotFound(format!("snapshot {name}")))
    }
}

/// A walk over what changed.
struct Changes<'a> {
    volume: &'a Volume,
    since: Seq,
    /// Was not looked at.
    rest: Extent,
    /// Was found there, the first one last.
    found: Vec<Extent>,
}

impl Changes<'_> {
    async fn next(&mut self) -> Result<Option<Extent>> {
        loop {
            if let Some(found) = self.found.pop() {
                let step = Extent::new(found.start, found.len.min(STEP_BLOCKS));
                self.found.extend((step != found).then(|| Extent::between(step.end(), found.end())));
                return Ok(Some(step));
            }
            if self.rest.is_empty() {
                return Ok(None);
            }
            let (changed, end) = self.volume.changed_in(self.rest, self.since).await?;
            self.found = changed.iter().rev().map(|mapping| mapping.extent).collect();
            self.rest = Extent::between(end, self.rest.end());
        }
    }
}

async fn bytes(volume: &Volume, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(len as usize);
    for piece in volume.read(offset, len).await? {
        match piece {
            Piece::Data(data) => out.extend_from_slice(&data),
            Piece::Zeroes(n) => out.resize(out.len() + n as usize, 0),
        }
    }
    Ok(out)
}
