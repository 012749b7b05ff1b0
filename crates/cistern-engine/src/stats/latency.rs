//! A histogram of latencies with a bounded relative error, from 1 us to more than an hour.
//!
//! Four buckets per power of two: a bucket's bounds differ by at most a quarter, so a percentile
//! taken from it is never too low and at most 25 % too high. Bounds are inclusive above and are
//! whole microseconds, every power of two among them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Buckets per power of two, as a power of two.
const SUB_BITS: u32 = 2;
const SUB: u64 = 1 << SUB_BITS;
/// Microseconds up to which latencies are told apart, as a power of two: 71 minutes.
const TOP_BITS: u32 = 32;
const BUCKETS: usize = ((TOP_BITS - SUB_BITS + 1) << SUB_BITS) as usize;

/// Counts latencies.
pub struct Latencies {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Latencies that were at most `up_to_us` and more than the bound of the bucket below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBucket {
    pub up_to_us: u64,
    pub count: u64,
}

/// A histogram at one moment, or of the time between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStats {
    pub count: u64,
    pub sum_us: u64,
    pub max_us: u64,
    /// What half of the requests, 95 %, 99 % and 99.9 % did not exceed: never too low, at most 25 %
    /// too high. `None` without requests.
    pub p50_us: Option<u64>,
    pub p95_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub p999_us: Option<u64>,
    /// Ascending, without the empty ones. The last possible bucket holds all that took longer.
    pub buckets: Vec<LatencyBucket>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        Latencies { buckets, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }
}

impl Latencies {
    pub fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = index(ns.div_ceil(1000));
        debug_assert!(
            ns.div_ceil(1000) <= upper_us(bucket) || bucket == BUCKETS - 1,
            "a bucket has what is not above its bound"
        );
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        // Nearly always just this load: a maximum is rarely beaten.
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }

    pub fn snapshot(&self) -> LatencyStats {
        let buckets: Vec<LatencyBucket> = (0..BUCKETS)
            .map(|i| LatencyBucket { up_to_us: upper_us(i), count: self.buckets[i].load(Relaxed) })
            .filter(|bucket| bucket.count > 0)
            .collect();
        let sum_us = self.sum_ns.load(Relaxed) / 1000;
        LatencyStats::of(buckets, sum_us, self.max_ns.load(Relaxed).div_ceil(1000))
    }
}

/// The bucket of a latency in whole microseconds, rounded up.
fn index(us: u64) -> usize {
    // Bounds are inclusive above: the bucket of 8 ends there, and 9 begins the next.
    let v = us.saturating_sub(1);
    if v < SUB {
        return v as usize;
    }
    let exponent = v.ilog2();
    let sub = (v >> (exponent - SUB_BITS)) & (SUB - 1);
    let index = (u64::from(exponent - SUB_BITS + 1) << SUB_BITS) + sub;
    (index as usize).min(BUCKETS - 1)
}

/// The inclusive upper bound of a bucket.
fn upper_us(index: usize) -> u64 {
    let (exponent, sub) = ((index as u64) >> SUB_BITS, (index as u64) & (SUB - 1));
    match exponent {
        0 => sub + 1,
        e => (SUB + sub + 1) << (e - 1),
    }
}

impl LatencyStats {
    fn of(buckets: Vec<LatencyBucket>, sum_us: u64, max_us: u64) -> LatencyStats {
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let mut stats = LatencyStats { count, sum_us, max_us, buckets, ..LatencyStats::default() };
        stats.p50_us = stats.quantile_us(0.5);
        stats.p95_us = stats.quantile_us(0.95);
        stats.p99_us = stats.quantile_us(0.99);
        stats.p999_us = stats.quantile_us(0.999);
        stats
    }

    /// The latency that the given share (0 to 1) of the requests did not exceed: never too low, and
    /// at most 25 % too high. `None` without requests.
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        for bucket in &self.buckets {
            below += bucket.count;
            if below >= rank {
                let beyond_the_top = bucket.up_to_us >= 1 << TOP_BITS;
                return Some(if beyond_the_top { self.max_us } else { bucket.up_to_us.min(self.max_us) });
            }
        }
        None
    }

    /// Requests that took at most `us`, exact where `us` is a power of two.
    pub fn count_up_to(&self, us: u64) -> u64 {
        self.buckets.iter().take_while(|bucket| bucket.up_to_us <= us).map(|bucket| bucket.count).sum()
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &LatencyStats) -> LatencyStats {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for bucket in self.buckets.iter().chain(&other.buckets) {
            *counts.entry(bucket.up_to_us).or_default() += bucket.count;
        }
        let buckets = counts.into_iter().map(|(up_to_us, count)| LatencyBucket { up_to_us, count }).collect();
        LatencyStats::of(buckets, self.sum_us + other.sum_us, self.max_us.max(other.max_us))
    }

    /// What came after an earlier snapshot. The maximum is exact if it was set since then; otherwise it
    /// is the bound of the highest bucket that grew.
    pub fn since(&self, earlier: &LatencyStats) -> LatencyStats {
        let mut before = earlier.buckets.iter().peekable();
        let mut buckets = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            while before.next_if(|b| b.up_to_us < bucket.up_to_us).is_some() {}
            let known = before.next_if(|b| b.up_to_us == bucket.up_to_us).map_or(0, |b| b.count);
            let count = bucket.count.saturating_sub(known);
            if count > 0 {
                buckets.push(LatencyBucket { up_to_us: bucket.up_to_us, count });
            }
        }
        let highest = buckets.last().map_or(0, |bucket| bucket.up_to_us);
        let max_us = if self.max_us > earlier.max_us { self.max_us } else { highest.min(self.max_us) };
        LatencyStats::of(buckets, self.sum_us.saturating_sub(earlier.sum_us), max_us)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Buckets join without gap or overlap, and no one is wider than a quarter of its lower bound.
    #[test]
    fn buckets_are_narrow_and_join() {
        for i in 0..BUCKETS {
            let (low, high) = (if i == 0 { 1 } else { upper_us(i - 1) + 1 }, upper_us(i));
            assert_eq!((index(low), index(high)), (i, i));
            assert!((high - low) * SUB <= low.max(SUB), "{low}..={high}");
        }
        assert_eq!(upper_us(BUCKETS - 1), 1 << TOP_BITS);
        assert_eq!((index(0), index(u64::MAX)), (0, BUCKETS - 1));
    }

    /// A latency beyond the last bucket is still reported truly, by the maximum.
    #[test]
    fn hours_are_not_cut() {
        let latencies = Latencies::default();
        latencies.record(Duration::from_secs(3 * 3600));
        assert_eq!(latencies.snapshot().quantile_us(0.5), Some(3 * 3_600_000_000));
    }

    /// Without requests there is no percentile.
    #[test]
    fn nothing_has_no_percentile() {
        assert_eq!(Latencies::default().snapshot().quantile_us(0.99), None);
    }

    proptest! {
        /// A percentile is never below the true one, and at most a quarter above it.
        #[test]
        fn percentiles_have_a_bounded_error(
            mut ns in prop::collection::vec(prop_oneof![0..2_000u64, 0..100_000_000u64, 0..3_600_000_000_000u64], 1..300),
            share in 0.0..=1.0f64,
        ) {
            let latencies = Latencies::default();
            ns.iter().for_each(|ns| latencies.record(Duration::from_nanos(*ns)));
            ns.sort_unstable();
            let stats = latencies.snapshot();
            prop_assert_eq!(stats.count, ns.len() as u64);
            prop_assert_eq!(stats.sum_us, ns.iter().sum::<u64>() / 1000);
            prop_assert_eq!(stats.max_us, ns[ns.len() - 1].div_ceil(1000));
            let rank = ((ns.len() as f64 * share).ceil() as usize).max(1);
            let truth = ns[rank - 1].div_ceil(1000).max(1);
            let told = stats.quantile_us(share).expect("there are some");
            prop_assert!(told.max(1) >= truth && told <= truth + truth / 4, "{} told as {}", truth, told);
        }

        /// Two histograms together are the histogram of everything.
        #[test]
        fn together_they_are_of_everything(
            one in prop::collection::vec(0..1_000_000u64, 0..50),
            other in prop::collection::vec(0..1_000_000u64, 0..50),
        ) {
            let [a, b, both] = [(); 3].map(|()| Latencies::default());
            one.iter().for_each(|us| [&a, &both].map(|l| l.record(Duration::from_micros(*us))).into_iter().collect());
            other.iter().for_each(|us| [&b, &both].map(|l| l.record(Duration::from_micros(*us))).into_iter().collect());
            prop_assert_eq!(a.snapshot().and(&b.snapshot()), both.snapshot());
        }

        /// The difference of two snapshots is the histogram of what came between them.
        #[test]
        fn differences_are_what_came_between(
            before in prop::collection::vec(0..1_000_000u64, 0..50),
            after in prop::collection::vec(0..1_000_000u64, 0..50),
        ) {
            let (both, alone) = (Latencies::default(), Latencies::default());
            before.iter().for_each(|us| both.record(Duration::from_micros(*us)));
            let earlier = both.snapshot();
            after.iter().for_each(|us| [&both, &alone].map(|l| l.record(Duration::from_micros(*us))).into_iter().collect());
            let (got, want) = (both.snapshot().since(&earlier), alone.snapshot());
            prop_assert_eq!(&got.buckets, &want.buckets);
            prop_assert_eq!((got.count, got.sum_us), (want.count, want.sum_us));
            prop_assert!(got.max_us >= want.max_us && got.max_us <= want.max_us + want.max_us / 4 + 1);
        }
    }
}
