//! What a volume that is open for writing shows of the space it takes.

use serde::{Deserialize, Serialize};

use crate::{
    space::{Shown, SpaceCounters, Totals},
    volume::{Volume, write::Writer},
};

/// The space of a volume in its store, as its accounts know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Absent until the counts of segments were read, some seconds after an opening.
    pub segments: Option<SegmentsStatus>,
    /// Bytes of segments behind the newest checkpoint: what of them is garbage is not known yet.
    pub uncovered_bytes: u64,
    /// Bytes of vacated segments, which wait for a checkpoint.
    pub vacated_bytes: u64,
    /// Bytes of garbage that the store bills whatever is done, because it is younger than its minimum duration: it does not
    /// count for the ratio.
    #[serde(default)]
    pub billed_garbage_bytes: u64,
    /// Retired, and not deleted yet.
    pub grace_objects: u64,
    pub grace_bytes: u64,
    /// Why objects are still in the store whose grace is over, if they are.
    pub deletes_refused: Option<String>,
    /// Stored bytes per live byte, by what is known and what is probable: what the cleaner goes by. Absent where nothing is
    /// live, or known.
    pub ratio: Option<f64>,
    /// The ratio that the cleaner lets be; absent where it lets be anything.
    pub bound: Option<f64>,
    /// Whether that is what is cheapest, by the prices and what was measured.
    #[serde(default)]
    pub bound_is_auto: bool,
    /// How often what is live is overwritten in a month, at the rate of the last day or so; until that is known, at the rate
    /// that is assumed.
    #[serde(default)]
    pub overwrites_per_month: f64,
    /// Since the volume was opened.
    pub counters: SpaceCounters,
    /// Bytes of runs of the map, written since then.
    pub map_bytes: u64,
    /// All bytes of segments, map and checkpoints since then, for each byte of segments of what clients wrote.
    pub write_amplification: Option<f64>,
}

/// The segments up to the newest checkpoint that are neither retired nor vacated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentsStatus {
    pub segments: u64,
    pub stored_bytes: u64,
    pub live_bytes: u64,
    /// The rest of them.
    pub garbage_bytes: u64,
}

impl From<Totals> for SegmentsStatus {
    fn from(totals: Totals) -> SegmentsStatus {
        let Totals { segments, stored_bytes, live_bytes, .. } = totals;
        let garbage_bytes = stored_bytes.saturating_sub(live_bytes);
        SegmentsStatus { segments, stored_bytes, live_bytes, garbage_bytes }
    }
}

impl Volume {
    /// Whether the store has so little room that what clients write waits, or soon will. `false` for one that only reads.
    pub async fn is_room_short(&self) -> bool {
        match &self.writer {
            Some(writer) => writer.log.is_room_short().await,
            None => false,
        }
    }
}

pub(super) fn space_status(writer: &Writer) -> SpaceStatus {
    let Shown {
        segments,
        ratio,
        bound,
        bound_is_auto,
        overwrites_per_month,
        uncovered_bytes,
        vacated_bytes,
        billed_garbage_bytes,
        grace_objects,
        grace_bytes,
        refused,
        counters,
    } = writer.space.shown();
    let map_bytes = writer.core.map.written_bytes();
    SpaceStatus {
        segments: segments.map(SegmentsStatus::from),
        uncovered_bytes,
        vacated_bytes,
        billed_garbage_bytes,
        grace_objects,
        grace_bytes,
        deletes_refused: refused,
        ratio,
        bound: bound.is_finite().then_some(bound),
        bound_is_auto,
        overwrites_per_month,
        counters,
        map_bytes,
        write_amplification: write_amplification(&counters, map_bytes),
    }
}

fn write_amplification(counters: &SpaceCounters, map_bytes: u64) -> Option<f64> {
    let SpaceCounters { written_bytes, moved_bytes, checkpoint_bytes, .. } = *counters;
    let all = written_bytes + moved_bytes + checkpoint_bytes + map_bytes;
    (written_bytes > 0).then(|| all as f64 / written_bytes as f64)
}
