//! Read-ahead and warming of a volume, by the requests they cost: a store with a latency, counted.

mod volume_support;

use std::{ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::KeySource,
    env::{Env, real::RealEnv},
    store::{MemoryStore, Meter, Store, StoreKind, StoreResult},
    volume::{Volume, WarmTarget},
};
use volume_support::{
    Host, MIB, close, noise,
    passing::{Passing, Through},
    read,
};

/// A store whose ranged reads take a while, as over a link.
struct Distant(MemoryStore, Env);

#[async_trait]
impl Passing for Distant {
    fn inner(&self) -> &dyn Store {
        &self.0
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.1.sleep(Duration::from_millis(5)).await;
        self.0.get_range(key, range).await
    }
}

struct Fixture {
    host: Host,
    meter: Arc<Meter>,
}

impl Fixture {
    /// A volume of 64 MiB whose first `bytes` are noise, written in order and committed.
    async fn written(bytes: u64) -> Fixture {
        let env = RealEnv::start();
        let meter = Arc::new(Meter::new(Through::new(Distant(MemoryStore::new(), env.clone())), env.clone()));
        let key = KeySource::Passphrase("open sesame".into());
        let host = Host::with_volume(env, meter.clone(), 64 * MIB, key).await;
        let volume = host.open().await;
        for at in (0..bytes).step_by(MIB as usize) {
            volume.write(at, noise(at, MIB as usize), false).await.expect("written");
        }
        close(volume).await;
        Fixture { host, meter }
    }

    /// Ranged GETs so far, and the bytes they brought.
    fn gets(&self) -> (u64, u64) {
        let stats = self.meter.snapshot();
        let kind = stats.kinds.iter().find(|k| k.kind == StoreKind::GetRange).expect("a kind");
        (kind.requests, kind.bytes)
    }
}

/// A sequential reader of 128 KiB gets the right bytes, with and without a chunk cache, for fewer GETs than it has requests, and
/// hardly any byte is fetched twice. How many depends on how fast reader and link are found to be: a GET brings two requests or
/// more, but the last one of a plan.
#[tokio::test(flavor = "multi_thread")]
async fn a_sequential_read_is_fetched_ahead() {
    let fixture = Fixture::written(32 * MIB).await;
    for cached in [false, true] {
        let cache = if cached { Some(fixture.host.cache("cache").await) } else { None };
        let volume = fixture.host.open_read_only(cache).await;
        let before = fixture.gets();
        for mib in 0..32 {
            let expected = noise(mib * MIB, MIB as usize);
            for part in 0..8 {
                let at = part * 131_072;
                let got = read(&volume, mib * MIB + at, 131_072).await;
                assert!(got == expected[at as usize..][..131_072], "{mib} MiB + {at}");
            }
        }
        let (gets, bytes) = (fixture.gets().0 - before.0, fixture.gets().1 - before.1);
        assert!(gets < 200, "{gets} GETs for 256 reads, cached: {cached}");
        assert!(bytes < 40 * MIB, "{bytes} bytes for 32 MiB, cached: {cached}");
    }
}

/// What a reader got from memory, where read-ahead had brought it, counts as read in the chunk cache: it is hot, and
/// no guess any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_read_ahead_brought_is_hot() {
    let fixture = Fixture::written(32 * MIB).await;
    let cache = fixture.host.cache("cache").await;
    let volume = fixture.host.open_read_only(Some(cache.clone())).await;
    for at in (0..32 * MIB).step_by(131_072) {
        read(&volume, at, 131_072).await;
    }
    cache.close().await; // what was on its way to the disk is there now
    let pieces: u32 = cache.hot(u64::MAX).iter().map(|hot| hot.valid.count_ones()).sum();
    // What a busy writer of the cache did not take is not there.
    let filled = cache.stats().fill_bytes;
    assert!(
        filled >= 4 * MIB && u64::from(pieces) * 4096 >= filled / 16 * 15,
        "{pieces} pieces of {filled} bytes"
    );
}

/// Random reads start no prefetch: without a cache, every one costs its own GET and nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn random_reads_are_not_fetched_ahead() {
    let fixture = Fixture::written(32 * MIB).await;
    let volume = fixture.host.open_read_only(None).await;
    read(&volume, 0, 4096).await; // the map is in memory now
    let before = fixture.gets();
    let order: Vec<u64> = (1..200).map(|n: u64| n.wrapping_mul(2_654_435_761) % 8192).collect();
    for block in &order {
        read(&volume, block * 4096, 4096).await;
    }
    let (gets, bytes) = (fixture.gets().0 - before.0, fixture.gets().1 - before.1);
    assert!(gets <= 199 && bytes <= 199 * 3 * 4096, "{gets} GETs, {bytes} bytes");
}

/// What was brought into the cache is read without the store; doing it again costs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefetched_range_is_read_from_the_cache() {
    let fixture = Fixture::written(16 * MIB).await;
    let cache = fixture.host.cache("cache").await;
    let volume = fixture.host.open_read_only(Some(cache.clone())).await;
    volume.prefetch(MIB, 8 * MIB).await.expect("prefetched");
    cache.close().await; // what was on its way to the disk is there now
    let fetched = fixture.gets();
    volume.prefetch(MIB, 8 * MIB).await.expect("prefetched");
    for mib in [5, 1, 8, 3] {
        assert_eq!(read(&volume, mib * MIB, MIB).await, noise(mib * MIB, MIB as usize));
    }
    assert_eq!(fixture.gets(), fetched);
}

/// What a writer wrote, data and map, it reads from its own cache, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_here_is_read_here() {
    let fixture = Fixture::written(0).await;
    let cache = fixture.host.cache("cache").await;
    let volume = fixture.host.open_with(cache.clone()).await;
    for block in 0..2048 {
        volume.write(block * 8192, noise(block, 4096), false).await.expect("written");
    }
    close(volume).await;
    cache.close().await; // what was on its way to the disk is there now
    drop(cache);
    let volume = fixture.host.open_with(fixture.host.cache("cache").await).await;
    let fetched = fixture.gets();
    for block in [0, 1000, 2047] {
        assert_eq!(read(&volume, block * 8192, 4096).await, noise(block, 4096));
    }
    assert_eq!(fixture.gets(), fetched);
}

/// Warms until everything is done; gives the bytes that had to be fetched.
async fn warm(volume: &Volume, what: WarmTarget) -> Result<u64, Error> {
    let (mut at, mut fetched) = (0, 0);
    loop {
        let step = volume.warm(what, at).await?;
        fetched += step.fetched_bytes;
        match step.next {
            Some(next) => assert!(next > at && next < step.total, "{step:?}"),
            None => return Ok(fetched),
        }
        at = step.next.unwrap_or(0);
    }
}

/// Scattered blocks that a client reads again and again.
const HOT_BLOCKS: [u64; 8] = [3, 700, 701, 1500, 2222, 3000, 3500, 4000];

async fn read_hot(volume: &Volume) {
    for block in HOT_BLOCKS {
        let mib = block / 256;
        let expected = noise(mib * MIB, MIB as usize);
        let at = (block % 256 * 4096) as usize;
        assert_eq!(read(volume, block * 4096, 4096).await, expected[at..at + 4096]);
    }
}

impl Fixture {
    async fn hot_sets(&self) -> Vec<String> {
        let listed = self.host.own().await.list_after("hot/", "", 100).await.expect("listed");
        listed.into_iter().map(|l| l.key).collect()
    }

    /// A volume with some hot blocks, closed; its hot set is in the store.
    async fn with_hot_set() -> Fixture {
        let fixture = Fixture::written(16 * MIB).await;
        let cache = fixture.host.cache("first").await;
        let volume = fixture.host.open_with(cache.clone()).await;
        read_hot(&volume).await;
        cache.close().await; // what was read is in the index
        close(volume).await;
        fixture
    }
}

/// What was hot on one host is fetched in bulk on the next, whose reads then need no store; the host
/// before leaves one hot set, whatever it found there.
#[tokio::test(flavor = "multi_thread")]
async fn the_hot_set_warms_a_new_cache() {
    let fixture = Fixture::with_hot_set().await;
    let first = fixture.hot_sets().await;
    assert_eq!(first.len(), 1, "{first:?}");
    let volume = fixture.host.open_read_only(Some(fixture.host.cache("second").await)).await;
    warm(&volume, WarmTarget::Hot).await.expect("warm");
    warm(&volume, WarmTarget::Metadata).await.expect("warm");
    let before = fixture.gets();
    read_hot(&volume).await;
    assert_eq!(fixture.gets(), before);

    let cache = fixture.host.cache("third").await;
    let volume = fixture.host.open_with(cache.clone()).await;
    for mib in 0..16 {
        read(&volume, mib * MIB, MIB).await;
    }
    cache.close().await; // what was read is in the index
    close(volume).await;
    let second = fixture.hot_sets().await;
    assert!(second.len() == 1 && second > first, "{second:?} replaces {first:?}");
}

/// A hot set that is damaged, or named by somebody else, costs a remark and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_hot_set_is_ignored() {
    let fixture = Fixture::with_hot_set().await;
    let name = fixture.hot_sets().await.remove(0);
    let own = fixture.host.own().await;
    own.put(&name, Bytes::from_static(b"rubbish")).await.expect("put");
    own.put("hot/not-ours", Bytes::new()).await.expect("put");
    let cache = fixture.host.cache("second").await;
    let volume = fixture.host.open_with(cache.clone()).await;
    assert!(matches!(warm(&volume, WarmTarget::Hot).await, Err(Error::Corrupt { .. })));
    read_hot(&volume).await;
    cache.close().await; // what was read is in the index
    close(volume).await;
    let left = fixture.hot_sets().await;
    assert!(
        left.len() == 2 && !left.contains(&name) && left.contains(&"hot/not-ours".to_owned()),
        "{left:?}"
    );
}

/// With the map warmed, no lookup asks the store; without a cache or a hot set, warming says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_map_needs_no_store() {
    let fixture = Fixture::written(16 * MIB).await;
    let cache = fixture.host.cache("cache").await;
    let volume = fixture.host.open_read_only(Some(cache.clone())).await;
    assert!(matches!(warm(&volume, WarmTarget::Hot).await, Err(Error::NotFound(_))));
    assert!(warm(&volume, WarmTarget::Metadata).await.expect("warm") > 0);
    cache.close().await;
    let before = fixture.gets();
    let mut at = 0;
    while at < 64 * MIB {
        let found = volume.ranges(at, 64 * MIB - at, 10).await.expect("ranges");
        at += found.iter().map(|(len, _)| len).sum::<u64>();
    }
    assert_eq!(fixture.gets(), before);
    let range = WarmTarget::Range { offset: MIB, len: 4 * MIB };
    let bare = fixture.host.open_read_only(None).await;
    assert!(matches!(warm(&bare, range).await, Err(Error::Invalid(_))));
    let beyond = WarmTarget::Range { offset: 0, len: 65 * MIB };
    assert!(matches!(warm(&volume, beyond).await, Err(Error::OutOfRange { .. })));
}
