//! Volumes whose map holds more than anybody could write: it is made, and put into the store with a checkpoint.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Result,
    codec::{Compression, KeySource},
    env::Env,
    log::{
        ClaimRequest, GRACE, LocalJournal, Prospect, VolumeKeys, checkpoint::Checkpoint, find_volume, keys,
        look,
    },
    map::{Map, MapOptions, RunIo, RunMeta},
    store::{SharedStore, Stores},
    units::{Extent, FrameRef, JournalId, Mapping, Mark, Place, RunId, Seq},
    volume::{CreateOptions, Volume},
};

pub const BLOCK: u64 = 4096;
pub const FRAME_BLOCKS: u64 = 16;

/// Numbers below a bound, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 16) % bound
    }
}

/// Runs of a generated map, straight in the store.
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

/// 4096 frames of 64 KiB at some places, as a segment has them.
pub fn mappings(seq: Seq, frames: impl Iterator<Item = u64>) -> Vec<Mapping> {
    let mut frames: Vec<u64> = frames.collect();
    frames.sort_unstable();
    frames.dedup();
    let place =
        |n: usize| Place::Frame(FrameRef { seq, offset: 16 + 4120 * n as u32, stored: 4120, index: 0 });
    let mapping = |(n, frame): (usize, &u64)| Mapping {
        extent: Extent::new(frame * FRAME_BLOCKS, FRAME_BLOCKS),
        birth: seq,
        place: place(n),
    };
    frames.iter().enumerate().map(mapping).collect()
}

async fn settle(map: &Map, covered: Seq) -> Result<()> {
    map.freeze(covered);
    while map.flush().await? {}
    while map.merge_step().await? {}
    Ok(())
}

/// What came of it.
pub struct Generated {
    pub map_bytes: u64,
    pub runs: usize,
}

/// Makes a volume with so many extents of 64 KiB anywhere in it, 4096 of them in each segment, which are born as `births` says; and behind them these.
/// Their data is nowhere.
pub async fn generate(
    env: &Env,
    store: &SharedStore,
    size_bytes: u64,
    extents: u64,
    births: impl Fn(u64) -> Seq,
    behind: Vec<Mapping>,
) -> Result<Generated> {
    let options = CreateOptions { size_bytes, compression: Compression::Lz4, key: KeySource::None };
    Volume::create(env, store, options).await?;
    let (identity, own) = find_volume(env, store).await?;
    let volume_keys = VolumeKeys::unlock(env, own.as_ref(), &identity, &KeySource::None).await?;
    let local = LocalJournal { id: JournalId(env.uuid()), marks: vec![Mark::default()], claims: Vec::new() };
    let request = ClaimRequest {
        host: "bench".into(),
        take_over: false,
        local,
        size_at_creation: Some(size_bytes),
        grace: GRACE,
    };
    let stores = Stores::same(store.clone()).within(&keys::directory(identity.volume));
    let Prospect::Free(attempt) = look(env, &stores, &volume_keys, &request).await? else {
        unreachable!("the journal is new")
    };
    let claimed = attempt.put(env, &stores, &volume_keys).await?.expect("nobody else claims it");
    let options = MapOptions { memory_bytes: 64 << 20, ..MapOptions::default() };
    let map = Map::new(env.clone(), Arc::new(Runs(own)), None, identity.volume, options, Vec::new(), Seq(0));
    let (frames, segments) = (size_bytes / BLOCK / FRAME_BLOCKS, extents / 4096);
    let mut random = Random(1);
    for n in 1..=segments {
        map.insert(&mappings(births(n), (0..4096).map(|_| random.below(frames))));
        if n % 64 == 0 || n == segments {
            settle(&map, births(n)).await?;
        }
    }
    if let Some(last) = behind.last() {
        map.insert(&behind);
        settle(&map, last.birth).await?;
    }
    let walk = &claimed.committed.walk;
    let levels = map.take_state().levels;
    let map_bytes = levels.iter().flatten().map(|run| run.bytes).sum();
    let runs = levels.iter().flatten().count();
    let checkpoint = Checkpoint {
        epoch: walk.epoch,
        covered: walk.seq,
        journal: walk.journal,
        journal_pos: walk.journal_pos,
        journal_chain: walk.journal_chain,
        size_bytes: walk.size_bytes,
        claim: walk.claim.clone().expect("just claimed"),
        epochs: walk.epochs.clone(),
        levels,
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
    claimed.slots.release(size_bytes, None).await?;
    Ok(Generated { map_bytes, runs })
}
