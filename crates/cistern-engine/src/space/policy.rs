//! How much may be stored for what is live: as the user says, or what is cheapest at the rate at which clients overwrite.
//!
//! Pure: told of times and counters, and gives the ratio and the prices that count now (`docs/design/prices.md`).

use std::time::Duration;

use crate::price::{DAYS_PER_MONTH, Tariff};

/// Stored bytes per live byte that suit everybody who has no reason for others.
pub const SPACE_BOUND: f64 = 1.3;

const DAY_S: f64 = 86_400.0;
const MONTH_S: f64 = DAYS_PER_MONTH * DAY_S;
/// What clients read is not counted, and theirs is as much of what may be read freely as the cleaner's.
const READERS: f64 = 2.0;

/// Stored bytes per live byte that the cleaner lets be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// What is cheapest, by the prices of the store and the rate at which clients write.
    Auto,
    /// Infinite: nothing is cleaned.
    Ratio(f64),
}

/// What the user wants of the cleaner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cleaning {
    pub bound: Bound,
    /// Bytes a second that it moves by itself at the most; `None` for as many as there is room for.
    pub rate: Option<u64>,
}

impl From<Bound> for Cleaning {
    fn from(bound: Bound) -> Cleaning {
        Cleaning { bound, rate: None }
    }
}

/// What was counted since the volume was opened, and what there is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub written_bytes: u64,
    pub moved_bytes: u64,
    pub live_bytes: u64,
    pub stored_bytes: u64,
}

/// The bound of one volume, and what it follows from.
#[derive(Clone, Debug)]
pub struct Policy {
    bound: Bound,
    /// As the table has it.
    tariff: Tariff,
    /// How often what is live is overwritten in a month, over the last day or so.
    overwrites_per_month: f64,
    /// What was moved in the last month or so: that much was read at most.
    moved_bytes: f64,
    /// The bytes counted so far, and when.
    counted: Measured,
    counted_at: Duration,
}

impl Policy {
    /// Nothing was measured: the rate is the one at which [`SPACE_BOUND`] is cheapest.
    pub fn new(bound: Bound, tariff: Tariff, now: Duration) -> Policy {
        let counted = Measured::default();
        let mut policy =
            Policy { bound, tariff, overwrites_per_month: 0.0, moved_bytes: 0.0, counted, counted_at: now };
        if tells(&tariff) {
            policy.overwrites_per_month = policy.tariff().overwrites_at(SPACE_BOUND);
        }
        policy
    }

    pub fn set(&mut self, bound: Bound) {
        self.bound = bound;
    }

    /// Takes the counters of this moment. While nothing is known to be live, or no time has passed, it waits for the next.
    pub fn measure(&mut self, now: Duration, measured: Measured) {
        let passed_s = now.saturating_sub(self.counted_at).as_secs_f64();
        if measured.live_bytes == 0 || passed_s == 0.0 {
            return;
        }
        let grown = |of: fn(&Measured) -> u64| of(&measured).saturating_sub(of(&self.counted)) as f64;
        let (written, moved) = (grown(|m| m.written_bytes), grown(|m| m.moved_bytes));
        let rate = written / measured.live_bytes as f64 * MONTH_S / passed_s;
        let kept = (-passed_s / DAY_S).exp();
        self.overwrites_per_month = self.overwrites_per_month * kept + rate * (1.0 - kept);
        self.moved_bytes = self.moved_bytes * (-passed_s / MONTH_S).exp() + moved;
        (self.counted, self.counted_at) = (measured, now);
    }

    /// The prices that count now: reading costs nothing until the cleaner has used up its part of what is free.
    pub fn tariff(&self) -> Tariff {
        self.tariff.after(self.counted.stored_bytes.max(1), (self.moved_bytes * READERS) as u64)
    }

    /// Stored bytes per live byte that are let be now.
    pub fn ratio(&self) -> f64 {
        match self.bound {
            Bound::Ratio(ratio) => ratio,
            Bound::Auto if tells(&self.tariff) => self.tariff().best_ratio(self.overwrites_per_month),
            Bound::Auto => SPACE_BOUND,
        }
    }

    pub fn is_auto(&self) -> bool {
        self.bound == Bound::Auto
    }

    pub fn overwrites_per_month(&self) -> f64 {
        self.overwrites_per_month
    }
}

/// Whether money says anything: not where moving or holding is free.
fn tells(tariff: &Tariff) -> bool {
    tariff.storage_per_gib_month > 0.0 && tariff.moving_per_gib() > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::{PriceTable, RATIO_MAX, RATIO_MIN};

    const HOUR: Duration = Duration::from_secs(3600);
    const GIB: u64 = 1 << 30;

    fn shipped(kind: &str) -> Tariff {
        PriceTable::shipped().kind(kind).expect("it is shipped").tariff
    }

    fn auto(kind: &str) -> Policy {
        Policy::new(Bound::Auto, shipped(kind), Duration::ZERO)
    }

    /// Writes 100 GiB of live data so many times a month, for so many days, with a look every hour.
    fn overwrite(policy: &mut Policy, per_month: f64, days: u32) {
        let (from, before) = (policy.counted_at, policy.counted.written_bytes);
        for hour in 1..=24 * days {
            let months = f64::from(hour) / 24.0 / DAYS_PER_MONTH;
            let written = (per_month * months * 100.0 * GIB as f64) as u64;
            let measured = Measured {
                written_bytes: before + written,
                live_bytes: 100 * GIB,
                stored_bytes: 130 * GIB,
                ..policy.counted
            };
            policy.measure(from + HOUR * hour, measured);
        }
    }

    fn assert_near(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 0.01, "{actual} is not {expected}");
    }

    /// Before anything is known the bound is the one that suits everybody, whatever the store charges.
    #[test]
    fn it_begins_with_what_suits_everybody() {
        for (kind, _) in PriceTable::shipped().kinds() {
            assert_near(auto(kind).ratio(), SPACE_BOUND);
        }
        assert_eq!(Policy::new(Bound::Auto, Tariff::default(), HOUR).ratio(), SPACE_BOUND);
    }

    /// After some days at a rate the bound is the best ratio at that rate, as the design has it, within its limits.
    #[test]
    fn it_becomes_the_best_ratio_at_the_rate_of_the_writes() {
        for (kind, expected) in [
            ("s3-standard", [1.09, 1.27, RATIO_MAX]),
            ("s3-express", [1.13, 1.41, RATIO_MAX]),
            ("r2", [1.10, 1.32, RATIO_MAX]),
            ("gcs-standard", [1.09, 1.29, RATIO_MAX]),
            ("b2", [RATIO_MIN, 1.15, 1.45]),
            ("s3-standard-outside", [RATIO_MAX; 3]),
            ("own-disks", [1.16, 1.49, RATIO_MAX]),
        ] {
            for (rate, expected) in [1.0, 10.0, 100.0].into_iter().zip(expected) {
                let mut policy = auto(kind);
                overwrite(&mut policy, rate, 10);
                assert!((policy.overwrites_per_month() / rate - 1.0).abs() < 0.01, "{policy:?}");
                assert_near(policy.ratio(), expected);
            }
        }
    }

    /// The rate follows over a day: an hour of much changes little, and it does not matter how often it is looked at.
    #[test]
    fn the_rate_follows_over_a_day() {
        let mut policy = auto("s3-standard");
        overwrite(&mut policy, 10.0, 10);
        let mut once = policy.clone();
        overwrite(&mut policy, 40.0, 1);
        let day = Measured {
            written_bytes: policy.counted.written_bytes,
            live_bytes: 100 * GIB,
            stored_bytes: 130 * GIB,
            moved_bytes: 0,
        };
        once.measure(policy.counted_at, day);
        assert_near(policy.overwrites_per_month(), 40.0 - 30.0 / std::f64::consts::E);
        assert_near(once.overwrites_per_month(), policy.overwrites_per_month());
        overwrite(&mut policy, 0.0, 10);
        assert_eq!(policy.ratio(), RATIO_MIN, "a volume at rest has no reason for garbage");
    }

    /// What is not known to be live says nothing of how often it is overwritten; what was written meanwhile counts later.
    #[test]
    fn unknown_is_not_measured() {
        let mut policy = auto("s3-standard");
        let mut measured = Measured { written_bytes: GIB, ..Measured::default() };
        policy.measure(HOUR, measured);
        assert_near(policy.ratio(), SPACE_BOUND);
        measured.live_bytes = GIB;
        policy.measure(Duration::ZERO, measured);
        assert_near(policy.ratio(), SPACE_BOUND);
        policy.measure(HOUR * 24 * 30, measured);
        assert_near(policy.overwrites_per_month(), DAYS_PER_MONTH / 30.0);
    }

    /// A user's own ratio counts, at any rate; and is free to change.
    #[test]
    fn the_users_ratio_counts() {
        let mut policy = auto("s3-standard");
        policy.set(Bound::Ratio(1.2));
        overwrite(&mut policy, 100.0, 10);
        assert_eq!((policy.ratio(), policy.is_auto()), (1.2, false));
        policy.set(Bound::Auto);
        assert_eq!((policy.ratio(), policy.is_auto()), (RATIO_MAX, true));
    }

    /// Where a part may be read freely the cleaner takes half of it in a month, and then reading is dear until that is over.
    #[test]
    fn half_of_what_may_be_read_freely_is_the_cleaners() {
        let mut policy = auto("b2");
        let mut measured = Measured { live_bytes: 100 * GIB, stored_bytes: 100 * GIB, ..Measured::default() };
        for (day, moved_gib, is_dear) in [(1, 140, false), (2, 170, true), (30, 170, false)] {
            measured.moved_bytes = moved_gib * GIB;
            policy.measure(HOUR * 24 * day, measured);
            assert_eq!(policy.tariff().reading_is_dear(), is_dear, "day {day}");
        }
    }
}
