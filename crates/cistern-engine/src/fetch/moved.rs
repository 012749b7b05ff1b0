//! What was moved, and the chunk cache: blocks that readers have there stay there, at their new places.
//!
//! Asks nobody: what another volume has, or what is not in the cache, is left to whoever reads it.

use bytes::Bytes;

use super::frames::FrameReader;
use crate::{
    cache::{ChunkCache, MovedBytes},
    units::{Mapping, Place, Seq},
};

impl FrameReader {
    /// Blocks of data are in the object at `seq` from now on, of which this is the body and `to` what it maps, and `from` tells
    /// where they were. Both ascend without overlaps.
    pub fn keep_moved(&self, seq: Seq, body: &Bytes, from: &[Mapping], to: &[Mapping]) {
        let (Some(cache), Ok((object, _))) = (self.reader().cache(), self.object(seq)) else { return };
        let mut moved = Vec::with_capacity(to.len());
        for (before, after) in in_common(from, to) {
            let at =
                |mapping: &Mapping| matches!(mapping.place, Place::Frame(_)).then(|| self.place(mapping));
            let (Some((old, from)), Some((_, to))) = (at(&before), at(&after)) else { continue };
            // What is foreign has another name there, and nothing is known of it here.
            if !self.is_foreign(&before)
                && let Ok((old, _)) = self.object(old)
            {
                moved.push(MovedBytes { object: old.cache, from, to });
            }
        }
        cache.fill_moved(object.cache, body, &moved);
    }

    /// Waits until the cache has written what was moved.
    pub async fn wait_for_moved(&self) {
        self.reader().wait_while(ChunkCache::has_moved_waiting).await;
    }

    /// Nothing of the volume is in a segment of so many bytes any more.
    pub fn let_go(&self, seq: Seq, stored_bytes: u64) {
        if let (Some(cache), Ok((object, _))) = (self.reader().cache(), self.object(seq)) {
            cache.let_go(object.cache, stored_bytes);
        }
    }
}

/// The parts of two lists of mappings that are of the same blocks.
fn in_common(from: &[Mapping], to: &[Mapping]) -> Vec<(Mapping, Mapping)> {
    let are_apart = |list: &[Mapping]| list.is_sorted_by(|a, b| a.extent.end() <= b.extent.start);
    debug_assert!(are_apart(from) && are_apart(to), "both lists ascend without overlaps");
    let (mut out, mut first) = (Vec::new(), 0);
    for after in to {
        first += from[first..].partition_point(|before| before.extent.end() <= after.extent.start);
        let near = from[first..].iter().take_while(|before| before.extent.start < after.extent.end());
        out.extend(near.filter_map(|before| {
            let common = before.extent.intersect(after.extent)?;
            Some((before.slice(common), after.slice(common)))
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::units::{Extent, FrameRef};

    fn mapping(start: u64, len: u64, seq: u64) -> Mapping {
        let place = Place::Frame(FrameRef { seq: Seq(seq), offset: 8, stored: 4096, index: 0 });
        Mapping { extent: Extent::new(start, len), birth: Seq(1), place }
    }

    /// However the mappings of both sides are cut, each block is found once on either side.
    #[test]
    fn the_same_blocks_are_found_on_both_sides() {
        let from = [mapping(0, 4, 1), mapping(4, 4, 2), mapping(10, 1, 3), mapping(12, 8, 1)];
        let to = [mapping(0, 8, 9), mapping(10, 1, 9), mapping(12, 2, 9), mapping(14, 6, 9)];
        let common = in_common(&from, &to);
        let seen: Vec<(Range<u64>, u64, u64)> = common
            .iter()
            .map(|(before, after)| {
                assert_eq!(before.extent, after.extent);
                let seq = |m: &Mapping| if let Place::Frame(frame) = m.place { frame.seq.0 } else { 0 };
                (before.extent.start..before.extent.end(), seq(before), seq(after))
            })
            .collect();
        assert_eq!(seen, [(0..4, 1, 9), (4..8, 2, 9), (10..11, 3, 9), (12..14, 1, 9), (14..20, 1, 9)]);
        assert!(in_common(&from, &[]).is_empty() && in_common(&[], &to).is_empty());
    }
}
