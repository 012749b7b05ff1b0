//! Emptied slots: segments that counted are cleaned and deleted, and somebody who slept comes back to their slots.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    ClaimRequest, Claimed, Committed, GRACE, LocalJournal, LogWriter, Prospect, Slots, VolumeKeys, Walk,
    append::{Appended, EntryBody, Tenure},
    checkpoint::Checkpoint,
    claim::Attempt,
    identity::Identity,
    keys, look, read_committed,
};
use crate::{
    Error, Result,
    codec::Compression,
    env::{BoxFuture, Env, Environment, real::RealEnv},
    passing::{Passing, Through},
    segment::{JournalRange, SegmentBuilder, Slot},
    store::{Listed, MemoryStore, Put, SharedStore, Store, StoreError, StoreResult, Stores},
    units::{Chain, Epoch, Extent, JournalId, JournalPos, Mark, Seq, VolumeId},
};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(1));
const SIZE_BYTES: u64 = 1 << 30;

/// An environment whose clock the test can turn on.
struct Clock {
    inner: Env,
    slept_s: Arc<AtomicU64>,
}

impl Environment for Clock {
    fn now(&self) -> Duration {
        self.inner.now() + Duration::from_secs(self.slept_s.load(SeqCst))
    }
    fn wall_ms(&self) -> u64 {
        self.inner.wall_ms()
    }
    fn random(&self, out: &mut [u8]) {
        out.iter_mut().for_each(|byte| [*byte] = self.inner.random_bytes());
    }
    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        let env = self.inner.clone();
        Box::pin(async move { env.sleep(time).await })
    }
    fn spawn(&self, name: &'static str, task: BoxFuture<()>) {
        drop(self.inner.spawn(name, task));
    }
    fn dedicated(&self, _: &'static str, _: BoxFuture<()>) {
        unreachable!("the log has no thread")
    }
    fn blocking(&self, _: BoxFuture<()>) {
        unreachable!("the log does no local IO")
    }
    fn compute(&self, _: Box<dyn FnOnce() + Send + 'static>) {
        unreachable!("the log computes nothing")
    }
}

/// What happens while a request is on its way.
type Event = (String, BoxFuture<()>);

/// A store in which something happens while a request is on its way, and which may lose a reply.
struct Meanwhile {
    inner: MemoryStore,
    event: Mutex<Option<Event>>,
    loses_a_reply: AtomicBool,
}

impl Meanwhile {
    async fn on_its_way(&self, request: &str, key: &str) {
        let due = {
            let mut event = self.event.lock().expect("no panic");
            event.take_if(|(what, _)| *what == format!("{request} {key}"))
        };
        if let Some((_, event)) = due {
            event.await;
        }
    }
}

#[async_trait]
impl Passing for Meanwhile {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        self.on_its_way("put", key).await;
        let put = self.inner.put_if_absent(key, body).await;
        match self.loses_a_reply.swap(false, SeqCst) {
            true => Err(StoreError::Unreachable("no reply".into())),
            false => put,
        }
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.on_its_way("get", key).await;
        self.inner.get_range(key, range).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.on_its_way("list", prefix).await;
        self.inner.list_after(prefix, after, count_max).await
    }
}

/// A volume, and a clock.
#[derive(Clone)]
struct World {
    env: Env,
    slept_s: Arc<AtomicU64>,
    store: Arc<Through<Meanwhile>>,
    stores: Stores,
    keys: VolumeKeys,
}

impl World {
    async fn new() -> World {
        let slept_s = Arc::<AtomicU64>::default();
        let env = Env::new(Arc::new(Clock { inner: RealEnv::start(), slept_s: slept_s.clone() }));
        let store = Through::new(Meanwhile {
            inner: MemoryStore::new(),
            event: Mutex::default(),
            loses_a_reply: AtomicBool::new(false),
        });
        let identity = Identity {
            volume: VOLUME,
            created_ms: 0,
            size_bytes: SIZE_BYTES,
            compression: Compression::None,
            encrypted: false,
            origin: None,
            slot_grace: GRACE,
        };
        store.put(keys::VOLUME, identity.encode()).await.expect("created");
        let shared: SharedStore = store.clone();
        let keys = VolumeKeys { volume: VOLUME, key: None };
        World { env, slept_s, store, stores: Stores::same(shared), keys }
    }

    fn sleep(&self, time: Duration) {
        self.slept_s.fetch_add(time.as_secs(), SeqCst);
    }

    /// While a request like `list log/` is on its way, `event` happens.
    fn meanwhile(&self, request: impl Into<String>, event: impl Future<Output = ()> + Send + 'static) {
        *self.store.event.lock().expect("no panic") = Some((request.into(), Box::pin(event)));
    }

    async fn has(&self, seq: u64) -> bool {
        self.store.inner.get(&keys::entry(Seq(seq)), 1 << 20).await.is_ok()
    }

    /// What the cleaner does in the end.
    async fn clean(&self, seqs: impl IntoIterator<Item = u64>) {
        for seq in seqs {
            assert!(self.has(seq).await, "{seq} is there");
            self.store.inner.delete(&keys::entry(Seq(seq))).await.expect("deleted");
        }
    }

    /// What is done to slots before they may be free.
    async fn empty(&self, by: &LogWriter, seqs: impl IntoIterator<Item = u64>) {
        for seq in seqs {
            assert!(self.has(seq).await, "{seq} is there");
            self.store.inner.put(&keys::entry(Seq(seq)), by.emptied(Seq(seq))).await.expect("put");
        }
    }

    /// Looks as a host that takes over if it has to.
    async fn look(&self, host: u128) -> Box<Attempt> {
        let local = LocalJournal {
            id: JournalId(uuid::Uuid::from_u128(host)),
            marks: vec![Mark::default()],
            claims: Vec::new(),
        };
        let request = ClaimRequest {
            host: format!("host {host}"),
            take_over: true,
            local,
            size_at_creation: Some(SIZE_BYTES),
            grace: GRACE,
        };
        match look(&self.env, &self.stores, &self.keys, &request).await.expect("looked") {
            Prospect::Free(attempt) => attempt,
            Prospect::JournalObsolete => unreachable!("it is new"),
        }
    }

    async fn put(&self, attempt: Box<Attempt>) -> Option<Writing> {
        let claimed = attempt.put(&self.env, &self.stores, &self.keys).await.expect("put");
        claimed.map(|claimed| Writing::new(self.clone(), claimed))
    }

    async fn claim(&self, host: u128) -> Writing {
        let attempt = self.look(host).await;
        self.put(attempt).await.expect("nobody else claims it")
    }

    async fn read(&self) -> Result<Committed> {
        read_committed(&self.env, self.store.as_ref(), &self.keys, Some(SIZE_BYTES)).await
    }

    async fn damage_checkpoint(&self, epoch: u64, covered: u64) {
        let key = keys::checkpoint(Epoch(epoch), Seq(covered));
        let mut body = self.store.inner.get(&key, 1 << 20).await.expect("it is there").to_vec();
        *body.last_mut().expect("not empty") ^= 1;
        self.store.put(&key, body.into()).await.expect("put");
    }
}

/// A writer, and how far it is.
struct Writing {
    world: World,
    log: LogWriter,
    slots: Slots,
    walk: Walk,
    covered: Seq,
}

impl Writing {
    fn new(world: World, claimed: Claimed) -> Writing {
        let Claimed { writer: log, slots, committed } = claimed;
        Writing { world, log, slots, covered: committed.walk.seq, walk: committed.walk }
    }

    /// The same once more: a clone of its machine.
    fn copy(&self) -> Writing {
        let tenure = Tenure {
            keys: self.world.keys.clone(),
            epoch: self.log.epoch(),
            salt: self.log.salt(),
            next: self.slots.next(),
            seen: self.world.env.now(),
            grace: GRACE,
            checkpoint: None,
        };
        let (log, slots) = LogWriter::claimed(self.world.env.clone(), &self.world.stores, tenure);
        Writing { world: self.world.clone(), log, slots, walk: self.walk.clone(), covered: self.covered }
    }

    /// Seals a segment for the next slot.
    fn seal(&mut self) -> (Slot, Mark, Bytes) {
        let (slot, from) = (self.slots.give_out(), self.walk.mark());
        // What is written from here on is this writer's alone.
        let to = Mark {
            pos: JournalPos(from.pos.0 + 1),
            chain: Chain(u64::from_le_bytes(self.world.env.random_bytes())),
        };
        let range = JournalRange { journal: self.walk.journal, from, to };
        let mut builder = SegmentBuilder::written(None, slot, range, SIZE_BYTES, Compression::None);
        builder.zero(Extent::new(from.pos.0, 1), true);
        (slot, to, builder.finish().body)
    }

    /// Appends a segment.
    async fn append(&mut self) -> Result<Seq> {
        let (slot, to, body) = self.seal();
        let content = EntryBody { body, earlier: None, waits_for_room: false };
        let appended = self.log.append(&slot, content).await?;
        assert!(matches!(appended, Appended::Ours), "nobody else's late objects are about");
        (self.walk.journal_pos, self.walk.journal_chain) = (to.pos, to.chain);
        self.covered = slot.seq;
        Ok(slot.seq)
    }

    async fn append_to(&mut self, last: u64) {
        while self.covered < Seq(last) {
            self.append().await.expect("appended");
        }
    }

    fn checkpoint_body(&self, volume: VolumeId, (epoch, covered): (Epoch, Seq)) -> Bytes {
        let checkpoint = Checkpoint {
            epoch,
            covered,
            journal: self.walk.journal,
            journal_pos: self.walk.journal_pos,
            journal_chain: self.walk.journal_chain,
            size_bytes: SIZE_BYTES,
            claim: self.walk.claim.clone().expect("claimed"),
            epochs: self.walk.epochs.clone(),
            levels: Vec::new(),
            usage: Vec::new(),
            retired: Vec::new(),
            times: Vec::new(),
            snapshots: None,
            held: Vec::new(),
            origins: Vec::new(),
            flattened: None,
        };
        checkpoint.encode(&self.world.env, None, volume).expect("encoded")
    }

    async fn checkpoint(&self) -> Result<()> {
        let body = self.checkpoint_body(VOLUME, (self.walk.epoch, self.covered));
        self.log.put_checkpoint(self.covered, body).await
    }

    /// A removed volume's writer puts a checkpoint, late.
    async fn foreign_checkpoint(&self, epoch: u64, covered: u64) {
        let name = (Epoch(epoch), Seq(covered));
        let body = self.checkpoint_body(VolumeId(uuid::Uuid::from_u128(99)), name);
        self.world.store.put(&keys::checkpoint(name.0, name.1), body).await.expect("put");
    }

    /// Appends up to `last` and covers it.
    async fn go_on_to(&mut self, last: u64) {
        self.append_to(last).await;
        self.checkpoint().await.expect("stored");
    }
}

/// Segments go seconds after they were covered, long before a copy of the writer looks again. Their slots are not free, so
/// what the copy puts meets something, and does not count: whether its original emptied the slot or who took over.
#[tokio::test]
async fn a_slot_that_is_emptied_early_meets_a_late_put() {
    for is_taken_over in [false, true] {
        let world = World::new().await;
        let mut original = world.claim(1).await;
        let mut copy = original.copy();
        original.append_to(3).await;
        let mut last = if is_taken_over { world.claim(2).await } else { original };
        last.go_on_to(7).await;
        last.go_on_to(8).await;
        world.sleep(Duration::from_secs(10));
        world.empty(&last.log, [2, 3]).await;
        let told = copy.append().await;
        match is_taken_over {
            true => assert!(matches!(told, Err(Error::Fenced { ours: 1, theirs: 2 })), "{told:?}"),
            false => assert!(matches!(told, Err(Error::Copied { seq: 2 })), "{told:?}"),
        }
        last.go_on_to(9).await;
        assert_eq!(world.read().await.expect("read").walk.seq, Seq(9));
    }
}

/// A reader whose listing of the log is older than an emptied slot begins anew; and where no sound checkpoint lies behind the slot, the volume is
/// damaged: what was in the slot is not taken for nothing.
#[tokio::test]
async fn no_way_leads_through_an_emptied_slot() {
    let world = World::new().await;
    let mut writer = world.claim(1).await;
    writer.go_on_to(3).await;
    writer.append_to(6).await;
    let (emptying, done) = (world.clone(), Arc::new(Mutex::new(None)));
    let kept = done.clone();
    world.meanwhile("list log/", async move {
        writer.go_on_to(8).await;
        writer.go_on_to(9).await;
        emptying.empty(&writer.log, [5, 6]).await;
        *kept.lock().expect("no panic") = Some(writer);
    });
    let read = world.read().await.expect("read");
    assert_eq!(read.walk.seq, Seq(9));
    assert!(done.lock().expect("no panic").is_some(), "it was emptied meanwhile");
    world.damage_checkpoint(1, 9).await;
    assert_eq!(world.read().await.expect("the one before leads to the end").walk.seq, Seq(9));
    world.damage_checkpoint(1, 8).await;
    let lost = world.read().await.map(|read| read.walk.seq);
    assert!(matches!(lost, Err(Error::Corrupt { .. })), "{lost:?}");
}

/// A copy of a writer that was taken over since sleeps until its next slot is emptied: it learns that it is fenced, and nothing
/// is put there.
#[tokio::test]
async fn a_slept_copy_of_a_fenced_writer_is_told() {
    let world = World::new().await;
    let mut original = world.claim(1).await;
    let mut copy = original.copy();
    original.append_to(3).await;
    let mut other = world.claim(2).await;
    other.go_on_to(7).await;
    other.go_on_to(8).await;
    world.clean([2, 3]).await;
    world.sleep(GRACE);
    let told = copy.append().await;
    assert!(matches!(told, Err(Error::Fenced { ours: 1, theirs: 2 })), "{told:?}");
    assert!(!world.has(2).await, "it looks before it sends");
    other.go_on_to(9).await;
}

/// A copy of a writer that went on sleeps, before it sends or while its put is on its way, until its slot is emptied: it learns
/// that it is one, and what it left there harms neither the original nor a reader.
#[tokio::test]
async fn a_slept_copy_is_told() {
    for in_flight in [false, true] {
        let world = World::new().await;
        let mut original = world.claim(1).await;
        let mut copy = original.copy();
        let (clean, keep) = (world.clone(), Arc::new(Mutex::new(None)));
        let kept = keep.clone();
        let goes_on = async move {
            original.go_on_to(4).await;
            original.go_on_to(5).await;
            clean.sleep(GRACE);
            clean.clean([2, 3]).await;
            *kept.lock().expect("no panic") = Some(original);
        };
        match in_flight {
            true => world.meanwhile(format!("put {}", keys::entry(Seq(2))), goes_on),
            false => goes_on.await,
        }
        let told = copy.append().await;
        assert!(matches!(told, Err(Error::Copied { seq: 5 })), "{told:?}");
        assert_eq!(world.has(2).await, in_flight);
        let mut original = keep.lock().expect("no panic").take().expect("it went on");
        original.append_to(6).await;
        original.log.look().await.expect("it is the original");
        let committed = world.read().await.expect("read");
        assert_eq!((committed.walk.seq, committed.walk.mark()), (Seq(6), original.walk.mark()));
    }
}

/// A look is on its way for so long that somebody takes over and cleans: it tells who did, and not that the volume is gone.
#[tokio::test]
async fn a_slow_look_tells_who_went_on() {
    let world = World::new().await;
    let mut slow = world.claim(1).await;
    slow.append_to(3).await;
    let others = world.clone();
    world.meanwhile(format!("list {}", keys::entry(Seq(3))), async move {
        let mut other = others.claim(2).await;
        other.go_on_to(7).await;
        other.go_on_to(8).await;
        others.clean([2, 3]).await;
    });
    let told = slow.log.look().await;
    assert!(matches!(told, Err(Error::Fenced { ours: 1, theirs: 2 })), "{told:?}");
}

/// A writer knows its own checkpoints, also the one whose reply was lost, and those of a removed volume say nothing.
#[tokio::test]
async fn a_writer_is_not_its_own_copy() {
    let world = World::new().await;
    let mut writer = world.claim(1).await;
    writer.foreign_checkpoint(1, 77).await;
    writer.foreign_checkpoint(9, 77).await;
    writer.go_on_to(3).await;
    writer.append_to(4).await;
    world.store.loses_a_reply.store(true, SeqCst);
    let lost = writer.checkpoint().await;
    assert!(matches!(lost, Err(Error::Unreachable(_))), "{lost:?}");
    world.sleep(GRACE);
    assert_eq!(writer.append().await.expect("appended"), Seq(5));
    writer.log.look().await.expect("nobody went on");
}

/// A claim is slow, and the slot it goes to was filled, covered, cleaned and deleted meanwhile: it is no claim. Whoever holds
/// the volume goes on, and so does whoever comes next; also where a removed volume's checkpoint bears the greatest name.
#[tokio::test]
async fn a_slow_claim_in_an_emptied_slot_is_no_claim() {
    for foreign in [false, true] {
        let world = World::new().await;
        let mut holder = world.claim(1).await;
        if foreign {
            holder.foreign_checkpoint(9, 99).await;
        }
        let attempt = world.look(2).await;
        let (clean, keep) = (world.clone(), Arc::new(Mutex::new(None)));
        let kept = keep.clone();
        world.meanwhile(format!("put {}", keys::entry(Seq(2))), async move {
            holder.go_on_to(3).await;
            holder.go_on_to(4).await;
            clean.clean([2]).await;
            *kept.lock().expect("no panic") = Some(holder);
        });
        assert!(world.put(attempt).await.is_none(), "it is to look again");
        assert!(world.has(2).await, "what it left");
        let mut holder = keep.lock().expect("no panic").take().expect("it went on");
        world.sleep(GRACE);
        holder.go_on_to(5).await;
        let mut next = world.claim(3).await;
        assert_eq!((next.walk.epoch, next.covered), (Epoch(2), Seq(6)));
        next.go_on_to(7).await;
        world.sleep(GRACE);
        let told = holder.append().await;
        assert!(matches!(told, Err(Error::Fenced { ours: 1, theirs: 2 })), "{told:?}");
    }
}

/// What came late into an emptied slot leads to no state: where two checkpoints are damaged, an older one does not stand in for
/// them by way of a claim that nobody has followed.
#[tokio::test]
async fn a_late_claim_in_an_emptied_slot_replaces_no_checkpoint() {
    let world = World::new().await;
    let mut holder = world.claim(1).await;
    holder.checkpoint().await.expect("stored");
    let attempt = world.look(2).await;
    let clean = world.clone();
    world.meanwhile(format!("put {}", keys::entry(Seq(2))), async move {
        holder.go_on_to(3).await;
        holder.go_on_to(4).await;
        clean.clean([2]).await;
    });
    assert!(world.put(attempt).await.is_none());
    world.damage_checkpoint(1, 4).await;
    assert_eq!(world.read().await.expect("the one before it is sound").walk.epoch, Epoch(1));
    world.damage_checkpoint(1, 3).await;
    let read = world.read().await.map(|committed| committed.walk);
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
}

/// While somebody reads the state, it is covered by a checkpoint and cleaned: between listing the checkpoints and the log (with
/// and without something that came late into an emptied slot), or between listing the log and reading it. The newest state
/// is read, and a claim goes where the log ends.
#[tokio::test]
async fn a_log_that_is_cleaned_while_it_is_read_is_read_again() {
    for (request, late) in [("list log/", false), ("list log/", true), ("get log/0000000000000002", false)] {
        let world = World::new().await;
        let mut writer = world.claim(1).await;
        let mut copy = writer.copy();
        writer.append_to(3).await;
        let (clean, mark) = (world.clone(), Arc::new(Mutex::new(Mark::default())));
        let known = mark.clone();
        world.meanwhile(request, async move {
            writer.go_on_to(5).await;
            writer.go_on_to(6).await;
            clean.clean([2, 3, 4]).await;
            *known.lock().expect("no panic") = writer.walk.mark();
            if late {
                let (slot, _, body) = copy.seal();
                clean.store.put(&keys::entry(slot.seq), body).await.expect("put");
            }
        });
        let committed = world.read().await.expect("read");
        assert_eq!((committed.walk.seq, committed.walk.mark()), (Seq(6), *mark.lock().expect("no panic")));
        assert!(committed.applied.is_empty(), "the checkpoint covers it");
        assert_eq!(world.claim(2).await.covered, Seq(7));
    }
}
