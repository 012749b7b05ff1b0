//! What the tests of the map share: an environment without surprises, runs in memory, and a plain
//! array as oracle.

#![allow(dead_code)] // each test uses a part

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::MasterKey,
    env::{BoxFuture, Env, Environment},
    map::{Levels, Map, MapOptions, RunIo, RunMeta, RunShape},
    units::{Extent, FrameRef, Mapping, Place, RunId, Seq, VolumeId},
};

/// Computes in place and draws numbers from a counter; nothing here waits.
#[derive(Default)]
pub struct PlainEnv(AtomicU64);

impl Environment for PlainEnv {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn wall_ms(&self) -> u64 {
        0
    }
    fn random(&self, out: &mut [u8]) {
        let n = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = n.to_le_bytes()[i % 8] ^ i as u8;
        }
    }
    fn sleep(&self, _: Duration) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, _: &'static str, _: BoxFuture<()>) {
        unreachable!("the map has no tasks")
    }
    fn dedicated(&self, _: &'static str, _: BoxFuture<()>) {
        unreachable!("the map has no threads")
    }
    fn blocking(&self, _: BoxFuture<()>) {
        unreachable!("the map does no IO of its own")
    }
    fn compute(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        work();
    }
}

pub fn plain_env() -> Env {
    Env::new(Arc::new(PlainEnv::default()))
}

/// Run objects in memory, and how often they were read.
#[derive(Default)]
pub struct MemoryRuns {
    pub objects: Mutex<BTreeMap<RunId, Bytes>>,
    pub reads: AtomicU64,
    /// Every run that is not in here has a bad copy at hand, until it is forgotten.
    pub forgotten: Mutex<Option<BTreeSet<RunId>>>,
}

impl MemoryRuns {
    /// From now on there is a bad copy of every run.
    pub fn spoil_copies(&self) {
        *self.forgotten.lock().unwrap() = Some(BTreeSet::new());
    }
}

#[async_trait]
impl RunIo for MemoryRuns {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        let bytes = self.read_fresh(run, range).await?;
        let is_bad = self.forgotten.lock().unwrap().as_ref().is_some_and(|sound| !sound.contains(&run.id));
        Ok(if is_bad { bytes.iter().map(|byte| byte ^ 1).collect() } else { bytes })
    }
    fn forget(&self, run: &RunMeta) {
        if let Some(forgotten) = &mut *self.forgotten.lock().unwrap() {
            forgotten.insert(run.id);
        }
    }
    async fn read_fresh(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let objects = self.objects.lock().unwrap();
        let body = objects.get(&run.id).ok_or_else(|| Error::NotFound(run.id.to_string()))?;
        let end = (range.end as usize).min(body.len());
        Ok(body.slice((range.start as usize).min(end)..end))
    }
    async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        assert!(self.objects.lock().unwrap().insert(id, body).is_none(), "a run is written once");
        Ok(())
    }
}

pub fn volume() -> VolumeId {
    VolumeId(uuid::Uuid::from_u128(7))
}

pub fn open_map(
    env: &Env,
    io: &Arc<MemoryRuns>,
    key: Option<Arc<MasterKey>>,
    options: MapOptions,
    levels: Levels,
    covered: Seq,
) -> Arc<Map> {
    Map::new(env.clone(), io.clone(), key, volume(), options, levels, covered)
}

/// Runs cut so small that a few hundred mappings make many parts, runs and partial merges.
pub fn tiny_runs() -> MapOptions {
    let shape = RunShape { chunk_mappings: 5, block_bytes: 100, section_blocks: 3, run_bytes: 900 };
    MapOptions { memory_bytes: 1 << 20, shape, ..MapOptions::default() }
}

/// A map that keeps its runs in memory.
pub fn new_map(io: &Arc<MemoryRuns>) -> Arc<Map> {
    open_map(&plain_env(), io, None, MapOptions::default(), Levels::new(), Seq(0))
}

pub fn frame(start: u64, len: u64, seq: u64, offset: u32) -> Mapping {
    let place = Place::Frame(FrameRef { seq: Seq(seq), offset, stored: 4120, index: 0 });
    Mapping { extent: Extent::new(start, len), birth: Seq(seq), place }
}

pub fn hole(start: u64, len: u64, seq: u64) -> Mapping {
    Mapping { extent: Extent::new(start, len), birth: Seq(seq), place: Place::Hole }
}

/// Every block by itself: birth and place. Holes without birth, because a merge may forget them.
pub fn by_block(mappings: &[Mapping]) -> Vec<(Seq, Place)> {
    let one = |m: &Mapping, b| m.slice(Extent::new(b, 1));
    mappings
        .iter()
        .flat_map(|m| (m.extent.start..m.extent.end()).map(move |b| one(m, b)))
        .map(|m| (if m.place == Place::Hole { Seq(0) } else { m.birth }, m.place))
        .collect()
}

/// Flushes and merges until nothing is due.
pub async fn settle(map: &Map) {
    while map.flush().await.unwrap() {}
    while map.merge_step().await.unwrap() {}
}
