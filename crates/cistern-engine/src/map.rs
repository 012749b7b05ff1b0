//! The map: block -> place, an LSM of immutable runs under a memory table. Newest wins.
//!
//! Owns what the volume's blocks are, from the memory table (rebuilt from footers after a crash)
//! through the levels of runs; writes and reads run objects through [`RunIo`]. Publishes nothing
//! beyond itself: a checkpoint names what [`Map::take_state`] returns, and whoever calls that
//! decides when it is durable and what may be deleted.
//!
//! Invariants: `insert` comes in commit order; a view, once captured, never changes; the state is
//! one instant (its levels hold exactly the seqs up to `covered`, its dead blocks are exactly
//! those that these levels no longer have); memory is bounded by the caches' limit, the tables
//! the caller lets grow, and one merge. Never deletes, never looks at data.

mod block;
mod chunk;
mod column;
mod cursor;
mod dead;
mod feed;
mod fence;
mod flush;
pub mod fuzz;
mod lookup;
mod merge;
mod merging;
mod names;
mod partial;
mod pins;
mod policy;
mod runs;
mod table;
mod varint;
mod version;
mod writer;

#[cfg(test)]
mod arbitrary;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
pub use dead::{Dead, SeenBy, SegmentBlocks};
use futures_util::future::join_all;
pub use lookup::Lookup;
use partial::Partial;
pub use partial::PartialMark;
pub use pins::Pin;
use runs::{Origin, Runs};
use serde::{Deserialize, Serialize};
use table::Table;
use tokio::sync::Notify;
pub use writer::RunShape;

use crate::{
    Error, Result,
    codec::MasterKey,
    damage::Damage,
    env::Env,
    rank::{Locked, Rank, Ranked},
    sectors::{self, are_sectors, is_mappable, sector_numbers},
    units::{Extent, Mapping, Place, RunId, Seq, VolumeId},
};

/// No mapping ends behind it, so block arithmetic never overflows: blocks of the largest volume, and behind them the numbers of
/// sectors that are kept apart.
pub const BLOCKS_MAX: u64 = sectors::NUMBERS_END;

/// Mappings that are inserted before lookups get a turn: about 0.1 ms.
const INSERTS_PER_LOCK: usize = 256;
/// Frozen tables that are written at once, while they hold no more than so many mappings.
const FLUSHED_TABLES: usize = 16;
const FLUSHED_MAPPINGS: usize = 1 << 16;
/// Extents whose mappings are captured under one lock.
const EXTENTS_PER_LOOKUP: usize = 512;

/// A run that a merge found damaged is left out of merges for this time, unless the map is opened again:
/// somebody may have restored the object, and looking costs what the merge reads.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// A run object as a checkpoint names it. A merge may leave a part of a run behind: then `span`
/// is that part, nothing outside of it counts, and the same run may be listed again with another
/// part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMeta {
    pub id: RunId,
    /// Bytes of the object.
    pub bytes: u64,
    /// Mappings in the span. Like the two below, an estimate once the run was merged in part.
    pub mappings: u64,
    /// Blocks of the span that lie in frames.
    pub frame_blocks: u64,
    /// Blocks of the span that are mapped, holes and zeroes included.
    pub mapped_blocks: u64,
    /// From its first to its last mapped block.
    pub span: Extent,
    pub birth_min: Seq,
    pub birth_max: Seq,
    /// Size class of its level: 0 as flushed, one more per merge of a full rank.
    pub rank: u8,
    /// The first position at which the levels with it may be a snapshot's root.
    pub since: Seq,
    /// The volume that wrote it, where that is another one: what a clone has of the volume it was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<VolumeId>,
}

/// Levels from newest to oldest; within a level runs are ordered by span and do not overlap.
pub type Levels = Vec<Vec<RunMeta>>;

/// Refuses levels that no map can have made, as a decoder of checkpoints must.
pub fn check_levels(levels: &Levels) -> Result<()> {
    for level in levels {
        let mut end = 0;
        for run in level {
            let run_end = run.span.start.checked_add(run.span.len);
            let fits = run_end.is_some_and(|e| e <= BLOCKS_MAX) && run.span.start >= end;
            if !fits || run.span.is_empty() || run.bytes > writer::RUN_BYTES_MAX {
                return Err(Error::corrupt(
                    format!("the entry of run {}", run.id),
                    "span or size is impossible",
                ));
            }
            end = run.span.end();
        }
    }
    Ok(())
}

/// Where run objects live.
#[async_trait]
pub trait RunIo: Send + Sync {
    /// Exactly the bytes `range` of a run's object.
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes>;
    /// As `read`, from the store itself and past every copy.
    async fn read_fresh(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.read(run, range).await
    }
    /// What `read` or `read_patiently` gave did not verify: copies of the run are dropped.
    fn forget(&self, _run: &RunMeta) {}
    /// What the run's object is called where it lives; of another volume's run, with that volume.
    fn name(&self, run: &RunMeta) -> String {
        format!("run {}", run.id)
    }
    /// Stores a new run; returns when another host could read it.
    async fn write(&self, id: RunId, body: Bytes) -> Result<()>;
    /// As `read`, where nobody waits for it, and the bytes will hardly be wanted again: for a merge, or for the cleaner.
    async fn read_patiently(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.read(run, range).await
    }
    /// As `write`, of what a merge made: nobody waits for it.
    async fn write_merged(&self, id: RunId, body: Bytes) -> Result<()> {
        self.write(id, body).await
    }
}

/// How a map is to behave.
#[derive(Clone, Debug)]
pub struct MapOptions {
    /// Bound of the cached fences and blocks together, in bytes.
    pub memory_bytes: u64,
    /// Seqs of the snapshots, ascending.
    pub snapshots: Vec<Seq>,
    /// Seq of the oldest bookmark: differences to it are told too.
    pub oldest_bookmark: Option<Seq>,
    /// How new runs are cut. Any map reads every shape.
    pub shape: RunShape,
    /// Told of runs that are damaged.
    pub damage: Arc<Damage>,
}

impl Default for MapOptions {
    fn default() -> Self {
        let (snapshots, shape, damage) = Default::default();
        Self { memory_bytes: 64 << 20, snapshots, oldest_bookmark: None, shape, damage }
    }
}

/// The map at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapState {
    pub levels: Levels,
    /// The levels hold the log up to here.
    pub covered: Seq,
    /// What died between the state taken before and this one. Whoever takes a state owns this.
    pub dead: Dead,
    /// Runs that merges used up between the state taken before and this one. Lookups that are under way may still
    /// read them.
    pub used_up: Vec<UsedUp>,
    /// Roots of snapshots that were taken since, and where.
    pub roots: Vec<(Seq, Arc<Levels>)>,
}

/// A run that is in the levels no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedUp {
    pub run: RunMeta,
    /// Roots of snapshots up to here may have it.
    pub until: Seq,
}

/// The map of a volume.
pub struct Map {
    env: Env,
    runs: Arc<Runs>,
    shape: RunShape,
    /// One flush at a time. Locked before `inner`.
    flushing: tokio::sync::Mutex<()>,
    /// One merge at a time. Locked before `inner`. Holds the runs that merges found damaged, and when.
    merging: tokio::sync::Mutex<BTreeMap<RunId, Duration>>,
    /// Held for memory operations only, never while waiting.
    inner: Ranked<Inner>,
    /// Sectors are kept apart, where none were.
    appeared: Notify,
    pins: Arc<pins::Pins>,
}

struct Inner {
    table: Table,
    /// Newest first.
    frozen: VecDeque<Frozen>,
    /// Up to here the log is in `frozen` or deeper.
    frozen_to: Seq,
    levels: Arc<Levels>,
    covered: Seq,
    partial: Partial,
    dead: Dead,
    used_up: Vec<UsedUp>,
    snapshots: Arc<[Seq]>,
    oldest_bookmark: Option<Seq>,
    roots: Vec<(Seq, Arc<Levels>)>,
}

impl Inner {
    /// Levels, frozen tables and the table hold the log one behind the other.
    fn assert_invariant(&self) {
        let (newest, oldest) = (self.frozen.front(), self.frozen.back());
        debug_assert_eq!(
            newest.map_or(self.covered, |f| f.covered),
            self.frozen_to,
            "what is frozen is kept"
        );
        debug_assert!(oldest.is_none_or(|f| self.covered <= f.covered), "levels hold only what was flushed");
        debug_assert!(check_levels(&self.levels).is_ok(), "runs of a level ascend and are apart");
        debug_assert!(self.roots.is_sorted_by(|a, b| a.0 < b.0), "a snapshot has one root");
        debug_assert!(self.roots.last().is_none_or(|root| root.0 <= self.covered), "a root has been flushed");
    }
}

#[derive(Clone)]
struct Frozen {
    table: Arc<Table>,
    covered: Seq,
}

impl Map {
    /// The map of a state: reads nothing. `levels` must pass [`check_levels`]; the mappings of
    /// the seqs behind `covered` are to be inserted again.
    pub fn new(
        env: Env,
        io: Arc<dyn RunIo>,
        key: Option<Arc<MasterKey>>,
        volume: VolumeId,
        options: MapOptions,
        levels: Levels,
        covered: Seq,
    ) -> Arc<Map> {
        debug_assert!(check_levels(&levels).is_ok(), "whoever decodes levels checks them");
        let inner = Inner {
            table: Table::default(),
            frozen: VecDeque::new(),
            frozen_to: covered,
            partial: Partial::in_levels(&levels),
            levels: Arc::new(levels),
            covered,
            dead: Dead::default(),
            used_up: Vec::new(),
            snapshots: options.snapshots.into(),
            oldest_bookmark: options.oldest_bookmark,
            roots: Vec::new(),
        };
        options.shape.assert_bounds();
        let runs = Runs::new(env.clone(), io, key, volume, options.memory_bytes, options.damage);
        Arc::new(Map {
            env,
            shape: options.shape,
            runs: Arc::new(runs),
            flushing: tokio::sync::Mutex::new(()),
            merging: tokio::sync::Mutex::default(),
            inner: Ranked::new(Rank::Structure, inner),
            appeared: Notify::new(),
            pins: Arc::default(),
        })
    }

    fn inner(&self) -> Locked<'_, Inner> {
        self.inner.lock()
    }

    /// Puts mappings on top of all before them, in order. Frames hold at most
    /// `FRAME_BLOCKS_MAX` blocks, and no mapping ends behind `BLOCKS_MAX`. A block that is mapped as a whole has no sectors
    /// apart from it any more. A lookup that begins
    /// meanwhile may see a first part of the batch; callers that must not show that serve the
    /// batch's blocks from elsewhere until this returns.
    pub fn insert(&self, batch: &[Mapping]) {
        for part in batch.chunks(INSERTS_PER_LOCK) {
            let mut inner = self.inner();
            let Inner { table, snapshots, partial, .. } = &mut *inner;
            for m in part {
                assert!(is_mappable(m.extent), "a mapping lies in the largest volume, or is of its sectors");
                if are_sectors(m.extent) {
                    partial.has_sectors |= matches!(m.place, Place::Frame(_));
                    partial.inserted += 1;
                    self.appeared.notify_one();
                } else if partial.has_sectors {
                    let extent = sector_numbers(m.extent);
                    table.insert(&Mapping { extent, birth: m.birth, place: Place::Hole }, snapshots);
                }
                table.insert(m, snapshots);
            }
        }
    }

    /// From now on shows what these levels have and nothing else: the same content, of a map into which nothing is inserted.
    pub fn show(&self, levels: Levels) {
        debug_assert!(check_levels(&levels).is_ok(), "whoever decodes levels checks them");
        let mut inner = self.inner();
        debug_assert!(inner.dead.is_empty() && inner.used_up.is_empty(), "it is for reading only");
        inner.partial = Partial::in_levels(&levels);
        (inner.table, inner.levels) = (Table::default(), Arc::new(levels));
        inner.frozen.clear();
    }

    /// Puts what a segment moved on top, but only where the block's birth is still the one that was moved: what was
    /// written since `base`, up to which the mover knew the log, stays. What comes too late is lost at once, and held by whatever
    /// snapshot lies behind its birth: when it was replaced is not known. Nothing else may be inserted before this returns.
    ///
    /// # Errors
    /// Of reading a run; then nothing of the batch counts. A part about which a damaged run would have to be asked
    /// is left as it was: nothing that is read there depends on it.
    pub async fn insert_moved(&self, batch: &[Mapping], base: Seq) -> Result<()> {
        let (mut counting, mut late) = (Vec::with_capacity(batch.len()), Vec::new());
        for m in batch {
            let mut at = m.extent.start;
            for part in self.still_born_then(m, base).await? {
                late.extend((at < part.start).then(|| m.slice(Extent::between(at, part.start))));
                counting.push(m.slice(part));
                at = part.end();
            }
            late.extend((at < m.extent.end()).then(|| m.slice(Extent::between(at, m.extent.end()))));
        }
        let blocks = |mappings: &[Mapping]| mappings.iter().map(|m| m.extent.len).sum::<u64>();
        debug_assert_eq!(
            blocks(&counting) + blocks(&late),
            blocks(batch),
            "what was moved counts, or came late"
        );
        self.insert_places(&counting);
        let mut inner = self.inner();
        let Inner { table, snapshots, .. } = &mut *inner;
        late.iter().for_each(|m| table.lose(m, version::placed(m), snapshots));
        Ok(())
    }

    /// The parts of what was moved whose births are still the newest.
    async fn still_born_then(&self, moved: &Mapping, base: Seq) -> Result<Vec<Extent>> {
        let mut lookup = self.begin(moved.extent);
        // All that is behind `base` is in memory then: what is not there is as the mover saw it.
        let levels_are_older = base >= self.covered();
        if levels_are_older {
            lookup.levels = Arc::default();
        }
        let found = match lookup.finish().await {
            Err(e) if e.is_damage() => return Ok(Vec::new()),
            found => found?,
        };
        let same = |m: &Mapping| m.birth == moved.birth || (levels_are_older && m.birth == Seq(0));
        Ok(found.into_iter().filter(same).map(|m| m.extent).collect())
    }

    /// Captures what `extent` is now.
    pub fn begin(&self, extent: Extent) -> Lookup {
        self.begin_limited(extent, usize::MAX)
    }

    /// Captures what the beginning of `extent` is now: `finish` gives at most `count_max`
    /// mappings and may end before the extent does, but never without progress.
    pub fn begin_limited(&self, extent: Extent, count_max: usize) -> Lookup {
        self.begin_first(extent, count_max, count_max)
    }

    /// As `begin_limited`, and captures at most `captured_max` mappings: the lookup's extent ends where they
    /// do. So the work done now is bounded, also where `finish` is to give all of that extent.
    pub fn begin_first(&self, mut extent: Extent, captured_max: usize, count_max: usize) -> Lookup {
        debug_assert!(extent.end() <= BLOCKS_MAX, "who asks asks for what the largest volume has");
        let (captured_max, count_max) = (captured_max.max(1), count_max.max(1));
        let inner = self.inner();
        let table = inner.table.pieces(extent, captured_max);
        if table.len() == captured_max {
            // What lies behind was not looked at, and so many mappings are enough.
            let end = table.last().map_or(extent.start, |m| m.extent.end());
            extent = Extent::between(extent.start, end);
        }
        let sectors = match inner.partial.has_sectors && !are_sectors(extent) && !extent.is_empty() {
            true => {
                let (table, seen) = inner.sectors(extent, captured_max);
                extent = seen;
                Some(Box::new(self.captured(&inner, sector_numbers(extent), table, usize::MAX)))
            }
            false => None,
        };
        Lookup { sectors, ..self.captured(&inner, extent, table, count_max) }
    }

    fn captured(&self, inner: &Inner, extent: Extent, table: Vec<Mapping>, count_max: usize) -> Lookup {
        let frozen = inner.frozen.iter().map(|f| f.table.clone()).collect();
        let (levels, runs) = (inner.levels.clone(), self.runs.clone());
        let (origin, since, sectors) = (Origin::Any, Seq(0), None);
        Lookup { extent, count_max, table, frozen, levels, runs, origin, since, sectors }
    }

    /// What `extent` is, whole.
    pub async fn lookup(&self, extent: Extent) -> Result<Vec<Mapping>> {
        self.begin(extent).finish().await
    }

    /// What many extents are, ascending and apart; of each, mappings without gaps. It is much less work than a lookup for
    /// each where several lie in what is decoded together. Extents that are far from each other in the list may
    /// be seen at different moments. Nobody waits for it: runs are read behind everything else.
    pub async fn lookup_each(&self, extents: &[Extent]) -> Result<Vec<Mapping>> {
        let mut out = Vec::with_capacity(extents.len());
        for together in extents.chunks(EXTENTS_PER_LOOKUP) {
            self.begin_each(together).finish_each(together, &mut out).await?;
        }
        Ok(out)
    }

    /// The same in the levels of a snapshot's root.
    pub async fn lookup_each_in(&self, root: &Arc<Levels>, extents: &[Extent]) -> Result<Vec<Mapping>> {
        let mut out = Vec::with_capacity(extents.len());
        for together in extents.chunks(EXTENTS_PER_LOOKUP) {
            debug_assert!(together.is_sorted_by(|a, b| a.end() <= b.start), "ascending and apart");
            let extent = Extent::between(together[0].start, together[together.len() - 1].end());
            let (levels, runs) = (root.clone(), self.runs.clone());
            let (table, frozen, origin, since) = (Vec::new(), Vec::new(), Origin::Patient, Seq(0));
            let (count_max, sectors) = (usize::MAX, None);
            let lookup = Lookup { extent, count_max, table, frozen, levels, runs, origin, since, sectors };
            lookup.finish_each(together, &mut out).await?;
        }
        Ok(out)
    }

    fn begin_each(&self, extents: &[Extent]) -> Lookup {
        debug_assert!(extents.is_sorted_by(|a, b| a.end() <= b.start), "ascending and apart");
        let (first, last) = (extents[0], extents[extents.len() - 1]);
        let inner = self.inner();
        let table = extents.iter().flat_map(|extent| inner.table.pieces(*extent, usize::MAX)).collect();
        let extent = Extent::between(first.start, last.end());
        Lookup { origin: Origin::Patient, ..self.captured(&inner, extent, table, usize::MAX) }
    }

    /// What the beginning of `extent` is, in at most `count_max` mappings. Work grows with the
    /// result and not with the extent. Nobody waits for it, as for `lookup_each`.
    pub async fn lookup_limited(&self, extent: Extent, count_max: usize) -> Result<Vec<Mapping>> {
        let lookup = Lookup { origin: Origin::Patient, ..self.begin_limited(extent, count_max) };
        lookup.finish().await
    }

    /// What of the beginning of `extent` was born behind `since`, in at most `count_max` mappings; anything else is a hole born
    /// at 0. Reads only parts of runs in which something was. Nobody waits for it, as for `lookup_each`.
    pub async fn changes(&self, extent: Extent, since: Seq, count_max: usize) -> Result<Vec<Mapping>> {
        let lookup = Lookup { origin: Origin::Patient, since, ..self.begin_limited(extent, count_max) };
        lookup.finish().await
    }

    /// Mappings in the memory table.
    pub fn table_len(&self) -> usize {
        self.inner().table.len()
    }

    /// Frozen tables that wait for a flush.
    pub fn frozen_len(&self) -> usize {
        self.inner().frozen.len()
    }

    /// Mappings in memory: in the memory table and in the frozen ones.
    pub fn tables_len(&self) -> usize {
        let inner = self.inner();
        inner.table.len() + inner.frozen.iter().map(|f| f.table.len()).sum::<usize>()
    }

    /// The levels hold the log up to here.
    pub fn covered(&self) -> Seq {
        self.inner().covered
    }

    /// Ends the memory table: it holds the log up to `covered` (and nothing behind), and a flush
    /// may write it.
    pub fn freeze(&self, covered: Seq) {
        let mut inner = self.inner();
        assert!(covered >= inner.frozen_to, "the log does not go back");
        inner.frozen_to = covered;
        let table = Arc::new(std::mem::take(&mut inner.table));
        inner.frozen.push_front(Frozen { table, covered });
        inner.assert_invariant();
    }

    /// Writes the oldest frozen table as a new level. False when there is none.
    pub async fn flush(&self) -> Result<bool> {
        let _one = self.flushing.lock().await;
        let oldest = self.inner().frozen.back().cloned();
        self.flush_all(oldest.into_iter().collect()).await
    }

    /// As [`flush`](Self::flush), of the oldest tables that were frozen at `covered` or before: several at once where they are small,
    /// as between snapshots that follow each other closely.
    pub async fn flush_to(&self, covered: Seq) -> Result<bool> {
        let _one = self.flushing.lock().await;
        let (mut oldest, mut mappings) = (Vec::new(), 0);
        for frozen in self.inner().frozen.iter().rev().take_while(|frozen| frozen.covered <= covered) {
            mappings += frozen.table.len();
            if oldest.len() == FLUSHED_TABLES || (!oldest.is_empty() && mappings > FLUSHED_MAPPINGS) {
                break;
            }
            oldest.push(frozen.clone());
        }
        self.flush_all(oldest).await
    }

    /// Writes the oldest tables; those before the first that fails have become levels.
    async fn flush_all(&self, oldest: Vec<Frozen>) -> Result<bool> {
        let written = oldest.iter().map(|frozen| async move {
            let mut writing = self.runs.written.begin();
            let level =
                flush::write_table(&self.env, &self.runs, self.shape, &frozen.table, &mut writing).await;
            level.map(|level| (level, writing))
        });
        let mut flushed = false;
        for (frozen, written) in oldest.iter().zip(join_all(written).await) {
            match written {
                Ok((level, _writing)) => self.install(frozen, level),
                Err(_) if flushed => break, // the next flush says so, if it goes on
                Err(e) => return Err(e),
            }
            flushed = true;
        }
        Ok(flushed)
    }

    /// Puts what was written of the oldest frozen table in its place.
    fn install(&self, oldest: &Frozen, mut level: Vec<RunMeta>) {
        level.iter_mut().for_each(|run| run.since = oldest.covered);
        let mut inner = self.inner();
        let flushed = inner.frozen.pop_back().expect("only a flush takes frozen tables away");
        assert!(
            Arc::ptr_eq(&flushed.table, &oldest.table),
            "the table that was written is the one that goes"
        );
        assert!(flushed.covered >= inner.covered, "runs cover the log in its order");
        let before = std::mem::replace(&mut inner.covered, flushed.covered);
        inner.dead.add(flushed.table.dead());
        if !level.is_empty() {
            let mut levels = Levels::clone(&inner.levels);
            levels.insert(0, level);
            inner.levels = Arc::new(levels);
        }
        // A table frozen at the same place again is empty, and merges may have come between.
        if inner.covered > before && inner.snapshots.binary_search(&inner.covered).is_ok() {
            let root = (inner.covered, inner.levels.clone());
            inner.roots.push(root);
        }
        inner.assert_invariant();
    }

    /// The levels and what they cover, and everything that died since the state taken before.
    /// The dead blocks now belong to the caller, who adds them to the usage of the segments
    /// before the next checkpoint.
    pub fn take_state(&self) -> MapState {
        let mut inner = self.inner();
        let dead = std::mem::take(&mut inner.dead);
        let used_up = std::mem::take(&mut inner.used_up);
        let roots = std::mem::take(&mut inner.roots);
        MapState { levels: Levels::clone(&inner.levels), covered: inner.covered, dead, used_up, roots }
    }

    /// The levels now.
    pub fn levels(&self) -> Arc<Levels> {
        self.inner().levels.clone()
    }

    /// What this resolves to from now on stays in the store while it is held.
    pub fn pin(&self) -> Pin {
        self.pins.pin()
    }

    /// Returns when nobody reads any more what he found before.
    pub async fn unpinned(&self) {
        self.pins.passed().await;
    }

    /// Blocks of data that merges and flushes found dead, or held by snapshots alone, since the state was taken last.
    pub fn died_blocks(&self) -> u64 {
        self.inner().dead.blocks()
    }

    /// Blocks of data that died, probably, and are not counted as dead yet, because no merge has met them.
    pub fn probably_dead(&self) -> u64 {
        policy::probably_dead(&self.levels(), self.shape)
    }

    /// Bytes of the runs that were written since the map was opened.
    pub fn written_bytes(&self) -> u64 {
        self.runs.written_bytes()
    }

    /// Says where there are snapshots, ascending. A new one is told when the table is frozen at it, before anything behind
    /// it is inserted: its root are the levels behind the flush of that table.
    pub fn set_snapshots(&self, snapshots: Vec<Seq>) {
        debug_assert!(snapshots.is_sorted(), "snapshots ascend");
        self.inner().snapshots = snapshots.into();
    }

    /// Says where the oldest bookmark is.
    pub fn set_oldest_bookmark(&self, oldest: Option<Seq>) {
        self.inner().oldest_bookmark = oldest;
    }
}
