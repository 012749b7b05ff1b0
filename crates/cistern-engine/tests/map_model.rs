//! The map against plain memory: whatever is inserted, frozen, flushed, merged and reopened, every
//! block is what was last written to it, and every block of every segment is accounted for.

mod map_support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cistern_engine::{
    codec::MasterKey,
    env::Env,
    map::{Levels, Map, MapOptions, SeenBy, UsedUp, check_levels},
    units::{Extent, FrameRef, Mapping, Place, Seq},
};
use map_support::*;
use proptest::prelude::*;

/// Blocks of the modelled device. Small, so that everything overlaps.
const BLOCKS: u64 = 1000;

#[derive(Clone, Debug)]
enum Op {
    /// One segment: its mappings as (start, blocks, kind).
    Insert(Vec<(u64, u64, Kind)>),
    TrimAll,
    /// The mover looks at a range, and later offers what it found there in a segment of its own.
    Look(u64, u64),
    Move,
    Freeze,
    /// A snapshot, where the table was not frozen already; and one of them goes.
    Snapshot,
    RemoveSnapshot(prop::sample::Index),
    Flush,
    Merge,
    Lookup(u64, u64),
    LookupLimited(u64, usize),
    /// Extents by their distances and lengths.
    LookupEach(Vec<(u64, u64)>),
    /// Take the state and go on, as a checkpoint does.
    Checkpoint,
    /// Lose the memory and open from the last checkpoint.
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Frame { index: u8 },
    Hole,
    Zero,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kind = prop_oneof![
        6 => (0u8..16).prop_map(|index| Kind::Frame { index }),
        1 => Just(Kind::Hole),
        1 => Just(Kind::Zero),
    ];
    let write = (0..BLOCKS, prop_oneof![Just(1u64), 1u64..40], kind);
    let op = prop_oneof![
        8 => prop::collection::vec(write, 1..30).prop_map(Op::Insert),
        1 => Just(Op::TrimAll),
        4 => (0..BLOCKS, 1..BLOCKS / 4).prop_map(|(start, len)| Op::Look(start, len)),
        4 => Just(Op::Move),
        4 => Just(Op::Freeze),
        3 => Just(Op::Snapshot),
        1 => any::<prop::sample::Index>().prop_map(Op::RemoveSnapshot),
        4 => Just(Op::Flush),
        6 => Just(Op::Merge),
        3 => (0..BLOCKS, 1..BLOCKS).prop_map(|(start, len)| Op::Lookup(start, len)),
        2 => (0..BLOCKS, 1usize..20).prop_map(|(start, count)| Op::LookupLimited(start, count)),
        2 => prop::collection::vec((0..BLOCKS / 8, 1..BLOCKS / 16), 0..20).prop_map(Op::LookupEach),
        2 => Just(Op::Checkpoint),
        1 => Just(Op::Reopen),
    ];
    prop::collection::vec(op, 1..80)
}

/// The device as an array, and what a checkpoint has to remember.
struct Model {
    blocks: Vec<(Seq, Place)>,
    seq: u64,
    /// Every segment's mappings: the log. What was moved, with the mover's base.
    log: BTreeMap<u64, (Option<Seq>, Vec<Mapping>)>,
    /// What the mover found, and up to where it knew the log.
    looked: (Seq, Vec<Mapping>),
    /// Blocks that were replaced when what was moved came to its segment.
    late: BTreeSet<(u64, Seq)>,
    checkpoint: (Levels, Seq),
    /// Dead blocks per segment as of the checkpoint; and those that snapshots saw when they were dropped.
    dead: BTreeMap<Seq, u64>,
    held: Vec<(SeenBy, Seq, u64)>,
    used_up: Vec<UsedUp>,
    snapshots: BTreeMap<Seq, Taken>,
    /// Where the table was frozen last.
    frozen: Seq,
}

/// A snapshot: what it must show, and the root that a checkpoint had for it.
struct Taken {
    blocks: Vec<(Seq, Place)>,
    root: Option<Levels>,
}

impl Model {
    fn new() -> Model {
        Model {
            blocks: vec![(Seq(0), Place::Hole); BLOCKS as usize],
            seq: 0,
            log: BTreeMap::new(),
            looked: (Seq(0), Vec::new()),
            late: BTreeSet::new(),
            checkpoint: (Levels::new(), Seq(0)),
            dead: BTreeMap::new(),
            held: Vec::new(),
            used_up: Vec::new(),
            snapshots: BTreeMap::new(),
            frozen: Seq(0),
        }
    }

    fn positions(&self) -> Vec<Seq> {
        self.snapshots.keys().copied().collect()
    }

    /// Every block of every segment up to `covered`, by its place.
    fn places(&self, covered: Seq) -> BTreeSet<(u64, Seq, FramePlace)> {
        places(self.log.range(..=covered.0).flat_map(|(_, (_, batch))| batch))
    }

    fn segment(&mut self, writes: &[(u64, u64, Kind)]) -> Vec<Mapping> {
        self.seq += 1;
        let seq = Seq(self.seq);
        let mut out = Vec::new();
        for (n, &(start, len, kind)) in writes.iter().enumerate() {
            let (len, place) = match kind {
                Kind::Hole => (len, Place::Hole),
                Kind::Zero => (len, Place::Zero),
                Kind::Frame { index } => {
                    let f = FrameRef { seq, offset: 100 + n as u32 * 70_000, stored: 30 + n as u32, index };
                    (len.min(16 - u64::from(index)), Place::Frame(f))
                }
            };
            let extent = Extent::between(start, (start + len).min(BLOCKS));
            out.push(Mapping { extent, birth: seq, place });
        }
        for m in &out {
            let at = m.extent.start as usize;
            for (i, value) in by_block(&[*m]).into_iter().enumerate() {
                self.blocks[at + i] = value;
            }
        }
        self.log.insert(self.seq, (None, out.clone()));
        out
    }

    /// The segment that moves what was found when the mover looked.
    fn moved(&mut self) -> (Vec<Mapping>, Seq) {
        self.seq += 1;
        let (base, found) = self.looked.clone();
        let mut out = Vec::new();
        for (n, m) in found.into_iter().enumerate() {
            let Place::Frame(f) = m.place else { continue };
            let offset = 50 + n as u32 * 70_000;
            let place = Place::Frame(FrameRef { seq: Seq(self.seq), offset, ..f });
            out.push(Mapping { place, ..m });
        }
        for m in &out {
            for (i, value) in by_block(&[*m]).into_iter().enumerate() {
                let block = &mut self.blocks[m.extent.start as usize + i];
                if block.0 == m.birth {
                    *block = value;
                } else {
                    self.late.insert((m.extent.start + i as u64, Seq(self.seq)));
                }
            }
        }
        self.log.insert(self.seq, (Some(base), out.clone()));
        (out, base)
    }

    /// Whether snapshots hold what was dropped from a place: one shows its version and is older than the next place of that. Of
    /// what came too late it is not known how long it was there.
    fn holds(&self, (block, seq, frame): (u64, Seq, FramePlace)) -> bool {
        let placed = |(&at, (_, batch)): (&u64, &(_, Vec<Mapping>))| {
            let of_block = |m: &&Mapping| m.extent.start <= block && block < m.extent.end();
            let found = batch.iter().rev().find(of_block)?.slice(Extent::new(block, 1));
            let Place::Frame(f) = found.place else { return None };
            Some((Seq(at), found.birth, (f.offset, f.index)))
        };
        let Some((_, birth, last)) = placed(self.log.get_key_value(&seq.0).unwrap()) else { return false };
        if last != frame {
            return false; // the segment itself has something newer
        }
        if self.late.contains(&(block, seq)) {
            return self.snapshots.range(birth..seq).next().is_some();
        }
        let mut moved = self.log.range(seq.0 + 1..).filter_map(placed);
        let next = moved.find(|&(at, born, _)| born == birth && !self.late.contains(&(block, at)));
        let until = next.map_or(Seq(u64::MAX), |(at, _, _)| at);
        self.snapshots.range(birth..until).any(|(_, taken)| taken.blocks[block as usize].0 == birth)
    }

    fn written(&self, covered: Seq) -> BTreeMap<Seq, u64> {
        let mut out = BTreeMap::new();
        for m in self.log.range(..=covered.0).flat_map(|(_, (_, batch))| batch) {
            if let Place::Frame(f) = m.place {
                *out.entry(f.seq).or_default() += m.extent.len;
            }
        }
        out
    }
}

/// Offset and index of a block's frame.
type FramePlace = (u32, u8);

/// Blocks with their segments and places in them.
fn places<'a>(mappings: impl IntoIterator<Item = &'a Mapping>) -> BTreeSet<(u64, Seq, FramePlace)> {
    let mut out = BTreeSet::new();
    for m in mappings {
        for (block, (_, place)) in (m.extent.start..).zip(by_block(&[*m])) {
            if let Place::Frame(f) = place {
                out.insert((block, f.seq, (f.offset, f.index)));
            }
        }
    }
    out
}

/// What each level has by itself: what is not dropped.
async fn alive(
    env: &Env,
    io: &Arc<MemoryRuns>,
    key: Option<Arc<MasterKey>>,
    levels: &Levels,
) -> BTreeSet<(u64, Seq, FramePlace)> {
    let mut out = BTreeSet::new();
    for level in levels {
        let map = open_map(env, io, key.clone(), MapOptions::default(), vec![level.clone()], Seq(0));
        out.extend(places(&map.lookup(Extent::new(0, BLOCKS)).await.unwrap()));
    }
    out
}

fn by_segment(places: &BTreeSet<(u64, Seq, FramePlace)>) -> BTreeMap<Seq, u64> {
    let mut out = BTreeMap::new();
    places.iter().for_each(|(_, seq, _)| *out.entry(*seq).or_default() += 1);
    out
}

/// Every snapshot with a root shows what it must; what the head dropped is held if and only if one of them shows it; and a run
/// that was used up is in the root of one if and only if its interval says so.
async fn check_snapshots(
    env: &Env,
    io: &Arc<MemoryRuns>,
    key: Option<Arc<MasterKey>>,
    model: &Model,
    covered: Seq,
    dropped: &BTreeSet<(u64, Seq, FramePlace)>,
) -> Result<(), TestCaseError> {
    let mut roots = BTreeSet::new();
    for (&at, taken) in model.snapshots.range(..=covered) {
        let root = taken.root.clone().expect("a checkpoint that covers it has its root");
        check_levels(&root).unwrap();
        roots.extend(root.iter().flatten().map(|run| run.id));
        let map = open_map(env, io, key.clone(), MapOptions::default(), root, at);
        let found = map.lookup(Extent::new(0, BLOCKS)).await.unwrap();
        prop_assert_eq!(&by_block(&found), &taken.blocks);
    }
    let positions = model.positions();
    let mut held: BTreeMap<Seq, u64> = BTreeMap::new();
    for (seen_by, seq, blocks) in &model.held {
        if seen_by.any(&positions) {
            *held.entry(*seq).or_default() += blocks;
        }
    }
    let is_held = |place: &&(u64, Seq, FramePlace)| model.holds(**place);
    prop_assert_eq!(held, by_segment(&dropped.iter().filter(is_held).copied().collect()));
    for UsedUp { run, until } in &model.used_up {
        let seen_by = SeenBy { first: run.since, last: *until };
        prop_assert_eq!(seen_by.any(&positions), roots.contains(&run.id));
    }
    Ok(())
}

async fn check(model: &Model, map: &Map, extent: Extent) -> Result<(), TestCaseError> {
    let found = map.lookup(extent).await.unwrap();
    prop_assert_eq!(found.first().map(|m| m.extent.start), Some(extent.start));
    for pair in found.windows(2) {
        prop_assert_eq!(pair[0].extent.end(), pair[1].extent.start);
    }
    let expected = &model.blocks[extent.start as usize..extent.end() as usize];
    prop_assert_eq!(&by_block(&found)[..], expected);
    Ok(())
}

async fn run(ops: Vec<Op>, encrypted: bool, options: MapOptions) -> Result<(), TestCaseError> {
    let env = plain_env();
    let key = encrypted.then(|| Arc::new(MasterKey::generate(&env)));
    let io = Arc::new(MemoryRuns::default());
    let mut model = Model::new();
    let mut map = open_map(&env, &io, key.clone(), options.clone(), Levels::new(), Seq(0));
    for op in ops {
        match op {
            Op::Insert(writes) => map.insert(&model.segment(&writes)),
            Op::TrimAll => map.insert(&model.segment(&[(0, BLOCKS, Kind::Hole)])),
            Op::Look(start, len) => {
                let extent = Extent::between(start, (start + len).min(BLOCKS));
                model.looked = (Seq(model.seq), map.lookup(extent).await.unwrap());
            }
            Op::Move => {
                let (batch, base) = model.moved();
                map.insert_moved(&batch, base).await.unwrap();
            }
            Op::Freeze => {
                model.frozen = Seq(model.seq);
                map.freeze(model.frozen);
            }
            Op::Snapshot => {
                let at = Seq(model.seq);
                if at > model.frozen {
                    model.snapshots.insert(at, Taken { blocks: model.blocks.clone(), root: None });
                    map.set_snapshots(model.positions());
                    map.freeze(at);
                    model.frozen = at;
                }
            }
            Op::RemoveSnapshot(which) => {
                if !model.snapshots.is_empty() {
                    let at = *which.get(&model.positions());
                    model.snapshots.remove(&at);
                    map.set_snapshots(model.positions());
                }
            }
            Op::Flush => {
                map.flush().await.unwrap();
            }
            Op::Merge => {
                map.merge_step().await.unwrap();
            }
            Op::Lookup(start, len) => {
                check(&model, &map, Extent::between(start, (start + len).min(BLOCKS))).await?;
            }
            Op::LookupLimited(start, count) => {
                let found = map.lookup_limited(Extent::between(start, BLOCKS), count).await.unwrap();
                prop_assert!(!found.is_empty() && found.len() <= count);
                let seen = by_block(&found);
                prop_assert_eq!(&seen[..], &model.blocks[start as usize..start as usize + seen.len()]);
            }
            Op::LookupEach(distances) => {
                let mut end = 0;
                let after = |(gap, len): (u64, u64)| {
                    let extent = Extent::between((end + gap).min(BLOCKS), (end + gap + len).min(BLOCKS));
                    end = extent.end();
                    extent
                };
                let extents: Vec<Extent> =
                    distances.into_iter().map(after).filter(|extent| !extent.is_empty()).collect();
                let mut found = map.lookup_each(&extents).await.unwrap().into_iter();
                for extent in extents {
                    let mut at = extent.start;
                    while at < extent.end() {
                        let part = found.next().expect("all of it is told");
                        prop_assert!(part.extent.start == at && part.extent.end() <= extent.end());
                        at = part.extent.end();
                        let blocks = part.extent.start as usize..part.extent.end() as usize;
                        prop_assert_eq!(&by_block(&[part])[..], &model.blocks[blocks]);
                    }
                }
                prop_assert_eq!(found.next(), None);
            }
            Op::Checkpoint => {
                let state = map.take_state();
                check_levels(&state.levels).unwrap();
                for (seq, blocks) in state.dead.free {
                    *model.dead.entry(seq).or_default() += blocks;
                }
                for (seen_by, blocks) in state.dead.held {
                    model.held.extend(blocks.into_iter().map(|(seq, blocks)| (seen_by, seq, blocks)));
                }
                model.used_up.extend(state.used_up);
                for (at, root) in state.roots {
                    if let Some(taken) = model.snapshots.get_mut(&at) {
                        taken.root = Some(Levels::clone(&root));
                    }
                }
                let alive = alive(&env, &io, key.clone(), &state.levels).await;
                let mut accounted = by_segment(&alive);
                for (&seq, &blocks) in &model.dead {
                    *accounted.entry(seq).or_default() += blocks;
                }
                for (_, seq, blocks) in &model.held {
                    *accounted.entry(*seq).or_default() += blocks;
                }
                prop_assert_eq!(accounted, model.written(state.covered));
                let dropped = model.places(state.covered).difference(&alive).copied().collect();
                check_snapshots(&env, &io, key.clone(), &model, state.covered, &dropped).await?;
                model.checkpoint = (state.levels, state.covered);
            }
            Op::Reopen => {
                let (levels, covered) = model.checkpoint.clone();
                let mut snapshots: Vec<Seq> = model.snapshots.range(..=covered).map(|(at, _)| *at).collect();
                let options = MapOptions { snapshots: snapshots.clone(), ..options.clone() };
                map = open_map(&env, &io, key.clone(), options, levels, covered);
                for (&seq, (base, batch)) in model.log.range(covered.0 + 1..) {
                    match base {
                        None => map.insert(batch),
                        Some(base) => map.insert_moved(batch, *base).await.unwrap(),
                    }
                    if model.snapshots.contains_key(&Seq(seq)) {
                        snapshots.push(Seq(seq));
                        map.set_snapshots(snapshots.clone());
                        map.freeze(Seq(seq));
                    }
                }
                model.frozen = snapshots.last().copied().unwrap_or(covered).max(covered);
            }
        }
    }
    check(&model, &map, Extent::new(0, BLOCKS)).await?;
    map.freeze(Seq(model.seq));
    settle(&map).await;
    check(&model, &map, Extent::new(0, BLOCKS)).await
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    /// Any history reads as in an array, through crashes as well, and at every checkpoint
    /// `written = alive + dead` holds for every segment.
    #[test]
    fn agrees_with_an_array(ops in ops(), encrypted in any::<bool>(), cached in any::<bool>(), tiny in any::<bool>()) {
        let mut options = if tiny { tiny_runs() } else { MapOptions::default() };
        if !cached {
            options.memory_bytes = 0;
        }
        block_on(run(ops, encrypted, options))?;
    }
}

/// A view that was captured stays what it was while the map goes on below and above it.
#[tokio::test]
async fn a_view_does_not_change() {
    let io = Arc::new(MemoryRuns::default());
    let map = new_map(&io);
    map.insert(&[frame(0, 4, 1, 0), frame(10, 4, 1, 5000)]);
    map.freeze(Seq(1));
    map.insert(&[frame(2, 4, 2, 0)]);
    let extent = Extent::new(0, 20);
    let expected = map.lookup(extent).await.unwrap();
    let view = map.begin(extent);
    map.insert(&[hole(0, 100, 3)]);
    map.freeze(Seq(3));
    settle(&map).await;
    assert_eq!(view.finish().await.unwrap(), expected);
    assert_eq!(by_block(&map.lookup(extent).await.unwrap()), vec![(Seq(0), Place::Hole); 20]);
}

/// A flush that goes on while a merge runs keeps its level in front of the merged ones.
#[tokio::test]
async fn flushes_and_merges_do_not_disturb_each_other() {
    let io = Arc::new(MemoryRuns::default());
    let map = new_map(&io);
    let mut seq = 0;
    for round in 0..50u64 {
        for _ in 0..3 {
            seq += 1;
            let batch: Vec<_> =
                (0..200).map(|i| frame((i * 7 + round) % 300 * 16, 16, seq, i as u32)).collect();
            map.insert(&batch);
            map.freeze(Seq(seq));
        }
        let (a, b, c) = tokio::join!(map.merge_step(), map.flush(), map.merge_step());
        a.and(b).and(c).unwrap();
    }
    let before = by_block(&map.lookup(Extent::new(0, 6000)).await.unwrap());
    settle(&map).await;
    assert_eq!(by_block(&map.lookup(Extent::new(0, 6000)).await.unwrap()), before);
    assert!(map.take_state().covered == Seq(seq));
}

/// What a snapshot still sees is reported as held by it, and holes that are newer are kept.
#[tokio::test]
async fn a_snapshot_holds_what_it_sees() {
    let io = Arc::new(MemoryRuns::default());
    let map = new_map(&io);
    map.insert(&[frame(0, 8, 1, 0)]);
    map.set_snapshots(vec![Seq(1)]);
    map.freeze(Seq(1));
    map.flush().await.unwrap();
    map.insert(&[hole(0, 4, 2), frame(4, 2, 2, 0)]);
    map.insert(&[frame(4, 1, 3, 0)]);
    map.freeze(Seq(3));
    settle(&map).await;
    map.insert(&[frame(100, 16, 4, 0)]);
    map.freeze(Seq(4));
    settle(&map).await;
    let state = map.take_state();
    let seen_by = SeenBy { first: Seq(1), last: Seq(1) };
    assert_eq!(state.dead.held, BTreeMap::from([(seen_by, BTreeMap::from([(Seq(1), 6)]))]));
    assert_eq!(state.dead.free, BTreeMap::from([(Seq(2), 1)]));
    let found = map.lookup(Extent::new(0, 4)).await.unwrap();
    assert_eq!(found, vec![hole(0, 4, 2)]);
}

/// What was moved and had been replaced meanwhile is held, where it lies now, by the snapshot that lies between.
#[tokio::test]
async fn a_snapshot_holds_what_was_moved_too_late() {
    let io = Arc::new(MemoryRuns::default());
    let map = new_map(&io);
    map.insert(&[frame(0, 4, 1, 0)]);
    map.set_snapshots(vec![Seq(1)]);
    map.freeze(Seq(1));
    map.flush().await.unwrap();
    map.insert(&[frame(0, 4, 2, 0)]);
    map.insert_moved(&[Mapping { birth: Seq(1), ..frame(0, 4, 3, 0) }], Seq(1)).await.unwrap();
    map.freeze(Seq(3));
    settle(&map).await;
    let seen_by = SeenBy { first: Seq(1), last: Seq(1) };
    let held = map.take_state().dead.held;
    assert_eq!(held.get(&seen_by).and_then(|held| held.get(&Seq(3))), Some(&4), "{held:?}");
}

/// A block that was moved is what it was: the sectors that are kept apart from it stay over it.
#[tokio::test]
async fn sectors_stay_over_a_block_that_is_moved() {
    let io = Arc::new(MemoryRuns::default());
    let map = new_map(&io);
    map.insert(&[frame(0, 4, 1, 0)]);
    let sector = cistern_engine::sectors::sector_numbers(Extent::new(2, 1)).start;
    map.insert(&[frame(sector, 1, 2, 0)]);
    map.insert_moved(&[Mapping { birth: Seq(1), ..frame(0, 4, 3, 0) }], Seq(2)).await.unwrap();
    let (found, _) = map.sectors_in(Extent::new(0, 4), Seq(0), 16).await.unwrap();
    assert_eq!(found, vec![frame(sector, 1, 2, 0)]);
}

/// What dies beside sectors that are kept apart is known as soon as elsewhere: their numbers lie far from those of blocks, and a run with both
/// would seem to be nearly empty.
#[tokio::test]
async fn sectors_hide_nothing_that_died() {
    let io = Arc::new(MemoryRuns::default());
    let map = new_map(&io);
    let sector = |block| cistern_engine::sectors::sector_numbers(Extent::new(block, 1)).start;
    for round in 0..2 {
        let seq = 100 * round;
        map.insert(&(0..32).map(|n| frame(16 * n, 16, seq + n + 1, 0)).collect::<Vec<_>>());
        map.insert(&(0..32).map(|n| frame(sector(16 * n), 1, seq + 50, n as u32)).collect::<Vec<_>>());
        map.freeze(Seq(seq + 50));
        settle(&map).await;
        assert!(map.levels().iter().flatten().all(|run| run.span.len <= 8 * 512), "{:?}", map.levels());
    }
    let before = map.died_blocks();
    map.insert(&[Mapping { extent: Extent::new(0, 512), birth: Seq(200), place: Place::Zero }]);
    map.freeze(Seq(200));
    settle(&map).await;
    assert!(map.died_blocks() >= before + 512, "{before} {}", map.died_blocks());
}
