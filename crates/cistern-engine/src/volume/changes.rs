//! What differs between two states of a volume, and what space snapshots take: found in the maps alone, of which only the parts are read
//! in which something changed (`docs/design/snapshots.md`). No data is read.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    codec::KeySource,
    env::Env,
    gc::readers::Announcement,
    log::{
        Committed, VolumeKeys,
        branches::{common, parent},
        find_volume, keys, read_committed,
        roots::SnapshotTable,
    },
    snapshot::{NOT_COMMITTED, Snapshot, is_hidden},
    store::Stores,
    units::{BLOCK_BYTES, Extent, Mapping, Place, Seq, SnapshotId},
    volume::{
        RangeKind, Volume,
        admin::ProgressFn,
        apart::add_missing,
        in_parts::in_parts,
        open::{ReadParts, SnapshotState, read_only, read_snapshot},
        read::kind_of,
    },
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Mappings looked at in one step.
const STEP_MAPPINGS: usize = 4096;
/// Memory for the map of each state that is looked at; there are three.
const MEMORY_BYTES: u64 = 64 << 20;

/// A range that was written or discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedRange {
    /// In bytes, whole blocks but for the end of the volume.
    pub offset: u64,
    pub len: u64,
    /// What it is now.
    pub kind: RangeKind,
}

/// What a snapshot takes, in bytes of its volume: before compression, in whole blocks, holes and zeroes not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSpace {
    /// What it shows.
    pub referenced_bytes: u64,
    /// Of that, what was written since the snapshot before it.
    pub written_bytes: u64,
    /// Of that, what neither another snapshot nor the volume shows: what removing it alone frees.
    pub unique_bytes: u64,
}

impl Volume {
    /// Whether a position of the log ([`SnapshotStatus::at`](super::SnapshotStatus::at)) leads to what this volume shows, and was not left by a
    /// rollback since.
    pub fn goes_on_from(&self, at: u64) -> bool {
        self.leads_here(Seq(at))
    }

    /// Gives everything that was written or discarded behind a position of the log ([`SnapshotStatus::at`](super::SnapshotStatus::at)) to
    /// `tell`, as far as this volume shows it: ascending, neighbours of one kind as one range. Only of a volume that is open for
    /// reading. Of a position that does not lead here, it takes the snapshot that is there, and gives what either of them has that the other
    /// one does not, as it is here. Progress counts bytes of the volume. Memory is bounded, however much it is.
    ///
    /// # Errors
    /// Of `tell`; `Corrupt` where the map is damaged; those of the store.
    pub async fn changes_since<E: From<Error>>(
        &self,
        at: u64,
        base: Option<&Volume>,
        mut tell: impl FnMut(&ChangedRange) -> Result<(), E>,
        progress: ProgressFn<'_>,
    ) -> Result<(), E> {
        debug_assert!(self.is_read_only(), "what is not committed is not looked at");
        debug_assert!(base.is_some() || self.goes_on_from(at), "what leads elsewhere is looked at itself");
        let size = self.size_bytes();
        let look = |part: Extent| self.differs_in(part, Seq(at), base);
        let mut open: Option<ChangedRange> = None;
        let add = |part: Extent, mappings: Vec<Mapping>| -> Result<(), E> {
            for mapping in &mappings {
                let offset = mapping.extent.start * BLOCK;
                let len = (mapping.extent.end() * BLOCK).min(size) - offset;
                let next = ChangedRange { offset, len, kind: kind_of(mapping) };
                match &mut open {
                    Some(last) if last.kind == next.kind && last.offset + last.len == offset => {
                        last.len += len
                    }
                    _ => open.replace(next).iter().try_for_each(&mut tell)?,
                }
            }
            progress((part.end() * BLOCK).min(size), size);
            Ok(())
        };
        in_parts(Extent::new(0, size.div_ceil(BLOCK)), look, add).await?;
        open.iter().try_for_each(tell)
    }

    /// As [`changed_in`](Self::changed_in); of a position that does not lead here, with the snapshot that is there.
    pub(super) async fn differs_in(
        &self,
        part: Extent,
        at: Seq,
        base: Option<&Volume>,
    ) -> Result<(Vec<Mapping>, u64)> {
        let since = self.shares_history_up_to(at);
        let (mut changed, mut end) = self.changed_in(part, since).await?;
        if let Some(base) = base {
            let (theirs, their_end) = base.changed_in(Extent::between(part.start, end), since).await?;
            let all = union(&changed, &theirs, their_end);
            (changed, end) = (self.with_partial(self.map.lookup_each(&all).await?).await?, their_end);
        }
        Ok((changed, end))
    }

    /// What at the beginning of a part changed behind a position, ascending, and where that beginning ends.
    pub(super) async fn changed_in(&self, part: Extent, since: Seq) -> Result<(Vec<Mapping>, u64)> {
        let mut mappings = self.map.changes(part, since, STEP_MAPPINGS).await?;
        let end = mappings.last().map_or(part.end(), |mapping| mapping.extent.end());
        debug_assert!(
            part.start < end && end <= part.end(),
            "every look sees something, and no more than its part"
        );
        mappings.retain(|mapping| mapping.birth > Seq(0));
        let mut mappings = self.with_partial(mappings).await?;
        add_missing(&mut mappings, &self.partial_in(Extent::between(part.start, end), since).await?);
        Ok((mappings, end))
    }

    /// The snapshots and bookmarks behind whose positions this volume knows what changed, oldest first: of a snapshot the older ones, else all.
    pub fn bases(&self) -> Vec<String> {
        let mut all = self.snapshots();
        all.retain(|snapshot| self.leads_here(snapshot.at.map_or(NOT_COMMITTED, Seq)));
        all.retain(|snapshot| !is_hidden(&snapshot.name));
        all.sort_by_key(|snapshot| snapshot.at.unwrap_or(u64::MAX));
        all.into_iter().map(|snapshot| snapshot.name).collect()
    }

    /// Whether the parts of a range changed since a snapshot was made, ascending from `offset`, at most `count_max` of them; may end
    /// early. What is not committed counts as changed.
    ///
    /// # Errors
    /// `NotFound` where the snapshot is none of [`bases`](Self::bases); else as for `ranges`.
    pub async fn changed_ranges(
        &self,
        base: &str,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, bool)>> {
        loop {
            let (id, at) = self.base(base)?;
            let ranges = self.ranges_since(at, offset, len, count_max).await?;
            // If it was committed meanwhile, so may something behind it have been.
            if at < NOT_COMMITTED || self.base(base)? == (id, at) {
                return Ok(ranges);
            }
        }
    }

    /// A snapshot behind whose position this volume knows what changed.
    fn base(&self, name: &str) -> Result<(SnapshotId, Seq)> {
        let found = self.snapshot_named(name);
        let at = found.map(|snapshot| (snapshot.id, snapshot.at.map_or(NOT_COMMITTED, Seq)));
        at.filter(|(_, at)| self.leads_here(*at)).ok_or_else(|| Error::NotFound(format!("snapshot {name}")))
    }

    /// Whether what a position shows is a part of the history of what this volume shows.
    fn leads_here(&self, at: Seq) -> bool {
        at == self.shares_history_up_to(at)
    }

    /// Up to which position the history of another one and of what this volume shows are the same.
    fn shares_history_up_to(&self, at: Seq) -> Seq {
        let shown = if self.writer.is_some() { NOT_COMMITTED } else { Seq(self.opened.seq) };
        common(&self.opened.branches, at, shown)
    }
}

/// What either of two lists has before `end`, ascending and without overlap.
fn union(one: &[Mapping], other: &[Mapping], end: u64) -> Vec<Extent> {
    let mut all: Vec<Extent> = one.iter().chain(other).map(|mapping| mapping.extent).collect();
    all.sort_unstable_by_key(|extent| extent.start);
    let mut out: Vec<Extent> = Vec::with_capacity(all.len());
    for extent in all {
        let start = out.last().map_or(extent.start, |last| extent.start.max(last.end()));
        let part = Extent::between(start.min(end), extent.end().clamp(start.min(end), end));
        out.extend((!part.is_empty()).then_some(part));
    }
    out
}

/// What each snapshot of a volume takes, by the newest committed state, ascending by position and then by name. What is not committed is
/// not among them. Progress counts snapshots.
///
/// # Errors
/// `Corrupt` where a map is damaged; those of the store.
pub async fn snapshot_space(
    env: &Env,
    place: impl Into<Stores>,
    key: &KeySource,
    progress: ProgressFn<'_>,
) -> Result<Vec<(String, SnapshotSpace)>> {
    let states = States::read(env, place.into(), key).await?;
    let all = &states.ascending;
    let (mut out, mut referenced): (Vec<(String, SnapshotSpace)>, Vec<u64>) = Default::default();
    let mut open = OpenStates::default();
    for (n, (name, _)) in all.iter().enumerate() {
        progress(n as u64, all.len() as u64);
        let Difference { written, replaced, unique } = states.difference(n, &mut open).await?;
        let before = states.parents[n].map_or(0, |parent| referenced[parent]);
        referenced.push(before + written - replaced);
        let space = SnapshotSpace {
            referenced_bytes: referenced[n] * BLOCK,
            written_bytes: written * BLOCK,
            unique_bytes: unique * BLOCK,
        };
        out.push((name.clone(), space));
        open.retain(|state, _| states.is_wanted_behind(*state, n));
    }
    states.end().await;
    Ok(out)
}

/// What removing a snapshot frees, in bytes as [`SnapshotSpace::unique_bytes`].
///
/// # Errors
/// `NotFound`; else as for [`snapshot_space`].
pub async fn unique_space(env: &Env, place: impl Into<Stores>, key: &KeySource, name: &str) -> Result<u64> {
    let states = States::read(env, place.into(), key).await?;
    let found = states.ascending.iter().position(|(other, _)| other == name);
    let n = found.ok_or_else(|| Error::NotFound(format!("snapshot {name}")))?;
    let unique = states.difference(n, &mut OpenStates::default()).await?.unique;
    states.end().await;
    Ok(unique * BLOCK)
}

/// States that are open, by their number; behind the snapshots comes the newest one.
type OpenStates = BTreeMap<usize, Arc<Volume>>;

/// The states of a volume that can be looked at.
struct States<'a> {
    env: &'a Env,
    stores: Stores,
    keys: VolumeKeys,
    committed: Committed,
    table: SnapshotTable,
    /// Those with content, by position, and then by name.
    ascending: Vec<(String, Snapshot)>,
    /// Which of them comes before each, and before the newest state, which is behind all.
    parents: Vec<Option<usize>>,
    size_at_creation: Option<u64>,
    announcement: Option<Announcement>,
}

impl<'a> States<'a> {
    async fn read(env: &'a Env, place: Stores, key: &KeySource) -> Result<States<'a>> {
        let (identity, store) = find_volume(env, &place.read).await?;
        let keys = VolumeKeys::unlock(env, store.as_ref(), &identity, key).await?;
        let announcement = Announcement::make(env, &store).await?;
        let committed = read_committed(env, store.as_ref(), &keys, identity.size_at_creation()).await?;
        let table = committed.snapshot_table(store.as_ref(), &keys).await?;
        let snapshots = committed.snapshots(&table);
        let named = |(name, snapshot): (&str, &Snapshot)| (name.to_owned(), snapshot.clone());
        let mut ascending: Vec<(String, Snapshot)> = snapshots.with_content().map(named).collect();
        ascending.sort_by(|a, b| (a.1.at, &a.0).cmp(&(b.1.at, &b.0)));
        let positions = snapshots.positions();
        let parent_of = |n: usize| {
            let at = ascending.get(n).map_or(NOT_COMMITTED, |(_, snapshot)| snapshot.at);
            match n.checked_sub(1) {
                Some(before) if ascending[before].1.at == at => Some(before),
                _ => {
                    let before = parent(&table.branches, &positions, at)?;
                    ascending.partition_point(|(_, snapshot)| snapshot.at <= before).checked_sub(1)
                }
            }
        };
        let parents = (0..=ascending.len()).map(parent_of).collect();
        let stores = place.within(&keys::directory(identity.volume));
        let size_at_creation = identity.size_at_creation();
        Ok(States { env, stores, keys, committed, table, ascending, parents, size_at_creation, announcement })
    }

    /// Nobody looks at them any more.
    async fn end(self) {
        if let Some(announcement) = self.announcement {
            announcement.end().await;
        }
    }

    /// Those that go on from one.
    fn children(&self, n: usize) -> impl Iterator<Item = usize> {
        (0..self.parents.len()).filter(move |child| self.parents[*child] == Some(n))
    }

    /// Whether one is looked at again when all up to `done` were compared.
    fn is_wanted_behind(&self, state: usize, done: usize) -> bool {
        state > done || self.children(state).any(|child| child > done && child < self.ascending.len())
    }

    /// One that is open, or will be from now on.
    async fn opened(&self, n: usize, open: &mut OpenStates) -> Result<Arc<Volume>> {
        if let Some(known) = open.get(&n) {
            return Ok(known.clone());
        }
        let volume = Arc::new(self.open(self.ascending.get(n)).await?);
        open.insert(n, volume.clone());
        Ok(volume)
    }

    /// Compares a snapshot with the state before it and those that go on from it.
    async fn difference(&self, n: usize, open: &mut OpenStates) -> Result<Difference> {
        let before = match self.parents[n] {
            Some(parent) => Some((self.opened(parent, open).await?, self.ascending[parent].1.at)),
            None => None,
        };
        let this = self.opened(n, open).await?;
        let mut next = Vec::new();
        for child in self.children(n) {
            next.push(self.opened(child, open).await?);
        }
        difference(before.as_ref(), &this, &next).await
    }

    /// What a snapshot shows; without one, the newest state.
    async fn open(&self, snapshot: Option<&(String, Snapshot)>) -> Result<Volume> {
        let (env, stores) = (self.env, &self.stores);
        let parts = ReadParts { env, stores, cache: None, memory_bytes: MEMORY_BYTES };
        let (table, size_at_creation) = (&self.table, self.size_at_creation);
        match snapshot {
            Some((_, snapshot)) => {
                let shown = SnapshotState { table, snapshot, size_at_creation };
                read_snapshot(parts, &self.keys, &self.committed, shown).await
            }
            None => read_only(parts, &self.keys, &self.committed).await,
        }
    }
}

/// Blocks in frames by which a state differs from the one before it.
#[derive(Default)]
struct Difference {
    /// That this one shows, and the one before does not.
    written: u64,
    /// The other way round.
    replaced: u64,
    /// Of those that were written, what the next state does not show.
    unique: u64,
}

/// Compares a state with the one before it, which is given with its position, and with those that go on from it.
async fn difference(
    before: Option<&(Arc<Volume>, Seq)>,
    this: &Volume,
    next: &[Arc<Volume>],
) -> Result<Difference> {
    let since = before.map_or(Seq(0), |(_, at)| *at);
    let sizes = before.iter().map(|(volume, _)| volume.size_bytes()).chain([this.size_bytes()]);
    let blocks = sizes.max().unwrap_or(0).div_ceil(BLOCK);
    let look = |part: Extent| async move {
        let seen = this.map.changes(part, since, STEP_MAPPINGS).await?;
        let end = seen.last().map_or(part.end(), |mapping| mapping.extent.end());
        let changed: Vec<Mapping> = seen.into_iter().filter(|mapping| mapping.birth > Seq(0)).collect();
        let mut found = Difference::default();
        if changed.is_empty() {
            return Ok((found, end));
        }
        let extents: Vec<Extent> = changed.iter().map(|mapping| mapping.extent).collect();
        found.written = changed.iter().map(blocks_in_frames).sum();
        if let Some((before, _)) = before {
            found.replaced = before.map.lookup_each(&extents).await?.iter().map(blocks_in_frames).sum();
        }
        let mut unique = changed;
        for next in next {
            let later = next.map.lookup_each(&extents).await?;
            unique = unique.iter().flat_map(|mapping| not_in(mapping, &later, SameBy::Birth)).collect();
        }
        found.unique = unique.iter().map(blocks_in_frames).sum();
        debug_assert!(found.unique <= found.written, "only what was written is shown by nothing else");
        Ok((found, end))
    };
    let mut out = Difference::default();
    let add = |_, found: Difference| {
        out.written += found.written;
        out.replaced += found.replaced;
        out.unique += found.unique;
        Ok::<(), Error>(())
    };
    in_parts(Extent::new(0, blocks), look, add).await?;
    Ok(out)
}

fn blocks_in_frames(mapping: &Mapping) -> u64 {
    if matches!(mapping.place, Place::Frame(_)) { mapping.extent.len } else { 0 }
}

/// What makes a block the same in two states.
#[derive(Clone, Copy)]
pub(super) enum SameBy {
    /// The same write.
    Birth,
    /// The same bytes of the same object: after a move by the cleaner the same write may lie in two places.
    Place,
}

impl SameBy {
    /// Whether `part`, which both have, is the same in both.
    fn holds(self, one: &Mapping, other: &Mapping, part: Extent) -> bool {
        match self {
            SameBy::Birth => other.birth == one.birth,
            SameBy::Place => other.slice(part).place == one.slice(part).place,
        }
    }
}

/// The parts of a mapping that are not the same in another state; `others` ascend.
pub(super) fn not_in(mapping: &Mapping, others: &[Mapping], by: SameBy) -> Vec<Mapping> {
    let (mut parts, mut at) = (Vec::new(), mapping.extent.start);
    let first = others.partition_point(|other| other.extent.end() <= at);
    let overlapping = others[first..].iter().take_while(|other| other.extent.start < mapping.extent.end());
    for other in overlapping {
        let Some(part) = other.extent.intersect(mapping.extent) else { continue };
        if by.holds(mapping, other, part) {
            parts.push(Extent::between(at, part.start));
            at = part.end();
        }
    }
    parts.push(Extent::between(at, mapping.extent.end().max(at)));
    parts.into_iter().filter(|part| !part.is_empty()).map(|part| mapping.slice(part)).collect()
}

/// Blocks in frames of a mapping that are the same in another state; `others` ascend.
pub(super) fn blocks_in_common(mapping: &Mapping, others: &[Mapping], by: SameBy) -> u64 {
    if !matches!(mapping.place, Place::Frame(_)) {
        return 0;
    }
    let first = others.partition_point(|other| other.extent.end() <= mapping.extent.start);
    let overlapping = others[first..].iter().take_while(|other| other.extent.start < mapping.extent.end());
    let same = |other: &Mapping| {
        let part = other.extent.intersect(mapping.extent)?;
        by.holds(mapping, other, part).then_some(part.len)
    };
    overlapping.filter_map(same).sum()
}
