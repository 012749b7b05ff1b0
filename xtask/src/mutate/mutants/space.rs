//! Mutants of what comes back: when objects are retired and deleted, and what the cleaner moves.

use super::{Change, Mutant, test, themed};

const ADOPT: &str = "crates/cistern-engine/src/cleaner/adopt.rs";
const COMMITTED: &str = "crates/cistern-engine/src/log/committed.rs";
const FLOW: &str = "crates/cistern-engine/src/writeback/flow.rs";
const OVERTAKE: &str = "crates/cistern-engine/src/writeback/overtake.rs";
const GRACE: &str = "crates/cistern-engine/src/space/grace.rs";
const HOLDINGS: &str = "crates/cistern-engine/src/upkeep/holdings.rs";
const MERGING: &str = "crates/cistern-engine/src/map/merging.rs";
const MAINTAIN: &str = "crates/cistern-engine/src/upkeep/maintain.rs";
const NAMES: &str = "crates/cistern-engine/src/map/names.rs";
const POINTS: &str = "crates/cistern-engine/src/upkeep/points.rs";
const ROOM: &str = "crates/cistern-engine/src/log/room.rs";
const PINS: &str = "crates/cistern-engine/src/map/pins.rs";
const RECLAIM: &str = "crates/cistern-engine/src/upkeep/reclaim.rs";
const ROUND: &str = "crates/cistern-engine/src/cleaner/round.rs";
const ROWS: &str = "crates/cistern-engine/src/upkeep/rows.rs";
const SPACE: &str = "crates/cistern-engine/src/space.rs";
const SWEEP: &str = "crates/cistern-engine/src/upkeep/sweep.rs";
const USAGE: &str = "crates/cistern-engine/src/upkeep/usage.rs";
const WALK: &str = "crates/cistern-engine/src/log/walk.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "grace-is-ignored",
        promise: "P7",
        story: "what is retired is deleted while readers still show the state before",
        changes: &[Change {
            file: GRACE,
            old: "now.saturating_sub(since.stored_at) >= grace",
            new: "now.saturating_sub(since.stored_at) >= grace.min(Duration::ZERO)",
        }],
        test: test("-p cistern-engine --lib", "two_checkpoints_an_entry"),
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "one-checkpoint-is-enough",
        promise: "P7",
        story: "an object is deleted behind the one checkpoint that retires it, which a successor may not have seen",
        changes: &[Change {
            file: GRACE,
            old: "is_some_and(|since| self.covered > since.given)",
            new: "is_some_and(|since| self.covered > Seq(0) || since.given > Seq(0))",
        }],
        test: test("-p cistern-engine --lib", "two_checkpoints_an_entry"),
        simulation: None,
    },
    Mutant {
        name: "retired-before-its-checkpoint",
        promise: "P7",
        story: "an object is deleted that the newest checkpoint needs: the one that retires it is on its way",
        changes: &[Change {
            file: GRACE,
            old: "InGrace { bytes: object.bytes, is_emptied: false, since: None }",
            new: "InGrace { bytes: object.bytes, is_emptied: false, since: Some(Since { stored_at: Duration::ZERO, given: Seq(0) }) }",
        }],
        test: test("-p cistern-engine --lib", "two_checkpoints_an_entry"),
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "dead-blocks-count-twice",
        promise: "P7",
        story: "what died in a segment is counted twice, so it goes when it is half dead",
        changes: &[Change {
            file: USAGE,
            old: "let died = Counts { dead_blocks, touched: covered,",
            new: "let died = Counts { dead_blocks: 2 * dead_blocks, touched: covered,",
        }],
        test: None,
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "vacated-goes-with-any-checkpoint",
        promise: "P7",
        story: "a checkpoint retires a segment without covering what was moved out of it",
        changes: &[Change {
            file: SPACE,
            old: "round.from <= covered && ",
            new: "round.from <= covered.max(round.from) && ",
        }],
        test: test("-p cistern-engine --lib", "a_vacated_segment_waits"),
        simulation: None,
    },
    Mutant {
        name: "vacated-without-a-second-look",
        promise: "P7",
        story: "half of what is live is moved, and nobody looks whether something still resolves to the segment",
        changes: &[
            Change {
                file: ROUND,
                old: "match still.contains_key(&victim.victim.seq) {",
                new: "match still.len() == usize::MAX {",
            },
            Change {
                file: ROUND,
                old: "    let mut to = offer(",
                new: "    live.truncate(live.len() / 2);\n    let mut to = offer(",
            },
        ],
        test: None,
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "base-is-taken-after-the-look",
        promise: "P4",
        story: "what was written while the cleaner looked counts as older than what it moves",
        changes: &[
            Change { file: ROUND, old: "let (_running, base) =", new: "let (_running, _) =" },
            Change {
                file: ROUND,
                old: "    let mut to = offer(",
                new: "    let base = parts.space.newest();\n    let mut to = offer(",
            },
        ],
        test: None,
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "runs-go-at-once",
        promise: "P7",
        story: "runs that a merge used up are deleted before a checkpoint does without them",
        changes: &[Change {
            file: GRACE,
            old: "if !is_due(object) || without.contains(&name) {",
            new: "if !(matches!(name, RetiredName::Map(_)) || is_due(object)) || without.contains(&name) {",
        }],
        test: None,
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "listed-runs-are-used-up",
        promise: "P7",
        story: "a run that a merge has read goes although a part of it is still listed",
        changes: &[Change {
            file: MERGING,
            old: "filter(|run| !listed.contains(&run.id))",
            new: "filter(|run| !listed.contains(&run.id) || before.len() < usize::MAX)",
        }],
        test: None,
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "sweep-takes-a-live-upload",
        promise: "P7",
        story: "a run that was put and is not in the levels yet looks like an orphan, however long its level takes",
        changes: &[Change {
            file: NAMES,
            old: "let mut names = self.runs.written.ids().clone();",
            new: "let mut names = BTreeSet::new();",
        }],
        test: test("-p cistern-engine --lib", "a_run_is_named_from_before_it_is_put"),
        simulation: None,
    },
    Mutant {
        name: "sweep-looks-once",
        promise: "P7",
        story: "what one look finds is taken for an orphan",
        changes: &[Change {
            file: SWEEP,
            old: "self.candidates.contains_key(name)",
            new: "self.candidates.contains_key(name) || self.staying.len() < usize::MAX",
        }],
        test: test("-p cistern-engine --lib", "an_orphan_is_found_twice"),
        simulation: None,
    },
    Mutant {
        name: "sweep-takes-segments-of-damaged-accounts",
        promise: "P7",
        story: "segments that the accounts lost with a damaged object are taken for orphans",
        changes: &[Change {
            file: MAINTAIN,
            old: "filter(|_| last.accounts.is_whole())",
            new: "filter(|_| last.accounts.is_whole() || last.sent.is_none())",
        }],
        test: test("-p cistern-engine --test volume_sweep", "damaged_accounts_sweep_nothing"),
        simulation: None,
    },
    Mutant {
        name: "sweep-believes-the-accounts",
        promise: "P7",
        story: "a segment goes that the accounts do not know, though blocks resolve to it",
        changes: &[Change {
            file: SWEEP,
            old: "if is_needed =>",
            new: "if is_needed && object.bytes == u64::MAX =>",
        }],
        test: test("-p cistern-engine --test volume_sweep", "what_is_needed_stays"),
        simulation: None,
    },
    Mutant {
        name: "sweep-takes-fences",
        promise: "P5",
        story: "void entries go, in whose slots a fenced writer may put what it then calls committed",
        changes: &[Change {
            file: WALK,
            old: "Entry::Segment(_) => in_force != (Some(head.epoch), Some(head.salt)),\n            Entry::Claim(_) | Entry::Release(_) => true,",
            new: "Entry::Segment(_) => in_force == (None, None),\n            Entry::Claim(_) | Entry::Release(_) => true,",
        }],
        test: test("-p cistern-engine --test volume_sweep", "orphans_go_and_fences_stay"),
        simulation: None,
    },
    Mutant {
        name: "sweep-sleeps",
        promise: "P7",
        story: "orphans are found and nobody retires them",
        changes: &[Change {
            file: SWEEP,
            old: "self.space.adopt(&orphans,",
            new: "self.space.adopt(&orphans[..0],",
        }],
        test: None,
        simulation: themed("cleaning", 20),
    },
    Mutant {
        name: "a-disk-is-filled",
        promise: "P9",
        story: "what clients write takes the room that cleaning needs",
        changes: &[Change {
            file: FLOW,
            old: "if is_allowed || self.room.is_some() {",
            new: "if is_allowed || self.room.is_some() || tuning.room_bytes > 0 {",
        }],
        test: test("-p cistern-engine --test volume_full", "garbage_makes_room"),
        simulation: themed("small-disk", 20),
    },
    Mutant {
        name: "room-ignores-what-is-on-its-way",
        promise: "P9",
        story: "segments that were let go and have not arrived are not counted: more are let go than the disk takes",
        changes: &[Change {
            file: ROOM,
            old: "allow(room, what, self.promised().bytes());",
            new: "allow(room, what, bytes);",
        }],
        test: test("-p cistern-engine --test volume_full", "what_is_on_its_way_has_taken_its_room"),
        simulation: None,
    },
    Mutant {
        name: "the-reserve-is-kept-for-good",
        promise: "P9",
        story: "what makes room waits at a quota, and the reserve stays where it is",
        changes: &[Change { file: ROOM, old: "                self.reserve().give_up().await?;\n", new: "" }],
        test: None,
        simulation: themed("quota", 30),
    },
    Mutant {
        name: "a-round-asks-for-room-once",
        promise: "P9",
        story: "the segments of a round that has begun are sent, whatever became of the room meanwhile",
        changes: &[Change {
            file: ROUND,
            old: "let _room = parts.log.take_room(room, data_bytes).await.ok_or_else(no_room)?;",
            new: "let _room = parts.log.take_room(room, data_bytes).await;",
        }],
        test: test("-p cistern-engine --test volume_full", "a_round_ends_where_room_does"),
        simulation: None,
    },
    Mutant {
        name: "copies-take-clients-room",
        promise: "P9",
        story: "flattening takes the room that clients need, and gives none back",
        changes: &[Change {
            file: ROOM,
            old: "RoomFor::Copied => all * 2,",
            new: "RoomFor::Copied => all / 2,",
        }],
        test: test("-p cistern-engine --test volume_full", "flattening_leaves_room_for_clients"),
        simulation: None,
    },
    Mutant {
        name: "a-full-memory-waits-for-a-commit",
        promise: "P9",
        story: "commits wait for memory, and nothing is frozen before the next commit",
        changes: &[Change {
            file: POINTS,
            old: "if newest.covered > self.progress.frozen_to() {",
            new: "if newest.covered < self.progress.frozen_to() {",
        }],
        test: test("-p cistern-engine --lib", "what_fills_memory_is_frozen_though_no_commit_comes"),
        simulation: None,
    },
    Mutant {
        name: "joined-rows-go-with-the-first",
        promise: "P7",
        story: "a row that was joined is let go of when the snapshots of one of its parts are gone",
        changes: &[Change {
            file: ROWS,
            old: "let (first, end) = (self.first.min(other.first), self.end.max(other.end));",
            new: "let (first, end) = (self.first.min(other.first), self.end.min(other.end));",
        }],
        test: test("-p cistern-engine --lib", "what_is_joined_goes_no_sooner"),
        simulation: None,
    },
    Mutant {
        name: "joined-rows-are-stored-as-changes",
        promise: "P7",
        story: "where rows were joined the stored ones stay beside them, and tell of other snapshots",
        changes: &[Change { file: HOLDINGS, old: "let all = self.is_joined ||", new: "let all =" }],
        test: test("-p cistern-engine --test volume_bounds", "what_snapshots_hold_has_few_rows"),
        simulation: None,
    },
    Mutant {
        name: "a-round-adopts-all-it-finds",
        promise: "P9",
        story: "a round of adopting takes all that a lookup gives, many times what memory is for",
        changes: &[Change {
            file: ADOPT,
            old: "            if self.is_full() {",
            new: "            if self.blocks == u64::MAX {",
        }],
        test: test("-p cistern-engine --lib", "a_round_ends_where_it_is_full"),
        simulation: None,
    },
    Mutant {
        name: "on-its-way-counts-as-later",
        promise: "P7",
        story: "what a checkpoint retires goes behind an entry that was on its way when that was stored: who took over may have listed the checkpoints before",
        changes: &[Change {
            file: MAINTAIN,
            old: "self.space.checkpoint_stored(point.covered, self.env.now(), self.log.given());",
            new: "self.space.checkpoint_stored(point.covered, self.env.now(), point.covered);",
        }],
        test: test("-p cistern-engine --test volume_grace", "what_was_on_its_way_already"),
        simulation: None,
    },
    Mutant {
        name: "slots-are-free-at-once",
        promise: "P5",
        story: "a slot of the log is empty as soon as no reader needs its segment: a copy of the writer that slept puts into it, and calls it committed",
        changes: &[Change {
            file: GRACE,
            old: "first.map(|(stored_at, _)| *stored_at + slots)",
            new: "first.map(|(stored_at, _)| (*stored_at + slots).min(Duration::ZERO))",
        }],
        test: test("-p cistern-engine --lib", "a_slot_stays_filled_for_its_own_grace"),
        simulation: None,
    },
    Mutant {
        name: "emptied-slots-are-void",
        promise: "P6",
        story: "a walk steps over an emptied slot, and what was in it is missing in silence",
        changes: &[Change {
            file: COMMITTED,
            old: "SlotContent::Entry(_, Entry::Emptied) => return Err(Error::NotFound(listed.key)),",
            new: "SlotContent::Entry(_, Entry::Emptied) if listed.key.is_empty() => return Err(Error::NotFound(listed.key)),",
        }],
        test: test("-p cistern-engine --lib", "no_way_leads_through_an_emptied_slot"),
        simulation: None,
    },
    Mutant {
        name: "readers-are-not-looked-for",
        promise: "P7",
        story: "what is overwritten goes within seconds though a reader is announced",
        changes: &[Change {
            file: RECLAIM,
            old: "                gc::delete_announcements(store, &old).await;\n                is_any\n",
            new: "                gc::delete_announcements(store, &old).await;\n                is_any && old.len() > 1000\n",
        }],
        test: test("-p cistern-engine --test volume_grace", "who_reads_is_given_time"),
        simulation: None,
    },
    Mutant {
        name: "clones-are-not-waited-for",
        promise: "P7",
        story: "what a clone reads of the volume it was made of goes within seconds",
        changes: &[Change {
            file: RECLAIM,
            old: "if self.progress.snapshots().has_clones() {",
            new: "if self.progress.snapshots().has_clones() && self.grace.is_zero() {",
        }],
        test: test("-p cistern-engine --test volume_grace", "clones_are_given_time"),
        simulation: None,
    },
    Mutant {
        name: "pins-hold-nothing",
        promise: "P4",
        story: "what a read has found is deleted before it is read",
        changes: &[Change {
            file: PINS,
            old: "if self.count(generation).load(SeqCst) == 0 {",
            new: "if self.count(generation).load(SeqCst) < 1000 {",
        }],
        test: test("-p cistern-engine --lib", "a_wait_is_for_those_before_it"),
        simulation: None,
    },
    Mutant {
        name: "discards-wait-in-line",
        promise: "P9",
        story: "a discard waits behind data for which a full store has no room",
        changes: &[Change {
            file: FLOW,
            old: "return Ok(Some(Offering::Joined(joined)));",
            new: "let _ = joined;",
        }],
        test: test("-p cistern-engine --test volume_full", "a_discard_of_everything"),
        simulation: None,
    },
    Mutant {
        name: "removals-wait-in-line",
        promise: "P9",
        story: "the removal of a snapshot waits behind data for which a full store has no room",
        changes: &[Change {
            file: FLOW,
            old: "return Ok(Some(Offering::Removals(removals, to)));",
            new: "let _ = (removals, to);",
        }],
        test: test("-p cistern-engine --test volume_full", "snapshots_go_before"),
        simulation: None,
    },
    Mutant {
        name: "a-discard-passes-a-snapshot",
        promise: "P7",
        story: "what is discarded behind the making of a snapshot, in a store without room, is missing in that snapshot",
        changes: &[Change {
            file: OVERTAKE,
            old: "if !self.made.0.is_empty() {",
            new: "if self.groups == u64::MAX {",
        }],
        test: test("-p cistern-engine --test volume_full", "snapshots_go_before"),
        simulation: None,
    },
    Mutant {
        name: "what-lets-go-waits-for-room",
        promise: "P9",
        story: "the end of a clone, and of a hold, waits behind the data that has no room because of them",
        changes: &[Change {
            file: OVERTAKE,
            old: "Operation::Unclone { .. } => Effect::LetsGo(operation),",
            new: "Operation::Unclone { .. } => Effect::Stays,",
        }],
        test: test("-p cistern-engine --test volume_full", "holds_and_clones"),
        simulation: None,
    },
    Mutant {
        name: "a-passing-snapshot-keeps-what-waits",
        promise: "P9",
        story: "a snapshot that was made while data waits, and removed again, leaves no way out of a full store",
        changes: &[Change {
            file: OVERTAKE,
            old: "                    Effect::Unmakes(made)\n",
            new: "                    let _ = made;\n                    Effect::Stays\n",
        }],
        test: test("-p cistern-engine --test volume_full", "snapshots_go_before"),
        simulation: themed("quota", 20),
    },
];
