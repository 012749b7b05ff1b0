//! A load: so many requests at once, each followed by the next one, until the time or the bytes are over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use cistern_engine::stats::{Latencies, LatencyStats};
use tokio::task::JoinSet;

use crate::failure::Outcome;

/// When a load ends: with whatever comes first. One request is always done.
#[derive(Clone, Copy)]
pub struct LoadBounds {
    pub time: Duration,
    pub bytes: u64,
}

/// How requests are made.
#[derive(Clone, Copy)]
pub struct LoadShape {
    /// Requests at once.
    pub depth: u32,
    pub request_bytes: u64,
}

/// What came of a load.
#[derive(Clone, Debug)]
pub struct LoadResult {
    pub requests: u64,
    pub bytes: u64,
    pub time: Duration,
    pub latency: LatencyStats,
}

/// A request of a load.
#[derive(Clone, Copy)]
pub struct LoadRequest {
    /// Which of those that are under way at once.
    pub slot: usize,
    /// Which of all of them.
    pub number: u64,
}

impl LoadResult {
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }

    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Runs a load. Whoever drops this ends it.
pub async fn run_load<R, F>(shape: LoadShape, bounds: LoadBounds, request: R) -> Outcome<LoadResult>
where
    R: Fn(LoadRequest) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send,
{
    let (latencies, next) = (Arc::new(Latencies::default()), Arc::new(AtomicU64::new(0)));
    let (request, begin) = (Arc::new(request), Instant::now());
    let requests_max = (bounds.bytes / shape.request_bytes).max(1);
    let mut slots = JoinSet::new();
    for slot in 0..shape.depth as usize {
        let (latencies, next, request) = (latencies.clone(), next.clone(), request.clone());
        slots.spawn(async move {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number > 0 && (number >= requests_max || begin.elapsed() >= bounds.time) {
                    return Outcome::Ok(());
                }
                let begun = Instant::now();
                request(LoadRequest { slot, number }).await?;
                latencies.record(begun.elapsed());
            }
        });
    }
    while let Some(ended) = slots.join_next().await {
        ended.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?; // nobody cancels it but a drop of this
    }
    let (time, latency) = (begin.elapsed(), latencies.snapshot());
    let requests = latency.count;
    Ok(LoadResult { requests, bytes: requests * shape.request_bytes, time, latency })
}

/// Where requests go.
#[derive(Clone, Copy)]
pub enum LoadOrder {
    /// One behind the other, and again from the beginning.
    Sequential,
    /// Anywhere; the same seed gives the same places.
    Random { seed: u64 },
}

impl LoadOrder {
    /// Offset of a request in so many bytes, which hold at least one.
    pub fn offset(self, number: u64, request_bytes: u64, span_bytes: u64) -> u64 {
        let places = (span_bytes / request_bytes).max(1);
        let place = match self {
            LoadOrder::Sequential => number % places,
            LoadOrder::Random { seed } => mixed(seed.wrapping_add(number)) % places,
        };
        place * request_bytes
    }
}

/// A number that looks like chance: the finalizer of SplitMix64.
fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Mutex};

    use super::*;
    use crate::failure::Failure;

    /// A load ends with its bytes, does every request once, and one where there is time for none.
    #[tokio::test]
    async fn loads_are_bounded() {
        let shape = LoadShape { depth: 3, request_bytes: 512 };
        for (time, bytes, expected) in
            [(Duration::MAX, 100 * 512, 100), (Duration::ZERO, u64::MAX, 1), (Duration::MAX, 1, 1)]
        {
            let done = Arc::new(Mutex::new(Vec::new()));
            let seen = done.clone();
            let result = run_load(shape, LoadBounds { time, bytes }, move |request| {
                let seen = seen.clone();
                async move {
                    seen.lock().expect("held for a moment").push(request.number);
                    Ok(())
                }
            });
            let result = result.await.expect("no request fails");
            assert_eq!((result.requests, result.bytes), (expected, expected * 512));
            let mut done = done.lock().expect("held for a moment").clone();
            done.sort_unstable();
            assert_eq!(done, (0..expected).collect::<Vec<_>>());
        }
    }

    /// The first request that fails ends the load with its error.
    #[tokio::test]
    async fn a_request_that_fails_ends_it() {
        let (shape, forever) = (LoadShape { depth: 2, request_bytes: 1 }, u64::MAX);
        let bounds = LoadBounds { time: Duration::MAX, bytes: forever };
        let failed = run_load(shape, bounds, |request| async move {
            if request.number < 9 { Ok(()) } else { Err(Failure::usage("enough")) }
        });
        assert_eq!(failed.await.expect_err("it fails").text, "enough");
    }

    /// Places are whole requests inside the span, and random ones reach nearly all of it.
    #[test]
    fn places_lie_inside() {
        let order = LoadOrder::Random { seed: 7 };
        let places: BTreeSet<u64> = (0..1000).map(|n| order.offset(n, 4096, 100 * 4096 + 5)).collect();
        assert!(places.iter().all(|place| place % 4096 == 0 && place + 4096 <= 100 * 4096));
        assert!(places.len() > 95, "{}", places.len());
        let sequential: Vec<u64> = (0..4).map(|n| LoadOrder::Sequential.offset(n, 512, 1536)).collect();
        assert_eq!(sequential, [0, 512, 1024, 0]);
    }
}
