//! What a clone has of other volumes, written as its own.

use crate::{
    Result,
    cleaner::{
        CleanerParts, Moved,
        moved::For,
        round::{SEGMENT_BLOCKS, offer},
    },
    units::Extent,
};

/// Blocks that one round moves, about. The more, the more of each segment it comes from is read together.
const ROUND_BLOCKS: u64 = 4 * SEGMENT_BLOCKS;
/// Mappings that are looked up together.
const LOOKUP_MAPPINGS: usize = 4096;

/// Moves foreign blocks of `extent`, from its beginning on, until a round is full.
pub async fn adopt(parts: &CleanerParts, extent: Extent) -> Result<Moved> {
    let base = parts.space.newest();
    let pin = parts.map.pin();
    let (mut moved, mut blocks, mut at) = (Vec::new(), 0, extent.start);
    while at < extent.end() && blocks < ROUND_BLOCKS {
        let mappings = parts.map.lookup_limited(Extent::between(at, extent.end()), LOOKUP_MAPPINGS).await?;
        at = mappings.last().map_or(extent.end(), |mapping| mapping.extent.end());
        let foreign = mappings.into_iter().filter(|mapping| parts.blocks.is_foreign(mapping));
        moved.extend(foreign.inspect(|mapping| blocks += mapping.extent.len));
    }
    let data = parts.blocks.read(&moved).await?;
    drop(pin);
    if blocks > 0 {
        offer(parts, For::Volume, base, moved.into_iter().zip(data).collect()).await?;
    }
    tracing::debug!(blocks, at, "adopted");
    Ok(Moved { blocks, segments: 0, next: Some(at).filter(|&at| at < extent.end()) })
}
