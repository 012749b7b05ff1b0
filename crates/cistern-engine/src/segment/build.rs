//! Building a segment: block data in, a finished object out. All of the CPU cost of a segment is
//! here, so run it on a worker.

use super::{
    Content, EntryKind, JournalRange, MAPPINGS_MAX, OBJECT_BYTES_MAX, OPERATIONS_MAX, SealedSegment, Slot,
    entry::{PREFIX_BYTES, TRAILER_BYTES, append_end, start_object},
    footer::{self, FOOTER_BYTES_MAX},
    frame::{append_frame, append_packed, append_raw},
};
use crate::{
    codec::{BlockData, Compression, Compressor, MasterKey, Sealer},
    snapshot::Operation,
    units::{BLOCK_BYTES, Extent, FRAME_BLOCKS_MAX, FrameRef, Mapping, Place, SEGMENT_DATA_BYTES_MAX, Seq},
};

const FRAME_BYTES_MAX: usize = FRAME_BLOCKS_MAX * BLOCK_BYTES;

const _: () = assert!(
    PREFIX_BYTES
        + SEGMENT_DATA_BYTES_MAX / BLOCK_BYTES
            * (BLOCK_BYTES + Sealer::overhead_of(EntryKind::Segment.sealed_as(), true))
        + FOOTER_BYTES_MAX
        + TRAILER_BYTES
        < OBJECT_BYTES_MAX as usize,
    "a full segment that does not compress fits an object"
);

/// Takes blocks in ascending order and packs them into frames.
///
/// Invariant: `mappings` ascend and end at or before the pending blocks; `pending` is shorter than
/// a frame between calls, and `births` tells the births of its blocks.
pub struct SegmentBuilder {
    slot: Slot,
    content: Content,
    sealer: Sealer,
    compressor: Compressor,
    body: Vec<u8>,
    mappings: Vec<Mapping>,
    operations: Vec<Operation>,
    /// Blocks that wait for their frame to fill, from `pending_start` on.
    pending: Vec<u8>,
    pending_start: u64,
    /// Numbers of blocks that were born together.
    births: Vec<(u64, Seq)>,
    data_bytes: u64,
}

impl SegmentBuilder {
    /// A segment for what `range` of the journal holds; `size_bytes` is the size of the volume as of its end. The
    /// chains at the ends of the range stand for the data: they go into the nonce.
    pub fn written(
        key: Option<&MasterKey>,
        slot: Slot,
        range: JournalRange,
        size_bytes: u64,
        compression: Compression,
    ) -> Self {
        assert!(range.from.pos <= range.to.pos);
        let data = range.from.chain.0 ^ range.to.chain.0;
        Self::new(key, slot, Content::Written { range, size_bytes }, data, compression)
    }

    /// A segment for blocks that are moved from others, as the log was up to `base`. `data` is a hash over which
    /// blocks of which births they are, for the nonce.
    pub fn moved(
        key: Option<&MasterKey>,
        slot: Slot,
        base: Seq,
        data: u64,
        compression: Compression,
    ) -> Self {
        assert!(base < slot.seq);
        Self::new(key, slot, Content::Moved { base }, data, compression)
    }

    /// A segment for blocks that only snapshots see, as the log was up to `base`; `data` as for [`moved`](Self::moved). Of a
    /// block there may be several versions: what is added ascends by its first block.
    pub fn kept(key: Option<&MasterKey>, slot: Slot, base: Seq, data: u64, compression: Compression) -> Self {
        assert!(base < slot.seq);
        Self::new(key, slot, Content::Kept { base }, data, compression)
    }

    fn new(
        key: Option<&MasterKey>,
        slot: Slot,
        content: Content,
        data: u64,
        compression: Compression,
    ) -> Self {
        let kind = EntryKind::Segment.sealed_as();
        let slot = Slot { nonce: slot.nonce.mixed_with(data), ..slot };
        Self {
            slot,
            content,
            sealer: Sealer::new(key, slot.volume, kind, slot.salt, slot.seq.0).with_nonce(slot.nonce),
            compressor: Compressor::new(compression),
            body: start_object(),
            mappings: Vec::new(),
            operations: Vec::new(),
            pending: Vec::with_capacity(FRAME_BYTES_MAX),
            pending_start: 0,
            births: Vec::new(),
            data_bytes: 0,
        }
    }

    /// Makes room for so much data at once; saves copying while the object grows.
    pub fn reserve(&mut self, data_bytes: usize) {
        self.body.reserve(data_bytes + data_bytes / 64 + TRAILER_BYTES);
    }

    /// Adds whole blocks from `first_block` on, at or behind the end of all added before. What
    /// continues the blocks before it shares their frame, but no frame crosses a multiple of 16 blocks: so
    /// overwriting a stream shadows whole frames.
    pub fn data(&mut self, first_block: u64, data: &[u8]) {
        self.data_born(first_block, self.slot.seq, data);
    }

    /// The same for blocks that were born at `birth`.
    pub fn data_born(&mut self, first_block: u64, birth: Seq, mut data: &[u8]) {
        assert!(data.len().is_multiple_of(BLOCK_BYTES));
        let mut block = first_block;
        if block != self.pending_end() {
            self.flush();
        }
        assert!(block >= self.end(), "blocks are added in ascending order");
        self.data_bytes += data.len() as u64;
        while !data.is_empty() {
            if self.pending.is_empty() {
                self.pending_start = block;
            }
            let part;
            let room = FRAME_BYTES_MAX - block as usize % FRAME_BLOCKS_MAX * BLOCK_BYTES;
            (part, data) = data.split_at(data.len().min(room));
            let blocks = (part.len() / BLOCK_BYTES) as u64;
            block += blocks;
            match self.births.last_mut() {
                Some((together, last)) if *last == birth => *together += blocks,
                _ => self.births.push((blocks, birth)),
            }
            if part.len() == FRAME_BYTES_MAX {
                self.compressed(self.pending_start, part);
                continue;
            }
            self.pending.extend_from_slice(part);
            if block.is_multiple_of(FRAME_BLOCKS_MAX as u64) {
                self.flush();
            }
        }
        self.assert_invariant();
    }

    /// Adds whole blocks that lie within a multiple of 16 in the form they have: a frame of their own, unless they are plain.
    /// Order as for `data`.
    pub fn blocks(&mut self, extent: Extent, blocks: &BlockData) {
        debug_assert!(
            extent.start % FRAME_BLOCKS_MAX as u64 + extent.len <= FRAME_BLOCKS_MAX as u64,
            "no frame crosses"
        );
        if let BlockData::Plain(data) = blocks {
            return self.data(extent.start, data);
        }
        self.flush();
        assert!(extent.start >= self.end(), "blocks are added in ascending order");
        self.data_bytes += extent.len * BLOCK_BYTES as u64;
        self.births.push((extent.len, self.slot.seq));
        self.frame(extent, |_, sealer, body| match blocks {
            BlockData::Packed(payload) => append_packed(sealer, extent.len, payload, body),
            BlockData::Plain(data) | BlockData::Dense(data) => append_raw(sealer, data, body),
        });
        self.assert_invariant();
    }

    /// Adds an extent that reads as zeroes: `allocated`, or a hole. Order as for `data`.
    pub fn zero(&mut self, extent: Extent, allocated: bool) {
        self.flush();
        assert!(extent.start >= self.end(), "blocks are added in ascending order");
        if extent.is_empty() {
            return;
        }
        let place = if allocated { Place::Zero } else { Place::Hole };
        match self.mappings.last_mut() {
            Some(last) if last.place == place && last.extent.end() == extent.start => {
                last.extent.len += extent.len;
            }
            _ => self.push(Mapping { extent, birth: self.slot.seq, place }),
        }
    }

    /// Adds an operation on snapshots, behind everything that the segment maps. At most [`OPERATIONS_MAX`].
    pub fn operation(&mut self, operation: Operation) {
        assert!(matches!(self.content, Content::Written { .. }), "operations are part of what was written");
        assert!(self.operations.len() < OPERATIONS_MAX, "the segment is sealed before it is full");
        self.operations.push(operation);
    }

    /// Mappings so far. The caller finishes the segment before they would exceed `MAPPINGS_MAX`:
    /// `zero` adds at most one, `data` one for every 16 blocks and one more.
    pub fn mappings(&self) -> usize {
        self.mappings.len() + self.births.len()
    }

    /// The finished object.
    pub fn finish(mut self) -> SealedSegment {
        self.flush();
        debug_assert!(self.births.is_empty(), "births are of blocks that wait for their frame");
        debug_assert_eq!(
            self.mappings
                .iter()
                .filter(|m| matches!(m.place, Place::Frame(_)))
                .map(|m| m.extent.len)
                .sum::<u64>(),
            self.data_bytes / BLOCK_BYTES as u64,
            "each block of data is mapped once"
        );
        let mut body = self.body;
        let frames = PREFIX_BYTES as u32..body.len() as u32;
        append_end(&self.sealer, EntryKind::Segment, &self.slot, &mut body, |out| {
            let from = out.len();
            footer::encode(&self.content, &self.operations, &self.mappings, out);
            debug_assert!(
                footer::decode(&out[from..], self.slot.seq, frames).is_ok_and(|read| {
                    read.content == self.content
                        && read.operations == self.operations
                        && read.mappings == self.mappings
                }),
                "a footer says what was put into it"
            );
        });
        assert!(body.len() as u64 <= OBJECT_BYTES_MAX);
        let (mappings, operations) = (self.mappings, self.operations);
        SealedSegment { body: body.into(), mappings, operations, data_bytes: self.data_bytes }
    }

    fn pending_end(&self) -> u64 {
        self.pending_start + (self.pending.len() / BLOCK_BYTES) as u64
    }

    /// The first block that may still be added.
    fn end(&self) -> u64 {
        let may_overlap = matches!(self.content, Content::Kept { .. });
        let behind = |extent: Extent| if may_overlap { extent.start } else { extent.end() };
        match self.pending.is_empty() {
            true => self.mappings.last().map_or(0, |last| behind(last.extent)),
            false => behind(Extent::between(self.pending_start, self.pending_end())),
        }
    }

    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        self.compressed(self.pending_start, &pending);
        pending.clear();
        self.pending = pending;
    }

    fn compressed(&mut self, first_block: u64, data: &[u8]) {
        let extent = Extent::new(first_block, (data.len() / BLOCK_BYTES) as u64);
        self.frame(extent, |compressor, sealer, body| append_frame(compressor, sealer, data, body));
    }

    /// Adds a frame, which `append` appends to the object.
    fn frame(&mut self, extent: Extent, append: impl FnOnce(&mut Compressor, &Sealer, &mut Vec<u8>)) {
        let offset = self.body.len();
        append(&mut self.compressor, &self.sealer, &mut self.body);
        let room = OBJECT_BYTES_MAX as usize - TRAILER_BYTES - FOOTER_BYTES_MAX;
        assert!(offset >= PREFIX_BYTES && self.body.len() <= room, "the segment is sealed before it is full");
        let mut frame = FrameRef {
            seq: self.slot.seq,
            offset: offset as u32,
            stored: (self.body.len() - offset) as u32,
            index: 0,
        };
        for (blocks, birth) in std::mem::take(&mut self.births) {
            let extent = Extent::new(extent.start + u64::from(frame.index), blocks);
            self.push(Mapping { extent, birth, place: Place::Frame(frame) });
            frame.index += blocks as u8;
        }
        debug_assert_eq!(u64::from(frame.index), extent.len, "births tell all blocks of a frame");
    }

    fn assert_invariant(&self) {
        let waiting = (self.pending.len() / BLOCK_BYTES) as u64;
        debug_assert!(self.pending.len() < FRAME_BYTES_MAX, "no more waits than a frame takes");
        debug_assert!(
            waiting == 0 || !self.pending_end().is_multiple_of(FRAME_BLOCKS_MAX as u64),
            "no frame crosses a multiple of 16 blocks"
        );
        debug_assert_eq!(
            self.births.iter().map(|(blocks, _)| blocks).sum::<u64>(),
            waiting,
            "births tell all blocks that wait for their frame"
        );
    }

    fn push(&mut self, mapping: Mapping) {
        assert!(self.mappings.len() < MAPPINGS_MAX, "the segment is sealed before it is full");
        debug_assert!(
            self.content.is_moved() || mapping.birth == self.slot.seq,
            "what is written is born where it is written"
        );
        debug_assert!(
            self.mappings.last().is_none_or(|last| match self.content {
                Content::Kept { .. } => last.extent.start <= mapping.extent.start,
                _ => last.extent.end() <= mapping.extent.start,
            }),
            "mappings ascend"
        );
        self.mappings.push(mapping);
    }
}
