//! What became of space since a volume was opened: counters that only grow.

use serde::{Deserialize, Serialize};

/// Bytes are those of whole objects, unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceCounters {
    /// Segments of what clients wrote, committed.
    pub written_bytes: u64,
    /// Segments of what the cleaner moved, committed.
    pub moved_bytes: u64,
    /// The data of clients in them, as it was before compression.
    pub moved_data_bytes: u64,
    /// Checkpoints, and the accounts of space.
    pub checkpoint_bytes: u64,
    /// Segments that the cleaner vacated.
    pub vacated_segments: u64,
    /// Orphans that a sweep found, to be retired.
    pub swept_objects: u64,
    pub swept_bytes: u64,
    /// What had been retired and is not in the store any more.
    pub deleted_objects: u64,
    pub deleted_bytes: u64,
}
