//! Packing: the groups of one journal range become one segment, newest write of each block only.
//!
//! Runs on a worker thread; does no IO.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    codec::Compression,
    extents::{Divisible, ExtentMap},
    journal::{Group, Record},
    log::VolumeKeys,
    sectors::SectorMask,
    segment::{JournalRange, SealedSegment, SegmentBuilder, Slot},
    snapshot::Operation,
    stream::{StreamContent, StreamRecord},
    units::{BLOCK_BYTES, Extent, JournalPos},
    writeback::bases::{Completed, Sectors},
};

/// What a block of the range was last set to.
#[derive(Clone, Copy, Debug)]
enum BlockSource {
    /// The payload at this position of the group of this number.
    Payload {
        group: usize,
        pos: JournalPos,
    },
    Zero {
        allocated: bool,
    },
    /// Of one block, these sectors of the payload there.
    Sectors {
        group: usize,
        pos: JournalPos,
        mask: SectorMask,
    },
}

impl Divisible for BlockSource {
    fn skip(&self, blocks: u64) -> BlockSource {
        match *self {
            BlockSource::Payload { group, pos } => {
                BlockSource::Payload { group, pos: JournalPos(pos.0 + blocks) }
            }
            BlockSource::Zero { .. } => *self,
            BlockSource::Sectors { .. } => {
                debug_assert_eq!(blocks, 0, "it is one block");
                *self
            }
        }
    }
}

/// One journal range, read and ready to be sealed.
pub struct LoadedRange {
    pub range: JournalRange,
    pub groups: Vec<Arc<Group>>,
    /// Size of the volume as of the end of the range.
    pub size_bytes: u64,
}

/// The blocks of which the groups hold nothing newer than sectors, ascending.
pub fn incomplete(groups: &[Arc<Group>]) -> Vec<Sectors> {
    let mut out = Vec::new();
    for (extent, source) in newest(groups).iter() {
        if let BlockSource::Sectors { group, pos, mask } = *source {
            out.push(Sectors { block: extent.start, mask, payload: payload(&groups[group], pos, 1) });
        }
    }
    out
}

/// Whether there are such blocks, perhaps.
pub fn has_sectors(groups: &[Arc<Group>]) -> bool {
    let records = groups.iter().flat_map(|group| group.records());
    records.into_iter().any(|placed| matches!(placed.record, Record::Sectors { .. }))
}

/// Seals a load into its slot. Of blocks that it holds sectors of, those are in it that are `complete`.
pub fn pack(
    load: &LoadedRange,
    complete: &Completed,
    slot: &Slot,
    keys: &VolumeKeys,
    compression: Compression,
) -> SealedSegment {
    assert!(are_the_range(&load.groups, &load.range), "what is not packed of a range would be lost");
    let index = newest(&load.groups);
    let mut builder =
        SegmentBuilder::written(keys.key.as_deref(), *slot, load.range, load.size_bytes, compression);
    builder.reserve(load.groups.iter().map(|g| payload_bytes(g)).sum());
    for (extent, source) in index.iter() {
        match *source {
            BlockSource::Zero { allocated } => {
                builder.zero(extent, allocated);
            }
            BlockSource::Payload { group, pos } => {
                builder.data(extent.start, &payload(&load.groups[group], pos, extent.len));
            }
            BlockSource::Sectors { .. } => match complete.blocks.get(&extent.start) {
                Some(bytes) => builder.data(extent.start, bytes),
                None => assert!(complete.lost.contains(&extent.start), "every block is complete or lost"),
            },
        }
    }
    operations(&load.groups).into_iter().for_each(|operation| builder.operation(operation));
    builder.finish()
}

/// Seals what was loaded into a slot, for the range of the journal in which its token is alone.
pub fn pack_load(
    content: &[StreamRecord],
    range: JournalRange,
    size_bytes: u64,
    slot: &Slot,
    keys: &VolumeKeys,
    compression: Compression,
) -> SealedSegment {
    let mut builder = SegmentBuilder::written(keys.key.as_deref(), *slot, range, size_bytes, compression);
    let stored = content.iter().map(|record| match &record.content {
        StreamContent::Data(blocks) => blocks.bytes().len(),
        StreamContent::Zero | StreamContent::Hole => 0,
    });
    builder.reserve(stored.sum());
    for record in content {
        match &record.content {
            StreamContent::Data(blocks) => builder.blocks(record.extent, blocks),
            StreamContent::Zero => builder.zero(record.extent, true),
            StreamContent::Hole => builder.zero(record.extent, false),
        }
    }
    builder.finish()
}

/// The operations on snapshots in some groups, in order. What does not read as one was refused when the journal was opened.
fn operations(groups: &[Arc<Group>]) -> Vec<Operation> {
    let mut out = Vec::new();
    for group in groups {
        for placed in group.records() {
            if let Record::Operation { bytes } = placed.record {
                let block = payload(group, placed.pos, 1);
                out.push(
                    Operation::decode(&block[..bytes as usize])
                        .expect("only operations are appended as such"),
                );
            }
        }
    }
    out
}

/// Whether groups lie one behind the other from the beginning of a range to its end.
fn are_the_range(groups: &[Arc<Group>], range: &JournalRange) -> bool {
    let end = groups.iter().try_fold(range.from.pos, |at, group| (group.start() == at).then(|| group.next()));
    end == Some(range.to.pos)
}

fn payload(group: &Group, pos: JournalPos, blocks: u64) -> Bytes {
    group.payload(pos, blocks).expect("the record lies in its group")
}

/// Bytes of block data in a group.
pub fn payload_bytes(group: &Group) -> usize {
    (group.next().0 - group.start().0 - 1) as usize * BLOCK_BYTES
}

fn newest(groups: &[Arc<Group>]) -> ExtentMap<BlockSource> {
    let mut index = ExtentMap::default();
    for (number, group) in groups.iter().enumerate() {
        for placed in group.records() {
            match placed.record {
                Record::Write(extent) => {
                    let source = BlockSource::Payload { group: number, pos: placed.pos };
                    index.insert(extent, source, |_, _| {});
                }
                Record::Sectors { block, mask } => {
                    let extent = Extent::new(block, 1);
                    let before = index.overlapping(extent).next();
                    let fits = |(_, before)| matches!(before, BlockSource::Sectors { mask: m, .. } if mask.contains(m));
                    assert!(before.is_none_or(fits), "sectors are written over what is committed");
                    let source = BlockSource::Sectors { group: number, pos: placed.pos, mask };
                    index.insert(extent, source, |_, _| {});
                }
                Record::Zero { extent, allocated } => {
                    index.insert(extent, BlockSource::Zero { allocated }, |_, _| {});
                }
                Record::Resize { .. } | Record::Operation { .. } | Record::Load { .. } => {}
            }
        }
    }
    index
}
