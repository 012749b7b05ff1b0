//! Tries again what may succeed later: jittered exponential backoff up to a deadline.
//!
//! Only `Unreachable` is tried again; while a volume is served, what its clients read is tried again for minutes, and where it
//! is refused too. Every operation has one deadline that bounds all its tries
//! together; where nobody in particular waits, it begins with the first failure. A try that hangs ends after a part of that time, so that one reply that never comes
//! leaves time for another try (where nobody in particular waits, a try that has begun goes on: then
//! whatever lies below bounds it). A put that was tried again may find its own object: the
//! answer `Exists` is passed on as it is, and the caller, who knows what it wrote, decides.

use std::{
    fmt,
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    DiskRoom, Listed, PagedNames, Put, RideOut, SharedStore, Store, StoreError, StoreResult, Undeleted,
};
use crate::{
    env::Env,
    rank::{Rank, Ranked},
};

/// The wait before the first new try: about one round trip to a distant store.
const WAIT_FIRST: Duration = Duration::from_millis(100);
/// The longest wait: a store that comes back is noticed within this time.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a read of a volume that is served is tried. Longer than it takes to get new keys, set a clock or start a gateway again, and
/// an end at which a client learns that something is wrong.
pub const SERVED_DEADLINE: Duration = Duration::from_secs(600);
/// A try that hangs takes this part of the deadline: few tries, as a slow link may need long for one.
const TRY_PART: u32 = 2;

/// Counts the requests that were not answered well at first, whatever came of them. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Failures(Arc<RetryCounts>);

#[derive(Debug, Default)]
struct RetryCounts {
    failed: AtomicU64,
    /// Requests that have failed once, and have not ended.
    retried: AtomicU64,
}

impl Failures {
    pub fn count(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    /// Requests that have failed and are tried again now.
    pub fn retried_now(&self) -> u64 {
        self.0.retried.load(Ordering::Relaxed)
    }

    fn note(&self) {
        self.0.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn retry(&self) -> Retried<'_> {
        self.0.retried.fetch_add(1, Ordering::Relaxed);
        Retried(&self.0)
    }
}

/// A request that is tried again, until it ends or nobody wants its answer any more.
struct Retried<'a>(&'a RetryCounts);

impl Drop for Retried<'_> {
    fn drop(&mut self) {
        let before = self.0.retried.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "who ends has begun");
    }
}

/// Retries on top of another store.
pub struct Retry {
    inner: SharedStore,
    env: Env,
    deadline: Duration,
    failures: Failures,
    /// A try ends in time, answered or not.
    cuts: bool,
    ride_out: RideOut,
}

impl Retry {
    /// `deadline` bounds each operation, from its first try on.
    pub fn new(inner: SharedStore, env: Env, deadline: Duration) -> Retry {
        Retry {
            inner,
            env,
            deadline,
            failures: Failures::default(),
            cuts: true,
            ride_out: RideOut::default(),
        }
    }

    /// No try begins so long after the first failure, but one that has begun may go on: it may wait for its turn
    /// in the scheduler below, or have megabytes to send over a slow link. What lies below must
    /// bound it.
    pub fn patient(inner: SharedStore, env: Env, deadline: Duration) -> Retry {
        Retry { cuts: false, ..Retry::new(inner, env, deadline) }
    }

    /// Where its failures are counted.
    pub fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Counts failures there.
    pub(super) fn counting(mut self, failures: &Failures) -> Retry {
        self.failures = failures.clone();
        self
    }

    /// Rides out what may pass, from when that begins.
    pub(super) fn riding(mut self, ride_out: RideOut) -> Retry {
        self.ride_out = ride_out;
        self
    }

    /// How long an operation is tried.
    fn deadline(&self) -> Duration {
        match self.ride_out.is_on() {
            true => self.deadline.max(SERVED_DEADLINE),
            false => self.deadline,
        }
    }

    /// `asked` is what was asked, and of which key.
    async fn persist<T, F>(&self, asked: (&str, &str), attempt: impl Fn() -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        let began = self.env.now();
        let mut end = began + self.deadline();
        let mut tries = 0u32;
        let mut why = None;
        let mut retried = None;
        loop {
            let answer = match self.cuts {
                true => {
                    let limit = end.saturating_sub(self.env.now()).min(self.deadline / TRY_PART);
                    self.env.timeout(limit, attempt()).await
                }
                false => Some(attempt().await),
            };
            if !matches!(answer, Some(Ok(_))) {
                self.failures.note();
            }
            match answer {
                Some(Err(StoreError::Unreachable(last))) => why = Some(last),
                Some(Err(StoreError::Refused(last))) if self.ride_out.is_on() => {
                    (why, end) = (Some(last), began + self.deadline());
                }
                Some(done) => return done,
                None => {} // what the try before said is the best that is known
            }
            if tries == 0 && !self.cuts {
                end = self.env.now() + self.deadline();
            }
            let wait = self.wait_after(tries);
            tries += 1;
            if self.env.now() + wait >= end {
                let why = why.unwrap_or_else(|| format!("{} {}: no answer", asked.0, asked.1));
                return Err(gave_up(why, tries, self.env.now() - began));
            }
            retried.get_or_insert_with(|| self.failures.retry());
            tracing::debug!(
                why = why.as_deref().unwrap_or("no answer"),
                tries,
                wait_ms = wait.as_millis() as u64,
                "store: trying again"
            );
            self.env.sleep(wait).await;
        }
    }

    /// Half of the exponential step plus a random part of the other half, so that many requests
    /// which failed together do not return together.
    fn wait_after(&self, tries: u32) -> Duration {
        let step = WAIT_FIRST.saturating_mul(1 << tries.min(16)).min(WAIT_MAX);
        let half_us = step.as_micros() as u64 / 2;
        let jitter_us = u64::from_le_bytes(self.env.random_bytes()) % (half_us + 1);
        Duration::from_micros(half_us + jitter_us)
    }
}

fn gave_up(why: String, tries: u32, took: Duration) -> StoreError {
    match tries {
        1 => StoreError::Unreachable(why),
        _ => StoreError::Unreachable(format!("{why} ({tries} tries in {} s)", took.as_secs())),
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").field("inner", &self.inner).field("deadline", &self.deadline).finish()
    }
}

#[async_trait]
impl Store for Retry {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.persist(("PUT", key), || self.inner.put(key, body.clone())).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.persist(("PUT", key), || self.inner.put_if_absent(key, body.clone())).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.persist(("GET", key), || self.inner.get(key, bytes_max)).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.persist(("GET", key), || self.inner.get_range(key, range.clone())).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.persist(("GET", key), || self.inner.size(key)).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.persist(("LIST", prefix), || self.inner.list_after(prefix, after, count_max)).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.persist(("LIST", prefix), || self.inner.list_dirs(prefix)).await
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        self.persist(("LIST", prefix), || self.inner.list_in_pages(prefix, what, page_names)).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.persist(("DELETE", key), || self.inner.delete(key)).await
    }
    fn deletes_at_once(&self) -> usize {
        self.inner.deletes_at_once()
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        // A try that deletes a part leaves the rest to the next one.
        let state = Ranked::new(Rank::World, (keys.to_vec(), Vec::new()));
        let state = &state;
        self.persist(("POST", "?delete"), || async move {
            let left = state.lock().0.clone();
            let undeleted = self.inner.delete_many(&left).await?;
            let is_later = |u: &Undeleted| matches!(u.why, StoreError::Unreachable(_));
            let (later, never): (Vec<_>, Vec<_>) = undeleted.into_iter().partition(is_later);
            let mut state = state.lock();
            state.0 = later.iter().map(|u| u.key.clone()).collect();
            state.1.extend(never);
            later.into_iter().next().map_or(Ok(()), |first| Err(first.why))
        })
        .await?;
        Ok(std::mem::take(&mut state.lock().1))
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
