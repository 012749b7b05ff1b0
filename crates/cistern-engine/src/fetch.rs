//! How bytes come from the store: the one way from a place in an object to what lies there.
//!
//! Below is the local copy of objects ([`crate::cache`]), which never asks the store; above is the volume, which says where
//! the newest version of a block is. In between, in this order, each on those before it:
//!
//! - `link`, `window`: what the link bears, and how many neighbours of a miss pay. `flights`: what is under way, and
//!   what was fetched ahead and not yet read. `foreign`: what is asked for other volumes' blocks. `pool`: prefetches that run beside everything else.
//! - `reader`: ranges of objects, from what is under way, from the cache or by a GET.
//! - `forward`, `frames`, `runs`: what the ranges mean: blocks of data, where they were moved for a snapshot, parts of the map. What
//!   does not verify is fetched again; `to_send` does not unpack what need not be. `origins`: the same of the volumes that a clone comes from.
//! - `partial`: which sectors lie apart from the rest of their block.
//! - `warm`, `readahead`, `ahead`, `hot`: what to fetch before anybody needs it.
//!
//! Every GET of data and of the map goes through here, with bounded memory and at the priority of who waits for it. Nothing
//! here writes to the store but the runs of the map.

mod ahead;
mod flights;
mod foreign;
mod forward;
mod frames;
mod hot;
mod link;
mod moved;
mod origins;
mod partial;
mod pool;
mod readahead;
mod reader;
mod runs;
mod to_send;
mod warm;
mod window;

pub use ahead::{Ahead, STEP_MAPPINGS};
pub use flights::AheadCounts;
pub use forward::{ForwardSource, Forwarding, Refreshed};
pub use frames::{DecodedCounts, FrameReader, MOVE_GAP_BYTES, entry_key};
pub use hot::HotParts;
pub use link::LinkEstimate;
pub use origins::{OriginParts, Origins};
pub use partial::{PartialBlock, partial_blocks};
pub use pool::PrefetchTask;
pub use reader::{ObjectReader, ObjectRef, Prefetch};
pub use runs::StoredRuns;
pub use warm::{WARM_FETCHES, WARM_STEP_TIME, WarmStep, map_fetches, warm_step};
