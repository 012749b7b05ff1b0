//! Traces, and the policies that the chunk cache's is compared with.
//!
//! Shared by the test that asserts the bounds and by the example that prints the table. All of it is
//! deterministic.

pub mod policies;
pub mod traces;

use cistern_engine::cache::{Admission, Replay};
use policies::{Lru, Policy, QuickCache, S3Fifo, WTinyLfu, optimum};
use traces::{Access, Kind};

/// Hits of every policy, in percent of the reads of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub ours: f64,
    pub lru: f64,
    pub s3_fifo: f64,
    pub w_tiny_lfu: f64,
    pub quick_cache: f64,
    pub optimum: f64,
}

impl Row {
    /// The best of those that ours is compared with.
    pub fn best(&self) -> f64 {
        self.lru.max(self.s3_fifo).max(self.w_tiny_lfu)
    }

    /// The bounds: no worse than LRU, and within a tenth of the best. Learning what a trace is like may
    /// cost up to 0.75 of 100 reads against LRU.
    pub fn holds(&self) -> bool {
        self.ours + 0.75 >= self.lru && self.ours >= self.best() * 0.9
    }
}

/// Replays a trace with every policy, in a cache of so many chunks.
pub fn compare(trace: &[Access], chunks: usize) -> Row {
    Row {
        ours: ours(trace, chunks),
        lru: hits(trace, &mut Lru::new(chunks)),
        s3_fifo: hits(trace, &mut S3Fifo::new(chunks)),
        w_tiny_lfu: hits(trace, &mut WTinyLfu::new(chunks)),
        quick_cache: hits(trace, &mut QuickCache::new(chunks)),
        optimum: percent(optimum(trace, chunks), trace),
    }
}

/// What the chunk cache makes of a trace.
pub fn ours(trace: &[Access], chunks: usize) -> f64 {
    let mut cache = Replay::new(chunks as u32);
    let mut hits = 0;
    for access in trace {
        match access.kind {
            Kind::Read => hits += u64::from(cache.read(access.object, access.chunk)),
            Kind::Written => cache.offer(access.object, access.chunk, Admission::Written),
        }
    }
    percent(hits, trace)
}

/// The others take what is written for what is read, without counting it.
fn hits(trace: &[Access], policy: &mut dyn Policy) -> f64 {
    let mut hits = 0;
    for access in trace {
        let hit = policy.access(access.key());
        hits += u64::from(hit && access.kind == Kind::Read);
    }
    percent(hits, trace)
}

fn percent(hits: u64, trace: &[Access]) -> f64 {
    let reads = trace.iter().filter(|access| access.kind == Kind::Read).count();
    hits as f64 * 100.0 / reads.max(1) as f64
}
