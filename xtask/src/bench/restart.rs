//! How long nobody is served while a daemon is replaced, by how much lies in its journal: stopped and started, killed and started; and how long
//! a request takes on a connection that daemons hand on.

mod handed_on;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cistern_harness::{
    fio,
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Serve, Server},
};

use super::{
    Plan,
    report::{Bound, Report, median},
};

/// MiB in the journal that are not in the store, and how they were written.
const DIRTY: [(u64, &str, &[&str]); 4] = [
    (16, "1 MiB writes", &["--rw=write", "--bs=1m", "--iodepth=8"]),
    (1024, "4 KiB random writes, depth 32", &["--rw=randwrite", "--bs=4k", "--iodepth=32"]),
    (1024, "1 MiB writes", &["--rw=write", "--bs=1m", "--iodepth=8"]),
    (4096, "1 MiB writes", &["--rw=write", "--bs=1m", "--iodepth=8"]),
];
/// Room for the most.
const JOURNAL: &str = "6G";
const VOLUME: &str = "8G";
const SCRATCH_GIB: u64 = 10;
const RESTARTS: usize = 5;
const AWAY_S_MAX: f64 = 1.0;
const LIMIT: Duration = Duration::from_secs(600);

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    for (mib, how, load) in DIRTY {
        let mib = if plan.quick { mib / 16 } else { mib };
        replaced(plan, report, mib, how, load)?;
    }
    handed_on::run(plan, report)
}

fn replaced(plan: &Plan, report: &mut Report, mib: u64, how: &str, load: &[&str]) -> Result<()> {
    let scratch = Scratch::with_room("bench-restart", SCRATCH_GIB)?;
    let url = scratch.dir("store")?.join("v").display().to_string();
    plan.cistern.run(&["create", &url, "--size", VOLUME])?;
    let serve = plan.cistern.serve(&scratch, &url).args(["--journal-size", JOURNAL]);
    let mut server = serve.start()?;
    server.ask(&["pause", &url])?; // it stays in the journal, over every restart
    let size = format!("--size={mib}m");
    let load: Vec<&str> = load.iter().copied().chain([&*size, "--refill_buffers", "--end_fsync=1"]).collect();
    fio::nbd(scratch.path(), &server.uri(), &load, LIMIT)?;
    let (mut stops, mut starts, mut after_kills) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RESTARTS {
        let begin = Instant::now();
        server.terminate()?;
        stops.push(begin.elapsed().as_secs_f64());
        let (next, start_s) = started(&serve)?;
        starts.push(start_s);
        server = next;
    }
    for _ in 0..plan.rounds() {
        server.kill();
        let (next, start_s) = started(&serve)?;
        after_kills.push(start_s);
        server = next;
    }
    server.kill();
    let ms = |values: &[f64]| values.iter().map(|s| format!("{:.0}", s * 1e3)).collect::<Vec<_>>().join(", ");
    let away_s = median(stops.clone()) + median(starts.clone());
    report.row(
        &format!("restart with {mib} MiB in the journal ({how}): nobody is served for"),
        format!("{:.0} ms", away_s * 1e3),
        format!("stops {} ms, starts {} ms", ms(&stops), ms(&starts)),
        away_s,
        Bound::AtMost(AWAY_S_MAX),
    );
    report.note(format!("{mib} MiB in the journal ({how}): starts after kill -9 {} ms", ms(&after_kills)));
    Ok(())
}

/// A daemon, and the seconds until it has answered a client.
fn started(serve: &Serve) -> Result<(Server, f64)> {
    let begin = Instant::now();
    let server = serve.start()?;
    let mut client = Client::connect(server.socket(), "v", Dialect::Simple)?;
    ensure!(client.read(0, 4096)?.len() == 4096, "a read gives what was asked for");
    let start_s = begin.elapsed().as_secs_f64();
    client.close()?;
    Ok((server, start_s))
}
