//! The deterministic simulator: the real engine under clients, crashes and faults that one seed
//! decides, and a checker that knows what the volume may read as afterwards.
//!
//! | about | modules |
//! |---|---|
//! | the simulated world | `runtime`, `trace`, `env`, `disk`, `store` |
//! | the engine in it | `device` |
//! | what may be read | `stamp`, `model` |
//! | what happens | `plan`, `client`, `world` |
//! | proof of the checker | `lies`, `toy` |
//!
//! Absences that are invariants: no real clock, no threads, no chance but the seed's, no map whose
//! order could differ from run to run.

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
