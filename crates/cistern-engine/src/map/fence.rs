//! The fence index of a run: which part of the object holds which blocks, on two levels.
//!
//! A fence lists consecutive parts of the object by their first mapped block, their bytes and
//! their greatest birth. Fences of blocks are *sections*; the fence of the sections is the *top*.
//! The trailer says where the top is. All are sealed parts; the tail mark behind the trailer is
//! the only thing in a run that can be read without the key.

use super::varint;
use crate::units::{Extent, Seq};

/// The kinds of sealed parts. The first plain byte says which one a part is.
pub(super) const TAG_BLOCK: u8 = 1;
pub(super) const TAG_SECTION: u8 = 2;
pub(super) const TAG_TOP: u8 = 3;
pub(super) const TAG_TRAILER: u8 = 4;

/// Plain bytes of the trailer.
pub(super) const TRAILER_BYTES: usize = 64;
const _: () = assert!(TRAILER_BYTES == 8 + TRAILER_WORDS * size_of::<u64>());
/// Numbers of the trailer behind tag and bytes of the top.
const TRAILER_WORDS: usize = 7;
/// The last bytes of a run: magic and format version.
pub(super) const TAIL_MARK_BYTES: usize = 8;
const TAIL_MAGIC: [u8; 7] = *b"cistern";
const _: () = assert!(TAIL_MAGIC.len() + size_of_val(&VERSION) == TAIL_MARK_BYTES);
/// The version of the run format that is written, and the greatest that is read.
pub(super) const VERSION: u8 = 2;

/// One part that a fence lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FencePart {
    /// The first block of its first mapping.
    pub first: u64,
    /// Bytes from the beginning of the object to the part.
    pub offset: u64,
    /// Bytes of the part as stored.
    pub bytes: u32,
    /// The greatest birth in it.
    pub birth_max: Seq,
}

/// Consecutive parts of a run, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    pub entries: Vec<FencePart>,
}

impl Fence {
    /// The plain bytes of a section (`TAG_SECTION`) or top (`TAG_TOP`).
    pub(super) fn encode(tag: u8, entries: &[FencePart]) -> Vec<u8> {
        debug_assert!(tag == TAG_SECTION || tag == TAG_TOP, "a fence is a section or the top");
        debug_assert!(!entries.is_empty(), "decode refuses empty fences");
        let mut out = vec![tag];
        let (mut offset, mut first) = entries.first().map_or((0, 0), |e| (e.offset, e.first));
        varint::put(offset, &mut out);
        varint::put(first, &mut out);
        for e in entries {
            debug_assert!(e.offset == offset && e.first >= first, "listed parts are consecutive and ascend");
            varint::put(e.first - first, &mut out);
            varint::put(u64::from(e.bytes), &mut out);
            varint::put(e.birth_max.0, &mut out);
            first = e.first;
            offset += u64::from(e.bytes);
        }
        out
    }

    /// Reads what `encode` wrote; `None` for anything else, for an empty list, and for parts that
    /// reach beyond `end` (bytes into the object).
    pub(super) fn decode(tag: u8, plain: &[u8], end: u64) -> Option<Fence> {
        let (&found, mut input) = plain.split_first()?;
        if found != tag {
            return None;
        }
        let mut offset = varint::take(&mut input)?;
        let mut first = varint::take(&mut input)?;
        let mut entries = Vec::new();
        while !input.is_empty() {
            first = first.checked_add(varint::take(&mut input)?)?;
            let bytes = u32::try_from(varint::take(&mut input)?).ok()?;
            let birth_max = Seq(varint::take(&mut input)?);
            entries.push(FencePart { first, offset, bytes, birth_max });
            offset = offset.checked_add(u64::from(bytes)).filter(|&o| o <= end)?;
        }
        (!entries.is_empty()).then_some(Fence { entries })
    }

    /// The last part that begins at or before `block`, or the first one.
    pub(super) fn find(&self, block: u64) -> usize {
        debug_assert!(!self.entries.is_empty(), "decode refuses empty fences");
        self.entries.partition_point(|e| e.first <= block).saturating_sub(1)
    }
}

/// The end of a run's index: where the top is, and what the run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    pub top_offset: u64,
    pub top_bytes: u32,
    pub mappings: u64,
    pub span: Extent,
    pub birth_min: Seq,
    pub birth_max: Seq,
}

impl Trailer {
    pub(super) fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[0] = TAG_TRAILER;
        out[4..8].copy_from_slice(&self.top_bytes.to_le_bytes());
        let words: [u64; TRAILER_WORDS] = [
            u64::from(VERSION),
            self.top_offset,
            self.mappings,
            self.span.start,
            self.span.len,
            self.birth_min.0,
            self.birth_max.0,
        ];
        for (slot, word) in out[8..].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(plain: &[u8]) -> Option<Trailer> {
        let plain: &[u8; TRAILER_BYTES] = plain.try_into().ok()?;
        let word = |i: usize| {
            let at = 8 + 8 * i;
            u64::from_le_bytes(plain[at..at + 8].try_into().expect("a slice of eight bytes"))
        };
        if plain[0] != TAG_TRAILER || plain[1..4] != [0; 3] || word(0) != u64::from(VERSION) {
            return None;
        }
        Some(Trailer {
            top_offset: word(1),
            top_bytes: u32::from_le_bytes(plain[4..8].try_into().expect("a slice of four bytes")),
            mappings: word(2),
            span: Extent::new(word(3), word(4)),
            birth_min: Seq(word(5)),
            birth_max: Seq(word(6)),
        })
    }
}

/// The last bytes of a run of this version.
pub(super) fn tail_mark() -> [u8; TAIL_MARK_BYTES] {
    let mut out = [VERSION; TAIL_MARK_BYTES];
    out[..TAIL_MAGIC.len()].copy_from_slice(&TAIL_MAGIC);
    out
}

/// The version a tail mark names, `None` when it is no tail mark.
pub(super) fn tail_version(mark: [u8; TAIL_MARK_BYTES]) -> Option<u8> {
    let [magic @ .., version] = mark;
    (magic == TAIL_MAGIC).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Fences come back as they were, and find the part that a block must be in.
        #[test]
        fn fences_come_back(parts in prop::collection::vec((1u64..1000, 1u32..10_000, any::<u64>()), 1..300), at in 0u64..100_000) {
            let (mut first, mut offset) = (5, 1000);
            let entries: Vec<FencePart> = parts.iter().map(|&(gap, bytes, birth)| {
                let e = FencePart { first, offset, bytes, birth_max: Seq(birth) };
                first += gap;
                offset += u64::from(bytes);
                e
            }).collect();
            let plain = Fence::encode(TAG_TOP, &entries);
            let fence = Fence::decode(TAG_TOP, &plain, offset).expect("what encode wrote");
            prop_assert_eq!(&fence.entries, &entries);
            prop_assert_eq!(Fence::decode(TAG_SECTION, &plain, offset), None);
            prop_assert_eq!(Fence::decode(TAG_TOP, &plain, offset - 1), None);
            let expected = entries.iter().rposition(|e| e.first <= at).unwrap_or(0);
            prop_assert_eq!(fence.find(at), expected);
        }

        /// Arbitrary bytes never panic.
        #[test]
        fn survives_arbitrary_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..100), end in any::<u64>()) {
            let _ = Trailer::decode(&bytes);
            if let Some(tag) = bytes.first_mut() {
                *tag = TAG_TOP;
            }
            let _ = Fence::decode(TAG_TOP, &bytes, end);
        }
    }

    /// The trailer and the tail mark come back; another version is told apart from rubbish.
    #[test]
    fn trailers_come_back() {
        let trailer = Trailer {
            top_offset: 1 << 40,
            top_bytes: 77,
            mappings: 3,
            span: Extent::new(5, 1 << 47),
            birth_min: Seq(1),
            birth_max: Seq(u64::MAX),
        };
        assert_eq!(Trailer::decode(&trailer.encode()), Some(trailer));
        let mut mark = tail_mark();
        assert_eq!(tail_version(mark), Some(VERSION));
        mark[7] = 9;
        assert_eq!(tail_version(mark), Some(9));
        mark[0] = 0;
        assert_eq!(tail_version(mark), None);
    }
}
