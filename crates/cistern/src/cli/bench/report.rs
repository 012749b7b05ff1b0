//! What was measured, for people and for programs.

use serde::Serialize;

use super::{
    limits::{BenchLimit, limits, sentence},
    load::{LoadResult, LoadShape},
};
use crate::{
    failure::Outcome,
    quantity::{ByteSize, Thousands},
    terminal,
};

/// Of what something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchedPart {
    Volume,
    Disk,
    Store,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchedWork {
    SequentialWrite,
    /// What was written one behind the other, until all of it was in the store.
    Upload,
    RandomWrite,
    WriteFlush,
    SequentialRead,
    RandomRead,
    DiskWrite,
    DiskWriteSync,
    StorePut,
    StorePutSmall,
    StoreGet,
    StoreGetRandom,
}

impl BenchedWork {
    fn part(self) -> BenchedPart {
        use BenchedWork::*;
        match self {
            SequentialWrite | Upload | RandomWrite | WriteFlush | SequentialRead | RandomRead => {
                BenchedPart::Volume
            }
            DiskWrite | DiskWriteSync => BenchedPart::Disk,
            StorePut | StorePutSmall | StoreGet | StoreGetRandom => BenchedPart::Store,
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        use BenchedWork::*;
        match self {
            SequentialWrite => "sequential write",
            Upload => "until it is in the store",
            RandomWrite => "random write",
            WriteFlush => "write, then flush",
            SequentialRead => "sequential read",
            RandomRead => "random read",
            DiskWrite => "write",
            DiskWriteSync => "write, then sync",
            StorePut => "put",
            StorePutSmall => "put, small",
            StoreGet => "ranged get",
            StoreGetRandom => "ranged get, random",
        }
    }
}

/// One measurement. Latencies are at most 25 % too high, never too low.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    pub part: BenchedPart,
    pub work: BenchedWork,
    pub request_bytes: u64,
    pub depth: u32,
    pub requests: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub bytes_per_second: f64,
    pub requests_per_second: f64,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub max_us: Option<u64>,
}

impl BenchRow {
    pub fn new(work: BenchedWork, shape: LoadShape, result: &LoadResult) -> BenchRow {
        BenchRow {
            part: work.part(),
            work,
            request_bytes: shape.request_bytes,
            depth: shape.depth,
            requests: result.requests,
            bytes: result.bytes,
            seconds: result.time.as_secs_f64(),
            bytes_per_second: result.bytes_per_s(),
            requests_per_second: result.requests_per_s(),
            p50_us: result.latency.p50_us,
            p99_us: result.latency.p99_us,
            max_us: Some(result.latency.max_us).filter(|_| result.latency.count > 0),
        }
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct BenchReport {
    /// As it was named.
    pub url: String,
    /// The volume that was measured.
    pub volume: String,
    /// Made for this, and removed.
    pub scratch: bool,
    /// Whether it was measured through the daemon that serves it.
    pub through_daemon: bool,
    pub size_bytes: u64,
    /// Where the disk was measured.
    pub state_dir: String,
    pub rows: Vec<BenchRow>,
    pub limits: Vec<BenchLimit>,
}

impl BenchReport {
    pub fn say(mut self, json: bool) -> Outcome {
        self.limits = limits(&self.rows);
        match json {
            true => terminal::say_json(&self),
            false => terminal::say(self.text()),
        }
    }

    fn text(&self) -> String {
        let heading =
            ["", "request", "at once", "rate", "requests/s", "half within", "99 % within"].map(str::to_owned);
        let mut rows = vec![heading.to_vec()];
        for (part, title) in [
            (BenchedPart::Volume, "volume"),
            (BenchedPart::Disk, "disk alone"),
            (BenchedPart::Store, "store alone"),
        ] {
            let mut of_it = self.rows.iter().filter(|row| row.part == part).peekable();
            if of_it.peek().is_some() {
                rows.push(vec![title.to_owned()]);
            }
            rows.extend(of_it.map(cells));
        }
        let how = match (self.scratch, self.through_daemon) {
            (true, _) => "a scratch volume, made for this and removed",
            (false, true) => "as its daemon serves it",
            (false, false) => "opened here",
        };
        let size = ByteSize(self.size_bytes);
        let mut lines = vec![
            format!("volume  {}, {size}: {how}", self.volume),
            format!("disk    {}", self.state_dir),
            String::new(),
        ];
        lines.extend(terminal::right_aligned(&rows).lines().map(|line| line.trim_end().to_owned()));
        lines.extend(sentence(&self.limits).map(|sentence| format!("\n{sentence}")));
        lines.join("\n")
    }
}

fn cells(row: &BenchRow) -> Vec<String> {
    let latency = |us: Option<u64>| us.map_or("-".to_owned(), latency);
    let per_second = match row.requests_per_second {
        few if few < 100.0 => format!("{few:.1}"),
        many => Thousands(many as u64).to_string(),
    };
    vec![
        format!("  {}", row.work.name()),
        ByteSize(row.request_bytes).to_string(),
        row.depth.to_string(),
        rate(row.bytes_per_second),
        per_second,
        latency(row.p50_us),
        latency(row.p99_us),
    ]
}

/// Bytes per second as people read it.
pub fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", ByteSize(bytes_per_s as u64))
}

/// A latency as people read it.
pub fn latency(us: u64) -> String {
    match us {
        0..100 => format!("{us} us"),
        _ => format!("{:.2} ms", us as f64 / 1000.0),
    }
}
