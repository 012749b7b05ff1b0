//! One round: a few victims, what is live in them, and the segments it goes to.
//!
//! The order is what makes it safe. `base` is taken before the first look, so whatever is written after it is seen
//! as newer by whoever applies what was moved. All blocks are read and verified before anything is offered: an offer
//! that could not be sealed would stop the writer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::future;

use crate::{
    Error, Result,
    cleaner::{CleanerParts, moved::Move},
    log::{SlotContent, keys, read_entry},
    segment::{Entry, MAPPINGS_MAX},
    space::{ROUND_BYTES, Victim},
    store::Listed,
    units::{BLOCK_BYTES, Extent, Mapping, Place, SEGMENT_DATA_BYTES_MAX, Seq},
};

/// Blocks in a full segment.
pub const SEGMENT_BLOCKS: u64 = (SEGMENT_DATA_BYTES_MAX / BLOCK_BYTES) as u64;
/// Blocks that one round moves, about.
pub const ROUND_BLOCKS: u64 = ROUND_BYTES / BLOCK_BYTES as u64;

/// Victims that are looked at together: their footers are in memory, and the closer their blocks lie the less is decoded
/// for each.
const VICTIMS_TOGETHER: usize = 16;

/// A victim, looked at.
struct Looked {
    victim: Victim,
    /// What its footer maps with data.
    extents: Vec<Extent>,
    /// What of it is live.
    live: Vec<Mapping>,
}

impl Looked {
    fn live_blocks(&self) -> u64 {
        self.live.iter().map(|mapping| mapping.extent.len).sum()
    }
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
pub async fn clean(parts: &CleanerParts, victims: Vec<Victim>) -> Result<Cleaned> {
    let base = parts.space.newest();
    let (mut looked, mut unclean) = (Vec::new(), Vec::new());
    let (mut read, mut blocks) = (Vec::new(), 0);
    'full: for together in victims.chunks(VICTIMS_TOGETHER) {
        for victim in look(parts, together, &mut unclean).await? {
            if blocks >= ROUND_BLOCKS {
                break 'full;
            }
            match parts.blocks.read(&victim.live).await {
                Ok(found) => {
                    blocks += victim.live_blocks();
                    read.extend(victim.live.iter().copied().zip(found));
                    looked.push(victim);
                }
                Err(e) => refuse(&mut unclean, victim.victim.seq, e)?,
            }
        }
    }
    offer(parts, base, read).await?;
    let mut vacated = Vec::new();
    for together in looked.chunks(VICTIMS_TOGETHER) {
        let still =
            live(parts, together.iter().map(|victim| (victim.victim.seq, &victim.extents[..]))).await?;
        for victim in together {
            let seq = victim.victim.seq;
            match still.contains_key(&seq) {
                true => unclean.push(seq),
                false => vacated.push((seq, victim.live_blocks())),
            }
        }
    }
    let from = parts.space.newest();
    tracing::debug!(blocks, segments = vacated.len(), from = from.0, "cleaned");
    parts.space.vacate(&vacated, from);
    Ok(Cleaned { blocks, segments: vacated.len() as u64, unclean })
}

/// What is damaged is left alone; anything else ends the round.
fn refuse(unclean: &mut Vec<Seq>, seq: Seq, e: Error) -> Result<()> {
    if !e.is_damage() {
        return Err(e);
    }
    tracing::warn!(seq = seq.0, error = %e, "a segment can not be cleaned");
    unclean.push(seq);
    Ok(())
}

/// Offers what is live in segments of about equal size, sorted by block, and waits until they are committed. One after the
/// other: clients' segments behind it wait for each, and their reads for the processors and the link that it takes.
pub async fn offer(parts: &CleanerParts, base: Seq, mut live: Vec<(Mapping, Bytes)>) -> Result<()> {
    live.sort_unstable_by_key(|(mapping, _)| mapping.extent.start);
    let blocks: u64 = live.iter().map(|(mapping, _)| mapping.extent.len).sum();
    let segments = blocks.div_ceil(SEGMENT_BLOCKS).max(1);
    let each = blocks.div_ceil(segments);
    for part in cut(live, each) {
        let vacancy = parts.offerer.vacancy().await;
        parts.offerer.offer(vacancy, Arc::new(Move::new(parts, base, part))).await?;
    }
    Ok(())
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

/// Victims and what is live in them, but for those that are damaged.
async fn look(parts: &CleanerParts, victims: &[Victim], unclean: &mut Vec<Seq>) -> Result<Vec<Looked>> {
    let footers = future::join_all(victims.iter().map(|victim| footer(parts, victim))).await;
    let mut looked = Vec::with_capacity(victims.len());
    for (victim, extents) in victims.iter().zip(footers) {
        match extents {
            Ok(extents) => looked.push(Looked { victim: *victim, extents, live: Vec::new() }),
            Err(e) => refuse(unclean, victim.seq, e)?,
        }
    }
    // Together; where something in the map is damaged each alone: it is for those that need it to be left alone.
    let (mut sound, mut groups) = (Vec::with_capacity(looked.len()), vec![looked]);
    while let Some(mut group) = groups.pop() {
        match live(parts, group.iter().map(|one| (one.victim.seq, &one.extents[..]))).await {
            Ok(mut live) => {
                group.iter_mut().for_each(|one| one.live = live.remove(&one.victim.seq).unwrap_or_default());
                sound.append(&mut group);
            }
            Err(e) if e.is_damage() && group.len() > 1 => {
                groups.extend(group.into_iter().rev().map(|one| vec![one]));
            }
            Err(e) => refuse(unclean, group[0].victim.seq, e)?,
        }
    }
    Ok(sound)
}

/// What a victim maps with data.
async fn footer(parts: &CleanerParts, victim: &Victim) -> Result<Vec<Extent>> {
    let key = keys::entry(victim.seq);
    let listed = Listed { key: key.clone(), bytes: victim.counts.stored_bytes };
    let content = read_entry(parts.store.as_ref(), parts.log.keys(), victim.seq, &listed).await?;
    let SlotContent::Entry(_, Entry::Segment(footer)) = content else {
        return Err(Error::corrupt(key, "the accounts say that it is a segment"));
    };
    let data = footer.mappings.iter().filter(|mapping| matches!(mapping.place, Place::Frame(_)));
    Ok(data.map(|mapping| mapping.extent).collect())
}

/// What of the extents of segments resolves to them now, by segment; nothing for those to which nothing does.
async fn live<'a>(
    parts: &CleanerParts,
    segments: impl IntoIterator<Item = (Seq, &'a [Extent])>,
) -> Result<BTreeMap<Seq, Vec<Mapping>>> {
    let (mut asked, mut all) = (BTreeSet::new(), Vec::new());
    for (seq, extents) in segments {
        asked.insert(seq);
        all.extend_from_slice(extents);
    }
    let mut live: BTreeMap<Seq, Vec<Mapping>> = BTreeMap::new();
    for found in parts.map.lookup_each(&joined(all)).await? {
        // Nothing but what its footer maps resolves to a segment.
        if let Place::Frame(frame) = found.place
            && asked.contains(&frame.seq)
        {
            live.entry(frame.seq).or_default().push(found);
        }
    }
    Ok(live)
}

/// The same blocks in extents that are ascending and apart.
fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|extent| extent.start);
    let mut out: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match out.last_mut() {
            Some(last) if extent.start <= last.end() => {
                *last = Extent::between(last.start, last.end().max(extent.end()));
            }
            _ => out.push(extent),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extents of several segments overlap and touch; what is asked of the map covers the same blocks, each once.
    #[test]
    fn extents_of_several_segments_are_joined() {
        let extents = [(8, 2), (0, 4), (2, 1), (4, 2), (7, 1), (20, 1)].map(|(at, len)| Extent::new(at, len));
        assert_eq!(joined(extents.to_vec()), [Extent::new(0, 6), Extent::new(7, 3), Extent::new(20, 1)]);
        assert_eq!(joined(Vec::new()), []);
    }
}
