//! What the cleaner offers to the log: blocks that were read and verified, as a segment.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

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

/// Who sees what is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// The volume, and perhaps snapshots.
    Volume,
    /// Snapshots only.
    Snapshots,
}

/// Blocks and where they are from, ascending. Kept until they are committed: the slot may be lost.
pub struct Move {
    env: Env,
    log: LogWriter,
    compression: Compression,
    whom: For,
    base: Seq,
    blocks: Arc<Vec<(Mapping, Bytes)>>,
    /// Of the object that was made last.
    stored_bytes: AtomicU64,
}

impl Move {
    pub fn new(parts: &CleanerParts, whom: For, base: Seq, blocks: Vec<(Mapping, Bytes)>) -> Move {
        debug_assert!(
            blocks.iter().all(|(mapping, _)| mapping.birth <= base),
            "what is newer was written meanwhile"
        );
        debug_assert!(
            blocks.is_sorted_by(|(a, _), (b, _)| match whom {
                For::Volume => a.extent.end() <= b.extent.start,
                For::Snapshots => a.extent.start <= b.extent.start,
            }),
            "each version is moved once, in ascending order"
        );
        debug_assert!(
            blocks.iter().all(|(mapping, data)| data.len() as u64 == mapping.extent.len * BLOCK_BYTES as u64),
            "all of a mapping is moved"
        );
        let CleanerParts { env, log, compression, .. } = parts;
        Move {
            env: env.clone(),
            log: log.clone(),
            compression: *compression,
            whom,
            base,
            blocks: Arc::new(blocks),
            stored_bytes: AtomicU64::new(0),
        }
    }

    pub fn blocks(&self) -> &[(Mapping, Bytes)] {
        &self.blocks
    }

    /// Bytes of the object, once it is committed.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed)
    }
}

#[async_trait]
impl Offer for Move {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        let (slot, keys, compression) = (*slot, self.log.keys().clone(), self.compression);
        let (whom, base, blocks) = (self.whom, self.base, self.blocks.clone());
        let sealed = self.env.compute(move || build(&slot, &keys, compression, whom, base, &blocks)).await;
        self.stored_bytes.store(sealed.body.len() as u64, Relaxed);
        Ok(match whom {
            For::Volume => {
                let from = self.blocks.iter().map(|(mapping, _)| *mapping).collect();
                NewEntry::Moved(NewMoved { sealed, base, from })
            }
            For::Snapshots => NewEntry::Kept(sealed),
        })
    }
    fn waits_for_room(&self) -> bool {
        false
    }
}

fn build(
    slot: &Slot,
    keys: &VolumeKeys,
    compression: Compression,
    whom: For,
    base: Seq,
    blocks: &[(Mapping, Bytes)],
) -> SealedSegment {
    let mut told = Vec::with_capacity(blocks.len() * 24);
    for (mapping, _) in blocks {
        let Mapping { extent, birth, .. } = mapping;
        [extent.start, extent.len, birth.0].iter().for_each(|n| told.extend_from_slice(&n.to_le_bytes()));
    }
    let key = keys.key.as_deref();
    let data = crc64(&told);
    let mut builder = match whom {
        For::Volume => SegmentBuilder::moved(key, *slot, base, data, compression),
        For::Snapshots => SegmentBuilder::kept(key, *slot, base, data, compression),
    };
    builder.reserve(blocks.iter().map(|(_, data)| data.len()).sum());
    for (mapping, data) in blocks {
        builder.data_born(mapping.extent.start, mapping.birth, data);
    }
    builder.finish()
}
