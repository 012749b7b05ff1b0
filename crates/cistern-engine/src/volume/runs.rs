//! The map's door to its runs: objects below `map/`, read through the chunk cache.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Error, Result,
    cache::{CacheKey, ChunkCache, ObjectReader, ObjectRef},
    log::keys,
    map::{RunIo, RunMeta},
    store::{Put, SharedStore, Stores},
    units::RunId,
};

/// Bytes around a miss that are fetched with it: neighbouring run blocks are wanted together.
const WINDOW_BYTES: u64 = 128 << 10;

/// Runs in the store.
pub struct StoredRuns {
    reader: Arc<ObjectReader>,
    stores: Stores,
    cache: Option<Arc<ChunkCache>>,
}

impl StoredRuns {
    pub fn new(reader: Arc<ObjectReader>, stores: Stores, cache: Option<Arc<ChunkCache>>) -> Self {
        Self { reader, stores, cache }
    }
}

#[async_trait]
impl RunIo for StoredRuns {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.reader.read(&run_object(run), range, WINDOW_BYTES).await
    }

    async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        put(&self.stores.write_back, id, body).await
    }

    async fn read_to_merge(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        // What is cached is used, but what is not does not come into the cache: a merged run is
        // on its way out.
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.get(cache_key(run), range.clone()).await
        {
            return Ok(bytes);
        }
        Ok(self.stores.background.get_range(&keys::run(run.id), range).await?)
    }

    async fn write_merged(&self, id: RunId, body: Bytes) -> Result<()> {
        put(&self.stores.background, id, body).await
    }
}

/// A run, for reading.
pub(super) fn run_object(run: &RunMeta) -> ObjectRef {
    ObjectRef { key: keys::run(run.id), cache: cache_key(run), bytes: Some(run.bytes) }
}

fn cache_key(run: &RunMeta) -> CacheKey {
    CacheKey::new(*run.id.0.as_bytes(), 0)
}

async fn put(store: &SharedStore, id: RunId, body: Bytes) -> Result<()> {
    match store.put_if_absent(&keys::run(id), body).await {
        Ok(Put::Created | Put::Exists) => Ok(()), // the id is random: what exists is ours
        Err(e) => Err(Error::from(e)),
    }
}
