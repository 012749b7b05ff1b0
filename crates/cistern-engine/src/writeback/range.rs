//! What write-back offers to the log: one range of the journal, as a segment.
//!
//! Invariant: the range stays what it is, also when its slot is lost and it is sealed again. What lies in it stays
//! in the journal until it is committed, so its groups need not be kept in memory beside its body.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    Result,
    codec::Compression,
    env::Env,
    journal::{Group, Journal},
    log::{LogWriter, NewEntry, NewSegment, Offer},
    rank::Ranked,
    segment::{JournalRange, Slot},
    stream::StreamRecord,
    units::BLOCK_BYTES,
    writeback::{
        Bases,
        bases::{Completed, complete},
        pack::{LoadedRange, has_sectors, pack, pack_load},
    },
};

/// A range of the journal that is durable.
pub struct Range {
    pub env: Env,
    pub journal: Arc<Journal>,
    pub bases: Arc<dyn Bases>,
    pub log: LogWriter,
    pub compression: Compression,
    pub range: JournalRange,
    /// Size of the volume as of its end.
    pub size_bytes: u64,
    /// What its token stands for, if it is that of a load.
    pub content: Option<Arc<Vec<StreamRecord>>>,
    /// Its groups, read when it was decided how far it goes. Taken by the first sealing.
    pub loaded: Ranked<Option<Vec<Arc<Group>>>>,
}

impl Range {
    /// Bytes of the journal in it.
    pub fn bytes(&self) -> u64 {
        (self.range.to.pos.0 - self.range.from.pos.0) * BLOCK_BYTES as u64
    }

    async fn seal_load(&self, slot: &Slot, content: Arc<Vec<StreamRecord>>) -> NewEntry {
        let (slot, keys, compression) = (*slot, self.log.keys().clone(), self.compression);
        let (range, size_bytes) = (self.range, self.size_bytes);
        let pack = move || pack_load(&content, range, size_bytes, &slot, &keys, compression);
        let sealed = self.env.compute(pack).await;
        NewEntry::Segment(NewSegment { sealed, left_out: Vec::new(), range, size_bytes })
    }

    async fn groups(&self) -> Result<Vec<Arc<Group>>> {
        let loaded = self.loaded.lock().take();
        match loaded {
            Some(groups) => Ok(groups),
            None => self.load_again().await,
        }
    }

    async fn load_again(&self) -> Result<Vec<Arc<Group>>> {
        let JournalRange { from, to, .. } = self.range;
        let (mut groups, mut next) = (Vec::new(), from.pos);
        while next < to.pos {
            for group in self.journal.groups(next).await? {
                if next < to.pos {
                    next = group.next();
                    groups.push(group);
                }
            }
        }
        assert_eq!(next, to.pos, "a range ends where a group does");
        Ok(groups)
    }
}

#[async_trait]
impl Offer for Range {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        if let Some(content) = self.content.clone() {
            return Ok(self.seal_load(slot, content).await);
        }
        let groups = self.groups().await?;
        let complete = match has_sectors(&groups) {
            true => complete(&self.env, &*self.bases, &self.log, groups.clone()).await,
            false => Completed::default(),
        };
        let left_out = complete.lost.clone();
        let load = LoadedRange { range: self.range, groups, size_bytes: self.size_bytes };
        let (slot, keys, compression) = (*slot, self.log.keys().clone(), self.compression);
        let sealed = self.env.compute(move || pack(&load, &complete, &slot, &keys, compression)).await;
        Ok(NewEntry::Segment(NewSegment { sealed, left_out, range: self.range, size_bytes: self.size_bytes }))
    }
}
