//! Clones of the volumes that a daemon serves: when one is gone, what was kept for it is let go of.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cistern_engine::volume::Volume;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use crate::daemon::Daemon;

/// How often to look whether clones are gone.
const INTERVAL: Duration = Duration::from_secs(3600);
/// The same of a volume whose store is short of room: what is kept for a clone may be all that fills it.
const INTERVAL_SHORT: Duration = Duration::from_secs(10);

/// Looks until dropped. A volume whose store does not answer keeps no other one waiting.
pub async fn run(daemon: &Daemon) {
    let mut clock = tokio::time::interval(INTERVAL_SHORT);
    let (mut looking, mut looked) = (FuturesUnordered::new(), Looked::default());
    loop {
        tokio::select! {
            _ = clock.tick() => {
                for served in daemon.served() {
                    if let Some(is_due) = looked.begin(&served.name, Instant::now()) {
                        looking.push(look(served.name.clone(), served.volume.clone(), is_due));
                    }
                }
            }
            Some(name) = looking.next() => looked.end(&name),
        }
    }
}

/// When was looked at which volume, by name.
#[derive(Default)]
struct Looked {
    last: BTreeMap<String, Instant>,
    under_way: BTreeSet<String>,
}

impl Looked {
    /// Whether a look is due even if there is room. `None` while one is under way.
    fn begin(&mut self, name: &str, now: Instant) -> Option<bool> {
        if !self.under_way.insert(name.to_owned()) {
            return None;
        }
        let is_due = self.last.get(name).is_none_or(|last| now - *last >= INTERVAL);
        if is_due {
            self.last.insert(name.to_owned(), now);
        }
        Some(is_due)
    }

    fn end(&mut self, name: &str) {
        self.under_way.remove(name);
    }
}

/// Looks at one volume, if that is due or room is short. Gives its name back.
async fn look(name: String, volume: Arc<Volume>, is_due: bool) -> String {
    if volume.keeps_for_clones() && (is_due || volume.is_room_short().await) {
        forget_removed(&name, &volume).await;
    }
    name
}

/// Lets go of what was kept for clones that are gone. Asks the store nothing where there are none.
pub async fn forget_removed(name: &str, volume: &Volume) {
    if !volume.keeps_for_clones() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A look is due at first and every hour; the next one begins when the last one has ended.
    #[test]
    fn one_look_at_a_time() {
        let (mut looked, begin) = (Looked::default(), Instant::now());
        let mut after = |seconds| looked.begin("tank", begin + Duration::from_secs(seconds));
        assert_eq!((after(0), after(10)), (Some(true), None));
        looked.end("tank");
        assert_eq!(looked.begin("tank", begin + Duration::from_secs(20)), Some(false));
        looked.end("tank");
        assert_eq!(looked.begin("tank", begin + INTERVAL), Some(true));
        assert_eq!(looked.begin("other", begin), Some(true));
    }
}
