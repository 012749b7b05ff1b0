//! Upkeep of the map, behind the commits: memory tables become runs, runs are merged, checkpoints are written.
//!
//! Owns when that happens, what was committed since the newest checkpoint ([`Points`]), the accounts of space in the store,
//! when what they retire is deleted, and when orphans are looked for. It is told of commits; nothing of it is in their way but the bound of memory. Rests while write-back is
//! paused.

mod ancestry;
mod holdings;
mod left;
mod maintain;
mod points;
mod reclaim;
mod rows;
mod sweep;
mod usage;

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};

use crate::{
    Error, Result,
    damage::Damage,
    env::{Env, Running, Stop},
    log::{LogWriter, Offerer, Walk, checkpoint::MapObject},
    map::Map,
    space::Space,
    store::Stores,
    units::{Epoch, Seq},
};

pub use ancestry::{Ancestry, Descent};
pub use holdings::StoredHoldings;
use maintain::Maintainer;
use points::Point;
pub use points::{Behind, Operated, Points, SEGMENTS_PER_CHECKPOINT, SegmentCounts};

/// What an upkeep works with.
pub struct UpkeepParts {
    pub env: Env,
    pub stores: Stores,
    pub map: Arc<Map>,
    pub log: LogWriter,
    /// Where the log stands: the epoch's claim.
    pub walk: Walk,
    /// The checkpoint this state descends from, and the usage objects it names.
    pub checkpoint: Option<(Epoch, Seq)>,
    pub usage: Vec<MapObject>,
    /// What snapshots hold as of it.
    pub holdings: StoredHoldings,
    /// What counts behind that checkpoint.
    pub behind: Behind,
    /// Told of objects that are damaged.
    pub damage: Arc<Damage>,
    pub space: Arc<Space>,
    /// How long retired objects stay, for readers, and how long where there is none.
    pub grace: Duration,
    pub grace_alone: Duration,
    /// Whether write-back is paused.
    pub paused: watch::Receiver<bool>,
    /// Of a clone.
    pub ancestry: Arc<Ancestry>,
}

/// An upkeep that waits for a publisher.
pub struct WaitingUpkeep {
    env: Env,
    maintainer: Arc<Maintainer>,
    frozen: mpsc::Receiver<Point>,
}

/// Makes an upkeep; the points are for whoever is told of commits.
pub fn prepare(parts: UpkeepParts) -> (WaitingUpkeep, Points) {
    let env = parts.env.clone();
    let (maintainer, points, frozen) = Maintainer::new(parts);
    (WaitingUpkeep { env, maintainer: Arc::new(maintainer), frozen }, points)
}

impl WaitingUpkeep {
    pub fn start(self, offerer: Offerer) -> Upkeep {
        let WaitingUpkeep { env, maintainer, frozen } = self;
        let (runs, wanted) = (maintainer.clone(), watch::Sender::new(Seq(0)));
        let asked = wanted.subscribe();
        let task = async move { runs.run(frozen, offerer, asked).await };
        Upkeep { maintainer, task: Running::start(&env, "upkeep", Stop::new(), task), wanted }
    }
}

/// A running upkeep.
pub struct Upkeep {
    maintainer: Arc<Maintainer>,
    task: Running,
    wanted: watch::Sender<Seq>,
}

/// Where checkpoints are asked for. The upkeep may be gone.
#[derive(Clone)]
pub struct Coverage {
    space: Arc<Space>,
    wanted: watch::Sender<Seq>,
    ancestry: Arc<Ancestry>,
}

impl Coverage {
    /// What the next checkpoint tells of the volumes that a clone comes from.
    pub fn ancestry(&self) -> &Ancestry {
        &self.ancestry
    }

    /// Waits for a checkpoint that covers an entry behind everything that is in the map now, so that what that retires is
    /// named.
    pub async fn cover(&self) -> Result<()> {
        let mut changes = self.space.changes();
        let goal = self.space.newest().next();
        self.wanted.send_modify(|wanted| *wanted = goal.max(*wanted));
        while self.space.covered() < goal {
            tokio::select! {
                biased;
                changed = changes.changed() => changed.map_err(|_| Error::Closed)?,
                () = self.wanted.closed() => return Err(Error::Closed),
            }
        }
        Ok(())
    }
}

impl Upkeep {
    pub fn coverage(&self) -> Coverage {
        let (space, ancestry) = (self.maintainer.space.clone(), self.maintainer.ancestry.clone());
        Coverage { space, wanted: self.wanted.clone(), ancestry }
    }

    /// Stops at once. What is not in the store yet is written by a later opening.
    pub async fn stop(self) -> Rested {
        self.task.stop().await;
        Rested { maintainer: self.maintainer }
    }
}

/// An upkeep at rest.
pub struct Rested {
    maintainer: Arc<Maintainer>,
}

impl Rested {
    /// Writes a last checkpoint that covers everything committed, so that the next opening is short.
    pub async fn checkpoint(&self) -> Result<()> {
        self.maintainer.checkpoint_all().await
    }
}
