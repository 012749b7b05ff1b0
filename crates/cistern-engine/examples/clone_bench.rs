//! What clones cost: `clone_bench DIR [COUNT]`.
//!
//! A chain of COUNT (1,000) clones, each made of a snapshot of the one before, which had written one block: opening the first and the last
//! one behind a store that takes 20 ms for every request, and reading what the first volume wrote, and what each of them did.
//!
//! DIR is for the journals.

#![allow(clippy::disallowed_methods)] // a measuring program, not the engine

#[path = "support/options.rs"]
mod support;
#[path = "support/slow.rs"]
mod through;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Result,
    codec::{Compression, KeySource},
    disk::RealDisk,
    env::{Env, real::RealEnv},
    store::{MemoryStore, OtherPlaces, SharedStore, Stores, Within},
    volume::{CreateOptions, OpenOptions, Volume, begin_clone, finish_clone},
};
use through::slow;

const BLOCK: u64 = 4096;
const JOURNAL_BYTES: u64 = 8 << 20;

/// Volumes side by side.
#[derive(Clone, Debug)]
struct Bucket(SharedStore);

impl Bucket {
    fn place(&self, n: u64) -> SharedStore {
        Arc::new(Within::new(self.0.clone(), &format!("v{n}")))
    }

    fn stores(&self, n: u64) -> Stores {
        Stores::same(self.place(n)).with_others(Arc::new(self.clone()))
    }
}

#[async_trait]
impl OtherPlaces for Bucket {
    async fn stores(&self, way: &str) -> Result<Stores> {
        let number = way.strip_prefix("../v").and_then(|number| number.parse().ok());
        Ok(Bucket::stores(self, number.expect("all lie side by side")))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(dir) = arguments.first().map(PathBuf::from) else {
        eprintln!("clone_bench DIR [COUNT]");
        std::process::exit(2);
    };
    let count: u64 = arguments.get(1).map_or(1000, |count| count.parse().expect("a number"));
    let (env, bucket) = (RealEnv::start(), Bucket(Arc::new(MemoryStore::new())));
    let began = Instant::now();
    make_chain(&env, &bucket, &dir, count).await?;
    println!("{count} clones, each of the one before: made in {:.1} s", began.elapsed().as_secs_f64());
    for n in [1, count] {
        measure(&env, &bucket, &dir, n).await?;
    }
    Ok(())
}

async fn open(env: &Env, bucket: &Bucket, dir: &Path, n: u64) -> Result<(Arc<Volume>, tempfile::TempDir)> {
    let state = tempfile::tempdir_in(dir).expect("a directory");
    let disk = Arc::new(RealDisk::create(state.path()).expect("a directory"));
    let options = support::options(env, bucket.stores(n), disk);
    let options = OpenOptions { journal_bytes: JOURNAL_BYTES, dirty_bytes_max: JOURNAL_BYTES, ..options };
    Ok((Volume::open(options).await?, state))
}

/// Each writes the block of its number before it is cloned.
async fn make_chain(env: &Env, bucket: &Bucket, dir: &Path, count: u64) -> Result<()> {
    let options = CreateOptions { size_bytes: 1 << 40, compression: Compression::Lz4, key: KeySource::None };
    Volume::create(env, &bucket.place(0), options).await?;
    for n in 0..count {
        let (volume, _state) = open(env, bucket, dir, n).await?;
        volume.write(n * BLOCK, content(n), false).await?;
        volume.snapshot("s").await?;
        let (from, to) = (bucket.place(n), bucket.place(n + 1));
        let clone = begin_clone(env, &from, &to, &KeySource::None, &format!("../v{n}")).await?;
        volume.keep_for_clone("s", clone, &format!("../v{}", n + 1)).await?;
        finish_clone(env, &from, &to, &KeySource::None, "bench").await?;
        volume.close(Duration::from_secs(60)).await;
    }
    Ok(())
}

fn content(n: u64) -> Bytes {
    n.to_le_bytes().repeat(BLOCK as usize / 8).into()
}

async fn measure(env: &Env, bucket: &Bucket, dir: &Path, n: u64) -> Result<()> {
    let slow = slow(&bucket.0);
    let behind = Bucket(slow.clone());
    let (mut began, mut requests) = (Instant::now(), 0);
    let mut since = || {
        let now = slow.requests.load(Relaxed);
        let took = (now - std::mem::replace(&mut requests, now), began.elapsed().as_secs_f64() * 1e3);
        began = Instant::now();
        took
    };
    let (volume, _state) = open(env, &behind, dir, n).await?;
    let (opening, opening_ms) = since();
    volume.read(0, BLOCK).await?;
    let (first, first_ms) = since();
    for block in 0..n {
        let found = volume.read(block * BLOCK, BLOCK).await?;
        assert!(
            matches!(&found[..], [cistern_engine::volume::Piece::Data(data)] if *data == content(block)),
            "block {block}"
        );
    }
    let (all, all_ms) = since();
    println!(
        "clone {n}: open with {opening} requests in {opening_ms:.0} ms; the block of the first volume {first} in {first_ms:.0} ms; \
         the blocks of all before it {all} in {:.1} s",
        all_ms / 1e3
    );
    volume.close(Duration::from_secs(60)).await;
    Ok(())
}
