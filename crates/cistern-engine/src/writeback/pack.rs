//! Packing: the groups of one journal range become one segment, newest write of each block only.
//!
//! Runs on a worker thread; does no IO.

use std::sync::Arc;

use crate::{
    codec::Compression,
    extents::{ExtentMap, Piece},
    journal::{Group, Record},
    log::VolumeKeys,
    segment::{JournalRange, SealedSegment, SegmentBuilder, Slot},
    units::{BLOCK_BYTES, JournalPos},
};

/// What a block of the range was last set to.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The payload at this position of the group of this number.
    Payload {
        group: usize,
        pos: JournalPos,
    },
    Zero {
        allocated: bool,
    },
}

impl Piece for Source {
    fn skip(&self, blocks: u64) -> Source {
        match *self {
            Source::Payload { group, pos } => Source::Payload { group, pos: JournalPos(pos.0 + blocks) },
            zero => zero,
        }
    }
}

/// One journal range, read and ready to be sealed.
pub struct Load {
    pub range: JournalRange,
    pub groups: Vec<Arc<Group>>,
    /// Size of the volume as of the end of the range.
    pub size_bytes: u64,
}

/// Seals a load into its slot.
pub fn pack(load: &Load, slot: &Slot, keys: &VolumeKeys, compression: Compression) -> SealedSegment {
    let index = newest(&load.groups);
    let mut builder = SegmentBuilder::new(keys.key.as_deref(), *slot, load.range, compression);
    builder.reserve(load.groups.iter().map(|g| payload_bytes(g)).sum());
    for (extent, source) in index.iter() {
        match *source {
            Source::Zero { allocated } => {
                builder.zero(extent, allocated);
            }
            Source::Payload { group, pos } => {
                let bytes =
                    load.groups[group].payload(pos, extent.len).expect("the record lies in its group");
                builder.data(extent.start, &bytes);
            }
        }
    }
    builder.finish(load.size_bytes)
}

/// Bytes of block data in a group.
pub fn payload_bytes(group: &Group) -> usize {
    (group.next().0 - group.start().0 - 1) as usize * BLOCK_BYTES
}

fn newest(groups: &[Arc<Group>]) -> ExtentMap<Source> {
    let mut index = ExtentMap::default();
    for (number, group) in groups.iter().enumerate() {
        for placed in group.records() {
            match placed.record {
                Record::Write(extent) => {
                    let source = Source::Payload { group: number, pos: placed.pos };
                    index.insert(extent, source, |_, _| {});
                }
                Record::Zero { extent, allocated } => {
                    index.insert(extent, Source::Zero { allocated }, |_, _| {});
                }
                Record::Resize { .. } => {}
            }
        }
    }
    index
}
