//! P9 in a store with a quota: what is discarded comes back as room, though nothing more fits.

use std::{sync::Arc, time::Duration};

use super::{Session, World};
use crate::{client, device::Device};

/// What a quota leaves of room at the beginning of a round, at most.
pub(super) const ROOM_BYTES_MAX: u64 = 4 << 20;
/// So long a writer has for putting its reserve back after the quota was raised.
const RESERVE_TIME: Duration = Duration::from_secs(300);
/// One block of so many is written: they fit into any journal.
const WRITTEN_EVERY: usize = 32;
/// A snapshot that no client of the run makes.
const PASSING: &str = "passing";

/// Makes a snapshot, writes, and removes it. In writethrough both are done once they are in the store, which is not waited for.
async fn passing_snapshot(line: &client::Line, device: &dyn Device) -> cistern_engine::Result<()> {
    line.sim.limit(Duration::from_secs(30), device.snapshot(PASSING)).await.unwrap_or(Ok(()))?;
    client::fill_each(line, device, WRITTEN_EVERY).await;
    line.sim.limit(Duration::from_secs(30), device.remove_snapshot(PASSING)).await.unwrap_or(Ok(()))
}

impl World {
    /// Once everything is in the store that takes nothing more, something is written and all of the volume is discarded: that, too, comes to the store,
    /// also if a snapshot was made and removed meanwhile.
    pub(super) async fn discarding_leads_out(&self, session: &Session) {
        self.sim.sleep(RESERVE_TIME).await;
        let has_reserve = self.store.objects(|o| o.keys().iter().any(|key| key.contains("/reserve/")));
        if !has_reserve || !self.sim.chance(0.5) {
            return;
        }
        self.store.set_room(Some(0));
        let act = |device: Arc<dyn Device>, line: Arc<client::Line>| async move {
            client::fill_each(&line, &*device, WRITTEN_EVERY).await;
            line.sim.sleep(Duration::from_secs(line.sim.range(0, 60))).await;
            if line.sim.chance(0.5)
                && let Err(error) = passing_snapshot(&line, &*device).await
            {
                line.sim.fail(format!("P9: a snapshot at a quota: {error:?}"));
            }
            client::discard_all(&line, &*device).await;
            let invoked = line.sim.tick();
            match device.drain().await {
                Ok(()) => line.committed(invoked),
                Err(error) => {
                    line.sim.fail(format!("P9: discarding does not lead out of a quota: {error:?}"))
                }
            }
        };
        self.on_device(session, "discarding at a quota", act).await;
        self.store.set_room(None);
    }
}
