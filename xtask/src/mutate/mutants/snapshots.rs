//! Mutants of snapshots: what they hold, what is told to have changed since.

use super::{Change, Mutant, test, themed};

const CLEANER: &str = "crates/cistern-engine/src/cleaner/round.rs";
const COMMITTED: &str = "crates/cistern-engine/src/log/committed.rs";
const DEAD: &str = "crates/cistern-engine/src/map/dead.rs";
const FORWARD: &str = "crates/cistern-engine/src/fetch/forward.rs";
const HOLDINGS: &str = "crates/cistern-engine/src/upkeep/holdings.rs";
const LIMITS: &str = "crates/cistern-engine/src/snapshot/limits.rs";
const MAP: &str = "crates/cistern-engine/src/map.rs";
const MERGE: &str = "crates/cistern-engine/src/map/merge.rs";
const OPEN: &str = "crates/cistern-engine/src/volume/open.rs";
const POINTS: &str = "crates/cistern-engine/src/upkeep/points.rs";
const READ: &str = "crates/cistern-engine/src/volume/read.rs";
const ROOTS: &str = "crates/cistern-engine/src/log/roots.rs";
const RUNS: &str = "crates/cistern-engine/src/map/runs.rs";
const SEEN: &str = "crates/cistern-engine/src/cleaner/seen.rs";
const SPACE: &str = "crates/cistern-engine/src/space.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "held-blocks-are-free",
        promise: "P7",
        story: "what only a snapshot sees counts as dead",
        changes: &[Change {
            file: MERGE,
            old: "self.dead.lose(&lost.mapping.slice(part), above.over, &self.bases.snapshots);",
            new: "self.dead.lose(&lost.mapping.slice(part), above.over, &[]);",
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
    Mutant {
        name: "versions-are-left-behind",
        promise: "P7",
        story: "the cleaner moves what the volume sees, and leaves behind what only snapshots see",
        changes: &[Change {
            file: CLEANER,
            old: "looked[victims[of]].seen.push(seen);",
            new: "let _ = (of, seen, &mut *looked);",
        }],
        test: test("-p cistern-engine --test volume_forward", "snapshots_show_what_was_moved"),
        simulation: themed("snapshots", 20),
    },
    Mutant {
        name: "the-first-snapshot-holds-for-all",
        promise: "P7",
        story: "what was moved for several snapshots goes with the first of them",
        changes: &[Change {
            file: SEEN,
            old: "last: self.roots[part.last].0",
            new: "last: self.roots[part.first].0",
        }],
        test: test(
            "-p cistern-engine --test volume_forward",
            "what_was_moved_goes_with_the_last_snapshot_that_sees_it",
        ),
        simulation: None,
    },
    Mutant {
        name: "nothing-is-forwarded",
        promise: "P4",
        story: "a snapshot does not find what was moved",
        changes: &[Change {
            file: HOLDINGS,
            old: "self.table.forwards.push(forward);",
            new: "drop(forward);",
        }],
        test: test("-p cistern-engine --test volume_forward", "snapshots_show_what_was_moved"),
        simulation: themed("snapshots", 20),
    },
    Mutant {
        name: "forwards-go-early",
        promise: "P4",
        story: "a forwarded segment is forgotten when the snapshot at its birth is gone",
        changes: &[Change {
            file: ROOTS,
            old: "SeenBy::within(positions, since..self.until)",
            new: "SeenBy::within(positions, since..since.next())",
        }],
        test: test("-p cistern-engine --test volume_forward", "snapshots_show_what_was_moved"),
        simulation: None,
    },
    Mutant {
        name: "moved-versions-are-held-from-the-move",
        promise: "P7",
        story: "a snapshot that is older than a move does not hold what it finds there",
        changes: &[Change { file: DEAD, old: "lost.birth..at", new: "frame.seq..at" }],
        test: test("-p cistern-engine --test map_model", ""),
        simulation: None,
    },
    Mutant {
        name: "late-moves-are-held-by-nobody",
        promise: "P7",
        story: "what was replaced while it was moved counts as dead, also where a snapshot made in between sees it",
        changes: &[Change {
            file: MAP,
            old: "table.lose(m, version::placed(m), snapshots)",
            new: "table.lose(m, version::placed(m), &[])",
        }],
        test: test("-p cistern-engine --test map_model", "a_snapshot_holds_what_was_moved_too_late"),
        simulation: None,
    },
    Mutant {
        name: "versions-are-told-by-their-block",
        promise: "P4",
        story: "a snapshot is shown another version of a block that was moved",
        changes: &[Change { file: FORWARD, old: "m.birth == wanted.birth && ", new: "" }],
        test: test("-p cistern-engine --lib", "versions_are_told_by_their_birth"),
        simulation: None,
    },
    Mutant {
        name: "readers-never-look-again",
        promise: "P7",
        story: "a reader of a snapshot does not learn what was moved since he opened it",
        changes: &[Change { file: FORWARD, old: "*self.state() = newer;", new: "drop(newer);" }],
        test: test("-p cistern-engine --test volume_forward", "snapshots_show_what_was_moved"),
        simulation: None,
    },
    Mutant {
        name: "what-is-new-is-gone",
        promise: "P7",
        story: "what a segment loses before the accounts know it counts as lost with a segment that is gone",
        changes: &[Change {
            file: HOLDINGS,
            old: "let is_there = segment > self.as_of || self.space.counts(segment);",
            new: "let is_there = self.space.counts(segment);",
        }],
        test: test("-p cistern-engine --test volume_forward", "snapshots_show_what_was_moved"),
        simulation: None,
    },
    Mutant {
        name: "kept-segments-are-not-spoken-for",
        promise: "P7",
        story: "what was moved for snapshots is retired before a checkpoint takes its round",
        changes: &[Change {
            file: SPACE,
            old: "let is_spoken_for = |seq: &Seq| kept.contains(seq)",
            new: "let is_spoken_for = |seq: &Seq| kept.len() == usize::MAX && kept.contains(seq)",
        }],
        test: test("-p cistern-engine --lib", "what_is_kept_for_snapshots_waits_for_its_round"),
        simulation: None,
    },
    Mutant {
        name: "one-copy-is-enough",
        promise: "P6",
        story: "the second object of the table of snapshots and of a root is not looked at",
        changes: &[Change {
            file: COMMITTED,
            old: "let found = read_roots_object(store, keys, second).await;",
            new: "let found = read_roots_object(store, keys, first).await;",
        }],
        test: test("-p cistern-engine --test volume_damage", "what_leads_to_snapshots_lies_twice"),
        simulation: None,
    },
    Mutant {
        name: "a-receive-needs-no-row",
        promise: "P4",
        story: "a receive is begun where the table is full: it is acknowledged, and no writer opens the volume any more",
        changes: &[Change {
            file: LIMITS,
            old: "TableSize { rows: 1 + FILLING.rows, bytes: ROW_BYTES + HIDDEN_NAME_BYTES + FILLING.bytes }",
            new: "TableSize::default()",
        }],
        test: test("-p cistern-engine --lib", "no_operation_makes_a_table_that_nobody_reads"),
        simulation: None,
    },
    Mutant {
        name: "what-nobody-reads-is-stored",
        promise: "P4",
        story: "a table of snapshots that every reader refuses is stored by a release build",
        changes: &[Change {
            file: ROOTS,
            old: "    if !content.is_valid() {",
            new: "    if false && !content.is_valid() {",
        }],
        test: test("-p cistern-engine --test format_checkpoint", "what_no_reader_takes_is_not_made"),
        simulation: None,
    },
];
