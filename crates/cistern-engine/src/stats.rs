//! What is counted about the requests of a volume: how many, how large, how aligned, how long.
//!
//! Counters only ever grow, so whoever reads them twice has the rates in between; nothing here keeps
//! a window, takes a lock or asks the time. A request costs a handful of relaxed atomic additions.
//! A snapshot reads the counters one by one: a request under way may show in some of them only.
//! Never decides anything: the engine does not look at its own statistics.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::{Deserialize, Serialize};

mod latency;
mod pending;
mod shape;

pub use latency::{Latencies, LatencyBucket, LatencyStats};
use pending::Pending;
use shape::Shapes;
pub use shape::{AlignmentCount, SizeCount};

/// What a client can ask of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoKind {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    Cache,
    BlockStatus,
}

impl IoKind {
    /// Every kind, in the order of the discriminants and of every list.
    pub const ALL: [IoKind; 7] = [
        IoKind::Read,
        IoKind::Write,
        IoKind::Flush,
        IoKind::Trim,
        IoKind::WriteZeroes,
        IoKind::Cache,
        IoKind::BlockStatus,
    ];

    /// The name in metrics and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Flush => "flush",
            IoKind::Trim => "trim",
            IoKind::WriteZeroes => "write_zeroes",
            IoKind::Cache => "cache",
            IoKind::BlockStatus => "block_status",
        }
    }
}

const _: () = {
    let mut kind = 0;
    while kind < IoKind::ALL.len() {
        assert!(IoKind::ALL[kind] as usize == kind, "a kind is counted under its own name");
        kind += 1;
    }
};

/// The requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindIo {
    pub kind: IoKind,
    /// Answered requests, failed ones included.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes of the ranges of successful requests.
    pub bytes: u64,
    /// Requests not answered yet.
    pub in_flight: u64,
    /// Sum of the time that requests spent here, those in flight included. Its growth divided by the
    /// time it took is the mean number of requests in flight. Never goes back.
    pub busy_us: u64,
    pub latency: LatencyStats,
    /// Requests by the length of their range; empty for a flush, which has none.
    pub sizes: Vec<SizeCount>,
    /// Requests by the largest power of two that divides both their offset and their length.
    pub alignments: Vec<AlignmentCount>,
}

/// The requests of a volume, since it was opened or between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoStats {
    /// The time that these numbers cover: the base of every rate.
    pub period_us: u64,
    /// One entry for each of [`IoKind::ALL`].
    pub kinds: Vec<KindIo>,
}

/// The counters behind [`IoStats`].
pub struct IoCounters {
    opened: Duration,
    kinds: [Counters; IoKind::ALL.len()],
}

#[derive(Default)]
struct Counters {
    pending: Pending,
    /// As last told.
    busy_us: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latencies: Latencies,
    shapes: Shapes,
}

/// A request under way. Dropped without an end (its client went away), it is not counted.
pub struct RunningRequest<'a> {
    counters: &'a Counters,
    begun: Duration,
    token: u64,
}

impl IoCounters {
    /// `now` is the time of the volume's opening, on the clock of every later call.
    pub fn new(now: Duration) -> IoCounters {
        IoCounters { opened: now, kinds: Default::default() }
    }

    /// A request arrives.
    pub fn begin(&self, kind: IoKind, now: Duration) -> RunningRequest<'_> {
        let counters = &self.kinds[kind as usize];
        RunningRequest { counters, begun: now, token: counters.pending.begin(now) }
    }

    /// Everything counted so far.
    pub fn snapshot(&self, now: Duration) -> IoStats {
        let kinds = IoKind::ALL.iter().zip(&self.kinds).map(|(kind, c)| c.snapshot(*kind, now)).collect();
        IoStats { period_us: micros(now.saturating_sub(self.opened)), kinds }
    }
}

impl IoStats {
    /// What came after an earlier snapshot of the same volume.
    pub fn since(&self, earlier: &IoStats) -> IoStats {
        let kinds = self.kinds.iter().zip(&earlier.kinds).map(|(now, then)| now.since(then)).collect();
        IoStats { period_us: self.period_us.saturating_sub(earlier.period_us), kinds }
    }
}

impl KindIo {
    fn since(&self, earlier: &KindIo) -> KindIo {
        KindIo {
            kind: self.kind,
            requests: self.requests.saturating_sub(earlier.requests),
            errors: self.errors.saturating_sub(earlier.errors),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            in_flight: self.in_flight,
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            latency: self.latency.since(&earlier.latency),
            sizes: shape::sizes_since(&self.sizes, &earlier.sizes),
            alignments: shape::alignments_since(&self.alignments, &earlier.alignments),
        }
    }
}

impl RunningRequest<'_> {
    /// The request is answered. `range` is its offset and length, if it has one.
    pub fn end(self, now: Duration, range: Option<(u64, u64)>, succeeded: bool) {
        let counters = self.counters;
        counters.latencies.record(now.saturating_sub(self.begun));
        if let Some((offset, len)) = range {
            counters.shapes.record(offset, len);
        }
        match (succeeded, range) {
            (true, Some((_, len))) => _ = counters.bytes.fetch_add(len, Relaxed),
            (true, None) => {}
            (false, _) => _ = counters.errors.fetch_add(1, Relaxed),
        }
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        self.counters.pending.end(self.token);
    }
}

impl Counters {
    fn snapshot(&self, kind: IoKind, now: Duration) -> KindIo {
        let latency = self.latencies.snapshot();
        let (in_flight, waiting) = self.pending.snapshot(now);
        // A request that ends between the two is in neither, and the sum must not go back.
        let busy_us = latency.sum_us + micros(waiting);
        let busy_us = busy_us.max(self.busy_us.fetch_max(busy_us, Relaxed));
        KindIo {
            kind,
            requests: latency.count,
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            in_flight,
            busy_us,
            latency,
            sizes: self.shapes.sizes(),
            alignments: self.shapes.alignments(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
