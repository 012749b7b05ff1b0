//! The chunk cache and the reader on top of it: right bytes or none, one GET for many.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    cache::{Admission, CHUNK_BYTES, CacheKey, ChunkCache, PIECE_BYTES},
    disk::{Disk, DiskFile, RealDisk},
    env::Env,
    fetch::{ObjectReader, ObjectRef, PrefetchTask},
    store::{MemoryStore, Meter, SharedStore, Store, StoreKind, StoreResult, Stores},
};
use futures_util::future::{join, join_all};
use proptest::prelude::*;
use tokio::sync::Semaphore;

mod store_support;

use store_support::{
    passing::{Passing, Through},
    real_env,
};

/// A disk in memory whose bytes a test can change and whose operations it can make fail.
#[derive(Default)]
struct TestDisk {
    files: Mutex<BTreeMap<String, Arc<TestFile>>>,
    locked: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
}

struct TestFile {
    bytes: Mutex<Vec<u8>>,
    fails: Arc<AtomicBool>,
}

struct TestLock(Arc<AtomicBool>);

impl Drop for TestLock {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

impl TestFile {
    fn check(&self) -> Result<()> {
        match self.fails.load(Relaxed) {
            true => Err(Error::Io { what: "chunks".to_owned(), cause: "input/output error".to_owned() }),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl DiskFile for TestFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        assert!(offset.is_multiple_of(4096) && data.len().is_multiple_of(4096));
        self.check()?;
        let at = offset as usize;
        self.bytes.lock().expect("not poisoned")[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        assert!(offset.is_multiple_of(4096) && out.len().is_multiple_of(4096));
        self.check()?;
        let at = offset as usize;
        out.copy_from_slice(&self.bytes.lock().expect("not poisoned")[at..at + out.len()]);
        Ok(())
    }
    async fn sync(&self) -> Result<()> {
        self.check()
    }
    fn len(&self) -> u64 {
        self.bytes.lock().expect("not poisoned").len() as u64
    }
    fn is_direct(&self) -> bool {
        false
    }
}

#[async_trait]
impl Disk for TestDisk {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        let file = self.files.lock().expect("not poisoned").get(name).cloned();
        file.map(|f| f as Arc<dyn DiskFile>).ok_or_else(|| Error::NotFound(name.to_owned()))
    }
    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        let bytes = Mutex::new(vec![0; bytes as usize]);
        let file = Arc::new(TestFile { bytes, fails: self.fails.clone() });
        self.files.lock().expect("not poisoned").insert(name.to_owned(), file.clone());
        Ok(file)
    }
    async fn rename(&self, _from: &str, _to: &str) -> Result<()> {
        unreachable!("the cache renames nothing")
    }
    async fn names(&self, _beginning: &str) -> Result<Vec<String>> {
        unreachable!("the cache looks for no names")
    }
    async fn remove(&self, name: &str) -> Result<()> {
        self.files.lock().expect("not poisoned").remove(name);
        Ok(())
    }
    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>> {
        match self.locked.swap(true, Relaxed) {
            true => Err(Error::Locked(name.to_owned())),
            false => Ok(Box::new(TestLock(self.locked.clone()))),
        }
    }
    fn describe(&self) -> String {
        "test".to_owned()
    }
}

impl TestDisk {
    /// Flips one bit of every 4 KiB of the slab.
    fn rot(&self) {
        let files = self.files.lock().expect("not poisoned");
        let mut bytes = files["chunks"].bytes.lock().expect("not poisoned");
        bytes.iter_mut().step_by(PIECE_BYTES).for_each(|byte| *byte ^= 0x10);
    }
}

const MIB: u64 = 1 << 20;

fn key(number: u64) -> CacheKey {
    CacheKey::new([9; 16], number)
}

/// The bytes that object `number` has at a range, for ever.
fn content(number: u64, range: Range<u64>) -> Bytes {
    range.map(|at| (at / 4096 * 31 + at * 7 + number * 101) as u8).collect::<Vec<u8>>().into()
}

async fn open(env: &Env, bytes: u64) -> (Arc<TestDisk>, Arc<ChunkCache>) {
    let disk = Arc::new(TestDisk::default());
    let cache = ChunkCache::open(env.clone(), disk.clone(), bytes).await.expect("a cache");
    (disk, cache)
}

/// What is filled in comes out, from the queue and from the disk, across chunks; nothing else does.
#[tokio::test(flavor = "multi_thread")]
async fn fills_come_out() {
    let env = real_env();
    let (_disk, cache) = open(&env, 2 * MIB).await;
    let filled = 40_960..300_000; // the object ends at 300000
    cache.fill(key(1), filled.start, content(1, filled.clone()), Admission::Demand);
    for closed in [false, true] {
        for range in [40_960..300_000, 50_000..50_001, 65_535..65_537, 131_072..196_608, 299_999..300_000] {
            assert_eq!(cache.get(key(1), range.clone()).await, Some(content(1, range.clone())), "{range:?}");
        }
        for range in
            [40_959..40_961, 0..1, 299_999..300_001, 300_000..300_001, 0..400_000, 1 << 50..(1 << 50) + 1]
        {
            assert_eq!(cache.get(key(1), range.clone()).await, None, "{range:?}");
        }
        assert_eq!(cache.get(key(2), 50_000..50_001).await, None);
        assert_eq!(cache.get(key(2), 7..7).await, Some(Bytes::new()));
        if !closed {
            cache.close().await;
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.chunks_used, stats.fill_bytes, stats.faults), (5, 300_000 - 40_960, 0));
    cache.forget(key(1));
    assert_eq!(cache.get(key(1), 50_000..50_001).await, None);
    assert_eq!(cache.stats().chunks_used, 0);
}

/// Flipped bits on the disk are misses, and the chunk is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn flipped_bits_are_misses() {
    let env = real_env();
    let (disk, cache) = open(&env, 2 * MIB).await;
    cache.fill(key(1), 0, content(1, 0..MIB), Admission::Demand);
    cache.close().await;
    assert!(cache.get(key(1), 0..MIB).await.is_some());
    disk.rot();
    for chunk in 0..5 {
        let at = chunk * CHUNK_BYTES as u64;
        assert_eq!(cache.get(key(1), at..at + 4096).await, None);
    }
    disk.rot(); // the bytes are right again, but the chunks are gone
    assert_eq!(cache.get(key(1), 0..4096).await, None);
    assert!(cache.get(key(1), 6 * 65_536..7 * 65_536).await.is_some());
    assert_eq!(cache.stats().faults, 5);
    assert!(!cache.stats().off);
}

/// A disk that fails turns hits into misses; one that keeps failing is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_disk_is_switched_off() {
    let env = real_env();
    let (disk, cache) = open(&env, 4 * MIB).await;
    for object in 0..40 {
        cache.fill(key(object), 0, content(object, 0..4096), Admission::Demand);
    }
    cache.close().await;
    disk.fails.store(true, Relaxed);
    for object in 0..16 {
        assert_eq!(cache.get(key(object), 0..4096).await, None);
    }
    assert!(cache.stats().off);
    disk.fails.store(false, Relaxed);
    assert_eq!(cache.get(key(30), 0..4096).await, None, "off stays off");
}

/// A disk that fails when it is written to holds nothing, and nobody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn failed_writes_leave_nothing() {
    let env = real_env();
    let (disk, cache) = open(&env, 4 * MIB).await;
    disk.fails.store(true, Relaxed);
    cache.fill(key(1), 0, content(1, 0..4096), Admission::Demand);
    cache.close().await;
    disk.fails.store(false, Relaxed);
    assert_eq!(cache.get(key(1), 0..4096).await, None);
    let stats = cache.stats();
    assert!(stats.faults >= 1 && stats.chunks_used == 0, "the slab, and then the index");
}

/// However much is filled, the cache keeps its size, and what it still has is right.
#[tokio::test(flavor = "multi_thread")]
async fn the_cache_is_bounded() {
    let env = real_env();
    let (_disk, cache) = open(&env, MIB).await;
    for object in 0..200 {
        cache.fill(key(object), 0, content(object, 0..65_536), Admission::Demand);
        let hit = cache.get(key(object), 1000..60_000).await;
        assert!(hit.is_none_or(|bytes| bytes == content(object, 1000..60_000)));
    }
    cache.close().await;
    let mut hits = 0;
    for object in 0..200 {
        if let Some(bytes) = cache.get(key(object), 0..65_536).await {
            assert_eq!(bytes, content(object, 0..65_536));
            hits += 1;
        }
    }
    assert!((1..16).contains(&hits), "{hits} of 16 chunks");
    assert_eq!(cache.stats().bytes, MIB);
}

/// Two daemons cannot share a cache; after the first has gone, the second starts empty.
#[tokio::test(flavor = "multi_thread")]
async fn one_daemon_at_a_time_on_a_real_disk() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = || Arc::new(RealDisk::create(&dir.path().join("cache")).expect("a directory"));
    let cache = ChunkCache::open(env.clone(), disk(), 4 * MIB).await.expect("a cache");
    let second = ChunkCache::open(env.clone(), disk(), 4 * MIB).await;
    assert!(matches!(second.map(|_| ()), Err(Error::Locked(_))));
    cache.fill(key(1), 8192, content(1, 8192..200_000), Admission::Demand);
    cache.close().await;
    assert_eq!(cache.get(key(1), 9000..150_000).await, Some(content(1, 9000..150_000)));
    assert_eq!(cache.stats().faults, 0);
    drop(cache);
    let cache = ChunkCache::open(env.clone(), disk(), 8 * MIB).await.expect("the lock is free");
    assert_eq!(cache.get(key(1), 9000..9001).await, None);
    assert_eq!(cache.stats().bytes, 8 * MIB);
    assert!(matches!(ChunkCache::open(env, disk(), 1000).await.map(|_| ()), Err(Error::Invalid(_))));
}

#[derive(Clone, Debug)]
enum Op {
    Fill { object: u64, piece: u64, pieces: u64, tail: u64 },
    Get { object: u64, start: u64, len: u64 },
    Forget(u64),
    Rot,
    Settle,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let fill = (0u64..4, 0u64..100, 1u64..60, 0u64..4096)
        .prop_map(|(object, piece, pieces, tail)| Op::Fill { object, piece, pieces, tail });
    let get = (0u64..4, 0u64..500_000, 1u64..100_000).prop_map(|(object, start, len)| Op::Get {
        object,
        start,
        len,
    });
    let op = prop_oneof![8 => fill, 8 => get, 1 => (0u64..4).prop_map(Op::Forget), 1 => Just(Op::Rot), 2 => Just(Op::Settle)];
    prop::collection::vec(op, 1..60)
}

/// The end of each object of the property test: none is a multiple of anything.
fn end_of(object: u64) -> u64 {
    300_001 + object * 50_021
}

async fn run_ops(env: &Env, ops: Vec<Op>) {
    let (disk, cache) = open(env, MIB).await;
    for op in ops {
        match op {
            Op::Fill { object, piece, pieces, tail } => {
                let start = (piece * 4096).min(end_of(object) / 4096 * 4096);
                let end = match tail % 3 {
                    0 => end_of(object), // with the tail of the object
                    _ => (start + pieces * 4096).min(end_of(object)),
                };
                cache.fill(key(object), start, content(object, start..end), Admission::Demand);
            }
            Op::Get { object, start, len } => {
                let range = start..start + len;
                let hit = cache.get(key(object), range.clone()).await;
                if let Some(bytes) = hit {
                    assert!(range.end <= end_of(object), "bytes behind the end");
                    assert!(bytes == content(object, range.clone()), "{range:?}");
                }
            }
            Op::Forget(object) => {
                cache.forget(key(object));
                assert!(cache.get(key(object), 0..1).await.is_none());
            }
            Op::Rot => disk.rot(),
            // Reads of what was just filled come from the queue, unless the writer was faster.
            Op::Settle => tokio::task::yield_now().await,
        }
    }
    cache.close().await;
    for object in 0..4 {
        for piece in 0..end_of(object).div_ceil(4096) {
            let range = piece * 4096..((piece + 1) * 4096).min(end_of(object));
            if let Some(bytes) = cache.get(key(object), range.clone()).await {
                assert!(bytes == content(object, range));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is filled, asked for, forgotten or rots: a hit has the object's bytes.
    #[test]
    fn hits_are_right(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        runtime.block_on(async { run_ops(&real_env(), ops).await });
    }
}

/// A store whose ranged reads wait for permission, and can be cut short.
struct Gated {
    inner: MemoryStore,
    gate: Semaphore,
    cut: Option<u64>,
}

#[async_trait]
impl Passing for Gated {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.gate.acquire().await.expect("never closed").forget();
        let end = range.end.min(self.cut.unwrap_or(u64::MAX));
        self.inner.get_range(key, range.start.min(end)..end).await
    }
}

const OBJECT_BYTES: u64 = 1_000_003;
/// What prefetches may keep in memory.
const AHEAD_BYTES: u64 = 300_000;

struct Reading {
    disk: Arc<TestDisk>,
    gated: Arc<Through<Gated>>,
    meter: Arc<Meter>,
    reader: Arc<ObjectReader>,
    object: ObjectRef,
    _prefetches: PrefetchTask,
}

/// An object of about a million bytes behind a gate with so many permits.
async fn reading(cached: bool, permits: usize, cut: Option<u64>) -> Reading {
    let env = real_env();
    let gated = Through::new(Gated { inner: MemoryStore::new(), gate: Semaphore::new(permits), cut });
    gated.put("log/1", content(1, 0..OBJECT_BYTES)).await.expect("a put");
    let meter = Arc::new(Meter::new(gated.clone(), env.clone()));
    let (disk, cache) = open(&env, 4 * MIB).await;
    let store: SharedStore = meter.clone();
    let (reader, _prefetches) =
        ObjectReader::start(env, Stores::same(store), cached.then_some(cache), AHEAD_BYTES);
    let object = ObjectRef { key: "log/1".to_owned(), cache: key(1), bytes: Some(OBJECT_BYTES) };
    Reading { disk, gated, meter, reader, object, _prefetches }
}

impl Reading {
    /// All of a range, for somebody who will read all of it.
    async fn prefetch(&self, range: Range<u64>) -> Result<()> {
        self.prefetch_for(range.clone(), std::slice::from_ref(&range)).await
    }

    /// The same for somebody who will read parts of it.
    async fn prefetch_for(&self, range: Range<u64>, wanted: &[Range<u64>]) -> Result<()> {
        for prefetch in self.reader.begin_prefetch(&self.object, range, wanted) {
            prefetch.fetch().await?;
        }
        Ok(())
    }

    /// Ranged GETs so far, and the bytes they brought.
    fn gets(&self) -> (u64, u64) {
        let stats = self.meter.snapshot();
        let kind = stats.kinds.iter().find(|k| k.kind == StoreKind::GetRange).expect("a kind");
        (kind.requests, kind.bytes)
    }
}

/// One miss brings its neighbours; what follows in the window costs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_miss_brings_its_neighbours() {
    let r = reading(true, 100, None).await;
    for at in (262_144..524_288).step_by(8192) {
        let range = at + 5..at + 7000;
        assert_eq!(
            r.reader.read(&r.object, range.clone(), 262_144).await.expect("a read"),
            content(1, range)
        );
    }
    assert_eq!(r.gets(), (1, 262_144));
    let tail = OBJECT_BYTES - 10..OBJECT_BYTES;
    assert_eq!(r.reader.read(&r.object, tail.clone(), 262_144).await.expect("a read"), content(1, tail));
    assert_eq!(r.gets(), (2, 262_144 + OBJECT_BYTES - 786_432), "clipped to the object");
    let small = 1..2;
    assert_eq!(r.reader.read(&r.object, small.clone(), 0).await.expect("a read"), content(1, small));
    assert_eq!(r.gets().1, 262_144 + OBJECT_BYTES - 786_432 + 4096, "no window: one piece");
}

/// Of a window, and of what is fetched ahead, what is here is not fetched again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_here_is_not_fetched_again() {
    let r = reading(true, 100, None).await;
    r.reader.read(&r.object, 0..131_072, 0).await.expect("a read");
    r.reader.read(&r.object, 131_072..135_168, 262_144).await.expect("a read");
    assert_eq!(r.gets(), (2, 262_144), "the neighbours in front were here");
    r.prefetch(200_000..300_000).await.expect("fetched");
    assert_eq!(r.gets(), (3, 300_000_u64.next_multiple_of(4096)), "its beginning was here");
}

/// Many readers of one place share one GET.
#[tokio::test(flavor = "multi_thread")]
async fn misses_share_one_get() {
    for cached in [true, false] {
        let r = reading(cached, 0, None).await;
        let reads = (0..16).map(|i| {
            // Without a cache only what lies within another's range is shared.
            let range = if cached { 1000 + i * 100..2000 + i * 100 } else { 1000..2000 };
            async { (range.clone(), r.reader.read(&r.object, range, 65_536).await.expect("a read")) }
        });
        let (reads, ()) = join(join_all(reads), async { r.gated.gate.add_permits(1) }).await;
        for (range, bytes) in reads {
            assert_eq!(bytes, content(1, range));
        }
        assert_eq!(r.gets().0, 1, "cached: {cached}");
    }
}

/// When the reader that does the GET goes away, another one does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_get_is_taken_over() {
    let r = reading(true, 0, None).await;
    let first = r.reader.read(&r.object, 0..100, 65_536);
    let mut first = Box::pin(first);
    assert!(futures_util::poll!(&mut first).is_pending());
    let second = r.reader.read(&r.object, 50..100, 65_536);
    let mut second = Box::pin(second);
    assert!(futures_util::poll!(&mut second).is_pending());
    drop(first); // the one that does the GET
    r.gated.gate.add_permits(1);
    assert_eq!(second.await.expect("a read"), content(1, 50..100));
}

/// An object shorter than it must be is corrupt, by name; so is a read beyond its end.
#[tokio::test(flavor = "multi_thread")]
async fn truncated_objects_are_corrupt() {
    let r = reading(true, 100, Some(500_000)).await;
    let corrupt = |e: Error| assert!(matches!(&e, Error::Corrupt { what, .. } if what == "log/1"), "{e:?}");
    corrupt(r.reader.read(&r.object, 499_000..501_000, 0).await.expect_err("cut"));
    corrupt(r.reader.read(&r.object, 499_000..499_500, 65_536).await.expect_err("the window is cut"));
    corrupt(
        r.reader.read(&r.object, OBJECT_BYTES - 1..OBJECT_BYTES + 1, 0).await.expect_err("beyond the end"),
    );
    let unknown = ObjectRef { bytes: None, ..r.object.clone() };
    let read = r.reader.read(&unknown, 499_000..499_500, 65_536).await.expect("it is there");
    assert_eq!(read, content(1, 499_000..499_500));
    corrupt(r.reader.read(&unknown, 499_000..500_001, 65_536).await.expect_err("cut"));
    let missing = ObjectRef { key: "log/2".to_owned(), cache: key(2), bytes: Some(10) };
    assert!(matches!(r.reader.read(&missing, 0..10, 0).await, Err(Error::NotFound(_))));
}

/// A copy that rots is fetched again; one that the reader rejects is fetched again when forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn bad_copies_are_fetched_again() {
    let r = reading(true, 100, None).await;
    let range = 100..9000;
    let read = || async { r.reader.read(&r.object, range.clone(), 65_536).await.expect("a read") };
    assert_eq!(read().await, content(1, range.clone()));
    r.reader.forget(&r.object);
    assert_eq!(read().await, content(1, range.clone()));
    assert_eq!(r.gets().0, 2);
    r.disk.rot();
    assert_eq!(read().await, content(1, range.clone()), "from the queue, or again from the store");
}

/// A reader that comes while its bytes are prefetched waits for them, and one that comes later gets
/// them from memory; without a chunk cache too. What it lacks beside them it fetches itself.
#[tokio::test(flavor = "multi_thread")]
async fn prefetched_bytes_are_served_from_memory() {
    for cached in [true, false] {
        let r = reading(cached, 0, None).await;
        let prefetch = r.prefetch(65_536..196_608);
        let early = r.reader.read(&r.object, 100_000..120_000, 0);
        let (fetched, early, ()) =
            futures_util::join!(prefetch, early, async { r.gated.gate.add_permits(1) });
        fetched.expect("prefetched");
        assert_eq!(early.expect("a read"), content(1, 100_000..120_000));
        assert_eq!(r.gets(), (1, 131_072), "cached: {cached}");
        r.gated.gate.add_permits(1);
        let across = r.reader.read(&r.object, 190_000..200_000, 0).await.expect("a read");
        assert_eq!(across, content(1, 190_000..200_000));
        // A cache keeps whole pieces.
        let missing = if cached { 4096 } else { 200_000 - 196_608 };
        assert_eq!(r.gets(), (2, 131_072 + missing), "only what was missing");
        let again = r.prefetch(65_536..131_072).await;
        again.expect("nothing to do");
        assert_eq!(r.gets().0, 2, "what is here is not fetched again");
    }
}

/// A prefetch that does not get on holds nobody up: whoever waits for it fetches for itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_prefetch_starves_nobody() {
    let r = reading(true, 0, None).await;
    let mut prefetch = Box::pin(r.prefetch(0..131_072));
    assert!(futures_util::poll!(&mut prefetch).is_pending());
    let mut read = Box::pin(r.reader.read(&r.object, 5000..6000, 0));
    assert!(futures_util::poll!(&mut read).is_pending());
    // The permit goes to the prefetch, which nobody drives on: the reader needs a GET of its own.
    r.gated.gate.add_permits(2);
    assert_eq!(read.await.expect("a read"), content(1, 5000..6000));
}

/// What is planned is on the table before it is fetched: a reader that comes too soon waits, and asks for nothing itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_planned_is_waited_for() {
    let r = reading(true, 0, None).await;
    let planned = [0..65_536, 65_536..131_072].map(|range: Range<u64>| {
        r.reader.begin_prefetch(&r.object, range.clone(), std::slice::from_ref(&range))
    });
    let mut read = Box::pin(r.reader.read(&r.object, 70_000..80_000, 0));
    assert!(futures_util::poll!(&mut read).is_pending());
    r.gated.gate.add_permits(2);
    for prefetch in planned.into_iter().flatten() {
        prefetch.fetch().await.expect("prefetched");
    }
    assert_eq!(read.await.expect("a read"), content(1, 70_000..80_000));
    assert_eq!(r.gets(), (2, 131_072), "no GET of its own");
}

/// A plan that nobody follows is off the table: its reader does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_dropped_holds_nobody_up() {
    let r = reading(true, 100, None).await;
    let range = 0..65_536;
    let planned = r.reader.begin_prefetch(&r.object, range.clone(), std::slice::from_ref(&range));
    let mut read = Box::pin(r.reader.read(&r.object, 5000..6000, 0));
    assert!(futures_util::poll!(&mut read).is_pending());
    drop(planned);
    assert_eq!(read.await.expect("a read"), content(1, 5000..6000));
    let counts = r.reader.ahead_counts();
    assert_eq!((counts.fetched_bytes, counts.wasted_bytes), (0, 0));
}

/// What memory has no room for goes to the chunk cache, and is read there.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_takes_what_memory_does_not() {
    let r = reading(true, 100, None).await;
    for at in (0..900_000).step_by(65_536) {
        r.prefetch(at..(at + 65_536).min(OBJECT_BYTES)).await.expect("prefetched");
    }
    let fetched = r.gets();
    assert_eq!(fetched.0, 14);
    for at in (0..900_000).step_by(65_536) {
        let range = at..(at + 65_536).min(OBJECT_BYTES);
        let read = r.reader.read(&r.object, range.clone(), 0).await.expect("a read");
        assert_eq!(read, content(1, range));
    }
    assert_eq!(r.gets(), fetched);
    assert_eq!(r.reader.ahead_counts().wasted_bytes, 0);
}

/// Prefetches keep no more in memory than they may. What does not fit is not fetched, and pushes out nothing that
/// somebody will read; what was read makes room.
#[tokio::test(flavor = "multi_thread")]
async fn prefetches_keep_a_bounded_memory() {
    let r = reading(false, 100, None).await;
    for at in (0..900_000).step_by(65_536) {
        r.prefetch(at..at + 65_536).await.expect("prefetched, or left alone");
    }
    assert_eq!(r.gets(), (4, 4 * 65_536), "four fit into the bound");
    let oldest = r.reader.read(&r.object, 0..65_536, 0).await.expect("a read");
    assert_eq!(oldest, content(1, 0..65_536));
    assert_eq!(r.gets().0, 4, "from memory");
    r.prefetch(262_144..327_680).await.expect("prefetched");
    assert_eq!(r.gets().0, 5, "there is room again");
    let counts = r.reader.ahead_counts();
    assert_eq!((counts.fetched_bytes, counts.used_bytes, counts.wasted_bytes), (5 * 65_536, 65_536, 0));
}

/// What comes along between wanted parts of an object is kept until these are read, and counts as neither used
/// nor wasted.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_not_waste() {
    let r = reading(false, 100, None).await;
    let wanted = [4096..8192, 40_960..45_056];
    r.prefetch_for(4096..45_056, &wanted).await.expect("prefetched");
    for range in wanted {
        let read = r.reader.read(&r.object, range.clone(), 0).await.expect("a read");
        assert_eq!(read, content(1, range));
    }
    let counts = r.reader.ahead_counts();
    assert_eq!((counts.fetched_bytes, counts.used_bytes, counts.wasted_bytes), (40_960, 8192, 0));
    r.reader.read(&r.object, 4096..8192, 0).await.expect("a read");
    assert_eq!(r.gets().0, 2, "what was wanted was read: nothing is kept");
}
