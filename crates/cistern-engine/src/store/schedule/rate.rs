//! A bound of bytes per second: a bucket that is paid before a request starts, pure.
//!
//! A request may start while the bucket is not in debt, whatever it costs: so in any second at
//! most one second's worth, a twentieth more and one request begin, and in the long run exactly
//! the rate. Reads may start within a small debt, so that they come before whoever waits for the
//! debt to be paid.

use std::time::Duration;

/// What an idle bucket gathers, and what reads may overdraw it by: so much time's worth.
const SLACK: Duration = Duration::from_millis(50);
/// The longest wait that is told: whoever waits looks again then.
const WAIT_MAX: Duration = Duration::from_secs(60);
const NANOS_PER_S: i128 = 1_000_000_000;

/// The bucket of one direction.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Bytes per second.
    rate: Option<u64>,
    /// What is in it, in billionths of a byte: exact for any rate and any pause.
    level: i128,
    at: Duration,
}

impl Bucket {
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Sets the rate. A debt stays, and is paid at the new rate.
    pub(super) fn set(&mut self, now: Duration, rate: Option<u64>) {
        self.refill(now);
        self.rate = rate.map(|rate| rate.max(1));
        if self.rate.is_none() {
            self.level = 0;
        }
    }

    /// How long until a request may start; zero when it may.
    pub(super) fn wait(&mut self, now: Duration, is_read: bool) -> Duration {
        let Some(rate) = self.rate.map(i128::from) else { return Duration::ZERO };
        self.refill(now);
        let least = if is_read { -slack(rate) } else { 0 };
        match self.level < least {
            false => Duration::ZERO,
            true => {
                let nanos = (least - self.level + rate - 1) / rate;
                u64::try_from(nanos).map_or(WAIT_MAX, Duration::from_nanos).min(WAIT_MAX)
            }
        }
    }

    /// Takes what a request costs, or gives back where it cost less than it had paid.
    pub(super) fn pay(&mut self, bytes: i64) {
        if self.rate.is_some() {
            self.level -= i128::from(bytes) * NANOS_PER_S;
        }
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        if let Some(rate) = self.rate.map(i128::from) {
            self.level = (self.level + rate * passed.as_nanos() as i128).min(slack(rate));
        }
    }
}

fn slack(rate: i128) -> i128 {
    rate * SLACK.as_nanos() as i128
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Starts requests as early as they may for `time`; when, and how many bytes each.
    fn greedy(bucket: &mut Bucket, time: Duration, sizes: &[u64], reads: bool) -> Vec<(Duration, u64)> {
        let mut now = Duration::from_secs(5);
        let end = now + time;
        let mut started = Vec::new();
        for bytes in sizes.iter().cycle() {
            now += bucket.wait(now, reads);
            if now >= end {
                break;
            }
            assert_eq!(bucket.wait(now, reads), Duration::ZERO, "after the wait it may start");
            bucket.pay(*bytes as i64);
            started.push((now, *bytes));
        }
        started
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// In any second no more than the rate, its slack and one request begins, and over a
        /// minute the rate is used up.
        #[test]
        fn any_second_keeps_the_rate(
            rate in 100_000u64..50_000_000, sizes in prop::collection::vec(1_000u64..500_000, 1..20), reads: bool,
        ) {
            let mut bucket = Bucket::default();
            bucket.set(Duration::from_secs(5), Some(rate));
            let started = greedy(&mut bucket, Duration::from_secs(60), &sizes, reads);
            let (total, largest) = (started.iter().map(|s| s.1).sum::<u64>(), 500_000);
            prop_assert!(total + largest >= rate * 60, "{total} of {}", rate * 60);
            let mut first = 0;
            let mut sum = 0;
            for (now, bytes) in &started {
                sum += bytes;
                while started[first].0 + Duration::from_secs(1) <= *now {
                    sum -= started[first].1;
                    first += 1;
                }
                prop_assert!(sum <= rate * 111 / 100 + largest, "{sum} in a second at {rate}");
            }
        }
    }

    /// A body far larger than the rate starts when nothing is owed, and is paid off afterwards.
    #[test]
    fn large_bodies_are_paid_off() {
        let mut bucket = Bucket::default();
        let start = Duration::from_secs(1);
        bucket.set(start, Some(1_000_000));
        assert_eq!(bucket.wait(start, false), Duration::ZERO);
        bucket.pay(16_000_000);
        assert_eq!(bucket.wait(start, false), Duration::from_secs(16));
        assert_eq!(bucket.wait(start + Duration::from_secs(16), false), Duration::ZERO);
    }

    /// A changed rate counts at once, for a debt that exists too; without a rate nothing waits.
    #[test]
    fn rates_change_while_running() {
        let mut bucket = Bucket::default();
        let start = Duration::from_secs(1);
        bucket.set(start, Some(1_000_000));
        bucket.pay(10_000_000);
        bucket.set(start, Some(10_000_000));
        assert_eq!(bucket.wait(start, false), Duration::from_secs(1));
        bucket.set(start, None);
        assert_eq!(bucket.wait(start, false), Duration::ZERO);
    }

    /// A read starts within a small debt, before those that wait for it to be paid.
    #[test]
    fn reads_overdraw_a_little() {
        let mut bucket = Bucket::default();
        let now = Duration::from_secs(1);
        bucket.set(now, Some(1_000_000));
        bucket.pay(40_000);
        assert_eq!(bucket.wait(now, true), Duration::ZERO);
        assert_eq!(bucket.wait(now, false), Duration::from_millis(40));
        bucket.pay(40_000);
        assert_eq!(bucket.wait(now, true), Duration::from_millis(30));
    }

    /// What was paid too much comes back.
    #[test]
    fn refunds_count() {
        let mut bucket = Bucket::default();
        let now = Duration::from_secs(1);
        bucket.set(now, Some(1_000_000));
        bucket.pay(500_000);
        bucket.pay(-500_000);
        assert_eq!(bucket.wait(now, false), Duration::ZERO);
    }
}
