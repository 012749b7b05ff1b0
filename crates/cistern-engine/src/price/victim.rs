//! One segment before the cleaner: what moving its live blocks costs, what that saves, and what rules forbid.
//!
//! The score is the cost-benefit rule of Rosenblum and Ousterhout (LFS, SOSP 1991) in money.

use std::{cmp::Ordering, time::Duration};

use super::{DAYS_PER_MONTH, SECONDS_PER_DAY, tariff::Tariff};

/// Through dear reading only segments are cleaned of which less than this share would be read: each byte paid for frees
/// more than five.
pub const LIVE_MAX_DEAR: f64 = 0.15;

/// A segment that may be cleaned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Live bytes per byte of the segment (u), what snapshots hold included. What is no number counts as 1.
    pub live: f64,
    /// The part of the live bytes that need not be read from the store. What is no number counts as 0.
    pub cached: f64,
    /// Since its last block died (tau): how long what is dead would probably have stayed.
    pub idle: Duration,
    /// Since it was uploaded.
    pub age: Duration,
}

/// What is to be done with a victim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Worth {
    /// It is billed for so long whatever is done: neither delete nor clean. Until then its garbage costs nothing.
    Free { left: Duration },
    /// Nothing in it is live: delete it, without reading.
    Delete,
    /// Reading what is live costs too much, whatever the space.
    Dear,
    /// Moving costs less than holding the garbage as long as it would probably stay.
    Pays,
    /// It does not pay yet: only for the bound on space.
    Wait,
}

impl Candidate {
    fn live(&self) -> f64 {
        if self.live.is_nan() { 1.0 } else { self.live.clamp(0.0, 1.0) }
    }

    /// The share of the segment that is live and in no cache.
    fn fetched(&self) -> f64 {
        let cached = if self.cached.is_nan() { 0.0 } else { self.cached.clamp(0.0, 1.0) };
        self.live() * (1.0 - cached)
    }

    /// $ per GiB of the segment for moving what is live: c_r + u c_w. A segment without anything live is not read; what
    /// is cached saves its part of the requests and of the transfer.
    pub fn cost(&self, tariff: &Tariff) -> f64 {
        match self.live() {
            0.0 => 0.0,
            live => tariff.read_per_gib(live) * (self.fetched() / live) + live * tariff.write_per_gib(),
        }
    }

    /// $ per GiB of the segment and month for keeping what is dead: (1 - u) s.
    fn garbage_per_month(&self, tariff: &Tariff) -> f64 {
        (1.0 - self.live()) * tariff.storage_per_gib_month
    }

    /// What holding the garbage costs per what moving the rest costs: (1 - u) tau s / (c_r + u c_w). Not negative;
    /// infinite where moving is free.
    pub fn score(&self, tariff: &Tariff) -> f64 {
        ratio(self.garbage_per_month(tariff) * self.idle_months(), self.cost(tariff))
    }

    fn idle_months(&self) -> f64 {
        self.idle.as_secs_f64() / (SECONDS_PER_DAY * DAYS_PER_MONTH)
    }

    pub fn pays(&self, tariff: &Tariff) -> bool {
        self.score(tariff) > 1.0
    }

    /// Months until what cleaning saves has paid for it: (c_r + u c_w) / ((1 - u) s). Infinite where nothing is saved.
    pub fn payback_months(&self, tariff: &Tariff) -> f64 {
        match self.garbage_per_month(tariff) {
            0.0 => f64::INFINITY,
            saved => self.cost(tariff) / saved,
        }
    }

    /// How long it is billed yet even if it is deleted now.
    pub fn billed_for(&self, tariff: &Tariff) -> Duration {
        tariff.least_duration().saturating_sub(self.age)
    }

    /// What is to be done with it, by all rules.
    pub fn worth(&self, tariff: &Tariff) -> Worth {
        let left = self.billed_for(tariff);
        match self {
            _ if !left.is_zero() => Worth::Free { left },
            _ if self.live() == 0.0 => Worth::Delete,
            _ if tariff.reading_is_dear() && self.fetched() >= LIVE_MAX_DEAR => Worth::Dear,
            _ if self.pays(tariff) => Worth::Pays,
            _ => Worth::Wait,
        }
    }

    /// Which is cleaned first: the higher score. Where money does not tell (both free, or nothing saved), LFS does,
    /// in which reading and writing cost the same: (1 - u) tau / (1 + u), and in the end the emptier one.
    pub fn before(&self, other: &Candidate, tariff: &Tariff) -> Ordering {
        let plain = |victim: &Candidate| (1.0 - victim.live()) * victim.idle_months() / (1.0 + victim.live());
        (other.score(tariff).total_cmp(&self.score(tariff)))
            .then_with(|| plain(other).total_cmp(&plain(self)))
            .then_with(|| self.live().total_cmp(&other.live()))
    }
}

/// A ratio of two amounts that are not negative; nothing per nothing is nothing.
fn ratio(gain: f64, cost: f64) -> f64 {
    if gain == 0.0 { 0.0 } else { gain / cost }
}
