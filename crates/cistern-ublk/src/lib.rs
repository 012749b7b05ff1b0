//! Block devices of the kernel's userspace block driver (`ublk_drv`): `/dev/ublkbN`.
//!
//! Two sides that need not be one process. [`UblkControl`] makes, starts and ends devices, which takes CAP_SYS_ADMIN; [`serve`] answers the
//! requests of one, which takes the right to open `/dev/ublkcN` and nothing else. What is served is an [`Export`](cistern_nbd::Export), as for the
//! clients of NBD. The protocol is the kernel's `include/uapi/linux/ublk_cmd.h`, described in its `Documentation/block/ublk.rst`.
//!
//! Modules are layered and import strictly downward, never sideways (`xtask/tests/layers.rs` proves it):
//!
//! | layer | modules | role |
//! |---|---|---|
//! | 0 | `wire` | numbers and layouts of the kernel |
//! | 1 | `request` | what a descriptor asks for, or which error it gets: a pure decision |
//! | 1 | `control` | devices, from their making to their end |
//! | 1 | `buffer` | the data of requests, between the kernel and us |
//! | 2 | `queue` | the thread that serves a device |
//!
//! Invariants: a device outlives who serves it, and its requests wait for the next one; none that was begun is left before it has
//! ended, so nothing of it is applied behind a copy that is sent again; at most [`DEPTH`] requests of [`REQUEST_BYTES_MAX`] are under way.

mod buffer;
mod control;
mod queue;
mod request;
mod wire;

pub use control::{Shape, UblkControl, UblkInfo, UblkState};
pub use queue::{Serving, serve};

/// Requests that a device has under way at most.
pub const DEPTH: u16 = 128;
/// Bytes of its largest request that has data. With [`DEPTH`] of them it holds as much as a connection of NBD may.
pub const REQUEST_BYTES_MAX: u32 = 512 << 10;
