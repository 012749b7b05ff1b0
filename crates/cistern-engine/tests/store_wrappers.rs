//! Retries and meters, over stores that misbehave on purpose.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{
        Failures, MemoryStore, Meter, Put, Rates, Retry, Scheduler, SharedStore, Store, StoreError,
        StoreResult,
    },
};
use futures_util::future::join_all;

mod store_support;

use store_support::{
    hurried_env, jumping_env,
    passing::{Passing, Through},
};

/// How a store misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The first so many requests fail.
    Away(usize),
    Refuses,
    /// The first so many requests are never answered.
    Hangs(usize),
    /// The first conditional put is done, its reply is lost.
    LosesReply,
}

struct Faulty {
    inner: MemoryStore,
    fault: Fault,
    requests: AtomicUsize,
}

impl Faulty {
    fn new(fault: Fault) -> Arc<Through<Faulty>> {
        Through::new(Faulty { inner: MemoryStore::new(), fault, requests: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Passing for Faulty {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        let request = self.requests.fetch_add(1, Relaxed);
        match self.fault {
            Fault::Away(times) if request < times => Err(StoreError::Unreachable("away".to_owned())),
            Fault::Refuses => Err(StoreError::Refused("forbidden".to_owned())),
            Fault::Hangs(times) if request < times => std::future::pending().await,
            _ => Ok(()),
        }
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        match self.fault {
            Fault::LosesReply if self.requests.load(Relaxed) == 1 => {
                self.inner.put_if_absent(key, body).await?;
                Err(StoreError::Unreachable("the reply was lost".to_owned()))
            }
            _ => self.inner.put_if_absent(key, body).await,
        }
    }
}

const DEADLINE: Duration = Duration::from_secs(60);

/// A store that comes back within the deadline was never away, as far as the caller can tell.
#[tokio::test(flavor = "multi_thread")]
async fn retries_bridge_an_outage() {
    let env = jumping_env();
    let faulty = Faulty::new(Fault::Away(5));
    let store = Retry::new(faulty.clone(), env.clone(), DEADLINE);
    let begin = env.now();
    store.put("log/1", Bytes::from_static(b"x")).await.expect("it came back");
    assert_eq!(faulty.requests.load(Relaxed), 6);
    let waited = env.now() - begin;
    // Five waits of 50..100, 100..200, .. 800..1600 ms.
    assert!((Duration::from_millis(1550)..=Duration::from_millis(3100)).contains(&waited), "{waited:?}");
}

/// What somebody who looks during each try sees of requests that are tried again.
struct Looked {
    inner: Arc<Through<Faulty>>,
    failures: OnceLock<Failures>,
    seen: Mutex<Vec<u64>>,
}

#[async_trait]
impl Passing for Looked {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        let seen = self.failures.get().expect("set before the first request").retried_now();
        self.seen.lock().expect("no panic").push(seen);
        Ok(())
    }
}

/// A request is said to be tried again from its first failure until it ends, in whatever way.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_tried_again_shows() {
    for (fault, trouble) in [(Fault::Away(2), 2), (Fault::Hangs(1), 1), (Fault::None, 0)] {
        let (failures, seen) = (OnceLock::new(), Mutex::default());
        let looked = Through::new(Looked { inner: Faulty::new(fault), failures, seen });
        let store = Retry::new(looked.clone(), jumping_env(), DEADLINE);
        let failures = store.failures();
        looked.failures.set(failures.clone()).expect("once");
        store.put("log/1", Bytes::from_static(b"x")).await.expect("put in the end");
        assert_eq!(failures.retried_now(), 0, "{fault:?}: it has ended");
        let expected: Vec<u64> = [0].into_iter().chain(vec![1; trouble]).collect();
        assert_eq!(*looked.seen.lock().expect("no panic"), expected, "{fault:?}");
    }
    let env = jumping_env();
    let store = Retry::new(Faulty::new(Fault::Away(usize::MAX)), env.clone(), DEADLINE);
    store.get("log/1", 10).await.expect_err("away");
    assert_eq!(store.failures().retried_now(), 0, "it was given up");
}

/// A store that stays away is given up at the deadline, with its own last words.
#[tokio::test(flavor = "multi_thread")]
async fn retries_end_at_the_deadline() {
    for fault in [Fault::Away(usize::MAX), Fault::Hangs(usize::MAX)] {
        let env = jumping_env();
        let faulty = Faulty::new(fault);
        let store = Retry::new(faulty.clone(), env.clone(), DEADLINE);
        let begin = env.now();
        let error = store.get("log/1", 10).await.expect_err("away");
        assert!(matches!(&error, StoreError::Unreachable(_)), "{error:?}");
        assert!(env.now() - begin <= DEADLINE, "{:?}", env.now() - begin);
        match fault {
            Fault::Hangs(_) => assert!(error.to_string().contains("GET log/1: no answer"), "{error}"),
            _ => {
                assert!(error.to_string().contains("away (") && faulty.requests.load(Relaxed) > 8, "{error}")
            }
        }
    }
}

/// Whose first request waits long for its turn.
struct Queued {
    inner: Arc<Through<Faulty>>,
    env: Env,
}

#[async_trait]
impl Passing for Queued {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        if self.inner.requests.load(Relaxed) == 0 {
            self.env.sleep(2 * DEADLINE).await;
        }
        Ok(())
    }
}

/// Where nobody in particular waits, what waited long for its turn and failed then is tried again for all of its time.
#[tokio::test(flavor = "multi_thread")]
async fn patience_begins_with_the_first_failure() {
    let env = jumping_env();
    let queued = Through::new(Queued { inner: Faulty::new(Fault::Away(3)), env: env.clone() });
    let store = Retry::patient(queued, env.clone(), DEADLINE);
    store.put("log/1", Bytes::from_static(b"x")).await.expect("it came back");
    let away = Retry::patient(Faulty::new(Fault::Away(usize::MAX)), env.clone(), DEADLINE);
    let begin = env.now();
    away.get("log/1", 10).await.expect_err("away");
    assert!(env.now() - begin <= DEADLINE, "{:?}", env.now() - begin);
}

/// A store that refuses everything until a time.
struct Expired {
    inner: MemoryStore,
    env: Env,
    until: Duration,
}

#[async_trait]
impl Passing for Expired {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        match self.env.now() < self.until {
            true => Err(StoreError::Refused("403 ExpiredToken".to_owned())),
            false => Ok(()),
        }
    }
}

/// What a store refuses ends a command and an opening at once. Once a volume is served its reads wait until it passes, and it shows that they
/// do and why; other requests are told at once, as before. One that lasts ends them after minutes.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_served_volume_ride_out_refusals() {
    for (lasts, readers, passes) in [(60, 8, true), (3600, 1, false)] {
        let env = jumping_env();
        let until = env.now() + Duration::from_secs(lasts);
        let inner = MemoryStore::new();
        inner.put("log/1", Bytes::from_static(b"block")).await.expect("put");
        let store: SharedStore = Through::new(Expired { inner, env: env.clone(), until });
        let scheduler = Scheduler::new(env.clone());
        let stores = scheduler.stores(&store, DEADLINE);
        assert!(matches!(stores.read.get("log/1", 10).await, Err(StoreError::Refused(_))), "an opening");
        stores.ride_out.begin();
        for other in [&stores.write_back, &stores.ahead, &stores.background] {
            assert!(matches!(other.get("log/1", 10).await, Err(StoreError::Refused(_))), "{other:?}");
        }
        let begin = env.now();
        let reads = (0..readers).map(|_| stores.read.get_range("log/1", 0..5));
        let reads = join_all(reads).await;
        let took = env.now() - begin;
        match passes {
            true => {
                assert!(reads.iter().all(|read| read.as_ref().is_ok_and(|read| read == "block")), "{reads:?}")
            }
            false => {
                let says = |why: &str| why.contains("ExpiredToken") && why.contains("tries in");
                let ended = |read: &StoreResult<Bytes>| matches!(read, Err(StoreError::Unreachable(why)) if says(why));
                assert!(reads.iter().all(ended), "{reads:?}");
                assert!(took >= Duration::from_secs(500) && took <= Duration::from_secs(700), "{took:?}");
                let away_ms = scheduler.stats().places[0].away_ms.expect("it shows");
                assert!(away_ms >= 500_000, "{away_ms}");
            }
        }
    }
}

/// The volume that a clone was made of is away, in the same bucket: that is no absence of the clone's own store, whose reads go on.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_beside_may_be_away() {
    let env = jumping_env();
    let own: SharedStore = Arc::new(MemoryStore::new());
    own.put("log/1", Bytes::from_static(b"own")).await.expect("put");
    let beside: SharedStore = Faulty::new(Fault::Away(usize::MAX));
    assert_eq!(own.url(), beside.url(), "one bucket");
    let scheduler = Scheduler::new(env.clone());
    let stores = scheduler.stores(&own, DEADLINE);
    let parent = scheduler.stores_beside(&beside, DEADLINE, &stores.ride_out);
    parent.read.get("log/1", 10).await.expect_err("away");
    let begin = env.now();
    assert_eq!(stores.read.get("log/1", 10).await.expect("there"), "own");
    assert_eq!((env.now(), scheduler.stats().places[0].away_ms), (begin, None));
}

/// What is wrong with one object is told at once, also to who rides out what passes.
#[tokio::test(flavor = "multi_thread")]
async fn one_object_that_cannot_be_used_is_told_at_once() {
    let env = jumping_env();
    let store: SharedStore = Arc::new(MemoryStore::new());
    store.put("log/1", Bytes::from_static(b"too long")).await.expect("put");
    let stores = Scheduler::new(env.clone()).stores(&store, DEADLINE);
    stores.ride_out.begin();
    let begin = env.now();
    let told = stores.read.get("log/1", 4).await;
    assert!(matches!(&told, Err(StoreError::Unusable { key, .. }) if key == "log/1"), "{told:?}");
    assert!(matches!(stores.read.get("log/2", 4).await, Err(StoreError::NotFound(_))));
    assert_eq!(env.now(), begin);
}

/// A rate that is low is no silence of the store for who reads in bulk. What a client waits for ends with its patience.
#[tokio::test(flavor = "multi_thread")]
async fn a_low_rate_is_no_silence_in_bulk() {
    let (key, bytes) = ("log/1", 1 << 20);
    for is_bulk in [true, false] {
        let env = hurried_env();
        let memory: SharedStore = Arc::new(MemoryStore::new());
        memory.put(key, vec![7; bytes as usize].into()).await.expect("put");
        let scheduler = if is_bulk { Scheduler::in_bulk(env.clone()) } else { Scheduler::new(env.clone()) };
        scheduler.set_rates(Rates { upload: None, download: Some(bytes / 120) });
        let (stores, begin) = (scheduler.stores(&memory, DEADLINE), env.now());
        for store in [&stores.ahead, &stores.read] {
            let _ = store.get_range(key, 0..bytes).await;
            let read = store.get_range(key, 0..bytes).await;
            let read = read.map(|read| read.len());
            assert_eq!(read.is_ok(), is_bulk, "{read:?} after {:?}", env.now() - begin);
        }
    }
}

/// One reply that never comes does not use up the time for another try, whatever was asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_hangs_leaves_time_for_another() {
    let env = jumping_env();
    let store = || Retry::new(Faulty::new(Fault::Hangs(1)), env.clone(), DEADLINE);
    let begin = env.now();
    store().put("log/1", Bytes::from_static(b"x")).await.expect("put again");
    store().put_if_absent("log/1", Bytes::from_static(b"x")).await.expect("put again");
    assert!(matches!(store().get("log/1", 10).await, Err(StoreError::NotFound(_))), "asked again");
    assert!(matches!(store().get_range("log/1", 0..1).await, Err(StoreError::NotFound(_))), "asked again");
    store().list_after("log/", "", 10).await.expect("listed again");
    store().list_dirs("log/").await.expect("listed again");
    store().delete("log/1").await.expect("deleted again");
    store().delete_many(&["log/1".to_owned()]).await.expect("deleted again");
    assert!(env.now() - begin < 8 * DEADLINE, "{:?}", env.now() - begin);
}

/// Nothing but absence is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_answers_are_final() {
    let env = jumping_env();
    let faulty = Faulty::new(Fault::Refuses);
    let store = Retry::new(faulty.clone(), env.clone(), DEADLINE);
    assert!(matches!(store.get("log/1", 10).await, Err(StoreError::Refused(_))));
    assert_eq!(faulty.requests.load(Relaxed), 1);
    let faulty = Faulty::new(Fault::None);
    let store = Retry::new(faulty.clone(), env.clone(), DEADLINE);
    assert!(matches!(store.get("log/1", 10).await, Err(StoreError::NotFound(_))));
    assert_eq!(faulty.requests.load(Relaxed), 1);
}

/// After a lost reply the retry finds our own object; that is told as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_shows_as_exists() {
    let faulty = Faulty::new(Fault::LosesReply);
    let store = Retry::new(faulty, jumping_env(), DEADLINE);
    let put = store.put_if_absent("log/1", Bytes::from_static(b"ours")).await;
    assert_eq!(put.expect("an answer"), Put::Exists);
    assert_eq!(store.get("log/1", 10).await.expect("a get"), "ours");
}

/// The meter counts requests, bytes and errors by kind, and keeps the last error with its age.
#[tokio::test(flavor = "multi_thread")]
async fn meters_count() {
    let env = jumping_env();
    let meter = Meter::new(Faulty::new(Fault::Away(1)), env.clone());
    assert!(meter.get("log/1", 10).await.is_err());
    env.sleep(Duration::from_millis(1500)).await;
    meter.put("log/1", Bytes::from_static(b"12345")).await.expect("a put");
    assert_eq!(meter.get_range("log/1", 1..3).await.expect("a get"), "23");
    assert!(matches!(meter.get("log/2", 10).await, Err(StoreError::NotFound(_))));
    assert_eq!(meter.put_if_absent("log/1", Bytes::from_static(b"x")).await.expect("an answer"), Put::Exists);
    let stats = meter.snapshot();
    let of = |kind: &str| stats.kinds.iter().find(|k| k.kind.name() == kind).expect("a kind");
    assert_eq!((of("put").requests, of("put").errors, of("put").bytes), (1, 0, 5));
    assert_eq!((of("get").requests, of("get").errors, of("get").bytes), (2, 1, 0));
    assert_eq!((of("get_range").requests, of("get_range").bytes), (1, 2));
    assert_eq!((of("put_if_absent").requests, of("put_if_absent").bytes), (1, 0));
    let last = stats.last_error.as_ref().expect("an error happened");
    assert_eq!((last.text.as_str(), last.age_ms), ("away", 1500));
    let json = serde_json::to_value(&stats).expect("it is plain data");
    assert_eq!(json["kinds"][0]["kind"], "put");
}
