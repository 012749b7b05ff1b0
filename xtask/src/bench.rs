//! `cargo xtask bench`: cistern against its peers, with the same load in the same run.
//!
//! Neighbours move the cost of a flush on a shared disk by more than ten times, so a figure counts only
//! beside its peers': runs are interleaved, repeated, and given as ratios of medians.

mod backup;
mod beside_cleaner;
mod beside_store;
mod cached_reads;
mod calibration;
mod cleaner_model;
mod clients;
mod cold_sequential;
mod dashboard;
mod defragment;
mod foreground;
mod loads;
mod many_volumes;
mod object_peers;
mod paced;
mod peers;
mod plot;
mod read_under_load;
mod remove;
mod report;
mod restart;
mod restic;
mod rows;
mod sampler;
mod scattered_reads;
mod shed;
mod space;
mod tree;
mod walk;
mod wan;

use std::time::Duration;

use anyhow::{Result, bail};
use cistern_harness::{scratch, serve::Cistern};
use clap::Args;

use crate::step;
use report::Report;

/// A cold release build.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

#[derive(Args)]
pub struct Options {
    /// Short runs, each once: to see that everything works. The figures mean little
    #[arg(long)]
    quick: bool,
    /// Only the groups whose name contains this, or one of these (a,b); see --list
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Print the names of the groups and stop
    #[arg(long)]
    list: bool,
}

/// How long and how often things are measured.
pub struct Plan {
    pub quick: bool,
    pub cistern: Cistern,
}

impl Plan {
    /// Seconds of a run that takes `full` seconds when it counts.
    pub fn seconds(&self, full: u64) -> u64 {
        if self.quick { full.div_ceil(5) } else { full }
    }

    /// How often each server is measured; the median counts.
    pub fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// A number of GiB, smaller when quick.
    pub fn gib(&self, full: u64) -> u64 {
        if self.quick { full.div_ceil(4) } else { full }
    }
}

type Group = (&'static str, fn(&Plan, &mut Report) -> Result<()>);

/// Groups of rows, in the order in which they run.
const GROUPS: &[Group] = &[
    ("random-write", rows::random_write),
    ("sustained", rows::sustained),
    ("aged", rows::aged),
    ("write-flush", rows::write_flush),
    ("flush-every-10", rows::flush_every_10),
    ("sequential", rows::sequential),
    ("requests", rows::requests),
    ("cpu", rows::cpu),
    ("whole-volume", rows::whole_volume),
    ("map", rows::map),
    ("walk", walk::run),
    ("paced", paced::run),
    ("upload", paced::upload),
    ("cold-sequential", cold_sequential::run),
    ("read-under-load", read_under_load::run),
    ("cached-reads", cached_reads::run),
    ("scattered-directory", scattered_reads::directory),
    ("scattered-link", scattered_reads::link),
    ("beside-store", beside_store::run),
    ("clients", clients::run),
    ("many-volumes", many_volumes::run),
    ("restart", restart::run),
    ("dashboard", dashboard::run),
    ("space", space::run),
    ("foreground-directory", foreground::directory),
    ("foreground-link", foreground::link),
    ("beside-cleaner", beside_cleaner::run),
    ("defragment", defragment::run),
    ("remove", remove::run),
    ("shed-snapshots", shed::run),
    ("send", backup::sends),
    ("copy", backup::copies),
    ("backup-beside-clients", backup::beside_clients),
    ("restic", restic::run),
];

/// Runs the groups and prints the table; a missed bound is a failure.
pub fn run(options: &Options) -> Result<()> {
    if options.list {
        GROUPS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let build = step::cargo(&["build", "--release", "--locked", "-p", "cistern"]);
    step::run("release build", build, BUILD_LIMIT)?;
    let plan =
        Plan { quick: options.quick, cistern: Cistern::new(scratch::target_dir()?.join("release/cistern")) };
    let mut report = Report::default();
    for (name, group) in GROUPS {
        if !options.only.is_empty() && !options.only.iter().any(|only| name.contains(only.as_str())) {
            continue;
        }
        eprintln!("{name} ...");
        if let Err(error) = group(&plan, &mut report) {
            report.failed(name, &error);
        }
    }
    report.print();
    report.save(plan.quick)?;
    match report.misses() {
        0 => Ok(()),
        misses => bail!("{misses} of the bounds were missed"),
    }
}
