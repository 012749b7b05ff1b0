//! Mutants of the stores.

use super::{Change, Mutant, test};

const WRITE: &str = "crates/cistern-engine/src/store/directory/write.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "directory-names-are-not-synced",
        promise: "P2",
        story: "a power cut takes the name of an object that a directory store has confirmed",
        changes: &[Change {
            file: WRITE,
            old: "root.synced(path, dir.sync_all())",
            new: "root.synced(path, Ok(drop(dir)))",
        }],
        test: test("-p cistern --test power_cut", "what_a_put_confirmed"),
        simulation: None,
    },
    Mutant {
        name: "directory-objects-are-not-synced",
        promise: "P2",
        story: "a power cut empties an object that a directory store has confirmed",
        changes: &[Change {
            file: WRITE,
            old: "        temp.file.sync_all().map_err(|e| failed(&e))?;\n",
            new: "",
        }],
        test: test("-p cistern --test power_cut", "what_a_put_confirmed"),
        simulation: None,
    },
];
