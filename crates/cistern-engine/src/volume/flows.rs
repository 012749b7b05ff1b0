//! The flows of a volume that is open for writing: write-back offers to the publisher, who tells the order point
//! and the upkeep of every commit, in that order.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    Error, Result,
    codec::Compression,
    damage::Damage,
    log::{AppliedSegment, Commit, Committed, Ended, LogWriter, NewEntry, Publisher, Slots},
    units::Seq,
    upkeep::{self, Points, Rested, SegmentCounts, Upkeep},
    volume::{OpenOptions, base::CommittedBlocks, order::Core},
    writeback::{self, Control, WriteBack},
};

/// Whom the log tells of commits.
struct Joined {
    core: Arc<Core>,
    points: Points,
}

#[async_trait]
impl Commit for Joined {
    fn commit(&self, seq: Seq, entry: &NewEntry) {
        match entry {
            NewEntry::Segment(segment) => self.core.commit_segment(seq, segment),
        }
        self.points.committed(seq, entry, &self.core.map);
    }

    async fn room(&self) {
        self.points.room(|| self.core.map.tables_len()).await;
    }

    fn latch(&self, cause: Error) {
        tracing::error!(error = %cause, "the volume has stopped");
        self.core.refuse(cause);
    }
}

/// What runs behind a writer. Dropped in this order: nobody takes the end of the publisher for a failure.
pub struct Flows {
    write_back: WriteBack,
    upkeep: Upkeep,
    publisher: Publisher,
}

/// What the flows begin with.
pub struct Beginning {
    pub committed: Committed,
    pub log: LogWriter,
    pub slots: Slots,
    pub bases: Arc<CommittedBlocks>,
    pub damage: Arc<Damage>,
    pub compression: Compression,
}

impl Flows {
    pub fn start(o: &OpenOptions, core: &Arc<Core>, control: &Arc<Control>, from: Beginning) -> Flows {
        let Beginning { committed, log, slots, bases, damage, compression } = from;
        let Committed { checkpoint, walk, applied, .. } = committed;
        let (upkeep, points) = Upkeep::start(upkeep::Parts {
            env: o.env.clone(),
            stores: o.stores.clone(),
            map: core.map.clone(),
            log: log.clone(),
            walk: walk.clone(),
            checkpoint: checkpoint.as_ref().map(|c| (c.epoch, c.covered)),
            usage: checkpoint.map_or_else(Vec::new, |c| c.usage),
            applied: applied.iter().map(counts).collect(),
            damage,
            paused: control.pauses(),
        });
        let joined = Joined { core: core.clone(), points };
        let publisher = Publisher::start(&o.env, slots, Arc::new(joined));
        let parts = writeback::Parts {
            env: o.env.clone(),
            journal: core.journal.clone(),
            courtesy: o.state.courtesy(),
            bases,
            log,
            offerer: publisher.offerer(),
            compression,
            packed: walk.mark(),
            size_bytes: walk.size_bytes,
        };
        let write_back = WriteBack::start(parts, control.clone());
        Flows { write_back, upkeep, publisher }
    }

    /// Stops everything at once. What is not committed stays in the journal.
    pub async fn stop(self) -> Result<Stopped> {
        self.write_back.stop().await;
        let upkeep = self.upkeep.stop().await;
        let log = self.publisher.stop().await?;
        Ok(Stopped { upkeep, log })
    }
}

fn counts(segment: &AppliedSegment) -> (Seq, SegmentCounts) {
    let mappings = segment.mappings.len() as u64;
    (segment.seq, SegmentCounts { data_bytes: segment.data_bytes(), mappings })
}

/// All flows at rest.
pub struct Stopped {
    upkeep: Rested,
    log: Ended,
}

impl Stopped {
    /// Everything is committed: the last checkpoint covers it, so that the next opening is short. Then the epoch ends.
    pub async fn release(self, size_bytes: u64) -> Result<()> {
        self.upkeep.checkpoint().await?;
        self.log.release(size_bytes).await
    }
}
