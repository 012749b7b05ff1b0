//! A block of a run in memory: its plain bytes, and where in them its chunks begin.
//!
//! A lookup that walked from chunk to chunk would wait for memory at every one of them; where they begin is
//! found once, when the block is read. Chunks ascend; what lies in them is checked when they are decoded.

use super::{
    chunk::{self, Chunk},
    fence::TAG_BLOCK,
    varint,
    version::Version,
};
use crate::units::{Extent, Mapping};

pub(super) struct Block {
    plain: Vec<u8>,
    /// The first block number of the first chunk, to which the chunks' own starts are relative.
    base: u64,
    chunks: Box<[Begin]>,
}

/// Where a chunk begins.
struct Begin {
    /// In block space.
    start: u64,
    /// In the plain bytes.
    at: u32,
}

impl Block {
    /// Finds the chunks of a block; `None` when it is malformed.
    pub(super) fn new(plain: Vec<u8>) -> Option<Block> {
        let (mut input, base) = begin(&plain)?;
        let mut chunks: Vec<Begin> = Vec::new();
        while !input.is_empty() {
            let at = u32::try_from(plain.len() - input.len()).ok()?;
            let start = chunk::take(&mut input, base)?.start;
            if chunks.last().is_some_and(|before| before.start >= start) {
                return None;
            }
            chunks.push(Begin { start, at });
        }
        Some(Block { plain, base, chunks: chunks.into() })
    }

    /// Bytes in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Block>() + self.plain.capacity() + size_of_val(&*self.chunks)
    }

    fn chunk(&self, begin: &Begin) -> Option<Chunk<'_>> {
        chunk::take(&mut &self.plain[begin.at as usize..], self.base)
    }

    /// The first chunk with a mapping that ends behind `block`, from that mapping on up to one that reaches
    /// `limit`, cut to `span`. Empty when there is none; `None` when the bytes are malformed.
    pub(super) fn find(&self, block: u64, limit: u64, span: Extent) -> Option<Vec<Mapping>> {
        debug_assert!(block >= span.start, "nobody asks for what lies before the span");
        let behind = self.chunks.partition_point(|c| c.start <= block);
        let mut out = Vec::new();
        // The last chunk that begins before `block` may end before it too; then it is the next one.
        for begin in self.chunks[behind.saturating_sub(1)..].iter().take(2) {
            out.clear();
            self.chunk(begin)?.decode(block, limit, &mut out)?;
            cut(&mut out, span);
            if !out.is_empty() {
                break;
            }
        }
        debug_assert!(
            out.first().is_none_or(|m| m.extent.end() > block)
                && out.is_sorted_by(|a, b| a.extent.end() <= b.extent.start),
            "what is found ends behind the block, ascends and is apart"
        );
        Some(out)
    }
}

/// The versions of a block, appended to `out`; `None` when it is malformed.
pub(super) fn decode(plain: &[u8], out: &mut Vec<Version>) -> Option<()> {
    let (mut input, base) = begin(plain)?;
    while !input.is_empty() {
        let before = out.len();
        chunk::take(&mut input, base)?.decode_versions(out)?;
        if before > 0 && out[before - 1].extent().end() > out[before].extent().start {
            return None;
        }
    }
    Some(())
}

/// The bytes of the chunks, and the block's base.
fn begin(plain: &[u8]) -> Option<(&[u8], u64)> {
    let (&tag, mut input) = plain.split_first()?;
    let base = varint::take(&mut input)?;
    (tag == TAG_BLOCK).then_some((input, base))
}

/// Keeps what lies in `span`; all mappings end behind its start.
fn cut(mappings: &mut Vec<Mapping>, span: Extent) {
    mappings.truncate(mappings.partition_point(|m| m.extent.start < span.end()));
    let n = mappings.len();
    for i in [0, n.wrapping_sub(1)] {
        if let Some(m) = mappings.get_mut(i) {
            let part = m.extent.intersect(span).expect("it ends behind the span's start and begins in it");
            *m = m.slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{BLOCKS_MAX, arbitrary::mappings},
        *,
    };
    use crate::units::{Place, Seq};

    fn plain(mappings: &[Mapping]) -> Vec<Version> {
        mappings.iter().copied().map(Version::new).collect()
    }

    fn encode(mappings: &[Mapping], chunk_mappings: usize) -> Vec<u8> {
        let base = mappings[0].extent.start;
        let mut bytes = vec![TAG_BLOCK];
        varint::put(base, &mut bytes);
        plain(mappings).chunks(chunk_mappings).for_each(|part| chunk::put(part, base, &mut bytes));
        bytes
    }

    proptest! {
        /// A lookup gives the first mapping that a walk through the whole block finds behind its block.
        #[test]
        fn finds_what_a_walk_finds(mappings in mappings(1..=40), chunk_mappings in 1usize..8,
                                   at in any::<prop::sample::Index>(), off in 0u64..4) {
            let bytes = encode(&mappings, chunk_mappings);
            let mut all = Vec::new();
            prop_assert!(decode(&bytes, &mut all).is_some());
            prop_assert_eq!(&all, &plain(&mappings));
            let block = (mappings[at.index(mappings.len())].extent.start + off).saturating_sub(2);
            let whole = Extent::new(0, BLOCKS_MAX);
            let found = Block::new(bytes).expect("a block").find(block, block + 1, whole).expect("well-formed");
            prop_assert_eq!(found.first(), mappings.iter().find(|m| m.extent.end() > block));
        }
    }

    /// Chunks that do not ascend are refused when the block is read.
    #[test]
    fn chunks_ascend() {
        let hole = |start| Mapping { extent: Extent::new(start, 1), birth: Seq(1), place: Place::Hole };
        let mut bytes = encode(&[hole(5), hole(9)], 1);
        assert!(Block::new(bytes.clone()).is_some());
        chunk::put(&plain(&[hole(7)]), 5, &mut bytes);
        assert!(Block::new(bytes).is_none());
    }
}
