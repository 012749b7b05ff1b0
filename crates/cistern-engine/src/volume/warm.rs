//! Bringing parts of a volume into the chunk cache because somebody asked for it: NBD CACHE and
//! `cistern warm`. At low priority; what is there already costs no request.
//!
//! Works in steps from a cursor that the caller keeps, so that whoever stops asking has stopped it.

use std::{ops::Range, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cache::ObjectRef,
    units::{BLOCK_BYTES, Extent, Mapping, Place},
    volume::{
        Volume,
        ahead::{STEP_MAPPINGS, mapped},
        read::VIEW_PIECES,
        runs::run_object,
    },
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// GETs at once, and bytes of one at most: together what the cache's writer can hold.
pub(super) const WARM_FETCHES: usize = 4;
pub(super) const WARM_FETCH_BYTES_MAX: u64 = 2 << 20;
/// Bytes between two wanted ranges of an object that are fetched along to save a request.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Bytes of data looked at before a step may end.
const STEP_BYTES: u64 = 16 << 20;
/// A step ends at the first chance after this time.
const STEP_TIME: Duration = Duration::from_millis(500);

/// What to warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Warm {
    /// The data of a range, in bytes.
    Range { offset: u64, len: u64 },
    /// The map: afterwards no lookup needs the store.
    Metadata,
    /// What the hot set in the store names.
    Hot,
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmStep {
    /// Where the next step goes on; `None` when all is done.
    pub next: Option<u64>,
    /// What `next` counts up to, in bytes of what is warmed.
    pub total: u64,
    /// Bytes that had to be fetched.
    pub fetched_bytes: u64,
}

impl Volume {
    /// Warms from the cursor `from` on, 0 at first, for about half a second.
    ///
    /// # Errors
    /// `Invalid` without a chunk cache, `NotFound` when there is no hot set.
    pub async fn warm(&self, what: Warm, from: u64) -> Result<WarmStep> {
        if !self.frames.reader().has_cache() {
            return Err(Error::Invalid("there is no chunk cache to warm".to_owned()));
        }
        let began = self.env.now();
        let fetches = match what {
            Warm::Range { offset, len } => {
                self.check_bounds(offset, len)?;
                return self.warm_range(offset, len, from, began).await;
            }
            Warm::Metadata => self.map_fetches(),
            Warm::Hot => match &self.hot {
                Some(hot) => hot.fetches().await?,
                None => return Err(Error::NotFound("hot set".to_owned())),
            },
        };
        self.warm_objects(&fetches, from, began).await
    }

    /// Brings `[offset, offset + len)` into the chunk cache; does nothing without one.
    pub(super) async fn prefetch_bytes(&self, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).div_ceil(BLOCK);
        let mut at = offset / BLOCK;
        while at < end {
            at = self.warm_blocks(Extent::between(at, end)).await?.0;
        }
        Ok(())
    }

    async fn warm_range(&self, offset: u64, len: u64, from: u64, began: Duration) -> Result<WarmStep> {
        let (start, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let mut at = start.saturating_add(from / BLOCK);
        let mut fetched_bytes = 0;
        while at < end && self.env.now().saturating_sub(began) < STEP_TIME {
            let (next, bytes) = self.warm_blocks(Extent::between(at, end)).await?;
            (at, fetched_bytes) = (next, fetched_bytes + bytes);
        }
        let next = (at < end).then(|| (at - start) * BLOCK);
        Ok(WarmStep { next, total: (end - start) * BLOCK, fetched_bytes })
    }

    /// Warms the beginning of an extent. Gives the block behind it, and the bytes fetched.
    async fn warm_blocks(&self, extent: Extent) -> Result<(u64, u64)> {
        let mut fetched = 0;
        let view = self.view_first(extent, VIEW_PIECES, STEP_MAPPINGS)?;
        let seen_to = view.end;
        for (part, lookup) in mapped(view.parts) {
            let mappings = lookup.finish().await?;
            let (wanted, end) = first_bytes(&mappings, part.end());
            fetched += self.frames.warm(wanted, WARM_FETCHES).await?;
            if end < part.end() {
                return Ok((end, fetched));
            }
        }
        Ok((seen_to, fetched))
    }

    /// All runs, in steps.
    fn map_fetches(&self) -> Vec<(ObjectRef, Range<u64>)> {
        let levels = self.map.levels();
        let steps = |run| {
            let object = run_object(run);
            fetch_steps(std::iter::once(0..run.bytes)).into_iter().map(move |range| (object.clone(), range))
        };
        levels.iter().flatten().flat_map(steps).collect()
    }

    async fn warm_objects(
        &self,
        fetches: &[(ObjectRef, Range<u64>)],
        from: u64,
        began: Duration,
    ) -> Result<WarmStep> {
        let total = fetches.iter().map(|(_, range)| range.end - range.start).sum();
        let (mut at, mut fetched_bytes) = (0, 0);
        for several in fetches.chunks(WARM_FETCHES) {
            let bytes: u64 = several.iter().map(|(_, range)| range.end - range.start).sum();
            if at >= from {
                if self.env.now().saturating_sub(began) >= STEP_TIME {
                    return Ok(WarmStep { next: Some(at), total, fetched_bytes });
                }
                fetched_bytes += self.warm_some(several).await?;
            }
            at += bytes;
        }
        Ok(WarmStep { next: None, total, fetched_bytes })
    }

    async fn warm_some(&self, several: &[(ObjectRef, Range<u64>)]) -> Result<u64> {
        stream::iter(several.to_vec())
            .map(|(object, range)| async move {
                match self.frames.reader().warm(&object, range).await {
                    Err(e) if e.is_damage() => Ok(0), // superseded since it was named, or nothing to warm with
                    fetched => fetched,
                }
            })
            .buffer_unordered(WARM_FETCHES)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
            .await
    }
}

/// The first mappings with `STEP_BYTES` of data, and the block behind them; `end` where there are none.
fn first_bytes(mappings: &[Mapping], end: u64) -> (&[Mapping], u64) {
    let mut bytes = 0;
    let count = mappings.iter().take_while(|m| {
        let fits = bytes < STEP_BYTES;
        bytes += if matches!(m.place, Place::Frame(_)) { m.extent.len * BLOCK } else { 0 };
        fits
    });
    let wanted = &mappings[..count.count()];
    (wanted, wanted.last().map_or(end, |m| m.extent.end()))
}

/// Ascending ranges of one object as GETs: close ones joined, long ones cut.
pub(super) fn fetch_steps(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for mut range in ranges {
        if let Some(last) = out.last_mut()
            && range.start <= last.end + GAP_BYTES_MAX
            && range.end - last.start <= WARM_FETCH_BYTES_MAX
        {
            last.end = range.end;
            continue;
        }
        while range.end - range.start > WARM_FETCH_BYTES_MAX {
            out.push(range.start..range.start + WARM_FETCH_BYTES_MAX);
            range.start += WARM_FETCH_BYTES_MAX;
        }
        out.push(range);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Steps hold every wanted byte, are bounded, ascend, and waste no more than gaps.
        #[test]
        fn steps_cover_what_is_wanted(gaps in prop::collection::vec((1u64..200_000, 1u64..5_000_000), 1..20)) {
            let mut end = 0;
            let ranges: Vec<_> = gaps.iter().map(|(gap, len)| {
                let start = end + gap;
                end = start + len;
                start..end
            }).collect();
            let steps = fetch_steps(ranges.iter().cloned());
            prop_assert!(steps.windows(2).all(|w| w[0].end <= w[1].start));
            prop_assert!(steps.iter().all(|s| (1..=WARM_FETCH_BYTES_MAX).contains(&(s.end - s.start))));
            let sum = |list: &[Range<u64>]| list.iter().map(|r| r.end - r.start).sum::<u64>();
            prop_assert!(sum(&steps) - sum(&ranges) <= GAP_BYTES_MAX * (ranges.len() as u64 - 1));
            for range in &ranges {
                let covered: u64 = steps.iter().map(|s| s.end.min(range.end).saturating_sub(s.start.max(range.start))).sum();
                prop_assert_eq!(covered, range.end - range.start);
            }
        }
    }
}
