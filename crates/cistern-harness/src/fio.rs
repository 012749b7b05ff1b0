//! fio with its NBD engine: load, verification and latencies, from a program nobody here wrote.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{process::Guard, tool};

/// What a run says about one direction (write or read).
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub iops: f64,
    pub bytes: u64,
    /// Time spent in the run.
    pub runtime_ms: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// Latencies of flushes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flushes {
    pub count: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub max_us: f64,
}

/// Runs `fio --name=t --ioengine=nbd --uri=URI ARGS`; errors of the server or of verification fail.
pub fn nbd(scratch: &Path, uri: &str, args: &[&str], limit: Duration) -> Result<Value> {
    report(nbd_command(scratch, uri)?, scratch, args, limit)
}

/// Runs one job for each of `uris` at the same time, all with these arguments: as many clients, each with a connection
/// of its own.
pub fn clients(scratch: &Path, uris: &[String], args: &[&str], limit: Duration) -> Result<Value> {
    let mut command = command(scratch)?;
    command.arg("--ioengine=nbd").args(args); // what stands before the first name is for all jobs
    for (n, uri) in uris.iter().enumerate() {
        command.arg(format!("--name=client-{n}")).arg(format!("--uri={uri}"));
    }
    report(command, scratch, &[], limit)
}

fn report(mut command: Command, scratch: &Path, args: &[&str], limit: Duration) -> Result<Value> {
    command.args(["--output-format=json", "--output=fio.json"]).args(args);
    tool::run_command(command, limit)?;
    let text = std::fs::read_to_string(scratch.join("fio.json"))?;
    let from = text.find('{').context("fio wrote no JSON")?;
    serde_json::from_str(&text[from..]).context("fio wrote broken JSON")
}

/// Starts `nbd` as a load in the background, which lasts until the guard is dropped.
pub fn background(scratch: &Path, uri: &str, args: &[&str]) -> Result<Guard> {
    let log = std::fs::File::create(scratch.join("fio.log"))?;
    let mut command = nbd_command(scratch, uri)?;
    command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Guard::spawn(command)
}

fn nbd_command(scratch: &Path, uri: &str) -> Result<Command> {
    let mut command = command(scratch)?;
    command.args(["--name=t", "--ioengine=nbd"]).arg(format!("--uri={uri}"));
    Ok(command)
}

fn command(scratch: &Path) -> Result<Command> {
    let mut command = tool::command("fio")?;
    command
        .current_dir(scratch) // fio leaves verify states and logs where it runs
        .args(["--thread", "--randrepeat=0", "--percentile_list=50:99:99.9"]);
    Ok(command)
}

/// The figures of `direction` ("write" or "read"), all jobs together (percentiles: the first job's).
pub fn figures(report: &Value, direction: &str) -> Result<Figures> {
    let jobs = report["jobs"].as_array().context("fio reports no jobs")?;
    let mut all = Figures::default();
    for (n, job) in jobs.iter().enumerate() {
        let part = &job[direction];
        all.iops += part["iops"].as_f64().unwrap_or(0.0);
        all.bytes += part["io_bytes"].as_u64().unwrap_or(0);
        all.runtime_ms = all.runtime_ms.max(part["runtime"].as_u64().unwrap_or(0));
        let latency = &part["clat_ns"];
        all.max_us = all.max_us.max(latency["max"].as_f64().unwrap_or(0.0) / 1e3);
        if n == 0 {
            all.p50_us = latency["percentile"]["50.000000"].as_f64().unwrap_or(0.0) / 1e3;
            all.p99_us = latency["percentile"]["99.000000"].as_f64().unwrap_or(0.0) / 1e3;
        }
    }
    Ok(all)
}

/// Requests a second of each job.
pub fn iops_of_each(report: &Value, direction: &str) -> Result<Vec<f64>> {
    let jobs = report["jobs"].as_array().context("fio reports no jobs")?;
    jobs.iter().map(|job| job[direction]["iops"].as_f64().context("fio counted no requests")).collect()
}

/// The flushes of the first job.
pub fn flushes(report: &Value) -> Result<Flushes> {
    let latency = &report["jobs"][0]["sync"]["lat_ns"];
    let us = |value: &Value| value.as_f64().map(|ns| ns / 1e3).context("fio timed no flushes");
    Ok(Flushes {
        count: report["jobs"][0]["sync"]["total_ios"].as_u64().unwrap_or(0),
        p50_us: us(&latency["percentile"]["50.000000"])?,
        p99_us: us(&latency["percentile"]["99.000000"])?,
        p99_9_us: us(&latency["percentile"]["99.900000"])?,
        max_us: us(&latency["max"])?,
    })
}

/// Requests of each full second, from the log that `--write_iops_log=NAME --log_avg_msec=1000` leaves.
///
/// fio leaves out seconds in which nothing ended: they are zeroes here.
pub fn per_second(scratch: &Path, name: &str) -> Result<Vec<f64>> {
    let path = scratch.join(format!("{name}_iops.1.log"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    series(&text).context("a broken log of fio")
}

/// Lines of `milliseconds, value, ...`, each about the second before that time.
fn series(text: &str) -> Option<Vec<f64>> {
    let mut seconds = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(',').map(|field| field.trim().parse::<f64>());
        let (ms, value) = (fields.next()?.ok()?, fields.next()?.ok()?);
        let second = (ms / 1000.0).round() as usize;
        while seconds.len() + 1 < second {
            seconds.push(0.0);
        }
        seconds.push(value);
    }
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second without a line was one without requests.
    #[test]
    fn missing_seconds_are_zeroes() {
        let log = "1000, 5, 1, 4096, 0\n2001, 7, 1, 4096, 0\n4999, 9, 1, 4096, 0\n6000, 2, 1, 4096, 0\n";
        assert_eq!(series(log), Some(vec![5.0, 7.0, 0.0, 0.0, 9.0, 2.0]));
        assert_eq!(series("nonsense\n"), None);
    }
}
