//! Room that was promised to what is on its way to a store, so that nobody else is promised it too.
//!
//! A disk says what is free now. What was allowed to go there a moment ago and has not arrived would be counted as free once more, by
//! every flow and every volume that asks. So all that share a store share one of these.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes that are on their way. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct PromisedRoom(Arc<AtomicU64>);

/// Some of them, until this is dropped.
#[derive(Debug)]
pub struct Promise {
    of: PromisedRoom,
    bytes: u64,
}

impl PromisedRoom {
    /// Counts bytes that may go there. Ask behind this whether there is room for all of [`bytes`](Self::bytes): so of two that ask at
    /// once at most one is wrong, and that one waits.
    pub fn promise(&self, bytes: u64) -> Promise {
        self.0.fetch_add(bytes, Ordering::SeqCst);
        Promise { of: self.clone(), bytes }
    }

    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let before = self.of.0.fetch_sub(self.bytes, Ordering::SeqCst);
        debug_assert!(before >= self.bytes, "what was promised is counted once");
    }
}
