//! Groups in the hands of write-back: until they are let go, recent groups that are kept in memory for reads make way.
//!
//! So both together take about the memory that the journal has. Never refuses anything: how much is held at once, those who
//! hold it bound.

use std::sync::Arc;

use super::{Group, Journal, Shared};

/// Counts groups as held until it is dropped.
pub struct HeldGroups {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Journal {
    /// Nothing yet.
    pub fn holding(&self) -> HeldGroups {
        HeldGroups { shared: self.shared.clone(), bytes: 0 }
    }
}

impl HeldGroups {
    /// Counts a group too.
    pub fn add(&mut self, group: &Group) {
        let bytes = group.payload_bytes();
        self.bytes += bytes;
        self.shared.lock().hold(bytes);
    }
}

impl Drop for HeldGroups {
    fn drop(&mut self) {
        self.shared.lock().let_go(self.bytes);
    }
}
