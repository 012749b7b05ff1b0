//! Fetching before anybody asks: read-ahead for streams, and bringing ranges into the chunk cache.
//!
//! Everything here goes from look-ups in the map to ranges of objects and from there to the reader, at low
//! priority and bounded; nothing here is waited for by a read or a write, and no failure of it is
//! anybody's failure. The decisions are in [`super::readahead`]. Which look-ups show what a reader will see, the
//! volume knows.

use std::{ops::Range, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, TryStreamExt, future, stream};

use super::{
    flights::AheadCounts,
    frames::FrameReader,
    pool::PrefetchTask,
    readahead::{Feedback, ReadAhead},
    reader::Prefetch,
    warm::WARM_FETCH_BYTES_MAX,
};
use crate::{
    Result,
    map::Lookup,
    rank::{Rank, Ranked},
    units::{BLOCK_BYTES, Extent, Mapping, Place, Seq},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that one prefetch GET asks for: at least, so that requests are worth their price, and at
/// most, so that the first bytes are not long in coming.
const FETCH_BYTES_MIN: u64 = 256 << 10;
const FETCH_BYTES_MAX: u64 = 4 << 20;
const _: () = assert!(FETCH_BYTES_MIN <= FETCH_BYTES_MAX);
/// GETs that one plan is cut into, where its size allows.
const FETCHES_PER_PLAN: u64 = 4;
/// The part by which blocks that do not compress are longer in the store at most: they get no GET of their own.
const FRAMING_PART: u64 = 64;
/// GETs of one prefetch at once.
const FETCHES_MAX: usize = 8;
/// Mappings looked at in one step.
pub const STEP_MAPPINGS: usize = 4096;
/// How far ahead pays: so many times what the link carries in one latency. Four are enough for the reader's own time
/// and for estimates that are low by half; with eight the GETs are twice as large.
const DEPTH_PRODUCTS: u64 = 8;
/// How far ahead before anything is known of the link, in bytes.
const DEPTH_BYTES_FIRST: u64 = 4 << 20;
/// How far ahead at most, where the data is scattered over many objects; twice as far where there is a chunk cache. What one
/// step of a look-up sees of single blocks.
const DEPTH_BYTES_SCATTERED: u64 = STEP_MAPPINGS as u64 * BLOCK;
/// How long the link may take at most for a plan over scattered data: so long may who reads faster than the link brings it
/// wait for its first block.
const PLAN_TIME_MAX: Duration = Duration::from_secs(1);
/// The share of the chunk cache that may be filled ahead of a stream.
const CACHE_SHARE: u64 = 8;

/// Read-ahead of one volume.
pub struct Ahead {
    frames: Arc<FrameReader>,
    /// Streams, and the counts as they were at the read before.
    state: Ranked<(ReadAhead, AheadCounts)>,
    scatter: Arc<Ranked<Scatter>>,
    /// Bytes that prefetches may keep.
    memory_bytes: u64,
    /// Ends what is being fetched when the volume goes.
    _task: PrefetchTask,
}

/// What the last plan came to: how scattered over the store the data of a stream lies.
#[derive(Clone, Copy, Default)]
struct Scatter {
    wanted_bytes: u64,
    fetched_bytes: u64,
    gets: u64,
}

impl Scatter {
    fn of(fetches: &[Fetch]) -> Scatter {
        let len = |range: &Range<u64>| range.end - range.start;
        let scatter = Scatter {
            wanted_bytes: fetches.iter().flat_map(|f| &f.wanted).map(len).sum(),
            fetched_bytes: fetches.iter().map(|f| len(&f.range)).sum(),
            gets: fetches.len() as u64,
        };
        debug_assert!(scatter.wanted_bytes <= scatter.fetched_bytes, "what is wanted is fetched");
        scatter
    }

    /// How far ahead pays, where `products_bytes` would for data that lies in one piece. A stream over data that was
    /// written at random needs a little of many objects: the further ahead it looks, the larger are
    /// the parts that it fetches of each. What lies between them takes its share of the room.
    fn depth_bytes_max(&self, products_bytes: u64, room: &AheadRoom) -> u64 {
        if self.gets <= 2 * FETCHES_PER_PLAN {
            return products_bytes.min(self.wanted_of(room.memory_bytes / 2));
        }
        let most = if room.cache_bytes > 0 { 2 * DEPTH_BYTES_SCATTERED } else { DEPTH_BYTES_SCATTERED };
        let in_time = self.wanted_of(room.plan_bytes).saturating_mul(2); // a plan is half of what is ahead
        let in_room = self.wanted_of(room.cache_bytes.max(room.memory_bytes / 2));
        products_bytes.max(most.min(in_time)).min(in_room)
    }

    /// What is wanted of so many bytes.
    fn wanted_of(&self, bytes: u64) -> u64 {
        match self.fetched_bytes {
            0 => bytes,
            fetched => (u128::from(bytes) * u128::from(self.wanted_bytes) / u128::from(fetched)) as u64,
        }
    }
}

/// What there is room for, in bytes of objects.
struct AheadRoom {
    /// That prefetches may keep in memory.
    memory_bytes: u64,
    /// That may be brought ahead into the chunk cache; 0 without one.
    cache_bytes: u64,
    /// That the link brings in the time of a plan.
    plan_bytes: u64,
}

impl Ahead {
    /// `memory_bytes` is what prefetches may keep.
    pub fn new(frames: Arc<FrameReader>, task: PrefetchTask, memory_bytes: u64) -> Ahead {
        Ahead {
            frames,
            state: Ranked::new(Rank::Fetch, Default::default()),
            scatter: Arc::new(Ranked::new(Rank::Fetch, Scatter::default())),
            memory_bytes,
            _task: task,
        }
    }

    pub fn counts(&self) -> AheadCounts {
        self.frames.ahead_counts()
    }

    /// A client reads `range` (bytes) of a volume of `end` bytes. What to look up and [`offer`](Self::offer) now,
    /// because it will probably come next.
    pub fn note(&self, range: Range<u64>, end: u64) -> Vec<Extent> {
        let plans = self.follow(range, end).into_iter();
        plans.map(|plan| Extent::between(plan.start / BLOCK, plan.end.div_ceil(BLOCK))).collect()
    }

    fn follow(&self, range: Range<u64>, end: u64) -> Vec<Range<u64>> {
        let now = self.counts();
        let link = self.frames.link();
        let products = link.map(|link| link.product_bytes().saturating_mul(DEPTH_PRODUCTS));
        let room = AheadRoom {
            memory_bytes: self.memory_bytes,
            cache_bytes: self.frames.reader().cache_bytes() / CACHE_SHARE,
            plan_bytes: link.map_or(0, |link| link.bytes_in(PLAN_TIME_MAX)),
        };
        let scatter = *self.scatter.lock();
        let mut state = self.state.lock();
        let (streams, before) = &mut *state;
        let new = before.learn(&now);
        let feedback = Feedback {
            waited: new.waits > 0,
            wasted: new.wasted_bytes > new.used_bytes,
            depth_bytes_max: scatter.depth_bytes_max(products.unwrap_or(DEPTH_BYTES_FIRST), &room),
        };
        streams.note(range, end, feedback)
    }

    /// Fetches beside everything else what the look-ups of a plan show.
    pub fn offer(&self, plan: Extent, lookups: Vec<Lookup>) {
        if lookups.is_empty() {
            return; // all of it is dirty, and so at hand
        }
        debug_assert!(
            lookups.iter().all(|lookup| plan.intersect(lookup.extent()) == Some(lookup.extent())),
            "only what is planned is looked up"
        );
        let part_bytes = (plan.len * BLOCK / FETCHES_PER_PLAN).clamp(FETCH_BYTES_MIN, FETCH_BYTES_MAX);
        let get_bytes = part_bytes + part_bytes / FRAMING_PART;
        let (frames, scatter) = (self.frames.clone(), self.scatter.clone());
        let prefetch = async move {
            let fetched = async {
                let mut mappings = Vec::new();
                for lookup in lookups {
                    mappings.extend(frames.resolve(lookup.finish().await?).await?);
                }
                let fetches = frames.fetches(&mappings, get_bytes);
                if !fetches.is_empty() {
                    *scatter.lock() = Scatter::of(&fetches);
                }
                frames.prefetch(fetches).await?;
                match frames.foreign_among(&mappings) {
                    Some((foreign, theirs)) => foreign.prefetch(&theirs, get_bytes).await,
                    None => Ok(()),
                }
            };
            if let Err(e) = fetched.await {
                tracing::debug!(error = %e, "read-ahead");
            }
        };
        self.frames.reader().offer(prefetch.boxed());
    }

    /// Fetches the bytes of a block beside everything else into the chunk cache, for who will need them there.
    pub fn offer_block(&self, lookup: Lookup) {
        let (frames, block) = (self.frames.clone(), lookup.extent().start);
        let fetch = async move {
            let fetched = match lookup.finish().await {
                Ok(mappings) => frames.warm(&mappings, 1).await.map(drop),
                Err(e) => Err(e),
            };
            if let Err(e) = fetched {
                tracing::debug!(block, error = %e, "fetching what is under written sectors");
            }
        };
        self.frames.reader().offer(fetch.boxed());
    }
}

/// One GET of a prefetch.
#[derive(Debug, PartialEq, Eq)]
struct Fetch {
    seq: Seq,
    /// Of the object.
    range: Range<u64>,
    /// What of it is needed: ascending, apart.
    wanted: Vec<Range<u64>>,
    /// The first of what is needed, in the order of the volume.
    first: usize,
}

impl FrameReader {
    /// Fetches for a reader who will come soon, what it needs first before the rest. All of it is on the table before
    /// the first GET: a reader that comes too soon waits, and asks for nothing that stands in the queue.
    async fn prefetch(&self, mut fetches: Vec<Fetch>) -> Result<()> {
        fetches.sort_unstable_by_key(|fetch| fetch.first);
        let mut begun = Vec::with_capacity(fetches.len());
        for Fetch { seq, range, wanted, .. } in fetches {
            let object = self.object(seq)?.0;
            begun.extend(self.reader().begin_prefetch(&object, range, &wanted));
        }
        stream::iter(begun)
            .map(Prefetch::fetch)
            .buffer_unordered(FETCHES_MAX)
            .try_for_each(|_| future::ready(Ok(())))
            .await
    }

    /// Fetches the data of mappings for a reader who will come soon, with GETs of so many bytes.
    pub(super) async fn prefetch_data(&self, mappings: &[Mapping], get_bytes: u64) -> Result<()> {
        self.prefetch(self.fetches(mappings, get_bytes)).await
    }

    /// The GETs that bring the data of mappings, as far as it is the volume's own.
    fn fetches(&self, mappings: &[Mapping], bytes_max: u64) -> Vec<Fetch> {
        let data = mappings.iter().filter(|m| matches!(m.place, Place::Frame(_)) && !self.is_foreign(m));
        join_ranges(data.map(|m| self.place(m)).collect(), self.reader().gap_bytes(), bytes_max)
    }

    /// Brings the stored bytes of mappings into the chunk cache. Gives the bytes fetched.
    pub async fn warm(&self, mappings: &[Mapping], at_once: usize) -> Result<u64> {
        let own: u64 = stream::iter(self.fetches(mappings, WARM_FETCH_BYTES_MAX))
            .map(|fetch| async move {
                let object = self.object(fetch.seq)?.0;
                self.reader().warm(&object, fetch.range).await
            })
            .buffer_unordered(at_once)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
            .await?;
        match self.foreign_among(mappings) {
            Some((foreign, theirs)) => Ok(own + foreign.warm(&theirs, at_once).await?),
            None => Ok(own),
        }
    }
}

/// Fewer and larger ranges that hold the given ones, as far as gaps and size allow.
fn join_ranges(frames: Vec<(Seq, Range<u64>)>, gap_bytes: u64, bytes_max: u64) -> Vec<Fetch> {
    let mut frames: Vec<(Seq, Range<u64>, usize)> =
        frames.into_iter().enumerate().map(|(at, (seq, range))| (seq, range, at)).collect();
    frames.sort_unstable_by_key(|(seq, range, _)| (*seq, range.start));
    let mut out: Vec<Fetch> = Vec::new();
    for (seq, range, at) in frames {
        match out.last_mut() {
            Some(last)
                if last.seq == seq
                    && range.start <= last.range.end + gap_bytes
                    && range.end - last.range.start <= bytes_max =>
            {
                last.first = last.first.min(at);
                last.want(range);
            }
            _ => out.push(Fetch { seq, wanted: vec![range.clone()], range, first: at }),
        }
    }
    debug_assert!(
        out.iter().all(|fetch| fetch.wanted.len() == 1 || fetch.range.end - fetch.range.start <= bytes_max),
        "a GET is bounded"
    );
    out
}

impl Fetch {
    /// Brings a range, which does not begin before the last one, too.
    fn want(&mut self, range: Range<u64>) {
        debug_assert!(
            self.wanted.last().is_none_or(|last| last.start <= range.start),
            "what is wanted comes in ascending order"
        );
        self.range.end = self.range.end.max(range.end);
        match self.wanted.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.wanted.push(range),
        }
        debug_assert_eq!(
            self.wanted.last().map(|last| last.end),
            Some(self.range.end),
            "a GET ends with what is wanted of it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scattered frames of one object become one GET where they lie close, and several where not.
    #[test]
    fn close_frames_are_fetched_together() {
        let at = |seq: u64, offset: u64| (Seq(seq), offset..offset + 4096);
        let wanted = vec![at(1, 200_000), at(2, 0), at(1, 150_000), at(1, 154_096), at(1, 9 << 20)];
        let fetch = |seq: u64, wanted: Vec<Range<u64>>, first| {
            let (start, end) = (wanted[0].start, wanted[wanted.len() - 1].end);
            Fetch { seq: Seq(seq), range: start..end, wanted, first }
        };
        let one =
            |seq: u64, offset: u64, first| fetch(seq, Vec::from_iter(Some(offset..offset + 4096)), first);
        let expected =
            vec![fetch(1, vec![150_000..158_192, 200_000..204_096], 0), one(1, 9 << 20, 4), one(2, 0, 1)];
        assert_eq!(join_ranges(wanted, 64 << 10, FETCH_BYTES_MAX), expected);
    }

    /// Data in many small parts is looked at from further ahead, as far as memory holds what comes along.
    #[test]
    fn scattered_data_is_fetched_from_further_ahead() {
        const MIB: u64 = 1 << 20;
        let room = AheadRoom { memory_bytes: 32 * MIB, cache_bytes: 0, plan_bytes: 30 * MIB };
        let depth = |scatter: Scatter| scatter.depth_bytes_max(2 * MIB, &room);
        assert_eq!(depth(Scatter::default()), 2 * MIB);
        assert_eq!(depth(Scatter { wanted_bytes: MIB, fetched_bytes: MIB, gets: 2 }), 2 * MIB);
        assert_eq!(depth(Scatter { wanted_bytes: MIB, fetched_bytes: MIB, gets: 64 }), 16 * MIB);
        assert_eq!(depth(Scatter { wanted_bytes: MIB, fetched_bytes: 4 * MIB, gets: 64 }), 4 * MIB);
    }

    /// With a chunk cache it is looked at from as far as the cache's share holds, and nowhere from further than the link
    /// brings a plan of within a second.
    #[test]
    fn a_cache_takes_what_memory_does_not_hold() {
        const MIB: u64 = 1 << 20;
        let scatter = Scatter { wanted_bytes: MIB, fetched_bytes: 2 * MIB, gets: 64 };
        let depth = |cache_bytes, plan_bytes| {
            scatter.depth_bytes_max(2 * MIB, &AheadRoom { memory_bytes: 8 * MIB, cache_bytes, plan_bytes })
        };
        assert_eq!(depth(0, 30 * MIB), 2 * MIB);
        assert_eq!(depth(1 << 30, 24 * MIB), 24 * MIB);
        assert_eq!(depth(1 << 30, 1 << 30), 32 * MIB);
        assert_eq!(depth(40 * MIB, 1 << 30), 20 * MIB);
        assert_eq!(depth(1 << 30, MIB), 2 * MIB);
        let slow = AheadRoom { memory_bytes: 64 * MIB, cache_bytes: 0, plan_bytes: 4 * MIB };
        assert_eq!(scatter.depth_bytes_max(2 * MIB, &slow), 4 * MIB);
    }
}
