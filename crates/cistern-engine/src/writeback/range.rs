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
    journal::Journal,
    log::{LogWriter, NewEntry, NewSegment, Offer},
    rank::Ranked,
    segment::{JournalRange, Slot},
    stream::StreamRecord,
    units::BLOCK_BYTES,
    writeback::{
        Bases,
        bases::complete,
        loads::LoadContent,
        overtake,
        pack::{Newest, pack, pack_load},
    },
};

/// How much of the journal a range may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So much that it is in memory while it is packed.
    Bounded,
    /// Anything: only what is left of it is in memory.
    Any,
}

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
    /// If it is that of a load.
    pub load: Option<LoadContent>,
    pub length: Length,
    /// Of the segment, before compression.
    pub data_bytes: u64,
    /// Whether it is small and makes room, or has no data.
    pub waits_for_room: bool,
    /// What is in it, read when it was decided how far it goes. Taken by the first sealing.
    pub loaded: Ranked<Option<Newest>>,
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
        NewEntry::Segment(NewSegment { sealed, partial: Vec::new(), range, size_bytes })
    }

    async fn newest(&self) -> Result<Newest> {
        let loaded = self.loaded.lock().take();
        match loaded {
            Some(newest) => Ok(newest),
            None => self.load_again().await,
        }
    }

    async fn load_again(&self) -> Result<Newest> {
        let JournalRange { from, to, .. } = self.range;
        if self.length == Length::Any {
            return Ok(overtake::load(&self.journal, (from.pos, to.pos), self.size_bytes).await?.0);
        }
        let (mut newest, mut next) = (Newest::new(&self.journal), from.pos);
        while next < to.pos {
            for group in self.journal.groups(next).await? {
                if next < to.pos {
                    next = group.next();
                    newest.push(group);
                }
            }
        }
        assert_eq!(next, to.pos, "a range ends where a group does");
        Ok(newest)
    }
}

#[async_trait]
impl Offer for Range {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        if let Some(load) = &self.load {
            return Ok(self.seal_load(slot, load.content.clone()).await);
        }
        let newest = self.newest().await?;
        let complete = complete(&self.env, &*self.bases, &self.log, &newest).await;
        let partial = complete.partial.iter().map(|sectors| sectors.block).collect();
        let (slot, keys, compression) = (*slot, self.log.keys().clone(), self.compression);
        let (range, size_bytes) = (self.range, self.size_bytes);
        let pack = move || pack(&newest, range, size_bytes, &complete, &slot, &keys, compression);
        let sealed = self.env.compute(pack).await;
        Ok(NewEntry::Segment(NewSegment { sealed, partial, range, size_bytes }))
    }
    fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }
}
