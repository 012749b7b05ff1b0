//! A store in memory behind a link: a round trip, a rate in each direction, and days off.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{Listed, MemoryStore, Put, Store, StoreError, StoreResult},
};

/// One direction of a link: it carries one body after the other.
#[derive(Debug, Default)]
struct Lane {
    free_at: Duration,
    carried: u64,
}

/// What a store behind a link did.
#[derive(Debug, Default)]
pub struct Seen {
    up: Lane,
    down: Lane,
    in_use: u64,
    in_use_max: u64,
    /// When requests came, how many bytes they sent, and whether they were puts.
    requests: Vec<(Duration, u64, bool)>,
}

/// Objects behind a link.
pub struct Far {
    env: Env,
    inner: MemoryStore,
    url: &'static str,
    round_trip: Duration,
    bytes_per_s: u64,
    away: Mutex<bool>,
    /// Takes nothing.
    full: Mutex<bool>,
    seen: Mutex<Seen>,
}

impl std::fmt::Debug for Far {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.url)
    }
}

struct UnderWay<'a>(&'a Far);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.seen.lock().expect("no panic").in_use -= 1;
    }
}

impl Far {
    pub fn new(env: &Env, url: &'static str, round_trip: Duration, bytes_per_s: u64) -> Arc<Far> {
        let (env, inner) = (env.clone(), MemoryStore::new());
        let (away, full, seen) = Default::default();
        Arc::new(Far { env, inner, url, round_trip, bytes_per_s, away, full, seen })
    }

    /// An object that is just there.
    pub async fn plant(&self, key: &str, body: Bytes) {
        self.inner.put(key, body).await.expect("a store in memory takes it");
    }

    pub fn set_away(&self, away: bool) {
        *self.away.lock().expect("no panic") = away;
    }

    pub fn set_full(&self, full: bool) {
        *self.full.lock().expect("no panic") = full;
    }

    /// Bytes that were carried up and down.
    pub fn carried(&self) -> (u64, u64) {
        let seen = self.seen.lock().expect("no panic");
        (seen.up.carried, seen.down.carried)
    }

    /// The requests since this was asked last: when, bytes, whether a put.
    pub fn take_requests(&self) -> Vec<(Duration, u64, bool)> {
        std::mem::take(&mut self.seen.lock().expect("no panic").requests)
    }

    /// The most requests at once since this was asked last.
    pub fn take_in_use_max(&self) -> u64 {
        std::mem::take(&mut self.seen.lock().expect("no panic").in_use_max)
    }

    async fn travel(&self, up: u64, down: u64, is_put: bool) -> StoreResult<()> {
        let (now, under_way) = {
            let mut seen = self.seen.lock().expect("no panic");
            let now = self.env.now();
            seen.requests.push((now, up.max(down), is_put));
            seen.in_use += 1;
            seen.in_use_max = seen.in_use_max.max(seen.in_use);
            (now, UnderWay(self))
        };
        let arrives = now + self.round_trip;
        if *self.away.lock().expect("no panic") || (is_put && *self.full.lock().expect("no panic")) {
            self.env.sleep(self.round_trip).await;
            return Err(StoreError::Unreachable("connection refused".to_owned()));
        }
        let until = {
            let mut seen = self.seen.lock().expect("no panic");
            let up_at = self.carry(&mut seen.up, now, up);
            let down_at = self.carry(&mut seen.down, up_at + self.round_trip, down);
            down_at.max(arrives)
        };
        self.env.sleep(until - now).await;
        drop(under_way);
        Ok(())
    }

    fn carry(&self, lane: &mut Lane, from: Duration, bytes: u64) -> Duration {
        if bytes == 0 {
            return from;
        }
        lane.carried += bytes;
        lane.free_at =
            lane.free_at.max(from) + Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_s);
        lane.free_at
    }
}

#[async_trait]
impl Store for Far {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.travel(body.len() as u64, 0, true).await?;
        self.inner.put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.travel(body.len() as u64, 0, true).await?;
        self.inner.put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        let body = self.inner.get(key, bytes_max).await?;
        self.travel(0, body.len() as u64, false).await.map(|()| body)
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        let part = self.inner.get_range(key, range).await?;
        self.travel(0, part.len() as u64, false).await.map(|()| part)
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.travel(0, 0, false).await?;
        self.inner.size(key).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.travel(0, 0, false).await?;
        self.inner.list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.travel(0, 0, false).await?;
        self.inner.list_dirs(prefix).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.travel(0, 0, false).await?;
        self.inner.delete(key).await
    }
    fn url(&self) -> String {
        self.url.to_owned()
    }
}
