//! One store that is reached through several endpoints: each request goes through the next of them.
//!
//! So whatever a probe asks twice is asked of two gateways: what one has created the other refuses, reads, lists and deletes.

use std::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::super::{Listed, PagedNames, Put, SharedStore, Store, StoreResult, Undeleted};

/// A store that is reached through several endpoints.
pub struct Endpoints {
    /// At least one.
    all: Vec<SharedStore>,
    next: AtomicUsize,
}

impl Endpoints {
    /// The same store, as each of its endpoints shows it.
    pub fn new(all: Vec<SharedStore>) -> Endpoints {
        assert!(!all.is_empty(), "a store has an endpoint");
        Endpoints { all, next: AtomicUsize::new(0) }
    }

    fn next(&self) -> &SharedStore {
        &self.all[self.next.fetch_add(1, Relaxed) % self.all.len()]
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.all).finish()
    }
}

#[async_trait]
impl Store for Endpoints {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.next().put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.next().put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.next().get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.next().get_range(key, range).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.next().size(key).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.next().list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.next().list_dirs(prefix).await
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        self.next().list_in_pages(prefix, what, page_names).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.next().delete(key).await
    }
    fn deletes_at_once(&self) -> usize {
        self.all.iter().map(|store| store.deletes_at_once()).min().unwrap_or(1)
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        self.next().delete_many(keys).await
    }
    fn keeps_versions(&self) -> bool {
        self.all.iter().any(|store| store.keeps_versions())
    }
    fn url(&self) -> String {
        self.all[0].url()
    }
}
