//! Bytes a second over the recent past. Pure.

use std::{collections::VecDeque, time::Duration};

/// Samples kept at most, whatever the settings.
const SAMPLES_MAX: usize = 256;

/// Amounts and when they came.
#[derive(Debug)]
pub struct Recent {
    /// (time, bytes); the first only marks where the measured time begins.
    samples: VecDeque<(Duration, u64)>,
    /// Sum of all but the first.
    bytes: u64,
    span: Duration,
    resolution: Duration,
    count_min: usize,
}

impl Recent {
    /// Looks back over `span`, or over `count_min` amounts where they come rarely. Amounts within
    /// `resolution` count as one.
    pub fn new(now: Duration, span: Duration, resolution: Duration, count_min: usize) -> Recent {
        debug_assert!((1..SAMPLES_MAX).contains(&count_min), "so many amounts are kept");
        Recent { samples: VecDeque::from([(now, 0)]), bytes: 0, span, resolution, count_min }
    }

    /// Forgets everything: measures from now on.
    pub fn restart(&mut self, now: Duration) {
        self.samples.clear();
        self.samples.push_back((now, 0));
        self.bytes = 0;
    }

    pub fn note(&mut self, now: Duration, bytes: u64) {
        self.bytes += bytes;
        let only_mark = self.samples.len() == 1;
        match self.samples.back_mut() {
            Some((at, sum)) if !only_mark && now.saturating_sub(*at) < self.resolution => *sum += bytes,
            _ => self.samples.push_back((now, bytes)),
        }
        while self.samples.len() > SAMPLES_MAX || self.may_forget(now) {
            self.samples.pop_front();
            let mark = self.samples.front().expect("one is always kept");
            self.bytes -= mark.1;
        }
        debug_assert!((2..=SAMPLES_MAX).contains(&self.samples.len()), "what just came is kept");
        debug_assert!(
            self.samples.back().is_some_and(|(_, newest)| *newest <= self.bytes),
            "the sum is of all that came behind the mark"
        );
    }

    /// Whether the measured time may begin one sample later.
    fn may_forget(&self, now: Duration) -> bool {
        self.samples.len() > self.count_min + 1
            && self.samples.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) > self.span)
    }

    /// Bytes a second; falls with the time that passes without any.
    pub fn bytes_per_s(&self, now: Duration) -> f64 {
        let time = now.saturating_sub(self.since()).max(self.resolution);
        match time.is_zero() {
            true => 0.0,
            false => self.bytes as f64 / time.as_secs_f64(),
        }
    }

    /// The mean time between two amounts.
    pub fn interval(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since()) / self.samples.len() as u32
    }

    /// When the last amount came.
    pub fn last(&self) -> Duration {
        self.samples.back().expect("one is always kept").0
    }

    fn since(&self) -> Duration {
        self.samples.front().expect("one is always kept").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A steady stream measures as what it is, and its end shows at once.
    #[test]
    fn measures_what_came() {
        let second = Duration::from_secs(1);
        let mut recent = Recent::new(Duration::ZERO, second * 4, Duration::from_millis(100), 2);
        for n in 1..100 {
            recent.note(second * n / 2, 50);
        }
        let end = second * 99 / 2;
        assert!((recent.bytes_per_s(end) - 100.0).abs() < 1.0);
        assert!(recent.bytes_per_s(end + second * 4) < 60.0);
        recent.restart(end);
        assert_eq!(recent.bytes_per_s(end + second), 0.0);
    }

    /// Rare lumps are measured over several of them, not over the span.
    #[test]
    fn rare_lumps_count() {
        let mut recent = Recent::new(Duration::ZERO, Duration::from_secs(4), Duration::ZERO, 4);
        for n in 1..20 {
            recent.note(Duration::from_secs(60 * n), 600);
        }
        assert!((recent.bytes_per_s(Duration::from_secs(60 * 19)) - 10.0).abs() < 0.1);
    }
}
