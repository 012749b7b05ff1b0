//! The dirty index: which blocks the journal holds in a newer version than the map, and where.
//!
//! Sixteen bytes a value and key for data of any length, bounded by the journal. Pure.

use crate::{
    extents::{ExtentMap, Piece},
    units::{Extent, JournalPos},
};

/// The newest acknowledged write of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// Its payload lies at this journal position.
    Data(JournalPos),
    /// Zeroes, written by the group at this position.
    Zero { at: JournalPos, allocated: bool },
}

impl Dirty {
    fn at(&self) -> JournalPos {
        match *self {
            Dirty::Data(at) | Dirty::Zero { at, .. } => at,
        }
    }
}

impl Piece for Dirty {
    fn skip(&self, blocks: u64) -> Dirty {
        match *self {
            Dirty::Data(at) => Dirty::Data(JournalPos(at.0 + blocks)),
            zero => zero,
        }
    }
}

/// Dirty blocks by extent.
#[derive(Default)]
pub struct DirtyIndex {
    map: ExtentMap<Dirty>,
}

impl DirtyIndex {
    pub fn insert(&mut self, extent: Extent, dirty: Dirty) {
        self.map.insert(extent, dirty, |_, _| {});
    }

    /// `extent` in pieces; `None` where the map has the newest version.
    pub fn cover(&self, extent: Extent) -> Vec<(Extent, Option<Dirty>)> {
        self.map.cover(extent)
    }

    /// Forgets what inside `extent` was written before `to`, because that is committed.
    pub fn forget(&mut self, extent: Extent, to: JournalPos) {
        let committed: Vec<Extent> =
            self.map.overlapping(extent).filter(|(_, dirty)| dirty.at() < to).map(|(part, _)| part).collect();
        for part in committed {
            self.map.remove(part, |_, _| {});
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.map.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit forgets what it covers and nothing that was written behind it.
    #[test]
    fn forgetting_spares_newer_writes() {
        let mut index = DirtyIndex::default();
        index.insert(Extent::new(0, 10), Dirty::Data(JournalPos(1)));
        index.insert(Extent::new(4, 2), Dirty::Data(JournalPos(21)));
        index.insert(Extent::new(8, 4), Dirty::Zero { at: JournalPos(11), allocated: false });
        index.forget(Extent::new(0, 100), JournalPos(20));
        assert_eq!(
            index.cover(Extent::new(0, 12)),
            vec![
                (Extent::new(0, 4), None),
                (Extent::new(4, 2), Some(Dirty::Data(JournalPos(21)))),
                (Extent::new(6, 6), None),
            ]
        );
        assert_eq!(index.len(), 1);
    }
}
