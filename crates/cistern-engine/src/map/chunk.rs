//! Chunks: up to 128 mappings as columns, the smallest unit that is decoded.
//!
//! A chunk needs nothing but its block's first block number to be decoded, so a lookup decodes
//! one of the dozen of a block. Columns that say nothing (every mapping one block long, never
//! moved, equally long as stored) cost two bytes per chunk. Decoding checks every value: what it
//! returns obeys `BLOCKS_MAX`, ascends without overlap and stays inside a frame.

use super::{
    BLOCKS_MAX,
    column::{self, CHUNK_MAPPINGS_MAX, Column},
    varint,
    version::{Version, placed},
};
use crate::units::{Extent, FRAME_BLOCKS_MAX, FrameRef, Mapping, Place, Seq};

const KIND_HOLE: u64 = 0;
const KIND_ZERO: u64 = 1;
const KIND_FRAME: u64 = 2;

/// The values of a column.
type Values = [u64; CHUNK_MAPPINGS_MAX];

/// The columns of a chunk, in the order in which they are stored.
struct Columns {
    /// Blocks between the end of the mapping before and the start of this one; 0 for the first.
    gap: Values,
    /// Blocks, less one.
    len: Values,
    kind: Values,
    birth: Values,
    /// Seq of the place less birth, wrapping. Like all below, meaningless for holes and zeroes.
    moved: Values,
    stored: Values,
    index: Values,
    /// `offset / stored` and `offset % stored`: frames of one stored length, one after the other
    /// (incompressible blocks), have a constant remainder and a quotient of 12 bits.
    quotient: Values,
    remainder: Values,
    /// How far back a mapping stands for what it replaced: from where it was put there, the seq of its place or its birth.
    over: Values,
}

impl Columns {
    fn new() -> Columns {
        let zero = [0; CHUNK_MAPPINGS_MAX];
        Columns {
            gap: zero,
            len: zero,
            kind: zero,
            birth: zero,
            moved: zero,
            stored: zero,
            index: zero,
            quotient: zero,
            remainder: zero,
            over: zero,
        }
    }

    fn in_order(&mut self) -> [&mut Values; 10] {
        let Columns { gap, len, kind, birth, moved, stored, index, quotient, remainder, over } = self;
        [gap, len, kind, birth, moved, stored, index, quotient, remainder, over]
    }

    fn set_place(&mut self, i: usize, birth: Seq, f: FrameRef) {
        debug_assert!(f.stored > 0, "a frame has bytes");
        self.moved[i] = f.seq.0.wrapping_sub(birth.0);
        self.stored[i] = u64::from(f.stored);
        self.index[i] = u64::from(f.index);
        self.quotient[i] = u64::from(f.offset / f.stored);
        self.remainder[i] = u64::from(f.offset % f.stored);
    }

    fn copy_place(&mut self, from: usize, to: usize) {
        for c in [&mut self.moved, &mut self.stored, &mut self.index, &mut self.quotient, &mut self.remainder]
        {
            c[to] = c[from];
        }
    }
}

/// Appends a chunk of `versions` (1 to 128, ascending) to a block whose first mapping starts at
/// `base`.
pub(super) fn put(versions: &[Version], base: u64, out: &mut Vec<u8>) {
    assert!((1..=CHUNK_MAPPINGS_MAX).contains(&versions.len()), "a chunk has 1 to 128 mappings");
    debug_assert!(base <= versions[0].extent().start, "a block begins with its first mapping");
    let mut columns = Columns::new();
    fill(&mut columns, versions);
    out.push((versions.len() - 1) as u8);
    varint::put(versions[0].extent().start - base, out);
    let length_at = out.len();
    out.extend_from_slice(&[0; 2]);
    for c in columns.in_order() {
        column::put(&c[..versions.len()], out);
    }
    let length = u16::try_from(out.len() - length_at - 2).expect("10 columns of 128 values are below 64 KiB");
    out[length_at..length_at + 2].copy_from_slice(&length.to_le_bytes());
}

fn fill(columns: &mut Columns, versions: &[Version]) {
    let mut end = versions[0].extent().start;
    let mut filled = 0; // mappings before this one have a place, their own or a copy
    let mut frame_before = None;
    for (i, version) in versions.iter().enumerate() {
        let m = &version.mapping;
        debug_assert!(
            m.extent.start >= end && !m.extent.is_empty() && m.extent.end() <= BLOCKS_MAX,
            "mappings ascend, are apart and lie in the largest volume"
        );
        debug_assert!(version.over <= version.placed(), "it stands for what was before it");
        columns.over[i] = version.placed().0 - version.over.0;
        columns.gap[i] = m.extent.start - end;
        columns.len[i] = m.extent.len - 1;
        columns.birth[i] = m.birth.0;
        end = m.extent.end();
        let Place::Frame(f) = m.place else {
            columns.kind[i] = if m.place == Place::Zero { KIND_ZERO } else { KIND_HOLE };
            // Copies of a neighbour do not widen the columns.
            if let Some(frame) = frame_before {
                columns.copy_place(frame, i);
                filled = i + 1;
            }
            continue;
        };
        columns.kind[i] = KIND_FRAME;
        columns.set_place(i, m.birth, f);
        for before in filled..i {
            columns.copy_place(i, before);
        }
        filled = i + 1;
        frame_before = Some(i);
    }
}

/// A chunk within a block: where it starts in block space, and its columns as bytes.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub start: u64,
    mappings: usize,
    body: &'a [u8],
}

/// Takes a chunk off the front of `input` without decoding its columns.
pub(super) fn take<'a>(input: &mut &'a [u8], base: u64) -> Option<Chunk<'a>> {
    let (&count, rest) = input.split_first()?;
    *input = rest;
    let start = base.checked_add(varint::take(input)?)?;
    let (length, rest) = input.split_first_chunk::<2>()?;
    let (body, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *input = rest;
    let mappings = usize::from(count) + 1;
    (mappings <= CHUNK_MAPPINGS_MAX).then_some(Chunk { start, mappings, body })
}

impl Chunk<'_> {
    /// Appends the chunk's mappings that end behind `block` to `out`, up to the first that reaches `limit`;
    /// `None` when the columns are malformed or any of these mappings is impossible.
    pub(super) fn decode(&self, block: u64, limit: u64, out: &mut Vec<Mapping>) -> Option<()> {
        self.decode_each(block, limit, |mapping, _| {
            out.push(mapping);
            Some(())
        })
    }

    /// Appends all of the chunk; `None` as for `decode`.
    pub(super) fn decode_versions(&self, out: &mut Vec<Version>) -> Option<()> {
        self.decode_each(0, u64::MAX, |mapping, back| {
            let over = Seq(placed(&mapping).0.checked_sub(back)?);
            out.push(Version { mapping, over });
            Some(())
        })
    }

    /// Gives each mapping, and how far back it stands for what it replaced.
    fn decode_each(
        &self,
        block: u64,
        limit: u64,
        mut each: impl FnMut(Mapping, u64) -> Option<()>,
    ) -> Option<()> {
        let mut input = self.body;
        let mut next = || column::take(&mut input, self.mappings);
        let (gap, len, kind, birth) = (next()?, next()?, next()?, next()?);
        let frames =
            Frames { moved: next()?, stored: next()?, index: next()?, quotient: next()?, remainder: next()? };
        let over = next()?;
        if !input.is_empty() {
            return None;
        }
        let (first, mut end) = match (gap.constant(), len.constant()) {
            (Some(0), Some(len)) => self.skip_even(block, len)?,
            _ => (0, self.start),
        };
        for i in first..self.mappings {
            let start = end.checked_add(gap.get(i))?;
            end = start.checked_add(len.get(i))?.checked_add(1).filter(|&end| end <= BLOCKS_MAX)?;
            if end <= block {
                continue;
            }
            let (extent, birth) = (Extent::between(start, end), Seq(birth.get(i)));
            let place = match kind.get(i) {
                KIND_HOLE => Place::Hole,
                KIND_ZERO => Place::Zero,
                KIND_FRAME => frames.place(i, birth, extent.len)?,
                _ => return None,
            };
            each(Mapping { extent, birth, place }, over.get(i))?;
            if end >= limit {
                break;
            }
        }
        Some(())
    }

    /// Of mappings of equal length (less one) that follow one another: the first that ends behind `block`, and where it
    /// starts.
    fn skip_even(&self, block: u64, len: u64) -> Option<(usize, u64)> {
        let len = len.checked_add(1)?;
        let all = len.checked_mul(self.mappings as u64)?;
        self.start.checked_add(all).filter(|&end| end <= BLOCKS_MAX)?;
        let skipped = (block.saturating_sub(self.start) / len).min(self.mappings as u64);
        Some((skipped as usize, self.start + skipped * len))
    }
}

/// The columns that say where frames are.
struct Frames<'a> {
    moved: Column<'a>,
    stored: Column<'a>,
    index: Column<'a>,
    quotient: Column<'a>,
    remainder: Column<'a>,
}

impl Frames<'_> {
    /// The place of mapping `i`, if it lies within one frame.
    fn place(&self, i: usize, birth: Seq, len: u64) -> Option<Place> {
        let stored = u32::try_from(self.stored.get(i)).ok().filter(|&s| s > 0)?;
        let start = self.quotient.get(i).checked_mul(u64::from(stored))?;
        let offset = start.checked_add(self.remainder.get(i))?;
        let index = self.index.get(i);
        if index >= FRAME_BLOCKS_MAX as u64 || len > FRAME_BLOCKS_MAX as u64 - index {
            return None;
        }
        Some(Place::Frame(FrameRef {
            seq: Seq(birth.0.wrapping_add(self.moved.get(i))),
            offset: u32::try_from(offset).ok()?,
            stored,
            index: index as u8,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::arbitrary::mappings, *};
    use proptest::prelude::*;

    fn plain(mappings: &[Mapping]) -> Vec<Version> {
        mappings.iter().copied().map(Version::new).collect()
    }

    proptest! {
        /// How far back each version stands for others comes back, and changes nothing of what a lookup sees.
        #[test]
        fn versions_come_back(mappings in mappings(1..=CHUNK_MAPPINGS_MAX), back in prop::collection::vec(0u64..1 << 40, CHUNK_MAPPINGS_MAX)) {
            let stand_for = |(m, back): (&Mapping, &u64)| {
                Version { mapping: *m, over: Seq(placed(m).0.saturating_sub(*back)) }
            };
            let versions: Vec<Version> = mappings.iter().zip(&back).map(stand_for).collect();
            let mut bytes = Vec::new();
            put(&versions, 0, &mut bytes);
            let (mut seen, mut looked_up) = (Vec::new(), Vec::new());
            prop_assert!(take(&mut &bytes[..], 0).expect("a chunk").decode_versions(&mut seen).is_some());
            prop_assert!(take(&mut &bytes[..], 0).expect("a chunk").decode(0, u64::MAX, &mut looked_up).is_some());
            prop_assert_eq!(seen, versions);
            prop_assert_eq!(looked_up, mappings);
        }

        /// Of mappings of one length that follow one another, a lookup gives the one that covers its block, as a walk
        /// does: nothing behind the last, the first for what lies before it.
        #[test]
        fn even_mappings_are_found_without_a_walk(count in 1..=CHUNK_MAPPINGS_MAX, len in 1u64..=16, start in 16u64..1000,
                                                  block in 0u64..3100) {
            let frame = |n: u64| FrameRef { seq: Seq(3), offset: 4096 * n as u32, stored: 4096, index: 0 };
            let all: Vec<Mapping> = (0..count as u64)
                .map(|n| Mapping {
                    extent: Extent::new(start + n * len, len),
                    birth: Seq(3),
                    place: Place::Frame(frame(n)),
                })
                .collect();
            let mut bytes = Vec::new();
            put(&plain(&all), 0, &mut bytes);
            let chunk = take(&mut &bytes[..], 0).expect("a chunk");
            let mut found = Vec::new();
            chunk.decode(block, block + 1, &mut found).expect("well-formed");
            let walked = all.iter().find(|m| m.extent.end() > block);
            prop_assert_eq!(found.first(), walked);
        }

        /// Whatever may be in the map comes back from a chunk as it was.
        #[test]
        fn comes_back(mappings in mappings(1..=CHUNK_MAPPINGS_MAX)) {
            let base = mappings[0].extent.start / 2;
            let mut bytes = Vec::new();
            put(&plain(&mappings), base, &mut bytes);
            let mut input = &bytes[..];
            let chunk = take(&mut input, base).expect("a chunk");
            prop_assert!(input.is_empty());
            prop_assert_eq!(chunk.start, mappings[0].extent.start);
            let mut seen = Vec::new();
            prop_assert!(chunk.decode(0, u64::MAX, &mut seen).is_some());
            prop_assert_eq!(seen, mappings);
        }

        /// A lookup gets the mappings from its block to its limit, and one in any case where one is behind it.
        #[test]
        fn decodes_what_is_asked_for(mappings in mappings(1..=CHUNK_MAPPINGS_MAX),
                                     at in any::<prop::sample::Index>(), off in 0u64..4, len in 1u64..1000) {
            let mut bytes = Vec::new();
            put(&plain(&mappings), 0, &mut bytes);
            let block = (mappings[at.index(mappings.len())].extent.start + off).saturating_sub(2);
            let limit = block + len;
            let behind = mappings.iter().filter(|m| m.extent.end() > block);
            let mut wanted: Vec<Mapping> = behind.clone().take_while(|m| m.extent.end() < limit).copied().collect();
            wanted.extend(behind.copied().nth(wanted.len()));
            let mut seen = Vec::new();
            prop_assert!(take(&mut &bytes[..], 0).expect("a chunk").decode(block, limit, &mut seen).is_some());
            prop_assert_eq!(seen, wanted);
        }

        /// Arbitrary bytes give an error or mappings that keep the rules, never a panic.
        #[test]
        fn survives_arbitrary_bytes(base in any::<u64>(), mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if bytes.len() > 4 {
                bytes[0] &= 0x87; // counts that often fit
            }
            let mut out = Vec::new();
            if let Some(chunk) = take(&mut &bytes[..], base) {
                let _ = chunk.decode(0, u64::MAX, &mut out);
            }
            check(&out)?;
        }

        /// A changed byte in a real chunk gives an error or mappings that keep the rules.
        #[test]
        fn survives_changed_bytes(mappings in mappings(1..=20), at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut bytes = Vec::new();
            put(&plain(&mappings), 0, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = to;
            let mut out = Vec::new();
            if let Some(chunk) = take(&mut &bytes[..], 0) {
                let _ = chunk.decode(0, u64::MAX, &mut out);
            }
            check(&out)?;
        }
    }

    fn check(mappings: &[Mapping]) -> Result<(), TestCaseError> {
        let mut end = 0;
        for m in mappings {
            prop_assert!(m.extent.start >= end && !m.extent.is_empty() && m.extent.end() <= BLOCKS_MAX);
            end = m.extent.end();
            if let Place::Frame(f) = m.place {
                prop_assert!(u64::from(f.index) + m.extent.len <= FRAME_BLOCKS_MAX as u64);
            }
        }
        Ok(())
    }

    /// One hole or zero between frames costs no more than its own few bits.
    #[test]
    fn holes_do_not_widen_the_frames_columns() {
        let frame = |n: u64| Mapping {
            extent: Extent::new(n * 100, 1),
            birth: Seq(9),
            place: Place::Frame(FrameRef {
                seq: Seq(9),
                offset: 80 + 4120 * n as u32,
                stored: 4120,
                index: 0,
            }),
        };
        let mut mappings: Vec<_> = (0..128).map(frame).collect();
        let mut even = Vec::new();
        put(&plain(&mappings), 0, &mut even);
        mappings[0].place = Place::Hole;
        mappings[64].place = Place::Zero;
        let mut mixed = Vec::new();
        put(&plain(&mappings), 0, &mut mixed);
        assert!(mixed.len() <= even.len() + 2 * CHUNK_MAPPINGS_MAX / 8, "{} {}", mixed.len(), even.len());
    }
}
