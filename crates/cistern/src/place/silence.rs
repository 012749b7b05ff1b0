//! Says on stderr that a store does not answer, long before the command that waits for it gives up; and that a bucket keeps what is deleted.
//!
//! Changes no request and no answer, and is quiet for good once the store has answered. A store may answer whoever reads and
//! nobody who writes, as a directory on a full disk does: either is told by itself.

use std::{
    collections::BTreeSet,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{
        DiskRoom, Listed, Meter, PagedNames, Put, SharedStore, Store, StoreError, StoreResult, Undeleted,
    },
    units::utc,
};

use crate::terminal;

/// Silence after which people wonder what is going on.
const WONDER: Duration = Duration::from_millis(2500);

/// A store, and whether it has been heard of.
pub struct Silence {
    inner: SharedStore,
    env: Env,
    /// Knows what the last try said.
    meter: Arc<Meter>,
    /// How long one request is tried.
    patience: Duration,
    reading: Contact,
    writing: Contact,
}

/// What it means to a user that a bucket keeps versions.
pub const VERSIONS: &str = "the bucket keeps versions of what is deleted and replaced (versioning, or object lock): what cistern deletes there stays \
     stored and is paid for, until a lifecycle rule expires noncurrent versions";

/// The stores of which that was said: one command may open a store several times.
static TOLD_OF_VERSIONS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// What is known of requests of one kind.
#[derive(Default)]
struct Contact {
    answered: AtomicBool,
    told: AtomicBool,
}

impl Silence {
    pub fn breaking(inner: SharedStore, env: &Env, meter: &Arc<Meter>, patience: Duration) -> SharedStore {
        Arc::new(Silence {
            inner,
            env: env.clone(),
            meter: meter.clone(),
            patience,
            reading: Contact::default(),
            writing: Contact::default(),
        })
    }

    async fn watched<T>(
        &self,
        contact: &Contact,
        request: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        if contact.answered.load(Relaxed) {
            return request.await;
        }
        let until = self.env.wall_ms() + self.patience.as_millis() as u64;
        let mut request = std::pin::pin!(request);
        let answer = match tokio::time::timeout(WONDER, request.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                self.tell(contact, until);
                request.await
            }
        };
        if !matches!(answer, Err(StoreError::Unreachable(_))) {
            contact.answered.store(true, Relaxed);
            if contact.told.swap(false, Relaxed) {
                terminal::remark(format!("{} answers", self.inner.url()));
            }
        }
        answer
    }

    /// Does what may change the store, and says once if that keeps versions.
    async fn changing<T>(&self, request: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
        let done = self.watched(&self.writing, request).await;
        if self.inner.keeps_versions()
            && TOLD_OF_VERSIONS.lock().expect("no panic under this lock").insert(self.inner.url())
        {
            terminal::remark(format!("{}: {VERSIONS}", self.inner.url()));
        }
        done
    }

    fn tell(&self, contact: &Contact, until_ms: u64) {
        if contact.told.swap(true, Relaxed) {
            return;
        }
        let why =
            self.meter.snapshot().last_error.map(|error| format!(" ({})", error.text)).unwrap_or_default();
        let (url, until) = (self.inner.url(), utc(until_ms));
        terminal::remark(format!("{url} does not answer yet{why}: trying until {until}; Ctrl-C ends it"));
    }
}

impl fmt::Debug for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Silence").field(&self.inner).finish()
    }
}

#[async_trait]
impl Store for Silence {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.changing(self.inner.put(key, body)).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.changing(self.inner.put_if_absent(key, body)).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.watched(&self.reading, self.inner.get(key, bytes_max)).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.watched(&self.reading, self.inner.get_range(key, range)).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.watched(&self.reading, self.inner.size(key)).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.watched(&self.reading, self.inner.list_after(prefix, after, count_max)).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.watched(&self.reading, self.inner.list_dirs(prefix)).await
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        self.watched(&self.reading, self.inner.list_in_pages(prefix, what, page_names)).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.changing(self.inner.delete(key)).await
    }
    fn deletes_at_once(&self) -> usize {
        self.inner.deletes_at_once()
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        self.changing(self.inner.delete_many(keys)).await
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        self.inner.room().await
    }
    fn keeps_versions(&self) -> bool {
        self.inner.keeps_versions()
    }
    fn url(&self) -> String {
        self.inner.url()
    }
}
