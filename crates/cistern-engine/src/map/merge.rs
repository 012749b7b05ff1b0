//! Merging levels: streams of mappings, newest wins, into one new run.
//!
//! Invariants: every mapping of the inputs in the merged extent is either in the output or
//! counted as dead (holes excepted), exactly once; nothing is visible before the caller publishes
//! output, extent and dead blocks as one. Memory is one run and a read-ahead per input.

use std::sync::Arc;

use futures_util::future;

use super::{
    Levels, RunMeta,
    dead::{Dead, SeenBy},
    feed::{self, Feed, FeedFront},
    names::Writing,
    policy::MergePlan,
    runs::Runs,
    version::Version,
    writer::{RunShape, RunWriter},
};
use crate::{
    Error,
    env::Env,
    units::{Extent, FRAME_BLOCKS_MAX, Mapping, Place, RunId, Seq},
};

/// Mappings per step on a worker: a few milliseconds.
const STEP_MAPPINGS: usize = 32 << 10;
/// Read-ahead of all inputs together, and of one at least and at most.
const READ_BYTES: u64 = 16 << 20;
const READ_BYTES_MIN: u64 = 64 << 10;
const READ_BYTES_MAX: u64 = 1 << 20;

/// What a merge did.
pub(super) struct Merged {
    /// The part of the plan's window that was merged.
    pub extent: Extent,
    /// The new run; none when nothing is left.
    pub output: Option<RunMeta>,
    pub dead: Dead,
}

/// Older states that a merge keeps in mind.
pub(super) struct OlderStates {
    /// Where snapshots are, ascending.
    pub snapshots: Arc<[Seq]>,
    /// The oldest snapshot or bookmark: differences to it are told.
    pub oldest: Option<Seq>,
}

/// Why a merge came to nothing.
pub(super) enum Failure {
    /// A run could not be read.
    Run(RunId, Error),
    /// The output could not be written.
    Write(Error),
}

/// Merges as `plan` says, until its window ends or one run is full, and writes that run.
pub(super) async fn merge(
    env: &Env,
    runs: &Runs,
    shape: RunShape,
    levels: &Levels,
    plan: &MergePlan,
    bases: OlderStates,
    writing: &mut Writing,
) -> Result<Merged, Failure> {
    let id = writing.draw(env);
    let mut state = Merge::new(levels, plan, bases, RunWriter::new(id, runs.sealer(id), shape));
    loop {
        let (next, pause) = env
            .compute(move || {
                let pause = state.step();
                (state, pause)
            })
            .await;
        state = next;
        match pause.map_err(Failure::run)? {
            Pause::Dry => {
                let refills = state.feeds.iter_mut().map(|feed| feed.refill(runs));
                future::try_join_all(refills).await.map_err(Failure::run)?;
            }
            Pause::Yield => {}
            Pause::Done => break,
        }
    }
    let end = state.end.unwrap_or(plan.window.end());
    assert!(plan.window.start < end && end <= plan.window.end(), "a merge comes on, within its window");
    let extent = Extent::between(plan.window.start, end);
    let rank = plan.rank;
    let (dead, writer) = (state.dead, state.writer);
    let output = match env.compute(move || writer.finish(rank)).await {
        Some((meta, body)) => {
            runs.write_merged(meta.id, body).await.map_err(Failure::Write)?;
            Some(meta)
        }
        None => None,
    };
    Ok(Merged { extent, output, dead })
}

impl Failure {
    fn run((run, e): (RunId, Error)) -> Failure {
        Failure::Run(run, e)
    }
}

enum Pause {
    /// An input needs a refill.
    Dry,
    /// Enough for one step.
    Yield,
    Done,
}

/// The start of a front that does not exist; no block has this number.
const ENDED: u64 = u64::MAX;

struct Merge {
    /// Newest first.
    feeds: Vec<Feed>,
    /// Where the front of each feed begins, as far as known; `ENDED` behind the last mapping.
    starts: Vec<Option<u64>>,
    writer: RunWriter,
    /// Everything before this block is merged.
    done: u64,
    /// The newest version before `done`, which is not written yet: the parts of it, and since when each of them stands over what
    /// is older than the feeds that were looked at.
    front: Vec<Version>,
    /// Where the merge ended if that is not the end of the window.
    end: Option<u64>,
    dead: Dead,
    bases: OlderStates,
    /// Spans of what is older than the inputs: holes above must stay.
    older: Vec<Extent>,
}

impl Merge {
    fn new(levels: &Levels, plan: &MergePlan, bases: OlderStates, writer: RunWriter) -> Merge {
        let inputs = &levels[plan.levels.clone()];
        let read_bytes = (READ_BYTES / inputs.len().max(1) as u64).clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let feeds: Vec<_> = inputs.iter().map(|level| Feed::new(level, plan.window, read_bytes)).collect();
        let older = levels[plan.levels.end..].iter().flatten().map(|run| run.span).collect();
        Merge {
            starts: vec![None; feeds.len()],
            feeds,
            writer,
            done: plan.window.start,
            front: Vec::new(),
            end: None,
            dead: Dead::default(),
            bases,
            older,
        }
    }

    /// Merges until an input is dry, the run is full, the window ends or a step is over.
    fn step(&mut self) -> feed::RunResult<Pause> {
        for _ in 0..STEP_MAPPINGS {
            for i in 0..self.feeds.len() {
                if self.starts[i].is_none_or(|start| start < self.done) && !self.skip_merged(i)? {
                    return Ok(Pause::Dry);
                }
            }
            self.write_front();
            let Some((winner, start)) = self.first() else { return Ok(Pause::Done) };
            if self.writer.ends_before(start) {
                self.end = Some(start);
                return Ok(Pause::Done);
            }
            self.take(winner, start)?;
        }
        Ok(Pause::Yield)
    }

    /// The newest of the feeds whose front begins first, and where that is.
    fn first(&self) -> Option<(usize, u64)> {
        let known = self.starts.iter().map(|start| start.expect("step has looked at every feed"));
        let (winner, start) =
            known.enumerate().reduce(|first, other| if other.1 < first.1 { other } else { first })?;
        (start != ENDED).then_some((winner, start))
    }

    /// Brings the front of feed `i` behind what is merged; what a newer mapping covered dies
    /// here. False when the feed is dry.
    fn skip_merged(&mut self, i: usize) -> feed::RunResult<bool> {
        self.starts[i] = None;
        loop {
            let version = match self.feeds[i].head()? {
                FeedFront::Version(version) => version,
                FeedFront::Dry => return Ok(false),
                FeedFront::Ended => {
                    self.starts[i] = Some(ENDED);
                    return Ok(true);
                }
            };
            let extent = version.extent();
            if extent.start >= self.done {
                self.starts[i] = Some(extent.start);
                return Ok(true);
            }
            let end = extent.end().min(self.done);
            self.lose(version.slice(Extent::between(extent.start, end)));
            self.feeds[i].consume(end);
        }
    }

    /// Takes the first version of the winner, up to where a newer one begins; and no further than the older feeds are decoded, so that
    /// it does not come apart into more pieces than those have mappings in memory.
    fn take(&mut self, winner: usize, start: u64) -> feed::RunResult<()> {
        let FeedFront::Version(version) = self.feeds[winner].head()? else {
            unreachable!("the first of all is a version")
        };
        debug_assert!(version.extent().start == start && start >= self.done, "a merge does not go back");
        let newer = self.starts[..winner].iter().flatten().min().copied();
        let decoded = match version.extent().len > FRAME_BLOCKS_MAX as u64 {
            true => self.feeds[winner + 1..].iter().filter_map(Feed::decoded_to).min(),
            false => None,
        };
        let end = version.extent().end().min(newer.unwrap_or(ENDED)).min(decoded.unwrap_or(ENDED));
        debug_assert!(start < end, "what is taken is something");
        self.feeds[winner].consume(end);
        self.starts[winner] = None;
        self.done = end;
        debug_assert!(self.front.is_empty(), "what was taken before is written");
        self.front.push(version.slice(Extent::between(start, end)));
        Ok(())
    }

    /// Counts what lies beneath the front, and is newer than all that the feeds behind its own have: each part of it lost its place when
    /// the next newer version came there, and the front stands for it from now on.
    fn lose(&mut self, lost: Version) {
        let (mut front, mut counted) = (Vec::with_capacity(self.front.len() + 2), 0);
        for above in self.front.drain(..) {
            let Some(part) = above.extent().intersect(lost.extent()) else {
                front.push(above);
                continue;
            };
            self.dead.lose(&lost.mapping.slice(part), above.over, &self.bases.snapshots);
            counted += part.len;
            let ends = [
                Extent::between(above.extent().start, part.start),
                Extent::between(part.end(), above.extent().end()),
            ];
            let [before, behind] = ends.map(|end| (!end.is_empty()).then(|| above.slice(end)));
            front.extend(before);
            front.push(Version { over: lost.over, ..above.slice(part) });
            front.extend(behind);
        }
        debug_assert_eq!(counted, lost.extent().len, "what is lost lies beneath the front, all of it");
        debug_assert!(
            front.is_sorted_by(|a: &Version, b| a.extent().end() == b.extent().start),
            "the front is one piece in parts"
        );
        self.front = front;
    }

    /// Writes the front, beneath which nothing of the inputs is left.
    fn write_front(&mut self) {
        let mut front = std::mem::take(&mut self.front);
        for version in front.drain(..) {
            if version.mapping.place == Place::Hole && !self.hole_is_needed(&version.mapping) {
                continue;
            }
            let over = if self.stands_for_others(&version) { version.over } else { version.placed() };
            self.writer.push(Version { over, ..version });
        }
        self.front = front;
    }

    /// Whether it matters that a version stands for more than itself: only a snapshot makes the difference, and none will ever
    /// be made between two places in the past.
    fn stands_for_others(&self, version: &Version) -> bool {
        SeenBy::within(&self.bases.snapshots, version.over..version.placed()).is_some()
            && self.older.iter().any(|span| span.intersect(version.extent()).is_some())
    }

    /// A hole may go if nothing older shines through it and no snapshot or bookmark is older than it (a
    /// difference to that one would miss it).
    fn hole_is_needed(&self, hole: &Mapping) -> bool {
        self.bases.oldest.is_some_and(|oldest| oldest < hole.birth)
            || self.older.iter().any(|span| span.intersect(hole.extent).is_some())
    }
}
