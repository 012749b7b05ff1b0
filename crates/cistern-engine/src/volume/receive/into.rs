//! A stream that is written into a volume, record by record: what it may go into, and what of it is written.

mod foreign;

use std::sync::Arc;

use crate::{
    Error, Result,
    snapshot::ReceivedState,
    stream::{StreamContent, StreamHeader, StreamRecord},
    units::{Extent, SnapshotId},
    volume::{RangeKind, Volume},
};

use super::{BLOCK, bytes};

pub use foreign::{ForeignReceiver, ForeignState};

/// What a stream may do to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    Nothing,
    All,
    /// What is there is read, and written only where it differs.
    Differing,
}

/// A stream that is being received. Nothing of it counts before its [`end`](Self::end); who does not come to that calls
/// [`Volume::go_back`].
pub struct Receiver {
    volume: Arc<Volume>,
    header: StreamHeader,
    name: String,
    fill: Filling,
    /// Behind the last record.
    at: u64,
}

/// How what comes is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filling {
    /// Everything was a hole.
    Empty,
    Over,
    Compared,
}

impl Receiver {
    /// Begins to receive a stream into a volume, as a snapshot of that name; `None` if the volume has it. Goes back first on what was
    /// not complete.
    ///
    /// # Errors
    /// `NotEmpty` and `Invalid` say what the stream does not fit, `Exists` that the name is taken: the volume is as it was. After others
    /// it may have been begun.
    pub async fn begin(
        volume: &Arc<Volume>,
        header: StreamHeader,
        name: &str,
        overwrite: Overwrite,
    ) -> Result<Option<Receiver>> {
        volume.go_back().await?;
        let all = volume.snapshots();
        if all.iter().any(|snapshot| snapshot.id == header.to.id && !snapshot.is_bookmark) {
            return Ok(None);
        }
        if all.iter().any(|snapshot| snapshot.name == name) {
            return Err(Error::Exists(format!("another snapshot with the name {name}")));
        }
        let over = if overwrite == Overwrite::Differing { Filling::Compared } else { Filling::Over };
        let (fill, put_back) = match &header.base {
            None if volume.maps_nothing().await? => (Filling::Empty, None),
            None if overwrite == Overwrite::Nothing => {
                return Err(Error::NotEmpty("the stream is a full one, and the volume is not empty".into()));
            }
            None => (over, None),
            Some(base) => {
                let Some(there) = all.iter().find(|snapshot| snapshot.id == base.id) else {
                    return Err(Error::Invalid(format!(
                        "the stream begins with a snapshot that the volume does not have ({}, id {})",
                        base.name, base.id
                    )));
                };
                let is_there = volume.shows(there).await?;
                if !is_there && (overwrite == Overwrite::Nothing || there.is_bookmark) {
                    return Err(Error::Invalid(format!(
                        "the stream begins with snapshot {}, and the volume does not show that any more: it was written to since",
                        there.name
                    )));
                }
                (over, (!is_there).then(|| there.name.clone()))
            }
        };
        volume.begin_receive(header.to.id).await?;
        if let Some(base) = put_back {
            volume.put_back(&base).await?;
        }
        volume.resize(header.size_bytes, true).await?;
        let (volume, name) = (volume.clone(), name.to_owned());
        Ok(Some(Receiver { volume, header, name, fill, at: 0 }))
    }

    pub fn of(&self) -> SnapshotId {
        self.header.to.id
    }

    /// Writes the next record.
    ///
    /// # Errors
    /// Those of writing to the volume, and of reading what is compared.
    pub async fn record(&mut self, record: StreamRecord) -> Result<()> {
        debug_assert!(record.extent.start >= self.at, "a reader of streams gives them in order");
        self.fill_gap(record.extent.start).await?;
        self.at = record.extent.end();
        match record.content {
            StreamContent::Data(data) => {
                let (offset, len) = self.bytes_of(record.extent);
                // The last block may be one in part.
                let data = data.slice(..len as usize);
                let is_there =
                    self.fill == Filling::Compared && bytes(&self.volume, offset, len).await? == data;
                if is_there { Ok(()) } else { self.volume.write(offset, data, false).await }
            }
            StreamContent::Zero => self.clear(record.extent, RangeKind::Zero).await,
            StreamContent::Hole => self.clear(record.extent, RangeKind::Hole).await,
        }
    }

    /// The stream is complete: what was written counts from here on.
    ///
    /// # Errors
    /// Those of writing to the volume.
    pub async fn end(mut self) -> Result<()> {
        self.fill_gap(self.header.blocks()).await?;
        let made = ReceivedState { name: self.name, made_ms: self.header.made_ms };
        self.volume.end_receive(self.header.to.id, made).await
    }

    /// What a full stream does not tell is a hole.
    async fn fill_gap(&mut self, until: u64) -> Result<()> {
        match self.header.base {
            None => self.clear(Extent::between(self.at, until), RangeKind::Hole).await,
            Some(_) => Ok(()),
        }
    }

    /// Makes a hole of an extent, or allocated zeroes, unless it is that.
    async fn clear(&self, extent: Extent, kind: RangeKind) -> Result<()> {
        let (offset, len) = self.bytes_of(extent);
        let is_hole = kind == RangeKind::Hole;
        if len == 0 || (is_hole && self.fill == Filling::Empty) {
            return Ok(());
        }
        let there = self.volume.ranges(offset, len, 1).await?;
        match there.as_slice() {
            [(there_len, there)] if *there_len == len && *there == kind => Ok(()),
            _ if is_hole => self.volume.trim(offset, len, false).await,
            _ => self.volume.zero(offset, len, true, false).await,
        }
    }

    /// Place and length of an extent, within the volume.
    fn bytes_of(&self, extent: Extent) -> (u64, u64) {
        let offset = extent.start * BLOCK;
        (offset, (extent.end() * BLOCK).min(self.header.size_bytes).saturating_sub(offset))
    }
}
