//! What the cleaner moves and the chunk cache, by the requests that readers cost: a store that counts them.

mod volume_support;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    cache::ChunkCache,
    codec::KeySource,
    env::real::RealEnv,
    space::Bound,
    store::{MemoryStore, Store, StoreResult},
    volume::{Collect, Mode, OpenOptions, Volume},
};
use volume_support::{
    Host, MIB, close, is_own_below, noise,
    passing::{Passing, Through},
    read,
};

/// A store that counts the ranged reads of segments.
struct Counting {
    inner: MemoryStore,
    reads: AtomicU64,
}

#[async_trait]
impl Passing for Counting {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        if is_own_below("log/", key) {
            self.reads.fetch_add(1, Relaxed);
        }
        self.inner.get_range(key, range).await
    }
}

/// So much of the volume is read, from its beginning on: more than one segment, so that one follows the other into the
/// cache.
const READ_MIB: u64 = 20;
const WRITTEN_MIB: u64 = 40;
/// What may come with it, where reads missed: whoever misses brings neighbours.
const NEIGHBOURS_MIB: u64 = 6;

async fn open(host: &Host, mode: Mode, cache: &Arc<ChunkCache>) -> Arc<Volume> {
    let cleaning = Bound::Ratio(f64::INFINITY).into();
    let options =
        OpenOptions { mode, cleaning, grace: Duration::ZERO, cache: Some(cache.clone()), ..host.options() };
    Volume::open(options).await.expect("opened")
}

/// The first half of each MiB was written twice.
fn expected(mib: u64) -> Vec<u8> {
    let mut all = noise(100 + mib, MIB as usize / 2).to_vec();
    all.extend_from_slice(&noise(mib, MIB as usize)[MIB as usize / 2..]);
    all
}

async fn read_window(volume: &Volume) {
    for mib in 0..READ_MIB {
        assert!(read(volume, mib * MIB, MIB).await == expected(mib), "MiB {mib}");
    }
}

/// The volume, opened with nothing in memory and all of the window on the disk of the cache. A busy cache passes over what it is given: so
/// it is read until it has all of it. Of what is missing each pass brings some.
async fn with_all_cached(
    host: &Host,
    mode: Mode,
    store: &Through<Counting>,
) -> (Arc<ChunkCache>, Arc<Volume>) {
    loop {
        let cache = host.cache("cache").await;
        let volume = open(host, mode, &cache).await;
        let reads = store.reads.load(Relaxed);
        read_window(&volume).await;
        if store.reads.load(Relaxed) == reads {
            return (cache, volume);
        }
        put_away(volume, cache).await;
    }
}

/// Closes both: what was on its way to the disk is there then, and the directory of the cache is free.
async fn put_away(volume: Arc<Volume>, cache: Arc<ChunkCache>) {
    close(volume).await;
    cache.close().await;
    // The volume's tasks let go of it in their own time.
    while Arc::strong_count(&cache) > 1 {
        tokio::task::yield_now().await;
    }
}

/// Moves all that lies between garbage. Gives the bytes that were moved.
async fn clean(volume: &Volume) -> u64 {
    volume.collect(Collect::Retire).await.expect("what is vacated is known");
    let mut moved = 0;
    loop {
        let step = volume.collect(Collect::Clean { ratio: 1.05 }).await.expect("a step");
        moved += step.moved_bytes;
        if step.next.is_none() {
            return moved;
        }
    }
}

/// Bytes of what was read that the cache has, of whatever object.
fn hot_bytes(cache: &ChunkCache) -> u64 {
    cache.hot(u64::MAX).iter().map(|hot| u64::from(hot.valid.count_ones()) * 4096).sum()
}

/// What was read is in the cache also where it was moved to, before anybody looks for it there; what was not in the cache
/// does not enter; and what it was moved out of takes no room any more. Also in writearound, where nothing that is written
/// enters.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_stays_in_the_cache_where_it_is_moved() {
    for mode in [Mode::Writeback, Mode::Writearound] {
        let env = RealEnv::start();
        let store = Through::new(Counting { inner: MemoryStore::new(), reads: AtomicU64::new(0) });
        let host = Host::with_volume(env, store.clone(), 64 * MIB, KeySource::None).await;
        let cache = host.cache("cache").await;
        let volume = open(&host, mode, &cache).await;
        for mib in 0..WRITTEN_MIB {
            volume.write(mib * MIB, noise(mib, MIB as usize), false).await.expect("written");
        }
        volume.drain().await.expect("drained");
        for mib in 0..WRITTEN_MIB {
            let half = noise(100 + mib, MIB as usize / 2);
            volume.write(mib * MIB, half, false).await.expect("overwritten");
        }
        volume.drain().await.expect("drained");
        for _ in 0..2 {
            read_window(&volume).await;
        }
        put_away(volume, cache).await;
        let (cache, volume) = with_all_cached(&host, mode, &store).await;
        assert!(clean(&volume).await >= READ_MIB / 2 * MIB, "{mode:?}: little was moved");
        // A read across two pieces that are still on their way to the disk of the cache would go to the store.
        while cache.has_moved_waiting() {
            tokio::task::yield_now().await;
        }
        let reads = store.reads.load(Relaxed);
        read_window(&volume).await;
        let missed = store.reads.load(Relaxed) - reads;
        let filled = cache.stats();
        assert_eq!(missed, 0, "{mode:?}: reads of the store behind the cleaner; {filled:?}");
        // Half of what was read is moved; in writeback what was written is there too, read or not.
        let had = if mode == Mode::Writearound { READ_MIB / 2 } else { WRITTEN_MIB / 2 };
        assert!(
            filled.fill_moved_bytes <= (had + NEIGHBOURS_MIB) * MIB,
            "{mode:?}: what was not there: {filled:?}"
        );
        // With what was moved still at its old place it would be half as much again.
        let hot = hot_bytes(&cache);
        assert!(
            hot <= (READ_MIB + NEIGHBOURS_MIB) * MIB,
            "{mode:?}: what was vacated is still there: {hot} bytes"
        );
        close(volume).await;
    }
}

/// Blocks that are decoded in memory stay there while the cleaner moves more than it holds, and are read without the store afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_moved_does_not_push_out_what_is_at_hand() {
    const READ_AT: u64 = 48 * MIB;
    let env = RealEnv::start();
    let store = Through::new(Counting { inner: MemoryStore::new(), reads: AtomicU64::new(0) });
    let host = Host::with_volume(env, store.clone(), 64 * MIB, KeySource::None).await;
    let cleaning = Bound::Ratio(f64::INFINITY).into();
    let options = OpenOptions { memory_bytes: 32 * MIB, cleaning, grace: Duration::ZERO, ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    for mib in 0..WRITTEN_MIB {
        volume.write(mib * MIB, noise(mib, MIB as usize), false).await.expect("written");
    }
    volume.drain().await.expect("drained");
    for mib in 0..WRITTEN_MIB {
        volume.write(mib * MIB, noise(100 + mib, MIB as usize / 2), false).await.expect("overwritten");
    }
    volume.drain().await.expect("drained");
    volume.write(READ_AT, noise(1000, MIB as usize), false).await.expect("written");
    volume.drain().await.expect("drained");
    let is_there =
        async || assert!(read(&volume, READ_AT, MIB).await == noise(1000, MIB as usize), "what was written");
    is_there().await;
    let reads = store.reads.load(Relaxed);
    is_there().await;
    assert_eq!(store.reads.load(Relaxed), reads, "it is in memory");
    assert!(clean(&volume).await >= WRITTEN_MIB / 2 * MIB, "little was moved");
    let reads = store.reads.load(Relaxed);
    is_there().await;
    assert_eq!(store.reads.load(Relaxed), reads, "it is still in memory");
    close(volume).await;
}
