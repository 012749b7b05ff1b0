//! Between the commits and the maintenance behind them: places at which the memory table was frozen, and what
//! was committed since the newest checkpoint.
//!
//! Commits never wait for a checkpoint: while one point waits no table is frozen, and the memory table goes on
//! growing, where overwritten mappings cost nothing. They wait only when memory is at its bound.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{Notify, mpsc};

use crate::{
    log::NewEntry,
    map::Map,
    rank::{Locked, Rank, Ranked},
    snapshot::{Operation, Snapshots},
    space::Space,
    units::{Chain, JournalPos, Mark, Seq},
};

/// Segments after which the memory table becomes a run and a checkpoint is written, so that an opening
/// after a crash reads at most about this many footers.
pub const SEGMENTS_PER_CHECKPOINT: u64 = 48;
/// The same where the cleaner has work, or would have if as much has died as was written since: then what died must become
/// known. A part of all segments, and at least a few. And when as large a part was vacated and waits for a checkpoint.
const SEGMENTS_PART: u64 = 20;
const SEGMENTS_MIN: u64 = 4;
/// Mappings in the memory table at which it becomes a run earlier.
const TABLE_MAPPINGS_MAX: usize = 400_000;
/// Points that may wait, beside the one whose checkpoint is being written. One, so that the next
/// checkpoint can begin when that ends.
const POINTS_MAX: usize = 1;
/// Mappings in the memory table and the frozen ones at which commits wait: 160 MB at most. With a store that
/// takes segments and refuses runs that is 8 GiB of scattered blocks, and any amount of writes to fewer.
const TABLES_MAPPINGS_MAX: usize = 2_000_000;
/// Mappings of the segments behind the newest checkpoint, overwritten ones included, at which commits wait:
/// an opening after a crash has all of them in memory.
const UNCOVERED_MAPPINGS_MAX: u64 = 8_000_000;

/// A place in the history at which the memory table was frozen.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub covered: Seq,
    pub journal_pos: JournalPos,
    pub journal_chain: Chain,
    pub size_bytes: u64,
}

/// What a committed segment adds to the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Bytes of the object.
    pub stored_bytes: u64,
    /// Blocks of data in it that the volume sees.
    pub data_blocks: u64,
    pub mappings: u64,
}

impl SegmentCounts {
    fn of(entry: &NewEntry) -> SegmentCounts {
        let sealed = entry.sealed();
        SegmentCounts {
            stored_bytes: sealed.body.len() as u64,
            data_blocks: entry.data_blocks(),
            mappings: sealed.mappings.len() as u64,
        }
    }
}

/// What the log has behind a checkpoint, and what snapshots there are with it.
#[derive(Default)]
pub struct Behind {
    pub segments: BTreeMap<Seq, SegmentCounts>,
    pub operations: Vec<Operated>,
    pub snapshots: Snapshots,
}

/// Operations on snapshots that one entry carried, and the size of the volume there.
pub type Operated = (Seq, u64, Vec<Operation>);

/// What was committed and is in no checkpoint yet.
pub struct CheckpointLag {
    state: Ranked<State>,
    /// Memory may have become free.
    advanced: Notify,
}

struct State {
    /// The newest commit, frozen or not; at first the claim.
    newest: Point,
    segments: BTreeMap<Seq, SegmentCounts>,
    /// The sum over `segments`.
    mappings: u64,
    operations: Vec<Operated>,
    /// As of the newest commit.
    snapshots: Snapshots,
    /// Segments behind the newest point at which the table was frozen.
    since_frozen: u64,
    /// A checkpoint is asked for, sooner than it would be due.
    requested: bool,
    /// The newest point at which the table was frozen. Its checkpoint may be in the store before this is noted.
    frozen: Seq,
    /// What the newest checkpoint of this process covers.
    covered: Seq,
}

impl State {
    /// Whether a checkpoint is on its way.
    fn is_outstanding(&self) -> bool {
        self.frozen > self.covered
    }
}

impl CheckpointLag {
    pub fn new(newest: Point, behind: Behind) -> Arc<CheckpointLag> {
        let Behind { segments, operations, snapshots } = behind;
        let mappings = segments.values().map(|counts| counts.mappings).sum();
        Arc::new(CheckpointLag {
            state: Ranked::new(
                Rank::Flow,
                State {
                    newest,
                    since_frozen: segments.len() as u64,
                    segments,
                    mappings,
                    requested: false,
                    operations,
                    snapshots,
                    frozen: Seq(0),
                    covered: Seq(0),
                },
            ),
            advanced: Notify::new(),
        })
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    pub fn newest(&self) -> Point {
        self.state().newest
    }

    /// The segments behind `after`, up to `covered`.
    pub fn written(&self, after: Seq, covered: Seq) -> Vec<(Seq, SegmentCounts)> {
        let state = self.state();
        let behind = state.segments.range(after.next()..).take_while(|(seq, _)| **seq <= covered);
        behind.map(|(seq, counts)| (*seq, *counts)).collect()
    }

    /// The operations on snapshots behind `after`, up to `covered`.
    pub fn operations(&self, after: Seq, covered: Seq) -> Vec<Operated> {
        let state = self.state();
        let within = |(seq, _, _): &&Operated| *seq > after && *seq <= covered;
        state.operations.iter().filter(within).cloned().collect()
    }

    /// The snapshots as of the newest commit.
    pub fn snapshots(&self) -> Snapshots {
        self.state().snapshots.clone()
    }

    /// The next commit is to be followed by a checkpoint.
    pub fn request_checkpoint(&self) {
        self.state().requested = true;
    }

    /// Whether one is on its way.
    pub fn is_checkpoint_outstanding(&self) -> bool {
        self.state().is_outstanding()
    }

    /// Segments behind the newest checkpoint that brought something.
    pub fn uncovered_by_writes(&self) -> usize {
        let state = self.state();
        state.segments.values().filter(|counts| counts.mappings > 0).count() + state.operations.len()
    }

    /// The table was frozen at a point whose checkpoint is on its way, or there already.
    fn frozen(&self, point: Seq) {
        let mut state = self.state();
        (state.since_frozen, state.requested) = (0, false);
        state.frozen = point;
    }

    /// A checkpoint covers everything up to here.
    pub fn covered(&self, covered: Seq) {
        let mut state = self.state();
        state.segments = state.segments.split_off(&covered.next());
        state.operations.retain(|(seq, _, _)| *seq > covered);
        state.covered = state.covered.max(covered);
        state.mappings = state.segments.values().map(|counts| counts.mappings).sum();
        drop(state);
        self.advanced.notify_one();
    }

    /// A frozen table has become runs.
    pub fn flushed(&self) {
        self.advanced.notify_one();
    }

    /// A point waits no more: another one may.
    pub fn point_taken(&self) {
        self.advanced.notify_one();
    }

    fn frozen_to(&self) -> Seq {
        self.state().frozen
    }
}

/// The commits' end: where it is said what was committed, in order and before the next one.
pub struct Points {
    send: mpsc::Sender<Point>,
    progress: Arc<CheckpointLag>,
    space: Arc<Space>,
}

impl Points {
    pub fn new(progress: Arc<CheckpointLag>, space: Arc<Space>) -> (Points, mpsc::Receiver<Point>) {
        let (send, receive) = mpsc::channel(POINTS_MAX);
        (Points { send, progress, space }, receive)
    }

    fn segments_per_checkpoint(&self) -> u64 {
        match self.space.may_exceed() {
            true => (self.space.segments() / SEGMENTS_PART).clamp(SEGMENTS_MIN, SEGMENTS_PER_CHECKPOINT),
            false => SEGMENTS_PER_CHECKPOINT,
        }
    }

    /// Whether so much was vacated that it is worth a checkpoint, which retires it.
    fn is_room_to_gain(&self) -> bool {
        let (vacated, others) = self.space.vacated_and_others();
        vacated > 0 && vacated * SEGMENTS_PART >= others
    }

    /// An entry was committed and is in the map's memory table.
    pub fn committed(&self, seq: Seq, entry: &NewEntry, map: &Map) {
        let mut point = Point { covered: seq, ..self.progress.newest() };
        if let NewEntry::Segment(segment) = entry {
            let Mark { pos, chain } = segment.range.to;
            (point.journal_pos, point.journal_chain) = (pos, chain);
            point.size_bytes = segment.size_bytes;
        }
        self.note(point, SegmentCounts::of(entry));
        if self.operate(point, &entry.sealed().operations, map) {
            return;
        }
        let (after, is_room_to_gain) = (self.segments_per_checkpoint(), self.is_room_to_gain());
        let is_due = {
            let state = self.progress.state();
            state.requested || state.since_frozen >= after || is_room_to_gain
        };
        if is_due || map.table_len() >= TABLE_MAPPINGS_MAX {
            self.try_freeze(map, point);
        }
    }

    /// Takes operations on snapshots. Where one makes a snapshot, the table is frozen, whatever waits: with what is behind it nobody
    /// could tell any more what was there. True when it was.
    fn operate(&self, point: Point, operations: &[Operation], map: &Map) -> bool {
        if operations.is_empty() {
            return false;
        }
        let (seq, size_bytes) = (point.covered, point.size_bytes);
        let (positions, oldest_bookmark) = {
            let mut state = self.progress.state();
            operations.iter().for_each(|operation| state.snapshots.apply(operation, seq, size_bytes));
            state.operations.push((seq, size_bytes, operations.to_vec()));
            (state.snapshots.positions(), state.snapshots.oldest_bookmark())
        };
        self.space.set_snapshots(positions.clone());
        map.set_snapshots(positions);
        map.set_oldest_bookmark(oldest_bookmark);
        let makes = operations.iter().any(Operation::makes);
        if makes && !self.try_freeze(map, point) {
            map.freeze(seq);
        }
        makes
    }

    fn note(&self, point: Point, counts: SegmentCounts) {
        let mut state = self.progress.state();
        debug_assert!(point.covered > state.newest.covered, "entries are committed in order");
        state.newest = point;
        state.segments.insert(point.covered, counts);
        state.mappings += counts.mappings;
        state.since_frozen += 1;
    }

    /// Freezes the memory table at `point`, unless a point waits already; whether it did.
    fn try_freeze(&self, map: &Map, point: Point) -> bool {
        let Ok(place) = self.send.try_reserve() else { return false };
        map.freeze(point.covered);
        place.send(point);
        self.progress.frozen(point.covered);
        true
    }

    /// Returns once memory has room for another segment's mappings. Points come with commits, which wait here: so what came behind the
    /// newest point is frozen here as soon as a point may wait again, and leaves memory like everything before it.
    pub async fn room(&self, map: &Map) {
        let is_full = || {
            let uncovered = self.progress.state().mappings;
            map.tables_len() >= TABLES_MAPPINGS_MAX || uncovered >= UNCOVERED_MAPPINGS_MAX
        };
        if !is_full() {
            return;
        }
        tracing::warn!("commits wait: the store does not take what the map has in memory");
        while is_full() {
            let newest = self.progress.newest();
            if newest.covered > self.progress.frozen_to() {
                self.try_freeze(map, newest);
            }
            self.progress.advanced.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, pin::pin, time::Duration};

    use bytes::Bytes;
    use futures_util::poll;

    use super::*;
    use crate::{
        Result,
        env::real::RealEnv,
        map::{Levels, MapOptions, RunIo, RunMeta},
        space::Start,
        units::{Extent, Mapping, Place, RunId, VolumeId},
    };

    fn point(seq: u64) -> Point {
        Point {
            covered: Seq(seq),
            journal_pos: JournalPos(seq),
            journal_chain: Chain::default(),
            size_bytes: 0,
        }
    }

    /// A checkpoint that was in the store before it was noted that its table was frozen is not waited for: whoever wants one
    /// behind it would wait for ever.
    #[test]
    fn a_checkpoint_may_overtake_its_point() {
        let progress = CheckpointLag::new(point(0), Behind::default());
        progress.frozen(Seq(5));
        assert!(progress.is_checkpoint_outstanding());
        progress.covered(Seq(5));
        assert!(!progress.is_checkpoint_outstanding());
        progress.covered(Seq(7));
        progress.frozen(Seq(7));
        assert!(!progress.is_checkpoint_outstanding());
        progress.frozen(Seq(9));
        assert!(progress.is_checkpoint_outstanding());
    }

    /// A map without runs, in a store that takes everything.
    fn map() -> Arc<Map> {
        struct Anywhere;
        #[async_trait::async_trait]
        impl RunIo for Anywhere {
            async fn read(&self, _: &RunMeta, _: Range<u64>) -> Result<Bytes> {
                unreachable!("nothing is looked up")
            }
            async fn write(&self, _: RunId, _: Bytes) -> Result<()> {
                Ok(())
            }
        }
        let volume = VolumeId(uuid::Uuid::from_u128(7));
        let options = MapOptions::default();
        Map::new(RealEnv::start(), Arc::new(Anywhere), None, volume, options, Levels::new(), Seq(0))
    }

    /// Inserts so many mappings, none of which can be joined with another.
    fn insert(map: &Map, seq: u64, count: usize) {
        let zero = |n| Mapping { extent: Extent::new(2 * n, 1), birth: Seq(seq), place: Place::Zero };
        map.insert(&(0..count as u64).map(zero).collect::<Vec<_>>());
    }

    fn counts(mappings: u64) -> SegmentCounts {
        SegmentCounts { data_blocks: 5, stored_bytes: 9, mappings }
    }

    async fn flush(map: &Map, progress: &CheckpointLag, covered: u64) {
        while map.covered() < Seq(covered) {
            map.flush_to(Seq(covered)).await.expect("flushed");
            progress.flushed();
        }
    }

    /// The store took segments and refused the map while a small point was being written and another one waited; then memory filled up.
    /// When the store takes the map again, what came behind these points leaves memory as well, and commits go on.
    #[tokio::test]
    async fn what_fills_memory_is_frozen_though_no_commit_comes() {
        let progress = CheckpointLag::new(point(0), Behind::default());
        let space = Space::new(Start::at(Seq(0)), Duration::ZERO);
        let (points, mut frozen) = Points::new(progress.clone(), Arc::new(space));
        let map = map();
        for seq in [1, 2] {
            insert(&map, seq, 1);
            points.note(point(seq), counts(1));
            assert!(points.try_freeze(&map, point(seq)));
            if seq == 1 {
                assert_eq!(frozen.recv().await.expect("a point").covered, Seq(1));
            }
        }
        insert(&map, 3, TABLES_MAPPINGS_MAX);
        points.note(point(3), counts(TABLES_MAPPINGS_MAX as u64));
        assert!(!points.try_freeze(&map, point(3)), "one waits already");
        let mut waiting = pin!(points.room(&map));
        assert!(poll!(&mut waiting).is_pending());
        for seq in [1, 2] {
            flush(&map, &progress, seq).await;
            progress.covered(Seq(seq));
            assert!(poll!(&mut waiting).is_pending(), "what fills memory is still there");
            let next = frozen.try_recv().expect("another point waits");
            assert_eq!(next.covered, Seq(seq + 1));
            progress.point_taken();
        }
        flush(&map, &progress, 3).await;
        assert!(poll!(&mut waiting).is_ready());
    }

    /// Commits wait at either bound of memory and nowhere else, and go on when a flush or a checkpoint has
    /// made room.
    #[tokio::test]
    async fn commits_wait_for_memory_only() {
        let progress = CheckpointLag::new(point(0), Behind::default());
        let space = Space::new(Start::at(Seq(0)), Duration::ZERO);
        let (points, _nobody_takes_them) = Points::new(progress.clone(), Arc::new(space));
        let map = map();
        for seq in 1..=1000 {
            points.note(point(seq), counts(4000));
            assert!(poll!(pin!(points.room(&map))).is_ready());
        }
        insert(&map, 1000, TABLES_MAPPINGS_MAX);
        {
            let mut waiting = pin!(points.room(&map));
            assert!(poll!(&mut waiting).is_pending());
            flush(&map, &progress, 1000).await;
            assert!(poll!(&mut waiting).is_ready());
        }
        points.note(point(1001), counts(UNCOVERED_MAPPINGS_MAX));
        let mut waiting = pin!(points.room(&map));
        assert!(poll!(&mut waiting).is_pending());
        progress.covered(Seq(1000));
        assert!(poll!(&mut waiting).is_pending());
        assert_eq!(
            progress.written(Seq(1000), Seq(1001)),
            [(
                Seq(1001),
                SegmentCounts { stored_bytes: 9, data_blocks: 5, mappings: UNCOVERED_MAPPINGS_MAX }
            )]
        );
        assert_eq!(progress.written(Seq(1001), Seq(1001)), []);
        progress.covered(Seq(1001));
        assert!(poll!(&mut waiting).is_ready());
    }
}
