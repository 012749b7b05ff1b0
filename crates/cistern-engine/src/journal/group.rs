//! Groups in memory: the open one that grows, and sealed ones that never change.
//!
//! Owns the payload memory. Small payloads share slabs, so that a group is a few contiguous
//! pieces; every record lies in one piece. All memory is aligned for O_DIRECT. Nothing here computes a checksum or copies
//! more than a small payload once a group is open: that is done before ([`Payload`]).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{
    Record,
    format::{GROUP_PAYLOAD_BLOCKS_MAX, crc32c, fits_header},
};
use crate::units::{BLOCK_BYTES, Extent, JournalPos};

/// Bytes of a slab shared by small payloads. A reader that holds 4 KiB keeps a slab alive, so it
/// is not larger.
const SLAB_BYTES: usize = 256 << 10;
/// Payloads from this size on get memory of their own, which bounds what the end of a slab wastes.
const OWN_MEMORY_BYTES_MIN: usize = 64 << 10;
/// Memory a group takes besides its payload, roughly: its vectors.
const GROUP_OVERHEAD_BYTES: usize = 256;
const RECORD_OVERHEAD_BYTES: usize = size_of::<PlacedRecord>();

const _: () = assert!(OWN_MEMORY_BYTES_MIN <= SLAB_BYTES);

/// A record and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedRecord {
    pub record: Record,
    /// Its first payload block; without payload, the header of its group.
    pub pos: JournalPos,
}

/// The payload of one record, before it has a place.
#[derive(Debug)]
pub(super) struct Payload {
    /// From [`OWN_MEMORY_BYTES_MIN`] on in aligned memory of its own, otherwise wherever it came.
    bytes: Bytes,
    crcs: Vec<u32>,
}

impl Payload {
    /// At most what one group takes.
    pub fn new(bytes: Bytes) -> Payload {
        assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "a payload is whole blocks");
        let mut crcs = Vec::with_capacity(bytes.len() / BLOCK_BYTES);
        let blocks = bytes.chunks_exact(BLOCK_BYTES);
        if !has_own_memory(bytes.len()) {
            crcs.extend(blocks.map(crc32c));
            return Payload { bytes, crcs };
        }
        let mut own = aligned_memory(bytes.len());
        for block in blocks {
            crcs.push(crc32c(block));
            own.extend_from_slice(block);
        }
        Payload { bytes: own.freeze(), crcs }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn crcs(&self) -> &[u32] {
        &self.crcs
    }

    pub fn blocks(&self) -> u64 {
        self.crcs.len() as u64
    }
}

/// Whether a payload of so many bytes does not go into a slab.
fn has_own_memory(bytes: usize) -> bool {
    bytes >= OWN_MEMORY_BYTES_MIN
}

/// A contiguous part of a group's payload.
#[derive(Clone, Debug)]
struct PayloadPiece {
    /// Payload blocks of the group before this piece.
    first: u64,
    bytes: Bytes,
}

/// A group of records that was, or is about to be, written.
#[derive(Clone, Debug)]
pub struct Group {
    start: u64,
    records: Vec<PlacedRecord>,
    crcs: Vec<u32>,
    pieces: Vec<PayloadPiece>,
}

impl Group {
    /// A group as read from the disk; `payload` was verified against `crcs`.
    pub(super) fn from_disk(start: u64, records: &[Record], crcs: Vec<u32>, payload: Bytes) -> Group {
        debug_assert_eq!(payload.len(), crcs.len() * BLOCK_BYTES, "every block has a checksum");
        Group {
            start,
            records: place_records(start, records),
            crcs,
            pieces: vec![PayloadPiece { first: 0, bytes: payload }],
        }
    }

    /// The position of the group's header.
    pub fn start(&self) -> JournalPos {
        JournalPos(self.start)
    }

    /// The position behind the group: the start of the next one.
    pub fn next(&self) -> JournalPos {
        JournalPos(self.start + 1 + self.crcs.len() as u64)
    }

    /// The records in the order in which they were appended.
    pub fn records(&self) -> &[PlacedRecord] {
        &self.records
    }

    /// Whether it is an operation on snapshots, and so nothing else.
    pub fn is_operation(&self) -> bool {
        self.records.iter().any(|placed| placed.record.is_operation())
    }

    /// The token of a load, if it is one, and so nothing else.
    pub fn load(&self) -> Option<u64> {
        self.records.iter().find_map(|placed| match placed.record {
            Record::Load { token } => Some(token),
            _ => None,
        })
    }

    /// The payload blocks `[pos, pos + blocks)`. `None` unless all of them belong to this group.
    pub fn payload(&self, pos: JournalPos, blocks: u64) -> Option<Bytes> {
        let from = pos.0.checked_sub(self.start + 1)?;
        let until = from.checked_add(blocks)?;
        if until > self.crcs.len() as u64 {
            return None;
        }
        let mut parts = self.pieces.iter().filter_map(|piece| {
            let whole = Extent::new(piece.first, (piece.bytes.len() / BLOCK_BYTES) as u64);
            let part = whole.intersect(Extent::between(from, until))?;
            let at = (part.start - whole.start) as usize * BLOCK_BYTES;
            Some(piece.bytes.slice(at..at + part.len as usize * BLOCK_BYTES))
        });
        let first = parts.next().unwrap_or_default();
        let Some(second) = parts.next() else { return Some(first) };
        let mut all = BytesMut::with_capacity(blocks as usize * BLOCK_BYTES);
        all.extend_from_slice(&first);
        all.extend_from_slice(&second);
        parts.for_each(|part| all.extend_from_slice(&part));
        Some(all.freeze())
    }

    pub fn payload_blocks(&self) -> u64 {
        self.crcs.len() as u64
    }

    /// The group without the payload blocks that are not wanted, and without records that have none that is: for who needs a part of much.
    pub fn with_only(&self, is_wanted: impl Fn(JournalPos) -> bool) -> Group {
        let (mut records, mut pieces) = (Vec::new(), Vec::new());
        for placed in &self.records {
            let Some(blocks) = Some(placed.record.payload_blocks()).filter(|blocks| *blocks > 0) else {
                records.push(placed.clone());
                continue;
            };
            let places = placed.pos.0..placed.pos.0 + blocks;
            let wanted: Vec<u64> = places.filter(|at| is_wanted(JournalPos(*at))).collect();
            for run in wanted.chunk_by(|a, b| a + 1 == *b) {
                let bytes = self.payload(JournalPos(run[0]), run.len() as u64).expect("it is of this group");
                let own = Bytes::copy_from_slice(&bytes); // what it was a part of is let go
                pieces.push(PayloadPiece { first: run[0] - self.start - 1, bytes: own });
            }
            if !wanted.is_empty() {
                records.push(placed.clone());
            }
        }
        Group { start: self.start, records, crcs: self.crcs.clone(), pieces }
    }

    pub(super) fn crcs(&self) -> &[u32] {
        &self.crcs
    }

    /// Blocks of the group with its header.
    pub(super) fn blocks(&self) -> u64 {
        1 + self.crcs.len() as u64
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &piece.bytes[..])
    }

    /// Memory it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        memory_bytes(self.records.len(), self.crcs.len())
    }

    /// Bytes of the payload that it has.
    pub(super) fn payload_bytes(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }
}

/// Memory a group of so many records and payload blocks takes, in bytes.
fn memory_bytes(records: usize, payload_blocks: usize) -> usize {
    GROUP_OVERHEAD_BYTES + records * RECORD_OVERHEAD_BYTES + payload_blocks * (BLOCK_BYTES + 4)
}

/// What a record takes: blocks of the ring, and bytes of memory.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub blocks: u64,
    pub memory: usize,
}

impl Need {
    pub fn of(payload_blocks: u64) -> Need {
        Need { blocks: blocks_needed(payload_blocks), memory: memory_bytes(1, payload_blocks as usize) }
    }
}

/// The places of a group's records.
pub(super) fn place_records(start: u64, records: &[Record]) -> Vec<PlacedRecord> {
    let mut next = start + 1;
    let place = |record: &Record| {
        let pos = if record.payload_blocks() > 0 { next } else { start };
        next += record.payload_blocks();
        PlacedRecord { record: record.clone(), pos: JournalPos(pos) }
    };
    records.iter().map(place).collect()
}

/// The group that takes the next records.
#[derive(Debug)]
pub(super) struct OpenGroup {
    group: Group,
}

impl OpenGroup {
    pub fn new(start: u64) -> OpenGroup {
        OpenGroup { group: Group { start, records: Vec::new(), crcs: Vec::new(), pieces: Vec::new() } }
    }

    /// Whether one more record fits. Some are alone: ranges of segments begin and end between groups.
    pub fn takes(&self, record: &Record) -> bool {
        let is_alone = self.group.records.first().is_some_and(|first| first.record.is_alone());
        if is_alone || (record.is_alone() && !self.group.records.is_empty()) {
            return false;
        }
        let payload_blocks = self.group.crcs.len() as u64 + record.payload_blocks();
        fits_header(self.group.records.len() + 1, payload_blocks)
    }

    /// Whether all of some records fit, of which none is alone.
    pub fn takes_together(&self, records: &[Record]) -> bool {
        let is_alone = self.group.records.first().is_some_and(|first| first.record.is_alone());
        let payload_blocks: u64 = records.iter().map(Record::payload_blocks).sum();
        let records = self.group.records.len() + records.len();
        !is_alone && fits_header(records, self.group.crcs.len() as u64 + payload_blocks)
    }

    pub fn next(&self) -> u64 {
        self.group.next().0
    }

    pub fn memory_bytes(&self) -> usize {
        self.group.memory_bytes()
    }

    /// Adds a record, copying its payload if that is small; gives its position.
    pub fn push(&mut self, record: Record, payload: &Payload, slab: &mut Slab) -> JournalPos {
        assert!(self.takes(&record), "a group describes no more than its header holds");
        assert_eq!(payload.blocks(), record.payload_blocks(), "a record has the payload that it tells of");
        let bytes = payload.bytes();
        let pos = JournalPos(if bytes.is_empty() { self.group.start } else { self.next() });
        if has_own_memory(bytes.len()) {
            self.gather(slab);
            self.group
                .pieces
                .push(PayloadPiece { first: self.group.crcs.len() as u64, bytes: bytes.clone() });
        } else {
            if !slab.has_room(bytes.len()) {
                self.gather(slab);
                slab.renew();
            }
            slab.push(bytes);
        }
        self.group.crcs.extend_from_slice(payload.crcs());
        self.group.records.push(PlacedRecord { record, pos });
        pos
    }

    /// Makes everything pushed so far part of the pieces.
    fn gather(&mut self, slab: &mut Slab) {
        let bytes = slab.memory.split().freeze();
        if !bytes.is_empty() {
            let first = (self.group.crcs.len() - bytes.len() / BLOCK_BYTES) as u64;
            self.group.pieces.push(PayloadPiece { first, bytes });
        }
    }

    /// The group as it is now, to read from.
    pub fn look(&mut self, slab: &mut Slab) -> &Group {
        self.gather(slab);
        &self.group
    }

    pub fn seal(mut self, slab: &mut Slab) -> Group {
        self.gather(slab);
        assert!(!self.group.records.is_empty(), "a group tells something");
        debug_assert_eq!(
            self.group.pieces().map(<[u8]>::len).sum::<usize>(),
            self.group.crcs.len() * BLOCK_BYTES,
            "the pieces are the payload"
        );
        self.group
    }
}

/// Memory for small payloads: what was pushed to the open group since it was last gathered,
/// and free capacity behind.
#[derive(Debug, Default)]
pub(super) struct Slab {
    memory: BytesMut,
    /// Free bytes, not counting what alignment left over: behaviour must not depend on addresses.
    left: usize,
}

impl Slab {
    /// Whether a small payload fits.
    fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.left
    }

    fn push(&mut self, payload: &[u8]) {
        debug_assert!(self.memory.capacity() - self.memory.len() >= payload.len(), "a slab never moves");
        self.left -= payload.len();
        self.memory.extend_from_slice(payload);
    }

    fn renew(&mut self) {
        assert!(self.memory.is_empty(), "what was pushed belongs to a group");
        self.memory = aligned_memory(SLAB_BYTES);
        self.left = SLAB_BYTES;
    }
}

/// Empty memory with room for at least `bytes`, beginning at a multiple of 4096. An allocator whose size classes are
/// whole pages, as mimalloc's from 16 KiB on, gives that without a page more, which would be of the next class and a quarter larger.
fn aligned_memory(bytes: usize) -> BytesMut {
    let memory = BytesMut::with_capacity(bytes);
    if (memory.as_ptr() as usize).is_multiple_of(BLOCK_BYTES) {
        return memory;
    }
    drop(memory);
    let mut memory = BytesMut::with_capacity(bytes + BLOCK_BYTES);
    let skip = memory.as_ptr().align_offset(BLOCK_BYTES);
    debug_assert!(skip < BLOCK_BYTES, "aligned memory is at hand");
    memory.resize(skip, 0);
    drop(memory.split());
    debug_assert!(memory.capacity() >= bytes, "there is room behind the alignment");
    memory
}

/// Blocks of ring space that a record with so much payload takes at most.
pub(super) fn blocks_needed(payload_blocks: u64) -> u64 {
    payload_blocks + payload_blocks.div_ceil(GROUP_PAYLOAD_BLOCKS_MAX).max(1)
}

/// Where the payload of some position is.
pub(super) enum FoundPayload {
    /// Before the tail.
    Freed,
    Memory(Bytes),
    /// On the disk, in the group that covers these positions.
    Disk(Extent),
    /// Not payload of one group.
    Nowhere,
}

/// Several consecutive groups to be written.
pub(super) struct Batch {
    pub groups: Vec<Arc<Group>>,
    pub start: u64,
    pub end: u64,
    /// The durable frontier when the batch was taken.
    pub durable: u64,
}
