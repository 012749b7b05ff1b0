//! What the cleaner offers to the log: blocks that were read and verified, as a segment.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Result,
    cleaner::CleanerParts,
    codec::{Compression, crc64},
    env::Env,
    log::{LogWriter, NewEntry, NewMoved, Offer, VolumeKeys},
    segment::{SealedSegment, SegmentBuilder, Slot},
    units::{BLOCK_BYTES, Mapping, Seq},
};

/// Blocks and where they are from, ascending. Kept until they are committed: the slot may be lost.
pub struct Move {
    env: Env,
    log: LogWriter,
    compression: Compression,
    base: Seq,
    blocks: Arc<Vec<(Mapping, Bytes)>>,
}

impl Move {
    pub fn new(parts: &CleanerParts, base: Seq, blocks: Vec<(Mapping, Bytes)>) -> Move {
        debug_assert!(
            blocks.iter().all(|(mapping, _)| mapping.birth <= base),
            "what is newer was written meanwhile"
        );
        debug_assert!(
            blocks.is_sorted_by(|(a, _), (b, _)| a.extent.end() <= b.extent.start),
            "each block is moved once, in ascending order"
        );
        debug_assert!(
            blocks.iter().all(|(mapping, data)| data.len() as u64 == mapping.extent.len * BLOCK_BYTES as u64),
            "all of a mapping is moved"
        );
        let CleanerParts { env, log, compression, .. } = parts;
        Move { env: env.clone(), log: log.clone(), compression: *compression, base, blocks: Arc::new(blocks) }
    }
}

#[async_trait]
impl Offer for Move {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        let (slot, keys, compression) = (*slot, self.log.keys().clone(), self.compression);
        let (base, blocks) = (self.base, self.blocks.clone());
        let sealed = self.env.compute(move || build(&slot, &keys, compression, base, &blocks)).await;
        Ok(NewEntry::Moved(NewMoved { sealed, base }))
    }
}

fn build(
    slot: &Slot,
    keys: &VolumeKeys,
    compression: Compression,
    base: Seq,
    blocks: &[(Mapping, Bytes)],
) -> SealedSegment {
    let mut told = Vec::with_capacity(blocks.len() * 24);
    for (mapping, _) in blocks {
        let Mapping { extent, birth, .. } = mapping;
        [extent.start, extent.len, birth.0].iter().for_each(|n| told.extend_from_slice(&n.to_le_bytes()));
    }
    let key = keys.key.as_deref();
    let mut builder = SegmentBuilder::moved(key, *slot, base, crc64(&told), compression);
    builder.reserve(blocks.iter().map(|(_, data)| data.len()).sum());
    for (mapping, data) in blocks {
        builder.data_born(mapping.extent.start, mapping.birth, data);
    }
    builder.finish()
}
