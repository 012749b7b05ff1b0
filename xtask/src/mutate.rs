//! `cargo xtask mutate`: breaks the source on purpose, one promise at a time, and expects the tests to notice.
//!
//! Works on a copy of the checkout in `target/mutate`, with a target directory of its own, so that only what
//! a mutant changes is built again. Never touches the checkout, but for the table that `--table` writes.
//! A mutant survives if any of the checks that are named for it passes; a check that finds it is the proof that
//! the check is worth its time.

pub mod copy;
mod mutants;
mod page;

use std::{
    ffi::OsStr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    copy::Copy,
    mutants::{Mutant, Simulation},
};
use crate::step;

/// A cold build of the copy with two cores; later ones take a minute.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const CHECK_LIMIT: Duration = Duration::from_secs(1200);

#[derive(clap::Args)]
pub struct Options {
    /// Runs these mutants only
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Prints the mutants and what is to find each, and runs nothing
    #[arg(long)]
    list: bool,
    /// Writes the table of mutants into docs/design/simulation.md, and runs nothing
    #[arg(long)]
    table: bool,
}

pub fn run(options: &Options) -> Result<()> {
    if options.table {
        return page::write(step::root());
    }
    let chosen = choose(&options.only)?;
    if options.list {
        chosen.iter().for_each(|m| println!("{:34} {:6} {}", m.name, m.promise, m.found_by()));
        return Ok(());
    }
    let copy = Copy::make(step::root(), &step::root().join("target/mutate"))?;
    let mut survivors = Vec::new();
    println!("{:34} {:6} {:8} verdict", "mutant", "breaks", "time");
    for mutant in &chosen {
        let begin = Instant::now();
        let verdict = match judge(&copy, mutant).unwrap_or_else(|e| Err(format!("{e:#}"))) {
            Ok(found) => format!("found by {found}"),
            Err(why) => {
                survivors.push(mutant.name);
                format!("SURVIVES: {why}")
            }
        };
        println!("{:34} {:6} {:8} {verdict}", mutant.name, mutant.promise, step::seconds(begin.elapsed()));
    }
    ensure!(survivors.is_empty(), "not found: {}", survivors.join(", "));
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static Mutant>> {
    if names.is_empty() {
        return Ok(mutants::all().collect());
    }
    let find = |name: &String| {
        mutants::all().find(|m| m.name == name).with_context(|| format!("there is no mutant {name}"))
    };
    names.iter().map(find).collect()
}

/// Who found the mutant, or why it counts as a survivor.
type Verdict = Result<String, String>;

/// Applies a mutant to the copy, runs what should find it, and takes it back.
fn judge(copy: &Copy, mutant: &Mutant) -> Result<Verdict> {
    let _applied = copy.apply(mutant)?;
    let mut found = Vec::new();
    if let Some(test) = mutant.test {
        let target: Vec<&str> = ["test", "--locked"].into_iter().chain(test.target.split(' ')).collect();
        build(copy, mutant.name, &[&target[..], &["--no-run"]].concat())?;
        match fails(copy, mutant.name, &[&target[..], &[test.name]].concat(), "test result: FAILED")? {
            true => found.push("its test"),
            false => return Ok(Err(test.to_string())),
        }
    }
    if let Some(simulation) = mutant.simulation {
        build(copy, mutant.name, &["build", "--locked", "-p", "cistern-sim"])?;
        match fails(copy, mutant.name, &simulate(simulation), ": FAILED: ")? {
            true => found.push("the simulator"),
            false => return Ok(Err(simulation.to_string())),
        }
    }
    if found.is_empty() {
        bail!("nothing is named that should find it");
    }
    Ok(Ok(found.join(" and ")))
}

fn simulate(simulation: Simulation) -> Vec<String> {
    let seeds = format!("0..{}", simulation.seeds);
    let mut args: Vec<String> =
        ["run", "--locked", "-p", "cistern-sim", "--", "--seeds", &seeds].map(str::to_owned).into();
    if let Some(theme) = simulation.theme {
        args.extend(["--theme".to_owned(), theme.to_owned()]);
    }
    args
}

/// Builds first: what does not compile is not found but wrong.
fn build(copy: &Copy, name: &str, args: &[&str]) -> Result<()> {
    step::run(&format!("{name} build"), cargo(copy.root(), args), BUILD_LIMIT).map(drop)
}

/// Whether a check fails, as it should, and says so by `verdict`: one that ends in any other way has found nothing.
fn fails<S: AsRef<OsStr>>(copy: &Copy, name: &str, args: &[S], verdict: &str) -> Result<bool> {
    let check = format!("{name} check");
    let status = step::run_any(&check, cargo(copy.root(), args), CHECK_LIMIT)?;
    if status.success() {
        return Ok(false);
    }
    let log = std::fs::read(step::log_path(&check)?)?;
    ensure!(
        String::from_utf8_lossy(&log).contains(verdict),
        "the check ended with {status} and without a verdict"
    );
    Ok(true)
}

/// A cargo command in the copy, with the copy's own target directory.
fn cargo<S: AsRef<OsStr>>(root: &Path, args: &[S]) -> Command {
    let mut command = step::cargo(&[]);
    command.args(args).current_dir(root).env("CARGO_TARGET_DIR", root.with_file_name("target"));
    command
}
