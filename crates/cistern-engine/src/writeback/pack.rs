//! Packing: the groups of one journal range become one segment, newest write of each block only.
//!
//! Runs on a worker thread; does no IO.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    codec::{BlockData, Compression, Compressor},
    extents::{Divisible, ExtentMap},
    journal::{Group, HeldGroups, Journal, Record},
    log::VolumeKeys,
    sectors::{SectorMask, numbers_of, spread},
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

impl BlockSource {
    /// How many of the blocks of an extent that was set to it have data.
    fn data_blocks(&self, extent: Extent) -> u64 {
        match self {
            BlockSource::Zero { .. } => 0,
            BlockSource::Payload { .. } | BlockSource::Sectors { .. } => extent.len,
        }
    }
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

/// Groups one behind the other, and what each of their blocks was last set to.
pub struct Newest {
    groups: Vec<Arc<Group>>,
    held: HeldGroups,
    index: ExtentMap<BlockSource>,
    /// Blocks of the index with data.
    data_blocks: u64,
}

impl Newest {
    /// Of no group yet.
    pub fn new(journal: &Journal) -> Newest {
        let (groups, held) = (Vec::new(), journal.holding());
        Newest { groups, held, index: ExtentMap::default(), data_blocks: 0 }
    }

    pub fn push(&mut self, group: Arc<Group>) {
        debug_assert!(
            self.groups.last().is_none_or(|last| last.next() == group.start()),
            "what a range leaves out would be lost"
        );
        let number = self.groups.len();
        for placed in group.records() {
            match placed.record {
                Record::Write(extent) => {
                    self.set(extent, BlockSource::Payload { group: number, pos: placed.pos })
                }
                Record::Sectors { block, mask } => {
                    let extent = Extent::new(block, 1);
                    let before = self.index.overlapping(extent).next();
                    let fits = |(_, before)| matches!(before, BlockSource::Sectors { mask: m, .. } if mask.contains(m));
                    assert!(before.is_none_or(fits), "sectors are written over what is committed");
                    self.set(extent, BlockSource::Sectors { group: number, pos: placed.pos, mask });
                }
                Record::Zero { extent, allocated } => self.set(extent, BlockSource::Zero { allocated }),
                Record::Resize { .. } | Record::Operation { .. } | Record::Load { .. } => {}
            }
        }
        self.held.add(&group);
        self.groups.push(group);
    }

    fn set(&mut self, extent: Extent, source: BlockSource) {
        let mut gone_blocks = 0;
        self.index.insert(extent, source, |gone, before| gone_blocks += before.data_blocks(gone));
        debug_assert!(gone_blocks <= self.data_blocks, "what is replaced was counted");
        self.data_blocks = self.data_blocks + source.data_blocks(extent) - gone_blocks;
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Bytes of block data that their segment will have, before compression.
    pub fn data_bytes(&self) -> u64 {
        self.data_blocks * BLOCK_BYTES as u64
    }

    /// The blocks of which they hold nothing newer than sectors, ascending.
    pub fn sectors(&self) -> impl Iterator<Item = Sectors> {
        self.index.iter().filter_map(|(extent, source)| match *source {
            BlockSource::Sectors { group, pos, mask } => {
                Some(Sectors { block: extent.start, mask, payload: self.payload(group, pos, 1) })
            }
            _ => None,
        })
    }

    fn payload(&self, group: usize, pos: JournalPos, blocks: u64) -> Bytes {
        payload(&self.groups[group], pos, blocks)
    }

    /// Whether they lie one behind the other from the beginning of a range to its end.
    fn are_the_range(&self, range: &JournalRange) -> bool {
        let next = |at, group: &Arc<Group>| (group.start() == at).then(|| group.next());
        self.groups.iter().try_fold(range.from.pos, next) == Some(range.to.pos)
    }
}

/// Seals a range of the journal into its slot. Blocks that it holds sectors of are in it as they are `complete`, or else those sectors
/// by themselves.
pub fn pack(
    newest: &Newest,
    range: JournalRange,
    size_bytes: u64,
    complete: &Completed,
    slot: &Slot,
    keys: &VolumeKeys,
    compression: Compression,
) -> SealedSegment {
    assert!(newest.are_the_range(&range), "what is not packed of a range would be lost");
    let mut builder = SegmentBuilder::written(keys.key.as_deref(), *slot, range, size_bytes, compression);
    builder.reserve(newest.data_bytes() as usize);
    for (extent, source) in newest.index.iter() {
        match *source {
            BlockSource::Zero { allocated } => {
                builder.zero(extent, allocated);
            }
            BlockSource::Payload { group, pos } => {
                builder.data(extent.start, &newest.payload(group, pos, extent.len));
            }
            BlockSource::Sectors { .. } => match complete.blocks.get(&extent.start) {
                Some(bytes) => builder.data(extent.start, bytes),
                None => assert!(
                    complete.partial.binary_search_by_key(&extent.start, |sectors| sectors.block).is_ok(),
                    "every block is complete or partial"
                ),
            },
        }
    }
    // Their numbers lie behind those of all blocks.
    pack_sectors(&mut builder, &complete.partial);
    operations(&newest.groups).into_iter().for_each(|operation| builder.operation(operation));
    let sealed = builder.finish();
    let partial_sectors = complete.partial.iter().flat_map(|sectors| numbers_of(sectors.block, sectors.mask));
    assert_eq!(
        sealed.mappings.iter().map(|mapping| mapping.extent.len).sum::<u64>() + complete.partial.len() as u64,
        newest.index.iter().map(|(extent, _)| extent.len).sum::<u64>()
            + partial_sectors.map(|numbers| numbers.len).sum::<u64>(),
        "each block of the range is mapped once, or each of its sectors"
    );
    sealed
}

/// Adds sectors by themselves. They are compressed whatever the volume's setting is: seven eighths are zeroes.
fn pack_sectors(builder: &mut SegmentBuilder, partial: &[Sectors]) {
    let mut compressor = Compressor::new(Compression::Lz4);
    for Sectors { block, mask, payload } in partial {
        for (numbers, run) in numbers_of(*block, *mask).zip(mask.runs()) {
            let mut packed = Vec::new();
            compressor.append(&spread(&payload[run]), &mut packed);
            builder.blocks(numbers, &BlockData::of_payload(packed.into(), Compression::Lz4));
        }
    }
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
    let sealed = builder.finish();
    debug_assert_eq!(
        sealed.mappings.iter().map(|mapping| mapping.extent.len).sum::<u64>(),
        content.iter().map(|record| record.extent.len).sum::<u64>(),
        "each block of a load is mapped once"
    );
    sealed
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

fn payload(group: &Group, pos: JournalPos, blocks: u64) -> Bytes {
    group.payload(pos, blocks).expect("the record lies in its group")
}

/// Bytes of block data in a group.
pub fn payload_bytes(group: &Group) -> usize {
    (group.next().0 - group.start().0 - 1) as usize * BLOCK_BYTES
}
