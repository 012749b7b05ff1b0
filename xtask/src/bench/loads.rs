//! The loads: fio jobs that are the same for every server, and loops where each request is timed.

use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cistern_harness::{
    fio::{self, Figures},
    fixture::random_bytes,
    nbd::{Client, Dialect},
};

use super::peers::Target;

/// A run that takes this much longer than planned hangs.
pub const SLACK: Duration = Duration::from_secs(600);

/// Times of single requests in seconds, and of the whole loop.
#[derive(Clone, Debug, Default)]
pub struct Times {
    each_s: Vec<f64>,
    total_s: f64,
}

impl Times {
    pub fn per_second(&self) -> f64 {
        self.each_s.len() as f64 / self.total_s.max(1e-9)
    }

    pub fn p50_us(&self) -> f64 {
        let mut sorted = self.each_s.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map_or(f64::NAN, |s| s * 1e6)
    }

    pub fn longest_s(&self) -> f64 {
        self.each_s.iter().copied().fold(0.0, f64::max)
    }

    /// Requests that began within the first `seconds`.
    pub fn within(&self, seconds: f64) -> usize {
        self.each_s
            .iter()
            .scan(0.0, |at, s| Some(std::mem::replace(at, *at + s)))
            .take_while(|at| *at < seconds)
            .count()
    }

    /// Seconds that the first `count` requests took.
    pub fn of_first(&self, count: usize) -> f64 {
        self.each_s.iter().take(count).sum()
    }

    pub fn len(&self) -> usize {
        self.each_s.len()
    }

    pub fn total_s(&self) -> f64 {
        self.total_s
    }
}

/// Calls `request` for `seconds` and times each call.
fn timed(seconds: u64, mut request: impl FnMut(u64) -> Result<()>) -> Result<Times> {
    let begin = Instant::now();
    let end = Duration::from_secs(seconds);
    let mut times = Times::default();
    let mut last = Duration::ZERO;
    while last < end {
        request(times.each_s.len() as u64)?;
        let now = begin.elapsed();
        times.each_s.push((now - last).as_secs_f64());
        last = now;
    }
    times.total_s = last.as_secs_f64();
    Ok(times)
}

/// A random multiple of 4096 below `bytes`, the same for the same `n`.
fn random_offset(n: u64, bytes: u64) -> u64 {
    let draw = u64::from_le_bytes(random_bytes(8, n + 1).try_into().expect("eight bytes"));
    draw % (bytes / 4096) * 4096
}

/// 4 KiB at a random place, then FLUSH, one at a time.
pub fn write_and_flush(target: &Target, bytes: u64, seconds: u64) -> Result<Times> {
    let mut client = Client::connect(&target.socket, "", Dialect::Simple)?;
    let block = random_bytes(4096, 7);
    timed(seconds, |n| {
        client.write(random_offset(n, bytes), &block)?;
        client.flush()
    })
}

/// The same on the bare disk: pwrite with O_DIRECT, then fdatasync.
pub fn write_and_sync(file: &Path, bytes: u64, seconds: u64) -> Result<Times> {
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(file)?;
    let block = Aligned([0x5a; 4096]);
    timed(seconds, |n| {
        file.write_all_at(&block.0, random_offset(n, bytes))?;
        file.sync_data().context("fdatasync")
    })
}

/// O_DIRECT wants aligned memory.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// 128 KiB after 128 KiB, one at a time, `bytes` in all; then one FLUSH, timed apart.
pub fn sequential(target: &Target, bytes: u64) -> Result<(Times, f64)> {
    const PIECE_BYTES: u64 = 128 << 10;
    let mut client = Client::connect(&target.socket, "", Dialect::Simple)?;
    let data = random_bytes(PIECE_BYTES as usize, 9);
    let begin = Instant::now();
    let mut times = Times::default();
    let mut last = Duration::ZERO;
    for offset in (0..bytes).step_by(PIECE_BYTES as usize) {
        client.write(offset, &data)?;
        let now = begin.elapsed();
        times.each_s.push((now - last).as_secs_f64());
        last = now;
    }
    times.total_s = last.as_secs_f64();
    client.flush()?;
    Ok((times, (begin.elapsed() - last).as_secs_f64()))
}

/// fio's 4 KiB random writes over `gib` GiB for `seconds`.
pub fn random_write(target: &Target, gib: u64, depth: u32, seconds: u64, more: &[&str]) -> Result<Figures> {
    let mut args = vec!["--rw=randwrite", "--bs=4k", "--norandommap", "--time_based"];
    let own = [format!("--iodepth={depth}"), format!("--size={gib}g"), format!("--runtime={seconds}")];
    args.extend(own.iter().map(String::as_str));
    args.extend(more);
    write(target, &args, Duration::from_secs(seconds))
}

/// fio's writes with these arguments; planned for `planned`.
pub fn write(target: &Target, args: &[&str], planned: Duration) -> Result<Figures> {
    let report = fio::nbd(target.scratch.path(), &target.uri(), args, planned + SLACK)?;
    fio::figures(&report, "write")
}
