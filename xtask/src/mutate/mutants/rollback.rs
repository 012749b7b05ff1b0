//! Mutants of rollbacks: what is kept of the state that is left, and what may be called one history.

use super::{Change, Mutant, test, themed};

const BRANCHES: &str = "crates/cistern-engine/src/log/branches.rs";
const HOLDINGS: &str = "crates/cistern-engine/src/upkeep/holdings.rs";
const LEFT: &str = "crates/cistern-engine/src/upkeep/left.rs";
const MAINTAIN: &str = "crates/cistern-engine/src/upkeep/maintain.rs";
const ORDER: &str = "crates/cistern-engine/src/volume/order.rs";
const ROLLBACK: &str = "crates/cistern-engine/src/volume/rollback.rs";
const ROOTS: &str = "crates/cistern-engine/src/log/roots.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a-rollback-trusts-one-checkpoint",
        promise: "P2",
        story: "the state that is left is in one checkpoint only when the volume is rolled back",
        changes: &[Change { file: ROLLBACK, old: "for _ in 0..2 {", new: "for _ in 0..1 {" }],
        test: test("-p cistern-engine --test volume_rollback", "a_damaged_checkpoint_undoes_no_rollback"),
        simulation: None,
    },
    Mutant {
        name: "who-writes-meanwhile-is-not-asked-for",
        promise: "P1",
        story: "what is written while a volume is about to be rolled back is lost, and was acknowledged",
        changes: &[Change {
            file: ROLLBACK,
            old: "if writer.core.is_shown_by(left) {",
            new: "if writer.core.is_shown_by(left) || !name.is_empty() {",
        }],
        test: test("-p cistern-engine --test volume_rollback", "who_writes_meanwhile_stops_a_rollback"),
        simulation: None,
    },
    Mutant {
        name: "any-snapshot-has-what-is-left",
        promise: "P1",
        story: "what is written while a volume is about to be rolled back is lost, where a snapshot of a schedule comes behind it",
        changes: &[Change {
            file: ORDER,
            old: ".any(|showing| showing == id)",
            new: ".any(|_| !id.0.is_nil())",
        }],
        test: test(
            "-p cistern-engine --test volume_rollback",
            "a_snapshot_behind_a_write_hides_it_from_no_rollback",
        ),
        simulation: None,
    },
    Mutant {
        name: "a-removed-snapshot-has-what-is-left",
        promise: "P1",
        story: "a volume is rolled back although the snapshot of what it showed was removed meanwhile; and a schedule passes over what was in a \
                snapshot that is gone",
        changes: &[Change {
            file: ORDER,
            old: "there.id == made.id && !there.is_bookmark",
            new: "there.id == made.id || !there.id.0.is_nil()",
        }],
        test: test("-p cistern-engine --test volume_snapshots", "what_no_snapshot_shows_is_a_change"),
        simulation: None,
    },
    Mutant {
        name: "what-is-composed-counts-as-stored",
        promise: "P7",
        story: "a flattened volume lets go of the snapshot that it went on from, before a checkpoint in the store does without it",
        changes: &[Change {
            file: MAINTAIN,
            old: "let descent = self.ancestry.next(&last.holdings.positions());",
            new: "let descent = self.ancestry.next(&last.holdings.positions());\n        self.ancestry.stored(descent.clone());\n        self.ancestry.stored(descent.clone());",
        }],
        test: test("-p cistern-engine --test volume_rollback", "what_no_checkpoint_says_is_not_over"),
        simulation: None,
    },
    Mutant {
        name: "a-rollback-does-not-keep-its-snapshot",
        promise: "P7",
        story: "the snapshot from which a volume goes on may be removed while the volume shares what it shows",
        changes: &[Change { file: ROOTS, old: "self.snapshots.apply(&keep, *at, 0);", new: "let _ = keep;" }],
        test: test("-p cistern-engine --test volume_rollback", "what_was_left_goes_with_its_snapshots"),
        simulation: themed("rolled-back", 30),
    },
    Mutant {
        name: "runs-of-what-was-left-are-forgotten",
        promise: "P7",
        story: "nobody knows that snapshots need the runs that a volume had before it was rolled back",
        changes: &[Change {
            file: ROOTS,
            old: "self.runs.extend(own.into_values()",
            new: "self.runs.extend(own.into_values().take(0)",
        }],
        test: test("-p cistern-engine --test volume_rollback", "a_damaged_checkpoint_undoes_no_rollback"),
        simulation: themed("rolled-back", 30),
    },
    Mutant {
        name: "what-was-left-is-held-from-its-segment-on",
        promise: "P7",
        story: "what the cleaner had moved before a rollback is held for the snapshots behind the move alone",
        changes: &[Change {
            file: LEFT,
            old: "_ => footer.mappings.iter().map(|mapping| mapping.birth).min().unwrap_or(segment),",
            new: "_ => segment,",
        }],
        test: None,
        simulation: themed("rolled-back", 60),
    },
    Mutant {
        name: "what-was-left-dies-twice",
        promise: "P7",
        story: "what a volume loses of before a rollback counts as dead although snapshots hold it",
        changes: &[Change {
            file: HOLDINGS,
            old: "let own = segments.split_off(from);",
            new: "let own = segments.split_off(&Seq(0));",
        }],
        test: None,
        simulation: themed("rolled-back", 60),
    },
    Mutant {
        name: "branches-are-one-history",
        promise: "P4",
        story: "a difference from a snapshot that a rollback left is taken for what was written since",
        changes: &[Change {
            file: BRANCHES,
            old: "(older, younger) = (older.min(branch.fork), older.max(branch.fork));",
            new: "let _ = branch.fork;\n        break;",
        }],
        test: test("-p cistern-engine --lib", "log::branches"),
        simulation: None,
    },
];
