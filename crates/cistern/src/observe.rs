//! What a daemon does, at one moment or between two: the one source of `status --io`, of its JSON and
//! of the metrics.
//!
//! The daemon only has counters that grow. Whoever wants rates takes two snapshots and
//! [`Observed::since`]. Nothing here is on the path of a request.

use std::time::Duration;

use cistern_engine::{
    cache::CacheStats,
    fetch::{AheadCounts, DecodedCounts},
    stats::IoStats,
    store::{SchedulerStats, StoreStats},
    volume::VolumeStatus,
};
use serde::{Deserialize, Serialize};

use crate::prices::{Cost, StorePrices};

/// Everything that can be seen of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Observed {
    pub pid: u32,
    pub version: String,
    /// When this was taken, in milliseconds since 1970.
    pub wall_ms: u64,
    pub volumes: Vec<ObservedVolume>,
    /// The chunk cache, which all volumes share.
    pub cache: Option<CacheStats>,
    /// The scheduler of all requests to stores.
    pub scheduler: SchedulerStats,
    /// Connections of clients.
    #[serde(default)]
    pub clients: u64,
    /// Memory of the daemon that is resident; absent where the system does not say.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// Everything that can be seen of one volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObservedVolume {
    pub name: String,
    pub url: String,
    /// What clients asked.
    pub io: IoStats,
    /// What became of the bytes that were fetched ahead of readers.
    pub ahead: AheadCounts,
    /// What was read from decoded frames in memory.
    pub decoded: DecodedCounts,
    /// What the store was asked.
    pub store: StoreStats,
    /// What the store charges, and why that is believed.
    pub prices: StorePrices,
    /// What all that costs.
    pub cost: Cost,
    pub status: VolumeStatus,
    /// Snapshots there are, and for how long an automatic one is overdue, where there are such.
    pub snapshots: u64,
    pub snapshot_overdue_ms: Option<u64>,
    /// For how long the store has not answered; null when it does.
    #[serde(default)]
    pub store_away_ms: Option<u64>,
    /// Requests to the store that have failed and are tried again now.
    #[serde(default)]
    pub store_retried: u64,
}

impl ObservedVolume {
    /// Whether this is the volume that somebody means.
    pub fn is(&self, volume: &str) -> bool {
        self.name == volume || self.url == volume || self.status.volume.to_string() == volume
    }
}

impl Observed {
    /// What happened after an earlier snapshot of the same daemon; states are those of now. A volume that was opened again in between began
    /// to count anew.
    pub fn since(&self, earlier: &Observed) -> Observed {
        let mut out = self.clone();
        for volume in &mut out.volumes {
            let then = earlier.volumes.iter().find(|then| then.name == volume.name);
            if let Some(then) = then.filter(|then| then.io.period_us <= volume.io.period_us) {
                volume.io = volume.io.since(&then.io);
                volume.ahead = ahead_since(&volume.ahead, &then.ahead);
                volume.decoded = decoded_since(&volume.decoded, &then.decoded);
                volume.store = volume.store.since(&then.store);
                let time = Duration::from_micros(volume.io.period_us);
                volume.cost = volume.prices.cost(&volume.store, stored_bytes(&volume.status), time);
            }
        }
        if let (Some(cache), Some(then)) = (&mut out.cache, &earlier.cache) {
            *cache = cache_since(cache, then);
        }
        out
    }
}

/// What a volume takes of its store, but for its map: of a reader, and shortly after an opening, that is not known.
pub fn stored_bytes(status: &VolumeStatus) -> Option<u64> {
    let space = status.space.as_ref()?;
    let waiting = space.uncovered_bytes + space.vacated_bytes + space.grace_bytes;
    Some(space.segments?.stored_bytes + waiting)
}

fn ahead_since(now: &AheadCounts, then: &AheadCounts) -> AheadCounts {
    AheadCounts {
        fetched_bytes: now.fetched_bytes.saturating_sub(then.fetched_bytes),
        used_bytes: now.used_bytes.saturating_sub(then.used_bytes),
        wasted_bytes: now.wasted_bytes.saturating_sub(then.wasted_bytes),
        waits: now.waits.saturating_sub(then.waits),
    }
}

fn decoded_since(now: &DecodedCounts, then: &DecodedCounts) -> DecodedCounts {
    DecodedCounts { hits: now.hits.saturating_sub(then.hits), misses: now.misses.saturating_sub(then.misses) }
}

fn cache_since(now: &CacheStats, then: &CacheStats) -> CacheStats {
    let grown = |of: fn(&CacheStats) -> u64| of(now).saturating_sub(of(then));
    CacheStats {
        hits: grown(|c| c.hits),
        misses: grown(|c| c.misses),
        misses_cold: grown(|c| c.misses_cold),
        misses_evicted: grown(|c| c.misses_evicted),
        fill_bytes: grown(|c| c.fill_bytes),
        fill_demand_bytes: grown(|c| c.fill_demand_bytes),
        fill_prefetch_bytes: grown(|c| c.fill_prefetch_bytes),
        fill_written_bytes: grown(|c| c.fill_written_bytes),
        fill_moved_bytes: grown(|c| c.fill_moved_bytes),
        prefetch_used_bytes: grown(|c| c.prefetch_used_bytes),
        prefetch_wasted_bytes: grown(|c| c.prefetch_wasted_bytes),
        fills_dropped: grown(|c| c.fills_dropped),
        stale: grown(|c| c.stale),
        faults: grown(|c| c.faults),
        ..now.clone()
    }
}
