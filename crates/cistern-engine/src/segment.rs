//! The objects of the log as bytes: segments, claims, releases, and what is left in emptied slots (`docs/format/segment.md`).
//!
//! All have one shape: a prefix, frames (segments only), a sealed footer and a fixed trailer
//! at the very end, so that one ranged read of the tail tells what the object is and what it
//! holds. Blocks, sizes and host names are inside sealed parts; identities and lengths are not.
//!
//! Invariants: frames follow each other without gaps from the prefix to the footer, in the order
//! of their blocks; the mappings of a segment ascend and do not overlap, but where several versions of a block are kept for
//! snapshots; every number that is read is checked before it is used. Nothing here does IO.

use bytes::Bytes;

use crate::{
    codec::ObjectKind,
    snapshot::Operation,
    store::PROBED_OBJECT_BYTES_SLOW,
    units::{
        Epoch, JournalId, Mapping, Mark, SEGMENT_DATA_BYTES_MAX, Salt, SealNonce, Seq, SnapshotId, VolumeId,
    },
};

mod build;
mod entry;
mod footer;
mod frame;

pub use build::SegmentBuilder;
pub use entry::{
    Tail, encode_claim, encode_emptied, encode_release, object_key, printable, read_head, read_tail,
};
pub use frame::{FrameShape, open_frame, open_payload, open_raw};

/// Version of the log objects' format that is written and read. Frames are read without the object's head, so
/// a volume has frames of one version only: see the version of `volume.json`.
pub const FORMAT: u8 = 5;
/// Bytes to read from the end of a log object at first: nearly every footer fits.
pub const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of the largest log object: twice a full segment, for one large request at its end.
pub const OBJECT_BYTES_MAX: u64 = 32 << 20;
const _: () = assert!(OBJECT_BYTES_MAX <= PROBED_OBJECT_BYTES_SLOW, "a store is known to take it");
/// Mappings of one segment at most: 16 times what a full segment of single blocks has, so that only
/// masses of small trims meet it. Bounds the memory of whoever reads a footer to about 4 MiB.
pub const MAPPINGS_MAX: usize = 64 << 10;
/// The data of one segment takes at most this part of a volume's memory, but may be this much: several are packed, moved and on their way at
/// once, and below it requests cost more than they carry.
const MEMORY_SHARE: u64 = 16;
pub const DATA_BYTES_MIN: u64 = 1 << 20;

/// Bytes of block data in a full segment, of a volume with so much memory.
pub fn data_bytes_max(memory_bytes: u64) -> u64 {
    (memory_bytes / MEMORY_SHARE).clamp(DATA_BYTES_MIN, SEGMENT_DATA_BYTES_MAX as u64)
}

/// Operations on snapshots that one segment carries at most: so many can be asked for at once and cost one put.
pub const OPERATIONS_MAX: usize = 64;
/// Bytes of the longest host name in a claim.
pub const HOST_BYTES_MAX: usize = 255;

/// A range of a journal, `[from, to)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalRange {
    pub journal: JournalId,
    pub from: Mark,
    pub to: Mark,
}

/// What a log object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Segment,
    Claim,
    Release,
    Emptied,
}

impl EntryKind {
    /// The kind under which the object is sealed.
    pub const fn sealed_as(self) -> ObjectKind {
        match self {
            EntryKind::Segment => ObjectKind::Segment,
            EntryKind::Claim => ObjectKind::Claim,
            EntryKind::Release => ObjectKind::Release,
            EntryKind::Emptied => ObjectKind::Emptied,
        }
    }
}

/// The epoch of a checkpoint's writer, and the last seq whose effects are in it: its name. Later checkpoints have greater names.
pub type CheckpointName = (Epoch, Seq);

/// The place in a log for which an object is made, and by whom; for one content only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub seq: Seq,
    pub salt: Salt,
    /// As drawn: the object's is mixed with its content.
    pub nonce: SealNonce,
    pub checkpoint: Option<CheckpointName>,
}

/// What every log object tells in plain. No two sealings have the same, those of copied writers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead {
    pub kind: EntryKind,
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub seq: Seq,
    pub salt: Salt,
    pub nonce: SealNonce,
    /// The newest checkpoint that its maker knew to be in the store.
    pub checkpoint: Option<CheckpointName>,
}

/// What a log object holds besides frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Segment(Footer),
    Claim(Claim),
    Release(Release),
    /// A segment was here that nothing needs any more, and the slot is kept from late puts for a while.
    Emptied,
}

/// What a segment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A part of the journal; every mapping has the segment's seq as birth.
    Written {
        range: JournalRange,
        /// Size of the volume as of the end of that range.
        size_bytes: u64,
    },
    /// Blocks of older segments, each with its birth. A block counts only where its birth is still the newest.
    Moved {
        /// The mover knew the log up to here: what is born later may have replaced what it moves.
        base: Seq,
    },
    /// Blocks of older segments that only snapshots see, each with its birth. The volume does not see them, and a snapshot
    /// only where a checkpoint says that what it finds elsewhere was moved here.
    Kept {
        /// The mover knew the log up to here.
        base: Seq,
    },
}

impl Content {
    /// Whether it came from older segments.
    pub fn is_moved(&self) -> bool {
        matches!(self, Content::Moved { .. } | Content::Kept { .. })
    }
}

/// The footer of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub content: Content,
    /// Operations on snapshots behind all that a written segment maps, in order.
    pub operations: Vec<Operation>,
    /// Ascending and without overlap; of what is kept for snapshots, ascending by their first blocks.
    pub mappings: Vec<Mapping>,
}

/// A writer takes the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The writer's host, for people.
    pub host: String,
    /// When, by that host's clock, for people.
    pub wall_ms: u64,
    /// Where the epoch's segments continue.
    pub journal: JournalId,
    pub start: Mark,
    pub size_bytes: u64,
}

/// A writer gives the volume back: its epoch is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub wall_ms: u64,
    pub size_bytes: u64,
    /// With what the volume goes on, if not with what it shows here.
    pub rollback: Option<Rollback>,
}

/// Behind the release that says so, the volume goes on from a snapshot of its own (`docs/design/snapshots.md`, "Rollback").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    pub to: SnapshotId,
    /// Names the history that begins here, as a clone's id names the clone.
    pub branch: VolumeId,
}

/// A finished segment.
#[derive(Clone, Debug)]
pub struct SealedSegment {
    /// The whole object.
    pub body: Bytes,
    /// What it maps, ascending.
    pub mappings: Vec<Mapping>,
    /// Operations on snapshots behind that, in order.
    pub operations: Vec<Operation>,
    /// Bytes of block data in it, before compression.
    pub data_bytes: u64,
}
