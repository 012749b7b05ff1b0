//! One direction of a link: when bytes leave it. Decides purely; whoever asks does the waiting.
//!
//! Bytes leave in the order in which they were reserved, one after the other at the given rate. Time
//! that passes while nothing is sent is lost, as on a real line: no credit is saved up.

use std::time::{Duration, Instant};

/// How late a waiting sender may be and still get the place it waited for. Bounds the burst that
/// follows when the machine stops for a while.
const LATE_MAX: Duration = Duration::from_millis(50);

/// The state of a direction.
#[derive(Debug, Default)]
pub struct Lane {
    free_at: Option<Instant>,
    carried_bytes: u64,
}

impl Lane {
    /// A place for `bytes`, which were there to be sent since `ready`: when the last of them leaves.
    pub fn reserve(&mut self, now: Instant, ready: Instant, bytes: u64, rate: Option<u64>) -> Instant {
        self.carried_bytes += bytes;
        let Some(rate) = rate else { return now };
        let oldest = now.checked_sub(LATE_MAX).unwrap_or(now);
        let ready = ready.clamp(oldest, now);
        let begin = self.free_at.map_or(ready, |free| free.max(ready));
        let leaves = begin + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        self.free_at = Some(leaves);
        leaves
    }

    pub fn carried_bytes(&self) -> u64 {
        self.carried_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Option<u64> = Some(1_000_000);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// All connections together get the rate, in order.
    #[test]
    fn senders_share_one_rate() {
        let mut lane = Lane::default();
        let start = Instant::now();
        assert_eq!(lane.reserve(start, start, 10_000, RATE), start + ms(10));
        assert_eq!(lane.reserve(start, start, 5_000, RATE), start + ms(15));
        let later = start + ms(7);
        assert_eq!(lane.reserve(later, later, 1_000, RATE), start + ms(16));
        assert_eq!(lane.carried_bytes(), 16_000);
    }

    /// A pause earns nothing: after it, bytes take as long as before.
    #[test]
    fn idle_time_is_not_saved() {
        let mut lane = Lane::default();
        let start = Instant::now();
        lane.reserve(start, start, 1_000, RATE);
        let later = start + ms(900);
        assert_eq!(lane.reserve(later, later, 1_000, RATE), later + ms(1));
    }

    /// Who waited for the lane and woke late loses nothing, up to a bound.
    #[test]
    fn late_wakers_catch_up() {
        let mut lane = Lane::default();
        let start = Instant::now();
        assert_eq!(lane.reserve(start, start, 10_000, RATE), start + ms(10));
        let woken = start + ms(20);
        assert_eq!(lane.reserve(woken, start + ms(5), 10_000, RATE), start + ms(20));
        let far = start + ms(500);
        assert_eq!(lane.reserve(far, start + ms(20), 10_000, RATE), far - LATE_MAX + ms(10));
    }

    /// Without a rate bytes leave at once, whatever was reserved before.
    #[test]
    fn no_limit_no_wait() {
        let mut lane = Lane::default();
        let start = Instant::now();
        lane.reserve(start, start, 60_000_000, RATE);
        assert_eq!(lane.reserve(start, start, 1 << 30, None), start);
    }
}
