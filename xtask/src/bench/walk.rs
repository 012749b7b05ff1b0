//! A walk through 140,000 entries over a narrow link: after a bulk write, and with everything cold.
//!
//! What others published for this tree and link: 409 s, and 3.7 s with a cache paced by hand.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    filesystem::Kind,
    fio,
    mount::{Access, BlockDevice},
    serve::{Serve, Server},
};

use super::{
    Plan, object_peers,
    report::{Bound, Report, median},
    tree::{self, SECTOR_BYTES, Walk},
    wan::{Cpu, NARROW, Wan},
};

/// Directories per level: 14 give 140,140 entries with 50 files each.
const WIDTH: usize = 14;
const WIDTH_QUICK: usize = 5;
const CACHE_MIB: u64 = 256;
/// The bulk write, as a multiple of the cache.
const BULK_FACTOR: u64 = 10;
const WALK_LIMIT: Duration = Duration::from_secs(900);
/// Peers take minutes: long enough to tell a factor of thirty.
const PEER_LIMIT: Duration = Duration::from_secs(240);
const PEER_LIMIT_QUICK: Duration = Duration::from_secs(30);
/// A link that carried nothing for so long has nothing to carry.
const QUIET: Duration = Duration::from_secs(2);
const AFTER_BULK_S_MAX: f64 = 4.0;
const COLD_FACTOR_MIN: f64 = 10.0;
const HOT_SET_FACTOR_MIN: f64 = 30.0;
/// The largest hot set of the smallest.
const HOT_SET_SPREAD_MAX: f64 = 1.2;

pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let wan = Wan::start(plan, "16G")?;
    let home = wan.host(&wan.cistern(), "home").args(["--cache-size", &format!("{CACHE_MIB}M")]);
    let server = home.start()?;
    let expected = prepare(plan, &wan, &server)?;
    let first = walk_on(&wan, &server, expected)?;
    report.note(format!("first walk, link without limits: {}", first.shown(expected)));
    let server = after_bulk(plan, &wan, server, &home, expected, report)?;
    server.stop()?;
    cold(plan, &wan, expected, report)
}

/// Makes the tree, and its copies for the peers.
fn prepare(plan: &Plan, wan: &Wan, server: &Server) -> Result<usize> {
    let device = BlockDevice::attach(&wan.scratch, &server.uri(), SECTOR_BYTES)?;
    tree::make_filesystem(&device)?;
    let mounted = Kind::Ext4.mount(&wan.scratch, device)?;
    let entries = tree::fill(mounted.dir(), if plan.quick { WIDTH_QUICK } else { WIDTH })?;
    let device = mounted.unmount()?;
    let image = object_peers::copy_image(wan, &device)?;
    device.detach()?;
    server.wait_clean()?;
    object_peers::upload(wan, &image)?;
    std::fs::remove_file(image)?;
    Ok(entries)
}

/// A complete walk on a running server.
fn walk_on(wan: &Wan, server: &Server, expected: usize) -> Result<Walk> {
    let device = BlockDevice::attach_as(&wan.scratch, &server.uri(), SECTOR_BYTES, Access::ReadOnly)?;
    let walk = tree::walk(&wan.scratch, device, WALK_LIMIT)?;
    ensure!(walk.cut || walk.entries == expected, "find saw {} of {expected} entries", walk.entries);
    Ok(walk)
}

/// The walk after writing ten times the cache elsewhere on the volume, and once more by a new process.
fn after_bulk(
    plan: &Plan,
    wan: &Wan,
    server: Server,
    home: &Serve,
    expected: usize,
    report: &mut Report,
) -> Result<Server> {
    let mib = if plan.quick { CACHE_MIB } else { CACHE_MIB * BULK_FACTOR };
    let size = format!("--size={mib}m");
    let bulk = ["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", "--offset=4g", &size];
    fio::nbd(wan.scratch.path(), &server.uri(), &bulk, WALK_LIMIT)?;
    server.wait_clean()?;
    wan.limit(NARROW, report)?;
    let down = wan.link.carried().down;
    let cpu = Cpu::begin(&[("cistern", server.pid()), ("MinIO", wan.minio.pid())]);
    let walk = walk_on(wan, &server, expected)?;
    report.row(
        &format!("find -ls, {expected} entries, 20 ms and 1 MB/s, after a bulk write of {mib} MiB past a cache of {CACHE_MIB} MiB"),
        walk.shown(expected),
        "published: 3.7 s by hand, 409 s without".into(),
        walk.total_s(),
        Bound::AtMost(AFTER_BULK_S_MAX),
    );
    let fetched = (wan.link.carried().down - down) as f64 / 1e6;
    report.note(format!("it fetched {fetched:.1} MB; {}", cpu.shown()));
    wan.widen();
    server.stop()?;
    let server = home.start()?;
    wan.limit(NARROW, report)?;
    let walk = walk_on(wan, &server, expected)?;
    report.note(format!("the same in a new process: {}", walk.shown(expected)));
    wan.widen();
    Ok(server)
}

/// New hosts, with the hot set and without it, against the peers, in turns.
///
/// Each host leaves its hot set to the next one when it stops.
fn cold(plan: &Plan, wan: &Wan, expected: usize, report: &mut Report) -> Result<()> {
    let limit = if plan.quick { PEER_LIMIT_QUICK } else { PEER_LIMIT };
    let (mut cold, mut warm, mut peers) = (Vec::new(), Vec::new(), [const { Vec::new() }; 2]);
    let mut hot_sets = Vec::new();
    for _ in 0..plan.rounds() {
        cold_walk(wan, "new-hot", Start::AtOnce, expected, report)?;
        let with = cold_walk(wan, "new-warm", Start::WhenWarm, expected, report)?;
        delete_hot_sets(wan)?;
        let without = cold_walk(wan, "new-cold", Start::AtOnce, expected, report)?;
        wan.limit(NARROW, report)?;
        peers[0].push(object_peers::walk_s3backer(wan, limit).context("s3backer")?);
        peers[1].push(object_peers::walk_nbdkit(wan, limit).context("nbdkit S3")?);
        wan.widen();
        warm.push(with.walk);
        cold.push(without.walk);
        hot_sets.push(with.fetched_mb);
    }
    let [backer, nbdkit] = peers.map(|walks| Walks::of(&walks, expected));
    let against = format!("s3backer 128k {}, nbdkit S3 {}", backer.shown, nbdkit.shown);
    let best = backer.median_s.min(nbdkit.median_s);
    for (what, walks, least) in [
        ("new host, everything cold", cold, COLD_FACTOR_MIN),
        ("new host, warm by the hot set", warm, HOT_SET_FACTOR_MIN),
    ] {
        let walks = Walks::of(&walks, expected);
        report.row(
            &format!(
                "find -ls, {expected} entries, 20 ms and 1 MB/s, {what}: times faster than the faster peer"
            ),
            walks.shown,
            against.clone(),
            best / walks.median_s,
            Bound::AtLeast(least),
        );
    }
    let (least, most) = extremes(&hot_sets);
    report.row(
        "bytes that a new host fetches by its hot set: the most of the least",
        format!("{least:.1} to {most:.1} MB"),
        format!("{} new hosts", hot_sets.len()),
        most / least,
        Bound::AtMost(HOT_SET_SPREAD_MAX),
    );
    Ok(())
}

/// Several walks of the same kind.
struct Walks {
    median_s: f64,
    shown: String,
}

impl Walks {
    /// One that was cut counts with the time after which it was.
    fn of(walks: &[Walk], expected: usize) -> Walks {
        let times: Vec<f64> = walks.iter().map(Walk::total_s).collect();
        let (median_s, (least, most)) = (median(times.clone()), extremes(&times));
        let middle = walks.iter().find(|walk| walk.total_s() == median_s);
        let shown = middle.map_or_else(String::new, |walk| walk.shown(expected));
        Walks { median_s, shown: format!("{shown}, {least:.2} to {most:.2}") }
    }
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(least, most), &value| (value.min(least), value.max(most)))
}

/// When the walk on a new host begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// As soon as the volume is served.
    AtOnce,
    /// Once the daemon fetches nothing more by itself.
    WhenWarm,
}

/// Returns once nothing came down the link for a while.
fn await_quiet(wan: &Wan) {
    let begin = Instant::now();
    let mut before = wan.link.carried().down;
    while begin.elapsed() < WALK_LIMIT {
        std::thread::sleep(QUIET); // that nothing happens is what is waited for
        let now = wan.link.carried().down;
        if now == before {
            return;
        }
        before = now;
    }
}

/// A walk on a new host.
struct Cold {
    walk: Walk,
    /// What the daemon had fetched by itself before it.
    fetched_mb: f64,
}

/// The walk on a host that never saw the volume, over the narrow link.
fn cold_walk(wan: &Wan, host: &str, start: Start, expected: usize, report: &mut Report) -> Result<Cold> {
    wan.limit(NARROW, report)?;
    let serve = wan.host(&wan.cistern(), host).args(["--cache-size", &format!("{CACHE_MIB}M")]);
    let (before, begin) = (wan.link.carried().down, Instant::now());
    let fetched_mb = || (wan.link.carried().down - before) as f64 / 1e6;
    wan.link.take();
    let server = serve.start()?;
    let opened = begin.elapsed().as_secs_f64();
    if start == Start::WhenWarm {
        await_quiet(wan);
    }
    let by_itself_mb = fetched_mb();
    if start == Start::WhenWarm {
        let seconds = begin.elapsed().saturating_sub(QUIET).as_secs_f64();
        report.note(format!(
            "{host}: fetched {by_itself_mb:.1} MB by itself in {seconds:.1} s, before the walk"
        ));
    }
    let walk = walk_on(wan, &server, expected)?;
    report.note(format!(
        "{host}: served after {opened:.2} s, mounted in {:.2} s, walked in {:.2} s, {:.1} MB in {:?}",
        walk.mount_s,
        walk.walk_s,
        fetched_mb(),
        wan.link.take().requests
    ));
    wan.widen();
    server.stop()?;
    wan.forget(host);
    Ok(Cold { walk, fetched_mb: by_itself_mb })
}

/// Removes what says what is hot from the store: the next host has to find out by itself.
fn delete_hot_sets(wan: &Wan) -> Result<()> {
    for key in wan.objects("hot")? {
        wan.minio.delete(&key)?;
    }
    Ok(())
}
