//! What is written into a sector: a stamp that names the write and the sector.
//!
//! Every written sector is unique in the whole run, so what is read tells exactly which write it
//! shows, and any byte that is off makes it nobody's.

use cistern_engine::units::SECTOR_BYTES;

/// The number of a write; 0 stands for what was there in the beginning.
pub type OpId = u32;

/// What a sector was seen to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Zero,
    Op(OpId),
    /// Nobody wrote this.
    Garbage,
    /// The read failed; nothing is known.
    Unreadable,
}

const WORDS: usize = SECTOR_BYTES / 8;
const MAGIC: u64 = 0x5eed_c157_0000_0000;

fn mix(seed: u64) -> u64 {
    // The finaliser of SplitMix64.
    let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(op: OpId, sector: u64, index: usize) -> u64 {
    match index {
        0 => MAGIC | u64::from(op),
        1 => sector,
        // Two of three writes compress well, the others not at all.
        _ if !op.is_multiple_of(3) => mix(u64::from(op)),
        _ => mix((u64::from(op) << 40) ^ (sector << 8) ^ index as u64),
    }
}

/// The content of `count` sectors from `first` as write `op` leaves it.
pub fn stamped(op: OpId, first: u64, count: u64) -> Vec<u8> {
    let words = (first..first + count).flat_map(|sector| (0..WORDS).map(move |i| word(op, sector, i)));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Reads the stamps of consecutive sectors from `first`.
pub fn seen(first: u64, bytes: &[u8]) -> Vec<Seen> {
    bytes.chunks(SECTOR_BYTES).zip(first..).map(|(bytes, sector)| seen_one(sector, bytes)).collect()
}

fn seen_one(sector: u64, bytes: &[u8]) -> Seen {
    if bytes.iter().all(|&b| b == 0) {
        return Seen::Zero;
    }
    let mut words =
        bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("chunks of eight bytes")));
    let head = words.next().unwrap_or(0);
    if head & !0xffff_ffff != MAGIC {
        return Seen::Garbage;
    }
    let op = head as OpId;
    if words.zip(1..).all(|(w, i)| w == word(op, sector, i)) { Seen::Op(op) } else { Seen::Garbage }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stamp is read back; a sector elsewhere, torn or flipped, is nobody's.
    #[test]
    fn a_stamp_names_its_write() {
        let bytes = stamped(9, 5, 2);
        assert_eq!(seen(5, &bytes), [Seen::Op(9), Seen::Op(9)]);
        assert_eq!(seen(6, &bytes), [Seen::Garbage, Seen::Garbage]);
        let mut torn = stamped(9, 5, 1);
        torn[300..].copy_from_slice(&stamped(10, 5, 1)[300..]);
        assert_eq!(seen(5, &torn), [Seen::Garbage]);
        assert_eq!(seen(0, &[0; 512]), [Seen::Zero]);
    }
}
