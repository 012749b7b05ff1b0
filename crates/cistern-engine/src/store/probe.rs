//! Finds out whether a store keeps the rules that a volume relies on, and how fast it is.
//!
//! Everything happens below `probe/<random>/` and is deleted at the end, also after a failure.
//! A store that lets two writers create one object cannot protect a volume from a second host, so
//! it is refused, whatever its documentation says. Some servers pass when they are asked one after
//! the other and fail when asked at once: therefore the race.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;

use super::{Put, SharedStore, StoreError, StoreResult};
use crate::{Error, Result, env::Env};

mod race;

/// Bytes of the objects that latency is measured with.
const SMALL_BYTES: usize = 4096;
/// New objects that are tried until one is reported as created.
const ABSENT_ROUNDS: usize = 4;
/// How often latency is measured; the median of an odd number is one of them.
const LATENCY_SAMPLES: usize = 9;
/// Bytes of each object that bandwidth is measured with, and how many travel at once.
const LARGE_BYTES: usize = 8 << 20;
const LARGE_PARALLEL: usize = 4;
/// Bytes of the object that ranges are read from: no multiple of anything.
const RANGE_BYTES: usize = 100_003;
/// Objects that listings are tried with.
const LISTED: usize = 5;

/// One rule, and whether the store keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct RuleCheck {
    pub rule: &'static str,
    pub kept: bool,
    /// What was seen instead; empty when kept.
    pub detail: String,
}

/// Whether a volume may live in this store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict")]
pub enum Verdict {
    Ok,
    Refused { reason: String, advice: String },
}

/// What a probe found.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    pub url: String,
    pub checks: Vec<RuleCheck>,
    /// Medians for 4 KiB objects in microseconds. `None` when the verdict came before.
    pub put_us: Option<u64>,
    pub get_us: Option<u64>,
    /// 4 objects of 8 MiB at once, in bytes per second. `None` when the verdict came before.
    pub up_bytes_per_s: Option<u64>,
    pub down_bytes_per_s: Option<u64>,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Objects that could not be deleted afterwards.
    pub left_behind: Vec<String>,
}

/// A probe under way.
struct Session<'a> {
    env: &'a Env,
    store: &'a SharedStore,
    prefix: String,
    /// Every key that may exist.
    used: Vec<String>,
    checks: Vec<RuleCheck>,
}

/// Probes a store. `Err` when it does not answer or refuses access: then nothing can be said.
/// Takes a few dozen small requests and 64 MiB of traffic.
pub async fn probe(env: &Env, store: &SharedStore) -> Result<ProbeReport> {
    let prefix = format!("probe/{}/", env.uuid().simple());
    let mut session = Session { env, store, prefix, used: Vec::new(), checks: Vec::new() };
    let speed = session.run().await;
    let left_behind = session.clean().await;
    let speed = speed?;
    let verdict = verdict(&session.checks);
    Ok(ProbeReport {
        url: store.url(),
        checks: session.checks,
        put_us: speed.as_ref().map(|s| s.put_us),
        get_us: speed.as_ref().map(|s| s.get_us),
        up_bytes_per_s: speed.as_ref().map(|s| s.up),
        down_bytes_per_s: speed.as_ref().map(|s| s.down),
        verdict,
        left_behind,
    })
}

struct Speed {
    put_us: u64,
    get_us: u64,
    up: u64,
    down: u64,
}

const RULE_ABSENT: &str = "put-if-absent";
const RULE_RACE: &str = "put-if-absent, raced";
const RULE_READ: &str = "read-after-write";
const RULE_LIST: &str = "list-after-write";
const RULE_RANGE: &str = "range reads";
const RULE_DELETE: &str = "delete";

fn verdict(checks: &[RuleCheck]) -> Verdict {
    let Some(broken) = checks.iter().find(|c| !c.kept) else { return Verdict::Ok };
    let advice = match broken.rule {
        RULE_ABSENT | RULE_RACE => {
            "Two hosts could overwrite each other's data here. Use a server that honours \
             If-None-Match on PUT, also under contention (Amazon S3, Google Cloud Storage, Azure, \
             a current MinIO), or a newer version of this one"
        }
        RULE_READ | RULE_LIST => "Something caches in front of the store: use its own endpoint",
        RULE_RANGE => "Something in front of the store drops Range headers: use its own endpoint",
        _ => "Allow the credentials to delete objects, and use a bucket without object lock",
    };
    Verdict::Refused { reason: format!("{}: {}", broken.rule, broken.detail), advice: advice.to_owned() }
}

impl Session<'_> {
    async fn run(&mut self) -> Result<Option<Speed>> {
        self.check_absent().await?;
        // Where nobody ever creates anything, nobody wins.
        if self.checks.iter().all(|c| c.kept) {
            race::check(self).await?;
        }
        self.check_read().await?;
        self.check_ranges().await?;
        self.check_list().await?;
        self.check_delete().await?;
        match self.checks.iter().all(|c| c.kept) {
            true => Ok(Some(self.measure().await?)),
            false => Ok(None),
        }
    }

    /// A key of this probe, which will be deleted at its end.
    fn key(&mut self, name: &str) -> String {
        let key = format!("{}{name}", self.prefix);
        self.used.push(key.clone());
        key
    }

    fn note(&mut self, rule: &'static str, fault: Option<String>) {
        self.checks.push(RuleCheck { rule, kept: fault.is_none(), detail: fault.unwrap_or_default() });
    }

    async fn check_absent(&mut self) -> Result<()> {
        let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
        let mut round = 0;
        let (key, created) = loop {
            let key = self.key(&format!("absent/{round}"));
            let created = match self.store.put_if_absent(&key, first.clone()).await {
                Err(StoreError::Refused(why)) => return Err(Error::Refused(why)),
                other => other?,
            };
            round += 1;
            // Below a wrapper that tries again, a put whose reply was lost meets its own object.
            if created == Put::Created || round == ABSENT_ROUNDS {
                break (key, created);
            }
        };
        let again = self.store.put_if_absent(&key, second).await?;
        let kept = read_back(self.store, &key).await?;
        let fault = match (created, again) {
            (Put::Exists, _) => Some("a new object was reported as existing".to_owned()),
            (_, Put::Created) => Some("an existing object was overwritten".to_owned()),
            _ if kept.as_ref() != Some(&first) => Some("the refused write changed the object".to_owned()),
            _ => None,
        };
        self.note(RULE_ABSENT, fault);
        Ok(())
    }

    async fn check_read(&mut self) -> Result<()> {
        let key = self.key("read");
        let mut fault = None;
        for version in 0..3u8 {
            let body = Bytes::from(vec![version; SMALL_BYTES]);
            self.store.put(&key, body.clone()).await?;
            if read_back(self.store, &key).await? != Some(body) {
                fault = Some(format!("version {version} was not what the next read gave"));
                break;
            }
        }
        self.note(RULE_READ, fault);
        Ok(())
    }

    async fn check_ranges(&mut self) -> Result<()> {
        let key = self.key("range");
        let body: Bytes = (0..RANGE_BYTES).map(|i| (i * 7 + i / 256) as u8).collect::<Vec<u8>>().into();
        let end = RANGE_BYTES as u64;
        self.store.put(&key, body.clone()).await?;
        let mut fault = None;
        for range in
            [0..1, 0..4096, 4096..8192, 50_001..50_777, end - 1..end, end - 10..end + 4096, end..end + 9]
        {
            let expected = body.slice(range.start.min(end) as usize..range.end.min(end) as usize);
            match self.store.get_range(&key, range.clone()).await {
                Ok(got) if got == expected => {}
                Ok(got) => fault = Some(format!("bytes {range:?} gave {} other bytes", got.len())),
                Err(StoreError::Refused(why)) => fault = Some(why),
                Err(e) => return Err(e.into()),
            }
        }
        self.note(RULE_RANGE, fault);
        Ok(())
    }

    async fn check_list(&mut self) -> Result<()> {
        let keys: Vec<String> = (0..LISTED).map(|i| self.key(&format!("list/{i}"))).collect();
        let mut fault = None;
        for (i, key) in keys.iter().enumerate() {
            self.store.put(key, Bytes::from(vec![0; i + 1])).await?;
            let prefix = format!("{}list/", self.prefix);
            let listed = self.store.list_after(&prefix, "", LISTED + 1).await?;
            let wanted = keys[..=i].iter().enumerate().map(|(n, key)| (key.clone(), n as u64 + 1));
            if listed.into_iter().map(|l| (l.key, l.bytes)).ne(wanted) {
                fault = Some("a new object was missing from a listing, or the order was wrong".to_owned());
            }
            let behind = self.store.list_after(&prefix, key, LISTED + 1).await?;
            if !behind.is_empty() {
                fault = Some("a listing ignored where to start".to_owned());
            }
        }
        self.note(RULE_LIST, fault);
        Ok(())
    }

    async fn check_delete(&mut self) -> Result<()> {
        let key = self.key("delete");
        self.store.put(&key, Bytes::from_static(b"x")).await?;
        let fault = match self.store.delete(&key).await {
            Err(StoreError::Unreachable(why)) => return Err(Error::Unreachable(why)),
            Err(e) => Some(e.to_string()),
            Ok(()) if read_back(self.store, &key).await?.is_some() => {
                Some("a deleted object can still be read".to_owned())
            }
            Ok(()) => self.store.delete(&key).await.err().map(|e| format!("deleting again: {e}")),
        };
        self.note(RULE_DELETE, fault);
        Ok(())
    }

    async fn measure(&mut self) -> Result<Speed> {
        let (mut puts, mut gets) = (Vec::new(), Vec::new());
        for i in 0..LATENCY_SAMPLES {
            let key = self.key(&format!("small/{i}"));
            let body = Bytes::from(self.env.random_bytes::<SMALL_BYTES>().to_vec());
            puts.push(timed(self.env, self.store.put(&key, body)).await?);
            gets.push(timed(self.env, self.store.get_range(&key, 0..SMALL_BYTES as u64)).await?);
        }
        let keys: Vec<String> = (0..LARGE_PARALLEL).map(|i| self.key(&format!("large/{i}"))).collect();
        let body = incompressible(self.env);
        let up = together(keys.iter().map(|key| self.store.put(key, body.clone())));
        let up = timed(self.env, up).await?;
        let down = keys.iter().map(|key| async { self.store.get(key, LARGE_BYTES as u64).await.map(drop) });
        let down = timed(self.env, together(down)).await?;
        let rate = |time: Duration| {
            let us = time.as_micros().max(1) as u64;
            (LARGE_BYTES * LARGE_PARALLEL) as u64 * 1_000_000 / us
        };
        Ok(Speed { put_us: median_us(puts), get_us: median_us(gets), up: rate(up), down: rate(down) })
    }

    /// Deletes everything, and says what stayed.
    async fn clean(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for key in std::mem::take(&mut self.used) {
            if let Err(e) = self.store.delete(&key).await {
                tracing::warn!(key, error = %e, "the probe could not delete its object");
                left.push(key);
            }
        }
        left
    }
}

/// The object's bytes, `None` if it is not there.
async fn read_back(store: &SharedStore, key: &str) -> StoreResult<Option<Bytes>> {
    match store.get(key, LARGE_BYTES as u64).await {
        Ok(body) => Ok(Some(body)),
        Err(StoreError::NotFound(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn timed<T>(env: &Env, request: impl Future<Output = StoreResult<T>>) -> StoreResult<Duration> {
    let begin = env.now();
    request.await?;
    Ok(env.now().saturating_sub(begin))
}

async fn together<F: Future<Output = StoreResult<()>>>(requests: impl Iterator<Item = F>) -> StoreResult<()> {
    join_all(requests).await.into_iter().collect()
}

fn median_us(mut times: Vec<Duration>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0, |t| t.as_micros() as u64)
}

/// A body that nothing on the way can shrink.
fn incompressible(env: &Env) -> Bytes {
    let mut out = Vec::with_capacity(LARGE_BYTES);
    while out.len() < LARGE_BYTES {
        out.extend_from_slice(&env.random_bytes::<65_536>());
    }
    out.into()
}
