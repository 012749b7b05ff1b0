//! What a volume lost by a rollback: every block that it saw before is held by the snapshots that see it
//! (`docs/design/snapshots.md`, "Rollback").

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    Error, Result,
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

/// The blocks that the accounts know as live before a rollback to `fork`, and that no snapshot holds yet: none of them is the head's any
/// more. By segment, from the oldest birth in it on: what is older than `fork` all snapshots may see.
pub async fn left_blocks(
    store: &SharedStore,
    log: &LogWriter,
    segments: Vec<(Seq, Counts)>,
    held: &BTreeMap<(Seq, SeenBy), u64>,
    left: &LeftState,
    fork: Seq,
) -> Result<Vec<HeldBlocks>> {
    let mut by_segment: BTreeMap<Seq, u64> = BTreeMap::new();
    for (&(segment, _), blocks) in held {
        *by_segment.entry(segment).or_default() += blocks;
    }
    let live = segments.into_iter().filter(|(seq, _)| *seq <= left.covered).filter_map(|(seq, counts)| {
        let blocks = counts.live_blocks().saturating_sub(by_segment.get(&seq).copied().unwrap_or(0));
        (blocks > 0).then_some((seq, counts, blocks))
    });
    let rows = live.map(|(segment, counts, blocks)| async move {
        let first = match segment <= fork {
            true => Seq(0),
            false => oldest_birth(store, log, segment, counts.stored_bytes).await?,
        };
        let seen_by = SeenBy { first, last: left.covered };
        Ok::<_, Error>(HeldBlocks { segment, seen_by, blocks })
    });
    stream::iter(rows).buffered(FOOTERS_AT_ONCE).try_collect().await
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
