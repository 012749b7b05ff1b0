//! What is hot of one volume: what its chunk cache found worth keeping, as the hot set in the store names it, and what a
//! hot set in the store makes worth fetching.
//!
//! Advice in both directions. Writes nothing to the store: when a hot set is written and which are dropped, the volume
//! decides.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use futures_util::{StreamExt, stream};

use super::{
    frames::entry_object,
    reader::{ObjectReader, ObjectRef},
    runs::run_object,
    warm::{WARM_FETCHES, fetch_steps},
};
use crate::{
    Error, Result,
    cache::{CHUNK_BYTES, ChunkCache, HotChunk, PIECE_BYTES},
    log::{
        VolumeKeys,
        checkpoint::EpochStart,
        hot::{HOT_BYTES_MAX, HotName, HotSet, PIECES_MAX, RANGES_MAX},
        keys, salt_of,
    },
    map::{Levels, Map, RunMeta},
    store::{LIST_MAX, SharedStore},
    units::{RunId, Seq},
};

/// A cache is warmed when less than one piece of so many of the hot set is there.
const PRESENT_PART: u64 = 2;
/// Of the cache, so many parts in four may be filled with the hot set.
const CACHE_QUARTERS: u64 = 3;
/// Hot sets that are tried, the newest first.
const TRIES_MAX: usize = 8;

const PIECES_PER_CHUNK: u32 = (CHUNK_BYTES / PIECE_BYTES) as u32;

/// Where the hot parts of one volume are: in the store, in the cache.
pub struct HotParts {
    /// Of low priority.
    pub store: SharedStore,
    pub cache: Arc<ChunkCache>,
    pub reader: Arc<ObjectReader>,
    pub map: Arc<Map>,
    pub keys: VolumeKeys,
    pub epochs: Arc<[EpochStart]>,
}

/// The runs that are not another volume's.
fn own_runs(levels: &Levels) -> impl Iterator<Item = &RunMeta> {
    levels.iter().flatten().filter(|run| run.owner.is_none())
}

impl HotParts {
    /// The newest hot set in the store that verifies: one of a removed volume may hide ours.
    pub async fn load(&self) -> Result<HotSet> {
        let (store, keys) = (&self.store, &self.keys);
        let listed = store.list_after(keys::HOT_PREFIX, "", LIST_MAX).await?;
        let mut names: Vec<_> = listed.iter().filter_map(|l| keys::parse_hot(&l.key)).collect();
        names.sort_unstable();
        let mut unusable = Error::NotFound("hot set".to_owned());
        for name in names.into_iter().rev().take(TRIES_MAX) {
            let body = store.get(&keys::hot(name.0, name.1), HOT_BYTES_MAX).await?;
            match HotSet::decode(keys.key.as_deref(), keys.volume, name, &body) {
                Ok(set) => return Ok(set),
                Err(e) => unusable = e,
            }
        }
        Err(unusable)
    }

    /// Fetches the hot set, unless much of it is here.
    pub async fn warm(&self, set: &HotSet) {
        let fetches = self.fetches(set);
        let bytes = |list: &[(ObjectRef, Range<u64>)]| list.iter().map(|(_, r)| r.end - r.start).sum::<u64>();
        let all = bytes(&fetches);
        let has = |(object, range): &(ObjectRef, Range<u64>)| self.cache.has(object.cache, range.clone());
        let missing: Vec<_> = fetches.into_iter().filter(|fetch| !has(fetch)).collect();
        let missing_bytes = bytes(&missing);
        if all == 0 || (all - missing_bytes) * PRESENT_PART >= all {
            return;
        }
        tracing::info!(bytes = missing_bytes, "warming the chunk cache with what was hot");
        let reader = &self.reader;
        stream::iter(missing)
            .for_each_concurrent(WARM_FETCHES, |(object, range)| async move {
                // What is gone from the store, or does not come, is fetched when somebody needs it.
                if let Err(e) = reader.warm(&object, range).await {
                    tracing::debug!(error = %e, "warming");
                }
            })
            .await;
        tracing::info!("the chunk cache is warm");
    }

    /// The set as ranges of objects that exist as far as this volume knows, small ones joined, the map first,
    /// up to what the cache can hold.
    pub fn fetches(&self, set: &HotSet) -> Vec<(ObjectRef, Range<u64>)> {
        let mut room = self.cache.stats().bytes / 4 * CACHE_QUARTERS;
        let levels = self.map.levels();
        let mut out = Vec::new();
        for (name, ranges) in set.objects.iter().rev() {
            let object = match name {
                HotName::Entry(seq) => salt_of(&self.epochs, *seq).map(|salt| entry_object(*seq, salt)),
                HotName::Run(id) => own_runs(&levels).find(|run| run.id == *id).map(run_object),
            };
            let Some(object) = object else { continue };
            let end = object.bytes.unwrap_or(u64::MAX);
            let bytes =
                ranges.iter().map(|r| u64::from(r.start) * PIECE..(u64::from(r.end) * PIECE).min(end));
            for range in fetch_steps(bytes.filter(|r| !r.is_empty())) {
                let Some(rest) = room.checked_sub(range.end - range.start) else { return out };
                room = rest;
                out.push((object.clone(), range));
            }
        }
        out
    }

    /// What of the cache belongs to this volume, the hottest first while there is room.
    pub fn collect(&self) -> HotSet {
        let levels = self.map.levels();
        let runs: BTreeSet<RunId> = own_runs(&levels).map(|run| run.id).collect();
        let mut set = HotSet::default();
        let mut ranges = 0;
        for chunk in self.cache.hot(self.cache.stats().bytes) {
            let Some(name) = self.name(&chunk, &runs) else { continue };
            let found = pieces_of(&chunk);
            ranges += found.len();
            if ranges > RANGES_MAX {
                break;
            }
            set.objects.entry(name).or_default().extend(found);
        }
        for ranges in set.objects.values_mut() {
            join(ranges);
        }
        debug_assert!(
            set.objects.values().map(Vec::len).sum::<usize>() <= RANGES_MAX,
            "a hot set is no larger than it may be to be read back"
        );
        set
    }

    /// The object of a chunk, if it is one of this volume.
    fn name(&self, chunk: &HotChunk, runs: &BTreeSet<RunId>) -> Option<HotName> {
        let (id, number) = chunk.object.parts();
        let seq = Seq(number);
        if salt_of(&self.epochs, seq).is_some_and(|salt| salt.0 == id) {
            return Some(HotName::Entry(seq));
        }
        let run = RunId(uuid::Uuid::from_bytes(id));
        (number == 0 && runs.contains(&run)).then_some(HotName::Run(run))
    }
}

const PIECE: u64 = PIECE_BYTES as u64;

/// The valid pieces of a chunk as ranges of pieces of its object.
fn pieces_of(chunk: &HotChunk) -> Vec<Range<u32>> {
    let first = chunk.chunk.saturating_mul(PIECES_PER_CHUNK);
    let valid =
        (0..PIECES_PER_CHUNK).filter(|piece| chunk.valid >> piece & 1 == 1).map(|piece| first + piece);
    let mut ranges: Vec<Range<u32>> =
        valid.filter(|piece| *piece < PIECES_MAX).map(|piece| piece..piece + 1).collect();
    join(&mut ranges);
    ranges
}

/// Sorts ranges and joins neighbours.
fn join(ranges: &mut Vec<Range<u32>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheKey;

    /// The pieces of neighbouring chunks become one range.
    #[test]
    fn pieces_become_ranges() {
        let chunk = |chunk, valid| HotChunk { object: CacheKey::new([1; 16], 2), chunk, valid };
        let mut ranges = [pieces_of(&chunk(3, 0b1)), pieces_of(&chunk(2, 0b1000_0000_0000_0110))].concat();
        assert_eq!(ranges, vec![48..49, 33..35, 47..48]);
        join(&mut ranges);
        assert_eq!(ranges, vec![33..35, 47..49]);
    }
}
