//! A store on a disk that is too small for the garbage that a volume makes in one grace.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::KeySource,
    store::{DiskRoom, LIST_MAX, MemoryStore, Put, Store, StoreError, StoreResult},
    volume::{
        Collect, OpenOptions, Volume,
        trash::{self, Removal, TrashDeletion},
    },
};
use own_time::hurried_env;
use tokio::sync::watch;
use volume_support::{
    Host, MIB,
    bucket::Bucket,
    close, noise,
    passing::{Passing, Through},
    read,
};

const DISK_BYTES: u64 = 160 * MIB;
const LIVE_BYTES: u64 = 32 * MIB;

/// A store in memory on a disk of [`DISK_BYTES`].
struct Small {
    inner: MemoryStore,
    /// Of others.
    ballast_bytes: AtomicU64,
    /// Puts that found it full.
    refused: AtomicU64,
    /// Whether puts of segments wait.
    holds_back: watch::Sender<bool>,
    /// What others leave free, from the next segment on that is put; 0 where nobody comes.
    left_free: AtomicU64,
}

impl Small {
    /// Others take all but so many bytes; nothing for 0.
    async fn leave_free(&self, bytes: u64) {
        let taken = self.free_bytes().await.saturating_sub(bytes);
        self.ballast_bytes.fetch_add(if bytes > 0 { taken } else { 0 }, SeqCst);
    }

    async fn free_bytes(&self) -> u64 {
        let (mut taken, mut after) = (self.ballast_bytes.load(SeqCst), String::new());
        loop {
            let page = self.inner.list_after("", &after, LIST_MAX).await.expect("listed");
            taken += page.iter().map(|object| object.bytes).sum::<u64>();
            match page.into_iter().last() {
                Some(last) => after = last.key,
                None => return DISK_BYTES.saturating_sub(taken),
            }
        }
    }
}

#[async_trait]
impl Passing for Small {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let is_segment = key.contains("log/") && body.len() > MIB as usize;
        if is_segment {
            let _ = self.holds_back.subscribe().wait_for(|holds_back| !holds_back).await;
        }
        if self.free_bytes().await < body.len() as u64 {
            self.refused.fetch_add(1, SeqCst);
            return Err(StoreError::NoRoom("the file system is full".into()));
        }
        let put = self.inner.put_if_absent(key, body).await;
        if is_segment {
            self.leave_free(self.left_free.swap(0, SeqCst)).await;
        }
        put
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        Ok(Some(DiskRoom { free_bytes: self.free_bytes().await, total_bytes: DISK_BYTES }))
    }
}

async fn host(store: Arc<Through<Small>>, size_bytes: u64) -> Host {
    Host::with_volume(hurried_env(), store, size_bytes, KeySource::None).await
}

fn small() -> Arc<Through<Small>> {
    let (ballast_bytes, refused, holds_back, left_free) = Default::default();
    Through::new(Small { inner: MemoryStore::new(), ballast_bytes, refused, holds_back, left_free })
}

/// Of a disk of that size.
const HELD_BACK_BYTES: u64 = DISK_BYTES / 4;

/// While segments are on their way and have not arrived, the disk still calls free what they will take. None is sent for which there is
/// no room beside them.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_has_taken_its_room() {
    let store = small();
    let host = host(store.clone(), 256 * MIB).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 4096), false).await.expect("written");
    volume.drain().await.expect("drained");
    store.leave_free(HELD_BACK_BYTES + 12 * MIB).await; // for one segment of 8 MiB
    store.holds_back.send_replace(true);
    for offset in (0..96 * MIB).step_by(MIB as usize) {
        volume.write(offset, noise(offset, MIB as usize), false).await.expect("written");
    }
    // Whatever write-back would send before the first one has arrived is on its way by then.
    host.env.sleep(Duration::from_secs(600)).await;
    store.holds_back.send_replace(false);
    let report = volume.close(Duration::from_secs(600)).await;
    assert!(!report.clean, "there is no room for all of it");
    let free_bytes = store.free_bytes().await;
    assert!(free_bytes >= HELD_BACK_BYTES, "{} MiB are free", free_bytes / MIB);
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
}

/// A copy of what another volume has gives no room back: it is refused where clients would have none behind it, and says what to do.
/// What clients write goes on.
#[tokio::test(flavor = "multi_thread")]
async fn flattening_leaves_room_for_clients() {
    let store = small();
    let (bucket, env) = (Bucket(store.clone()), hurried_env());
    let source = bucket.with_volume(&env, "a", 96 * MIB, &KeySource::None).await;
    let volume = source.open().await;
    for offset in (0..96 * MIB).step_by(MIB as usize) {
        volume.write(offset, noise(offset, MIB as usize), false).await.expect("written");
    }
    volume.drain().await.expect("drained");
    volume.snapshot("s").await.expect("made");
    let clone = bucket.clone_of((&source, "../a"), &volume, "s", (env.clone(), "b")).await;
    close(volume).await;
    let volume = clone.open().await;
    let adopt = Collect::Adopt { offset: 0, len: 96 * MIB };
    let refused = volume.collect(adopt).await.expect_err("there are 60 MiB for 96");
    assert!(matches!(&refused, Error::NoRoom(said) if said.contains("Make some")), "{refused}");
    let goes_on = async {
        volume.write(0, noise(7, MIB as usize), false).await.expect("written");
        volume.snapshot("t").await.expect("made");
        volume.drain().await.expect("drained");
    };
    env.timeout(Duration::from_secs(3600), goes_on).await.expect("it is stuck");
    assert!(store.free_bytes().await >= HELD_BACK_BYTES);
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
    close(volume).await;
}

/// A round that has begun asks again before each of its segments: somebody else may have filled the disk meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_ends_where_room_does() {
    let store = small();
    let host = host(store.clone(), 48 * MIB).await;
    let volume =
        Volume::open(OpenOptions { memory_bytes: 256 * MIB, ..host.options() }).await.expect("opened");
    for odd in [0, 1] {
        for n in (0..48 * 16).filter(|n| n % 2 == odd) {
            volume.write(n * (MIB / 16), noise(n, MIB as usize / 16), false).await.expect("written");
        }
        volume.drain().await.expect("drained");
    }
    let free_bytes = HELD_BACK_BYTES / 2 + 8 * MIB;
    store.left_free.store(free_bytes, SeqCst);
    let refused = volume.collect(Collect::Defragment { offset: 0, len: 48 * MIB }).await;
    assert!(matches!(&refused, Err(Error::NoRoom(said)) if said.contains("Make some")), "{refused:?}");
    assert!(store.free_bytes().await > free_bytes - 4 * MIB, "only what is small came behind it");
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
}

/// More than a disk takes is not all in the store at the end, and the end says why: it stays in the journal.
#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_room_stays_and_it_is_said_why() {
    let store = small();
    let host = host(store.clone(), 256 * MIB).await;
    let volume = host.open().await;
    for offset in (0..200 * MIB).step_by(MIB as usize) {
        volume.write(offset, noise(offset, MIB as usize), false).await.expect("written");
    }
    let report = volume.close(Duration::from_secs(600)).await;
    assert!(!report.clean && report.journal_bytes_left > 50 * MIB, "{report:?}");
    let why = report.reason.expect("it is not clean");
    assert!(why.contains("nearly full") && why.contains("not drained within 600 s"), "{why}");
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
    let volume = host.open().await;
    for offset in (0..200 * MIB).step_by(MIB as usize) {
        assert!(read(&volume, offset, MIB).await == noise(offset, MIB as usize), "{offset}");
    }
}

/// On a disk that others have filled a snapshot can be removed where nothing waits before it, and what only it held goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_goes_makes_room() {
    let store = small();
    let host = host(store.clone(), 64 * MIB).await;
    let options = OpenOptions { grace: Duration::from_secs(300), ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    let overwrite = async |tag: u64| {
        volume.write(0, noise(tag, LIVE_BYTES as usize), false).await.expect("written");
        volume.drain().await.expect("drained");
    };
    overwrite(1).await;
    volume.snapshot("a").await.expect("made");
    overwrite(2).await;
    store.ballast_bytes.store(store.free_bytes().await - 10 * MIB, SeqCst);
    let removed = async {
        volume.remove_snapshot("a").await.expect("removed");
        volume.drain().await.expect("drained");
        while store.free_bytes().await < 30 * MIB {
            host.env.sleep(Duration::from_secs(10)).await;
        }
    };
    host.env.timeout(Duration::from_secs(48 * 3600), removed).await.expect("it is stuck"); // a quarter of an hour
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
    close(volume).await;
}

/// A volume that is overwritten ten times within one grace, on a disk for five times what is live: what is written waits in the
/// journal until garbage has gone, says why, and gets to the store. The disk is never filled, so what makes room always finds some.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_makes_room_for_what_is_written() {
    let store = small();
    let host = host(store.clone(), 64 * MIB).await;
    let options = OpenOptions { grace: Duration::from_secs(300), ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    let rounds = 10;
    let overwritten = async {
        for round in 0..rounds {
            for offset in (0..LIVE_BYTES).step_by(MIB as usize) {
                let data = noise(round * LIVE_BYTES + offset, MIB as usize);
                volume.write(offset, data, false).await.expect("written");
            }
        }
        volume.drain().await.expect("drained");
    };
    host.env.timeout(Duration::from_secs(48 * 3600), overwritten).await.expect("it is stuck"); // a quarter of an hour
    let said = volume.status().store_error;
    assert!(said.as_ref().is_some_and(|said| said.contains("nearly full")), "{said:?}");
    assert!(!volume.status().store_refuses, "it goes on");
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
    for offset in (0..LIVE_BYTES).step_by(MIB as usize) {
        let last = noise((rounds - 1) * LIVE_BYTES + offset, MIB as usize);
        assert!(read(&volume, offset, MIB).await == last, "{offset}");
    }
    close(volume).await;
}

/// Fills the disk with what is live, and has a third as much wait in the journal for room that there is none of.
async fn fill(volume: &Volume, host: &Host) {
    for offset in (0..170 * MIB).step_by(MIB as usize) {
        volume.write(offset, noise(offset, MIB as usize), false).await.expect("written");
    }
    volume.flush().await.expect("flushed");
    while !volume.status().store_refuses {
        host.env.sleep(Duration::from_secs(1)).await;
    }
}

async fn wait_for_room(store: &Small, host: &Host, free_bytes: u64) {
    let is_free = async {
        while store.free_bytes().await < free_bytes {
            host.env.sleep(Duration::from_secs(1)).await;
        }
    };
    host.env.timeout(Duration::from_secs(3600), is_free).await.expect("no room comes back"); // 18 seconds
}

/// The disk is full of what is live, and more waits in the journal. A discard of everything overtakes what it makes needless, so the
/// store empties, though what waits could never be stored. What was written behind it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_discard_of_everything_empties_a_full_store() {
    let store = small();
    let host = host(store.clone(), 256 * MIB).await;
    let options = OpenOptions { grace: Duration::from_secs(10), ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    fill(&volume, &host).await;
    volume.trim(0, 256 * MIB, false).await.expect("trimmed");
    volume.write(3 * MIB, noise(7, 4096), false).await.expect("written");
    wait_for_room(&store, &host, 150 * MIB).await;
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
    volume.drain().await.expect("drained");
    close(volume).await;
    let volume = host.open().await;
    assert!(read(&volume, 3 * MIB, 4096).await == noise(7, 4096));
    let rest = read(&volume, 4 * MIB, 252 * MIB).await;
    assert!(rest.iter().all(|byte| *byte == 0));
    close(volume).await;
}

/// Nearly all of a full disk is held by snapshots, and data waits in the journal. Removing the snapshots makes room although it was
/// asked for behind that data; so does removing them and discarding everything. A snapshot that was made of what waits is in the way of neither: it
/// stays or, where everything is discarded, is removed too.
#[tokio::test(flavor = "multi_thread")]
async fn snapshots_go_before_what_waits() {
    for (discards, late) in [(false, false), (true, false), (false, true), (true, true)] {
        let store = small();
        let host = host(store.clone(), 64 * MIB).await;
        let options = OpenOptions { grace: Duration::from_secs(10), ..host.options() };
        let volume = Volume::open(options).await.expect("opened");
        for round in 0..5 {
            for offset in (0..LIVE_BYTES).step_by(MIB as usize) {
                let data = noise(round * LIVE_BYTES + offset, MIB as usize);
                volume.write(offset, data, false).await.expect("written");
            }
            volume.flush().await.expect("flushed");
            if round < 3 {
                volume.snapshot(&format!("s{round}")).await.expect("made");
            }
        }
        while !volume.status().store_refuses {
            host.env.sleep(Duration::from_secs(1)).await;
        }
        if late {
            volume.snapshot("late").await.expect("made");
            volume.write(LIVE_BYTES, noise(7, 4096), true).await.expect("written");
        }
        if discards {
            volume.trim(0, 64 * MIB, false).await.expect("trimmed");
        }
        if late && discards {
            host.env.sleep(Duration::from_secs(30)).await;
            assert!(volume.status().store_refuses, "what a snapshot shows is not discarded");
            volume.remove_snapshot("late").await.expect("removed");
        }
        for round in 0..3 {
            volume.remove_snapshot(&format!("s{round}")).await.expect("removed");
        }
        wait_for_room(&store, &host, if discards { 150 } else { 80 } * MIB).await;
        assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
        volume.drain().await.expect("drained");
        close(volume).await;
        let volume = host.open().await;
        let left: Vec<String> = volume.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        assert_eq!(left, if late && !discards { vec!["late"] } else { Vec::new() });
        let data = |offset| noise(4 * LIVE_BYTES + offset, MIB as usize);
        for offset in (0..LIVE_BYTES).step_by(MIB as usize) {
            let wanted = if discards { Bytes::from(vec![0; MIB as usize]) } else { data(offset) };
            assert!(read(&volume, offset, MIB).await == wanted, "{offset}");
        }
        close(volume).await;
    }
}

/// Data waits, and what fills the disk is kept by a hold and for a clone: the hold is released, that snapshot and the clone are removed, all of it
/// behind that data, and all three make room for it.
#[tokio::test(flavor = "multi_thread")]
async fn holds_and_clones_let_go_before_what_waits() {
    let store = small();
    let (bucket, env) = (Bucket(store.clone()), hurried_env());
    let host = bucket.with_volume(&env, "a", 64 * MIB, &KeySource::None).await;
    let volume = host.open().await;
    let overwrite = async |round: u64| {
        for offset in (0..LIVE_BYTES).step_by(MIB as usize) {
            let data = noise(round * LIVE_BYTES + offset, MIB as usize);
            volume.write(offset, data, false).await.expect("written");
        }
        volume.flush().await.expect("flushed");
    };
    overwrite(0).await;
    volume.drain().await.expect("drained");
    volume.snapshot("cloned").await.expect("made");
    let clone = bucket.clone_of((&host, "../a"), &volume, "cloned", (env.clone(), "b")).await;
    volume.remove_snapshot("cloned").await.expect("hidden");
    for (round, name) in [(1, "held"), (2, "held-too")] {
        overwrite(round).await;
        volume.drain().await.expect("drained");
        volume.snapshot(name).await.expect("made");
        volume.hold_snapshot(name, "tag").await.expect("held");
    }
    overwrite(3).await; // all four states do not fit
    while !volume.status().store_refuses {
        env.sleep(Duration::from_secs(1)).await;
    }
    for name in ["held", "held-too"] {
        volume.release_snapshot(name, "tag").await.expect("released");
        volume.remove_snapshot(name).await.expect("removed");
    }
    let removal = Removal { keep: Duration::ZERO, force: false, host: "here".into() };
    trash::remove(&env, &clone.store, &clone.key, removal).await.expect("removed");
    let deletion = TrashDeletion { host: "here".into(), only_if_over: false, untold: false };
    trash::delete(&env, &clone.stores(), &deletion, &|_, _| {}).await.expect("deleted");
    assert!(volume.is_room_short().await, "who looks for clones that are gone looks now");
    let forgotten = env.timeout(Duration::from_secs(48 * 3600), volume.forget_removed_clones()).await;
    assert_eq!(forgotten.expect("it is stuck").expect("forgotten"), 1);
    wait_for_room(&store, &host, 80 * MIB).await;
    assert_eq!(store.refused.load(SeqCst), 0, "it was never full");
    assert_eq!(volume.snapshots(), []);
    for offset in (0..LIVE_BYTES).step_by(MIB as usize) {
        assert!(read(&volume, offset, MIB).await == noise(3 * LIVE_BYTES + offset, MIB as usize), "{offset}");
    }
    close(volume).await;
}

/// A full disk, and behind it a journal with as much dirty data as may be there, from writes of a block that go to the last bit: zeroes still get
/// in, one after the other until they wait too, and then still the removal of a snapshot and a discard of everything. That makes room, and all goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_makes_room_gets_in_where_nothing_else_does() {
    const SHORT: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(3600);
    let store = small();
    let host = host(store.clone(), 256 * MIB).await;
    let options = OpenOptions { dirty_bytes_max: 2 * MIB, grace: Duration::from_secs(5), ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    volume.write(0, noise(1, 8 * MIB as usize), false).await.expect("written");
    volume.snapshot("a").await.expect("made");
    volume.drain().await.expect("drained");
    store.leave_free(HELD_BACK_BYTES / 2).await;
    for n in 0.. {
        let write = volume.write(n * 4096, noise(n, 4096), false);
        if host.env.timeout(SHORT, write).await.is_none() {
            break;
        }
    }
    for n in 0..1000 {
        let trim = volume.trim(n % 256 * 65536, 65536, false);
        if host.env.timeout(SHORT, trim).await.is_none() {
            break;
        }
    }
    host.env.timeout(LONG, volume.remove_snapshot("a")).await.expect("in time").expect("removed");
    host.env.timeout(LONG, volume.trim(0, 256 * MIB, false)).await.expect("in time").expect("trimmed");
    host.env.timeout(LONG, volume.drain()).await.expect("in time").expect("drained");
    assert!(store.free_bytes().await > 8 * MIB, "what the snapshot held is free");
    close(volume).await;
}
