//! `cargo xtask test`: every check and every test, with a summary, failing on the first kind of failure
//! only after all others have run.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::step;

/// A cold build of everything with two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const TEST_LIMIT: Duration = Duration::from_secs(3000);

/// Name, cargo arguments, limit. In this order: cheap checks first, slow tests last.
const STEPS: &[(&str, &[&str], Duration)] = &[
    ("format", &["fmt", "--all", "--check"], BUILD_LIMIT),
    ("build", &["build", "--workspace", "--all-targets", "--locked"], BUILD_LIMIT),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], BUILD_LIMIT),
    // The whole workspace at once: a package by itself would be built again, with other features of what it depends on.
    ("tests", &["test", "--workspace", "--locked", "--no-fail-fast"], TEST_LIMIT),
];

/// Runs all steps and prints what each took.
pub fn run() -> Result<()> {
    let begin = Instant::now();
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (name, args, limit) in STEPS {
        let mut cargo = step::cargo(args);
        // An error says what happened; a backtrace of the test runner would bury it.
        cargo.env("RUST_BACKTRACE", "0");
        match step::run(name, cargo, *limit) {
            Ok(time) => rows.push((*name, step::seconds(time))),
            Err(error) => {
                rows.push((*name, format!("FAILED: {error:#}")));
                failed.push(*name);
            }
        }
    }
    println!("\nsummary");
    for (name, result) in &rows {
        println!("  {name:40} {result}");
    }
    println!("  {:40} {}", "all", step::seconds(begin.elapsed()));
    if !failed.is_empty() {
        bail!("failed: {}", failed.join("; "));
    }
    Ok(())
}
