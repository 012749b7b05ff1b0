//! What `cistern send` gets out of a store and a link, what it costs, and what it takes from whoever works on the volume.

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fio,
    process::{self, Guard},
    scratch::Scratch,
    serve::{Cistern, Server},
    tool,
};

use super::{
    Plan,
    cold_sequential::{PLAIN_PARALLEL, plain_rate},
    loads,
    report::{Bound, Report, median},
    wan::{GOOD, Wan},
};

const COPY_GIB: u64 = 4;
const COPY_CPU_SECONDS: f64 = 0.5;
const LIMIT: Duration = Duration::from_secs(1800);
const SEND_GIB: u64 = 8;
const SNAPSHOT: &str = "sent";
const BESIDE_MIN: f64 = 0.9;
const LINK_MIN: f64 = 0.95;
const SHARES: usize = 3;
/// How much less than the others the slow one of several readers takes.
const SLOWER: f64 = 10.0;
const FAST_READERS_MIN: f64 = 0.9;
const CLIENT_RATE_MIN: f64 = 0.9;
const CLIENT_P99_MAX: f64 = 1.2;
const SEND_BESIDE_MIN: f64 = 0.5;
/// Of a link of 30 MB/s a fourteenth.
const SEND_RATE: &str = "2M";
/// How often the memory of a command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a command did.
struct Sent {
    seconds: f64,
    /// Of all its processors.
    cpu_seconds: f64,
    peak_mib: f64,
}

impl Sent {
    fn mib_per_s(&self, bytes: f64) -> f64 {
        bytes / self.seconds / f64::from(1 << 20)
    }
}

/// Runs a command to its end.
fn timed(cistern: &Cistern, args: &[OsString]) -> Result<Sent> {
    let mut command = cistern.command();
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    let (begin, before) = (Instant::now(), process::own_cpu().1);
    let mut guard = Guard::spawn(command)?;
    let mut peak = 0;
    while !guard.has_ended() {
        peak = process::usage(guard.pid()).map_or(peak, |usage| usage.peak_resident_bytes.max(peak));
        ensure!(begin.elapsed() < LIMIT, "{args:?}: not done within {LIMIT:?}");
        thread::sleep(LOOK_EVERY);
    }
    let status = guard.wait(LOOK_EVERY)?;
    ensure!(status.success(), "{args:?}: {status}");
    Ok(Sent {
        seconds: begin.elapsed().as_secs_f64(),
        cpu_seconds: (process::own_cpu().1 - before).as_secs_f64(),
        peak_mib: peak as f64 / f64::from(1 << 20),
    })
}

fn send(cistern: &Cistern, url: &str, to: &[PathBuf]) -> Result<Sent> {
    let to: Vec<OsString> = to.iter().map(|path| path.clone().into_os_string()).collect();
    let args = ["send".into(), format!("{url}@{SNAPSHOT}").into(), "--to".into(), to.join(",".as_ref())];
    timed(cistern, &args)
}

/// Writes incompressible data and makes a snapshot of it; gives its bytes.
fn fill(wan: &Wan, gib: u64) -> Result<f64> {
    let server = wan.host(&wan.cistern_beside(), "writer").args(["--cache-size", "0"]).start()?;
    write(wan, server, &wan.url, gib, &[])?;
    wan.forget("writer");
    Ok((gib << 30) as f64)
}

/// The same in another volume, with other data.
fn fill_volume(wan: &Wan, url: &str, gib: u64, data: &[&str]) -> Result<f64> {
    let (here, state) = (wan.cistern_beside(), wan.scratch.file("state-filled"));
    here.run(&["create", url, "--size", "64G"])?;
    let server =
        here.serve(&wan.scratch, url).state_dir(state.clone()).args(["--cache-size", "0"]).start()?;
    write(wan, server, url, gib, data)?;
    std::fs::remove_dir_all(&state)?;
    Ok((gib << 30) as f64)
}

fn write(wan: &Wan, server: Server, url: &str, gib: u64, data: &[&str]) -> Result<()> {
    let size = format!("--size={gib}g");
    let job = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", &size];
    fio::nbd(wan.scratch.path(), &server.uri(), &[&job[..], data].concat(), LIMIT)?;
    server.ask(&["snapshot", &format!("{url}@{SNAPSHOT}"), "--wait"])?;
    server.stop()?;
    Ok(())
}

/// A whole snapshot, to nowhere: beside a plain client of the same server, over a link, and to several pipes of which one is read slowly.
pub fn sends(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start(plan, "64G")?;
    let bytes = fill(&wan, plan.gib(SEND_GIB))?;
    let nowhere = [PathBuf::from("/dev/null")];
    let (mut plain, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds() {
        plain.push(plain_rate(&wan)?);
        sent.push(send(&wan.cistern_beside(), &wan.url, &nowhere)?);
    }
    let gib = bytes / f64::from(1 << 30);
    for sent in &sent {
        let Sent { seconds, cpu_seconds, peak_mib } = sent;
        let rate = sent.mib_per_s(bytes);
        report.note(format!(
            "send of {gib:.0} GiB from MinIO beside it: {seconds:.1} s, {rate:.0} MiB/s, {:.2} s of CPU a GiB, {peak_mib:.0} MiB of memory",
            cpu_seconds / gib
        ));
    }
    let (plain, rate) = (median(plain), median(sent.iter().map(|sent| sent.mib_per_s(bytes)).collect()));
    report.row(
        "send of all of a snapshot, incompressible, from MinIO beside it to nowhere: of a plain client's rate",
        format!("{rate:.0} MiB/s"),
        format!("curl, 8 objects at once, {plain:.0} MiB/s"),
        rate / plain,
        Bound::AtLeast(BESIDE_MIN),
    );
    slow_reader(&wan, bytes, report)?;
    wan.limit(GOOD, report)?;
    over_the_link(plan, &wan, report)
}

/// Snapshots into another place of the same server: nothing of them has to be unpacked.
pub fn copies(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start(plan, "64G")?;
    let bytes = fill(&wan, plan.gib(COPY_GIB))?;
    copied(&wan, (&wan.url, bytes), "incompressible", report)?;
    let halves = format!("{}-halves", wan.url);
    let data = fill_volume(&wan, &halves, plan.gib(COPY_GIB), &["--buffer_compress_percentage=50"])?;
    copied(&wan, (&halves, data), "compresses to a half", report)?;
    drop(wan);
    let wan = Wan::start_secure(plan, "64G")?;
    let bytes = fill(&wan, plan.gib(COPY_GIB))?;
    copied(&wan, (&wan.url, bytes), "incompressible, over TLS", report)
}

fn copied(wan: &Wan, (url, bytes): (&str, f64), what: &str, report: &mut Report) -> Result<()> {
    let (here, to) = (wan.cistern_beside(), format!("{url}-copy"));
    let read = plain_rate(wan)?;
    let plain = plain_copy(wan, url)?;
    let args = ["copy".into(), format!("{url}@{SNAPSHOT}").into(), to.clone().into()];
    let sent = timed(&here, &args)?;
    let (gib, rate) = (bytes / f64::from(1 << 30), sent.mib_per_s(bytes));
    let cpu = sent.cpu_seconds / gib;
    report.note(format!(
        "copy of {gib:.0} GiB, {what}: {:.1} s, {:.0} MiB of memory; curl copies the same objects, {PLAIN_PARALLEL} at once, with {plain:.0} MiB/s",
        sent.seconds, sent.peak_mib
    ));
    report.row(
        &format!(
            "copy from MinIO into another place of it, {what}: of the rate at which a plain client reads"
        ),
        format!("{rate:.0} MiB/s"),
        format!("curl, {PLAIN_PARALLEL} objects at once, {read:.0} MiB/s"),
        rate / read,
        Bound::AtLeast(BESIDE_MIN),
    );
    report.row(
        &format!("copy from MinIO into another place of it, {what}: CPU of a GiB"),
        format!("{cpu:.2} s"),
        format!("{COPY_CPU_SECONDS} s"),
        cpu / COPY_CPU_SECONDS,
        Bound::AtMost(1.0),
    );
    here.run(&["rm", &to, "--now", "--yes"])?;
    Ok(())
}

/// MiB/s at which a plain client copies the objects of a volume's log.
fn plain_copy(wan: &Wan, url: &str) -> Result<f64> {
    let volume = url.rsplit('/').next().context("the name of a volume")?;
    let mut keys = wan.minio.keys(&format!("{volume}/"))?;
    keys.retain(|key| key.contains("/log/"));
    let (files, begin) = (Scratch::in_memory("plain-copy")?, Instant::now());
    let bytes = wan.minio.copy(&keys, files.path(), PLAIN_PARALLEL)?;
    Ok(bytes as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64())
}

/// A smaller snapshot over the link: more of the same takes longer and says no more.
fn over_the_link(plan: &Plan, wan: &Wan, report: &mut Report) -> Result<()> {
    let url = format!("{}-small", wan.url);
    let (here, mib) = (wan.cistern_beside(), if plan.quick { 128 } else { 768 });
    here.run(&["create", &url, "--size", "8G"])?;
    let server = here.serve(&wan.scratch, &url).state_dir(wan.scratch.file("state-small")).start()?;
    let size = format!("--size={mib}m");
    fio::nbd(
        wan.scratch.path(),
        &server.uri(),
        &["--rw=write", "--bs=1m", "--refill_buffers", &size],
        LIMIT,
    )?;
    server.ask(&["snapshot", &format!("{url}@{SNAPSHOT}"), "--wait"])?;
    server.stop()?;
    let sent = send(&wan.cistern(), &url, &[PathBuf::from("/dev/null")])?;
    let mb = (mib << 20) as f64 / 1e6 / sent.seconds;
    report.row(
        &format!("send of {mib} MiB over 20 ms and 30 MB/s: of the link's rate"),
        format!("{mb:.1} MB/s"),
        format!("{} MB/s", GOOD.1),
        mb / GOOD.1 as f64,
        Bound::AtLeast(LINK_MIN),
    );
    Ok(())
}

/// Reads a pipe to its end, at most so many bytes a second; gives when that was.
fn drain(pipe: &Path, bytes_per_s: Option<f64>) -> Result<(Instant, u64)> {
    let mut from = File::open(pipe)?;
    let (begin, mut buffer, mut bytes) = (Instant::now(), vec![0; 1 << 18], 0);
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok((Instant::now(), bytes));
        }
        bytes += read as u64;
        if let Some(rate) = bytes_per_s {
            let due = begin + Duration::from_secs_f64(bytes as f64 / rate);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

/// Sends to pipes that are read at some rates; gives after how many seconds each was at its end, and what that took.
fn to_pipes(wan: &Wan, rates: &[Option<f64>]) -> Result<(Vec<f64>, Sent)> {
    let pipes: Vec<PathBuf> = (0..rates.len()).map(|n| wan.scratch.file(&format!("pipe-{n}"))).collect();
    for pipe in &pipes {
        let _ = std::fs::remove_file(pipe); // of the time before
        tool::run("mkfifo", [pipe])?;
    }
    let begin = Instant::now();
    thread::scope(|scope| {
        let readers: Vec<_> =
            pipes.iter().zip(rates).map(|(pipe, rate)| scope.spawn(|| drain(pipe, *rate))).collect();
        let sent = send(&wan.cistern_beside(), &wan.url, &pipes)?;
        let ended = readers.into_iter().map(|reader| {
            let (end, _) = reader.join().expect("a reader does not panic")?;
            Ok((end - begin).as_secs_f64())
        });
        Ok((ended.collect::<Result<Vec<f64>>>()?, sent))
    })
}

fn slow_reader(wan: &Wan, bytes: f64, report: &mut Report) -> Result<()> {
    let (alike, fast) = to_pipes(wan, &[None; SHARES])?;
    let slowest = alike.iter().copied().fold(0.0, f64::max);
    let share = bytes / SHARES as f64;
    let slow = share / slowest / SLOWER;
    let mut rates = [None; SHARES];
    rates[0] = Some(slow);
    let (beside, sent) = to_pipes(wan, &rates)?;
    let others = beside[1..].iter().copied().fold(0.0, f64::max);
    report.note(format!(
        "{SHARES} pipes read alike: {slowest:.1} s, {:.0} MiB of memory; one at {:.1} MiB/s: that one {:.1} s, {:.0} MiB of memory",
        fast.peak_mib,
        slow / f64::from(1 << 20),
        beside[0],
        sent.peak_mib
    ));
    report.row(
        &format!("send to {SHARES} pipes, one read {SLOWER:.0} times slower: rate of the others"),
        format!("{others:.1} s"),
        format!("all read alike {slowest:.1} s"),
        slowest / others,
        Bound::AtLeast(FAST_READERS_MIN),
    );
    Ok(())
}

/// The published case: a send beside a load that fills the volume's link, of what it wrote before.
pub fn beside_clients(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start(plan, "16G")?;
    let bytes = fill(&wan, 1)?;
    let args = ["--cache-size", "2G", "--journal-size", "2G", "--max-dirty-bytes", "512M"];
    let server = wan.host(&wan.cistern(), "client").args(args).start()?;
    wan.limit(GOOD, report)?;
    let seconds = plan.seconds(60);
    load(&wan, &server, plan.seconds(30))?; // until write-back goes as fast as it can
    let before = load(&wan, &server, seconds)?;
    let sent_alone = send(&wan.cistern(), &wan.url, &[PathBuf::from("/dev/null")])?;
    let (far, url) = (wan.cistern(), wan.url.clone());
    let (beside, sent) = thread::scope(|scope| {
        let sending = scope.spawn(move || send(&far, &url, &[PathBuf::from("/dev/null")]));
        let beside = load(&wan, &server, seconds)?;
        Ok::<_, anyhow::Error>((beside, sending.join().expect("it does not panic")?))
    })?;
    // Its rate is still finding itself: what it does beside the send lies between what it does before and behind.
    let after = load(&wan, &server, seconds)?;
    let mean = |of: fn(&fio::Figures) -> f64| (of(&before) + of(&after)) / 2.0;
    let (iops, p99_us) = (mean(|figures| figures.iops), mean(|figures| figures.p99_us));
    let what = "4 KiB random writes, depth 32, at the rate of the link, beside a send";
    report.row(
        &format!("{what}: their rate"),
        format!("{:.0}/s", beside.iops),
        format!("without {iops:.0}/s: {:.0} before and {:.0} behind", before.iops, after.iops),
        beside.iops / iops,
        Bound::AtLeast(CLIENT_RATE_MIN),
    );
    report.row(
        &format!("{what}: p99"),
        format!("{:.1} ms", beside.p99_us / 1e3),
        format!(
            "without {:.1} ms: {:.1} before and {:.1} behind",
            p99_us / 1e3,
            before.p99_us / 1e3,
            after.p99_us / 1e3
        ),
        beside.p99_us / p99_us,
        Bound::AtMost(CLIENT_P99_MAX),
    );
    report.row(
        &format!("{what}: rate of the send"),
        format!("{:.1} MiB/s", sent.mib_per_s(bytes)),
        format!("without the load {:.1} MiB/s", sent_alone.mib_per_s(bytes)),
        sent_alone.seconds / sent.seconds,
        Bound::AtLeast(SEND_BESIDE_MIN),
    );
    server.stop().context("what is left is uploaded")?;
    beside_readers(plan, &wan, report)
}

/// The same beside reads that come from the store and fill the link by themselves: what they keep is what `--rate` leaves them.
fn beside_readers(plan: &Plan, wan: &Wan, report: &mut Report) -> Result<()> {
    let server = wan.host(&wan.cistern(), "client").args(["--cache-size", "0"]).start()?;
    let seconds = plan.seconds(60);
    let alone = read(wan, &server, seconds)?;
    let log = wan.scratch.file("send-beside.log");
    let (beside, sent_bytes_per_s) = beside_send(wan, &server, seconds, &log, &["--rate", SEND_RATE])?;
    let (unbounded, _) = beside_send(wan, &server, plan.seconds(20), &log, &[])?;
    server.stop()?;
    let what =
        "64 KiB random reads from the store, depth 32, which fill the link, beside a send with --rate 2M";
    let rate = |figures: &fio::Figures| format!("{:.1} MB/s", figures.iops * f64::from(64 << 10) / 1e6);
    report.row(
        &format!("{what}: their rate"),
        rate(&beside),
        format!("without {}", rate(&alone)),
        beside.iops / alone.iops,
        Bound::AtLeast(CLIENT_RATE_MIN),
    );
    report.row(
        &format!("{what}: p99"),
        format!("{:.0} ms", beside.p99_us / 1e3),
        format!("without {:.0} ms", alone.p99_us / 1e3),
        beside.p99_us / alone.p99_us,
        Bound::AtMost(CLIENT_P99_MAX),
    );
    report.row(
        &format!("{what}: rate of the send"),
        format!("{:.2} MB/s", sent_bytes_per_s / 1e6),
        "2 MiB/s".to_owned(),
        sent_bytes_per_s / f64::from(2 << 20),
        Bound::AtLeast(SEND_BESIDE_MIN),
    );
    report.note(format!("the same reads beside a send without --rate: {}", rate(&unbounded)));
    Ok(())
}

/// Reads beside a send, which is broken off behind them; gives also how many bytes of data a second it says that it sent.
fn beside_send(
    wan: &Wan,
    server: &Server,
    seconds: u64,
    log: &Path,
    args: &[&str],
) -> Result<(fio::Figures, f64)> {
    let mut command = wan.cistern().command();
    command.args(["send", &format!("{}@{SNAPSHOT}", wan.url), "--to", "/dev/null", "--json"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(log)?);
    let mut sending = Guard::spawn(command)?;
    let figures = read(wan, server, seconds)?;
    ensure!(!sending.has_ended(), "it ended before the reads did");
    sending.kill();
    let said = std::fs::read_to_string(log)?;
    let last = said.lines().rev().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let rate = last.and_then(|last| last["bytes_per_second"].as_f64()).context("it says how fast it is")?;
    Ok((figures, rate))
}

/// Random reads of the sent part, for so long.
fn read(wan: &Wan, server: &Server, seconds: u64) -> Result<fio::Figures> {
    fio::figures(&random(wan, server, seconds, &["--rw=randread", "--bs=64k", "--size=1g"])?, "read")
}

/// Random writes behind the sent part, for so long.
fn load(wan: &Wan, server: &Server, seconds: u64) -> Result<fio::Figures> {
    let job = ["--rw=randwrite", "--bs=4k", "--refill_buffers", "--offset=2g", "--size=4g"];
    fio::figures(&random(wan, server, seconds, &job)?, "write")
}

fn random(wan: &Wan, server: &Server, seconds: u64, job: &[&str]) -> Result<serde_json::Value> {
    let runtime = format!("--runtime={seconds}");
    let job = [job, &["--iodepth=32", "--norandommap", "--time_based", &runtime]].concat();
    let limit = Duration::from_secs(seconds) + loads::SLACK;
    fio::nbd(wan.scratch.path(), &server.uri(), &job, limit)
}
