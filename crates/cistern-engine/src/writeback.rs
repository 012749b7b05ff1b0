//! Write-back: journal ranges become segments, in parallel, and are committed in order.
//!
//! Owns the decision when to seal, the window of uploads, and the checkpoints behind them. Only
//! durable journal positions are packed, so a crash never finds the store ahead of the journal.
//! Never decides what is dirty: whoever owns the dirty index is told by [`Commit`].

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
mod uploads;
mod usage;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

pub use bases::Bases;
pub use control::{Control, Shown, Tuning};
pub use points::SegmentCounts;

use crate::{
    Error, Result,
    codec::Compression,
    courtesy::Courtesy,
    damage::Damage,
    env::{Env, Task},
    journal::Journal,
    log::{LogWriter, Walk, checkpoint::UsageRef},
    map::Map,
    store::Stores,
    units::{Epoch, JournalPos, Mapping, Seq},
};

/// A segment that is committed: what it holds and which journal range it makes superfluous.
pub struct CommittedSegment<'a> {
    pub seq: Seq,
    pub mappings: &'a [Mapping],
    /// Blocks of which its range holds sectors, and which could not be completed: they are lost.
    pub left_out: &'a [u64],
    /// Its journal range.
    pub from: JournalPos,
    pub to: JournalPos,
    /// The object as it lies in the store.
    pub body: &'a Bytes,
}

/// Whoever reads from journal and map has to be told in the order of commits.
pub trait Commit: Send + Sync + 'static {
    /// Puts the mappings into the map and forgets dirty blocks before `to`, atomically for a reader of
    /// any block. On return the journal before `to` may be reused.
    fn commit(&self, segment: CommittedSegment<'_>);
    /// The volume can not go on.
    fn latch(&self, cause: Error);
}

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
}

struct StopOnDrop(Arc<Control>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
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

impl WriteBack {
    /// Starts packing from the walk's journal position.
    pub fn start(parts: Parts, options: WriteBackOptions, commit: Arc<dyn Commit>) -> WriteBack {
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
        let flow = env.spawn("write-back", {
            let control = control.clone();
            async move {
                let flow = flow::Flow::new(parts, options, control.clone(), commit, points);
                control.unless_stopped(flow.run()).await;
            }
        });
        let stop_on_drop = StopOnDrop(control.clone());
        WriteBack { control, maintainer, flow, merger, stop_on_drop }
    }

    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Stops packing and uploading at once. What is not committed stays in the journal.
    pub async fn stop(self) -> Stopped {
        drop(self.stop_on_drop);
        self.flow.await;
        self.merger.await;
        Stopped { maintainer: self.maintainer }
    }
}

/// A write-back at rest.
pub struct Stopped {
    maintainer: Arc<maintain::Maintainer>,
}

impl Stopped {
    /// Writes a last checkpoint that covers everything committed, so that the next opening is short.
    pub async fn checkpoint(&self) -> Result<()> {
        self.maintainer.checkpoint_all().await
    }
}
