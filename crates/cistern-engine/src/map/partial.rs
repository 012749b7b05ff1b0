//! What the map knows of partial blocks: blocks of which sectors are kept apart, under numbers of their own
//! (`docs/design/engine.md`, "Partial blocks").
//!
//! Invariant: where sectors are kept apart, `has_sectors` is set. While it is not, nothing is done for them.

use super::{INSERTS_PER_LOCK, Inner, Levels, Lookup, Map, RunMeta, runs::Origin};
use crate::{
    Result,
    sectors::{self, sector_numbers, sector_of},
    units::{Extent, Mapping, Place, Seq},
};

/// Pieces of sectors that a lookup captures at least: more than one block has.
const SECTOR_PIECES_MIN: usize = 16;

/// A moment from which on a look for partial blocks is told of new ones.
#[derive(Clone, Copy, Debug)]
pub struct PartialMark(u64);

/// What is known of partial blocks without looking for them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Partial {
    /// Sectors may be kept apart. While it is false there are none, and nothing is done for them.
    pub has_sectors: bool,
    /// How often mappings of sectors were inserted.
    pub inserted: u64,
}

impl Partial {
    pub fn in_levels(levels: &Levels) -> Partial {
        let reaches = |level: &Vec<RunMeta>| {
            level.last().is_some_and(|run| run.span.end() > sectors::VOLUME_BLOCKS_MAX)
        };
        Partial { has_sectors: levels.iter().any(reaches), inserted: 0 }
    }
}

impl Inner {
    /// What is captured of the sectors that are kept apart from the blocks of an extent, and as far as it is all of them.
    pub(super) fn sectors(&self, extent: Extent, captured_max: usize) -> (Vec<Mapping>, Extent) {
        let captured_max = captured_max.max(SECTOR_PIECES_MIN);
        let pieces = self.table.pieces(sector_numbers(extent), captured_max);
        match pieces.last().filter(|_| pieces.len() == captured_max) {
            // A block has eight sectors, so the last piece is of a later one than the first.
            Some(last) => (pieces.clone(), Extent::between(extent.start, sector_of(last.extent.start).0)),
            None => (pieces, extent),
        }
    }
}

impl Map {
    /// As `insert`, of what is as it was and only lies elsewhere: sectors stay over it.
    pub(super) fn insert_places(&self, batch: &[Mapping]) {
        for part in batch.chunks(INSERTS_PER_LOCK) {
            let mut inner = self.inner();
            let Inner { table, snapshots, .. } = &mut *inner;
            part.iter().for_each(|m| table.insert(m, snapshots));
        }
    }

    /// What the map has of sectors that are kept apart from the blocks of an extent, in at most `count_max` mappings: ascending, only
    /// those with data, born behind `since`; and the block as far as which that is all. Nobody waits for it.
    pub async fn sectors_in(
        &self,
        extent: Extent,
        since: Seq,
        count_max: usize,
    ) -> Result<(Vec<Mapping>, u64)> {
        if !self.may_have_partial() || extent.is_empty() {
            return Ok((Vec::new(), extent.end()));
        }
        let count_max = count_max.max(SECTOR_PIECES_MIN);
        let numbers = sector_numbers(extent);
        let lookup = Lookup { origin: Origin::Patient, since, ..self.begin_limited(numbers, count_max) };
        let mut found = lookup.finish().await?;
        let end = match found.last() {
            Some(last) if last.extent.end() < numbers.end() => sector_of(last.extent.end()).0,
            _ => extent.end(),
        };
        debug_assert!(extent.start < end, "a block has fewer pieces than are looked at");
        let behind = sector_numbers(Extent::between(extent.start, end)).end();
        found.retain(|m| matches!(m.place, Place::Frame(_)) && m.extent.start < behind);
        for m in found.iter_mut().filter(|m| m.extent.end() > behind) {
            *m = m.slice(Extent::between(m.extent.start, behind));
        }
        Ok((found, end))
    }

    /// Whether there may be partial blocks.
    pub fn may_have_partial(&self) -> bool {
        self.inner().partial.has_sectors
    }

    /// Waits until there may be partial blocks: a look for them begins. One task waits at a time.
    pub async fn partial_appeared(&self) -> PartialMark {
        loop {
            let Partial { has_sectors, inserted } = self.inner().partial;
            if has_sectors {
                return PartialMark(inserted);
            }
            self.appeared.notified().await;
        }
    }

    /// All was looked at since the mark was taken, and nothing was kept apart.
    pub fn has_no_partial(&self, PartialMark(inserted): PartialMark) {
        let mut inner = self.inner();
        inner.partial.has_sectors &= inner.partial.inserted != inserted;
    }
}
