//! Marks of a journal: a position and the history that leads there. They outlive everything the journal does, and tell
//! copies of a journal apart.

use std::{path::Path, sync::Arc};

use cistern_engine::{
    disk::{Disk, RealDisk},
    env::real::RealEnv,
    journal::{FILE_NAME, JOURNAL_BYTES_MIN, Journal, JournalOptions, Record, Recoveries, set_aside},
    units::{BLOCK_BYTES, Extent, JournalPos, Mark, VolumeId},
};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(7));

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

fn disk(directory: &tempfile::TempDir) -> Arc<dyn Disk> {
    Arc::new(RealDisk::create(directory.path()).expect("a directory"))
}

fn options() -> JournalOptions {
    JournalOptions { bytes: JOURNAL_BYTES_MIN, memory_bytes: 1 << 20 }
}

async fn create(directory: &tempfile::TempDir) -> Arc<Journal> {
    let (env, start) = (RealEnv::start(), JournalPos(5));
    Journal::create(&env, &disk(directory), VOLUME, start, options()).await.expect("created")
}

async fn open(directory: &tempfile::TempDir) -> Arc<Journal> {
    let env = RealEnv::start();
    Journal::open(&env, &disk(directory), VOLUME, options(), &Recoveries::new(1), &mut |_, _, _| {})
        .await
        .expect("opened")
}

/// Writes one block, which makes a group of its own.
async fn write(journal: &Journal, byte: u8) {
    let payload = vec![byte; BLOCK_BYTES];
    let prepared = journal.prepare(Record::Write(Extent::new(0, 1)), payload.into()).expect("it fits");
    let end = journal.append(&prepared, &mut |_, _| {}).expect("room");
    journal.sync(end).await.expect("synced");
}

fn copy(from: &tempfile::TempDir) -> tempfile::TempDir {
    let to = directory();
    std::fs::copy(from.path().join(FILE_NAME), to.path().join(FILE_NAME)).expect("copied");
    to
}

fn end(journal: &Journal) -> Mark {
    *journal.marks().last().expect("it ends somewhere")
}

/// What a mark was stays so while groups are freed, over laps of the ring, and when the journal is opened again.
#[tokio::test(flavor = "multi_thread")]
async fn marks_stay_what_they_were() {
    let directory = directory();
    let journal = create(&directory).await;
    let mut seen = journal.marks();
    assert_eq!(seen.len(), 1, "nothing was written");
    let laps = 3 * journal.capacity_blocks() / 2;
    for n in 0..laps {
        write(&journal, n as u8).await;
        seen.push(end(&journal));
        journal.free(seen[seen.len().saturating_sub(5)].pos);
        assert_eq!(journal.marks(), seen[seen.len().saturating_sub(5)..]);
    }
    let mut chains: Vec<u64> = seen.iter().map(|mark| mark.chain.0).collect();
    chains.sort();
    chains.dedup();
    assert_eq!(chains.len(), seen.len(), "no two are alike");
    let last = *seen.last().expect("written");
    assert_eq!(journal.mark_at(last.pos), Some(last));
    assert_eq!(journal.mark_at(JournalPos(last.pos.0 - 1)), None, "inside a group");
    assert_eq!(journal.mark_at(JournalPos(last.pos.0 + 1)), None);
    journal.close().await.expect("closed");

    let again = open(&directory).await;
    assert_eq!(again.marks(), seen[seen.len() - 5..]);
    write(&again, 1).await;
    assert_eq!(again.mark_at(last.pos), Some(last));
    again.close().await.expect("closed");
}

/// Two copies of a journal, opened apart and given the very same writes: their positions are equal, their marks are so up to
/// the moment they were copied.
#[tokio::test(flavor = "multi_thread")]
async fn copies_differ_from_their_first_group_on() {
    let directory = directory();
    let original = create(&directory).await;
    write(&original, 1).await;
    let common = end(&original);
    original.close().await.expect("closed");
    let copied = copy(&directory);
    let (one, two) = (open(&directory).await, open(&copied).await);
    for n in 0..3 {
        assert_eq!((one.mark_at(common.pos), two.mark_at(common.pos)), (Some(common), Some(common)));
        write(&one, n).await;
        write(&two, n).await;
        assert_eq!(end(&one).pos, end(&two).pos);
        assert_ne!(end(&one).chain, end(&two).chain);
    }
    one.close().await.expect("closed");
    two.close().await.expect("closed");
}

/// Groups of a copy behind those of the original are no continuation, though id, position and checksums are right.
#[tokio::test(flavor = "multi_thread")]
async fn groups_of_a_copy_are_no_continuation() {
    let directory = directory();
    let original = create(&directory).await;
    write(&original, 1).await;
    let copied = copy(&directory);
    write(&original, 2).await;
    let theirs = open(&copied).await;
    for n in 0..2 {
        write(&theirs, n).await;
    }
    theirs.close().await.expect("closed");
    let mine = end(&original);
    // The copy's second group behind the original's second one, as a mixed-up restore of the file may leave it.
    let crashed = copy(&directory);
    let place = |pos: JournalPos| (16 + pos.0) as usize * BLOCK_BYTES..(18 + pos.0) as usize * BLOCK_BYTES;
    let from = std::fs::read(copied.path().join(FILE_NAME)).expect("readable");
    let path = crashed.path().join(FILE_NAME);
    let mut to = std::fs::read(&path).expect("readable");
    to[place(mine.pos)].copy_from_slice(&from[place(mine.pos)]);
    std::fs::write(&path, to).expect("writable");
    let recovered = open(&crashed).await;
    assert_eq!(end(&recovered), mine);
    recovered.close().await.expect("closed");
}

/// A journal that is set aside keeps its bytes under a name that none had before.
#[tokio::test(flavor = "multi_thread")]
async fn journals_are_set_aside_one_beside_the_other() {
    let directory = directory();
    for number in 1..=2 {
        let journal = create(&directory).await;
        write(&journal, number).await;
        journal.close().await.expect("closed");
        let before = std::fs::read(directory.path().join(FILE_NAME)).expect("readable");
        let kept = set_aside(&RealEnv::start(), &disk(&directory)).await.expect("set aside");
        assert_eq!(kept, format!("journal.kept-{number}"));
        assert!(!Path::new(&directory.path().join(FILE_NAME)).exists());
        assert!(std::fs::read(directory.path().join(kept)).expect("readable") == before);
    }
}
