//! Completing partial blocks: what was written while the rest of its block could not be read becomes whole when that can be read again.
//!
//! A partial block is written as a whole through the journal, as a client would, with its extent held: so it is one more write in the
//! history, whatever crashes, and takes the place of its sectors. What a client writes meanwhile comes before or behind it. Costs
//! nothing while no block is partial.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    Result,
    env::{Env, Pauses, Running, Stop},
    fetch::partial_blocks,
    journal::Record,
    map::PartialMark,
    sectors::VOLUME_BLOCKS_MAX,
    units::{Extent, Mapping, Seq},
    volume::{
        base::CommittedBlocks,
        order::{Core, Source, Submitted},
        write::Holding,
    },
    writeback::{Bases, Control, LEFT_BY_DATA},
};

/// How long what could not be completed is left alone, at first and at most: reads that fail cost requests.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Mappings of sectors that are looked at together.
const STEP_MAPPINGS: usize = 1024;
/// Blocks that could not be completed after which a round ends.
const FAILURES_MAX: u64 = 64;

/// Completes the partial blocks of a volume that is open for writing, until dropped.
pub struct Completion(Running);

struct Completing {
    env: Env,
    core: Arc<Core>,
    blocks: Arc<CommittedBlocks>,
    control: Arc<Control>,
}

/// What a round came to.
struct CompletionRound {
    /// The block from which the next one goes on.
    next: u64,
    complete: u64,
}

/// What became of a block that was partial.
enum CompletionOutcome {
    Complete,
    /// Something newer is in the journal, or came meanwhile.
    Passed,
    /// The rest cannot be read.
    Left,
}

impl Completion {
    pub fn start(
        env: &Env,
        core: &Arc<Core>,
        blocks: &Arc<CommittedBlocks>,
        control: &Arc<Control>,
    ) -> Completion {
        let completing = Completing {
            env: env.clone(),
            core: core.clone(),
            blocks: blocks.clone(),
            control: control.clone(),
        };
        Completion(Running::start(env, "completion", Stop::new(), completing.run()))
    }

    /// Stops at its next await point: each block is whole or as it was.
    pub async fn stop(self) {
        self.0.stop().await;
    }
}

impl Completing {
    async fn run(self) {
        let (mut from, mut pauses) = (0, Pauses::new(PAUSE_MIN, PAUSE_MAX));
        loop {
            let mark = self.blocks.map.partial_appeared().await;
            match self.round(mark, from).await {
                Ok(CompletionRound { next, complete }) => {
                    from = next;
                    if complete > 0 {
                        pauses.reset();
                    }
                }
                Err(e) if self.core.refusal().is_some() => {
                    tracing::debug!(error = %e, "nothing is completed any more");
                    return;
                }
                Err(e) => tracing::debug!(error = %e, "partial blocks are completed later"),
            }
            pauses.rest(&self.env).await;
        }
    }

    /// Completes what can be, from a block on.
    async fn round(&self, mark: PartialMark, from: u64) -> Result<CompletionRound> {
        let (mut at, mut seen, mut complete, mut left) = (from, 0_u64, 0_u64, 0);
        while at < VOLUME_BLOCKS_MAX && left < FAILURES_MAX {
            let rest = Extent::between(at, VOLUME_BLOCKS_MAX);
            let (mappings, end) = self.blocks.map.sectors_in(rest, Seq(0), STEP_MAPPINGS).await?;
            at = end;
            for partial in partial_blocks(&mappings) {
                seen += 1;
                match self.complete(partial.block, &partial.mappings).await? {
                    CompletionOutcome::Complete => complete += 1,
                    CompletionOutcome::Passed => {}
                    CompletionOutcome::Left => left += 1,
                }
                if left == FAILURES_MAX {
                    at = partial.block + 1;
                    break;
                }
            }
        }
        if complete > 0 {
            tracing::info!(complete, left, "blocks that were written in part are whole again");
        }
        if seen == 0 && from == 0 {
            self.blocks.map.has_no_partial(mark);
        }
        Ok(CompletionRound { next: if at < VOLUME_BLOCKS_MAX { at } else { 0 }, complete })
    }

    /// Writes one block as a whole, if it is still as it was when `apart` was looked up.
    async fn complete(&self, block: u64, apart: &[Mapping]) -> Result<CompletionOutcome> {
        let extent = Extent::new(block, 1);
        // At first without holding anything: the store may be slow, and clients write meanwhile.
        match self.blocks.read(block).await {
            Ok(_) => {}
            Err(e) if e.is_damage() || self.blocks.is_origin_away() => return Ok(CompletionOutcome::Left),
            Err(e) => return Err(e),
        }
        let holding = Holding::take(&self.core, extent).await;
        let view = self.core.view(extent, 1, usize::MAX)?;
        let Some((_, Source::Map(mut lookup))) = view.parts.into_iter().next() else {
            return Ok(CompletionOutcome::Passed);
        };
        let Some(sectors) = lookup.take_sectors() else { return Ok(CompletionOutcome::Passed) };
        if partial_blocks(&sectors.finish().await?).first().is_none_or(|now| now.mappings != apart) {
            return Ok(CompletionOutcome::Passed);
        }
        let whole = match self.blocks.read(block).await {
            Ok(whole) => whole,
            Err(e) if e.is_damage() || self.blocks.is_origin_away() => return Ok(CompletionOutcome::Left),
            Err(e) => return Err(e),
        };
        self.write(extent, whole, &holding)
    }

    fn write(&self, extent: Extent, whole: Bytes, holding: &Holding<'_>) -> Result<CompletionOutcome> {
        let prepared = self.core.journal.prepare(Record::Write(extent), whole)?;
        if self.control.above_room(prepared.payload_blocks() + 1, LEFT_BY_DATA).is_some() {
            return Ok(CompletionOutcome::Left); // clients come first
        }
        match self.core.submit(&prepared, Some(holding.held()))? {
            Submitted::Done { from, to } => {
                self.control.note_append(from, to, self.env.now());
                Ok(CompletionOutcome::Complete)
            }
            Submitted::Held(_) => unreachable!("what is held is held by this alone"),
            Submitted::NoRoom => Ok(CompletionOutcome::Left),
        }
    }
}
