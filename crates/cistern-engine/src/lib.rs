//! The storage engine of cistern: a block device whose data lives in an object store.
//!
//! Modules are layered and import strictly downward, never sideways (`xtask/tests/layers.rs` proves it):
//!
//! | layer | modules |
//! |---|---|
//! | 0 words | `units`, `error`, `stats`, `rank` |
//! | 1 tools | `aligned`, `damage`, `extents`, `sectors`, `share`, `price`, `disk_room`, `filesystem`, `env` |
//! | 2 sealing, files, snapshots | `codec`, `uring`, `courtesy`, `snapshot` |
//! | 3 outside world | `disk`, `store` |
//! | 4 structures | `segment`, `map`, `journal`, `cache`, `stream` |
//! | 5 one door | `log` |
//! | 6 fetching, space | `fetch`, `gc`, `space` |
//! | 7 flows | `writeback`, `cleaner`, `upkeep` |
//! | 8 facade | `volume` |
//!
//! Absences that are invariants: no clock, randomness or task outside `env`; no type of a cloud's
//! client above `store`; no word of NBD; nothing joins a volume outside `log`; nothing is deleted
//! outside `gc`; nothing but `log` reads parts of objects outside `fetch`; no unbounded queue.

pub mod aligned;
pub mod cache;
pub mod cleaner;
pub mod codec;
pub mod courtesy;
pub mod damage;
pub mod disk;
pub mod disk_room;
pub mod env;
pub mod error;
pub mod extents;
pub mod fetch;
pub mod filesystem;
pub mod gc;
pub mod journal;
pub mod log;
pub mod map;
pub mod price;
pub mod rank;
pub mod sectors;
pub mod segment;
pub mod share;
pub mod snapshot;
pub mod space;
pub mod stats;
pub mod store;
pub mod stream;
pub mod units;
pub mod upkeep;
pub mod uring;
pub mod volume;
pub mod writeback;

pub use error::{Error, Result};

// Shared with the tests outside, to which this crate has a name.
#[cfg(test)]
extern crate self as cistern_engine;
#[cfg(test)]
#[path = "../tests/store_support/passing.rs"]
mod passing;
