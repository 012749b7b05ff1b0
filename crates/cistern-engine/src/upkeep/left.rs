//! What a volume lost by a rollback: every block that it saw before is held by the snapshots that see it
//! (`docs/design/snapshots.md`, "Rollback").

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};

use crate::{
    Result,
    log::{
        LogWriter, SlotContent, keys, read_entry,
        roots::{HeldBlocks, LeftState},
        usage::Counts,
    },
    map::SeenBy,
    segment::{Content, Entry},
    store::{Listed, SharedStore},
    units::Seq,
};

/// Footers that are read at once.
const FOOTERS_AT_ONCE: usize = 32;

/// What a rollback left and is not in the accounts yet.
pub struct Left {
    state: LeftState,
    /// The oldest births in segments that were looked into, for the next attempt.
    births: BTreeMap<Seq, Seq>,
}

impl Left {
    pub fn new(state: LeftState) -> Left {
        Left { state, births: BTreeMap::new() }
    }

    /// The blocks that the accounts know as live before a rollback to `fork`, and that no snapshot holds yet: none of them is the head's
    /// any more. By segment, from the oldest birth in it on: what is older than `fork` all snapshots may see.
    ///
    /// # Errors
    /// Those of the store. What was found out is not asked again.
    pub async fn blocks(
        &mut self,
        store: &SharedStore,
        log: &LogWriter,
        segments: Vec<(Seq, Counts)>,
        held: &BTreeMap<(Seq, SeenBy), u64>,
        fork: Seq,
    ) -> Result<Vec<HeldBlocks>> {
        let covered = self.state.covered;
        let mut by_segment: BTreeMap<Seq, u64> = BTreeMap::new();
        for (&(segment, _), blocks) in held {
            *by_segment.entry(segment).or_default() += blocks;
        }
        let live = segments.into_iter().filter(|(seq, _)| *seq <= covered).filter_map(|(seq, counts)| {
            let blocks = counts.live_blocks().saturating_sub(by_segment.get(&seq).copied().unwrap_or(0));
            (blocks > 0).then_some((seq, counts.stored_bytes, blocks))
        });
        let live: Vec<(Seq, u64, u64)> = live.collect();
        let unknown = live.iter().filter(|(seq, _, _)| *seq > fork && !self.births.contains_key(seq));
        let looks = unknown
            .map(|&(seq, bytes, _)| async move { (seq, oldest_birth(store, log, seq, bytes).await) })
            .collect::<Vec<_>>();
        let mut looks = stream::iter(looks).buffered(FOOTERS_AT_ONCE);
        let mut failed = None;
        while let Some((seq, birth)) = looks.next().await {
            match birth {
                Ok(birth) => _ = self.births.insert(seq, birth),
                Err(e) => failed = Some(e),
            }
        }
        if let Some(e) = failed {
            return Err(e);
        }
        let row = |(segment, _, blocks)| {
            let first = self.births.get(&segment).copied().unwrap_or(Seq(0));
            HeldBlocks { segment, seen_by: SeenBy { first, last: covered }, blocks }
        };
        Ok(live.into_iter().map(row).collect())
    }
}

/// The oldest birth of what a segment has; the oldest there can be where that can not be read.
async fn oldest_birth(store: &SharedStore, log: &LogWriter, segment: Seq, bytes: u64) -> Result<Seq> {
    let listed = Listed { key: keys::entry(segment), bytes };
    match read_entry(store.as_ref(), log.keys(), segment, &listed).await {
        Ok(SlotContent::Entry(_, Entry::Segment(footer))) => Ok(match footer.content {
            Content::Written { .. } => segment,
            _ => footer.mappings.iter().map(|mapping| mapping.birth).min().unwrap_or(segment),
        }),
        Ok(_) => Ok(Seq(0)),
        Err(e) if e.is_damage() => Ok(Seq(0)),
        Err(e) => Err(e),
    }
}
