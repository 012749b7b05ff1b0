//! How long does it take to open a volume of 100 TiB whose map holds 100 million extents?
//!
//! `open_bench DIR [EXTENTS]` makes such a volume in DIR (once: it is kept), then opens it through a store that
//! takes 20 ms for every request, after a clean stop and after a crash with 48 segments behind the
//! checkpoint, and reads a few blocks. Prints requests, time and the greatest resident memory.

#[path = "support/options.rs"]
mod support;
#[path = "support/slow.rs"]
mod through;

use std::{
    ops::Range,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Result,
    codec::{Compression, KeySource},
    disk::{Disk, RealDisk},
    env::{Env, real::RealEnv},
    log::{
        ClaimRequest, LocalJournal, Prospect, VolumeKeys, checkpoint::Checkpoint, find_volume, keys, look,
    },
    map::{Map, MapOptions, RunIo, RunMeta},
    store::{SharedStore, StoreUrl, Stores, create_store, open_store},
    units::{Extent, FrameRef, JournalId, Mapping, Mark, Place, RunId, Seq},
    volume::{CreateOptions, Volume},
};
use support::options;
use through::slow;

const VOLUME_BYTES: u64 = 100 << 40;
const CRASH_SEGMENTS: u64 = 48;

/// Runs of the generated map, straight in the store.
struct Runs(SharedStore);

#[async_trait]
impl RunIo for Runs {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        Ok(self.0.get_range(&keys::run(run.id), range).await?)
    }
    async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        self.0.put_if_absent(&keys::run(id), body).await?;
        Ok(())
    }
}

/// Claims the fresh volume, fills its map with random single blocks of a full volume, and releases it. The
/// segments they point to do not exist: opening does not look at them.
async fn generate(env: &Env, store: &SharedStore, extents: u64) -> Result<()> {
    let options =
        CreateOptions { size_bytes: VOLUME_BYTES, compression: Compression::Lz4, key: KeySource::None };
    Volume::create(env, store, options).await?;
    let (identity, own) = find_volume(env, store).await?;
    let volume_keys = VolumeKeys::unlock(env, own.as_ref(), &identity, &KeySource::None).await?;
    let local = LocalJournal { id: JournalId(env.uuid()), marks: vec![Mark::default()], claims: Vec::new() };
    let request = ClaimRequest {
        host: "bench".into(),
        take_over: false,
        local,
        size_at_creation: Some(VOLUME_BYTES),
        grace: cistern_engine::log::GRACE,
    };
    let stores = Stores::same(store.clone()).within(&keys::directory(identity.volume));
    let Prospect::Free(attempt) = look(env, &stores, &volume_keys, &request).await? else {
        unreachable!("the journal is new")
    };
    let claimed = attempt.put(env, &stores, &volume_keys).await?.expect("nobody else claims it");
    let map = Map::new(
        env.clone(),
        Arc::new(Runs(own)),
        None,
        identity.volume,
        MapOptions { memory_bytes: 64 << 20, ..MapOptions::default() },
        Vec::new(),
        Seq(0),
    );
    let segments = extents / 4096;
    let mut random = 1u64;
    for n in 1..=segments {
        map.insert(&segment_mappings(Seq(n), &mut random));
        if n % 64 == 0 || n == segments {
            map.freeze(Seq(n));
            while map.flush().await? {}
            while map.merge_step().await? {}
            eprint!("\r{} of {} million extents", n * 4096 / 1_000_000, extents / 1_000_000);
        }
    }
    eprintln!();
    let walk = &claimed.committed.walk;
    let checkpoint = Checkpoint {
        epoch: walk.epoch,
        covered: walk.seq,
        journal: walk.journal,
        journal_pos: walk.journal_pos,
        journal_chain: walk.journal_chain,
        size_bytes: walk.size_bytes,
        claim: walk.claim.clone().expect("just claimed"),
        epochs: walk.epochs.clone(),
        levels: map.take_state().levels,
        usage: Vec::new(),
        retired: Vec::new(),
        times: Vec::new(),
        snapshots: None,
        held: Vec::new(),
        origins: Vec::new(),
        flattened: None,
    };
    let keys = claimed.writer.keys();
    let body = checkpoint.encode(env, keys.key.as_deref(), keys.volume)?;
    claimed.writer.put_checkpoint(checkpoint.covered, body).await?;
    claimed.slots.release(VOLUME_BYTES, None).await
}

fn segment_mappings(seq: Seq, random: &mut u64) -> Vec<Mapping> {
    let mut blocks: Vec<u64> = (0..4096)
        .map(|_| {
            *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (*random >> 16) % (VOLUME_BYTES / 4096)
        })
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    let place =
        |n: usize| Place::Frame(FrameRef { seq, offset: 16 + 4120 * n as u32, stored: 4120, index: 0 });
    let mapping = |(n, b): (usize, &u64)| Mapping { extent: Extent::new(*b, 1), birth: seq, place: place(n) };
    blocks.iter().enumerate().map(mapping).collect()
}

#[allow(clippy::disallowed_methods)]
async fn open_once(env: &Env, inner: &SharedStore, state: &Arc<dyn Disk>, what: &str) -> Result<Arc<Volume>> {
    let slow = slow(inner);
    let began = Instant::now();
    let volume = Volume::open(options(env, Stores::same(slow.clone()), state.clone())).await?;
    println!(
        "open {what}: {} requests, {:.0} ms, resident at most {} MiB",
        slow.requests.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64() * 1e3,
        resident_max_mib()
    );
    let looked_up = Instant::now();
    volume.ranges(VOLUME_BYTES / 2, 1 << 30, 16).await?;
    println!("  first lookup: {:.0} ms", looked_up.elapsed().as_secs_f64() * 1e3);
    Ok(volume)
}

/// The greatest resident memory so far. `echo 5 > /proc/self/clear_refs` would reset it; a fresh process does too.
fn resident_max_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or(0u64) / 1024
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("usage: open_bench DIR [EXTENTS]"));
    let extents = args.next().map_or(100_000_000, |n| n.parse().expect("a number of extents"));
    let env = RealEnv::start();
    std::fs::create_dir_all(dir.join("store")).expect("DIR can be made");
    let url = StoreUrl::parse(&dir.join("store/volume").to_string_lossy())?;
    if open_store(&url, &env).await.is_err() {
        generate(&env, &create_store(&url, &env).await?, extents).await?;
        println!("generated; run again to measure in a fresh process");
        return Ok(());
    }
    let store = open_store(&url, &env).await?;
    let state: Arc<dyn Disk> = Arc::new(RealDisk::create(&dir.join("state"))?);
    let volume = open_once(&env, &store, &state, "after a clean stop").await?;
    for n in 0..CRASH_SEGMENTS {
        volume.write(n << 30, Bytes::from(vec![n as u8; 4096]), false).await?;
        volume.drain().await?;
    }
    drop(volume); // a crash: neither checkpoint nor release
    let volume = open_once(&env, &store, &state, "after a crash").await?;
    volume.close(Duration::from_secs(60)).await;
    Ok(())
}
