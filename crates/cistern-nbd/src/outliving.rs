//! An export as a client gets it that goes on with the next server when this one ends: what it was told to be written is not written again,
//! so it has to survive the process (`docs/format/nbd.md`, "A connection that outlives the server").

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::export::{Allocation, Export, Properties, ReadPiece, Result};

/// Answers what changes something once that outlives the process.
pub struct Outliving(pub Arc<dyn Export>);

#[async_trait]
impl Export for Outliving {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }

    fn identity(&self) -> Option<String> {
        self.0.identity()
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<ReadPiece>> {
        self.0.read(offset, len).await
    }

    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        self.0.write(offset, data, fua).await?;
        self.0.outlive().await
    }

    async fn flush(&self) -> Result<()> {
        self.0.flush().await
    }

    async fn outlive(&self) -> Result<()> {
        self.0.outlive().await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.0.trim(offset, len, fua).await?;
        self.0.outlive().await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Result<()> {
        self.0.write_zeroes(offset, len, no_hole, fast, fua).await?;
        self.0.outlive().await
    }

    async fn cache(&self, offset: u64, len: u64) -> Result<()> {
        self.0.cache(offset, len).await
    }

    async fn block_status(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, Allocation)>> {
        self.0.block_status(offset, len, count_max).await
    }

    fn bitmaps(&self) -> Vec<String> {
        self.0.bitmaps()
    }

    async fn changed(
        &self,
        bitmap: &str,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, bool)>> {
        self.0.changed(bitmap, offset, len, count_max).await
    }
}
