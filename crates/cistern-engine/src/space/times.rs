//! When the log was where, by the clocks of the hosts that wrote it.
//!
//! Pure. Checkpoints keep it, so it is known over restarts how old a segment is, and how long none of its blocks has died.
//! Only costs follow from it: a clock that was wrong has something cleaned early or late.
//! Invariants: marks ascend in both, and are never more than a checkpoint may have; an entry has been there for as long as it says at least, if clocks were right.

use std::time::Duration;

use crate::{log::checkpoint::TIMES_MAX, units::Seq};

/// Marks that are kept. What is long ago is known less exactly than what was just now.
const MARKS_MAX: usize = 128;
const _: () = assert!(MARKS_MAX <= TIMES_MAX, "a checkpoint that has more is not read");
/// Between marks.
const APART: Duration = Duration::from_secs(60);

/// Entries, and when they were in the log at the latest, since 1970.
#[derive(Clone, Debug)]
pub struct Times {
    /// Not empty. Of everything before the first it is known that it is as old.
    marks: Vec<(Seq, Duration)>,
}

impl Times {
    /// What a checkpoint says, in seconds since 1970, and that `newest` is in the log now. What is later than now was said by
    /// a clock that ran ahead.
    pub fn new(stored: &[(Seq, u64)], newest: Seq, now: Duration) -> Times {
        let stored = stored.iter().map(|&(seq, s)| (seq, Duration::from_secs(s)));
        let mut times = Times { marks: stored.filter(|&(seq, at)| seq < newest && at <= now).collect() };
        times.push(newest, now);
        times
    }

    /// An entry is in the log now.
    pub fn note(&mut self, seq: Seq, now: Duration) {
        let now = now.max(self.marks.last().map_or(Duration::ZERO, |mark| mark.1));
        if self.marks.last().is_some_and(|&(last, _)| seq <= last) {
            return;
        }
        // The last one is where the log was last, however close that is to the one before.
        if let [.., (_, before), last] = self.marks.as_mut_slice()
            && last.1.saturating_sub(*before) < APART
        {
            *last = (seq, now);
            return;
        }
        self.push(seq, now);
    }

    fn push(&mut self, seq: Seq, now: Duration) {
        self.marks.push((seq, now));
        while self.marks.len() > MARKS_MAX {
            self.marks.remove(self.least_telling(now));
        }
        debug_assert!(
            self.marks.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "marks ascend in entries and in time"
        );
    }

    /// The mark without which ages change least, as parts of themselves; not the first and not the last.
    fn least_telling(&self, now: Duration) -> usize {
        let loss = |n: usize| {
            let gap = self.marks[n + 1].1.saturating_sub(self.marks[n - 1].1);
            gap.as_secs_f64() / now.saturating_sub(self.marks[n].1).as_secs_f64().max(1.0)
        };
        let inner = 1..self.marks.len() - 1;
        inner.min_by(|&a, &b| loss(a).total_cmp(&loss(b))).expect("there are many")
    }

    /// How long an entry has been in the log at least.
    pub fn since(&self, seq: Seq, now: Duration) -> Duration {
        let later = self.marks.partition_point(|&(mark, _)| mark < seq);
        self.marks.get(later).map_or(Duration::ZERO, |&(_, at)| now.saturating_sub(at))
    }

    /// The newest entry of which it is known that it has been in the log for so long.
    pub fn older_than(&self, age: Duration, now: Duration) -> Seq {
        let older = self.marks.partition_point(|&(_, at)| now.saturating_sub(at) >= age);
        older.checked_sub(1).map_or(Seq(0), |last| self.marks[last].0)
    }

    /// For a checkpoint, in seconds.
    pub fn stored(&self) -> Vec<(Seq, u64)> {
        // The next second: an entry is never told to be older than it is.
        self.marks.iter().map(|&(seq, at)| (seq, at.as_millis().div_ceil(1000) as u64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// What was there before counts from the first mark, what came later from when it was noted, or the next after it; what
    /// is not known yet is new. It is the same after it was stored, but for what was later than the clock of who reads it.
    #[test]
    fn entries_are_as_old_as_was_seen() {
        let mut times = Times::new(&[], Seq(10), at(100));
        times.note(Seq(20), at(200));
        times.note(Seq(20), at(250));
        times.note(Seq(30), at(300));
        let since = |times: &Times, seq| times.since(Seq(seq), at(1000)).as_secs();
        assert_eq!([1, 10, 11, 20, 30, 31].map(|seq| since(&times, seq)), [900, 900, 800, 800, 700, 0]);
        let again = Times::new(&times.stored(), Seq(40), at(900));
        assert_eq!([1, 10, 20, 30, 40, 41].map(|seq| since(&again, seq)), [900, 900, 800, 700, 100, 0]);
        let behind = Times::new(&times.stored(), Seq(40), at(250));
        assert_eq!([1, 20, 30, 40].map(|seq| since(&behind, seq)), [900, 800, 750, 750]);
        let older = |age| times.older_than(at(age), at(1000)).0;
        assert_eq!([699, 700, 701, 800, 801, 900, 901].map(older), [30, 30, 20, 20, 10, 10, 0]);
    }

    /// Memory is bounded, and what is forgotten only makes entries look younger: by a tenth of their age, or a few minutes.
    #[test]
    fn forgetting_makes_younger() {
        let mut times = Times::new(&[], Seq(0), at(0));
        for n in 1..1_000_000 {
            times.note(Seq(n), at(n));
            assert!(times.marks.len() <= MARKS_MAX);
        }
        let now = at(1_000_000);
        for n in (0..1_000_000).step_by(101) {
            let (said, is) = (times.since(Seq(n), now), now - at(n));
            assert!(said <= is && is - said < at(200) + is / 8, "{n}: {said:?} instead of {is:?}");
        }
        assert_eq!(times.since(Seq(999_999), now), at(1));
    }

    /// However often a volume is opened, marks stay as few as a checkpoint may have: one that had more would not be read.
    #[test]
    fn openings_add_no_marks() {
        let mut times = Times::new(&[], Seq(0), at(0));
        for n in 1..2000 {
            times = Times::new(&times.stored(), Seq(2 * n), at(200 * n));
            times.note(Seq(2 * n + 1), at(200 * n + 100));
            assert!(times.stored().len() <= MARKS_MAX, "after {n} openings");
        }
    }

    /// A clock that is set back does not bring marks out of order.
    #[test]
    fn time_does_not_go_back() {
        let mut times = Times::new(&[], Seq(1), at(1000));
        times.note(Seq(2), at(500));
        times.note(Seq(3), at(2000));
        assert!(times.stored().is_sorted());
        assert_eq!(times.since(Seq(2), at(2000)), at(0).max(times.since(Seq(3), at(2000))));
    }
}
