//! Which sectors of one block something is about, and laying sectors over a block. Pure.

use std::ops::Range;

use crate::units::{BLOCK_BYTES, SECTOR_BYTES};

/// Sectors of a block, as many as a mask has bits.
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

const _: () = assert!(SECTORS == u8::BITS as usize);

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
