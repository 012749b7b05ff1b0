//! Chunks of objects and pieces of chunks: names, and what of them a range touches. Pure.

use std::ops::Range;

use super::{CHUNK_BYTES, CacheKey, PIECE_BYTES, PIECES};

/// Names a chunk of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ChunkId {
    pub object: CacheKey,
    pub chunk: u32,
}

impl ChunkId {
    /// The same in every run. Whoever could choose keys to collide could as well fill the cache.
    pub fn hash(&self) -> u64 {
        let id = u128::from_le_bytes(self.object.id);
        let mix = |h: u64, word: u64| {
            let product = u128::from(h ^ word) * 0x9E37_79B9_7F4A_7C15;
            (product >> 64) as u64 ^ (product as u64).rotate_left(29)
        };
        let words = [id as u64, (id >> 64) as u64, self.object.number, u64::from(self.chunk)];
        words.into_iter().fold(0x2436_9A03_7073_4A4D, mix)
    }
}

/// Whether chunks up to this byte of an object have numbers.
pub(super) fn fits(end: u64) -> bool {
    end / CHUNK_BYTES as u64 <= u64::from(u32::MAX)
}

/// The chunks that a range touches, each with the touched bytes rounded out to pieces.
pub(super) fn split(
    object: CacheKey,
    range: &Range<u64>,
) -> impl Iterator<Item = (ChunkId, Range<u64>)> + use<> {
    debug_assert!(fits(range.end), "chunks up to there have numbers");
    let (chunk, piece) = (CHUNK_BYTES as u64, PIECE_BYTES as u64);
    let begin = range.start - range.start % piece;
    let end = range.end.next_multiple_of(piece);
    (begin / chunk..end.div_ceil(chunk)).map(move |c| {
        let part = begin.max(c * chunk)..end.min((c + 1) * chunk);
        (ChunkId { object, chunk: c as u32 }, part)
    })
}

/// The pieces of its chunk that a part touches.
pub(super) fn pieces(part: &Range<u64>) -> Range<usize> {
    debug_assert!(!part.is_empty(), "a part has pieces");
    debug_assert!(
        part.start.is_multiple_of(PIECE_BYTES as u64) && part.end.is_multiple_of(PIECE_BYTES as u64),
        "a part is whole pieces: {part:?}"
    );
    let first = (part.start % CHUNK_BYTES as u64) as usize / PIECE_BYTES;
    first..first + (part.end - part.start) as usize / PIECE_BYTES
}

/// One bit for each piece.
pub(super) fn mask(pieces: &Range<usize>) -> u16 {
    debug_assert!(pieces.start < pieces.end && pieces.end <= PIECES, "some pieces of one chunk");
    let below = |n: usize| (1u32 << n) - 1;
    (below(pieces.end) & !below(pieces.start)) as u16
}
