//! Clones of the volumes that a daemon serves: when one is gone, what was kept for it is let go of.

use std::time::Duration;

use cistern_engine::volume::Volume;

use crate::daemon::Daemon;

/// How often to look whether clones are gone.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Looks until dropped.
pub async fn run(daemon: &Daemon) {
    let mut clock = tokio::time::interval(INTERVAL);
    loop {
        clock.tick().await;
        for served in daemon.served() {
            forget_removed(&served.name, &served.volume).await;
        }
    }
}

/// Lets go of what was kept for clones that are gone. Asks the store nothing where there are none.
pub async fn forget_removed(name: &str, volume: &Volume) {
    if volume.is_read_only() || volume.snapshots().iter().all(|snapshot| snapshot.clones.is_empty()) {
        return;
    }
    match volume.forget_removed_clones().await {
        Ok(0) => {}
        Ok(clones) => {
            tracing::info!(volume = name, clones, "clones are gone: what was kept for them is let go of")
        }
        // It is looked at again.
        Err(e) => tracing::debug!(volume = name, error = %e, "looking for clones that are gone"),
    }
}
