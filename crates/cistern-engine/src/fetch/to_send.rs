//! Blocks for who brings them to another place: in the form in which they lie in their frames, where all of a frame is wanted.
//!
//! Read as blocks that are moved are ([`FrameReader::read_to_move`]): nobody waits, and nobody will want them again. Nothing is kept decoded.

use std::ops::Range;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::frames::{FramePart, FrameReader, JointRead, group_to_move};
use crate::{
    Error, Result,
    codec::{BlockData, Compression, Sealer},
    log::keys,
    segment::{open_frame, open_payload, open_raw},
    units::{BLOCK_BYTES, FRAME_BLOCKS_MAX, Mapping},
};

/// A packed frame with fewer blocks is unpacked: with its neighbours it makes one that is smaller.
const PASSED_BLOCKS_MIN: u64 = FRAME_BLOCKS_MAX as u64 / 2;

/// Fetches of one read at once: what lies scattered takes many small ones.
const FETCHES_MAX: usize = 16;

type Decoded = Vec<(usize, BlockData)>;

impl FrameReader {
    /// The blocks of data mappings, in their order, of a volume that compresses like that.
    pub async fn read_to_send(
        &self,
        mappings: &[Mapping],
        compression: Compression,
    ) -> Result<Vec<BlockData>> {
        if mappings.iter().any(|mapping| self.is_foreign(mapping)) {
            return Ok(self.read_to_move(mappings).await?.into_iter().map(BlockData::Plain).collect());
        }
        let mut out = vec![BlockData::Plain(Bytes::new()); mappings.len()];
        let read = group_to_move(self.parts(mappings))
            .into_iter()
            .map(|group| self.read_group_to_send(group, compression));
        let mut read = stream::iter(read).buffer_unordered(FETCHES_MAX);
        while let Some(group) = read.try_next().await? {
            for (at, blocks) in group {
                out[at] = blocks;
            }
        }
        debug_assert!(
            !out.iter().any(|blocks| matches!(blocks, BlockData::Plain(plain) if plain.is_empty())),
            "every mapping has its blocks"
        );
        Ok(out)
    }

    async fn read_group_to_send(&self, group: JointRead, compression: Compression) -> Result<Decoded> {
        let (object, salt) = self.object(group.seq)?;
        let read = self.reader().read_to_move(&object, group.range.clone());
        let as_stored = |sealer: &Sealer, group: &JointRead, stored: &Bytes| {
            self.as_stored(sealer, group, stored, compression)
        };
        self.read_twice(&object, salt, &group, read, as_stored).await
    }

    /// The blocks of all parts; or what does not verify, and where it lies in the object.
    fn as_stored(
        &self,
        sealer: &Sealer,
        group: &JointRead,
        stored: &Bytes,
        compression: Compression,
    ) -> Result<Decoded, (Range<u64>, Error)> {
        let wanted: u64 = group.parts.iter().map(|part| part.range.end - part.range.start).sum();
        // A few blocks must not keep all in memory that was fetched with them.
        let is_sparse = wanted < (group.range.end - group.range.start) / 2;
        let of_each = group.parts.iter().map(|part| {
            let at = |place: u64| (place - group.range.start) as usize;
            let stored = stored.slice(at(part.range.start)..at(part.range.end));
            let read = self.part_as_stored(sealer, part, &stored, compression);
            match read.map_err(|e| (part.range.clone(), e))? {
                BlockData::Packed(payload) if is_sparse => {
                    Ok((part.at, BlockData::Packed(Bytes::copy_from_slice(&payload))))
                }
                blocks => Ok((part.at, blocks)),
            }
        });
        of_each.collect()
    }

    fn part_as_stored(
        &self,
        sealer: &Sealer,
        part: &FramePart,
        stored: &Bytes,
        compression: Compression,
    ) -> Result<BlockData> {
        if self.shape().is_raw(&part.frame) {
            let blocks = open_raw(sealer, &part.frame, stored)?;
            return Ok(match compression {
                Compression::None => BlockData::Plain(blocks),
                _ => BlockData::Dense(blocks),
            });
        }
        if part.blocks >= PASSED_BLOCKS_MIN
            && let Some(payload) = open_payload(sealer, &part.frame, part.blocks, stored)?
        {
            return Ok(BlockData::Packed(payload));
        }
        let from = usize::from(part.frame.index) * BLOCK_BYTES;
        let to = from + part.blocks as usize * BLOCK_BYTES;
        let all = open_frame(sealer, &part.frame, stored)?;
        match all.get(from..to) {
            Some(blocks) => Ok(BlockData::Plain(Bytes::copy_from_slice(blocks))),
            None => Err(Error::corrupt(keys::entry(part.frame.seq), "a frame is shorter than the map says")),
        }
    }
}
