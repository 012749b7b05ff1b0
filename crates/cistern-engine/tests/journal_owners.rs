//! Several processes that reach one journal by mounts of their own, none of which knows the others' locks.
//!
//! The claim: whatever they do at the same time, what any of them acknowledged is in the journal that the next one reads, in the order in
//! which it was acknowledged, and at most one of them is served by it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use cistern_engine::{
    Error,
    env::Env,
    journal::{
        AppendError, FILE_NAME, JOURNAL_BYTES_MIN, Journal, JournalOptions, Record, Recoveries, discard,
    },
    units::{Extent, JournalPos, VolumeId},
};

mod journal_world;
use journal_world::{Dice, FaultyDisk, World, payload};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(7));
/// Blocks of the volume that belong to one record, so that each record is unique.
const STRIDE: u64 = 16;
/// A write that is longer on its way than this may arrive behind a take-over, and hit what the next process wrote: docs/design/identity.md.
const ON_ITS_WAY_MAX: Duration = Duration::from_millis(2900);
const ANSWER_MAX: Duration = Duration::from_secs(12);

/// What all of them know together.
#[derive(Default)]
struct History {
    ids: u64,
    /// Records of which somebody was told that they are safe, with where they lie.
    acknowledged: Vec<(u64, u64)>,
    openings: u64,
    /// How often one was told that another has the journal, and how often one lost it.
    refused: u64,
    lost: u64,
}

fn options() -> JournalOptions {
    JournalOptions { bytes: JOURNAL_BYTES_MIN, memory_bytes: 1 << 20 }
}

/// Opens the journal, or makes one where there is none, and gives the ids of the records in it, with their places.
async fn open(env: &Env, disk: &FaultyDisk) -> Result<(Arc<Journal>, Vec<(u64, u64)>), Error> {
    let mut found = Vec::new();
    let mut visit = |record: &Record, pos: JournalPos, _: JournalPos| {
        found.push((record.extent().expect("a write").start / STRIDE, pos.0));
    };
    let recoveries = Recoveries::new(1);
    let journal = match Journal::open(env, &disk.shared(), VOLUME, options(), &recoveries, &mut visit).await {
        Err(Error::NotFound(_)) => {
            Journal::create(env, &disk.shared(), VOLUME, JournalPos(0), options()).await?
        }
        opened => opened?,
    };
    Ok((journal, found))
}

/// Whether all that was acknowledged is there.
fn check(found: &[(u64, u64)], history: &Mutex<History>) {
    let missing: Vec<_> =
        history.lock().unwrap().acknowledged.iter().filter(|told| !found.contains(told)).copied().collect();
    assert!(
        missing.is_empty(),
        "{missing:?} (record, position) were acknowledged and are gone; there is {found:?}"
    );
}

/// Appends one record and waits until it is said to be safe.
async fn write(journal: &Journal, history: &Mutex<History>, flushes: bool) -> Result<(), Error> {
    let id = {
        let mut history = history.lock().unwrap();
        history.ids += 1;
        history.ids
    };
    let record = Record::Write(Extent::new(id * STRIDE, 1));
    let prepared = journal.prepare(record, payload(id, 1).into())?;
    let mut place = None;
    let end = match journal.append(&prepared, &mut |_, pos| place = Some(pos.0)) {
        Ok(end) => end,
        Err(AppendError::Full) => return Err(Error::Full("the journal".into())),
        Err(AppendError::Failed(e)) => return Err(e),
    };
    if flushes {
        journal.sync(end).await?
    } else {
        journal.outlive(end).await?
    }
    history.lock().unwrap().acknowledged.push((id, place.expect("it has a place")));
    Ok(())
}

/// A process: opens, writes in bursts with rests between, and closes or simply ends, again and again.
async fn process(env: Env, disk: FaultyDisk, history: Arc<Mutex<History>>, mut dice: Dice) {
    for _ in 0..3 {
        // Now and then several at the same moment.
        if dice.one_in(2) {
            env.sleep(Duration::from_millis(dice.below(9000))).await;
        }
        let (journal, found) = match open(&env, &disk).await {
            Ok(opened) => opened,
            // Another one made the journal since this one looked.
            Err(Error::Locked(_) | Error::Exists(_)) => {
                history.lock().unwrap().refused += 1;
                continue;
            }
            Err(e) => panic!("the journal is refused: {e}"),
        };
        history.lock().unwrap().openings += 1;
        drop(found); // others may have been told more since it was read
        for _ in 0..dice.below(30) {
            if dice.one_in(6) {
                env.sleep(Duration::from_millis(dice.below(15_000))).await;
            }
            if let Err(e) = write(&journal, &history, dice.one_in(3)).await {
                assert!(matches!(e, Error::Latched(_)), "{e}");
                history.lock().unwrap().lost += 1;
                break;
            }
        }
        match dice.one_in(2) {
            true => drop(journal.close().await), // whoever lost it hears that here too
            false => drop(journal),
        }
    }
}

/// Runs three processes over one directory, which is empty at first, and then reads what is left.
fn play(seed: u64) -> (u64, u64, u64) {
    let world = World::new(seed);
    let (history, disk) = (Arc::new(Mutex::new(History::default())), FaultyDisk::new(&world));
    let (told, world_of_all) = (history.clone(), world.clone());
    world.run(None, async move {
        let world = world_of_all;
        let env = world.env_of_a_stranger();
        let all: Vec<_> = (0..3)
            .map(|n| {
                let dice = Dice::new(seed.wrapping_mul(31) + n);
                let mount = disk.mounted_again(ON_ITS_WAY_MAX, ANSWER_MAX);
                env.spawn("process", process(env.clone(), mount, told.clone(), dice))
            })
            .collect();
        for one in all {
            one.await.expect("it ends");
        }
        let last = disk.mounted_again(ON_ITS_WAY_MAX, ANSWER_MAX);
        let (_, found) = loop {
            match open(&env, &last).await {
                Err(Error::Locked(_)) => {}
                opened => break opened.expect("what is left is a sound journal"),
            }
        };
        check(&found, &told);
    });
    let history = history.lock().unwrap();
    (history.openings, history.refused, history.lost)
}

/// Nothing that was acknowledged is lost, and the journal stays sound, in which order ever several processes open, rest, write and end;
/// and in these histories some are refused and some lose the journal to another.
#[test]
fn what_was_acknowledged_stays_whoever_opens() {
    let seeds = std::env::var("CISTERN_OWNERS_SEEDS").map_or(400, |n| n.parse().expect("a number"));
    let mut all = (0, 0, 0);
    for seed in 0..seeds {
        let (openings, refused, lost) = play(seed);
        all = (all.0 + openings, all.1 + refused, all.2 + lost);
    }
    println!("{seeds} histories: {} openings, {} refused, {} lost the journal", all.0, all.1, all.2);
    assert!(all.0 > seeds && all.1 > seeds / 4 && all.2 > seeds / 4, "all of it happens: {all:?}");
}

/// A journal that was cut off before its superblocks end cannot be taken, and can be removed all the same where locks are not known to all.
#[test]
fn a_journal_that_was_cut_off_can_be_removed() {
    let world = World::new(1);
    let disk = FaultyDisk::new(&world).mounted_again(Duration::ZERO, Duration::ZERO).shared();
    let env = world.env_of_a_stranger();
    let left = world.run(None, async move {
        disk.create(FILE_NAME, 4096).await.expect("made");
        discard(&env, &disk).await.expect("removed");
        disk.names("").await.expect("listed")
    });
    assert_eq!(left, Some(Vec::new()));
}

/// Blocks of a record that is not staged.
const LONG_BLOCKS: u64 = 600;

/// A write that is so long on its way that another process has the journal when it arrives is not acknowledged.
#[test]
fn a_late_write_is_not_acknowledged() {
    let world = World::new(1);
    let (disk, history) = (FaultyDisk::new(&world), Arc::new(Mutex::new(History::default())));
    let told = history.clone();
    let env = world.env_of_a_stranger();
    let outcome = world.run(None, async move {
        let shared = disk.shared();
        let made = Journal::create(&env, &shared, VOLUME, JournalPos(0), options()).await.expect("made");
        made.close().await.expect("closed");
        let (late, quick) = (
            disk.mounted_again(Duration::ZERO, Duration::ZERO),
            disk.mounted_again(Duration::ZERO, Duration::ZERO),
        );
        let (journal, _) = open(&env, &late).await.expect("free");
        write(&journal, &told, true).await.expect("it has the journal");
        env.sleep(Duration::from_secs(60)).await; // at rest
        late.delay_ring(Duration::from_secs(30));
        // Too long to be staged, and not flushed: only the look behind the write to the ring tells.
        let write = env.spawn("late", async move {
            let record = Record::Write(Extent::new(1000 * STRIDE, LONG_BLOCKS));
            let prepared = journal.prepare(record, payload(1000, LONG_BLOCKS).into())?;
            let end = journal.append(&prepared, &mut |_, _| {}).expect("there is room");
            journal.outlive(end).await
        });
        env.sleep(Duration::from_millis(500)).await;
        let (_taken, found) =
            open(&env, &quick).await.expect("nothing is known of the one that waits for its disk");
        check(&found, &told);
        write.await.expect("it ends")
    });
    let outcome = outcome.expect("the story ends");
    assert!(matches!(outcome, Err(Error::Latched(_))), "{outcome:?}");
}
