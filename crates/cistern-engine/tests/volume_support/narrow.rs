//! A store that does one request at a time, as a scheduler has it whose store failed often.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::store::{Listed, MemoryStore, Put, Store, StoreResult};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::passing::Passing;

/// Turns go round in order, and one is used up by who has got it and does not go on.
pub struct Narrow {
    inner: MemoryStore,
    turns: Semaphore,
}

impl Narrow {
    pub fn new() -> Narrow {
        Narrow { inner: MemoryStore::new(), turns: Semaphore::new(1) }
    }

    async fn turn(&self) -> SemaphorePermit<'_> {
        let turn = self.turns.acquire().await.expect("never closed");
        tokio::task::yield_now().await; // the answer takes its time
        turn
    }
}

#[async_trait]
impl Passing for Narrow {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        let _turn = self.turn().await;
        self.inner.put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let _turn = self.turn().await;
        self.inner.put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        let _turn = self.turn().await;
        self.inner.get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        let _turn = self.turn().await;
        self.inner.get_range(key, range).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        let _turn = self.turn().await;
        self.inner.list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        let _turn = self.turn().await;
        self.inner.list_dirs(prefix).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        let _turn = self.turn().await;
        self.inner.delete(key).await
    }
}
