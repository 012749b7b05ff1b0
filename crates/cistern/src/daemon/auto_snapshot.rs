//! Snapshots that are made by themselves, and removed when the schedule keeps them no longer (`crate::schedule`).

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

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
    let each = daemon.served.iter().map(|served| async move {
        let mut clock = tokio::time::interval(INTERVAL);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            daemon.auto_snapshot(served).await;
        }
    });
    let _: Vec<()> = futures_util::future::join_all(each).await;
}

impl Daemon {
    async fn auto_snapshot(&self, served: &Served) {
        let Some(schedule) = served.live.as_ref().and_then(|live| live.kept().auto_snapshot) else { return };
        let done = async {
            let made = automatic(&served.volume.snapshots());
            let now = self.env.wall_ms();
            if schedule.is_due(made.iter().map(|(at, _)| *at).max(), now)
                && served.volume.changed_since_snapshot()
            {
                let name = schedule::name(now);
                served.volume.snapshot(&name).await?;
                tracing::debug!(volume = served.name, name, "snapshot");
            }
            self.prune(served, &schedule).await
        };
        let trouble = done.await.err().map(|e| e.to_string());
        let mut last = served.trouble.lock().expect("nothing panics under this lock");
        if let Some(error) = trouble.as_ref().filter(|_| *last != trouble) {
            tracing::warn!(volume = served.name, error, "an automatic snapshot could not be made or removed");
        }
        *last = trouble;
    }

    /// Removes what the schedule does not keep; what is held or read stays.
    async fn prune(&self, served: &Served, schedule: &Schedule) -> Result<(), Error> {
        let all = served.volume.snapshots();
        let made = automatic(&all);
        let expired = schedule.expired(made.iter().map(|(at, _)| *at).collect());
        let held: BTreeSet<&str> =
            all.iter().filter(|snapshot| !snapshot.holds.is_empty()).map(|s| s.name.as_str()).collect();
        for (_, name) in
            made.iter().filter(|(at, name)| expired.contains(at) && !held.contains(name.as_str()))
        {
            if self.shown.close(&format!("{}@{name}", served.name)) {
                served.volume.remove_snapshot(name).await?;
            }
        }
        Ok(())
    }
}

/// When snapshots were made by a schedule, and their names.
fn automatic(all: &[SnapshotStatus]) -> Vec<(u64, String)> {
    let automatic = all.iter().filter(|snapshot| snapshot.name.starts_with(PREFIX) && !snapshot.is_bookmark);
    automatic.map(|snapshot| (snapshot.made_ms, snapshot.name.clone())).collect()
}

impl Served {
    /// How the automatic snapshots are; `None` where none are asked for.
    pub fn auto_snapshot(&self, wall_ms: u64) -> Option<AutoSnapshotStatus> {
        let schedule = self.live.as_ref()?.kept().auto_snapshot?;
        let newest_ms = automatic(&self.volume.snapshots()).iter().map(|(at, _)| *at).max();
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
