//! The mutants: what each changes, the promise that breaks, and what is to find it.
//!
//! Anchors are short texts that occur once in their file, so that edits beside them do no harm.

mod backup;
mod clones;
mod copies;
mod journal;
mod log;
mod map;
mod partial;
mod rollback;
mod snapshots;
mod space;
mod store;
mod succession;
mod volume;

use std::fmt;

/// A text that is replaced by another.
#[derive(Clone, Copy)]
pub struct Change {
    pub file: &'static str,
    pub old: &'static str,
    pub new: &'static str,
}

/// One way to break one promise.
#[derive(Clone, Copy)]
pub struct Mutant {
    pub name: &'static str,
    pub promise: &'static str,
    /// What goes wrong, in a line.
    pub story: &'static str,
    pub changes: &'static [Change],
    /// A test that fails with it.
    pub test: Option<Test>,
    /// Simulated seeds of which one fails with it.
    pub simulation: Option<Simulation>,
}

/// A test by what cargo builds and the name that selects it.
#[derive(Clone, Copy)]
pub struct Test {
    pub target: &'static str,
    pub name: &'static str,
}

/// Seeds from 0 on, of some theme or of what they draw.
#[derive(Clone, Copy)]
pub struct Simulation {
    pub theme: Option<&'static str>,
    pub seeds: u64,
}

/// All of them, by area.
pub fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        backup::MUTANTS,
        clones::MUTANTS,
        copies::MUTANTS,
        journal::MUTANTS,
        log::MUTANTS,
        map::MUTANTS,
        partial::MUTANTS,
        rollback::MUTANTS,
        succession::MUTANTS,
        snapshots::MUTANTS,
        space::MUTANTS,
        store::MUTANTS,
        volume::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

const fn test(target: &'static str, name: &'static str) -> Option<Test> {
    Some(Test { target, name })
}

const fn seeds(seeds: u64) -> Option<Simulation> {
    Some(Simulation { theme: None, seeds })
}

const fn themed(theme: &'static str, seeds: u64) -> Option<Simulation> {
    Some(Simulation { theme: Some(theme), seeds })
}

impl Mutant {
    /// What is to find it, in words.
    pub fn found_by(&self) -> String {
        let test = self.test.map(|t| t.to_string());
        let simulation = self.simulation.map(|s| s.to_string());
        test.into_iter().chain(simulation).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{} {}`", self.target, self.name)
    }
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.theme {
            Some(theme) => write!(f, "{} seeds of {theme}", self.seeds),
            None => write!(f, "{} seeds", self.seeds),
        }
    }
}
