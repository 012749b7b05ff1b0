//! Snapshots of the volumes that a daemon serves.

use std::sync::Arc;

use cistern_engine::volume::{SnapshotStatus, Volume, snapshot_together};

use crate::{
    control::{NamedSnapshot, SnapshotChange},
    daemon::Daemon,
    failure::{Failure, Kind, Outcome},
};

impl Daemon {
    /// The snapshots of a volume, by name.
    pub fn snapshots(&self, volume: &str) -> Outcome<Vec<SnapshotStatus>> {
        Ok(self.find(volume)?.volume.known_snapshots()?)
    }

    /// Makes snapshots at one instant. Returns when they are durable here, or in the store.
    pub async fn snapshot(
        self: Arc<Self>,
        snapshots: Vec<NamedSnapshot>,
        wait: bool,
    ) -> Outcome<Vec<SnapshotStatus>> {
        let named = snapshots.iter().map(|named| Ok((self.writable(&named.volume)?, named.name.clone())));
        let named: Vec<(Arc<Volume>, String)> = named.collect::<Outcome<_>>()?;
        // A task of its own: whoever hangs up leaves no half of them behind.
        let made = {
            let named = named.clone();
            tokio::spawn(async move {
                let named: Vec<(&Volume, &str)> =
                    named.iter().map(|(volume, name)| (&**volume, name.as_str())).collect();
                snapshot_together(&named).await
            })
        };
        made.await.expect("it does not panic and is never cancelled")?;
        if wait {
            futures_util::future::try_join_all(named.iter().map(|(volume, _)| volume.drain())).await?;
        }
        Ok(named.iter().filter_map(|(volume, name)| volume.snapshot_named(name)).collect())
    }

    /// Removes, holds or releases a snapshot.
    pub async fn change_snapshot(
        self: Arc<Self>,
        snapshot: NamedSnapshot,
        change: SnapshotChange,
    ) -> Outcome<()> {
        let volume = self.writable(&snapshot.volume)?;
        let shown = format!("{}@{}", self.find(&snapshot.volume)?.name, snapshot.name);
        let removes = matches!(change, SnapshotChange::Remove | SnapshotChange::LeaveBookmark);
        if removes && !self.shown.close(&shown) {
            let failure = Failure::new(Kind::InUse, format!("clients are reading {shown}"));
            return Err(failure.hint("disconnect them first"));
        }
        Ok(change.make(&volume, &snapshot.name).await?)
    }

    fn writable(&self, volume: &str) -> Outcome<Arc<Volume>> {
        let served = self.find(volume)?;
        match served.volume.is_read_only() {
            true => Err(Failure::usage(format!(
                "{} is served read-only: its snapshots can only be changed where it is written",
                served.name
            ))),
            false => Ok(served.volume.clone()),
        }
    }
}
