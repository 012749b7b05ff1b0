//! The words of the engine as types: blocks, extents, positions and identities.
//!
//! Owns no behaviour beyond arithmetic and printing. One newtype per meaning, so that a log
//! position can never be passed where a journal position is meant.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a block, the unit of the map and of the journal.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a sector, the smallest unit a client may address.
pub const SECTOR_BYTES: usize = 512;
/// Blocks of the largest frame (64 KiB): the unit of compression, sealing and reading.
pub const FRAME_BLOCKS_MAX: usize = 16;
/// Bytes of block data after which a segment is sealed.
pub const SEGMENT_DATA_BYTES_MAX: usize = 16 << 20;
/// Bytes of the largest volume: 2^60, far below where block arithmetic could overflow.
pub const VOLUME_BYTES_MAX: u64 = 1 << 60;

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
const _: () = assert!(SEGMENT_DATA_BYTES_MAX.is_multiple_of(FRAME_BLOCKS_MAX * BLOCK_BYTES));

/// A run of consecutive blocks, `[start, start + len)`. Unit: blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extent {
    pub start: u64,
    pub len: u64,
}

impl Extent {
    pub const fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }
    /// The extent between two block numbers, `end` excluded.
    pub fn between(start: u64, end: u64) -> Self {
        debug_assert!(start <= end);
        Self { start, len: end - start }
    }
    pub const fn end(&self) -> u64 {
        self.start + self.len
    }
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The common part of two extents, `None` when they share no block.
    pub fn intersect(&self, other: Extent) -> Option<Extent> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Extent::between(start, end))
    }
}

/// Position in a volume's log; the first entry has seq 1. As a birth, 0 means "never written".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seq(pub u64);

impl Seq {
    pub const fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Counts the writers of a volume; every claim starts a new one. The first is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// Linear position in a journal, in blocks since it was made; it never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JournalPos(pub u64);

/// What tells the history of a journal up to a position from that of its copies: a hash over everything that was
/// written to it before.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chain(pub u64);

/// A boundary of groups in a journal, and the history that leads there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mark {
    pub pos: JournalPos,
    pub chain: Chain,
}

/// The identity of a volume, given at its creation and part of everything written for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VolumeId(pub uuid::Uuid);

/// The identity of one journal file. A new journal has a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JournalId(pub uuid::Uuid);

/// The identity of a run object of the map: random, hence unique for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId(pub uuid::Uuid);

/// The identity of a snapshot: random, hence unique for ever, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SnapshotId(pub uuid::Uuid);

/// Random bytes drawn by a writer for its epoch. They tell one writer's objects from another's,
/// but not from those of its copies, and go into every sealing key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Salt(pub [u8; 16]);

macro_rules! show_uuid {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    )*};
}
show_uuid!(VolumeId, JournalId, RunId, SnapshotId);

/// What tells one sealing of a log object from every other one under the same key, those of a copied writer included.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SealNonce(pub [u8; 8]);

impl SealNonce {
    /// What was drawn, mixed with a hash of what is to be sealed: two copies of a writer that draw alike and seal different
    /// contents differ nevertheless.
    pub fn mixed_with(self, content: u64) -> SealNonce {
        SealNonce((u64::from_le_bytes(self.0) ^ content).to_le_bytes())
    }
}

impl fmt::Debug for SealNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealNonce({:016x})", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({:016x})", self.0)
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Salt({})", uuid::Uuid::from_bytes(self.0))
    }
}

macro_rules! show_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}
show_number!(Seq, Epoch, JournalPos);

/// Where a run of blocks lies in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Reads as zeroes and takes no space: never written, or trimmed.
    Hole,
    /// Reads as zeroes, but counts as allocated (WRITE_ZEROES with NO_HOLE).
    Zero,
    /// Lies in one frame of one segment.
    Frame(FrameRef),
}

/// A part of a frame: what a reader needs to fetch, verify and decode it without the footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameRef {
    /// The segment that holds the frame.
    pub seq: Seq,
    /// Bytes from the beginning of the object to the frame.
    pub offset: u32,
    /// Bytes of the frame as stored (compressed and sealed).
    pub stored: u32,
    /// Blocks to skip at the beginning of the decoded frame.
    pub index: u8,
}

/// One extent of the map: its place and its birth, the seq of the write. The birth stays when
/// the cleaner moves data, the place changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub extent: Extent,
    pub birth: Seq,
    pub place: Place,
}

impl Mapping {
    /// The part of this mapping that lies in `part`, which must be inside its extent.
    pub fn slice(&self, part: Extent) -> Mapping {
        debug_assert!(part.start >= self.extent.start && part.end() <= self.extent.end());
        let skip = part.start - self.extent.start;
        let place = match self.place {
            Place::Frame(f) => Place::Frame(FrameRef { index: f.index + skip as u8, ..f }),
            other => other,
        };
        Mapping { extent: part, birth: self.birth, place }
    }
}

/// A wall-clock time in milliseconds since 1970 as `YYYY-MM-DD HH:MM:SS UTC`, for messages.
/// Civil-from-days after Howard Hinnant's "chrono-compatible low-level date algorithms".
pub fn utc(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times print as people write them, leap days included.
    #[test]
    fn utc_prints_known_instants() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_709_209_845_000), "2024-02-29 12:30:45 UTC");
        assert_eq!(utc(4_102_444_799_999), "2099-12-31 23:59:59 UTC");
    }
}
