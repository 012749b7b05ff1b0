//! What of a volume is fetched before anybody needs it: ahead of readers, under written sectors, and because somebody
//! asked for it (NBD CACHE, `cistern warm`).
//!
//! Says where the newest versions lie, which is known here; what is dirty is at hand. How bytes come from there is
//! [`crate::fetch`]'s. Warming works in steps from a cursor that the caller keeps, so that whoever stops asking has
//! stopped it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    fetch::{STEP_MAPPINGS, WARM_FETCHES, WARM_STEP_TIME, WarmStep, map_fetches, warm_step},
    map::Lookup,
    units::{BLOCK_BYTES, Extent, Mapping, Place},
    volume::{Volume, order::Source, read::VIEW_PIECES},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of data looked at before a step may end.
const STEP_BYTES: u64 = 16 << 20;

/// What to warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WarmTarget {
    /// The data of a range, in bytes.
    Range { offset: u64, len: u64 },
    /// The map: afterwards no lookup needs the store.
    Metadata,
    /// What the hot set in the store names.
    Hot,
}

impl Volume {
    /// A client reads `[offset, offset + len)`: fetches ahead what will probably come next.
    pub(super) fn read_ahead(&self, offset: u64, len: u64) {
        for plan in self.ahead.note(offset..offset + len, self.size_bytes()) {
            // A volume that serves no reads fetches nothing ahead.
            let Ok(view) = self.view(plan) else { return };
            self.ahead.offer(plan, mapped(view));
        }
    }

    /// Sectors of a block were written of which the rest is not at hand: whoever packs it finds that in the
    /// chunk cache.
    pub(super) fn fetch_base(&self, block: u64) {
        if !self.frames.reader().has_cache() {
            return; // there is no place to keep it
        }
        self.ahead.offer_block(self.map.begin(Extent::new(block, 1)));
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

    /// Warms from the cursor `from` on, 0 at first, for about half a second.
    ///
    /// # Errors
    /// `Invalid` without a chunk cache, `NotFound` when there is no hot set.
    pub async fn warm(&self, what: WarmTarget, from: u64) -> Result<WarmStep> {
        if !self.frames.reader().has_cache() {
            return Err(Error::Invalid("there is no chunk cache to warm".to_owned()));
        }
        let began = self.env.now();
        let fetches = match what {
            WarmTarget::Range { offset, len } => {
                self.check_bounds(offset, len)?;
                return self.warm_range(offset, len, from, began).await;
            }
            WarmTarget::Metadata => map_fetches(&self.map.levels()),
            WarmTarget::Hot => match &self.hot {
                Some(hot) => hot.fetches().await?,
                None => return Err(Error::NotFound("hot set".to_owned())),
            },
        };
        warm_step(&self.env, self.frames.reader(), &fetches, from, began).await
    }

    async fn warm_range(&self, offset: u64, len: u64, from: u64, began: Duration) -> Result<WarmStep> {
        let (start, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let mut at = start.saturating_add(from / BLOCK);
        let mut fetched_bytes = 0;
        while at < end && self.env.now().saturating_sub(began) < WARM_STEP_TIME {
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
        debug_assert!(extent.start < seen_to && seen_to <= extent.end(), "every look sees something");
        for lookup in mapped(view.parts) {
            let part_end = lookup.extent().end();
            let mappings = self.frames.resolve(lookup.finish().await?).await?;
            let (wanted, end) = first_bytes(&mappings, part_end);
            fetched += self.frames.warm(wanted, WARM_FETCHES).await?;
            if end < part_end {
                return Ok((end, fetched));
            }
        }
        Ok((seen_to, fetched))
    }
}

/// What of a view the map answers.
fn mapped(view: Vec<(Extent, Source)>) -> Vec<Lookup> {
    let lookup = |(_, source)| match source {
        Source::Map(lookup) | Source::Sectors { base: lookup, .. } => Some(lookup),
        Source::Journal(_) | Source::Zeroes { .. } => None,
    };
    view.into_iter().filter_map(lookup).collect()
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
