//! Mutants of copies, backups and hooks: what goes before it may, and what counts though it should not.

use super::{Change, Mutant, test};

const COPYING: &str = "crates/cistern/src/cli/copying.rs";
const HOOKS: &str = "crates/cistern/src/cli/hooks.rs";
const MARKS: &str = "crates/cistern/src/cli/marks.rs";
const EARLIER: &str = "crates/cistern/src/cli/backup/earlier.rs";
const MAKING: &str = "crates/cistern/src/cli/backup/making.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a-backup-that-is-held-goes",
        promise: "P11",
        story: "a backup that somebody holds, or has cloned, is removed when the rules do not keep it",
        changes: &[Change {
            file: MARKS,
            old: ".filter(|snapshot| snapshot.holds.is_empty() && snapshot.clones.is_empty())",
            new: "",
        }],
        test: test("-p cistern --lib", "cli::marks::tests::what_the_rules_do_not_keep_goes"),
        simulation: None,
    },
    Mutant {
        name: "what-is-for-another-place-goes",
        promise: "P11",
        story: "a backup to one place removes on the volume what the backup to another place goes on from",
        changes: &[Change {
            file: MARKS,
            old: "name.strip_suffix(self.suffix.as_str()).filter(",
            new: "name.rsplit_once('.').map(|(name, _)| name).filter(",
        }],
        test: test("-p cistern --lib", "cli::marks::tests::what_belongs_to_others_stays"),
        simulation: None,
    },
    Mutant {
        name: "a-backup-is-not-read-back",
        promise: "P11",
        story: "what the store lost of a backup while it was made is not noticed",
        changes: &[Change {
            file: MAKING,
            old: "if let Some(damage) = verified.await.map_err(unverified)? {",
            new: "drop(verified); if let Some(damage) = None::<Failure> {",
        }],
        test: test("-p cistern --test backups", "what_the_store_lost_is_noticed_the_same_night"),
        simulation: None,
    },
    Mutant {
        name: "what-was-written-to-a-backup-goes",
        promise: "P11",
        story: "what somebody wrote to a backup is overwritten unasked",
        changes: &[Change {
            file: MAKING,
            old: "Some(newest) if volume.shows(newest).await? => {",
            new: "Some(_) => {",
        }],
        test: test("-p cistern --test backups", "what_is_not_a_backup_is_not_overwritten"),
        simulation: None,
    },
    Mutant {
        name: "a-copy-that-breaks-counts",
        promise: "P10",
        story: "of a copy that fails for good, half stays in the volume that it went into",
        changes: &[Change {
            file: COPYING,
            old: "return Err(opened.break_off(failure).await);",
            new: "opened.close().await?; return Err(failure.into());",
        }],
        test: test("-p cistern --test copy", "what_is_damaged_is_not_copied"),
        simulation: None,
    },
    Mutant {
        name: "an-unverified-backup-is-believed",
        promise: "P11",
        story: "a run that is killed before it read its backup back leaves one that nobody looks at",
        changes: &[Change {
            file: EARLIER,
            old: "self.verify(pair, left, opened, name, None, &parts.1).await?;",
            new: "left.settle(self.context, self.settings).await?;",
        }],
        test: test("-p cistern --test backups_resumed", "what_nobody_verified_is_verified_first"),
        simulation: None,
    },
    Mutant {
        name: "a-failed-hook-stops-nothing",
        promise: "P11",
        story: "the database did not go into its backup mode, and the snapshot is made all the same",
        changes: &[Change {
            file: HOOKS,
            old: "Failure { text, ..failure }\n                })?;",
            new: "Failure { text, ..failure }\n                }).ok();",
        }],
        test: test("-p cistern --test hooks", "a_hook_that_fails_leaves_no_snapshot"),
        simulation: None,
    },
];
