//! Prints how long a full cache takes to be usable again, and what its index costs.
//!
//! `cargo run -p cistern-engine --example cache_restart DIRECTORY [GIB]`: the index is a real file in the
//! directory; what would go to the slab is thrown away, since opening a cache does not read it.

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Result,
    cache::{Admission, CacheKey, ChunkCache},
    disk::{Disk, DiskFile, RealDisk},
    env::{Env, real::RealEnv},
};

const GIB: u64 = 1 << 30;
/// Bytes of an object, all of which is filled in at once.
const OBJECT_BYTES: u64 = 16 << 20;
const SLAB_NAME: &str = "chunks";

/// A real directory with a slab that forgets.
struct NoSlab {
    real: RealDisk,
    slab_bytes: u64,
}

struct Forgets(u64);

#[async_trait]
impl DiskFile for Forgets {
    async fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        Ok(())
    }
    async fn read_at(&self, _offset: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
    async fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.0
    }
    fn is_direct(&self) -> bool {
        true
    }
}

#[async_trait]
impl Disk for NoSlab {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        match name {
            SLAB_NAME => Ok(Arc::new(Forgets(self.slab_bytes))),
            _ => self.real.open(name).await,
        }
    }
    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        self.real.create(name, bytes).await
    }
    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.real.rename(from, to).await
    }
    async fn names(&self, beginning: &str) -> Result<Vec<String>> {
        self.real.names(beginning).await
    }
    async fn remove(&self, name: &str) -> Result<()> {
        self.real.remove(name).await
    }
    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>> {
        self.real.lock(name)
    }
    fn describe(&self) -> String {
        self.real.describe()
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: cache_restart DIRECTORY [GIB]")?;
    let gib: u64 = arguments.next().map_or(Ok(100), |gib| gib.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(Path::new(&directory), gib))
}

async fn run(directory: &Path, gib: u64) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let env = RealEnv::start();
    let disk = || -> Result<Arc<dyn Disk>> {
        Ok(Arc::new(NoSlab { real: RealDisk::create(directory)?, slab_bytes: gib * GIB }))
    };
    let began = env.now();
    let cache = ChunkCache::open(env.clone(), disk()?, gib * GIB).await?;
    println!(
        "{gib} GiB, {} chunks: opened empty or as left in {:.3} s",
        cache.stats().chunks_used,
        seconds(&env, began)
    );
    let began = env.now();
    fill(&env, &cache, gib * GIB / OBJECT_BYTES).await;
    println!("filled in {:.1} s", seconds(&env, began));
    let began = env.now();
    cache.close().await;
    println!("closed in {:.3} s", seconds(&env, began));
    drop(cache);
    let index_bytes = std::fs::metadata(directory.join("chunks.index"))?.len();
    let before = resident_kib()?;
    let began = env.now();
    let cache = ChunkCache::open(env.clone(), disk()?, gib * GIB).await?;
    let opened = seconds(&env, began);
    let memory_kib = resident_kib()?.saturating_sub(before);
    println!("opened with {} chunks in {opened:.3} s", cache.stats().chunks_used);
    println!("index: {:.2} MiB on disk for each GiB", mib(index_bytes) / gib as f64);
    println!(
        "memory: {:.2} MiB more for each GiB (0 where freed memory is used again)",
        memory_kib as f64 / 1024.0 / gib as f64
    );
    Ok(())
}

async fn fill(env: &Env, cache: &ChunkCache, objects: u64) {
    let bytes = Bytes::from(vec![7; OBJECT_BYTES as usize]);
    for object in 0..objects {
        loop {
            let dropped = cache.stats().fills_dropped;
            cache.fill(CacheKey::new([1; 16], object), 0, bytes.clone(), Admission::Demand);
            if cache.stats().fills_dropped == dropped {
                break;
            }
            env.sleep(Duration::from_millis(1)).await;
        }
    }
}

fn seconds(env: &Env, since: Duration) -> f64 {
    (env.now() - since).as_secs_f64()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn resident_kib() -> std::result::Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_ascii_whitespace().nth(1).ok_or("no number")?.parse()?)
}
