//! Verifying what lies in the store: checkpoint, log, map, accounts, and every live frame.
//!
//! A check looks at one committed state and may take longer than what that needs stays in the store while somebody writes. So
//! where something is missing and there is a newer state, it is no fault: the check goes on with the newer one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;

use crate::{
    Error, Result,
    codec::KeySource,
    env::Env,
    gc::readers::while_announced,
    log::{
        Committed, VolumeKeys,
        branches::{common, parent},
        checkpoint::MapPair,
        find_volume, keys, read_committed, read_roots_object,
        roots::{RootsObject, SnapshotTable},
    },
    map::Levels,
    sectors::{are_sectors, sector_numbers, sector_of},
    snapshot::{NOT_COMMITTED, Snapshot},
    store::{SharedStore, Stores},
    units::{BLOCK_BYTES, Extent, Mapping, Place, RunId, Seq},
    volume::{
        Volume,
        accounting::{Accounting, SeenVersions, SpaceReport},
        admin::ProgressFn,
        changes::{SameBy, blocks_in_common, not_in},
        log_sizes::{LogSizes, OriginSizes},
        open::{ReadParts, SnapshotState, read_only, read_snapshot},
    },
};

/// Newer states with which the check of the map begins again, or a step of the data, before what is missing is a fault.
const STATES_MAX: usize = 8;

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    pub objects: u64,
    pub bytes_read: u64,
    pub extents: u64,
    /// One line per fault; empty when all is well.
    pub faults: Vec<String>,
    /// One line per thing that is odd and harms nothing, such as an object of another volume.
    pub findings: Vec<String>,
    /// If it was asked for.
    pub space: Option<SpaceReport>,
}

/// What a check looks at beside checkpoint, log and map.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    /// Every live frame is read and verified.
    pub data: bool,
    /// Every object in the store is accounted for.
    pub space: bool,
}

/// Faults kept for the report; a broken store could have one for every extent.
const FAULTS_MAX: usize = 1000;
/// Mappings looked at in one step.
const STEP_MAPPINGS: usize = 1024;
/// Memory for map and frames while checking.
const CHECK_MEMORY_BYTES: u64 = 256 << 20;

/// Verifies checkpoint, log, map and the accounts of the committed state, and what else is asked for. Progress counts
/// blocks.
///
/// # Errors
/// Only what prevents checking at all; what is found broken is in the report.
pub async fn check(
    env: &Env,
    place: impl Into<Stores>,
    key: &KeySource,
    what: Checked,
    progress: ProgressFn<'_>,
) -> Result<CheckReport> {
    let place = place.into();
    let (identity, own) = find_volume(env, &place.read).await?;
    let keys = VolumeKeys::unlock(env, own.as_ref(), &identity, key).await?;
    let from = CheckedVolume {
        env,
        stores: place.within(&keys::directory(identity.volume)),
        place: &place.read,
        store: &own,
        keys: &keys,
        size_at_creation: identity.size_at_creation(),
    };
    while_announced(env, &own, check_found(&from, what, progress)).await
}

async fn check_found(
    from: &CheckedVolume<'_>,
    what: Checked,
    progress: ProgressFn<'_>,
) -> Result<CheckReport> {
    let mut state = State::read(from).await?;
    let mut report = state.check_map(from, what, progress).await?;
    for _ in 0..STATES_MAX {
        if report.faults.is_empty() || !state.is_old(from).await? {
            break;
        }
        state = State::read(from).await?;
        report = state.check_map(from, what, progress).await?;
    }
    if what.data {
        check_data(from, state, &mut report, progress).await?;
    }
    Ok(report)
}

/// The volume that is checked.
struct CheckedVolume<'a> {
    env: &'a Env,
    place: &'a SharedStore,
    /// Its own objects there.
    store: &'a SharedStore,
    stores: Stores,
    keys: &'a VolumeKeys,
    size_at_creation: Option<u64>,
}

/// One committed state.
struct State {
    committed: Committed,
    volume: Arc<Volume>,
    segments: LogSizes,
    /// Of the volumes it was cloned from.
    theirs: OriginSizes,
}

impl State {
    async fn read(from: &CheckedVolume<'_>) -> Result<State> {
        let CheckedVolume { env, store, keys, size_at_creation, .. } = *from;
        let committed = read_committed(env, store.as_ref(), keys, size_at_creation).await?;
        let parts = ReadParts { env, stores: &from.stores, cache: None, memory_bytes: CHECK_MEMORY_BYTES };
        let volume = Arc::new(read_only(parts, keys, &committed).await?);
        let (segments, theirs) = (LogSizes::list(store).await?, OriginSizes::default());
        Ok(State { committed, volume, segments, theirs })
    }

    /// The volume as a snapshot shows it.
    async fn at_snapshot(
        &self,
        from: &CheckedVolume<'_>,
        table: &SnapshotTable,
        snapshot: &Snapshot,
    ) -> Result<Volume> {
        let CheckedVolume { env, keys, size_at_creation, .. } = *from;
        let parts = ReadParts { env, stores: &from.stores, cache: None, memory_bytes: CHECK_MEMORY_BYTES };
        read_snapshot(parts, keys, &self.committed, SnapshotState { table, snapshot, size_at_creation }).await
    }

    /// Whether there is a newer one, listed or not, for which objects of this one may have been deleted.
    async fn is_old(&self, from: &CheckedVolume<'_>) -> Result<bool> {
        let newest = read_committed(from.env, from.store.as_ref(), from.keys, from.size_at_creation).await?;
        Ok(newest.names != self.committed.names)
    }

    fn blocks(&self) -> u64 {
        self.volume.size_bytes().div_ceil(BLOCK_BYTES as u64)
    }

    /// The whole map, what it names, and the accounts against it.
    async fn check_map(
        &self,
        from: &CheckedVolume<'_>,
        what: Checked,
        progress: ProgressFn<'_>,
    ) -> Result<CheckReport> {
        let mut report = self.look_back();
        let (mut accounting, faults) = Accounting::read(from.store, from.keys, &self.committed).await?;
        faults.into_iter().for_each(|fault| report.fault(fault));
        let table = match self.committed.snapshot_table(from.store.as_ref(), from.keys).await {
            Err(e) if e.is_damage() => {
                report.fault(format!("table of snapshots: {e}"));
                SnapshotTable::default()
            }
            table => table?,
        };
        let mut family = Family::of(self, from, &table);
        let before = family.before(NOT_COMMITTED).await.unwrap_or_else(|e| {
            report.fault(format!("the newest snapshot: {e}"));
            Vec::new()
        });
        for extent in extents(&self.volume) {
            Box::pin(self.check_extent(extent, &before, &mut accounting, &mut report, progress)).await?;
        }
        let blocks = self.blocks();
        self.check_snapshots(&mut family, what, &mut accounting, &mut report).await?;
        accounting.contradictions().into_iter().for_each(|fault| report.fault(fault));
        if what.space {
            report.space = Some(accounting.sort(from.env, from.place, from.keys).await?);
        }
        progress(blocks, blocks);
        Ok(report)
    }

    /// What the map says of an extent, and whether it is there.
    async fn check_extent(
        &self,
        extent: Extent,
        before: &[Arc<Volume>],
        accounting: &mut Accounting,
        report: &mut CheckReport,
        progress: ProgressFn<'_>,
    ) -> Result<()> {
        let (mut at, blocks) = (extent.start, self.blocks());
        while at < extent.end() {
            progress(at.min(blocks), blocks);
            match self.volume.map.lookup_limited(Extent::between(at, extent.end()), STEP_MAPPINGS).await {
                Ok(mappings) => {
                    let end = mappings.last().map_or(extent.end(), |m| m.extent.end());
                    debug_assert!(at < end && end <= extent.end(), "every look sees something of the volume");
                    let step = Extent::between(at, end);
                    match account(&self.volume, &mappings, before, step, accounting).await {
                        Err(e) if e.is_damage() => report.fault(format!("the newest snapshot: {e}")),
                        accounted => accounted?,
                    }
                    for mapping in &mappings {
                        self.check_presence(&self.volume, mapping, report).await?;
                    }
                    at = end;
                }
                Err(e @ (Error::Corrupt { .. } | Error::NotFound(_))) => {
                    report.fault(format!("map behind block {at}: {e}"));
                    break; // what lies behind cannot be found without it
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// What snapshots need: the objects that say so, the runs of their roots, and what they see.
    async fn check_snapshots(
        &self,
        family: &mut Family<'_>,
        what: Checked,
        accounting: &mut Accounting,
        report: &mut CheckReport,
    ) -> Result<()> {
        let (from, table) = (family.from, family.table);
        let checkpoint = self.committed.checkpoint.as_ref();
        let pairs = || checkpoint.iter().filter_map(|c| c.snapshots.as_ref()).chain(table.roots.values());
        accounting.need(pairs().flat_map(|pair| pair.ids));
        accounting.need(checkpoint.iter().flat_map(|c| &c.held).map(|object| object.id));
        accounting.need(table.runs.iter().map(|held| held.run.id));
        let mut runs: BTreeSet<RunId> = table.runs.iter().map(|held| held.run.id).collect();
        runs.extend(checkpoint.iter().flat_map(|c| c.levels.iter().flatten()).map(|run| run.id));
        for pair in checkpoint.iter().filter_map(|c| c.snapshots) {
            check_copies::<SnapshotTable>(from, pair, "the table of snapshots", report).await?;
        }
        let mut next = self.volume.clone();
        for (at, (name, _)) in family.by_position.clone().into_iter().rev() {
            if let Some(pair) = table.roots.get(&at) {
                check_copies::<Levels>(from, *pair, &format!("the root of snapshot {name}"), report).await?;
            }
            let checked = async {
                let volume = family.take(at).await?;
                let levels = volume.map.levels();
                if let Some(lost) =
                    levels.iter().flatten().find(|run| run.owner.is_none() && !runs.contains(&run.id))
                {
                    report.fault(format!("snapshot {name}: nobody knows that it needs run {}", lost.id));
                }
                let before = family.before(at).await?;
                let states = Neighbours { name: &name, this: &volume, before: &before, next: &next };
                self.compare(states, what, accounting, report).await?;
                Ok::<_, Error>(volume)
            };
            match checked.await {
                Ok(volume) => next = volume,
                Err(e) if e.is_damage() => report.fault(format!("snapshot {name}: {e}")),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Accounts for what a snapshot sees, looks whether it is there, and reads what the next younger state does not see there, if that is
    /// asked for.
    async fn compare(
        &self,
        states: Neighbours<'_>,
        what: Checked,
        accounting: &mut Accounting,
        report: &mut CheckReport,
    ) -> Result<()> {
        for extent in extents(states.this) {
            Box::pin(self.compare_extent(extent, &states, what, accounting, report)).await?;
        }
        Ok(())
    }

    async fn compare_extent(
        &self,
        extent: Extent,
        states: &Neighbours<'_>,
        what: Checked,
        accounting: &mut Accounting,
        report: &mut CheckReport,
    ) -> Result<()> {
        let Neighbours { name, this, before, next } = *states;
        let mut at = extent.start;
        while at < extent.end() {
            let seen = this.map.lookup_limited(Extent::between(at, extent.end()), STEP_MAPPINGS).await?;
            let end = seen.last().map_or(extent.end(), |mapping| mapping.extent.end());
            debug_assert!(at < end && end <= extent.end(), "every look sees something of the volume");
            let seen = this.frames.resolve(seen).await?;
            account(this, &seen, before, Extent::between(at, end), accounting).await?;
            let later = match what.data {
                true => next.frames.resolve(next.map.lookup(Extent::between(at, end)).await?).await?,
                false => Vec::new(),
            };
            for mapping in &seen {
                let is_there = self.check_presence(this, mapping, report).await?;
                let Place::Frame(frame) = mapping.place else { continue };
                let is_read = blocks_in_common(mapping, &later, SameBy::Place) == mapping.extent.len;
                if is_read || !what.data || !is_there {
                    continue;
                }
                match this.frames.read(std::slice::from_ref(mapping)).await {
                    Ok(_) => report.bytes_read += u64::from(frame.stored),
                    Err(e) if e.is_damage() => {
                        report.fault(format!("snapshot {name}, {}: {e}", blocks_of(mapping)));
                    }
                    Err(e) => return Err(e),
                }
            }
            at = end;
        }
        Ok(())
    }

    /// What is wrong with the objects that a mapping of a state of this volume needs; `None` if they are there.
    async fn fault_of(&self, of: &Volume, mapping: &Mapping) -> Result<Option<String>> {
        match (mapping.place, of.frames.is_foreign(mapping)) {
            (Place::Hole | Place::Zero, _) => Ok(None),
            (Place::Frame(_), true) => match self.theirs.fault(&of.frames, mapping).await {
                Err(e) if e.is_damage() => Ok(Some(e.to_string())),
                fault => fault,
            },
            (Place::Frame(frame), false) => self.segments.fault(&frame).await,
        }
    }

    /// What was met on the way to this state.
    fn look_back(&self) -> CheckReport {
        let usage = self.committed.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.usage.len());
        let objects = self.segments.listed + usage as u64;
        let mut report = CheckReport { objects, ..CheckReport::default() };
        report.findings.extend(self.committed.foreign.iter().take(FAULTS_MAX).map(|foreign| {
            format!(
                "{} is an object of volume {} that came late: it is stepped over",
                foreign.key, foreign.volume
            )
        }));
        for damaged in &self.committed.damaged {
            report.fault(format!("{}; an older one and the log replace it", damaged.fault));
        }
        report
    }

    /// Whether what a mapping needs is in the store.
    async fn check_presence(&self, of: &Volume, mapping: &Mapping, report: &mut CheckReport) -> Result<bool> {
        report.extents += u64::from(matches!(mapping.place, Place::Frame(_)));
        let fault = self.fault_of(of, mapping).await?;
        if let Some(fault) = &fault {
            report.fault(format!("{}: {fault}", blocks_of(mapping)));
        }
        Ok(fault.is_none())
    }
}

/// The snapshots of a state, and which of them comes before which: those that are needed open.
struct Family<'a> {
    state: &'a State,
    from: &'a CheckedVolume<'a>,
    table: &'a SnapshotTable,
    by_position: BTreeMap<Seq, (String, Snapshot)>,
    positions: Vec<Seq>,
    /// The snapshots that come behind each, or behind none: several where the volume was rolled back.
    children: BTreeMap<Option<Seq>, Vec<Seq>>,
    /// Opened for the sake of a younger one, and not checked yet.
    open: BTreeMap<Seq, Arc<Volume>>,
}

impl<'a> Family<'a> {
    fn of(state: &'a State, from: &'a CheckedVolume<'a>, table: &'a SnapshotTable) -> Family<'a> {
        let snapshots = state.committed.snapshots(table);
        let by_position: BTreeMap<Seq, (String, Snapshot)> = snapshots
            .with_content()
            .map(|(name, snapshot)| (snapshot.at, (name.to_owned(), snapshot.clone())))
            .collect();
        let positions: Vec<Seq> = by_position.keys().copied().collect();
        let mut children: BTreeMap<Option<Seq>, Vec<Seq>> = BTreeMap::new();
        for at in &positions {
            children.entry(parent(&table.branches, &positions, *at)).or_default().push(*at);
        }
        Family { state, from, table, by_position, positions, children, open: BTreeMap::new() }
    }

    /// The snapshot at a position, which is checked next.
    async fn take(&mut self, at: Seq) -> Result<Arc<Volume>> {
        match self.open.remove(&at) {
            Some(open) => Ok(open),
            None => self.open_at(at).await,
        }
    }

    async fn open_at(&self, at: Seq) -> Result<Arc<Volume>> {
        let (_, snapshot) = &self.by_position[&at];
        Ok(Arc::new(self.state.at_snapshot(self.from, self.table, snapshot).await?))
    }

    /// Older snapshots with which what the volume showed at a position has versions in common, all of them: the one that comes before
    /// it, and those that come behind that one too, where the snapshot at which their ways part is gone.
    async fn before(&mut self, at: Seq) -> Result<Vec<Arc<Volume>>> {
        let branches = &self.table.branches;
        let parent = parent(branches, &self.positions, at);
        let siblings = self.children.get(&parent).into_iter().flatten().copied();
        let shares = |other: &Seq| *other < at && Some(common(branches, *other, at)) > parent;
        let needed: Vec<Seq> = parent.into_iter().chain(siblings.filter(shares)).collect();
        let mut out = Vec::new();
        for before in needed {
            let open = match self.open.get(&before) {
                Some(open) => open.clone(),
                None => self.open_at(before).await?,
            };
            self.open.insert(before, open.clone());
            out.push(open);
        }
        Ok(out)
    }
}

/// A snapshot, those before it, and the next younger state.
struct Neighbours<'a> {
    name: &'a str,
    this: &'a Volume,
    before: &'a [Arc<Volume>],
    next: &'a Volume,
}

/// Notes what a state sees in `step`, as `seen` says, where those before see something else. A version is seen by a state and
/// by some of those that come from it, so each is noted once; of a version there may be copies.
async fn account(
    this: &Volume,
    seen: &[Mapping],
    before: &[Arc<Volume>],
    step: Extent,
    accounting: &mut Accounting,
) -> Result<()> {
    let mut theirs = Vec::new();
    for state in before {
        theirs.push(state.frames.resolve(state.map.lookup(step).await?).await?);
    }
    for mapping in seen.iter().filter(|mapping| !this.frames.is_foreign(mapping)) {
        let Place::Frame(frame) = mapping.place else { continue };
        let (versions, alone) =
            (seen_first(mapping, &theirs, SameBy::Birth), seen_first(mapping, &theirs, SameBy::Place));
        accounting.note(frame.seq, SeenVersions { versions, copies: alone - versions });
    }
    Ok(())
}

/// Blocks of a mapping that are the same in none of these states.
fn seen_first(mapping: &Mapping, theirs: &[Vec<Mapping>], by: SameBy) -> u64 {
    match theirs {
        [] => mapping.extent.len,
        [one] => mapping.extent.len - blocks_in_common(mapping, one, by),
        [one, rest @ ..] => not_in(mapping, one, by).iter().map(|part| seen_first(part, rest, by)).sum(),
    }
}

/// Reads both objects of a pair: one that is damaged harms nothing as long as the other one is sound.
async fn check_copies<T: RootsObject>(
    from: &CheckedVolume<'_>,
    pair: MapPair,
    what: &str,
    report: &mut CheckReport,
) -> Result<()> {
    for id in pair.ids {
        match read_roots_object::<T>(from.store.as_ref(), from.keys, id).await {
            Ok(_) => {}
            Err(e) if e.is_damage() => report.fault(format!("{what}, one of its two copies: {e}")),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What a map may have of a volume: its blocks, and sectors that lie apart from them.
fn extents(volume: &Volume) -> [Extent; 2] {
    let blocks = Extent::new(0, volume.size_bytes().div_ceil(BLOCK_BYTES as u64));
    [blocks, sector_numbers(blocks)]
}

fn blocks_of(mapping: &Mapping) -> String {
    if are_sectors(mapping.extent) {
        return format!("sectors of block {}", sector_of(mapping.extent.start).0);
    }
    format!("blocks {} to {}", mapping.extent.start, mapping.extent.end() - 1)
}

/// Reads and verifies every live frame. What the check of the map has found missing is told once.
async fn check_data(
    from: &CheckedVolume<'_>,
    mut state: State,
    report: &mut CheckReport,
    progress: ProgressFn<'_>,
) -> Result<()> {
    for number in 0..extents(&state.volume).len() {
        state = Box::pin(check_data_in(from, state, number, report, progress)).await?;
    }
    progress(state.blocks(), state.blocks());
    Ok(())
}

/// The same of one of the [`extents`]. Gives the state that was looked at last.
async fn check_data_in(
    from: &CheckedVolume<'_>,
    mut state: State,
    number: usize,
    report: &mut CheckReport,
    progress: ProgressFn<'_>,
) -> Result<State> {
    let (mut at, mut states) = (extents(&state.volume)[number].start, 0);
    while at < extents(&state.volume)[number].end() {
        progress(at.min(state.blocks()), state.blocks());
        let step = Extent::between(at, extents(&state.volume)[number].end());
        let (end, bytes_read, faults) = read_step(&state, step).await?;
        if !faults.is_empty() && states < STATES_MAX && state.is_old(from).await? {
            (state, states) = (State::read(from).await?, states + 1);
            continue;
        }
        (at, states) = (end, 0);
        report.bytes_read += bytes_read;
        faults.into_iter().for_each(|fault| report.fault(fault));
    }
    Ok(state)
}

/// Reads what lies at the beginning of an extent. Gives where that ends, the bytes read, and what is wrong.
async fn read_step(state: &State, step: Extent) -> Result<(u64, u64, Vec<String>)> {
    let mappings = match state.volume.map.lookup_limited(step, STEP_MAPPINGS).await {
        Ok(mappings) => mappings,
        Err(e @ (Error::Corrupt { .. } | Error::NotFound(_))) => {
            return Ok((step.end(), 0, vec![format!("map behind block {}: {e}", step.start)]));
        }
        Err(e) => return Err(e),
    };
    let (mut bytes_read, mut faults) = (0, Vec::new());
    for mapping in &mappings {
        let Place::Frame(frame) = mapping.place else { continue };
        if state.fault_of(&state.volume, mapping).await?.is_some() {
            continue; // the check of the map has told
        }
        match state.volume.frames.read(std::slice::from_ref(mapping)).await {
            Ok(_) => bytes_read += u64::from(frame.stored),
            Err(e @ (Error::Corrupt { .. } | Error::NotFound(_))) => {
                faults.push(format!("{}: {e}", blocks_of(mapping)));
            }
            Err(e) => return Err(e),
        }
    }
    Ok((mappings.last().map_or(step.end(), |m| m.extent.end()), bytes_read, faults))
}

impl CheckReport {
    fn fault(&mut self, text: String) {
        if self.faults.len() < FAULTS_MAX && !self.faults.contains(&text) {
            self.faults.push(text);
        }
    }
}
