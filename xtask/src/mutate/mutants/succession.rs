//! Mutants of connections that go on for others.

use super::{Change, Mutant, test};

const CLIENT_TIME: &str = "crates/cistern-nbd/src/client_time.rs";
const HANDOVER: &str = "crates/cistern-nbd/src/handover.rs";
const SERVER: &str = "crates/cistern-nbd/src/server.rs";
const SESSION: &str = "crates/cistern-nbd/src/session.rs";
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
        name: "who-waits-for-the-server-is-late",
        promise: "P9",
        story: "a client loses its connection because the server takes its time to open what it asks for",
        changes: &[Change {
            file: CLIENT_TIME,
            old: "self.end += began.elapsed();",
            new: "let _ = began.elapsed();",
        }],
        test: test("-p cistern-nbd --lib", "client_time::tests::the_servers_time_is_not_the_clients"),
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
    Mutant {
        name: "half-a-request-is-left-behind",
        promise: "P1",
        story: "a stop hands a connection on whose next request it had begun to read: the next server takes data for requests",
        changes: &[Change {
            file: SESSION,
            old: "Need::Bytes => !self.goes_on || self.input.is_empty(),",
            new: "Need::Bytes => true,",
        }],
        test: test("-p cistern-nbd --test protocol", "a_connection_goes_on_with_the_next_server"),
        simulation: None,
    },
    Mutant {
        name: "what-is-under-way-is-handed-on",
        promise: "P1",
        story: "a stop hands a connection on while it still writes: nobody answers, and the write may come behind later ones",
        changes: &[Change {
            file: SESSION,
            old: "if self.running.is_empty() && self.output.queued() == 0 {",
            new: "if self.output.queued() == 0 {",
        }],
        test: test("-p cistern-nbd --test protocol", "a_connection_goes_on_with_the_next_server"),
        simulation: None,
    },
    Mutant {
        name: "what-others-wrote-is-gone-on-with",
        promise: "P1",
        story: "a filesystem goes on with a volume that another host wrote in between, and writes what it had cached over it",
        changes: &[Change {
            file: HANDOVER,
            old: "if export.identity().as_ref() != Some(&self.identity) {",
            new: "if export.identity().is_none() {",
        }],
        test: test("-p cistern-nbd --test protocol", "another_export_of_that_name_is_another"),
        simulation: None,
    },
    Mutant {
        name: "who-was-replaced-is-handed-on",
        promise: "P1",
        story: "a connection that its client gave up is handed on, and what lay in it is written behind what came on the next",
        changes: &[Change { file: SERVER, old: "left.retain(|left| !*left.cut.borrow());", new: "" }],
        test: test("-p cistern-nbd --lib", "who_was_replaced_is_not_handed_on"),
        simulation: None,
    },
];
