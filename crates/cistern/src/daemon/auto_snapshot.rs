//! Snapshots that are made by themselves, and removed when the schedule keeps them no longer (`crate::schedule`).

use std::{sync::Mutex, time::Duration};

use cistern_engine::{Error, volume::SnapshotStatus};

use crate::{
    control::AutoSnapshotStatus,
    daemon::{Daemon, Served},
    schedule::{self, PREFIX, Schedule},
};

/// How often to look.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why the last snapshot of a volume could not be made or removed, if it could not.
pub type Trouble = Mutex<Option<String>>;

/// Makes and removes snapshots until dropped.
pub async fn run(daemon: &Daemon) {
    // Each by itself: a volume whose journal is full holds up no other.
    let each = (0..daemon.served().len()).map(|n| async move {
        let mut clock = tokio::time::interval(INTERVAL);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            daemon.auto_snapshot(&daemon.served()[n]).await;
        }
    });
    let _: Vec<()> = futures_util::future::join_all(each).await;
}

impl Daemon {
    async fn auto_snapshot(&self, served: &Served) {
        let Some(schedule) = served.live.as_ref().and_then(|live| live.kept().auto_snapshot) else { return };
        let done = async {
            let (all, now) = (served.volume.snapshots(), self.env.wall_ms());
            let made = automatic(&all, now);
            if schedule.is_due(newest_ms(&made), now) && served.volume.changed_since_snapshot() {
                let name = schedule::name(now);
                served.volume.snapshot(&name).await?;
                tracing::debug!(volume = served.name, name, "snapshot");
            }
            self.prune(served, &schedule, &made).await
        };
        let trouble = done.await.err().map(|e| e.to_string());
        let mut last = served.trouble.lock().expect("nothing panics under this lock");
        if let Some(error) = trouble.as_ref().filter(|_| *last != trouble) {
            tracing::warn!(volume = served.name, error, "an automatic snapshot could not be made or removed");
        }
        *last = trouble;
    }

    /// Removes what the schedule does not keep of those that were `made`; what is held, cloned or read stays.
    async fn prune(
        &self,
        served: &Served,
        schedule: &Schedule,
        made: &[&SnapshotStatus],
    ) -> Result<(), Error> {
        let expired = schedule.expired(made.iter().map(|snapshot| snapshot.made_ms).collect());
        for SnapshotStatus { name, made_ms, holds, clones, .. } in made {
            let goes = expired.contains(made_ms) && holds.is_empty() && clones.is_empty();
            if goes && self.shown.close(&format!("{}@{name}", served.name)) {
                served.volume.remove_snapshot(name).await?;
            }
        }
        Ok(())
    }
}

/// The snapshots that were made by a schedule. One that was made while the clock was ahead is none until then: else none would be made
/// beside it.
fn automatic(all: &[SnapshotStatus], wall_ms: u64) -> Vec<&SnapshotStatus> {
    let is_automatic = |snapshot: &&SnapshotStatus| {
        snapshot.name.starts_with(PREFIX) && !snapshot.is_bookmark && snapshot.made_ms <= wall_ms
    };
    all.iter().filter(is_automatic).collect()
}

fn newest_ms(made: &[&SnapshotStatus]) -> Option<u64> {
    made.iter().map(|snapshot| snapshot.made_ms).max()
}

impl Served {
    /// How the automatic snapshots are; `None` where none are asked for.
    pub fn auto_snapshot(&self, wall_ms: u64) -> Option<AutoSnapshotStatus> {
        let schedule = self.live.as_ref()?.kept().auto_snapshot?;
        let newest_ms = newest_ms(&automatic(&self.volume.snapshots(), wall_ms));
        let age_ms = newest_ms.map(|newest| wall_ms.saturating_sub(newest));
        let overdue = age_ms.map(|age| age.saturating_sub(schedule.overdue_ms()));
        Some(AutoSnapshotStatus {
            newest_ms,
            overdue_ms: overdue.filter(|_| self.volume.changed_since_snapshot()).unwrap_or(0),
            schedule: schedule.to_string(),
            error: self.trouble.lock().expect("nothing panics under this lock").clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot of a time when the clock was ahead keeps none from being made, and is not taken for old; bookmarks and what has another
    /// name are no matter of the schedule.
    #[test]
    fn what_a_schedule_has_made() {
        let snapshot = |name: &str, made_ms, is_bookmark| SnapshotStatus {
            name: name.to_owned(),
            id: cistern_engine::units::SnapshotId(uuid::Uuid::nil()),
            made_ms,
            size_bytes: 512,
            at: None,
            holds: Vec::new(),
            clones: std::collections::BTreeMap::new(),
            receiving: None,
            is_bookmark,
        };
        let all = [
            snapshot("auto-1", 1000, false),
            snapshot("auto-2", 2000, false),
            snapshot("auto-3", 9_000_000_000, false),
            snapshot("auto-4", 2500, true),
            snapshot("by-hand", 2600, false),
        ];
        let made = automatic(&all, 3000);
        assert_eq!(made.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["auto-1", "auto-2"]);
        assert_eq!(newest_ms(&made), Some(2000));
        let schedule: Schedule = "1m:1".parse().expect("a schedule");
        assert!(schedule.is_due(newest_ms(&automatic(&all, 120_000)), 120_000));
        assert_eq!(newest_ms(&[]), None);
    }
}
