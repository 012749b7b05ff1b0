//! A directory of a store, as a store of its own.

use std::{fmt, ops::Range};

use async_trait::async_trait;
use bytes::Bytes;

use super::{DiskRoom, Listed, Put, SharedStore, Store, StoreResult, Undeleted};

/// Keys begin behind the directory; what is said in errors, and the URL, are those of the whole store.
pub struct Within {
    whole: SharedStore,
    /// Ends in `/`.
    dir: String,
}

impl Within {
    /// `dir` is a plain name.
    pub fn new(whole: SharedStore, dir: &str) -> Within {
        Within { whole, dir: format!("{dir}/") }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.dir)
    }

    fn own(&self, mut key: String) -> String {
        debug_assert!(key.starts_with(&self.dir), "it was asked for there");
        key.drain(..self.dir.len());
        key
    }
}

impl fmt::Debug for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}", self.dir, self.whole)
    }
}

#[async_trait]
impl Store for Within {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.whole.put(&self.key(key), body).await
    }

    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.whole.put_if_absent(&self.key(key), body).await
    }

    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.whole.get(&self.key(key), bytes_max).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.whole.get_range(&self.key(key), range).await
    }

    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.whole.size(&self.key(key)).await
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        let after = if after.is_empty() { String::new() } else { self.key(after) };
        let listed = self.whole.list_after(&self.key(prefix), &after, count_max).await?;
        Ok(listed.into_iter().map(|Listed { key, bytes }| Listed { key: self.own(key), bytes }).collect())
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.whole.list_dirs(&self.key(prefix)).await
    }

    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.whole.delete(&self.key(key)).await
    }

    fn deletes_at_once(&self) -> usize {
        self.whole.deletes_at_once()
    }

    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        let undeleted = self.whole.delete_many(&keys).await?;
        Ok(undeleted
            .into_iter()
            .map(|Undeleted { key, why }| Undeleted { key: self.own(key), why })
            .collect())
    }

    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        self.whole.room().await
    }

    fn keeps_versions(&self) -> bool {
        self.whole.keeps_versions()
    }
    fn url(&self) -> String {
        self.whole.url()
    }
}
