//! Where blocks are that the cleaner moved while snapshots saw them: a snapshot's root finds them where they were, and what was
//! moved away as a whole is forwarded (`docs/design/snapshots.md`).
//!
//! Invariant: what is found has the block and the birth that were asked for, so it is the same content. Memory is the table of
//! forwarded segments and a bounded number of footers.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use crate::{
    Error, Result,
    env::Env,
    log::{
        Committed, SlotContent, VolumeKeys,
        checkpoint::EpochStart,
        keys, read_committed, read_entry, read_roots,
        roots::{Forward, ForwardTarget, SnapshotTable},
        salt_of,
    },
    map::Levels,
    rank::{Locked, Rank, Ranked},
    segment::Entry,
    store::{Listed, SharedStore},
    units::{Extent, FRAME_BLOCKS_MAX, Mapping, Place, Salt, Seq, SnapshotId},
};

/// Bytes of footers that are kept.
const FOOTERS_BYTES: u64 = 16 << 20;
/// Newer states are looked for at most so often.
const REFRESH_EVERY: Duration = Duration::from_secs(5);

/// What a newer state says.
#[derive(Debug, Default)]
pub struct Refreshed {
    /// The snapshot's root, if it has one by now.
    pub root: Option<Levels>,
}

/// What it takes to look for a newer state.
#[derive(Clone)]
pub struct ForwardSource {
    pub env: Env,
    pub store: SharedStore,
    pub keys: VolumeKeys,
    pub size_at_creation: Option<u64>,
}

/// Where what a snapshot sees was moved.
pub struct Forwarding {
    source: ForwardSource,
    /// The snapshot.
    shown: SnapshotId,
    state: Ranked<ForwardState>,
    /// One look for a newer state at a time.
    refreshing: tokio::sync::Mutex<()>,
    footers: FootersKept,
}

#[derive(Default)]
struct ForwardState {
    by_segment: BTreeMap<Seq, Arc<Forward>>,
    epochs: Arc<[EpochStart]>,
    /// When a newer state was looked for.
    looked: Option<Duration>,
}

/// Hashed without a random seed: a simulated run has to repeat exactly.
type FootersKept =
    quick_cache::sync::Cache<u64, Arc<Vec<Mapping>>, ByMappings, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone)]
struct ByMappings;

impl quick_cache::Weighter<u64, Arc<Vec<Mapping>>> for ByMappings {
    fn weight(&self, _: &u64, mappings: &Arc<Vec<Mapping>>) -> u64 {
        (mappings.len() * size_of::<Mapping>()) as u64 + 96 // the entry itself
    }
}

impl Forwarding {
    pub fn new(
        source: ForwardSource,
        shown: SnapshotId,
        table: &SnapshotTable,
        committed: &Committed,
    ) -> Forwarding {
        let (hasher, lifecycle) = Default::default();
        let footers = FootersKept::with(256, FOOTERS_BYTES, ByMappings, hasher, lifecycle);
        let state = Ranked::new(Rank::Fetch, ForwardState::of(table, committed));
        Forwarding { source, shown, state, refreshing: tokio::sync::Mutex::new(()), footers }
    }

    fn state(&self) -> Locked<'_, ForwardState> {
        self.state.lock()
    }

    /// The salt under which the segment at `seq` was sealed.
    pub fn salt_of(&self, seq: Seq) -> Option<Salt> {
        salt_of(&self.state().epochs, seq)
    }

    /// The same blocks where they are now: what was moved comes in as many parts as it was cut into.
    ///
    /// # Errors
    /// `NotFound` where a part of it is nowhere; those of reading footers.
    pub async fn resolve(&self, mappings: Vec<Mapping>) -> Result<Vec<Mapping>> {
        let is_moved = |m: &Mapping| matches!(m.place, Place::Frame(f) if self.targets(f.seq).is_some());
        if !mappings.iter().any(is_moved) {
            return Ok(mappings);
        }
        let mut out = Vec::with_capacity(mappings.len());
        for mapping in mappings {
            match is_moved(&mapping) {
                true => out.extend(self.find(&mapping).await?),
                false => out.push(mapping),
            }
        }
        Ok(out)
    }

    fn targets(&self, seq: Seq) -> Option<Arc<Forward>> {
        self.state().by_segment.get(&seq).cloned()
    }

    /// The parts of a mapping where they are now, ascending. Where there are two copies of a block, the one in the first target that
    /// has it, whatever else is asked for with it: so all who look from the same segment find the same.
    async fn find(&self, mapping: &Mapping) -> Result<Vec<Mapping>> {
        let Place::Frame(frame) = mapping.place else { unreachable!("only data is moved") };
        let mut missing = Missing { extents: vec![mapping.extent], found: Vec::new() };
        let (mut forwarded, mut seen) = (vec![frame.seq], BTreeSet::new());
        while let Some(segment) = forwarded.pop()
            && !missing.extents.is_empty()
        {
            let Some(forward) = self.targets(segment) else { continue };
            let near = |to: &&ForwardTarget| to.blocks.intersect(mapping.extent).is_some();
            for to in forward.to.iter().filter(near) {
                if !seen.insert(to.segment) {
                    continue;
                }
                match self.targets(to.segment) {
                    Some(_) => forwarded.push(to.segment),
                    None => missing.take(versions(&self.footer(to).await?, mapping)),
                }
            }
        }
        debug_assert_eq!(
            missing.extents.iter().chain(missing.found.iter().map(|m| &m.extent)).map(|e| e.len).sum::<u64>(),
            mapping.extent.len,
            "a block is found once or missing"
        );
        match missing.extents.first() {
            None => Ok(missing.found()),
            Some(extent) => {
                let (start, end, birth) = (extent.start, extent.end() - 1, mapping.birth.0);
                let key = keys::entry(frame.seq);
                Err(Error::NotFound(format!(
                    "blocks {start} to {end}, which were written as {birth} of the log and moved out of {key},"
                )))
            }
        }
    }

    /// What a segment maps; nothing where it is gone: then nothing of it is needed there.
    async fn footer(&self, to: &ForwardTarget) -> Result<Arc<Vec<Mapping>>> {
        if let Some(known) = self.footers.get(&to.segment.0) {
            return Ok(known);
        }
        let key = keys::entry(to.segment);
        let listed = Listed { key: key.clone(), bytes: to.bytes };
        let read = read_entry(self.source.store.as_ref(), &self.source.keys, to.segment, &listed).await;
        let mappings = match read {
            Ok(SlotContent::Entry(_, Entry::Segment(footer))) => Arc::new(footer.mappings),
            Ok(SlotContent::Entry(_, Entry::Emptied)) => return Ok(Arc::default()),
            Ok(_) => return Err(Error::corrupt(key, "something was moved to it, so it is a segment")),
            Err(Error::NotFound(_)) => return Ok(Arc::default()),
            Err(e) => return Err(e),
        };
        self.footers.insert(to.segment.0, mappings.clone());
        Ok(mappings)
    }

    /// Something was not found: looks what a newer state says of the snapshot. `None` where that was asked just now.
    ///
    /// # Errors
    /// Those of reading the newest committed state.
    pub async fn refresh(&self) -> Result<Option<Refreshed>> {
        let asked = self.source.env.now();
        let _turn = self.refreshing.lock().await;
        let ForwardSource { env, store, keys, size_at_creation } = &self.source;
        let looked = self.state().looked;
        match looked {
            Some(looked) if looked >= asked => return Ok(Some(Refreshed::default())), // somebody else did meanwhile
            Some(looked) if env.now().saturating_sub(looked) < REFRESH_EVERY => return Ok(None),
            _ => {}
        }
        let committed = read_committed(env, store.as_ref(), keys, *size_at_creation).await?;
        let table = committed.snapshot_table(store.as_ref(), keys).await?;
        let shown = table.snapshots.with_content().find(|(_, snapshot)| snapshot.id == self.shown);
        let root = shown.and_then(|(_, snapshot)| table.roots.get(&snapshot.at));
        let root = match root {
            Some(root) => Some(read_roots(store.as_ref(), keys, *root).await?),
            None => None,
        };
        let newer = ForwardState { looked: Some(env.now()), ..ForwardState::of(&table, &committed) };
        *self.state() = newer;
        Ok(Some(Refreshed { root }))
    }
}

impl ForwardState {
    fn of(table: &SnapshotTable, committed: &Committed) -> ForwardState {
        let mut by_segment = BTreeMap::new();
        for forward in &table.forwards {
            let forward = Arc::new(forward.clone());
            by_segment.extend(forward.from.iter().map(|(segment, _)| (*segment, forward.clone())));
        }
        ForwardState { by_segment, epochs: committed.walk.epochs.clone().into(), looked: None }
    }
}

/// The parts of a footer's mappings that are of the same blocks and birth.
fn versions(footer: &[Mapping], wanted: &Mapping) -> Vec<Mapping> {
    // They ascend by their first blocks, and none is longer than a frame.
    let from = wanted.extent.start.saturating_sub(FRAME_BLOCKS_MAX as u64);
    let first = footer.partition_point(|m| m.extent.start < from);
    let near = footer[first..].iter().take_while(|m| m.extent.start < wanted.extent.end());
    let same = |m: &Mapping| {
        let part = m.extent.intersect(wanted.extent)?;
        (m.birth == wanted.birth && matches!(m.place, Place::Frame(_))).then(|| m.slice(part))
    };
    near.filter_map(same).collect()
}

/// What is still looked for, ascending, and what was found.
struct Missing {
    extents: Vec<Extent>,
    found: Vec<Mapping>,
}

impl Missing {
    /// Takes what is missing of some parts.
    fn take(&mut self, parts: Vec<Mapping>) {
        for part in parts {
            let mut left = Vec::with_capacity(self.extents.len() + 1);
            for extent in self.extents.drain(..) {
                let Some(common) = extent.intersect(part.extent) else {
                    left.push(extent);
                    continue;
                };
                self.found.push(part.slice(common));
                let ends = [
                    Extent::between(extent.start, common.start),
                    Extent::between(common.end(), extent.end()),
                ];
                left.extend(ends.into_iter().filter(|end| !end.is_empty()));
            }
            self.extents = left;
        }
        debug_assert!(self.extents.iter().all(|extent| !extent.is_empty()), "what is missing is something");
        debug_assert!(
            self.extents.is_sorted_by(|a, b| a.end() <= b.start),
            "what is missing ascends and is apart"
        );
    }

    /// All that was found, ascending.
    fn found(mut self) -> Vec<Mapping> {
        self.found.sort_unstable_by_key(|part| part.extent.start);
        debug_assert!(
            self.found.is_sorted_by(|a, b| a.extent.end() <= b.extent.start),
            "a block is found in one place"
        );
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::FrameRef;

    fn mapping(start: u64, len: u64, birth: u64, seq: u64) -> Mapping {
        let place = Place::Frame(FrameRef { seq: Seq(seq), offset: 8, stored: 4096, index: 0 });
        Mapping { extent: Extent::new(start, len), birth: Seq(birth), place }
    }

    /// Of a footer only what has the birth that was asked for is taken, whatever else it has of the same blocks.
    #[test]
    fn versions_are_told_by_their_birth() {
        let footer = [mapping(0, 16, 3, 9), mapping(0, 4, 5, 9), mapping(4, 12, 5, 9), mapping(16, 2, 3, 9)];
        let found = |start, len, birth| {
            let found = versions(&footer, &mapping(start, len, birth, 1));
            found.iter().map(|m| (m.extent.start, m.extent.len, m.birth.0)).collect::<Vec<_>>()
        };
        assert_eq!(found(2, 15, 3), [(2, 14, 3), (16, 1, 3)]);
        assert_eq!(found(2, 10, 5), [(2, 2, 5), (4, 8, 5)]);
        assert_eq!(found(2, 10, 4), []);
    }

    /// What was found first is not found again, however the parts of it lie; what nobody has stays missing.
    #[test]
    fn what_was_found_first_counts() {
        let mut missing = Missing { extents: vec![Extent::new(0, 10)], found: Vec::new() };
        missing.take(vec![mapping(4, 2, 1, 7)]);
        missing.take(vec![mapping(0, 8, 1, 8)]);
        assert_eq!(missing.extents, [Extent::new(8, 2)]);
        let seq = |m: &Mapping| if let Place::Frame(frame) = m.place { frame.seq.0 } else { 0 };
        let found: Vec<_> = missing.found().iter().map(|m| (m.extent.start, m.extent.len, seq(m))).collect();
        assert_eq!(found, [(0, 4, 8), (4, 2, 7), (6, 2, 8)]);
    }
}
