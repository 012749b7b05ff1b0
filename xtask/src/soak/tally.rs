//! What happened, in numbers.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    serve::{Cistern, Serve, Server},
    tool,
};
use serde_json::Value;

use super::{
    clients::{Fio, Promised},
    place::Place,
};

/// Reads the whole volume.
const CHECK_LIMIT: Duration = Duration::from_secs(1800);
const MIB: f64 = (1u64 << 20) as f64;

/// Sums over all daemons. What one does between the last look at it and its kill is not in them.
#[derive(Default)]
pub struct Tally {
    pub kills: u64,
    pub kills_of_openings: u64,
    /// That were made; some were removed again.
    pub snapshots: u64,
    /// The same of clones.
    pub clones: u64,
    /// There and back.
    pub rollbacks: u64,
    /// Daemons that were left alone until there was room again.
    pub long_lives: u64,
    pub restart_max: Duration,
    /// Daemons whose cleaner moved something.
    cleaning_lives: u64,
    written_bytes: u64,
    moved_bytes: u64,
    vacated_segments: u64,
    swept_objects: u64,
    deleted_objects: u64,
    deleted_bytes: u64,
    /// Of `check` at the end.
    pub report: Value,
}

impl Tally {
    /// Adds what a daemon did.
    pub fn end_of_life(&mut self, server: &Server) -> Result<()> {
        let space = space(server)?;
        let count =
            |name: &str| space["counters"][name].as_u64().with_context(|| format!("no {name} in the status"));
        let moved_bytes = count("moved_bytes")?;
        self.cleaning_lives += u64::from(moved_bytes > 0);
        self.moved_bytes += moved_bytes;
        self.written_bytes += count("written_bytes")?;
        self.vacated_segments += count("vacated_segments")?;
        self.swept_objects += count("swept_objects")?;
        self.deleted_objects += count("deleted_objects")?;
        self.deleted_bytes += count("deleted_bytes")?;
        Ok(())
    }

    /// How it is going.
    pub fn short(&self) -> String {
        format!(
            "{} kills; {:.0} MiB stored of clients, {:.0} MiB moved in {} lives, {} objects deleted; restart at most {:.1} s",
            self.kills,
            self.written_bytes as f64 / MIB,
            self.moved_bytes as f64 / MIB,
            self.cleaning_lives,
            self.deleted_objects,
            self.restart_max.as_secs_f64()
        )
    }

    pub fn print(&self, promised: &Promised, fio: &Fio, place: &Place) {
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB);
        let line = |name: &str, value: String| println!("{name:<34} {value}");
        println!();
        line("kills", format!("{}, and {} of openings", self.kills, self.kills_of_openings));
        line("snapshots", format!("{} made, {} of them cloned", self.snapshots, self.clones));
        line("rolled back and forth", format!("{} times", self.rollbacks));
        line("restart at most", format!("{:.2} s", self.restart_max.as_secs_f64()));
        line("left alone for room", format!("{} times", self.long_lives));
        line(
            "written, exact client",
            format!(
                "{}; verified {} in {} checks",
                mib(promised.written_bytes()),
                mib(promised.verified_bytes),
                promised.checks
            ),
        );
        line(
            "written, fio",
            format!("{}; verified {} in {} laps", mib(fio.written_bytes), mib(fio.verified_bytes), fio.laps),
        );
        line("segments of clients stored", mib(self.written_bytes));
        line("moved by the cleaner", format!("{} in {} lives", mib(self.moved_bytes), self.cleaning_lives));
        line("segments vacated", self.vacated_segments.to_string());
        line("objects deleted", format!("{}, {}", self.deleted_objects, mib(self.deleted_bytes)));
        line("orphans found by sweeps", self.swept_objects.to_string());
        if let Some((requests, faults)) = place.requests() {
            line("requests, failed on purpose", format!("{requests}, {}", faults.values().sum::<u64>()));
            faults.iter().for_each(|(kind, n)| line(&format!("  {kind}"), n.to_string()));
        }
        for kind in ["all", "segments", "grace", "orphans"] {
            let sum = &self.report["space"][kind];
            let bytes = sum["bytes"].as_u64().unwrap_or(0);
            line(
                &format!("left in the store, {kind}"),
                format!("{} objects, {}", sum["objects"], mib(bytes)),
            );
        }
        line("  live of it", mib(self.report["space"]["live_bytes"].as_u64().unwrap_or(0)));
        line("mismatches, damage, miscounts", "0".into());
    }
}

/// `check --data --space` of the volume, which must find nothing; what it remarks is shown.
pub fn checked(cistern: &Cistern, url: &str) -> Result<Value> {
    let mut command = cistern.command();
    command.args(["check", "--data", "--space", "--json", url]);
    let out = tool::run_command(command, CHECK_LIMIT)?;
    let report: Value = serde_json::from_str(&out.stdout).context("check printed no JSON")?;
    let none = |name: &str| report[name].as_array().is_some_and(Vec::is_empty);
    ensure!(none("faults"), "{report:#}");
    for finding in report["findings"].as_array().into_iter().flatten() {
        println!("no damage: {finding}");
    }
    Ok(report)
}

/// The names of the snapshots that the volume has.
pub fn snapshots(serve: &Serve, url: &str) -> Result<BTreeSet<String>> {
    let listed: Value = serde_json::from_str(&serve.ask(&["ls", url, "--json"])?.stdout)?;
    let all = listed.as_array().context("ls gives a list")?;
    Ok(all.iter().filter_map(|snapshot| snapshot["name"].as_str().map(str::to_owned)).collect())
}

/// Bytes that wait for the end of their grace.
pub fn grace_bytes(server: &Server) -> Result<u64> {
    space(server)?["grace_bytes"].as_u64().context("no grace_bytes in the status")
}

fn space(server: &Server) -> Result<Value> {
    let mut status = server.status()?;
    let space = status.pointer_mut("/daemons/0/volumes/0/space").map(Value::take);
    space.context("no space in the status")
}
