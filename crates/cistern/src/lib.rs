//! The command line and the daemon of cistern.
//!
//! | module | role |
//! |---|---|
//! | `cli` | the verbs, one per file |
//! | `config`, `quantity` | settings and how sizes and times are written |
//! | `live` | settings that change while a volume is served, and the file that keeps them |
//! | `known` | which volumes this host has seen encrypted |
//! | `place`, `secret` | which volume in which store, and its key |
//! | `daemon` | the serving process: volumes, addresses, signals, systemd |
//! | `export` | the whole adapter between NBD and the engine |
//! | `control` | how commands talk to a running daemon |
//! | `observe` | what can be seen of a daemon: requests, latencies, the store, the cache |
//! | `prices` | what the store of a volume charges, and what was asked of it came to |
//! | `metrics` | the same as Prometheus text: one table of all metrics |
//! | `stream` | the format of an exported journal |
//! | `memory` | memory back to the system |
//! | `failure`, `terminal` | what people see |
//! | `reference` | the generated pages of the documentation |
//!
//! Never interprets what a volume holds, and never talks to a cloud but through the engine.

pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod export;
pub mod failure;
pub mod known;
pub mod live;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod place;
pub mod prices;
pub mod quantity;
pub mod reference;
pub mod secret;
pub mod stream;
pub mod terminal;

use std::process::ExitCode;

use clap::Parser;

/// Parses the arguments of this process, does what they say and reports how it went.
pub fn run() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(stop) => {
            let code = if stop.use_stderr() { failure::Kind::Usage.exit_code() } else { 0 };
            let _ = stop.print(); // nobody left to tell when the terminal is gone
            return ExitCode::from(code);
        }
    };
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
