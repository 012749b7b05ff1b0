//! Reads ranges of objects: from what is under way, from the cache, or by a ranged GET that brings
//! the neighbours along.
//!
//! Readers that miss the same bytes at the same time share one GET; a range that others fetch in
//! part waits for them and fetches the rest. Prefetches go through the store of low priority; a
//! reader that waits for one longer than a GET of its own would take does that GET. What comes from
//! the store is passed on as it is; whoever knows the format verifies it, calls `forget` when it was
//! bad, so that the next read fetches it again, and `read_fresh` to see whether the object itself is.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, future::try_join_all};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::{
    flights::{AheadCounts, CoveredPart, Flight, Flights, PrefetchPlan, Purpose, Ticket, within},
    link::{Link, LinkEstimate},
    pool::{self, Offers, PrefetchTask},
    window::{ReadWindow, WINDOW_BYTES_MAX},
};
use crate::{
    Error, Result,
    cache::{Admission, CacheKey, ChunkCache, PIECE_BYTES},
    env::{BoxFuture, Env},
    rank::{Locked, Rank, Ranked},
    store::{SharedStore, Stores},
};

/// Neighbours come apart from what is waited for when their transfer takes longer than this, and longer
/// than this part of the link's latency.
const APART_MIN: Duration = Duration::from_millis(5);
const APART_LATENCY_PART: u32 = 4;
/// Requests of one read that wait for the store at the same time, as a share of its latency each.
const GAP_SHARE: u64 = 8;
/// Bounds of a gap: a piece costs a local file nothing, and a link is never filled with what nobody wants.
const GAP_BYTES: Range<u64> = PIECE_BYTES as u64..64 << 10;
/// How long to wait for the writer of the cache before warming goes on.
const CACHE_BUSY_PAUSE: Duration = Duration::from_millis(5);
/// What only passes on its way to the chunk cache has this share of the memory for prefetches beside what is kept.
const PASSING_SHARE: u64 = 4;
/// The least time a reader gives a prefetch that is under way.
const PATIENCE_MIN: Duration = Duration::from_millis(20);
/// How long it waits before anything is known of the link.
const PATIENCE_FIRST: Duration = Duration::from_millis(200);

/// An immutable object, for reading.
#[derive(Clone, Debug)]
pub struct ObjectRef {
    /// Its key in the store.
    pub key: String,
    /// Its name in the cache.
    pub cache: CacheKey,
    /// Its size, where that is known.
    pub bytes: Option<u64>,
}

/// Reads objects of one store through a cache.
pub struct ObjectReader {
    env: Env,
    stores: Stores,
    cache: Option<Arc<ChunkCache>>,
    offers: Offers,
    /// Bytes that may pass through memory at once on their way to the chunk cache.
    passing: Semaphore,
    passing_bytes_max: u32,
    state: Ranked<State>,
}

struct State {
    flights: Flights,
    link: Link,
    window: ReadWindow,
}

/// A GET that is to be done; it is off the table when this is dropped.
struct Lead {
    reader: Arc<ObjectReader>,
    object: CacheKey,
    range: Range<u64>,
    ticket: Ticket,
    /// Taken when there is something to tell.
    tell: Option<oneshot::Sender<Result<Bytes>>>,
}

impl Lead {
    /// Tells everybody who waits.
    fn land(mut self, outcome: &Result<Bytes>) {
        let bytes = outcome.as_ref().ok().map(|bytes| bytes.len() as u64);
        let now = self.reader.env.now();
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(outcome.clone()); // nobody may be waiting
        }
        self.reader.state().flights.end(self.object, self.ticket, bytes, now);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.tell.take().is_some() {
            let now = self.reader.env.now();
            self.reader.state().flights.end(self.object, self.ticket, None, now);
        }
    }
}

/// A prefetch on the table whose GET is to be done; it is off the table when this is dropped.
pub struct Prefetch {
    lead: Lead,
    object: ObjectRef,
    purpose: Purpose,
    /// Memory has no room to keep it: its reader finds it in the chunk cache.
    passes: bool,
}

impl Prefetch {
    /// Does the GET. Gives the bytes it brought.
    pub async fn fetch(self) -> Result<u64> {
        let Prefetch { lead, object, purpose, passes } = self;
        let reader = lead.reader.clone();
        let range = lead.range.clone();
        let _passing = if passes { Some(reader.wait_to_pass(range.end - range.start).await) } else { None };
        let needed = range.start..range.start + 1; // how far it reaches is seen by whoever reads it
        let store = match purpose {
            Purpose::Warm => &reader.stores.background,
            Purpose::Demand | Purpose::Ahead | Purpose::Beside => &reader.stores.ahead,
        };
        let outcome = reader.fetch(store, &object, &needed, &range).await;
        if let (Ok(bytes), Some(cache)) = (&outcome, &reader.cache) {
            cache.fill(object.cache, range.start, bytes.clone(), Admission::Prefetch);
        }
        lead.land(&outcome);
        Ok(outcome?.len() as u64)
    }
}

/// Does GETs one after the other. Gives the bytes they brought.
async fn fetch_all(prefetches: Vec<Prefetch>) -> Result<u64> {
    let mut sum = 0;
    for prefetch in prefetches {
        sum += prefetch.fetch().await?;
    }
    Ok(sum)
}

/// A GET as the link sees it; one that is dropped counts as brought nothing.
struct Passage<'a> {
    reader: &'a ObjectReader,
    began: Duration,
    bytes: u64,
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let now = self.reader.env.now();
        self.reader.state().link.end(self.began, now, self.bytes);
    }
}

enum Role {
    /// Fetch the lead's range for yourself, and offer these neighbours as prefetches.
    Lead(Lead, Vec<Range<u64>>),
    Follow(Flight),
}

impl ObjectReader {
    /// `ahead_bytes_max` bounds what prefetches keep in memory until it is read. Prefetches end
    /// with the task's owner.
    pub fn start(
        env: Env,
        stores: Stores,
        cache: Option<Arc<ChunkCache>>,
        ahead_bytes_max: u64,
    ) -> (Arc<ObjectReader>, PrefetchTask) {
        let (task, offers) = pool::start(&env);
        let (link, window) = Default::default();
        let passing_bytes_max = u32::try_from(ahead_bytes_max / PASSING_SHARE).unwrap_or(u32::MAX);
        let passing = Semaphore::new(passing_bytes_max as usize);
        let state = Ranked::new(Rank::Fetch, State { flights: Flights::new(ahead_bytes_max), link, window });
        (Arc::new(ObjectReader { env, stores, cache, offers, passing, passing_bytes_max, state }), task)
    }

    /// The bytes of `range`, all of them. A miss is fetched with its neighbours, up to `window`
    /// bytes in all (0: only what is needed). `Corrupt` when the object is shorter than it must be.
    pub async fn read(self: &Arc<Self>, object: &ObjectRef, range: Range<u64>, window: u64) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if let Some(bytes) = object.bytes.filter(|&bytes| range.end > bytes) {
            return Err(too_short(object, bytes, &range));
        }
        let mut parts = self.cover(object, &range);
        if parts.len() == 1 {
            let part = parts.remove(0);
            return self.read_part(object, part, window).await;
        }
        let parts = try_join_all(parts.into_iter().map(|part| self.read_part(object, part, window))).await?;
        let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
        parts.iter().for_each(|part| whole.extend_from_slice(part));
        debug_assert_eq!(whole.len() as u64, range.end - range.start, "the parts of a range are all of it");
        Ok(whole.freeze())
    }

    /// As `read`, for who packs: from the cache, else at the priority of write-back and by itself, so that no
    /// reader waits for it. It is about to be replaced, so it does not enter the cache.
    pub async fn read_to_pack(&self, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        self.read_aside(&self.stores.write_back, object, range).await
    }

    /// As `read_to_pack`, for who moves what lies there, behind everybody else.
    pub async fn read_to_move(&self, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        self.read_aside(&self.stores.background, object, range).await
    }

    async fn read_aside(&self, store: &SharedStore, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.get(object.cache, range.clone()).await
        {
            return Ok(bytes);
        }
        self.fetch(store, object, &range, &range).await
    }

    /// Bytes to fetch around a miss, as what became of neighbours so far suggests.
    pub fn window_bytes(&self) -> u64 {
        let state = self.state();
        state.window.bytes(state.link.estimate())
    }

    /// What is known of the link to the store.
    pub fn link(&self) -> Option<LinkEstimate> {
        self.state().link.estimate()
    }

    /// Bytes between two wanted ranges of an object that are better fetched along than asked around: what the
    /// link carries in the time by which one request more delays a read, whose requests share a latency.
    pub fn gap_bytes(&self) -> u64 {
        let product = self.state().link.estimate().map_or(0, |link| link.product_bytes());
        (product / GAP_SHARE).clamp(GAP_BYTES.start, GAP_BYTES.end)
    }

    pub fn ahead_counts(&self) -> AheadCounts {
        self.state().flights.counts
    }

    /// Runs a prefetch beside everything else, at most so many at once. False when there are too
    /// many: then it is dropped.
    pub fn offer(&self, prefetch: BoxFuture<()>) -> bool {
        self.offers.offer(prefetch)
    }

    /// Puts on the table what of `range` is neither here nor under way, to be kept in memory until what is `wanted` of
    /// it (ascending, apart) was read: who comes for it from now on waits for it. Where memory does not suffice, it will
    /// go to the chunk cache alone; without one it is not fetched.
    pub fn begin_prefetch(
        self: &Arc<Self>,
        object: &ObjectRef,
        range: Range<u64>,
        wanted: &[Range<u64>],
    ) -> Vec<Prefetch> {
        self.begin_ahead(object, range, wanted, Purpose::Ahead)
    }

    /// Brings `range` into the chunk cache, as fast as that takes it, and waits for what others
    /// fetch of it. Gives the bytes that had to be fetched.
    pub async fn warm(self: &Arc<Self>, object: &ObjectRef, range: Range<u64>) -> Result<u64> {
        if !self.has_cache() {
            return Ok(0);
        }
        self.wait_for_cache().await;
        let others = self.state().flights.touching(object.cache, &range);
        let fetched = fetch_all(self.begin_ahead(object, range, &[], Purpose::Warm)).await;
        for other in others {
            let _ = other.await; // its owner says what became of it
        }
        fetched
    }

    pub fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    pub(super) fn cache(&self) -> Option<&Arc<ChunkCache>> {
        self.cache.as_ref()
    }

    /// What the chunk cache can hold, in bytes; 0 without one.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.capacity())
    }

    /// Whether all of a range is in the cache.
    pub fn is_cached(&self, object: &ObjectRef, range: Range<u64>) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has(object.cache, range))
    }

    /// The bytes of `range` as the store has them, past the table and the cache, neither of which gets them:
    /// for what failed its verification.
    pub async fn read_fresh(&self, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let fetched = self.fetch(&self.stores.read, object, &range, &range).await?;
        cut(object, &range, &range, &fetched)
    }

    /// Drops the cached copy of an object that failed its verification.
    pub fn forget(&self, object: &ObjectRef) {
        self.state().flights.forget(object.cache);
        if let Some(cache) = &self.cache {
            cache.forget(object.cache);
        }
    }

    /// What to fetch at least for a range: a cache keeps whole pieces.
    fn pieces(&self, range: &Range<u64>, object: &ObjectRef) -> Range<u64> {
        if self.has_cache() { widen(range, 0, object.bytes) } else { range.clone() }
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn cover(&self, object: &ObjectRef, range: &Range<u64>) -> Vec<CoveredPart> {
        let mut state = self.state();
        let parts = state.flights.cover(object.cache, range);
        if self.has_cache() {
            for part in parts.iter().filter(|part| part.flight.is_none()) {
                state.window.note_read(object.cache, &part.range);
            }
        }
        parts
    }

    async fn read_part(
        self: &Arc<Self>,
        object: &ObjectRef,
        part: CoveredPart,
        window: u64,
    ) -> Result<Bytes> {
        let CoveredPart { range, flight } = part;
        let mut prefetch_is_late = false;
        let mut joined = flight;
        loop {
            if let Some(flight) = joined.take() {
                match self.follow(object, &flight, &range).await {
                    Some(outcome) => return outcome,
                    None => prefetch_is_late |= flight.purpose != Purpose::Demand,
                }
            }
            if let Some(cache) = &self.cache
                && let Some(bytes) = cache.get(object.cache, range.clone()).await
            {
                return Ok(bytes);
            }
            match self.join(object, &range, window, prefetch_is_late) {
                Role::Lead(lead, neighbours) => return self.lead(object, &range, lead, neighbours).await,
                Role::Follow(flight) => joined = Some(flight),
            }
        }
    }

    /// What a GET under way brings of `range`; `None` when it does not, or not in time.
    async fn follow(&self, object: &ObjectRef, flight: &Flight, range: &Range<u64>) -> Option<Result<Bytes>> {
        if flight.purpose == Purpose::Demand {
            return match flight.outcome.clone().await {
                Ok(outcome) => Some(outcome.and_then(|bytes| cut(object, &flight.range, range, &bytes))),
                Err(_) => None, // whoever did it was cancelled
            };
        }
        let outcome = match flight.outcome.clone().now_or_never() {
            Some(outcome) => outcome,
            None => {
                let patience = self.patience(flight);
                self.env.timeout(patience, flight.outcome.clone()).await?
            }
        };
        // A prefetch that failed says nothing to a reader: it may ask for itself.
        let bytes = cut(object, &flight.range, range, &outcome.ok()?.ok()?).ok()?;
        if let Some(cache) = &self.cache {
            cache.note_read(object.cache, range);
        }
        Some(Ok(bytes))
    }

    /// How long a reader waits for a prefetch before it does a GET of its own: twice what the link
    /// takes for all that is under way, which shares it.
    fn patience(&self, flight: &Flight) -> Duration {
        let mut state = self.state();
        state.flights.counts.waits += 1;
        let bytes = (flight.range.end - flight.range.start).max(state.flights.under_way_bytes());
        let expected = state.link.estimate().map(|link| link.time_of(bytes).saturating_mul(2));
        expected.unwrap_or(PATIENCE_FIRST).max(PATIENCE_MIN)
    }

    /// Joins a GET under way that covers the range, or starts one.
    fn join(
        self: &Arc<Self>,
        object: &ObjectRef,
        range: &Range<u64>,
        window: u64,
        demand_only: bool,
    ) -> Role {
        let mut state = self.state();
        if let Some(flight) = state.flights.joinable(object.cache, range, demand_only) {
            return Role::Follow(flight);
        }
        let needed = self.pieces(range, object);
        let wide = match &self.cache {
            Some(cache) => {
                clip(&state.flights, cache, object.cache, widen(range, window, object.bytes), &needed)
            }
            None => needed.clone(), // the neighbours would be thrown away
        };
        // Where their transfer takes time, the neighbours come apart from what somebody waits for.
        let beside = (wide.end - wide.start) - (needed.end - needed.start);
        let is_slow = |link: LinkEstimate| {
            link.transfer_of(beside) > (link.latency() / APART_LATENCY_PART).max(APART_MIN)
        };
        let apart = state.link.estimate().is_some_and(is_slow);
        let (now, later) = match apart {
            true => (needed.clone(), vec![wide.start..needed.start, needed.end..wide.end]),
            false => (wide, Vec::new()),
        };
        let (ticket, tell) = state.flights.begin(object.cache, now.clone(), Purpose::Demand, Vec::new());
        let lead = Lead { reader: self.clone(), object: object.cache, range: now, ticket, tell: Some(tell) };
        Role::Lead(lead, later)
    }

    async fn lead(
        self: &Arc<Self>,
        object: &ObjectRef,
        range: &Range<u64>,
        lead: Lead,
        neighbours: Vec<Range<u64>>,
    ) -> Result<Bytes> {
        // A flight that ended between our miss and our start has filled the cache. That miss is
        // counted already.
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.get_again(object.cache, range.clone()).await
        {
            return Ok(bytes);
        }
        if self.has_cache() {
            let mut state = self.state();
            let link = state.link.estimate();
            state.window.note_miss(object.cache, range, link);
        }
        for side in neighbours.into_iter().filter(|side| !side.is_empty()) {
            let (reader, object) = (self.clone(), object.clone());
            let prefetch = async move {
                // A neighbour that cannot be fetched is fetched by whoever needs it.
                let wanted = std::slice::from_ref(&side);
                let _ = fetch_all(reader.begin_ahead(&object, side.clone(), wanted, Purpose::Beside)).await;
            };
            self.offer(prefetch.boxed());
        }
        let fetched = lead.range.clone();
        let outcome = self.fetch(&self.stores.read, object, range, &fetched).await;
        if let (Ok(bytes), Some(cache)) = (&outcome, &self.cache) {
            cache.fill(object.cache, fetched.start, bytes.clone(), Admission::Demand);
        }
        lead.land(&outcome);
        cut(object, &fetched, range, &outcome?)
    }

    /// Puts on the table what of a range nobody has or fetches.
    fn begin_ahead(
        self: &Arc<Self>,
        object: &ObjectRef,
        range: Range<u64>,
        wanted: &[Range<u64>],
        purpose: Purpose,
    ) -> Vec<Prefetch> {
        if range.is_empty() {
            return Vec::new();
        }
        let range = self.pieces(&range, object);
        let plans = self.state().flights.plan(object.cache, &range, wanted);
        let missing = plans.into_iter().filter_map(|plan| self.without_cached(object, plan));
        missing.filter_map(|plan| self.begin_one(object, plan, purpose)).collect()
    }

    /// What of a plan is not in the cache, from its first byte to its last; `None` when all is.
    fn without_cached(&self, object: &ObjectRef, plan: PrefetchPlan) -> Option<PrefetchPlan> {
        let Some(cache) = &self.cache else { return Some(plan) };
        let range = cache.missing(object.cache, &plan.range)?;
        Some(PrefetchPlan { wanted: within(&plan.wanted, &range), range })
    }

    /// Puts a prefetch on the table; `None` when somebody else came first or there is no room for it.
    fn begin_one(
        self: &Arc<Self>,
        object: &ObjectRef,
        plan: PrefetchPlan,
        purpose: Purpose,
    ) -> Option<Prefetch> {
        let PrefetchPlan { range, wanted } = plan;
        let now = self.env.now();
        let cache_takes_it = purpose == Purpose::Ahead && self.cache_bytes() > 0;
        let mut state = self.state();
        let is_free = state.flights.gaps(object.cache, &range) == [range.clone()];
        let has_room = purpose == Purpose::Warm || state.flights.make_room(range.end - range.start, now);
        if !is_free || !(has_room || cache_takes_it) {
            return None;
        }
        let (kept_as, wanted) = if has_room { (purpose, wanted) } else { (Purpose::Warm, Vec::new()) };
        let (ticket, tell) = state.flights.begin(object.cache, range.clone(), kept_as, wanted);
        drop(state);
        let lead = Lead { reader: self.clone(), object: object.cache, range, ticket, tell: Some(tell) };
        Some(Prefetch { lead, object: object.clone(), purpose, passes: !has_room })
    }

    /// Waits until so many bytes may pass through memory, and the cache takes them.
    async fn wait_to_pass(&self, bytes: u64) -> SemaphorePermit<'_> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.passing_bytes_max);
        let permit = self.passing.acquire_many(bytes).await.expect("it is never closed");
        self.wait_for_cache().await;
        permit
    }

    /// Waits until the writer of the cache has room again.
    async fn wait_for_cache(&self) {
        self.wait_while(ChunkCache::is_busy).await;
    }

    /// Waits for the writer of the cache, if there is one.
    pub(super) async fn wait_while(&self, is_behind: fn(&ChunkCache) -> bool) {
        while self.cache.as_ref().is_some_and(|cache| is_behind(cache)) {
            self.env.sleep(CACHE_BUSY_PAUSE).await;
        }
    }

    /// Past everything that is kept of it.
    pub fn store(&self) -> &SharedStore {
        &self.stores.read
    }

    async fn fetch(
        &self,
        store: &SharedStore,
        object: &ObjectRef,
        needed: &Range<u64>,
        range: &Range<u64>,
    ) -> Result<Bytes> {
        let began = self.env.now();
        self.state().link.begin(began);
        let mut passage = Passage { reader: self, began, bytes: 0 };
        let bytes = store.get_range(&object.key, range.clone()).await?;
        passage.bytes = bytes.len() as u64;
        drop(passage);
        let end = range.start + bytes.len() as u64;
        if end > range.end {
            return Err(Error::corrupt(&object.key, "the store sent more than it was asked for"));
        }
        let must = if object.bytes.is_some() { range.end } else { needed.end };
        match end < must {
            true => Err(too_short(object, end, range)),
            false => Ok(bytes),
        }
    }
}

/// The part `range` of what was fetched.
fn cut(object: &ObjectRef, fetched: &Range<u64>, range: &Range<u64>, bytes: &Bytes) -> Result<Bytes> {
    debug_assert!(fetched.start <= range.start && range.end <= fetched.end, "what is wanted was fetched");
    let part = (range.start - fetched.start) as usize..(range.end - fetched.start) as usize;
    match part.end <= bytes.len() {
        true => Ok(bytes.slice(part)),
        false => Err(too_short(object, fetched.start + bytes.len() as u64, range)),
    }
}

fn too_short(object: &ObjectRef, bytes: u64, range: &Range<u64>) -> Error {
    Error::corrupt(&object.key, format!("it ends at byte {bytes}, bytes {range:?} are needed"))
}

/// What of a window around `needed` is not in the cache and nobody fetches, without holes.
fn clip(
    flights: &Flights,
    cache: &ChunkCache,
    object: CacheKey,
    wide: Range<u64>,
    needed: &Range<u64>,
) -> Range<u64> {
    let missing = |gap: Option<Range<u64>>| gap.and_then(|gap| cache.missing(object, &gap));
    let before = missing(flights.gaps(object, &(wide.start..needed.start)).pop());
    let behind = missing(flights.gaps(object, &(needed.end..wide.end)).into_iter().next());
    let begin = before.filter(|gap| gap.end == needed.start).map_or(needed.start, |gap| gap.start);
    let end = behind.filter(|gap| gap.start == needed.end).map_or(needed.end, |gap| gap.end);
    begin..end
}

/// What to fetch for a range: whole pieces, `window` bytes. Windows lie on a grid, so that
/// neighbours that miss at the same time ask for the same one, unless the range crosses a line of
/// the grid: then it lies in the middle.
fn widen(range: &Range<u64>, window: u64, object_bytes: Option<u64>) -> Range<u64> {
    let piece = PIECE_BYTES as u64;
    let window = window.min(WINDOW_BYTES_MAX).next_multiple_of(piece);
    let (mut begin, mut end) = (range.start - range.start % piece, range.end.next_multiple_of(piece));
    if end - begin < window {
        begin = match begin / window == (end - 1) / window {
            true => begin - begin % window,
            false => begin - ((window - (end - begin)) / 2).next_multiple_of(piece).min(begin),
        };
        end = end.max(begin + window);
    }
    let wide = begin..end.min(object_bytes.unwrap_or(u64::MAX));
    debug_assert!(wide.start <= range.start && range.end <= wide.end, "a window has what is needed");
    wide
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A window covers the range, consists of whole pieces up to the object's end, and is no
        /// larger than asked for (or than the range).
        #[test]
        fn windows_cover_and_are_bounded(
            start in 0u64..1 << 30, len in 1u64..200_000, window in 0u64..1 << 21, tail in 0u64..1 << 22, known: bool,
        ) {
            let range = start..start + len;
            let object = known.then_some(range.end + tail);
            let wide = widen(&range, window, object);
            prop_assert!(wide.start <= range.start && wide.end >= range.end);
            prop_assert_eq!(wide.start % PIECE_BYTES as u64, 0);
            prop_assert!(wide.end.is_multiple_of(PIECE_BYTES as u64) || Some(wide.end) == object);
            let needed = range.end.next_multiple_of(PIECE_BYTES as u64) - range.start / 4096 * 4096;
            prop_assert!(wide.end - wide.start <= needed.max(window.next_multiple_of(PIECE_BYTES as u64)));
        }
    }
}
