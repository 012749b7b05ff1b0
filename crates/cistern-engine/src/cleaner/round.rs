//! One round: a few victims, what is needed of them, and the segments it goes to.
//!
//! The order is what makes it safe. `base` is taken before the first look, so whatever is written after it is seen
//! as newer by whoever applies what was moved. What snapshots there are is asked after the last look at the volume's map: so what
//! the volume did not show then was either seen by one of those, or is seen by none. All blocks are read and verified before
//! anything is offered: an offer that could not be sealed would stop the writer. What the volume sees and what only snapshots see
//! goes to different segments.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::future;

use crate::{
    Error, Result,
    cleaner::{
        CleanerParts,
        moved::{For, Move},
        no_room,
        seen::{Seen, Views},
    },
    log::{
        RoomFor, SlotContent, keys, read_entry,
        roots::{ForwardTarget, HeldBlocks},
    },
    map::SeenBy,
    segment::{self, Entry, MAPPINGS_MAX},
    space::{ROUND_SEGMENTS, Vacated, VacatedRound, Victim},
    store::Listed,
    units::{BLOCK_BYTES, Extent, Mapping, Place, Seq},
};

/// How much is moved at a time. The more, the more of each segment it comes from is read together, and the better it is sorted; all of a round
/// is in memory.
#[derive(Clone, Copy, Debug)]
pub struct RoundSize {
    segment_blocks: u64,
}

impl RoundSize {
    /// Of a volume with so much memory.
    pub fn new(memory_bytes: u64) -> RoundSize {
        RoundSize { segment_blocks: segment::data_bytes_max(memory_bytes) / BLOCK_BYTES as u64 }
    }

    /// Blocks in a full segment.
    pub fn segment_blocks(self) -> u64 {
        self.segment_blocks
    }

    /// Blocks that one round moves, about.
    pub fn blocks(self) -> u64 {
        ROUND_SEGMENTS * self.segment_blocks
    }
}

/// Victims that are looked at together: their footers are in memory, and the closer their blocks lie the less is decoded
/// for each.
const VICTIMS_TOGETHER: usize = 16;

/// A victim, looked at.
struct Looked {
    victim: Victim,
    /// What its footer maps with data.
    mappings: Vec<Mapping>,
    /// What of it the volume sees, and what only snapshots see.
    live: Vec<Mapping>,
    seen: Vec<Seen>,
}

impl Looked {
    /// What is needed of it.
    fn needed(&self) -> impl Iterator<Item = &Mapping> {
        self.live.iter().chain(self.seen.iter().map(|seen| &seen.version))
    }

    fn needed_blocks(&self) -> u64 {
        self.needed().map(|mapping| mapping.extent.len).sum()
    }

    fn vacated(&self) -> Vacated {
        let since = self.needed().map(|mapping| mapping.birth).min();
        Vacated { seq: self.victim.seq, needed_blocks: self.needed_blocks(), since }
    }

    /// What the volume does not see of what the footer maps.
    fn rest(&self) -> Vec<Mapping> {
        let mut rest = Vec::new();
        for mapping in &self.mappings {
            let (mut at, end) = (mapping.extent.start, mapping.extent.end());
            let first = self.live.partition_point(|live| live.extent.end() <= at);
            for live in self.live[first..].iter().take_while(|live| live.extent.start < end) {
                rest.extend(
                    (at < live.extent.start).then(|| mapping.slice(Extent::between(at, live.extent.start))),
                );
                at = live.extent.end().min(end);
            }
            rest.extend((at < end).then(|| mapping.slice(Extent::between(at, end))));
        }
        rest
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
    let (_running, base) = parts.space.begin_round();
    let pin = parts.map.pin();
    let (mut looked, mut unclean) = (Vec::new(), Vec::new());
    let (mut live, mut seen, mut blocks) = (Vec::new(), Vec::new(), 0);
    'full: for together in victims.chunks(VICTIMS_TOGETHER) {
        for victim in look(parts, together, &mut unclean).await? {
            if blocks >= parts.round.blocks() {
                break 'full;
            }
            match read(parts, &victim).await {
                Ok(found) => {
                    blocks += victim.needed_blocks();
                    live.extend(victim.live.iter().copied().zip(found.live));
                    seen.extend(victim.seen.iter().copied().zip(found.seen));
                    looked.push(victim);
                }
                Err(e) => refuse(&mut unclean, victim.victim.seq, e)?,
            }
        }
    }
    drop(pin); // what is offered may have to wait for room, which comes when something is deleted
    let mut to = offer(parts, (For::Volume, RoomFor::Moved), base, live).await?;
    seen.sort_by_key(|(seen, _)| seen.version.extent.start);
    let (told, data): (Vec<Seen>, Vec<Bytes>) = seen.into_iter().unzip();
    let versions = told.iter().map(|seen| seen.version).zip(data).collect();
    let kept = offer(parts, (For::Snapshots, RoomFor::Moved), base, versions).await?;
    let mut round = VacatedRound::default();
    for together in looked.chunks(VICTIMS_TOGETHER) {
        let footers = together.iter().map(|victim| (victim.victim.seq, &victim.mappings[..]));
        let still = find_live(parts, footers).await?;
        for victim in together {
            match still.contains_key(&victim.victim.seq) {
                true => unclean.push(victim.victim.seq),
                false => {
                    parts.blocks.let_go(victim.victim.seq, victim.victim.counts.stored_bytes);
                    round.segments.push(victim.vacated());
                }
            }
        }
    }
    round.from = parts.space.newest();
    round.kept = account(&told, &kept);
    to.extend(kept);
    round.to = to.into_iter().map(|offered| offered.target).collect();
    let segments = round.segments.len() as u64;
    tracing::debug!(blocks, segments, from = round.from.0, "cleaned");
    parts.space.vacate(round);
    Ok(Cleaned { blocks, segments, unclean })
}

/// What only snapshots see, by the segments to which it went in this order. Of all victims, vacated or not: where two have a copy of a
/// version, the one may be found on behalf of the other.
fn account(told: &[Seen], kept: &[PlacedSegment]) -> Vec<HeldBlocks> {
    let mut told = told.iter();
    let mut rows: BTreeMap<(Seq, SeenBy), u64> = BTreeMap::new();
    for offered in kept {
        for seen in told.by_ref().take(offered.mappings) {
            *rows.entry((offered.target.segment, seen.by)).or_default() += seen.version.extent.len;
        }
    }
    debug_assert!(told.next().is_none(), "whatever only snapshots see lies in a segment that is kept");
    let row = |((segment, seen_by), blocks)| HeldBlocks { segment, seen_by, blocks };
    rows.into_iter().map(row).collect()
}

/// The data of what is needed of a victim.
struct Read {
    live: Vec<Bytes>,
    seen: Vec<Bytes>,
}

async fn read(parts: &CleanerParts, victim: &Looked) -> Result<Read> {
    let mappings: Vec<Mapping> = victim.needed().copied().collect();
    let mut live = parts.blocks.read(&mappings).await?;
    debug_assert_eq!(live.len(), mappings.len(), "each mapping has its data");
    let seen = live.split_off(victim.live.len());
    Ok(Read { live, seen })
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

/// A segment that was offered and committed.
pub struct PlacedSegment {
    target: ForwardTarget,
    /// Of those that were given in all.
    mappings: usize,
}

/// Offers what is to be moved in segments of about equal size, sorted by block, and waits until they are committed. One after the
/// other: clients' segments behind it wait for each, and their reads for the processors and the link that it takes.
///
/// # Errors
/// `NoRoom` where the store has no room for the next one: what was offered before is committed.
pub async fn offer(
    parts: &CleanerParts,
    (whom, room): (For, RoomFor),
    base: Seq,
    mut moved: Vec<(Mapping, Bytes)>,
) -> Result<Vec<PlacedSegment>> {
    moved.sort_by_key(|(mapping, _)| mapping.extent.start);
    debug_assert!(
        whom == For::Snapshots || moved.is_sorted_by(|(a, _), (b, _)| a.extent.end() <= b.extent.start),
        "the volume sees one version of a block"
    );
    let blocks: u64 = moved.iter().map(|(mapping, _)| mapping.extent.len).sum();
    let segments = blocks.div_ceil(parts.round.segment_blocks()).max(1);
    let each = blocks.div_ceil(segments);
    let mut out = Vec::new();
    for part in cut(moved, each) {
        let mappings = part.len();
        let data_bytes = part.iter().map(|(_, data)| data.len() as u64).sum();
        let _room = parts.log.take_room(room, data_bytes).await.ok_or_else(no_room)?;
        let part = Arc::new(Move::new(parts, whom, base, part));
        parts.blocks.settled().await;
        let vacancy = parts.offerer.vacancy().await;
        let segment = parts.offerer.offer(vacancy, part.clone()).await?;
        let extents = || part.blocks().iter().map(|(mapping, _)| mapping.extent);
        let start = extents().map(|extent| extent.start).min().unwrap_or(0);
        let blocks = Extent::between(start, extents().map(|extent| extent.end()).max().unwrap_or(0));
        let target = ForwardTarget { segment, bytes: part.stored_bytes(), blocks };
        out.push(PlacedSegment { target, mappings });
    }
    Ok(out)
}

/// Consecutive parts of about `each` blocks, none with more mappings than a segment takes.
fn cut(live: Vec<(Mapping, Bytes)>, each: u64) -> Vec<Vec<(Mapping, Bytes)>> {
    let mut parts: Vec<Vec<(Mapping, Bytes)>> = Vec::new();
    let (mut blocks, count) = (each, live.len());
    for one in live {
        if blocks >= each || parts.last().is_none_or(|part| part.len() >= MAPPINGS_MAX / 2) {
            parts.push(Vec::new());
            blocks = 0;
        }
        blocks += one.0.extent.len;
        parts.last_mut().expect("one was begun").push(one);
    }
    debug_assert_eq!(
        parts.iter().map(Vec::len).sum::<usize>(),
        count,
        "what is not offered is lost with its victim"
    );
    parts
}

/// Victims and what is needed of them, but for those that are damaged.
async fn look(parts: &CleanerParts, victims: &[Victim], unclean: &mut Vec<Seq>) -> Result<Vec<Looked>> {
    let footers = future::join_all(victims.iter().map(|victim| footer(parts, victim))).await;
    let mut looked = Vec::with_capacity(victims.len());
    for (victim, footer) in victims.iter().zip(footers) {
        match footer {
            Ok(mappings) => {
                looked.push(Looked { victim: *victim, mappings, live: Vec::new(), seen: Vec::new() });
            }
            Err(e) => refuse(unclean, victim.seq, e)?,
        }
    }
    // Together; where something in the map is damaged each alone: it is for those that need it to be left alone.
    let (mut sound, mut groups) = (Vec::with_capacity(looked.len()), vec![looked]);
    while let Some(mut group) = groups.pop() {
        match find_live(parts, group.iter().map(|one| (one.victim.seq, &one.mappings[..]))).await {
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
    find_seen(parts, sound, unclean).await
}

/// What a victim maps with data.
async fn footer(parts: &CleanerParts, victim: &Victim) -> Result<Vec<Mapping>> {
    let key = keys::entry(victim.seq);
    let listed = Listed { key: key.clone(), bytes: victim.counts.stored_bytes };
    let content = read_entry(parts.store.as_ref(), parts.log.keys(), victim.seq, &listed).await?;
    let SlotContent::Entry(_, Entry::Segment(footer)) = content else {
        return Err(Error::corrupt(key, "the accounts say that it is a segment"));
    };
    let mut mappings = footer.mappings;
    mappings.retain(|mapping| matches!(mapping.place, Place::Frame(_)));
    Ok(mappings)
}

/// What of the mappings of segments the volume sees now, by segment; nothing for those of which it sees nothing.
async fn find_live<'a>(
    parts: &CleanerParts,
    segments: impl IntoIterator<Item = (Seq, &'a [Mapping])>,
) -> Result<BTreeMap<Seq, Vec<Mapping>>> {
    let (mut asked, mut all) = (BTreeSet::new(), Vec::new());
    for (seq, mappings) in segments {
        asked.insert(seq);
        all.extend(mappings.iter().map(|mapping| mapping.extent));
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

/// Adds what only snapshots see, and leaves out what is damaged there.
async fn find_seen(parts: &CleanerParts, looked: Vec<Looked>, unclean: &mut Vec<Seq>) -> Result<Vec<Looked>> {
    let mut views = Views::new(parts, parts.space.snapshot_roots().await);
    // Together; where something is damaged each alone.
    let (mut sound, mut groups) = (Vec::with_capacity(looked.len()), vec![looked]);
    while let Some(mut group) = groups.pop() {
        match ask(&mut views, &mut group).await {
            Ok(()) => sound.append(&mut group),
            Err(e) if e.is_damage() && group.len() > 1 => {
                groups.extend(group.into_iter().rev().map(|one| vec![one]));
            }
            Err(e) => group.iter().try_for_each(|one| refuse(unclean, one.victim.seq, e.clone()))?,
        }
    }
    let may_forward = parts.space.may_forward(VICTIMS_TOGETHER);
    let may_go =
        |one: &Looked| may_forward || !one.vacated().since.is_some_and(|since| views.any_from(since));
    let (go, stay): (Vec<Looked>, Vec<Looked>) = sound.into_iter().partition(may_go);
    unclean.extend(stay.iter().map(|one| one.victim.seq));
    Ok(go)
}

async fn ask(views: &mut Views<'_>, looked: &mut [Looked]) -> Result<()> {
    let of_one = |(n, one): (usize, &Looked)| one.rest().into_iter().map(move |rest| (n, rest));
    let (victims, versions): (Vec<usize>, Vec<Mapping>) = looked.iter().enumerate().flat_map(of_one).unzip();
    for (of, seen) in views.seen(&versions).await? {
        looked[victims[of]].seen.push(seen);
    }
    Ok(())
}

/// The same blocks in extents that are ascending and apart.
pub(super) fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
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
