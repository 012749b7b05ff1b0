//! The publisher against a store whose puts end when the test says so.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use proptest::prelude::*;
use tokio::sync::watch;

use super::{
    GRACE, VolumeKeys,
    append::{LogWriter, Tenure},
    entry::{Commit, NewEntry, NewSegment, Offer},
    keys,
    publish::{Ended, Offerer, Published, Publisher},
    uploads::{UPLOADS, VACANCIES_MAX, WindowSize},
    walk::{Step, Walk},
};
use crate::{
    Error, Result,
    codec::Compression,
    env::{Env, real::RealEnv},
    passing::{Passing, Through},
    segment::{
        Claim, Entry, EntryHead, EntryKind, JournalRange, SegmentBuilder, Slot, Tail, encode_claim,
        read_head, read_tail,
    },
    store::{MemoryStore, Put, SharedStore, Store, StoreError, StoreResult, Stores},
    units::{BLOCK_BYTES, Chain, Epoch, Extent, JournalId, JournalPos, Mark, Salt, SealNonce, Seq, VolumeId},
};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(1));
const JOURNAL: JournalId = JournalId(uuid::Uuid::from_u128(2));
/// The first slot of the epoch, and the epoch.
const FIRST: u64 = 10;
const EPOCH: Epoch = Epoch(2);
/// Entries that fit into the window before the first upload has ended.
const WINDOW: usize = *UPLOADS.start() + 1;

/// A store in which puts of some seqs hang.
struct Gated {
    inner: MemoryStore,
    hanging: watch::Sender<BTreeSet<String>>,
    /// Puts of these find no room, the first time; with `true` they come after all, later.
    without_room: Mutex<BTreeMap<String, bool>>,
    /// What comes later.
    late: Mutex<Vec<(String, Bytes)>>,
    /// What was put, in the order in which it began and ended.
    events: Mutex<Vec<String>>,
}

impl Gated {
    fn hang(&self, seq: u64) {
        self.hanging.send_if_modified(|hanging| hanging.insert(keys::entry(Seq(seq))));
    }

    fn refuse(&self, seq: u64, comes_later: bool) {
        let mut without_room = self.without_room.lock().expect("no panic");
        without_room.insert(keys::entry(Seq(seq)), comes_later);
    }

    fn go_on(&self, seq: u64) {
        self.hanging.send_if_modified(|hanging| hanging.remove(&keys::entry(Seq(seq))));
    }

    fn note(&self, what: &str, key: &str) {
        self.events.lock().expect("no panic").push(format!("{what} {key}"));
    }

    fn place(&self, what: &str, seq: u64) -> usize {
        let event = format!("{what} {}", keys::entry(Seq(seq)));
        let events = self.events.lock().expect("no panic");
        events.iter().position(|e| *e == event).unwrap_or_else(|| panic!("{event} in {events:?}"))
    }
}

#[async_trait]
impl Passing for Gated {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.note("begin", key);
        let mut hanging = self.hanging.subscribe();
        let _ = hanging.wait_for(|hanging| !hanging.contains(key)).await;
        let refused = self.without_room.lock().expect("no panic").remove(key);
        if let Some(comes_later) = refused {
            if comes_later {
                self.late.lock().expect("no panic").push((key.to_owned(), body));
            }
            return Err(StoreError::NoRoom("the quota is used up".into()));
        }
        let late: Vec<(String, Bytes)> = {
            let mut late = self.late.lock().expect("no panic");
            late.extract_if(.., |(late, _)| late == key).collect()
        };
        for (key, body) in late {
            self.inner.put_if_absent(&key, body).await?;
        }
        let put = self.inner.put_if_absent(key, body).await;
        self.note("end", key);
        put
    }
}

/// Who is told of commits: remembers them.
struct Told {
    /// Seq and label.
    committed: Mutex<Vec<(u64, u64)>>,
    latched: Mutex<Vec<Error>>,
    has_room: watch::Sender<bool>,
}

impl Told {
    fn committed(&self) -> Vec<(u64, u64)> {
        self.committed.lock().expect("no panic").clone()
    }

    fn latched(&self) -> Vec<Error> {
        self.latched.lock().expect("no panic").clone()
    }
}

#[async_trait]
impl Commit for Told {
    async fn commit(&self, seq: Seq, entry: &NewEntry) {
        let Some(mapping) = entry.sealed().mappings.first() else { return }; // it changes nothing
        let birth = if mapping.extent.start < MOVED { seq } else { Seq(1) };
        assert_eq!(mapping.birth, birth, "what is committed is made for the slot it is committed at");
        self.committed.lock().expect("no panic").push((seq.0, mapping.extent.start));
    }
    async fn room(&self) {
        let _ = self.has_room.subscribe().wait_for(|has_room| *has_room).await;
    }
    fn latch(&self, cause: Error) {
        self.latched.lock().expect("no panic").push(cause);
    }
}

fn mark(pos: u64) -> Mark {
    Mark { pos: JournalPos(pos), chain: Chain(pos) }
}

/// An entry that is told from others by the one block it maps: from [`MOVED`] on what is no range of the journal, and before it the range that
/// begins with the label.
struct Labeled(u64);

const MOVED: u64 = 100;

#[async_trait]
impl Offer for Labeled {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        if self.0 >= MOVED {
            let mut builder =
                SegmentBuilder::kept(None, *slot, Seq(slot.seq.0 - 1), self.0, Compression::None);
            builder.data_born(self.0, Seq(1), &[0; BLOCK_BYTES]);
            return Ok(NewEntry::Kept(builder.finish()));
        }
        let range = JournalRange { journal: JOURNAL, from: mark(self.0), to: mark(self.0 + 1) };
        let (size_bytes, partial) = (1 << 30, Vec::new());
        let mut builder = SegmentBuilder::written(None, *slot, range, size_bytes, Compression::None);
        builder.zero(Extent::new(self.0, 1), true);
        Ok(NewEntry::Segment(NewSegment { sealed: builder.finish(), partial, range, size_bytes }))
    }
    fn waits_for_room(&self) -> bool {
        false
    }
}

struct World {
    store: Arc<Through<Gated>>,
    told: Arc<Told>,
    publisher: Publisher,
}

fn slot(epoch: Epoch, seq: u64) -> Slot {
    let (salt, nonce) = (Salt([epoch.0 as u8; 16]), SealNonce([9; 8]));
    Slot { volume: VOLUME, epoch, seq: Seq(seq), salt, nonce, checkpoint: None }
}

impl World {
    async fn new() -> World {
        let env: Env = RealEnv::start();
        let (hanging, events) = (watch::Sender::new(BTreeSet::new()), Mutex::new(Vec::new()));
        let (without_room, late) = Default::default();
        let store = Through::new(Gated { inner: MemoryStore::new(), hanging, without_room, late, events });
        let shared: SharedStore = store.clone();
        // For who looks, after trouble, whether this is still the volume.
        for key in [keys::VOLUME.to_owned(), keys::entry(Seq(FIRST - 1))] {
            store.inner.put(&key, Bytes::new()).await.expect("put");
        }
        let keys = VolumeKeys { volume: VOLUME, key: None };
        let salt = slot(EPOCH, 0).salt;
        let (seen, grace) = (env.now(), GRACE);
        let (next, checkpoint) = (Seq(FIRST), None);
        let tenure = Tenure { keys, epoch: EPOCH, salt, next, seen, grace, checkpoint };
        let (_, slots) = LogWriter::claimed(env.clone(), &Stores::same(shared), tenure);
        let told = Arc::new(Told {
            committed: Mutex::default(),
            latched: Mutex::default(),
            has_room: watch::Sender::new(true),
        });
        let publisher = Publisher::start(&env, slots, mark(0), WindowSize::new(u64::MAX), told.clone());
        World { store, told, publisher }
    }

    /// What a fenced writer left at a seq.
    async fn late_object(&self, seq: u64) {
        let Ok(NewEntry::Segment(late)) = Labeled(99).seal(&slot(Epoch(1), seq)).await else {
            unreachable!()
        };
        self.store.inner.put(&keys::entry(Seq(seq)), late.sealed.body).await.expect("put");
    }

    async fn claim_of_another(&self, seq: u64) {
        let start = Mark { pos: JournalPos(0), chain: Chain(0) };
        let claim = Claim { host: "other".into(), wall_ms: 0, journal: JOURNAL, start, size_bytes: 1 << 30 };
        let body = encode_claim(None, &slot(Epoch(3), seq), &claim);
        self.store.inner.put(&keys::entry(Seq(seq)), body).await.expect("put");
    }

    async fn is_ours(&self, seq: u64) -> bool {
        let body = self.store.inner.get(&keys::entry(Seq(seq)), 1 << 20).await.expect("it is there");
        read_head(Seq(seq), &body).expect("an entry").epoch == EPOCH
    }
}

async fn offer(offerer: &Offerer, label: u64) -> Published {
    offerer.offer(offerer.vacancy().await, Arc::new(Labeled(label)))
}

/// Until nothing moves any more: all is on this one thread, and nothing waits for a clock.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// Offers so many entries one after the other, as fast as it may.
async fn flood(offerer: Offerer, labels: Range<u64>) -> Vec<Result<Seq>> {
    let mut published = Vec::new();
    for label in labels {
        published.push(offer(&offerer, label).await);
    }
    join_all(published).await
}

/// Two offerers share the window, neither waits for more than a window of the other's, and whatever order their uploads end in, they are committed slot by slot, each in
/// the order in which it offered.
#[tokio::test]
async fn two_offerers_are_committed_in_the_order_of_their_slots() {
    let world = World::new().await;
    world.store.hang(FIRST);
    let both = async {
        tokio::join!(
            flood(world.publisher.offerer(), 0..50),
            flood(world.publisher.offerer(), MOVED..MOVED + 50),
            async {
                settle().await;
                assert!(world.store.place("end", FIRST + 1) > 0, "the second is in the store");
                assert_eq!(world.told.committed(), [], "and waits for the first");
                world.store.go_on(FIRST);
            }
        )
    };
    let (ones, others, ()) = both.await;
    let committed = world.told.committed();
    let seqs: Vec<u64> = committed.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (FIRST..FIRST + 100).collect::<Vec<_>>());
    for (answers, first) in [(&ones, 0), (&others, 100)] {
        let of_this = committed.iter().filter(|(_, label)| (*label >= 100) == (first == 100));
        let of_this: Vec<(u64, u64)> = of_this.copied().collect();
        let said: Vec<(u64, u64)> = answers
            .iter()
            .zip(first..)
            .map(|(seq, label)| (seq.clone().expect("committed").0, label))
            .collect();
        assert_eq!(said, of_this);
    }
    let ones: Vec<bool> = committed.iter().map(|(_, label)| *label < 100).collect();
    let both_want = ones.iter().rposition(|one| *one).min(ones.iter().rposition(|one| !one));
    let runs = ones[..both_want.expect("both are there")].chunk_by(|a, b| a == b);
    assert!(runs.map(<[bool]>::len).max() <= Some(VACANCIES_MAX), "at most a window between two");
}

/// A fenced writer's late object takes a slot: what was offered there and everything behind it is made again at later slots,
/// in the same order, and not before every slot in between holds something. What was stored there before does not count.
#[tokio::test]
async fn what_was_behind_a_lost_slot_goes_on_in_order() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    world.late_object(FIRST + 1).await;
    world.store.hang(FIRST + 2);
    let mut published = Vec::new();
    for label in 0..WINDOW as u64 {
        published.push(offer(&offerer, label).await);
    }
    settle().await;
    assert_eq!(world.told.committed(), [(FIRST, 0)], "nothing is known of the last slot");
    world.store.go_on(FIRST + 2);
    let seqs: Vec<u64> = join_all(published).await.into_iter().map(|seq| seq.expect("committed").0).collect();
    assert_eq!(seqs, [FIRST, FIRST + 3, FIRST + 4]);
    assert_eq!(world.told.committed(), [(FIRST, 0), (FIRST + 3, 1), (FIRST + 4, 2)]);
    assert!(world.is_ours(FIRST + 2).await, "the slot in between is filled");
    assert!(world.store.place("end", FIRST + 2) < world.store.place("begin", FIRST + 3));
    let next = offer(&offerer, 3).await.await;
    assert_eq!(next.expect("committed"), Seq(FIRST + 5));
}

/// What was moved counts for readers wherever it lies: it is committed there, though a slot before it was lost, and not made a second time.
#[tokio::test]
async fn what_counts_behind_a_lost_slot_is_committed_where_it_lies() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    world.late_object(FIRST).await;
    let (range, moved) = (offer(&offerer, 0).await, offer(&offerer, MOVED).await);
    assert_eq!(moved.await.expect("committed"), Seq(FIRST + 1));
    assert_eq!(range.await.expect("committed"), Seq(FIRST + 2));
    assert_eq!(world.told.committed(), [(FIRST + 1, MOVED), (FIRST + 2, 0)]);
}

fn lacks_room(answer: &Result<Seq>) -> bool {
    matches!(answer, Err(Error::NoRoom(_)))
}

/// A range of the journal that finds no room comes back, and so do those behind it, which may be stored already: they are offered again and are
/// committed once. What was moved stays where it is. Nothing comes past an open slot.
#[tokio::test]
async fn what_finds_no_room_comes_back_with_what_is_behind_it() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    world.store.hang(FIRST);
    world.store.refuse(FIRST, false);
    let (first, second, moved) =
        (offer(&offerer, 0).await, offer(&offerer, 1).await, offer(&offerer, MOVED).await);
    settle().await;
    assert!(world.store.place("end", FIRST + 1) > 0, "the second is stored");
    world.store.go_on(FIRST);
    assert!(lacks_room(&first.await) && lacks_room(&second.await));
    assert_eq!(moved.await.expect("committed"), Seq(FIRST + 2));
    assert!(world.is_ours(FIRST).await, "the slot holds something");
    let again = (offer(&offerer, 0).await.await, offer(&offerer, 1).await.await);
    assert_eq!((again.0.expect("committed"), again.1.expect("committed")), (Seq(FIRST + 3), Seq(FIRST + 4)));
    assert_eq!(world.told.committed(), [(FIRST + 2, MOVED), (FIRST + 3, 0), (FIRST + 4, 1)]);
}

/// A range that was offered before its offerer heard that the one before it came back comes back too, though it is stored: no reader counts it.
#[tokio::test]
async fn a_range_whose_beginning_came_back_is_not_committed() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    world.store.refuse(FIRST, false);
    let first = offer(&offerer, 0).await;
    settle().await;
    let second = offer(&offerer, 1).await;
    assert!(lacks_room(&first.await) && lacks_room(&second.await));
    assert_eq!(offer(&offerer, 0).await.await.expect("committed"), Seq(FIRST + 2));
    assert_eq!(world.told.committed(), [(FIRST + 2, 0)]);
}

/// A put that was sent twice may be refused once and arrive once. Then the slot holds it, readers count it, and it is committed.
#[tokio::test]
async fn what_was_refused_and_arrives_later_counts() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    world.store.refuse(FIRST, true);
    let first = offer(&offerer, 0).await;
    assert_eq!(first.await.expect("committed"), Seq(FIRST));
    assert_eq!(offer(&offerer, 1).await.await.expect("committed"), Seq(FIRST + 1));
    assert_eq!(world.told.committed(), [(FIRST, 0), (FIRST + 1, 1)]);
}

/// What is moved and finds no room comes back alone: ranges of the journal do not hang on it.
#[tokio::test]
async fn what_is_moved_comes_back_alone() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    world.store.refuse(FIRST, false);
    let (moved, range) = (offer(&offerer, MOVED).await, offer(&offerer, 0).await);
    assert!(lacks_room(&moved.await));
    assert_eq!(range.await.expect("committed"), Seq(FIRST + 1));
}

/// Slots are lost again while the way goes on behind the first that was lost.
#[tokio::test]
async fn slots_may_be_lost_one_after_the_other() {
    let world = World::new().await;
    for lost in [FIRST, FIRST + 3, FIRST + 5, FIRST + 6] {
        world.late_object(lost).await;
    }
    let answers = flood(world.publisher.offerer(), 0..20).await;
    let committed = world.told.committed();
    assert_eq!(committed.iter().map(|(_, label)| *label).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    let said: Vec<u64> = answers.into_iter().map(|seq| seq.expect("committed").0).collect();
    assert_eq!(said, committed.iter().map(|(seq, _)| *seq).collect::<Vec<_>>());
    assert!(said.is_sorted() && said[0] > FIRST + 6);
}

/// A claim of another writer ends publication for all who offer, with one error; the volume hears of it once, and first.
#[tokio::test]
async fn a_fence_fails_all() {
    let world = World::new().await;
    let (one, other) = (world.publisher.offerer(), world.publisher.offerer());
    world.claim_of_another(FIRST + 1).await;
    world.store.hang(FIRST + 2);
    let first = offer(&one, 0).await;
    let (second, third) = (offer(&other, 1).await, offer(&one, 2).await);
    let is_fenced = |answer: &Result<Seq>| matches!(answer, Err(Error::Fenced { ours: 2, theirs: 3 }));
    assert_eq!(first.await.expect("before the claim"), Seq(FIRST));
    assert!(is_fenced(&second.await) && is_fenced(&third.await));
    assert!(is_fenced(&offer(&other, 3).await.await), "and whoever comes later");
    other.latch(Error::Closed);
    assert!(matches!(world.told.latched()[..], [Error::Fenced { .. }]), "the first cause stays");
    assert_eq!(world.told.committed(), [(FIRST, 0)]);
}

/// Who offered and went away leaves no hole: what has a slot is published all the same. Who went away before has none, and
/// leaves the room it had asked for.
#[tokio::test]
async fn a_dropped_offerer_leaves_no_hole() {
    let world = World::new().await;
    let (one, other) = (world.publisher.offerer(), world.publisher.offerer());
    world.store.hang(FIRST);
    drop(offer(&one, 0).await);
    let unused = one.vacancy().await;
    let second = offer(&other, 1).await;
    let mut waiting = Box::pin(one.vacancy());
    assert!((&mut waiting).now_or_never().is_none(), "the window is full");
    let mut behind = Box::pin(other.vacancy());
    assert!((&mut behind).now_or_never().is_none());
    drop((waiting, unused, one));
    let third = other.offer(behind.await, Arc::new(Labeled(2)));
    world.store.go_on(FIRST);
    assert_eq!(second.await.expect("committed"), Seq(FIRST + 1));
    assert_eq!(third.await.expect("committed"), Seq(FIRST + 2));
    assert_eq!(world.told.committed(), [(FIRST, 0), (FIRST + 1, 1), (FIRST + 2, 2)]);
}

/// While there is no room for what an entry brings nothing more is committed, and the window stays full.
#[tokio::test]
async fn commits_wait_for_room() {
    let world = World::new().await;
    world.told.has_room.send_replace(false);
    let mut flood = Box::pin(flood(world.publisher.offerer(), 0..20));
    assert!((&mut flood).now_or_never().is_none());
    settle().await;
    assert!((&mut flood).now_or_never().is_none());
    assert_eq!(world.told.committed(), [(FIRST, 0)]);
    world.told.has_room.send_replace(true);
    assert!(flood.await.iter().all(Result::is_ok));
    assert_eq!(world.told.committed().len(), 20);
}

/// An entry that cannot be made, for a fault of ours on a worker's thread.
struct Faulty(Env);

#[async_trait]
impl Offer for Faulty {
    async fn seal(&self, _: &Slot) -> Result<NewEntry> {
        self.0.compute(|| panic!("an invariant that does not hold")).await
    }
    fn waits_for_room(&self) -> bool {
        false
    }
}

/// A panic where an entry is made latches: nobody waits for ever, and nothing goes on behind it.
#[tokio::test]
async fn a_fault_where_an_entry_is_made_latches() {
    let world = World::new().await;
    let offerer = world.publisher.offerer();
    let first = offer(&offerer, 0).await;
    let faulty = offerer.offer(offerer.vacancy().await, Arc::new(Faulty(RealEnv::start())));
    assert_eq!(first.await.expect("committed"), Seq(FIRST));
    assert!(matches!(faulty.await, Err(Error::Latched(_))));
    assert!(matches!(offer(&offerer, 1).await.await, Err(Error::Latched(_))));
    assert_eq!(world.told.committed(), [(FIRST, 0)]);
    assert!(matches!(world.told.latched()[..], [Error::Latched(_)]));
}

/// A worker whose computation panicked goes on to the next, and who waits for it panics.
#[tokio::test]
async fn a_panic_on_a_worker_is_that_of_who_waits() {
    let env = RealEnv::start();
    for _ in 0..100 {
        let compute = env.compute(|| panic!("an invariant that does not hold"));
        let outcome: std::thread::Result<()> = AssertUnwindSafe(compute).catch_unwind().await;
        assert!(outcome.is_err());
    }
    assert_eq!(env.compute(|| 1).await, 1);
}

async fn stopped(publisher: Publisher) -> Ended {
    publisher.stop().await.expect("the host lives")
}

/// The release takes the slot behind everything that was committed, and steps over a lost one.
#[tokio::test]
async fn a_release_comes_last() {
    let world = World::new().await;
    offer(&world.publisher.offerer(), 0).await.await.expect("committed");
    world.late_object(FIRST + 1).await;
    stopped(world.publisher).await.release(1 << 30, None).await.expect("released");
    assert_eq!(world.store.place("end", FIRST + 2), world.store.events.lock().expect("no panic").len() - 1);
    assert_eq!(world.told.committed(), [(FIRST, 0)]);
    assert!(world.told.latched().is_empty());
}

/// Stopping leaves slots open and says so to who waits; behind such slots nobody releases.
#[tokio::test]
async fn nothing_is_released_behind_an_open_slot() {
    let world = World::new().await;
    world.store.hang(FIRST);
    let open = offer(&world.publisher.offerer(), 0).await;
    settle().await;
    let ended = stopped(world.publisher).await;
    assert!(matches!(open.await, Err(Error::Closed)));
    let released = ended.release(1 << 30, None).await;
    assert!(matches!(released, Err(Error::Latched(_))), "{released:?}");
}

/// What becomes of the first put into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstPut {
    Fine,
    Slow,
    NoRoom,
    /// Refused, and it arrives all the same before the next one.
    NoRoomAndLate,
    Taken,
}

fn first_put() -> impl Strategy<Value = FirstPut> {
    use FirstPut::{Fine, NoRoom, NoRoomAndLate, Slow, Taken};
    prop_oneof![4 => Just(Fine), 2 => Just(Slow), 2 => Just(NoRoom), 1 => Just(NoRoomAndLate), 1 => Just(Taken)]
}

impl World {
    async fn arrange(&self, puts: &[FirstPut]) {
        for (put, seq) in puts.iter().zip(FIRST..) {
            match put {
                FirstPut::Fine => {}
                FirstPut::Slow => self.store.hang(seq),
                FirstPut::NoRoom => self.store.refuse(seq, false),
                FirstPut::NoRoomAndLate => self.store.refuse(seq, true),
                FirstPut::Taken => self.late_object(seq).await,
            }
        }
    }

    /// Seqs and labels of what a reader applies.
    async fn applied(&self) -> Vec<(u64, u64)> {
        let mut walk = Walk::at_creation(1 << 30);
        walk.seq = Seq(FIRST - 2);
        let Slot { volume, epoch, seq, salt, nonce, checkpoint } = slot(EPOCH, FIRST - 1);
        let claim =
            Claim { host: "own".into(), wall_ms: 0, journal: JOURNAL, start: mark(0), size_bytes: 1 << 30 };
        let head = EntryHead { kind: EntryKind::Claim, volume, epoch, seq, salt, nonce, checkpoint };
        assert_eq!(walk.step(&head, &Entry::Claim(claim)), Step::Claimed);
        let mut applied = Vec::new();
        while let Ok(body) = self.store.inner.get(&keys::entry(walk.seq.next()), 1 << 20).await {
            let tail = read_tail(None, VOLUME, walk.seq.next(), body.len() as u64, &body).expect("an entry");
            let Tail::Whole(head, entry) = tail else { unreachable!("it was read as a whole") };
            if walk.step(&head, &entry) == Step::Applied
                && let Entry::Segment(footer) = entry
                && let Some(mapping) = footer.mappings.first()
            {
                applied.push((head.seq.0, mapping.extent.start));
            }
        }
        applied
    }

    /// Offers ranges as write-back does: behind each other, and again from where one came back once all behind it did.
    async fn write_back(&self, count: u64) {
        let offerer = self.publisher.offerer();
        let (mut next, mut sent) = (0, VecDeque::new());
        while next < count || !sent.is_empty() {
            while next < count && sent.len() < 3 {
                sent.push_back((next, offer(&offerer, next).await));
                next += 1;
            }
            let (label, published) = sent.pop_front().expect("something is on its way");
            if lacks_room(&published.await) {
                next = label;
                for (_, behind) in sent.drain(..) {
                    assert!(lacks_room(&behind.await), "what is behind it comes back too");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever finds no room, is slow, arrives late or loses its slot, of ranges of the journal and of what is moved: what is committed is what readers
    /// apply, in the same order, and each range once.
    #[test]
    fn what_is_committed_is_what_readers_apply(puts in prop::collection::vec(first_put(), 0..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let world = World::new().await;
            world.arrange(&puts).await;
            let moves = async {
                let offerer = world.publisher.offerer();
                for label in MOVED..MOVED + 6 {
                    let moved = offer(&offerer, label).await;
                    settle().await;
                    drop(moved);
                }
            };
            let ends = async {
                for seq in FIRST..FIRST + 60 {
                    settle().await;
                    world.store.go_on(seq);
                }
            };
            tokio::join!(world.write_back(12), moves, ends);
            settle().await;
            let committed = world.told.committed();
            assert_eq!(committed, world.applied().await);
            let ranges = committed.iter().map(|(_, label)| *label).filter(|label| *label < MOVED);
            assert_eq!(ranges.collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
            assert!(world.told.latched().is_empty());
        });
    }
}
