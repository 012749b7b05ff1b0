//! What differs between two states of a volume, what its snapshots take, and snapshots of several volumes at one instant: against what a
//! model has kept of every write.

mod volume_support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Stores},
    volume::{
        ChangedRange, Collect, LiveSettings, OpenOptions, RangeKind, ReadOnlyOptions, SnapshotSpace, Volume,
        snapshot_space, snapshot_together, unique_space,
    },
};
use volume_support::{Host, MIB, close, noise, read};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2048;

/// What every block is, by the write that made it so.
#[derive(Clone)]
struct Model(BTreeMap<u64, (u64, RangeKind)>);

impl Model {
    fn put(&mut self, from: u64, len: u64, write: u64, kind: RangeKind) {
        (from..from + len).for_each(|block| _ = self.0.insert(block, (write, kind)));
    }

    /// Blocks that are something else than before, and what.
    fn since(&self, before: &Model) -> BTreeMap<u64, RangeKind> {
        let changed = self.0.iter().filter(|(block, is)| before.0.get(block) != Some(is));
        changed.map(|(block, (_, kind))| (*block, *kind)).collect()
    }

    fn data(&self) -> impl Iterator<Item = (&u64, &(u64, RangeKind))> {
        self.0.iter().filter(|(_, (_, kind))| *kind == RangeKind::Data)
    }
}

/// Small numbers, the same for a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

async fn show(host: &Host, name: Option<&str>) -> Arc<Volume> {
    let options = ReadOnlyOptions {
        env: host.env.clone(),
        stores: Stores::same(host.store.clone()),
        cache: None,
        key: host.key.clone(),
        memory_bytes: 128 * MIB,
        snapshot: name.map(str::to_owned),
    };
    Volume::open_read_only(options).await.expect("opened")
}

/// All changes since a position, by block: ascending, and neighbours of one kind together.
async fn changes(volume: &Volume, at: u64) -> BTreeMap<u64, RangeKind> {
    let (mut last, mut out) = (None, BTreeMap::new());
    let tell = |range: &ChangedRange| {
        let ChangedRange { offset, len, kind } = *range;
        assert!(offset % BLOCK == 0 && len % BLOCK == 0 && len > 0);
        assert!(last.is_none_or(|(end, before)| end < offset || (end == offset && before != kind)));
        last = Some((offset + len, kind));
        (offset / BLOCK..(offset + len) / BLOCK).for_each(|block| _ = out.insert(block, kind));
        Ok::<(), Error>(())
    };
    volume.changes_since(at, None, tell, &|_, _| {}).await.expect("looked");
    out
}

/// The blocks that a volume calls changed since a snapshot; asked for so many ranges at a time.
async fn changed(volume: &Volume, base: &str, step: usize) -> Vec<u64> {
    let (mut offset, mut out) = (0, Vec::new());
    while offset < volume.size_bytes() {
        let left = volume.size_bytes() - offset;
        for (len, is_changed) in volume.changed_ranges(base, offset, left, step).await.expect("told") {
            out.extend((offset / BLOCK..(offset + len) / BLOCK).filter(|_| is_changed));
            offset += len;
        }
    }
    out
}

/// A snapshot and what it shows, or a bookmark and what it showed.
struct Kept {
    name: String,
    model: Model,
    is_bookmark: bool,
}

/// A volume that was written, discarded and zeroed at random between snapshots, some of which were removed again; and what each state was.
async fn written(seed: u64) -> (Host, Arc<Volume>, Vec<Kept>, Model) {
    let store = Arc::new(MemoryStore::new());
    let host = Host::with_volume(RealEnv::start(), store, BLOCKS * BLOCK, KeySource::None).await;
    let volume = Volume::open(OpenOptions { grace: Duration::ZERO, ..host.options() }).await.expect("opened");
    let (mut dice, mut now, mut kept) = (Dice(seed), Model(BTreeMap::new()), Vec::new());
    for write in 1..=120 {
        let len = 1 + dice.roll(if write % 7 == 0 { 700 } else { 12 });
        let from = dice.roll(BLOCKS - len);
        let kind =
            [RangeKind::Data, RangeKind::Data, RangeKind::Hole, RangeKind::Zero][dice.roll(4) as usize];
        match kind {
            RangeKind::Data => {
                volume
                    .write(from * BLOCK, noise(write, (len * BLOCK) as usize), false)
                    .await
                    .expect("written");
            }
            RangeKind::Hole => volume.trim(from * BLOCK, len * BLOCK, false).await.expect("trimmed"),
            RangeKind::Zero => volume.zero(from * BLOCK, len * BLOCK, true, false).await.expect("zeroed"),
        }
        now.put(from, len, write, kind);
        if dice.roll(8) == 0 {
            let name = format!("s{write}");
            volume.snapshot(&name).await.expect("made");
            kept.push(Kept { name, model: now.clone(), is_bookmark: false });
        }
        if dice.roll(25) == 0 && !kept.is_empty() {
            let at = dice.roll(kept.len() as u64) as usize;
            if dice.roll(2) == 0 || kept[at].is_bookmark {
                volume.remove_snapshot(&kept.remove(at).name).await.expect("removed");
            } else {
                volume.leave_bookmark(&kept[at].name).await.expect("removed");
                kept[at].is_bookmark = true;
            }
        }
        if dice.roll(10) == 0 {
            volume.drain().await.expect("drained");
        }
        if dice.roll(25) == 0 {
            volume.collect(Collect::Retire).await.expect("collected"); // all of it is in runs
        }
    }
    volume.drain().await.expect("drained");
    (host, volume, kept, now)
}

/// Between any two states exactly what was written, zeroed or discarded is a change, with what it is now.
#[tokio::test]
async fn changes_are_what_was_written_or_discarded() {
    for seed in 0..6 {
        let (host, volume, kept, now) = written(seed).await;
        let listed: BTreeMap<String, u64> =
            volume.snapshots().into_iter().map(|s| (s.name, s.at.expect("committed"))).collect();
        assert_eq!(listed.len(), kept.len());
        for (n, Kept { name, model, is_bookmark }) in kept.iter().enumerate() {
            if !is_bookmark {
                let shown = show(&host, Some(name)).await;
                for before in &kept[..n] {
                    let (found, older) = (changes(&shown, listed[&before.name]).await, &before.model);
                    assert_eq!(found, model.since(older), "seed {seed}: from {} to {name}", before.name);
                }
                assert!(shown.changed_ranges(name, 0, BLOCK, 1).await.expect("itself") == [(BLOCK, false)]);
            }
            let head = show(&host, None).await;
            let since = now.since(model);
            assert_eq!(changes(&head, listed[name]).await, since, "seed {seed}: from {name} on");
            for (volume, step) in [(&volume, 2), (&head, 100)] {
                assert!(
                    changed(volume, name, step).await.iter().eq(since.keys()),
                    "seed {seed}: from {name} on"
                );
            }
        }
        close(volume).await;
    }
}

/// What is not committed counts as changed, whether it came before the snapshot or behind it; what was not touched never does. So who
/// copies what changed misses nothing, also while the store is away. Older states know nothing of younger ones.
#[tokio::test]
async fn nothing_that_changed_is_missed() {
    let store = Arc::new(MemoryStore::new());
    let host = Host::with_volume(RealEnv::start(), store, MIB, KeySource::None).await;
    let volume = host.open().await;
    let write = async |block: u64| {
        volume.write(block * BLOCK, noise(block, BLOCK as usize), false).await.expect("written");
    };
    write(1).await;
    volume.snapshot("a").await.expect("made");
    volume.drain().await.expect("drained");
    volume.set(LiveSettings { paused: Some(true), ..LiveSettings::default() }).expect("paused");
    write(2).await;
    assert!(changed(&volume, "a", 1).await.iter().eq(&[2]));
    volume.snapshot("b").await.expect("made");
    write(3).await;
    volume.trim(4 * BLOCK, BLOCK, false).await.expect("trimmed");
    assert!(changed(&volume, "a", 9).await.iter().eq(&[2, 3, 4]));
    assert!(changed(&volume, "b", 9).await.iter().eq(&[2, 3, 4]));
    assert_eq!(volume.bases(), ["a", "b"]);
    volume.set(LiveSettings { paused: Some(false), ..LiveSettings::default() }).expect("goes on");
    volume.drain().await.expect("drained");
    assert!(changed(&volume, "b", 9).await.iter().eq(&[3, 4]));
    let shown = volume.open_snapshot("a").await.expect("shown");
    assert_eq!(shown.bases(), ["a"]);
    assert!(matches!(shown.changed_ranges("b", 0, BLOCK, 1).await, Err(Error::NotFound(_))));
    close(volume).await;
}

/// What snapshots take is counted to the block: what each shows, what of that is new, and what nobody else shows.
#[tokio::test]
async fn what_snapshots_take_is_counted_to_the_block() {
    for seed in 0..6 {
        let (host, volume, mut kept, now) = written(seed).await;
        kept.retain(|kept| !kept.is_bookmark);
        let found = snapshot_space(&host.env, &host.store, &host.key, &|_, _| {}).await.expect("counted");
        assert_eq!(found.len(), kept.len());
        let nothing = Model(BTreeMap::new());
        for (n, Kept { name, model, .. }) in kept.iter().enumerate() {
            let before = n.checked_sub(1).map_or(&nothing, |n| &kept[n].model);
            let next = kept.get(n + 1).map_or(&now, |next| &next.model);
            let is_new = |block: &u64| before.0.get(block) != model.0.get(block);
            let is_alone = |block: &u64| is_new(block) && next.0.get(block) != model.0.get(block);
            let bytes = |count: usize| count as u64 * BLOCK;
            let expected = SnapshotSpace {
                referenced_bytes: bytes(model.data().count()),
                written_bytes: bytes(model.data().filter(|(block, _)| is_new(block)).count()),
                unique_bytes: bytes(model.data().filter(|(block, _)| is_alone(block)).count()),
            };
            assert_eq!(found[n], (name.clone(), expected), "seed {seed}");
            let unique = unique_space(&host.env, &host.store, &host.key, name).await.expect("counted");
            assert_eq!(unique, expected.unique_bytes);
        }
        let missing = unique_space(&host.env, &host.store, &host.key, "none").await;
        assert!(matches!(missing, Err(Error::NotFound(_))));
        close(volume).await;
    }
}

/// Somebody writes to one volume, waits, and writes to another, again and again: in snapshots of both at one instant the second never
/// is ahead of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_several_volumes_are_of_one_instant() {
    let host = async || {
        Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), MIB, KeySource::None).await
    };
    let hosts = [host().await, host().await];
    let volumes = [hosts[0].open().await, hosts[1].open().await];
    let over = Arc::new(AtomicBool::new(false));
    let writing = hosts[0].env.spawn("client", {
        let (volumes, over) = (volumes.clone(), over.clone());
        async move {
            let mut n: u64 = 0;
            while !over.load(Ordering::Relaxed) {
                n += 1;
                for volume in &volumes {
                    volume.write(0, n.to_le_bytes().repeat(512).into(), false).await.expect("written");
                }
            }
            n
        }
    });
    for n in 0..50 {
        let name = format!("s{n}");
        // In whichever order they are named.
        let pair = [(&*volumes[n % 2], name.as_str()), (&*volumes[1 - n % 2], name.as_str())];
        snapshot_together(&pair).await.expect("made");
    }
    over.store(true, Ordering::Relaxed);
    let last = writing.await.expect("no panic");
    assert!(last > 50, "{last} writes: nothing was written meanwhile");
    let taken = snapshot_together(&[(&volumes[0], "new"), (&volumes[1], "s7")]).await;
    assert!(matches!(taken, Err(Error::Exists(_))), "{taken:?}");
    let twice = snapshot_together(&[(&volumes[0], "x"), (&volumes[0], "y")]).await;
    assert!(matches!(twice, Err(Error::Invalid(_))), "{twice:?}");
    assert_eq!(volumes[0].snapshots().len(), 50, "of two one was refused, so there is none");
    for n in 0..50 {
        let name = format!("s{n}");
        let mut found = [0; 2];
        for (volume, found) in volumes.iter().zip(&mut found) {
            let shown = volume.open_snapshot(&name).await.expect("shown");
            *found = u64::from_le_bytes(read(&shown, 0, 8).await.try_into().expect("eight"));
        }
        assert!(found[1] <= found[0] && found[0] <= found[1] + 1, "{name}: {found:?}");
    }
    for volume in volumes {
        close(volume).await;
    }
}
