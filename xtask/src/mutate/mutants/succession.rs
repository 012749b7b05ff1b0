//! Mutants of connections that go on for others.

use super::{Change, Mutant, test};

const SUCCESSION: &str = "crates/cistern-nbd/src/succession.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a-dead-connection-is-not-waited-for",
        promise: "P1",
        story: "a write that was sent again overwrites, as its first copy, what was written behind its second",
        changes: &[Change {
            file: SUCCESSION,
            old: "while member.alive.changed().await.is_ok() {}",
            new: "let _ = &mut member;",
        }],
        test: test("-p cistern-nbd --test protocol", "a_write_of_before_comes_before"),
        simulation: None,
    },
    Mutant {
        name: "a-dead-connection-is-read-on",
        promise: "P1",
        story: "what a client had sent on a connection that it gave up is still done, behind what it sent on the next",
        changes: &[Change {
            file: SUCCESSION,
            old: "member.cut.send_replace(true);",
            new: "let _ = &member.cut;",
        }],
        test: test("-p cistern-nbd --test protocol", "a_write_of_before_comes_before"),
        simulation: None,
    },
];
