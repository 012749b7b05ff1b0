//! Geometry of the ring: where a position lies in the file, and transfers that may wrap.
//!
//! Knows no format and no state.

use std::{ops::DerefMut, sync::Arc};

use bytes::Bytes;

use super::format::SUPERBLOCK_AREA_BLOCKS;
use crate::{aligned::LargeBuffers, disk::DiskFile, env::Env, error::Result, units::BLOCK_BYTES};

/// The journal's file and the size of its ring.
#[derive(Clone)]
pub(super) struct Ring {
    pub file: Arc<dyn DiskFile>,
    pub blocks: u64,
    buffers: Arc<LargeBuffers>,
}

impl Ring {
    pub fn new(file: Arc<dyn DiskFile>, blocks: u64) -> Ring {
        Ring { file, blocks, buffers: LargeBuffers::new(0) }
    }

    /// Keeps buffers of so many bytes for what is loaded next.
    pub fn keeping(self, bytes: u64) -> Ring {
        Ring { buffers: LargeBuffers::new(bytes), ..self }
    }

    /// Bytes from the beginning of the file to a position.
    fn offset(&self, pos: u64) -> u64 {
        (SUPERBLOCK_AREA_BLOCKS + pos % self.blocks) * BLOCK_BYTES as u64
    }

    /// Bytes from a position to the end of the ring.
    fn bytes_to_end(&self, pos: u64) -> usize {
        (self.blocks - pos % self.blocks) as usize * BLOCK_BYTES
    }

    /// Fills `out` from `pos` on. At most one lap.
    pub async fn read(&self, pos: u64, out: &mut [u8]) -> Result<()> {
        for (offset, part) in self.parts(pos, out) {
            self.file.read_at(offset, part).await?;
        }
        Ok(())
    }

    /// The same for somebody who has time, see [`DiskFile::read_giving_way`].
    async fn read_giving_way(&self, env: &Env, pos: u64, out: &mut [u8]) -> Result<()> {
        for (offset, part) in self.parts(pos, out) {
            self.file.read_giving_way(env, offset, part).await?;
        }
        Ok(())
    }

    /// What lies from `pos` on before the end of the ring, and what behind it, with the offsets in the file.
    fn parts<'a>(&self, pos: u64, out: &'a mut [u8]) -> impl Iterator<Item = (u64, &'a mut [u8])> {
        debug_assert!((out.len() / BLOCK_BYTES) as u64 <= self.blocks, "no position is read twice");
        debug_assert!(out.len().is_multiple_of(BLOCK_BYTES), "positions are whole blocks");
        let first = out.len().min(self.bytes_to_end(pos));
        let (head, rest) = out.split_at_mut(first);
        let parts = [(self.offset(pos), head), (self.offset(pos + (first / BLOCK_BYTES) as u64), rest)];
        parts.into_iter().filter(|(_, part)| !part.is_empty())
    }

    /// Reads `blocks` from `pos` on, on a thread that may wait for the disk.
    pub async fn load(&self, env: &Env, pos: u64, blocks: u64) -> Result<Bytes> {
        let bytes = blocks as usize * BLOCK_BYTES;
        let loaded = self.load_into(env, pos, blocks, self.buffers.take(bytes)).await?;
        Ok(Bytes::from_owner(loaded).slice(..bytes))
    }

    /// The same for somebody who has time, see [`DiskFile::read_giving_way`].
    pub async fn load_giving_way(&self, env: &Env, pos: u64, blocks: u64) -> Result<Bytes> {
        let bytes = blocks as usize * BLOCK_BYTES;
        let (ring, on, mut out) = (self.clone(), env.clone(), self.buffers.take(bytes));
        let read = async move { ring.read_giving_way(&on, pos, &mut out[..bytes]).await.map(|()| out) };
        Ok(Bytes::from_owner(env.blocking(read).await?).slice(..bytes))
    }

    /// As [`load`](Self::load), into the beginning of a buffer that has been there before.
    pub async fn load_into<B: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        env: &Env,
        pos: u64,
        blocks: u64,
        mut out: B,
    ) -> Result<B> {
        let ring = self.clone();
        env.blocking(
            async move { ring.read(pos, &mut out[..blocks as usize * BLOCK_BYTES]).await.map(|()| out) },
        )
        .await
    }

    /// Writes the parts one after the other from `pos` on, as one transfer or, across the end of
    /// the ring, two.
    pub async fn write(&self, pos: u64, parts: &[&[u8]]) -> Result<()> {
        let bytes: usize = parts.iter().map(|p| p.len()).sum();
        assert!((bytes / BLOCK_BYTES) as u64 <= self.blocks, "a transfer does not write over itself");
        debug_assert!(bytes.is_multiple_of(BLOCK_BYTES), "positions are whole blocks");
        let mut left = self.bytes_to_end(pos);
        if bytes <= left {
            return self.file.write_vectored_at(self.offset(pos), parts).await;
        }
        let wrapped = pos + (left / BLOCK_BYTES) as u64;
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for part in parts {
            let (head, rest) = part.split_at(part.len().min(left));
            left -= head.len();
            before.extend((!head.is_empty()).then_some(head));
            behind.extend((!rest.is_empty()).then_some(rest));
        }
        debug_assert_eq!(left, 0, "a transfer that wraps reaches the end of the ring");
        self.file.write_vectored_at(self.offset(pos), &before).await?;
        self.file.write_vectored_at(self.offset(wrapped), &behind).await
    }
}
