//! Measures the map: CPU and bytes written per update, memory, lookups.
//!
//! ```text
//! map_bench random     UPDATES DIR [key]   random 4 KiB updates over 16 TiB
//! map_bench hot        UPDATES DIR [key]   random 4 KiB updates over 64 GiB
//! map_bench sequential UPDATES DIR [key]   64 KiB frames, ascending
//! map_bench open       LOOKUPS DIR         opens what one of these left in DIR, without a key
//! ```
//! The runs are files in DIR, `state.json` is what a checkpoint would name. CPU is that of the
//! whole process (user and system) during calls into the map, worker threads included; drawing
//! the updates is not counted.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    ops::Range,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::MasterKey,
    env::{Env, real::RealEnv},
    map::{Levels, Map, MapOptions, RunIo, RunMeta},
    units::{Extent, FrameRef, Mapping, Place, RunId, Seq, VolumeId},
};

/// Blocks of the device: 16 TiB.
const DEVICE_BLOCKS: u64 = 16 << 28;
/// Blocks of the hot range: 64 GiB.
const HOT_BLOCKS: u64 = 64 << 18;
/// Single blocks per segment of 16 MiB.
const SEGMENT_MAPPINGS: u64 = 4096;
/// Segments between two freezes.
const FREEZE_SEGMENTS: u64 = 64;
/// Stored bytes of an incompressible, sealed block.
const STORED_BYTES: u32 = 4096 + 24;

struct Directory {
    path: PathBuf,
    written_bytes: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Directory {
    fn new(path: PathBuf) -> Arc<Directory> {
        fs::create_dir_all(&path).expect("the directory can be made");
        let (written_bytes, reads, read_bytes) = Default::default();
        Arc::new(Directory { path, written_bytes, reads, read_bytes })
    }

    /// Removes the runs that `levels` do not name.
    fn keep_only(&self, levels: &Levels) {
        let listed: BTreeSet<String> = levels.iter().flatten().map(|run| run.id.to_string()).collect();
        for entry in fs::read_dir(&self.path).expect("the directory can be listed") {
            let entry = entry.expect("the directory can be listed");
            if !entry.file_name().to_str().is_some_and(|name| listed.contains(name)) {
                fs::remove_file(entry.path()).expect("a run can be removed");
            }
        }
    }
}

#[async_trait]
impl RunIo for Directory {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        let name = run.id.to_string();
        let mut out = vec![0; (range.end - range.start) as usize];
        let file = File::open(self.path.join(&name)).map_err(|e| Error::io(&name, &e))?;
        file.read_exact_at(&mut out, range.start).map_err(|e| Error::io(&name, &e))?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(out.into())
    }
    async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        let name = id.to_string();
        self.written_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        fs::write(self.path.join(&name), &body).map_err(|e| Error::io(&name, &e))
    }
}

fn usage() -> libc::rusage {
    let mut usage = std::mem::MaybeUninit::zeroed();
    // SAFETY: `usage` is valid for writes; getrusage fills it and cannot fail for RUSAGE_SELF.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    }
}

fn cpu() -> Duration {
    let u = usage();
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(u.ru_utime) + time(u.ru_stime)
}

fn peak_mib() -> i64 {
    usage().ru_maxrss >> 10
}

/// xorshift64*: good enough to draw blocks, and the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(limit)) >> 64) as u64
    }
}

fn frame(start: u64, len: u64, seq: Seq, offset: u32, stored: u32) -> Mapping {
    let place = Place::Frame(FrameRef { seq, offset, stored, index: 0 });
    Mapping { extent: Extent::new(start, len), birth: seq, place }
}

fn random_segment(draw: &mut Draw, seq: Seq, blocks: u64) -> Vec<Mapping> {
    let mut starts: Vec<u64> = (0..SEGMENT_MAPPINGS).map(|_| draw.below(blocks)).collect();
    starts.sort_unstable();
    starts.dedup();
    let offset = |i: usize| 64 + i as u32 * STORED_BYTES;
    starts.iter().enumerate().map(|(i, &b)| frame(b, 1, seq, offset(i), STORED_BYTES)).collect()
}

fn sequential_segment(next: &mut u64, seq: Seq) -> Vec<Mapping> {
    let mut offset = 64;
    let mut one = |_| {
        let stored = 40_000 + (*next * 7919 % 9973) as u32; // compressed: every one differs
        let m = frame(*next, 16, seq, offset, stored);
        *next += 16;
        offset += stored;
        m
    };
    (0..256).map(&mut one).collect()
}

/// Time and CPU spent in the map.
#[derive(Default)]
struct Spent {
    cpu: Duration,
    wall: Duration,
    longest: Duration,
    calls: u32,
}

impl Spent {
    #[allow(clippy::disallowed_methods)] // a benchmark is about the clock
    async fn on<T>(&mut self, work: impl Future<Output = T>) -> T {
        let (cpu_before, before) = (cpu(), Instant::now());
        let out = work.await;
        let wall = before.elapsed();
        self.cpu += cpu() - cpu_before;
        self.wall += wall;
        self.longest = self.longest.max(wall);
        self.calls += 1;
        out
    }

    fn line(&self, name: &str, updates: u64) {
        let us = |t: Duration| t.as_secs_f64() * 1e6;
        println!(
            "  {name:<8} {:>7.3} us CPU per update, {:>6} calls, longest {:.1} ms",
            us(self.cpu) / updates as f64,
            self.calls,
            us(self.longest) / 1e3,
        );
    }
}

fn open_map(env: &Env, dir: &Arc<Directory>, key: bool, levels: Levels, covered: Seq) -> Arc<Map> {
    let key = key.then(|| Arc::new(MasterKey::generate(env)));
    let volume = VolumeId(uuid::Uuid::from_u128(1));
    Map::new(env.clone(), dir.clone(), key, volume, MapOptions::default(), levels, covered)
}

#[allow(clippy::disallowed_methods)]
async fn update(mode: &str, updates: u64, dir: Arc<Directory>, key: bool) {
    let env = RealEnv::start();
    let map = open_map(&env, &dir, key, Levels::new(), Seq(0));
    let (mut insert, mut flush, mut merge) = (Spent::default(), Spent::default(), Spent::default());
    let (mut draw, mut next, mut seq, mut done) = (Draw(0x9E37_79B9_7F4A_7C15), 0, Seq(0), 0);
    let (mut sample, mut dead) = (Vec::new(), 0);
    let began = Instant::now();
    while done < updates {
        seq = seq.next();
        let batch = match mode {
            "random" => random_segment(&mut draw, seq, DEVICE_BLOCKS),
            "hot" => random_segment(&mut draw, seq, HOT_BLOCKS),
            _ => sequential_segment(&mut next, seq),
        };
        done += batch.len() as u64;
        sample.extend(batch.iter().step_by(97).map(|m| m.extent.start));
        insert.on(async { map.insert(&batch) }).await;
        if seq.0 % FREEZE_SEGMENTS == 0 || done >= updates {
            map.freeze(seq);
            flush.on(map.flush()).await.expect("the directory takes runs");
            while merge.on(map.merge_step()).await.expect("the directory gives runs back") {}
            dead += map.take_state().dead.blocks();
        }
    }
    let total = insert.cpu + flush.cpu + merge.cpu;
    let in_map = insert.wall + flush.wall + merge.wall;
    let written = dir.written_bytes.load(Ordering::Relaxed);
    println!(
        "{mode}: {done} updates in {:.1} s, of which {:.1} s in the map",
        began.elapsed().as_secs_f64(),
        in_map.as_secs_f64()
    );
    println!(
        "  {:.3} us CPU per update, {:.0} updates/s of one core, {:.2} bytes written per update",
        total.as_secs_f64() * 1e6 / done as f64,
        done as f64 / total.as_secs_f64(),
        written as f64 / done as f64
    );
    insert.line("insert", done);
    flush.line("flush", done);
    merge.line("merge", done);
    let state = map.take_state();
    let live: u64 = state.levels.iter().flatten().map(|run| run.mappings).sum();
    println!("  {live} mappings in runs, {dead} blocks found dead, peak memory {} MiB", peak_mib());
    show(&state.levels);
    dir.keep_only(&state.levels);
    let json = serde_json::to_vec(&(state.levels, state.covered)).expect("levels are plain data");
    fs::write(dir.path.join("state.json"), json).expect("the directory takes the state");
    look_up(&map, &dir, &sample, 100_000.min(done)).await;
    trim(&map, seq.next()).await;
}

fn show(levels: &Levels) {
    for (i, level) in levels.iter().enumerate() {
        let sum = |f: fn(&RunMeta) -> u64| level.iter().map(f).sum::<u64>();
        let (bytes, mappings, rank) = (sum(|r| r.bytes), sum(|r| r.mappings), level[0].rank);
        println!("  level {i}: rank {rank}, {} runs, {mappings} mappings, {bytes} bytes", level.len());
    }
}

#[allow(clippy::disallowed_methods)]
async fn look_up(map: &Map, dir: &Directory, sample: &[u64], lookups: u64) {
    let mut draw = Draw(1);
    for (name, written) in [("written", true), ("any", false)] {
        if written && sample.is_empty() {
            continue;
        }
        let (reads, read_bytes) = (dir.reads.load(Ordering::Relaxed), dir.read_bytes.load(Ordering::Relaxed));
        let mut spent = Spent::default();
        let work = async {
            for _ in 0..lookups {
                let block = if written {
                    sample[draw.below(sample.len() as u64) as usize]
                } else {
                    draw.below(DEVICE_BLOCKS)
                };
                let found = map.lookup(Extent::new(block, 1)).await.expect("the directory gives runs back");
                assert_eq!(found.len(), 1);
            }
        };
        spent.on(work).await;
        println!(
            "  lookups of {name} blocks: {:.0}/s, {:.1} us CPU, {:.2} reads of {:.0} bytes each; peak memory {} MiB",
            lookups as f64 / spent.wall.as_secs_f64(),
            spent.cpu.as_secs_f64() * 1e6 / lookups as f64,
            (dir.reads.load(Ordering::Relaxed) - reads) as f64 / lookups as f64,
            (dir.read_bytes.load(Ordering::Relaxed) - read_bytes) as f64
                / (dir.reads.load(Ordering::Relaxed) - reads).max(1) as f64,
            peak_mib()
        );
    }
}

async fn trim(map: &Map, seq: Seq) {
    let extent = Extent::new(0, DEVICE_BLOCKS);
    let hole = Mapping { extent, birth: seq, place: Place::Hole };
    let mut spent = Spent::default();
    map.insert(&[hole]);
    map.freeze(seq);
    map.flush().await.expect("the directory takes runs");
    let found = spent.on(map.lookup_limited(extent, 64)).await.expect("the directory gives runs back");
    println!(
        "  after trimming everything: {} mapping in {:.3} ms",
        found.len(),
        spent.wall.as_secs_f64() * 1e3
    );
}

#[allow(clippy::disallowed_methods)]
async fn open(lookups: u64, dir: Arc<Directory>) {
    let json = fs::read(dir.path.join("state.json")).expect("state.json");
    let (levels, covered): (Levels, Seq) = serde_json::from_slice(&json).expect("levels");
    let env = RealEnv::start();
    let mappings: u64 = levels.iter().flatten().map(|run| run.mappings).sum();
    show(&levels);
    let began = Instant::now();
    let map = open_map(&env, &dir, false, levels, covered);
    println!("opened {mappings} mappings in {:.3} ms", began.elapsed().as_secs_f64() * 1e3);
    let began = Instant::now();
    map.lookup(Extent::new(DEVICE_BLOCKS / 2, 1)).await.expect("the directory gives runs back");
    println!(
        "  first lookup {:.3} ms, {} reads",
        began.elapsed().as_secs_f64() * 1e3,
        dir.reads.load(Ordering::Relaxed)
    );
    look_up(&map, &dir, &[], lookups).await;
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, count, dir, rest @ ..] = &args[..] else {
        eprintln!("usage: map_bench random|hot|sequential|open COUNT DIR [key]");
        std::process::exit(2);
    };
    let count = count.parse().expect("COUNT is a number");
    let dir = Directory::new(dir.into());
    match mode.as_str() {
        "open" => open(count, dir).await,
        mode => update(mode, count, dir, rest.first().is_some_and(|word| word == "key")).await,
    }
}
