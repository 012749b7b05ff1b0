//! What snapshots cost: `snapshot_bench diff|many|pause|window|shed DIR [COUNT]`.
//!
//! - `diff`: a volume of 50 TiB whose map holds COUNT extents of 64 KiB (10 million), of which a thousandth was written again behind a
//!   snapshot, scattered or in a hundred places: the difference, through a store that takes 20 ms for every request.
//! - `many`: COUNT snapshots (1,000) with a write before each, through such a store: making one, opening, listing, removing the middle
//!   one and then all others but one.
//! - `pause`: 4 KiB random writes, 32 at a time, beside snapshots; then ten volumes and snapshots of all of them at once. How long any write took.
//! - `window`: uniform overwrites of a volume of 2 GiB, a twentieth of it between two snapshots, of which the last 24 are kept, COUNT (72) in
//!   all; the cleaner runs by itself. What is stored for what the volume and its snapshots show, by a walk over all of them.
//! - `shed`: 4 KiB random writes and reads beside the removal of all but one of COUNT (1,000) snapshots, and the cleaning of what they held.
//!
//! DIR is for the journals, and for `pause` for the store.

#![allow(clippy::disallowed_methods)] // a measuring program, not the engine

#[path = "support/generated.rs"]
mod generated;
#[path = "support/options.rs"]
mod support;
#[path = "support/slow.rs"]
mod through;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::{Compression, KeySource},
    disk::RealDisk,
    env::{Env, real::RealEnv},
    store::{MemoryStore, Pages, SharedStore, StoreUrl, Stores, create_store},
    units::Seq,
    volume::{
        Collect, CreateOptions, OpenOptions, ReadOnlyOptions, SpaceReport, Volume, admin, snapshot_together,
    },
};
use generated::{BLOCK, FRAME_BLOCKS, Generated, Random, generate, mappings};
use through::{Slow, slow};

const DIFF_VOLUME_BYTES: u64 = 50 << 40;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(what), Some(dir)) = (arguments.first(), arguments.get(1)) else {
        eprintln!("snapshot_bench diff|many|pause|window|shed DIR [COUNT]");
        std::process::exit(2);
    };
    let count = arguments.get(2).map(|count| count.parse().expect("a number"));
    let (env, dir) = (RealEnv::start(), PathBuf::from(dir));
    match what.as_str() {
        "diff" => diff(&env, count.unwrap_or(10_000_000)).await,
        "many" => many(&env, &dir, count.unwrap_or(1000) as usize).await,
        "pause" => pause(&env, &dir).await,
        "window" => window(&env, &dir, count.unwrap_or(72)).await,
        "shed" => shed(&env, &dir, count.unwrap_or(1000)).await,
        other => panic!("{other}: diff, many, pause, window or shed"),
    }
}

fn options(env: &Env, store: SharedStore, state: &Path) -> OpenOptions {
    support::options(env, Stores::same(store), Arc::new(RealDisk::create(state).expect("a directory")))
}

async fn create(env: &Env, store: &SharedStore, size_bytes: u64) -> Result<()> {
    let options = CreateOptions { size_bytes, compression: Compression::Lz4, key: KeySource::None };
    Volume::create(env, store, options).await.map(drop)
}

async fn open_read_only(env: &Env, store: SharedStore) -> Result<Arc<Volume>> {
    Volume::open_read_only(ReadOnlyOptions {
        env: env.clone(),
        stores: Stores::same(store),
        cache: None,
        key: KeySource::None,
        memory_bytes: 128 << 20,
        snapshot: None,
    })
    .await
}

async fn diff(env: &Env, extents: u64) -> Result<()> {
    for places in [extents / 1000, 100] {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let segments = extents / 4096;
        // Written again: frames that follow each other at so many places.
        let (changed, mut random) = (extents / 1000, Random(1));
        let each = changed / places;
        let frames = DIFF_VOLUME_BYTES / BLOCK / FRAME_BLOCKS;
        let from: Vec<u64> = (0..places).map(|_| random.below(frames - each)).collect();
        let again = mappings(Seq(segments + 1), from.iter().flat_map(|from| *from..from + each));
        let Generated { map_bytes, runs } =
            generate(env, &store, DIFF_VOLUME_BYTES, extents, Seq, again).await?;
        let slow = slow(&store);
        let volume = open_read_only(env, slow.clone()).await?;
        slow.requests.store(0, Relaxed);
        let (began, mut bytes) = (Instant::now(), 0);
        let tell = |range: &cistern_engine::volume::ChangedRange| {
            bytes += range.len;
            Ok::<(), Error>(())
        };
        volume.changes_since(segments, None, tell, &|_, _| {}).await?;
        println!(
            "{extents} extents, map of {} MiB in {runs} runs; {changed} written again at {places} places: {} MiB changed, {} requests, {:.0} ms",
            map_bytes >> 20,
            bytes >> 20,
            slow.requests.load(Relaxed),
            began.elapsed().as_secs_f64() * 1e3,
        );
    }
    Ok(())
}

/// The median, the 99th of a hundred and the longest, in ms.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at =
        |n: usize| times.get(n.min(times.len().saturating_sub(1))).map_or(0.0, |t| t.as_secs_f64() * 1e3);
    format!(
        "median {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
        at(times.len() / 2),
        at(times.len() * 99 / 100),
        at(times.len())
    )
}

async fn many(env: &Env, dir: &Path, count: usize) -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    create(env, &store, 1 << 40).await?;
    let state = tempdir(dir);
    let mut before = 0;
    for made in [0, count] {
        let slow = slow(&store);
        let volume = Volume::open(options(env, slow.clone(), &state)).await?;
        let mut times = Vec::new();
        for n in 0..made {
            volume
                .write((n as u64 * 7919 % 100_000) * BLOCK, Bytes::from(vec![n as u8; BLOCK as usize]), false)
                .await?;
            let began = Instant::now();
            volume.snapshot(&format!("s{n}")).await?;
            times.push(began.elapsed());
        }
        volume.drain().await?;
        let began = Instant::now();
        volume.collect(Collect::Retire).await?;
        if made > 0 {
            let checkpoint_s = began.elapsed().as_secs_f64();
            println!(
                "{made} snapshots made: {}; {checkpoint_s:.1} s until a checkpoint had all",
                spread(times)
            );
        }
        volume.close(Duration::from_secs(60)).await;
        let (requests, began) = (slow.requests.swap(0, Relaxed), Instant::now());
        let volume = Volume::open(options(env, slow.clone(), &state)).await?;
        let opened = slow.requests.load(Relaxed);
        println!(
            "{made} snapshots: open with {opened} requests ({:.2} of none) in {:.0} ms; {requests} requests so far",
            if before > 0 { opened as f64 / before as f64 } else { 1.0 },
            began.elapsed().as_secs_f64() * 1e3,
        );
        before = opened;
        let began = Instant::now();
        let listed = volume.snapshots().len();
        println!("  {listed} listed in {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
        if made > 0 {
            remove(&volume, &slow, count).await?;
        }
        volume.close(Duration::from_secs(60)).await;
    }
    Ok(())
}

async fn remove(volume: &Volume, slow: &Slow, count: usize) -> Result<()> {
    let middle = count / 2;
    slow.requests.store(0, Relaxed);
    let began = Instant::now();
    volume.remove_snapshot(&format!("s{middle}")).await?;
    let (took, at_once) = (began.elapsed(), slow.requests.load(Relaxed));
    volume.collect(Collect::Retire).await?;
    println!(
        "  the middle one removed in {:.2} ms with {at_once} requests; with the checkpoint behind it {:.0} ms and {}",
        took.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64() * 1e3,
        slow.requests.swap(0, Relaxed),
    );
    let began = Instant::now();
    for n in (1..count).filter(|n| *n != middle) {
        volume.remove_snapshot(&format!("s{n}")).await?;
    }
    let took = began.elapsed();
    volume.collect(Collect::Retire).await?;
    println!(
        "  {} more removed in {:.0} ms; with the checkpoint behind it {:.0} ms and {} requests",
        count - 2,
        took.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64() * 1e3,
        slow.requests.swap(0, Relaxed),
    );
    Ok(())
}

fn tempdir(dir: &Path) -> PathBuf {
    let path = dir.join(format!("snapshot-bench-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

/// Writes 4 KiB at random, `depth` at a time on each volume, until it is over. Gives when each write began, since `zero`, and how long it took.
async fn load(
    volumes: &[Arc<Volume>],
    depth: usize,
    over: &Arc<AtomicBool>,
    zero: Instant,
) -> Vec<(Duration, Duration)> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (v, volume) in volumes.iter().enumerate() {
        for n in 0..depth {
            let (volume, over, all) = (volume.clone(), over.clone(), all.clone());
            let mut random = Random((v * 1000 + n + 1) as u64);
            tasks.push(tokio::spawn(async move {
                let (blocks, data) = (volume.size_bytes() / BLOCK, Bytes::from(vec![7; BLOCK as usize]));
                let mut own = Vec::new();
                while !over.load(Relaxed) {
                    let began = Instant::now();
                    volume.write(random.below(blocks) * BLOCK, data.clone(), false).await.expect("written");
                    own.push((began - zero, began.elapsed()));
                    tokio::task::yield_now().await;
                }
                all.lock().unwrap().append(&mut own);
            }));
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    Arc::into_inner(all).expect("all are done").into_inner().unwrap()
}

async fn pause(env: &Env, dir: &Path) -> Result<()> {
    let root = tempdir(dir);
    for (volumes, depth, every_ms) in [(1, 32, 250), (10, 4, 500)] {
        let mut open = Vec::new();
        for n in 0..volumes {
            let url = StoreUrl::parse(&root.join(format!("store-{volumes}-{n}")).display().to_string())?;
            let store = create_store(&url, env).await?;
            create(env, &store, 4 << 30).await?;
            open.push(Volume::open(options(env, store, &root.join(format!("state-{volumes}-{n}")))).await?);
        }
        let (over, zero) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let snapshots = tokio::spawn({
            let (open, over) = (open.clone(), over.clone());
            async move {
                let mut taken: BTreeMap<Duration, Duration> = BTreeMap::new();
                tokio::time::sleep(Duration::from_secs(10)).await; // the first half without
                for n in 0..10_000 / every_ms {
                    let name = format!("s{n}");
                    let began = Instant::now();
                    let all: Vec<(&Volume, &str)> =
                        open.iter().map(|volume| (&**volume, name.as_str())).collect();
                    snapshot_together(&all).await.expect("made");
                    taken.insert(began - zero, began.elapsed());
                    tokio::time::sleep(Duration::from_millis(every_ms)).await;
                }
                over.store(true, Relaxed);
                taken
            }
        });
        let writes = load(&open, depth, &over, zero).await;
        let taken = snapshots.await.expect("no panic");
        let half = Duration::from_secs(10);
        let times = |keep: &dyn Fn(Duration, Duration) -> bool| {
            writes.iter().filter(|(at, took)| keep(*at, *took)).map(|(_, took)| *took).collect::<Vec<_>>()
        };
        let beside = |at: Duration, took: Duration| {
            taken.iter().any(|(began, lasted)| at < *began + *lasted && *began < at + took)
        };
        println!(
            "{volumes} volumes, {depth} writes at a time on each: {} writes in {} s",
            writes.len(),
            zero.elapsed().as_secs()
        );
        println!("  without snapshots: {}", spread(times(&|at, _| at < half)));
        println!("  with one every {every_ms} ms: {}", spread(times(&|at, _| at >= half)));
        println!("  those beside one: {}", spread(times(&|at, took| at >= half && beside(at, took))));
        println!("  the snapshots: {}", spread(taken.values().copied().collect()));
        for volume in open {
            volume.close(Duration::from_secs(120)).await;
        }
    }
    std::fs::remove_dir_all(root).map_err(|e| Error::Invalid(e.to_string()))
}

/// Snapshots that are kept, and the blocks of a volume that are written between two of them.
const WINDOW: u64 = 24;
const WINDOW_BLOCKS: u64 = (2 << 30) / BLOCK;
const PERIOD_BLOCKS: u64 = WINDOW_BLOCKS / 20;
/// What stands for an hour.
const PERIOD: Duration = Duration::from_secs(5);

/// Bytes that do not compress, from a place in some that were made once.
fn noise(random: &mut Random, pool: &Bytes, len: u64) -> Bytes {
    let at = random.below(pool.len() as u64 - len) as usize;
    pool.slice(at..at + len as usize)
}

fn pool(random: &mut Random) -> Bytes {
    (0..(64 << 20) / 8).flat_map(|_| (random.below(1 << 48) * 0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

async fn fill(volume: &Volume, blocks: u64, random: &mut Random, pool: &Bytes) -> Result<()> {
    for block in (0..blocks).step_by(256) {
        volume.write(block * BLOCK, noise(random, pool, 256 * BLOCK), false).await?;
    }
    volume.drain().await
}

/// A collection that only looks what there is.
async fn space(env: &Env, store: &SharedStore) -> Result<SpaceReport> {
    let what = admin::Checked { data: false, space: true };
    let report = admin::check(env, store, &KeySource::None, what, &|_, _| {}).await?;
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    Ok(report.space.expect("asked for"))
}

/// Bytes of all objects.
async fn stored(store: &SharedStore) -> Result<u64> {
    let (mut pages, mut bytes) = (Pages::of(store.as_ref(), ""), 0);
    while let Some(page) = pages.next_page().await? {
        bytes += page.iter().map(|listed| listed.bytes).sum::<u64>();
    }
    Ok(bytes)
}

async fn window(env: &Env, dir: &Path, count: u64) -> Result<()> {
    let root = tempdir(dir);
    let store: SharedStore = Arc::new(MemoryStore::new());
    create(env, &store, WINDOW_BLOCKS * BLOCK).await?;
    let options = OpenOptions { grace: Duration::ZERO, ..options(env, store.clone(), &root) };
    let volume = Volume::open(options).await?;
    let mut random = Random(7);
    let pool = pool(&mut random);
    fill(&volume, WINDOW_BLOCKS, &mut random, &pool).await?;
    println!("period  segments  needed  ratio  all objects  moved");
    let (mut worst, began) = (0.0_f64, Instant::now());
    let mut next = tokio::time::interval(PERIOD / 100);
    for period in 1..=count {
        for n in 0..PERIOD_BLOCKS {
            if n % (PERIOD_BLOCKS / 100) == 0 {
                next.tick().await;
            }
            let block = random.below(WINDOW_BLOCKS);
            volume.write(block * BLOCK, noise(&mut random, &pool, BLOCK), false).await?;
        }
        volume.snapshot(&format!("s{period}")).await?;
        if period > WINDOW {
            volume.remove_snapshot(&format!("s{}", period - WINDOW)).await?;
        }
        volume.drain().await?;
        if period % 4 > 0 {
            continue;
        }
        let report = space(env, &store).await?;
        let stored = report.segments.bytes + report.dead.bytes;
        let ratio = stored as f64 / report.live_bytes as f64;
        if period > WINDOW {
            worst = worst.max(ratio);
        }
        let mib = |bytes: u64| bytes >> 20;
        let moved = volume.status().space.map_or(0, |space| space.counters.moved_bytes);
        println!(
            "{period:6}  {:8}  {:6}  {ratio:5.3}  {:11}  {:5}",
            mib(stored),
            mib(report.live_bytes),
            mib(report.all.bytes),
            mib(moved),
        );
    }
    println!("worst behind the first window: {worst:.3}; {} s", began.elapsed().as_secs());
    volume.close(Duration::from_secs(120)).await;
    std::fs::remove_dir_all(root).map_err(|e| Error::Invalid(e.to_string()))
}

async fn shed(env: &Env, dir: &Path, count: u64) -> Result<()> {
    let root = tempdir(dir);
    let url = StoreUrl::parse(&root.join("store").display().to_string())?;
    let store = create_store(&url, env).await?;
    create(env, &store, WINDOW_BLOCKS * BLOCK).await?;
    let volume =
        Volume::open(OpenOptions { grace: Duration::ZERO, ..options(env, store.clone(), &root) }).await?;
    let mut random = Random(7);
    let pool = pool(&mut random);
    fill(&volume, WINDOW_BLOCKS, &mut random, &pool).await?;
    for snapshot in 0..count {
        for _ in 0..PERIOD_BLOCKS / 50 {
            let block = random.below(WINDOW_BLOCKS);
            volume.write(block * BLOCK, noise(&mut random, &pool, BLOCK), false).await?;
        }
        volume.snapshot(&format!("s{snapshot}")).await?;
    }
    volume.drain().await?;
    println!("{count} snapshots, {} MiB in the store", stored(&store).await? >> 20);
    let load = |seconds: u64| mixed(volume.clone(), seconds, pool.clone());
    let [_, before] = [load(10).await, load(30).await];
    let removing = tokio::spawn({
        let volume = volume.clone();
        async move {
            let began = Instant::now();
            for snapshot in 0..count - 1 {
                volume.remove_snapshot(&format!("s{snapshot}")).await.expect("removed");
            }
            began.elapsed()
        }
    });
    let beside = load(60).await;
    println!("removed in {:.1} s", removing.await.expect("no panic").as_secs_f64());
    for (what, [reads, writes]) in [("before", before), ("beside", beside)] {
        println!("  {what}: reads {}; writes {}", spread(reads), spread(writes));
    }
    volume.drain().await?;
    volume.collect(Collect::Retire).await?;
    println!("{} MiB in the store", stored(&store).await? >> 20);
    volume.close(Duration::from_secs(120)).await;
    std::fs::remove_dir_all(root).map_err(|e| Error::Invalid(e.to_string()))
}

/// Reads and writes of single blocks at random, eight at a time each, and how long each took.
async fn mixed(volume: Arc<Volume>, seconds: u64, pool: Bytes) -> [Vec<Duration>; 2] {
    let until = Instant::now() + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (volume, pool, mut random) = (volume.clone(), pool.clone(), Random(task + 1));
            tokio::spawn(async move {
                let mut took = Vec::new();
                while Instant::now() < until {
                    let (offset, began) = (random.below(WINDOW_BLOCKS) * BLOCK, Instant::now());
                    match task % 2 {
                        0 => volume.read(offset, BLOCK).await.map(drop).expect("read"),
                        _ => {
                            let data = noise(&mut random, &pool, BLOCK);
                            volume.write(offset, data, false).await.expect("written");
                            tokio::time::sleep(Duration::from_millis(4)).await; // 2,000 writes a second
                        }
                    }
                    took.push(began.elapsed());
                }
                took
            })
        })
        .collect();
    let mut all = [Vec::new(), Vec::new()];
    for (task, done) in tasks.into_iter().enumerate() {
        all[task % 2].extend(done.await.expect("no panic"));
    }
    all
}
