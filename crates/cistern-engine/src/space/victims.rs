//! Which segments to clean: those whose garbage costs most for what moving their live data costs, in money.
//!
//! Pure. Score and rules are those of [`price::Candidate`]. Among those that may be cleaned only the order of scores counts,
//! so for it the entries of the log stand for time: they tell segments apart that one checkpoint made known. Whether one
//! pays, and whether it is billed anyway, is reckoned in time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    log::usage::Counts,
    price::{self, Tariff, Worth},
    space::{segments::Segments, times::Times},
    units::Seq,
};

/// Live share above which a segment is never a victim: moving it would gain next to nothing.
const LIVE_SHARE_MAX: f64 = 0.98;
/// Victims that are chosen together. Their footers are in memory, and of all the others nothing needs to be sorted.
const VICTIMS_MAX: usize = 1024;

/// A segment to clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub seq: Seq,
    pub counts: Counts,
}

/// What a choice goes by, besides the counts.
pub struct Situation<'a> {
    pub tariff: Tariff,
    /// Also what does not pay yet is cleaned: the bound does not hold.
    pub for_the_bound: bool,
    /// The log is here.
    pub newest: Seq,
    pub times: &'a Times,
    /// By the clock of `times`.
    pub now: Duration,
    pub vacated: &'a BTreeMap<Seq, Seq>,
    pub left_alone: &'a BTreeSet<Seq>,
    /// Whether a segment of so many bytes need not be read from the store.
    pub is_cached: &'a dyn Fn(Seq, u64) -> bool,
}

/// The best first, until their live data is at least `data_blocks`.
pub fn choose(segments: &Segments, situation: &Situation<'_>, data_blocks: u64) -> Vec<Victim> {
    let Situation { vacated, left_alone, tariff, .. } = situation;
    let mut scored: Vec<(price::Candidate, Victim)> = segments
        .iter()
        .filter(|(seq, _)| !vacated.contains_key(seq) && !left_alone.contains(seq))
        .filter_map(|(seq, counts)| {
            let victim = Victim { seq, counts };
            Some((situation.priced(&victim)?, victim))
        })
        .collect();
    let best_first = |a: &(price::Candidate, Victim), b: &(price::Candidate, Victim)| {
        a.0.before(&b.0, tariff).then(a.1.seq.cmp(&b.1.seq))
    };
    if scored.len() > VICTIMS_MAX {
        scored.select_nth_unstable_by(VICTIMS_MAX, best_first);
        scored.truncate(VICTIMS_MAX);
    }
    scored.sort_unstable_by(best_first);
    let mut chosen = Vec::new();
    let mut blocks = 0;
    for (_, victim) in scored {
        if blocks >= data_blocks {
            break;
        }
        blocks += victim.counts.live_blocks();
        chosen.push(victim);
    }
    debug_assert!(chosen.len() <= VICTIMS_MAX, "the footers of all victims fit into memory");
    debug_assert!(chosen.iter().all(|victim| victim.counts.live_blocks() > 0), "what is dead goes unread");
    chosen
}

/// What a segment is sorted by, an entry of the log standing for a second; `None` where cleaning it gains nothing.
pub fn sorted_by(counts: &Counts, newest: Seq) -> Option<price::Candidate> {
    if counts.dead_blocks >= counts.written_blocks {
        return None; // it goes without being cleaned
    }
    let live = counts.live_blocks() as f64 / counts.written_blocks as f64;
    let idle = Duration::from_secs(newest.0.saturating_sub(counts.touched.0) + 1);
    (live <= LIVE_SHARE_MAX).then_some(price::Candidate { live, cached: 0.0, idle, age: Duration::MAX })
}

impl Situation<'_> {
    /// What is sorted by; `None` where it is not to be cleaned.
    fn priced(&self, victim: &Victim) -> Option<price::Candidate> {
        let Victim { seq, counts } = victim;
        let sorted = sorted_by(counts, self.newest)?;
        let since = |seq| self.times.since(seq, self.now);
        let mut priced = price::Candidate { idle: since(counts.touched), age: since(*seq), ..sorted };
        if priced.worth(&self.tariff) == Worth::Dear && (self.is_cached)(*seq, counts.stored_bytes) {
            priced.cached = 1.0;
        }
        let is_taken = match priced.worth(&self.tariff) {
            Worth::Pays => self.for_the_bound || self.pays(&priced),
            Worth::Wait => self.for_the_bound,
            Worth::Dear | Worth::Delete | Worth::Free { .. } => false,
        };
        is_taken.then_some(price::Candidate { idle: sorted.idle, age: sorted.age, ..priced })
    }

    /// Where moving is free money does not tell when it is time, and only the bound does.
    fn pays(&self, priced: &price::Candidate) -> bool {
        priced.score(&self.tariff).is_finite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        log::usage::{SegmentUsage, UsageChange},
        price::PriceTable,
    };

    const HOUR: Duration = Duration::from_secs(3600);

    fn shipped(kind: &str) -> Tariff {
        PriceTable::shipped().kind(kind).expect("it is shipped").tariff
    }

    /// Seq, dead blocks of 100, and where the log was when they died.
    fn segments(rows: &[(u64, u64, u64)]) -> Segments {
        let mut segments = Segments::default();
        for &(seq, dead_blocks, touched) in rows {
            let counts =
                Counts { stored_bytes: 100, written_blocks: 100, dead_blocks, touched: Seq(touched) };
            segments.apply(&SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) });
        }
        segments
    }

    /// What is chosen at a tariff, so long after all that was last touched; the log is at 1000, and segment 8 is cached.
    fn chosen(tariff: Tariff, for_the_bound: bool, idle: Duration, rows: &[(u64, u64, u64)]) -> Vec<u64> {
        let situation = Situation {
            tariff,
            for_the_bound,
            newest: Seq(1000),
            times: &Times::new(&[], Seq(1000), Duration::ZERO),
            now: idle,
            vacated: &BTreeMap::from([(Seq(6), Seq(1000))]),
            left_alone: &BTreeSet::from([Seq(7)]),
            is_cached: &|seq, bytes| seq == Seq(8) && bytes == 100,
        };
        choose(&segments(rows), &situation, 1000).iter().map(|victim| victim.seq.0).collect()
    }

    /// Of equal age the emptiest goes first; of equal share the one that has been quiet for longer; what is nearly full,
    /// dead, vacated or to be left alone not at all. It is the same on every store where moving is cheap, and where
    /// nothing has a price; and nobody chooses more than was asked for.
    #[test]
    fn the_emptiest_and_quietest_first() {
        let rows = [(1, 50, 900), (2, 70, 900), (3, 50, 500), (4, 1, 1), (5, 100, 1), (6, 90, 1), (7, 90, 1)];
        for tariff in [shipped("s3-standard"), shipped("own-disks"), shipped("r2"), Tariff::default()] {
            assert_eq!(chosen(tariff, true, Duration::ZERO, &rows), [3, 2, 1]);
        }
        let situation = Situation {
            tariff: Tariff::default(),
            for_the_bound: true,
            newest: Seq(1000),
            times: &Times::new(&[], Seq(1000), Duration::ZERO),
            now: Duration::ZERO,
            vacated: &BTreeMap::new(),
            left_alone: &BTreeSet::new(),
            is_cached: &|_, _| false,
        };
        assert_eq!(choose(&segments(&rows[..3]), &situation, 51).len(), 2);
    }

    /// While the bound holds a half-dead segment is cleaned once its garbage has cost what moving the rest costs: in S3
    /// after twelve hours of quiet, in R2 after sixteen; a nearly empty one before, a nearly full one long after.
    #[test]
    fn what_has_cost_enough_is_cleaned_below_the_bound() {
        let rows = [(1, 50, 900), (2, 90, 900), (3, 20, 900)];
        for (kind, hours, expected) in [
            ("s3-standard", 2, [0; 0].as_slice()),
            ("s3-standard", 3, &[2]),
            ("s3-standard", 11, &[2]),
            ("s3-standard", 12, &[2, 1]),
            ("s3-standard", 44, &[2, 1]),
            ("s3-standard", 45, &[2, 1, 3]),
            ("r2", 15, &[2]),
            ("r2", 17, &[2, 1]),
        ] {
            assert_eq!(chosen(shipped(kind), false, HOUR * hours, &rows), expected, "{kind}, {hours} h");
        }
    }

    /// Through dear reading nothing is moved but what is cached or nearly empty, although the bound does not hold.
    #[test]
    fn dear_reading_comes_before_the_bound() {
        let rows = [(1, 50, 1), (2, 84, 1), (3, 86, 1), (8, 50, 1)];
        for kind in ["s3-standard-outside", "b2"] {
            for idle in [Duration::ZERO, HOUR * 24 * 365] {
                assert_eq!(chosen(shipped(kind), true, idle, &rows), [8, 3], "{kind}");
            }
        }
        assert_eq!(chosen(shipped("s3-standard"), true, HOUR, &rows).len(), 4);
    }

    /// Where an object is billed for a minimum of days it is left alone for so long, although the bound does not hold; then it
    /// is cleaned for that, and where moving costs anything as soon as it pays.
    #[test]
    fn what_is_billed_anyway_is_left_alone() {
        let rows = [(1, 90, 1), (2, 86, 1)];
        for (kind, days) in [("s3-ia", 30), ("r2-ia", 30), ("wasabi", 90)] {
            let after = |hours| HOUR * 24 * days + HOUR * hours - Duration::from_secs(1);
            assert_eq!(chosen(shipped(kind), true, after(0), &rows), [0; 0], "{kind}");
            assert_eq!(chosen(shipped(kind), true, after(1), &rows), [1, 2], "{kind}");
            let paying = if kind == "wasabi" { 0 } else { 2 };
            assert_eq!(chosen(shipped(kind), false, HOUR * 24 * 365, &rows).len(), paying, "{kind}");
        }
    }

    /// Where moving is free money tells nothing, since it always would pay: only the bound counts.
    #[test]
    fn where_money_does_not_tell_only_the_bound_counts() {
        // What is in the cache costs nothing to move where requests are free.
        assert_eq!(chosen(shipped("b2"), false, HOUR * 24 * 365, &[(8, 50, 1)]), [0; 0]);
    }
}
