//! What comes from elsewhere: bytes at any place, of a state that has a name at most and no id.
//!
//! Received like a stream of ours, so it counts at its end and as a whole. Where it begins with is found by its name alone.

use std::sync::Arc;

use super::{Filling, Overwrite, Receiver, ShareReceiver};
use crate::{
    Error, Result,
    codec::Compression,
    share::Share,
    stream::{Patch, PatchContent, StreamHeader, StreamState, zero_runs},
    units::{SECTOR_BYTES, SnapshotId},
    volume::{RangeKind, Volume},
};

/// What is received from elsewhere.
#[derive(Clone, Debug)]
pub struct ForeignState {
    /// Name of the snapshot that is made.
    pub name: String,
    /// Name of the snapshot of the volume that it begins with; without one it is all there is.
    pub base: Option<String>,
    /// Any number; the volume gets the next multiple of a sector.
    pub size_bytes: u64,
}

/// Such a state that is being received. Nothing of it counts before its [`end`](Self::end); who does not come to that calls
/// [`Volume::go_back`].
pub struct ForeignReceiver {
    receiver: Receiver,
    all: ShareReceiver,
    /// Behind everything that was written.
    high: u64,
}

impl ForeignReceiver {
    /// Begins to receive it into a volume. Goes back first on what was not complete.
    ///
    /// # Errors
    /// Those of [`Receiver::begin`]; `NotFound` where the volume has no snapshot with the name of the base.
    pub async fn begin(
        volume: &Arc<Volume>,
        state: &ForeignState,
        overwrite: Overwrite,
    ) -> Result<ForeignReceiver> {
        let base = match &state.base {
            None => None,
            Some(name) => match volume.snapshot_named(name) {
                Some(snapshot) => Some(StreamState { id: snapshot.id, name: name.clone() }),
                None => return Err(Error::NotFound(format!("snapshot {name}, with which it begins"))),
            },
        };
        let header = StreamHeader {
            volume: volume.id(),
            // Nobody has it: two imports of one state are two snapshots.
            to: StreamState { id: SnapshotId(volume.env.uuid()), name: state.name.clone() },
            base,
            size_bytes: state.size_bytes.next_multiple_of(SECTOR_BYTES as u64),
            made_ms: volume.env.wall_ms(),
            compression: Compression::default(),
            share: Share::ALL,
            from: 0,
        };
        let begun = Receiver::begin(volume, std::slice::from_ref(&header), &state.name, overwrite).await?;
        let (receiver, shares) = begun.expect("nobody has a snapshot with a fresh id");
        let mut all = shares.into_iter().next().expect("one for each header");
        // No extents will be told, between which there were gaps.
        all.at = header.blocks();
        let (size, volume_bytes) = (state.size_bytes, header.size_bytes);
        let received = ForeignReceiver { receiver, all, high: 0 };
        if received.all.fill != Filling::Empty {
            let cleared_from = if state.base.is_none() { 0 } else { size };
            received.clear(cleared_from, volume_bytes - cleared_from).await?;
        }
        Ok(received)
    }

    /// Puts bytes in their place. Blocks that are zero become holes. Gives how many bytes were written as data.
    ///
    /// # Errors
    /// `OutOfRange`, and those of writing to the volume.
    pub async fn patch(&mut self, patch: Patch) -> Result<u64> {
        let Patch { offset, content } = patch;
        let data = match content {
            PatchContent::Zeroes(len) => return self.clear(offset, len).await.map(|()| 0),
            PatchContent::Data(data) => data,
        };
        let (mut at, mut written) = (0, 0);
        for (len, is_zero) in zero_runs(offset, &data) {
            let place = offset + at as u64;
            match is_zero {
                true => self.clear(place, len as u64).await?,
                false => {
                    self.all.volume.write(place, data.slice(at..at + len), false).await?;
                    self.high = self.high.max(place + len as u64);
                    written += len as u64;
                }
            }
            at += len;
        }
        Ok(written)
    }

    /// All of it came: what was written counts from here on. Gives the id of the snapshot.
    ///
    /// # Errors
    /// Those of writing to the volume.
    pub async fn end(self) -> Result<SnapshotId> {
        let id = self.all.header.to.id;
        self.receiver.end(vec![self.all]).await?;
        Ok(id)
    }

    /// Makes a hole of a range, unless it is one.
    async fn clear(&self, offset: u64, len: u64) -> Result<()> {
        let ShareReceiver { volume, fill, .. } = &self.all;
        if len == 0 || (*fill == Filling::Empty && offset >= self.high) {
            return Ok(());
        }
        match volume.ranges(offset, len, 1).await?.as_slice() {
            [(there, RangeKind::Hole)] if *there == len => Ok(()),
            _ => volume.trim(offset, len, false).await,
        }
    }
}
