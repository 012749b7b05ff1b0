//! Lookups: what a range of blocks is, newest first, in one consistent view.
//!
//! The view is captured at once and without waiting; reading runs comes later and changes
//! nothing about it. Work is proportional to the result: what a newer mapping covers is skipped
//! in older levels and never enumerated.

use std::sync::Arc;

use futures_util::future;

use super::{
    Levels,
    cursor::{Cursor, Known},
    runs::{Origin, Runs},
    table::Table,
    version::try_join,
};
use crate::{
    Result,
    units::{Extent, Mapping, Place, Seq},
};

/// A consistent view of a range, to be resolved by `finish`.
#[must_use = "a lookup does nothing until it is finished"]
pub struct Lookup {
    pub(super) extent: Extent,
    pub(super) count_max: usize,
    /// What the memory table has of the extent.
    pub(super) table: Vec<Mapping>,
    /// Frozen tables, newest first.
    pub(super) frozen: Vec<Arc<Table>>,
    pub(super) levels: Arc<Levels>,
    pub(super) runs: Arc<Runs>,
    /// How runs are read.
    pub(super) origin: Origin<'static>,
    /// What was born up to here is not told from what was never written.
    pub(super) since: Seq,
    /// The same view of the sectors that may be kept apart from these blocks.
    pub(super) sectors: Option<Box<Lookup>>,
}

impl Lookup {
    /// What it is about: the beginning of what was asked for.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Mappings that were captured when it began.
    pub fn captured(&self) -> usize {
        self.table.len()
    }

    /// Does not tell what was born up to `since` from what was never written.
    pub fn since(self, since: Seq) -> Lookup {
        Lookup { since, ..self }
    }

    /// The sectors that may be kept apart from the blocks that it is about: where they are, they stand over what this finds.
    pub fn take_sectors(&mut self) -> Option<Lookup> {
        self.sectors.take().map(|sectors| Lookup { since: self.since, ..*sectors })
    }

    /// Whether sectors may be kept apart from the blocks that it is about.
    pub fn may_have_sectors(&self) -> bool {
        self.sectors.is_some()
    }

    /// What the first block is, if memory tells: nothing is read.
    pub fn first_known(&self) -> Option<Mapping> {
        let (at, block) = (self.extent.start, Extent::new(self.extent.start, 1));
        let mut limit = block.end();
        let mut walk = LookupWalk { lookup: self, next_piece: 0, cursors: Vec::new(), first_read: false };
        let mut found = walk.in_memory(at, &mut limit);
        for level in self.levels.iter().filter(|level| overlaps(level, block)) {
            if found.is_some() {
                break;
            }
            let mut cursor = Cursor::new(level, block.end(), self.since);
            if !cursor.try_seek(&self.runs, at).ok()? {
                return None;
            }
            if let Known::Next(m) = cursor.at(at, block.end()) {
                found = here(m, at, &mut limit);
            }
        }
        let hole = Mapping { extent: block, birth: Seq(0), place: Place::Hole };
        Some(found.map_or(hole, |m| m.slice(block)))
    }

    /// Resolves the view: ascending, without gaps, from the first block of the extent to its end,
    /// or to where `lookup_limited` ended it. Blocks never written are holes born at 0.
    pub async fn finish(self) -> Result<Vec<Mapping>> {
        let extent = self.extent;
        let mut walk = LookupWalk::over(&self);
        let mut out: Vec<Mapping> = Vec::new();
        let mut at = extent.start;
        while at < extent.end() {
            let m = walk.resolve(at, extent.end()).await?;
            debug_assert!(
                m.extent.start == at && !m.extent.is_empty() && m.extent.end() <= extent.end(),
                "an answer goes on where the one before ended"
            );
            at = m.extent.end();
            if out.last_mut().is_some_and(|last| try_join(last, &m)) {
                continue;
            }
            if out.len() == self.count_max {
                break;
            }
            out.push(m);
        }
        Ok(out)
    }

    /// Resolves the parts of the view for which it was begun, each as [`finish`](Self::finish) would; mappings of two
    /// parts are never joined.
    pub(super) async fn finish_each(self, parts: &[Extent], out: &mut Vec<Mapping>) -> Result<()> {
        let mut walk = LookupWalk::over(&self);
        for part in parts {
            let mut at = part.start;
            while at < part.end() {
                let m = walk.resolve(at, part.end()).await?;
                debug_assert!(
                    m.extent.start == at && !m.extent.is_empty() && m.extent.end() <= part.end(),
                    "an answer goes on where the one before ended"
                );
                at = m.extent.end();
                out.push(m);
            }
        }
        Ok(())
    }
}

fn overlaps(level: &[super::RunMeta], extent: Extent) -> bool {
    let first = level.partition_point(|run| run.span.end() <= extent.start);
    level.get(first).is_some_and(|run| run.span.start < extent.end())
}

struct LookupWalk<'a> {
    lookup: &'a Lookup,
    next_piece: usize,
    cursors: Vec<Cursor<'a>>,
    first_read: bool,
}

impl<'a> LookupWalk<'a> {
    fn over(lookup: &'a Lookup) -> LookupWalk<'a> {
        let extent = lookup.extent;
        let levels = lookup.levels.iter().map(Vec::as_slice).filter(|level| overlaps(level, extent));
        let cursors: Vec<_> = levels.map(|level| Cursor::new(level, extent.end(), lookup.since)).collect();
        LookupWalk { lookup, next_piece: 0, cursors, first_read: true }
    }

    /// The mapping of block `at`, from there as far as it reaches, at most to `end`. Blocks asked for must not go back.
    async fn resolve(&mut self, at: u64, end: u64) -> Result<Mapping> {
        let mut limit = end;
        let mut found = self.in_memory(at, &mut limit);
        let mut level = 0;
        while found.is_none() && level < self.cursors.len() {
            match self.cursors[level].at(at, limit) {
                Known::Next(m) => {
                    found = here(m, at, &mut limit);
                    level += 1;
                }
                Known::Nothing => level += 1,
                Known::Unknown => self.seek(level, at).await?,
            }
        }
        let extent = Extent::between(at, limit);
        // Where a part was passed over, what an older level has is older still.
        let Some(m) = found.filter(|m| m.birth > self.lookup.since) else {
            let extent = found.and_then(|m| m.extent.intersect(extent)).unwrap_or(extent);
            return Ok(Mapping { extent, birth: Seq(0), place: Place::Hole });
        };
        let part = m.extent.intersect(extent).expect("it covers the block");
        Ok(m.slice(part))
    }

    fn in_memory(&mut self, at: u64, limit: &mut u64) -> Option<Mapping> {
        while let Some(&m) = self.lookup.table.get(self.next_piece) {
            if m.extent.end() > at {
                if let Some(m) = here(m, at, limit) {
                    return Some(m);
                }
                break;
            }
            self.next_piece += 1;
        }
        self.lookup.frozen.iter().find_map(|table| here(table.next(at)?, at, limit))
    }

    /// Moves the cursor of `level` to `at`. The first time that needs a read, the older levels
    /// are read at the same time: a cold lookup takes one round of requests and not one a level. They may
    /// not be needed at all, so only the level that is asked for can fail the lookup.
    async fn seek(&mut self, level: usize, at: u64) -> Result<()> {
        let Lookup { runs, origin, .. } = self.lookup;
        if self.cursors[level].try_seek(runs, at)? {
            return Ok(());
        }
        if !std::mem::take(&mut self.first_read) {
            return self.cursors[level].seek(runs, *origin, at).await;
        }
        let seeks = self.cursors[level..].iter_mut().map(|cursor| cursor.seek(runs, *origin, at));
        future::join_all(seeks).await.swap_remove(0)
    }
}

/// `m` if it covers `at`; else it limits how far an older mapping may reach.
fn here(m: Mapping, at: u64, limit: &mut u64) -> Option<Mapping> {
    if m.extent.start <= at {
        return Some(m);
    }
    *limit = m.extent.start.min(*limit);
    None
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        ops::Range,
        sync::{
            Mutex,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
    };

    use async_trait::async_trait;
    use bytes::Bytes;

    use super::*;
    use crate::{
        env::real::RealEnv,
        map::{Map, MapOptions, RunIo, RunMeta},
        units::{FrameRef, RunId, VolumeId},
    };

    /// Runs in memory, and how often they were read for whom.
    #[derive(Default)]
    struct Counting {
        runs: Mutex<BTreeMap<RunId, Bytes>>,
        hurried: AtomicU64,
        patient: AtomicU64,
    }

    impl Counting {
        fn part(&self, run: &RunMeta, range: Range<u64>) -> Bytes {
            self.runs.lock().unwrap()[&run.id].slice(range.start as usize..range.end as usize)
        }

        fn take(&self) -> (bool, bool) {
            (self.hurried.swap(0, Relaxed) > 0, self.patient.swap(0, Relaxed) > 0)
        }
    }

    #[async_trait]
    impl RunIo for Counting {
        async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
            self.hurried.fetch_add(1, Relaxed);
            Ok(self.part(run, range))
        }
        async fn read_patiently(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
            self.patient.fetch_add(1, Relaxed);
            Ok(self.part(run, range))
        }
        async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
            self.runs.lock().unwrap().insert(id, body);
            Ok(())
        }
    }

    /// What clients wait for is read at once; what the cleaner looks up is read behind everything else, so that it holds up
    /// no client and is not taken for one.
    #[tokio::test]
    async fn only_clients_are_in_a_hurry() {
        let io = Arc::new(Counting::default());
        let options = MapOptions { memory_bytes: 0, ..MapOptions::default() };
        let volume = VolumeId(uuid::Uuid::from_u128(7));
        let map = Map::new(RealEnv::start(), io.clone(), None, volume, options, Levels::new(), Seq(0));
        let place = |n| Place::Frame(FrameRef { seq: Seq(1), offset: n, stored: 4120, index: 0 });
        let written =
            |n: u64| Mapping { extent: Extent::new(n * 2, 1), birth: Seq(1), place: place(n as u32) };
        map.insert(&(0..200).map(written).collect::<Vec<_>>());
        map.freeze(Seq(1));
        assert!(map.flush().await.expect("flushed"));
        io.take();
        let block = Extent::new(10, 1);
        map.lookup(block).await.expect("found");
        assert_eq!(io.take(), (true, false));
        map.lookup_each(&[block]).await.expect("found");
        assert_eq!(io.take(), (false, true));
        map.lookup_limited(block, 1).await.expect("found");
        assert_eq!(io.take(), (false, true));
    }
}
