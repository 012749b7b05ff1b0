//! The rule of block status: a block is data, a hole or allocated zeroes as whoever wrote it last made it.
//!
//! Exact where the history is: a block with a sector that surely holds a write is data; one whose sectors surely
//! hold zeroes that were made for the whole block is what they made it. Where ops overlap in time, where zeroes
//! were written to a part of a block, and where a recovery left open whose zeroes are seen, anything goes.

use std::ops::Range;

use cistern_engine::volume::RangeKind;

use super::{BLOCK_SECTORS, Branch, Kind, Op};

impl Branch {
    /// A block status that was asked for at `invoked` ends at `tick` and says what lies from sector `first` on.
    /// Ends the read that was begun for it. The error says what is wrong.
    pub fn end_status(
        &mut self,
        invoked: u64,
        first: u64,
        told: &[(u64, RangeKind)],
        tick: u64,
    ) -> Result<(), String> {
        self.reads.remove(&invoked);
        let mut at = first;
        for &(count, kind) in told {
            let blocks = at.div_ceil(BLOCK_SECTORS)..(at + count) / BLOCK_SECTORS;
            for block in blocks {
                self.check_kind(block * BLOCK_SECTORS, kind, invoked..tick)?;
            }
            at += count;
        }
        Ok(())
    }

    fn check_kind(&self, block: u64, told: RangeKind, time: Range<u64>) -> Result<(), String> {
        let mut kinds = Vec::new();
        for sector in block..block + BLOCK_SECTORS {
            let shown: Vec<_> = self.shown(sector, &time).collect();
            let written = |(op, anonymous): &(&Op, bool)| op.kind == Kind::Write && !anonymous;
            if !shown.is_empty() && shown.iter().all(written) {
                return match told {
                    RangeKind::Data => Ok(()),
                    other => Err(self.wrong_kind(block, other, sector, &time)),
                };
            }
            for (op, anonymous) in shown {
                let whole = op.first <= block && op.first + op.count >= block + BLOCK_SECTORS;
                match op.kind {
                    Kind::Zero { allocated } if whole && !anonymous => kinds.push(match allocated {
                        true => RangeKind::Zero,
                        false => RangeKind::Hole,
                    }),
                    _ => kinds.extend([RangeKind::Data, RangeKind::Zero, RangeKind::Hole]),
                }
            }
        }
        match kinds.contains(&told) {
            true => Ok(()),
            false => Err(self.wrong_kind(block, told, block, &time)),
        }
    }

    /// The ops that a sector may show in that time, and whether it is open if they are there at all.
    fn shown<'a>(&'a self, sector: u64, time: &Range<u64>) -> impl Iterator<Item = (&'a Op, bool)> {
        let Range { start, end } = *time;
        self.sectors[sector as usize]
            .iter()
            .map(|e| (e, self.op(e.op)))
            .filter(move |(e, op)| op.invoked < end && e.superseded_at > start)
            .map(|(e, op)| (op, e.anonymous || e.doubtful))
    }

    fn wrong_kind(&self, block: u64, told: RangeKind, sector: u64, time: &Range<u64>) -> String {
        let shown: Vec<String> = self.shown(sector, time).map(|(op, _)| self.describe(op.id)).collect();
        format!(
            "P4: a block status of tick {} calls the block of sector {block} {told:?}; sector {sector} holds: {}",
            time.start,
            shown.join(", ")
        )
    }
}
