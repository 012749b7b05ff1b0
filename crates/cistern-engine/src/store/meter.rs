//! Counts what a store is asked: requests, bytes, errors and latency, by kind of request.
//!
//! Never changes a request or an answer. "Not found" and "exists already" are answers, not
//! errors. Placed below [`super::Retry`] every try counts, which is what the store sees and bills.

use std::{
    fmt,
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{DiskRoom, Listed, PagedNames, Put, SharedStore, Store, StoreError, StoreResult, Undeleted};
use crate::{
    env::Env,
    rank::{Rank, Ranked},
    stats::{Latencies, LatencyStats},
};

/// What a store can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    Put,
    PutIfAbsent,
    Get,
    GetRange,
    List,
    ListDirs,
    Delete,
    DeleteMany,
}

impl StoreKind {
    /// Every kind, in the order of the discriminants.
    pub const ALL: [StoreKind; 8] = [
        StoreKind::Put,
        StoreKind::PutIfAbsent,
        StoreKind::Get,
        StoreKind::GetRange,
        StoreKind::List,
        StoreKind::ListDirs,
        StoreKind::Delete,
        StoreKind::DeleteMany,
    ];

    /// The name in metrics and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Put => "put",
            StoreKind::PutIfAbsent => "put_if_absent",
            StoreKind::Get => "get",
            StoreKind::GetRange => "get_range",
            StoreKind::List => "list",
            StoreKind::ListDirs => "list_dirs",
            StoreKind::Delete => "delete",
            StoreKind::DeleteMany => "delete_many",
        }
    }
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latencies: Latencies,
}

/// What one kind of request came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindStats {
    pub kind: StoreKind,
    /// Requests begun, answered or not.
    pub requests: u64,
    pub errors: u64,
    /// Body bytes sent by successful puts, or received by gets.
    pub bytes: u64,
    /// Of the answered requests.
    pub latency: LatencyStats,
}

/// The newest error of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    pub text: String,
    /// Milliseconds since it happened.
    pub age_ms: u64,
    /// When it happened, in milliseconds since 1970 by the wall clock.
    pub wall_ms: u64,
}

/// Everything a meter knows at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    pub kinds: Vec<KindStats>,
    /// Stays after the store has recovered; compare its age.
    pub last_error: Option<LastError>,
}

impl StoreStats {
    /// What came after an earlier snapshot of the same meter; the last error is that of now.
    pub fn since(&self, earlier: &StoreStats) -> StoreStats {
        let kinds = self.kinds.iter().zip(&earlier.kinds).map(|(now, then)| now.since(then)).collect();
        StoreStats { kinds, last_error: self.last_error.clone() }
    }
}

impl KindStats {
    fn since(&self, earlier: &KindStats) -> KindStats {
        KindStats {
            kind: self.kind,
            requests: self.requests.saturating_sub(earlier.requests),
            errors: self.errors.saturating_sub(earlier.errors),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            latency: self.latency.since(&earlier.latency),
        }
    }
}

struct ErrorAt {
    text: String,
    at: Duration,
    wall_ms: u64,
}

/// Metering on top of another store.
pub struct Meter {
    inner: SharedStore,
    env: Env,
    seen: Arc<MeterCounts>,
}

/// What a meter has seen.
struct MeterCounts {
    kinds: [Counters; StoreKind::ALL.len()],
    last_error: Ranked<Option<ErrorAt>>,
    /// When the first of the requests failed or was refused behind which none succeeded.
    failing_since: Ranked<Option<Duration>>,
}

impl Meter {
    pub fn new(inner: SharedStore, env: Env) -> Meter {
        let seen = MeterCounts {
            kinds: Default::default(),
            last_error: Ranked::new(Rank::World, None),
            failing_since: Ranked::new(Rank::World, None),
        };
        Meter { inner, env, seen: Arc::new(seen) }
    }

    /// The same counters for another store: what a volume needs of another one's objects is asked for by it.
    #[must_use]
    pub fn beside(&self, inner: SharedStore) -> Meter {
        Meter { inner, env: self.env.clone(), seen: self.seen.clone() }
    }

    /// The counters now. They are read one by one, so a request under way may show in some only.
    pub fn snapshot(&self) -> StoreStats {
        let kinds =
            StoreKind::ALL.into_iter().zip(&self.seen.kinds).map(|(kind, c)| c.snapshot(kind)).collect();
        let now = self.env.now();
        let last_error = self.seen.last_error.lock();
        let last_error = last_error.as_ref().map(|e| LastError {
            text: e.text.clone(),
            age_ms: now.saturating_sub(e.at).as_millis() as u64,
            wall_ms: e.wall_ms,
        });
        StoreStats { kinds, last_error }
    }

    /// For how long the store has neither given nor taken anything: it does not answer, or refuses. `None` while it does, or no request is made.
    pub fn away_for(&self) -> Option<Duration> {
        let since = *self.seen.failing_since.lock();
        since.map(|since| self.env.now().saturating_sub(since))
    }

    fn note_served(&self, served: bool) {
        let mut since = self.seen.failing_since.lock();
        match served {
            true => *since = None,
            false => _ = since.get_or_insert(self.env.now()),
        }
    }

    fn note_error(&self, kind: StoreKind, e: &StoreError) {
        self.seen.kinds[kind as usize].errors.fetch_add(1, Relaxed);
        let error = ErrorAt { text: e.to_string(), at: self.env.now(), wall_ms: self.env.wall_ms() };
        *self.seen.last_error.lock() = Some(error);
    }

    async fn count<T>(
        &self,
        kind: StoreKind,
        request: impl Future<Output = StoreResult<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> StoreResult<T> {
        let counters = &self.seen.kinds[kind as usize];
        counters.requests.fetch_add(1, Relaxed);
        let begin = self.env.now();
        let answer = request.await;
        counters.latencies.record(self.env.now().saturating_sub(begin));
        match &answer {
            Ok(out) => _ = counters.bytes.fetch_add(bytes(out) as u64, Relaxed),
            Err(StoreError::NotFound(_)) => {}
            Err(e) => self.note_error(kind, e),
        }
        // After the error: the reason is there by the time that the store counts as away.
        self.note_served(!matches!(answer, Err(StoreError::Unreachable(_) | StoreError::Refused(_))));
        answer
    }
}

impl Counters {
    fn snapshot(&self, kind: StoreKind) -> KindStats {
        KindStats {
            kind,
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            latency: self.latencies.snapshot(),
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for Meter {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        let len = body.len();
        self.count(StoreKind::Put, self.inner.put(key, body), |()| len).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let len = body.len();
        let sent = |put: &Put| if *put == Put::Created { len } else { 0 };
        self.count(StoreKind::PutIfAbsent, self.inner.put_if_absent(key, body), sent).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.count(StoreKind::Get, self.inner.get(key, bytes_max), Bytes::len).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.count(StoreKind::GetRange, self.inner.get_range(key, range), Bytes::len).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.count(StoreKind::GetRange, self.inner.size(key), |_| 0).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.count(StoreKind::List, self.inner.list_after(prefix, after, count_max), |_| 0).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.count(StoreKind::ListDirs, self.inner.list_dirs(prefix), |_| 0).await
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        let kind = match what {
            PagedNames::Objects => StoreKind::List,
            PagedNames::Directories => StoreKind::ListDirs,
        };
        self.count(kind, self.inner.list_in_pages(prefix, what, page_names), |_| 0).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.count(StoreKind::Delete, self.inner.delete(key), |()| 0).await
    }
    fn deletes_at_once(&self) -> usize {
        self.inner.deletes_at_once()
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        let undeleted = self.count(StoreKind::DeleteMany, self.inner.delete_many(keys), |_| 0).await?;
        if let Some(first) = undeleted.first() {
            self.note_error(StoreKind::DeleteMany, &first.why);
        }
        Ok(undeleted)
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
