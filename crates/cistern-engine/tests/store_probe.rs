//! The probe, over stores that break one rule each, some of them seldom.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    env::Env,
    store::{
        Endpoints, Listed, MemoryStore, PagedNames, ProbeDepth, ProbeReport, Put, Retry, SharedStore, Store,
        StoreError, StoreResult, Undeleted, Verdict, probe,
    },
};

mod store_support;

use store_support::{
    passing::{Passing, Through},
    real_env,
};

const DEADLINE: Duration = Duration::from_secs(60);
/// What a proxy may be limited to.
const LIMIT_BYTES: usize = 10 << 20;

/// How a store misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Away,
    Refuses,
    /// The first conditional put is done, its reply is lost.
    LosesReply,
    IgnoresCondition,
    /// Conditional puts are done, and always reported as refused.
    NeverCreates,
    /// Conditions hold one after the other, but several at once win.
    Races,
    IgnoresRange,
    ListsLate,
    /// A listing ends with its first page.
    EndsAfterAPage,
    /// The same of directories.
    LosesDirectories,
    IgnoresDelimiter,
    KeepsDeleted,
    /// Of a bulk deletion nothing is done, and all is answered as deleted.
    KeepsDeletedInBulk,
    /// What is missing fails a bulk deletion.
    FailsOnMissing,
    ReadsStale,
    TakesNothingLarge,
    /// Accepts it, and keeps the beginning.
    CutsLarge,
}

struct Broken {
    inner: MemoryStore,
    fault: Fault,
    requests: AtomicUsize,
}

impl Broken {
    fn new(fault: Fault) -> Arc<Through<Broken>> {
        Through::new(Broken { inner: MemoryStore::new(), fault, requests: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Passing for Broken {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        self.requests.fetch_add(1, Relaxed);
        match self.fault {
            Fault::Away => Err(StoreError::Unreachable("away".to_owned())),
            Fault::Refuses => Err(StoreError::Refused("forbidden".to_owned())),
            _ => Ok(()),
        }
    }
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        match self.fault {
            Fault::ReadsStale => self.inner.put_if_absent(key, body).await.map(|_| ()),
            Fault::TakesNothingLarge if body.len() > LIMIT_BYTES => {
                Err(StoreError::Refused("413 EntityTooLarge".to_owned()))
            }
            Fault::CutsLarge if body.len() > LIMIT_BYTES => {
                self.inner.put(key, body.slice(..LIMIT_BYTES)).await
            }
            _ => self.inner.put(key, body).await,
        }
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        match self.fault {
            Fault::IgnoresCondition => self.inner.put(key, body).await.map(|()| Put::Created),
            Fault::NeverCreates => self.inner.put_if_absent(key, body).await.map(|_| Put::Exists),
            Fault::Races if self.inner.get(key, 1 << 20).await.is_err() => {
                tokio::task::yield_now().await;
                self.inner.put(key, body).await.map(|()| Put::Created)
            }
            Fault::LosesReply if self.requests.load(Relaxed) == 1 => {
                self.inner.put_if_absent(key, body).await?;
                Err(StoreError::Unreachable("the reply was lost".to_owned()))
            }
            _ => self.inner.put_if_absent(key, body).await,
        }
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        match self.fault {
            Fault::IgnoresRange => self.inner.get(key, 1 << 30).await,
            _ => self.inner.get_range(key, range).await,
        }
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        let mut listed = self.inner.list_after(prefix, after, count_max).await?;
        if self.fault == Fault::ListsLate {
            listed.pop();
        }
        Ok(listed)
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        match self.fault {
            Fault::IgnoresDelimiter => Ok(Vec::new()),
            _ => self.inner.list_dirs(prefix).await,
        }
    }
    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        let mut names = self.inner.list_in_pages(prefix, what, page_names).await?;
        match (self.fault, what) {
            (Fault::EndsAfterAPage, PagedNames::Objects)
            | (Fault::LosesDirectories, PagedNames::Directories) => names.truncate(page_names),
            _ => {}
        }
        Ok(names)
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        match self.fault {
            Fault::KeepsDeleted => Ok(()),
            _ => self.inner.delete(key).await,
        }
    }
    fn deletes_at_once(&self) -> usize {
        match self.fault {
            Fault::KeepsDeletedInBulk | Fault::FailsOnMissing => 1000,
            _ => 1,
        }
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        match self.fault {
            Fault::KeepsDeletedInBulk => Ok(Vec::new()),
            Fault::FailsOnMissing => {
                let mut undeleted = Vec::new();
                for key in keys {
                    match self.inner.get(key, 1 << 30).await {
                        Ok(_) => self.inner.delete(key).await?,
                        Err(why) => undeleted.push(Undeleted { key: key.clone(), why }),
                    }
                }
                Ok(undeleted)
            }
            _ => self.inner.delete_many(keys).await,
        }
    }
}

async fn probed(env: &Env, store: &SharedStore) -> ProbeReport {
    probe(env, store, ProbeDepth::Full).await.expect("the store answers")
}

/// Every broken rule is found, refused with its name, and what was written is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn probes_find_broken_rules() {
    let env = real_env();
    for (fault, rule) in [
        (Fault::IgnoresCondition, "put-if-absent:"),
        (Fault::NeverCreates, "put-if-absent:"),
        (Fault::Races, "put-if-absent, raced:"),
        (Fault::ReadsStale, "read-after-write:"),
        (Fault::IgnoresRange, "range reads:"),
        (Fault::ListsLate, "list-after-write:"),
        (Fault::EndsAfterAPage, "listings in pages:"),
        (Fault::LosesDirectories, "listings of directories:"),
        (Fault::IgnoresDelimiter, "listings of directories:"),
        (Fault::KeepsDeleted, "delete:"),
        (Fault::KeepsDeletedInBulk, "delete many:"),
        (Fault::FailsOnMissing, "delete many:"),
        (Fault::TakesNothingLarge, "large objects: an object of 80 MiB is not accepted"),
        (Fault::CutsLarge, "large objects:"),
    ] {
        let broken = Broken::new(fault);
        let store: SharedStore = broken.clone();
        let report = probed(&env, &store).await;
        let Verdict::Refused { reason, advice } = &report.verdict else { panic!("{fault:?}: {report:?}") };
        assert!(reason.starts_with(rule) && !advice.is_empty(), "{fault:?}: {reason}");
        assert!(report.put_us.is_none(), "a refused store is not measured");
        if fault != Fault::KeepsDeleted {
            assert!(broken.inner.list_after("", "", 1).await.expect("a listing").is_empty(), "{fault:?}");
        }
    }
}

/// A put whose reply is lost is tried again below the probe, and meets its own object: that is no fault of the store.
#[tokio::test(flavor = "multi_thread")]
async fn probes_forgive_a_lost_reply() {
    let env = real_env();
    let store: SharedStore = Arc::new(Retry::new(Broken::new(Fault::LosesReply), env.clone(), DEADLINE));
    let report = probed(&env, &store).await;
    assert!(matches!(report.verdict, Verdict::Ok), "{report:?}");
}

/// Of a store that is away, or refuses access, a probe says nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn probes_do_not_judge_what_does_not_answer() {
    let env = real_env();
    let away: SharedStore = Broken::new(Fault::Away);
    assert!(matches!(probe(&env, &away, ProbeDepth::Full).await, Err(Error::Unreachable(_))));
    let refuses: SharedStore = Broken::new(Fault::Refuses);
    assert!(matches!(probe(&env, &refuses, ProbeDepth::Full).await, Err(Error::Refused(_))));
}

/// A report reads as plain JSON: the verdict is a word, with reason and advice beside it.
#[tokio::test(flavor = "multi_thread")]
async fn reports_are_plain_data() {
    let store: SharedStore = Broken::new(Fault::IgnoresCondition);
    let report = serde_json::to_value(probed(&real_env(), &store).await).expect("plain data");
    assert_eq!(report["verdict"], "refused");
    assert!(report["reason"].is_string() && report["advice"].is_string());
    assert_eq!(report["checks"][0]["kept"], false);
}

/// A store that lets two writers win one race of 60.
struct SeldomBroken {
    inner: MemoryStore,
    state: Mutex<u64>,
    /// Names whose next writer is told that it created them too.
    weak: Mutex<HashSet<String>>,
    takes: Duration,
    env: Env,
}

impl SeldomBroken {
    fn draw(&self) -> u64 {
        let mut state = self.state.lock().expect("unpoisoned");
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state >> 11
    }
}

#[async_trait]
impl Passing for SeldomBroken {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        if !self.takes.is_zero() {
            self.env.sleep(self.takes).await;
        }
        let put = self.inner.put_if_absent(key, body.clone()).await?;
        if put == Put::Created && key.contains("/race/") && self.draw().is_multiple_of(60) {
            self.weak.lock().expect("unpoisoned").insert(key.to_owned());
        } else if self.weak.lock().expect("unpoisoned").remove(key) {
            self.inner.put(key, body).await?;
            return Ok(Put::Created);
        }
        Ok(put)
    }
}

async fn refused_of_twenty(takes: Duration) -> usize {
    let mut refused = 0;
    for seed in 1..=20u64 {
        let env = real_env();
        let store: SharedStore = Through::new(SeldomBroken {
            inner: MemoryStore::new(),
            state: Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            weak: Mutex::default(),
            takes,
            env: env.clone(),
        });
        let report = probed(&env, &store).await;
        refused += usize::from(matches!(report.verdict, Verdict::Refused { .. }));
    }
    refused
}

/// A store that breaks put-if-absent once in 60 races is refused 19 times of 20 at least; a sound one is accepted, after
/// hundreds of races.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_seldom_breaks_the_rule_is_refused() {
    assert!(refused_of_twenty(Duration::ZERO).await >= 19);
    // As one that is reached over a network.
    assert!(refused_of_twenty(Duration::from_millis(5)).await >= 19);
    let store: SharedStore = Arc::new(MemoryStore::new());
    let report = probed(&real_env(), &store).await;
    assert!(report.verdict == Verdict::Ok && report.races >= 400, "{report:?}");
}

/// A door to a store that checks conditions by what came through itself.
struct Gateway {
    store: Arc<MemoryStore>,
    checks_alone: bool,
    seen: Mutex<HashSet<String>>,
    env: Env,
    meetings: Arc<AtomicU64>,
}

#[async_trait]
impl Passing for Gateway {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.env.sleep(Duration::from_millis(3)).await;
        self.meetings.fetch_add(u64::from(key.starts_with("probe/meeting/")), Relaxed);
        if !self.checks_alone {
            return self.store.put_if_absent(key, body).await;
        }
        match self.seen.lock().expect("unpoisoned").insert(key.to_owned()) {
            true => {}
            false => return Ok(Put::Exists),
        }
        self.store.put(key, body).await.map(|()| Put::Created)
    }
}

/// Two probes at the same time, each through a gateway of its own: those that each check alone are refused, sound ones accepted.
#[tokio::test(flavor = "multi_thread")]
async fn two_probes_at_once_contend() {
    for checks_alone in [true, false] {
        let env = real_env();
        let store = Arc::new(MemoryStore::new());
        let meetings = Arc::new(AtomicU64::new(0));
        let gateway = || -> SharedStore {
            let (env, store, meetings) = (env.clone(), store.clone(), meetings.clone());
            Through::new(Gateway { store, checks_alone, seen: Mutex::default(), env, meetings })
        };
        let (one, other) = (gateway(), gateway());
        let (one, other) = tokio::join!(probed(&env, &one), probed(&env, &other));
        let refused = [&one, &other].into_iter().filter(|report| report.verdict != Verdict::Ok).count();
        assert_eq!(refused > 0, checks_alone, "{one:?} {other:?}");
        assert!(meetings.load(Relaxed) > 0);
        let left = store.list_after("probe/", "", 10).await.expect("a listing");
        assert!(left.is_empty(), "{left:?}");
    }
}

/// One probe through two gateways at once: those that each check alone are refused, by the first object that is created twice; sound ones
/// are accepted, after hundreds of races.
#[tokio::test(flavor = "multi_thread")]
async fn one_probe_looks_through_two_gateways() {
    for checks_alone in [true, false] {
        let (env, store, meetings) = (real_env(), Arc::<MemoryStore>::default(), Arc::<AtomicU64>::default());
        let gateway = || -> SharedStore {
            let (env, store, meetings) = (env.clone(), store.clone(), meetings.clone());
            Through::new(Gateway { store, checks_alone, seen: Mutex::default(), env, meetings })
        };
        let both: SharedStore = Arc::new(Endpoints::new(vec![gateway(), gateway()]));
        let report = probed(&env, &both).await;
        assert_eq!(report.verdict != Verdict::Ok, checks_alone, "{report:?}");
        assert!(checks_alone || report.races >= 400, "{report:?}");
    }
}

/// Alone, the same gateway passes: that is what the second probe is for.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_checks_alone_passes_alone() {
    let (env, meetings) = (real_env(), Arc::default());
    let gateway = Gateway {
        store: Arc::default(),
        checks_alone: true,
        seen: Mutex::default(),
        env: env.clone(),
        meetings,
    };
    let store: SharedStore = Through::new(gateway);
    assert_eq!(probed(&env, &store).await.verdict, Verdict::Ok);
}
