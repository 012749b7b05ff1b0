//! Mutants of snapshots: what they hold, what is told to have changed since.

use super::{Change, Mutant, test, themed};

const COMMITTED: &str = "crates/cistern-engine/src/log/committed.rs";
const MERGE: &str = "crates/cistern-engine/src/map/merge.rs";
const OPEN: &str = "crates/cistern-engine/src/volume/open.rs";
const POINTS: &str = "crates/cistern-engine/src/upkeep/points.rs";
const READ: &str = "crates/cistern-engine/src/volume/read.rs";
const RUNS: &str = "crates/cistern-engine/src/map/runs.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "held-blocks-are-free",
        promise: "P7",
        story: "what only a snapshot sees counts as dead",
        changes: &[Change {
            file: MERGE,
            old: "part.len, above.over, &self.bases.snapshots);",
            new: "part.len, above.over, &[]);",
        }],
        test: test("-p cistern-engine --test map_model", ""),
        simulation: themed("snapshots", 20),
    },
    Mutant {
        name: "versions-stand-for-themselves-alone",
        promise: "P7",
        story: "a merge forgets when what it dropped had lost its place, and a later snapshot holds it",
        changes: &[Change {
            file: MERGE,
            old: "front.push(Version { over: lost.over, ..above.slice(part) });",
            new: "front.push(above.slice(part));",
        }],
        test: test("-p cistern-engine --test map_model", ""),
        simulation: None,
    },
    Mutant {
        name: "holes-go-under-snapshots",
        promise: "P4",
        story: "a merge drops a hole that is younger than a snapshot: a difference misses the discard",
        changes: &[Change {
            file: MERGE,
            old: "self.bases.oldest.is_some_and(|oldest| oldest < hole.birth)",
            new: "self.bases.oldest.is_some_and(|_| false)",
        }],
        test: test("-p cistern-engine --test map_model", ""),
        simulation: None,
    },
    Mutant {
        name: "a-snapshot-freezes-nothing",
        promise: "P4",
        story: "the table is not frozen where a snapshot is: its root has what was written behind it",
        changes: &[Change {
            file: POINTS,
            old: "let makes = operations.iter().any(Operation::makes);",
            new: "let makes = false;",
        }],
        test: test("-p cistern-engine --test volume_snapshots", "a_snapshot_stays_as_it_was"),
        simulation: themed("snapshots", 20),
    },
    Mutant {
        name: "operations-behind-the-checkpoint-are-lost",
        promise: "P1",
        story: "who opens a volume does not apply the operations that the newest checkpoint does not cover",
        changes: &[Change {
            file: COMMITTED,
            old: "let operations = segment.operations.iter();",
            new: "let operations = segment.operations.iter().take(0);",
        }],
        test: test("-p cistern-engine --test volume_snapshots", "a_snapshot_stays_as_it_was"),
        simulation: themed("snapshots", 20),
    },
    Mutant {
        name: "operations-in-the-journal-are-lost",
        promise: "P1",
        story: "a crash forgets a snapshot that was acknowledged and is in the journal alone",
        changes: &[Change {
            file: OPEN,
            old: "operations.iter().for_each(|operation| acknowledged.apply(operation, NOT_COMMITTED, size_bytes));",
            new: "",
        }],
        test: test(
            "-p cistern-engine --test volume_snapshots",
            "a_snapshot_outlives_a_crash_without_a_store",
        ),
        simulation: None,
    },
    Mutant {
        name: "dirty-data-is-unchanged",
        promise: "P4",
        story: "what is not committed is called clean in a snapshot's bitmap",
        changes: &[Change {
            file: READ,
            old: "fn of_data(&self) -> bool {\n        true",
            new: "fn of_data(&self) -> bool {\n        false",
        }],
        test: test("-p cistern-engine --test volume_changes", "nothing_that_changed_is_missed"),
        simulation: None,
    },
    Mutant {
        name: "differences-pass-over-too-much",
        promise: "P4",
        story: "a difference skips a part of a run in which something was written just behind the snapshot",
        changes: &[Change {
            file: RUNS,
            old: "if entry.birth_max <= since {",
            new: "if entry.birth_max.0 <= since.0.saturating_add(1) {",
        }],
        test: test("-p cistern-engine --test volume_changes", "changes_are_what_was_written_or_discarded"),
        simulation: None,
    },
];
