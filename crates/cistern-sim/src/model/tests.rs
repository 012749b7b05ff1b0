//! The rules on small histories whose verdict is known.

use super::*;

/// Sectors of the toy volume.
const SIZE: u64 = 16;

fn now() -> Duration {
    Duration::ZERO
}

fn fresh() -> Branch {
    Branch::new(SIZE, SIZE)
}

/// A write that ran from tick to tick.
fn wrote(branch: &mut Branch, id: OpId, first: u64, count: u64, ticks: (u64, u64)) {
    branch.begin(id, Kind::Write, first, count, ticks.0);
    branch.acknowledge(id, Forced::No, ticks.1, now());
}

fn found(shown: &[(u64, u64, OpId)]) -> Observed {
    let mut sectors = vec![Seen::Zero; SIZE as usize];
    for &(first, count, op) in shown {
        (first..first + count).for_each(|s| sectors[s as usize] = Seen::Op(op));
    }
    Observed { size: SIZE, sectors }
}

fn explained(branch: &Branch, shown: &[(u64, u64, OpId)]) -> Result<u64, String> {
    let mut branch = branch.clone();
    branch.end_life(1000);
    branch.explain(&found(shown), Scope::Journal, 0)
}

/// Without a flush every prefix is fine; a later write without an earlier one is not.
#[test]
fn a_crash_leaves_a_prefix() {
    let mut branch = fresh();
    wrote(&mut branch, 1, 0, 8, (10, 11));
    wrote(&mut branch, 2, 8, 8, (12, 13));
    assert!(explained(&branch, &[]).is_ok());
    assert!(explained(&branch, &[(0, 8, 1)]).is_ok());
    assert!(explained(&branch, &[(0, 8, 1), (8, 8, 2)]).is_ok());
    let error = explained(&branch, &[(8, 8, 2)]).expect_err("write 1 is missing");
    assert!(error.starts_with("P3"), "{error}");
}

/// Writes that overlap in time have no order until a read shows one.
#[test]
fn concurrent_writes_have_no_order_until_read() {
    let mut branch = fresh();
    branch.begin(1, Kind::Write, 0, 8, 10);
    branch.begin(2, Kind::Write, 0, 8, 11);
    branch.acknowledge(1, Forced::No, 12, now());
    branch.acknowledge(2, Forced::No, 13, now());
    assert!(explained(&branch, &[(0, 8, 1)]).is_ok());
    assert!(explained(&branch, &[(0, 8, 2)]).is_ok());
    let read = branch.begin_read(14);
    branch.end_read(read, 0, &[Seen::Op(2)], 15).expect("either is fine");
    let read = branch.begin_read(16);
    let error = branch.end_read(read, 0, &[Seen::Op(1)], 17).expect_err("2 was settled");
    assert!(error.starts_with("P4"), "{error}");
    branch.flushed(20);
    assert!(explained(&branch, &[(0, 8, 2)]).is_ok());
    assert!(explained(&branch, &[(0, 8, 1)]).is_err());
}

/// What a flush covers must be there, what came after it need not.
#[test]
fn a_flush_is_a_promise() {
    let mut branch = fresh();
    wrote(&mut branch, 1, 0, 8, (10, 11));
    branch.flushed(12);
    wrote(&mut branch, 2, 0, 4, (13, 14));
    let error = explained(&branch, &[]).expect_err("1 was flushed");
    assert!(error.starts_with("P1"), "{error}");
    assert!(explained(&branch, &[(0, 8, 1)]).is_ok());
    assert!(explained(&branch, &[(0, 8, 1), (0, 4, 2)]).is_ok());
    let torn = explained(&branch, &[(0, 8, 1), (0, 2, 2)]).expect_err("a block is torn");
    assert!(torn.contains("torn"), "{torn}");
}

/// Zeroes may stem from several ops; the oldest that fits counts.
#[test]
fn zeroes_are_explained_by_the_oldest_that_fits() {
    let mut branch = fresh();
    wrote(&mut branch, 1, 0, 8, (10, 11));
    branch.begin(2, Kind::Zero { allocated: false }, 0, 16, 12);
    branch.acknowledge(2, Forced::No, 13, now());
    wrote(&mut branch, 3, 8, 8, (14, 15));
    assert!(explained(&branch, &[]).is_ok());
    assert!(explained(&branch, &[(8, 8, 3)]).is_ok());
    let error = explained(&branch, &[(0, 8, 1), (8, 8, 3)]).expect_err("the zeroes of 2 are missing");
    assert!(error.starts_with("P3"), "{error}");
    branch.flushed(13);
    assert!(explained(&branch, &[]).is_ok(), "the later zeroes hide the flushed write");
}

/// A read shows the newest acknowledged write, or one that is under way.
#[test]
fn a_read_shows_the_newest() {
    let mut branch = fresh();
    wrote(&mut branch, 1, 0, 8, (10, 11));
    branch.begin(2, Kind::Write, 0, 8, 12);
    for (shown, fine) in
        [(Seen::Op(1), true), (Seen::Op(2), true), (Seen::Zero, false), (Seen::Garbage, false)]
    {
        let mut branch = branch.clone();
        let read = branch.begin_read(13);
        assert_eq!(branch.end_read(read, 0, &[shown], 14).is_ok(), fine, "{shown:?}");
    }
}

/// What a recovery showed to be lost does not come back, and what it showed can be flushed.
#[test]
fn a_recovery_settles_the_past() {
    let mut branch = fresh();
    wrote(&mut branch, 1, 0, 8, (10, 11));
    wrote(&mut branch, 2, 0, 8, (12, 13));
    branch.end_life(20);
    let state = found(&[(0, 8, 1)]);
    let cut = branch.explain(&state, Scope::Journal, 0).expect("a prefix");
    branch.adopt(&state, Scope::Journal, cut, 21);
    assert!(explained(&branch, &[(0, 8, 2)]).is_err(), "2 was lost");
    assert!(explained(&branch, &[]).is_ok(), "1 was never flushed");
    branch.flushed(30);
    assert!(explained(&branch, &[]).is_err(), "1 is flushed now");
}

/// Zeroes that a recovery showed may be those of an op that was under way all the time, as well as those of an earlier one: a
/// write between them that was lost may have been hidden, and need not come back when more is flushed.
#[test]
fn zeroes_may_be_those_of_whoever_ended_last() {
    let mut branch = fresh();
    branch.begin(1, Kind::Zero { allocated: false }, 0, 8, 10);
    branch.begin(2, Kind::Zero { allocated: false }, 0, 8, 12);
    branch.acknowledge(2, Forced::No, 13, now());
    wrote(&mut branch, 3, 0, 8, (15, 16));
    branch.acknowledge(1, Forced::Local, 17, now());
    branch.end_life(20);
    let state = found(&[]);
    let cut = branch.explain(&state, Scope::Journal, 0).expect("a prefix without the write");
    branch.adopt(&state, Scope::Journal, cut, 21);
    branch.flushed(30);
    assert!(explained(&branch, &[]).is_ok(), "the zeroes stay");
}

/// A resize is part of the history.
#[test]
fn a_size_has_its_place_in_the_history() {
    let mut branch = Branch::new(8, SIZE);
    branch.begin_resize(1, 16, 10);
    branch.acknowledge(1, Forced::No, 11, now());
    wrote(&mut branch, 2, 0, 8, (12, 13));
    branch.end_life(20);
    let mut state = found(&[(0, 8, 2)]);
    assert!(branch.explain(&state, Scope::Journal, 0).is_ok());
    state.size = 8;
    assert!(branch.explain(&state, Scope::Journal, 0).is_err(), "the write came after the resize");
    assert!(branch.explain(&Observed { size: 8, sectors: vec![Seen::Zero; 8] }, Scope::Journal, 0).is_ok());
}
