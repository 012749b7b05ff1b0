//! What snapshots hold, as it lies in the store: their table, the root of each, and the blocks and runs that the head has lost and
//! one of them sees.
//!
//! Invariants: the table is that of the position a checkpoint covers, and every snapshot in it has its root in the store; what
//! no snapshot sees any more has left these accounts with the checkpoint that says so, and is in those of space. What is held and
//! can not be read stays held for ever: nothing is deleted for damage.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::{try_join, try_join_all};

use crate::{
    Error, Result,
    damage::Damage,
    env::Env,
    log::{
        LogWriter,
        branches::Branch,
        checkpoint::{MapObject, MapPair, Retired, RetiredName},
        keys,
        roots::{
            Forward, HELD_MAX, HeldBlocks, HeldRun, LeftState, ROOTS_BYTES_MAX, RootsObject, SnapshotTable,
            decode_roots, encode_roots,
        },
        usage::Counts,
    },
    map::{Dead, Levels, MapState, SeenBy, SegmentBlocks, UsedUp},
    snapshot::Snapshots,
    space::{Space, Vacated, VacatedRound},
    store::SharedStore,
    units::{RunId, Seq},
    upkeep::{
        left::Left,
        points::CheckpointLag,
        rows::{self, HeldRows},
    },
};

/// Objects of held blocks that a checkpoint names before they are written anew as one.
const OBJECTS_MAX: usize = 16;
/// Roots that are stored at once.
const ROOTS_AT_ONCE: usize = 16;

/// The accounts of what snapshots hold.
pub struct Holdings {
    env: Env,
    store: SharedStore,
    log: LogWriter,
    damage: Arc<Damage>,
    space: Arc<Space>,
    table: SnapshotTable,
    /// As of where that is.
    as_of: Seq,
    /// The objects that hold it, if it was stored.
    stored: Option<MapPair>,
    is_changed: bool,
    /// Roots that are in no object yet.
    new_roots: BTreeMap<Seq, Arc<Levels>>,
    /// Held blocks, but for those in objects that were not read yet.
    held: HeldRows,
    /// Objects with held blocks, oldest first; and whether they were read.
    named: Vec<MapObject>,
    is_loaded: bool,
    /// What is in none of them.
    unstored: HeldRows,
    /// Rows were joined: what is held is not the sum of what is stored any more, until all of it was stored anew.
    is_joined: bool,
    /// What a rollback left and is not in the accounts yet; and whether that came into them since they were looked through.
    left: Option<Left>,
    has_left: bool,
}

/// What holdings begin with: the checkpoint's table and the objects it names.
#[derive(Clone, Default)]
pub struct StoredHoldings {
    pub table: SnapshotTable,
    pub stored: Option<MapPair>,
    pub held: Vec<MapObject>,
    /// What a rollback left that no checkpoint covers yet; the table has it.
    pub left: Option<LeftState>,
}

/// What a checkpoint names of snapshots.
pub struct NamedHoldings {
    pub table: Option<MapPair>,
    pub held: Vec<MapObject>,
}

impl Holdings {
    pub fn new(
        env: Env,
        store: SharedStore,
        log: LogWriter,
        damage: Arc<Damage>,
        space: Arc<Space>,
        from: StoredHoldings,
        as_of: Seq,
    ) -> Holdings {
        let StoredHoldings { table, stored, held: named, left } = from;
        Holdings {
            env,
            store,
            log,
            damage,
            space,
            table,
            as_of,
            stored,
            is_changed: false,
            new_roots: BTreeMap::new(),
            held: HeldRows::new(),
            is_loaded: named.is_empty(),
            named,
            unstored: HeldRows::new(),
            is_joined: false,
            left: left.map(Left::new),
            has_left: false,
        }
    }

    /// Whether there is something that a rollback left, and all segments have to be known.
    pub fn needs_segments(&self) -> bool {
        self.left.is_some()
    }

    /// What the next checkpoint names.
    pub fn named(&self) -> NamedHoldings {
        NamedHoldings { table: self.stored, held: self.named.clone() }
    }

    /// Every object under `map/` that is needed because of snapshots.
    pub fn objects(&self) -> impl Iterator<Item = RunId> + '_ {
        let runs = self.table.runs.iter().map(|held| held.run);
        let roots = self.new_roots.values().flat_map(|levels| levels.iter().flatten().map(|run| run.id));
        let pairs = self.stored.iter().chain(self.table.roots.values()).flat_map(|pair| pair.ids);
        self.named.iter().copied().chain(runs).map(|object| object.id).chain(pairs).chain(roots)
    }

    /// Whether what is needed of a segment was moved away, and the table says where to.
    pub fn is_forwarded(&self, segment: Seq) -> bool {
        self.table.forwards.iter().any(|forward| forward.from.iter().any(|(from, _)| *from == segment))
    }

    /// Where the snapshots of the next checkpoint are, ascending.
    pub fn positions(&self) -> Vec<Seq> {
        self.table.snapshots.positions()
    }

    /// The snapshots as of `covered`.
    fn snapshots(&self, lag: &CheckpointLag, covered: Seq) -> Snapshots {
        let mut snapshots = self.table.snapshots.clone();
        for (seq, size_bytes, operations) in lag.operations(self.as_of, covered) {
            operations.iter().for_each(|operation| snapshots.apply(operation, seq, size_bytes));
        }
        snapshots
    }

    /// Whether snapshots that were there are not, with these.
    fn some_went(&self, positions: &[Seq]) -> bool {
        self.table.snapshots.positions().iter().any(|at| positions.binary_search(at).is_err())
    }

    /// Reads what has to be known to take what happened up to `covered`.
    pub async fn prepare(&mut self, lag: &CheckpointLag, covered: Seq) -> Result<()> {
        if self.left.is_some() || self.some_went(&self.snapshots(lag, covered).positions()) {
            self.load().await?;
        }
        if let (Some(left), Some(branch)) = (&mut self.left, self.table.branches.last()) {
            let segments = self.space.all();
            for HeldBlocks { segment, seen_by, blocks } in
                left.blocks(&self.store, &self.log, segments, &self.held, branch.fork).await?
            {
                *self.held.entry((segment, seen_by)).or_default() += blocks;
                *self.unstored.entry((segment, seen_by)).or_default() += blocks;
            }
            (self.left, self.has_left) = (None, true);
        }
        Ok(())
    }

    /// Takes what happened up to `state.covered`, which was prepared: operations, roots, and what the head has lost. Gives the
    /// blocks that nothing needs any more; what else is not needed is told to the accounts of space.
    pub fn take(&mut self, state: &mut MapState, lag: &CheckpointLag) -> SegmentBlocks {
        self.new_roots.extend(std::mem::take(&mut state.roots));
        let mut snapshots = self.snapshots(lag, state.covered);
        // One that was removed before its table was written has no root. Whoever goes on from here meets its removal in the log,
        // and whether a bookmark is left.
        snapshots.keep_content(|at| self.table.roots.contains_key(&at) || self.new_roots.contains_key(&at));
        let positions = snapshots.positions();
        let some_went = self.some_went(&positions);
        assert!(self.is_loaded || !some_went, "what is let go of is known");
        self.is_changed |= snapshots != self.table.snapshots;
        self.table.snapshots = snapshots;
        self.new_roots.retain(|at, _| positions.binary_search(at).is_ok());
        self.leave_what_was_left(&mut state.dead);
        let mut free = std::mem::take(&mut state.dead.free);
        self.take_blocks(&mut state.dead, &positions, &mut free);
        self.as_of = state.covered;
        self.take_runs(std::mem::take(&mut state.used_up), &positions);
        if some_went || std::mem::take(&mut self.has_left) {
            self.let_go(&positions, &mut free);
        }
        free
    }

    /// What lies before a rollback is held since, as long as a snapshot sees it: nothing becomes of it by what the head loses later.
    fn leave_what_was_left(&self, dead: &mut Dead) {
        let Some(Branch { from, .. }) = self.table.branches.last() else { return };
        let all = std::iter::once(&mut dead.free).chain(dead.held.values_mut());
        for segments in all {
            let own = segments.split_off(from);
            self.space.met_gone(std::mem::replace(segments, own).values().sum());
        }
    }

    fn take_blocks(&mut self, dead: &mut Dead, positions: &[Seq], free: &mut SegmentBlocks) {
        for (seen_by, segments) in std::mem::take(&mut dead.held) {
            for (segment, blocks) in segments {
                // Of a segment that is gone what snapshots see was moved, and is accounted where it is.
                let is_there = segment > self.as_of || self.space.counts(segment);
                if is_there && seen_by.any(positions) {
                    *self.held.entry((segment, seen_by)).or_default() += blocks;
                    *self.unstored.entry((segment, seen_by)).or_default() += blocks;
                } else {
                    *free.entry(segment).or_default() += blocks;
                }
            }
        }
    }

    fn take_runs(&mut self, used_up: Vec<UsedUp>, positions: &[Seq]) {
        for UsedUp { run, until } in used_up {
            let (seen_by, run) =
                (SeenBy { first: run.since, last: until }, MapObject { id: run.id, bytes: run.bytes });
            if seen_by.any(positions) {
                self.table.runs.push(HeldRun { run, seen_by });
                self.is_changed = true;
            } else {
                self.use_up([run]);
            }
        }
    }

    /// Some snapshots went: what none of those that are left sees is let go of.
    fn let_go(&mut self, positions: &[Seq], free: &mut SegmentBlocks) {
        self.is_changed = true;
        self.held.retain(|&(segment, seen_by), blocks| {
            let is_held = seen_by.any(positions);
            if !is_held {
                *free.entry(segment).or_default() += *blocks;
            }
            is_held
        });
        self.unstored.retain(|(_, seen_by), _| seen_by.any(positions));
        let (held, free): (Vec<HeldRun>, Vec<HeldRun>) =
            self.table.runs.iter().partition(|held| held.seen_by.any(positions));
        self.table.runs = held;
        self.table.forwards.retain_mut(|forward| forward.keep_needed(positions));
        self.use_up(free.into_iter().map(|held| held.run));
        let gone: Vec<Seq> =
            self.table.roots.keys().filter(|at| positions.binary_search(at).is_err()).copied().collect();
        let roots: Vec<MapPair> = gone.iter().filter_map(|at| self.table.roots.remove(at)).collect();
        self.use_up(roots.into_iter().flat_map(MapPair::objects));
    }

    /// Takes a round of the cleaner, whose victims are retired with this checkpoint: what snapshots find in them is found where
    /// it is now. Gives what there is of that to count.
    pub fn forward(&mut self, round: VacatedRound, covered: Seq) -> BTreeMap<Seq, Counts> {
        let positions = self.table.snapshots.positions();
        let VacatedRound { from: until, segments, to, kept } = round;
        for Vacated { seq, .. } in &segments {
            let rows = (*seq, SeenBy::MIN)..=(*seq, SeenBy::MAX);
            let gone: Vec<(Seq, SeenBy)> = self.held.range(rows).map(|(row, _)| *row).collect();
            for row in gone {
                self.space.met_gone(self.held.remove(&row).unwrap_or(0));
                self.unstored.remove(&row);
            }
        }
        let from = segments.into_iter().filter_map(|vacated| Some((vacated.seq, vacated.since?))).collect();
        let mut forward = Forward { from, until, to };
        if forward.keep_needed(&positions) {
            self.table.forwards.push(forward);
            self.is_changed = true;
        }
        let mut counts: BTreeMap<Seq, Counts> = BTreeMap::new();
        for HeldBlocks { segment, seen_by, blocks } in kept {
            let mut added = Counts { written_blocks: blocks, touched: covered, ..Counts::default() };
            if seen_by.any(&positions) {
                *self.held.entry((segment, seen_by)).or_default() += blocks;
                *self.unstored.entry((segment, seen_by)).or_default() += blocks;
            } else {
                added.dead_blocks = blocks;
            }
            counts.entry(segment).or_default().add(&added);
        }
        counts
    }

    fn use_up(&self, objects: impl IntoIterator<Item = MapObject>) {
        let retired = |object: MapObject| Retired { name: RetiredName::Map(object.id), bytes: object.bytes };
        self.space.use_up(objects.into_iter().map(retired));
    }

    /// Reads what is held, unless that was done. What no snapshot sees was counted as free when that came about.
    async fn load(&mut self) -> Result<()> {
        if self.is_loaded {
            return Ok(());
        }
        let positions = self.table.snapshots.positions();
        let (mut held, mut is_joined) = (self.unstored.clone(), false);
        for object in &self.named {
            is_joined |= rows::bound(&mut held, &positions);
            match self.read(object.id).await {
                Ok(blocks) => {
                    for HeldBlocks { segment, seen_by, blocks } in blocks {
                        if seen_by.any(&positions) && self.space.counts(segment) {
                            *held.entry((segment, seen_by)).or_default() += blocks;
                        }
                    }
                }
                Err(e) if e.is_damage() => {}
                Err(e) => return Err(e),
            }
        }
        (self.held, self.is_loaded) = (held, true);
        self.is_joined |= is_joined;
        Ok(())
    }

    async fn read(&self, id: RunId) -> Result<Vec<HeldBlocks>> {
        let (keys, name) = (self.log.keys(), keys::run(id));
        let read = || async {
            let body = self.store.get(&name, ROOTS_BYTES_MAX).await?;
            decode_roots(keys.key.as_deref(), keys.volume, id, &body)
        };
        self.damage.read_twice(&name, ROOTS_BYTES_MAX, self.env.now(), read).await
    }

    /// Stores what is not stored yet.
    pub async fn store(&mut self) -> Result<()> {
        while !self.new_roots.is_empty() {
            let some = self.new_roots.iter().take(ROOTS_AT_ONCE);
            let put =
                some.map(|(at, levels)| async { Ok::<_, Error>((*at, self.put_twice(&**levels).await?)) });
            for (at, root) in try_join_all(put).await? {
                self.table.roots.insert(at, root);
                self.new_roots.remove(&at);
            }
            self.is_changed = true;
        }
        if !self.unstored.is_empty() || self.is_joined {
            self.store_held().await?;
        }
        if self.is_changed {
            let table = match self.table == SnapshotTable::default() {
                true => None,
                false => Some(self.put_twice(&self.table).await?),
            };
            let before = std::mem::replace(&mut self.stored, table);
            self.use_up(before.into_iter().flat_map(MapPair::objects));
            self.is_changed = false;
            let forwarded = self.table.forwards.iter().map(|forward| forward.from.len()).sum();
            self.space.set_roots(self.table.roots.clone(), forwarded);
        }
        Ok(())
    }

    async fn store_held(&mut self) -> Result<()> {
        if self.named.len() >= OBJECTS_MAX || rows::are_too_many(&self.held) {
            self.load().await?;
        }
        if self.is_loaded {
            self.is_joined |= rows::bound(&mut self.held, &self.table.snapshots.positions());
        }
        let entry =
            |(&(segment, seen_by), &blocks): (&(Seq, SeenBy), &u64)| HeldBlocks { segment, seen_by, blocks };
        let all = self.is_joined || self.named.len() >= OBJECTS_MAX + self.held.len().div_ceil(HELD_MAX);
        let entries: Vec<HeldBlocks> = match all {
            true => self.held.iter().map(entry).collect(),
            false => self.unstored.iter().map(entry).collect(),
        };
        let mut stored = Vec::new();
        for part in entries.chunks(HELD_MAX) {
            stored.push(self.put(&part.to_vec()).await?);
        }
        if all {
            let before = std::mem::take(&mut self.named);
            self.use_up(before);
        }
        self.named.extend(stored);
        self.unstored.clear();
        self.is_joined = false;
        Ok(())
    }

    async fn put_twice<T: RootsObject>(&self, content: &T) -> Result<MapPair> {
        let (first, second) = try_join(self.put(content), self.put(content)).await?;
        debug_assert_eq!(first.bytes, second.bytes, "the content is the same");
        Ok(MapPair { ids: [first.id, second.id], bytes: first.bytes })
    }

    async fn put<T: RootsObject>(&self, content: &T) -> Result<MapObject> {
        let (keys, id) = (self.log.keys(), RunId(self.env.uuid()));
        let body = encode_roots(keys.key.as_deref(), keys.volume, id, content);
        debug_assert!(!matches!(body, Err(Error::Invalid(_))), "what is composed is read: {body:?}");
        let body = body?;
        let bytes = body.len() as u64;
        self.log.put_unique(&keys::run(id), body).await?;
        self.space.stored(bytes);
        Ok(MapObject { id, bytes })
    }
}
