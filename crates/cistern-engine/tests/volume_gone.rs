//! A store that is deleted, emptied, exchanged or set back while a volume in it is being written, or that does not keep any more what is there:
//! what was not uploaded to the volume that was opened is never called uploaded.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    env::real::RealEnv,
    store::{Listed, MemoryStore, Put, Scheduler, SharedStore, Store, StoreError, StoreResult},
    volume::{
        CloseReport, CreateOptions, Mode, OpenOptions, Volume,
        admin::{self, JournalItem},
    },
};
use own_time::env_put_forward;
use tokio::sync::Notify;
use volume_support::{
    Host, MIB, close, noise,
    passing::{Passing, Through},
    read,
};

async fn served(bucket: &Arc<Bucket>) -> (Host, Arc<Volume>) {
    let host = Host::with_volume(RealEnv::start(), bucket.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 4096), false).await.expect("written");
    volume.drain().await.expect("drained");
    (host, volume)
}

async fn stop(volume: &Volume) -> CloseReport {
    volume.close(Duration::from_secs(60)).await
}

/// The blocks of the journal that an export gives.
async fn exported(host: &Host, volume: &Volume) -> Vec<(u64, Bytes)> {
    let mut writes = Vec::new();
    admin::journal_export(&host.env, &host.state(), volume.id(), &mut |item| {
        if let JournalItem::Write { offset, data } = item {
            writes.push((offset, data));
        }
        Ok(())
    })
    .await
    .expect("exported");
    writes
}

/// While the bucket is away something is written; then `after` comes in its place. Gives what the stop says.
async fn written_into(bucket: &Arc<Bucket>, after: Arc<MemoryStore>) -> (Host, Arc<Volume>, CloseReport) {
    let (host, volume) = served(bucket).await;
    bucket.delete_bucket();
    volume.write(4096, noise(2, 4096), true).await.expect("the journal takes it");
    let drained = host.env.spawn("drain", {
        let volume = volume.clone();
        async move { volume.drain().await }
    });
    bucket.refused.notified().await;
    bucket.make_bucket(after);
    let drained = drained.await.expect("no panic");
    assert!(matches!(drained, Err(Error::Gone(_))), "{drained:?}");
    let latched = volume.status().latched.expect("it has stopped");
    assert!(latched.contains("gone") && latched.contains("journal export"), "{latched}");
    let refused = volume.write(0, noise(3, 4096), false).await;
    assert!(matches!(refused, Err(Error::Gone(_))), "{refused:?}");
    let report = stop(&volume).await;
    assert!(!report.clean && report.journal_bytes_left >= 4096, "{report:?}");
    (host, volume, report)
}

/// A store that keeps put-if-absent until it does not: from then on every put is taken.
#[derive(Default)]
struct Overwriting {
    inner: MemoryStore,
    overwrites: AtomicBool,
    conditional_puts: AtomicU64,
}

#[async_trait]
impl Passing for Overwriting {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.conditional_puts.fetch_add(1, Relaxed);
        match self.overwrites.load(Relaxed) {
            true => self.inner.put(key, body).await.map(|()| Put::Created),
            false => self.inner.put_if_absent(key, body).await,
        }
    }
}

/// A store that begins to overwrite under a writer (versioning is switched on, a gateway is replaced) stops it with the first commit after half a
/// minute, for good, and nothing more counts as uploaded. A writer that writes nothing asks nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_begins_to_overwrite_stops_its_writer() {
    let (env, ahead_s) = env_put_forward();
    let store = Through::new(Overwriting::default());
    let host = Host::with_volume(env, store.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    for n in 0..3 {
        volume.write(0, noise(n, 4096), true).await.expect("written");
        volume.drain().await.expect("a sound store keeps the rule");
        ahead_s.fetch_add(31, Relaxed);
    }
    let asked = store.conditional_puts.load(Relaxed);
    store.overwrites.store(true, Relaxed);
    ahead_s.fetch_add(3600, Relaxed);
    assert_eq!(store.conditional_puts.load(Relaxed), asked, "nothing was written");
    volume.write(4096, noise(7, 4096), true).await.expect("the journal takes it");
    let drained = volume.drain().await;
    assert!(matches!(drained, Err(Error::Overwrites(_))), "{drained:?}");
    assert!(volume.status().latched.is_some_and(|why| why.contains("cistern probe")));
    assert!(volume.write(0, noise(8, 4096), false).await.is_err(), "it has stopped");
    let report = stop(&volume).await;
    assert!(!report.clean && report.journal_bytes_left >= 4096, "{report:?}");
}

/// A writer that was taken over while it wrote nothing destroys nothing of its successor's when the store begins to overwrite: it proves that the
/// store keeps what is there before it sends.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_taken_over_overwrites_nothing() {
    let (env, ahead_s) = env_put_forward();
    let store = Through::new(Overwriting::default());
    let old_host = Host::with_volume(env.clone(), store.clone(), 64 * MIB, KeySource::None).await;
    let old = old_host.open().await;
    old.write(0, noise(1, 4096), true).await.expect("written");
    old.drain().await.expect("in the store");
    let new_host = Host::of_volume(env, store.clone(), KeySource::None);
    let new = Volume::open(OpenOptions { take_over: true, ..new_host.options() }).await.expect("taken over");
    new.write(4096, noise(2, 4096), true).await.expect("written");
    new.drain().await.expect("in the store");
    ahead_s.fetch_add(31, Relaxed);
    store.overwrites.store(true, Relaxed);
    old.write(8192, noise(3, 4096), true).await.expect("its journal takes it");
    let drained = old.drain().await;
    assert!(matches!(drained, Err(Error::Overwrites(_))), "{drained:?}");
    let found = new_host.open_read_only(None).await;
    assert!(read(&found, 4096, 4096).await == noise(2, 4096), "what the successor stored is there");
    found.close(Duration::ZERO).await;
    stop(&old).await;
    stop(&new).await;
}

/// No host opens a volume for writing on a store that overwrites, also where it kept the rule when the volume was made or has lost the copy of the
/// identity, and makes none there, which leaves nothing behind; what is there is read, and once the store keeps the rule again everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_overwrites_gets_no_writer() {
    let store = Through::new(Overwriting::default());
    let host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 4096), true).await.expect("written");
    close(volume).await;
    store.overwrites.store(true, Relaxed);
    let refused = Volume::open(host.options()).await;
    assert!(matches!(refused, Err(Error::Overwrites(_))), "it claims the volume");
    let copies = store.list_after("", "", 100).await.expect("listed").into_iter().map(|listed| listed.key);
    let copies: Vec<String> = copies.filter(|key| key.ends_with("/volume.json")).collect();
    assert_eq!(copies.len(), 1, "beside the log");
    store.delete(&copies[0]).await.expect("deleted");
    let refused = Volume::open(host.options()).await;
    assert!(matches!(refused, Err(Error::Overwrites(_))), "it claims the volume without the copy");
    let other = Through::new(Overwriting { overwrites: true.into(), ..Overwriting::default() });
    let options = CreateOptions { size_bytes: 64 * MIB, compression: Compression::Lz4, key: KeySource::None };
    let refused = Volume::create(&RealEnv::start(), &(other.clone() as SharedStore), options).await;
    assert!(matches!(refused, Err(Error::Overwrites(_))), "{refused:?}");
    assert_eq!(other.list_after("", "", 10).await.expect("listed"), []);
    store.overwrites.store(false, Relaxed);
    let volume = host.open().await;
    assert!(read(&volume, 0, 4096).await == noise(1, 4096));
    close(volume).await;
}

/// A bucket that was deleted and made again, empty, gets nothing; the volume stops, and what it had not uploaded is
/// in the journal.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_made_again_is_not_written_into() {
    let bucket = Bucket::new();
    let empty = Arc::new(MemoryStore::new());
    let (host, volume, _) = written_into(&bucket, empty.clone()).await;
    assert_eq!(empty.list_after("", "", 10).await.expect("listed"), []);
    let writes = exported(&host, &volume).await;
    assert!(writes.contains(&(4096, noise(2, 4096))), "the export holds it");
}

/// Another volume was created there meanwhile: it is named, and left alone.
#[tokio::test(flavor = "multi_thread")]
async fn another_volume_in_its_place_is_left_alone() {
    let other = Arc::new(MemoryStore::new());
    let shared: SharedStore = other.clone();
    let options = CreateOptions { size_bytes: 64 * MIB, compression: Compression::Lz4, key: KeySource::None };
    let id = Volume::create(&RealEnv::start(), &shared, options).await.expect("created");
    let (_, volume, _) = written_into(&Bucket::new(), other.clone()).await;
    let latched = volume.status().latched.expect("it has stopped");
    assert!(latched.contains(&id.to_string()), "{latched}");
    let left = other.list_after("", "", 10).await.expect("listed");
    assert!(left.iter().all(|object| object.key.ends_with("volume.json")), "{left:?}");
}

/// A bucket restored from an older copy has the identity and lacks what was committed since.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_noticed() {
    let bucket = Bucket::new();
    let host = Host::with_volume(RealEnv::start(), bucket.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    let copy = bucket.copy().await;
    volume.write(0, noise(1, 4096), false).await.expect("written");
    volume.drain().await.expect("drained");
    bucket.make_bucket(copy);
    let report = stop(&volume).await;
    assert!(!report.clean, "{report:?}");
    assert!(report.reason.is_some_and(|why| why.contains("log/0000000000000002")));
}

/// The bucket comes back as it was: everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_comes_back_is_written_to_again() {
    let bucket = Bucket::new();
    let (host, volume) = served(&bucket).await;
    let copy = bucket.copy().await;
    bucket.delete_bucket();
    volume.write(4096, noise(2, 4096), true).await.expect("the journal takes it");
    let drained = host.env.spawn("drain", {
        let volume = volume.clone();
        async move { volume.drain().await }
    });
    bucket.refused.notified().await;
    bucket.make_bucket(copy);
    drained.await.expect("no panic").expect("drained");
    close(volume).await;
    let volume = host.open_read_only(None).await;
    assert!(read(&volume, 4096, 4096).await == noise(2, 4096));
}

/// A part of the store is out of sight, the identity of the volume or all that lies beside it (a disk of a pool, a directory that was
/// moved): nothing is put into what is left, reads wait, the volume does not stop, says why, and goes on once the part is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_out_of_sight_is_waited_for() {
    for hides_identity in [true, false] {
        let bucket = Bucket::new();
        let host = Host::with_volume(RealEnv::start(), bucket.clone(), 64 * MIB, KeySource::None).await;
        let options = host.options();
        options.stores.ride_out.begin();
        let volume = Volume::open(options).await.expect("opened");
        volume.write(0, noise(1, 4096), false).await.expect("written");
        volume.drain().await.expect("drained");
        let (whole, part) = (bucket.copy().await, bucket.copy().await);
        for listed in part.list_after("", "", 10_000).await.expect("listed") {
            if (listed.key == "volume.json") == hides_identity {
                part.delete(&listed.key).await.expect("deleted");
            }
        }
        let left = part.list_after("", "", 10_000).await.expect("listed");
        bucket.make_bucket(part.clone());
        volume.write(4096, noise(2, 4096), true).await.expect("the journal takes it");
        let drained = host.env.spawn("drain", {
            let volume = volume.clone();
            async move { volume.drain().await }
        });
        let seen = host.env.spawn("read", {
            let volume = volume.clone();
            async move { read(&volume, 0, 4096).await }
        });
        while !volume.status().store_error.is_some_and(|why| why.contains("is not there")) {
            assert_eq!(volume.status().latched, None);
            tokio::task::yield_now().await;
        }
        assert_eq!(part.list_after("", "", 10_000).await.expect("listed"), left);
        bucket.make_bucket(whole);
        drained.await.expect("no panic").expect("drained");
        assert!(seen.await.expect("no panic") == noise(1, 4096), "a read waits too");
        close(volume).await;
        let volume = host.open_read_only(None).await;
        assert!(read(&volume, 4096, 4096).await == noise(2, 4096));
    }
}

/// Nothing was written for a while and nobody noticed that the bucket was exchanged: the stop does, before it says
/// that everything is in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_looks_before_it_says_that_all_is_there() {
    let bucket = Bucket::new();
    let (_host, volume) = served(&bucket).await;
    bucket.make_bucket(Arc::new(MemoryStore::new()));
    let report = stop(&volume).await;
    assert!(!report.clean && report.journal_bytes_left == 0, "{report:?}");
    assert!(volume.status().latched.is_some_and(|why| why.contains("volume.json")));
}

/// The bucket was away and was made again within the patience of one request, which then succeeds: it counts for
/// nothing all the same.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_retries_hide_is_noticed() {
    let bucket = Bucket::new();
    let env = RealEnv::start();
    let host = Host::with_volume(env.clone(), bucket.clone(), 64 * MIB, KeySource::None).await;
    let shared: SharedStore = bucket.clone();
    let stores = Scheduler::new(env.clone()).stores(&shared, Duration::from_secs(60));
    let volume = Volume::open(OpenOptions { stores, ..host.options() }).await.expect("opened");
    bucket.go_away();
    volume.write(4096, noise(2, 4096), true).await.expect("the journal takes it");
    let drained = host.env.spawn("drain", {
        let volume = volume.clone();
        async move { volume.drain().await }
    });
    bucket.refused.notified().await;
    bucket.make_bucket(Arc::new(MemoryStore::new()));
    let drained = drained.await.expect("no panic");
    assert!(matches!(drained, Err(Error::Gone(_))), "{drained:?}");
    assert!(!stop(&volume).await.clean);
}

/// Where all goes well nobody looks until somebody is to hear that everything is in the store.
#[tokio::test(flavor = "multi_thread")]
async fn looking_costs_nothing_in_good_times() {
    let bucket = Bucket::new();
    let host = Host::with_volume(RealEnv::start(), bucket.clone(), 64 * MIB, KeySource::None).await;
    let options = OpenOptions { mode: Mode::Writethrough, ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    let looks = || bucket.state.lock().expect("sound").identity_reads;
    let opened = looks();
    for n in 0..20 {
        volume.write(n * 4096, noise(n, 4096), true).await.expect("it is in the store");
    }
    assert_eq!(looks(), opened);
    close(volume).await;
    assert_eq!(looks(), opened + 1);
}

/// The directory was exchanged unnoticed, and there is something to upload: it is not uploaded into the other one,
/// and stays in the journal.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_looks_before_it_uploads() {
    let bucket = Bucket::new();
    let (host, volume) = served(&bucket).await;
    volume.write(4096, noise(2, 4096), true).await.expect("written");
    let empty = Arc::new(MemoryStore::new());
    bucket.make_bucket(empty.clone());
    let report = stop(&volume).await;
    assert!(!report.clean && report.journal_bytes_left >= 4096, "{report:?}");
    assert!(volume.status().latched.is_some_and(|why| why.contains("gone")));
    assert_eq!(empty.list_after("", "", 10).await.expect("listed"), []);
    assert!(exported(&host, &volume).await.contains(&(4096, noise(2, 4096))));
}

/// A bucket that can be deleted, made again and exchanged.
struct Bucket {
    state: Mutex<State>,
    /// A request was refused.
    refused: Notify,
}

struct State {
    store: Result<Arc<MemoryStore>, StoreError>,
    last: Arc<MemoryStore>,
    identity_reads: u64,
}

impl Bucket {
    fn new() -> Arc<Bucket> {
        let store = Arc::new(MemoryStore::new());
        let state = State { store: Ok(store.clone()), last: store, identity_reads: 0 };
        Arc::new(Bucket { state: Mutex::new(state), refused: Notify::new() })
    }

    fn delete_bucket(&self) {
        self.state.lock().expect("sound").store = Err(StoreError::Refused("no such bucket".into()));
    }

    fn go_away(&self) {
        self.state.lock().expect("sound").store = Err(StoreError::Unreachable("nobody answers".into()));
    }

    fn make_bucket(&self, store: Arc<MemoryStore>) {
        let mut state = self.state.lock().expect("sound");
        state.store = Ok(store.clone());
        state.last = store;
    }

    async fn copy(&self) -> Arc<MemoryStore> {
        let (from, to) = (self.state.lock().expect("sound").last.clone(), Arc::new(MemoryStore::new()));
        for listed in from.list_after("", "", 10_000).await.expect("listed") {
            let body = from.get(&listed.key, listed.bytes).await.expect("read");
            to.put(&listed.key, body).await.expect("put");
        }
        to
    }

    fn there(&self) -> StoreResult<Arc<MemoryStore>> {
        let store = self.state.lock().expect("sound").store.clone();
        if store.is_err() {
            self.refused.notify_one();
        }
        store
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

#[async_trait]
impl Store for Bucket {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.there()?.put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.there()?.put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.state.lock().expect("sound").identity_reads += u64::from(key == "volume.json");
        self.there()?.get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.there()?.get_range(key, range).await
    }
    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.there()?.size(key).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.there()?.list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.there()?.list_dirs(prefix).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.there()?.delete(key).await
    }
    fn url(&self) -> String {
        "memory:".to_owned()
    }
}
