//! The hot set of one volume: what its chunk cache found worth keeping ([`HotParts`]), written to the store now and
//! then, and fetched into an empty cache on another host.
//!
//! Advice in both directions: no failure here fails anything, opening never waits for it, and while
//! nothing changes nothing is written. Everything goes through the store of low priority.

use std::{ops::Range, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    Error, Result,
    env::Env,
    fetch::{HotParts, ObjectRef},
    gc,
    log::{hot::HotSet, keys},
    rank::{Rank, Ranked},
    store::Put,
    units::Epoch,
};

/// How often a changed hot set is written.
const SAVE_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// It counts as changed when one piece of so many is new: now and then, and at a clean close.
const CHANGED_PART: u64 = 4;
const CHANGED_PART_AT_CLOSE: u64 = 16;

/// Keeps the hot set of one open volume. Dropping it ends what it does.
pub struct HotKeeper {
    hot: Arc<Hot>,
    _stop: oneshot::Sender<()>,
}

struct Hot {
    env: Env,
    parts: HotParts,
    /// Of the writer; a reader writes no hot sets.
    epoch: Option<Epoch>,
    /// What the store has, as far as is known.
    known: Ranked<Option<Arc<HotSet>>>,
    /// The number of the newest that this writer wrote. Held while writing.
    number: tokio::sync::Mutex<u64>,
}

impl HotKeeper {
    /// `epoch` is the writer's.
    pub fn start(env: &Env, parts: HotParts, epoch: Option<Epoch>) -> HotKeeper {
        let hot = Arc::new(Hot {
            env: env.clone(),
            parts,
            epoch,
            known: Ranked::new(Rank::Facade, Default::default()),
            number: tokio::sync::Mutex::new(0),
        });
        let (stop, mut stopped) = oneshot::channel();
        let work = hot.clone();
        env.spawn("hot set", async move {
            tokio::select! {
                biased;
                _ = &mut stopped => {}
                () = work.run() => {}
            }
        });
        HotKeeper { hot, _stop: stop }
    }

    /// Writes the hot set if it changed much; for the end.
    pub async fn save_at_close(&self) {
        self.hot.save(CHANGED_PART_AT_CLOSE).await;
    }

    /// What the store's hot set makes worth fetching: objects, each with a range of bytes.
    pub async fn fetches(&self) -> Result<Vec<(ObjectRef, Range<u64>)>> {
        let set = match self.hot.known() {
            Some(set) => set,
            None => self.hot.load().await?,
        };
        Ok(self.hot.parts.fetches(&set))
    }
}

impl Hot {
    fn known(&self) -> Option<Arc<HotSet>> {
        self.known.lock().clone()
    }

    fn learn(&self, set: Arc<HotSet>) {
        *self.known.lock() = Some(set);
    }

    async fn run(&self) {
        if !self.is_first_writer() {
            match self.load().await {
                Ok(set) => self.parts.warm(&set).await,
                Err(Error::NotFound(_)) => {}
                Err(e) => tracing::info!(error = %e, "the hot set in the store is not used"),
            }
        }
        while self.epoch.is_some() {
            self.env.sleep(SAVE_INTERVAL).await;
            self.save(CHANGED_PART).await;
        }
    }

    /// Whether all objects of the volume are this writer's own: no earlier hot set names any of them.
    fn is_first_writer(&self) -> bool {
        self.epoch.is_some() && self.parts.epochs.len() <= 1
    }

    /// The newest one in the store.
    async fn load(&self) -> Result<Arc<HotSet>> {
        let set = Arc::new(self.parts.load().await?);
        self.learn(set.clone());
        Ok(set)
    }

    /// Writes what is hot now, if one piece of `part` is new since the last time.
    async fn save(&self, part: u64) {
        if let Err(e) = self.try_save(part).await {
            tracing::info!(error = %e, "the hot set could not be written");
        }
    }

    async fn try_save(&self, part: u64) -> Result<()> {
        let Some(epoch) = self.epoch else { return Ok(()) };
        let mut number = self.number.lock().await;
        let set = self.parts.collect();
        let old = self.known().unwrap_or_default();
        let (pieces, common) = (set.pieces(), set.pieces_in(&old));
        if pieces == 0 || (pieces - common) * part < pieces {
            return Ok(());
        }
        *number += 1;
        let (store, keys) = (&self.parts.store, &self.parts.keys);
        let name = (epoch, *number);
        let body = set.encode(&self.env, keys.key.as_deref(), keys.volume, name)?;
        let put = store.put_if_absent(&keys::hot(name.0, name.1), body).await?;
        // So is what exists.
        debug_assert!(matches!(put, Put::Created | Put::Exists), "the name is ours alone");
        self.learn(Arc::new(set));
        gc::prune_hot_sets(store.as_ref(), name).await
    }
}
