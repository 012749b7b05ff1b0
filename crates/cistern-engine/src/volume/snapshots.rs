//! Snapshots of a volume that is open for writing: made, removed and held while it is used (`docs/design/snapshots.md`).

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    journal::{Prepared, Record},
    snapshot::{NOT_COMMITTED, Operation, Snapshot},
    units::{BLOCK_BYTES, SnapshotId, VolumeId},
    volume::{
        Volume,
        order::{Core, OperationPlaces},
        write::Writer,
    },
};

/// A snapshot, as its volume shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    pub name: String,
    pub id: SnapshotId,
    /// When it was made, in milliseconds since 1970 by the clock of the host that made it.
    pub made_ms: u64,
    /// Size of the volume then.
    pub size_bytes: u64,
    /// Its position in the log; absent until everything before it is in the store.
    pub at: Option<u64>,
    /// Tags of the holds on it.
    pub holds: Vec<String>,
    /// What was cloned of it, and the way there. What was removed and has clones shows under a name of its own.
    pub clones: BTreeMap<VolumeId, String>,
    /// What is being received since: it is what was there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<SnapshotId>,
    /// Of what was removed and left its position, to compare with; it has no content.
    pub is_bookmark: bool,
}

impl SnapshotStatus {
    fn of((name, snapshot): (&str, &Snapshot)) -> SnapshotStatus {
        let Snapshot { id, at, made_ms, size_bytes, holds, clones, receiving, is_bookmark, .. } =
            snapshot.clone();
        SnapshotStatus {
            name: name.to_owned(),
            id,
            made_ms,
            size_bytes,
            at: (at != NOT_COMMITTED).then_some(at.0),
            holds: holds.into_iter().collect(),
            clones,
            receiving: receiving.map(|what| what.of),
            is_bookmark,
        }
    }
}

/// Makes a snapshot of each of some volumes under a name, all at one instant: what somebody wrote to one of them after a write to
/// another was acknowledged is in its snapshot only if that write is in the other's. When this returns they survive what a FLUSH
/// survives, whether the store answers or not. A crash before that may leave some of them.
///
/// # Errors
/// `Exists` for a name that is taken, `Invalid` for what is no name and for a volume that is given twice, `ReadOnly`; whatever stopped
/// a volume. If the error is one of these no snapshot was made; if a volume stopped, look.
pub async fn snapshot_together(snapshots: &[(&Volume, &str)]) -> Result<()> {
    let mut volumes: Vec<VolumeId> = snapshots.iter().map(|(volume, _)| volume.id).collect();
    volumes.sort();
    volumes.dedup();
    if volumes.len() < snapshots.len() {
        return Err(Error::Invalid("of one instant a volume has one snapshot".into()));
    }
    let make = |(volume, name): &(&Volume, &str)| volume.making(name, SnapshotId(volume.env.uuid()));
    let operations: Vec<Operation> = snapshots.iter().map(make).collect();
    let writers: Option<Vec<&Writer>> = snapshots.iter().map(|(volume, _)| volume.writer.as_ref()).collect();
    operate(&writers.ok_or(Error::ReadOnly)?, &operations).await
}

impl Volume {
    /// Makes a snapshot of everything that was acknowledged before this call, and perhaps of some of what is being written. When
    /// this returns it survives what a FLUSH survives, whether the store answers or not.
    ///
    /// # Errors
    /// `Exists` for a name that is taken, `Invalid` for what is no name, `ReadOnly`; whatever stopped the volume.
    pub async fn snapshot(&self, name: &str) -> Result<()> {
        snapshot_together(&[(self, name)]).await
    }

    /// As [`snapshot`](Self::snapshot); gives its id.
    pub(super) async fn make_snapshot(&self, name: &str) -> Result<SnapshotId> {
        let id = SnapshotId(self.env.uuid());
        self.operate(self.making(name, id)).await?;
        Ok(id)
    }

    fn making(&self, name: &str, id: SnapshotId) -> Operation {
        Operation::Make { id, name: name.to_owned(), made_ms: self.env.wall_ms() }
    }

    /// Removes a snapshot, or a bookmark. What a snapshot alone held is given up in the background.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for one that is held; else as for [`snapshot`](Self::snapshot).
    pub async fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.operate(Operation::Remove { name: name.to_owned(), bookmark: false }).await
    }

    /// Removes a snapshot and leaves a bookmark: its name and position, to compare with.
    ///
    /// # Errors
    /// As for [`remove_snapshot`](Self::remove_snapshot); `Invalid` for a bookmark.
    pub async fn leave_bookmark(&self, name: &str) -> Result<()> {
        self.operate(Operation::Remove { name: name.to_owned(), bookmark: true }).await
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

    /// The snapshots and bookmarks by name, for a caller who tells others which there are.
    ///
    /// # Errors
    /// `Corrupt` where the state that was opened for reading has no sound copy of them: then it is not known which there are.
    pub fn known_snapshots(&self) -> Result<Vec<SnapshotStatus>> {
        match &self.opened.snapshots_fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(self.snapshots()),
        }
    }

    /// The snapshots and bookmarks by name: as acknowledged, or as of the state that was opened for reading; none where they are damaged there.
    pub fn snapshots(&self) -> Vec<SnapshotStatus> {
        let snapshots = match &self.writer {
            Some(writer) => &writer.core.snapshots(),
            None => &self.opened.snapshots,
        };
        // Where a receive begins is a bookmark that nobody made.
        let shown = snapshots.iter().filter(|(_, snapshot)| snapshot.filling.is_none());
        shown.map(SnapshotStatus::of).collect()
    }

    /// One of them.
    pub fn snapshot_named(&self, name: &str) -> Option<SnapshotStatus> {
        let found = match &self.writer {
            Some(writer) => writer.core.snapshot(name),
            None => self.opened.snapshots.get(name).cloned(),
        };
        found.map(|snapshot| SnapshotStatus::of((name, &snapshot)))
    }

    /// Whether no snapshot that is there shows what the volume shows now: something was written, discarded or resized since, or the
    /// one that showed it was removed. True if that is not known.
    pub fn changed_since_snapshot(&self) -> bool {
        self.writer.as_ref().is_none_or(|writer| writer.core.is_changed())
    }

    /// A snapshot, as others open it for reading only. Waits until it is in the store.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly` where the volume is not open for writing; those of the store.
    pub async fn open_snapshot(&self, name: &str) -> Result<Volume> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let snapshot =
            writer.core.snapshot(name).ok_or_else(|| Error::NotFound(format!("snapshot {name}")))?;
        if snapshot.at == NOT_COMMITTED {
            self.drain().await?;
        }
        writer.reading.open(&self.env, Some(name)).await
    }

    pub(super) async fn operate(&self, operation: Operation) -> Result<()> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        operate(&[writer], &[operation]).await
    }
}

/// Appends an operation to the history of each volume, as soon as all of them may go, and makes them durable.
async fn operate(writers: &[&Writer], operations: &[Operation]) -> Result<()> {
    operations.iter().try_for_each(Operation::check)?;
    let prepare = |(writer, operation): (&&Writer, &Operation)| {
        let mut payload = operation.encode();
        let record = Record::Operation { bytes: payload.len() as u32 }; // below a block
        payload.resize(BLOCK_BYTES, 0);
        writer.core.journal.prepare(record, Bytes::from(payload))
    };
    let prepared: Vec<Prepared> = writers.iter().zip(operations).map(prepare).collect::<Result<_>>()?;
    let blocks: Vec<u64> = prepared.iter().map(|prepared| prepared.payload_blocks() + 1).collect();
    let parts = writers.iter().zip(&prepared).zip(operations);
    let all: Vec<_> =
        parts.map(|((writer, prepared), operation)| (&*writer.core, prepared, operation)).collect();
    let places = loop {
        for (writer, blocks) in writers.iter().zip(&blocks) {
            writer.wait_below_dirty_max(*blocks, 0).await?;
        }
        match Core::operate(&all)? {
            OperationPlaces::Done(places) => break places,
            OperationPlaces::NoRoom(n) => writers[n].core.journal.room(blocks[n]).await?,
        }
    };
    for (writer, place) in writers.iter().zip(&places) {
        writer.control.note_append(place.start, place.end, writer.env.now());
    }
    try_join_all(writers.iter().zip(&places).map(|(writer, place)| writer.make_durable(place.end))).await?;
    Ok(())
}
