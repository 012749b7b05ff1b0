//! Committed blocks for the flows: single ones, over which write-back completes sectors, and many of one segment, which
//! the cleaner moves.
//!
//! Reads map and frames and never the dirty index, so it answers also when the volume takes no more requests and
//! drains. Any committed version from the one on that the sectors were written over is right.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

use crate::{
    Result,
    cleaner::Blocks,
    fetch::{FrameReader, partial_blocks},
    log::NewMoved,
    map::{Lookup, Map},
    units::{BLOCK_BYTES, Extent, Mapping, Place, Seq},
    writeback::Bases,
};

pub struct CommittedBlocks {
    pub map: Arc<Map>,
    pub frames: Arc<FrameReader>,
}

impl CommittedBlocks {
    /// What readers have of moved blocks in the chunk cache they have at the new places too.
    pub fn keep_moved(&self, seq: Seq, moved: &NewMoved) {
        let NewMoved { sealed, from, .. } = moved;
        self.frames.keep_moved(seq, &sealed.body, from, &sealed.mappings);
    }

    async fn read_block(&self, block: u64) -> Result<Bytes> {
        let _pin = self.map.pin();
        let mut lookup = self.map.begin(Extent::new(block, 1));
        let sectors = lookup.take_sectors();
        let whole = self.read_whole(lookup).await?;
        let Some(sectors) = sectors else { return Ok(whole) };
        let partial = partial_blocks(&Box::pin(sectors.finish()).await?);
        let Some(partial) = partial.first() else { return Ok(whole) };
        let mut block = BytesMut::from(&whole[..]);
        partial.mask.overlay(&mut block, &self.frames.read_sectors(partial).await?);
        Ok(block.freeze())
    }

    async fn read_whole(&self, lookup: Lookup) -> Result<Bytes> {
        let mappings = lookup.finish().await?;
        assert_eq!(mappings.len(), 1, "a block is one thing: what is taken for zeroes is nothing else");
        match mappings.as_slice() {
            [mapping] if matches!(mapping.place, Place::Frame(_)) => self.frames.read_to_pack(mapping).await,
            _ => Ok(Bytes::from_static(&[0; BLOCK_BYTES])),
        }
    }
}

#[async_trait]
impl Bases for CommittedBlocks {
    async fn read(&self, block: u64) -> Result<Bytes> {
        tokio::select! {
            biased;
            read = self.read_block(block) => read,
            error = self.frames.origin_hangs() => Err(error),
        }
    }

    fn is_origin_away(&self) -> bool {
        self.frames.is_origin_away()
    }
}

#[async_trait]
impl Blocks for CommittedBlocks {
    async fn read(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        self.frames.read_to_move(mappings).await
    }

    fn is_foreign(&self, mapping: &Mapping) -> bool {
        self.frames.is_foreign(mapping)
    }

    async fn settled(&self) {
        self.frames.wait_for_moved().await;
    }

    fn let_go(&self, seq: Seq, stored_bytes: u64) {
        self.frames.let_go(seq, stored_bytes);
    }

    fn is_cached(&self, seq: Seq, stored_bytes: u64) -> bool {
        self.frames.is_cached(seq, stored_bytes)
    }
}
