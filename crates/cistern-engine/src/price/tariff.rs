//! One kind of store's prices, what follows for a GiB that is cleaned, and a month's bill.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GIB, SECONDS_PER_DAY};
use crate::units::SEGMENT_DATA_BYTES_MAX;

/// Requests that move a GiB in whole segments.
const SEGMENTS_PER_GIB: f64 = GIB / SEGMENT_DATA_BYTES_MAX as f64;
/// Reading is dear when a GiB read costs more than a GiB held for so many months (three days). Retrieval and egress
/// fees are far above it, the fee of stores that bill every byte a little far below.
const DEAR_MONTHS: f64 = 0.1;

/// What one kind of store charges, in US dollars. Every number is finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tariff {
    /// A GiB kept for a month.
    pub storage_per_gib_month: f64,
    /// 1000 requests that write or list (class A).
    pub put_per_1000: f64,
    /// 1000 requests that read (class B).
    pub get_per_1000: f64,
    /// A GiB sent to the store.
    pub upload_per_gib: f64,
    /// A GiB read from where the daemon runs: egress and retrieval together.
    pub download_per_gib: f64,
    /// So many times what is stored may be read in a month before `download_per_gib` counts.
    pub free_download_multiple: f64,
    /// Days that an object is billed for at least, however early it is deleted.
    pub min_days: f64,
    /// Bytes that an object is billed for at least.
    pub min_object_bytes: u64,
}

impl Tariff {
    /// $ per GiB of a victim that is read, of which the share `live` in [0, 1] is wanted:
    /// 64 GET + download * live (`docs/design/prices.md`, the score).
    pub fn read_per_gib(&self, live: f64) -> f64 {
        SEGMENTS_PER_GIB * self.get_per_1000 / 1000.0 + self.download_per_gib * live
    }

    /// $ per GiB written in whole segments: 64 PUT + upload.
    pub fn write_per_gib(&self) -> f64 {
        SEGMENTS_PER_GIB * self.put_per_1000 / 1000.0 + self.upload_per_gib
    }

    /// $ for a GiB that is read and written, all of it: c_r(1) + c_w.
    pub fn moving_per_gib(&self) -> f64 {
        self.read_per_gib(1.0) + self.write_per_gib()
    }

    /// What every object is billed for at least.
    pub fn least_duration(&self) -> Duration {
        // min_days is bounded where tables are read; a wild one ends at the longest time there is.
        Duration::try_from_secs_f64(self.min_days * SECONDS_PER_DAY).unwrap_or(Duration::MAX)
    }

    /// Whether reading costs so much that what is still live is better left where it is.
    pub fn reading_is_dear(&self) -> bool {
        self.download_per_gib > DEAR_MONTHS * self.storage_per_gib_month
    }

    /// The prices of the next GiB, when `stored_bytes` are in the store and `downloaded_bytes` were read from it since
    /// the month began: reading is free until the allowance is used up.
    pub fn after(&self, stored_bytes: u64, downloaded_bytes: u64) -> Tariff {
        let is_free = (downloaded_bytes as f64) < self.free_download_bytes(stored_bytes);
        Tariff { download_per_gib: if is_free { 0.0 } else { self.download_per_gib }, ..*self }
    }

    fn free_download_bytes(&self, stored_bytes: u64) -> f64 {
        self.free_download_multiple * stored_bytes as f64
    }

    /// Bytes that an object of this size is billed for.
    pub fn billed_bytes(&self, object_bytes: u64) -> u64 {
        object_bytes.max(self.min_object_bytes)
    }

    /// What a month costs.
    pub fn bill(&self, month: &Month) -> Bill {
        let gib = |bytes: u64| bytes as f64 / GIB;
        let requests = month.puts as f64 * self.put_per_1000 + month.gets as f64 * self.get_per_1000;
        let free = self.free_download_bytes(month.stored_bytes);
        let paid_bytes = (month.downloaded_bytes as f64 - free).max(0.0);
        Bill {
            storage: gib(month.stored_bytes) * self.storage_per_gib_month,
            requests: requests / 1000.0,
            transfer: gib(month.uploaded_bytes) * self.upload_per_gib
                + paid_bytes / GIB * self.download_per_gib,
        }
    }
}

/// What was kept and asked of a store in a month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Month {
    /// On average over the month, each object as [`Tariff::billed_bytes`] has it; deleted ones count until their
    /// minimum duration is over.
    pub stored_bytes: u64,
    pub puts: u64,
    pub gets: u64,
    pub uploaded_bytes: u64,
    pub downloaded_bytes: u64,
}

/// What a month costs, in US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    pub storage: f64,
    pub requests: f64,
    pub transfer: f64,
}

impl Bill {
    pub fn total(&self) -> f64 {
        self.storage + self.requests + self.transfer
    }
}
