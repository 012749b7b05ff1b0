//! What a volume says of the space it takes, while it is written, cleaned, and while its store does not delete.

mod volume_support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use cistern_engine::{
    codec::KeySource,
    env::real::RealEnv,
    price::Tariff,
    space::{Bound, Cleaning, SPACE_BOUND},
    store::{MemoryStore, Store, StoreError, StoreResult},
    volume::{Collect, LiveSettings, OpenOptions, SpaceStatus, Volume, admin, plan_collection},
};
use volume_support::{
    Host, MIB, close, is_own_below, noise, own_name,
    passing::{Passing, Through},
    read,
};

/// A store in memory, where deletes may be forbidden.
struct Lockable {
    inner: MemoryStore,
    is_locked: AtomicBool,
    /// Names up to this one are locked for ever.
    locked_before: Mutex<Option<String>>,
    /// So are checkpoints.
    checkpoints_are_locked: AtomicBool,
}

#[async_trait]
impl Passing for Lockable {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        let is_old = |last: &String| is_own_below("log/", key) && own_name(key) <= last.as_str();
        let is_old = self.locked_before.lock().expect("sound").as_ref().is_some_and(is_old);
        let is_checkpoint = self.checkpoints_are_locked.load(SeqCst) && is_own_below("checkpoint/", key);
        match self.is_locked.load(SeqCst) || is_old || is_checkpoint {
            true => Err(StoreError::Refused("objects are locked".into())),
            false => self.inner.delete(key).await,
        }
    }
}

async fn host(is_locked: bool) -> (Host, Arc<Through<Lockable>>) {
    let store = Through::new(Lockable {
        inner: MemoryStore::new(),
        is_locked: is_locked.into(),
        locked_before: Mutex::default(),
        checkpoints_are_locked: AtomicBool::default(),
    });
    let host = Host::with_free_slots(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
    (host, store)
}

/// Nothing stays for the sake of readers.
async fn open(host: &Host, ratio: f64) -> Arc<Volume> {
    let cleaning = Bound::Ratio(ratio).into();
    let options = OpenOptions { grace: Duration::ZERO, cleaning, ..host.options() };
    Volume::open(options).await.expect("opened")
}

fn space(volume: &Volume) -> SpaceStatus {
    volume.status().space.expect("open for writing")
}

/// A segment of its own.
async fn write(volume: &Volume, offset: u64, tag: u64, len: u64) {
    volume.write(offset, noise(tag, len as usize), false).await.expect("written");
    volume.drain().await.expect("drained");
}

/// Overwrites the first MiB until the volume says what it is waited for; gives the last tag.
async fn overwrite_until(volume: &Volume, until: impl Fn(&SpaceStatus) -> bool) -> u64 {
    for tag in 0..2000 {
        write(volume, 0, tag, MIB).await;
        if until(&space(volume)) {
            return tag;
        }
    }
    panic!("it never says so: {:?}", space(volume));
}

/// A store that deletes nothing: the volume says why, and what stays because of it; writes, checkpoints, closing and
/// opening go on. When deletes are allowed again they are made, and it says that too.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_deletes_stops_nothing_else() {
    let (host, store) = host(true).await;
    let volume = open(&host, SPACE_BOUND).await;
    overwrite_until(&volume, |space| space.deletes_refused.is_some()).await;
    let tag = overwrite_until(&volume, |space| space.grace_bytes > 40 * MIB).await;
    let status = volume.status();
    let shown = space(&volume);
    assert!(shown.deletes_refused.as_ref().is_some_and(|why| why.contains("locked")), "{shown:?}");
    assert_eq!((shown.counters.deleted_objects, shown.counters.deleted_bytes), (0, 0));
    assert_eq!((status.latched, status.store_error), (None, None));
    assert_eq!(read(&volume, 0, MIB).await, noise(tag, MIB as usize));
    close(volume).await;

    store.is_locked.store(false, SeqCst);
    let volume = open(&host, SPACE_BOUND).await;
    assert!(space(&volume).grace_bytes > 40 * MIB, "it waits from the start on");
    let tag = overwrite_until(&volume, |space| space.counters.deleted_bytes > 40 * MIB).await;
    let shown = space(&volume);
    assert!(shown.counters.deleted_objects >= 40 && shown.deletes_refused.is_none(), "{shown:?}");
    assert_eq!(read(&volume, 0, MIB).await, noise(tag, MIB as usize));
    close(volume).await;
}

/// Objects that are locked hold up no others, however many and however old they are; and what is wrong with them stays told.
#[tokio::test(flavor = "multi_thread")]
async fn locked_objects_hold_up_no_others() {
    let (host, store) = host(true).await;
    let volume = open(&host, SPACE_BOUND).await;
    overwrite_until(&volume, |space| space.grace_objects > 330 && space.deletes_refused.is_some()).await;
    *store.locked_before.lock().expect("sound") = host
        .own()
        .await
        .list_after("log/", "", 300)
        .await
        .expect("listed")
        .last()
        .map(|last| last.key.clone());
    store.is_locked.store(false, SeqCst);
    overwrite_until(&volume, |space| space.counters.deleted_objects > 50).await;
    let shown = space(&volume);
    assert!(shown.deletes_refused.as_ref().is_some_and(|why| why.contains("locked")), "{shown:?}");
    *store.locked_before.lock().expect("sound") = None;
    close(volume).await;
}

/// Checkpoints that are locked stay told while everything else is deleted; once they can be deleted it says so, whatever else is to be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_stays_told_until_it_is_over() {
    let (host, store) = host(false).await;
    let volume = open(&host, SPACE_BOUND).await;
    store.checkpoints_are_locked.store(true, SeqCst);
    overwrite_until(&volume, |space| space.deletes_refused.is_some()).await;
    let deleted = space(&volume).counters.deleted_objects;
    overwrite_until(&volume, |space| {
        assert!(space.deletes_refused.is_some(), "other objects were deleted: {space:?}");
        space.counters.deleted_objects > deleted + 20
    })
    .await;
    store.checkpoints_are_locked.store(false, SeqCst);
    volume.collect(Collect::Retire).await.expect("a checkpoint");
    overwrite_until(&volume, |space| space.deletes_refused.is_none()).await;
    close(volume).await;
}

/// What is live, garbage and in grace, and what was written, moved and deleted, add up to what the store holds and was
/// given.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_space_adds_up() {
    let (host, _) = host(true).await;
    let volume = open(&host, f64::INFINITY).await;
    assert_eq!(space(&volume).segments, None, "not known yet");
    for n in 0..8 {
        write(&volume, n * MIB, n, MIB).await;
        write(&volume, n * MIB, 100 + n, MIB / 2).await;
    }
    volume.drain().await.expect("drained");
    volume.collect(Collect::Retire).await.expect("a checkpoint");
    let shown = space(&volume);
    let known = shown.segments.expect("known");
    assert_eq!(known.segments, 16);
    let store = host.own().await;
    let listed = store.list_after("log/", "", 1000).await.expect("listed");
    let written: u64 = listed.iter().map(|object| object.bytes).filter(|bytes| *bytes > MIB / 4).sum();
    assert_eq!((known.stored_bytes, shown.counters.written_bytes), (written, written));
    assert_eq!(known.live_bytes + known.garbage_bytes, written);
    let about = |bytes: u64, mib: u64| bytes > mib * MIB && bytes < mib * MIB + MIB / 2;
    assert!(about(known.live_bytes, 8) && about(known.garbage_bytes, 4), "{known:?}");
    assert_eq!((shown.uncovered_bytes, shown.bound, shown.counters.moved_data_bytes), (0, None, 0));
    assert!(shown.ratio.is_some_and(|ratio| ratio >= 1.49), "at least what is known: {shown:?}");
    let map = store.list_after("map/", "", 1000).await.expect("listed");
    let checkpoints = store.list_after("checkpoint/", "", 1000).await.expect("listed");
    let beside: u64 = map.iter().chain(&checkpoints).map(|object| object.bytes).sum();
    assert_eq!(shown.map_bytes + shown.counters.checkpoint_bytes, beside);
    let empty_entries = shown.counters.moved_bytes;
    assert!(empty_entries > 0 && empty_entries < 1000, "for the checkpoint: {shown:?}");
    let amplification = (written + empty_entries + beside) as f64 / written as f64;
    assert_eq!(shown.write_amplification, Some(amplification));
    close(volume).await;
    let stored = admin::stored_space(&host.env, &host.store, &host.key).await.expect("looked at");
    let stored = stored.expect("sound accounts");
    assert_eq!((stored.live_bytes, stored.uncovered_bytes), (known.live_bytes, 0));
    assert_eq!(stored.garbage_bytes, known.garbage_bytes, "nothing is wholly dead, so nothing was retired");
    assert_eq!(stored.grace_bytes, shown.grace_bytes);
}

/// A bound that is set while a volume is open counts at once: what was let be is cleaned, and it is said how much was moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_that_is_set_is_kept_from_then_on() {
    let (host, _) = host(false).await;
    let volume = open(&host, f64::INFINITY).await;
    half_overwritten(&volume).await;
    volume.collect(Collect::Retire).await.expect("a checkpoint");
    assert!(space(&volume).segments.is_some_and(|known| known.garbage_bytes > 3 * MIB));
    assert_eq!(space(&volume).counters.vacated_segments, 0);
    volume
        .set(LiveSettings { cleaning: Some(Bound::Ratio(1.1).into()), ..LiveSettings::default() })
        .expect("set");
    while space(&volume).counters.vacated_segments < 4 {
        tokio::task::yield_now().await;
    }
    let shown = space(&volume);
    assert_eq!(shown.bound, Some(1.1));
    assert!(shown.counters.moved_data_bytes >= 2 * MIB && shown.write_amplification > Some(1.1), "{shown:?}");
    reads_half_overwritten(&volume).await;
    close(volume).await;
}

/// A store in memory, whose log may answer nothing.
struct Silent {
    inner: MemoryStore,
    is_silent: AtomicBool,
    /// Requests that wait for an answer.
    waiting: AtomicU64,
}

struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[async_trait]
impl Passing for Silent {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, request: &str, key: &str) -> StoreResult<()> {
        if self.is_silent.load(SeqCst) && request.starts_with("get") && is_own_below("log/", key) {
            self.waiting.fetch_add(1, SeqCst);
            let _waiting = Waiting(&self.waiting);
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// Without a bound the cleaner stops at once, also in the middle of a round; with one it begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_cleaner_stops_when_it_is_switched_off() {
    let (inner, is_silent, waiting) = Default::default();
    let store = Through::new(Silent { inner, is_silent, waiting });
    let host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = open(&host, f64::INFINITY).await;
    let bound = |ratio| {
        let cleaning = Some(Bound::Ratio(ratio).into());
        volume.set(LiveSettings { cleaning, ..LiveSettings::default() }).expect("set");
    };
    half_overwritten(&volume).await;
    collect(&volume, Collect::Retire).await;
    store.is_silent.store(true, SeqCst);
    bound(1.1);
    while store.waiting.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    bound(f64::INFINITY);
    while store.waiting.load(SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(space(&volume).counters.moved_data_bytes, 0);
    store.is_silent.store(false, SeqCst);
    bound(1.1);
    while space(&volume).counters.vacated_segments < 4 {
        tokio::task::yield_now().await;
    }
    reads_half_overwritten(&volume).await;
    close(volume).await;
}

/// A rate that is spent lets nothing be cleaned until its time has come, however much garbage there is, but for what
/// somebody asks for; without the rate it goes on at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_the_cleaner_back() {
    let (host, _) = host(false).await;
    let volume = open(&host, f64::INFINITY).await;
    let clean = |rate| {
        let cleaning = Some(Cleaning { bound: Bound::Ratio(1.1), rate });
        volume.set(LiveSettings { cleaning, ..LiveSettings::default() }).expect("set");
    };
    let vacated = || space(&volume).counters.vacated_segments;
    let vacated_more_than = async |before| {
        while vacated() <= before {
            tokio::task::yield_now().await;
        }
    };
    half_overwritten(&volume).await;
    clean(Some(1));
    vacated_more_than(0).await;
    let spent = vacated();
    half_overwritten(&volume).await;
    collect(&volume, Collect::Retire).await;
    collect(&volume, Collect::Retire).await;
    assert_eq!(vacated(), spent, "the next byte is weeks away");
    assert!(collect(&volume, Collect::Clean { ratio: 1.3 }).await > 0);
    let asked = vacated();
    half_overwritten(&volume).await;
    collect(&volume, Collect::Retire).await;
    clean(None);
    vacated_more_than(asked).await;
    reads_half_overwritten(&volume).await;
    close(volume).await;
}

/// Eight MiB, the first half of each written twice.
async fn half_overwritten(volume: &Volume) {
    for n in 0..8 {
        write(volume, n * MIB, n, MIB).await;
        write(volume, n * MIB, 100 + n, MIB / 2).await;
    }
}

async fn reads_half_overwritten(volume: &Volume) {
    for n in 0..8 {
        assert_eq!(read(volume, n * MIB, MIB / 2).await, noise(100 + n, MIB as usize / 2));
        let rest = noise(n, MIB as usize).split_off(MIB as usize / 2);
        assert_eq!(read(volume, n * MIB + MIB / 2, MIB / 2).await, rest);
    }
}

/// Steps of what was asked for until there is nothing more to do; gives the bytes that were moved.
async fn collect(volume: &Volume, what: Collect) -> u64 {
    let (mut what, mut moved) = (what, 0);
    loop {
        let step = volume.collect(what).await.expect("a step");
        moved += step.moved_bytes;
        let Some(next) = step.next else { return moved };
        if let Collect::Defragment { offset, len } = what {
            what = Collect::Defragment { offset: next, len: offset + len - next };
        }
    }
}

/// Garbage is collected when somebody asks for it, down to the ratio that was asked for, though the bound lets it be; and
/// what that frees is retired.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_is_collected() {
    let (host, _) = host(true).await;
    let volume = open(&host, f64::INFINITY).await;
    half_overwritten(&volume).await;
    collect(&volume, Collect::Retire).await;
    assert!(space(&volume).ratio.is_some_and(|ratio| ratio > 1.4));
    assert!(collect(&volume, Collect::Clean { ratio: 1.1 }).await >= 2 * MIB);
    collect(&volume, Collect::Retire).await;
    let shown = space(&volume);
    assert!(shown.ratio.is_some_and(|ratio| ratio <= 1.1), "{shown:?}");
    assert!(shown.grace_bytes > 4 * MIB && shown.vacated_bytes == 0, "{shown:?}");
    reads_half_overwritten(&volume).await;
    volume.set(LiveSettings { paused: Some(true), ..LiveSettings::default() }).expect("paused");
    let refused = volume.collect(Collect::Retire).await.expect_err("nothing is uploaded");
    assert!(refused.to_string().contains("paused"), "{refused}");
    volume.set(LiveSettings { paused: Some(false), ..LiveSettings::default() }).expect("resumed");
    close(volume).await;
}

/// Writes 8 MiB in order and blocks of its first half one by one; gives where those lie.
async fn scatter(volume: &Volume) -> Vec<u64> {
    write(volume, 0, 1, 8 * MIB).await;
    let scattered: Vec<u64> = (0..256).map(|n| (n * 37 % 256) * 16384).collect();
    for &offset in &scattered {
        volume.write(offset, noise(offset, 4096), false).await.expect("written");
    }
    volume.drain().await.expect("drained");
    scattered
}

/// Blocks that were written one by one are put side by side, once: what is in order is left alone, and everything reads as
/// before.
#[tokio::test(flavor = "multi_thread")]
async fn scattered_blocks_are_put_side_by_side() {
    let (host, _) = host(true).await;
    let volume = open(&host, f64::INFINITY).await;
    let scattered = scatter(&volume).await;
    let all = Collect::Defragment { offset: 0, len: 64 * MIB };
    let scattered_bytes = 4 * MIB - 3 * 4096; // the last three follow what lies behind them
    assert_eq!(
        collect(&volume, all).await,
        scattered_bytes,
        "where blocks were overwritten, and not behind it"
    );
    assert_eq!(collect(&volume, all).await, 0, "it is in order");
    collect(&volume, Collect::Retire).await;
    for &offset in &scattered {
        assert_eq!(read(&volume, offset, 4096).await, noise(offset, 4096));
    }
    assert_eq!(read(&volume, 4 * MIB, 4 * MIB).await, noise(1, 8 * MIB as usize)[4 * MIB as usize..]);
    let behind = Collect::Defragment { offset: 64 * MIB, len: 1 };
    volume.collect(behind).await.expect_err("behind the end");
    close(volume).await;
}

/// A store in memory that counts what is read of its data and of its map.
#[derive(Default)]
struct Watched {
    inner: MemoryStore,
    data_reads: AtomicU64,
    map_reads: AtomicU64,
}

#[async_trait]
impl Passing for Watched {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, request: &str, key: &str) -> StoreResult<()> {
        for (prefix, reads) in [("log/", &self.data_reads), ("map/", &self.map_reads)] {
            if request.starts_with("get") && is_own_below(prefix, key) {
                reads.fetch_add(1, SeqCst);
            }
        }
        Ok(())
    }
}

/// A dry run of a defragmentation foresees what is read of the data, and counts what it reads of the map for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_counts_the_map() {
    let store = Through::new(Watched::default());
    let host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = open(&host, f64::INFINITY).await;
    scatter(&volume).await;
    close(volume).await;
    let all = Collect::Defragment { offset: 0, len: 64 * MIB };
    let planned =
        plan_collection(&host.env, host.stores(), &host.key, all, &|_, _| {}).await.expect("a plan");
    let map_reads = store.map_reads.load(SeqCst);
    let volume = open(&host, f64::INFINITY).await;
    let before = store.data_reads.load(SeqCst);
    collect(&volume, all).await;
    let data_reads = store.data_reads.load(SeqCst) - before;
    close(volume).await;
    assert!(data_reads > 0 && map_reads > 0);
    let foreseen = data_reads + 1..=data_reads + map_reads;
    assert!(foreseen.contains(&planned.gets), "{planned:?}: {data_reads} of data, {map_reads} of the map");
}

/// Where holding garbage costs more than moving what is live, cleaning does not wait for the bound; and what it moved reads
/// as before.
#[tokio::test(flavor = "multi_thread")]
async fn what_pays_is_cleaned_although_the_bound_holds() {
    let (host, _) = host(false).await;
    let tariff =
        Tariff { storage_per_gib_month: 100.0, put_per_1000: 1e-9, get_per_1000: 1e-9, ..Tariff::default() };
    let cleaning = Bound::Ratio(4.0).into();
    let options = OpenOptions { grace: Duration::ZERO, cleaning, tariff, ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    for n in 0..8 {
        write(&volume, n * MIB, n, MIB).await;
        write(&volume, n * MIB, 100 + n, MIB / 2).await;
    }
    // Whoever sets a bound need not wait for the next look.
    while space(&volume).counters.vacated_segments < 4 {
        volume
            .set(LiveSettings { cleaning: Some(Bound::Ratio(4.0).into()), ..LiveSettings::default() })
            .expect("set");
        tokio::task::yield_now().await;
    }
    assert!(space(&volume).ratio.is_some_and(|ratio| ratio < 2.0), "the bound held: {:?}", space(&volume));
    for n in 0..8 {
        assert_eq!(read(&volume, n * MIB, MIB / 2).await, noise(100 + n, MIB as usize / 2));
        let rest = noise(n, MIB as usize).split_off(MIB as usize / 2);
        assert_eq!(read(&volume, n * MIB + MIB / 2, MIB / 2).await, rest);
    }
    close(volume).await;
}
