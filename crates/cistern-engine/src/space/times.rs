//! When the log was where, as far as this process has seen it.
//!
//! Pure. Invariant: what it says was so long ago at least.

use std::time::Duration;

use crate::units::Seq;

/// Marks that are kept. When there are more, every second one goes, and they are made half as often from then on.
const MARKS_MAX: usize = 1024;
/// Between marks, at first.
const APART: Duration = Duration::from_secs(60);

/// Entries, and when they were in the log at the latest.
#[derive(Debug)]
pub struct Times {
    /// Ascending in both. The first is what was the newest entry when the volume was opened, until it is forgotten.
    marks: Vec<(Seq, Duration)>,
    apart: Duration,
}

impl Times {
    pub fn new(newest: Seq, now: Duration) -> Times {
        Times { marks: vec![(newest, now)], apart: APART }
    }

    /// An entry is in the log now.
    pub fn note(&mut self, seq: Seq, now: Duration) {
        if self.marks.last().is_some_and(|&(last, _)| seq <= last) {
            return;
        }
        // The last one is where the log was last, however close that is to the one before.
        if let [.., (_, before), last] = self.marks.as_mut_slice()
            && last.1.saturating_sub(*before) < self.apart
        {
            *last = (seq, now);
            return;
        }
        if self.marks.len() >= MARKS_MAX {
            let mut n = 0;
            self.marks.retain(|_| {
                n += 1;
                n % 2 == 0 // the last of them stays
            });
            self.apart *= 2;
        }
        self.marks.push((seq, now));
    }

    /// How long an entry has been in the log at least.
    pub fn since(&self, seq: Seq, now: Duration) -> Duration {
        let later = self.marks.partition_point(|&(mark, _)| mark < seq);
        self.marks.get(later).map_or(Duration::ZERO, |&(_, at)| now.saturating_sub(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// What was there before counts from the opening, what came later from when it was noted, or the next after it; what
    /// is not known yet is new.
    #[test]
    fn entries_are_as_old_as_was_seen() {
        let mut times = Times::new(Seq(10), at(100));
        times.note(Seq(20), at(200));
        times.note(Seq(20), at(250));
        times.note(Seq(30), at(300));
        let since = |seq| times.since(Seq(seq), at(1000)).as_secs();
        assert_eq!([1, 10, 11, 20, 30, 31].map(since), [900, 900, 800, 800, 700, 0]);
    }

    /// Memory is bounded, and what is forgotten only makes entries look younger.
    #[test]
    fn forgetting_makes_younger() {
        let mut times = Times::new(Seq(0), at(0));
        for n in 1..100_000 {
            times.note(Seq(n), at(n));
            assert!(times.marks.len() <= MARKS_MAX);
        }
        let now = at(100_000);
        for n in (0..100_000).step_by(101) {
            let (said, is) = (times.since(Seq(n), now), now - at(n));
            assert!(said <= is && is - said < at(300), "{n}: {said:?} instead of {is:?}");
        }
        assert_eq!(times.since(Seq(99_999), now), at(1));
    }
}
