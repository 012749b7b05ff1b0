//! How old is the oldest acknowledged byte that is not committed? Pure.
//!
//! Keeps one stamp per half second of writing, not one per write.

use std::{collections::VecDeque, time::Duration};

use crate::units::JournalPos;

/// Stamps closer together than this share one, so the age is exact to that much (on the old side).
const RESOLUTION: Duration = Duration::from_millis(500);
/// Stamps kept (half an hour of writing without a commit); whatever comes later counts as old as the last of them.
const STAMPS_MAX: usize = 4096;

/// Positions with the time from which on writing went on behind them.
#[derive(Debug, Default)]
pub struct Stamps {
    /// (position before the write, time of the write), ascending in both.
    stamps: VecDeque<(JournalPos, Duration)>,
}

impl Stamps {
    /// A write was appended at `at`.
    pub fn note(&mut self, at: JournalPos, now: Duration) {
        match self.stamps.back() {
            Some((_, last)) if now.saturating_sub(*last) < RESOLUTION => {}
            _ if self.stamps.len() >= STAMPS_MAX => {}
            _ => self.stamps.push_back((at, now)),
        }
    }

    /// Everything before `to` is committed; `appended` is the newest position.
    pub fn committed(&mut self, to: JournalPos, appended: JournalPos) {
        if to >= appended {
            self.stamps.clear();
            return;
        }
        // The stamp that covers `to` stays: later stamps begin behind it.
        while self.stamps.get(1).is_some_and(|(at, _)| *at <= to) {
            self.stamps.pop_front();
        }
    }

    /// When the oldest write at or behind `from` was made, at the latest.
    pub fn oldest_from(&self, from: JournalPos) -> Option<Duration> {
        let after = self.stamps.partition_point(|(at, _)| *at <= from);
        self.stamps.get(after.saturating_sub(1)).map(|(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The age counts from the first write that is not committed, and is forgotten once all are.
    #[test]
    fn age_follows_commits() {
        let mut stamps = Stamps::default();
        for n in 0..10 {
            stamps.note(JournalPos(n * 10), ms(n * 1000));
        }
        assert_eq!(stamps.oldest_from(JournalPos(0)), Some(ms(0)));
        assert_eq!(stamps.oldest_from(JournalPos(35)), Some(ms(3000)));
        stamps.committed(JournalPos(50), JournalPos(100));
        assert_eq!(stamps.oldest_from(JournalPos(50)), Some(ms(5000)));
        stamps.committed(JournalPos(100), JournalPos(100));
        assert_eq!(stamps.oldest_from(JournalPos(100)), None);
    }
}
