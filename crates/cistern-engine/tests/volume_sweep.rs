//! Orphans: what crashes, fenced writers and late requests left behind goes, and nothing else does.

mod volume_support;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::{
    codec::{Compression, KeySource},
    env::real::RealEnv,
    log::{
        checkpoint::{Checkpoint, RetiredName},
        keys,
    },
    segment::{Claim, EntryHead, SegmentBuilder, Slot, encode_claim, read_head},
    space::Bound,
    store::{MemoryStore, SharedStore},
    units::{Chain, Epoch, JournalId, JournalPos, Mark, RunId, SealNonce, Seq},
    volume::{
        OpenOptions, Sum, Volume,
        admin::{self, Checked},
    },
};
use volume_support::{Host, MIB, close, noise, read};

const PIECE: u64 = 64 << 10;

struct World {
    host: Host,
    /// The volume's own objects.
    store: SharedStore,
    /// What was put into the log, by seq, whether it is there still or not.
    log: BTreeMap<Seq, Bytes>,
    tag: u64,
}

impl World {
    /// A volume that was written, overwritten and closed, so that its log has emptied slots.
    async fn new() -> World {
        let store = Arc::new(MemoryStore::new());
        let host = Host::with_free_slots(RealEnv::start(), store, 64 * MIB, KeySource::None).await;
        let store = host.own().await;
        let mut world = World { host, store, log: BTreeMap::new(), tag: 0 };
        let volume = world.open().await;
        for n in 1..16 {
            world.write(&volume, n).await;
        }
        world.write_until(&volume, |space| space.counters.deleted_objects >= 40).await;
        close(volume).await;
        world
    }

    /// Nothing stays for the sake of readers.
    async fn open(&self) -> Arc<Volume> {
        let options = OpenOptions {
            grace: Duration::ZERO,
            cleaning: Bound::Ratio(f64::INFINITY).into(),
            ..self.host.options()
        };
        Volume::open(options).await.expect("opened")
    }

    /// A segment of its own.
    async fn write(&mut self, volume: &Volume, piece: u64) {
        self.tag += 1;
        volume.write(piece * PIECE, noise(self.tag, PIECE as usize), false).await.expect("written");
        volume.drain().await.expect("drained");
        for listed in self.store.list_after(keys::LOG_PREFIX, "", 10_000).await.expect("listed") {
            let seq = keys::parse_entry(&listed.key).expect("a log object");
            if let std::collections::btree_map::Entry::Vacant(new) = self.log.entry(seq)
                && let Ok(body) = self.store.get(&listed.key, u64::MAX).await
            {
                new.insert(body);
            }
        }
    }

    /// Overwrites the first piece until the volume says what it is waited for.
    async fn write_until(
        &mut self,
        volume: &Volume,
        until: impl Fn(&cistern_engine::volume::SpaceStatus) -> bool,
    ) {
        for _ in 0..20_000 {
            self.write(volume, 0).await;
            if until(&volume.status().space.expect("open for writing")) {
                return;
            }
        }
        panic!("it never says so: {:?}", volume.status().space);
    }

    /// Overwrites the first piece until these are gone.
    async fn write_until_gone(&mut self, volume: &Volume, gone: &[String]) {
        for _ in 0..20_000 {
            self.write(volume, 0).await;
            let mut left = 0;
            for key in gone {
                left += usize::from(self.has(key).await);
            }
            if left == 0 {
                return;
            }
        }
        panic!("they stay: {:?}", volume.status().space);
    }

    async fn has(&self, key: &str) -> bool {
        self.store.get(key, u64::MAX).await.is_ok()
    }

    async fn put(&self, key: &str, body: impl Into<Bytes>) {
        assert!(!self.has(key).await, "{key} is taken");
        self.store.put(key, body.into()).await.expect("put");
    }

    async fn checkpoint(&self) -> (String, Checkpoint) {
        let listed = self.store.list_after(keys::CHECKPOINT_PREFIX, "", 1000).await.expect("listed");
        let key = listed.last().expect("a checkpoint").key.clone();
        let name = keys::parse_checkpoint(&key).expect("its name");
        let body = self.store.get(&key, u64::MAX).await.expect("read");
        let volume = self.slot(Seq(1)).volume;
        let checkpoint = Checkpoint::decode(None, volume, name, &body).expect("decoded");
        (key, checkpoint)
    }

    /// The slot of an object that was in the log.
    fn slot(&self, seq: Seq) -> Slot {
        let head = read_head(seq, &self.log[&seq]).expect("an entry");
        let EntryHead { volume, epoch, salt, nonce, checkpoint, .. } = head;
        Slot { volume, epoch, seq, salt, nonce, checkpoint }
    }

    /// Slots whose segments were deleted for good.
    async fn emptied(&self) -> Vec<Seq> {
        let (_, checkpoint) = self.checkpoint().await;
        let mut emptied = Vec::new();
        for &seq in self.log.keys() {
            let is_retired =
                checkpoint.retired.iter().any(|retired| retired.name == RetiredName::Segment(seq));
            if !is_retired && !self.has(&keys::entry(seq)).await {
                emptied.push(seq);
            }
        }
        emptied
    }

    /// What a sweep would find: by a look at every object and at the whole map.
    async fn orphans(&self) -> Sum {
        let Host { env, store, key, .. } = &self.host;
        let what = Checked { data: true, space: true };
        let report = admin::check(env, store, key, what, &|_, _| ()).await.expect("checked");
        assert_eq!(report.faults, Vec::<String>::new());
        report.space.expect("asked for").orphans
    }

    async fn reads_whole(&self, volume: &Volume) {
        assert_eq!(read(volume, 0, PIECE).await, noise(self.tag, PIECE as usize));
        for n in 1..16 {
            assert_eq!(read(volume, n * PIECE, PIECE).await, noise(n, PIECE as usize));
        }
    }
}

/// An object of the map that nobody will ever name.
fn stray(n: u128) -> String {
    keys::run(RunId(uuid::Uuid::from_u128(n)))
}

/// What a crashed flush, a crashed checkpoint and a request that came late to an emptied slot left behind is found, counted,
/// retired and deleted. A claim, a segment of another epoch, an object of another volume and one that does not verify stay
/// where they came to, and so does what no volume made. Then every byte is accounted for.
#[tokio::test(flavor = "multi_thread")]
async fn orphans_go_and_fences_stay() {
    let mut world = World::new().await;
    let emptied = world.emptied().await;
    let [late, again, claim, void, foreign, broken] = emptied[..6] else { panic!("{emptied:?}") };
    let orphans = [stray(1), stray(2), keys::entry(late), keys::entry(again)];
    world.put(&orphans[0], vec![1; 5000]).await;
    world.put(&orphans[1], vec![2; 100]).await;
    for (seq, key) in [(late, &orphans[2]), (again, &orphans[3])] {
        world.put(key, world.log[&seq].clone()).await;
    }
    let slot = |seq, epoch| Slot { epoch: Epoch(epoch), nonce: SealNonce([9; 8]), ..world.slot(seq) };
    let moved = |slot| SegmentBuilder::moved(None, slot, Seq(1), 1, Compression::None).finish().body;
    let start = Mark { pos: JournalPos(0), chain: Chain(0) };
    let journal = JournalId(uuid::Uuid::from_u128(5));
    let claimed = Claim { host: "late".into(), wall_ms: 1, journal, start, size_bytes: 64 * MIB };
    let other = Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), MIB, KeySource::None).await;
    let theirs = admin::info(&other.env, &other.store, &KeySource::None).await.expect("informed").volume;
    let fences = [
        (claim, encode_claim(None, &slot(claim, 9), &claimed)),
        (void, moved(slot(void, 9))),
        (foreign, moved(Slot { volume: theirs, ..slot(foreign, 1) })),
        (broken, Bytes::from_static(b"no entry at all, and nobody knows of what it is left")),
    ];
    for (seq, body) in &fences {
        world.put(&keys::entry(*seq), body.clone()).await;
    }
    world.put("map/readme", "not ours").await;

    // Closing may have left some too.
    let before = world.orphans().await;
    assert!(before.objects >= orphans.len() as u64, "{before:?}");
    let volume = world.open().await;
    world.write_until_gone(&volume, &orphans).await;
    let counters = volume.status().space.expect("open for writing").counters;
    assert_eq!((counters.swept_objects, counters.swept_bytes), (before.objects, before.bytes));
    world.reads_whole(&volume).await;
    close(volume).await;
    for (seq, body) in &fences {
        assert_eq!(world.store.get(&keys::entry(*seq), u64::MAX).await.expect("it stays"), body);
    }
    assert!(world.has("map/readme").await);
    // Closing may leave an object that its last checkpoint does not name; the next opening finds that.
    for _ in 0..10 {
        let left = world.orphans().await.objects;
        if left == 0 {
            return;
        }
        let volume = world.open().await;
        world.write_until(&volume, |space| space.counters.swept_objects >= left).await;
        close(volume).await;
    }
    panic!("orphans are left: {:?}", world.orphans().await);
}

/// Where a part of the accounts is damaged, live segments look as if nobody knew them: nothing of the log is swept then.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_accounts_sweep_nothing_of_the_log() {
    let mut world = World::new().await;
    let late = world.emptied().await[0];
    world.put(&keys::entry(late), world.log[&late].clone()).await;
    world.put(&stray(1), vec![1; 100]).await;
    let before = world.orphans().await;
    for usage in world.checkpoint().await.1.usage {
        world.store.put(&keys::run(usage.id), Bytes::from_static(b"damaged")).await.expect("put");
    }
    let volume = world.open().await;
    world.write_until_gone(&volume, &[stray(1)]).await;
    assert!(world.has(&keys::entry(late)).await, "nobody can tell that it is an orphan");
    let counters = volume.status().space.expect("open for writing").counters;
    assert_eq!(counters.swept_objects, before.objects - 1);
    world.reads_whole(&volume).await;
    close(volume).await;
}

/// Accounts that are sound and wrong, because they lack segments that are live: what something resolves to stays all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_needed_stays_whatever_the_accounts_say() {
    let mut world = World::new().await;
    world.put(&stray(1), vec![1; 100]).await;
    let (key, mut checkpoint) = world.checkpoint().await;
    checkpoint.usage.clear();
    let body = checkpoint.encode(&world.host.env, None, world.slot(Seq(1)).volume).expect("encoded");
    world.store.put(&key, body).await.expect("put");
    let volume = world.open().await;
    world.write_until_gone(&volume, &[stray(1)]).await;
    world.reads_whole(&volume).await;
    close(volume).await;
    let volume = world.open().await;
    world.reads_whole(&volume).await;
    close(volume).await;
}
