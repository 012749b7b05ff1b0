//! Deleting many objects: in bulk where the store can, and what one that cannot be deleted means for the others.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    env::Env,
    gc::{self, Deletion},
    log::checkpoint::{Retired, RetiredName},
    store::{
        CloudStore, MemoryStore, Meter, Priority, Retry, Scheduler, SharedStore, Store, StoreError,
        StoreResult, StoreUrl, Undeleted, delete_all,
    },
    units::Seq,
};

mod store_support;

use store_support::{
    jumping_env,
    passing::{Passing, Through},
    real_env,
    scripted::{Answer, Scripted, answer, s3_error},
};

const DEADLINE: Duration = Duration::from_secs(60);

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("log/{n:016x}")).collect()
}

fn names(undeleted: &[Undeleted]) -> BTreeSet<&str> {
    undeleted.iter().map(|u| u.key.as_str()).collect()
}

/// A server that gives these answers, the last one for ever.
async fn s3(script: Vec<Answer>) -> (Env, Scripted, CloudStore) {
    let env = real_env();
    let server = Scripted::start(&env, script).await;
    let url = StoreUrl::parse("s3://bucket/some/tank").expect("a URL");
    let store = CloudStore::open(&url, &server.variables(), &env).expect("a store");
    (env, server, store)
}

fn result(content: &str) -> Answer {
    answer("200 OK", &[], format!("<DeleteResult>{content}</DeleteResult>").as_bytes())
}

fn deleted(keys: &[String]) -> String {
    keys.iter().map(|key| format!("<Deleted><Key>some/tank/{key}</Key></Deleted>")).collect()
}

fn fault(key: &str, code: &str) -> String {
    format!("<Error><Key>some/tank/{key}</Key><Code>{code}</Code><Message>as told</Message></Error>")
}

/// A thousand deletions are one signed POST, which names them all; each that failed has its own recourse, and one that
/// was not there is no failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_deletions_are_one_request() {
    let all = keys(1000);
    let faults = [(&all[1], "AccessDenied"), (&all[2], "SlowDown"), (&all[3], "NoSuchKey")];
    let content: String = faults.iter().map(|(key, code)| fault(key, code)).collect();
    let content = deleted(&all[..1]) + &content + &deleted(&all[4..]);
    let (_env, server, store) = s3(vec![result(&content)]).await;
    assert_eq!(store.deletes_at_once(), 1000);
    let undeleted = store.delete_many(&all).await.expect("an answer");
    assert_eq!(names(&undeleted), BTreeSet::from([all[1].as_str(), all[2].as_str()]));
    assert!(matches!(&undeleted[0].why, StoreError::Refused(why) if why.contains("AccessDenied")));
    assert!(matches!(&undeleted[1].why, StoreError::Unreachable(why) if why.contains("SlowDown")));
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].line.as_str()), (1, "POST /bucket?delete HTTP/1.1"));
    assert!(seen[0].header("authorization").is_some() && seen[0].header("content-md5").is_some());
    let body = String::from_utf8_lossy(&seen[0].body);
    assert!(all.iter().all(|key| body.contains(&format!("<Key>some/tank/{key}</Key>"))), "{body}");
}

/// What is no answer to a deletion is not taken for one: a page of something in between, half an answer, one about
/// objects that nobody asked to delete.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_something_else_is_none() {
    let strange = fault("log/elsewhere", "AccessDenied");
    let foreign = "<Error><Key>elsewhere</Key><Code>AccessDenied</Code></Error>";
    for content in [strange.as_str(), foreign] {
        let (_env, _server, store) = s3(vec![result(content)]).await;
        let refused = store.delete_many(&keys(2)).await;
        assert!(
            matches!(&refused, Err(StoreError::Refused(why)) if why.contains("not asked for")),
            "{refused:?}"
        );
    }
    let (_env, _server, store) = s3(vec![answer("200 OK", &[], b"<html>please log in</html>")]).await;
    assert!(matches!(store.delete_many(&keys(2)).await, Err(StoreError::Refused(_))));
    let (_env, _server, store) = s3(vec![answer("200 OK", &[], b"<DeleteResult><Deleted>")]).await;
    assert!(matches!(store.delete_many(&keys(2)).await, Err(StoreError::Unreachable(_))));
    for content in [String::new(), deleted(&keys(1))] {
        let (_env, _server, store) = s3(vec![result(&content)]).await;
        let refused = store.delete_many(&keys(2)).await;
        let is_named = |why: &str| why.contains("does not say whether log/");
        assert!(matches!(&refused, Err(StoreError::Refused(why)) if is_named(why)), "{refused:?}");
    }
    let (_env, _server, store) = s3(vec![s3_error("503 Service Unavailable", "SlowDown")]).await;
    assert!(matches!(store.delete_many(&keys(2)).await, Err(StoreError::Unreachable(_))));
    let (_env, _server, store) = s3(vec![s3_error("404 Not Found", "NoSuchBucket")]).await;
    assert!(matches!(store.delete_many(&keys(2)).await, Err(StoreError::Refused(_))));
}

/// A machine that stood still is told by the date of the answer to a bulk delete as by any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_standstill_shows_in_the_answer_to_a_deletion() {
    let body = format!("<DeleteResult xmlns=\"x\">{}</DeleteResult>", deleted(&keys(2)));
    let at = |date| answer("200 OK", &[("Date", date)], body.as_bytes());
    let (before, after) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:20:00 GMT");
    let (_env, _server, store) = s3(vec![at(before), at(after), at(after)]).await;
    assert!(store.delete_many(&keys(2)).await.expect("an answer").is_empty());
    let told = store.delete_many(&keys(2)).await;
    assert!(matches!(&told, Err(StoreError::Unreachable(why)) if why.contains("stood still")), "{told:?}");
    assert!(store.delete_many(&keys(2)).await.expect("an answer").is_empty());
}

/// A server that does not know bulk deletes, or does not say what came of one, is asked for single ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_bulk_deletes_gets_single_ones() {
    for first in [s3_error("501 Not Implemented", "NotImplemented"), result(&deleted(&keys(39)))] {
        let (_env, server, store) = s3(vec![first, answer("204 No Content", &[], b"")]).await;
        assert!(delete_all(&store, &keys(40)).await.is_empty());
        let lines: BTreeSet<String> = server.seen().into_iter().skip(1).map(|seen| seen.line).collect();
        let wanted = keys(40).into_iter().map(|key| format!("DELETE /bucket/some/tank/{key} HTTP/1.1"));
        assert_eq!(lines, wanted.collect());
    }
}

/// Where single deletes are refused as well, one is enough to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_all_is_not_asked_for_each() {
    let (_env, server, store) = s3(vec![s3_error("403 Forbidden", "AccessDenied")]).await;
    assert_eq!(delete_all(&store, &keys(1000)).await.len(), 1000);
    assert_eq!(server.seen().len(), 2);
}

/// A store with bulk deletes, in memory: some objects cannot be deleted, others only later.
#[derive(Default)]
struct Bulky {
    inner: MemoryStore,
    /// Refused for ever.
    kept: BTreeSet<String>,
    /// Tries of a request for which the second half of what it asks for is too much.
    busy: AtomicUsize,
    requests: Mutex<Vec<usize>>,
}

const AT_ONCE: usize = 100;

#[async_trait]
impl Passing for Bulky {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        match self.kept.contains(key) {
            true => Err(StoreError::Refused(format!("{key} is locked"))),
            false => self.inner.delete(key).await,
        }
    }
    fn deletes_at_once(&self) -> usize {
        AT_ONCE
    }
    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        self.requests.lock().expect("no panic").push(keys.len());
        let busy = self.busy.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
        let mut undeleted = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            let done = match busy && n >= keys.len() / 2 {
                true => Err(StoreError::Unreachable("slow down".into())),
                false => self.delete(key).await,
            };
            undeleted.extend(done.err().map(|why| Undeleted { key: key.clone(), why }));
        }
        Ok(undeleted)
    }
}

impl Bulky {
    async fn filled(count: usize) -> Bulky {
        let bulky = Bulky::default();
        for key in keys(count) {
            bulky.put(&key, Bytes::from_static(b"x")).await.expect("a put");
        }
        bulky
    }

    async fn left(&self) -> Vec<String> {
        let listed = self.inner.list_after("", "", 100_000).await.expect("a listing");
        listed.into_iter().map(|l| l.key).collect()
    }
}

/// A try that deleted a part leaves the rest to the next; what is refused is told, not tried again. The meter below
/// counts what the store was asked.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_deleted_later_is_tried_again() {
    let env = jumping_env();
    let all = keys(80);
    let bulky = Bulky { kept: BTreeSet::from([all[7].clone()]), busy: 2.into(), ..Bulky::filled(80).await };
    let bulky = Through::new(bulky);
    let meter = Arc::new(Meter::new(bulky.clone(), env.clone()));
    let retry = Retry::new(meter.clone(), env, DEADLINE);
    let undeleted = retry.delete_many(&all).await.expect("an answer");
    assert_eq!(names(&undeleted), BTreeSet::from([all[7].as_str()]));
    assert_eq!(*bulky.requests.lock().expect("no panic"), [80, 40, 20]);
    assert_eq!(bulky.left().await, [all[7].clone()]);
    let stats = meter.snapshot();
    let of = |kind: &str| stats.kinds.iter().find(|k| k.kind.name() == kind).expect("a kind").clone();
    assert_eq!((of("delete_many").requests, of("delete_many").errors, of("delete").requests), (3, 2, 0));
    assert!(stats.last_error.is_some_and(|e| e.text.contains("slow down")));
}

/// Whatever lies between, deletions reach the store in bulk.
#[tokio::test(flavor = "multi_thread")]
async fn every_wrapper_passes_bulk_deletes_on() {
    let env = real_env();
    let bulky: SharedStore = Through::new(Bulky::default());
    let scheduler = Scheduler::new(env.clone());
    let wrapped: [SharedStore; 3] = [
        Arc::new(Meter::new(bulky.clone(), env.clone())),
        Arc::new(Retry::new(bulky.clone(), env.clone(), DEADLINE)),
        scheduler.store(bulky.clone(), Priority::Background),
    ];
    for store in wrapped {
        assert_eq!(store.deletes_at_once(), AT_ONCE, "{store:?}");
        assert!(store.delete_many(&keys(3)).await.expect("an answer").is_empty());
    }
}

/// Objects that cannot be deleted hold up no others: the removal of a volume deletes all it can, then says which is
/// the first and how many they are; once they can be deleted, a second run finishes it.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_stay_hold_up_no_others() {
    let all: Vec<String> = keys(2500).into_iter().map(|key| format!("{:032x}/{key}", 7)).collect();
    let locked: Vec<String> = all.iter().step_by(900).cloned().collect();
    let mut bulky = Bulky::default();
    for key in all {
        bulky.put(&key, Bytes::new()).await.expect("a put");
    }
    bulky.put("volume.json", Bytes::from_static(b"{}")).await.expect("a put");
    bulky.kept = locked.iter().cloned().collect();
    let bulky = Through::new(bulky);
    let store: SharedStore = bulky.clone();
    let error = gc::remove_volume(&store, &|_, _| ()).await.expect_err("some are locked");
    let text = error.to_string();
    assert!(matches!(error, Error::Refused(_)) && text.contains("is locked; 3 objects"), "{text}");
    assert_eq!(bulky.left().await, locked);
    assert!(bulky.requests.lock().expect("no panic").iter().all(|asked| *asked <= AT_ONCE));

    let unlocked = Bulky::default();
    for key in &locked {
        unlocked.put(key, Bytes::new()).await.expect("a put");
    }
    let (unlocked, last) = (Through::new(unlocked), Mutex::new((0, 0)));
    let store: SharedStore = unlocked.clone();
    let show = |done, of| *last.lock().expect("no panic") = (done, of);
    gc::remove_volume(&store, &show).await.expect("finished");
    assert_eq!(*last.lock().expect("no panic"), (3, 3));
    assert!(unlocked.left().await.is_empty());
}

/// What checkpoints have retired goes in bulk too: what is gone is named, what stays is not, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_retired_goes_in_bulk() {
    let all = keys(250);
    let bulky = Bulky { kept: BTreeSet::from([all[7].clone()]), ..Bulky::filled(250).await };
    let bulky = Through::new(bulky);
    let retired = |seq| Retired { name: RetiredName::Segment(Seq(seq)), bytes: 1 };
    let due: Vec<Retired> = (0..250).map(retired).collect();
    let Deletion { deleted, stayed, fault } = gc::delete_retired(&*bulky, &due).await;
    assert!(matches!(&fault, Some(Error::Refused(why)) if why.contains("is locked")), "{fault:?}");
    assert_eq!(bulky.left().await, [all[7].clone()]);
    assert_eq!(stayed, [RetiredName::Segment(Seq(7))]);
    let named: BTreeSet<String> = deleted.iter().map(RetiredName::key).collect();
    assert_eq!(named, all.into_iter().enumerate().filter(|(n, _)| *n != 7).map(|(_, key)| key).collect());
    assert_eq!(bulky.requests.lock().expect("no panic").len(), 3);
}

/// Once the store does not answer, nothing more is begun: what was not asked for counts as not deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_not_asked_for_each() {
    let bulky = Through::new(Bulky { busy: usize::MAX.into(), ..Bulky::filled(10_000).await });
    let undeleted = delete_all(&*bulky, &keys(10_000)).await;
    let asked = bulky.requests.lock().expect("no panic").len();
    assert!(asked < 20, "{asked} requests");
    let left = bulky.left().await;
    assert_eq!(names(&undeleted), left.iter().map(String::as_str).collect());
}
