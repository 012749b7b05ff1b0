//! How much store is best: write amplification against space, for overwrites that hit every block alike.
//!
//! The model (`docs/design/prices.md`): a segment is cleaned when each block was overwritten y times on average since
//! it was written. Then e^-y of a victim is live, so a GiB of room takes 1 / (1 - e^-y) GiB written, and of each live
//! block y / (1 - e^-y) copies lie in the store. Both follow from y, and y from either.

use super::tariff::Tariff;

/// The least ratio of store to live data that is aimed at: below it write amplification exceeds ten.
pub const RATIO_MIN: f64 = 1.05;
/// The greatest one: what more would save costs a user half the store again.
pub const RATIO_MAX: f64 = 1.5;

/// Where the search for y ends: a store of 64 times what is live.
const OVERWRITES_MAX: f64 = 64.0;
const _: () = assert!(1.0 < RATIO_MIN && RATIO_MIN <= RATIO_MAX, "a store has more than what is live");

/// Bytes written to the store for each byte of new data, when the store is held at `ratio` times what is live and
/// overwrites hit every block alike. Falls with the ratio towards 1; infinite at 1 and below.
pub fn write_amplification(ratio: f64) -> f64 {
    if ratio.is_nan() || ratio <= 1.0 {
        return f64::INFINITY;
    }
    1.0 / freed(solve(ratio, |y| y / freed(y)))
}

impl Tariff {
    /// The ratio of store to live data at which storage and cleaning together cost least, at so many overwrites of all
    /// live data a month. From 1 (cleaning is free) to 64.
    ///
    /// Minimises s y / (1 - e^-y) + r (c_r + e^-y c_w) / (1 - e^-y): the derivative is zero where
    /// e^y - 1 - y = r (c_r(1) + c_w) / s.
    pub fn cheapest_ratio(&self, overwrites_per_month: f64) -> f64 {
        let moving = overwrites_per_month.max(0.0) * self.moving_per_gib();
        let y = match (moving, self.storage_per_gib_month) {
            (moving, _) if moving.is_nan() || moving == 0.0 => return 1.0,
            (moving, storage) => solve(moving / storage, |y| y.exp_m1() - y),
        };
        (y / freed(y)).max(1.0)
    }

    /// The other way round: how many overwrites a month make `ratio` the cheapest one. Infinite where moving is free.
    pub fn overwrites_at(&self, ratio: f64) -> f64 {
        let y = solve(ratio, |y| y / freed(y));
        match (self.storage_per_gib_month * (y.exp_m1() - y), self.moving_per_gib()) {
            (0.0, _) => 0.0,
            (holding, moving) => holding / moving,
        }
    }

    /// [`Tariff::cheapest_ratio`] within what is reasonable: [`RATIO_MIN`] to [`RATIO_MAX`].
    pub fn best_ratio(&self, overwrites_per_month: f64) -> f64 {
        self.cheapest_ratio(overwrites_per_month).clamp(RATIO_MIN, RATIO_MAX)
    }
}

/// The dead share of a victim whose blocks were overwritten y times on average: 1 - e^-y.
fn freed(y: f64) -> f64 {
    -(-y).exp_m1()
}

/// Where a rising function reaches `goal`, at most [`OVERWRITES_MAX`].
fn solve(goal: f64, rising: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, OVERWRITES_MAX);
    // Halving 64 steps leaves neighbouring numbers.
    for _ in 0..64 {
        let middle = low + (high - low) / 2.0;
        match rising(middle) < goal {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}
