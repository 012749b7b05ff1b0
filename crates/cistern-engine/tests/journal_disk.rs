//! The journal on the real disk of the build directory, with real threads.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cistern_engine::{
    Error,
    disk::{Disk, RealDisk},
    env::{Env, real::RealEnv},
    journal::{AppendError, Journal, JournalOptions, Record, Recoveries},
    units::{Extent, JournalPos, VolumeId},
};
use tempfile::TempDir;

mod journal_world;
use journal_world::payload;

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(7));
const BYTES: u64 = 16 << 20;

fn scratch() -> (TempDir, Arc<dyn Disk>) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let disk = RealDisk::open(dir.path()).expect("open");
    (dir, Arc::new(disk))
}

fn options() -> JournalOptions {
    JournalOptions { bytes: BYTES, memory_bytes: 1 << 20 }
}

async fn create(env: &Env, disk: &Arc<dyn Disk>) -> Arc<Journal> {
    Journal::create(env, disk, VOLUME, JournalPos(0), options()).await.expect("create")
}

/// Opens as soon as the writer of a dropped journal has let go of the lock.
async fn open(env: &Env, disk: &Arc<dyn Disk>) -> (Arc<Journal>, Vec<(Record, JournalPos)>) {
    loop {
        let mut seen = Vec::new();
        let mut visit = |record: &Record, pos, _| seen.push((record.clone(), pos));
        match Journal::open(env, disk, VOLUME, options(), &Recoveries::new(1), &mut visit).await {
            Ok(journal) => return (journal, seen),
            Err(Error::Locked(_)) => tokio::task::yield_now().await,
            Err(e) => panic!("{e}"),
        }
    }
}

async fn write(journal: &Journal, id: u64, blocks: u64) -> JournalPos {
    let record = Record::Write(Extent::new(id * 1024, blocks));
    let prepared = journal.prepare(record, payload(id, blocks).into()).expect("it fits");
    loop {
        match journal.append(&prepared, &mut |_, _| {}) {
            Ok(end) => return end,
            Err(AppendError::Full) => journal.room(blocks).await.expect("room"),
            Err(AppendError::Failed(e)) => panic!("{e}"),
        }
    }
}

/// Several laps by several tasks at once, dropped without a close, come back with everything that
/// was synced and not freed, and every payload right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn laps_by_many_tasks_survive_a_drop() {
    let (_dir, disk) = scratch();
    let env = RealEnv::start();
    let journal = create(&env, &disk).await;
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let journal = journal.clone();
            env.spawn("client", async move {
                for n in 0..200 {
                    let end = write(&journal, client * 1000 + n, 1 + n % 40).await;
                    if n % 5 == 0 {
                        journal.sync(end).await.expect("sync");
                    }
                }
            })
        })
        .collect();
    let (freeing, done) = (journal.clone(), Arc::new(AtomicBool::new(false)));
    let until = done.clone();
    let write_back = env.spawn("write-back", async move {
        while !until.load(Ordering::Relaxed) {
            freeing.sync(freeing.appended()).await.expect("sync");
            while freeing.durable().0 - freeing.tail().0 > 2048 {
                let next = freeing.groups(freeing.tail()).await.expect("group")[0].next();
                freeing.free(next);
            }
            tokio::task::yield_now().await;
        }
    });
    for client in clients {
        client.await.expect("it ends");
    }
    done.store(true, Ordering::Relaxed);
    write_back.await.expect("it ends");
    journal.sync(journal.appended()).await.expect("sync");
    let (tail, head) = (journal.tail(), journal.appended());
    drop(journal);

    let (journal, seen) = open(&env, &disk).await;
    assert_eq!(journal.appended(), head);
    assert!(journal.tail() <= tail);
    assert!(!seen.is_empty());
    for (record, pos) in seen {
        let Record::Write(extent) = record else { panic!("only writes were appended") };
        let data = journal.read(pos, extent.len).await.expect("read").expect("not freed");
        assert!(data[..] == payload(extent.start / 1024, extent.len)[..]);
    }
    journal.close().await.expect("close");
}

/// A journal whose file is deleted under it stops at the next flush instead of confirming what
/// would be lost.
#[tokio::test]
async fn a_deleted_journal_stops() {
    let (dir, disk) = scratch();
    let env = RealEnv::start();
    let journal = create(&env, &disk).await;
    let end = write(&journal, 1, 1).await;
    journal.sync(end).await.expect("sync");
    fs::remove_file(dir.path().join("journal")).expect("remove");
    let record = Record::Write(Extent::new(0, 1));
    let prepared = journal.prepare(record, payload(2, 1).into()).expect("it fits");
    let refused = match journal.append(&prepared, &mut |_, _| {}) {
        Ok(end) => journal.sync(end).await.expect_err("the file is gone"),
        Err(AppendError::Failed(e)) => e, // the writer noticed first
        Err(AppendError::Full) => panic!("there is room"),
    };
    assert!(matches!(refused, Error::Latched(_)), "{refused}");
    assert!(journal.close().await.is_err());
}

/// Two journals on one file would destroy each other: the second one is refused.
#[tokio::test]
async fn a_second_writer_is_refused() {
    let (_dir, disk) = scratch();
    let env = RealEnv::start();
    let journal = create(&env, &disk).await;
    let second = Journal::open(&env, &disk, VOLUME, options(), &Recoveries::new(1), &mut |_, _, _| {}).await;
    assert!(matches!(second, Err(Error::Locked(_))));
    journal.close().await.expect("close");
    let (journal, seen) = open(&env, &disk).await;
    assert!(seen.is_empty());
    journal.close().await.expect("close");
}
