//! What a cache has done since it was opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::{
    Admission, Health, PIECE_BYTES,
    index::{Miss, Prefetched},
    queue::Why,
};

/// What a cache has done since it was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    pub bytes: u64,
    pub chunks_used: u64,
    pub hits: u64,
    /// All misses, whatever their cause.
    pub misses: u64,
    /// Misses of bytes that were never here, or so long ago that it is forgotten.
    pub misses_cold: u64,
    /// Misses of chunks that were evicted not long ago: a larger cache would have had them.
    pub misses_evicted: u64,
    /// Bytes written to the slab, by the reason of their coming.
    pub fill_bytes: u64,
    pub fill_demand_bytes: u64,
    pub fill_prefetch_bytes: u64,
    pub fill_written_bytes: u64,
    /// Of what was here before the cleaner moved it.
    pub fill_moved_bytes: u64,
    /// Prefetched bytes that somebody read, and those that were evicted before anybody did.
    pub prefetch_used_bytes: u64,
    pub prefetch_wasted_bytes: u64,
    /// Fills that were dropped because the writer was busy.
    pub fills_dropped: u64,
    /// Chunks from before the last start whose bytes had been overwritten, as after a crash.
    pub stale: u64,
    /// Errors of the disk and pieces that failed their verification.
    pub faults: u64,
    /// The disk failed too often; everything is a miss now.
    pub off: bool,
    /// Why it was switched off, where it was.
    pub off_reason: Option<String>,
}

#[derive(Default)]
pub(super) struct CacheCounts {
    hits: AtomicU64,
    misses_cold: AtomicU64,
    misses_evicted: AtomicU64,
    fill_demand_bytes: AtomicU64,
    fill_prefetch_bytes: AtomicU64,
    fill_written_bytes: AtomicU64,
    fill_moved_bytes: AtomicU64,
    pub fills_dropped: AtomicU64,
    pub stale: AtomicU64,
}

impl CacheCounts {
    pub fn hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    pub fn miss(&self, miss: Miss) {
        let count = match miss {
            Miss::Cold => &self.misses_cold,
            Miss::Evicted => &self.misses_evicted,
        };
        count.fetch_add(1, Relaxed);
    }

    pub fn stats(&self, bytes: u64, chunks_used: u64, prefetched: Prefetched, health: &Health) -> CacheStats {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let (cold, evicted) = (of(&self.misses_cold), of(&self.misses_evicted));
        let [demand, prefetch, written, moved] = [
            &self.fill_demand_bytes,
            &self.fill_prefetch_bytes,
            &self.fill_written_bytes,
            &self.fill_moved_bytes,
        ]
        .map(of);
        CacheStats {
            bytes,
            chunks_used,
            hits: of(&self.hits),
            misses: cold + evicted,
            misses_cold: cold,
            misses_evicted: evicted,
            fill_bytes: demand + prefetch + written + moved,
            fill_demand_bytes: demand,
            fill_prefetch_bytes: prefetch,
            fill_written_bytes: written,
            fill_moved_bytes: moved,
            prefetch_used_bytes: prefetched.used * PIECE_BYTES as u64,
            prefetch_wasted_bytes: prefetched.wasted * PIECE_BYTES as u64,
            fills_dropped: of(&self.fills_dropped),
            stale: of(&self.stale),
            faults: health.faults(),
            off: health.is_off(),
            off_reason: health.off_reason(),
        }
    }

    pub fn filled(&self, why: &Why) -> &AtomicU64 {
        match why {
            Why::Offered(Admission::Demand) => &self.fill_demand_bytes,
            Why::Offered(Admission::Prefetch) => &self.fill_prefetch_bytes,
            Why::Offered(Admission::Written) => &self.fill_written_bytes,
            Why::Moved(_) => &self.fill_moved_bytes,
        }
    }
}
