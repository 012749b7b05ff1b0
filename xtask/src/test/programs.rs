//! The programs of tests, two at a time: most of their time tests wait for something.
//!
//! Those that mount filesystems run behind the others, one after another: the kernel's loop devices are everybody's, and what is
//! there for a moment for one is in the way of another.
//!
//! Each has mounts of its own, and what it started is known by its environment: so nothing is left of one that hangs and is killed.

use std::{
    fs::{self, File},
    iter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use cistern_harness::process;
use serde::Deserialize;

use crate::step;

/// Of one program, ten times what the slowest takes, in seconds of an idle machine: one that hangs is found while the whole still ends in
/// time, and one that gets a twentieth of a processor is not taken for one.
const LIMIT: Duration = Duration::from_secs(900);
/// Programs at a time. More would want more memory and disk, and be later than their own limits expect.
const WORKERS: usize = 2;
/// How the files of tests that mount filesystems are named.
const ALONE: &str = "fs_";
/// The variable by which what a program started is found.
const MARK: &str = "CISTERN_TEST_PROGRAM";
/// How many of the slowest are named.
const SLOWEST: usize = 5;

/// A program of tests.
struct Program {
    name: String,
    command: Command,
    /// No other one runs beside it.
    alone: bool,
}

/// A line of what cargo prints about a build; other lines say nothing of programs.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// How one ended.
struct Ended {
    name: String,
    time: Duration,
    failure: Option<String>,
}

/// Runs all of them, and the examples in the documentation; a line for each that fails, with what it said.
pub(super) fn run() -> Result<Duration> {
    let begin = Instant::now();
    let programs = programs()?;
    ensure!(!programs.is_empty(), "there are no tests");
    let count = programs.len();
    println!("tests ... ({count} programs, {WORKERS} at a time; logs: target/xtask/tests/)");
    let (alone, shared): (Vec<_>, Vec<_>) = programs.into_iter().partition(|program| program.alone);
    let queue = Mutex::new(shared);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let worker = || iter::from_fn(next).map(one).collect::<Vec<Ended>>();
    let mut ended: Vec<Ended> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    ended.extend(alone.into_iter().map(one));
    ended.sort_by_key(|ended| std::cmp::Reverse(ended.time));
    let slowest = ended.iter().take(SLOWEST).map(|one| format!("{} {}", one.name, step::seconds(one.time)));
    println!("slowest: {}", slowest.collect::<Vec<_>>().join(", "));
    let failed: Vec<String> =
        ended.into_iter().filter_map(|one| Some(format!("{}: {}", one.name, one.failure?))).collect();
    if !failed.is_empty() {
        bail!("{} of {count} programs: {}", failed.len(), failed.join("; "));
    }
    println!("tests: done in {}", step::seconds(begin.elapsed()));
    Ok(begin.elapsed())
}

fn one(program: Program) -> Ended {
    let Program { name, mut command, .. } = program;
    let mark = format!("{}/{name}", std::process::id());
    command.env(MARK, &mark);
    process::own_mounts(&mut command);
    let begin = Instant::now();
    let failure = step::run_logged(&format!("tests/{name}"), command, LIMIT).err();
    process::kill_marked(MARK, &mark);
    Ended { name, time: begin.elapsed(), failure: failure.map(|error| format!("{error:#}")) }
}

/// All of the workspace, in cargo's order. At once: a package by itself would be built again, with other features of what it depends on.
fn programs() -> Result<Vec<Program>> {
    let log = step::log_path("tests")?;
    let what = ["test", "--workspace", "--lib", "--bins", "--tests", "--locked", "--no-run"];
    let mut build = step::cargo(&what);
    build.args(["--message-format", "json"]);
    build.stdin(Stdio::null()).stderr(File::create(&log)?);
    let built = build.output().context("cargo")?;
    ensure!(built.status.success(), "they cannot be built:\n{}", fs::read_to_string(&log)?);
    let mut programs = Vec::new();
    for line in String::from_utf8(built.stdout)?.lines() {
        programs.extend(program(serde_json::from_str(line)?)?);
    }
    let mut examples = step::cargo(&["test", "--workspace", "--locked", "--doc"]);
    examples.env("RUST_BACKTRACE", "0");
    programs.push(Program { name: "documentation".to_owned(), command: examples, alone: false });
    Ok(programs)
}

fn program(built: Built) -> Result<Option<Program>> {
    let Built { executable: Some(executable), manifest_path: Some(manifest), target, profile } = built else {
        return Ok(None);
    };
    if !profile.is_some_and(|profile| profile.test) {
        return Ok(None);
    }
    let place = manifest.parent().context("a manifest lies somewhere")?;
    let mut command = Command::new(executable);
    // As cargo runs them. An error says what happened; a backtrace of the test runner would bury it.
    command.current_dir(place).env("CARGO_MANIFEST_DIR", place).env("RUST_BACKTRACE", "0");
    let target = target.context("a program has a target")?;
    Ok(Some(Program { name: name(place, &target), command, alone: target.name.starts_with(ALONE) }))
}

/// Like `cistern-volume` for a file of tests, `cistern` for those of the library, `xtask-bin` for those of a program.
fn name(place: &Path, target: &Target) -> String {
    let package = place.file_name().unwrap_or_default().to_string_lossy();
    match target.kind.first().map(String::as_str) {
        Some("lib" | "rlib" | "proc-macro") => package.into_owned(),
        Some("bin") => format!("{}-bin", target.name),
        _ => format!("{package}-{}", target.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs of tests are found in what cargo prints, with where they run; what else was built is none.
    #[test]
    fn programs_are_found() {
        let line = |kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/engine/Cargo.toml","target":{{"kind":["{kind}"],"name":"volume","doc":true}},
                "profile":{{"opt_level":"1","test":{test}}},"filenames":[],"executable":{executable},"fresh":true}}"#
            )
        };
        let found = |line: &str| program(serde_json::from_str(line).expect("a line")).expect("it is whole");
        let one =
            found(&line("test", true, r#""/w/target/debug/deps/volume-1""#)).expect("a program of tests");
        assert_eq!(
            (one.name.as_str(), one.command.get_program().to_str()),
            ("engine-volume", Some("/w/target/debug/deps/volume-1"))
        );
        assert_eq!((one.command.get_current_dir(), one.alone), (Some(Path::new("/w/crates/engine")), false));
        assert_eq!(found(&line("lib", true, r#""/x""#)).map(|one| one.name).as_deref(), Some("engine"));
        assert!(found(&line("bin", false, r#""/x""#)).is_none());
        assert!(found(&line("lib", true, "null")).is_none());
        assert!(found(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
