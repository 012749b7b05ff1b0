//! Mutants of the stores.

use super::{Change, Mutant, test};

const WRITE: &str = "crates/cistern-engine/src/store/directory/write.rs";

const PRESENCE: &str = "crates/cistern-engine/src/log/presence.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "names-over-the-network-are-not-synced",
        promise: "P2",
        story: "the server behind sshfs loses its power, and with it the name of an object that a put has confirmed",
        changes: &[Change {
            file: WRITE,
            old: "        if !self.syncs_names {",
            new: "        if self.syncs_names {",
        }],
        test: test("-p cistern --test power_cut", "over_sshfs"),
        simulation: None,
    },
    Mutant {
        name: "an-old-listing-is-believed",
        promise: "P9",
        story: "a listing that lacks the newest object stops the volume for good, although the object is there",
        changes: &[Change {
            file: PRESENCE,
            old: "                Ok(_) => return Ok(()),\n                Err(StoreError::NotFound(_)) => {}",
            new: "                Ok(_) | Err(StoreError::NotFound(_)) => {}",
        }],
        test: test("-p cistern-engine --test volume_gone", "an_old_listing_is_no_proof"),
        simulation: None,
    },
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
