//! The rows of `cistern status` about the space a volume takes in its store.

use cistern_engine::volume::SpaceStatus;

use crate::quantity::ByteSize;

/// What it takes, what the cleaner did, and why deletes are refused where they are.
pub fn rows(space: &SpaceStatus) -> Vec<(&'static str, String)> {
    let mut rows = vec![("space", taken(space)), ("cleaned", cleaned(space))];
    rows.extend(space.deletes_refused.iter().map(|why| ("not deleted", format!("tried again: {why}"))));
    rows
}

fn taken(space: &SpaceStatus) -> String {
    let mut parts = match &space.segments {
        Some(known) => vec![format!(
            "{} live, {} garbage{}",
            ByteSize(known.live_bytes),
            ByteSize(known.garbage_bytes),
            ratio(space)
        )],
        None => vec!["what is live is not known yet".to_owned()],
    };
    let some = |bytes: u64, what: &str| (bytes > 0).then(|| format!("{} {what}", ByteSize(bytes)));
    parts.extend(some(space.uncovered_bytes, "not counted yet"));
    parts.extend(some(space.vacated_bytes, "vacated"));
    parts.extend(some(space.billed_garbage_bytes, "of the garbage too young to save anything"));
    parts.extend(some(space.grace_bytes, "in grace"));
    parts.join(", ")
}

fn ratio(space: &SpaceStatus) -> String {
    match (space.ratio, space.bound) {
        (Some(ratio), Some(bound)) if space.bound_is_auto => {
            format!(" (ratio {ratio:.2} of {bound:.2}, automatic)")
        }
        (Some(ratio), Some(bound)) => format!(" (ratio {ratio:.2} of {bound})"),
        (Some(ratio), None) => format!(" (ratio {ratio:.2}, no bound)"),
        (None, _) => String::new(),
    }
}

fn cleaned(space: &SpaceStatus) -> String {
    let counters = &space.counters;
    let (moved, deleted) = (ByteSize(counters.moved_bytes), ByteSize(counters.deleted_bytes));
    let amplification = space.write_amplification.map(|all| format!(", write amplification {all:.2}"));
    format!("{moved} moved, {deleted} deleted{} since it was opened", amplification.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use cistern_engine::{space::SpaceCounters, volume::SegmentsStatus};

    use super::*;

    /// A volume that knows its counts says what it takes and what that cost; one that does not says so, and pretends nothing.
    #[test]
    fn space_in_two_lines() {
        let mut space = SpaceStatus {
            segments: Some(SegmentsStatus {
                segments: 9,
                stored_bytes: 13 << 20,
                live_bytes: 10 << 20,
                garbage_bytes: 3 << 20,
            }),
            uncovered_bytes: 0,
            vacated_bytes: 0,
            billed_garbage_bytes: 1 << 20,
            grace_objects: 2,
            grace_bytes: 4 << 20,
            deletes_refused: Some("locked".to_owned()),
            ratio: Some(1.3),
            bound: Some(1.3),
            bound_is_auto: false,
            overwrites_per_month: 0.0,
            counters: SpaceCounters { moved_bytes: 6 << 20, ..SpaceCounters::default() },
            map_bytes: 0,
            write_amplification: Some(1.5),
        };
        let told = [
            (
                "space",
                "10 MiB live, 3 MiB garbage (ratio 1.30 of 1.3), 1 MiB of the garbage too young to save anything, 4 MiB in grace",
            ),
            ("cleaned", "6 MiB moved, 0 bytes deleted, write amplification 1.50 since it was opened"),
            ("not deleted", "tried again: locked"),
        ];
        assert_eq!(rows(&space), told.map(|(name, value)| (name, value.to_owned())));
        space = SpaceStatus { bound: Some(1.2699), bound_is_auto: true, ..space };
        assert!(rows(&space)[0].1.contains("(ratio 1.30 of 1.27, automatic)"));
        space = SpaceStatus { segments: None, ratio: None, write_amplification: None, ..space };
        space = SpaceStatus { billed_garbage_bytes: 0, grace_bytes: 0, ..space };
        assert_eq!(rows(&space)[0].1, "what is live is not known yet");
        assert_eq!(rows(&space)[1].1, "6 MiB moved, 0 bytes deleted since it was opened");
    }
}
