//! The cleaner under snapshots: what was overwritten and is seen by nobody goes, also where a snapshot sees what lies beside it, and
//! every snapshot shows what it must, wherever that was moved to.

mod volume_support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cistern_engine::{
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Pages, Store, Stores},
    volume::{Collect, LiveSettings, ReadOnlyOptions, Volume, admin},
};
use volume_support::{Host, MIB, close, noise, read};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 600;

/// What every block is: by which write, and the how manieth block of that.
type Content = Vec<(u64, u64)>;

/// Small numbers, the same for a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

async fn show(host: &Host, name: &str) -> Arc<Volume> {
    let options = ReadOnlyOptions {
        env: host.env.clone(),
        stores: Stores::same(host.store.clone()),
        cache: None,
        key: host.key.clone(),
        memory_bytes: 64 * MIB,
        snapshot: Some(name.into()),
    };
    Volume::open_read_only(options).await.expect("shown")
}

async fn shows(volume: &Volume, content: &Content, what: &str) {
    let found = read(volume, 0, BLOCKS * BLOCK).await;
    let mut written: BTreeMap<u64, bytes::Bytes> = BTreeMap::new();
    for (block, &(write, index)) in content.iter().enumerate() {
        let data = &found[block * BLOCK as usize..][..BLOCK as usize];
        let is_right = match write {
            0 => data.iter().all(|byte| *byte == 0),
            _ => {
                let all = written.entry(write).or_insert_with(|| noise(write, 64 * BLOCK as usize));
                data == &all[(index * BLOCK) as usize..][..BLOCK as usize]
            }
        };
        assert!(is_right, "{what}: block {block} is not what write {write} made of it");
    }
}

/// No contradiction between accounts, roots and objects, and no object that nobody knows.
async fn check(host: &Host, what: &str) -> admin::CheckReport {
    let checked = admin::Checked { data: true, space: true };
    let report = admin::check(&host.env, &host.store, &host.key, checked, &|_, _| {}).await.expect("checked");
    assert_eq!(report.faults, Vec::<String>::new(), "{what}");
    report
}

async fn stored_bytes(host: &Host) -> u64 {
    let mut pages = Pages::of(host.store.as_ref() as &dyn Store, "");
    let mut bytes = 0;
    while let Some(page) = pages.next_page().await.expect("listed") {
        bytes += page.iter().map(|listed| listed.bytes).sum::<u64>();
    }
    bytes
}

/// One history: what is written, made a snapshot of, removed, cleaned, crashed and opened again, by a seed.
async fn live(seed: u64, key: KeySource) {
    let store = Arc::new(MemoryStore::new());
    let host = Host::with_volume(RealEnv::start(), store, BLOCKS * BLOCK, key).await;
    let mut volume = host.open_anew().await;
    let (mut dice, mut now) = (Dice(seed), vec![(0, 0); BLOCKS as usize]);
    let mut snapshots: BTreeMap<String, Content> = BTreeMap::new();
    let mut readers: Vec<(String, Arc<Volume>)> = Vec::new();
    for step in 1..=250 {
        let what = format!("seed {seed}, step {step}");
        match dice.roll(20) {
            0..=9 => {
                let most = if dice.roll(6) == 0 { 64 } else { 5 };
                let len = 1 + dice.roll(most);
                let from = dice.roll(BLOCKS - len);
                if dice.roll(8) == 0 {
                    volume.trim(from * BLOCK, len * BLOCK, false).await.expect("trimmed");
                    (from..from + len).for_each(|block| now[block as usize] = (0, 0));
                } else {
                    let data = noise(step, 64 * BLOCK as usize).slice(..(len * BLOCK) as usize);
                    volume.write(from * BLOCK, data, false).await.expect("written");
                    (from..from + len).for_each(|block| now[block as usize] = (step, block - from));
                }
            }
            10..=11 => {
                let name = format!("s{step}");
                volume.snapshot(&name).await.expect("made");
                snapshots.insert(name, now.clone());
            }
            12 => {
                let names: Vec<&String> = snapshots.keys().collect();
                if !names.is_empty() {
                    let name = names[dice.roll(names.len() as u64) as usize].clone();
                    volume.remove_snapshot(&name).await.expect("removed");
                    snapshots.remove(&name);
                    readers.retain(|(shown, _)| *shown != name);
                }
            }
            13..=14 => volume.drain().await.expect("drained"),
            15..=17 => _ = volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned"),
            18 => {
                volume.drain().await.expect("drained");
                if let Some(name) = snapshots.keys().nth(dice.roll(5) as usize) {
                    readers.push((name.clone(), show(&host, name).await));
                }
            }
            _ if dice.roll(3) == 0 => {
                volume.flush().await.expect("flushed");
                drop(volume);
                volume = host.open_anew().await;
            }
            _ => {
                volume.drain().await.expect("drained");
                check(&host, &what).await;
            }
        }
    }
    volume.drain().await.expect("drained");
    volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned");
    shows(&volume, &now, &format!("seed {seed}: the volume")).await;
    for (name, content) in &snapshots {
        let what = format!("seed {seed}: {name}");
        shows(&*show(&host, name).await, content, &what).await;
        shows(&volume.open_snapshot(name).await.expect("shown"), content, &what).await;
    }
    for (name, reader) in &readers {
        shows(reader, &snapshots[name], &format!("seed {seed}: {name}, opened long ago")).await;
    }
    check(&host, &format!("seed {seed}")).await;
    for name in snapshots.keys() {
        volume.remove_snapshot(name).await.expect("removed");
    }
    close(volume).await;
    check(&host, &format!("seed {seed}: closed")).await;
}

/// Whatever is written, kept, removed and cleaned in whatever order, through crashes as well: each snapshot shows what was there, to
/// who opens it now and to who opened it before it was moved; and accounts and objects agree.
#[tokio::test]
async fn snapshots_show_what_was_moved() {
    let first: u64 = std::env::var("FORWARD_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let count: u64 = std::env::var("FORWARD_SEEDS").map_or(6, |count| count.parse().expect("a number"));
    for seed in first..first + count {
        let key = match seed % 2 {
            0 => KeySource::None,
            _ => KeySource::KeyFile(vec![7; 32]),
        };
        live(seed, key).await;
    }
}

/// What nobody sees goes, although a snapshot sees what lies beside it in the same segments; what a snapshot that was removed saw goes too.
#[tokio::test]
async fn garbage_goes_beneath_snapshots() {
    let store = Arc::new(MemoryStore::new());
    let host = Host::with_volume(RealEnv::start(), store, 16 * MIB, KeySource::None).await;
    let volume = host.open_anew().await;
    volume.set(LiveSettings::default()).expect("set");
    let clean = || async {
        for what in [Collect::Clean { ratio: 1.0 }, Collect::Retire].repeat(3) {
            volume.collect(what).await.expect("collected");
        }
        stored_bytes(&host).await
    };
    // Every eighth block is of the first write still when the snapshot is made, and half of those at the end.
    volume.write(0, noise(1, 8 * MIB as usize), false).await.expect("written");
    volume.drain().await.expect("drained");
    for block in (0..2048).filter(|block| block % 8 != 0) {
        volume.write(block * BLOCK, noise(2, BLOCK as usize), false).await.expect("written");
    }
    volume.drain().await.expect("drained");
    volume.snapshot("a").await.expect("made");
    for block in (0..2048).step_by(16) {
        volume.write(block * BLOCK, noise(3, BLOCK as usize), false).await.expect("written");
    }
    volume.drain().await.expect("drained");
    let found = clean().await;
    assert!(found < 9 * MIB + MIB / 2, "8.5 MiB are seen, {found} are stored");
    let shown = show(&host, "a").await;
    for block in 0..2048 {
        let of: u64 = if block % 8 == 0 { 1 } else { 2 };
        let at = if of == 1 { (block * BLOCK) as usize } else { 0 };
        let expected = noise(of, 8 * MIB as usize).slice(at..at + BLOCK as usize);
        assert!(read(&shown, block * BLOCK, BLOCK).await == expected, "block {block}");
    }
    check(&host, "with a snapshot").await;
    volume.remove_snapshot("a").await.expect("removed");
    volume.drain().await.expect("drained");
    let found = clean().await;
    assert!(found < 8 * MIB + MIB / 2, "8 MiB are live, {found} are stored");
    // A run that a merge stores meanwhile is not named yet.
    let mut orphans = u64::MAX;
    for _ in 0..20 {
        orphans = check(&host, "without snapshots").await.space.expect("asked for").orphans.objects;
        if orphans == 0 {
            break;
        }
        volume.collect(Collect::Retire).await.expect("collected");
    }
    assert_eq!(orphans, 0);
    close(volume).await;
}

/// What was moved for several snapshots stays until the last of them goes, whichever goes before.
#[tokio::test]
async fn what_was_moved_goes_with_the_last_snapshot_that_sees_it() {
    let store = Arc::new(MemoryStore::new());
    let host = Host::with_volume(RealEnv::start(), store, 16 * MIB, KeySource::None).await;
    let volume = host.open_anew().await;
    volume.set(LiveSettings::default()).expect("set");
    let clean = || async {
        for what in [Collect::Clean { ratio: 1.0 }, Collect::Retire].repeat(3) {
            volume.collect(what).await.expect("collected");
        }
    };
    volume.write(0, noise(1, 8 * MIB as usize), false).await.expect("written");
    volume.drain().await.expect("drained");
    // Every eighth block is of the first write when snapshots are made, and of nothing else afterwards.
    for block in (0..2048).filter(|block| block % 8 != 0) {
        volume.write(block * BLOCK, noise(2, BLOCK as usize), false).await.expect("written");
    }
    volume.snapshot("a").await.expect("made");
    volume.write(3000 * BLOCK, noise(3, BLOCK as usize), false).await.expect("written");
    volume.snapshot("b").await.expect("made");
    volume.write(0, noise(4, 8 * MIB as usize), false).await.expect("written");
    volume.drain().await.expect("drained");
    clean().await;
    volume.remove_snapshot("a").await.expect("removed");
    volume.drain().await.expect("drained");
    clean().await;
    let (shown, first) = (show(&host, "b").await, noise(1, 8 * MIB as usize));
    for block in (0..2048).step_by(8) {
        let at = (block * BLOCK) as usize;
        let expected = first.slice(at..at + BLOCK as usize);
        assert!(read(&shown, block * BLOCK, BLOCK).await == expected, "block {block}");
    }
    check(&host, "without the first").await;
    close(volume).await;
}

/// Snapshots that come and go in a window: what is stored stays near what they and the volume see.
#[tokio::test]
async fn a_rolling_window_keeps_near_its_bound() {
    const WINDOW: usize = 8;
    let store = Arc::new(MemoryStore::new());
    let host = Host::with_volume(RealEnv::start(), store, 16 * MIB, KeySource::None).await;
    let volume = host.open_anew().await;
    let mut dice = Dice(5);
    volume.write(0, noise(1, 16 * MIB as usize), false).await.expect("written");
    for round in 0..3 * WINDOW {
        for write in 0..400 {
            let block = dice.roll(4096);
            let data = noise(1000 * round as u64 + write, BLOCK as usize);
            volume.write(block * BLOCK, data, false).await.expect("written");
        }
        volume.drain().await.expect("drained");
        volume.snapshot(&format!("s{round}")).await.expect("made");
        if round >= WINDOW {
            volume.remove_snapshot(&format!("s{}", round - WINDOW)).await.expect("removed");
        }
        volume.drain().await.expect("drained");
        volume.collect(Collect::Clean { ratio: 1.1 }).await.expect("cleaned");
    }
    volume.collect(Collect::Retire).await.expect("retired");
    let space = check(&host, "a window").await.space.expect("asked for");
    let stored = space.segments.bytes + space.dead.bytes;
    assert!(stored * 100 <= space.live_bytes * 135, "{stored} for {}", space.live_bytes);
    let names: BTreeSet<String> = volume.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names.len(), WINDOW);
    close(volume).await;
}
