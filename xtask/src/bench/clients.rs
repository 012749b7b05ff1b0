//! Four clients beside each other: whether they get together what one gets at their depth, and the same share each.
//!
//! One daemon with four volumes; the clients are on one of them, and then on one each.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use cistern_harness::{fio, scratch::Scratch, serve::Server};

use super::{
    Plan,
    report::{Bound, Report, median},
};

const CLIENTS: usize = 4;
const DEPTH_EACH: usize = 8;
const VOLUME_MIB: u64 = 512;
/// Turns of writes stay below half of it, where writes are not slowed, also when all go to one volume.
const JOURNAL: &str = "4G";
/// Room for everything, so that reads find it.
const CACHE: &str = "4G";
/// Reads of everything, before all of it is in the cache: fills are dropped when the disk is busy.
const PASSES_MAX: usize = 20;
const PROBE_S: u64 = 3;
/// What all turns write, with journals and cache: what was deleted is kept for its grace.
const STORE_GIB: u64 = 35;
/// How far a client may be from a quarter.
const UNEVEN_MAX: f64 = 0.2;
/// Shorter runs say nothing about shares.
const SECONDS_MIN: u64 = 3;
const LIMIT: Duration = Duration::from_secs(600);

/// A daemon with all volumes.
struct Served {
    server: Server,
    scratch: Scratch,
}

/// One run of some clients.
struct Run {
    iops: f64,
    /// The greatest distance of a client from its share, as a part of that share.
    uneven: f64,
}

impl Served {
    fn start(plan: &Plan) -> Result<Served> {
        let scratch =
            Scratch::with_room("bench-clients", if plan.quick { STORE_GIB / 2 } else { STORE_GIB })?;
        let store = scratch.dir("store")?;
        let urls: Vec<String> = (0..CLIENTS).map(|n| store.join(name(n)).display().to_string()).collect();
        let size = format!("{VOLUME_MIB}M");
        urls.iter().try_for_each(|url| plan.cistern.run(&["create", url, "--size", &size]).map(drop))?;
        let args = ["--journal-size", JOURNAL, "--max-dirty-bytes", JOURNAL, "--cache-size", CACHE];
        let serve = plan.cistern.serve(&scratch, &urls[0]).args(urls[1..].to_vec()).args(args);
        let served = Served { server: serve.start()?, scratch };
        served.warm()?;
        Ok(served)
    }

    /// Clients on volumes 0 to `volumes`, one each, or all on the only one.
    fn run(&self, clients: usize, volumes: usize, load: &[&str]) -> Result<serde_json::Value> {
        let uris: Vec<String> = (0..clients).map(|n| self.server.uri_of(&name(n % volumes))).collect();
        fio::clients(self.scratch.path(), &uris, load, LIMIT)
    }

    /// Fills all volumes, and reads until the cache misses nothing any more.
    fn warm(&self) -> Result<()> {
        let size = format!("--size={VOLUME_MIB}m");
        let fill = ["--rw=write", "--bs=1m", "--iodepth=4", "--refill_buffers", &size];
        self.run(CLIENTS, CLIENTS, &fill)?;
        self.server.wait_clean()?;
        for _ in 0..PASSES_MAX {
            self.run(CLIENTS, CLIENTS, &["--rw=read", "--bs=1m", "--iodepth=4", &size])?;
            // What a stream got ahead of its reads counts as no miss, so only random reads tell.
            let misses = self.misses()?;
            self.measure(CLIENTS, CLIENTS, "read", PROBE_S)?;
            if self.misses()? == misses {
                return Ok(());
            }
        }
        bail!("the cache still misses after {PASSES_MAX} passes")
    }

    fn misses(&self) -> Result<u64> {
        let status = self.server.status()?;
        status.pointer("/daemons/0/cache/misses").and_then(|n| n.as_u64()).context("status has no misses")
    }

    /// 4 KiB at random places; the depths of all clients together are always the same.
    fn measure(&self, clients: usize, volumes: usize, direction: &str, seconds: u64) -> Result<Run> {
        self.server.wait_clean()?;
        let own = [
            format!("--rw=rand{direction}"),
            format!("--iodepth={}", DEPTH_EACH * CLIENTS / clients),
            format!("--size={VOLUME_MIB}m"),
            format!("--runtime={seconds}"),
        ];
        let mut load = vec!["--bs=4k", "--norandommap", "--time_based"];
        load.extend(own.iter().map(String::as_str));
        let each = fio::iops_of_each(&self.run(clients, volumes, &load)?, direction)?;
        let iops: f64 = each.iter().sum();
        let share = iops / clients as f64;
        let uneven = each.iter().map(|own| (own / share - 1.0).abs()).fold(0.0, f64::max);
        Ok(Run { iops, uneven })
    }
}

fn name(volume: usize) -> String {
    format!("vol{volume}")
}

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let served = Served::start(plan)?;
    // Reads first: what is written is not all in the cache.
    for (direction, what, seconds) in
        [("read", "4 KiB random read from the cache", 10), ("write", "4 KiB random write", 4)]
    {
        let seconds = plan.seconds(seconds).max(SECONDS_MIN);
        let mut alone = Vec::new();
        let mut together = [const { Vec::new() }; 2];
        for _ in 0..plan.rounds() {
            alone.push(served.measure(1, 1, direction, seconds)?.iops);
            for (runs, volumes) in together.iter_mut().zip([1, CLIENTS]) {
                runs.push(served.measure(CLIENTS, volumes, direction, seconds)?);
            }
        }
        let one = median(alone);
        for (runs, place) in together.iter().zip(["one volume", "four volumes"]) {
            let iops = median(runs.iter().map(|run| run.iops).collect());
            let uneven = median(runs.iter().map(|run| run.uneven).collect());
            report.row(
                &format!("{what}, four clients of depth {DEPTH_EACH} on {place}, together"),
                format!("{iops:.0} IOPS"),
                format!("one client of depth {} {one:.0}", DEPTH_EACH * CLIENTS),
                iops / one,
                Bound::AtLeast(1.0),
            );
            report.row(
                &format!("the same: the client farthest from a quarter, {what}, {place}"),
                format!("{:.0} %", uneven * 100.0),
                "a quarter of them all".into(),
                uneven,
                Bound::AtMost(UNEVEN_MAX),
            );
        }
    }
    Ok(())
}
