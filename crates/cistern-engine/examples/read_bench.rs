//! What does a read cost in the engine alone?
//!
//! `read_bench DIR [MIB] [scattered] [cold]` makes a volume of incompressible data in DIR, written in order
//! (`scattered`: and then overwritten at random in blocks of 4 KiB), with its store and its cache there, and reads it
//! as a connection does, one thread with a ring: 4 KiB at random, 32 reads at once, and 1 MiB in order, 8 at once.
//! With `cold` there is no chunk cache, and before each run the kernel forgets the store's files. Prints requests
//! per second and the CPU time of the whole process per block of 4 KiB, drawing the places included.
#![allow(clippy::disallowed_methods)] // a measuring program, not the engine

#[path = "support/options.rs"]
mod support;

use std::{
    os::fd::AsRawFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cistern_engine::{
    Result,
    cache::ChunkCache,
    codec::{Compression, KeySource},
    disk::RealDisk,
    env::{Env, real::RealEnv},
    store::{Scheduler, StoreUrl, create_store},
    uring::use_ring_on_this_thread,
    volume::{CreateOptions, OpenOptions, Piece, Volume},
};
use futures_util::{StreamExt, stream};

const BLOCK: u64 = 4096;
const LARGE_BYTES: u64 = 1 << 20;
const DEPTH: usize = 32;
const LARGE_DEPTH: usize = 8;
const RUN: Duration = Duration::from_secs(5);
const RUNS: usize = 3;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("usage: read_bench DIR [MIB] [scattered] [cold]");
    let dir = std::path::absolute(dir).expect("a path");
    let mib: u64 = args.next().map_or(1024, |n| n.parse().expect("a number"));
    let words: Vec<String> = args.collect();
    let [scattered, cold] = ["scattered", "cold"].map(|word| words.iter().any(|w| w == word));
    let background = tokio::runtime::Runtime::new().expect("a runtime");
    let volume = background.block_on(prepare(&dir, mib, scattered, cold)).expect("a volume");
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    use_ring_on_this_thread();
    for run in 0..RUNS {
        forget(&dir.join("store"));
        measured("4 KiB at random", 1, || {
            own.block_on(read_at_random(&volume, mib << 20, run as u64)).expect("read")
        });
    }
    for _run in 0..RUNS {
        forget(&dir.join("store"));
        measured("1 MiB in order", LARGE_BYTES / BLOCK, || {
            own.block_on(read_in_order(&volume, mib << 20)).expect("read")
        });
    }
    background.block_on(volume.close(RUN));
}

/// Runs something that does so many requests of so many blocks, and prints what they cost.
fn measured(what: &str, blocks: u64, run: impl FnOnce() -> u64) {
    let (before, begin) = (cpu_us(), Instant::now());
    let requests = run();
    let (cpu, s) = (cpu_us() - before, begin.elapsed().as_secs_f64());
    let count = (requests * blocks) as f64;
    println!(
        "{what}: {:.0} requests/s, {:.0} MiB/s, {:.2} us of CPU per block",
        requests as f64 / s,
        count / 256.0 / s,
        cpu / count
    );
}

/// Has the kernel forget what it keeps of the files below a directory.
fn forget(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path()) {
        if entry.is_dir() {
            forget(&entry);
            continue;
        }
        let file = std::fs::File::open(&entry).expect("a file");
        // SAFETY: the descriptor is open; nothing is passed by reference.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// A clean volume of `mib` MiB; unless `cold`, its data was read.
async fn prepare(dir: &Path, mib: u64, scattered: bool, cold: bool) -> Result<Arc<Volume>> {
    let env: Env = RealEnv::start();
    let url = StoreUrl::parse(&format!("file://{}", dir.join("store").display()))?;
    let store = create_store(&url, &env).await?;
    let (size_bytes, key) = (mib << 20, KeySource::None);
    Volume::create(&env, &store, CreateOptions { size_bytes, compression: Compression::Lz4, key }).await?;
    let cache = match cold {
        true => None,
        false => {
            let disk = Arc::new(RealDisk::create(&dir.join("cache"))?);
            Some(ChunkCache::open(env.clone(), disk, 2 * size_bytes).await?)
        }
    };
    let stores = Scheduler::new(env.clone()).stores(&store, RUN);
    let options = OpenOptions {
        cache,
        memory_bytes: 64 << 20, // holds next to nothing of the data
        ..support::options(&env, stores, Arc::new(RealDisk::create(&dir.join("state"))?))
    };
    let volume = Volume::open(options).await?;
    let mut state = 1;
    for offset in (0..size_bytes).step_by(LARGE_BYTES as usize) {
        let data: Vec<u8> = (0..LARGE_BYTES / 8).flat_map(|_| draw(&mut state).to_le_bytes()).collect();
        volume.write(offset, Bytes::from(data), false).await?;
    }
    let data: Vec<u8> = (0..BLOCK / 8).flat_map(|_| draw(&mut state).to_le_bytes()).collect();
    for _ in 0..if scattered { size_bytes / BLOCK } else { 0 } {
        let mut data = data.clone();
        data[..8].copy_from_slice(&draw(&mut state).to_le_bytes());
        volume.write(draw(&mut state) % (size_bytes / BLOCK) * BLOCK, Bytes::from(data), false).await?;
    }
    volume.drain().await?;
    for _pass in 0..if cold { 0 } else { 3 } {
        for offset in (0..size_bytes).step_by(LARGE_BYTES as usize) {
            volume.read(offset, LARGE_BYTES).await?;
        }
    }
    Ok(volume)
}

/// Reads everything once in order, and in how many requests.
async fn read_in_order(volume: &Volume, bytes: u64) -> Result<u64> {
    let places = (0..bytes).step_by(LARGE_BYTES as usize);
    let mut reads = stream::iter(places).map(|offset| volume.read(offset, LARGE_BYTES)).buffered(LARGE_DEPTH);
    let mut count = 0;
    while let Some(pieces) = reads.next().await {
        pieces?;
        count += 1;
    }
    Ok(count)
}

/// Random reads for [`RUN`], and how many they were.
async fn read_at_random(volume: &Volume, bytes: u64, seed: u64) -> Result<u64> {
    let mut state = seed;
    let end = Instant::now() + RUN;
    let places =
        std::iter::from_fn(|| (Instant::now() < end).then(|| draw(&mut state) % (bytes / BLOCK) * BLOCK));
    let mut reads = stream::iter(places).map(|offset| volume.read(offset, BLOCK)).buffer_unordered(DEPTH);
    let mut count = 0;
    while let Some(pieces) = reads.next().await {
        assert!(matches!(&pieces?[..], [Piece::Data(data)] if data.len() as u64 == BLOCK));
        count += 1;
    }
    Ok(count)
}

/// The next number of splitmix64 (Steele, Lea and Flood 2014).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// CPU time of this process in microseconds.
fn cpu_us() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the duration of the call.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    assert_eq!(rc, 0);
    t.tv_sec as f64 * 1e6 + t.tv_nsec as f64 / 1e3
}
