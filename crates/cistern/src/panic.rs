//! A panic ends the process, unless it is in the protocol.
//!
//! Why: a panic means that an invariant we rely on does not hold. The engine's state is shared by
//! everything that runs, locks included, and going on could acknowledge writes on top of it. The
//! journal holds what was acknowledged, and the next start replays it, so to stop at once costs a
//! restart and to go on could cost data. The protocol crate holds nothing but the state of one
//! connection: a panic there ends that connection and no other. A command has the same engine, and keeps to the same.

use std::io::Write;

/// Where the sources of the protocol crate lie, in the words of the compiler.
const PROTOCOL_SOURCES: &str = "cistern-nbd/src";

/// Installs the rule for the whole process.
pub fn stop_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or("unknown", |location| location.file());
        let backtrace = std::backtrace::Backtrace::force_capture();
        let ends = match place.contains(PROTOCOL_SOURCES) {
            true => "One connection ends.",
            false => {
                "Stopping at once. What was acknowledged is in the journal or in the store; start again to go on."
            }
        };
        // Not by the log: commands have none. Whether anybody reads it changes nothing.
        let _ =
            writeln!(std::io::stderr(), "a fault of cistern, please report it: {panic}\n{backtrace}\n{ends}");
        if !place.contains(PROTOCOL_SOURCES) {
            std::process::abort();
        }
    }));
}
