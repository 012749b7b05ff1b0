//! `cargo xtask test`: every check and every test, with a summary, failing on the first kind of failure
//! only after all others have run.

mod programs;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::step;

/// A cold build of everything with two cores, which takes 25 minutes: on a day when they do half as much there is still time
/// for the tests.
const BUILD_LIMIT: Duration = Duration::from_secs(2700);

/// Name and cargo arguments of what comes before the tests. Examples, which no test runs, are looked at by clippy alone: to link them takes minutes.
const CHECKS: &[(&str, &[&str])] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("build", &["build", "--workspace", "--lib", "--bins", "--tests", "--locked"]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
];

/// Runs all steps and prints what each took.
pub fn run() -> Result<()> {
    let begin = Instant::now();
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    let mut note = |name: &'static str, outcome: Result<Duration>| match outcome {
        Ok(time) => rows.push((name, step::seconds(time))),
        Err(error) => {
            rows.push((name, format!("FAILED: {error:#}")));
            failed.push(name);
        }
    };
    for (name, args) in CHECKS {
        note(name, step::run(name, step::cargo(args), BUILD_LIMIT));
    }
    note("tests", programs::run());
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
