//! Partial blocks: sectors that the store holds apart from the rest of their block, because that could not be read when they were
//! stored. They stand over whatever the block is otherwise.
//!
//! Says which sectors of which blocks a list of mappings is of, and puts them together.

use bytes::{Bytes, BytesMut};

use super::FrameReader;
use crate::{
    Result,
    sectors::{SectorMask, sector_numbers, sector_of},
    units::{BLOCK_BYTES, Extent, Mapping, Place, SECTOR_BYTES, Seq},
};

/// The sectors of one block that lie apart from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialBlock {
    pub block: u64,
    pub mask: SectorMask,
    /// When the newest of them was born.
    pub birth: Seq,
    /// Where they lie, ascending.
    pub mappings: Vec<Mapping>,
}

/// The partial blocks of what a map has of the numbers of sectors, ascending.
pub fn partial_blocks(mappings: &[Mapping]) -> Vec<PartialBlock> {
    let mut out: Vec<PartialBlock> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| matches!(mapping.place, Place::Frame(_))) {
        let mut at = mapping.extent.start;
        while at < mapping.extent.end() {
            let (block, _) = sector_of(at);
            let end = sector_numbers(Extent::new(block, 1)).end().min(mapping.extent.end());
            let part = mapping.slice(Extent::between(at, end));
            let mask = (at..end).fold(SectorMask::NONE, |mask, number| mask.union(single(number)));
            match out.last_mut().filter(|last| last.block == block) {
                Some(last) => {
                    (last.mask, last.birth) = (last.mask.union(mask), last.birth.max(part.birth));
                    last.mappings.push(part);
                }
                None => out.push(PartialBlock { block, mask, birth: part.birth, mappings: vec![part] }),
            }
            at = end;
        }
    }
    debug_assert!(out.is_sorted_by(|a, b| a.block < b.block), "a block is partial once");
    out
}

fn single(number: u64) -> SectorMask {
    SectorMask::single(sector_of(number).1)
}

impl FrameReader {
    /// The sectors of a partial block, each in its place; everything else is zero.
    pub async fn read_sectors(&self, partial: &PartialBlock) -> Result<Bytes> {
        Ok(partial.together(&self.read(&partial.mappings).await?))
    }
}

impl PartialBlock {
    /// Its sectors, out of what its mappings hold, each in its place; everything else is zero.
    fn together(&self, data: &[Bytes]) -> Bytes {
        debug_assert_eq!(data.len(), self.mappings.len(), "one for each mapping");
        let mut block = BytesMut::zeroed(BLOCK_BYTES);
        for (mapping, data) in self.mappings.iter().zip(data) {
            for (number, sector) in (mapping.extent.start..).zip(data.chunks_exact(BLOCK_BYTES)) {
                let at = sector_of(number).1 * SECTOR_BYTES;
                block[at..at + SECTOR_BYTES].copy_from_slice(&sector[..SECTOR_BYTES]);
            }
        }
        block.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sectors::{numbers_of, spread},
        units::FrameRef,
    };

    fn frame(extent: Extent, seq: u64, index: u8) -> Mapping {
        let place = Place::Frame(FrameRef { seq: Seq(seq), offset: 8, stored: 100, index });
        Mapping { extent, birth: Seq(seq), place }
    }

    /// For every mask: what is spread over the numbers of its sectors comes together as it was, also where one frame has
    /// sectors of two blocks.
    #[test]
    fn sectors_come_together_as_they_were() {
        let noise: Vec<u8> = (0..2 * BLOCK_BYTES).map(|n| (n / SECTOR_BYTES * 31 + n % 251) as u8).collect();
        for bits in 1..u8::MAX {
            let mask = SectorMask::from_bits(bits);
            let block = &noise[..BLOCK_BYTES];
            let mappings: Vec<Mapping> = numbers_of(3, mask).map(|numbers| frame(numbers, 9, 0)).collect();
            let data: Vec<Bytes> = mask.runs().map(|run| spread(&block[run]).into()).collect();
            let found = partial_blocks(&mappings);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].block, found[0].mask, found[0].birth), (3, mask, Seq(9)));
            let mut expected = vec![0; BLOCK_BYTES];
            mask.overlay(&mut expected, block);
            assert_eq!(found[0].together(&data), expected);
        }
        let both = frame(Extent::new(sector_numbers(Extent::new(6, 1)).start + 5, 6), 4, 2);
        let found = partial_blocks(&[both]);
        let masks: Vec<(u64, u8)> = found.iter().map(|part| (part.block, part.mask.bits())).collect();
        assert_eq!(masks, [(6, 0b1110_0000), (7, 0b111)]);
        let index = |part: &PartialBlock| match part.mappings[0].place {
            Place::Frame(frame) => frame.index,
            _ => unreachable!("it has data"),
        };
        assert_eq!((index(&found[0]), index(&found[1])), (2, 5));
    }

    /// Numbers that nothing is kept under, any more or yet, make no block partial.
    #[test]
    fn holes_are_no_sectors() {
        let extent = sector_numbers(Extent::new(1, 2));
        assert_eq!(partial_blocks(&[Mapping { extent, birth: Seq(3), place: Place::Hole }]), []);
    }
}
