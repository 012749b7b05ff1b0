//! The memory table: the newest mappings, not yet in a run.
//!
//! Invariant: it holds exactly the mappings of the seqs behind the last freeze, and the blocks
//! that died among themselves. It is dropped as a whole when its run is published; after a crash
//! it is built again from the footers.

use super::{dead::Dead, version};
use crate::{
    extents::{Divisible, ExtentMap},
    units::{Extent, FRAME_BLOCKS_MAX, Mapping, Place, Seq},
};

/// A mapping without its extent.
#[derive(Clone, Copy, Debug)]
struct Value {
    birth: Seq,
    place: Place,
}

impl Divisible for Value {
    fn skip(&self, blocks: u64) -> Value {
        match self.place {
            Place::Frame(mut f) => {
                debug_assert!(
                    u64::from(f.index) + blocks < FRAME_BLOCKS_MAX as u64,
                    "a part of a mapping stays inside its frame"
                );
                f.index += blocks as u8;
                Value { place: Place::Frame(f), ..*self }
            }
            Place::Hole | Place::Zero => *self,
        }
    }
}

fn mapping((extent, value): (Extent, Value)) -> Mapping {
    Mapping { extent, birth: value.birth, place: value.place }
}

/// Mappings by block, newest wins.
#[derive(Default)]
pub(super) struct Table {
    map: ExtentMap<Value>,
    dead: Dead,
}

impl Table {
    /// Puts a mapping on top of all others.
    pub(super) fn insert(&mut self, m: &Mapping, snapshots: &[Seq]) {
        if let Place::Frame(f) = m.place {
            assert!(
                f.stored > 0 && u64::from(f.index) + m.extent.len <= FRAME_BLOCKS_MAX as u64,
                "a mapping stays inside its frame"
            );
        }
        let (dead, replaced) = (&mut self.dead, version::placed(m));
        self.map.insert(m.extent, Value { birth: m.birth, place: m.place }, |extent, old| {
            dead.lose(&mapping((extent, old)), replaced, snapshots);
        });
    }

    /// What was lost before it was ever mapped here: at some time before `at`.
    pub(super) fn lose(&mut self, late: &Mapping, at: Seq, snapshots: &[Seq]) {
        self.dead.lose(late, at, snapshots);
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Blocks that died within the table.
    pub(super) fn dead(&self) -> &Dead {
        &self.dead
    }

    /// The parts of `extent` that are mapped here, ascending, at most `count_max` of them.
    pub(super) fn pieces(&self, extent: Extent, count_max: usize) -> Vec<Mapping> {
        self.map.overlapping(extent).take(count_max).map(mapping).collect()
    }

    /// The first mapping that ends behind `block`.
    pub(super) fn next(&self, block: u64) -> Option<Mapping> {
        self.map.next(block).map(mapping)
    }

    /// Mappings that begin at `from` or later.
    pub(super) fn starting_at(&self, from: u64) -> impl Iterator<Item = Mapping> + '_ {
        self.map.starting_at(from).map(mapping)
    }
}
