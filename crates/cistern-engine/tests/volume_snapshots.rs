//! Snapshots of a volume: made while it is written, shown by other hosts, kept through crashes, and given up.

mod volume_support;

use std::{sync::Arc, time::Duration};

use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Store, Stores},
    volume::{Collect, LiveSettings, OpenOptions, ReadOnlyOptions, Volume, admin},
};
use volume_support::{Host, MIB, close, noise, read};

const BLOCK: u64 = 4096;

async fn host() -> Host {
    Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), 64 * MIB, KeySource::None).await
}

/// Nothing stays for the sake of readers.
async fn open(host: &Host) -> Arc<Volume> {
    Volume::open(OpenOptions { grace: Duration::ZERO, ..host.options() }).await.expect("opened")
}

async fn open_behind_a_crash(host: &Host) -> Arc<Volume> {
    loop {
        match Volume::open(OpenOptions { grace: Duration::ZERO, ..host.options() }).await {
            Err(Error::Locked(_)) => tokio::task::yield_now().await, // the crash is not over
            opened => return opened.expect("opened"),
        }
    }
}

/// A snapshot as another host sees it.
async fn show(host: &Host, name: &str) -> Result<Arc<Volume>, Error> {
    let options = ReadOnlyOptions {
        env: host.env.clone(),
        stores: Stores::same(host.store.clone()),
        cache: None,
        key: host.key.clone(),
        memory_bytes: 128 * MIB,
        snapshot: Some(name.into()),
    };
    Volume::open_read_only(options).await
}

async fn write(volume: &Volume, block: u64, tag: u64, blocks: u64) {
    volume.write(block * BLOCK, noise(tag, (blocks * BLOCK) as usize), false).await.expect("written");
}

async fn shows(volume: &Volume, block: u64, tag: u64, blocks: u64) {
    let found = read(volume, block * BLOCK, blocks * BLOCK).await;
    assert!(found == noise(tag, (blocks * BLOCK) as usize), "block {block} is not what {tag} wrote");
}

/// No contradiction between accounts, roots and objects.
async fn check(host: &Host) {
    let what = admin::Checked { data: true, space: true };
    let report = admin::check(&host.env, &host.store, &host.key, what, &|_, _| {}).await.expect("checked");
    assert_eq!(report.faults, Vec::<String>::new());
}

async fn retire(volume: &Volume) {
    volume.collect(Collect::Retire).await.expect("collected");
}

/// A snapshot shows what was there when it was made, to the block, whatever is written behind it: before a checkpoint knows it, and
/// after; on another host, and after the volume was opened again.
#[tokio::test]
async fn a_snapshot_stays_as_it_was() {
    let host = host().await;
    let volume = open(&host).await;
    write(&volume, 0, 1, 8).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 4, 2, 8).await;
    volume.snapshot("b").await.expect("made");
    volume.trim(0, 2 * BLOCK, false).await.expect("trimmed");
    volume.drain().await.expect("drained");
    for round in 0..2 {
        let (a, b) = (show(&host, "a").await.expect("a"), show(&host, "b").await.expect("b"));
        shows(&a, 0, 1, 8).await;
        assert_eq!(read(&a, 8 * BLOCK, 4 * BLOCK).await, vec![0; 4 * BLOCK as usize]);
        shows(&b, 4, 2, 8).await;
        assert_eq!(read(&b, 0, 4 * BLOCK).await, noise(1, 8 * BLOCK as usize)[..4 * BLOCK as usize]);
        assert_eq!(read(&volume, 0, 2 * BLOCK).await, vec![0; 2 * BLOCK as usize], "round {round}");
        retire(&volume).await;
    }
    check(&host).await;
    close(volume).await;
    let volume = open(&host).await;
    let names: Vec<String> = volume.snapshots().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["a", "b"]);
    shows(&show(&host, "a").await.expect("a"), 0, 1, 8).await;
    close(volume).await;
}

/// A snapshot needs no store, and outlives a crash like a write behind a FLUSH.
#[tokio::test]
async fn a_snapshot_outlives_a_crash_without_a_store() {
    let host = host().await;
    let volume = open(&host).await;
    volume.set(LiveSettings { paused: Some(true), ..LiveSettings::default() }).expect("paused");
    write(&volume, 0, 1, 8).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 8).await;
    volume.flush().await.expect("durable");
    let listed = volume.snapshots();
    assert_eq!((listed.len(), listed[0].at), (1, None));
    drop(volume);
    let volume = open_behind_a_crash(&host).await;
    assert!(matches!(volume.snapshot("a").await, Err(Error::Exists(_))));
    volume.drain().await.expect("drained");
    assert!(volume.snapshots()[0].at.is_some());
    shows(&show(&host, "a").await.expect("a"), 0, 1, 8).await;
    shows(&volume, 0, 2, 8).await;
    close(volume).await;
}

/// What a snapshot needs stays through overwriting, cleaning and merging; once it is removed the space comes back, and what another
/// one sees stays.
#[tokio::test]
async fn space_comes_back_with_the_last_snapshot_that_sees_it() {
    let host = host().await;
    let volume = open(&host).await;
    for tag in 0..4 {
        write(&volume, 0, tag, 1024).await;
        volume.snapshot(&format!("s{tag}")).await.expect("made");
        volume.drain().await.expect("drained");
        retire(&volume).await;
    }
    write(&volume, 0, 9, 1024).await;
    volume.drain().await.expect("drained");
    let stored = || async {
        for _ in 0..3 {
            retire(&volume).await; // behind a checkpoint, an entry and another checkpoint
        }
        stored_bytes(&host).await
    };
    assert!(stored().await > 19 * MIB);
    check(&host).await;
    for (name, bytes) in [("s1", 16), ("s2", 12), ("s3", 8), ("s0", 4)] {
        volume.remove_snapshot(name).await.expect("removed");
        volume.drain().await.expect("drained");
        let found = stored().await;
        assert!((bytes * MIB..bytes * MIB + MIB).contains(&found), "{found} behind {name}");
        check(&host).await;
        if name != "s0" {
            shows(&show(&host, "s0").await.expect("s0"), 0, 0, 1024).await;
        }
    }
    assert!(matches!(show(&host, "s1").await, Err(Error::NotFound(_))));
    shows(&volume, 0, 9, 1024).await;
    close(volume).await;
    check(&host).await;
}

async fn stored_bytes(host: &Host) -> u64 {
    let mut pages = cistern_engine::store::Pages::of(host.store.as_ref() as &dyn Store, "");
    let mut bytes = 0;
    while let Some(page) = pages.next_page().await.expect("listed") {
        let counted = page.iter().filter(|listed| !listed.key.contains("/reserve/"));
        bytes += counted.map(|listed| listed.bytes).sum::<u64>();
    }
    bytes
}

/// A held snapshot is not removed; names that make no sense are refused and change nothing.
#[tokio::test]
async fn holds_keep_snapshots() {
    let host = host().await;
    let volume = open(&host).await;
    volume.snapshot("a").await.expect("made");
    volume.hold_snapshot("a", "sent").await.expect("held");
    assert!(matches!(volume.remove_snapshot("a").await, Err(Error::Invalid(_))));
    assert!(matches!(volume.snapshot("a/b").await, Err(Error::Invalid(_))));
    assert!(matches!(volume.remove_snapshot("b").await, Err(Error::NotFound(_))));
    close(volume).await;
    let volume = open(&host).await;
    assert!(matches!(volume.remove_snapshot("a").await, Err(Error::Invalid(_))));
    volume.release_snapshot("a", "sent").await.expect("released");
    volume.remove_snapshot("a").await.expect("removed");
    assert_eq!(volume.snapshots(), []);
    close(volume).await;
}

/// Whether the volume shows what no snapshot does: that decides about the next one of a schedule. A snapshot that is gone, or of which a bookmark
/// is left, shows nothing; one that is made or removed beside one that shows it changes nothing.
#[tokio::test]
async fn what_no_snapshot_shows_is_a_change() {
    let host = host().await;
    let volume = open(&host).await;
    assert!(volume.changed_since_snapshot(), "it is not known");
    write(&volume, 0, 1, 1).await;
    volume.snapshot("first").await.expect("made");
    assert!(!volume.changed_since_snapshot());
    write(&volume, 0, 2, 1).await;
    assert!(volume.changed_since_snapshot());
    volume.snapshot("of-the-night").await.expect("made");
    assert!(!volume.changed_since_snapshot());
    volume.leave_bookmark("of-the-night").await.expect("what a backup leaves");
    assert!(volume.changed_since_snapshot(), "what was written last is in none");
    volume.snapshot("by-hand").await.expect("made");
    volume.snapshot("another").await.expect("made");
    volume.remove_snapshot("by-hand").await.expect("removed");
    assert!(!volume.changed_since_snapshot(), "the other one shows it");
    volume.remove_snapshot("another").await.expect("removed");
    assert!(volume.changed_since_snapshot());
    volume.snapshot("again").await.expect("made");
    volume.trim(0, BLOCK, false).await.expect("trimmed");
    assert!(volume.changed_since_snapshot());
    volume.snapshot("trimmed").await.expect("made");
    volume.resize(128 * MIB, false).await.expect("grown");
    assert!(volume.changed_since_snapshot());
    close(volume).await;
}
