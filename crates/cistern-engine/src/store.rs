//! Where objects live: our own narrow trait, its backends and its decorators.
//!
//! A [`Store`] is rooted at one volume or one bucket prefix; keys are relative, made of
//! `[a-z0-9/._-]`. Objects are immutable, but a segment that nothing needs may give way to an emptied slot. Nothing above this module knows a
//! cloud. Bodies are bounded by the caller: no method returns more than it was asked for.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

mod bulk;
mod cloud;
mod directory;
mod key;
mod memory;
mod meter;
mod pages;
mod probe;
mod promised;
mod retry;
mod schedule;
mod url;
mod within;

pub use self::url::{
    StorePlace, StoreUrl, browse_store, create_store, open_endpoint, open_store, remove_store,
};
pub use crate::disk_room::DiskRoom;
pub use bulk::{Undeleted, delete_all};
pub use cloud::{CloudStore, Variables};
pub use directory::DirectoryStore;
pub use memory::MemoryStore;
pub use meter::{KindStats, LastError, Meter, StoreKind, StoreStats};
pub use pages::{LIST_MAX, Pages};
pub use probe::{
    Endpoints, PROBED_OBJECT_BYTES, PROBED_OBJECT_BYTES_SLOW, ProbeDepth, ProbeReport, RuleCheck, Verdict,
    probe,
};
pub use promised::{Promise, PromisedRoom};
pub use retry::{Failures, Retry, SERVED_DEADLINE};
pub use schedule::{
    DirectionStats, OtherPlaces, PlaceStats, Priority, Rates, RideOut, Scheduler, SchedulerStats, Stores,
};
pub use within::Within;

/// Why a store did not do what it was asked. The variants are the recourses.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No such object.
    #[error("{0} not found")]
    NotFound(String),
    /// May succeed when tried again: time-out, connection, 5xx, 429, 409.
    #[error("{0}")]
    Unreachable(String),
    /// Succeeds only when a person mends something: keys, a clock, a policy, an address. Says nothing about an object.
    #[error("{0}")]
    Refused(String),
    /// There is no room for what was to be put: a quota is used up, or a file system is full. Reading and deleting go on.
    #[error("{0}")]
    NoRoom(String),
    /// There is such an object, and it is not what it should be: longer, archived, of another kind. Others may be sound.
    #[error("{key} {why}")]
    Unusable { key: String, why: String },
}

/// What became of a conditional put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The object was not there and is now.
    Created,
    /// An object of this name was there already; it is unchanged.
    Exists,
}

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub bytes: u64,
}

/// What [`Store::list_in_pages`] lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagedNames {
    /// Whole keys, ascending.
    Objects,
    /// What [`Store::list_dirs`] gives.
    Directories,
}

/// The store's result.
pub type StoreResult<T> = std::result::Result<T, StoreError>;

/// A flat space of named objects.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Writes an object, replacing any. Durable on return.
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()>;
    /// Writes an object only where none of this name exists. Durable and visible on return.
    /// After a lost reply and a retry inside the store, `Exists` may mean our own object.
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put>;
    /// Reads a whole object; `Unusable` when it is longer than `bytes_max`.
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes>;
    /// Reads a range; the answer is shorter when the object ends earlier.
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes>;
    /// Bytes of an object; `None` where there is none of this name, which is an answer and no failure.
    async fn size(&self, key: &str) -> StoreResult<Option<u64>>;
    /// The first `count_max` objects whose key starts with `prefix` and is greater than `after`
    /// (both whole keys; `after` may be ""), ascending by bytes.
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>>;
    /// The directly contained "directories" of `prefix` (which ends in `/` or is empty): their
    /// plain names, without `prefix` and without `/`, ascending by bytes.
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>>;
    /// The keys below `prefix`, or the names of its directories, fetched in pages of at most `page_names`. Proves that a
    /// store continues a listing; a store whose listings have no pages lists as always. For a few names only.
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        let _ = page_names;
        Ok(match what {
            PagedNames::Objects => {
                self.list_after(prefix, "", LIST_MAX).await?.into_iter().map(|listed| listed.key).collect()
            }
            PagedNames::Directories => self.list_dirs(prefix).await?,
        })
    }
    /// Deletes an object; fine if it is not there.
    async fn delete(&self, key: &str) -> StoreResult<()>;
    /// How many objects one request deletes at most: 1 where each takes its own.
    fn deletes_at_once(&self) -> usize {
        1
    }
    /// Deletes up to [`Store::deletes_at_once`] objects with one request; gives those that could not be deleted.
    /// After an error any of them may be gone. [`delete_all`] takes any number.
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        let mut undeleted = Vec::new();
        for key in keys {
            let done = self.delete(key).await;
            undeleted.extend(done.err().map(|why| Undeleted { key: key.clone(), why }));
        }
        Ok(undeleted)
    }
    /// Room on the disk below this store; `None` where there is no end to it that is known, as in a cloud. No request.
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        Ok(None)
    }
    /// Whether the store was seen to keep what is deleted and replaced there, as a bucket with versioning or object lock does. No request.
    fn keeps_versions(&self) -> bool {
        false
    }
    /// The URL of this store without secrets.
    fn url(&self) -> String;
}

/// A shared store.
pub type SharedStore = Arc<dyn Store>;

impl From<StoreError> for crate::Error {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::NotFound(what) => crate::Error::NotFound(what),
            StoreError::Unreachable(why) => crate::Error::Unreachable(why),
            StoreError::Refused(why) => crate::Error::Refused(why),
            StoreError::NoRoom(why) => crate::Error::NoRoom(why),
            StoreError::Unusable { key, why } => crate::Error::corrupt(key, why),
        }
    }
}
