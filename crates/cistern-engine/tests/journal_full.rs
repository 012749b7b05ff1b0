//! A journal whose disk has no room: on a file system that does not keep what was reserved, writes meet a full disk. They
//! wait and go on; nothing is confirmed that is not written, and no crash in between is taken for damage.

use std::{sync::Arc, time::Duration};

use cistern_engine::{
    Error,
    disk::Disk,
    env::Env,
    journal::{AppendError, JOURNAL_BYTES_MIN, Journal, JournalOptions, Record, Recoveries},
    units::{Extent, JournalPos, Salt, VolumeId},
};

mod journal_world;
use journal_world::{Dice, FaultyDisk, World, payload};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(7));
/// So long a full disk stays full here: several times what the writer waits before it tries again.
const LONG: Duration = Duration::from_secs(20);

fn options() -> JournalOptions {
    JournalOptions { bytes: JOURNAL_BYTES_MIN, memory_bytes: 8 << 20 }
}

async fn create(env: &Env, disk: &Arc<dyn Disk>) -> Arc<Journal> {
    Journal::create(env, disk, VOLUME, JournalPos(0), options()).await.expect("create")
}

/// Opens the journal; gives the first blocks of the writes that are there.
async fn open(env: &Env, disk: &Arc<dyn Disk>) -> (Arc<Journal>, Vec<u64>) {
    let mut seen = Vec::new();
    let mut visit = |record: &Record, _, _| seen.extend(record.extent().map(|extent| extent.start));
    let opened = Journal::open(env, disk, VOLUME, options(), &Recoveries::new(1), &mut visit).await;
    (opened.expect("open"), seen)
}

/// Appends a write of `blocks` blocks at block `id`; gives its position and its end.
fn write(journal: &Journal, id: u64, blocks: u64) -> Result<(JournalPos, JournalPos), AppendError> {
    let mut first = None;
    let prepared = journal.prepare(Record::Write(Extent::new(id, blocks)), payload(id, blocks).into())?;
    let end = journal.append(&prepared, &mut |_, pos| {
        first.get_or_insert(pos);
    })?;
    Ok((first.expect("a write has a place"), end))
}

fn story<T, F>(seed: u64, tell: impl FnOnce(Env, FaultyDisk) -> F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let world = World::new(seed);
    let disk = FaultyDisk::new(&world);
    world.run(None, tell(world.env(), disk)).expect("the story ends")
}

/// A write that meets a full disk is not flushed and not refused: it waits, and so do those that come behind it. What was
/// written before is read and flushed. When there is room everything goes on, and all of it is there afterwards.
#[test]
fn a_write_without_room_waits_and_goes_on() {
    for seed in 0..50 {
        story(seed, async |env, disk| {
            let shared = disk.shared();
            let journal = create(&env, &shared).await;
            let (before, flushed) = write(&journal, 1, 5).expect("append");
            journal.sync(flushed).await.expect("sync");
            disk.fill(true);
            let (waiting, end) = write(&journal, 2, 30).expect("nobody knows yet");
            let mut flush = Box::pin(journal.sync(end));
            assert!(env.timeout(LONG, &mut flush).await.is_none(), "it is written nowhere");
            let shortage = journal.shortage().expect("it shows");
            assert!(env.now() - shortage.since > LONG / 2, "since the first time");
            assert!(matches!(write(&journal, 3, 1), Err(AppendError::Full)), "not acknowledged");
            let mut room = Box::pin(journal.room(1));
            assert!(env.timeout(LONG, &mut room).await.is_none());
            assert!(journal.latched().is_none() && journal.durable() == flushed);
            journal.sync(flushed).await.expect("what was written is flushed");
            assert_eq!(journal.groups(JournalPos(0)).await.expect("write-back goes on").len(), 1);
            for (id, pos, blocks) in [(1, before, 5), (2, waiting, 30)] {
                let read = journal.read(pos, blocks).await.expect("read").expect("not freed");
                assert!(read[..] == payload(id, blocks)[..]);
            }
            disk.fill(false);
            flush.await.expect("flushed");
            room.await.expect("room");
            assert!(journal.shortage().is_none());
            let (_, last) = write(&journal, 3, 1).expect("append");
            journal.sync(last).await.expect("sync");
            journal.close().await.expect("close");
            let (journal, seen) = open(&env, &shared).await;
            assert_eq!(seen, [1, 2, 3]);
            journal.close().await.expect("close");
        });
    }
}

/// What was written before the disk filled up is flushed while a later write waits, although its sync would have carried a
/// superblock, for which there is no room either. A ring that was full goes on once the superblock finds room.
#[test]
fn flushes_go_on_without_room_for_a_superblock() {
    for seed in 0..50 {
        story(100 + seed, async |env, disk| {
            let journal = create(&env, &disk.shared()).await;
            let mut end = JournalPos(0);
            let mut id = 0;
            while let Ok((_, next)) = write(&journal, id, 200) {
                (id, end) = (id + 1, next);
            }
            journal.sync(end).await.expect("sync");
            disk.fill(true);
            journal.free(end);
            let mut room = Box::pin(journal.room(200));
            assert!(env.timeout(LONG, &mut room).await.is_none(), "the medium does not know that it is free");
            assert!(journal.shortage().is_some() && journal.latched().is_none());
            disk.fill(false);
            room.await.expect("room");
            assert!(journal.shortage().is_none());
            let (_, end) = write(&journal, id, 200).expect("append");
            journal.sync(end).await.expect("sync");
            journal.close().await.expect("close");
        });
    }
}

/// A claim that could not be named durably is refused, and not waited for: an opening can be tried again.
#[test]
fn a_claim_without_room_is_refused() {
    story(200, async |env, disk| {
        let shared = disk.shared();
        let journal = create(&env, &shared).await;
        disk.fill(true);
        assert!(matches!(journal.keep_claims(vec![Salt([7; 16])]).await, Err(Error::Full(_))));
        disk.fill(false);
        journal.keep_claims(vec![Salt([8; 16])]).await.expect("there is room");
        journal.close().await.expect("close");
        let (journal, _) = open(&env, &shared).await;
        assert_eq!(journal.claims(), [Salt([8; 16])]);
    });
}

/// Who closes a journal does not wait for room: the close says what is missing, and what was flushed is there.
#[test]
fn closing_waits_for_no_room() {
    for seed in 0..20 {
        story(300 + seed, async move |env, disk| {
            let shared = disk.shared();
            let journal = create(&env, &shared).await;
            let (_, end) = write(&journal, 1, 3).expect("append");
            journal.sync(end).await.expect("sync");
            disk.fill(true);
            write(&journal, 2, 3).expect("append");
            if seed % 2 == 0 {
                env.sleep(LONG).await;
            }
            assert!(matches!(journal.close().await, Err(Error::Latched(_))));
            assert_eq!(journal.durable(), end, "nothing else is said to be safe");
            drop(journal);
            disk.fill(false);
            let (journal, seen) = open(&env, &shared).await;
            assert!(seen == [1] || seen == [1, 2], "{seen:?}");
            journal.close().await.expect("close");
        });
    }
}

/// What a writer had confirmed, and the ids of all that it appended.
#[derive(Default)]
struct Told {
    appended: Vec<u64>,
    flushed: usize,
}

/// Whatever the moment at which a writer dies on a disk that fills up and empties again: what it flushed is there, what is
/// there is the beginning of what it wrote, and a write that came to the disk in part is a torn end and no damage.
#[test]
fn no_crash_on_a_full_disk_is_damage() {
    for seed in 0..200 {
        let world = World::new(seed);
        let disk = FaultyDisk::new(&world);
        let mut dice = Dice::new(seed);
        let told = Arc::new(std::sync::Mutex::new(Told::default()));
        let (env, shared, all, platter) = (world.env(), disk.shared(), told.clone(), disk.clone());
        let steps = 100 + dice.below(3000);
        let mut inside = Dice::new(seed + 1);
        world.run(Some(steps), async move {
            let journal = create(&env, &shared).await;
            for id in 1.. {
                platter.fill(inside.one_in(3));
                let blocks = 1 + inside.below(100);
                while let Err(e) = write(&journal, id * 1000, blocks) {
                    assert!(matches!(e, AppendError::Full), "{e}");
                    let _ = env.timeout(Duration::from_secs(2), journal.sync(journal.appended())).await;
                    journal.free(journal.durable());
                    if env.timeout(Duration::from_secs(2), journal.room(blocks)).await.is_none() {
                        platter.fill(false);
                    }
                }
                all.lock().unwrap().appended.push(id * 1000);
                if inside.one_in(2) {
                    let (end, count) = (journal.appended(), id as usize);
                    let flushed = env.timeout(Duration::from_secs(2), journal.sync(end)).await;
                    if flushed.is_some_and(|flushed| flushed.is_ok()) {
                        all.lock().unwrap().flushed = count;
                    }
                }
            }
        });
        match dice.below(2) {
            0 => disk.kill(),
            _ => disk.cut_power(&mut dice),
        }
        disk.fill(false);
        let world = World::new(seed + 2);
        let (env, disk) = (world.env(), disk.moved_to(&world).shared());
        let told = Arc::try_unwrap(told).ok().expect("the writer is gone").into_inner().unwrap();
        world.run(None, async move {
            if matches!(disk.open("journal").await, Err(Error::NotFound(_))) {
                return; // it died before its journal had its name
            }
            let (journal, seen) = open(&env, &disk).await;
            let last = seen.last().copied().unwrap_or_default();
            let expected: Vec<u64> = told.appended.iter().copied().filter(|&id| id <= last).collect();
            assert!(expected.ends_with(&seen), "seed {seed}: {seen:?} is no part of {:?}", told.appended);
            let flushed = told.flushed.checked_sub(1).map_or(0, |n| told.appended[n]);
            assert!(last >= flushed || seen.is_empty(), "seed {seed}: {last} and {flushed}");
            assert!(journal.appended() >= journal.durable());
            journal.close().await.expect("close");
        });
    }
}
