//! A listing may be old or short: what it does not show is asked for by name before it counts as missing, or the volume as new.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    env::real::RealEnv,
    store::{Listed, MemoryStore, SharedStore, Store, StoreResult},
    volume::{
        CreateOptions, OpenOptions, Volume,
        admin::{self, Checked, check},
    },
};
use own_time::hurried_env;
use volume_support::{
    Host, MIB, close, noise, own_name,
    passing::{Passing, Through},
    read,
};

const LIVE: u64 = 16 * MIB;

/// A store whose listings may be older than what they list, as those of a network file system that caches directories, or shorter.
#[derive(Default)]
struct Cached {
    inner: MemoryStore,
    /// All that is listed, once it is set, with its bytes.
    listed: Mutex<Option<BTreeMap<String, u64>>>,
}

impl Cached {
    async fn all(&self) -> BTreeMap<String, u64> {
        let all = self.inner.list_after("", "", 10_000).await.expect("listed");
        all.into_iter().map(|object| (object.key, object.bytes)).collect()
    }

    /// Lists this, whatever is there.
    fn list(&self, names: BTreeMap<String, u64>) {
        *self.listed.lock().unwrap() = Some(names);
    }

    /// Lists nothing with one of these in its name, and everything else as it is now.
    async fn hide(&self, parts: &[&str]) {
        let mut all = self.all().await;
        all.retain(|name, _| !parts.iter().any(|part| name.contains(part)));
        self.list(all);
    }

    /// The objects of the log, and their bytes.
    async fn log(&self) -> Vec<u64> {
        let all = self.all().await.into_iter();
        all.filter(|(name, _)| own_name(name).starts_with("log/")).map(|(_, bytes)| bytes).collect()
    }
}

#[async_trait]
impl Passing for Cached {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        let listed = self.listed.lock().unwrap().clone();
        let Some(listed) = listed else { return self.inner.list_after(prefix, after, count_max).await };
        let names = listed.into_iter().filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after);
        Ok(names.map(|(key, bytes)| Listed { key, bytes }).take(count_max).collect())
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        let listed = self.listed.lock().unwrap().clone();
        let Some(listed) = listed else { return self.inner.list_dirs(prefix).await };
        let dirs =
            listed.keys().filter_map(|name| Some(name.strip_prefix(prefix)?.split_once('/')?.0.to_owned()));
        let mut dirs: Vec<String> = dirs.collect();
        dirs.dedup();
        Ok(dirs)
    }
}

async fn open(host: &Host) -> Arc<Volume> {
    Volume::open(OpenOptions { grace: Duration::ZERO, grace_alone: Duration::ZERO, ..host.options() })
        .await
        .expect("opened")
}

/// Overwrites until what was written first is not in the store any more, which has `live` bytes then.
async fn overwrite(host: &Host, store: &Cached, tags: std::ops::Range<u64>, live: u64) {
    let volume = open(host).await;
    for tag in tags {
        volume.write(0, noise(tag, LIVE as usize), false).await.expect("written");
        volume.drain().await.expect("drained");
    }
    let stored = async || store.log().await.iter().sum::<u64>();
    while stored().await > live + 5 * MIB {
        host.env.sleep(Duration::from_millis(500)).await;
    }
    close(volume).await;
}

/// A host that lists as it was before another one wrote, covered that with checkpoints and emptied what it overwrote, opens the newest
/// state all the same, and `check` misses nothing in it.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_state_is_found_by_name() {
    let store = Through::new(Cached::default());
    let mut host = Host::with_volume(hurried_env(), store.clone(), 64 * MIB, KeySource::None).await;
    overwrite(&host, &store, 0..3, LIVE).await;
    let before = store.all().await;
    overwrite(&host, &store, 3..8, LIVE).await;
    store.list(before);
    let _disk = host.replace_disk();
    let reader = host.open_read_only(None).await;
    assert!(read(&reader, 0, LIVE).await == noise(7, LIVE as usize));
    close(reader).await;
    let what = Checked { data: true, space: false };
    let report = check(&host.env, host.stores(), &KeySource::None, what, &|_, _| {}).await.expect("checked");
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    let volume = open(&host).await;
    assert!(read(&volume, 0, LIVE).await == noise(7, LIVE as usize));
    close(volume).await;
}

/// A listing that does not show the newest object yet is no proof that the volume is gone: it is asked for by its name, and
/// the volume goes on. Where it is not found by that either, it stops.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_listing_is_no_proof() {
    let cached = Through::new(Cached::default());
    let host = Host::with_volume(RealEnv::start(), cached.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 4096), false).await.expect("written");
    volume.drain().await.expect("drained");
    cached.list(cached.all().await);
    for n in 2..5 {
        volume.write(0, noise(n, 4096), false).await.expect("written");
        volume.drain().await.expect("drained");
    }
    volume.drain().await.expect("looked for once more");
    assert_eq!(volume.status().latched, None);
    assert!(read(&volume, 0, 4096).await == noise(4, 4096)[..]);
}

/// A volume that has had a checkpoint is never opened as what is left of its log because no checkpoint is listed: neither as an empty one, nor, where
/// old data holds the first entries, as one of before.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_that_are_not_listed_are_missed() {
    for cold in [0, 8 * MIB] {
        let store = Through::new(Cached::default());
        let mut host = Host::with_free_slots(hurried_env(), store.clone(), 64 * MIB, KeySource::None).await;
        for (n, tags) in [0..2, 2..4, 4..8].into_iter().enumerate() {
            let volume = open(&host).await;
            if cold > 0 {
                volume.write(LIVE + n as u64 * cold, noise(90, cold as usize), false).await.expect("written");
            }
            close(volume).await;
            overwrite(&host, &store, tags, LIVE + 3 * cold).await;
        }
        let _disk = host.replace_disk();
        // What is listed beyond a slot that is free names the newest.
        store.hide(&["checkpoint/"]).await;
        let reader = host.open_read_only(None).await;
        assert!(read(&reader, 0, LIVE).await == noise(7, LIVE as usize));
        close(reader).await;
        store.hide(&["checkpoint/", "/log/"]).await;
        let opened = Volume::open(host.options()).await.err();
        let Some(Error::Corrupt { detail, .. }) = opened else { panic!("{cold}: {opened:?}") };
        assert!(detail.contains("out of sight"), "{detail}");
        store.listed.lock().unwrap().take();
        let volume = open(&host).await;
        assert!(read(&volume, 0, LIVE).await == noise(7, LIVE as usize));
        close(volume).await;
    }
}

/// Objects that are out of sight: nothing lists or finds them.
async fn take_away(store: &Cached, part: &str) -> Vec<(String, Bytes)> {
    let mut taken = Vec::new();
    for name in store.all().await.into_keys().filter(|name| name.contains(part)) {
        taken.push((name.clone(), store.inner.get(&name, u64::MAX).await.expect("it is listed")));
        store.inner.delete(&name).await.expect("taken away");
    }
    assert!(!taken.is_empty(), "nothing is named like {part}");
    taken
}

/// A volume that was written to is neither opened as an empty one, nor as an older one, where its log is out of sight, or all that it has: whether it
/// has had a checkpoint or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_out_of_sight_is_not_an_empty_one() {
    for (part, is_closed) in [("/log/", false), ("/log/", true), ("/", false), ("/", true)] {
        let store = Through::new(Cached::default());
        let mut host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
        let volume = host.open().await;
        volume.write(0, noise(1, 4096), false).await.expect("written");
        volume.drain().await.expect("drained");
        if is_closed {
            close(volume).await;
        }
        let taken = take_away(&store, part).await;
        let before = store.all().await;
        let _disk = host.replace_disk();
        let opened = Volume::open(OpenOptions { take_over: true, ..host.options() }).await.err();
        let Some(Error::Corrupt { detail, .. }) = opened else { panic!("{part} {is_closed}: {opened:?}") };
        assert!(detail.contains("out of sight"), "{detail}");
        let what = Checked { data: false, space: false };
        let checked = check(&host.env, host.stores(), &KeySource::None, what, &|_, _| {}).await;
        assert!(matches!(checked, Err(Error::Corrupt { .. })), "{part} {is_closed}: {checked:?}");
        assert_eq!(store.all().await, before, "nothing was written");
        for (name, body) in taken {
            store.inner.put(&name, body).await.expect("put back");
        }
        let reader = host.open_read_only(None).await;
        assert!(read(&reader, 0, 4096).await == noise(1, 4096), "{part} {is_closed}");
        close(reader).await;
    }
}

/// A secret that was changed is found by an old listing, in which the old one is.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_secret_is_found_by_its_name() {
    let secret = |n| KeySource::KeyFile(vec![n; 32]);
    let store = Through::new(Cached::default());
    let host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, secret(1)).await;
    close(host.open().await).await;
    let before = store.all().await;
    admin::change_key(&host.env, &host.store, &secret(1), &secret(2)).await.expect("changed");
    store.list(before);
    let opened = Volume::open(OpenOptions { key: secret(1), ..host.options() }).await;
    assert!(matches!(opened, Err(Error::Key(_))), "{:?}", opened.err());
    close(Volume::open(OpenOptions { key: secret(2), ..host.options() }).await.expect("opened")).await;
}

/// A volume whose identity is not found is no half removed one while its copy is there: while it is claimed it is not deleted, unless that is forced.
#[tokio::test(flavor = "multi_thread")]
async fn what_lost_its_identity_is_not_deleted_while_it_is_claimed() {
    let store = Through::new(Cached::default());
    let host = Host::with_volume(hurried_env(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    store.inner.delete("volume.json").await.expect("deleted");
    let remove =
        async |force| admin::remove(&host.env, &host.store, &KeySource::None, force, &|_, _| {}).await;
    let (before, refused) = (store.all().await, remove(false).await);
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    assert_eq!(store.all().await, before);
    remove(true).await.expect("forced");
    assert_eq!(store.all().await, BTreeMap::new());
    volume.close(Duration::ZERO).await;
}

/// Where a store hides what a volume has, nothing is removed, nor called removed; the accounts of its space are not drawn up; and no volume is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_not_listed_is_refused() {
    let store = Through::new(Cached::default());
    let host = Host::with_volume(hurried_env(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 4096), false).await.expect("written");
    close(volume).await;
    let before = store.all().await;
    store.list(BTreeMap::new());
    let refused = |done: Result<(), Error>| match done {
        Err(Error::Refused(text)) => assert!(text.contains("does not list it"), "{text}"),
        other => panic!("{other:?}"),
    };
    refused(admin::remove(&host.env, &host.store, &KeySource::None, false, &|_, _| {}).await);
    let what = Checked { data: false, space: true };
    refused(check(&host.env, host.stores(), &KeySource::None, what, &|_, _| {}).await.map(drop));
    assert_eq!(store.all().await, before);
    let empty = Through::new(Cached::default());
    empty.list(BTreeMap::new());
    let (shared, key) = (empty.clone() as SharedStore, KeySource::None);
    let options = CreateOptions { size_bytes: 64 * MIB, compression: Compression::Lz4, key };
    refused(Volume::create(&host.env, &shared, options).await.map(drop));
    assert!(empty.all().await.is_empty());
}
