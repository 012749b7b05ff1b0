//! Single replies of a sound store come damaged: a bit flips on the way. Nothing of it may last.

mod volume_support;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Store, StoreResult},
};
use volume_support::{
    Host, MIB, close, is_own_below, noise,
    passing::{Passing, Through},
    read,
};

/// A store whose next reply with an object below `prefix`, or a part of it, has a flipped bit.
struct FlipsOnce {
    inner: MemoryStore,
    prefix: &'static str,
    due: AtomicBool,
}

impl FlipsOnce {
    fn new(prefix: &'static str) -> Arc<Through<FlipsOnce>> {
        Through::new(FlipsOnce { inner: MemoryStore::new(), prefix, due: AtomicBool::new(false) })
    }

    fn passed(&self, key: &str, body: Bytes) -> Bytes {
        if !is_own_below(self.prefix, key) || !self.due.swap(false, Ordering::Relaxed) {
            return body;
        }
        let mut bytes = body.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes.into()
    }
}

#[async_trait]
impl Passing for FlipsOnce {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        Ok(self.passed(key, self.inner.get(key, bytes_max).await?))
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        Ok(self.passed(key, self.inner.get_range(key, range).await?))
    }
}

/// A damaged reply with a segment's data is fetched again, with and without a cache that has kept it: the read
/// succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_reply_is_fetched_again() {
    for cached in [false, true] {
        let store = FlipsOnce::new("log/");
        let mut host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
        let volume = host.open().await;
        let data = noise(1, 64 << 10);
        volume.write(0, data.clone(), false).await.expect("written");
        close(volume).await;
        host.replace_disk();
        let volume = match cached {
            true => host.open_with(host.cache("cache").await).await,
            false => host.open().await,
        };
        store.due.store(true, Ordering::Relaxed);
        assert_eq!(read(&volume, 0, data.len() as u64).await, data, "cached={cached}");
        assert!(!store.due.load(Ordering::Relaxed), "a reply was damaged");
        close(volume).await;
    }
}

/// A damaged reply with what an opening reads is read again: the volume opens, with all that was written.
#[tokio::test(flavor = "multi_thread")]
async fn an_opening_survives_a_damaged_reply() {
    for prefix in ["volume.json", "checkpoint/", "log/"] {
        let store = FlipsOnce::new(prefix);
        let mut host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
        let volume = host.open().await;
        let data = noise(1, 64 << 10);
        volume.write(0, data.clone(), false).await.expect("written");
        close(volume).await;
        host.replace_disk();
        store.due.store(true, Ordering::Relaxed);
        let volume = host.open().await;
        assert!(!store.due.load(Ordering::Relaxed), "a reply was damaged: {prefix}");
        assert_eq!(read(&volume, 0, data.len() as u64).await, data, "{prefix}");
        close(volume).await;
    }
}
