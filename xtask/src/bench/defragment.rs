//! Putting a volume in order that was overwritten at random, behind a link: whether it costs what `gc --dry-run` says, and
//! how fast it reads afterwards on a host that knows nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cistern_harness::{fio, serve::Server, tool};
use serde_json::Value;

use super::{
    Plan,
    report::{Bound, Report},
    scattered_reads::{FILL, IN_ORDER, OVERWRITE, on_a_new_host},
    wan::{Cpu, GOOD, Wan},
};

const LIMIT: Duration = Duration::from_secs(3600);
/// How far what it takes may be from what was said, either way.
const OFF_MAX: f64 = 1.1;
/// What S3 takes for a million requests in its region, by the table of prices that is shipped.
const PER_MILLION_GETS: f64 = 0.40;
const PER_MILLION_PUTS: f64 = 5.00;
const LINK_SHARE_MIN: f64 = 0.8;
const FETCHED_MAX: f64 = 1.1;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let mib = if plan.quick { 128 } else { 1024 };
    let wan = Wan::start(plan, &format!("{mib}M"))?;
    let (size, twice) = (format!("--size={mib}m"), format!("--io_size={}m", 2 * mib));
    scatter(&wan, &size, &twice)?;
    wan.limit(GOOD, report)?;
    let before = on_a_new_host(&wan, &[&IN_ORDER[..], &[&size]].concat())?;
    report.note(format!("overwritten at random, 1 MiB in order: {}", before.shown()));
    put_in_order(&wan, report)?;
    let after = on_a_new_host(&wan, &[&IN_ORDER[..], &[&size]].concat())?;
    report.note(format!("put in order, 1 MiB in order: {}", after.shown()));
    let mb_per_s = after.mib_per_s() * 1.048_576;
    report.row(
        "1 MiB sequential read, cold, 20 ms and 30 MB/s, overwritten at random and defragmented: of the link's rate",
        format!("{mb_per_s:.1} MB/s"),
        format!("{:.1} MB/s before", before.mib_per_s() * 1.048_576),
        mb_per_s / GOOD.1 as f64,
        Bound::AtLeast(LINK_SHARE_MIN),
    );
    let fetched = after.fetched_per_byte();
    report.row(
        "the same: bytes fetched per byte delivered",
        format!("{fetched:.2}"),
        format!("{:.2} before", before.fetched_per_byte()),
        fetched,
        Bound::AtMost(FETCHED_MAX),
    );
    wan.widen();
    wan.cistern_beside().run(&["check", &wan.url, "--space"]).map(drop)
}

/// Written in order, then overwritten at random with twice its size, beside the store; nothing of that is cleaned.
fn scatter(wan: &Wan, size: &str, twice: &str) -> Result<()> {
    let args = ["--cache-size", "0", "--space-bound", "none"];
    let writer = wan.host(&wan.cistern_beside(), "writer").args(args).start()?;
    fio::nbd(wan.scratch.path(), &writer.uri(), &[&FILL[..], &[size]].concat(), LIMIT)?;
    fio::nbd(wan.scratch.path(), &writer.uri(), &[&OVERWRITE[..], &[size, twice]].concat(), LIMIT)?;
    writer.stop()?;
    wan.forget("writer");
    Ok(())
}

/// What it takes, as it is said and as it is.
struct Takes {
    gets: u64,
    fetched_bytes: u64,
    puts: u64,
    put_bytes: u64,
}

impl Takes {
    fn planned(wan: &Wan) -> Result<Takes> {
        let mut command = wan.cistern().command();
        command.args(["gc", &wan.url, "--dry-run", "--defragment", "--json"]);
        let plan: Value = serde_json::from_str(&tool::run_command(command, LIMIT)?.stdout)?;
        let number = |name: &str| plan[name].as_u64().with_context(|| format!("the plan has no {name}"));
        let (gets, fetched_bytes) = (number("gets")?, number("fetched_bytes")?);
        Ok(Takes { gets, fetched_bytes, puts: number("puts")?, put_bytes: number("put_bytes")? })
    }

    /// What the daemon's meter has counted since its start.
    fn counted(server: &Server) -> Result<Takes> {
        let status = server.observed()?;
        let kinds = status.pointer("/daemons/0/volumes/0/store/kinds").and_then(Value::as_array);
        let kinds = kinds.context("no kinds of requests in the status")?;
        let sum = |method: &str, what: &str| {
            let wanted =
                kinds.iter().filter(|kind| kind["kind"].as_str().is_some_and(|k| k.starts_with(method)));
            wanted.filter_map(|kind| kind[what].as_u64()).sum()
        };
        let (gets, fetched_bytes) = (sum("get", "requests"), sum("get", "bytes"));
        Ok(Takes { gets, fetched_bytes, puts: sum("put", "requests"), put_bytes: sum("put", "bytes") })
    }

    /// By the prices of a public cloud.
    fn bill(&self) -> f64 {
        (self.gets as f64 * PER_MILLION_GETS + self.puts as f64 * PER_MILLION_PUTS) / 1e6
    }

    fn shown(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
        let Takes { gets, fetched_bytes, puts, put_bytes } = *self;
        format!("{gets} GET of {:.1} MiB, {puts} PUT of {:.1} MiB", mib(fetched_bytes), mib(put_bytes))
    }
}

fn put_in_order(wan: &Wan, report: &mut Report) -> Result<()> {
    let begin = Instant::now();
    let planned = Takes::planned(wan)?;
    report.note(format!("gc --dry-run --defragment took {:.1} s", begin.elapsed().as_secs_f64()));
    // Without a cache it leaves no hot set that a reader would fetch beside its reads.
    let server =
        wan.host(&wan.cistern(), "gc").args(["--cache-size", "0", "--space-bound", "none"]).start()?;
    let (begin, before) = (Instant::now(), Takes::counted(&server)?);
    let cpu = Cpu::begin(&[("cistern", server.pid()), ("MinIO", wan.minio.pid())]);
    let mut command = wan.cistern().command();
    command.args(["gc", &wan.url, "--defragment", "--state-dir"]).arg(wan.scratch.file("state-gc"));
    wan.link.take();
    tool::run_command(command, LIMIT)?;
    report.note(format!("on the wire meanwhile: {:?}", wan.link.take().requests));
    let after = Takes::counted(&server)?;
    report.note(format!("gc --defragment took {:.0} s; {}", begin.elapsed().as_secs_f64(), cpu.shown()));
    server.stop()?;
    wan.forget("gc");
    let done = Takes {
        gets: after.gets - before.gets,
        fetched_bytes: after.fetched_bytes - before.fetched_bytes,
        puts: after.puts - before.puts,
        put_bytes: after.put_bytes - before.put_bytes,
    };
    let apart = |done: f64, planned: f64| (done / planned).max(planned / done);
    let off = |done: u64, planned: u64| apart(done.max(1) as f64, planned.max(1) as f64);
    let bytes = off(done.fetched_bytes, planned.fetched_bytes).max(off(done.put_bytes, planned.put_bytes));
    let requests = off(done.gets, planned.gets).max(off(done.puts, planned.puts));
    let mut row = |what: &str, value| {
        let what = format!("gc --defragment: {what}, the farthest from what the dry run said, either way");
        let said = format!("said: {}", planned.shown());
        report.row(&what, done.shown(), said, value, Bound::AtMost(OFF_MAX));
    };
    row("bytes fetched and put", bytes);
    row("requests", requests);
    row("the bill (0.40 for a million GET, 5.00 for a million PUT)", apart(done.bill(), planned.bill()));
    Ok(())
}
