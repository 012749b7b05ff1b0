//! The dirty index: which blocks the journal holds in a newer version than the map, and where.
//!
//! Sixteen bytes a value and key for data of any length, bounded by the journal. Pure.

use crate::{
    extents::{Divisible, ExtentMap},
    sectors::SectorMask,
    units::{Extent, JournalPos},
};

/// The newest acknowledged write of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// Its payload lies at this journal position.
    Data(JournalPos),
    /// Zeroes, written by the group at this position.
    Zero { at: JournalPos, allocated: bool },
    /// One block, of which these sectors lie at this journal position. The others are what the committed
    /// version has: all that differs from it is here, so this and any later committed version make the block.
    Sectors { at: JournalPos, mask: SectorMask },
}

impl Dirty {
    fn at(&self) -> JournalPos {
        match *self {
            Dirty::Data(at) | Dirty::Zero { at, .. } | Dirty::Sectors { at, .. } => at,
        }
    }
}

impl Divisible for Dirty {
    fn skip(&self, blocks: u64) -> Dirty {
        match *self {
            Dirty::Data(at) => Dirty::Data(JournalPos(at.0 + blocks)),
            Dirty::Zero { .. } => *self,
            Dirty::Sectors { .. } => {
                debug_assert_eq!(blocks, 0, "it is one block");
                *self
            }
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
        debug_assert!(
            !matches!(dirty, Dirty::Sectors { .. }) || extent.len == 1,
            "sectors are those of one block"
        );
        self.map.insert(extent, dirty, |_, _| {});
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Whether all of `extent` is dirty.
    pub fn covers(&self, extent: Extent) -> bool {
        self.map.overlapping(extent).map(|(part, _)| part.len).sum::<u64>() == extent.len
    }

    /// The first pieces of `extent`, at most `pieces_max`; `None` where the map has the newest version.
    pub fn cover_first(&self, extent: Extent, pieces_max: usize) -> Vec<(Extent, Option<Dirty>)> {
        self.map.cover_first(extent, pieces_max)
    }

    /// Whether sectors of a block may be put on top: over the committed version, or in the place of
    /// sectors that are among them. Over anything else they would hide what the committed version lacks.
    pub fn takes_sectors(&self, block: u64, mask: SectorMask) -> bool {
        match self.map.overlapping(Extent::new(block, 1)).next() {
            None => true,
            Some((_, Dirty::Sectors { mask: before, .. })) => mask.contains(before),
            Some((_, Dirty::Data(_) | Dirty::Zero { .. })) => false,
        }
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
            index.cover_first(Extent::new(0, 12), 10),
            vec![
                (Extent::new(0, 4), None),
                (Extent::new(4, 2), Some(Dirty::Data(JournalPos(21)))),
                (Extent::new(6, 6), None),
            ]
        );
        assert_eq!(index.len(), 1);
    }

    /// Sectors stand alone or replace what they hold; a whole version is never hidden by them.
    #[test]
    fn sectors_hide_nothing() {
        let sectors = |bits, at| Dirty::Sectors { at: JournalPos(at), mask: SectorMask::from_bits(bits) };
        let takes = |index: &DirtyIndex, bits| index.takes_sectors(5, SectorMask::from_bits(bits));
        let mut index = DirtyIndex::default();
        assert!(takes(&index, 0b1));
        index.insert(Extent::new(5, 1), sectors(0b11, 1));
        assert!(takes(&index, 0b111) && !takes(&index, 0b101));
        index.forget(Extent::new(0, 10), JournalPos(2));
        assert!(takes(&index, 0b100), "what it held is committed");
        index.insert(Extent::new(4, 3), Dirty::Data(JournalPos(4)));
        assert!(!takes(&index, 0b11));
    }
}
