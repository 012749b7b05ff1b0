//! How much of what clients write is new, and how much takes the place of what was there.
//!
//! Pure. What was written behind the newest checkpoint has killed nobody knows what until merges and counts tell. So that
//! the cleaner need not wait for that, it goes by what was so lately.

/// What is written of the live bytes until what was before counts for a third.
const MEMORY: f64 = 0.1;

/// The share of written bytes by which live data grew lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Sums in which the past fades.
    grown: f64,
    written: f64,
    live_bytes: Option<f64>,
}

impl Growth {
    /// A checkpoint tells what is live, and covers so much that clients wrote since the one before.
    pub fn measure(&mut self, live_bytes: f64, written_bytes: f64) {
        debug_assert!(live_bytes >= 0.0 && written_bytes >= 0.0, "bytes are counted");
        let before = self.live_bytes.replace(live_bytes);
        if let Some(before) = before {
            let kept = (-written_bytes / (MEMORY * live_bytes).max(1.0)).exp();
            self.grown = self.grown * kept + (live_bytes - before);
            self.written = self.written * kept + written_bytes;
        }
    }

    /// Between 0 and 1; as long as nothing was seen everything is taken for new.
    pub fn share(&self) -> f64 {
        if self.written > 0.0 { (self.grown / self.written).clamp(0.0, 1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that is being filled grows by all that is written; one that is overwritten or trimmed by nothing, which shows
    /// after a fifth of it was; and before anything was seen it is taken to grow.
    #[test]
    fn what_is_new_shows_by_what_is_live() {
        let mut growth = Growth::default();
        assert_eq!(growth.share(), 1.0);
        let mut live = 100.0;
        growth.measure(live, 5.0);
        assert_eq!(growth.share(), 1.0, "what was live before is not known");
        for _ in 0..20 {
            live += 5.0;
            growth.measure(live, 5.0);
        }
        assert_eq!(growth.share(), 1.0);
        for n in 1..=16 {
            growth.measure(live, 5.0);
            assert!(n < 8 || growth.share() < 0.15, "{n}: {growth:?}");
        }
        growth.measure(live - 50.0, 1.0);
        assert_eq!(growth.share(), 0.0);
    }
}
