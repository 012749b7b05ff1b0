//! The deterministic simulator: the real engine under clients, crashes and faults that one seed
//! decides, and a checker that knows what the volume may read as afterwards.
//!
//! Modules are layered and import strictly downward, never sideways (`xtask/tests/layers.rs` proves it):
//!
//! | layer | modules | about |
//! |---|---|---|
//! | 0 | `trace` | the simulated world |
//! | 0 | `stamp` | what may be read |
//! | 1 | `runtime` | the simulated world |
//! | 1 | `model` | what may be read |
//! | 2 | `env`, `disk`, `store` | the simulated world |
//! | 2 | `device` | the engine in it |
//! | 3 | `plan` | what happens |
//! | 3 | `toy` | proof of the checker, as are the lies of the tests |
//! | 4 | `client` | what happens |
//! | 5 | `world` | what happens |
//!
//! Absences that are invariants: no real clock, no threads, no chance but the seed's, no map whose
//! order could differ from run to run.

#![forbid(unsafe_code)]

pub mod client;
pub mod device;
pub mod disk;
pub mod env;
pub mod model;
pub mod plan;
pub mod runtime;
pub mod stamp;
pub mod store;
pub mod toy;
pub mod trace;
pub mod world;
