//! What a clone's reader asks of the reader of the volumes it comes from.

use async_trait::async_trait;
use bytes::Bytes;

use super::{flights::AheadCounts, link::LinkEstimate};
use crate::{
    Error, Result,
    store::SharedStore,
    units::{Mapping, Seq, VolumeId},
};

/// Who wants blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUser {
    /// A client waits.
    Reader,
    /// Write-back, which packs: [`FrameReader::read_to_pack`](super::FrameReader::read_to_pack).
    Packer,
    /// The cleaner, which moves: [`FrameReader::read_to_move`](super::FrameReader::read_to_move).
    Mover,
}

/// Where another volume has what a mapping names.
pub struct Located {
    pub volume: VolumeId,
    /// Its own objects.
    pub store: SharedStore,
    /// The mapping as that volume has it by now, in parts where it moved some of it.
    pub parts: Vec<Mapping>,
}

/// Blocks that lie in the objects of other volumes ([`super::origins`]).
#[async_trait]
pub trait ForeignBlocks: Send + Sync {
    fn is_foreign(&self, seq: Seq) -> bool;
    /// Whether one of those volumes has not answered for so long that a caller that can do without it should not wait.
    fn is_away(&self) -> bool;
    /// Returns when something that was asked of one of them since has no answer for so long.
    async fn hangs(&self) -> Error;
    /// The blocks of data mappings that are all foreign, in their order.
    async fn read(&self, mappings: &[Mapping], user: BlockUser) -> Result<Vec<Bytes>>;
    /// Where the blocks of a foreign data mapping are by now.
    async fn locate(&self, mapping: &Mapping) -> Result<Located>;
    /// Fetches them for a reader who will come soon, with GETs of so many bytes.
    async fn prefetch(&self, mappings: &[Mapping], get_bytes: u64) -> Result<()>;
    /// Brings them into the chunk cache. Gives the bytes fetched.
    async fn warm(&self, mappings: &[Mapping], at_once: usize) -> Result<u64>;
    /// What became of what was prefetched.
    fn ahead_counts(&self) -> AheadCounts;
    /// What is known of the link.
    fn link(&self) -> Option<LinkEstimate>;
}
