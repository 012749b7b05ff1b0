//! A store that passes on to another whatever a test does not change.
//!
//! A test writes what it changes as an `impl Passing`, and `Through` makes a store of it. Shared as a file, also by tests
//! inside the engine and by the simulator's.

use std::{any::type_name, fmt, ops::Deref, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::store::{DiskRoom, Listed, PagedNames, Put, Store, StoreResult, Undeleted};

/// What a test changes of a store.
#[async_trait]
pub trait Passing: Send + Sync + 'static {
    /// Where requests are passed on to.
    fn inner(&self) -> &dyn Store;
    /// Comes before every request, `put_if_absent` of an object, say, or `list_after` of a prefix. What it refuses is not
    /// passed on.
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        Ok(())
    }
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.inner().put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.inner().put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.inner().get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.inner().get_range(key, range).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.inner().size(key).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.inner().list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.inner().list_dirs(prefix).await
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        self.inner().list_in_pages(prefix, what, page_names).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.inner().delete(key).await
    }
    /// One, so that every delete comes by [`Passing::delete`].
    fn deletes_at_once(&self) -> usize {
        1
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        let mut undeleted = Vec::new();
        for key in keys {
            let done = match self.before("delete", key).await {
                Ok(()) => self.delete(key).await,
                refused => refused,
            };
            undeleted.extend(done.err().map(|why| Undeleted { key: key.clone(), why }));
        }
        Ok(undeleted)
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        self.inner().room().await
    }
    fn url(&self) -> String {
        self.inner().url()
    }
}

/// The store that results.
pub struct Through<P>(P);

impl<P: Passing> Through<P> {
    pub fn new(changes: P) -> Arc<Through<P>> {
        Arc::new(Through(changes))
    }
}

impl<P> Deref for Through<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.0
    }
}

impl<P> fmt::Debug for Through<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(type_name::<P>())
    }
}

#[async_trait]
impl<P: Passing> Store for Through<P> {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.before("put", key).await?;
        self.0.put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.before("put_if_absent", key).await?;
        self.0.put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.before("get", key).await?;
        self.0.get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.before("get_range", key).await?;
        self.0.get_range(key, range).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.before("size", key).await?;
        self.0.size(key).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.before("list_after", prefix).await?;
        self.0.list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.before("list_dirs", prefix).await?;
        self.0.list_dirs(prefix).await
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        self.before("list_in_pages", prefix).await?;
        self.0.list_in_pages(prefix, what, page_names).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.before("delete", key).await?;
        self.0.delete(key).await
    }
    fn deletes_at_once(&self) -> usize {
        self.0.deletes_at_once()
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        self.0.delete_many(keys).await
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        self.0.room().await
    }
    fn url(&self) -> String {
        self.0.url()
    }
}
