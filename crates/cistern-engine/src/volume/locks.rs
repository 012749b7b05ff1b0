//! Extents held by writes of parts of blocks. Whoever wants to write into one waits for its release.
//!
//! A holder takes its whole extent at once, so there is no hold-and-wait and no deadlock.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::units::Extent;

/// The held extents; few at any time.
#[derive(Default)]
pub struct HeldExtents {
    held: Vec<Arc<Held>>,
}

/// One held extent. `released` is closed at its release and never has a permit.
pub struct Held {
    extent: Extent,
    released: Semaphore,
}

impl Held {
    /// Returns once the extent is released; at once if it is already.
    pub async fn wait(&self) {
        let closed = self.released.acquire().await;
        debug_assert!(closed.is_err(), "there is never a permit");
    }
}

impl HeldExtents {
    /// Somebody, other than `own`, who holds a part of `extent`.
    pub fn blocker(&self, extent: Extent, own: Option<&Arc<Held>>) -> Option<Arc<Held>> {
        let blocks = |h: &&Arc<Held>| {
            h.extent.intersect(extent).is_some() && !own.is_some_and(|own| Arc::ptr_eq(own, h))
        };
        self.held.iter().find(blocks).cloned()
    }

    /// Holds `extent`, which has no blocker.
    pub fn hold(&mut self, extent: Extent) -> Arc<Held> {
        assert!(self.blocker(extent, None).is_none(), "held extents never overlap");
        let held = Arc::new(Held { extent, released: Semaphore::new(0) });
        self.held.push(held.clone());
        held
    }

    pub fn release(&mut self, held: &Arc<Held>) {
        let before = self.held.len();
        self.held.retain(|h| !Arc::ptr_eq(h, held));
        debug_assert_eq!(self.held.len() + 1, before, "what is held is released once");
        held.released.close();
    }
}
