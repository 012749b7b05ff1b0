//! What limits a volume, by what the disk and the store do alone: a pure decision.

use serde::Serialize;

use super::report::{BenchRow, BenchedPart, BenchedWork, latency, rate};

/// Share of what something does alone from which on it is what limits.
const NEAR: f64 = 0.5;

/// What limits one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchLimit {
    pub work: BenchedWork,
    /// The disk or the store; null where either does much more: then it is cistern itself, and the processors.
    pub by: Option<BenchedPart>,
    /// What the volume does of what that does alone. Above 1 where more came with a request than was asked for.
    pub share: f64,
    /// In words.
    #[serde(skip)]
    text: String,
}

/// How two measurements are compared.
#[derive(Clone, Copy)]
enum Measure {
    Rate,
    Requests,
    /// Half of the requests.
    Latency,
}

/// What people call the work, the volume's measurement, what it stands on, and how they are compared.
const COMPARED: [(&str, BenchedWork, BenchedWork, Measure); 5] = [
    ("writes in bursts", BenchedWork::SequentialWrite, BenchedWork::DiskWrite, Measure::Rate),
    ("flushes", BenchedWork::WriteFlush, BenchedWork::DiskWriteSync, Measure::Latency),
    ("writes that last", BenchedWork::Upload, BenchedWork::StorePut, Measure::Rate),
    ("sequential reads", BenchedWork::SequentialRead, BenchedWork::StoreGet, Measure::Rate),
    ("random reads", BenchedWork::RandomRead, BenchedWork::StoreGetRandom, Measure::Requests),
];

/// What limits each kind of work that was measured.
pub fn limits(rows: &[BenchRow]) -> Vec<BenchLimit> {
    let of = |work: BenchedWork| rows.iter().find(|row| row.work == work);
    let compared = COMPARED.iter().filter_map(|&(name, work, below, measure)| {
        let (volume, alone) = (of(work)?, of(below)?);
        let (share, ours, theirs) = match measure {
            Measure::Rate => {
                let (ours, theirs) = (volume.bytes_per_second, alone.bytes_per_second);
                (ours / theirs, rate(ours), rate(theirs))
            }
            Measure::Requests => {
                let (ours, theirs) = (volume.requests_per_second, alone.requests_per_second);
                (ours / theirs, format!("{ours:.0}/s"), format!("{theirs:.0}/s"))
            }
            Measure::Latency => {
                let (ours, theirs) = (volume.p50_us?, alone.p50_us?);
                (theirs as f64 / ours.max(1) as f64, latency(ours), latency(theirs))
            }
        };
        let (by, who) = match (share >= NEAR, alone.part) {
            (true, BenchedPart::Disk) => (Some(BenchedPart::Disk), "the local disk"),
            (true, _) => (Some(BenchedPart::Store), "the store"),
            (false, _) => (None, "cistern and this host's processors"),
        };
        let below = if alone.part == BenchedPart::Disk { "disk" } else { "store" };
        let text = format!("{name} by {who} ({ours}, the {below} alone {theirs})");
        Some(BenchLimit { work, by, share, text })
    });
    compared.collect()
}

/// All of it in one sentence; `None` if there is nothing to compare.
pub fn sentence(limits: &[BenchLimit]) -> Option<String> {
    let all: Vec<&str> = limits.iter().map(|limit| limit.text.as_str()).collect();
    (!all.is_empty()).then(|| format!("What limits: {}.", all.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cistern_engine::stats::Latencies;

    use super::{
        super::load::{LoadResult, LoadShape},
        *,
    };

    fn row(work: BenchedWork, mib_per_s: u64, latency_us: u64) -> BenchRow {
        let (latencies, requests) = (Latencies::default(), mib_per_s * 256);
        latencies.record(Duration::from_micros(latency_us));
        let time = Duration::from_secs(1);
        let result = LoadResult { requests, bytes: requests * 4096, time, latency: latencies.snapshot() };
        BenchRow::new(work, LoadShape { depth: 1, request_bytes: 4096 }, &result)
    }

    /// Whoever does about as much alone limits; where both do much more, it is the program itself.
    #[test]
    fn what_is_near_limits() {
        let rows = [
            row(BenchedWork::SequentialWrite, 90, 100),
            row(BenchedWork::Upload, 20, 100),
            row(BenchedWork::WriteFlush, 1, 500),
            row(BenchedWork::RandomRead, 10, 100),
            row(BenchedWork::DiskWrite, 100, 100),
            row(BenchedWork::DiskWriteSync, 1, 400),
            row(BenchedWork::StorePut, 30, 100),
            row(BenchedWork::StoreGetRandom, 100, 100),
        ];
        let limits = limits(&rows);
        let by: Vec<_> = limits.iter().map(|limit| (limit.work, limit.by)).collect();
        assert_eq!(
            by,
            [
                (BenchedWork::SequentialWrite, Some(BenchedPart::Disk)),
                (BenchedWork::WriteFlush, Some(BenchedPart::Disk)),
                (BenchedWork::Upload, Some(BenchedPart::Store)),
                (BenchedWork::RandomRead, None),
            ]
        );
        assert_eq!(
            sentence(&limits).expect("there is something"),
            "What limits: writes in bursts by the local disk (90 MiB/s, the disk alone 100 MiB/s); flushes by the local disk \
             (0.50 ms, the disk alone 0.40 ms); writes that last by the store (20 MiB/s, the store alone 30 MiB/s); random \
             reads by cistern and this host's processors (2560/s, the store alone 25600/s)."
        );
    }

    /// Where only one side was measured nothing is claimed.
    #[test]
    fn nothing_is_made_up() {
        assert_eq!(sentence(&limits(&[row(BenchedWork::SequentialRead, 5, 1)])), None);
    }
}
