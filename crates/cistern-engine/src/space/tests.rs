//! What the accounts say of a few segments: when there are victims, and what is retired.

use super::{room::RESERVE_PART, *};
use crate::{log::roots::HeldBlocks, map::SeenBy, price::PriceTable};

/// 400 bytes in four segments of 100 blocks, so many of which are dead.
fn space(dead: [u64; 4]) -> Space {
    let space = Space::new(Start::at(Seq(4)), Duration::ZERO);
    let mut segments = Segments::default();
    for (seq, dead_blocks) in (1..).zip(dead) {
        let counts = Counts { stored_bytes: 100, written_blocks: 100, dead_blocks, touched: Seq(4) };
        segments.apply(&SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) });
    }
    space.load(segments, Duration::ZERO);
    space
}

/// A round that moved so many blocks out of segments, with its last entry.
fn vacated(segments: &[(u64, u64)], from: u64) -> VacatedRound {
    let vacated = |&(seq, needed_blocks)| Vacated { seq: Seq(seq), needed_blocks, since: Some(Seq(seq)) };
    let segments = segments.iter().map(vacated).collect();
    VacatedRound { from: Seq(from), segments, ..VacatedRound::default() }
}

fn victims(space: &Space, now: Duration) -> Vec<u64> {
    let chosen = space.victims(now, 1000, &BTreeSet::new(), &|_, _| false);
    chosen.iter().map(|victim| victim.seq.0).collect()
}

fn is_cleaned(space: &Space, ratio: f64) -> bool {
    space.set_cleaning(Bound::Ratio(ratio).into());
    !victims(space, Duration::ZERO).is_empty()
}

/// Whether cleaning begins at a known ratio between two that are close.
fn is_cleaned_above(space: &Space, ratio: f64) -> bool {
    let bound = |garbage: f64| 1.0 + (garbage - 1.0) / (1.0 - RESERVE_PART);
    is_cleaned(space, bound(ratio - 0.01)) && !is_cleaned(space, bound(ratio + 0.01))
}

/// Nothing is cleaned while the bound holds. What was moved behind the checkpoint is live there instead of in a vacated
/// segment, what is probably dead is not counted as live, and what was written since is taken for new: a
/// volume that grows is not cleaned for it. But it may have killed as much, which a checkpoint would tell.
#[test]
fn the_bound_is_kept_by_what_is_known_and_by_what_is_probable() {
    let space = space([0, 0, 50, 90]);
    assert!(is_cleaned_above(&space, 400.0 / 260.0));
    space.expect(26, Seq(4));
    assert!(is_cleaned_above(&space, 400.0 / 234.0));
    space.committed(Seq(5), Uncovered { stored_bytes: 50, is_moved: false }, 70);
    assert!(is_cleaned_above(&space, 450.0 / 284.0));
    for (ratio, may) in [(449.0 / 234.0, true), (451.0 / 234.0, false)] {
        space.set_cleaning(Bound::Ratio(ratio).into());
        assert_eq!(space.may_exceed(), may);
    }
    space.expect(0, Seq(5));
    space.committed(Seq(6), Uncovered { stored_bytes: 10, is_moved: true }, 30);
    space.vacate(vacated(&[(4, 10)], 6));
    assert!(is_cleaned_above(&space, 360.0 / 310.0));
    let shown = space.shown();
    assert_eq!(shown.ratio, Some(310.0 / 260.0), "what is known is shown");
    let expected = SpaceCounters {
        written_bytes: 50,
        moved_bytes: 10,
        moved_data_bytes: 30,
        vacated_segments: 1,
        ..SpaceCounters::default()
    };
    assert_eq!(shown.counters, expected);
}

/// Where writes lately took the place of what was there, those behind the checkpoint are taken to do so too, and whoever waits
/// for something to clean hears of it.
#[test]
fn what_is_overwritten_is_cleaned_before_a_checkpoint_tells() {
    let space = space([0, 0, 20, 20]);
    space.set_cleaning(Bound::Ratio(1.3).into());
    assert!(victims(&space, Duration::ZERO).is_empty());
    for (seq, stored_bytes) in [(5, 10), (6, 10)] {
        space.checkpoint_stored(Seq(seq - 1), Duration::ZERO, Seq(seq));
        space.committed(Seq(seq), Uncovered { stored_bytes, is_moved: false }, 10);
    }
    let changes = space.changes();
    assert!(victims(&space, Duration::ZERO).is_empty());
    space.committed(Seq(7), Uncovered { stored_bytes: 35, is_moved: false }, 35);
    assert!(changes.has_changed().is_ok_and(|changed| changed));
    assert_eq!(victims(&space, Duration::ZERO), [3, 4]);
}

/// What was moved covers its old place, which no merge has met: it is not taken for garbage, neither while the old segment
/// waits nor when it is gone, until merges have met it. What had died in it unnoticed goes with it.
#[test]
fn what_was_moved_is_no_garbage() {
    let space = space([0, 0, 50, 50]);
    let is = |ratio: f64| space.shown().ratio.is_some_and(|shown| (shown - ratio).abs() < 1e-9);
    space.expect(60, Seq(4));
    assert!(is(400.0 / 240.0));
    space.committed(Seq(5), Uncovered { stored_bytes: 30, is_moved: true }, 30);
    space.vacate(vacated(&[(4, 30)], 5));
    assert!(is(330.0 / 240.0), "20 of the 60 were in it");
    let moved = Counts { stored_bytes: 30, written_blocks: 30, dead_blocks: 0, touched: Seq(5) };
    space.apply([SegmentUsage { seq: Seq(5), change: UsageChange::Added(moved) }]);
    space.expect(60 + 30, Seq(5));
    assert_eq!(space.retire(Seq(5)).segments, [Seq(4)]);
    space.checkpoint_stored(Seq(5), Duration::ZERO, Seq(5));
    assert!(is(330.0 / 240.0));
    space.met_gone(50);
    space.expect(40, Seq(6));
    assert!(is(330.0 / 240.0));
}

/// While the bound holds, what has cost more than moving the rest would is cleaned: found at most ten minutes after that,
/// however often it is looked, but at once where somebody sets a bound. Not where nothing is to be cleaned, and
/// not where next to nothing is garbage.
#[test]
fn what_pays_is_cleaned_below_the_bound() {
    const MINUTE: Duration = Duration::from_secs(60);
    let s3 = PriceTable::shipped().kind("s3-standard").expect("shipped").tariff;
    let space_of = |dead| {
        let space = space(dead);
        space.state().policy = Policy::new(Bound::Ratio(2.0), s3, Duration::ZERO);
        space
    };
    let (space, almost) = (space_of([0, 0, 50, 60]), space_of([0, 0, 0, 15]));
    assert_eq!(victims(&space, 60 * MINUTE), [0; 0], "not yet");
    assert_eq!(victims(&space, 1000 * MINUTE), [4, 3]);
    space.set_cleaning(Bound::Ratio(f64::INFINITY).into());
    assert_eq!(victims(&space, 1000 * MINUTE), [0; 0], "nothing is to be cleaned");
    assert_eq!(victims(&almost, 1_000_000 * MINUTE), [0; 0], "385 of 400 bytes are live");
    let space = space_of([0, 0, 50, 60]);
    assert_eq!(victims(&space, 500 * MINUTE), [4], "the other one does not pay yet");
    let space = space_of([0, 0, 50, 50]);
    assert_eq!(victims(&space, 700 * MINUTE), [0; 0]);
    assert_eq!(victims(&space, 709 * MINUTE), [0; 0], "looked nine minutes ago");
    space.set_cleaning(Bound::Ratio(2.1).into());
    assert_eq!(victims(&space, 709 * MINUTE), [3, 4]);
    let space = space_of([0, 0, 50, 50]);
    assert_eq!([700, 709, 710].map(|at| victims(&space, at * MINUTE).len()), [0, 0, 2]);
}

/// Where reading is dear the bound may not hold for long, and nothing is found again and again: so there too it is
/// looked every ten minutes only.
#[test]
fn what_is_too_dear_is_not_looked_for_all_the_time() {
    let space = space([0, 0, 50, 60]);
    let outside = PriceTable::shipped().kind("s3-standard-outside").expect("shipped").tariff;
    space.state().policy = Policy::new(Bound::Ratio(1.1), outside, Duration::ZERO);
    let look =
        |at: Duration, is_cached: bool| space.victims(at, 1000, &BTreeSet::new(), &|_, _| is_cached).len();
    assert_eq!(look(Duration::ZERO, false), 0);
    assert_eq!(look(LOOK_EVERY - Duration::from_secs(1), true), 0);
    assert_eq!(look(LOOK_EVERY, true), 2);
}

/// A segment that was vacated is retired by a checkpoint that covers the move, and not by an earlier one; what is dead by
/// the counts by any.
#[test]
fn a_vacated_segment_waits_for_the_checkpoint_that_covers_the_move() {
    let space = space([0, 100, 50, 90]);
    space.committed(Seq(5), Uncovered { stored_bytes: 60, is_moved: true }, 60);
    space.vacate(vacated(&[(3, 0), (4, 0)], 5));
    assert_eq!(space.retire(Seq(4)).segments, [Seq(2)]);
    assert_eq!(space.retire(Seq(5)).segments, [Seq(3), Seq(4)]);
    assert_eq!(space.retire(Seq(5)).segments, []);
    assert_eq!(space.retired(Seq(5)).len(), 3);
    assert!(!space.counts(Seq(3)) && space.counts(Seq(1)));
    space.checkpoint_stored(Seq(5), Duration::ZERO, Seq(5));
    let [gone, never] = [Seq(3), Seq(1)].map(RetiredName::Segment);
    space.deleted(&[gone, never]);
    let counters = space.shown().counters;
    assert_eq!((counters.deleted_objects, counters.deleted_bytes), (1, 100));
}

/// What a round moved for snapshots counts for nothing until the round is over and a checkpoint covers it; until then it stays, and if the
/// round never ends it goes.
#[test]
fn what_is_kept_for_snapshots_waits_for_its_round() {
    let space = space([0, 100, 50, 90]);
    let kept = |seq: u64| {
        space.committed(Seq(seq), Uncovered { stored_bytes: 60, is_moved: true }, 60);
        let nothing = Counts { stored_bytes: 60, written_blocks: 0, dead_blocks: 0, touched: Seq(seq) };
        space.apply([SegmentUsage { seq: Seq(seq), change: UsageChange::Added(nothing) }]);
    };
    let retired = |covered: u64| space.retire(Seq(covered));
    let (running, base) = space.begin_round();
    assert_eq!(base, Seq(4));
    kept(5);
    assert_eq!(retired(5).segments, [Seq(2)]);
    space.committed(Seq(6), Uncovered { stored_bytes: 0, is_moved: true }, 0);
    let held = HeldBlocks { segment: Seq(5), seen_by: SeenBy { first: Seq(4), last: Seq(4) }, blocks: 10 };
    space.vacate(VacatedRound { kept: vec![held], ..vacated(&[(4, 10)], 6) });
    drop(running);
    assert_eq!(retired(5).segments, []);
    let Retiring { segments, rounds } = retired(6);
    assert_eq!((segments, rounds[0].kept.clone()), (vec![Seq(4)], vec![held]));
    assert_eq!(retired(6).segments, [Seq(5)], "whoever takes the round counts it, or nobody needs it");
    let (running, _) = space.begin_round();
    kept(7);
    assert_eq!(retired(7).segments, []);
    drop(running);
    assert_eq!(retired(7).segments, [Seq(7)]);
}

/// Where a store bills every object for so many days, garbage that is younger counts for nothing: the bound is held against what is
/// older, that alone is cleaned, and what is younger is told. Who asks for a collection means all of it.
#[test]
fn garbage_that_is_billed_anyway_counts_for_nothing() {
    const DAY: Duration = Duration::from_secs(86_400);
    let wasabi = PriceTable::shipped().kind("wasabi").expect("shipped").tariff;
    let space = space([0, 50, 0, 80]);
    {
        let mut state = space.state();
        state.policy = Policy::new(Bound::Ratio(1.2), wasabi, Duration::ZERO);
        state.times = Times::new(&[(Seq(2), 0), (Seq(3), 86_400)], Seq(4), 2 * DAY);
    }
    let at = |day: u32| {
        let seq = Seq(4 + u64::from(day));
        space.committed(seq, Uncovered { stored_bytes: 0, is_moved: true }, 0);
        space.checkpoint_stored(seq, day * DAY, seq);
        let shown = space.shown();
        let victims = victims(&space, day * DAY + LOOK_EVERY);
        (shown.ratio.map(|ratio| (ratio * 100.0) as u64), shown.billed_garbage_bytes, victims)
    };
    assert_eq!(at(89), (None, 130, vec![]));
    assert_eq!(space.victims_to(1.2, 89 * DAY, 1000, &BTreeSet::new()).len(), 2, "at any price");
    assert_eq!(at(90), (Some(133), 80, vec![2]));
    assert_eq!(at(91), (Some(120), 80, vec![2]), "the third is full");
    assert_eq!(at(92), (Some(148), 0, vec![4, 2]));
}
