//! What joins a volume, and between whom it passes: whoever offers it, the publisher, whoever has to know.
//!
//! Every kind of entry is one variant of [`NewEntry`], so that nobody who is told of entries overlooks one.
//! Knows nothing of slots that are lost or of who else offers: that is [`super::publish`].

use async_trait::async_trait;

use crate::{
    Error, Result,
    codec::Compression,
    log::VolumeKeys,
    segment::{JournalRange, SealedSegment, SegmentBuilder, Slot},
    units::{BLOCK_BYTES, Mapping, Seq},
};

/// Something that somebody wants in the log.
#[async_trait]
pub trait Offer: Send + Sync + 'static {
    /// Makes the object for a slot. Asked again, for a later slot, when the first one was lost: then what it made before
    /// will never count. It may wait for as long as the store is away; everything behind it waits with it.
    ///
    /// # Errors
    /// The slot can not be filled, and nothing behind it could ever be reached: the writer stops for good.
    async fn seal(&self, slot: &Slot) -> Result<NewEntry>;
    /// Whether it waits in its slot where the store has no room, and takes what is kept for that: for what is small, or makes room.
    /// Anything else comes back to who offered it.
    fn waits_for_room(&self) -> bool;
}

/// An entry made for its slot, by what it does to the volume.
pub enum NewEntry {
    /// A range of the journal.
    Segment(NewSegment),
    /// Blocks of older segments.
    Moved(NewMoved),
    /// Blocks of older segments that only snapshots see.
    Kept(SealedSegment),
}

/// A segment of a range of the journal.
pub struct NewSegment {
    /// The object, and what it maps.
    pub sealed: SealedSegment,
    /// Blocks of which the range holds sectors, and whose rest could not be read: the segment has the sectors, apart.
    pub partial: Vec<u64>,
    pub range: JournalRange,
    /// Size of the volume as of the end of the range.
    pub size_bytes: u64,
}

/// A segment of blocks that were moved.
pub struct NewMoved {
    /// The object, and what it maps.
    pub sealed: SealedSegment,
    /// The mover knew the log up to here.
    pub base: Seq,
    /// Where the blocks were, ascending.
    pub from: Vec<Mapping>,
}

impl NewEntry {
    /// The object, and what it maps.
    pub fn sealed(&self) -> &SealedSegment {
        match self {
            NewEntry::Segment(segment) => &segment.sealed,
            NewEntry::Moved(moved) => &moved.sealed,
            NewEntry::Kept(sealed) => sealed,
        }
    }

    /// Blocks of data in it that the volume sees.
    pub fn data_blocks(&self) -> u64 {
        match self {
            NewEntry::Segment(_) | NewEntry::Moved(_) => self.sealed().data_bytes / BLOCK_BYTES as u64,
            NewEntry::Kept(_) => 0,
        }
    }

    /// Whether it came from older segments.
    pub fn is_moved(&self) -> bool {
        !matches!(self, NewEntry::Segment(_))
    }
}

/// An entry that changes nothing. Its maker knew the log up to `base`.
pub fn nothing(keys: &VolumeKeys, slot: &Slot, base: Seq) -> NewEntry {
    let builder = SegmentBuilder::moved(keys.key.as_deref(), *slot, base, base.0, Compression::None);
    NewEntry::Moved(NewMoved { sealed: builder.finish(), base, from: Vec::new() })
}

/// Whoever has to know what joins the volume, and when: in the order of the log, one entry at a time.
#[async_trait]
pub trait Commit: Send + Sync + 'static {
    /// `entry` is in the store and everything before it is. On return the volume shows it, to every reader in
    /// one instant for any block. Dropped before that where the volume stops at once.
    async fn commit(&self, seq: Seq, entry: &NewEntry);
    /// Returns once there is room for what another entry brings. Nothing is committed meanwhile.
    async fn room(&self);
    /// The volume can not go on. Called once, before anybody who waits for an entry hears why.
    fn latch(&self, cause: Error);
}
