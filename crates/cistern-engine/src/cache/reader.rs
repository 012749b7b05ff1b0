//! Reads ranges of objects: from the cache, or by one ranged GET that brings the neighbours along.
//!
//! Readers that miss the same bytes at the same time share one GET. What comes from the store is
//! passed on as it is; whoever knows the format verifies it, and calls `forget` when it was bad,
//! so that the next read fetches it again.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::Shared};
use tokio::sync::oneshot;

use super::{Admission, CacheKey, ChunkCache, PIECE_BYTES};
use crate::{Error, Result, store::SharedStore};

/// The largest window in bytes; more would hold up the reader that waits for a few KiB of it.
const WINDOW_BYTES_MAX: u64 = 16 << 20;

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
    store: SharedStore,
    cache: Option<Arc<ChunkCache>>,
    /// GETs under way, by object.
    flights: Mutex<BTreeMap<CacheKey, Vec<Flight>>>,
}

/// What a GET under way will tell. A sender that went without a word was cancelled. Those who wait
/// are woken in the order in which they came (a watch channel has an order of its own chance,
/// which the simulator could not replay).
type Outcome = Shared<oneshot::Receiver<Result<Bytes>>>;

/// A GET under way, and where its outcome will be told.
struct Flight {
    range: Range<u64>,
    outcome: Outcome,
}

enum Role<'a> {
    Lead(Lead<'a>),
    Follow(Range<u64>, Outcome),
}

/// The reader that does the GET; its flight ends when this is dropped.
struct Lead<'a> {
    reader: &'a ObjectReader,
    object: CacheKey,
    range: Range<u64>,
    /// Taken when there is something to tell.
    tell: Option<oneshot::Sender<Result<Bytes>>>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut flights = self.reader.flights.lock().expect("nothing panics while it holds the flights");
        if let Some(list) = flights.get_mut(&self.object) {
            list.retain(|flight| flight.range != self.range);
            if list.is_empty() {
                flights.remove(&self.object);
            }
        }
    }
}

impl ObjectReader {
    pub fn new(store: SharedStore, cache: Option<Arc<ChunkCache>>) -> ObjectReader {
        ObjectReader { store, cache, flights: Mutex::new(BTreeMap::new()) }
    }

    /// The bytes of `range`, all of them. On a miss the GET covers `window` bytes around them
    /// (0: only what is needed). `Corrupt` when the object is shorter than it must be.
    pub async fn read(&self, object: &ObjectRef, range: Range<u64>, window: u64) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if let Some(bytes) = object.bytes.filter(|&bytes| range.end > bytes) {
            return Err(too_short(object, bytes, &range));
        }
        loop {
            if let Some(cache) = &self.cache
                && let Some(bytes) = cache.get(object.cache, range.clone()).await
            {
                return Ok(bytes);
            }
            match self.join(object, &range, window) {
                Role::Lead(lead) => return self.lead(object, &range, lead).await,
                Role::Follow(fetched, outcome) => {
                    if let Ok(outcome) = outcome.await {
                        return cut(object, &fetched, &range, &outcome?);
                    }
                    // The reader that did the GET was cancelled: begin anew.
                }
            }
        }
    }

    /// Drops the cached copy of an object that failed its verification.
    pub fn forget(&self, object: &ObjectRef) {
        if let Some(cache) = &self.cache {
            cache.forget(object.cache);
        }
    }

    /// Joins a GET under way that covers the range, or starts one.
    fn join(&self, object: &ObjectRef, range: &Range<u64>, window: u64) -> Role<'_> {
        let mut flights = self.flights.lock().expect("nothing panics while it holds the flights");
        let list = flights.entry(object.cache).or_default();
        let covers = |flight: &&Flight| flight.range.start <= range.start && range.end <= flight.range.end;
        if let Some(flight) = list.iter().find(covers) {
            return Role::Follow(flight.range.clone(), flight.outcome.clone());
        }
        let range = match self.cache {
            Some(_) => widen(range, window, object.bytes),
            None => range.clone(), // the neighbours would be thrown away
        };
        let (tell, outcome) = oneshot::channel();
        list.push(Flight { range: range.clone(), outcome: outcome.shared() });
        Role::Lead(Lead { reader: self, object: object.cache, range, tell: Some(tell) })
    }

    async fn lead(&self, object: &ObjectRef, range: &Range<u64>, mut lead: Lead<'_>) -> Result<Bytes> {
        // A flight that ended between our miss and our start has filled the cache. That miss is
        // counted already.
        if let Some(cache) = &self.cache
            && let Some(bytes) = cache.shared.get(object.cache, range.clone()).await
        {
            return Ok(bytes);
        }
        let outcome = self.fetch(object, range, &lead.range).await;
        if let (Ok(bytes), Some(cache)) = (&outcome, &self.cache) {
            cache.fill(object.cache, lead.range.start, bytes.clone(), Admission::Demand);
        }
        if let Some(tell) = lead.tell.take() {
            let _ = tell.send(outcome.clone()); // nobody may be waiting
        }
        cut(object, &lead.range, range, &outcome?)
    }

    async fn fetch(&self, object: &ObjectRef, needed: &Range<u64>, range: &Range<u64>) -> Result<Bytes> {
        let bytes = self.store.get_range(&object.key, range.clone()).await?;
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
    debug_assert!(fetched.start <= range.start);
    let part = (range.start - fetched.start) as usize..(range.end - fetched.start) as usize;
    match part.end <= bytes.len() {
        true => Ok(bytes.slice(part)),
        false => Err(too_short(object, fetched.start + bytes.len() as u64, range)),
    }
}

fn too_short(object: &ObjectRef, bytes: u64, range: &Range<u64>) -> Error {
    Error::corrupt(&object.key, format!("it ends at byte {bytes}, bytes {range:?} are needed"))
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
    debug_assert!(wide.start <= range.start && range.end <= wide.end);
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
