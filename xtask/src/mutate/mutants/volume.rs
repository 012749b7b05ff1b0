//! Mutants of the volume: what a request means.

use super::{Change, Mutant, seeds, test, themed};

const CONTROL: &str = "crates/cistern-engine/src/writeback/control.rs";
const WRITE: &str = "crates/cistern-engine/src/volume/write.rs";
const DIRTY: &str = "crates/cistern-engine/src/volume/dirty.rs";
const LOCKS: &str = "crates/cistern-engine/src/volume/locks.rs";
const READ: &str = "crates/cistern-engine/src/volume/read.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "acknowledged-before-it-outlives-the-process",
        promise: "P3",
        story: "a write is acknowledged while it is in the memory of the process alone",
        changes: &[Change {
            file: WRITE,
            old: "let outlived = self.core.journal.outlive(to).await;",
            new: "let outlived = if to.0 == u64::MAX { self.core.journal.outlive(to).await } else { Ok(()) };",
        }],
        test: test("-p cistern --test clients_stay", "what_was_acknowledged_survives_the_daemon"),
        simulation: themed("crashes", 40),
    },
    Mutant {
        name: "flush-before-sync",
        promise: "P1",
        story: "a flush is acknowledged while what it covers is only queued",
        changes: &[Change {
            file: WRITE,
            old: "let synced = self.core.journal.sync(to).await;",
            new: "let synced = if to.0 == u64::MAX { self.core.journal.sync(to).await } else { Ok(()) };",
        }],
        test: None,
        simulation: seeds(20),
    },
    Mutant {
        name: "a-request-has-several-places",
        promise: "P3",
        story: "a snapshot shows a part of a request that begins or ends inside a block",
        changes: &[Change {
            file: WRITE,
            old: "if records.len() > 1 && fit_one_group",
            new: "if records.len() > 9 && fit_one_group",
        }],
        test: test("-p cistern-engine --test volume_sectors", "one_request_is_there_as_a_whole_or_not"),
        simulation: None,
    },
    Mutant {
        name: "writethrough-stays-local",
        promise: "P1",
        story: "a flush in writethrough does not wait for the store",
        changes: &[Change {
            file: WRITE,
            old: "        if *self.mode.borrow() != Mode::Writethrough {",
            new: "        if *self.mode.borrow() != Mode::Writearound {",
        }],
        test: None,
        simulation: themed("take-overs", 60),
    },
    Mutant {
        name: "dirty-bound-is-ignored",
        promise: "P2",
        story: "more is dirty than max-dirty-bytes allows",
        changes: &[Change {
            file: CONTROL,
            old: "dirty > 0 && (dirty + blocks)",
            new: "dirty == u64::MAX && (dirty + blocks)",
        }],
        test: None,
        simulation: seeds(300),
    },
    Mutant {
        name: "data-takes-all-the-room",
        promise: "P9",
        story: "behind a client that wrote until it had to wait neither a discard nor the removal of a snapshot gets into the journal, and a full store stays full",
        changes: &[Change {
            file: WRITE,
            old: "            None => LEFT_BY_DATA,\n",
            new: "            None => 0,\n",
        }],
        test: test("-p cistern-engine --test volume_full", "what_makes_room_gets_in"),
        simulation: None,
    },
    Mutant {
        name: "commit-forgets-newer-writes",
        promise: "P4",
        story: "a commit drops blocks that were written again since",
        changes: &[Change {
            file: DIRTY,
            old: ".filter(|(_, dirty)| dirty.at() < to)",
            new: ".filter(|(_, dirty)| dirty.at() < to || true)",
        }],
        test: None,
        simulation: seeds(20),
    },
    Mutant {
        name: "held-extents-do-not-block",
        promise: "P4",
        story: "two writes into one block at the same time lose one of them",
        changes: &[Change {
            file: LOCKS,
            old: "        self.held.iter().find(blocks).cloned()",
            new: "        self.held.iter().filter(|_| false).find(blocks).cloned()",
        }],
        test: None,
        simulation: seeds(20),
    },
    Mutant {
        name: "shrinks-do-not-hold",
        promise: "P1",
        story: "a shrink drops what is acknowledged while it looks whether there is data",
        changes: &[Change {
            file: WRITE,
            old: "writer.hold(cut).await;",
            new: "writer.hold(Extent::new(u64::MAX / 2, 1)).await;",
        }],
        test: test("-p cistern-engine --test volume_live", "a_shrink_drops_nothing"),
        simulation: None,
    },
    Mutant {
        name: "zeroes-reach-behind-the-end",
        promise: "P4",
        story: "zeroes up to an end inside a block take what was written behind it, where the volume has grown",
        changes: &[Change {
            file: WRITE,
            old: "        let holding = writer.hold(touched).await;\n        // The part",
            new: "        let was_to_the_end = is_to_the_end(offset + len);\n        let is_to_the_end = |_: u64| was_to_the_end;\n        let holding = \
                  writer.hold(touched).await;\n        // The part",
        }],
        test: test("-p cistern-engine --test volume_live", "zeroes_to_the_end_spare"),
        simulation: None,
    },
    Mutant {
        name: "status-calls-data-a-hole",
        promise: "P4",
        story: "block status calls stored data a hole, and whoever copies the volume loses it",
        changes: &[Change {
            file: READ,
            old: "Place::Frame(_) => RangeKind::Data,",
            new: "Place::Frame(_) => RangeKind::Hole,",
        }],
        test: test("-p cistern-engine --test volume", "what_is_written_is_read_back_everywhere"),
        simulation: seeds(40),
    },
    Mutant {
        name: "status-calls-dirty-data-a-hole",
        promise: "P4",
        story: "block status calls data a hole that is not stored yet",
        changes: &[Change {
            file: READ,
            old: "fn of_data(&self) -> RangeKind {\n        RangeKind::Data",
            new: "fn of_data(&self) -> RangeKind {\n        RangeKind::Hole",
        }],
        test: None,
        simulation: seeds(40),
    },
    Mutant {
        name: "holes-count-as-allocated",
        promise: "P4",
        story: "block status calls trimmed blocks allocated",
        changes: &[Change {
            file: READ,
            old: "Place::Hole => RangeKind::Hole,",
            new: "Place::Hole => RangeKind::Zero,",
        }],
        test: test("-p cistern-engine --test volume", "what_is_written_is_read_back_everywhere"),
        simulation: seeds(40),
    },
    Mutant {
        name: "fua-of-zeroes-is-ignored",
        promise: "P1",
        story: "zeroes with FUA are acknowledged before they are durable",
        changes: &[
            Change {
                file: WRITE,
                old: "            return writer.settle(to, fua).await;\n",
                new: "            return writer.settle(to, fua && to.0 == u64::MAX).await;\n",
            },
            Change {
                file: WRITE,
                old: "drop(holding);\n        writer.settle(to, fua)",
                new: "drop(holding);\n        writer.settle(to, fua && to.0 == u64::MAX)",
            },
        ],
        test: None,
        simulation: themed("crashes", 200),
    },
];
