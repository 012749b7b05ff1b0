//! Finds out whether a store keeps the rules that a volume relies on, and how fast it is.
//!
//! Everything happens below `probe/` and is deleted at the end, also after a failure. A store that lets two writers
//! create one object cannot protect a volume from a second host, so it is refused, whatever its documentation says.
//! Some servers pass when they are asked one after the other and fail when asked at once, and some of those only now
//! and then: therefore the races. What is asked, and what an acceptance proves: `docs/design/answers.md`.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use serde::Serialize;

use super::{Put, SharedStore, StoreError, StoreResult, delete_all};
use crate::{
    Error, Result,
    env::Env,
    rank::{Rank, Ranked},
};

mod endpoints;
mod listing;
mod meeting;
mod race;
mod speed;

pub use endpoints::Endpoints;
pub use speed::{PROBED_OBJECT_BYTES, PROBED_OBJECT_BYTES_SLOW};

/// Bytes of the objects that latency is measured with.
const SMALL_BYTES: usize = 4096;
/// New objects that are tried until one is reported as created.
const ABSENT_ROUNDS: usize = 4;
/// Bytes of the object that ranges are read from: no multiple of anything.
const RANGE_BYTES: usize = 100_003;
/// Bytes of the longest object that is read as a whole.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Objects that one bulk deletion is tried with, beside one that is missing.
const DELETED_TOGETHER: usize = 3;

/// How much of a store is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeDepth {
    /// Everything: hundreds of races, for about three seconds, and the largest object that a volume may write.
    Full,
    /// For directories, where our own code keeps the rules by what any file system has: a few races, little data.
    Brief,
}

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
    /// Races with exactly one winner, each of [`race::WRITERS`] writers.
    pub races: usize,
    /// Medians for 4 KiB objects in microseconds. `None` when the verdict came before.
    pub put_us: Option<u64>,
    pub get_us: Option<u64>,
    /// 4 objects of 8 MiB at once, in bytes per second. `None` when the verdict came before.
    pub up_bytes_per_s: Option<u64>,
    pub down_bytes_per_s: Option<u64>,
    /// The largest object that was written. `None` when the verdict came before.
    pub largest_bytes: Option<u64>,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Objects that could not be deleted afterwards.
    pub left_behind: Vec<String>,
}

/// A probe under way.
struct Session<'a> {
    env: &'a Env,
    store: &'a SharedStore,
    depth: ProbeDepth,
    /// Of this probe alone.
    id: String,
    seen: Ranked<ProbeNotes>,
}

/// What a probe has done and found so far.
#[derive(Default)]
struct ProbeNotes {
    /// Every key that may exist.
    used: Vec<String>,
    checks: Vec<RuleCheck>,
    races: usize,
}

/// Probes a store. `Err` when it does not answer or refuses access: then nothing can be said.
/// In full it takes some thousand small requests and 144 MiB of traffic.
pub async fn probe(env: &Env, store: &SharedStore, depth: ProbeDepth) -> Result<ProbeReport> {
    let id = env.uuid().simple().to_string();
    let seen = Ranked::new(Rank::World, ProbeNotes::default());
    let session = Session { env, store, depth, id, seen };
    let speed = session.run().await;
    let left_behind = session.clean().await;
    let speed = speed?;
    let ProbeNotes { checks, races, .. } = std::mem::take(&mut *session.seen.lock());
    let verdict = verdict(&checks);
    Ok(ProbeReport {
        url: store.url(),
        checks,
        races,
        put_us: speed.as_ref().map(|s| s.put_us),
        get_us: speed.as_ref().map(|s| s.get_us),
        up_bytes_per_s: speed.as_ref().map(|s| s.up),
        down_bytes_per_s: speed.as_ref().map(|s| s.down),
        largest_bytes: speed.as_ref().map(|s| s.largest_bytes),
        verdict,
        left_behind,
    })
}

const RULE_ABSENT: &str = "put-if-absent";
const RULE_RACE: &str = "put-if-absent, raced";
const RULE_READ: &str = "read-after-write";
const RULE_LIST: &str = "list-after-write";
const RULE_PAGES: &str = "listings in pages";
const RULE_DIRS: &str = "listings of directories";
const RULE_RANGE: &str = "range reads";
const RULE_DELETE: &str = "delete";
const RULE_BULK: &str = "delete many";
const RULE_SIZE: &str = "large objects";

fn verdict(checks: &[RuleCheck]) -> Verdict {
    let Some(broken) = checks.iter().find(|c| !c.kept) else { return Verdict::Ok };
    let advice = match broken.rule {
        RULE_ABSENT | RULE_RACE => {
            "Two hosts could overwrite each other's data here. Use a server that honours \
             If-None-Match on PUT, also under contention (Amazon S3, Google Cloud Storage, Azure, \
             a current MinIO), or a newer version of this one"
        }
        RULE_READ => "Something caches in front of the store: use its own endpoint",
        RULE_LIST | RULE_PAGES | RULE_DIRS => {
            "A volume that is listed in part loses data. Use the store's own endpoint if something is in front of it, allow the \
             credentials to list objects, or use a newer version of this server"
        }
        RULE_RANGE => "Something in front of the store drops Range headers: use its own endpoint",
        RULE_SIZE => {
            "Raise the limit of the server, or of the proxy in front of it (nginx: client_max_body_size 100m), or use the store's \
             own endpoint: a volume writes objects of up to 80 MiB"
        }
        _ => "Allow the credentials to delete objects, and use a bucket without object lock",
    };
    Verdict::Refused { reason: format!("{}: {}", broken.rule, broken.detail), advice: advice.to_owned() }
}

impl Session<'_> {
    async fn run(&self) -> Result<Option<speed::Speed>> {
        self.check_absent().await?;
        // Where nobody ever creates anything, nobody wins.
        if self.keeps_all() {
            self.check_races().await?;
        }
        self.check_read().await?;
        self.check_ranges().await?;
        listing::check(self).await?;
        self.check_delete().await?;
        self.check_bulk().await?;
        match self.keeps_all() {
            true => speed::measure(self).await,
            false => Ok(None),
        }
    }

    /// A key of this probe, which will be deleted at its end.
    fn key(&self, name: &str) -> String {
        let key = format!("{}{name}", self.prefix());
        self.delete_later(&key);
        key
    }

    fn prefix(&self) -> String {
        format!("probe/{}/", self.id)
    }

    fn delete_later(&self, key: &str) {
        self.seen.lock().used.push(key.to_owned());
    }

    fn note(&self, rule: &'static str, fault: Option<String>) {
        let check = RuleCheck { rule, kept: fault.is_none(), detail: fault.unwrap_or_default() };
        self.seen.lock().checks.push(check);
    }

    fn keeps_all(&self) -> bool {
        self.seen.lock().checks.iter().all(|c| c.kept)
    }

    /// Races within this probe, and at the same time with any other probe of this place.
    async fn check_races(&self) -> Result<()> {
        let over = AtomicBool::new(self.depth == ProbeDepth::Brief);
        let races = async {
            let raced = race::run(self).await;
            over.store(true, Relaxed);
            raced
        };
        let (raced, met) = join(races, meeting::run(self, &over)).await;
        self.note(RULE_RACE, raced?.or(met?));
        Ok(())
    }

    async fn check_absent(&self) -> Result<()> {
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

    async fn check_read(&self) -> Result<()> {
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

    async fn check_ranges(&self) -> Result<()> {
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
                Err(StoreError::NotFound(_)) => fault = Some("what was just written is not found".to_owned()),
                Err(e) => return Err(e.into()),
            }
        }
        self.note(RULE_RANGE, fault);
        Ok(())
    }

    async fn check_delete(&self) -> Result<()> {
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

    /// Deletes several objects with one request where the store can, one of which is missing.
    async fn check_bulk(&self) -> Result<()> {
        let keys: Vec<String> =
            (0..=DELETED_TOGETHER).map(|i| self.key(&format!("delete-many/{i}"))).collect();
        let missing = DELETED_TOGETHER / 2;
        let there = || keys.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, key)| key);
        for key in there() {
            self.store.put(key, Bytes::from_static(b"x")).await?;
        }
        let mut fault = match delete_all(&**self.store, &keys).await.into_iter().next() {
            Some(undeleted) => match undeleted.why {
                StoreError::Unreachable(why) => return Err(Error::Unreachable(why)),
                why => Some(why.to_string()),
            },
            None => None,
        };
        for key in there() {
            if fault.is_none() && read_back(self.store, key).await?.is_some() {
                fault = Some("an object that was answered as deleted can still be read".to_owned());
            }
        }
        self.note(RULE_BULK, fault);
        Ok(())
    }

    /// Deletes everything, and says what stayed.
    async fn clean(&self) -> Vec<String> {
        let used = std::mem::take(&mut self.seen.lock().used);
        let undeleted = delete_all(&**self.store, &used).await;
        let mut left: Vec<String> = undeleted.into_iter().map(|u| u.key).collect();
        // A bulk deletion may say more than it does.
        let listed = self.store.list_after(&self.prefix(), "", super::LIST_MAX).await.unwrap_or_default();
        for key in listed.into_iter().map(|listed| listed.key).filter(|key| used.contains(key)) {
            let gone = self.store.delete(&key).await.is_ok();
            if gone {
                left.retain(|known| *known != key);
            } else if !left.contains(&key) {
                left.push(key);
            }
        }
        for key in &left {
            tracing::warn!(key, "the probe could not delete its object");
        }
        left
    }
}

/// The object's bytes, `None` if it is not there.
async fn read_back(store: &SharedStore, key: &str) -> StoreResult<Option<Bytes>> {
    match store.get(key, READ_BYTES_MAX).await {
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
