//! Rolling back: a volume goes on from a snapshot, whatever is damaged and whoever writes, and what it left stays.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{
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
    store::{MemoryStore, SharedStore, Stores},
    volume::{Collect, ReadOnlyOptions, Volume, admin},
};
use futures_util::future::join;
use own_time::hurried_env;
use volume_support::{Host, MIB, close, narrow::Narrow, noise, passing::Through, read, refusing::Refusing};

const BLOCK: u64 = 4096;

async fn host() -> Host {
    Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), 64 * MIB, KeySource::None).await
}

async fn write(volume: &Volume, block: u64, tag: u64, blocks: u64) {
    volume.write(block * BLOCK, noise(tag, (blocks * BLOCK) as usize), false).await.expect("written");
}

async fn shows(volume: &Volume, block: u64, tag: u64, blocks: u64) {
    let found = read(volume, block * BLOCK, blocks * BLOCK).await;
    assert!(found == noise(tag, (blocks * BLOCK) as usize), "block {block} is not what {tag} wrote");
}

async fn snapshot_shows(host: &Host, name: &str, tag: u64, blocks: u64) {
    let options = ReadOnlyOptions {
        env: host.env.clone(),
        stores: Stores::same(host.store.clone()),
        cache: None,
        key: host.key.clone(),
        memory_bytes: 128 * MIB,
        snapshot: Some(name.into()),
    };
    let volume = Volume::open_read_only(options).await.expect("shown");
    shows(&volume, 0, tag, blocks).await;
}

/// No contradiction between accounts, roots and objects, and everything can be read.
async fn check(host: &Host) {
    let what = admin::Checked { data: true, space: true };
    let report = admin::check(&host.env, &host.store, &host.key, what, &|_, _| {}).await.expect("checked");
    assert_eq!(report.faults, Vec::<String>::new());
}

async fn objects(store: &SharedStore, prefix: &str) -> Vec<String> {
    let listed = store.list_after(prefix, "", 1000).await.expect("listed");
    listed.into_iter().map(|listed| listed.key).collect()
}

async fn damage_newest_checkpoint(host: &Host) {
    let own = host.own().await;
    let newest = objects(&own, "checkpoint/").await.pop().expect("there is one");
    let mut body = own.get(&newest, MIB).await.expect("read").to_vec();
    let middle = body.len() / 2;
    body[middle] ^= 1;
    own.put(&newest, body.into()).await.expect("damaged");
}

/// The volume shows what the snapshot shows, and what it left is a snapshot, if the newest checkpoint is damaged before whoever opens it has
/// made one, and if that one is.
#[tokio::test]
async fn a_damaged_checkpoint_undoes_no_rollback() {
    let host = host().await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 300).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 300).await;
    volume.roll_back("a", "left").await.expect("rolled back");
    drop(volume);
    for _ in 0..3 {
        damage_newest_checkpoint(&host).await;
        let volume = host.open_anew().await;
        shows(&volume, 0, 1, 300).await;
        snapshot_shows(&host, "a", 1, 300).await;
        snapshot_shows(&host, "left", 2, 300).await;
        volume.collect(Collect::Retire).await.expect("a checkpoint");
        close(volume).await;
    }
    let volume = host.open_anew().await;
    for _ in 0..8 {
        // The damaged ones go, behind sound ones.
        write(&volume, 400, 3, 1).await;
        volume.collect(Collect::Retire).await.expect("a checkpoint");
    }
    close(volume).await;
    check(&host).await;
}

/// What the cleaner moves at the last moment, behind all checkpoints that are not damaged, is not needed: the blocks are where they were.
#[tokio::test]
async fn what_is_moved_at_the_last_moment_is_not_missed() {
    let host = host().await;
    let mut volume = host.open_anew().await;
    for round in 1..8 {
        for part in 0..10 {
            write(&volume, part * 30, round * 100 + part, 30).await;
            volume.drain().await.expect("drained");
        }
        for part in 0..10 {
            write(&volume, part * 30 + 5, round * 1000 + part, 20).await;
        }
        volume.snapshot(&format!("a{round}")).await.expect("made");
        volume.collect(Collect::Retire).await.expect("a checkpoint");
        let cleaning = async { while volume.collect(Collect::Clean { ratio: 1.0 }).await.is_ok() {} };
        let (to, leave) = (format!("a{round}"), format!("left{round}"));
        let (rolled_back, ()) = join(volume.roll_back(&to, &leave), cleaning).await;
        rolled_back.expect("rolled back");
        drop(volume);
        damage_newest_checkpoint(&host).await;
        volume = host.open_anew().await;
        for part in 0..10 {
            shows(&volume, part * 30 + 5, round * 1000 + part, 20).await;
        }
    }
    close(volume).await;
}

/// Whoever writes while the volume is about to be rolled back keeps it from happening, and loses nothing.
#[tokio::test]
async fn who_writes_meanwhile_stops_a_rollback() {
    let host = host().await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 8).await;
    volume.snapshot("a").await.expect("made");
    let is_over = AtomicBool::new(false);
    let writes = async {
        let mut tag = 10;
        while !is_over.load(Ordering::Relaxed) {
            tag += 1;
            write(&volume, 0, tag, 8).await;
        }
        tag
    };
    let rollback = async {
        let done = volume.roll_back("a", "left").await;
        is_over.store(true, Ordering::Relaxed);
        done
    };
    let (refused, last) = join(rollback, writes).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    shows(&volume, 0, last, 8).await;
    close(volume).await;
    let volume = host.open_anew().await;
    shows(&volume, 0, last, 8).await;
    close(volume).await;
    check(&host).await;
}

/// One write and one snapshot, a schedule's, come between the snapshot of what is left and the end: the write is in no snapshot that the
/// rollback made, so it stops, and what was acknowledged is there.
#[tokio::test]
async fn a_snapshot_behind_a_write_hides_it_from_no_rollback() {
    let host = host().await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 8).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 8).await;
    let meanwhile = async {
        while volume.snapshot_named("left").is_none() {
            tokio::task::yield_now().await;
        }
        write(&volume, 0, 3, 8).await;
        volume.snapshot("by-a-schedule").await.expect("made");
    };
    let (refused, ()) = join(volume.roll_back("a", "left"), meanwhile).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    drop(volume);
    let volume = host.open_anew().await;
    shows(&volume, 0, 3, 8).await;
    close(volume).await;
    snapshot_shows(&host, "left", 2, 8).await;
    check(&host).await;
}

/// The snapshot of what is left is removed before the end: nothing would have what the volume shows, so it is not rolled back. One that takes
/// its name is not taken for it.
#[tokio::test]
async fn what_is_left_has_to_be_there_to_the_end() {
    let host = host().await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 8).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 8).await;
    let meanwhile = async {
        while volume.snapshot_named("left").is_none() {
            tokio::task::yield_now().await;
        }
        volume.remove_snapshot("left").await.expect("removed");
        volume.snapshot("left").await.expect("made");
    };
    let (refused, ()) = join(volume.roll_back("a", "left"), meanwhile).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    drop(volume);
    let volume = host.open_anew().await;
    shows(&volume, 0, 2, 8).await;
    close(volume).await;
    check(&host).await;
}

/// A volume that was rolled back is flattened, and every checkpoint that would say so is refused: the snapshot from which it goes on stays. So
/// after a crash the volume is there, and so are the checkpoints that come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_checkpoint_says_is_not_over() {
    let store = Through::new(Refusing::new("checkpoint/"));
    let host = Host::with_volume(hurried_env(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 1000).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 1000).await;
    volume.roll_back("a", "left").await.expect("rolled back");
    drop(volume);
    let volume = host.open_anew().await;
    volume.remove_snapshot("left").await.expect("removed");
    volume.remove_snapshot("a").await.expect("removed, and kept out of sight");
    volume.drain().await.expect("drained");
    volume.collect(Collect::Retire).await.expect("a checkpoint");
    let mut next = Some(0);
    while let Some(offset) = next {
        let part = Collect::Adopt { offset, len: 64 * MIB - offset };
        next = volume.collect(part).await.expect("adopted").next;
    }
    store.set(true);
    let flattening =
        async { while volume.collect(Collect::LetGo).await.expect("no end of it").next.is_some() {} };
    tokio::select! {
        () = flattening => panic!("no checkpoint says that it is flattened"),
        () = store.refused(8) => {}
    }
    volume.forget_removed_clones().await.expect("looked, as every hour");
    assert_eq!(volume.snapshots().len(), 1, "the volume in the store goes on from it");
    drop(volume); // a crash
    store.set(false);
    let volume = host.open_anew().await;
    for n in 0..3 {
        write(&volume, 2000 + n, 9, 1).await;
        volume.collect(Collect::Retire).await.expect("a checkpoint");
    }
    while volume.collect(Collect::LetGo).await.expect("flattened").next.is_some() {}
    assert_eq!(volume.snapshots(), [], "two checkpoints do without it");
    close(volume).await;
    let volume = host.open_anew().await;
    shows(&volume, 0, 1, 1000).await;
    close(volume).await;
    check(&host).await;
}

/// Once the volume is flattened and the snapshots are removed, nothing is stored of what was left; until then all of it is.
#[tokio::test]
async fn what_was_left_goes_with_its_snapshots() {
    let host = host().await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 1000).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 1000).await;
    volume.roll_back("a", "left").await.expect("rolled back");
    drop(volume);
    let volume = host.open_anew().await;
    write(&volume, 0, 3, 500).await;
    volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned");
    snapshot_shows(&host, "left", 2, 1000).await;
    shows(&volume, 0, 3, 500).await;
    let all = read(&volume, 500 * BLOCK, 500 * BLOCK).await;
    assert!(all == noise(1, 1000 * BLOCK as usize)[500 * BLOCK as usize..]);
    volume.remove_snapshot("left").await.expect("removed");
    volume.remove_snapshot("a").await.expect("removed, and kept out of sight");
    volume.drain().await.expect("drained");
    assert_eq!(volume.snapshots().len(), 1);
    check(&host).await;

    let mut at = Some(0);
    while let Some(offset) = at {
        let part = Collect::Adopt { offset, len: 64 * MIB - offset };
        at = volume.collect(part).await.expect("copied").next;
    }
    while volume.collect(Collect::LetGo).await.expect("nothing is of before").next.is_some() {}
    volume.drain().await.expect("drained");
    assert_eq!(volume.snapshots(), [], "nothing keeps it");
    for _ in 0..3 {
        write(&volume, 1000, 4, 1).await;
        volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned");
    }
    check(&host).await;
    let what = admin::Checked { data: false, space: true };
    let report = admin::check(&host.env, &host.store, &host.key, what, &|_, _| {}).await.expect("checked");
    let space = report.space.expect("asked for");
    assert!(space.segments.bytes <= 1300 * BLOCK, "{space:?}");
    close(volume).await;
}

/// One request at a time is enough for whoever opens what was rolled back: nothing that it reads waits for something that it has begun
/// and does not go on with.
#[tokio::test]
async fn one_request_at_a_time_is_enough() {
    let store = Through::new(Narrow::new());
    let host = Host::with_volume(RealEnv::start(), store, 64 * MIB, KeySource::None).await;
    let volume = host.open_anew().await;
    write(&volume, 0, 1, 300).await;
    volume.snapshot("a").await.expect("made");
    write(&volume, 0, 2, 300).await;
    volume.roll_back("a", "left").await.expect("rolled back");
    drop(volume);
    let opens = host.env.timeout(Duration::from_secs(900), async {
        for tag in 3..6 {
            let volume = host.open_anew().await;
            shows(&volume, 0, 1, 300).await;
            write(&volume, 300 * tag, tag, 1).await;
            volume.drain().await.expect("drained");
            drop(volume);
        }
        snapshot_shows(&host, "left", 2, 300).await;
    });
    opens.await.expect("it waits for itself");
}
