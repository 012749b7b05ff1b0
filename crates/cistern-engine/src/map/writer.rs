//! Writes a run object: mappings in ascending order in, sealed bytes and their `RunMeta` out.
//!
//! Owns the layout (`docs/format/map.md`): blocks, sections of the fence, top, trailer, tail mark.
//! A run is built in memory; its size is bounded by `RUN_BYTES_MAX` because whoever pushes asks
//! `ends_before` and starts the next one. Does no IO.

use bytes::Bytes;

use super::{
    RunMeta, chunk,
    column::CHUNK_MAPPINGS_MAX,
    fence::{self, Fence, FencePart, TAG_BLOCK, TAG_SECTION, TAG_TOP, Trailer},
    varint,
    version::Version,
};
use crate::{
    codec::Sealer,
    sectors::ALL_SECTORS,
    store::PROBED_OBJECT_BYTES,
    units::{Extent, Place, RunId, Seq},
};

/// Bytes of the largest run that is read or written.
pub(super) const RUN_BYTES_MAX: u64 = 80 << 20;
const _: () = assert!(RUN_BYTES_MAX <= PROBED_OBJECT_BYTES, "a store is known to take it");
/// Stored bytes of the largest part. The widest chunk has 9 KiB, an entry of a fence 25 bytes.
pub(super) const PART_BYTES_MAX: u32 = 64 << 10;

/// Bytes of the longest entry of a fence.
const ENTRY_BYTES_MAX: usize = 25;

/// How a run is cut into parts.
#[derive(Clone, Copy, Debug)]
pub struct RunShape {
    /// Mappings of a chunk, 1 to 128.
    pub chunk_mappings: usize,
    /// Plain bytes after which a block is sealed.
    pub block_bytes: usize,
    /// Blocks that one section of the fence lists.
    pub section_blocks: usize,
    /// Bytes after which a run is full.
    pub run_bytes: usize,
}

impl Default for RunShape {
    /// Chunks: small, because a lookup decodes one and an outlier widens its neighbours, and
    /// large enough that the heads of their columns cost two bits per mapping. Blocks: a lookup
    /// reads one; seal and fence entry cost 25 bytes each. Sections: 2 KiB of index for 2 MiB of
    /// run. Runs: between 16 and 64 MiB, so that a big map is a few dozen objects and each can be
    /// built in memory.
    fn default() -> Self {
        Self {
            chunk_mappings: CHUNK_MAPPINGS_MAX,
            block_bytes: 8 << 10,
            section_blocks: 256,
            run_bytes: 32 << 20,
        }
    }
}

impl RunShape {
    /// Panics on a shape whose parts or runs could become larger than a reader accepts.
    pub(super) fn assert_bounds(&self) {
        assert!((1..=CHUNK_MAPPINGS_MAX).contains(&self.chunk_mappings), "a chunk has 1 to 128 mappings");
        assert!((32..=32 << 10).contains(&self.block_bytes), "a block is one part");
        assert!((1..=1024).contains(&self.section_blocks), "a section is one part");
        assert!(self.run_bytes <= 64 << 20, "a run has room for its index");
        let blocks = self.run_bytes / self.block_bytes + 1;
        let sections = blocks / self.section_blocks + 1;
        assert!(sections * ENTRY_BYTES_MAX < PART_BYTES_MAX as usize / 2, "the top is one part");
        assert!(blocks * ENTRY_BYTES_MAX < 12 << 20, "the index fits behind the blocks");
    }

    /// Mappings that a full run has about.
    pub(super) fn run_mappings(&self) -> u64 {
        self.run_bytes as u64 / 5
    }
}

/// A run being written.
pub(super) struct RunWriter {
    id: RunId,
    sealer: Sealer,
    shape: RunShape,
    body: Vec<u8>,
    /// Mappings of the chunk that is being filled.
    pending: Vec<Version>,
    /// Plain bytes of the block that is being filled.
    block: Vec<u8>,
    block_first: u64,
    block_birth_max: Seq,
    blocks: Vec<FencePart>,
    totals: RunTotals,
}

/// What is known of all mappings written so far.
#[derive(Clone, Copy)]
struct RunTotals {
    mappings: u64,
    frame_blocks: u64,
    mapped_blocks: u64,
    start: u64,
    end: u64,
    birth_min: Seq,
    birth_max: Seq,
}

impl RunWriter {
    /// Starts the run `id`; `sealer` must be the one of that id.
    pub(super) fn new(id: RunId, sealer: Sealer, shape: RunShape) -> RunWriter {
        let (birth_min, birth_max) = (Seq(u64::MAX), Seq(0));
        let totals = RunTotals {
            mappings: 0,
            frame_blocks: 0,
            mapped_blocks: 0,
            start: 0,
            end: 0,
            birth_min,
            birth_max,
        };
        RunWriter {
            id,
            sealer,
            shape,
            body: Vec::new(),
            pending: Vec::with_capacity(shape.chunk_mappings),
            block: Vec::new(),
            block_first: 0,
            block_birth_max: Seq(0),
            blocks: Vec::new(),
            totals,
        }
    }

    /// Adds a mapping behind all others.
    pub(super) fn push(&mut self, version: Version) {
        let extent = version.extent();
        debug_assert!(
            !extent.is_empty() && extent.end() <= super::BLOCKS_MAX,
            "a mapping maps something that the largest volume has"
        );
        assert!(self.pending.is_empty() || extent.start >= self.totals.end, "mappings ascend");
        self.totals.end = extent.end();
        if self.pending.last_mut().is_some_and(|last| last.try_join(&version)) {
            return;
        }
        if self.pending.len() == self.shape.chunk_mappings {
            self.end_chunk();
        }
        self.pending.push(version);
    }

    pub(super) fn is_full(&self) -> bool {
        self.body.len() >= self.shape.run_bytes
    }

    /// Whether the run ends before a mapping that begins there: it is full, or has blocks of the volume and that is of sectors. Their numbers
    /// lie far apart, and what a run has is estimated from its span.
    pub(super) fn ends_before(&self, start: u64) -> bool {
        let sectors = ALL_SECTORS.start;
        self.is_full() || (start >= sectors && (1..=sectors).contains(&self.totals.end))
    }

    fn end_chunk(&mut self) {
        let Some(first) = self.pending.first() else { return };
        if self.block.is_empty() {
            self.block_first = first.extent().start;
            self.block_birth_max = Seq(0);
            self.block.push(TAG_BLOCK);
            varint::put(self.block_first, &mut self.block);
        }
        if self.totals.mappings == 0 {
            self.totals.start = first.extent().start;
        }
        chunk::put(&self.pending, self.block_first, &mut self.block);
        for m in self.pending.iter().map(|version| &version.mapping) {
            self.block_birth_max = self.block_birth_max.max(m.birth);
            self.totals.birth_min = self.totals.birth_min.min(m.birth);
            self.totals.mapped_blocks += m.extent.len;
            if matches!(m.place, Place::Frame(_)) {
                self.totals.frame_blocks += m.extent.len;
            }
        }
        self.totals.birth_max = self.totals.birth_max.max(self.block_birth_max);
        self.totals.mappings += self.pending.len() as u64;
        self.pending.clear();
        if self.block.len() >= self.shape.block_bytes {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let mut plain = std::mem::take(&mut self.block);
        let (offset, bytes) = self.seal(&plain);
        self.blocks.push(FencePart {
            first: self.block_first,
            offset,
            bytes,
            birth_max: self.block_birth_max,
        });
        plain.clear();
        self.block = plain;
    }

    /// Seals a part at the end of the body. Returns its offset and its bytes as stored.
    fn seal(&mut self, plain: &[u8]) -> (u64, u32) {
        let offset = self.body.len() as u64;
        self.sealer.seal(offset, plain, &mut self.body);
        let bytes = self.body.len() as u64 - offset;
        assert!(bytes <= u64::from(PART_BYTES_MAX), "parts are small by construction");
        (offset, bytes as u32)
    }

    /// Ends the run. `None` when nothing was pushed.
    pub(super) fn finish(mut self, rank: u8) -> Option<(RunMeta, Bytes)> {
        self.end_chunk();
        self.end_block();
        if self.blocks.is_empty() {
            return None;
        }
        let blocks = std::mem::take(&mut self.blocks);
        let sections: Vec<FencePart> = blocks
            .chunks(self.shape.section_blocks)
            .map(|listed| {
                let (offset, bytes) = self.seal(&Fence::encode(TAG_SECTION, listed));
                let birth_max = listed.iter().map(|e| e.birth_max).max().expect("chunks are not empty");
                FencePart { first: listed[0].first, offset, bytes, birth_max }
            })
            .collect();
        let (top_offset, top_bytes) = self.seal(&Fence::encode(TAG_TOP, &sections));
        let RunTotals { mappings, frame_blocks, mapped_blocks, start, end, birth_min, birth_max } =
            self.totals;
        let span = Extent::between(start, end);
        assert!(
            frame_blocks <= mapped_blocks && mapped_blocks <= span.len,
            "a block of the span is mapped once"
        );
        debug_assert!(birth_min <= birth_max, "something was born");
        let trailer = Trailer { top_offset, top_bytes, mappings, span, birth_min, birth_max };
        self.seal(&trailer.encode());
        self.body.extend_from_slice(&fence::tail_mark());
        let (id, bytes) = (self.id, self.body.len() as u64);
        assert!(bytes <= RUN_BYTES_MAX, "whoever pushes asks is_full");
        let since = Seq(0); // told by who publishes it
        let meta = RunMeta {
            id,
            bytes,
            mappings,
            frame_blocks,
            mapped_blocks,
            span,
            birth_min,
            birth_max,
            rank,
            since,
            owner: None,
        };
        Some((meta, Bytes::from(self.body)))
    }
}
