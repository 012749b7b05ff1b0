//! Receiving a snapshot: what is written counts at the end and as a whole, or is gone back on (`docs/design/backup.md`).
//!
//! An operation begins it and keeps what was there under a hidden name, another one ends it: between them lies whatever was written, and
//! every prefix of that history says so. Never ends what it did not see complete: that is for the caller to know.

mod into;

use crate::{
    Error, Result,
    snapshot::{NOT_COMMITTED, Operation, ReceivedState},
    units::{BLOCK_BYTES, Extent, Seq, SnapshotId},
    volume::{Piece, RangeKind, SnapshotStatus, Volume, write::Writer},
};

pub use into::{ForeignReceiver, ForeignState, Overwrite, Receiver};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are compared or put back at once: 4 MiB.
const STEP_BLOCKS: u64 = 1 << 10;
/// Ranges of them that are looked at at once.
const STEP_RANGES: usize = 256;

impl Volume {
    /// What is being received, if the volume is not complete.
    pub fn receiving(&self) -> Option<SnapshotId> {
        let writer = self.writer.as_ref()?;
        writer.core.snapshots().receiving().map(|(_, of)| of)
    }

    /// Begins to receive a snapshot: keeps what is there. Until it ends nobody else opens the volume for writing.
    ///
    /// # Errors
    /// `Exists` if the volume has that snapshot, or had it and has its bookmark; `Invalid` if it is not complete; whatever stopped it.
    pub async fn begin_receive(&self, of: SnapshotId) -> Result<()> {
        let (keep, made_ms) = (SnapshotId(self.env.uuid()), self.env.wall_ms());
        self.operate(Operation::Receive { of, keep, made_ms }).await
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
        let snapshots = self.writer.as_ref().ok_or(Error::ReadOnly)?.core.snapshots();
        let Some((kept, of)) = snapshots.receiving() else { return Ok(()) };
        self.put_back(kept).await?;
        self.operate(Operation::Received { of, made: None }).await
    }

    /// Whether the volume maps nothing but holes.
    ///
    /// # Errors
    /// Those of the store; whatever stopped the volume.
    pub async fn maps_nothing(&self) -> Result<bool> {
        let head = self.committed_head().await?;
        let mut nothing = true;
        head.each_change(Seq(0), async |changed| {
            let kinds = head.ranges(changed.start * BLOCK, head.bytes_of(changed), 1).await?;
            nothing = kinds.iter().all(|(_, kind)| *kind == RangeKind::Hole);
            Ok(nothing)
        })
        .await?;
        Ok(nothing)
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
        let (mut base, mut same) = (None, true);
        head.each_change(at, async |changed| {
            if base.is_none() && !snapshot.is_bookmark {
                base = Some(self.open_snapshot(&snapshot.name).await?);
            }
            let (offset, len) = (changed.start * BLOCK, head.bytes_of(changed));
            same = match &base {
                Some(base) => bytes(base, offset, len).await? == bytes(&head, offset, len).await?,
                None => false,
            };
            Ok(same)
        })
        .await?;
        Ok(same)
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
        head.each_change(Seq(at), async |changed| {
            self.copy(&there, changed).await?;
            Ok(true)
        })
        .await
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

    /// Calls `each` with what changed behind a position, ascending and in steps, until it says that this is enough.
    async fn each_change(&self, since: Seq, mut each: impl AsyncFnMut(Extent) -> Result<bool>) -> Result<()> {
        let blocks = self.size_bytes().div_ceil(BLOCK);
        let mut at = 0;
        while at < blocks {
            let (changed, end) = self.changed_in(Extent::between(at, blocks), since).await?;
            for mapping in changed {
                let mut rest = mapping.extent;
                while !rest.is_empty() {
                    let step = Extent::new(rest.start, rest.len.min(STEP_BLOCKS));
                    if !each(step).await? {
                        return Ok(());
                    }
                    rest = Extent::between(step.end(), rest.end());
                }
            }
            at = end;
        }
        Ok(())
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
