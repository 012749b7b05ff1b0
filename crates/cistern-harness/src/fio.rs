//! fio with its NBD engine: load, verification and latencies, from a program nobody here wrote.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::tool;

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

/// Runs `fio --name=t --ioengine=nbd --uri=URI ARGS`; errors of the server or of verification fail.
pub fn nbd(scratch: &Path, uri: &str, args: &[&str], limit: Duration) -> Result<Value> {
    let mut command = tool::command("fio")?;
    let out = scratch.join("fio.json");
    command
        .current_dir(scratch) // fio leaves verify states and logs where it runs
        .args(["--name=t", "--thread", "--ioengine=nbd", "--randrepeat=0", "--percentile_list=50:99"])
        .arg(format!("--uri={uri}"))
        .args(["--output-format=json", "--output=fio.json"])
        .args(args);
    tool::run_command(command, limit)?;
    let text = std::fs::read_to_string(&out)?;
    let from = text.find('{').context("fio wrote no JSON")?;
    serde_json::from_str(&text[from..]).context("fio wrote broken JSON")
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
