//! One suite of promises, kept by every kind of store: in memory, in a directory, on a real S3
//! server, on servers of Azure's and of Google Cloud Storage's protocol.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{
        CloudStore, DirectoryStore, LIST_MAX, MemoryStore, Meter, Pages, ProbeDepth, ProbeReport, Put, Retry,
        SharedStore, Store, StoreError, StoreKind, StoreUrl, Variables, Verdict, delete_all, probe,
    },
};
use cistern_harness::{azurite::Azurite, gcs::Gcs, minio::Minio, scratch::Scratch};
use futures_util::{StreamExt, future::join_all};

mod store_support;

use store_support::real_env;

/// Names whose order differs between "by bytes" and "directory by directory".
const KEYS: [&str; 11] =
    ["a-1", "a.x", "a/b", "a/c-1", "a/c.2", "a/c/d", "a/c/e/f", "a/c0", "a0", "b/0000", "volume.json"];

async fn suite(env: &Env, store: &SharedStore) {
    objects_are_read_as_written(store).await;
    absent_means_absent(store).await;
    ranges_end_with_the_object(store).await;
    odd_names_are_refused(store).await;
    listings_are_flat_sorted_and_bounded(store).await;
    one_of_many_creates(store).await;
    large_objects_travel(env, store).await;
    assert_eq!(keys(store, "", "", 100).await, Vec::<String>::new(), "the suite cleans up");
}

async fn keys(store: &SharedStore, prefix: &str, after: &str, count: usize) -> Vec<String> {
    store.list_after(prefix, after, count).await.expect("a listing").into_iter().map(|l| l.key).collect()
}

async fn objects_are_read_as_written(store: &SharedStore) {
    for body in ["one", "", "three"] {
        store.put("dir/object", Bytes::from(body)).await.expect("a put");
        assert_eq!(store.get("dir/object", 10).await.expect("a get"), body);
    }
    assert!(
        matches!(store.get("dir/object", 4).await, Err(StoreError::Unusable { .. })),
        "longer than expected"
    );
    assert!(matches!(store.get("dir/other", 10).await, Err(StoreError::NotFound(_))));
    assert!(matches!(store.get("dir", 10).await, Err(StoreError::NotFound(_))), "a directory is no object");
    assert!(matches!(store.get_range("nowhere/x", 0..1).await, Err(StoreError::NotFound(_))));
    store.delete("dir/object").await.expect("a delete");
    store.delete("dir/object").await.expect("deleting nothing is fine");
    assert!(matches!(store.get("dir/object", 10).await, Err(StoreError::NotFound(_))));
}

async fn absent_means_absent(store: &SharedStore) {
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    assert_eq!(store.put_if_absent("log/1", first.clone()).await.expect("a put"), Put::Created);
    assert_eq!(store.put_if_absent("log/1", second.clone()).await.expect("a put"), Put::Exists);
    assert_eq!(store.get("log/1", 10).await.expect("a get"), first);
    store.delete("log/1").await.expect("a delete");
    assert_eq!(store.put_if_absent("log/1", second.clone()).await.expect("a put"), Put::Created);
    assert_eq!(store.get("log/1", 10).await.expect("a get"), second);
    store.delete("log/1").await.expect("a delete");
}

async fn ranges_end_with_the_object(store: &SharedStore) {
    let body: Bytes = (0..10_000u32).map(|i| (i % 251) as u8).collect::<Vec<u8>>().into();
    store.put("map/run", body.clone()).await.expect("a put");
    for range in
        [0..1u64, 0..10_000, 4096..8192, 9_999..10_000, 9_000..20_000, 10_000..10_001, 50_000..60_000, 7..7]
    {
        let expected = body.slice(range.start.min(10_000) as usize..range.end.min(10_000) as usize);
        assert_eq!(store.get_range("map/run", range.clone()).await.expect("a range"), expected, "{range:?}");
    }
    store.delete("map/run").await.expect("a delete");
}

async fn odd_names_are_refused(store: &SharedStore) {
    for key in ["", "/x", "x/", "../x", "a/../b", ".tmp/x", "a b", "a//b"] {
        let refused =
            |r: Result<(), StoreError>| assert!(matches!(r, Err(StoreError::Refused(_))), "{key:?}");
        refused(store.put(key, Bytes::new()).await);
        refused(store.put_if_absent(key, Bytes::new()).await.map(|_| ()));
        refused(store.get(key, 1).await.map(|_| ()));
        refused(store.get_range(key, 0..1).await.map(|_| ()));
        refused(store.delete(key).await);
    }
    assert!(matches!(store.list_after("../", "", 1).await, Err(StoreError::Refused(_))));
    assert!(matches!(store.list_dirs("a").await, Err(StoreError::Refused(_))));
}

async fn listings_are_flat_sorted_and_bounded(store: &SharedStore) {
    let mut model = BTreeMap::new();
    for (i, key) in KEYS.iter().rev().enumerate() {
        store.put(key, Bytes::from(vec![b'x'; i])).await.expect("a put");
        model.insert(*key, i as u64);
    }
    for prefix in
        ["", "a", "a/", "a/c", "a/c/", "a/c/e/", "b/", "nothing/", "volume", "volume.json", "a/c0", "a0"]
    {
        for after in KEYS.iter().copied().chain(["", "a", "a/", "a/c/", "a/c/zz", "zzz"]) {
            for count in [0, 1, 2, 100] {
                let wanted = model.iter().filter(|(key, _)| key.starts_with(prefix) && **key > after);
                let wanted: Vec<(String, u64)> =
                    wanted.take(count).map(|(k, len)| (k.to_string(), *len)).collect();
                let listed = store.list_after(prefix, after, count).await.expect("a listing");
                let listed: Vec<(String, u64)> = listed.into_iter().map(|l| (l.key, l.bytes)).collect();
                assert_eq!(listed, wanted, "prefix {prefix:?} after {after:?} count {count}");
            }
        }
    }
    for (prefix, wanted) in [("", vec!["a", "b"]), ("a/", vec!["c"]), ("a/c/", vec!["e"]), ("b/", vec![])] {
        assert_eq!(store.list_dirs(prefix).await.expect("a listing"), wanted, "{prefix:?}");
    }
    for key in KEYS {
        store.delete(key).await.expect("a delete");
    }
    assert!(store.list_dirs("").await.expect("a listing").is_empty(), "nothing is left of directories");
}

async fn one_of_many_creates(store: &SharedStore) {
    for round in 0..5 {
        let key = format!("log/{round}");
        let bodies: Vec<Bytes> = (0..16u8).map(|w| Bytes::from(vec![w; 5000])).collect();
        let answers = join_all(bodies.iter().map(|body| store.put_if_absent(&key, body.clone()))).await;
        let winners: Vec<usize> = (0..16).filter(|&w| matches!(answers[w], Ok(Put::Created))).collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|a| a.is_ok()), "{answers:?}");
        assert_eq!(store.get(&key, 5000).await.expect("a get"), bodies[winners[0]]);
        store.delete(&key).await.expect("a delete");
    }
}

async fn large_objects_travel(env: &Env, store: &SharedStore) {
    let block = env.random_bytes::<65_536>();
    let body: Bytes = block.repeat(256).into(); // 16 MiB
    let both = [("log/a", body.clone()), ("log/b", body.slice(1..))];
    for put in join_all(both.iter().map(|(key, body)| store.put_if_absent(key, body.clone()))).await {
        assert_eq!(put.expect("a put"), Put::Created);
    }
    for (key, body) in both {
        assert!(store.get(key, 16 << 20).await.expect("a get") == body);
        assert!(
            store.get_range(key, 1_000_000..9_000_001).await.expect("a range")
                == body.slice(1_000_000..9_000_001)
        );
        store.delete(key).await.expect("a delete");
    }
}

/// More objects than one page of a listing are listed completely and in order.
async fn listings_span_pages(store: &SharedStore) {
    let wanted: Vec<String> = (0..1203).map(|i| format!("log/{i:06}")).collect();
    let puts = wanted.iter().map(|key| store.put(key, Bytes::from_static(b"x")));
    let done: Vec<_> = futures_util::stream::iter(puts).buffer_unordered(16).collect().await;
    assert!(done.iter().all(Result::is_ok));
    assert_eq!(keys(store, "log/", "", 5000).await, wanted);
    assert_eq!(keys(store, "", &wanted[100], 1050).await, wanted[101..1151]);
    let odd = ["log/none".to_owned(), "../log".to_owned()]; // not there, and no name at all
    let undeleted = delete_all(store.as_ref(), &[&wanted[..], &odd[..1]].concat()).await;
    assert!(undeleted.is_empty(), "{undeleted:?}");
    assert_eq!(keys(store, "", "", 5000).await, Vec::<String>::new());
    assert!(!delete_all(store.as_ref(), &odd).await.is_empty());
}

fn assert_fit(report: &ProbeReport) {
    assert_eq!(report.verdict, Verdict::Ok, "{report:?}");
    assert_eq!(report.checks.len(), 10);
    assert!(report.checks.iter().all(|c| c.kept), "{report:?}");
    assert!(report.left_behind.is_empty(), "{report:?}");
    assert!(report.up_bytes_per_s.is_some_and(|rate| rate > 0) && report.put_us.is_some());
}

/// The store in memory keeps every promise.
#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    let env = real_env();
    let store: SharedStore = Arc::new(MemoryStore::new());
    suite(&env, &store).await;
    listings_span_pages(&store).await;
    assert_fit(&probe(&env, &store, ProbeDepth::Full).await.expect("a probe"));
    assert!(keys(&store, "", "", 10).await.is_empty(), "the probe cleans up");
}

/// Whoever goes through a listing page by page sees everything once and in order, and a last page that is not full
/// costs no further request.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_all_of_a_listing() {
    let meter = Arc::new(Meter::new(Arc::new(MemoryStore::new()), real_env()));
    let lists = || meter.snapshot().kinds.iter().find(|k| k.kind == StoreKind::List).map(|k| k.requests);
    let mut wanted = Vec::new();
    let mut asked = 0;
    for (count, requests) in [(0, 1), (1, 1), (LIST_MAX - 1, 1), (LIST_MAX, 2), (2 * LIST_MAX + 1, 3)] {
        for n in wanted.len()..count {
            wanted.push(format!("log/{n:06}"));
            meter.put(&wanted[n], Bytes::new()).await.expect("a put");
        }
        let (mut seen, mut pages) = (Vec::new(), Pages::of(meter.as_ref(), "log/"));
        while let Some(page) = pages.next_page().await.expect("a listing") {
            assert!(!page.is_empty());
            seen.extend(page.into_iter().map(|listed| listed.key));
        }
        assert_eq!(seen, wanted);
        assert!(!pages.has_more() && pages.next_page().await.expect("nothing").is_none());
        asked += requests;
        assert_eq!(lists(), Some(asked), "{count} objects");
    }
    let behind = Pages::behind(meter.as_ref(), "log/", wanted[1999].clone()).next_page().await;
    assert_eq!(behind.expect("a listing").map(|page| page[0].key.clone()), Some(wanted[2000].clone()));
}

/// A directory keeps every promise, and so do the wrappers around it.
#[tokio::test(flavor = "multi_thread")]
async fn directory() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let directory = DirectoryStore::create(&env, &root).await.expect("a new root");
    let meter = Arc::new(Meter::new(Arc::new(directory), env.clone()));
    let store: SharedStore = Arc::new(Retry::new(meter.clone(), env.clone(), Duration::from_secs(60)));
    suite(&env, &store).await;
    assert_fit(&probe(&env, &store, ProbeDepth::Brief).await.expect("a probe"));
    assert!(keys(&store, "", "", 10).await.is_empty(), "the probe cleans up");
    let stats = meter.snapshot();
    let puts = &stats.kinds[0];
    assert_eq!((puts.kind, puts.errors > 0), (StoreKind::Put, true), "odd names were refused");
    assert_eq!(puts.latency.count, puts.requests);
    assert!(stats.last_error.is_some_and(|e| e.text.contains("must end in")));
    DirectoryStore::remove(&env, &root).await.expect("an empty root can go");
    assert!(!root.exists());
}

fn start_minio() -> (Scratch, Minio) {
    let scratch = Scratch::new("store").expect("a scratch directory");
    let minio = Minio::start(&scratch).expect("a real S3 server");
    (scratch, minio)
}

/// What leads a client to a server.
fn variables(environment: &[(String, String)]) -> Variables {
    environment.iter().fold(Variables::default(), |variables, (name, value)| variables.with(name, value))
}

/// A server keeps every promise to a client with these variables, below a prefix, whose neighbours stay unseen.
async fn a_cloud(scheme: &str, variables: &Variables) {
    let env = real_env();
    let open = |path: &str| {
        let url = StoreUrl::parse(&format!("{scheme}://tank{path}")).expect("a URL");
        CloudStore::open(&url, variables, &env).expect("a store")
    };
    let neighbour = open("/prefix/tank2");
    neighbour.put("volume.json", Bytes::from_static(b"{}")).await.expect("a put");
    let store: SharedStore = Arc::new(open("/prefix/tank"));
    suite(&env, &store).await;
    listings_span_pages(&store).await;
    // As every caller does: a server that is busy refuses a request now and then.
    let tried: SharedStore = Arc::new(Retry::new(store.clone(), env.clone(), Duration::from_secs(60)));
    assert_fit(&probe(&env, &tried, ProbeDepth::Full).await.expect("a probe"));
    assert!(keys(&store, "", "", 10).await.is_empty(), "the probe cleans up");
    assert_eq!(open("/prefix").list_dirs("").await.expect("a listing"), ["tank2"]);
    assert_eq!(open("").list_dirs("").await.expect("a listing"), ["prefix"]);
    assert_eq!(store.url(), format!("{scheme}://tank/prefix/tank"));
}

/// A real S3 server keeps every promise.
#[tokio::test(flavor = "multi_thread")]
async fn s3() {
    let (_scratch, minio) = start_minio();
    a_cloud("s3", &variables(&Minio::environment(minio.port()))).await;
}

/// Azurite keeps every promise.
#[tokio::test(flavor = "multi_thread")]
async fn azure() {
    let scratch = Scratch::new("store").expect("a scratch directory");
    let azurite = Azurite::start(&scratch).expect("a server of Azure's protocol");
    a_cloud("az", &variables(&Azurite::environment(azurite.port()))).await;
}

/// fake-gcs-server keeps every promise.
#[tokio::test(flavor = "multi_thread")]
async fn google() {
    let scratch = Scratch::new("store").expect("a scratch directory");
    let gcs = Gcs::start(&scratch).expect("a server of Google Cloud Storage's protocol");
    a_cloud("gs", &variables(&Gcs::environment(gcs.port()))).await;
}

/// A bucket that is not there and wrong credentials are refused with a text that says so.
#[tokio::test(flavor = "multi_thread")]
async fn s3_refusals() {
    let env = real_env();
    let (_scratch, minio) = start_minio();
    let url = StoreUrl::parse("s3://no-such-bucket/tank").expect("a URL");
    let store = CloudStore::open(&url, &variables(&Minio::environment(minio.port())), &env).expect("a store");
    for error in [
        store.get("volume.json", 10).await.expect_err("no bucket"),
        store.list_after("", "", 1).await.expect_err("no bucket"),
        store.put("volume.json", Bytes::new()).await.expect_err("no bucket"),
    ] {
        assert!(matches!(&error, StoreError::Refused(why) if why.contains("bucket")), "{error:?}");
    }
    let url = StoreUrl::parse("s3://tank/tank").expect("a URL");
    let variables = variables(&Minio::environment(minio.port())).with("AWS_SECRET_ACCESS_KEY", "wrong");
    let store = CloudStore::open(&url, &variables, &env).expect("a store");
    let error = store.get("volume.json", 10).await.expect_err("wrong credentials");
    assert!(matches!(&error, StoreError::Refused(why) if why.contains("credentials")), "{error:?}");
}
