//! Requests in flight, and how long they have been so, in one atomic word.
//!
//! The low bits count them, the high bits hold the sum of their beginnings, modulo the width. So one
//! addition begins a request, one subtraction ends it, and one load gives both figures of the same
//! moment: n requests that began at b1..bn have waited n * now - (b1 + .. + bn) together.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Bits that count: a million requests, many times what the sessions of a daemon admit.
const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// A unit of the beginnings is 2^14 ns = 16 us: 44 bits hold four years of waiting.
const UNIT_BITS: u32 = 14;

#[derive(Default)]
pub struct Pending(AtomicU64);

impl Pending {
    /// A request begins; what it gives ends it.
    pub fn begin(&self, now: Duration) -> u64 {
        let token = (units(now) << COUNT_BITS) | 1;
        let before = self.0.fetch_add(token, Relaxed);
        debug_assert!(before & COUNT_MASK < COUNT_MASK, "the count has room for all that are in flight");
        token
    }

    pub fn end(&self, token: u64) {
        let before = self.0.fetch_sub(token, Relaxed);
        debug_assert!(before & COUNT_MASK > 0, "a request ends once");
    }

    /// How many are in flight, and how long they have been so together.
    pub fn snapshot(&self, now: Duration) -> (u64, Duration) {
        let word = self.0.load(Relaxed);
        let count = word & COUNT_MASK;
        let waited = count.wrapping_mul(units(now)).wrapping_sub(word >> COUNT_BITS);
        // Signed, in the width of the sum: a request may have begun after `now` was taken.
        let waited = (waited << COUNT_BITS) as i64 >> COUNT_BITS;
        (count, Duration::from_nanos((waited.max(0) as u64) << UNIT_BITS))
    }
}

/// Modulo 2^64, of which only the lower bits are kept.
fn units(time: Duration) -> u64 {
    (time.as_nanos() >> UNIT_BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten years after the fixed point of the clock, a thousand requests are still told exactly, and
    /// nothing is left when they end.
    #[test]
    fn counts_and_waits_are_exact() {
        let unit = Duration::from_nanos(1 << UNIT_BITS);
        let start = Duration::from_secs(10 * 365 * 86_400);
        let pending = Pending::default();
        let tokens: Vec<u64> = (0..1000).map(|i| pending.begin(start + unit * i)).collect();
        let now = start + unit * 1000;
        assert_eq!(pending.snapshot(now), (1000, unit * (1000 * 1001 / 2)));
        tokens.into_iter().rev().for_each(|token| pending.end(token));
        assert_eq!(pending.snapshot(now), (0, Duration::ZERO));
    }

    /// A request that began after the clock was read has not waited.
    #[test]
    fn the_future_has_not_waited() {
        let pending = Pending::default();
        pending.begin(Duration::from_secs(5));
        assert_eq!(pending.snapshot(Duration::from_secs(1)), (1, Duration::ZERO));
    }
}
