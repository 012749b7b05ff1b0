//! Counts the faults of the disk, and decides when the cache is left alone.
//!
//! One fault is a miss. Many in a short time mean that the disk is gone: then there is no cache any
//! more, which is said once, with what to do. Off stays off until the cache is opened again. A disk that is full is none of
//! that: what is there is read, nothing new is kept for a while, and then it is tried again.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::rank::{Rank, Ranked};

/// Faults of the disk within `FAULT_TIME` after which the cache is switched off.
const FAULTS_MAX: u64 = 16;
/// Fewer in such a time are those of a large disk that ages.
const FAULT_TIME: Duration = Duration::from_secs(3600);
/// For so long nothing is written after the disk had no room.
const FULL_TIME: Duration = Duration::from_secs(10);

pub(super) struct Health {
    /// Where the cache is, for messages.
    place: String,
    faults: AtomicU64,
    off: AtomicBool,
    recent: Ranked<RecentFaults>,
}

#[derive(Default)]
struct RecentFaults {
    since: Duration,
    faults: u64,
    /// Why it is off.
    reason: Option<String>,
    /// The disk had no room, and is not asked before this time.
    full_until: Option<Duration>,
}

impl Health {
    pub fn new(place: String) -> Health {
        Health {
            place,
            faults: AtomicU64::new(0),
            off: AtomicBool::new(false),
            recent: Ranked::new(Rank::Structure, RecentFaults::default()),
        }
    }

    pub fn is_off(&self) -> bool {
        self.off.load(Relaxed)
    }

    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    pub fn off_reason(&self) -> Option<String> {
        self.recent.lock().reason.clone()
    }

    /// The disk had no room for something.
    pub fn full(&self, now: Duration, what: &str) {
        let before = self.recent.lock().full_until.replace(now + FULL_TIME);
        if before.is_none() {
            tracing::warn!(
                what,
                "the disk of the chunk cache {} is full: what it holds is used, and nothing new is kept until there is room",
                self.place
            );
        }
    }

    /// Whether the disk had no room just now.
    pub fn is_full(&self, now: Duration) -> bool {
        self.recent.lock().full_until.is_some_and(|until| now < until)
    }

    /// Something was written.
    pub fn has_room(&self) {
        if self.recent.lock().full_until.take().is_some() {
            tracing::info!("the disk of the chunk cache {} has room again", self.place);
        }
    }

    /// Counts a fault.
    pub fn fault(&self, now: Duration, what: &str) {
        self.faults.fetch_add(1, Relaxed);
        let mut recent = self.recent.lock();
        debug_assert_eq!(self.is_off(), recent.reason.is_some(), "a cache that is off says why");
        if recent.faults == 0 || now.saturating_sub(recent.since) > FAULT_TIME {
            (recent.since, recent.faults) = (now, 0);
        }
        recent.faults += 1;
        let place = &self.place;
        match recent.faults {
            1 => tracing::warn!(what, "the chunk cache {place} failed; such reads go to the store"),
            FAULTS_MAX => {
                recent.reason = Some(format!("{FAULTS_MAX} failures within an hour, the last: {what}"));
                self.off.store(true, Relaxed);
                tracing::error!(
                    what,
                    "the chunk cache {place} failed {FAULTS_MAX} times and is switched off: every read goes to \
                     the store. Nothing is lost. Check the disk, its mount and its free space, then start \
                     the daemon again; the cache's directory may be deleted meanwhile"
                );
            }
            faults => tracing::debug!(what, faults, "the chunk cache {place} failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk without room is asked again after a while, and however often that is, the cache stays on.
    #[test]
    fn a_full_disk_switches_nothing_off() {
        let (health, at) = (Health::new("here".to_owned()), Duration::from_secs);
        for n in 0..100 {
            health.full(at(20 * n), "no space");
            assert!(health.is_full(at(20 * n + 9)) && !health.is_full(at(20 * n + 10)));
        }
        assert!(!health.is_off() && health.faults() == 0);
        health.full(at(3000), "no space");
        health.has_room();
        assert!(!health.is_full(at(3000)));
    }

    /// Faults now and then are borne for ever; many at once switch off, for good.
    #[test]
    fn many_faults_at_once_switch_off() {
        let health = Health::new("here".to_owned());
        let hour = Duration::from_secs(3601);
        for n in 0..100 {
            health.fault(hour * n, "a bit");
        }
        assert!(!health.is_off());
        for _ in 0..FAULTS_MAX {
            health.fault(hour * 200, "no disk");
        }
        assert!(health.is_off() && health.off_reason().is_some_and(|why| why.contains("no disk")));
        assert_eq!(health.faults(), 100 + FAULTS_MAX);
    }
}
