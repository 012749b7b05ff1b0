//! Cold reads of what was written in order and then overwritten at random: what databases and aged pools look like.
//!
//! From a directory beside a plain server on a raw file, and behind a link beside a client that does nothing but
//! ranged GETs of the same size: a link with a round trip, and one whose store takes its time for each request as real
//! ones do. "Cold": no chunk cache on the host yet, and the kernel has forgotten the store's files.

use std::{os::fd::AsRawFd, path::Path, time::Duration};

use anyhow::{Context, Result};
use cistern_harness::{
    fio::{self, Figures},
    fixture,
    link::{Conditions, Delay},
    plain,
    scratch::Scratch,
    serve::Server,
};
use serde_json::Value;

use super::{
    Plan,
    peers::{Peer, Target},
    report::{Bound, Report, median},
    wan::{GOOD, Wan},
};

const LIMIT: Duration = Duration::from_secs(1800);
pub const FILL: [&str; 4] = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers"];
pub const OVERWRITE: [&str; 5] =
    ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap", "--refill_buffers"];
const RANDOM: [&str; 4] = ["--rw=randread", "--bs=4k", "--iodepth=32", "--norandommap"];
pub const IN_ORDER: [&str; 3] = ["--rw=read", "--bs=1m", "--iodepth=8"];
/// What small GETs of real object stores take, in place of a round trip.
const UNEVEN: Delay = Delay { median: Duration::from_millis(20), p99: Duration::from_millis(200), seed: 1 };
/// Connections of the plain client, and bytes of its requests.
const PLAIN_CONNECTIONS: usize = 32;
const PLAIN_BYTES: u64 = 4096;

/// One run of reads and what the daemon spent on it.
pub struct Run {
    figures: Figures,
    cpu_s: f64,
    /// Of the store, and of read-ahead.
    gets: u64,
    fetched_bytes: u64,
    wasted_bytes: u64,
    /// Downloads that the scheduler allowed at once in the end.
    limit: u64,
}

impl Run {
    fn of(server: &Server, scratch: &Scratch, load: &[&str]) -> Result<Run> {
        let (cpu, before) = (server.usage()?.cpu, server.observed()?);
        let json = fio::nbd(scratch.path(), &server.uri(), load, LIMIT)?;
        let (cpu_s, after) = ((server.usage()?.cpu - cpu).as_secs_f64(), server.observed()?);
        let grown = |what: fn(&Value) -> Result<u64>| anyhow::Ok(what(&after)? - what(&before)?);
        Ok(Run {
            figures: fio::figures(&json, "read")?,
            cpu_s,
            gets: grown(|s| ranged(s, "requests"))?,
            fetched_bytes: grown(|s| ranged(s, "bytes"))?,
            wasted_bytes: grown(|s| number(s, "/daemons/0/volumes/0/ahead/wasted_bytes"))?,
            limit: number(&after, "/daemons/0/scheduler/places/0/downloads/limit")?,
        })
    }

    pub fn mib_per_s(&self) -> f64 {
        self.figures.bytes as f64 / (1 << 20) as f64 / (self.figures.runtime_ms.max(1) as f64 / 1e3)
    }

    fn cpu_us_per_block(&self) -> f64 {
        self.cpu_s * 1e6 / (self.figures.bytes as f64 / 4096.0)
    }

    fn cpu_s_per_gib(&self) -> f64 {
        self.cpu_s / (self.figures.bytes as f64 / (1u64 << 30) as f64)
    }

    pub fn fetched_per_byte(&self) -> f64 {
        self.fetched_bytes as f64 / self.figures.bytes as f64
    }

    pub fn shown(&self) -> String {
        format!(
            "{:.0} IOPS, {:.1} MiB/s, {:.1} us of CPU per 4 KiB; {} GETs, {:.2} bytes fetched per byte delivered, \
             {:.1} MiB read ahead and thrown away; {} downloads allowed at once in the end",
            self.figures.iops,
            self.mib_per_s(),
            self.cpu_us_per_block(),
            self.gets,
            self.fetched_per_byte(),
            self.wasted_bytes as f64 / (1 << 20) as f64,
            self.limit,
        )
    }
}

fn number(status: &Value, path: &str) -> Result<u64> {
    status.pointer(path).and_then(Value::as_u64).with_context(|| format!("status has no {path}"))
}

/// A figure of ranged reads of the store.
fn ranged(status: &Value, what: &str) -> Result<u64> {
    let kinds = status.pointer("/daemons/0/volumes/0/store/kinds").and_then(Value::as_array);
    let kind = kinds.into_iter().flatten().find(|kind| kind["kind"] == "get_range");
    kind.and_then(|kind| kind[what].as_u64()).context("status has no ranged reads")
}

/// Has the kernel forget what it keeps of the files below a directory.
fn forget_pages(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            forget_pages(&path)?;
            continue;
        }
        let file = std::fs::File::open(&path)?;
        // SAFETY: an open descriptor, nothing is passed by reference.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(())
}

/// A volume in a directory, and a server on it that has just started with empty local directories.
struct InDirectory {
    scratch: Scratch,
    url: String,
    mib: u64,
}

impl InDirectory {
    fn start(plan: &Plan, mib: u64, scattered: bool) -> Result<InDirectory> {
        let scratch = Scratch::new("bench-scattered")?;
        let url = fixture::directory_url(&scratch)?;
        plan.cistern.run(&["create", &url, "--size", &format!("{mib}M")])?;
        let server = plan.cistern.serve(&scratch, &url).start()?;
        let size = format!("--size={mib}m");
        fio::nbd(scratch.path(), &server.uri(), &[&FILL[..], &[&size]].concat(), LIMIT)?;
        if scattered {
            fio::nbd(scratch.path(), &server.uri(), &[&OVERWRITE[..], &[&size]].concat(), LIMIT)?;
        }
        server.stop()?;
        Ok(InDirectory { scratch, url, mib })
    }

    fn cold(&self, plan: &Plan, load: &[&str]) -> Result<Run> {
        forget_pages(self.scratch.path())?;
        let dir = |what: &str| self.scratch.file(&format!("{what}-reader"));
        let serve = plan.cistern.serve(&self.scratch, &self.url);
        let server = serve.state_dir(dir("state")).cache_dir(dir("cache")).start()?;
        let run = Run::of(&server, &self.scratch, &[load, &[&format!("--size={}m", self.mib)]].concat());
        server.stop()?;
        for what in ["state", "cache"] {
            let _ = std::fs::remove_dir_all(dir(what)); // may not exist
        }
        run
    }
}

pub fn directory(plan: &Plan, report: &mut Report) -> Result<()> {
    let gib = plan.gib(4);
    let peer = Target::start(&plan.cistern, Peer::QemuNbd, gib, &[])?;
    let size = format!("--size={}m", gib << 10);
    let theirs = |load: &[&str]| -> Result<Figures> {
        let json = fio::nbd(peer.scratch.path(), &peer.uri(), &[load, &[&size]].concat(), LIMIT)?;
        fio::figures(&json, "read")
    };
    let mib_per_s = |f: &Figures| f.bytes as f64 / (1 << 20) as f64 / (f.runtime_ms.max(1) as f64 / 1e3);
    let time = format!("--runtime={}", plan.seconds(10));
    let random = [&RANDOM[..], &["--time_based", &time]].concat();
    for scattered in [true, false] {
        let how = if scattered { "overwritten at random" } else { "written in order" };
        let ours = InDirectory::start(plan, gib << 10, scattered)?;
        let mut values = [const { Vec::new() }; 6];
        for _ in 0..plan.rounds() {
            let (one, other) = (ours.cold(plan, &random)?, theirs(&random)?);
            let (whole, all) = (ours.cold(plan, &IN_ORDER)?, theirs(&IN_ORDER)?);
            report.note(format!("directory, {how}, 4 KiB at random: {}", one.shown()));
            report.note(format!("directory, {how}, 1 MiB in order: {}", whole.shown()));
            let of = [one.figures.iops, other.iops, one.cpu_us_per_block()];
            let more = [whole.mib_per_s(), mib_per_s(&all), whole.cpu_s_per_gib()];
            values.iter_mut().zip(of.into_iter().chain(more)).for_each(|(values, value)| values.push(value));
        }
        let [iops, peer_iops, cpu_us, rate, peer_rate, cpu_s] = values.map(median);
        let row = |what: &str| format!("{what}, cold, from a directory, {how}");
        report.row(
            &row("4 KiB random read, depth 32"),
            format!("{iops:.0} IOPS"),
            format!("qemu-nbd on a raw file {peer_iops:.0}"),
            iops / peer_iops,
            Bound::AtLeast(0.7),
        );
        let used = format!("{cpu_us:.1} us");
        let all = "engine, protocol and kernel together".to_owned();
        report.row(&row("the same: CPU per read, us"), used, all.clone(), cpu_us, Bound::AtMost(22.0));
        let measured = format!("{rate:.0} MiB/s");
        let against = format!("qemu-nbd on a raw file {peer_rate:.0} MiB/s");
        match scattered {
            true => {
                let (value, bound) = (rate, Bound::AtLeast(300.0));
                report.row(&row("1 MiB sequential read, depth 8, MiB/s"), measured, against, value, bound);
                let used = format!("{cpu_s:.1} s");
                report.row(&row("the same: CPU per GiB, s"), used, all, cpu_s, Bound::AtMost(5.0));
            }
            false => {
                let (value, bound) = (rate / peer_rate, Bound::AtLeast(0.8));
                report.row(&row("1 MiB sequential read, depth 8"), measured, against, value, bound);
            }
        }
    }
    Ok(())
}

pub fn link(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start(plan, "4G")?;
    let mib = plan.gib(1) << 10;
    let size = format!("--size={mib}m");
    let writer = wan.host(&wan.cistern_beside(), "writer").args(["--cache-size", "0"]).start()?;
    fio::nbd(wan.scratch.path(), &writer.uri(), &[&FILL[..], &[&size]].concat(), LIMIT)?;
    fio::nbd(wan.scratch.path(), &writer.uri(), &[&OVERWRITE[..], &[&size]].concat(), LIMIT)?;
    writer.stop()?;
    wan.forget("writer");
    wan.minio.open_to_all()?;
    wan.limit(GOOD, report)?;
    let time = format!("--runtime={}", plan.seconds(20));
    let random = [&RANDOM[..], &["--time_based", &time, &size]].concat();
    let mut values = [const { Vec::new() }; 6];
    for _ in 0..plan.rounds() {
        let (one, client) = beside_a_plain_client(plan, &wan, &random)?;
        let whole = on_a_new_host(&wan, &[&IN_ORDER[..], &[&size]].concat())?;
        report.note(format!("link, 4 KiB at random: {}; plain client {client:.0} GET/s", one.shown()));
        report.note(format!("link, 1 MiB in order: {}", whole.shown()));
        let gets_per_read = one.gets as f64 / (one.figures.bytes as f64 / 4096.0);
        let fetched_mb_per_s =
            whole.fetched_bytes as f64 / 1e6 / (whole.figures.runtime_ms.max(1) as f64 / 1e3);
        let fetched = whole.fetched_per_byte();
        let busy = fetched_mb_per_s / GOOD.1 as f64;
        let of = [
            one.figures.iops / client,
            gets_per_read,
            busy,
            fetched,
            whole.cpu_s_per_gib(),
            whole.mib_per_s(),
        ];
        values.iter_mut().zip(of).for_each(|(values, value)| values.push(value));
    }
    let [ratio, gets, busy, fetched, cpu_s, rate] = values.map(median);
    let row = |what: &str| format!("{what}, cold, scattered, 20 ms and 30 MB/s");
    let plain = format!("a plain client on {PLAIN_CONNECTIONS} connections");
    report.row(&row("4 KiB random read, depth 32"), format!("{ratio:.2}"), plain, ratio, Bound::AtLeast(0.9));
    report.row(
        &row("the same: GETs per read"),
        format!("{gets:.2}"),
        String::new(),
        gets,
        Bound::AtMost(1.1),
    );
    let shown = format!("{rate:.1} MiB/s, {fetched:.2} bytes fetched per byte");
    report.row(
        &row("1 MiB sequential read: the link's use"),
        shown,
        String::new(),
        busy,
        Bound::AtLeast(0.9),
    );
    report.row(
        &row("the same: CPU per GiB, s"),
        format!("{cpu_s:.1} s"),
        String::new(),
        cpu_s,
        Bound::AtMost(6.0),
    );
    uneven(plan, report, &wan, &random)
}

/// Random reads where the store takes its time for each request: what is slow must not pass for what is full.
fn uneven(plan: &Plan, report: &mut Report, wan: &Wan, random: &[&str]) -> Result<()> {
    let rate = Some(GOOD.1 * 1_000_000);
    let mut ratios = Vec::new();
    for _ in 0..plan.rounds() {
        // Set anew, so that the draws begin again.
        wan.link.set(Conditions { rate, delay: Some(UNEVEN), ..Conditions::default() });
        let (one, client) = beside_a_plain_client(plan, wan, random)?;
        let shown = one.shown();
        report.note(format!("uneven link, 4 KiB at random: {shown}; plain client {client:.0} GET/s"));
        ratios.push(one.figures.iops / client);
    }
    let ratio = median(ratios);
    report.row(
        "4 KiB random read, depth 32, cold, scattered, 30 MB/s and a delay of 20 ms (median) to 200 ms (p99)",
        format!("{ratio:.2}"),
        format!("a plain client on {PLAIN_CONNECTIONS} connections"),
        ratio,
        Bound::AtLeast(0.8),
    );
    Ok(())
}

/// A run on a new host, and then what a client that does nothing but such reads gets per second.
fn beside_a_plain_client(plan: &Plan, wan: &Wan, random: &[&str]) -> Result<(Run, f64)> {
    let one = on_a_new_host(wan, random)?;
    let keys = wan.objects("log")?;
    let seconds = Duration::from_secs(plan.seconds(20));
    let client = plain::ranged_gets(wan.link.port(), &keys, PLAIN_BYTES, PLAIN_CONNECTIONS, seconds)?;
    Ok((one, client))
}

/// On a host that knows nothing, and leaves no hot set that the next one would fetch beside its reads.
pub fn on_a_new_host(wan: &Wan, load: &[&str]) -> Result<Run> {
    let server = wan.host(&wan.cistern(), "reader").args(["--read-only"]).start()?;
    let run = Run::of(&server, &wan.scratch, load);
    server.stop()?;
    wan.forget("reader");
    run
}
