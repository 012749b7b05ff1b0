//! What the journal promises to its callers besides surviving crashes: order, room, memory,
//! laps, damage, and stopping for good.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cistern_engine::{
    Error,
    disk::Disk,
    env::Env,
    journal::{
        AppendError, JOURNAL_BYTES_MIN, Journal, JournalOptions, Record, Recoveries, fit_one_group,
        read_only_scan,
    },
    sectors::SectorMask,
    units::{Extent, JournalPos, VolumeId},
};

mod journal_world;
use journal_world::{Dice, FaultyDisk, World, payload};

const VOLUME: VolumeId = VolumeId(uuid::Uuid::from_u128(7));
/// Bytes of the superblock area.
const AREA_BYTES: usize = 16 * 4096;

fn options(memory_bytes: u64) -> JournalOptions {
    JournalOptions { bytes: JOURNAL_BYTES_MIN, memory_bytes }
}

async fn create(env: &Env, disk: &Arc<dyn Disk>, memory_bytes: u64) -> Arc<Journal> {
    Journal::create(env, disk, VOLUME, JournalPos(0), options(memory_bytes)).await.expect("create")
}

async fn open(env: &Env, disk: &Arc<dyn Disk>) -> Result<(Arc<Journal>, Vec<Record>), Error> {
    let mut seen = Vec::new();
    let journal =
        Journal::open(env, disk, VOLUME, options(1 << 20), &Recoveries::new(1), &mut |record, _, _| {
            seen.push(record.clone())
        })
        .await?;
    Ok((journal, seen))
}

/// Appends a write of `blocks` blocks whose payload belongs to `id`; gives (position, end).
fn write(journal: &Journal, id: u64, blocks: u64) -> Result<(JournalPos, JournalPos), AppendError> {
    let mut first = None;
    let record = Record::Write(Extent::new(id * 1024, blocks));
    let prepared = journal.prepare(record, payload(id, blocks).into())?;
    let end = journal.append(&prepared, &mut |_, pos| {
        first.get_or_insert(pos);
    })?;
    Ok((first.expect("a write has a place"), end))
}

/// Runs a story to its end in a fresh world with a fresh disk.
fn story<T, F>(seed: u64, tell: impl FnOnce(Env, FaultyDisk) -> F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let world = World::new(seed);
    let disk = FaultyDisk::new(&world);
    world.run(None, tell(world.env(), disk)).expect("the story ends")
}

/// Everything comes back after a clean close: kinds, order, extents; a long write in parts.
#[test]
fn a_closed_journal_comes_back_whole() {
    story(1, async |env, disk| {
        let disk = disk.shared();
        let journal = create(&env, &disk, 8 << 20).await;
        let records = [
            Record::Zero { extent: Extent::new(0, 1 << 40), allocated: false },
            Record::Zero { extent: Extent::new(5, 1), allocated: true },
            Record::Resize { size_bytes: 512 },
            Record::Write(Extent::new(9, 3)),
            Record::Sectors { block: 9, mask: SectorMask::from_bits(0b101) },
        ];
        for record in &records {
            let data = payload(0, record.payload_blocks());
            let prepared = journal.prepare(record.clone(), data.into()).expect("it makes sense");
            journal.append(&prepared, &mut |_, _| {}).expect("append");
        }
        write(&journal, 1, 600).expect("append");
        journal.close().await.expect("close");
        journal.close().await.expect("closing again is fine");
        assert!(matches!(write(&journal, 1, 1), Err(AppendError::Failed(Error::Closed))));
        drop(journal);
        let (journal, seen) = open(&env, &disk).await.expect("open");
        assert_eq!(seen[..5], records);
        let parts: u64 = seen[5..].iter().map(Record::payload_blocks).sum();
        assert_eq!(parts, 600);
        assert_eq!(seen.len(), 8, "three groups hold 600 blocks");
        journal.close().await.expect("close");
    });
}

/// Requests that make no sense, or can never fit, are refused without a trace.
#[test]
fn impossible_records_are_refused() {
    story(2, async |env, disk| {
        let journal = create(&env, &disk.shared(), 1 << 20).await;
        let block = vec![0; 4096];
        for (record, data) in [
            (Record::Write(Extent::new(0, 0)), &[][..]),
            (Record::Write(Extent::new(0, 2)), &block[..]),
            (Record::Write(Extent::new(u64::MAX, 1)), &block[..]),
            (Record::Zero { extent: Extent::new(u64::MAX, 2), allocated: true }, &[][..]),
            (Record::Zero { extent: Extent::new(0, 1), allocated: true }, &block[..]),
            (Record::Resize { size_bytes: u64::MAX }, &[][..]),
            (Record::Sectors { block: 0, mask: SectorMask::NONE }, &block[..]),
            (Record::Sectors { block: 0, mask: SectorMask::ALL }, &block[..]),
            (Record::Sectors { block: 0, mask: SectorMask::from_bits(1) }, &[][..]),
            (Record::Sectors { block: u64::MAX, mask: SectorMask::from_bits(1) }, &block[..]),
        ] {
            let refused = journal.prepare(record.clone(), data.to_vec().into());
            assert!(matches!(refused, Err(Error::Invalid(_))), "{record:?}");
        }
        assert!(matches!(write(&journal, 1, 5000), Err(AppendError::Failed(Error::Invalid(_)))));
        assert!(matches!(journal.room(u64::MAX).await, Err(Error::Invalid(_))));
        assert!(matches!(journal.sync(JournalPos(1)).await, Err(Error::Invalid(_))));
        assert!(matches!(journal.read(JournalPos(0), 1).await, Err(Error::Invalid(_))));
        assert!(matches!(journal.groups(JournalPos(0)).await, Err(Error::Invalid(_))));
        assert_eq!(journal.appended(), JournalPos(0));
        let (pos, _) = write(&journal, 1, 2).expect("append");
        assert!(matches!(journal.read(pos, 3).await, Err(Error::Invalid(_))), "behind the group");
        assert!(matches!(journal.read(JournalPos(pos.0 - 1), 1).await, Err(Error::Invalid(_))), "a header");
        journal.close().await.expect("close");
    });
}

/// A journal that is too small, exists already, is missing, foreign or locked is refused by name.
#[test]
fn wrong_journals_are_refused() {
    story(3, async |env, disk| {
        let disk = disk.shared();
        assert!(matches!(open(&env, &disk).await, Err(Error::NotFound(_))));
        let small = JournalOptions { bytes: JOURNAL_BYTES_MIN - 1, memory_bytes: 0 };
        let refused = Journal::create(&env, &disk, VOLUME, JournalPos(0), small).await;
        assert!(matches!(refused, Err(Error::Invalid(_))));
        let journal = create(&env, &disk, 1 << 20).await;
        assert!(matches!(open(&env, &disk).await, Err(Error::Locked(_))));
        journal.close().await.expect("close");
        let again = Journal::create(&env, &disk, VOLUME, JournalPos(0), options(0)).await;
        assert!(matches!(again, Err(Error::Exists(_))));
        let other = VolumeId(uuid::Uuid::from_u128(8));
        let foreign =
            Journal::open(&env, &disk, other, options(0), &Recoveries::new(1), &mut |_, _, _| {}).await;
        assert!(matches!(foreign, Err(Error::Corrupt { .. })));
        open(&env, &disk).await.expect("all that changed nothing");
    });
}

/// Many laps: reads from memory and from the disk give what was written, freed positions give
/// nothing, and positions keep growing.
#[test]
fn many_laps() {
    for (seed, memory_bytes) in [(4, 0), (5, 300 << 10), (6, 64 << 20)] {
        story(seed, async move |env, disk| {
            let journal = create(&env, &disk.shared(), memory_bytes).await;
            let mut dice = Dice::new(seed);
            let mut live: Vec<(u64, JournalPos, u64)> = Vec::new();
            let ring = journal.capacity_blocks();
            let mut id = 0;
            while journal.appended().0 < 6 * ring {
                id += 1;
                let blocks = 1 + dice.below(200);
                match write(&journal, id, blocks) {
                    Ok((pos, _)) => live.push((id, pos, blocks)),
                    Err(AppendError::Failed(e)) => panic!("{e}"),
                    Err(AppendError::Full) => {
                        journal.sync(journal.appended()).await.expect("sync");
                        check_live(&journal, &live).await;
                        let mut to = journal.tail();
                        while to < journal.durable() && dice.below(50) > 0 {
                            to = journal.groups(to).await.expect("group")[0].next();
                        }
                        journal.free(to);
                        assert_eq!(journal.dirty(), to..journal.appended());
                        let freed = live.partition_point(|&(_, pos, _)| pos < to);
                        for (_, pos, blocks) in live.drain(..freed) {
                            assert!(journal.read(pos, blocks).await.expect("read").is_none());
                        }
                        journal.room(blocks).await.expect("room");
                    }
                }
            }
            assert!(journal.dirty_blocks() <= ring);
            journal.close().await.expect("close");
        });
    }
}

async fn check_live(journal: &Journal, live: &[(u64, JournalPos, u64)]) {
    for &(id, pos, blocks) in live {
        let data = journal.read(pos, blocks).await.expect("read").expect("not freed");
        assert!(data[..] == payload(id, blocks)[..]);
    }
}

/// Room is given in the order in which it was asked for, and appends that do not wait cannot
/// take what others wait for.
#[test]
fn room_is_fair() {
    story(7, async |env, disk| {
        let journal = create(&env, &disk.shared(), 64 << 20).await;
        let mut id = 0;
        while write(&journal, id, 100).is_ok() {
            id += 1;
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (n, blocks) in [500, 1, 300].into_iter().enumerate() {
            // Asked for in this order, whoever is polled first.
            let (journal, order, clock) = (journal.clone(), order.clone(), env.clone());
            let mut asked = Box::pin(async move {
                journal.room(blocks).await.expect("room");
                order.lock().unwrap().push((clock.now(), n));
                write(&journal, 9000 + n as u64, blocks).expect("what was granted fits");
            });
            assert!(futures_util::poll!(&mut asked).is_pending());
            waiting.push(env.spawn("client", asked));
        }
        assert!(matches!(write(&journal, 1, 1), Err(AppendError::Full)), "others were first");
        journal.sync(journal.appended()).await.expect("sync");
        assert!(order.lock().unwrap().is_empty());
        while order.lock().unwrap().len() < 3 {
            let next = journal.groups(journal.tail()).await.expect("group")[0].next();
            journal.free(next);
            env.sleep(std::time::Duration::from_millis(1)).await;
        }
        for task in waiting {
            task.await.expect("it ends");
        }
        // What got room at the same moment may run in any order.
        let mut order = order.lock().unwrap().clone();
        order.sort();
        assert_eq!(order.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [0, 1, 2]);
        journal.close().await.expect("close");
    });
}

/// Small groups that are on the disk only come together, up to 1 MiB, and none that is not durable.
#[test]
fn groups_on_the_disk_come_together() {
    story(9, async |env, disk| {
        let journal = create(&env, &disk.shared(), 0).await; // keeps nothing in memory
        for id in 0..200 {
            let (_, end) = write(&journal, id, 1).expect("append");
            journal.sync(end).await.expect("sync");
        }
        let durable = journal.durable();
        write(&journal, 200, 1).expect("append");
        let (mut at, mut counts) = (JournalPos(0), Vec::new());
        while at < durable {
            let groups = journal.groups(at).await.expect("groups");
            counts.push(groups.len());
            for group in groups {
                assert_eq!(group.start(), at);
                at = group.next();
            }
        }
        assert_eq!((at, counts), (durable, vec![128, 72]));
        journal.close().await.expect("close");
    });
}

/// Freed space of a full ring is used again only once the superblock on the medium says that it is free:
/// until then a power cut would look for the old groups there.
#[test]
fn space_is_used_again_only_once_the_medium_knows() {
    story(16, async |env, disk| {
        let journal = create(&env, &disk.shared(), 64 << 20).await;
        let mut ends = Vec::new();
        while let Ok((_, end)) = write(&journal, ends.len() as u64, 256) {
            ends.push(end);
        }
        assert_eq!(ends.len(), 4, "four of the largest groups fill the smallest ring");
        journal.sync(ends[3]).await.expect("sync");
        journal.free(ends[0]);
        // The writer has not run since: on the medium the ring is full.
        assert!(matches!(write(&journal, 9, 1), Err(AppendError::Full)));
        journal.room(1).await.expect("room comes");
        assert_eq!(journal.tail(), ends[0]);
        write(&journal, 9, 1).expect("there is room");
        journal.close().await.expect("close");
    });
}

/// Somebody who gives up waiting for room, before or after it was granted, stops nobody else.
#[test]
fn giving_up_on_room_blocks_nobody() {
    story(8, async |env, disk| {
        let journal = create(&env, &disk.shared(), 64 << 20).await;
        let mut id = 0;
        while write(&journal, id, 250).is_ok() {
            id += 1;
        }
        let mut before = Box::pin(journal.room(900));
        let mut after = Box::pin(journal.room(700));
        assert!(futures_util::poll!(&mut before).is_pending());
        assert!(futures_util::poll!(&mut after).is_pending());
        drop(before);
        journal.sync(journal.appended()).await.expect("sync");
        journal.free(journal.durable());
        let mut third = Box::pin(journal.room(600));
        let _ = futures_util::poll!(&mut third);
        env.sleep(std::time::Duration::from_millis(1)).await;
        drop(after); // granted by now, never used
        third.await.expect("room");
        write(&journal, 1, 600).expect("append");
        journal.room(300).await.expect("room");
        write(&journal, 2, 300).expect("append");
        journal.close().await.expect("close");
    });
}

/// Room that was reserved is there for the next append, whoever begins to wait for room in between, and nobody else gets it; what is
/// given up is there for the others.
#[test]
fn reserved_room_is_kept() {
    story(17, async |env, disk| {
        let journal = create(&env, &disk.shared(), 64 << 20).await;
        let mut id = 0;
        while write(&journal, id, 250).is_ok() {
            id += 1;
        }
        assert!(!journal.reserve(250) && journal.reserve(1));
        let mut waits = Box::pin(journal.room(900));
        assert!(futures_util::poll!(&mut waits).is_pending());
        write(&journal, id, 1).expect("it was reserved before anybody waited");
        assert!(matches!(write(&journal, id + 1, 1), Err(AppendError::Full)), "who waits goes first");
        assert!(!journal.reserve(1));
        drop(waits);
        journal.sync(journal.appended()).await.expect("sync");
        journal.free(journal.durable());
        journal.room(900).await.expect("room");
        assert!(journal.reserve(900));
        let mut second = Box::pin(journal.room(900));
        assert!(futures_util::poll!(&mut second).is_pending());
        journal.unreserve();
        drop(second);
        journal.room(900).await.expect("nobody needs it");
        write(&journal, id + 2, 900).expect("append");
        journal.close().await.expect("close");
    });
}

/// The queue is bounded by memory even when the ring has room, but one record always goes.
#[test]
fn queued_memory_is_bounded() {
    story(9, async |env, disk| {
        let journal = create(&env, &disk.shared(), 1 << 20).await;
        write(&journal, 0, 600).expect("a single record may be larger than the bound");
        assert!(matches!(write(&journal, 1, 1), Err(AppendError::Full)));
        journal.room(1).await.expect("room comes by writing alone");
        let mut blocks = 0;
        while write(&journal, 2, 10).is_ok() {
            blocks += 10;
        }
        assert!((200..=256).contains(&blocks), "{blocks}");
        journal.close().await.expect("close");
    });
}

/// Many flushes of one instant share one sync of the disk.
#[test]
fn flushes_share_syncs() {
    story(10, async |env, disk| {
        let journal = create(&env, &disk.shared(), 1 << 20).await;
        let before = disk.syncs();
        let tasks: Vec<_> = (0..100)
            .map(|n| {
                let (_, end) = write(&journal, n, 1).expect("append");
                let journal = journal.clone();
                env.spawn("flush", async move { journal.sync(end).await })
            })
            .collect();
        for task in tasks {
            task.await.expect("it ends").expect("sync");
        }
        assert!(disk.syncs() - before <= 20, "{} syncs", disk.syncs() - before);
        journal.close().await.expect("close");
    });
}

/// Without any flush, no more than 64 MiB (and what is queued) is ever at stake: recovery relies
/// on it to tell a torn end from damage.
#[test]
fn unsynced_data_is_bounded() {
    story(16, async |env, disk| {
        let options = JournalOptions { bytes: 80 << 20, memory_bytes: 2 << 20 };
        let journal =
            Journal::create(&env, &disk.shared(), VOLUME, JournalPos(0), options).await.expect("create");
        let data = Bytes::from(payload(1, 256));
        for n in 0..72 {
            let prepared =
                journal.prepare(Record::Write(Extent::new(n, 256)), data.clone()).expect("it fits");
            while journal.append(&prepared, &mut |_, _| {}).is_err() {
                journal.room(256).await.expect("room");
            }
            let at_stake = journal.appended().0 - journal.durable().0;
            assert!(at_stake <= (64 + 4) * 257, "{at_stake} blocks");
        }
        assert!(journal.durable().0 > 0);
        journal.close().await.expect("close");
    });
}

/// Filling the ring ahead ends, and then nothing happens any more: no task, no alarm, no write.
#[test]
fn an_idle_journal_comes_to_rest() {
    let world = World::new(11);
    let disk = FaultyDisk::new(&world);
    let (env, shared, inner) = (world.env(), disk.shared(), world.clone());
    let told = world.run(None, async move {
        let journal = create(&env, &shared, 1 << 20).await;
        let (_, end) = write(&journal, 1, 5).expect("append");
        journal.sync(end).await.expect("sync");
        env.sleep(std::time::Duration::from_secs(10)).await;
        let writes = disk.writes();
        assert!(writes > 4, "it was filled");
        assert!(inner.is_still());
        // What was freed reaches both superblocks, each with a sign that the owner is at work, and then it rests again.
        journal.free(end);
        env.sleep(std::time::Duration::from_secs(10)).await;
        assert_eq!(disk.writes(), writes + 2 * 2);
        assert!(inner.is_still());
        journal.close().await.expect("close");
    });
    told.expect("the story ends");
}

/// A failed sync or write stops the journal for good: every flush and append says so, also those
/// that wait, and the disk is not touched again (the simulated disk checks that).
#[test]
fn a_failing_disk_stops_the_journal() {
    for seed in 0..20 {
        story(seed, async move |env, disk| {
            let journal = create(&env, &disk.shared(), 1 << 20).await;
            let (pos, end) = write(&journal, 1, 5).expect("append");
            journal.sync(end).await.expect("sync");
            if seed % 2 == 0 {
                disk.fail_sync(1 + seed / 4)
            } else {
                disk.fail_write(1 + seed / 4)
            }
            let failed = loop {
                let (_, end) = match write(&journal, 2, 1) {
                    Ok(placed) => placed,
                    Err(AppendError::Failed(e)) => break e,
                    Err(AppendError::Full) => panic!("there is room"),
                };
                if let Err(e) = journal.sync(end).await {
                    break e;
                }
            };
            assert!(matches!(failed, Error::Latched(_)), "{failed}");
            assert!(matches!(write(&journal, 3, 1), Err(AppendError::Failed(Error::Latched(_)))));
            assert!(matches!(journal.sync(journal.appended()).await, Err(Error::Latched(_))));
            assert!(matches!(journal.room(1).await, Err(Error::Latched(_))));
            assert!(journal.latched().is_some());
            journal.sync(end).await.expect("what was durable stays so");
            assert!(journal.read(pos, 5).await.expect("reads go on").is_some());
            assert!(matches!(journal.close().await, Err(Error::Latched(_))));
        });
    }
}

/// Any flipped bit in what a sync confirmed, with something synced behind it, is found: the
/// journal is refused, and the scan still gives the records before the damage.
#[test]
fn damage_in_the_synced_part_is_refused() {
    let mut dice = Dice::new(12);
    for seed in 0..40 {
        let world = World::new(seed);
        let disk = FaultyDisk::new(&world);
        let (env, shared) = (world.env(), disk.shared());
        world.run(None, async move {
            let journal = create(&env, &shared, 1 << 20).await;
            for id in 0..6 {
                let (_, end) = write(&journal, id, 3).expect("append");
                journal.sync(end).await.expect("sync");
            }
            // A crash, not a close: only the groups vouch for each other.
        });
        let damaged = dice.below(5);
        let byte = AREA_BYTES + (damaged * 4 * 4096 + dice.below(4 * 4096)) as usize;
        disk.flip("journal", byte, dice.below(8) as u32);
        let world = World::new(seed);
        let (env, disk) = (world.env(), disk.moved_to(&world).shared());
        world.run(None, async move {
            let refused = open(&env, &disk).await.map(|(_, seen)| seen);
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
            let mut salvaged = Vec::new();
            let scan = read_only_scan(&env, &disk, &mut |group| {
                for placed in group.records() {
                    salvaged
                        .push((placed.record.clone(), group.payload(placed.pos, 3).expect("its payload")));
                }
                Ok(())
            })
            .await
            .expect("scan");
            assert!(matches!(scan.damage, Some(Error::Corrupt { .. })));
            assert_eq!(salvaged.len() as u64, damaged);
            for (id, (record, data)) in salvaged.iter().enumerate() {
                assert_eq!(*record, Record::Write(Extent::new(id as u64 * 1024, 3)));
                assert!(data[..] == payload(id as u64, 3)[..]);
            }
        });
    }
}

/// After a clean close, or some seconds of rest, even damage to the last group is found, also where one superblock rots
/// with it: at the opening, unless the journal was closed and only a payload is damaged.
#[test]
fn damage_to_the_last_group_is_found_after_rest() {
    let slots = [None, Some(0), Some(8 * 4096)];
    for (closes, slot) in [true, false].into_iter().flat_map(|closes| slots.map(|slot| (closes, slot))) {
        let damaged_block = if closes && slot.is_none() { 0 } else { 2 };
        let world = World::new(13);
        let disk = FaultyDisk::new(&world);
        let (env, shared) = (world.env(), disk.shared());
        world.run(None, async move {
            let journal = create(&env, &shared, 1 << 20).await;
            let (_, end) = write(&journal, 1, 3).expect("append");
            journal.sync(end).await.expect("sync");
            if closes {
                journal.close().await.expect("close");
            } else {
                env.sleep(std::time::Duration::from_secs(10)).await;
            }
        });
        disk.flip("journal", AREA_BYTES + damaged_block * 4096 + 77, 3);
        slot.into_iter().for_each(|slot| disk.flip("journal", slot + 2000, 5));
        let world = World::new(13);
        let (env, disk) = (world.env(), disk.moved_to(&world).shared());
        let told = world.run(None, async move {
            let opened = open(&env, &disk).await.map(|(_, seen)| seen);
            assert!(matches!(opened, Err(Error::Corrupt { .. })), "closes {closes}, {slot:?}: {opened:?}");
        });
        told.expect("the story ends");
    }
}

/// A journal that was closed is opened by its headers, so that a restart need not wait for gigabytes: what lies between is read
/// when it is used, and a payload that has rotted is never returned.
#[test]
fn a_closed_journal_is_opened_by_its_headers() {
    const GROUPS: u64 = 60;
    const BLOCKS: u64 = 250;
    let options = || JournalOptions { bytes: 80 << 20, memory_bytes: 1 << 20 };
    let world = World::new(15);
    let disk = FaultyDisk::new(&world);
    let (env, shared) = (world.env(), disk.shared());
    let places = world.run(None, async move {
        let journal = Journal::create(&env, &shared, VOLUME, JournalPos(0), options()).await.expect("create");
        let mut places = Vec::new();
        for id in 0..GROUPS {
            let (pos, end) = write(&journal, id, BLOCKS).expect("append");
            journal.sync(end).await.expect("sync");
            places.push(pos);
        }
        journal.close().await.expect("close");
        places
    });
    let places = places.expect("the story ends");
    const DAMAGED: u64 = 40;
    disk.flip("journal", AREA_BYTES + (places[DAMAGED as usize].0 as usize + 3) * 4096, 1);
    let read_before = disk.read_bytes();
    let world = World::new(15);
    let (env, moved) = (world.env(), disk.moved_to(&world));
    let told = world.run(None, async move {
        let shared = moved.shared();
        let mut seen = 0;
        let visit = &mut |_: &Record, _, _| seen += 1;
        let journal =
            Journal::open(&env, &shared, VOLUME, options(), &Recoveries::new(1), visit).await.expect("open");
        assert_eq!(seen, GROUPS);
        let read = moved.read_bytes() - read_before;
        assert!(read < GROUPS * BLOCKS * 4096 / 3, "{read} bytes were read"); // two windows, and a block of each group
        for (id, pos) in (0..).zip(&places) {
            match journal.read(*pos, BLOCKS).await {
                Ok(data) => assert!(id != DAMAGED && data.expect("not freed")[..] == payload(id, BLOCKS)[..]),
                Err(Error::Corrupt { .. }) => assert_eq!(id, DAMAGED),
                Err(e) => panic!("{e}"),
            }
        }
        let of_damaged = JournalPos(places[DAMAGED as usize].0 - 1);
        assert!(matches!(journal.groups(of_damaged).await, Err(Error::Corrupt { .. })));
        drop(journal);
        let scan = loop {
            match read_only_scan(&env, &shared, &mut |_| Ok(())).await {
                Err(Error::Locked(_)) => env.sleep(std::time::Duration::from_millis(1)).await, // its writer is about to end
                scanned => break scanned.expect("scan"),
            }
        };
        assert!(scan.end == of_damaged && scan.damage.is_some(), "{scan:?}");
    });
    told.expect("the story ends");
}

/// Groups that write-back has in its hands and recent ones that are kept for reads share the journal's memory: the oldest make way,
/// a quarter stays for the newest, and once write-back has let go all of it is for recent ones again.
#[test]
fn what_is_held_takes_the_place_of_recent_groups() {
    const BLOCKS: u64 = 250;
    story(17, async |env, disk| {
        let options = JournalOptions { bytes: 80 << 20, memory_bytes: 8 << 20 };
        let journal =
            Journal::create(&env, &disk.shared(), VOLUME, JournalPos(0), options).await.expect("create");
        let mut places = Vec::new();
        for id in 0..8 {
            let (pos, end) = write(&journal, id, BLOCKS).expect("append");
            journal.sync(end).await.expect("sync");
            places.push(pos);
        }
        let in_memory = async |places: &[JournalPos]| {
            let mut count = 0;
            for pos in places {
                let before = disk.read_bytes();
                assert!(journal.read(*pos, BLOCKS).await.expect("read").is_some());
                count += usize::from(disk.read_bytes() == before);
            }
            count
        };
        assert_eq!(in_memory(&places).await, 8);
        let mut held = journal.holding();
        for pos in &places[..3] {
            let groups = journal.groups(JournalPos(pos.0 - 1)).await.expect("a group begins there");
            held.add(&groups[0]);
        }
        assert_eq!((in_memory(&places[..3]).await, in_memory(&places[3..]).await), (0, 5));
        for _ in 0..10 {
            held.add(&journal.groups(JournalPos(places[0].0 - 1)).await.expect("a group begins there")[0]);
        }
        assert_eq!((in_memory(&places[..6]).await, in_memory(&places[6..]).await), (0, 2));
        drop(held);
        for id in 8..16 {
            let (pos, end) = write(&journal, id, BLOCKS).expect("append");
            journal.sync(end).await.expect("sync");
            places.push(pos);
        }
        assert_eq!((in_memory(&places[..8]).await, in_memory(&places[8..]).await), (0, 8));
        journal.close().await.expect("close");
    });
}

/// A journal with a group of three blocks, closed.
async fn one_write_and_closed(env: &Env, disk: &Arc<dyn Disk>) {
    let journal = create(env, disk, 1 << 20).await;
    let (_, end) = write(&journal, 1, 3).expect("append");
    journal.sync(end).await.expect("sync");
    journal.close().await.expect("close");
}

/// That a journal was closed holds until it is opened: after a crash every block of it is verified again.
#[test]
fn a_journal_that_was_opened_again_is_not_closed() {
    for (reopens, slot_rots) in [(true, false), (false, true), (false, false)] {
        let world = World::new(16);
        let disk = FaultyDisk::new(&world);
        let (env, shared) = (world.env(), disk.shared());
        let told = world.run(None, async move {
            one_write_and_closed(&env, &shared).await;
            if reopens {
                open(&env, &shared).await.expect("open"); // and dropped: a crash
            }
        });
        told.expect("the story ends");
        if slot_rots {
            become_what(&disk, 8 * 4096, &[0; 4096]); // as if it had never been written
        }
        disk.flip("journal", AREA_BYTES + 2 * 4096 + 77, 3);
        let world = World::new(16);
        let (env, disk) = (world.env(), disk.moved_to(&world).shared());
        let opened = world.run(None, async move { open(&env, &disk).await.map(|(_, seen)| seen.len()) });
        let opened = opened.expect("the story ends");
        assert_eq!(opened.is_ok(), !reopens && !slot_rots, "{opened:?}");
    }
}

/// Makes the journal's bytes from `at` on what `bytes` are.
fn become_what(disk: &FaultyDisk, at: usize, bytes: &[u8]) {
    let found = disk.contents("journal")[at..at + bytes.len()].to_vec();
    for (n, (found, wanted)) in found.iter().zip(bytes).enumerate() {
        (0..8)
            .filter(|bit| (found ^ wanted) & 1 << bit != 0)
            .for_each(|bit| disk.flip("journal", at + n, bit));
    }
}

/// Where a disk loses every superblock that was written since a journal was closed, what was written behind it is there all the same.
#[test]
fn what_follows_a_closed_journal_is_found_without_its_superblock() {
    let world = World::new(21);
    let disk = FaultyDisk::new(&world);
    let (env, shared) = (world.env(), disk.shared());
    let told = world.run(None, async move {
        one_write_and_closed(&env, &shared).await;
    });
    told.expect("the story ends");
    let closed = disk.contents("journal")[..AREA_BYTES].to_vec();
    let world = World::new(22);
    let (env, shared) = (world.env(), disk.moved_to(&world).shared());
    let told = world.run(None, async move {
        let (journal, _) = open(&env, &shared).await.expect("open");
        let (_, end) = write(&journal, 2, 3).expect("append");
        journal.sync(end).await.expect("sync");
    });
    told.expect("the story ends");
    become_what(&disk, 0, &closed);
    let world = World::new(23);
    let (env, shared) = (world.env(), disk.moved_to(&world).shared());
    let opened = world.run(None, async move { open(&env, &shared).await.map(|(_, seen)| seen.len()) });
    assert_eq!(opened.expect("the story ends").expect("open"), 2);
}

/// A superblock that rots is found or replaced by its twin; never is anything lost in silence,
/// also not after laps, when the twin names a tail that was written over.
#[test]
fn a_damaged_superblock_loses_nothing_in_silence() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let world = World::new(seed);
        let disk = FaultyDisk::new(&world);
        let (env, shared) = (world.env(), disk.shared());
        let rounds = 1 + dice.below(60);
        let last = world.run(None, async move {
            let journal = create(&env, &shared, 1 << 20).await;
            for id in 0..rounds {
                let blocks = 1 + dice.below(250);
                let end = loop {
                    if let Ok((_, end)) = write(&journal, id, blocks) {
                        break end;
                    }
                    // The ring stays as full as it can be.
                    let next = journal.groups(journal.tail()).await.expect("group")[0].next();
                    journal.free(next);
                    let _ = env.timeout(std::time::Duration::from_millis(1), journal.room(blocks)).await;
                };
                journal.sync(end).await.expect("sync");
            }
            (rounds - 1) * 1024
        });
        let last = last.expect("the story ends");
        let slot = if seed % 2 == 0 { 0 } else { 8 * 4096 };
        disk.flip("journal", slot + 80, 1);
        let world = World::new(seed);
        let (env, moved) = (world.env(), disk.moved_to(&world).shared());
        let opened = world.run(None, async move { open(&env, &moved).await.map(|(_, seen)| seen) });
        match opened.expect("the story ends") {
            Ok(seen) => assert!(
                matches!(seen.last(), Some(Record::Write(e)) if e.start >= last),
                "seed {seed}: the newest record is missing"
            ),
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
        disk.flip("journal", 80, 0);
        disk.flip("journal", 8 * 4096 + 80, 0);
        let world = World::new(seed);
        let (env, moved) = (world.env(), disk.moved_to(&world).shared());
        world.run(None, async move {
            assert!(matches!(open(&env, &moved).await, Err(Error::Corrupt { .. })), "both slots are damaged");
        });
    }
    assert!(refused > 0, "some seeds write over the tail that the twin names");
}

/// A valid group of an earlier life lies exactly where a later life ended, with and without
/// groups left before it: it does not come back.
#[test]
fn a_stale_group_at_the_end_stays_dead() {
    for frees in [false, true] {
        let world = World::new(17);
        let disk = FaultyDisk::new(&world);
        let (env, shared) = (world.env(), disk.shared());
        world.run(None, async move {
            let journal = create(&env, &shared, 1 << 20).await;
            env.sleep(std::time::Duration::from_secs(20)).await; // until the ring is filled ahead
            journal.close().await.expect("close");
        });
        let live = |seed: u64, ids: &'static [u64], syncs: bool| {
            let world = World::new(seed);
            let (env, shared) = (world.env(), disk.moved_to(&world).shared());
            let told = world.run(None, async move {
                let (journal, seen) = open(&env, &shared).await.expect("open");
                for &id in ids {
                    let (_, end) = write(&journal, id, 1).expect("append");
                    if syncs {
                        journal.sync(end).await.expect("sync");
                    }
                    env.sleep(std::time::Duration::from_micros(100)).await; // it is written
                }
                if syncs && frees {
                    journal.free(journal.durable());
                    env.sleep(std::time::Duration::from_secs(5)).await; // the medium knows
                }
                seen
            });
            told.expect("the story ends")
        };
        // Groups 1 and 2, a header and a block each; of the unsynced writes only group 2 survives.
        assert_eq!(live(18, &[1, 2], false), []);
        disk.cut_power_keeping(|n| n >= 2);
        assert_eq!(live(19, &[3], true), [], "group 1 is lost, so group 2 does not count");
        disk.cut_power_keeping(|_| false);
        let kept = if frees { vec![] } else { vec![Record::Write(Extent::new(3 * 1024, 1))] };
        assert_eq!(live(20, &[], false), kept, "group 2 begins where group 3 ended");
    }
}

/// The superblock of a life is lost, and its only group with it: a payload did not get to the disk. What the next life writes there is lost in
/// the same way, but for the payload that the first group lacked: a client sends its write again. That group stays dead.
#[test]
fn a_group_of_a_life_whose_superblock_is_lost_stays_dead() {
    let world = World::new(31);
    let disk = FaultyDisk::new(&world);
    let (env, shared) = (world.env(), disk.shared());
    world.run(None, async move {
        let journal = create(&env, &shared, 1 << 20).await;
        env.sleep(std::time::Duration::from_secs(20)).await; // until the ring is filled ahead
        journal.close().await.expect("close");
    });
    let live = |seed: u64, id: Option<u64>| {
        let world = World::new(seed);
        let (env, shared) = (world.env(), disk.moved_to(&world).shared());
        let told = world.run(None, async move {
            let (journal, seen) = open(&env, &shared).await.expect("open");
            if let Some(id) = id {
                write(&journal, id, 1).expect("append");
                env.sleep(std::time::Duration::from_micros(100)).await; // it is written
            }
            seen
        });
        told.expect("the story ends")
    };
    let slots =
        |disk: &FaultyDisk| [0, 8].map(|slot| disk.contents("journal")[slot * 4096..][..4096].to_vec());
    let before = slots(&disk);
    assert_eq!(live(32, Some(1)), []);
    let after = slots(&disk);
    let newer = (0..2).find(|&n| before[n] != after[n]).expect("a life begins with a superblock");
    assert_eq!(before[1 - newer], after[1 - newer], "and with one");
    disk.flip("journal", newer * 8 * 4096 + 80, 1);
    let payload_byte = AREA_BYTES + 4096 + 77;
    disk.flip("journal", payload_byte, 1);
    assert_eq!(live(33, None), [], "its payload is torn");
    disk.flip("journal", payload_byte, 1);
    assert_eq!(live(34, None), [], "it was lost, and does not come back");
}

/// A payload that rots while the journal is open is never returned: reads of the disk say so.
#[test]
fn reads_never_return_wrong_bytes() {
    let mut dice = Dice::new(14);
    for seed in 0..30 {
        let (byte, bit) = (dice.below(21 * 4096) as usize, dice.below(8) as u32);
        story(seed, async move |env, disk| {
            let journal = create(&env, &disk.shared(), 0).await; // keeps nothing in memory
            let (pos, end) = write(&journal, 1, 20).expect("append");
            journal.sync(end).await.expect("sync");
            disk.flip("journal", AREA_BYTES + byte, bit);
            let damaged = byte / 4096; // block of the group, 0 is its header
            for n in 0..20 {
                let read = journal.read(JournalPos(pos.0 + n), 1).await;
                if damaged == 0 || damaged as u64 == n + 1 {
                    assert!(matches!(read, Err(Error::Corrupt { .. })));
                } else {
                    let whole = payload(1, 20);
                    let at = n as usize * 4096;
                    assert!(read.expect("read").expect("not freed")[..] == whole[at..at + 4096]);
                }
            }
            assert!(matches!(journal.groups(JournalPos(0)).await, Err(Error::Corrupt { .. })));
            journal.close().await.expect("close");
        });
    }
}

/// A read of the disk that races with freeing and overwriting gives the right bytes or nothing.
#[test]
fn reads_race_with_the_next_lap() {
    for seed in 100..120 {
        story(seed, async move |env, disk| {
            let journal = create(&env, &disk.shared(), 0).await;
            let ring = journal.capacity_blocks();
            let mut id = 0;
            let mut readers = Vec::new();
            while journal.appended().0 < 3 * ring {
                id += 1;
                journal.room(100).await.expect("room");
                let Ok((pos, end)) = write(&journal, id, 100) else { continue };
                journal.sync(end).await.expect("sync");
                let reader = journal.clone();
                readers.push(env.spawn("reader", async move {
                    if let Some(data) = reader.read(pos, 100).await.expect("never damage") {
                        assert!(data[..] == payload(id, 100)[..]);
                    }
                }));
                journal.free(end);
            }
            for reader in readers {
                reader.await.expect("it ends");
            }
            journal.close().await.expect("close");
        });
    }
}

/// The same seed gives the same bytes on the disk.
#[test]
fn a_seed_gives_one_history() {
    let run = || {
        let world = World::new(15);
        let disk = FaultyDisk::new(&world);
        let (env, shared) = (world.env(), disk.shared());
        world.run(Some(3000), async move {
            let journal = create(&env, &shared, 1 << 20).await;
            for id in 0.. {
                let Ok((_, end)) = write(&journal, id % 100, 1 + id % 9) else {
                    journal.free(journal.durable());
                    journal.room(10).await.expect("room");
                    continue;
                };
                if id % 3 == 0 {
                    journal.sync(end).await.expect("sync");
                }
            }
        });
        disk.contents("journal")
    };
    assert!(run() == run());
}

/// Writes of one block that nobody flushes go to the disk many at a time; one that is waited for goes at once, and with
/// everything before it.
#[test]
fn a_stream_without_flushes_is_written_in_large_pieces() {
    story(31, async |env, disk| {
        let options = JournalOptions { bytes: 4 * JOURNAL_BYTES_MIN, memory_bytes: 8 << 20 };
        let journal =
            Journal::create(&env, &disk.shared(), VOLUME, JournalPos(0), options).await.expect("create");
        let stream = async |blocks: std::ops::Range<u64>| {
            let before = disk.writes();
            let mut end = JournalPos(0);
            for id in blocks {
                (_, end) = write(&journal, id, 1).expect("there is room");
                env.sleep(std::time::Duration::from_micros(4)).await;
            }
            (disk.writes() - before, end)
        };
        let (while_flushes_are_expected, _) = stream(0..256).await;
        let (later, end) = stream(256..768).await;
        assert!(while_flushes_are_expected > 50, "{while_flushes_are_expected} writes");
        assert!(later < 24, "{later} writes of 512 blocks");
        journal.sync(end).await.expect("durable");
        assert_eq!(journal.durable(), end);
        let (after_a_flush, _) = stream(768..1000).await;
        assert!(after_a_flush > 50, "{after_a_flush} writes");
        journal.close().await.expect("close");
    });
}

/// The records of one request are in one group, however full the open one is when they come, and keep their order; the next request may share
/// theirs. What is longer than a group, or alone in one, does not go together.
#[test]
fn a_request_is_in_one_group() {
    let groups = story(30, |env, disk| async move {
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let journal = create(&env, &disk, 16 << 20).await;
        for n in 0..25 {
            let base = n * 1024;
            write(&journal, 1000 + n, 1 + n % 11).expect("there is room");
            let sectors = |block| Record::Sectors { block, mask: SectorMask::touched(0..512) };
            let request = [
                (sectors(base), payload(2 * n, 1)),
                (Record::Zero { extent: Extent::new(base + 1, 5), allocated: false }, Vec::new()),
                (Record::Write(Extent::new(base + 6, 20)), payload(2 * n + 1, 20)),
            ];
            let request: Vec<_> = request.map(|(record, data)| (record, data.into())).into();
            assert!(fit_one_group(request.iter().map(|(record, _): &(Record, Bytes)| record)));
            let prepared = journal.prepare_together(request).expect("it makes sense");
            journal.append(&prepared, &mut |_, _| {}).expect("there is room");
        }
        journal.sync(journal.appended()).await.expect("synced");
        let (mut at, mut groups) = (JournalPos(0), Vec::new());
        while at < journal.appended() {
            let group = journal.groups(at).await.expect("it is durable").remove(0);
            at = group.next();
            groups.push(group.records().iter().map(|placed| placed.record.clone()).collect::<Vec<Record>>());
        }
        journal.close().await.expect("closed");
        groups
    });
    assert!(groups.len() > 2, "they fill several groups");
    for records in groups {
        let begins = |record: &Record| matches!(record, Record::Sectors { .. });
        for (n, _) in records.iter().enumerate().filter(|(_, record)| begins(record)) {
            let rest = records.get(n + 1..n + 3).expect("the group has all of the request");
            assert!(matches!(rest, [Record::Zero { .. }, Record::Write(_)]), "{rest:?}");
        }
        let orphaned = matches!(records.first(), Some(Record::Zero { .. }));
        assert!(!orphaned, "a request goes on in the next group");
    }
    let long = [Record::Write(Extent::new(0, 256)), Record::Write(Extent::new(900, 1))];
    let alone = [Record::Load { token: 1 }, Record::Write(Extent::new(900, 1))];
    assert!(!fit_one_group(long.iter()) && !fit_one_group(alone.iter()));
}
