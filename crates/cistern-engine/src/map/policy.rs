//! What to merge next, decided from the levels alone, and how a merge changes them.
//!
//! Pure. The shape is a lazy LSM: flushes and merges of small levels only add levels (tiering, so
//! a mapping is written about once per size class), and all levels meet in the last one, the
//! bottom, window by window. A merge covers an extent of blocks and takes it out of its inputs:
//! a run may be listed with a part of its span, or twice with two parts. So every step is bounded
//! by one output object, and what it did is published at once.

use std::{collections::BTreeSet, ops::Range};

use super::{BLOCKS_MAX, Levels, RunMeta, RunShape};
use crate::{
    sectors::{ALL_SECTORS, are_sectors},
    units::{Extent, RunId},
};

/// Levels of one rank that are merged into one of the next. Four writes a mapping about four
/// times in 20 to 100 million, and leaves at most three levels of a rank to look into; eight
/// would write a quarter less and look into twice as many.
const FAN_IN: usize = 4;
/// The bottom is merged where the levels above it have so many times its mappings, whatever they
/// overlap: bounds the dead data that nobody knows about.
const ABOVE_BOTTOM_MAX: u64 = 2;
/// A window of fewer mappings counts as one of so many: what comes on top of a few is merged once there is some of it.
const BOTTOM_MIN: u64 = 16;
/// The bottom is merged where at least this share of the frame blocks is probably dead: rewriting
/// 4 bytes of map for each mapping is cheap against keeping 4 KiB for each that is dead, and the cleaner works with what
/// merges have learnt.
const DEAD_PERCENT: u64 = 5;

/// Neighbours of one level that are merged into one run when all are small: below that part of a
/// full run. Keeps the runs of a device that is filled in order from being many and small.
const SMALL_NEIGHBOURS: usize = 8;

/// A merge that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MergePlan {
    /// The levels to merge, as indices.
    pub levels: Range<usize>,
    /// Where. The merge may stop before the end of it.
    pub window: Extent,
    /// The rank of what comes out.
    pub rank: u8,
}

/// The merge to do next, if one is due and reads no run of `damaged`.
pub(super) fn plan(levels: &Levels, shape: RunShape, damaged: &BTreeSet<RunId>) -> Option<MergePlan> {
    let bottom = levels.len().checked_sub(1)?;
    let run_mappings = shape.run_mappings();
    let plan = full_rank(levels, bottom, damaged)
        .or_else(|| full_window(levels, bottom, run_mappings / 2, damaged))
        .or_else(|| small_neighbours(levels, run_mappings / SMALL_NEIGHBOURS as u64, damaged))?;
    debug_assert!(
        !plan.levels.is_empty() && plan.levels.end <= levels.len() && !plan.window.is_empty(),
        "a merge is of something: {plan:?}"
    );
    debug_assert!(
        levels[plan.levels.clone()]
            .iter()
            .flatten()
            .all(|run| run.span.intersect(plan.window).is_none() || !damaged.contains(&run.id)),
        "no merge reads a damaged run: {plan:?}"
    );
    Some(plan)
}

/// The merge by which the first run of another volume leaves the levels, or a part of it; `None` when there is none.
pub(super) fn plan_foreign(levels: &Levels) -> Option<MergePlan> {
    let foreign = levels.iter().flatten().filter(|run| run.owner.is_some());
    let start = foreign.map(|run| run.span.start).min()?;
    let rank = levels.iter().map(|level| rank_of(level)).max()?;
    Some(MergePlan { levels: 0..levels.len(), window: Extent::between(start, BLOCKS_MAX), rank })
}

/// Bytes of what a merge writes, at most about: what it reads, up to a full run.
pub(super) fn bytes_of(levels: &Levels, plan: &MergePlan, shape: RunShape) -> u64 {
    let runs = levels[plan.levels.clone()].iter().flatten();
    let read_bytes = runs.map(|run| share(run, run.bytes, plan.window)).fold(0, u64::saturating_add);
    read_bytes.min(shape.run_bytes as u64)
}

/// Frame blocks that newer ones cover, probably, and that no merge has met yet.
pub(super) fn probably_dead(levels: &Levels, shape: RunShape) -> u64 {
    let Some((bottom, above)) = levels.split_last() else { return 0 };
    let windows = windows(bottom, shape.run_mappings() / 2);
    windows.iter().map(|window| window.probably_dead(above)).fold(0, u64::saturating_add)
}

fn has_any(level: &[RunMeta], damaged: &BTreeSet<RunId>) -> bool {
    !damaged.is_empty() && level.iter().any(|run| damaged.contains(&run.id))
}

fn rank_of(level: &[RunMeta]) -> u8 {
    level.iter().map(|run| run.rank).max().unwrap_or(0)
}

/// The oldest `FAN_IN` levels of the lowest rank that has as many above the bottom, of those that have blocks, or else sectors: no run has both,
/// so no merge does. A level with a damaged run stays where it is, and so levels are counted above and beneath it.
fn full_rank(levels: &Levels, bottom: usize, damaged: &BTreeSet<RunId>) -> Option<MergePlan> {
    let blocks = Extent::between(0, ALL_SECTORS.start);
    [blocks, ALL_SECTORS].into_iter().find_map(|part| full_rank_of(part, &levels[..bottom], damaged))
}

fn full_rank_of(part: Extent, above: &[Vec<RunMeta>], damaged: &BTreeSet<RunId>) -> Option<MergePlan> {
    let rank_of_part = |level: &[RunMeta]| {
        let runs = level.iter().filter(|run| run.span.intersect(part).is_some());
        runs.map(|run| run.rank).max()
    };
    let ranks: Vec<(usize, u8)> =
        above.iter().enumerate().filter_map(|(at, level)| Some((at, rank_of_part(level)?))).collect();
    let mut begin = 0;
    while begin < ranks.len() {
        let (_, rank) = ranks[begin];
        let is_same = |(at, other): &&(usize, u8)| *other == rank && !has_any(&above[*at], damaged);
        let end = begin + ranks[begin..].iter().take_while(is_same).count();
        if end - begin >= FAN_IN {
            let (first, last) = (ranks[end - FAN_IN].0, ranks[end - 1].0);
            return Some(MergePlan { levels: first..last + 1, window: part, rank: rank.saturating_add(1) });
        }
        begin = end.max(begin + 1);
    }
    None
}

/// The first neighbours that are small and of similar size.
fn small_neighbours(levels: &Levels, mappings_max: u64, damaged: &BTreeSet<RunId>) -> Option<MergePlan> {
    levels.iter().enumerate().find_map(|(i, level)| {
        let are_alike = |runs: &&[RunMeta]| {
            are_sectors(runs[0].span) == are_sectors(runs[SMALL_NEIGHBOURS - 1].span)
                && !has_any(runs, damaged)
        };
        let some = level.windows(SMALL_NEIGHBOURS).filter(are_alike).find(|runs| {
            let (mut sum, mut max) = (0, 0);
            for run in *runs {
                (sum, max) = (sum + run.mappings, max.max(run.mappings));
            }
            // Twice the largest: each rewriting doubles the run of most mappings.
            max < mappings_max && sum >= 2 * max
        })?;
        let window = Extent::between(some[0].span.start, some[SMALL_NEIGHBOURS - 1].span.end());
        Some(MergePlan { levels: i..i + 1, window, rank: rank_of(level) })
    })
}

/// The window of the bottom that needs a merge most. What lies behind a damaged run of any level is no part
/// of a window.
fn full_window(
    levels: &Levels,
    bottom: usize,
    window_mappings_min: u64,
    damaged: &BTreeSet<RunId>,
) -> Option<MergePlan> {
    let rank = levels.iter().map(|level| rank_of(level)).max()?;
    let above = &levels[..bottom];
    let mut closed: Vec<Extent> =
        levels.iter().flatten().filter(|run| damaged.contains(&run.id)).map(|run| run.span).collect();
    closed.sort_unstable_by_key(|span| span.start);
    windows(&levels[bottom], window_mappings_min)
        .into_iter()
        .flat_map(|w| w.outside(&closed))
        .map(|w| (w.need(above), w.extent))
        .filter(|&(need, _)| need >= 100)
        .reduce(|best, other| if other.0 > best.0 { other } else { best })
        .and_then(|(_, window)| first_above(above, window))
        .map(|window| MergePlan { levels: 0..levels.len(), window, rank })
}

/// The window from the first block that a level above the bottom may have. What an unfinished
/// merge has done of it is not done again, so every merge takes something from above.
fn first_above(above: &[Vec<RunMeta>], window: Extent) -> Option<Extent> {
    let parts = above.iter().flatten().filter_map(|run| run.span.intersect(window));
    let start = parts.map(|part| part.start).min()?;
    Some(Extent::between(start, window.end()))
}

/// Some neighbouring runs of the bottom, and all blocks up to the next ones.
struct MergeWindow<'a> {
    extent: Extent,
    runs: &'a [RunMeta],
    mappings: u64,
    frame_blocks: u64,
}

impl<'a> MergeWindow<'a> {
    /// The parts of the window that lie in none of the `closed` extents, which ascend by start.
    fn outside(self, closed: &[Extent]) -> Vec<MergeWindow<'a>> {
        if closed.iter().all(|span| span.intersect(self.extent).is_none()) {
            return vec![self];
        }
        let (mut at, end) = (self.extent.start, self.extent.end());
        let mut parts = Vec::new();
        for span in closed.iter().chain([&Extent::new(end, 0)]) {
            let stop = span.start.min(end);
            if at < stop {
                parts.push(MergeWindow::of(Extent::between(at, stop), self.runs));
            }
            at = at.max(span.end());
        }
        parts
    }

    /// What some runs of the bottom have in an extent, if they are spread evenly.
    fn of(extent: Extent, runs: &'a [RunMeta]) -> MergeWindow<'a> {
        let sum = |of: fn(&RunMeta) -> u64| runs.iter().map(|run| share(run, of(run), extent)).sum();
        MergeWindow {
            extent,
            runs,
            mappings: sum(|run| run.mappings),
            frame_blocks: sum(|run| run.frame_blocks),
        }
    }

    /// How due a merge is, in percent of the limits.
    fn need(&self, above: &[Vec<RunMeta>]) -> u64 {
        let sum = |of: fn(&RunMeta) -> u64| -> u64 {
            above.iter().flatten().map(|run| share(run, of(run), self.extent)).fold(0, u64::saturating_add)
        };
        let frames = sum(|run| run.frame_blocks).saturating_add(self.frame_blocks).max(1);
        let dead = part_of(self.probably_dead(above), 100 * 100 / DEAD_PERCENT, frames);
        let above = part_of(sum(|run| run.mappings), 100, self.mappings.max(BOTTOM_MIN) * ABOVE_BOTTOM_MAX);
        dead.max(above)
    }

    /// Frame blocks in it that what lies above covers, if all of it lies evenly within the spans of the runs.
    fn probably_dead(&self, above: &[Vec<RunMeta>]) -> u64 {
        let dead_of = |run: &RunMeta| {
            let Some(span) = run.span.intersect(self.extent) else { return 0 };
            let mapped = above.iter().flatten().map(|newer| share(newer, newer.mapped_blocks, span));
            let mapped = mapped.fold(0, u64::saturating_add).min(span.len);
            part_of(mapped, share(run, run.frame_blocks, span), span.len)
        };
        self.runs.iter().map(dead_of).fold(0, u64::saturating_add)
    }
}

/// The bottom in windows of at least `mappings_min` mappings (but for the last), so that small
/// runs are merged with their neighbours and grow. Sectors lie in other windows than blocks.
fn windows(bottom: &[RunMeta], mappings_min: u64) -> Vec<MergeWindow<'_>> {
    let (mut out, mut first, mut mappings, mut start) = (Vec::new(), 0, 0, 0);
    for (at, run) in bottom.iter().enumerate() {
        let is_near = at == first || are_sectors(run.span) == are_sectors(bottom[first].span);
        if at > first && (mappings >= mappings_min || !is_near) {
            out.push(MergeWindow::of(Extent::between(start, run.span.start), &bottom[first..at]));
            (first, mappings, start) = (at, 0, run.span.start);
        }
        mappings += run.mappings;
    }
    if first < bottom.len() {
        out.push(MergeWindow::of(Extent::between(start, BLOCKS_MAX), &bottom[first..]));
    }
    out
}

/// `value * numerator / denominator` without overflow.
fn part_of(value: u64, numerator: u64, denominator: u64) -> u64 {
    let wide = u128::from(value) * u128::from(numerator) / u128::from(denominator);
    u64::try_from(wide).unwrap_or(u64::MAX)
}

/// The part of a run's `value` that falls into `window`, if it is spread evenly.
fn share(run: &RunMeta, value: u64, window: Extent) -> u64 {
    run.span.intersect(window).map_or(0, |part| part_of(value, part.len, run.span.len))
}

/// The levels after `merged` was taken out of `inputs` and `output` written instead.
pub(super) fn apply(
    levels: &Levels,
    inputs: Range<usize>,
    merged: Extent,
    output: Option<RunMeta>,
) -> Levels {
    debug_assert!(!inputs.is_empty() && inputs.end <= levels.len(), "what was merged is among the levels");
    debug_assert!(
        output.as_ref().is_none_or(|run| run.span.intersect(merged) == Some(run.span)),
        "what came out lies where it was merged"
    );
    let mut out: Levels = Vec::with_capacity(levels.len() + 1);
    for (i, level) in levels.iter().enumerate() {
        if i == inputs.end && i < levels.len() {
            out.push(Vec::new()); // room for the output between its inputs and what is older
        }
        out.push(if inputs.contains(&i) { without(level, merged) } else { level.clone() });
    }
    if let Some(run) = output {
        // Of the same rank as its oldest input: back into that level, which has nothing there any
        // more. Else into the older level if that has nothing there (as when the device is filled
        // in order), else into a level of its own.
        let (input, own, older) = (inputs.end - 1, inputs.end, inputs.end + 1);
        let home = if own >= out.len() || run.rank == rank_of(&levels[input]) {
            input
        } else if !overlaps(&out[older], run.span) {
            older
        } else {
            own
        };
        insert(&mut out[home], run);
    }
    out.retain(|level| !level.is_empty());
    out
}

fn overlaps(level: &[RunMeta], extent: Extent) -> bool {
    level.iter().any(|run| run.span.intersect(extent).is_some())
}

fn insert(level: &mut Vec<RunMeta>, mut run: RunMeta) {
    debug_assert!(!overlaps(level, run.span), "runs of a level are apart");
    run.rank = run.rank.max(rank_of(level));
    let at = level.partition_point(|other| other.span.start < run.span.start);
    level.insert(at, run);
}

fn without(level: &[RunMeta], window: Extent) -> Vec<RunMeta> {
    let before = Extent::between(0, window.start);
    let behind = Extent::between(window.end(), BLOCKS_MAX.max(window.end()));
    level.iter().flat_map(|run| [before, behind].map(|keep| clip(run, keep))).flatten().collect()
}

/// The run as it is listed when only `keep` of it counts; its totals become estimates.
fn clip(run: &RunMeta, keep: Extent) -> Option<RunMeta> {
    let span = run.span.intersect(keep)?;
    let part = |value| share(run, value, keep).max(1).min(value);
    Some(RunMeta {
        span,
        mappings: part(run.mappings),
        frame_blocks: part(run.frame_blocks),
        mapped_blocks: part(run.mapped_blocks),
        ..run.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Seq;

    fn run(id: u128, start: u64, len: u64, mappings: u64, rank: u8) -> RunMeta {
        RunMeta {
            id: RunId(uuid::Uuid::from_u128(id)),
            bytes: mappings * 5,
            mappings,
            frame_blocks: mappings,
            mapped_blocks: mappings,
            span: Extent::new(start, len),
            birth_min: Seq(1),
            birth_max: Seq(1),
            rank,
            since: Seq(0),
            owner: None,
        }
    }

    fn plan_of(levels: &Levels) -> Option<MergePlan> {
        plan(levels, RunShape::default(), &BTreeSet::new())
    }

    /// Sparse levels above a large bottom wait until there are as many as the fan-in.
    #[test]
    fn a_full_rank_is_merged_oldest_first() {
        let mut levels = vec![vec![run(99, 0, 1 << 40, 10_000_000, 2)]];
        for n in 0..=FAN_IN {
            let due = plan_of(&levels);
            assert_eq!(due.is_some(), n >= FAN_IN, "{n} levels: {due:?}");
            levels.insert(0, vec![run(n as u128, 0, 1 << 40, 100_000, 0)]);
        }
        let due = plan_of(&levels).expect("one more than enough");
        assert_eq!((due.levels, due.rank), (1..FAN_IN + 1, 1));
    }

    /// Levels with sectors and levels with blocks are counted apart: three of either are not due, with as many of the other or not.
    #[test]
    fn blocks_and_sectors_have_ranks_of_their_own() {
        let sectors = |id: u128| run(id, ALL_SECTORS.start, 1 << 40, 100_000, 0);
        let blocks = |id: u128| run(id, 0, 1 << 40, 100_000, 0);
        let bottom =
            vec![run(98, 0, 1 << 40, 10_000_000, 2), run(99, ALL_SECTORS.start, 1 << 40, 10_000_000, 2)];
        let mut levels =
            vec![vec![blocks(1)], vec![blocks(2), sectors(3)], vec![sectors(4)], vec![sectors(5)], bottom];
        assert_eq!(plan_of(&levels), None, "three with sectors, two with blocks");
        levels.insert(0, vec![sectors(31)]);
        let due = plan_of(&levels).expect("four with sectors");
        assert_eq!((due.levels, due.window), (0..5, ALL_SECTORS));
        levels.insert(0, vec![blocks(32)]);
        levels.insert(0, vec![blocks(33)]);
        let due = plan_of(&levels).expect("four with blocks");
        assert_eq!(due.window, Extent::between(0, ALL_SECTORS.start));
    }

    /// A hole beside the few sectors of the bottom kills none of them, and one over them does.
    #[test]
    fn few_sectors_are_not_merged_for_nothing() {
        let at = |block: u64| ALL_SECTORS.start + 8 * block;
        let hole = |start: u64| {
            let run = run(1, start, 64, 1, 0);
            vec![RunMeta { frame_blocks: 0, mapped_blocks: 64, ..run }]
        };
        let bottom = vec![run(2, 0, 1_000_000, 1_000_000, 3), run(3, at(500), 8, 1, 3)];
        assert_eq!(plan_of(&vec![hole(at(100)), bottom.clone()]), None);
        let due = plan_of(&vec![hole(at(496)), bottom]).expect("the sectors are dead");
        assert!(are_sectors(due.window));
    }

    /// Where the bottom is dense, a third of it overwritten is enough; where it is sparse, not.
    #[test]
    fn probable_garbage_is_merged() {
        let dense = vec![vec![run(1, 0, 1_000_000, 450_000, 0)], vec![run(2, 0, 1_000_000, 1_000_000, 3)]];
        let due = plan_of(&dense).expect("a third is dead");
        assert_eq!((due.levels, due.rank), (0..2, 3));
        let sparse = vec![vec![run(1, 0, 1 << 40, 450_000, 0)], vec![run(2, 0, 1 << 40, 1_000_000, 3)]];
        assert_eq!(plan_of(&sparse), None);
    }

    /// A single hole over everything is reason enough, few mappings as it has.
    #[test]
    fn a_trimmed_device_is_merged() {
        let mut trim = run(1, 0, 1 << 40, 1, 0);
        (trim.frame_blocks, trim.mapped_blocks) = (0, 1 << 40);
        let levels = vec![vec![trim], vec![run(2, 0, 1 << 40, 1_000_000, 3)]];
        assert!(plan_of(&levels).is_some());
    }

    /// A level with a damaged run is no input of a rank: four above it are merged, four around it are not.
    #[test]
    fn a_rank_is_merged_above_and_beneath_a_damaged_run() {
        let mut levels = vec![vec![run(99, 0, 1 << 40, 10_000_000, 2)]];
        let damaged = BTreeSet::from([run(1, 0, 1, 1, 0).id]);
        for n in 0..FAN_IN as u128 + 2 {
            assert_eq!(plan(&levels, RunShape::default(), &damaged), None, "{n} levels");
            levels.insert(0, vec![run(n, 0, 1 << 40, 100_000, 0)]);
        }
        let due = plan(&levels, RunShape::default(), &damaged).expect("four above it");
        assert_eq!(due.levels, 0..FAN_IN);
    }

    /// A window leaves out what a damaged run spans, in whichever level that is, and is due only for the rest.
    #[test]
    fn a_window_leaves_damaged_runs_out() {
        let bottom = vec![run(1, 0, 10_000_000, 7_000_000, 3)];
        let above =
            vec![run(8, 2_000_000, 2_000_000, 2_000_000, 0), run(9, 5_000_000, 4_000_000, 4_000_000, 0)];
        let levels = vec![above, bottom];
        let due = |id| plan(&levels, RunShape::default(), &BTreeSet::from([run(id, 0, 1, 1, 0).id]));
        assert_eq!(due(100).expect("much is dead").window, Extent::between(2_000_000, BLOCKS_MAX));
        assert_eq!(due(8).expect("much is dead behind it").window, Extent::between(5_000_000, BLOCKS_MAX));
        assert_eq!(
            due(9).expect("a quarter is dead before it").window,
            Extent::between(2_000_000, 5_000_000)
        );
        assert_eq!(due(1), None);
    }

    /// Small neighbours of a damaged run are merged without it.
    #[test]
    fn small_neighbours_leave_a_damaged_run_out() {
        let level: Vec<RunMeta> = (0..13).map(|n| run(n.into(), n * 1000, 10, 100, 2)).collect();
        let damaged = BTreeSet::from([level[4].id]);
        let due = plan(&vec![level], RunShape::default(), &damaged).expect("eight behind it");
        assert_eq!(due.window, Extent::between(5000, 12_010));
    }

    /// Only the window that needs it is merged, from the first block that may have changed.
    #[test]
    fn a_hot_window_is_merged_alone() {
        let bottom: Vec<_> =
            (0..4).map(|n| run(n.into(), n * 10_000_000, 10_000_000, 7_000_000, 3)).collect();
        let levels = vec![vec![run(9, 13_000_000, 6_000_000, 6_000_000, 0)], bottom];
        let due = plan_of(&levels).expect("the second window is half overwritten");
        assert_eq!(due.window, Extent::between(13_000_000, 20_000_000));
    }

    /// A merge in the middle leaves both ends of its inputs, in their levels, and puts its output
    /// behind the inputs and before what is older.
    #[test]
    fn a_merged_window_is_cut_out() {
        let levels = vec![
            vec![run(1, 0, 1000, 100, 0)],
            vec![run(2, 0, 1000, 100, 1)],
            vec![run(3, 100, 800, 100, 1)],
            vec![run(4, 0, 1000, 100, 2)],
        ];
        let after = apply(&levels, 1..3, Extent::between(400, 600), Some(run(5, 410, 180, 50, 2)));
        let spans: Vec<Vec<_>> =
            after.iter().map(|level| level.iter().map(|r| (r.span.start, r.span.end())).collect()).collect();
        let expected: Vec<Vec<(u64, u64)>> = vec![
            vec![(0, 1000)],
            vec![(0, 400), (600, 1000)],
            vec![(100, 400), (600, 900)],
            vec![(410, 590)],
            vec![(0, 1000)],
        ];
        assert_eq!(spans, expected);
        assert_eq!((after[1][0].mappings, after[1][0].bytes), (40, 500));
    }

    /// Small neighbours become one run; a large one among small ones is left alone.
    #[test]
    fn small_neighbours_grow_together() {
        let level = |first: u64| -> Vec<RunMeta> {
            (0..9).map(|n| run(n.into(), n * 1000, 10, if n == 0 { first } else { 100 }, 2)).collect()
        };
        let due = plan_of(&vec![level(100)]).expect("nine small runs");
        assert_eq!(due, MergePlan { levels: 0..1, window: Extent::between(0, 7010), rank: 2 });
        let due = plan_of(&vec![level(1000)]).expect("eight small runs");
        assert_eq!(due.window, Extent::between(1000, 8010));
        let after = apply(&vec![level(100)], 0..1, Extent::between(0, 7010), Some(run(50, 0, 7010, 800, 2)));
        assert_eq!(after[0].iter().map(|r| r.mappings).collect::<Vec<_>>(), vec![800, 100]);
    }

    /// Output that lies beside an older level joins it, and inputs that are used up vanish.
    #[test]
    fn an_output_joins_the_older_level() {
        let levels =
            vec![vec![run(1, 1000, 10, 10, 0)], vec![run(2, 1010, 10, 10, 0)], vec![run(3, 0, 1000, 9, 2)]];
        let after = apply(&levels, 0..2, Extent::new(0, BLOCKS_MAX), Some(run(4, 1000, 20, 20, 1)));
        assert_eq!(after.len(), 1);
        assert_eq!(after[0].iter().map(|r| r.rank).collect::<Vec<_>>(), vec![2, 2]);
    }
}
