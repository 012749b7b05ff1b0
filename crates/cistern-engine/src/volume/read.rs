//! The read path: where everything is, then journal, map and frames in parallel.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};

use crate::{
    Error, Result,
    fetch::{Refreshed, partial_blocks},
    map::Lookup,
    store::SERVED_DEADLINE,
    units::{BLOCK_BYTES, Extent, JournalPos, Mapping, Place, Seq},
    volume::{
        Piece, RangeKind, Volume,
        apart::parted,
        order::{Source, View},
        write::Writer,
    },
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How often it is looked whether what was out of sight is back.
const OUT_OF_SIGHT_PAUSE: Duration = Duration::from_secs(1);
/// Parts of one request that are read at once.
const PARTS_MAX: usize = 16;
/// Pieces looked at under one hold of the order lock (some 100 us).
pub(super) const VIEW_PIECES: usize = 256;
/// Pieces and mappings that one block status looks at: bounds its work and the memory of its answer.
const RANGES_MAX: usize = 4096;

impl Volume {
    pub(super) async fn read_bytes(&self, offset: u64, len: u64) -> Result<Vec<Piece>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.read_ahead(offset, len);
        let wanted = offset..offset + len;
        let extent = Extent::between(offset / BLOCK, wanted.end.div_ceil(BLOCK));
        let pieces = self.read_blocks(extent, &wanted).await?;
        Ok(trim(pieces, offset - extent.start * BLOCK, len))
    }

    /// Whole blocks, in pieces of whole blocks. Bytes outside `wanted` may be anything: what is not at hand for
    /// them is not fetched.
    pub(super) async fn read_blocks(&self, extent: Extent, wanted: &Range<u64>) -> Result<Vec<Piece>> {
        let _pin = self.map.pin();
        match self.read_view(extent, wanted).await {
            Err(Error::NotFound(_)) if let Some(writer) = &self.writer => {
                Box::pin(self.read_missing(writer, extent, wanted)).await
            }
            Err(Error::NotFound(_)) if self.is_shown_anew().await? => self.read_view(extent, wanted).await,
            read => read,
        }
    }

    /// What a read of a writer needs is not there all the same: somebody took the volume over, or it is lost. Once more, by the newest map; and where
    /// nothing of the volume is there but its identity, again for as long as reads of a served volume wait for a store.
    async fn read_missing(&self, writer: &Writer, extent: Extent, wanted: &Range<u64>) -> Result<Vec<Piece>> {
        let until = self.env.now() + SERVED_DEADLINE;
        loop {
            let read = self.read_view(extent, wanted).await;
            let waits = matches!(read, Err(Error::NotFound(_)))
                && writer.reading.stores.ride_out.is_on()
                && self.env.now() < until
                && writer.log.is_out_of_sight().await;
            if !waits {
                return read;
            }
            self.env.sleep(OUT_OF_SIGHT_PAUSE).await;
        }
    }

    /// What a snapshot shows may have been moved since it was opened, and only a newer state says where to. Whether that was looked
    /// for, and another try is worth it.
    pub(super) async fn is_shown_anew(&self) -> Result<bool> {
        let Some(Refreshed { root }) = Box::pin(self.frames.refresh()).await? else { return Ok(false) };
        if let Some(root) = root {
            self.map.show(root);
        }
        Ok(true)
    }

    async fn read_view(&self, extent: Extent, wanted: &Range<u64>) -> Result<Vec<Piece>> {
        let mut view = self.view(extent)?;
        if view.len() == 1 {
            let (part, source) = view.remove(0);
            return self.read_part(part, source, wanted).await;
        }
        let parts: Vec<Vec<Piece>> =
            stream::iter(view.into_iter().map(|(part, source)| self.read_part(part, source, wanted)))
                .buffered(PARTS_MAX)
                .try_collect()
                .await?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Where the newest version of every block is, each at an instant within this call.
    pub(super) fn view(&self, extent: Extent) -> Result<Vec<(Extent, Source)>> {
        let mut view = self.view_first(extent, VIEW_PIECES, usize::MAX)?;
        while view.end < extent.end() {
            let rest = Extent::between(view.end, extent.end());
            let next = self.view_first(rest, VIEW_PIECES, usize::MAX)?;
            assert!(next.end > view.end, "every look sees something");
            view.parts.extend(next.parts);
            view.end = next.end;
        }
        Ok(view.parts)
    }

    /// Where the newest version of the first blocks is, in at most `pieces_max` pieces.
    pub(super) fn view_first(&self, extent: Extent, pieces_max: usize, mappings_max: usize) -> Result<View> {
        match &self.writer {
            Some(writer) => writer.core.view(extent, pieces_max, mappings_max),
            None => {
                let lookup = self.map.begin_first(extent, pieces_max, mappings_max);
                let seen = lookup.extent();
                Ok(View { parts: vec![(seen, Source::Map(lookup))], end: seen.end() })
            }
        }
    }

    async fn read_part(&self, part: Extent, source: Source, wanted: &Range<u64>) -> Result<Vec<Piece>> {
        let in_journal = match source {
            Source::Zeroes { .. } => return Ok(vec![Piece::Zeroes(part.len * BLOCK)]),
            Source::Journal(at) => self.read_journal(part, at).await?,
            Source::Sectors { at, mask, base } => match self.read_journal(part, at).await? {
                Some(sectors) => return Box::pin(self.read_over(mask, sectors, base, wanted)).await,
                None => None,
            },
            Source::Map(lookup) => return self.read_mapped(lookup, wanted).await,
        };
        match in_journal {
            Some(data) => Ok(vec![Piece::Data(data)]),
            // Committed and freed since the view was taken: look again.
            None => self.read_again(part, wanted).await,
        }
    }

    /// What the journal has of some blocks; `None` if it was committed and freed meanwhile.
    pub(super) async fn read_journal(&self, part: Extent, at: JournalPos) -> Result<Option<Bytes>> {
        let writer = self.writer.as_ref().expect("only a writer has dirty blocks");
        let found = writer.core.journal.read(at, part.len).await?;
        let bytes = part.len * BLOCK;
        assert!(
            found.as_ref().is_none_or(|data| data.len() as u64 == bytes),
            "the journal gives what it was asked for"
        );
        Ok(found)
    }

    pub(super) fn read_again<'a>(
        &'a self,
        part: Extent,
        wanted: &'a Range<u64>,
    ) -> BoxFuture<'a, Result<Vec<Piece>>> {
        self.read_blocks(part, wanted).boxed()
    }

    /// What a lookup finds, and over it the sectors that the store holds apart.
    async fn read_mapped(&self, mut lookup: Lookup, wanted: &Range<u64>) -> Result<Vec<Piece>> {
        match lookup.take_sectors() {
            // By itself, so that the future of an ordinary read stays small.
            Some(sectors) => Box::pin(self.read_with_sectors(lookup, sectors, wanted)).await,
            None => self.read_whole(lookup).await,
        }
    }

    /// What a lookup finds, of blocks that have no sectors apart.
    pub(super) async fn read_whole(&self, lookup: Lookup) -> Result<Vec<Piece>> {
        let extent = lookup.extent();
        let mappings = self.frames.resolve(lookup.finish().await?).await?;
        debug_assert_eq!(
            mappings.iter().map(|m| m.extent.len).sum::<u64>(),
            extent.len,
            "a lookup finds what every block is"
        );
        let data: Vec<Mapping> =
            mappings.iter().filter(|m| matches!(m.place, Place::Frame(_))).copied().collect();
        let mut frames =
            if data.is_empty() { Vec::new() } else { self.frames.read(&data).await? }.into_iter();
        let mut pieces: Vec<Piece> = Vec::with_capacity(mappings.len());
        for mapping in &mappings {
            match (mapping.place, pieces.last_mut()) {
                (Place::Frame(_), _) => {
                    let data = frames.next().expect("one for each mapping");
                    assert_eq!(
                        data.len() as u64,
                        mapping.extent.len * BLOCK,
                        "a frame gives the blocks of its mapping"
                    );
                    pieces.push(Piece::Data(data));
                }
                (_, Some(Piece::Zeroes(n))) => *n += mapping.extent.len * BLOCK,
                _ => pieces.push(Piece::Zeroes(mapping.extent.len * BLOCK)),
            }
        }
        Ok(pieces)
    }

    pub(super) async fn ranges_of(
        &self,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, RangeKind)>> {
        self.joined(offset, len, count_max, &Allocated).await
    }

    /// Whether the parts of a range were born behind `since`, or are not committed.
    pub(super) async fn ranges_since(
        &self,
        since: Seq,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, bool)>> {
        self.joined(offset, len, count_max, &ChangedSince { since }).await
    }

    async fn joined<K: Kinds>(
        &self,
        offset: u64,
        len: u64,
        count_max: usize,
        kinds: &K,
    ) -> Result<Vec<(u64, K::Kind)>> {
        match self.try_joined(offset, len, count_max, kinds).await {
            Err(Error::NotFound(_)) if self.is_shown_anew().await? => {
                self.try_joined(offset, len, count_max, kinds).await
            }
            joined => joined,
        }
    }

    async fn try_joined<K: Kinds>(
        &self,
        offset: u64,
        len: u64,
        count_max: usize,
        kinds: &K,
    ) -> Result<Vec<(u64, K::Kind)>> {
        let _pin = self.map.pin();
        let extent = Extent::between(offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let count_max = count_max.clamp(1, RANGES_MAX);
        let mut found: Vec<(Extent, K::Kind)> = Vec::new();
        let (mut at, mut looked_at) = (extent.start, 0);
        while at < extent.end() && found.len() <= count_max && looked_at < RANGES_MAX {
            // At first as much as was asked for; what joins to one range takes more.
            let pieces_max = (count_max + 1).max(looked_at).min(VIEW_PIECES);
            let view = self.view_first(Extent::between(at, extent.end()), pieces_max, RANGES_MAX)?;
            let end = view.end;
            let (seen_to, pieces) = join_view(&mut found, view, kinds).await?;
            looked_at += pieces;
            if seen_to < end {
                break;
            }
            at = end;
        }
        found.truncate(count_max);
        Ok(clip(&found, offset, len))
    }
}

/// What ranges are told apart by.
trait Kinds {
    type Kind: Copy + PartialEq;
    /// Of what is not committed: zeroes, or data.
    fn of_zeroes(&self, allocated: bool) -> Self::Kind;
    fn of_data(&self) -> Self::Kind;
    /// The map is asked no more than it takes to tell.
    fn lookup(&self, lookup: Lookup) -> Lookup;
    fn of(&self, mapping: &Mapping) -> Self::Kind;
}

struct Allocated;

impl Kinds for Allocated {
    type Kind = RangeKind;

    fn of_zeroes(&self, allocated: bool) -> RangeKind {
        if allocated { RangeKind::Zero } else { RangeKind::Hole }
    }

    fn of_data(&self) -> RangeKind {
        RangeKind::Data
    }

    fn lookup(&self, lookup: Lookup) -> Lookup {
        lookup
    }

    fn of(&self, mapping: &Mapping) -> RangeKind {
        kind_of(mapping)
    }
}

struct ChangedSince {
    since: Seq,
}

impl Kinds for ChangedSince {
    type Kind = bool;

    fn of_zeroes(&self, _allocated: bool) -> bool {
        true
    }

    fn of_data(&self) -> bool {
        true
    }

    fn lookup(&self, lookup: Lookup) -> Lookup {
        lookup.since(self.since)
    }

    fn of(&self, mapping: &Mapping) -> bool {
        mapping.birth > self.since
    }
}

/// Adds the ranges of a view to those found. Gives the block up to which they are known, and the pieces and
/// mappings looked at.
async fn join_view<K: Kinds>(
    found: &mut Vec<(Extent, K::Kind)>,
    view: View,
    kinds: &K,
) -> Result<(u64, usize)> {
    let mut pieces = 0;
    for (part, source) in view.parts {
        pieces += 1;
        match source {
            Source::Zeroes { allocated } => join(found, part, kinds.of_zeroes(allocated)),
            Source::Journal(_) | Source::Sectors { .. } => join(found, part, kinds.of_data()),
            Source::Map(lookup) => {
                let mut lookup = kinds.lookup(lookup);
                let sectors = lookup.take_sectors();
                let mappings = lookup.finish().await?;
                pieces += mappings.len();
                let end = mappings.last().map_or(part.start, |m| m.extent.end());
                let partial = match sectors {
                    Some(sectors) => partial_blocks(&sectors.finish().await?),
                    None => Vec::new(),
                };
                for m in mappings {
                    for (extent, is_partial) in parted(m.extent, &partial) {
                        join(found, extent, if is_partial { kinds.of_data() } else { kinds.of(&m) });
                    }
                }
                if end < part.end() {
                    return Ok((end, pieces));
                }
            }
        }
    }
    Ok((view.end, pieces))
}

pub(super) fn kind_of(m: &Mapping) -> RangeKind {
    match m.place {
        Place::Frame(_) => RangeKind::Data,
        Place::Zero => RangeKind::Zero,
        Place::Hole => RangeKind::Hole,
    }
}

fn join<K: PartialEq>(found: &mut Vec<(Extent, K)>, part: Extent, kind: K) {
    debug_assert!(found.last().is_none_or(|(last, _)| last.end() == part.start), "ranges have no gaps");
    match found.last_mut() {
        Some((last, k)) if *k == kind => last.len += part.len,
        _ => found.push((part, kind)),
    }
}

/// Ranges of blocks as lengths in bytes inside `[offset, offset + len)`.
fn clip<K: Copy>(found: &[(Extent, K)], offset: u64, len: u64) -> Vec<(u64, K)> {
    found
        .iter()
        .map(|(e, kind)| {
            let from = (e.start * BLOCK).max(offset);
            ((e.end() * BLOCK).min(offset + len) - from, *kind)
        })
        .collect()
}

/// Cuts `skip` bytes off the front and everything behind `len` further ones.
fn trim(pieces: Vec<Piece>, mut skip: u64, mut len: u64) -> Vec<Piece> {
    let mut out = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let size = match &piece {
            Piece::Data(data) => data.len() as u64,
            Piece::Zeroes(n) => *n,
        };
        let take = size.saturating_sub(skip).min(len);
        if take > 0 {
            out.push(match piece {
                Piece::Data(data) => Piece::Data(slice(&data, skip, take)),
                Piece::Zeroes(_) => Piece::Zeroes(take),
            });
        }
        skip = skip.saturating_sub(size);
        len -= take;
    }
    assert_eq!(len, 0, "the pieces cover the request");
    out
}

fn slice(data: &Bytes, from: u64, len: u64) -> Bytes {
    data.slice(from as usize..(from + len) as usize)
}
