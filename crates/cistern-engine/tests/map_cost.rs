//! What things cost, counted in reads and runs: opening is free, a lookup reads one block per
//! level, work follows the result and not the range.

mod map_support;

use std::sync::{Arc, atomic::Ordering};

use cistern_engine::{
    env::Env,
    map::{Levels, Map, MapOptions},
    units::{Extent, Mapping, Place, Seq},
};
use map_support::*;

/// Blocks of a device of 100 TiB.
const DEVICE_BLOCKS: u64 = 100 << 28;

fn reads(io: &MemoryRuns) -> u64 {
    io.reads.load(Ordering::Relaxed)
}

/// A map with 100,000 scattered blocks in each of three levels.
async fn three_levels(env: &Env, io: &Arc<MemoryRuns>) -> Levels {
    let map = open_map(env, io, None, MapOptions::default(), Levels::new(), Seq(0));
    for seq in 1..=3 {
        let batch: Vec<_> =
            (0..100_000).map(|i| frame(i * 250_000 + seq * 1000, 1, seq, i as u32 % 4000 * 4120)).collect();
        map.insert(&batch);
        map.freeze(Seq(seq));
        map.flush().await.unwrap();
    }
    map.take_state().levels
}

fn reopen(env: &Env, io: &Arc<MemoryRuns>, levels: &Levels) -> Arc<Map> {
    open_map(env, io, None, MapOptions::default(), levels.clone(), Seq(3))
}

/// Opening reads nothing; a first lookup reads top, section and block of each level; another
/// one nearby reads at most a block of each.
#[tokio::test]
async fn a_lookup_reads_one_block_per_level() {
    let io = Arc::new(MemoryRuns::default());
    let env = plain_env();
    let levels = three_levels(&env, &io).await;
    let before = reads(&io);
    let map = reopen(&env, &io, &levels);
    assert_eq!(reads(&io), before);
    let block = 250_000 * 50_000;
    map.lookup(Extent::new(block, 1)).await.unwrap();
    assert_eq!(reads(&io) - before, 9);
    let near = block + 250_000 * 2000;
    map.lookup(Extent::new(near, 1)).await.unwrap();
    assert_eq!(reads(&io) - before, 12);
    map.lookup(Extent::new(near, 1)).await.unwrap();
    assert_eq!(reads(&io) - before, 12);
}

/// Nothing older is read beneath a level that answers by itself.
#[tokio::test]
async fn a_newer_answer_hides_older_levels() {
    let io = Arc::new(MemoryRuns::default());
    let env = plain_env();
    let levels = three_levels(&env, &io).await;
    let map = reopen(&env, &io, &levels);
    let newest = levels[0][0].span;
    map.lookup(Extent::new(newest.start, 1)).await.unwrap();
    let warm = reads(&io);
    map.insert(&[hole(newest.start, newest.len, 4)]);
    assert_eq!(map.lookup(newest).await.unwrap(), vec![hole(newest.start, newest.len, 4)]);
    assert_eq!(reads(&io), warm);
}

/// A trimmed device of 100 TiB over 300,000 extents answers with one hole and a handful of reads.
#[tokio::test]
async fn a_hole_over_everything_is_one_mapping() {
    let io = Arc::new(MemoryRuns::default());
    let env = plain_env();
    let levels = three_levels(&env, &io).await;
    let map = reopen(&env, &io, &levels);
    let all = Extent::new(0, DEVICE_BLOCKS);
    map.insert(&[hole(0, DEVICE_BLOCKS, 4)]);
    map.freeze(Seq(4));
    map.flush().await.unwrap();
    let before = reads(&io);
    assert_eq!(map.lookup_limited(all, 1000).await.unwrap(), vec![hole(0, DEVICE_BLOCKS, 4)]);
    assert!(reads(&io) - before <= 12, "{} reads", reads(&io) - before);
    settle(&map).await;
    assert!(map.levels().is_empty(), "what the hole covered is gone, and so is the hole");
    assert_eq!(map.take_state().dead.blocks(), 300_000);
}

/// A limited lookup gives its count and reads a few blocks, whatever lies behind.
#[tokio::test]
async fn a_limited_lookup_stops_early() {
    let io = Arc::new(MemoryRuns::default());
    let env = plain_env();
    let levels = three_levels(&env, &io).await;
    let map = reopen(&env, &io, &levels);
    let before = reads(&io);
    let found = map.lookup_limited(Extent::new(0, DEVICE_BLOCKS), 100).await.unwrap();
    assert_eq!(found.len(), 100);
    assert_eq!(reads(&io) - before, 9);
    let in_table: Vec<Mapping> = (0..500).map(|i| frame(i * 10, 1, 4, 0)).collect();
    map.insert(&in_table);
    let found = map.lookup_limited(Extent::new(0, DEVICE_BLOCKS), 100).await.unwrap();
    assert_eq!(found.len(), 100);
    assert_eq!(found.iter().filter(|m| matches!(m.place, Place::Frame(_))).count(), 50);
}

/// A merge of short runs takes one request for each, whatever parts they have.
#[tokio::test]
async fn a_merge_reads_a_short_run_at_once() {
    let io = Arc::new(MemoryRuns::default());
    let map = open_map(&plain_env(), &io, None, MapOptions::default(), Levels::new(), Seq(0));
    let mut merges = 0;
    for seq in 1..=20u64 {
        let batch: Vec<_> =
            (0..2000).map(|i| frame(i * 250_000 + seq * 1000, 1, seq, i as u32 * 4120)).collect();
        map.insert(&batch);
        map.freeze(Seq(seq));
        map.flush().await.unwrap();
        let (runs, before) = (map.levels().iter().flatten().count() as u64, reads(&io));
        if map.merge_step().await.unwrap() {
            assert!(reads(&io) - before <= runs, "{} reads of {runs} runs", reads(&io) - before);
            merges += 1;
        }
    }
    assert!(merges >= 3, "{merges} merges of 20 levels");
}

/// Filling a device in order ends in one level of full runs, each written about three times.
#[tokio::test]
async fn an_ordered_fill_becomes_one_level() {
    let io = Arc::new(MemoryRuns::default());
    let map = open_map(&plain_env(), &io, None, tiny_runs(), Levels::new(), Seq(0));
    for seq in 1..=300u64 {
        let batch: Vec<_> = (0..16).map(|i| frame((seq * 16 + i) * 16, 16, seq, i as u32 * 70_000)).collect();
        map.insert(&batch);
        map.freeze(Seq(seq));
        settle(&map).await;
    }
    let levels = map.levels();
    let bytes: u64 = levels.iter().flatten().map(|run| run.bytes).sum();
    let written: u64 = io.objects.lock().unwrap().values().map(|body| body.len() as u64).sum();
    assert!(levels.len() <= 4, "{} levels", levels.len());
    assert!(written <= 6 * bytes, "{written} bytes written for {bytes}");
}

/// Objects, and the bytes of all of them.
fn stored(io: &MemoryRuns) -> (usize, u64) {
    let objects = io.objects.lock().unwrap();
    (objects.len(), objects.values().map(|body| body.len() as u64).sum())
}

/// A merge writes at most one run, of bounded size, however much is due; about how much is known before.
#[tokio::test]
async fn a_merge_step_is_bounded() {
    let io = Arc::new(MemoryRuns::default());
    let options = tiny_runs();
    let run_bytes = options.shape.run_bytes as u64;
    let map = open_map(&plain_env(), &io, None, options, Levels::new(), Seq(0));
    for seq in 1..=20u64 {
        let batch: Vec<_> = (0..500).map(|i| frame((i * 20 + seq) * 7, 1, seq, i as u32 * 4120)).collect();
        map.insert(&batch);
        map.freeze(Seq(seq));
        map.flush().await.unwrap();
    }
    let mut steps = 0;
    loop {
        let (before, bytes_before) = stored(&io);
        let told = map.next_merge_bytes().await;
        if !map.merge_step().await.unwrap() {
            assert_eq!(told, None);
            break;
        }
        let (after, bytes_after) = stored(&io);
        assert!(after <= before + 1);
        let (written, told) = (bytes_after - bytes_before, told.expect("one was due"));
        assert!(written <= 2 * told + 500, "{written} bytes where {told} were told");
        let objects = io.objects.lock().unwrap();
        assert!(objects.values().all(|body| (body.len() as u64) < 2 * run_bytes + 500));
        steps += 1;
    }
    assert!(steps > 20, "{steps} steps");
}
