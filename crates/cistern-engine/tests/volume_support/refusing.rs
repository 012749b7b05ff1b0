//! A store that refuses to take some objects, as long as a test says so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use async_trait::async_trait;
use cistern_engine::store::{MemoryStore, Store, StoreError, StoreResult};

use super::passing::Passing;

/// Of keys that contain a text.
pub struct Refusing {
    inner: MemoryStore,
    text: &'static str,
    refuses: AtomicBool,
    refused: AtomicU64,
}

impl Refusing {
    pub fn new(text: &'static str) -> Refusing {
        let (refuses, refused) = Default::default();
        Refusing { inner: MemoryStore::new(), text, refuses, refused }
    }

    pub fn set(&self, refuses: bool) {
        self.refuses.store(refuses, SeqCst);
    }

    /// Returns once so many more were refused than now.
    pub async fn refused(&self, more: u64) {
        let until = self.refused.load(SeqCst) + more;
        while self.refused.load(SeqCst) < until {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Passing for Refusing {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, request: &str, key: &str) -> StoreResult<()> {
        if request == "put_if_absent" && key.contains(self.text) && self.refuses.load(SeqCst) {
            self.refused.fetch_add(1, SeqCst);
            return Err(StoreError::Refused("not just now".into()));
        }
        Ok(())
    }
}
