//! Dead blocks: what overwriting, trimming and moving took away from segments, in blocks per segment.
//!
//! A mapping, or part of one, is dropped exactly once: in the memory table by a later insert, or
//! by the merge that sees it beneath a newer one. The count belongs to the state that no longer
//! has the mapping and becomes visible together with that state. So over all segments
//! `blocks written = frame blocks in table and runs + dead blocks + held blocks`, at every published state.
//!
//! Blocks and not bytes, because a mapping does not know how many blocks its frame has: the bytes
//! that a segment would free are its size times dead blocks by written blocks.

use std::{collections::BTreeMap, ops::Range};

use serde::{Deserialize, Serialize};

use crate::units::{Mapping, Place, Seq};

/// Blocks by segment.
pub type SegmentBlocks = BTreeMap<Seq, u64>;

/// The first and the last snapshot of those that see something. They may be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SeenBy {
    pub first: Seq,
    pub last: Seq,
}

impl SeenBy {
    /// The bounds of all there can be, in their order.
    pub const MIN: SeenBy = SeenBy { first: Seq(0), last: Seq(0) };
    pub const MAX: SeenBy = SeenBy { first: Seq(u64::MAX), last: Seq(u64::MAX) };

    /// What is in the volume from `interval.start` on, and not any more at `interval.end`; `snapshots` ascend.
    pub fn within(snapshots: &[Seq], interval: Range<Seq>) -> Option<SeenBy> {
        let first = *snapshots.get(snapshots.partition_point(|&s| s < interval.start))?;
        let before = snapshots.partition_point(|&s| s < interval.end);
        let last = *snapshots[..before].last()?;
        (first <= last).then_some(SeenBy { first, last })
    }

    /// Whether one of them is left.
    pub fn any(&self, snapshots: &[Seq]) -> bool {
        snapshots.get(snapshots.partition_point(|&s| s < self.first)).is_some_and(|s| *s <= self.last)
    }
}

/// Blocks that the head has lost, by segment, and by whom they are still seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dead {
    /// Blocks that nothing needs any more.
    pub free: SegmentBlocks,
    /// Blocks that snapshots see.
    pub held: BTreeMap<SeenBy, SegmentBlocks>,
}

impl Dead {
    pub fn is_empty(&self) -> bool {
        self.free.is_empty() && self.held.is_empty()
    }

    /// All blocks in it.
    pub fn blocks(&self) -> u64 {
        self.free.values().chain(self.held.values().flat_map(|held| held.values())).sum()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Dead) {
        add_all(&mut self.free, &other.free);
        for (&seen_by, blocks) in &other.held {
            add_all(self.held.entry(seen_by).or_default(), blocks);
        }
    }

    /// Counts what lost its place when the log was at `at`. Snapshots saw it from its birth on, there or where it was moved
    /// from. `snapshots` ascend.
    pub(super) fn lose(&mut self, lost: &Mapping, at: Seq, snapshots: &[Seq]) {
        let Place::Frame(frame) = lost.place else { return };
        debug_assert!(frame.seq <= at, "only what was there loses its place");
        let counts = match SeenBy::within(snapshots, lost.birth..at) {
            Some(seen_by) => self.held.entry(seen_by).or_default(),
            None => &mut self.free,
        };
        *counts.entry(frame.seq).or_default() += lost.extent.len;
    }
}

fn add_all(to: &mut SegmentBlocks, from: &SegmentBlocks) {
    for (&seq, &blocks) in from {
        *to.entry(seq).or_default() += blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Extent, FrameRef};

    fn seen(first: u64, last: u64) -> Option<SeenBy> {
        Some(SeenBy { first: Seq(first), last: Seq(last) })
    }

    /// A dropped block is held by the snapshots between its birth and the loss of its place, and dead if there are none; also where
    /// it was moved in between.
    #[test]
    fn snapshots_hold_what_they_see() {
        let holds = |birth, seq, lost, snapshots: &[u64]| {
            let snapshots: Vec<Seq> = snapshots.iter().copied().map(Seq).collect();
            let place = Place::Frame(FrameRef { seq: Seq(seq), offset: 0, stored: 1, index: 0 });
            let mut dead = Dead::default();
            let block = Mapping { extent: Extent::new(7, 1), birth: Seq(birth), place };
            dead.lose(&block, Seq(lost), &snapshots);
            assert_eq!(dead.blocks(), 1);
            dead.held.keys().next().copied()
        };
        for seq in [5, 7] {
            assert_eq!(holds(5, seq, 9, &[]), None);
            assert_eq!(holds(5, seq, 9, &[4, 9]), None);
            assert_eq!(holds(5, seq, 9, &[5]), seen(5, 5));
            assert_eq!(holds(5, seq, 9, &[1, 5, 8, 9]), seen(5, 8));
            assert_eq!(holds(5, seq, 9, &[6, 7]), seen(6, 7));
        }
    }

    /// What is held stays so as long as one of the snapshots is there, whichever.
    #[test]
    fn one_snapshot_is_enough() {
        let held = SeenBy { first: Seq(5), last: Seq(8) };
        for (snapshots, is_held) in
            [(&[5, 9][..], true), (&[6], true), (&[1, 8], true), (&[4, 9], false), (&[], false)]
        {
            let snapshots: Vec<Seq> = snapshots.iter().copied().map(Seq).collect();
            assert_eq!(held.any(&snapshots), is_held, "{snapshots:?}");
        }
    }
}
