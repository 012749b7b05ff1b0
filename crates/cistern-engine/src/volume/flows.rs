//! The flows of a volume that is open for writing: write-back and cleaner offer to the publisher, who tells the order
//! point and the upkeep of every commit, in that order.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    Error, Result,
    cleaner::{self, Cleaner, RoundSize},
    codec::Compression,
    damage::Damage,
    env::Env,
    log::{
        AppliedSegment, Commit, Committed, Ended, LogWriter, NewEntry, Publisher, Slots,
        checkpoint::Checkpoint, origin::CloneOrigin, roots::SnapshotTable, uploads::WindowSize,
    },
    segment::{Content, Rollback},
    snapshot::Snapshots,
    space::{self, Policy, SnapshotPlaces, Space, Uncovered},
    units::Seq,
    upkeep::{
        self, Ancestry, Behind, Descent, Operated, Points, Rested, SegmentCounts, StoredHoldings, Upkeep,
    },
    volume::{OpenOptions, base::CommittedBlocks, collect::Collector, complete::Completion, order::Core},
    writeback::{self, Control, Loads, WriteBack},
};

/// Whom the log tells of commits.
struct Joined {
    env: Env,
    core: Arc<Core>,
    blocks: Arc<CommittedBlocks>,
    control: Arc<Control>,
    points: Points,
    space: Arc<Space>,
}

/// Pause before the map is asked again what still stands of what was moved.
const MOVED_PAUSE: Duration = Duration::from_secs(1);

#[async_trait]
impl Commit for Joined {
    async fn commit(&self, seq: Seq, entry: &NewEntry) {
        match entry {
            NewEntry::Segment(segment) => self.core.commit_segment(seq, segment),
            // It is in the log, and counts for everybody: so it is asked until there is an answer.
            NewEntry::Moved(moved) => {
                self.blocks.keep_moved(seq, moved); // before anybody looks for it there
                while let Err(e) = self.core.commit_moved(moved).await {
                    tracing::debug!(error = %e, "what was moved waits for the map");
                    self.env.sleep(MOVED_PAUSE).await;
                }
            }
            NewEntry::Kept(_) => {} // the volume does not see it
        }
        let sealed = entry.sealed();
        let (stored_bytes, is_moved) = (sealed.body.len() as u64, entry.is_moved());
        self.space.committed(seq, Uncovered { stored_bytes, is_moved }, sealed.data_bytes);
        self.points.committed(seq, entry, &self.core.map);
        // Last: whoever waits for the commit finds all accounts as they are behind it.
        if let NewEntry::Segment(segment) = entry {
            self.control.commit(seq, segment.range.from.pos, segment.range.to.pos);
            self.core.pacer.note_commit();
            debug_assert!(self.core.agrees_with_journal(), "what is committed is not dirty");
        }
    }

    async fn room(&self) {
        self.points.room(&self.core.map).await;
    }

    fn latch(&self, cause: Error) {
        tracing::error!(error = %cause, "the volume has stopped");
        self.core.refuse(cause);
    }
}

/// What runs behind a writer. Dropped in this order: nobody takes the end of the publisher for a failure.
pub struct Flows {
    env: Env,
    completion: Completion,
    write_back: WriteBack,
    cleaner: Cleaner,
    upkeep: Upkeep,
    publisher: Publisher,
    space: Arc<Space>,
}

/// What the flows begin with.
pub struct Beginning {
    pub committed: Committed,
    /// What snapshots there were as of its checkpoint, and what there are with what is behind it.
    pub table: SnapshotTable,
    pub snapshots: Snapshots,
    pub log: LogWriter,
    pub slots: Slots,
    pub blocks: Arc<CommittedBlocks>,
    pub damage: Arc<Damage>,
    pub compression: Compression,
    pub loads: Arc<Loads>,
}

impl Flows {
    pub fn start(o: &OpenOptions, core: &Arc<Core>, control: &Arc<Control>, from: Beginning) -> Flows {
        let Beginning { committed, table, snapshots, log, slots, blocks, damage, compression, loads } = from;
        let Committed { checkpoint, walk, applied, left, .. } = committed;
        let (newest, now) = (walk.seq, o.env.now());
        let retired = checkpoint.as_ref().map_or_else(Vec::new, |c| c.retired.clone());
        let uncovered = applied.iter().map(uncovered).collect();
        let policy = Policy::new(o.cleaning.bound, o.tariff, now);
        let times = checkpoint.as_ref().map_or_else(Vec::new, |c| c.times.clone());
        let places = SnapshotPlaces {
            positions: snapshots.positions(),
            roots: table.roots.clone(),
            forwarded: table.forwards.iter().map(|forward| forward.from.len()).sum(),
            are_awaited: false,
        };
        let stored = checkpoint.as_ref().and_then(|c| c.snapshots);
        let held = checkpoint.as_ref().map_or_else(Vec::new, |c| c.held.clone());
        let descent = |c: &Checkpoint| Descent { origins: c.origins.clone(), flattened: c.flattened };
        let descent = checkpoint.as_ref().map_or_else(Descent::default, descent);
        let is_own = |origin: &CloneOrigin| origin.source.volume == log.keys().volume;
        let own = table.branches.last().filter(|_| descent.origins.iter().all(is_own));
        let ancestry = Arc::new(Ancestry::new(descent, own.map_or(Seq(0), |branch| branch.from)));
        let (wall, rate) = (Duration::from_millis(o.env.wall_ms()), o.cleaning.rate);
        let covered = checkpoint.as_ref().map_or(Seq(0), |c| c.covered);
        let start = space::Start {
            newest,
            uncovered,
            retired,
            covered,
            times,
            wall,
            policy,
            rate,
            snapshots: places,
        };
        let space = Arc::new(Space::new(start, now));
        let (upkeep, points) = upkeep::prepare(upkeep::UpkeepParts {
            env: o.env.clone(),
            stores: o.stores.clone(),
            map: core.map.clone(),
            log: log.clone(),
            walk: walk.clone(),
            checkpoint: checkpoint.as_ref().map(|c| (c.epoch, c.covered)),
            usage: checkpoint.map_or_else(Vec::new, |c| c.usage),
            holdings: StoredHoldings { table, stored, held, left },
            behind: Behind {
                segments: applied.iter().map(counts).collect(),
                operations: applied.iter().filter_map(operated).collect(),
                snapshots,
            },
            damage,
            space: space.clone(),
            grace: o.grace,
            grace_alone: o.grace_alone,
            paused: control.pauses(),
            ancestry,
        });
        let joined = Joined {
            env: o.env.clone(),
            core: core.clone(),
            blocks: blocks.clone(),
            control: control.clone(),
            points,
            space: space.clone(),
        };
        let most = WindowSize::new(o.memory_bytes);
        let publisher = Publisher::start(&o.env, slots, walk.mark(), most, Arc::new(joined));
        let upkeep = upkeep.start(publisher.offerer());
        let parts = writeback::WritebackParts {
            env: o.env.clone(),
            journal: core.journal.clone(),
            courtesy: o.state.courtesy(),
            bases: blocks.clone(),
            log: log.clone(),
            offerer: publisher.offerer(),
            compression,
            loads: loads.clone(),
            packed: walk.mark(),
            size_bytes: walk.size_bytes,
        };
        let completion = Completion::start(&o.env, core, &blocks, control);
        let write_back = WriteBack::start(parts, control.clone());
        let cleaner = Cleaner::start(cleaner::CleanerParts {
            env: o.env.clone(),
            store: o.stores.background.clone(),
            map: core.map.clone(),
            log,
            offerer: publisher.offerer(),
            blocks,
            space: space.clone(),
            compression,
            round: RoundSize::new(o.memory_bytes),
            paused: control.pauses(),
        });
        Flows { env: o.env.clone(), completion, write_back, cleaner, upkeep, publisher, space }
    }

    /// The accounts of space, which all of them share.
    pub fn space(&self) -> Arc<Space> {
        self.space.clone()
    }

    pub fn collector(&self) -> Collector {
        Collector { coverage: self.upkeep.coverage(), demands: self.cleaner.demands() }
    }

    /// Stops everything: what was offered is committed first, for at most `limit`. What is not committed stays in the
    /// journal.
    pub async fn stop(self, limit: Duration) -> Result<Stopped> {
        let Flows { env, completion, write_back, cleaner, upkeep, mut publisher, space: _ } = self;
        completion.stop().await;
        write_back.stop().await;
        cleaner.stop().await;
        let upkeep = upkeep.stop().await;
        let is_settled = env.timeout(limit, publisher.settle()).await.is_some();
        Ok(Stopped { upkeep, log: publisher.stop().await?, is_settled })
    }
}

fn counts(segment: &AppliedSegment) -> (Seq, SegmentCounts) {
    let (stored_bytes, data_blocks) = (segment.stored_bytes, segment.data_blocks());
    let mappings = segment.mappings.len() as u64;
    (segment.seq, SegmentCounts { stored_bytes, data_blocks, mappings })
}

fn operated(segment: &AppliedSegment) -> Option<Operated> {
    match segment.content {
        Content::Written { size_bytes, .. } if !segment.operations.is_empty() => {
            Some((segment.seq, size_bytes, segment.operations.clone()))
        }
        _ => None,
    }
}

fn uncovered(segment: &AppliedSegment) -> (Seq, Uncovered) {
    let is_moved = segment.content.is_moved();
    (segment.seq, Uncovered { stored_bytes: segment.stored_bytes, is_moved })
}

/// All flows at rest.
pub struct Stopped {
    upkeep: Rested,
    log: Ended,
    is_settled: bool,
}

impl Stopped {
    /// Everything is committed: the last checkpoint covers it, so that the next opening is short. Then the epoch ends.
    pub async fn release(self, size_bytes: u64, rollback: Option<Rollback>) -> Result<()> {
        if !self.is_settled {
            return Err(Error::Unreachable("not everything that was on its way could be committed".into()));
        }
        self.upkeep.checkpoint().await?;
        self.log.release(size_bytes, rollback).await
    }
}
