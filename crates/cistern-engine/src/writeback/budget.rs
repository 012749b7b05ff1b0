//! The bytes that may be sealed by now, at the rate the controller sets. Pure.

use std::time::Duration;

/// A budget that fills with time and is spent by segments.
#[derive(Debug)]
pub struct Budget {
    /// May be below zero: a segment is sealed whole.
    left_bytes: f64,
    filled: Duration,
}

/// Time of unused rate that is kept.
const KEPT: Duration = Duration::from_secs(1);

impl Budget {
    /// Room for a first segment at once.
    pub fn new(now: Duration) -> Budget {
        Budget { left_bytes: 0.0, filled: now }
    }

    /// Fills up to `now`. Of an unused rate what is kept suffices for a segment in any case, and the deepest debt is a range
    /// in any case: what had to be sealed at once is not held against what comes later.
    pub fn fill(&mut self, now: Duration, rate_bytes_per_s: f64, segment_bytes: u64, range_bytes: u64) {
        debug_assert!(rate_bytes_per_s >= 0.0, "a rate is a number: {rate_bytes_per_s}");
        debug_assert!(segment_bytes <= range_bytes, "a range fills a segment at least");
        debug_assert!(self.filled <= now, "no time is counted twice");
        let time_s = now.saturating_sub(self.filled).as_secs_f64();
        self.filled = now;
        let kept_bytes = rate_bytes_per_s * KEPT.as_secs_f64();
        let (debt, most) = (kept_bytes.max(range_bytes as f64), kept_bytes.max(segment_bytes as f64));
        self.left_bytes = (self.left_bytes + rate_bytes_per_s * time_s).clamp(-debt, most);
    }

    pub fn spend(&mut self, bytes: u64) {
        self.left_bytes -= bytes as f64;
    }

    /// Time until the next segment may be sealed.
    pub fn wait(&self, rate_bytes_per_s: f64) -> Duration {
        if self.left_bytes >= 0.0 {
            return Duration::ZERO;
        }
        // Rounded up, or a timer might come just too early again and again.
        Duration::try_from_secs_f64(-self.left_bytes / rate_bytes_per_s)
            .map_or(Duration::MAX, |wait| wait + Duration::from_micros(1))
    }

    /// Whether sealing keeps up: it does not while a segment could be sealed and is not.
    pub fn keeps_up(&self, segment_bytes: u64) -> bool {
        self.left_bytes < segment_bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 16 << 20;
    const RANGE: u64 = 4 * SEGMENT;

    /// Segments are sealed at the rate, one at a time, and a pause is not made up for.
    #[test]
    fn spends_at_the_rate() {
        let rate = (8 << 20) as f64;
        let mut budget = Budget::new(Duration::ZERO);
        assert_eq!(budget.wait(rate), Duration::ZERO);
        budget.spend(SEGMENT);
        assert_eq!(budget.wait(rate).as_secs(), 2);
        budget.fill(Duration::from_secs(3600), rate, SEGMENT, RANGE);
        assert!(!budget.keeps_up(SEGMENT));
        budget.spend(SEGMENT);
        budget.spend(SEGMENT);
        assert_eq!(budget.wait(rate).as_secs(), 2);
    }

    /// What had to go at once leaves a debt of one range, not of all of it.
    #[test]
    fn debt_is_bounded() {
        let rate = (1 << 20) as f64;
        let mut budget = Budget::new(Duration::ZERO);
        (0..100).for_each(|_| budget.spend(SEGMENT));
        budget.fill(Duration::ZERO, rate, SEGMENT, RANGE);
        assert_eq!(budget.wait(rate).as_secs(), 64);
    }
}
