//! Snapshots of a volume that is open for writing: made, removed and held while it is used (`docs/design/snapshots.md`).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    journal::Record,
    snapshot::{NOT_COMMITTED, Operation, Snapshot},
    units::{BLOCK_BYTES, JournalPos, SnapshotId},
    volume::{Volume, order::Submitted, write::Writer},
};

/// A snapshot, as its volume shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    pub name: String,
    pub id: SnapshotId,
    /// When it was made, in milliseconds since 1970 by the clock of the host that made it.
    pub made_ms: u64,
    pub size_bytes: u64,
    /// Its position in the log; absent until everything before it is in the store.
    pub at: Option<u64>,
    /// Tags of the holds on it.
    pub holds: Vec<String>,
}

impl SnapshotStatus {
    fn of((name, snapshot): (&str, &Snapshot)) -> SnapshotStatus {
        let Snapshot { id, at, made_ms, size_bytes, holds } = snapshot.clone();
        SnapshotStatus {
            name: name.to_owned(),
            id,
            made_ms,
            size_bytes,
            at: (at != NOT_COMMITTED).then_some(at.0),
            holds: holds.into_iter().collect(),
        }
    }
}

impl Volume {
    /// Makes a snapshot of everything that was acknowledged before this call, and perhaps of some of what is being written. When
    /// this returns it survives what a FLUSH survives, whether the store answers or not.
    ///
    /// # Errors
    /// `Exists` for a name that is taken, `Invalid` for what is no name, `ReadOnly`; whatever stopped the volume.
    pub async fn snapshot(&self, name: &str) -> Result<()> {
        let id = SnapshotId(self.env.uuid());
        self.operate(Operation::Make { id, name: name.to_owned(), made_ms: self.env.wall_ms() }).await
    }

    /// Removes a snapshot. What it alone held is given up in the background.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for one that is held; else as for [`snapshot`](Self::snapshot).
    pub async fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.operate(Operation::Remove { name: name.to_owned() }).await
    }

    /// Keeps a snapshot from being removed, under a tag.
    ///
    /// # Errors
    /// `NotFound`, `Exists` for a tag that it has; else as for [`snapshot`](Self::snapshot).
    pub async fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.operate(Operation::Hold { name: name.to_owned(), tag: tag.to_owned() }).await
    }

    /// Ends a hold.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot or tag; else as for [`snapshot`](Self::snapshot).
    pub async fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.operate(Operation::Release { name: name.to_owned(), tag: tag.to_owned() }).await
    }

    /// The snapshots as acknowledged, by name; `None` where the volume is open for reading only.
    pub fn snapshots(&self) -> Option<Vec<SnapshotStatus>> {
        let snapshots = self.writer.as_ref()?.core.snapshots();
        Some(snapshots.iter().map(SnapshotStatus::of).collect())
    }

    /// Waits until the snapshots that were made before this call are in the store, so that other hosts can open them.
    ///
    /// # Errors
    /// As of `drain`.
    pub async fn store_snapshots(&self) -> Result<()> {
        self.drain().await
    }

    async fn operate(&self, operation: Operation) -> Result<()> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let to = writer.operate(&operation).await?;
        writer.make_durable(to).await
    }
}

impl Writer {
    /// Appends an operation as soon as it may go; returns the position to make durable.
    async fn operate(&self, operation: &Operation) -> Result<JournalPos> {
        let mut payload = operation.encode();
        let record = Record::Operation { bytes: payload.len() as u32 }; // below a block
        payload.resize(BLOCK_BYTES, 0);
        let prepared = self.core.journal.prepare(record, Bytes::from(payload))?;
        let blocks = prepared.payload_blocks() + 1;
        loop {
            self.wait_below_dirty_max(blocks).await?;
            match self.core.operate(&prepared, operation)? {
                Submitted::Done { from, to } => {
                    self.control.note_append(from, to, self.env.now());
                    return Ok(to);
                }
                Submitted::Held(_) => unreachable!("an operation changes no blocks"),
                Submitted::NoRoom => self.core.journal.room(blocks).await?,
            }
        }
    }
}
