//! Mutants of the log and of write-back: order, fence, claim.

use super::{Change, Mutant, seeds, test, themed};

const APPEND: &str = "crates/cistern-engine/src/log/append.rs";
const WALK: &str = "crates/cistern-engine/src/log/walk.rs";
const CLAIM: &str = "crates/cistern-engine/src/log/claim.rs";
const PRESENCE: &str = "crates/cistern-engine/src/log/presence.rs";
const COMMITTED: &str = "crates/cistern-engine/src/log/committed.rs";
const WRAPPING: &str = "crates/cistern-engine/src/log/wrapping.rs";
const PUBLISH: &str = "crates/cistern-engine/src/log/publish.rs";
const FLOW: &str = "crates/cistern-engine/src/writeback/flow.rs";
const PACK: &str = "crates/cistern-engine/src/writeback/pack.rs";
const POLICY: &str = "crates/cistern-engine/src/writeback/policy.rs";
const OPEN: &str = "crates/cistern-engine/src/volume/open.rs";
const CLOSE: &str = "crates/cistern-engine/src/volume/close.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "commits-out-of-order",
        promise: "P2",
        story: "of two segments on their way the later one is committed first",
        changes: &[Change {
            file: PUBLISH,
            old: "            let front = async {\n",
            new: "            if self.window.len() >= 2 {\n                self.window.swap(0, 1);\n            }\n            \
                  let front = async {\n",
        }],
        test: None,
        simulation: seeds(20),
    },
    Mutant {
        name: "what-counts-is-offered-again",
        promise: "P7",
        story: "what readers count behind a lost slot is stored again, and where it lies it counts as needless",
        changes: &[Change {
            file: PUBLISH,
            old: "if is_next(&entry, self.mark) => Resolution::Committed(entry),",
            new: "if is_next(&entry, self.mark) && !(entry.is_moved() && *expected != self.mark) => {\n                \
                  Resolution::Committed(entry)\n            }",
        }],
        test: test("-p cistern-engine --lib", "log::publish_tests::what_counts_behind_a_lost_slot"),
        simulation: None,
    },
    Mutant {
        name: "a-refused-slot-stays-open",
        promise: "P2",
        story: "what comes behind an entry that found no room is committed, and no reader gets there",
        changes: &[Change {
            file: PUBLISH,
            old: "Appended::NoRoom(refusal) => self.fill(seq, &entry, refusal).await?,",
            new: "Appended::NoRoom(refusal) => Appended::NoRoom(refusal),",
        }],
        test: test("-p cistern-engine --lib", "log::publish_tests::what_finds_no_room_comes_back"),
        simulation: themed("quota", 20),
    },
    Mutant {
        name: "a-late-put-is-a-copy",
        promise: "P9",
        story: "a put that was refused for lack of room and arrives all the same is taken for another writer's",
        changes: &[Change {
            file: PUBLISH,
            old: "            earlier: Some(&refused.sealed().body),",
            new: "            earlier: Some(&refused.sealed().body).filter(|body| body.is_empty()),",
        }],
        test: test("-p cistern-engine --lib", "log::publish_tests::what_was_refused_and_arrives_later"),
        simulation: None,
    },
    Mutant {
        name: "fence-is-ignored",
        promise: "P5",
        story: "a writer goes on behind the claim that fences it",
        changes: &[Change {
            file: APPEND,
            old: "        if head.epoch > *epoch {",
            new: "        if head.epoch.0 == u64::MAX {",
        }],
        test: test("-p cistern-engine --test volume", "a_second_host_is_refused"),
        simulation: themed("take-overs", 20),
    },
    Mutant {
        name: "holder-is-not-checked",
        promise: "P5",
        story: "a second host opens a volume that is in use",
        changes: &[Change {
            file: CLAIM,
            old: "    if own_crash || request.take_over {",
            new: "    if own_crash || request.take_over || true {",
        }],
        test: test("-p cistern-engine --test volume", "a_second_host_is_refused"),
        simulation: themed("calm", 20),
    },
    Mutant {
        name: "claims-are-not-named",
        promise: "P5",
        story: "a copy of a state directory takes the volume back from whoever claimed it since",
        changes: &[Change {
            file: CLAIM,
            old: "    if is_own || request.take_over {",
            new: "    if is_own || request.take_over || true {",
        }],
        test: test("-p cistern-engine --test volume_copies", "a_claim_is_its_own_copys_alone"),
        simulation: themed("clones", 100),
    },
    Mutant {
        name: "claims-are-put-first",
        promise: "P5",
        story: "a host does not know its own claim after a crash",
        changes: &[Change {
            file: OPEN,
            old: "        journal.keep_claims(attempt.claims().to_vec()).await?;\n        \
                  if let Some(claimed) = attempt.put(&o.env, &o.stores, keys).await? {",
            new: "        let claims = attempt.claims().to_vec();\n        \
                  if let Some(claimed) = attempt.put(&o.env, &o.stores, keys).await? {\n            \
                  journal.keep_claims(claims).await?;",
        }],
        test: test("-p cistern-engine --test volume_copies", "a_host_knows_its_claim"),
        simulation: themed("crashes", 100),
    },
    Mutant {
        name: "copies-are-not-noticed",
        promise: "P2",
        story: "a copy of a writer counts what it puts into a slot that the other one has filled and emptied",
        changes: &[Change {
            file: PRESENCE,
            old: "            Before::Counting => Some(self.grace / 3 * 2),",
            new: "            Before::Counting => Some(self.grace * 2),",
        }],
        test: test("-p cistern-engine --lib", "log::emptied_tests::a_slept_copy_is_told"),
        simulation: None,
    },
    Mutant {
        name: "claims-hold-in-emptied-slots",
        promise: "P5",
        story: "a slow claim to a slot that was filled and emptied meanwhile makes a second writer",
        changes: &[Change {
            file: CLAIM,
            old: "        let is_behind = committed.is_behind(&names);",
            new: "        let is_behind = false && committed.is_behind(&names);",
        }],
        test: test("-p cistern-engine --lib", "log::emptied_tests::a_slow_claim_in_an_emptied_slot"),
        simulation: None,
    },
    Mutant {
        name: "emptied-slots-end-the-log",
        promise: "P2",
        story: "who reads slowly takes a slot that was emptied meanwhile for the end of the log",
        changes: &[Change {
            file: COMMITTED,
            old: "    if committed.is_behind(&names) || committed.is_told_of_another() {",
            new: "    if walked.is_err() && (committed.is_behind(&names) || committed.is_told_of_another()) {",
        }],
        test: test("-p cistern-engine --lib", "log::emptied_tests::a_log_that_is_cleaned_while_it_is_read"),
        simulation: None,
    },
    Mutant {
        name: "foreign-journal-is-merged",
        promise: "P5",
        story: "the journal of a fenced writer is replayed into its successor's history",
        changes: &[Change { file: CLAIM, old: "if !is_last && local.is_empty() {", new: "if !is_last {" }],
        test: test("-p cistern-engine --test volume", "a_second_host_is_refused"),
        simulation: themed("take-overs", 20),
    },
    Mutant {
        name: "late-secrets-come-back",
        promise: "P6",
        story: "the late put of a change of the secret that came to nothing replaces the secret that holds",
        changes: &[Change {
            file: WRAPPING,
            old: "    if store.put_if_absent(&name, readable(wrapping)?).await? == Put::Created {\n        return Ok(false);",
            new: "    if store.put(&name, readable(wrapping)?).await.is_ok() {\n        return Ok(false);",
        }],
        test: None,
        simulation: themed("rekeyed", 40),
    },
    Mutant {
        name: "walk-ignores-epochs",
        promise: "P5",
        story: "a late segment of an epoch that is over counts where its range fits",
        changes: &[Change {
            file: WALK,
            old: "Entry::Segment(footer) if head.epoch == self.epoch && self.is_held()",
            new: "Entry::Segment(footer) if self.is_held()",
        }],
        test: test("-p cistern-engine --lib", "log::walk::tests::a_late_segment_that_fits"),
        simulation: None,
    },
    Mutant {
        name: "walk-ignores-ranges",
        promise: "P2",
        story: "a segment counts although what should precede it is missing",
        changes: &[Change {
            file: WALK,
            old: "range.from == self.mark() =>",
            new: "range.from.pos >= JournalPos(0) =>",
        }],
        test: test("-p cistern-engine --lib", "log::walk::tests::a_late_object_in_the_window"),
        simulation: themed("stragglers", 120),
    },
    Mutant {
        name: "committed-before-stored",
        promise: "P2",
        story: "a put that failed counts as an upload",
        changes: &[Change {
            file: APPEND,
            old: "                Err(e) => Err(e),\n            };\n            match answer",
            new: "                Err(_) => Ok(Appended::Ours),\n            };\n            match answer",
        }],
        test: None,
        simulation: seeds(40),
    },
    Mutant {
        name: "journal-freed-before-commit",
        promise: "P1",
        story: "journal space comes back when a segment is sealed, not when it is stored",
        changes: &[Change {
            file: FLOW,
            old: "        self.size_bytes = range.size_bytes;",
            new: "        self.parts.journal.free(to.pos);\n        self.size_bytes = range.size_bytes;",
        }],
        test: None,
        simulation: seeds(20),
    },
    Mutant {
        name: "holes-are-not-uploaded",
        promise: "P2",
        story: "trimmed ranges stay what they were in the store",
        changes: &[Change {
            file: PACK,
            old: "            BlockSource::Zero { allocated } => {\n",
            new: "            BlockSource::Zero { allocated: false } => {}\n            \
                  BlockSource::Zero { allocated } => {\n",
        }],
        test: None,
        simulation: seeds(20),
    },
    Mutant {
        name: "resizes-are-not-uploaded",
        promise: "P2",
        story: "segments carry the size of the day the volume was made",
        changes: &[Change {
            file: FLOW,
            old: "                    size_bytes = new;",
            new: "                    let _ = new;",
        }],
        test: test("-p cistern-engine --test volume", "resizing_keeps_what_remains"),
        simulation: seeds(150),
    },
    Mutant {
        name: "age-bound-is-ignored",
        promise: "P2",
        story: "a little dirty data waits for company for ever",
        changes: &[Change {
            file: POLICY,
            old: "s.dirty_age_max * SEAL_AGE_SHARE.0 / SEAL_AGE_SHARE.1;",
            new: "s.dirty_age_max * SEAL_AGE_SHARE.0 * 100_000 / SEAL_AGE_SHARE.1;",
        }],
        test: test("-p cistern-engine --lib", "writeback::policy::tests::seals_when_full_old_or_wanted"),
        simulation: themed("take-overs", 100),
    },
    Mutant {
        name: "release-with-dirty-data",
        promise: "P5",
        story: "a volume is released although not everything is in the store",
        changes: &[Change {
            file: CLOSE,
            old: "        let finished = match (drained.and(stopped), journal_closed) {",
            new: "        let _ = drained;\n        let finished = match (stopped, journal_closed) {",
        }],
        test: None,
        simulation: themed("crashes", 100),
    },
];
