//! A store behind a link with a round trip of 20 ms that counts requests.

#[path = "../../tests/store_support/passing.rs"]
mod passing;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use cistern_engine::store::{SharedStore, Store, StoreResult};
use passing::{Passing, Through};

const LATENCY: Duration = Duration::from_millis(20);

pub struct Slow {
    inner: SharedStore,
    pub requests: AtomicU64,
}

#[async_trait]
impl Passing for Slow {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }
    #[allow(clippy::disallowed_methods)] // a measuring program, not the engine
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        self.requests.fetch_add(1, Relaxed);
        tokio::time::sleep(LATENCY).await;
        Ok(())
    }
}

pub fn slow(inner: &SharedStore) -> Arc<Through<Slow>> {
    Through::new(Slow { inner: inner.clone(), requests: AtomicU64::new(0) })
}
