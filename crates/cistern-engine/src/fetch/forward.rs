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
    pub size_at_creation: u64,
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

    /// The parts of a mapping where they are now, ascending.
    async fn find(&self, mapping: &Mapping) -> Result<Vec<Mapping>> {
        let Place::Frame(frame) = mapping.place else { unreachable!("only data is moved") };
        let (mut found, mut forwarded, mut seen) = (Vec::new(), vec![frame.seq], BTreeSet::new());
        while let Some(segment) = forwarded.pop() {
            let Some(forward) = self.targets(segment) else { continue };
            let near = |to: &&ForwardTarget| to.blocks.intersect(mapping.extent).is_some();
            for to in forward.to.iter().filter(near) {
                if !seen.insert(to.segment) {
                    continue;
                }
                match self.targets(to.segment) {
                    Some(_) => forwarded.push(to.segment),
                    None => found.extend(versions(&self.footer(to).await?, mapping)),
                }
            }
        }
        cover(mapping.extent, found).ok_or_else(|| {
            let (start, end) = (mapping.extent.start, mapping.extent.end() - 1);
            let (key, birth) = (keys::entry(frame.seq), mapping.birth.0);
            Error::NotFound(format!("blocks {start} to {end} of {birth}, which were moved out of {key}"))
        })
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
        let committed = read_committed(store.as_ref(), keys, *size_at_creation).await?;
        let table = committed.snapshot_table(store.as_ref(), keys).await?;
        let shown = table.snapshots.with_content().find(|(_, snapshot)| snapshot.id == self.shown);
        let root = shown.and_then(|(_, snapshot)| table.roots.get(&snapshot.at));
        let root = match root {
            Some(root) => Some(read_roots(store.as_ref(), keys, root.id).await?),
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

/// Parts that cover an extent, each block once; `None` if they do not.
fn cover(extent: Extent, mut found: Vec<Mapping>) -> Option<Vec<Mapping>> {
    found.sort_by_key(|m| m.extent.start);
    let (mut at, mut out) = (extent.start, Vec::new());
    for m in found {
        if m.extent.start > at {
            return None;
        }
        if m.extent.end() > at {
            out.push(m.slice(Extent::between(at, m.extent.end())));
            at = m.extent.end();
        }
    }
    (at == extent.end()).then_some(out)
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

    /// Parts that overlap are cut; where one is missing there is no answer.
    #[test]
    fn parts_cover_what_was_asked_for() {
        let parts = vec![mapping(4, 4, 1, 8), mapping(0, 4, 1, 9), mapping(2, 4, 1, 7)];
        let covered = cover(Extent::new(0, 8), parts.clone()).expect("all of it");
        assert_eq!(
            covered.iter().map(|m| (m.extent.start, m.extent.len)).collect::<Vec<_>>(),
            [(0, 4), (4, 2), (6, 2)]
        );
        assert_eq!(cover(Extent::new(0, 9), parts[..2].to_vec()), None);
        assert_eq!(cover(Extent::new(0, 8), parts[..1].to_vec()), None);
    }
}
