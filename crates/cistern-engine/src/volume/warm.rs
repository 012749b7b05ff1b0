//! Bringing parts of a volume into the chunk cache because somebody asked for it: NBD CACHE and
//! `cistern warm`. At low priority; what is there already costs no request.

use crate::{
    Result,
    units::{BLOCK_BYTES, Extent},
    volume::{
        Volume,
        ahead::{STEP_MAPPINGS, mapped},
    },
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// GETs at once, of at most 4 MiB each.
const FETCHES_MAX: usize = 8;

impl Volume {
    /// Brings `[offset, offset + len)` into the chunk cache; does nothing without one.
    pub(super) async fn prefetch_bytes(&self, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).div_ceil(BLOCK);
        let mut at = offset / BLOCK;
        while at < end {
            at = self.warm_step(Extent::between(at, end)).await?.0;
        }
        Ok(())
    }

    /// Warms the beginning of an extent. Gives the block behind it, and the bytes fetched.
    async fn warm_step(&self, extent: Extent) -> Result<(u64, u64)> {
        let mut fetched = 0;
        for (part, lookup) in mapped(self.view(extent, STEP_MAPPINGS)?) {
            let mappings = lookup.finish().await?;
            fetched += self.frames.warm(&mappings, FETCHES_MAX).await?;
            let end = mappings.last().map_or(part.end(), |m| m.extent.end());
            if end < part.end() {
                return Ok((end, fetched)); // there are more mappings than one step looks at
            }
        }
        Ok((extent.end(), fetched))
    }
}
