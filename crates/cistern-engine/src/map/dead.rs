//! Dead blocks: what overwriting and trimming took away from segments, in blocks per segment.
//!
//! A mapping, or part of one, is dropped exactly once: in the memory table by a later insert, or
//! by the merge that sees it beneath a newer one. The count belongs to the state that no longer
//! has the mapping and becomes visible together with that state. So over all segments
//! `blocks written = frame blocks in table and runs + dead blocks`, at every published state.
//!
//! Blocks and not bytes, because a mapping does not know how many blocks its frame has: the bytes
//! that a segment would free are its size times dead blocks by written blocks.

use std::collections::BTreeMap;

use crate::units::{Place, Seq};

/// Blocks that died, by segment, and for which snapshot they are still needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dead {
    /// Segment -> blocks that nothing needs any more.
    pub free: BTreeMap<Seq, u64>,
    /// Snapshot -> segment -> blocks that are dead in the head and needed by that snapshot. It is
    /// the newest snapshot that may see them; an older one may see them as well.
    pub pinned: BTreeMap<Seq, BTreeMap<Seq, u64>>,
}

impl Dead {
    pub fn is_empty(&self) -> bool {
        self.free.is_empty() && self.pinned.is_empty()
    }

    /// All blocks in it.
    pub fn blocks(&self) -> u64 {
        self.free.values().chain(self.pinned.values().flat_map(|p| p.values())).sum()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Dead) {
        add_all(&mut self.free, &other.free);
        for (&snapshot, counts) in &other.pinned {
            add_all(self.pinned.entry(snapshot).or_default(), counts);
        }
    }

    /// Adds blocks that nothing needs.
    pub(super) fn add_free(&mut self, blocks: &BTreeMap<Seq, u64>) {
        add_all(&mut self.free, blocks);
    }

    /// Counts `blocks` blocks of a mapping born at `birth` that one born at `shadow` covers.
    /// `snapshots` ascend; one in `[birth, shadow)` still sees the dropped mapping.
    pub(super) fn drop_blocks(
        &mut self,
        place: Place,
        birth: Seq,
        blocks: u64,
        shadow: Seq,
        snapshots: &[Seq],
    ) {
        let Place::Frame(frame) = place else { return };
        let before = snapshots.partition_point(|&s| s < shadow);
        let counts = match snapshots[..before].last() {
            Some(&snapshot) if snapshot >= birth => self.pinned.entry(snapshot).or_default(),
            _ => &mut self.free,
        };
        *counts.entry(frame.seq).or_default() += blocks;
    }
}

fn add_all(to: &mut BTreeMap<Seq, u64>, from: &BTreeMap<Seq, u64>) {
    for (&seq, &blocks) in from {
        *to.entry(seq).or_default() += blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::FrameRef;

    /// A dropped block belongs to the newest snapshot that sees it, and to none if none does.
    #[test]
    fn pins_by_snapshot() {
        let place = Place::Frame(FrameRef { seq: Seq(5), offset: 0, stored: 1, index: 0 });
        let pinned_by = |birth, shadow, snapshots: &[u64]| {
            let snapshots: Vec<Seq> = snapshots.iter().copied().map(Seq).collect();
            let mut dead = Dead::default();
            dead.drop_blocks(place, Seq(birth), 1, Seq(shadow), &snapshots);
            assert_eq!(dead.blocks(), 1);
            dead.pinned.keys().next().map(|s| s.0)
        };
        assert_eq!(pinned_by(5, 9, &[]), None);
        assert_eq!(pinned_by(5, 9, &[4, 9]), None);
        assert_eq!(pinned_by(5, 9, &[5]), Some(5));
        assert_eq!(pinned_by(5, 9, &[1, 5, 8, 9]), Some(8));
        assert_eq!(pinned_by(5, 5, &[5]), None); // moved by the cleaner
    }
}
