//! Which runs something may name: those in the levels, those that merges used up, and those that are being written.
//!
//! A run is named from before it is put: so whoever finds an object that is not among the names knows that this map will
//! never list it, however long its put or the rest of its level takes.

use std::{collections::BTreeSet, sync::Arc};

use super::Map;
use crate::{
    env::Env,
    rank::{Locked, Rank, Ranked},
    units::RunId,
};

/// The ids of all runs that are being written.
#[derive(Clone)]
pub(super) struct RunsBeingWritten(Arc<Ranked<BTreeSet<RunId>>>);

impl Default for RunsBeingWritten {
    fn default() -> RunsBeingWritten {
        RunsBeingWritten(Arc::new(Ranked::new(Rank::Structure, BTreeSet::new())))
    }
}

/// Runs of one flush or merge. Dropped when the levels list them, or nobody ever will.
pub(super) struct Writing {
    all: RunsBeingWritten,
    own: Vec<RunId>,
}

impl RunsBeingWritten {
    fn ids(&self) -> Locked<'_, BTreeSet<RunId>> {
        self.0.lock()
    }

    pub fn begin(&self) -> Writing {
        Writing { all: self.clone(), own: Vec::new() }
    }
}

impl Writing {
    /// The id of a run that is to be written.
    pub fn draw(&mut self, env: &Env) -> RunId {
        let id = RunId(env.uuid());
        let is_new = self.all.ids().insert(id);
        debug_assert!(is_new, "an id is drawn once");
        self.own.push(id);
        id
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut all = self.all.ids();
        self.own.iter().for_each(|id| _ = all.remove(id));
    }
}

impl Map {
    /// Every run that this map names or is going to. Of objects that were listed before this was asked, no other will
    /// ever be in its levels. What [`take_state`](Map::take_state) gave as used up is not among them any more.
    pub fn names(&self) -> BTreeSet<RunId> {
        // In this order: what is not being written any more is listed.
        let mut names = self.runs.written.ids().clone();
        let inner = self.inner();
        names.extend(
            inner.levels.iter().flatten().chain(inner.used_up.iter().map(|used| &used.run)).map(|run| run.id),
        );
        names
    }
}

#[cfg(test)]
mod tests {
    use std::{
        ops::Range,
        sync::{Mutex, OnceLock, Weak},
    };

    use async_trait::async_trait;
    use bytes::Bytes;

    use super::*;
    use crate::{
        Error, Result,
        env::real::RealEnv,
        map::{Levels, MapOptions, RunIo, RunMeta, RunShape},
        units::{Extent, FrameRef, Mapping, Place, Seq, VolumeId},
    };

    /// A store of runs that looks, while a put is under way, whether the map names what was put. It takes so many.
    #[derive(Default)]
    struct Watcher {
        map: OnceLock<Weak<Map>>,
        put: Mutex<Vec<(RunId, Bytes)>>,
        count_max: Mutex<usize>,
    }

    impl Watcher {
        fn put(&self) -> BTreeSet<RunId> {
            self.put.lock().unwrap().iter().map(|(id, _)| *id).collect()
        }
    }

    #[async_trait]
    impl RunIo for Watcher {
        async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
            let put = self.put.lock().unwrap();
            let (_, body) = put.iter().find(|(id, _)| *id == run.id).expect("it was put");
            Ok(body.slice(range.start as usize..body.len().min(range.end as usize)))
        }
        async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
            self.put.lock().unwrap().push((id, body));
            let names = self.map.get().and_then(Weak::upgrade).expect("a map").names();
            assert!(names.contains(&id), "a live upload looks like an orphan");
            match self.put().len() <= *self.count_max.lock().unwrap() {
                true => Ok(()),
                false => Err(Error::Unreachable("full".into())),
            }
        }
    }

    fn mappings(seq: u64) -> Vec<Mapping> {
        let place = |n| Place::Frame(FrameRef { seq: Seq(seq), offset: n, stored: 4120, index: 0 });
        (0..200)
            .map(|n| Mapping { extent: Extent::new(n * 2, 1), birth: Seq(seq), place: place(n as u32) })
            .collect()
    }

    /// A run is named from before it is put, through the rest of its level and what merges make of it, until whoever takes
    /// the state knows that it was used up. One of a flush that came to nothing is not.
    #[tokio::test]
    async fn a_run_is_named_from_before_it_is_put() {
        let io = Arc::new(Watcher::default());
        let shape = RunShape { chunk_mappings: 5, block_bytes: 100, section_blocks: 3, run_bytes: 900 };
        let options = MapOptions { shape, ..MapOptions::default() };
        let volume = VolumeId(uuid::Uuid::from_u128(7));
        let map = Map::new(RealEnv::start(), io.clone(), None, volume, options, Levels::new(), Seq(0));
        io.map.set(Arc::downgrade(&map)).expect("set once");
        *io.count_max.lock().unwrap() = 1;
        map.insert(&mappings(1));
        map.freeze(Seq(1));
        assert!(map.flush().await.is_err(), "a level of several runs");
        let abandoned = io.put();
        assert!(abandoned.len() == 2 && map.names().is_empty());
        *io.count_max.lock().unwrap() = usize::MAX;
        assert!(map.flush().await.expect("flushed"));
        for seq in 2..10 {
            map.insert(&mappings(seq));
            map.freeze(Seq(seq));
            assert!(map.flush().await.expect("flushed"));
            while map.merge_step().await.expect("merged") {}
        }
        assert_eq!(map.names(), &io.put() - &abandoned, "what was used up is named as well");
        let state = map.take_state();
        let listed: BTreeSet<RunId> = state.levels.iter().flatten().map(|run| run.id).collect();
        assert!(!state.used_up.is_empty());
        assert_eq!(map.names(), listed);
    }
}
