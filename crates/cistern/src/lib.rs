//! The command line and the daemon of cistern.
//!
//! Modules are layered and import strictly downward, never sideways (`xtask/tests/layers.rs` proves it):
//!
//! | layer | modules | role |
//! |---|---|---|
//! | 0 | `atomic_file` | small files that are replaced as a whole |
//! | 0 | `short_name` | sockets in directories with long names |
//! | 0 | `failure` | what people see when something fails, and the exit code |
//! | 0 | `export` | the whole adapter between NBD and the engine |
//! | 0 | `stream` | the format of an exported journal |
//! | 0 | `panic` | what a fault of ours does: it ends the process |
//! | 0 | `memory` | memory back to the system, and none to be had |
//! | 1 | `kernel` | devices of the kernel's NBD client and its userspace block driver |
//! | 2 | `stack` | a filesystem on a volume, with what it stands on: which step is next, what a device holds, who uses a mount |
//! | 1 | `quantity` | how sizes and times are written |
//! | 1 | `schedule` | when snapshots are made by themselves, and which are kept |
//! | 1 | `terminal` | what people see |
//! | 1 | `signals` | the signals that stop a process |
//! | 1 | `continuity` | whether this host alone has had a volume since it last looked |
//! | 1 | `known` | which volumes this host has seen encrypted |
//! | 1 | `prices` | what the store of a volume charges, and what was asked of it came to |
//! | 2 | `config` | settings: flags and the file |
//! | 2 | `place` | which volume in which store |
//! | 2 | `observe` | what can be seen of a daemon: requests, latencies, the store, the cache |
//! | 3 | `history` | what a daemon did in the last 48 hours |
//! | 3 | `secret` | the key of a volume |
//! | 3 | `probing` | whether a store keeps the rules, and which stores did in the last hour |
//! | 3 | `live` | settings that change while a volume is served, and the file that keeps them |
//! | 3 | `metrics` | what can be seen, as Prometheus text: one table of all metrics |
//! | 4 | `creation` | making a volume |
//! | 4 | `control` | how commands talk to a running daemon |
//! | 5 | `daemon` | the serving process: volumes, addresses, signals, systemd |
//! | 6 | `cli` | the verbs, one per file, and the pages of the documentation generated from them |
//!
//! Never interprets what a volume holds, and never talks to a cloud but through the engine.

pub mod atomic_file;
pub mod cli;
pub mod config;
pub mod continuity;
pub mod control;
pub mod creation;
pub mod daemon;
pub mod export;
pub mod failure;
pub mod history;
pub mod kernel;
pub mod known;
pub mod live;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod panic;
pub mod place;
pub mod prices;
pub mod probing;
pub mod quantity;
pub mod schedule;
pub mod secret;
pub mod short_name;
pub mod signals;
pub mod stack;
pub mod stream;
pub mod terminal;

use std::process::ExitCode;

use clap::Parser;

/// Parses the arguments of this process, does what they say and reports how it went.
pub fn run() -> ExitCode {
    panic::stop_on_panic();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(stop) => {
            let code = if stop.use_stderr() { failure::Kind::Usage.exit_code() } else { 0 };
            let _ = stop.print(); // nobody left to tell when the terminal is gone
            return ExitCode::from(code);
        }
    };
    if cli.serves() {
        memory::expect_own_device();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return terminal::report(&failure::Failure::io("cannot start threads", &e)),
    };
    let outcome = runtime.block_on(cli.run());
    // What still runs belongs to nobody: a command has joined its own tasks.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => terminal::report(&failure),
    }
}
