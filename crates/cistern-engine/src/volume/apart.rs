//! Partial blocks as readers see them: the sectors that the store holds apart stand over the rest of their block.
//!
//! Nothing is read that is not wanted: where the rest of a block cannot be read, its sectors can.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::{
    Result,
    fetch::{PartialBlock, partial_blocks},
    map::Lookup,
    sectors::SectorMask,
    units::{BLOCK_BYTES, Extent, Mapping, Seq},
    volume::{Piece, Volume},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Mappings of sectors that are looked at together.
const STEP_MAPPINGS: usize = 4096;

impl Volume {
    /// Sectors from the journal over the block as it is committed. That one is not read where the sectors are
    /// all that is wanted: the store may be away.
    pub(super) async fn read_over(
        &self,
        mask: SectorMask,
        sectors: Bytes,
        mut base: Lookup,
        wanted: &Range<u64>,
    ) -> Result<Vec<Piece>> {
        let needed = sectors_wanted(base.extent(), wanted).without(mask);
        if needed == SectorMask::NONE {
            return Ok(vec![Piece::Data(sectors)]);
        }
        let apart = self.sectors_of(&mut base).await?;
        let base = match apart.first() {
            Some(apart) => self.read_partial(base, apart, needed).await?,
            None => self.read_one(base).await?,
        };
        Ok(vec![Piece::Data(laid_over(&base, mask, &sectors))])
    }

    /// What a lookup finds, and `sectors` over it.
    pub(super) async fn read_with_sectors(
        &self,
        lookup: Lookup,
        sectors: Lookup,
        wanted: &Range<u64>,
    ) -> Result<Vec<Piece>> {
        let extent = lookup.extent();
        let mappings = self.frames.resolve(sectors.finish().await?).await?;
        match partial_blocks(&mappings)[..] {
            [] => self.read_whole(lookup).await,
            [ref partial] if extent.len == 1 => {
                let needed = sectors_wanted(extent, wanted);
                Ok(vec![Piece::Data(self.read_partial(lookup, partial, needed).await?)])
            }
            // Each by itself: one whose rest cannot be read must not keep the others from being read.
            ref partial => {
                let mut pieces = Vec::new();
                for (part, _) in parted(extent, partial) {
                    pieces.extend(self.read_again(part, wanted).await?);
                }
                Ok(pieces)
            }
        }
    }

    /// A partial block: the sectors that are `needed` as they are, the others are anything.
    async fn read_partial(
        &self,
        lookup: Lookup,
        partial: &PartialBlock,
        needed: SectorMask,
    ) -> Result<Bytes> {
        if needed.without(partial.mask) == needed {
            return self.read_one(lookup).await;
        }
        let sectors = self.frames.read_sectors(partial).await?;
        if partial.mask.contains(needed) {
            return Ok(sectors);
        }
        Ok(laid_over(&self.read_one(lookup).await?, partial.mask, &sectors))
    }

    async fn sectors_of(&self, lookup: &mut Lookup) -> Result<Vec<PartialBlock>> {
        let Some(sectors) = lookup.take_sectors() else { return Ok(Vec::new()) };
        let found = Box::pin(sectors.finish()).await?;
        Ok(partial_blocks(&self.frames.resolve(found).await?))
    }

    /// One block, without what lies apart from it.
    async fn read_one(&self, lookup: Lookup) -> Result<Bytes> {
        debug_assert_eq!(lookup.extent().len, 1, "sectors are those of one block");
        let pieces = self.read_whole(lookup).await?;
        assert_eq!(pieces.len(), 1, "a block is one piece: what is taken for zeroes is nothing else");
        Ok(match pieces.into_iter().next() {
            Some(Piece::Data(data)) => data,
            _ => Bytes::from_static(&[0; BLOCK_BYTES]),
        })
    }

    /// The blocks of an extent that are partial by sectors which were born behind `since`, ascending. Only of what is open for reading.
    pub(super) async fn partial_in(&self, extent: Extent, since: Seq) -> Result<Vec<PartialBlock>> {
        match self.map.may_have_partial() {
            true => Box::pin(self.look_for_partial(extent, since)).await,
            false => Ok(Vec::new()),
        }
    }

    async fn look_for_partial(&self, extent: Extent, since: Seq) -> Result<Vec<PartialBlock>> {
        let (mut out, mut at) = (Vec::new(), extent.start);
        while at < extent.end() {
            let rest = Extent::between(at, extent.end());
            let (mappings, end) = self.map.sectors_in(rest, since, STEP_MAPPINGS).await?;
            out.extend(partial_blocks(&mappings));
            at = end;
        }
        Ok(out)
    }

    /// Of what [`with_partial`](Self::with_partial) gave: the mappings that stand for partial blocks, and the others.
    pub(super) async fn apart_from_whole(
        &self,
        mappings: Vec<Mapping>,
    ) -> Result<(Vec<Mapping>, Vec<Mapping>)> {
        let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else {
            return Ok((Vec::new(), mappings));
        };
        let extent = Extent::between(first.extent.start, last.extent.end());
        let partial = self.partial_in(extent, Seq(0)).await?;
        Ok(mappings.into_iter().partition(|mapping| find(&partial, mapping.extent.start).is_some()))
    }

    /// All of a block, with what lies apart from it.
    pub(super) async fn read_complete(&self, block: u64) -> Result<Bytes> {
        let mut lookup = self.map.begin(Extent::new(block, 1));
        let apart = self.sectors_of(&mut lookup).await?;
        match apart.first() {
            Some(apart) => self.read_partial(lookup, apart, SectorMask::ALL).await,
            None => self.read_one(lookup).await,
        }
    }

    /// What a lookup found, ascending, with each partial block as a mapping of its own, which says that it is data: where its
    /// sectors lie does not say what it holds.
    pub(super) async fn with_partial(&self, mappings: Vec<Mapping>) -> Result<Vec<Mapping>> {
        match self.map.may_have_partial() {
            true => Box::pin(self.replace_partial(mappings)).await,
            false => Ok(mappings),
        }
    }

    async fn replace_partial(&self, mappings: Vec<Mapping>) -> Result<Vec<Mapping>> {
        let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else { return Ok(mappings) };
        let partial = self.partial_in(Extent::between(first.extent.start, last.extent.end()), Seq(0)).await?;
        if partial.is_empty() {
            return Ok(mappings);
        }
        let one = |mapping: &Mapping, extent: Extent| match find(&partial, extent.start) {
            Some(apart) => stand_in(apart),
            None => mapping.slice(extent),
        };
        let parts =
            mappings.iter().flat_map(|m| parted(m.extent, &partial).map(move |(part, _)| one(m, part)));
        Ok(parts.collect())
    }
}

/// Adds the partial blocks that a list, which ascends, has nothing of.
pub(super) fn add_missing(mappings: &mut Vec<Mapping>, partial: &[PartialBlock]) {
    let has = |block: u64| {
        let behind = mappings.partition_point(|mapping| mapping.extent.end() <= block);
        mappings.get(behind).is_some_and(|mapping| mapping.extent.start <= block)
    };
    let missing: Vec<Mapping> = partial.iter().filter(|one| !has(one.block)).map(stand_in).collect();
    mappings.extend(missing);
    mappings.sort_unstable_by_key(|mapping| mapping.extent.start);
}

/// A mapping that says of a partial block that it is data, and since when.
fn stand_in(partial: &PartialBlock) -> Mapping {
    let place = partial.mappings[0].place;
    Mapping { extent: Extent::new(partial.block, 1), birth: partial.birth, place }
}

fn find(partial: &[PartialBlock], block: u64) -> Option<&PartialBlock> {
    partial.binary_search_by_key(&block, |one| one.block).ok().map(|n| &partial[n])
}

/// The parts of an extent, ascending: each partial block by itself, and what lies between them.
pub(super) fn parted(extent: Extent, partial: &[PartialBlock]) -> impl Iterator<Item = (Extent, bool)> {
    let from = partial.partition_point(|one| one.block < extent.start);
    let until = partial.partition_point(|one| one.block < extent.end());
    let inside = partial[from..until].iter().map(|one| one.block);
    let ends = inside.clone().map(|block| block + 1);
    let between = std::iter::once(extent.start).chain(ends).zip(inside.chain([extent.end()]));
    between.flat_map(move |(start, block)| {
        let whole = (start < block).then(|| (Extent::between(start, block), false));
        whole.into_iter().chain((block < extent.end()).then(|| (Extent::new(block, 1), true)))
    })
}

/// The sectors of one block that a range of bytes touches.
fn sectors_wanted(block: Extent, wanted: &Range<u64>) -> SectorMask {
    let start = block.start * BLOCK;
    let inside = |byte: u64| (byte.clamp(start, start + BLOCK) - start) as usize;
    SectorMask::touched(inside(wanted.start)..inside(wanted.end))
}

fn laid_over(block: &[u8], mask: SectorMask, sectors: &[u8]) -> Bytes {
    let mut block = BytesMut::from(block);
    mask.overlay(&mut block, sectors);
    block.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of an extent are all of it, and each partial block is one of them.
    #[test]
    fn parts_are_all_of_it() {
        let (mask, birth, mappings) = (SectorMask::single(0), Seq(1), Vec::new());
        let partial: Vec<PartialBlock> =
            [3, 4, 9].map(|block| PartialBlock { block, mask, birth, mappings: mappings.clone() }).into();
        let parts = |start, end| -> Vec<(u64, u64, bool)> {
            let parts = parted(Extent::between(start, end), &partial);
            parts.map(|(part, is_partial)| (part.start, part.end(), is_partial)).collect()
        };
        assert_eq!(parts(0, 3), [(0, 3, false)]);
        assert_eq!(parts(3, 4), [(3, 4, true)]);
        assert_eq!(parts(0, 4), [(0, 3, false), (3, 4, true)]);
        assert_eq!(
            parts(2, 12),
            [(2, 3, false), (3, 4, true), (4, 5, true), (5, 9, false), (9, 10, true), (10, 12, false)]
        );
    }
}
