//! The read path: a view at one instant, then journal, map and frames in parallel.

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};

use crate::{
    Result,
    map::Lookup,
    units::{BLOCK_BYTES, Extent, JournalPos, Mapping, Place},
    volume::{Piece, RangeKind, Volume, dirty::Dirty, order::Source},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Parts of one request that are read at once.
const PARTS_MAX: usize = 16;
/// Ranges looked at in one step of block status: bounds the memory of one answer.
const RANGES_MAX: usize = 4096;

impl Volume {
    pub(super) async fn read_bytes(&self, offset: u64, len: u64) -> Result<Vec<Piece>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.read_ahead(offset, len);
        let extent = Extent::between(offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let pieces = self.read_blocks(extent).await?;
        Ok(trim(pieces, offset - extent.start * BLOCK, len))
    }

    /// Whole blocks, in pieces of whole blocks.
    pub(super) async fn read_blocks(&self, extent: Extent) -> Result<Vec<Piece>> {
        let mut view = self.view(extent, usize::MAX)?;
        if view.len() == 1 {
            let (part, source) = view.remove(0);
            return self.read_part(part, source).await;
        }
        let parts: Vec<Vec<Piece>> =
            stream::iter(view.into_iter().map(|(part, source)| self.read_part(part, source)))
                .buffered(PARTS_MAX)
                .try_collect()
                .await?;
        Ok(parts.into_iter().flatten().collect())
    }

    pub(super) fn view(&self, extent: Extent, mappings_max: usize) -> Result<Vec<(Extent, Source)>> {
        match &self.writer {
            Some(writer) => writer.core.view(extent, mappings_max),
            None => Ok(vec![(extent, Source::Map(self.map.begin_limited(extent, mappings_max)))]),
        }
    }

    async fn read_part(&self, part: Extent, source: Source) -> Result<Vec<Piece>> {
        match source {
            Source::Dirty(Dirty::Zero { .. }) => Ok(vec![Piece::Zeroes(part.len * BLOCK)]),
            Source::Dirty(Dirty::Data(at)) => self.read_journal(part, at).await,
            Source::Map(lookup) => self.read_mapped(lookup).await,
        }
    }

    async fn read_journal(&self, part: Extent, at: JournalPos) -> Result<Vec<Piece>> {
        let writer = self.writer.as_ref().expect("only a writer has dirty blocks");
        match writer.core.journal.read(at, part.len).await? {
            Some(data) => Ok(vec![Piece::Data(data)]),
            // Committed and freed since the view was taken: look again.
            None => self.read_again(part).await,
        }
    }

    fn read_again(&self, part: Extent) -> BoxFuture<'_, Result<Vec<Piece>>> {
        self.read_blocks(part).boxed()
    }

    async fn read_mapped(&self, lookup: Lookup) -> Result<Vec<Piece>> {
        let mappings = lookup.finish().await?;
        let data: Vec<Mapping> =
            mappings.iter().filter(|m| matches!(m.place, Place::Frame(_))).copied().collect();
        let mut frames =
            if data.is_empty() { Vec::new() } else { self.frames.read(&data).await? }.into_iter();
        let mut pieces: Vec<Piece> = Vec::with_capacity(mappings.len());
        for mapping in &mappings {
            match (mapping.place, pieces.last_mut()) {
                (Place::Frame(_), _) => {
                    pieces.push(Piece::Data(frames.next().expect("one for each mapping")))
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
        let extent = Extent::between(offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let count_max = count_max.clamp(1, RANGES_MAX);
        let mut found: Vec<(Extent, RangeKind)> = Vec::new();
        for (part, source) in self.view(extent, RANGES_MAX)? {
            match source {
                Source::Dirty(Dirty::Data(_)) => join(&mut found, part, RangeKind::Data),
                Source::Dirty(Dirty::Zero { allocated: true, .. }) => join(&mut found, part, RangeKind::Zero),
                Source::Dirty(Dirty::Zero { .. }) => join(&mut found, part, RangeKind::Hole),
                Source::Map(lookup) => {
                    let mappings = lookup.finish().await?;
                    let end = mappings.last().map_or(part.start, |m| m.extent.end());
                    for m in mappings {
                        join(&mut found, m.extent, kind_of(&m));
                    }
                    if end < part.end() {
                        break;
                    }
                }
            }
            if found.len() > count_max {
                break;
            }
        }
        found.truncate(count_max);
        Ok(clip(&found, offset, len))
    }
}

fn kind_of(m: &Mapping) -> RangeKind {
    match m.place {
        Place::Frame(_) => RangeKind::Data,
        Place::Zero => RangeKind::Zero,
        Place::Hole => RangeKind::Hole,
    }
}

fn join(found: &mut Vec<(Extent, RangeKind)>, part: Extent, kind: RangeKind) {
    match found.last_mut() {
        Some((last, k)) if *k == kind => last.len += part.len,
        _ => found.push((part, kind)),
    }
}

/// Ranges of blocks as lengths in bytes inside `[offset, offset + len)`.
fn clip(found: &[(Extent, RangeKind)], offset: u64, len: u64) -> Vec<(u64, RangeKind)> {
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
    debug_assert_eq!(len, 0, "the pieces cover the request");
    out
}

fn slice(data: &Bytes, from: u64, len: u64) -> Bytes {
    data.slice(from as usize..(from + len) as usize)
}
