//! What is received is loaded, past the journal: it comes to the store as a prefix, and is all there when the end says so.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{BlockData, Compression, KeySource},
    env::{Env, real::RealEnv},
    share::{SHARE_PART_BLOCKS, Share},
    store::{DiskRoom, MemoryStore, Put, SharedStore, Store, StoreResult},
    stream::{StreamContent, StreamHeader, StreamRecord, StreamState},
    units::{Extent, SnapshotId, VolumeId},
    volume::{CreateOptions, OpenOptions, Overwrite, Receiver, ShareReceiver, Volume},
};
use futures_util::FutureExt;
use tokio::sync::watch;
use volume_support::{
    Host, MIB, close, is_own_below, noise,
    passing::{Passing, Through},
    read,
};

mod volume_support;

async fn host(env: &Env) -> Host {
    Host::with_volume(env.clone(), Arc::new(MemoryStore::new()), MIB, KeySource::None).await
}

/// A store that tells how much room it has gets several segments at once, however small the volume is.
const ROOMY: DiskRoom = DiskRoom { free_bytes: 1 << 40, total_bytes: 1 << 40 };

/// Two shares of a new volume, and records of each that together do not fit into one segment.
fn two_shares() -> ([StreamHeader; 2], [Vec<StreamRecord>; 2]) {
    let header = |n: u32| StreamHeader {
        volume: VolumeId(uuid::Uuid::from_u128(1)),
        to: StreamState { id: SnapshotId(uuid::Uuid::from_u128(2)), name: "large".into() },
        base: None,
        size_bytes: 2 * SHARE_PART_BLOCKS * 4096,
        made_ms: 0,
        compression: Compression::Lz4,
        share: Share::new(n, 2).expect("one of two"),
        from: 0,
    };
    let records = |share: u64| {
        let record = |n: u64| StreamRecord {
            extent: Extent::new(share * SHARE_PART_BLOCKS + n * 16, 16),
            content: StreamContent::Data(BlockData::Plain(noise(share * 1000 + n, 65536))),
        };
        (0..LARGE / 65536).map(record).collect()
    };
    ([header(0), header(1)], [records(0), records(1)])
}

/// A receive to which all of it was given, and which has not ended.
async fn all_given(
    target: &Arc<Volume>,
    headers: &[StreamHeader],
    records: &[Vec<StreamRecord>],
) -> (Receiver, Vec<ShareReceiver>) {
    let begun = Receiver::begin(target, headers, "large", Overwrite::Nothing).await;
    let (receiver, mut shares) = begun.expect("begun").expect("it is new");
    for (share, records) in shares.iter_mut().zip(records) {
        for record in records {
            share.record(record.clone()).await.expect("received");
        }
    }
    (receiver, shares)
}

/// Bytes of data of each of them.
const LARGE: u64 = 20 * MIB;

/// A store that can be shut: segments wait at it until it opens, and those with data are counted.
struct Gated {
    inner: MemoryStore,
    /// How many of them wait, while it is shut.
    waiting: watch::Sender<Option<usize>>,
}

impl Gated {
    fn new() -> Arc<Through<Gated>> {
        Through::new(Gated { inner: MemoryStore::new(), waiting: watch::Sender::new(None) })
    }

    /// Once so many wait.
    async fn is_shut_to(&self, segments: usize) {
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting == Some(segments)).await;
    }
}

#[async_trait]
impl Passing for Gated {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        Ok(Some(ROOMY))
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        if is_own_below("log/", key) {
            let mut opens = self.waiting.subscribe();
            let has_data = body.len() as u64 > MIB;
            self.waiting.send_modify(|waiting| *waiting = waiting.map(|count| count + usize::from(has_data)));
            let _ = opens.wait_for(|waiting| waiting.is_none()).await;
        }
        self.inner.put_if_absent(key, body).await
    }
}

/// Where a record is on its way when it is given up.
#[derive(Clone, Copy, Debug)]
enum GivenUp {
    /// With the segment that it found full.
    BeforeItsPlace,
    /// Behind segments that do not get into the store.
    BehindOthers,
}

/// Records up to one that is given up there.
async fn give_up(at: GivenUp, share: &mut ShareReceiver, records: &[StreamRecord], store: &Gated) {
    /// What may be on its way at once, with the memory of [`Host`].
    const SEGMENTS: usize = 2;
    for record in records {
        let recorded = Box::pin(tokio::task::unconstrained(share.record(record.clone())));
        match at {
            GivenUp::BeforeItsPlace => match recorded.now_or_never() {
                Some(recorded) => recorded.expect("collected"),
                None => return,
            },
            GivenUp::BehindOthers => tokio::select! {
                biased;
                recorded = recorded => recorded.expect("collected"),
                () = store.is_shut_to(SEGMENTS) => return,
            },
        }
    }
    panic!("none was on its way");
}

/// Whoever gives up a record in the middle of its way, wherever that is, and goes on with the next ones, of that share or of another, does not come
/// to an end; what is known to have come then is what came before it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_leaves_no_hole() {
    let env = RealEnv::start();
    let cases =
        [GivenUp::BeforeItsPlace, GivenUp::BehindOthers].map(|at| [0, 1].map(|goes_on| (at, goes_on)));
    for (at, goes_on) in cases.into_iter().flatten() {
        let store = Gated::new();
        let to = Host::with_volume(env.clone(), store.clone(), MIB, KeySource::None).await;
        let target = to.open().await;
        let (headers, records) = two_shares();
        let begun = Receiver::begin(&target, &headers, "large", Overwrite::Nothing).await;
        let (receiver, mut shares) = begun.expect("begun").expect("it is new");
        target.drain().await.expect("it is begun in the store");
        store.waiting.send_replace(Some(0));
        for record in &records[1][..80] {
            shares[1].record(record.clone()).await.expect("collected");
        }
        give_up(at, &mut shares[0], &records[0], &store).await;
        let next = records[goes_on].last().expect("some").clone();
        let refused = tokio::task::unconstrained(shares[goes_on].record(next)).now_or_never();
        refused.expect("refused at once").expect_err("something is missing");
        receiver.end(shares).await.expect_err("something is missing");
        store.waiting.send_replace(None);
        let places = target.resume_token().await.expect("told").expect("it can go on").places;
        let headers = [0, 1].map(|n| StreamHeader { from: places[n], ..headers[n].clone() });
        let begun = Receiver::begin(&target, &headers, "large", Overwrite::Nothing).await;
        let (receiver, mut shares) = begun.expect("begun").expect("it is not complete");
        for (n, records) in records.iter().enumerate() {
            for record in records.iter().filter(|record| record.extent.start >= places[n]) {
                shares[n].record(record.clone()).await.expect("received");
            }
        }
        receiver.end(shares).await.expect("complete");
        for record in records.iter().flatten() {
            let there = read(&target, record.extent.start * 4096, 65536).await;
            assert!(record.data().expect("plain").expect("data") == there, "{:?}", record.extent);
        }
        close(target).await;
    }
}

/// A receive ends when all that it loaded is in the store, and not before: that end may be durable at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_comes_behind_all_that_was_loaded() {
    let env = RealEnv::start();
    let to = host(&env).await;
    let target = to.open().await;
    let (headers, records) = two_shares();
    let (receiver, shares) = all_given(&target, &headers, &records).await;
    let in_store =
        |volume: &Volume| volume.status().space.expect("it is open for writing").counters.written_bytes;
    receiver.end(shares).await.expect("complete");
    assert!(in_store(&target) >= 2 * LARGE, "{} came", in_store(&target));
    close(target).await;
}

/// What was collected of a receive that was given up is in nothing that is loaded afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_collected_goes_with_its_receive() {
    let env = RealEnv::start();
    let to = host(&env).await;
    let target = to.open().await;
    let (headers, records) = two_shares();
    let [given_up, kept] = [&records[0][..8], &records[1][..8]];
    let begun = Receiver::begin(&target, &headers, "large", Overwrite::Nothing).await;
    let (receiver, mut shares) = begun.expect("begun").expect("it is new");
    for record in given_up {
        shares[0].record(record.clone()).await.expect("collected");
    }
    drop((receiver, shares));
    target.go_back().await.expect("back");
    let headers = headers.map(|header| {
        let to = StreamState { id: SnapshotId(uuid::Uuid::from_u128(3)), name: "another".into() };
        StreamHeader { to, ..header }
    });
    let begun = Receiver::begin(&target, &headers, "another", Overwrite::Nothing).await;
    let (receiver, mut shares) = begun.expect("begun").expect("it is new");
    for record in kept {
        shares[1].record(record.clone()).await.expect("collected");
    }
    receiver.end(shares).await.expect("complete");
    for record in kept {
        let there = read(&target, record.extent.start * 4096, 65536).await;
        assert!(record.data().expect("plain").expect("data") == there, "{:?}", record.extent);
    }
    for record in given_up {
        let there = read(&target, record.extent.start * 4096, 65536).await;
        assert!(there.iter().all(|byte| *byte == 0), "{:?} is of what was given up", record.extent);
    }
    close(target).await;
}

/// What a store gives that does not unpack fails the receive of a volume for which it has to be, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_unpack_is_an_error() {
    let env = RealEnv::start();
    let store = Arc::new(MemoryStore::new());
    let options = CreateOptions { size_bytes: MIB, compression: Compression::None, key: KeySource::None };
    Volume::create(&env, &(store.clone() as SharedStore), options).await.expect("created");
    let to = Host::of_volume(env.clone(), store, KeySource::None);
    let target = to.open().await;
    let (headers, _) = two_shares();
    let begun = Receiver::begin(&target, &headers, "large", Overwrite::Nothing).await;
    let (receiver, mut shares) = begun.expect("begun").expect("it is new");
    let garbage = BlockData::Packed(vec![1, 0xff, 0xff].into());
    let record = StreamRecord { extent: Extent::new(0, 16), content: StreamContent::Data(garbage) };
    let refused = shares[0].record(record).await;
    let refused = match refused {
        Ok(()) => receiver.end(shares).await,
        refused => refused,
    };
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    target.go_back().await.expect("back");
    close(target).await;
}

/// A store that keeps segments of a fenced writer back, and has each of them arrive just before its successor puts one at the same place.
struct Late {
    inner: MemoryStore,
    kept_back: Mutex<HashMap<String, Bytes>>,
    /// How many are, while they are.
    keeps_back: watch::Sender<Option<usize>>,
    arrived: AtomicUsize,
}

impl Late {
    fn new() -> Arc<Through<Late>> {
        Through::new(Late {
            inner: MemoryStore::new(),
            kept_back: Mutex::default(),
            keeps_back: watch::Sender::new(None),
            arrived: AtomicUsize::new(0),
        })
    }

    /// From now on, until [`Late::fence`].
    fn keep_back(&self) {
        self.keeps_back.send_replace(Some(0));
    }

    /// Once so many are kept back their writer is never heard of again. The first never arrives: its place is that of the claim.
    async fn fence(&self, segments: usize) {
        let _ = self.keeps_back.subscribe().wait_for(|count| *count == Some(segments)).await;
        self.keeps_back.send_replace(None);
        let mut kept_back = self.kept_back.lock().expect("no panic");
        let first = kept_back.keys().min().expect("some").clone();
        kept_back.remove(&first);
    }
}

#[async_trait]
impl Passing for Late {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        Ok(Some(ROOMY))
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        if is_own_below("log/", key) && self.keeps_back.borrow().is_some() {
            let count = {
                let mut kept_back = self.kept_back.lock().expect("no panic");
                kept_back.insert(key.to_owned(), body);
                kept_back.len()
            };
            self.keeps_back.send_replace(Some(count));
            return std::future::pending().await;
        }
        let late = self.kept_back.lock().expect("no panic").remove(key);
        if let Some(late) = late {
            self.inner.put_if_absent(key, late).await?;
            self.arrived.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.put_if_absent(key, body).await
    }
}

/// What is loaded takes other slots when a fenced writer's late segment takes the one it had, and all of it is there at
/// its end, for this host and for the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_whose_slot_is_lost_is_made_again() {
    /// Segments that are on their way at once before one is in the store.
    const LATE: usize = 2;
    let env = RealEnv::start();
    let store = Late::new();
    let mut to = Host::with_volume(env.clone(), store.clone(), 128 * MIB, KeySource::None).await;
    let fenced = to.open().await;
    store.keep_back();
    fenced.write(0, noise(1, 40 << 20), false).await.expect("acknowledged");
    store.fence(LATE).await;
    drop(fenced);
    let _its_disk = to.replace_disk();
    let opened = Volume::open(OpenOptions { take_over: true, grace: Duration::ZERO, ..to.options() }).await;
    let target = opened.expect("taken over");
    let (headers, records) = two_shares();
    let (receiver, shares) = all_given(&target, &headers, &records).await;
    receiver.end(shares).await.expect("complete");
    assert_eq!(store.arrived.load(Ordering::Relaxed), LATE - 1);
    target.drain().await.expect("its end is in the store");
    let next = to.open_read_only(None).await;
    for volume in [&target, &next] {
        for record in records.iter().flatten() {
            let there = read(volume, record.extent.start * 4096, 65536).await;
            assert!(record.data().expect("plain").expect("data") == there, "{:?}", record.extent);
        }
    }
    close(next).await;
    close(target).await;
}
