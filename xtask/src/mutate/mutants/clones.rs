//! Mutants of clones: what keeps what they need, and what they let go of.

use super::{Change, Mutant, test, themed};

const ANCESTRY: &str = "crates/cistern-engine/src/upkeep/ancestry.rs";
const CHECK: &str = "crates/cistern-engine/src/volume/check.rs";
const CLONES: &str = "crates/cistern-engine/src/volume/clones.rs";
const ORIGINS: &str = "crates/cistern-engine/src/fetch/origins.rs";
const SNAPSHOT: &str = "crates/cistern-engine/src/snapshot.rs";

const OPEN: &str = "crates/cistern/src/daemon/open.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "an-original-that-is-away-is-gone",
        promise: "P7",
        story: "a clone is deleted while its original is not mounted, and that keeps the snapshot for it for ever",
        changes: &[Change {
            file: CLONES,
            old: "Err(Error::NotFound(_) | Error::Invalid(_)) => return Err(away()),",
            new: "Err(Error::NotFound(_) | Error::Invalid(_)) => return Ok(None),",
        }],
        test: test("-p cistern --test remove", "a_clone_is_not_deleted"),
        simulation: None,
    },
    Mutant {
        name: "a-volume-is-made-where-one-was",
        promise: "P4",
        story: "serve --create makes an empty volume on the mount point of one that is not mounted",
        changes: &[Change {
            file: OPEN,
            old: "if volume.may_be_unmounted()\n",
            new: "if !volume.may_be_unmounted()\n",
        }],
        test: test("-p cistern --test gone", "no_volume_is_made"),
        simulation: None,
    },
    Mutant {
        name: "a-removed-snapshot-leaves-its-clones",
        promise: "P7",
        story: "a snapshot that is removed goes, although a clone of it reads it",
        changes: &[Change {
            file: SNAPSHOT,
            old: "if !removed.clones.is_empty() {",
            new: "if removed.clones.len() > CLONES_MAX {",
        }],
        test: test("-p cistern-engine --test volume_clones", "a_clone_outlives_what_its_source_does"),
        simulation: themed("cloned-volumes", 20),
    },
    Mutant {
        name: "flattening-forgets-older-snapshots",
        promise: "P7",
        story: "a flattened clone lets go of its origins while a snapshot of before shows what lies there",
        changes: &[Change {
            file: ANCESTRY,
            old: "shows.next().is_none_or(|oldest| *oldest > flattened)",
            new: "shows.next().is_none_or(|_| flattened >= Seq(0))",
        }],
        test: test("-p cistern-engine --test volume_clones", "a_flattened_clone_stands_by_itself"),
        simulation: None,
    },
    Mutant {
        name: "one-checkpoint-without-origins-is-enough",
        promise: "P7",
        story: "the volume that a clone was made of is told behind the one checkpoint without it: if that is damaged the one before it needs it",
        changes: &[Change {
            file: ANCESTRY,
            old: "const STORED_WITHOUT: u32 = 2;",
            new: "const STORED_WITHOUT: u32 = 1;",
        }],
        test: test("-p cistern-engine --lib", "upkeep::ancestry::tests::what_is_composed_is_not_stored"),
        simulation: None,
    },
    Mutant {
        name: "origins-of-origins-are-forgotten",
        promise: "P4",
        story: "a clone of a clone looks for everything in the volume that it was made of itself",
        changes: &[Change {
            file: CLONES,
            old: "let further = further.filter(is_further).map(",
            new: "let further = further.filter(is_further).take(0).map(",
        }],
        test: test("-p cistern-engine --test volume_clones", "each_shows_its_own"),
        simulation: themed("cloned-volumes", 20),
    },
    Mutant {
        name: "what-an-origin-moved-is-not-looked-for",
        promise: "P4",
        story: "what the volume moved that a clone was made of is missing for whoever opened the clone before",
        changes: &[Change {
            file: ORIGINS,
            old: "Err(Error::NotFound(_)) if frames.refresh().await?.is_some() => {",
            new: "Err(Error::NotFound(_)) if mappings.is_empty() => {",
        }],
        test: test("-p cistern-engine --test volume_clones", "a_clone_outlives_what_its_source_does"),
        simulation: themed("cloned-volumes", 20),
    },
    Mutant {
        name: "a-cloned-volume-may-be-removed",
        promise: "P7",
        story: "nobody asks whether there are clones of a volume before it is removed",
        changes: &[Change { file: CLONES, old: "[] => Ok(()),", new: "[] | [_] => Ok(())," }],
        test: test("-p cistern-engine --test volume_clones", "what_clones_need_is_not_removed"),
        simulation: None,
    },
    Mutant {
        name: "a-check-passes-what-a-clone-shares",
        promise: "P6",
        story: "an object of the volume that a clone was made of is gone, and the check of the clone finds no fault",
        changes: &[Change {
            file: CHECK,
            old: "(Place::Frame(_), true) => match self.theirs.fault(&of.frames, mapping).await {",
            new: "(Place::Frame(_), true) => match Ok::<Option<String>, Error>(None) {",
        }],
        test: test("-p cistern-engine --test volume_clones", "a_check_reads"),
        simulation: None,
    },
];
