//! Power cuts, kills, closings and restarts, many times over one journal, against a model of its history.
//!
//! The claim: whatever is cut whenever, recovery gives a prefix of what was appended, everything
//! that a sync confirmed is in it, where only the process ended everything that was said to outlive it, and every payload is what was
//! written.

use std::sync::{Arc, Mutex};

use cistern_engine::{
    Error,
    journal::{AppendError, JOURNAL_BYTES_MIN, Journal, JournalOptions, Record, Recoveries},
    sectors::SectorMask,
    units::{Extent, JournalPos, VolumeId},
};

mod journal_world;
use journal_world::{Dice, FaultyDisk, World, payload, payload_part};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(7));
/// Blocks of the volume that belong to one record, so that each record is unique.
const STRIDE: u64 = 1024;

/// One part of a record, as it must come back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    record: Record,
    /// Behind the record.
    end: u64,
}

/// What was appended, in order, and how much of it must survive.
#[derive(Default)]
struct History {
    entries: Vec<Entry>,
    synced: u64,
    /// Survives kills, until the power is cut.
    outlived: u64,
    freed: u64,
    ids: u64,
}

type Shared = Arc<Mutex<History>>;

/// What a series of lives is like.
#[derive(Clone, Copy)]
struct Plot {
    lives_max: u64,
    steps_max: u64,
    clients: u64,
    /// A client syncs once in so many records.
    sync_every: u64,
    /// All records are one block long, so that groups often begin where older ones began, and
    /// the power is cut after a few of them.
    uniform: bool,
}

/// All kinds of records, several laps.
const BUSY: Plot = Plot { lives_max: 6, steps_max: 6000, clients: 3, sync_every: 4, uniform: false };
/// Short lives that leave valid groups behind torn ones.
const STALE: Plot = Plot { lives_max: 150, steps_max: 0, clients: 1, sync_every: 12, uniform: true };

/// What a write of the volume's blocks from `start` on must hold: every record has a stride of its own.
fn expected(extent: Extent) -> Vec<u8> {
    let id = extent.start / STRIDE;
    payload_part(id, extent.start - id * STRIDE, extent.len)
}

fn options(seed: u64) -> JournalOptions {
    // Small memory on some seeds, so that reads and write-back go to the disk.
    let memory_bytes = if seed.is_multiple_of(2) { 64 << 10 } else { 64 << 20 };
    JournalOptions { bytes: JOURNAL_BYTES_MIN, memory_bytes }
}

fn random_record(plot: Plot, dice: &mut Dice, id: u64) -> Record {
    let start = id * STRIDE;
    if plot.uniform {
        return Record::Write(Extent::new(start, 1));
    }
    match dice.below(20) {
        0 => Record::Resize { size_bytes: id },
        9..=12 => {
            let mask = SectorMask::from_bits(1 + dice.below(254) as u8);
            Record::Sectors { block: start, mask }
        }
        1..=3 => {
            Record::Zero { extent: Extent::new(start, 1 + dice.below(STRIDE)), allocated: dice.one_in(2) }
        }
        4 => Record::Write(Extent::new(start, 200 + dice.below(400))),
        5..=8 => Record::Write(Extent::new(start, 1 + dice.below(64))),
        _ => Record::Write(Extent::new(start, 1 + dice.below(4))),
    }
}

/// The blocks of a record that has payload.
fn written(record: &Record) -> Option<Extent> {
    record.extent().filter(|_| record.payload_blocks() > 0)
}

/// Appends, waits for room, syncs and reads back, so many times.
async fn client(
    plot: Plot,
    world: Arc<World>,
    journal: Arc<Journal>,
    history: Shared,
    mut dice: Dice,
    times: u64,
) {
    for _ in 0..times {
        let id = {
            let mut history = history.lock().unwrap();
            history.ids += 1;
            history.ids
        };
        let record = random_record(plot, &mut dice, id);
        let data = payload(id, record.payload_blocks());
        let prepared = journal.prepare(record.clone(), data.into()).expect("it fits");
        let end = loop {
            // One poll: the model sees the order that the journal sees.
            let mut parts = Vec::new();
            let appended = {
                let mut history = history.lock().unwrap();
                let appended = journal.append(&prepared, &mut |part, pos| parts.push((part, pos)));
                if let Ok(end) = appended {
                    remember(&mut history, &record, &parts, end);
                }
                appended
            };
            match appended {
                Ok(end) => {
                    read_back(&journal, &record, &parts, &mut dice).await;
                    break end;
                }
                // Nobody else frees anything in this plot.
                Err(AppendError::Full) if plot.uniform => free_all(&world, &journal, &history).await,
                Err(AppendError::Full) => {
                    if is_closed(journal.room(record.payload_blocks()).await) {
                        return;
                    }
                }
                Err(AppendError::Failed(e)) => {
                    assert!(is_closed(Err(e)));
                    return;
                }
            }
        };
        world.pause().await;
        if dice.one_in(2) {
            if is_closed(journal.outlive(end).await) {
                return;
            }
            let mut history = history.lock().unwrap();
            history.outlived = history.outlived.max(end.0);
        }
        if dice.one_in(plot.sync_every) {
            if is_closed(journal.sync(end).await) {
                return;
            }
            assert!(journal.durable() >= end);
            let mut history = history.lock().unwrap();
            history.synced = history.synced.max(end.0);
        }
    }
}

/// Whether nothing came of it because the journal is being closed; anything else works.
fn is_closed(outcome: Result<(), Error>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::Closed) => true,
        Err(e) => panic!("{e}"),
    }
}

/// Closes it, and so makes everything durable.
async fn close(journal: &Journal, history: &Shared) {
    journal.close().await.expect("close");
    history.lock().unwrap().synced = journal.appended().0;
}

fn remember(history: &mut History, record: &Record, parts: &[(Extent, JournalPos)], end: JournalPos) {
    match record {
        Record::Write(extent) => {
            assert_eq!(parts.iter().map(|p| p.0.len).sum::<u64>(), extent.len);
            for (n, &(part, pos)) in parts.iter().enumerate() {
                let behind = pos.0 + part.len;
                assert!(n + 1 < parts.len() || behind == end.0);
                history.entries.push(Entry { record: Record::Write(part), end: behind });
            }
        }
        other => history.entries.push(Entry { record: other.clone(), end: end.0 }),
    }
}

async fn read_back(journal: &Journal, record: &Record, parts: &[(Extent, JournalPos)], dice: &mut Dice) {
    if record.payload_blocks() == 0 {
        return;
    }
    let (part, pos) = parts[dice.below(parts.len() as u64) as usize];
    let skip = dice.below(part.len);
    let blocks = 1 + dice.below(part.len - skip);
    let read = journal.read(JournalPos(pos.0 + skip), blocks).await.expect("read");
    if let Some(read) = read {
        assert!(read[..] == expected(Extent::new(part.start + skip, blocks))[..]);
    }
}

/// Walks the durable groups, checks them, and frees up to some of them, until it closes the journal.
async fn write_back(world: Arc<World>, journal: Arc<Journal>, history: Shared, mut dice: Dice) {
    loop {
        let mut at = journal.tail();
        let until = journal.durable();
        while at < until && !dice.one_in(20) {
            at = check_groups(&journal, at).await;
        }
        {
            let mut history = history.lock().unwrap();
            history.freed = history.freed.max(at.0);
        }
        journal.free(at);
        world.pause().await;
        if at == journal.durable() && journal.appended() > at && dice.one_in(3) {
            journal.sync(journal.appended()).await.expect("sync");
        }
        let env = world.env();
        env.sleep(std::time::Duration::from_micros(dice.below(500))).await;
        if dice.one_in(60) {
            return close(&journal, &history).await;
        }
    }
}

/// Frees everything and rests, until the medium knows that nothing is left.
async fn free_all(world: &Arc<World>, journal: &Journal, history: &Shared) {
    let to = journal.appended();
    journal.sync(to).await.expect("sync");
    {
        let mut history = history.lock().unwrap();
        (history.synced, history.freed) = (to.0, to.0);
    }
    journal.free(to);
    world.env().sleep(std::time::Duration::from_secs(5)).await;
}

async fn check_groups(journal: &Journal, mut at: JournalPos) -> JournalPos {
    for group in journal.groups(at).await.expect("groups") {
        assert_eq!(group.start(), at);
        for placed in group.records() {
            assert!(at <= placed.pos && placed.pos < group.next());
            if let Some(extent) = written(&placed.record) {
                let data = group.payload(placed.pos, extent.len).expect("a record's payload is in its group");
                assert!(data[..] == expected(extent)[..]);
            }
        }
        at = group.next();
    }
    at
}

/// Opens (or creates) the journal and checks what it holds against the history, which is cut to it.
async fn recover(world: &Arc<World>, disk: &FaultyDisk, history: &Shared, seed: u64) -> Arc<Journal> {
    let (env, disk) = (world.env(), disk.shared());
    let mut visited = Vec::new();
    let opened =
        Journal::open(&env, &disk, VOLUME, options(seed), &Recoveries::new(1), &mut |record, pos, group| {
            visited.push((record.clone(), pos, group));
        })
        .await;
    let journal = match opened {
        Err(Error::NotFound(_)) => {
            let start = JournalPos(seed % 9999);
            {
                let mut history = history.lock().unwrap();
                assert!(history.entries.is_empty() && history.synced == 0);
                history.freed = start.0;
            }
            return Journal::create(&env, &disk, VOLUME, start, options(seed)).await.expect("create");
        }
        other => other.expect("an honest power cut is never refused"),
    };
    check_prefix(&mut history.lock().unwrap(), &journal, &visited);
    for (record, pos, group) in visited {
        assert!(group <= pos);
        if let Some(extent) = written(&record) {
            let read = journal.read(pos, extent.len).await.expect("read").expect("nothing was freed");
            assert!(read[..] == expected(extent)[..]);
        }
    }
    journal
}

fn check_prefix(history: &mut History, journal: &Journal, visited: &[(Record, JournalPos, JournalPos)]) {
    let head = journal.appended().0;
    assert_eq!(journal.durable().0, head);
    assert!(head >= history.synced, "synced up to {} but recovered only up to {head}", history.synced);
    assert!(head >= history.outlived, "to {} it outlives kills, and ends at {head}", history.outlived);
    assert!(journal.tail().0 <= history.freed);
    history.entries.retain(|entry| entry.end <= head);
    let from = history.entries.len().checked_sub(visited.len()).expect("nothing is invented");
    for (entry, (record, ..)) in history.entries[from..].iter().zip(visited) {
        assert_eq!(&entry.record, record);
    }
    if from > 0 {
        assert!(history.entries[from - 1].end <= history.freed, "something not freed is missing");
    }
    (history.synced, history.outlived) = (head, head); // opening made it durable
}

/// One journal through many lives.
fn live_and_die(plot: Plot, seed: u64) {
    let mut dice = Dice::new(seed);
    let history = Shared::default();
    let platters = FaultyDisk::new(&World::new(0));
    for life in 0..2 + dice.below(plot.lives_max) {
        // In its first lap the writer fills zeroes ahead, which would hide what is stale.
        let plot = if life == 0 { BUSY } else { plot };
        let world = World::new(dice.next());
        let disk = platters.moved_to(&world);
        let (all, mut inner) = (history.clone(), Dice::new(dice.next()));
        let steps = match plot.uniform {
            true => None,
            false if dice.one_in(4) => Some(dice.below(60)),
            false => Some(dice.below(plot.steps_max)),
        };
        let main = {
            let (world, disk, history) = (world.clone(), disk.clone(), all);
            async move {
                let journal = recover(&world, &disk, &history, seed).await;
                if plot.uniform {
                    let times = 1 + inner.below(8);
                    let dice = Dice::new(inner.next());
                    client(plot, world.clone(), journal.clone(), history.clone(), dice, times).await;
                    if inner.one_in(3) {
                        free_all(&world, &journal, &history).await;
                    }
                    if inner.one_in(4) {
                        close(&journal, &history).await;
                    }
                    return world.pause().await;
                }
                let env = world.env();
                for _ in 0..plot.clients {
                    let dice = Dice::new(inner.next());
                    env.spawn(
                        "client",
                        client(plot, world.clone(), journal.clone(), history.clone(), dice, u64::MAX),
                    );
                }
                write_back(world.clone(), journal, history, Dice::new(inner.next())).await;
            }
        };
        world.run(steps, main);
        if dice.one_in(2) {
            disk.kill();
        } else {
            disk.cut_power(&mut dice);
            history.lock().unwrap().outlived = 0;
        }
    }
}

/// The seeds to run; `JOURNAL_SEEDS=from..to` asks for others.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("JOURNAL_SEEDS").ok().and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    asked.unwrap_or(0..usual)
}

/// After any series of power cuts and kills the journal holds a prefix of its history with
/// everything that was synced, and behind a kill with everything that was to outlive the process.
#[test]
fn recovery_gives_a_prefix_with_everything_synced() {
    for seed in seeds(16) {
        println!("JOURNAL_SEEDS={seed}..{}", seed + 1);
        live_and_die(BUSY, seed);
    }
}

/// Valid groups of an earlier life, left behind a torn one, never come back when a later life
/// ends exactly where they begin.
#[test]
fn groups_behind_a_torn_one_stay_dead() {
    for seed in seeds(12) {
        println!("JOURNAL_SEEDS={seed}..{}", seed + 1);
        live_and_die(STALE, seed);
    }
}
