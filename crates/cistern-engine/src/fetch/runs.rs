//! The map's door to its runs: objects below `map/`, read through the chunk cache.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use super::reader::{ObjectReader, ObjectRef};
use crate::{
    Result,
    cache::{CacheKey, ChunkCache},
    log::keys,
    map::{RunIo, RunMeta},
    store::{Put, SharedStore, Stores},
    units::{RunId, VolumeId},
};

/// Bytes around a miss that are fetched with it: at least so many, and on a link that carries more in
/// some latencies that much. Every lookup needs run blocks, and a map is small: what is fetched
/// around one is soon used.
const WINDOW_BYTES_MIN: u64 = 128 << 10;
const WINDOW_LATENCIES: u64 = 2;

/// Runs in the store.
pub struct StoredRuns {
    reader: Arc<ObjectReader>,
    stores: Stores,
    cache: Option<Arc<ChunkCache>>,
    /// The volume, and those of the volumes that it comes from as a clone.
    foreign: Option<(VolumeId, Arc<dyn RunIo>)>,
}

impl StoredRuns {
    pub fn new(reader: Arc<ObjectReader>, stores: Stores, cache: Option<Arc<ChunkCache>>) -> Self {
        Self { reader, stores, cache, foreign: None }
    }

    /// The same for a clone, of this volume. What its own snapshots have is its own.
    pub fn with_foreign(self, volume: VolumeId, foreign: Arc<dyn RunIo>) -> Self {
        Self { foreign: Some((volume, foreign)), ..self }
    }

    /// Whom to ask for a run that is not the volume's own.
    fn owner(&self, run: &RunMeta) -> Option<&Arc<dyn RunIo>> {
        let (volume, foreign) = self.foreign.as_ref()?;
        run.owner.is_some_and(|owner| owner != *volume).then_some(foreign)
    }

    fn window_bytes(&self) -> u64 {
        let carried =
            self.reader.link().map_or(0, |link| link.product_bytes().saturating_mul(WINDOW_LATENCIES));
        carried.max(WINDOW_BYTES_MIN)
    }

    /// Stores a new run. It replaces what was read until now, so the next lookups want it.
    async fn put(&self, store: &SharedStore, id: RunId, body: Bytes) -> Result<()> {
        match store.put_if_absent(&keys::run(id), body.clone()).await? {
            Put::Created | Put::Exists => {} // the id is random: what exists is ours
        }
        if let Some(cache) = &self.cache {
            cache.fill_written(run_key(id), &body);
        }
        Ok(())
    }
}

#[async_trait]
impl RunIo for StoredRuns {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        match self.owner(run) {
            Some(owner) => owner.read(run, range).await,
            None => self.reader.read(&run_object(run), range, self.window_bytes()).await,
        }
    }

    async fn read_fresh(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        match self.owner(run) {
            Some(owner) => owner.read_fresh(run, range).await,
            None => self.reader.read_fresh(&run_object(run), range).await,
        }
    }

    fn forget(&self, run: &RunMeta) {
        match self.owner(run) {
            Some(owner) => owner.forget(run),
            None => self.reader.forget(&run_object(run)),
        }
    }

    fn name(&self, run: &RunMeta) -> String {
        let name = keys::run(run.id);
        match run.owner {
            Some(owner) => keys::of_volume(&name, owner),
            None => name,
        }
    }

    async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        self.put(&self.stores.write_back, id, body).await
    }

    async fn read_patiently(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        if let Some(owner) = self.owner(run) {
            return owner.read_patiently(run, range).await;
        }
        // What is cached is used, but what is not does not come into the cache: a merged run is
        // on its way out, and what the cleaner looks at was overwritten.
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.get(run_key(run.id), range.clone()).await
        {
            return Ok(bytes);
        }
        Ok(self.stores.background.get_range(&keys::run(run.id), range).await?)
    }

    async fn write_merged(&self, id: RunId, body: Bytes) -> Result<()> {
        self.put(&self.stores.background, id, body).await
    }
}

/// A run, for reading.
pub(super) fn run_object(run: &RunMeta) -> ObjectRef {
    ObjectRef { key: keys::run(run.id), cache: run_key(run.id), bytes: Some(run.bytes) }
}

fn run_key(id: RunId) -> CacheKey {
    CacheKey::new(*id.0.as_bytes(), 0)
}
