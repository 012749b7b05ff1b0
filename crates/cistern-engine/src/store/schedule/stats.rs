//! What the scheduler shows of itself.

use serde::{Deserialize, Serialize};

use super::Rates;

/// What the scheduler knows at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchedulerStats {
    pub rates: Rates,
    /// Stores by place (bucket or directory); limits are found for each of them.
    pub places: Vec<PlaceStats>,
}

/// The requests to one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaceStats {
    pub place: String,
    /// For how long the place has not answered in one direction; `None` when it does in both.
    pub away_ms: Option<u64>,
    pub uploads: DirectionStats,
    pub downloads: DirectionStats,
}

/// The requests in one direction. What has no body counts as a download.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectionStats {
    /// Requests that may be under way at once.
    pub limit: u64,
    pub in_use: u64,
    /// Body bytes of these, as far as they are known.
    pub bytes_in_use: u64,
    pub queued_read: u64,
    pub queued_write_back: u64,
    pub queued_ahead: u64,
    pub queued_background: u64,
    /// For how long the oldest of the queued waits.
    pub oldest_wait_ms: Option<u64>,
}
