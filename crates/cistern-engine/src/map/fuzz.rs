//! Entries for fuzzing: what reads the plain bytes of a run's parts, panic-free on any input.

use super::{
    block::{self, Block},
    fence::{Fence, Trailer},
};
use crate::units::Extent;

/// Decodes `data` as a block of mappings: all of it, and what a lookup finds.
pub fn block(data: &[u8]) {
    let _ = block::decode(data, &mut Vec::new());
    let Some(found) = Block::new(data.to_vec()) else { return };
    for at in [0, 100, u64::MAX / 2] {
        let _ = found.find(at, u64::MAX, Extent::new(0, super::BLOCKS_MAX));
    }
}

/// Decodes `data` as an index of the kind that its first byte names, and as a trailer.
pub fn index(data: &[u8]) {
    if let Some(fence) = data.first().and_then(|&tag| Fence::decode(tag, data, u64::MAX)) {
        let _ = fence.find(u64::MAX);
    }
    let _ = Trailer::decode(data);
}
