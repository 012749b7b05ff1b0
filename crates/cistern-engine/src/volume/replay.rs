//! What counts in the log behind a checkpoint, put into the map as when it was committed.

use crate::{
    Result,
    log::AppliedSegment,
    map::Map,
    segment::Content,
    snapshot::{Operation, Snapshots},
};

/// Puts what counts behind a checkpoint into the map, and freezes its table at every snapshot, as when that was committed.
pub(super) async fn replay(map: &Map, applied: &[AppliedSegment], mut snapshots: Snapshots) -> Result<()> {
    for segment in applied {
        match segment.content {
            Content::Moved { base } => map.insert_moved(&segment.mappings, base).await?,
            Content::Kept { .. } => {}
            Content::Written { size_bytes, .. } => {
                map.insert(&segment.mappings);
                let operations = &segment.operations;
                operations.iter().for_each(|operation| snapshots.apply(operation, segment.seq, size_bytes));
                if !operations.is_empty() {
                    map.set_snapshots(snapshots.positions());
                    map.set_oldest_bookmark(snapshots.oldest_bookmark());
                }
                if operations.iter().any(Operation::makes) {
                    map.freeze(segment.seq);
                }
            }
        }
    }
    Ok(())
}
