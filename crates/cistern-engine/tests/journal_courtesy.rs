//! What write-back reads back from a journal gives way to syncs. Alone in its process: all who use a file system share
//! what is known of it.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use cistern_engine::{
    disk::{Disk, RealDisk},
    env::real::RealEnv,
    journal::{Journal, JournalOptions, Record},
    units::{Extent, JournalPos, VolumeId},
};
use tempfile::TempDir;

mod journal_world;
use journal_world::payload;

const GROUP_BLOCKS: u64 = 150;
const MEMORY_BYTES: u64 = 1 << 20;

/// Groups that left memory are read in pieces, each in its turn: while somebody else has that, not one of them comes.
#[tokio::test(flavor = "multi_thread")]
async fn groups_from_the_disk_wait_for_their_turn() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).expect("open"));
    let env = RealEnv::start();
    let options = JournalOptions { bytes: 16 << 20, memory_bytes: MEMORY_BYTES };
    let volume = VolumeId(uuid::Uuid::from_u128(7));
    let journal = Journal::create(&env, &disk, volume, JournalPos(0), options).await.expect("create");
    for id in 0..10 {
        let record = Record::Write(Extent::new(id * 1024, GROUP_BLOCKS));
        let prepared = journal.prepare(record, payload(id, GROUP_BLOCKS).into()).expect("it fits");
        let end = journal.append(&prepared, &mut |_, _| {}).expect("there is room");
        journal.sync(end).await.expect("sync");
    }
    let courtesy = disk.courtesy();
    courtesy.note_store();
    courtesy.synced(env.now(), env.now() + Duration::from_secs(3600)); // as if all hour long somebody did

    let ((has, had), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let other = env.dedicated("other", {
        let (courtesy, env) = (courtesy.clone(), env.clone());
        async move {
            courtesy.give_way(&env, || {
                has.send(()).expect("somebody waits for it");
                released.recv().expect("the turn ends");
            });
        }
    });
    had.recv().expect("it has the turn");
    let mut reading = env.spawn("reading", {
        let journal = journal.clone();
        async move { journal.groups(journal.tail()).await }
    });
    let early = env.timeout(Duration::from_millis(100), &mut reading).await;
    assert!(early.is_none(), "it waits, however long");
    release.send(()).expect("the other waits for it");
    other.await.expect("it ends");
    let groups = reading.await.expect("it ends").expect("what was written");
    for (id, group) in groups.iter().enumerate() {
        let placed = group.records().first().expect("a record");
        let read = group.payload(placed.pos, GROUP_BLOCKS).expect("its payload");
        assert!(read == payload(id as u64, GROUP_BLOCKS), "group {id}");
    }
    assert!(!groups.is_empty());
}
