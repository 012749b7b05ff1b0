//! The map's door to its runs: objects below `map/`, read through the chunk cache.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Error, Result,
    cache::{CacheKey, ObjectReader, ObjectRef},
    log::keys,
    map::{RunIo, RunMeta},
    store::{Put, SharedStore},
    units::RunId,
};

/// Bytes around a miss that are fetched with it: neighbouring run blocks are wanted together.
const WINDOW_BYTES: u64 = 128 << 10;

/// Runs in the store.
pub struct StoredRuns {
    reader: Arc<ObjectReader>,
    store: SharedStore,
}

impl StoredRuns {
    pub fn new(reader: Arc<ObjectReader>, store: SharedStore) -> Self {
        Self { reader, store }
    }
}

#[async_trait]
impl RunIo for StoredRuns {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        let cache = CacheKey::new(*run.id.0.as_bytes(), 0);
        let object = ObjectRef { key: keys::run(run.id), cache, bytes: Some(run.bytes) };
        self.reader.read(&object, range, WINDOW_BYTES).await
    }

    async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        match self.store.put_if_absent(&keys::run(id), body).await {
            Ok(Put::Created | Put::Exists) => Ok(()), // the id is random: what exists is ours
            Err(e) => Err(Error::from(e)),
        }
    }
}
