//! Which sectors of one block something is about, laying sectors over a block, and where the map keeps
//! single sectors. Pure.
//!
//! A **partial block** is one of which the store has sectors apart from the rest. Each of these sectors has a
//! block number of its own, above those of every volume: sector `s` of block `b` is block `FIRST + 8 b + s` of the map. Its
//! data begin with the sector, and the rest is zero.

use std::ops::Range;

use crate::units::{BLOCK_BYTES, Extent, SECTOR_BYTES, VOLUME_BYTES_MAX};

/// Sectors of a block, as many as a mask has bits.
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

const _: () = assert!(SECTORS == u8::BITS as usize);

/// Blocks of the largest volume.
pub const VOLUME_BLOCKS_MAX: u64 = VOLUME_BYTES_MAX / BLOCK_BYTES as u64;
/// The first number of a sector that is kept apart.
const FIRST: u64 = VOLUME_BLOCKS_MAX * SECTORS as u64;
/// Behind the last number that a map, or a segment, may have.
pub const NUMBERS_END: u64 = 2 * FIRST;

/// The numbers of the sectors of some blocks of a volume.
pub fn sector_numbers(blocks: Extent) -> Extent {
    debug_assert!(blocks.end() <= VOLUME_BLOCKS_MAX, "only sectors of a volume are kept apart");
    Extent::new(FIRST + blocks.start * SECTORS as u64, blocks.len * SECTORS as u64)
}

/// The numbers of all sectors of all volumes.
pub const ALL_SECTORS: Extent = Extent::new(FIRST, NUMBERS_END - FIRST);

/// Whether an extent is of sectors that are kept apart, and not of whole blocks.
pub fn are_sectors(extent: Extent) -> bool {
    extent.start >= FIRST
}

/// Whether a map may have an extent: it is of blocks of a volume, or of sectors, and not of both.
pub fn is_mappable(extent: Extent) -> bool {
    let end = if are_sectors(extent) { NUMBERS_END } else { VOLUME_BLOCKS_MAX };
    extent.len <= end && extent.start <= end - extent.len
}

/// The block of a sector's number, and which of its sectors that is.
pub fn sector_of(number: u64) -> (u64, usize) {
    debug_assert!((FIRST..NUMBERS_END).contains(&number), "it is the number of a sector");
    let at = number - FIRST;
    (at / SECTORS as u64, (at % SECTORS as u64) as usize)
}

/// The numbers of the sectors of a block that a mask has: neighbours together, ascending.
pub fn numbers_of(block: u64, mask: SectorMask) -> impl Iterator<Item = Extent> {
    let first = sector_numbers(Extent::new(block, 1)).start;
    let sector = |byte: usize| (byte / SECTOR_BYTES) as u64;
    mask.runs().map(move |run| Extent::between(first + sector(run.start), first + sector(run.end)))
}

/// What the map has for neighbouring sectors: of each a block, which begins with it.
pub fn spread(sectors: &[u8]) -> Vec<u8> {
    debug_assert!(sectors.len().is_multiple_of(SECTOR_BYTES));
    let mut out = vec![0; sectors.len() / SECTOR_BYTES * BLOCK_BYTES];
    for (block, sector) in out.chunks_exact_mut(BLOCK_BYTES).zip(sectors.chunks_exact(SECTOR_BYTES)) {
        block[..SECTOR_BYTES].copy_from_slice(sector);
    }
    out
}

/// A set of sectors of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectorMask(u8);

impl SectorMask {
    pub const NONE: SectorMask = SectorMask(0);
    pub const ALL: SectorMask = SectorMask(u8::MAX);

    /// Bit `n` stands for the sector at byte `512 n`.
    pub const fn from_bits(bits: u8) -> SectorMask {
        SectorMask(bits)
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The sectors that a range of the block's bytes touches.
    pub fn touched(bytes: Range<usize>) -> SectorMask {
        debug_assert!(bytes.end <= BLOCK_BYTES);
        let sectors = bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES);
        SectorMask(sectors.fold(0, |bits, n| bits | 1 << n))
    }

    pub fn contains(self, other: SectorMask) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn union(self, other: SectorMask) -> SectorMask {
        SectorMask(self.0 | other.0)
    }

    /// Those that are not in `other`.
    pub fn without(self, other: SectorMask) -> SectorMask {
        SectorMask(self.0 & !other.0)
    }

    /// One sector alone.
    pub fn single(sector: usize) -> SectorMask {
        debug_assert!(sector < SECTORS);
        SectorMask(1 << sector)
    }

    /// Some and not all: what cannot be said as nothing or as a whole block.
    pub fn is_partial(self) -> bool {
        self != SectorMask::NONE && self != SectorMask::ALL
    }

    /// The bytes of neighbouring sectors together, ascending.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let has = move |n: usize| n < SECTORS && self.0 & 1 << n != 0;
        let begins = move |n: &usize| has(*n) && (*n == 0 || !has(n - 1));
        (0..SECTORS).filter(begins).map(move |first| {
            let end = (first..=SECTORS).find(|n| !has(*n)).expect("nothing lies behind the last sector");
            first * SECTOR_BYTES..end * SECTOR_BYTES
        })
    }

    /// Copies these sectors of `from` over those of `block`.
    pub fn overlay(self, block: &mut [u8], from: &[u8]) {
        debug_assert!(block.len() == BLOCK_BYTES && from.len() == BLOCK_BYTES);
        for run in self.runs() {
            block[run.clone()].copy_from_slice(&from[run]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every mask: its runs are its sectors, apart from each other, and an overlay changes just those.
    #[test]
    fn every_mask_is_its_runs() {
        for bits in 0..=u8::MAX {
            let mask = SectorMask::from_bits(bits);
            let again = mask.runs().fold(SectorMask::NONE, |sum, run| sum.union(SectorMask::touched(run)));
            assert_eq!(again, mask);
            assert_eq!(mask.runs().count() as u32, (bits & !(bits << 1)).count_ones(), "{bits:08b}");
            assert_eq!(mask.is_partial(), !matches!(bits, 0 | u8::MAX));
            let mut block = vec![1; BLOCK_BYTES];
            mask.overlay(&mut block, &[2; BLOCK_BYTES]);
            for (n, sector) in block.chunks(SECTOR_BYTES).enumerate() {
                let expected = if bits & 1 << n == 0 { 1 } else { 2 };
                assert!(sector.iter().all(|b| *b == expected));
            }
        }
    }

    /// Each sector has a number of its own, which no block of any volume has, and its number says which it is.
    #[test]
    fn numbers_tell_sectors() {
        for block in [0, 7, VOLUME_BLOCKS_MAX - 1] {
            for sector in 0..SECTORS {
                let numbers: Vec<Extent> = numbers_of(block, SectorMask::single(sector)).collect();
                assert_eq!(numbers.len(), 1);
                assert_eq!(numbers[0].len, 1);
                assert!(numbers[0].start >= VOLUME_BLOCKS_MAX && is_mappable(numbers[0]));
                assert_eq!(sector_of(numbers[0].start), (block, sector));
            }
        }
        let all: u64 = numbers_of(5, SectorMask::from_bits(0b1011_0110)).map(|numbers| numbers.len).sum();
        assert_eq!(all, 5);
        assert!(
            !is_mappable(Extent::new(VOLUME_BLOCKS_MAX - 1, 2)),
            "between blocks and sectors lies nothing"
        );
        assert!(!is_mappable(Extent::new(NUMBERS_END - 1, 2)) && !is_mappable(Extent::new(u64::MAX, 1)));
    }

    /// A byte touches its sector, and a range all that it has a byte in.
    #[test]
    fn bytes_touch_their_sectors() {
        assert_eq!(SectorMask::touched(0..1).bits(), 0b1);
        assert_eq!(SectorMask::touched(511..513).bits(), 0b11);
        assert_eq!(SectorMask::touched(512..1024).bits(), 0b10);
        assert_eq!(SectorMask::touched(0..BLOCK_BYTES), SectorMask::ALL);
        assert!(SectorMask::ALL.contains(SectorMask::NONE) && !SectorMask::NONE.contains(SectorMask::ALL));
    }
}
