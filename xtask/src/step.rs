//! One step of a chore: a line when it begins, a line with its time when it ends, its output in a file.

use std::{
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use cistern_harness::process::Guard;

/// Of a step that builds everything with optimization, or packs what was built.
pub const LONG: Duration = Duration::from_secs(3600);

/// How much of a failed step's output is shown.
const SHOWN_BYTES: usize = 12_000;
/// How much of what a failed test said is shown, from its end: the log of its server is there.
const SHOWN_OF_A_TEST_BYTES: usize = 6_000;

/// The root of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout")
}

/// A cargo command in the root of the checkout.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command to its end within `limit`. Its output goes to a log, whose end is shown on failure.
pub fn run(name: &str, command: Command, limit: Duration) -> Result<Duration> {
    let path = log_path(name)?;
    // Readable too: the end is shown on failure.
    let mut log = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    println!("{name} ... (log: {})", path.strip_prefix(root()).unwrap_or(&path).display());
    let begin = Instant::now();
    let outcome = run_into(command, &log, limit);
    let time = begin.elapsed();
    match outcome {
        Ok(()) => {
            println!("{name}: done in {}", seconds(time));
            Ok(time)
        }
        Err(error) => {
            println!("{name}: FAILED after {}\n{}", seconds(time), what_failed(&mut log)?);
            Err(error.context(name.to_owned()))
        }
    }
}

/// The same without a word where it succeeds.
pub fn run_logged(name: &str, command: Command, limit: Duration) -> Result<()> {
    let mut log = File::options().read(true).write(true).create(true).truncate(true).open(log_path(name)?)?;
    let begin = Instant::now();
    let outcome = run_into(command, &log, limit);
    if outcome.is_err() {
        println!("{name}: FAILED after {}\n{}", seconds(begin.elapsed()), what_failed(&mut log)?);
    }
    outcome
}

/// Runs a command to its end within `limit`, however it ends. Its output goes to a log.
pub fn run_any(name: &str, command: Command, limit: Duration) -> Result<ExitStatus> {
    let path = log_path(name)?;
    let log = File::create(&path)?;
    println!("{name} ... (log: {})", path.strip_prefix(root()).unwrap_or(&path).display());
    wait(command, &log, limit)
}

fn run_into(command: Command, log: &File, limit: Duration) -> Result<()> {
    let status = wait(command, log, limit)?;
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}

fn wait(mut command: Command, log: &File, limit: Duration) -> Result<ExitStatus> {
    command.stdin(std::process::Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    Guard::spawn(command)?.wait(limit)
}

/// Where the output of a step goes; `/` in its name stands for a directory.
pub fn log_path(name: &str) -> Result<PathBuf> {
    let file: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '/' | '_') { c } else { '-' })
        .collect();
    let path = root().join("target/xtask").join(file + ".log");
    let dir = path.parent().context("a log lies in a directory")?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(path)
}

/// What each failed test said, and the end of the log.
fn what_failed(log: &mut File) -> Result<String> {
    log.rewind()?;
    let mut text = Vec::new();
    log.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mut shown = String::new();
    for said in failed_tests(&text) {
        shown += end_of(said, SHOWN_OF_A_TEST_BYTES);
        shown += "\n";
    }
    shown += end_of(&text, SHOWN_BYTES);
    Ok(shown)
}

/// The parts of libtest's output that failed tests wrote, each from its `---- name stdout ----` on.
fn failed_tests(text: &str) -> impl Iterator<Item = &str> {
    let parts = text
        .split("\n---- ")
        .skip(1)
        .filter(|part| part.lines().next().is_some_and(|l| l.ends_with(" stdout ----")));
    parts.map(|part| part.split("\n\nfailures:\n").next().unwrap_or(part).trim_end())
}

/// The last `bytes` of `text`, or a little less: whole characters.
fn end_of(text: &str, bytes: usize) -> &str {
    let from = text.len().saturating_sub(bytes);
    let whole = (from..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    &text[whole..]
}

/// A duration for people.
pub fn seconds(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::failed_tests;

    /// What a failed test said is found in the log of many; what the passing ones printed is not.
    #[test]
    fn failed_tests_are_found_in_a_log() {
        let log = "test a ... ok\n\nfailures:\n\n---- b stdout ----\nError: the disk\nis full\n\n---- c stdout ----\nno\n\n\n\
                   failures:\n    b\n    c\n\ntest result: FAILED\n---- not a test\n";
        let found: Vec<_> = failed_tests(log).collect();
        assert_eq!(found, ["b stdout ----\nError: the disk\nis full", "c stdout ----\nno"]);
    }
}
