//! The policy of the chunk cache against LRU, S3-FIFO and W-TinyLFU, on traces.

mod cache_policies;

use std::process::Command;

use cache_policies::{compare, ours, traces};
use cistern_engine::cache::{Admission, Replay};

/// On every trace ours hits no less than LRU, and within a tenth of the best of the three.
#[test]
fn ours_is_near_the_best_on_every_trace() {
    for size in [300, 1000] {
        for (name, trace) in traces::all(size as u64) {
            let row = compare(&trace, size);
            assert!(row.holds(), "{name}, {size} chunks: {row:?}");
            let most = row.ours.max(row.best()).max(row.quick_cache);
            assert!(most <= row.optimum + 1e-9, "{name}: nobody beats the optimum");
        }
    }
}

/// So on what filesystems did, in caches of 32 MiB to 512 MiB.
#[test]
fn ours_is_near_the_best_on_filesystems() {
    for name in ["ext4", "xfs", "btrfs"] {
        let trace = recorded(name);
        for size in [500, 1000, 2000, 4000, 8000] {
            let row = compare(&trace, size);
            assert!(row.holds(), "{name}, {size} chunks: {row:?}");
        }
    }
}

fn recorded(name: &str) -> Vec<traces::Access> {
    let file = format!("{}/../../bench/traces/{name}.trace.gz", env!("CARGO_MANIFEST_DIR"));
    let text = Command::new("gunzip").args(["--stdout", &file]).output().expect("gunzip").stdout;
    traces::parse(std::str::from_utf8(&text).expect("text")).expect("a trace")
}

/// The same trace gives the same hits: nothing depends on chance or on the order of a hash table.
#[test]
fn a_replay_repeats() {
    let trace = traces::zipf_and_scan(500, 9);
    assert!((ours(&trace, 500) - ours(&trace, 500)).abs() < f64::EPSILON);
}

/// What was read once stays through a write of ten times the cache; what is read repeatedly stays through
/// a pass of reads over as much.
#[test]
fn bulk_does_not_push_out_what_is_read() {
    let mut cache = Replay::new(1000);
    (0..500).for_each(|chunk| _ = cache.read(1, chunk));
    (0..10_000).for_each(|chunk| cache.offer(2, chunk, Admission::Written));
    let hits = (0..500).filter(|&chunk| cache.read(1, chunk)).count();
    assert_eq!(hits, 500);
    (0..1000).for_each(|chunk| _ = cache.read(1, chunk % 500));
    (0..10_000).for_each(|chunk| _ = cache.read(3, chunk));
    let hits = (0..500).filter(|&chunk| cache.read(1, chunk)).count();
    assert!(hits >= 450, "{hits} of 500");
}

/// A tree that was walked once stays through a pass of reads over ten times the cache.
#[test]
fn a_pass_does_not_push_out_what_was_read_once() {
    let mut cache = Replay::new(1000);
    (0..333).for_each(|chunk| _ = cache.read(1, chunk));
    (0..10_000).for_each(|chunk| _ = cache.read(2, chunk));
    let hits = (0..333).filter(|&chunk| cache.read(1, chunk)).count();
    assert_eq!(hits, 333);
}

/// What is prefetched lives until it is needed, also while others write much.
#[test]
fn prefetched_chunks_live_until_they_are_read() {
    let mut cache = Replay::new(1000);
    (0..2000).for_each(|chunk| _ = cache.read(1, chunk));
    for chunk in 0..5000 {
        cache.offer(2, chunk, Admission::Prefetch);
        cache.offer(3, chunk, Admission::Written);
        if chunk >= 20 {
            assert!(cache.read(2, chunk - 20), "chunk {chunk}");
        }
    }
}
