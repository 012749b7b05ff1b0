//! The accounts of space: how much of each segment is live, and what waits to be deleted (`docs/design/space.md`).
//!
//! Owns the counts of all segments as of the newest checkpoint, and the objects in grace. Told of commits, of what
//! merges learnt and of checkpoints that are in the store; asked by whoever cleans, deletes or shows. Does no IO and
//! decides nothing about the log.
//!
//! Invariants: a segment is retired only if all its blocks are counted dead, or if it was vacated by entries that the
//! checkpoint covers; an object is due only behind two checkpoints and an entry that came between
//! ([`grace`]); counts err on the side of keeping.

mod counters;
mod grace;
mod orphans;
mod segments;
mod victims;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::watch;

pub use counters::SpaceCounters;
pub use grace::Since;
pub use segments::{Segments, Totals};
pub use victims::Victim;

use crate::{
    log::{
        checkpoint::{RETIRED_MAX, Retired, RetiredName},
        usage::{Counts, SegmentUsage, UsageChange},
    },
    units::Seq,
};

use grace::Grace;
use orphans::Orphans;

/// Stored bytes per live byte that suit everybody who has no reason for others.
pub const SPACE_BOUND: f64 = 1.3;

/// The part of the garbage that the bound allows which may be known before it is cleaned. As much is not known yet as was
/// overwritten since the last checkpoint: up to a twentieth of what is live.
const KNOWN_PART: f64 = 5.0 / 6.0;

/// The accounts of one volume that is open for writing.
pub struct Space {
    state: Mutex<State>,
    /// Counts changes that somebody may wait for.
    changes: watch::Sender<u64>,
}

struct State {
    /// Unknown until the usage objects were read.
    segments: Option<Segments>,
    /// Segments of which nothing is live any more, and the entry from which on that is so.
    vacated: BTreeMap<Seq, Seq>,
    /// What is to be retired with the next checkpoint, runs and usage objects.
    used_up: Vec<Retired>,
    /// Objects that nothing names, to be retired too, and the entry from which on it is known that no state needs them.
    orphans: Orphans,
    grace: Grace,
    /// The newest entry that is in the map.
    newest: Seq,
    /// The segments behind the newest checkpoint.
    uncovered: BTreeMap<Seq, Uncovered>,
    /// Blocks that are dead, probably, and that the counts do not know of.
    unlearned_blocks: u64,
    /// Why objects that are due are still there.
    refused: Option<String>,
    counters: SpaceCounters,
}

/// A segment that no checkpoint covers.
#[derive(Clone, Copy, Debug)]
pub struct Uncovered {
    /// Bytes of the object.
    pub stored_bytes: u64,
    /// Whether its blocks were moved there: then they are as live as before.
    pub is_moved: bool,
}

/// What the accounts say at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// Of the segments that are neither retired nor vacated; `None` before the counts were read.
    pub segments: Option<Totals>,
    /// What the bound is held against; `None` also where nothing is live.
    pub ratio: Option<f64>,
    /// Bytes of what was committed behind the newest checkpoint.
    pub uncovered_bytes: u64,
    /// Vacated segments that wait for a checkpoint.
    pub vacated_bytes: u64,
    /// What waits to be deleted.
    pub grace_objects: u64,
    pub grace_bytes: u64,
    /// Why objects that are due are still there, if they are.
    pub refused: Option<String>,
    /// Since the beginning.
    pub counters: SpaceCounters,
}

impl Space {
    /// Begins behind a claim at or before `newest`, with the segments behind the checkpoint before it and with
    /// what that had retired. It was in the store before the
    /// claim, so an entry behind the claim is behind it too.
    pub fn new(
        newest: Seq,
        uncovered: BTreeMap<Seq, Uncovered>,
        retired: Vec<Retired>,
        now: Duration,
    ) -> Space {
        let since = Since { stored_at: now, given: newest };
        let state = State {
            segments: None,
            vacated: BTreeMap::new(),
            used_up: Vec::new(),
            orphans: Orphans::default(),
            grace: Grace::new(retired, since),
            newest,
            uncovered,
            unlearned_blocks: 0,
            refused: None,
            counters: SpaceCounters::default(),
        };
        Space { state: Mutex::new(state), changes: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Tells of everything that changes what the others here answer, but of commits.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// An entry with so many bytes of data is in the map.
    pub fn committed(&self, seq: Seq, segment: Uncovered, data_bytes: u64) {
        let mut state = self.state();
        debug_assert!(seq > state.newest, "entries are committed in order");
        state.newest = seq;
        let counters = &mut state.counters;
        if segment.is_moved {
            counters.moved_bytes += segment.stored_bytes;
            counters.moved_data_bytes += data_bytes;
        } else {
            counters.written_bytes += segment.stored_bytes;
        }
        state.uncovered.insert(seq, segment);
    }

    /// The newest entry that is in the map.
    pub fn newest(&self) -> Seq {
        self.state().newest
    }

    /// How many segments there are, about: without those behind the newest checkpoint.
    pub fn segments(&self) -> u64 {
        self.state().segments.as_ref().map_or(0, |segments| segments.totals().segments)
    }

    /// The counts are known.
    pub fn load(&self, segments: Segments) {
        self.state().segments = Some(segments);
        self.changed();
    }

    pub fn is_loaded(&self) -> bool {
        self.state().segments.is_some()
    }

    /// Whether blocks that die in a segment are to be counted: not in one that is gone.
    pub fn counts(&self, seq: Seq) -> bool {
        self.state().segments.as_ref().is_none_or(|segments| segments.get(seq).is_some())
    }

    /// So many blocks are dead, probably, of which the counts do not know.
    pub fn expect(&self, unlearned_blocks: u64) {
        self.state().unlearned_blocks = unlearned_blocks;
    }

    /// Takes changes of the counts, in ascending order.
    pub fn apply(&self, changes: impl IntoIterator<Item = SegmentUsage>) {
        if let Some(segments) = &mut self.state().segments {
            changes.into_iter().for_each(|usage| segments.apply(&usage));
        }
    }

    /// All counts, ascending; empty before they are known.
    pub fn all(&self) -> Vec<(Seq, Counts)> {
        self.state().segments.as_ref().map_or_else(Vec::new, |segments| segments.iter().collect())
    }

    /// Nothing that is live lies in these segments, in any state from `from` on: so say lookups of all their blocks.
    pub fn vacate(&self, segments: &[Seq], from: Seq) {
        let mut state = self.state();
        debug_assert!(from <= state.newest, "what is not in the map yet says nothing");
        state.vacated.extend(segments.iter().map(|&seq| (seq, from)));
        state.counters.vacated_segments += segments.len() as u64;
        drop(state);
        self.changed();
    }

    /// So many bytes of a checkpoint, or of the accounts for one, are in the store.
    pub fn stored(&self, bytes: u64) {
        self.state().counters.checkpoint_bytes += bytes;
    }

    /// Objects of the map that are not in the levels or among the named usage any more.
    pub fn use_up(&self, objects: impl IntoIterator<Item = Retired>) {
        self.state().used_up.extend(objects);
    }

    /// Retires the segments that a checkpoint at `covered` can do without. They are out of the accounts then.
    pub fn retire(&self, covered: Seq) -> Vec<Seq> {
        let mut state = self.state();
        let state = &mut *state;
        let Some(segments) = &mut state.segments else { return Vec::new() };
        let mut room = RETIRED_MAX.saturating_sub(state.grace.len());
        let mut out = Vec::new();
        let vacated: Vec<Seq> =
            state.vacated.iter().filter(|(_, from)| **from <= covered).map(|(seq, _)| *seq).collect();
        for seq in vacated.into_iter().chain(segments.dead().collect::<Vec<_>>()) {
            if room == 0 {
                break;
            }
            state.vacated.remove(&seq);
            let Some(counts) = segments.get(seq) else { continue };
            debug_assert!(seq <= covered);
            segments.apply(&SegmentUsage { seq, change: UsageChange::Gone });
            out.push(seq);
            state.grace.retire(Retired { name: RetiredName::Segment(seq), bytes: counts.stored_bytes });
            room -= 1;
        }
        out.sort_unstable();
        out
    }

    /// What the next checkpoint, at `covered`, names as retired: all of it, what was used up, and orphans, as far as there
    /// is room.
    pub fn retired(&self, covered: Seq) -> Vec<Retired> {
        let mut state = self.state();
        let state = &mut *state;
        let room = RETIRED_MAX.saturating_sub(state.grace.len()).min(state.used_up.len());
        for object in state.used_up.drain(..room) {
            state.grace.retire(object);
        }
        let room = RETIRED_MAX.saturating_sub(state.grace.len());
        for object in state.orphans.take(covered, room) {
            state.grace.retire(object);
        }
        state.grace.listed()
    }

    /// Those of some objects that the accounts do not know: neither counted, nor to be deleted, nor to be retired. Before the
    /// counts are known every segment is taken for known.
    pub fn unknown(&self, objects: Vec<Retired>) -> Vec<Retired> {
        let state = self.state();
        let used_up: BTreeSet<RetiredName> = state.used_up.iter().map(|object| object.name).collect();
        let is_counted = |name: &RetiredName| match (name, &state.segments) {
            (RetiredName::Segment(seq), Some(segments)) => {
                segments.get(*seq).is_some() || state.uncovered.contains_key(seq)
            }
            (RetiredName::Segment(_), None) => true,
            (RetiredName::Map(_), _) => false,
        };
        let is_known = |name: &RetiredName| {
            is_counted(name) || used_up.contains(name) || state.grace.has(name) || state.orphans.has(name)
        };
        objects.into_iter().filter(|object| !is_known(&object.name)).collect()
    }

    /// A sweep found these: nothing names them, and no state from `from` on needs them.
    pub fn adopt(&self, orphans: &[Retired], from: Seq) {
        let mut state = self.state();
        debug_assert!(from <= state.newest, "what is not in the map yet says nothing");
        state.counters.swept_objects += orphans.len() as u64;
        state.counters.swept_bytes += orphans.iter().map(|orphan| orphan.bytes).sum::<u64>();
        state.orphans.add(orphans, from);
        drop(state);
        self.changed();
    }

    /// The checkpoint that names what [`retired`](Self::retired) gave last is in the store; `given` is the last slot of the
    /// log that was given out before that was known.
    pub fn checkpoint_stored(&self, covered: Seq, now: Duration, given: Seq) {
        let mut state = self.state();
        state.grace.checkpoint_stored(covered, Since { stored_at: now, given });
        state.uncovered = state.uncovered.split_off(&covered.next());
        drop(state);
        self.changed();
    }

    /// What may be deleted now, at most `count_max` objects.
    pub fn due(&self, now: Duration, grace: Duration, count_max: usize) -> Vec<Retired> {
        self.state().grace.due(now, grace, count_max)
    }

    /// When something may become due by time alone.
    pub fn next_due(&self, grace: Duration) -> Option<Duration> {
        self.state().grace.next_due(grace)
    }

    /// Bytes and number of what only waits for another entry and a checkpoint behind it.
    pub fn waits_for_checkpoint(&self, now: Duration, grace: Duration) -> (u64, u64) {
        let state = self.state();
        let ((bytes, count), (orphan_bytes, orphans)) =
            (state.grace.waits_for_checkpoint(now, grace), state.orphans.sum());
        (bytes + orphan_bytes, count + orphans)
    }

    /// These are not in the store any more.
    pub fn deleted(&self, names: &[RetiredName]) {
        let mut state = self.state();
        let (objects, bytes) = (state.grace.len() as u64, state.grace.bytes());
        state.grace.deleted(names);
        let (objects, bytes) = (objects - state.grace.len() as u64, bytes - state.grace.bytes());
        state.counters.deleted_objects += objects;
        state.counters.deleted_bytes += bytes;
        state.refused = state.refused.take().filter(|_| names.is_empty());
        drop(state);
        self.changed();
    }

    /// Something that is due could not be deleted.
    pub fn delete_failed(&self, why: String) {
        self.state().refused = Some(why);
    }

    /// Segments to clean, the best first, until their live data is at least `data_blocks`, without those that are to be
    /// left alone; none while `ratio` stored bytes per live byte hold.
    pub fn victims(&self, ratio: f64, data_blocks: u64, left_alone: &BTreeSet<Seq>) -> Vec<Victim> {
        let state = self.state();
        match &state.segments {
            Some(segments) if state.garbage_exceeds(ratio) => {
                victims::choose(segments, &state.vacated, left_alone, state.newest, data_blocks)
            }
            _ => Vec::new(),
        }
    }

    /// Whether more is stored than that many times what is live, if what was written behind the newest checkpoint has killed as
    /// much.
    pub fn may_exceed(&self, ratio: f64) -> bool {
        self.state()
            .room()
            .is_some_and(|room| room.stored_bytes + room.written_bytes > ratio * room.live_bytes)
    }

    pub fn shown(&self) -> Shown {
        let state = self.state();
        let vacated = state.vacated();
        Shown {
            segments: state.segments.as_ref().map(|segments| segments.totals().without(&vacated)),
            ratio: state.room().and_then(|room| room.ratio()),
            uncovered_bytes: state.uncovered.values().map(|segment| segment.stored_bytes).sum(),
            vacated_bytes: vacated.stored_bytes,
            grace_objects: state.grace.len() as u64,
            grace_bytes: state.grace.bytes(),
            refused: state.refused.clone(),
            counters: state.counters,
        }
    }
}

/// What segments take, and what they take it for, as well as that is known now.
struct Room {
    stored_bytes: f64,
    live_bytes: f64,
    /// What clients wrote behind the newest checkpoint, beside that.
    written_bytes: f64,
}

impl Room {
    fn ratio(&self) -> Option<f64> {
        (self.live_bytes > 0.0).then(|| self.stored_bytes / self.live_bytes)
    }
}

impl State {
    /// Vacated segments that no checkpoint does without yet.
    fn vacated(&self) -> Totals {
        let counts = |segments: &Segments| {
            self.vacated.keys().filter_map(|seq| segments.get(*seq)).fold(Totals::default(), Totals::with)
        };
        self.segments.as_ref().map(counts).unwrap_or_default()
    }

    /// Whether it is time to clean. What was written behind the newest checkpoint may have killed as much or nothing, so it does
    /// not count; and so that the bound holds with it too, a part of what the bound allows is kept for it.
    fn garbage_exceeds(&self, ratio: f64) -> bool {
        let known = 1.0 + (ratio - 1.0) * KNOWN_PART;
        self.room().is_some_and(|room| room.stored_bytes > known * room.live_bytes)
    }

    /// The counts are those of the newest checkpoint. What was moved since is live there instead of where it was.
    fn room(&self) -> Option<Room> {
        let totals = self.segments.as_ref()?.totals().without(&self.vacated());
        let sum = |of: fn(&&Uncovered) -> bool| {
            self.uncovered.values().filter(of).map(|segment| segment.stored_bytes).sum::<u64>() as f64
        };
        let unlearned =
            self.unlearned_blocks.min(totals.live_blocks) as f64 / totals.live_blocks.max(1) as f64;
        Some(Room {
            stored_bytes: totals.stored_bytes as f64 + sum(|segment| segment.is_moved),
            written_bytes: sum(|segment| !segment.is_moved),
            live_bytes: totals.live_bytes as f64 * (1.0 - unlearned) + sum(|segment| segment.is_moved),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 400 bytes in four segments of 100 blocks, so many of which are dead.
    fn space(dead: [u64; 4]) -> Space {
        let space = Space::new(Seq(4), BTreeMap::new(), Vec::new(), Duration::ZERO);
        let mut segments = Segments::default();
        for (seq, dead_blocks) in (1..).zip(dead) {
            let counts = Counts { stored_bytes: 100, written_blocks: 100, dead_blocks, touched: Seq(4) };
            segments.apply(&SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) });
        }
        space.load(segments);
        space
    }

    fn is_cleaned(space: &Space, ratio: f64) -> bool {
        !space.victims(ratio, 1, &BTreeSet::new()).is_empty()
    }

    /// Whether cleaning begins at a known ratio between two that are close.
    fn is_cleaned_above(space: &Space, ratio: f64) -> bool {
        let bound = |known: f64| 1.0 + (known - 1.0) / KNOWN_PART;
        is_cleaned(space, bound(ratio - 0.01)) && !is_cleaned(space, bound(ratio + 0.01))
    }

    /// Nothing is cleaned while the bound holds. What was moved behind the checkpoint is live there instead of in a vacated
    /// segment, what is probably dead is not counted as live, and of what was written since nothing is assumed: a
    /// volume that grows is not cleaned for it. But it may have killed as much, which a checkpoint would tell.
    #[test]
    fn the_bound_is_kept_by_what_is_known_and_by_what_is_probable() {
        let space = space([0, 0, 50, 90]);
        assert!(is_cleaned_above(&space, 400.0 / 260.0));
        space.expect(26);
        assert!(is_cleaned_above(&space, 400.0 / 234.0));
        space.committed(Seq(5), Uncovered { stored_bytes: 50, is_moved: false }, 70);
        assert!(is_cleaned_above(&space, 400.0 / 234.0));
        assert!(space.may_exceed(449.0 / 234.0) && !space.may_exceed(451.0 / 234.0));
        space.expect(0);
        space.committed(Seq(6), Uncovered { stored_bytes: 10, is_moved: true }, 30);
        space.vacate(&[Seq(4)], Seq(6));
        assert!(is_cleaned_above(&space, 310.0 / 260.0));
        let shown = space.shown();
        assert_eq!(shown.ratio, Some(310.0 / 260.0), "what is known is shown");
        let expected = SpaceCounters {
            written_bytes: 50,
            moved_bytes: 10,
            moved_data_bytes: 30,
            vacated_segments: 1,
            ..SpaceCounters::default()
        };
        assert_eq!(shown.counters, expected);
    }

    /// A segment that was vacated is retired by a checkpoint that covers the move, and not by an earlier one; what is dead by
    /// the counts by any.
    #[test]
    fn a_vacated_segment_waits_for_the_checkpoint_that_covers_the_move() {
        let space = space([0, 100, 50, 90]);
        space.committed(Seq(5), Uncovered { stored_bytes: 60, is_moved: true }, 60);
        space.vacate(&[Seq(3), Seq(4)], Seq(5));
        assert_eq!(space.retire(Seq(4)), [Seq(2)]);
        assert_eq!(space.retire(Seq(5)), [Seq(3), Seq(4)]);
        assert_eq!(space.retire(Seq(5)), []);
        assert_eq!(space.retired(Seq(5)).len(), 3);
        assert!(!space.counts(Seq(3)) && space.counts(Seq(1)));
        let [gone, never] = [Seq(3), Seq(1)].map(RetiredName::Segment);
        space.deleted(&[gone, never]);
        let counters = space.shown().counters;
        assert_eq!((counters.deleted_objects, counters.deleted_bytes), (1, 100));
    }
}
