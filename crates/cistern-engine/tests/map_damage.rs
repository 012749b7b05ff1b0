//! Damaged, foreign and invented run objects: a lookup gives what was written or an error that
//! names run and offset, never anything else, and never panics.

mod map_support;

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::MasterKey,
    env::Env,
    map::{Levels, Map, MapOptions},
    units::{Extent, Mapping, Place, Seq},
};
use map_support::*;
use proptest::prelude::*;

const ALL: Extent = Extent::new(0, 10_000);

/// A map of two levels in a store: where it lives, its levels and what it holds.
struct Written {
    env: Env,
    io: Arc<MemoryRuns>,
    key: Option<Arc<MasterKey>>,
    levels: Levels,
    expected: Vec<Mapping>,
}

async fn write(options: MapOptions, encrypted: bool) -> Written {
    let env = plain_env();
    let key = encrypted.then(|| Arc::new(MasterKey::generate(&env)));
    let io = Arc::new(MemoryRuns::default());
    let map = open_map(&env, &io, key.clone(), options, Levels::new(), Seq(0));
    let below: Vec<_> = (0..600).map(|i| frame(i * 16, 1 + i % 16, 1 + i % 7, i as u32 * 5000)).collect();
    let above: Vec<_> = (0..100).map(|i| hole(i * 90, 1 + i % 5, 9)).collect();
    for (seq, batch) in [(8, below), (9, above)] {
        map.insert(&batch);
        map.freeze(Seq(seq));
        map.flush().await.unwrap();
    }
    let expected = map.lookup(ALL).await.unwrap();
    let levels = map.take_state().levels;
    assert_eq!(levels.len(), 2);
    Written { env, io, key, levels, expected }
}

impl Written {
    fn reopen(&self, key: Option<Arc<MasterKey>>) -> Arc<Map> {
        open_map(&self.env, &self.io, key, MapOptions::default(), self.levels.clone(), Seq(9))
    }

    /// Everything read anew, whole and by single blocks, and merged.
    async fn read(&self) -> Result<()> {
        let map = self.reopen(self.key.clone());
        for block in [0, 89, 5000, 9999] {
            let found = map.lookup(Extent::new(block, 1)).await?;
            let at = self.expected.partition_point(|m| m.extent.end() <= block);
            assert_eq!(found, vec![self.expected[at].slice(Extent::new(block, 1))]);
        }
        let found = map.lookup(ALL).await?;
        assert_eq!(found, self.expected);
        while map.merge_step().await? {}
        let found = map.lookup(ALL).await?;
        assert_eq!(by_block(&found), by_block(&self.expected));
        Ok(())
    }

    fn damage(&self, change: impl Fn(&mut Vec<u8>)) {
        let id = self.levels[1][0].id;
        let mut objects = self.io.objects.lock().unwrap();
        let mut body = objects[&id].to_vec();
        change(&mut body);
        objects.insert(id, Bytes::from(body));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn refused(outcome: Result<()>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::Corrupt { what, detail }) => {
            assert!(what.starts_with("run ") && detail.contains("offset"), "{what}: {detail}");
            true
        }
        Err(Error::Version { .. }) => true,
        Err(other) => panic!("not an error about damage: {other}"),
    }
}

proptest! {
    /// One flipped bit anywhere is noticed by whoever reads it, or changes nothing.
    #[test]
    fn a_flipped_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8, encrypted in any::<bool>(), tiny in any::<bool>()) {
        block_on(async {
            let written = write(if tiny { tiny_runs() } else { MapOptions::default() }, encrypted).await;
            written.damage(|body| {
                let at = at.index(body.len());
                body[at] ^= 1 << bit;
            });
            assert!(refused(written.read().await));
        });
    }

    /// An object of arbitrary bytes, of any length, is refused.
    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..4000), keep in 0usize..100) {
        block_on(async {
            let written = write(tiny_runs(), false).await;
            written.damage(|body| {
                let tail = body.split_off(body.len() - keep);
                *body = bytes.clone();
                body.extend_from_slice(&tail);
            });
            assert!(refused(written.read().await));
        });
    }
}

/// A run opens with its volume's key only.
#[tokio::test]
async fn another_key_does_not_open_a_run() {
    let written = write(MapOptions::default(), true).await;
    written.read().await.unwrap();
    let other = Arc::new(MasterKey::generate(&written.env));
    for key in [None, Some(other)] {
        let error = written.reopen(key).lookup(ALL).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

/// One run's bytes under the name of another are refused, even within a volume.
#[tokio::test]
async fn a_swapped_run_is_refused() {
    let written = write(MapOptions::default(), false).await;
    let newer = written.io.objects.lock().unwrap()[&written.levels[0][0].id].clone();
    written.damage(|body| *body = newer.to_vec());
    assert!(refused(written.read().await));
}

/// With a key, nothing of what the same run holds in the clear is found in its bytes.
#[tokio::test]
async fn nothing_is_readable_without_the_key() {
    let id_bytes = |w: &Written| w.io.objects.lock().unwrap().values().cloned().collect::<Vec<_>>();
    let (clear, sealed) = (write(tiny_runs(), false).await, write(tiny_runs(), true).await);
    for body in id_bytes(&sealed) {
        let (body, mark) = body.split_at(body.len() - 8);
        assert_eq!(&mark[..7], b"cistern");
        for plain in id_bytes(&clear) {
            for part in plain[..plain.len() - 8].windows(8) {
                let telling = part.iter().any(|&b| b != part[0]);
                assert!(!telling || !body.windows(8).any(|w| w == part));
            }
        }
    }
}

/// Bad copies of runs heal: lookups and merges give what was written, and nothing is called damaged.
#[tokio::test]
async fn bad_copies_heal() {
    for shape in [tiny_runs(), MapOptions::default()] {
        let written = write(shape, false).await;
        for merge_first in [true, false] {
            let options = MapOptions::default();
            let damage = options.damage.clone();
            let map = open_map(&written.env, &written.io, None, options, written.levels.clone(), Seq(9));
            written.io.spoil_copies();
            while merge_first && map.merge_step().await.unwrap() {}
            assert_eq!(by_block(&map.lookup(ALL).await.unwrap()), by_block(&written.expected));
            assert!(damage.is_empty());
        }
    }
}

/// Of a run with one bad block, everything is read that lies outside of it, and inside of it what something
/// newer knows: in the memory table, in a frozen one and in a level.
#[tokio::test]
async fn only_the_bad_block_of_a_run_fails() {
    let written = write(tiny_runs(), false).await;
    written.damage(|body| body[130] ^= 1);
    let map = written.reopen(None);
    let mut failed = Vec::new();
    for block in 0..ALL.len {
        let block = Extent::new(block, 1);
        match map.lookup(block).await {
            Ok(found) => {
                let at = written.expected.partition_point(|m| m.extent.end() <= block.start);
                assert_eq!(by_block(&found), by_block(&[written.expected[at].slice(block)]));
            }
            Err(_) => failed.push(block.start),
        }
    }
    let (first, last) = (*failed.first().expect("one is bad"), *failed.last().expect("one is bad"));
    assert!(last - first < 400, "{first} to {last} of {} blocks", ALL.len);
    // The holes of the level above are found wherever they are.
    let holes = || written.expected.iter().filter(|m| m.place == Place::Hole && m.birth == Seq(9));
    assert!(holes().any(|hole| (first..last).contains(&hole.extent.start)));
    assert!(holes().all(|hole| !(hole.extent.start..hole.extent.end()).any(|block| failed.contains(&block))));

    let bad = Extent::between(first, last + 1);
    let newer = [frame(bad.start, 1, 10, 0), frame(bad.start + 1, 1, 10, 5000)];
    map.insert(&newer[..1]);
    map.freeze(Seq(10));
    map.insert(&newer[1..]);
    for m in newer {
        assert_eq!(map.lookup(m.extent).await.unwrap(), [m]);
    }
    while map.flush().await.unwrap() {}
    assert_eq!(map.lookup(newer[0].extent).await.unwrap(), newer[..1]);
}

/// Brings some seqs that together overwrite the first 1000 blocks many times, each flushed and merged.
async fn overwrite(map: &Map, seqs: Range<u64>, newest: &mut BTreeMap<u64, Mapping>) {
    for seq in seqs {
        let batch: Vec<_> =
            (0..120).map(|i| frame((i * 7 + seq * 3) % 1000, 1, seq, i as u32 * 5000)).collect();
        newest.extend(batch.iter().map(|m| (m.extent.start, *m)));
        map.insert(&batch);
        map.freeze(Seq(seq));
        settle(map).await;
    }
}

/// Merges leave a damaged run out, and a missing one, and go on around it: after many more flushes the map is
/// as small as ever, everything newer and everything beside it reads right, and the run was looked at once.
#[tokio::test]
async fn merges_go_on_around_a_damaged_run() {
    for missing in [false, true] {
        let env = plain_env();
        let io = Arc::new(MemoryRuns::default());
        let options = tiny_runs();
        let damage = options.damage.clone();
        let map = open_map(&env, &io, None, options, Levels::new(), Seq(0));
        let mut newest = BTreeMap::new();
        overwrite(&map, 1..20, &mut newest).await;
        let run = map.levels().last().unwrap()[1].clone();
        let sound = io.objects.lock().unwrap()[&run.id].clone();
        let mut body = sound.to_vec();
        body[50] ^= 1;
        match missing {
            true => io.objects.lock().unwrap().remove(&run.id),
            false => io.objects.lock().unwrap().insert(run.id, body.into()),
        };
        // The map is opened again: nothing of the run is in memory.
        let (levels, covered) = (Levels::clone(&map.levels()), map.covered());
        let options = MapOptions { damage: damage.clone(), ..tiny_runs() };
        let map = open_map(&env, &io, None, options, levels, covered);
        newest.clear();
        overwrite(&map, 20..400, &mut newest).await;
        let levels = map.levels();
        assert!(levels.iter().flatten().any(|listed| listed.id == run.id), "it is not forgotten");
        assert!(levels.len() < 20, "{} levels", levels.len());
        assert_eq!(newest.len(), 1000, "everything was overwritten");
        for (block, m) in &newest {
            assert_eq!(map.lookup(Extent::new(*block, 1)).await.unwrap(), [*m]);
        }
        let report = damage.report(env.now());
        assert_eq!(report.objects.len(), 1, "{report:?}");
        assert!(report.objects[0].failures < 10, "{report:?}");

        // Restored, and opened again: merges take it as any other.
        io.objects.lock().unwrap().insert(run.id, sound);
        let map = open_map(&env, &io, None, tiny_runs(), Levels::clone(&levels), map.covered());
        overwrite(&map, 400..460, &mut newest).await;
        assert!(map.levels().iter().flatten().all(|listed| listed.id != run.id));
        for (block, m) in &newest {
            assert_eq!(map.lookup(Extent::new(*block, 1)).await.unwrap(), [*m]);
        }
    }
}
