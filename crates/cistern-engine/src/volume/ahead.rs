//! Fetching before anybody asks: read-ahead for streams, and bringing ranges into the chunk cache.
//!
//! Everything here goes through the map to ranges of objects and from there to the reader, at low
//! priority and bounded; nothing here is waited for by a read or a write, and no failure of it is
//! anybody's failure. The decisions are in [`super::readahead`].

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use crate::{
    Result,
    cache::{AheadCounts, ObjectReader, PrefetchTask},
    map::Lookup,
    units::{BLOCK_BYTES, Extent, Mapping, Place, Seq},
    volume::{
        Volume,
        frames::FrameReader,
        order::Source,
        readahead::{Feedback, ReadAhead},
        warm::WARM_FETCH_BYTES_MAX,
    },
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that one prefetch GET asks for: at least, so that requests are worth their price, and at
/// most, so that the first bytes are not long in coming.
const FETCH_BYTES_MIN: u64 = 256 << 10;
const FETCH_BYTES_MAX: u64 = 4 << 20;
/// GETs that one plan is cut into, where its size allows.
const FETCHES_PER_PLAN: u64 = 4;
/// GETs of one prefetch at once.
const FETCHES_MAX: usize = 4;
/// Bytes between two wanted ranges of an object that are fetched along to save a request.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Mappings looked at in one step.
pub(super) const STEP_MAPPINGS: usize = 4096;
/// How far ahead pays: so many times what the link carries in one latency. Enough for the reader's
/// own time and for estimates that are low by half.
const DEPTH_PRODUCTS: u64 = 4;
/// How far ahead before anything is known of the link, in bytes.
const DEPTH_BYTES_FIRST: u64 = 4 << 20;

/// Read-ahead of one volume.
pub struct Ahead {
    reader: Arc<ObjectReader>,
    /// Streams, and the counts as they were at the read before.
    state: Mutex<(ReadAhead, AheadCounts)>,
    /// The furthest that memory allows, in bytes.
    depth_bytes_max: u64,
    /// Ends what is being fetched when the volume goes.
    _task: PrefetchTask,
}

impl Ahead {
    /// `memory_bytes` is what prefetches may keep.
    pub fn new(reader: Arc<ObjectReader>, task: PrefetchTask, memory_bytes: u64) -> Ahead {
        Ahead { reader, state: Mutex::default(), depth_bytes_max: memory_bytes / 2, _task: task }
    }

    pub fn counts(&self) -> AheadCounts {
        self.reader.ahead_counts()
    }

    fn note(&self, range: Range<u64>, end: u64) -> Vec<Range<u64>> {
        let now = self.reader.ahead_counts();
        let products = self.reader.link().map(|link| link.product_bytes().saturating_mul(DEPTH_PRODUCTS));
        let mut state = self.state.lock().expect("no panic under this lock");
        let (streams, before) = &mut *state;
        let wasted = now.wasted_bytes - before.wasted_bytes;
        let feedback = Feedback {
            waited: now.waits > before.waits,
            wasted: wasted > now.used_bytes - before.used_bytes,
            depth_bytes_max: products.unwrap_or(DEPTH_BYTES_FIRST).min(self.depth_bytes_max),
        };
        *before = now;
        streams.note(range, end, feedback)
    }
}

impl Volume {
    /// A client reads `[offset, offset + len)`: fetches ahead what will probably come next.
    pub(super) fn read_ahead(&self, offset: u64, len: u64) {
        for plan in self.ahead.note(offset..offset + len, self.size_bytes()) {
            let step = ((plan.end - plan.start) / FETCHES_PER_PLAN).clamp(FETCH_BYTES_MIN, FETCH_BYTES_MAX);
            let mut at = plan.start;
            while at < plan.end {
                let to = (at + step).min(plan.end);
                let extent = Extent::between(at / BLOCK, to.div_ceil(BLOCK));
                // A volume that serves no reads fetches nothing ahead.
                let Ok(view) = self.view(extent) else { return };
                self.offer_prefetch(mapped(view));
                at = to;
            }
        }
    }

    /// Sectors of a block were written of which the rest is not at hand: whoever packs it finds that in the
    /// chunk cache.
    pub(super) fn fetch_base(&self, block: u64) {
        if !self.frames.reader().has_cache() {
            return; // there is no place to keep it
        }
        let (frames, lookup) = (self.frames.clone(), self.map.begin(Extent::new(block, 1)));
        let fetch = async move {
            let fetched = match lookup.finish().await {
                Ok(mappings) => frames.warm(&mappings, 1).await.map(drop),
                Err(e) => Err(e),
            };
            if let Err(e) = fetched {
                tracing::debug!(block, error = %e, "fetching what is under written sectors");
            }
        };
        self.ahead.reader.offer(fetch.boxed());
    }

    fn offer_prefetch(&self, lookups: Vec<(Extent, Lookup)>) {
        if lookups.is_empty() {
            return; // all of it is dirty, and so at hand
        }
        let frames = self.frames.clone();
        let prefetch = async move {
            for (_, lookup) in lookups {
                let fetched = match lookup.finish().await {
                    Ok(mappings) => frames.prefetch(&mappings).await,
                    Err(e) => Err(e),
                };
                if let Err(e) = fetched {
                    tracing::debug!(error = %e, "read-ahead");
                    return;
                }
            }
        };
        self.ahead.reader.offer(prefetch.boxed());
    }
}

/// What of a view the map answers.
pub(super) fn mapped(view: Vec<(Extent, Source)>) -> Vec<(Extent, Lookup)> {
    let lookup = |(part, source)| match source {
        Source::Map(lookup) | Source::Sectors { base: lookup, .. } => Some((part, lookup)),
        Source::Journal(_) | Source::Zeroes { .. } => None,
    };
    view.into_iter().filter_map(lookup).collect()
}

impl FrameReader {
    /// Fetches the stored bytes of mappings for a reader who will come soon.
    async fn prefetch(&self, mappings: &[Mapping]) -> Result<()> {
        stream::iter(self.fetches(mappings, FETCH_BYTES_MAX))
            .map(|(seq, range)| async move {
                let object = self.object(seq)?.0;
                self.reader().prefetch(&object, range).await
            })
            .buffer_unordered(FETCHES_MAX)
            .try_collect()
            .await
    }

    /// The ranges of objects that hold the data of mappings.
    fn fetches(&self, mappings: &[Mapping], bytes_max: u64) -> Vec<(Seq, Range<u64>)> {
        let data = mappings.iter().filter(|m| matches!(m.place, Place::Frame(_)));
        join_ranges(data.map(|m| self.place(m)).collect(), bytes_max)
    }

    /// Brings the stored bytes of mappings into the chunk cache. Gives the bytes fetched.
    pub(super) async fn warm(&self, mappings: &[Mapping], at_once: usize) -> Result<u64> {
        stream::iter(self.fetches(mappings, WARM_FETCH_BYTES_MAX))
            .map(|(seq, range)| async move {
                let object = self.object(seq)?.0;
                self.reader().warm(&object, range).await
            })
            .buffer_unordered(at_once)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
            .await
    }
}

/// Fewer and larger ranges that hold the given ones, as far as gaps and size allow.
fn join_ranges(mut frames: Vec<(Seq, Range<u64>)>, bytes_max: u64) -> Vec<(Seq, Range<u64>)> {
    frames.sort_unstable_by_key(|(seq, range)| (*seq, range.start));
    let mut out: Vec<(Seq, Range<u64>)> = Vec::new();
    for (seq, range) in frames {
        match out.last_mut() {
            Some((last, wide))
                if *last == seq
                    && range.start <= wide.end + GAP_BYTES_MAX
                    && range.end - wide.start <= bytes_max =>
            {
                wide.end = wide.end.max(range.end);
            }
            _ => out.push((seq, range)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scattered frames of one object become one GET where they lie close, and several where not.
    #[test]
    fn close_frames_are_fetched_together() {
        let at = |seq: u64, offset: u64| (Seq(seq), offset..offset + 4096);
        let wanted = vec![at(1, 200_000), at(2, 0), at(1, 150_000), at(1, 9 << 20)];
        let expected =
            vec![(Seq(1), 150_000..204_096), (Seq(1), 9 << 20..(9 << 20) + 4096), (Seq(2), 0..4096)];
        assert_eq!(join_ranges(wanted, FETCH_BYTES_MAX), expected);
    }
}
