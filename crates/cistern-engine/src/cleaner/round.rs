//! One round: a few victims, what is live in them, and the segments it goes to.
//!
//! The order is what makes it safe. `base` is taken before the first look, so whatever is written after it is seen
//! as newer by whoever applies what was moved. All blocks are read and verified before anything is offered: an offer
//! that could not be sealed would stop the writer.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::{
    Error, Result,
    cleaner::{Parts, moved::Move},
    log::{SlotContent, keys, read_entry},
    segment::{Entry, MAPPINGS_MAX},
    space::Victim,
    store::Listed,
    units::{BLOCK_BYTES, Extent, Mapping, Place, SEGMENT_DATA_BYTES_MAX, Seq},
};

/// Blocks in a full segment.
pub const SEGMENT_BLOCKS: u64 = (SEGMENT_DATA_BYTES_MAX / BLOCK_BYTES) as u64;
/// Blocks that one round moves, about: more are sorted better and fill segments better, and are in memory.
pub const ROUND_BLOCKS: u64 = 2 * SEGMENT_BLOCKS;
/// Blocks of a footer that are looked up together, if they follow each other.
const LOOKUP_BLOCKS: u64 = 256;

/// A victim, looked at.
struct Looked {
    victim: Victim,
    /// What its footer maps.
    extents: Vec<Extent>,
    /// What of it is live, and what it holds there.
    live: Vec<(Mapping, Bytes)>,
    live_blocks: u64,
}

/// What a round did.
pub struct Cleaned {
    pub blocks: u64,
    /// Segments that were vacated.
    pub segments: u64,
    /// Those that can not be cleaned, because something of them or in the map is damaged.
    pub unclean: Vec<Seq>,
}

/// Cleans victims until a round is full.
pub async fn clean(parts: &Parts, victims: Vec<Victim>) -> Result<Cleaned> {
    let base = parts.space.newest();
    let (mut looked, mut unclean, mut blocks) = (Vec::new(), Vec::new(), 0);
    for victim in victims {
        match look(parts, victim).await {
            Ok(victim) => {
                blocks += victim.live_blocks;
                looked.push(victim);
            }
            Err(e) if e.is_damage() => {
                tracing::warn!(seq = victim.seq.0, error = %e, "a segment can not be cleaned");
                unclean.push(victim.seq);
            }
            Err(e) => return Err(e),
        }
        if blocks >= ROUND_BLOCKS {
            break;
        }
    }
    let read = looked.iter_mut().flat_map(|victim| std::mem::take(&mut victim.live)).collect();
    offer(parts, base, read).await?;
    let mut vacated = Vec::new();
    for victim in looked {
        match live(parts, victim.victim.seq, &victim.extents).await? {
            still if still.is_empty() => vacated.push((victim.victim.seq, victim.live_blocks)),
            _ => unclean.push(victim.victim.seq),
        }
    }
    let from = parts.space.newest();
    tracing::debug!(blocks, segments = vacated.len(), from = from.0, "cleaned");
    parts.space.vacate(&vacated, from);
    Ok(Cleaned { blocks, segments: vacated.len() as u64, unclean })
}

/// Offers what is live in segments of about equal size, sorted by block, and waits until they are committed.
pub async fn offer(parts: &Parts, base: Seq, mut live: Vec<(Mapping, Bytes)>) -> Result<()> {
    live.sort_unstable_by_key(|(mapping, _)| mapping.extent.start);
    let blocks: u64 = live.iter().map(|(mapping, _)| mapping.extent.len).sum();
    let segments = blocks.div_ceil(SEGMENT_BLOCKS).max(1);
    let each = blocks.div_ceil(segments);
    let mut published = Vec::new();
    for part in cut(live, each) {
        let vacancy = parts.offerer.vacancy().await;
        published.push(parts.offerer.offer(vacancy, Arc::new(Move::new(parts, base, part))));
    }
    try_join_all(published).await.map(drop)
}

/// Consecutive parts of about `each` blocks, none with more mappings than a segment takes.
fn cut(live: Vec<(Mapping, Bytes)>, each: u64) -> Vec<Vec<(Mapping, Bytes)>> {
    let mut parts: Vec<Vec<(Mapping, Bytes)>> = Vec::new();
    let mut blocks = each;
    for one in live {
        if blocks >= each || parts.last().is_none_or(|part| part.len() >= MAPPINGS_MAX / 2) {
            parts.push(Vec::new());
            blocks = 0;
        }
        blocks += one.0.extent.len;
        parts.last_mut().expect("one was begun").push(one);
    }
    parts
}

/// What is live in a victim.
async fn look(parts: &Parts, victim: Victim) -> Result<Looked> {
    let extents = footer(parts, &victim).await?;
    let live = live(parts, victim.seq, &extents).await?;
    let blocks = parts.blocks.read(&live).await?;
    let live_blocks = live.iter().map(|mapping| mapping.extent.len).sum();
    Ok(Looked { victim, extents, live: live.into_iter().zip(blocks).collect(), live_blocks })
}

/// What a victim maps with data.
async fn footer(parts: &Parts, victim: &Victim) -> Result<Vec<Extent>> {
    let key = keys::entry(victim.seq);
    let listed = Listed { key: key.clone(), bytes: victim.counts.stored_bytes };
    let content = read_entry(parts.store.as_ref(), parts.log.keys(), victim.seq, &listed).await?;
    let SlotContent::Entry(_, Entry::Segment(footer)) = content else {
        return Err(Error::corrupt(key, "the accounts say that it is a segment"));
    };
    let data = footer.mappings.iter().filter(|mapping| matches!(mapping.place, Place::Frame(_)));
    Ok(data.map(|mapping| mapping.extent).collect())
}

/// What of some extents, ascending, resolves to a segment now.
async fn live(parts: &Parts, seq: Seq, extents: &[Extent]) -> Result<Vec<Mapping>> {
    let mut out = Vec::new();
    for together in neighbours(extents) {
        let extents = &extents[together];
        let (first, last) = (extents[0], extents[extents.len() - 1]);
        for found in parts.map.lookup(Extent::between(first.start, last.end())).await? {
            if matches!(found.place, Place::Frame(frame) if frame.seq == seq) {
                out.push(found);
            }
        }
    }
    Ok(out)
}

/// Extents that follow each other without a gap, up to `LOOKUP_BLOCKS`.
fn neighbours(extents: &[Extent]) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for (n, extent) in extents.iter().enumerate() {
        match out.last_mut() {
            Some(range)
                if extents[n - 1].end() == extent.start
                    && extent.end() - extents[range.start].start <= LOOKUP_BLOCKS =>
            {
                range.end = n + 1;
            }
            _ => out.push(n..n + 1),
        }
    }
    out
}
