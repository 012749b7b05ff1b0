//! Write-back: journal ranges become segments, which are offered to the log.
//!
//! Owns the decision when to seal and what, and the checkpoints behind the commits. Only
//! durable journal positions are packed, so a crash never finds the store ahead of the journal.
//! Never decides what is dirty, and never commits: the log does ([`crate::log::Publisher`]).

mod age;
mod bases;
pub mod budget;
mod control;
mod flow;
mod maintain;
mod pack;
pub mod pi;
mod points;
pub mod policy;
mod range;
mod usage;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

pub use bases::Bases;
pub use control::{Control, Shown, Tuning};
use points::Points;
pub use points::SegmentCounts;

use crate::{
    Error, Result,
    codec::Compression,
    courtesy::Courtesy,
    damage::Damage,
    env::{Env, StopOnDrop, Task},
    journal::Journal,
    log::{Commit, Ended, LogWriter, NewEntry, Publisher, Slots, Walk, checkpoint::UsageRef},
    map::Map,
    store::Stores,
    units::{Epoch, Seq},
};

/// How a write-back is to behave.
#[derive(Clone)]
pub struct WriteBackOptions {
    pub compression: Compression,
    /// How it behaves until [`Control::tune`] says otherwise.
    pub tuning: Tuning,
}

/// A running write-back.
pub struct WriteBack {
    control: Arc<Control>,
    maintainer: Arc<maintain::Maintainer>,
    flow: Task<()>,
    merger: Task<()>,
    /// A volume that is dropped without being closed ends its tasks too.
    stop_on_drop: StopOnDrop,
    /// Behind that, so that nobody takes its end for a failure.
    publisher: Publisher,
}

/// What a write-back works with.
pub struct Parts {
    pub env: Env,
    pub stores: Stores,
    pub journal: Arc<Journal>,
    /// Among those who use the journal's file system.
    pub courtesy: Arc<Courtesy>,
    pub map: Arc<Map>,
    /// What sectors are completed over.
    pub bases: Arc<dyn Bases>,
    pub log: LogWriter,
    /// Where the log stands: the epoch's claim.
    pub walk: Walk,
    /// The checkpoint this state descends from, and the usage objects it names.
    pub checkpoint: Option<(Epoch, Seq)>,
    pub usage: Vec<UsageRef>,
    /// Segments that count behind that checkpoint.
    pub applied: BTreeMap<Seq, SegmentCounts>,
    /// Told of objects that are damaged.
    pub damage: Arc<Damage>,
}

/// Who is told of commits: the volume, then what keeps its map.
struct Told {
    volume: Arc<dyn Commit>,
    points: Points,
    map: Arc<Map>,
}

#[async_trait]
impl Commit for Told {
    fn commit(&self, seq: Seq, entry: &NewEntry) {
        self.volume.commit(seq, entry);
        self.points.committed(seq, entry, &self.map);
    }

    async fn room(&self) {
        self.points.room(|| self.map.tables_len()).await;
    }

    fn latch(&self, cause: Error) {
        self.volume.latch(cause);
    }
}

impl WriteBack {
    /// Starts packing from the walk's journal position.
    pub fn start(
        parts: Parts,
        slots: Slots,
        options: WriteBackOptions,
        volume: Arc<dyn Commit>,
    ) -> WriteBack {
        let control = Arc::new(Control::new(parts.walk.journal_pos, options.tuning));
        let (maintainer, points, frozen) = maintain::Maintainer::new(&parts);
        let maintainer = Arc::new(maintainer);
        let env = parts.env.clone();
        let merger = env.spawn("map maintenance", {
            let (control, maintainer) = (control.clone(), maintainer.clone());
            async move {
                control.unless_stopped(maintainer.run(frozen, &control)).await;
            }
        });
        let told = Told { volume, points, map: parts.map.clone() };
        let publisher = Publisher::start(&env, slots, Arc::new(told));
        let flow = env.spawn("write-back", {
            let (control, offerer) = (control.clone(), publisher.offerer());
            async move {
                let flow = flow::Flow::new(parts, options, control.clone(), offerer);
                control.unless_stopped(flow.run()).await;
            }
        });
        let stop_on_drop = StopOnDrop(control.stop().clone());
        WriteBack { control, maintainer, flow, merger, stop_on_drop, publisher }
    }

    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Stops packing and uploading at once. What is not committed stays in the journal.
    pub async fn stop(self) -> Result<Stopped> {
        drop(self.stop_on_drop);
        self.flow.await;
        self.merger.await;
        let ended = self.publisher.stop().await?;
        Ok(Stopped { maintainer: self.maintainer, ended })
    }
}

/// A write-back at rest.
pub struct Stopped {
    maintainer: Arc<maintain::Maintainer>,
    ended: Ended,
}

impl Stopped {
    /// Everything is committed: the last checkpoint covers it, so that the next opening is short. Then the epoch ends.
    pub async fn release(self, size_bytes: u64) -> Result<()> {
        self.maintainer.checkpoint_all().await?;
        self.ended.release(size_bytes).await
    }
}
