//! Bringing objects into the chunk cache because somebody asked for it: in which GETs, and in steps.
//!
//! At low priority; what is there already costs no request. Works from a cursor that the caller keeps, so that whoever
//! stops asking has stopped it.

use std::{ops::Range, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::{
    reader::{ObjectReader, ObjectRef},
    runs::run_object,
};
use crate::{Result, env::Env, map::RunMeta};

/// GETs at once, and bytes of one at most: together what the cache's writer can hold.
pub const WARM_FETCHES: usize = 4;
pub(super) const WARM_FETCH_BYTES_MAX: u64 = 2 << 20;
/// Bytes between two wanted ranges of an object that are fetched along to save a request.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// A step ends at the first chance after this time.
pub const WARM_STEP_TIME: Duration = Duration::from_millis(500);

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

/// All runs of a map, as GETs.
pub fn map_fetches(levels: &[Vec<RunMeta>]) -> Vec<(ObjectRef, Range<u64>)> {
    let steps = |run| {
        let object = run_object(run);
        fetch_steps(std::iter::once(0..run.bytes)).into_iter().map(move |range| (object.clone(), range))
    };
    let own = levels.iter().flatten().filter(|run| run.owner.is_none());
    own.flat_map(steps).collect()
}

/// One step through GETs, from the cursor `from` on. It began at `began`.
pub async fn warm_step(
    env: &Env,
    reader: &Arc<ObjectReader>,
    fetches: &[(ObjectRef, Range<u64>)],
    from: u64,
    began: Duration,
) -> Result<WarmStep> {
    let total = fetches.iter().map(|(_, range)| range.end - range.start).sum();
    let (mut at, mut fetched_bytes) = (0, 0);
    for several in fetches.chunks(WARM_FETCHES) {
        let bytes: u64 = several.iter().map(|(_, range)| range.end - range.start).sum();
        if at >= from {
            if env.now().saturating_sub(began) >= WARM_STEP_TIME {
                return Ok(WarmStep { next: Some(at), total, fetched_bytes });
            }
            fetched_bytes += warm_some(reader, several).await?;
        }
        at += bytes;
    }
    Ok(WarmStep { next: None, total, fetched_bytes })
}

async fn warm_some(reader: &Arc<ObjectReader>, several: &[(ObjectRef, Range<u64>)]) -> Result<u64> {
    stream::iter(several.to_vec())
        .map(|(object, range)| async move {
            match reader.warm(&object, range).await {
                Err(e) if e.is_damage() => Ok(0), // superseded since it was named, or nothing to warm with
                fetched => fetched,
            }
        })
        .buffer_unordered(WARM_FETCHES)
        .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
        .await
}

/// Ascending ranges of one object as GETs: close ones joined, long ones cut.
pub(super) fn fetch_steps(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for mut range in ranges {
        debug_assert!(
            out.last().is_none_or(|last| last.end <= range.start) && !range.is_empty(),
            "ranges ascend and are apart"
        );
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
    debug_assert!(out.iter().all(|r| r.end - r.start <= WARM_FETCH_BYTES_MAX), "a GET is bounded");
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
