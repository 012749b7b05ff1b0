//! Entries for fuzzing: what reads the plain bytes of a run's parts, panic-free on any input.

use super::{
    fence::{Fence, Trailer},
    runs::decode_block,
};

/// Decodes `data` as a block of mappings.
pub fn block(data: &[u8]) {
    let _ = decode_block(data, &mut Vec::new());
}

/// Decodes `data` as an index of the kind that its first byte names, and as a trailer.
pub fn index(data: &[u8]) {
    if let Some(fence) = data.first().and_then(|&tag| Fence::decode(tag, data, u64::MAX)) {
        let _ = fence.find(u64::MAX);
    }
    let _ = Trailer::decode(data);
}
