//! A filesystem on a volume, with all that it stands on: volume, daemon, device (`docs/design/up.md`).
//!
//! Here is what can be known and decided without doing anything: which step is next, what a device holds, who uses a mount, and what is
//! remembered of a stack.

mod content;
mod holders;
mod label;
mod plan;
mod record;
mod share;

pub use content::OnDevice;
pub use holders::{Holder, holders};
pub use label::PoolLabel;
pub use plan::{
    HeldBy, Pool, ServedAs, StackGoal, StackState, StackStep, Way, can_be_shared, next, supposed,
};
pub use record::{Fs, StackRecord};
pub use share::{NfsExport, NfsServer, ShareClient, Sharing, escaped};
