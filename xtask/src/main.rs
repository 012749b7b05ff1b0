//! The project's own chores: `cargo xtask setup | test | ci | mutate | soak | guest | bench | package | record-traces | screenshots`.
//!
//! One file per chore. Everything runs from the root of the checkout; nothing is left running.
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `step` |
//! | 1 | `setup`, `test`, `mutate`, `soak`, `bench`, `traces`, `screenshots` |
//! | 2 | `package` |
//! | 3 | `guest` |

mod bench;
mod guest;
mod mutate;
mod package;
mod screenshots;
mod setup;
mod soak;
mod step;
mod test;
mod traces;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of this project")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests and benchmarks need (Debian 12, root): tools from apt, MinIO from source
    Setup,
    /// Check format and lints, build, and run every test
    Test,
    /// Setup, then test, then a pool in the guest: what continuous integration runs
    Ci,
    /// Break the source on purpose, one promise at a time, and see the tests notice
    Mutate(mutate::Options),
    /// Kill a daemon that cleans with kill -9, again and again, while clients verify, and account for everything
    Soak(soak::Options),
    /// Attach volumes to a real kernel, with real ZFS above them, in a guest under QEMU
    Guest(guest::Options),
    /// Measure against peers on this machine and print the figures with their bounds
    Bench(bench::Options),
    /// Make what people install: a Debian package, a static archive, an image for containers, a bill of materials
    Package(package::Options),
    /// Record what real filesystems read and write, for replays of the chunk cache
    RecordTraces,
    /// Take the pictures of the dashboard that the documentation shows, of a real daemon under load (two minutes)
    Screenshots,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().chore {
        Chore::Setup => setup::run(),
        Chore::Test => test::run(),
        Chore::Ci => setup::run().and_then(|()| test::run()).and_then(|()| guest::run_short()),
        Chore::Mutate(options) => mutate::run(&options),
        Chore::Soak(options) => soak::run(&options),
        Chore::Guest(options) => guest::run(&options),
        Chore::Bench(options) => bench::run(&options),
        Chore::Package(options) => package::run(&options),
        Chore::RecordTraces => traces::run(),
        Chore::Screenshots => screenshots::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
