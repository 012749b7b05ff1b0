//! Mutants of the stores.

use super::{Change, Mutant, test, themed};

const WRITE: &str = "crates/cistern-engine/src/store/directory/write.rs";
const RETRY: &str = "crates/cistern-engine/src/store/retry.rs";
const COMMITTED: &str = "crates/cistern-engine/src/log/committed.rs";
const CLAIM: &str = "crates/cistern-engine/src/log/claim.rs";
const UNLISTED: &str = "crates/cistern-engine/src/log/unlisted.rs";
const ADMIN: &str = "crates/cistern-engine/src/volume/admin.rs";
const LISTING: &str = "crates/cistern-engine/src/store/cloud/listing.rs";
const SORT: &str = "crates/cistern-engine/src/store/cloud/sort.rs";
const KEYS: &str = "crates/cistern-engine/src/store/cloud/keys.rs";
const SLOTS: &str = "crates/cistern-engine/src/log/slots.rs";
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
            old: "            if is_there(self.store.as_ref(), &key).await? {",
            new: "            if false && is_there(self.store.as_ref(), &key).await? {",
        }],
        test: test("-p cistern-engine --test volume_listings", "an_old_listing_is_no_proof"),
        simulation: None,
    },
    Mutant {
        name: "a-log-out-of-sight-is-an-empty-one",
        promise: "P2",
        story: "the directory of the log is out of sight, and the volume is opened as its checkpoint left it",
        changes: &[Change {
            file: COMMITTED,
            old: "    if !has_claim? {\n",
            new: "    if !has_claim? && false {\n",
        }],
        test: test(
            "-p cistern-engine --test volume_listings",
            "a_volume_that_is_out_of_sight_is_not_an_empty_one",
        ),
        simulation: None,
    },
    Mutant {
        name: "an-identity-alone-is-a-new-volume",
        promise: "P2",
        story: "all that a volume has is out of sight but its identity, and it is opened as an empty one",
        changes: &[Change {
            file: COMMITTED,
            old: "    if copy.is_some() {\n",
            new: "    if copy.is_some() || true {\n",
        }],
        test: test(
            "-p cistern-engine --test volume_listings",
            "a_volume_that_is_out_of_sight_is_not_an_empty_one",
        ),
        simulation: None,
    },
    Mutant {
        name: "the-rule-is-proven-behind-the-put",
        promise: "P2",
        story: "the store begins to overwrite, and a writer that was taken over replaces what its successor stored before it finds out",
        changes: &[Change {
            file: PRESENCE,
            old: "        if before != Before::Saying\n",
            new: "        if before == Before::Counting\n",
        }],
        test: test("-p cistern-engine --test volume_gone", "who_was_taken_over_overwrites_nothing"),
        simulation: None,
    },
    Mutant {
        name: "a-claim-is-put-before-the-rule-is-proven",
        promise: "P2",
        story: "the store overwrites, and who opens a volume that is being written replaces what its writer stored meanwhile",
        changes: &[Change {
            file: CLAIM,
            old: "        refuse_if_overwriting(stores).await?;\n        let put",
            new: "        let put",
        }],
        test: None,
        simulation: themed("overwriting", 20),
    },
    Mutant {
        name: "a-listing-is-never-asked-for-again",
        promise: "P9",
        story: "a volume that was made seconds ago is refused, because a listing does not show it yet",
        changes: &[Change {
            file: UNLISTED,
            old: "        if !patience.wait(env).await {",
            new: "        if true || !patience.wait(env).await {",
        }],
        test: None,
        simulation: themed("old-listings", 20),
    },
    Mutant {
        name: "a-cut-listing-is-complete",
        promise: "P4",
        story: "a page that says that there is more, and not how to get it, is taken for the last one",
        changes: &[Change {
            file: LISTING,
            old: "            (None, PageEnd::Nothing) => false,\n",
            new: "            (None, PageEnd::Nothing | PageEnd::More) => false,\n",
        }],
        test: test("-p cistern-engine --test store_wire", "a_cut_listing_goes_on"),
        simulation: None,
    },
    Mutant {
        name: "what-the-log-names-is-not-asked-for",
        promise: "P6",
        story: "an entry of the log names a newer checkpoint than any that is listed, and the state of an older one is shown, or called damaged",
        changes: &[Change {
            file: COMMITTED,
            old: "        self.told.is_some_and(|told| Some(told) > ours",
            new: "        self.told.is_some_and(|told| Some(told) < ours",
        }],
        test: test("-p cistern-engine --test volume_listings", "the_newest_state_is_found_by_name"),
        simulation: None,
    },
    Mutant {
        name: "no-checkpoint-is-a-new-volume",
        promise: "P6",
        story: "a volume of which no checkpoint is listed is opened as the empty one that is left of its log",
        changes: &[Change {
            file: COMMITTED,
            old: "    if !is_there(store, keys::PROOF).await? {",
            new: "    if true || !is_there(store, keys::PROOF).await? {",
        }],
        test: test("-p cistern-engine --test volume_listings", "checkpoints_that_are_not_listed_are_missed"),
        simulation: None,
    },
    Mutant {
        name: "the-newest-secret-is-the-listed-one",
        promise: "P6",
        story: "an old listing has the secret that was replaced, and the one that replaced it is not looked for",
        changes: &[Change {
            file: UNLISTED,
            old: "            true => numbers.push(next),",
            new: "            true => return Ok(numbers),",
        }],
        test: test("-p cistern-engine --test volume_listings", "a_new_secret_is_found_by_its_name"),
        simulation: None,
    },
    Mutant {
        name: "nothing-listed-is-nothing-left",
        promise: "P7",
        story: "a store hides what a volume has, and its removal is called done",
        changes: &[Change {
            file: ADMIN,
            old: "    require_listed(env, store.as_ref(), keys::VOLUME).await?;\n",
            new: "",
        }],
        test: test("-p cistern-engine --test volume_listings", "a_place_that_is_not_listed_is_refused"),
        simulation: None,
    },
    Mutant {
        name: "the-end-of-the-log-is-believed",
        promise: "P4",
        story: "a listing of the log that is cut and calls itself complete is taken for the whole log",
        changes: &[Change {
            file: SLOTS,
            old: "    for batch in 0..BATCHES_MAX {",
            new: "    for batch in 0..BATCHES_MAX {\n        return Ok(out);",
        }],
        test: test("-p cistern --test adversary", "no_verb_believes_a_wrong_answer"),
        simulation: None,
    },
    Mutant {
        name: "what-is-not-named-is-deleted",
        promise: "P7",
        story: "an answer to a bulk deletion counts for objects that it does not name",
        changes: &[Change {
            file: SORT,
            old: "keys.iter().find(|key| !told.contains(key.as_str()))",
            new: "keys.iter().find(|key| told.is_empty() && !told.contains(key.as_str()))",
        }],
        test: test("-p cistern-engine --test store_deletes", "an_answer_about_something_else_is_none"),
        simulation: None,
    },
    Mutant {
        name: "a-refusal-ends-a-read",
        promise: "P9",
        story: "a file system on a served volume is told EIO while the keys of its store have expired",
        changes: &[Change {
            file: RETRY,
            old: "Some(Err(StoreError::Refused(last))) if self.ride_out.is_on() => {",
            new: "Some(Err(StoreError::Refused(last))) if self.ride_out.is_on() && last.is_empty() => {",
        }],
        test: test("-p cistern-engine --test store_wrappers", "reads_of_a_served_volume_ride_out_refusals"),
        simulation: None,
    },
    Mutant {
        name: "refused-keys-are-kept",
        promise: "P9",
        story: "keys that the store refuses are used until their time is over",
        changes: &[Change {
            file: KEYS,
            old: "now < held.renew_at && !self.doubt.is_about(held.fetched_at, now)",
            new: "now < held.renew_at",
        }],
        test: test("-p cistern-engine --test store_keys", "refused_keys_are_looked_up_again_at_once"),
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
