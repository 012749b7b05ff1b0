//! What the counters promise: every answered request once, in flight and depth in between.

use super::*;

fn at(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// A request shows as in flight until its end, and is then counted once with its range and latency.
#[test]
fn a_request_is_counted_once() {
    let counters = IoCounters::new(at(0));
    let running = counters.begin(IoKind::Write, at(16_384));
    let before = counters.snapshot(at(32_768));
    let write = &before.kinds[IoKind::Write as usize];
    assert_eq!((write.in_flight, write.requests, write.busy_us), (1, 0, 16_384));
    running.end(at(17_384), Some((8192, 4096)), true);
    let after = counters.snapshot(at(50_000));
    let write = &after.kinds[IoKind::Write as usize];
    assert_eq!((write.in_flight, write.requests, write.errors, write.bytes), (0, 1, 0, 4096));
    // It was longer in flight when it was looked at, by clocks that differ: that stays counted.
    assert_eq!((write.busy_us, write.latency.max_us, after.period_us), (16_384, 1000, 50_000));
    assert_eq!(write.sizes, [SizeCount { up_to_bytes: Some(4096), count: 1 }]);
    assert_eq!(write.alignments, [AlignmentCount { bytes: 4096, count: 1 }]);
    assert!(after.kinds.iter().filter(|kind| kind.kind != IoKind::Write).all(|kind| kind.requests == 0));
}

/// A failed request counts as one and as an error, and moves no bytes; one whose client went away
/// before the answer counts as nothing.
#[test]
fn failures_and_departures() {
    let counters = IoCounters::new(at(0));
    counters.begin(IoKind::Read, at(0)).end(at(1), Some((0, 512)), false);
    drop(counters.begin(IoKind::Read, at(0)));
    let read = &counters.snapshot(at(2)).kinds[IoKind::Read as usize];
    assert_eq!((read.requests, read.errors, read.bytes, read.in_flight), (1, 1, 0, 0));
}

/// The difference of two snapshots shows what came between them, and what is in flight now.
#[test]
fn differences_show_a_period() {
    let counters = IoCounters::new(at(0));
    counters.begin(IoKind::Read, at(0)).end(at(3), Some((0, 4096)), true);
    let earlier = counters.snapshot(at(1000));
    counters.begin(IoKind::Read, at(1000)).end(at(1010), Some((0, 4096)), true);
    counters.begin(IoKind::Read, at(1000)).end(at(1010), Some((512, 1 << 20)), true);
    let _running = counters.begin(IoKind::Read, at(2000));
    let period = counters.snapshot(at(2000)).since(&earlier);
    let read = &period.kinds[IoKind::Read as usize];
    assert_eq!((period.period_us, read.requests, read.bytes, read.in_flight), (1000, 2, 4096 + (1 << 20), 1));
    assert_eq!((read.busy_us, read.latency.p50_us, read.latency.max_us), (20, Some(10), 10));
    let sizes: Vec<_> = read.sizes.iter().map(|size| (size.up_to_bytes, size.count)).collect();
    assert_eq!(sizes, [(Some(4096), 1), (Some(1 << 20), 1)]);
    assert_eq!(read.alignments.iter().map(|a| a.count).sum::<u64>(), 2);
}

/// The names in JSON are those of the metrics, and the list is in the order of the discriminants.
#[test]
fn kinds_have_one_name() {
    for (i, kind) in IoKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, i);
        assert_eq!(serde_json::to_value(kind).expect("a name"), kind.name());
    }
}
