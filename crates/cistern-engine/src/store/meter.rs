//! Counts what a store is asked: requests, bytes, errors and latency, by kind of request.
//!
//! Never changes a request or an answer. "Not found" and "exists already" are answers, not
//! errors. Placed below [`super::Retry`] every try counts, which is what the store sees and bills.

use std::{
    fmt,
    future::Future,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;

use super::{Listed, Put, SharedStore, Store, StoreError, StoreResult};
use crate::env::Env;

/// Upper bound of the first latency bucket in microseconds; each further one is twice as wide.
const LATENCY_FIRST_US: u64 = 250;
/// Buckets with a bound: 250 us to 32.8 s. What took longer is in the last, unbounded bucket.
const LATENCY_BUCKETS: usize = 18;

#[derive(Clone, Copy)]
enum Kind {
    Put,
    PutIfAbsent,
    Get,
    GetRange,
    List,
    ListDirs,
    Delete,
}

/// Names of the kinds, in their order; part of the metrics' surface.
const KIND_NAMES: [&str; 7] = ["put", "put_if_absent", "get", "get_range", "list", "list_dirs", "delete"];

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latency_us: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS + 1],
}

/// What one kind of request came to.
#[derive(Clone, Debug, Serialize)]
pub struct KindStats {
    pub kind: &'static str,
    /// Requests begun, answered or not.
    pub requests: u64,
    pub errors: u64,
    /// Body bytes sent by successful puts, or received by gets.
    pub bytes: u64,
    /// Sum of the answered requests' latencies in microseconds.
    pub latency_us: u64,
    /// Answered requests by latency, not cumulative.
    pub latency: Vec<LatencyBucket>,
}

/// Requests that took at most `up_to_us` microseconds and more than the bucket before.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyBucket {
    /// `None`: no bound.
    pub up_to_us: Option<u64>,
    pub requests: u64,
}

/// The newest error of a store.
#[derive(Clone, Debug, Serialize)]
pub struct LastError {
    pub text: String,
    /// Milliseconds since it happened.
    pub age_ms: u64,
    /// When it happened, in milliseconds since 1970 by the wall clock.
    pub wall_ms: u64,
}

/// Everything a meter knows at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct StoreStats {
    pub kinds: Vec<KindStats>,
    /// Stays after the store has recovered; compare its age.
    pub last_error: Option<LastError>,
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
    kinds: [Counters; KIND_NAMES.len()],
    last_error: Mutex<Option<ErrorAt>>,
}

impl Meter {
    pub fn new(inner: SharedStore, env: Env) -> Meter {
        Meter { inner, env, kinds: Default::default(), last_error: Mutex::new(None) }
    }

    /// The counters now. They are read one by one, so a request under way may show in some only.
    pub fn snapshot(&self) -> StoreStats {
        let kinds = KIND_NAMES.iter().zip(&self.kinds).map(|(kind, c)| c.snapshot(kind)).collect();
        let now = self.env.now();
        let last_error = self.last_error.lock().expect("nothing panics while it holds the error");
        let last_error = last_error.as_ref().map(|e| LastError {
            text: e.text.clone(),
            age_ms: now.saturating_sub(e.at).as_millis() as u64,
            wall_ms: e.wall_ms,
        });
        StoreStats { kinds, last_error }
    }

    async fn count<T>(
        &self,
        kind: Kind,
        request: impl Future<Output = StoreResult<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> StoreResult<T> {
        let counters = &self.kinds[kind as usize];
        counters.requests.fetch_add(1, Relaxed);
        let begin = self.env.now();
        let answer = request.await;
        counters.answered(self.env.now().saturating_sub(begin));
        match &answer {
            Ok(out) => _ = counters.bytes.fetch_add(bytes(out) as u64, Relaxed),
            Err(StoreError::NotFound(_)) => {}
            Err(e) => {
                counters.errors.fetch_add(1, Relaxed);
                let error = ErrorAt { text: e.to_string(), at: self.env.now(), wall_ms: self.env.wall_ms() };
                *self.last_error.lock().expect("nothing panics while it holds the error") = Some(error);
            }
        }
        answer
    }
}

impl Counters {
    fn answered(&self, time: Duration) {
        let us = time.as_micros() as u64;
        let bucket = (0..LATENCY_BUCKETS).find(|&b| us <= LATENCY_FIRST_US << b).unwrap_or(LATENCY_BUCKETS);
        self.latency[bucket].fetch_add(1, Relaxed);
        self.latency_us.fetch_add(us, Relaxed);
    }

    fn snapshot(&self, kind: &'static str) -> KindStats {
        let bucket = |(b, requests): (usize, &AtomicU64)| LatencyBucket {
            up_to_us: (b < LATENCY_BUCKETS).then_some(LATENCY_FIRST_US << b),
            requests: requests.load(Relaxed),
        };
        KindStats {
            kind,
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            latency_us: self.latency_us.load(Relaxed),
            latency: self.latency.iter().enumerate().map(bucket).collect(),
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
        self.count(Kind::Put, self.inner.put(key, body), |()| len).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let len = body.len();
        let sent = |put: &Put| if *put == Put::Created { len } else { 0 };
        self.count(Kind::PutIfAbsent, self.inner.put_if_absent(key, body), sent).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.count(Kind::Get, self.inner.get(key, bytes_max), Bytes::len).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.count(Kind::GetRange, self.inner.get_range(key, range), Bytes::len).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.count(Kind::List, self.inner.list_after(prefix, after, count_max), |_| 0).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.count(Kind::ListDirs, self.inner.list_dirs(prefix), |_| 0).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.count(Kind::Delete, self.inner.delete(key), |()| 0).await
    }
    fn url(&self) -> String {
        self.inner.url()
    }
}
