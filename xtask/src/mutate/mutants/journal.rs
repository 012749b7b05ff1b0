//! Mutants of the journal and of the local disk.

use super::{Change, Mutant, seeds, test, themed};

const WRITER: &str = "crates/cistern-engine/src/journal/writer.rs";
const STATE: &str = "crates/cistern-engine/src/journal/state.rs";
const RECOVER: &str = "crates/cistern-engine/src/journal/recover.rs";
const OUTLIVING: &str = "crates/cistern-engine/src/journal/state/outliving.rs";
const STAGING: &str = "crates/cistern-engine/src/journal/staging.rs";
const JOURNAL: &str = "crates/cistern-engine/src/journal.rs";
const OWNER: &str = "crates/cistern-engine/src/journal/owner.rs";
const OUTLIVE: &str = "crates/cistern-engine/src/journal/outlive.rs";

const FILE: &str = "crates/cistern-engine/src/disk/file.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a-full-disk-stops-the-volume",
        promise: "P9",
        story: "a write for which the disk of the journal has no room stops the volume for good",
        changes: &[Change {
            file: WRITER,
            old: "            Err(Error::Full(why)) => {\n                (self.unwritten",
            new: "            Err(Error::Full(why)) if why.is_empty() => {\n                (self.unwritten",
        }],
        test: test("-p cistern-engine --test journal_full", "a_write_without_room_waits"),
        simulation: themed("bad-disk", 20),
    },
    Mutant {
        name: "a-write-without-room-counts",
        promise: "P1",
        story: "a write that the disk took in part counts as written, and a flush succeeds behind it",
        changes: &[Change {
            file: WRITER,
            old: "            Err(Error::Full(why)) => {\n                (self.unwritten, self.lacks_room) = (Some(batch), true);\n                return self.run_short(why);\n            }",
            new: "            Err(Error::Full(_)) => {}",
        }],
        test: test("-p cistern-engine --test journal_full", "a_write_without_room_waits"),
        simulation: themed("bad-disk", 60),
    },
    Mutant {
        name: "what-finds-no-room-is-acknowledged",
        promise: "P9",
        story: "while nothing can be written, writes are acknowledged until the memory is full",
        changes: &[Change {
            file: STATE,
            old: "        if self.disk.shortage().is_some() {",
            new: "        if self.disk.shortage().is_some_and(|shortage| shortage.why.is_empty()) {",
        }],
        test: test("-p cistern-engine --test journal_full", "a_write_without_room_waits"),
        simulation: None,
    },
    Mutant {
        name: "a-reserved-journal-is-written-elsewhere",
        promise: "P9",
        story: "on btrfs the second lap of a journal needs space that was reserved for it and is gone",
        changes: &[Change { file: FILE, old: "        overwrite_in_place(&plain);\n", new: "" }],
        test: test("-p cistern --test full_disk", "a_reserved_journal_stays_reserved"),
        simulation: None,
    },
    Mutant {
        name: "staged-groups-are-not-looked-for",
        promise: "P3",
        story: "recovery ends where the ring does, and what was acknowledged and only staged is gone",
        changes: &[Change {
            file: RECOVER,
            old: "    found.staged.continuing(sb.journal, walked.head, chain, is_of_age)",
            new: "    found.staged.continuing(sb.journal, walked.head, chain, is_of_age).filter(|_| false)",
        }],
        test: test("-p cistern-engine --test journal_crash", "recovery_gives_a_prefix"),
        simulation: themed("crashes", 60),
    },
    Mutant {
        name: "a-piece-is-staged-over-one-in-use",
        promise: "P3",
        story: "the place of a staged group is used again before the group is in the ring",
        changes: &[Change {
            file: STAGING,
            old: "            () if end + blocks <= STAGED_BLOCKS_MAX => Some(end),",
            new: "            () if end + blocks <= STAGED_BLOCKS_MAX => Some(0),",
        }],
        test: test("-p cistern-engine --lib", "pieces_in_use_do_not_overlap"),
        simulation: None,
    },
    Mutant {
        name: "staging-begins-behind-a-gap",
        promise: "P3",
        story: "only the newest group is staged, and what was acknowledged with it lies behind a gap",
        changes: &[Change {
            file: OUTLIVING,
            old: "        let first = self.memory.partition_point(|group| group.start().0 < self.staged);\n        let groups: Vec<_>",
            new: "        let first = self.memory.len().saturating_sub(1).max(self.memory.partition_point(|group| group.start().0 < self.staged));\n        let groups: Vec<_>",
        }],
        test: test("-p cistern-engine --test journal_crash", "recovery_gives_a_prefix"),
        simulation: themed("crashes", 60),
    },
    Mutant {
        name: "journal-without-sync",
        promise: "P1",
        story: "the journal says that it is synced and never asks the disk",
        changes: &[Change { file: WRITER, old: "        self.shared.ring.file.sync().await?;\n", new: "" }],
        test: test("-p cistern-engine --test journal_crash", "recovery_gives_a_prefix"),
        simulation: seeds(20),
    },
    Mutant {
        name: "failed-sync-is-tried-again",
        promise: "P8",
        story: "a sync that failed is forgotten, and the next one succeeds",
        changes: &[Change {
            file: WRITER,
            old: "self.shared.ring.file.sync().await?;",
            new: "let _ = self.shared.ring.file.sync().await;",
        }],
        test: test("-p cistern-engine --test journal_behaviour", "a_failing_disk_stops"),
        simulation: themed("bad-disk", 60),
    },
    Mutant {
        name: "ring-reused-too-early",
        promise: "P1",
        story: "space of the ring is written over before the superblock says that it is free",
        changes: &[
            Change {
                file: STATE,
                old: "let free = self.ring_blocks - (self.at.appended - self.at.tail);",
                new: "let free = self.ring_blocks - (self.at.appended - self.at.freed);",
            },
            Change {
                file: STATE,
                old: "debug_assert!(at.appended - at.tail <= self.ring_blocks, ",
                new: "debug_assert!(true, ",
            },
            Change {
                file: STATE,
                old: "            self.at.appended - self.at.tail <= self.ring_blocks,\n",
                new: "            true,\n",
            },
        ],
        test: test("-p cistern-engine --test journal_behaviour", "space_is_used_again_only_once"),
        simulation: themed("tiny-ring", 150),
    },
    Mutant {
        name: "freed-while-read-is-damage",
        promise: "P4",
        story: "a read of a group whose space is used again meanwhile fails, and does not look where the data is now",
        changes: &[Change {
            file: JOURNAL,
            old: "        if self.tail().0 > group.start {\n            return Ok(None);",
            new: "        if false {\n            return Ok(None);",
        }],
        test: None,
        simulation: themed("tiny-ring", 60),
    },
    Mutant {
        name: "torn-group-is-replayed",
        promise: "P3",
        story: "recovery does not look whether a group's payload is whole",
        changes: &[Change {
            file: RECOVER,
            old: "                if crcs_match(&header.crcs, payload) {",
            new: "                if crcs_match(&header.crcs, payload) || true {",
        }],
        test: test("-p cistern-engine --test journal_crash", "recovery_gives_a_prefix"),
        simulation: themed("tiny-ring", 60),
    },
    Mutant {
        name: "replay-goes-on-behind-a-gap",
        promise: "P3",
        story: "recovery steps over a torn group and replays what lies behind it",
        changes: &[Change {
            file: RECOVER,
            old: "                if crcs_match(&header.crcs, payload) {",
            new: "                if !crcs_match(&header.crcs, payload) {\n            \
                  walked.starts.push_back(header.pos);\n            walked.head = header.next();\n            \
                  continue;\n        } {",
        }],
        test: test("-p cistern-engine --test journal_crash", "recovery_gives_a_prefix"),
        simulation: themed("tiny-ring", 60),
    },
    Mutant {
        name: "stale-groups-are-replayed",
        promise: "P3",
        story: "groups of an earlier life come back behind the end of a later one",
        changes: &[Change {
            file: RECOVER,
            old: "h.chain == chain && h.incarnation >= incarnation && ",
            new: "",
        }],
        test: test("-p cistern-engine --test journal_behaviour", "a_stale_group_at_the_end_stays_dead"),
        simulation: None,
    },
    Mutant {
        name: "recovered-is-not-rewritten",
        promise: "P3",
        story: "recovery relies on groups that were never synced",
        changes: &[Change {
            file: JOURNAL,
            old: "        write_again(env, &found.ring, walked.durable.max(superblock.tail), walked.head).await?;\n",
            new: "        let _ = write_again;\n",
        }],
        test: None,
        simulation: themed("bad-disk", 200),
    },
    Mutant {
        name: "synced-damage-is-a-torn-end",
        promise: "P8",
        story: "a journal that lost something synced opens as if it ended there",
        changes: &[Change {
            file: RECOVER,
            old: "    if sb.durable > head {",
            new: "    if sb.durable <= u64::MAX {\n        return Ok(None);\n    }\n    if sb.durable > head {",
        }],
        test: test("-p cistern-engine --test journal_behaviour", "damage_in_the_synced_part_is_refused"),
        simulation: themed("rotten-journal", 60),
    },
    Mutant {
        name: "closed-is-closed-for-ever",
        promise: "P8",
        story: "a journal that was closed once is opened by its headers although somebody has written to it since and died",
        changes: &[Change {
            file: JOURNAL,
            old: "            closed: false,\n            ..found.superblock",
            new: "            ..found.superblock",
        }],
        test: test(
            "-p cistern-engine --test journal_behaviour",
            "a_journal_that_was_opened_again_is_not_closed",
        ),
        simulation: None,
    },
    Mutant {
        name: "what-rotted-is-uploaded",
        promise: "P8",
        story: "of a journal that was opened by its headers a payload that has rotted since gets into the store",
        changes: &[Change {
            file: RECOVER,
            old: "        crcs_match(&header.crcs, &payload)\n            .then(",
            new: "        (crcs_match(&header.crcs, &payload) || true)\n            .then(",
        }],
        test: test("-p cistern --test bad_input", "a_journal_that_rots_is_never_uploaded"),
        simulation: themed("rotten-journal", 60),
    },
    Mutant {
        name: "a-request-is-in-several-groups",
        promise: "P3",
        story: "a crash leaves a part of a request that begins or ends inside a block",
        changes: &[Change {
            file: STATE,
            old: "if prepared.is_together() && ",
            new: "if prepared.records().is_empty() && ",
        }],
        test: test("-p cistern-engine --test journal_behaviour", "a_request_is_in_one_group"),
        simulation: None,
    },
    Mutant {
        name: "a-lost-incarnation-comes-again",
        promise: "P3",
        story: "a life has the number of the one before, whose superblock is lost: a group of that, of which the disk lacked something, comes back",
        changes: &[Change {
            file: JOURNAL,
            old: "let bump = if found.slot_lost { 2 } else { 1 };",
            new: "let bump = if found.slot_lost { 1 } else { 1 };",
        }],
        test: test(
            "-p cistern-engine --test journal_behaviour",
            "a_group_of_a_life_whose_superblock_is_lost_stays_dead",
        ),
        simulation: None,
    },
    Mutant {
        name: "one-superblock-vouches-at-rest",
        promise: "P8",
        story: "the last groups of a journal at rest are vouched for by one superblock only, and that rots with them",
        changes: &[Change {
            file: WRITER,
            old: "lags(&self.superblock) || self.twin.as_ref().is_none_or(lags)",
            new: "lags(&self.superblock)",
        }],
        test: test(
            "-p cistern-engine --test journal_behaviour",
            "damage_to_the_last_group_is_found_after_rest",
        ),
        simulation: themed("rotten-journal", 200),
    },
    Mutant {
        name: "a-taker-does-not-wait",
        promise: "P3",
        story: "who takes a journal that is mounted twice reads it while the one before it still writes",
        changes: &[Change {
            file: OWNER,
            old: "env.sleep(SETTLE).await;",
            new: "env.sleep(Duration::ZERO).await;",
        }],
        test: test("-p cistern-engine --test journal_owners", "what_was_acknowledged_stays_whoever_opens"),
        simulation: None,
    },
    Mutant {
        name: "an-owner-does-not-look",
        promise: "P3",
        story: "a process that rested writes over what the one wrote that took the journal meanwhile",
        changes: &[Change {
            file: OWNER,
            old: "if self.since_seen(self.env.now()) < LOOK_EVERY {",
            new: "if self.since_seen(self.env.now()) < 1000 * LOOK_EVERY {",
        }],
        test: test("-p cistern-engine --test journal_owners", "what_was_acknowledged_stays_whoever_opens"),
        simulation: None,
    },
    Mutant {
        name: "an-unfinished-journal-is-known-to-all",
        promise: "P3",
        story: "a process gives its name to the journal that another one is still making",
        changes: &[Change {
            file: OWNER,
            old: "format!(\"{}{:032x}\", beginning_of_unfinished(name), u128::from_le_bytes(self.token))",
            new: "beginning_of_unfinished(name)",
        }],
        test: test("-p cistern-engine --test journal_owners", "what_was_acknowledged_stays_whoever_opens"),
        simulation: None,
    },
    Mutant {
        name: "a-late-write-is-acknowledged",
        promise: "P3",
        story: "a write that arrived behind a take-over is acknowledged, and the taker has not seen it",
        changes: &[Change {
            file: OWNER,
            old: "match self.is_sure(self.env.now()) {",
            new: "match self.env.now() >= Duration::ZERO {",
        }],
        test: test("-p cistern-engine --test journal_owners", "a_late_write_is_not_acknowledged"),
        simulation: None,
    },
    Mutant {
        name: "staged-without-a-look",
        promise: "P3",
        story: "a process that rested acknowledges what it stages though another one has taken the journal",
        changes: &[Change {
            file: OUTLIVE,
            old: "self.shared.owner.may_write(now).then_some(now)",
            new: "Some(now)",
        }],
        test: test("-p cistern-engine --test journal_owners", "what_was_acknowledged_stays_whoever_opens"),
        simulation: None,
    },
];
