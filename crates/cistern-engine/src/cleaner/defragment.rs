//! Blocks that follow each other, written side by side again: so a volume that was overwritten at random is read in
//! long strides.
//!
//! What lies in order is left alone. Moving makes garbage of the old places, which the cleaner's bound takes care of.

use crate::{
    Result,
    cleaner::{CleanerParts, Moved, moved::For, round::offer},
    log::RoomFor,
    map::Map,
    units::{Extent, Mapping, Place, Seq},
};

/// A stride of so many blocks that follow each other in their object is in order: 256 KiB a request is what a link is
/// filled with.
const STRIDE_BLOCKS: u64 = 64;
/// Bytes between two frames that still follow each other.
const GAP_BYTES: u64 = 4096;
/// Mappings that are looked up together.
const LOOKUP_MAPPINGS: usize = 4096;

/// Moves blocks of `extent` that are not in order, from its beginning on, until a round is full.
pub async fn defragment(parts: &CleanerParts, extent: Extent) -> Result<Moved> {
    let base = parts.space.newest();
    let pin = parts.map.pin();
    let DefragmentRound { moved, next } = round(&parts.map, extent, base, parts.round.blocks()).await?;
    let data = parts.blocks.read(&moved).await?;
    drop(pin);
    let blocks = moved.iter().map(|mapping| mapping.extent.len).sum();
    if blocks > 0 {
        offer(parts, (For::Volume, RoomFor::Moved), base, moved.into_iter().zip(data).collect()).await?;
    }
    tracing::debug!(blocks, next, "defragmented");
    Ok(Moved { blocks, segments: 0, next })
}

/// What one round moves, and where the next one begins.
pub struct DefragmentRound {
    pub moved: Vec<Mapping>,
    pub next: Option<u64>,
}

/// The first round over `extent`, of so many blocks. What is written while it looks is newer than `base`, and stays where it is: what is moved
/// has to be older than what may replace it.
pub async fn round(map: &Map, extent: Extent, base: Seq, blocks_max: u64) -> Result<DefragmentRound> {
    let mut strides = Strides::new(base, blocks_max);
    let mut at = extent.start;
    while at < extent.end() && !strides.is_full() {
        let mappings = map.lookup_limited(Extent::between(at, extent.end()), LOOKUP_MAPPINGS).await?;
        at = mappings.last().map_or(extent.end(), |mapping| mapping.extent.end());
        if let Some(left) = mappings.iter().find_map(|mapping| strides.add(mapping)) {
            at = left;
        }
    }
    Ok(DefragmentRound { moved: strides.end(), next: Some(at).filter(|&at| at < extent.end()) })
}

/// Finds what does not lie in strides, from mappings in ascending order.
struct Strides {
    /// What was born later is left alone.
    base: Seq,
    short: Vec<Mapping>,
    /// Blocks in `short`, and how many are enough.
    blocks: u64,
    blocks_max: u64,
    /// Mappings that follow each other in volume and object, and their blocks.
    stride: Vec<Mapping>,
    stride_blocks: u64,
}

impl Strides {
    fn new(base: Seq, blocks_max: u64) -> Strides {
        Strides { base, short: Vec::new(), blocks: 0, blocks_max, stride: Vec::new(), stride_blocks: 0 }
    }

    fn is_full(&self) -> bool {
        self.blocks >= self.blocks_max
    }

    /// Takes a mapping. Once there is enough for a round, leaves that one out and gives where it begins: a stride is told when it has
    /// ended, and what is left out may begin a long one.
    fn add(&mut self, mapping: &Mapping) -> Option<u64> {
        if !self.stride.last().is_some_and(|last| follows(last, mapping)) {
            self.break_off();
            if self.is_full() {
                return Some(mapping.extent.start);
            }
        }
        if matches!(mapping.place, Place::Frame(_)) && mapping.birth <= self.base {
            self.stride_blocks += mapping.extent.len;
            self.stride.push(*mapping);
        }
        None
    }

    fn break_off(&mut self) {
        if self.stride_blocks < STRIDE_BLOCKS {
            self.blocks += self.stride_blocks;
            self.short.append(&mut self.stride);
        }
        self.stride.clear();
        self.stride_blocks = 0;
    }

    /// What is in no stride of some length.
    fn end(mut self) -> Vec<Mapping> {
        self.break_off();
        self.short
    }
}

fn follows(last: &Mapping, next: &Mapping) -> bool {
    let (Place::Frame(from), Place::Frame(to)) = (last.place, next.place) else { return false };
    let end = u64::from(from.offset) + u64::from(from.stored);
    let is_near = from.offset == to.offset || (end..=end + GAP_BYTES).contains(&u64::from(to.offset));
    last.extent.end() == next.extent.start && from.seq == to.seq && is_near
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::FrameRef;

    const BLOCKS_MAX: u64 = 8192;
    const BASE: Seq = Seq(1000);

    fn frame(start: u64, len: u64, seq: u64, offset: u32) -> Mapping {
        let place = Place::Frame(FrameRef { seq: Seq(seq), offset, stored: 4096 * len as u32, index: 0 });
        Mapping { extent: Extent::new(start, len), birth: Seq(seq), place }
    }

    fn short(mappings: &[Mapping]) -> Vec<u64> {
        let mut strides = Strides::new(BASE, BLOCKS_MAX);
        mappings.iter().for_each(|mapping| assert_eq!(strides.add(mapping), None));
        strides.end().iter().map(|mapping| mapping.extent.start).collect()
    }

    /// A round ends within a lookup, and the next one begins with what it left out.
    #[test]
    fn a_round_ends_where_it_is_full() {
        let mut strides = Strides::new(BASE, BLOCKS_MAX);
        let scattered = (0..).map(|n| frame(16 * n, 16, n % 7 + 1, 0));
        let left = scattered.map(|mapping| strides.add(&mapping)).find_map(|left| left);
        assert_eq!(left, Some(BLOCKS_MAX));
        assert_eq!(strides.end().iter().map(|mapping| mapping.extent.len).sum::<u64>(), BLOCKS_MAX);
    }

    /// What a client wrote since the round began stays where it is, and what lies before and behind it is moved.
    #[test]
    fn what_was_written_since_stays() {
        assert_eq!(short(&[frame(0, 4, 1, 0), frame(4, 4, 1001, 0), frame(8, 4, 1000, 0)]), [0, 8]);
        assert!(short(&[frame(0, 4, 1001, 0)]).is_empty());
    }

    /// What follows each other in volume and object for long enough is left alone; an end of the stride in either, a hole or
    /// another object, makes it short.
    #[test]
    fn only_short_strides_are_moved() {
        let stride: Vec<Mapping> = (0..64).map(|n| frame(n, 1, 1, n as u32 * 4200)).collect();
        assert!(short(&stride).is_empty());
        assert_eq!(short(&stride[..63]), (0..63).collect::<Vec<_>>());
        assert_eq!(short(&[frame(0, 40, 1, 0), frame(40, 40, 2, 0)]), [0, 40], "another object");
        assert_eq!(short(&[frame(0, 40, 1, 0), frame(41, 40, 1, 163_840)]), [0, 41], "a hole");
        assert_eq!(short(&[frame(0, 40, 1, 500_000), frame(40, 40, 1, 0)]), [0, 40], "backwards");
        assert_eq!(short(&[frame(0, 100, 1, 0), frame(100, 2, 2, 0)]), [100]);
    }
}
