//! A volume whose store answers or does not, and whose settings change while it is open.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    cache::ChunkCache,
    codec::{Compression, KeySource},
    disk::{Disk, RealDisk},
    env::{Env, real::RealEnv},
    store::{Listed, MemoryStore, Put, SharedStore, Store, StoreResult, Stores},
    volume::{ClientId, CreateOptions, LiveSettings, Mode, OpenOptions, Volume},
};
use tokio::sync::watch;

const MIB: u64 = 1 << 20;
const JOURNAL_BYTES: u64 = 128 * MIB;

/// A store in memory behind a gate: while it is closed, requests hang for ever.
struct Gated {
    inner: MemoryStore,
    open: watch::Sender<bool>,
}

impl fmt::Debug for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gated")
    }
}

impl Gated {
    async fn pass(&self) -> &MemoryStore {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        &self.inner
    }
}

#[async_trait]
impl Store for Gated {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.pass().await.put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.pass().await.put_if_absent(key, body).await
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.pass().await.get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.pass().await.get_range(key, range).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.pass().await.list_after(prefix, after, count_max).await
    }
    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.pass().await.list_dirs(prefix).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.pass().await.delete(key).await
    }
    fn url(&self) -> String {
        self.inner.url()
    }
}

struct Host {
    env: Env,
    store: Arc<Gated>,
    state: tempfile::TempDir,
}

impl Host {
    async fn with_volume() -> Host {
        let env = RealEnv::start();
        let store = Arc::new(Gated { inner: MemoryStore::new(), open: watch::Sender::new(true) });
        let options =
            CreateOptions { size_bytes: 1 << 30, compression: Compression::Lz4, key: KeySource::None };
        Volume::create(&env, &(store.clone() as SharedStore), options).await.expect("created");
        let state = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        Host { env, store, state }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(self.state.path()).expect("a directory"))
    }

    fn options(&self) -> OpenOptions {
        OpenOptions {
            env: self.env.clone(),
            stores: Stores::same(self.store.clone()),
            state: self.disk(),
            cache: None,
            key: KeySource::None,
            mode: Mode::Writeback,
            journal_bytes: JOURNAL_BYTES,
            dirty_age_max: Duration::from_secs(3600),
            dirty_bytes_max: JOURNAL_BYTES,
            paused: false,
            memory_bytes: 128 * MIB,
            host: "here".into(),
            take_over: false,
        }
    }

    async fn open(&self) -> Arc<Volume> {
        Volume::open(self.options()).await.expect("opened")
    }

    fn gate(&self, open: bool) {
        self.store.open.send_replace(open);
    }
}

fn data(len: u64) -> Bytes {
    Bytes::from(vec![7; len as usize])
}

fn mode(mode: Mode) -> LiveSettings {
    LiveSettings { mode: Some(mode), ..LiveSettings::default() }
}

fn paused(paused: bool) -> LiveSettings {
    LiveSettings { paused: Some(paused), ..LiveSettings::default() }
}

/// The store hangs for ever. Flushes, and writes with FUA, are answered all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_store_delays_no_flush() {
    let host = Host::with_volume().await;
    let volume = host.open().await;
    host.gate(false);
    for n in 0..32 {
        volume.write(n * MIB, data(MIB), n % 2 == 0).await.expect("written");
        volume.flush().await.expect("flushed");
    }
    let status = volume.status();
    assert_eq!((status.durable, status.committed), (status.acknowledged, 0));
}

/// The store hangs and the journal is filling: a flood of writes waits for its turn, and flushes
/// pass by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_passes_writes_that_wait() {
    let host = Host::with_volume().await;
    let volume = host.open().await;
    host.gate(false);
    let flood: Vec<_> = (0..240)
        .map(|n| {
            let volume = volume.clone();
            let write = async move { volume.write_as(ClientId(n % 4), n * MIB, data(MIB), false).await };
            host.env.spawn("write", write)
        })
        .collect();
    while volume.status().write_back.expect("a writer").admission.waiting < 100 {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        volume.flush().await.expect("flushed");
        assert!(volume.status().write_back.expect("a writer").admission.waiting > 0, "writes still wait");
    }
    host.gate(true);
    for write in flood {
        write.await.expect("no panic").expect("written in the end");
    }
}

/// From the switch to writethrough on a flush means the store, and `drain` tells when all that was
/// acknowledged before is there too.
#[tokio::test(flavor = "multi_thread")]
async fn writethrough_from_now_on() {
    let host = Host::with_volume().await;
    let volume = host.open().await;
    host.gate(false);
    volume.write(0, data(MIB), false).await.expect("written");
    volume.flush().await.expect("flushed, here");
    volume.set(mode(Mode::Writethrough)).expect("set");
    let flush = host.env.spawn("flush", {
        let volume = volume.clone();
        async move { volume.flush().await.map(|()| volume.status()) }
    });
    host.gate(true);
    let status = flush.await.expect("no panic").expect("flushed");
    assert_eq!(status.committed, status.acknowledged);
    volume.write(MIB, data(MIB), true).await.expect("written through");
    let status = volume.status();
    assert_eq!((status.committed, status.mode), (status.acknowledged, Mode::Writethrough));
}

/// What counts is the mode at the moment of the reply: a flush that waits for a dead store is
/// answered once the user settles for the local disk.
#[tokio::test(flavor = "multi_thread")]
async fn back_to_writeback_lets_waiting_flushes_go() {
    let host = Host::with_volume().await;
    let volume =
        Volume::open(OpenOptions { mode: Mode::Writethrough, ..host.options() }).await.expect("opened");
    host.gate(false);
    volume.write(0, data(MIB), false).await.expect("written");
    let flush = host.env.spawn("flush", {
        let volume = volume.clone();
        async move { volume.flush().await }
    });
    while volume.status().durable < volume.status().acknowledged {
        tokio::task::yield_now().await;
    }
    volume.set(mode(Mode::Writeback)).expect("set");
    flush.await.expect("no panic").expect("flushed, here");
    assert_eq!(volume.status().committed, 0);
}

/// Paused, nothing is uploaded: a drain says so, a stop leaves everything in the journal, and the
/// next opening uploads it once it is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_everything_here() {
    let host = Host::with_volume().await;
    let volume = host.open().await;
    volume.set(paused(true)).expect("paused");
    for n in 0..20 {
        volume.write(n * MIB, data(MIB), false).await.expect("written");
    }
    volume.flush().await.expect("flushed");
    let refused = volume.drain().await.expect_err("a drain would never end");
    assert!(refused.to_string().contains("paused"), "{refused}");
    let report = volume.close(Duration::from_secs(3600)).await;
    assert!(!report.clean && report.journal_bytes_left >= 20 * MIB, "{report:?}");
    assert!(report.reason.expect("a reason").contains("paused"));

    let volume = Volume::open(OpenOptions { paused: true, ..host.options() }).await.expect("opened");
    assert!(volume.status().write_back.expect("a writer").paused);
    let draining = host.env.spawn("draining", {
        let volume = volume.clone();
        async move {
            volume.set(paused(false)).expect("resumed");
            volume.drain().await
        }
    });
    draining.await.expect("no panic").expect("drained");
    assert!(volume.close(Duration::from_secs(60)).await.clean);
}

/// A pause in writethrough would hang every flush: it is refused, from either side.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_writethrough_exclude_each_other() {
    let host = Host::with_volume().await;
    let volume = host.open().await;
    let both = LiveSettings { mode: Some(Mode::Writethrough), paused: Some(true), ..LiveSettings::default() };
    assert!(matches!(volume.set(both), Err(Error::PausedWritethrough)));
    volume.set(paused(true)).expect("paused");
    assert!(matches!(volume.set(mode(Mode::Writethrough)), Err(Error::PausedWritethrough)));
    assert_eq!(volume.status().mode, Mode::Writeback);
    drop(volume);
    let options = OpenOptions { mode: Mode::Writethrough, paused: true, ..host.options() };
    assert!(matches!(Volume::open(options).await.err(), Some(Error::PausedWritethrough)));
}

/// What is written enters the chunk cache by being committed, but not in writearound.
#[tokio::test(flavor = "multi_thread")]
async fn writearound_keeps_writes_out_of_the_cache() {
    for (mode, enters) in [(Mode::Writeback, true), (Mode::Writearound, false)] {
        let host = Host::with_volume().await;
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(directory.path()).expect("a directory"));
        let cache = ChunkCache::open(host.env.clone(), disk, 64 * MIB).await.expect("a cache");
        let options = OpenOptions { mode, cache: Some(cache.clone()), ..host.options() };
        let volume = Volume::open(options).await.expect("opened");
        volume.write(0, data(MIB), false).await.expect("written");
        volume.drain().await.expect("drained");
        assert!(volume.close(Duration::from_secs(60)).await.clean);
        cache.close().await;
        assert_eq!(cache.stats().fill_written_bytes > 0, enters, "{mode:?}");
    }
}
