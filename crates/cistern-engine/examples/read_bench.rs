//! What does a 4 KiB read out of the chunk cache cost in the engine alone?
//!
//! `read_bench DIR [MIB]` makes a volume of incompressible data in DIR, written in order, with its store and its
//! cache there, and reads it at random as a connection does: one thread with a ring, 32 reads at once. Prints
//! reads per second and the CPU time of the whole process per read, drawing the places included.
#![allow(clippy::disallowed_methods)] // a measuring program, not the engine

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cistern_engine::{
    Result,
    cache::ChunkCache,
    codec::{Compression, KeySource},
    disk::{RealDisk, use_ring_on_this_thread},
    env::{Env, real::RealEnv},
    store::{StoreUrl, Stores, create_store},
    volume::{CreateOptions, Mode, OpenOptions, Piece, Volume},
};
use futures_util::{StreamExt, stream};

const BLOCK: u64 = 4096;
const WRITE_BYTES: u64 = 1 << 20;
const DEPTH: usize = 32;
const RUN: Duration = Duration::from_secs(5);
const RUNS: usize = 4;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("usage: read_bench DIR [MIB]");
    let dir = std::path::absolute(dir).expect("a path");
    let mib: u64 = args.next().map_or(1024, |n| n.parse().expect("a number"));
    let background = tokio::runtime::Runtime::new().expect("a runtime");
    let volume = background.block_on(prepare(dir, mib)).expect("a volume");
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    use_ring_on_this_thread();
    for run in 0..RUNS {
        let (before, begin) = (cpu_us(), Instant::now());
        let reads = own.block_on(read(&volume, mib << 20, run as u64)).expect("read");
        let (cpu, s) = (cpu_us() - before, begin.elapsed().as_secs_f64());
        println!("{:.0} reads/s, {:.2} us of CPU per read", reads as f64 / s, cpu / reads as f64);
    }
    background.block_on(volume.close(RUN));
}

/// A clean volume of `mib` MiB whose data was read once.
async fn prepare(dir: PathBuf, mib: u64) -> Result<Arc<Volume>> {
    let env: Env = RealEnv::start();
    let url = StoreUrl::parse(&format!("file://{}", dir.join("store").display()))?;
    let store = create_store(&url, &env).await?;
    let (size_bytes, key) = (mib << 20, KeySource::None);
    Volume::create(&env, &store, CreateOptions { size_bytes, compression: Compression::Lz4, key }).await?;
    let cache = Arc::new(RealDisk::create(&dir.join("cache"))?);
    let cache = ChunkCache::open(env.clone(), cache, size_bytes + size_bytes / 4).await?;
    let options = OpenOptions {
        stores: Stores::same(store),
        state: Arc::new(RealDisk::create(&dir.join("state"))?),
        cache: Some(cache),
        key: KeySource::None,
        mode: Mode::Writeback,
        journal_bytes: 1 << 30,
        dirty_age_max: Duration::from_secs(30),
        dirty_bytes_max: 1 << 30,
        paused: false,
        memory_bytes: 64 << 20, // holds next to nothing of the data
        host: "bench".into(),
        take_over: false,
        env,
    };
    let volume = Volume::open(options).await?;
    let mut state = 1;
    for offset in (0..size_bytes).step_by(WRITE_BYTES as usize) {
        let data: Vec<u8> = (0..WRITE_BYTES / 8).flat_map(|_| draw(&mut state).to_le_bytes()).collect();
        volume.write(offset, Bytes::from(data), false).await?;
    }
    volume.drain().await?;
    for _pass in 0..3 {
        for offset in (0..size_bytes).step_by(WRITE_BYTES as usize) {
            volume.read(offset, WRITE_BYTES).await?;
        }
    }
    Ok(volume)
}

/// Random reads for [`RUN`], and how many they were.
async fn read(volume: &Volume, bytes: u64, seed: u64) -> Result<u64> {
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
