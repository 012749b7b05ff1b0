//! A position in one level of the map that only moves forward.
//!
//! Owns the decoded rest of one chunk. It reads nothing by itself: it answers from what it holds,
//! and `seek` brings it what it lacks.

use super::{
    RunMeta,
    runs::{HeldParts, Look, Origin, Runs},
};
use crate::{
    Result,
    units::{Mapping, Seq},
};

/// A cursor over the runs of one level.
pub(super) struct Cursor<'a> {
    level: &'a [RunMeta],
    /// Nobody asks for this block or one behind it.
    limit: u64,
    /// Nobody asks for what was born up to here: where that is all there is, it may be passed over.
    since: Seq,
    /// Mappings of one chunk that are not yet behind the position, as far as the limit.
    chunk: Vec<Mapping>,
    next: usize,
    /// Nothing of the level lies at the position or behind it.
    ended: bool,
}

/// What a cursor knows about a block.
pub(super) enum Known {
    /// The first mapping that ends behind the block; it may begin behind it as well.
    Next(Mapping),
    /// No mapping of this level ends behind the block, up to the limit that was given.
    Nothing,
    /// It must `seek` first.
    Unknown,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(level: &'a [RunMeta], limit: u64, since: Seq) -> Cursor<'a> {
        Cursor { level, limit, since, chunk: Vec::new(), next: 0, ended: false }
    }

    fn run_behind(&self, block: u64) -> usize {
        self.level.partition_point(|run| run.span.end() <= block)
    }

    /// What lies at `block` or behind it, below `limit`. Blocks asked for must not go back.
    pub(super) fn at(&mut self, block: u64, limit: u64) -> Known {
        debug_assert!(block < limit && limit <= self.limit, "nobody asks for what lies behind the limit");
        while let Some(m) = self.chunk.get(self.next) {
            if m.extent.end() > block {
                return Known::Next(*m);
            }
            self.next += 1;
        }
        let run = self.level.get(self.run_behind(block));
        match run {
            Some(run) if run.span.start < limit && !self.ended => Known::Unknown,
            _ => Known::Nothing,
        }
    }

    /// Like `seek` with what is in memory. False when that is not enough.
    pub(super) fn try_seek(&mut self, runs: &Runs, block: u64) -> Result<bool> {
        Ok(self.advance(runs, block, &HeldParts::default())?.is_none())
    }

    /// Brings the first mappings that end behind `block` into the cursor.
    pub(super) async fn seek(&mut self, runs: &Runs, origin: Origin<'_>, block: u64) -> Result<()> {
        let mut held = HeldParts::default();
        while let Some((run, wanted)) = self.advance(runs, block, &held)? {
            runs.load(origin, run, wanted, &mut held).await?;
        }
        Ok(())
    }

    fn advance(
        &mut self,
        runs: &Runs,
        block: u64,
        held: &HeldParts,
    ) -> Result<Option<(&'a RunMeta, super::runs::Wanted)>> {
        let behind = &self.level[self.run_behind(block)..];
        for run in behind.iter().filter(|run| run.birth_max > self.since) {
            match runs.look(run, block..self.limit, self.since, held)? {
                Look::Found(chunk) => {
                    (self.chunk, self.next) = (chunk, 0);
                    return Ok(None);
                }
                Look::End => {}
                Look::Missing(wanted) => return Ok(Some((run, wanted))),
            }
        }
        self.ended = true;
        Ok(None)
    }
}
