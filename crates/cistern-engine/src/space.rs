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
mod deleting;
mod grace;
mod growth;
mod orphans;
mod plan;
mod policy;
mod room;
mod rounds;
mod segments;
#[cfg(test)]
mod tests;
mod times;
mod victims;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::sync::watch;

pub use counters::SpaceCounters;
pub use deleting::Deleting;
pub use grace::{Due, Graces, Since};
pub use plan::{Plan, plan};
pub use policy::{Bound, Cleaning, Policy, SPACE_BOUND};
pub use rounds::{Retiring, SnapshotPlaces, Vacated, VacatedRound};
pub use segments::{Segments, Totals};
pub use victims::Victim;

use crate::{
    log::{
        checkpoint::{RETIRED_MAX, Retired, RetiredName},
        usage::{Counts, SegmentUsage, UsageChange},
    },
    price::Tariff,
    rank::{Locked, Rank, Ranked},
    units::{SEGMENT_DATA_BYTES_MAX, Seq},
};

use grace::Grace;
use growth::Growth;
use orphans::Orphans;
use policy::Measured;
use room::Young;
use times::Times;
use victims::Situation;

/// How often it is worth a look whether garbage has cost more by now than moving what is live: time alone brings that about.
pub const LOOK_EVERY: Duration = Duration::from_secs(600);

/// Bytes that one round of the cleaner moves, about, and less where memory is small: more are sorted better and fill segments better, and are
/// in memory.
pub const ROUND_BYTES: u64 = ROUND_SEGMENTS * SEGMENT_DATA_BYTES_MAX as u64;
/// The same in full segments.
pub const ROUND_SEGMENTS: u64 = 2;

/// The accounts of one volume that is open for writing.
pub struct Space {
    state: Ranked<State>,
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
    /// Blocks of the segments in the accounts that are dead, probably, and that no merge has met.
    unlearned_blocks: u64,
    /// How much of what was written behind the newest checkpoint is new, probably.
    growth: Growth,
    /// Dead blocks that no merge has met, of segments that are out of the accounts.
    gone_blocks: u64,
    /// Why objects that are due are still there, by who deletes them.
    refused: BTreeMap<Deleting, String>,
    counters: SpaceCounters,
    /// How much may be stored for what is live.
    policy: Policy,
    /// Bytes a second that the cleaner moves by itself at the most.
    rate: Option<u64>,
    times: Times,
    /// What the wall clock was ahead of the one that does not jump, at the beginning.
    wall_ahead: Duration,
    young: Young,
    /// When it is next looked for segments whose cleaning pays, where the bound holds.
    look_at: Duration,
    snapshots: SnapshotPlaces,
    /// Rounds of the cleaner whose victims no checkpoint does without yet, oldest first.
    rounds: Vec<VacatedRound>,
    /// A round is under way, which began here.
    running: Option<Seq>,
}

/// What a volume's accounts begin with.
pub struct Start {
    /// The newest entry, at or behind the claim.
    pub newest: Seq,
    /// The segments behind the checkpoint.
    pub uncovered: BTreeMap<Seq, Uncovered>,
    /// What the checkpoint had retired, and up to where it covers the log.
    pub retired: Vec<Retired>,
    pub covered: Seq,
    /// When the log was where, by the checkpoint.
    pub times: Vec<(Seq, u64)>,
    /// The wall clock, since 1970.
    pub wall: Duration,
    pub policy: Policy,
    /// Bytes a second that the cleaner moves by itself at the most.
    pub rate: Option<u64>,
    pub snapshots: SnapshotPlaces,
}

#[cfg(test)]
impl Start {
    /// Of a volume of which nothing is known yet.
    pub fn at(newest: Seq) -> Start {
        let (uncovered, retired, times, rate) = Default::default();
        let policy = Policy::new(Bound::Auto, crate::price::Tariff::default(), Duration::ZERO);
        let snapshots = SnapshotPlaces::default();
        let covered = Seq(0);
        Start { newest, uncovered, retired, covered, times, wall: Duration::ZERO, policy, rate, snapshots }
    }
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
    /// The bound in force; infinite where nothing is cleaned.
    pub bound: f64,
    pub bound_is_auto: bool,
    /// How often what is live is overwritten in a month, as measured.
    pub overwrites_per_month: f64,
    /// Bytes of what was committed behind the newest checkpoint.
    pub uncovered_bytes: u64,
    /// Vacated segments that wait for a checkpoint.
    pub vacated_bytes: u64,
    /// Garbage that the store bills whatever is done, because it is younger than its minimum duration.
    pub billed_garbage_bytes: u64,
    /// What waits to be deleted.
    pub grace_objects: u64,
    pub grace_bytes: u64,
    /// Why objects that are due are still there, if they are.
    pub refused: Option<String>,
    /// Since the beginning.
    pub counters: SpaceCounters,
}

impl Space {
    /// The checkpoint that it begins from was in the store before the claim, so an entry behind the claim is behind it too.
    pub fn new(from: Start, now: Duration) -> Space {
        let Start { newest, uncovered, retired, covered, times, wall, policy, rate, snapshots } = from;
        let since = Since { stored_at: now, given: newest };
        let state = State {
            segments: None,
            vacated: BTreeMap::new(),
            used_up: Vec::new(),
            orphans: Orphans::default(),
            grace: Grace::new(retired, covered, since),
            newest,
            uncovered,
            unlearned_blocks: 0,
            growth: Growth::default(),
            gone_blocks: 0,
            refused: BTreeMap::new(),
            counters: SpaceCounters::default(),
            policy,
            rate,
            times: Times::new(&times, newest, wall),
            wall_ahead: wall.saturating_sub(now),
            young: Young::default(),
            look_at: now,
            snapshots,
            rounds: Vec::new(),
            running: None,
        };
        Space { state: Ranked::new(Rank::Space, state), changes: watch::Sender::new(0) }
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Tells of everything that changes what the others here answer, but of commits after which there is nothing to clean.
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
        if state.garbage_exceeds(state.policy.ratio()) {
            drop(state);
            self.changed();
        }
    }

    /// From now on this is wanted of the cleaner.
    pub fn set_cleaning(&self, cleaning: Cleaning) {
        let mut state = self.state();
        state.policy.set(cleaning.bound);
        state.rate = cleaning.rate;
        state.look_at = Duration::ZERO;
        drop(state);
        self.changed();
    }

    /// Waits until nothing is to be cleaned any more, whatever there is.
    pub async fn switched_off(&self) {
        let mut changes = self.changes();
        while self.state().policy.ratio().is_finite() {
            let _ = changes.changed().await; // the sender is here
        }
    }

    /// Bytes a second that the cleaner is to move by itself at the most.
    pub fn rate(&self) -> Option<u64> {
        self.state().rate
    }

    /// Bytes of segments that were moved, since the beginning.
    pub fn moved_bytes(&self) -> u64 {
        self.state().counters.moved_bytes
    }

    /// The newest entry that is in the map.
    pub fn newest(&self) -> Seq {
        self.state().newest
    }

    /// What the newest checkpoint in the store covers; 0 before this process has stored one.
    pub fn covered(&self) -> Seq {
        self.state().grace.covered()
    }

    /// How many segments there are, about: without those behind the newest checkpoint.
    pub fn segments(&self) -> u64 {
        self.state().segments.as_ref().map_or(0, |segments| segments.totals().segments)
    }

    /// The counts are known.
    pub fn load(&self, segments: Segments, now: Duration) {
        let mut state = self.state();
        state.segments = Some(segments);
        state.find_young(now);
        drop(state);
        self.changed();
    }

    pub fn is_loaded(&self) -> bool {
        self.state().segments.is_some()
    }

    /// Whether blocks that die in a segment are to be counted: not in one that is gone.
    pub fn counts(&self, seq: Seq) -> bool {
        self.state().segments.as_ref().is_none_or(|segments| segments.get(seq).is_some())
    }

    /// So many blocks are dead in the levels up to `covered`, probably, and no merge has met them.
    pub fn expect(&self, dead_blocks: u64, covered: Seq) {
        let mut state = self.state();
        // What was moved covers its old place, which is in segments that are gone, or go with this checkpoint.
        let going = state.vacated.iter().filter(|&(_, from)| *from <= covered).map(|(&seq, _)| seq);
        let going = state.counted(going);
        state.unlearned_blocks = dead_blocks.saturating_sub(state.gone_blocks + going.live_blocks);
    }

    /// Merges met so many dead blocks of segments that are out of the accounts.
    pub fn met_gone(&self, blocks: u64) {
        let mut state = self.state();
        state.gone_blocks = state.gone_blocks.saturating_sub(blocks);
    }

    /// Takes changes of the counts, in ascending order.
    pub fn apply(&self, changes: impl IntoIterator<Item = SegmentUsage>) {
        let mut state = self.state();
        if let Some(segments) = &mut state.segments {
            changes.into_iter().for_each(|usage| segments.apply(&usage));
            state.count_young();
        }
    }

    /// All counts, ascending; empty before they are known.
    pub fn all(&self) -> Vec<(Seq, Counts)> {
        self.state().segments.as_ref().map_or_else(Vec::new, |segments| segments.iter().collect())
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
    pub fn retire(&self, covered: Seq) -> Retiring {
        let mut state = self.state();
        let state = &mut *state;
        let Some(segments) = &mut state.segments else { return Retiring::default() };
        let mut room = RETIRED_MAX.saturating_sub(state.grace.len());
        let mut rounds = Vec::new();
        // Whole rounds: what is forwarded and what is retired say the same.
        while state.rounds.first().is_some_and(|round| round.from <= covered && round.segments.len() <= room)
        {
            let round = state.rounds.remove(0);
            room -= round.segments.len();
            rounds.push(round);
        }
        let vacated: Vec<Seq> = rounds.iter().flat_map(|round| &round.segments).map(|v| v.seq).collect();
        let kept: BTreeSet<Seq> = rounds
            .iter()
            .chain(&state.rounds)
            .flat_map(|round| &round.kept)
            .map(|held| held.segment)
            .collect();
        let is_spoken_for = |seq: &Seq| kept.contains(seq) || state.running.is_some_and(|base| *seq > base);
        let dead: Vec<Seq> = segments
            .dead()
            .filter(|seq| !is_spoken_for(seq) && !state.vacated.contains_key(seq))
            .take(room)
            .collect();
        let mut out = Vec::with_capacity(vacated.len() + dead.len());
        for seq in vacated.into_iter().chain(dead) {
            state.vacated.remove(&seq);
            let Some(counts) = segments.get(seq) else { continue };
            debug_assert!(seq <= covered);
            segments.apply(&SegmentUsage { seq, change: UsageChange::Gone });
            state.gone_blocks += counts.live_blocks();
            out.push(seq);
            state.grace.retire(Retired { name: RetiredName::Segment(seq), bytes: counts.stored_bytes });
        }
        state.count_young();
        out.sort_unstable();
        Retiring { segments: out, rounds }
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
        let listed = state.grace.listed();
        debug_assert!(listed.len() <= RETIRED_MAX, "a checkpoint that retires more is not read");
        listed
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
        let is_counted = |name: &RetiredName| match name {
            RetiredName::Segment(seq) => {
                state.uncovered.contains_key(seq) || state.counted([*seq]).segments > 0
            }
            RetiredName::Map(_) => false,
        };
        debug_assert!(!orphans.iter().any(|orphan| is_counted(&orphan.name)), "what is counted is no orphan");
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
        debug_assert!(covered <= state.newest, "a checkpoint covers what is in the map");
        debug_assert!(given >= covered, "what it covers had a slot before it was stored");
        state.grace.checkpoint_stored(covered, Since { stored_at: now, given });
        let behind = state.uncovered.split_off(&covered.next());
        let covered_now = std::mem::replace(&mut state.uncovered, behind);
        let written = covered_now.values().filter(|segment| !segment.is_moved);
        state.learn_growth(written.map(|segment| segment.stored_bytes).sum());
        let wall = state.wall(now);
        state.times.note(covered, wall);
        state.find_young(now);
        state.measure(now);
        drop(state);
        self.changed();
    }

    /// When the log was where, for a checkpoint.
    pub fn times(&self) -> Vec<(Seq, u64)> {
        self.state().times.stored()
    }

    /// What may be deleted or emptied now, at most `count_max` objects, without some.
    pub fn due(
        &self,
        now: Duration,
        graces: Graces,
        count_max: usize,
        without: &BTreeSet<RetiredName>,
    ) -> Due {
        let mut state = self.state();
        let due = state.grace.due(now, graces, count_max, without);
        let newest = RetiredName::Segment(state.newest);
        debug_assert!(
            due.deleted.iter().all(|object| object.name != newest) && !due.emptied.contains(&state.newest),
            "the newest entry tells where the log ends"
        );
        due
    }

    /// When something may become due by time alone.
    pub fn next_due(&self, now: Duration, graces: Graces) -> Option<Duration> {
        self.state().grace.next_due(now, graces)
    }

    /// The slots of these segments have so many bytes left in them.
    pub fn emptied(&self, segments: &[(Seq, u64)]) {
        let mut state = self.state();
        let before = state.grace.bytes();
        state.grace.emptied(segments);
        state.counters.deleted_bytes += before.saturating_sub(state.grace.bytes());
        drop(state);
        self.changed();
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
        drop(state);
        self.changed();
    }

    /// Segments to clean, the best first, until their live data is at least `data_blocks`, without those that are to be
    /// left alone. While the bound holds those that pay. Once none is left they are looked for every [`LOOK_EVERY`] only, as
    /// is what need not be read where reading is dear.
    /// `is_cached` tells whether a segment of so many bytes need not be read from the store.
    pub fn victims(
        &self,
        now: Duration,
        data_blocks: u64,
        left_alone: &BTreeSet<Seq>,
        is_cached: &dyn Fn(Seq, u64) -> bool,
    ) -> Vec<Victim> {
        let mut state = self.state();
        state.measure(now);
        let (tariff, for_the_bound) = (state.policy.tariff(), state.garbage_exceeds(state.policy.ratio()));
        let has_waited = tariff.min_days > 0.0;
        let has_time = !for_the_bound || tariff.reading_is_dear() || has_waited;
        if (has_time && now < state.look_at) || !(for_the_bound || state.may_pay()) {
            return Vec::new();
        }
        let chosen = state.choose(tariff, for_the_bound, now, data_blocks, left_alone, is_cached);
        if chosen.is_empty() {
            state.look_at = now + LOOK_EVERY;
        }
        chosen
    }

    /// The same for who asks for it, while more than `ratio` bytes are stored per live byte: at any price.
    pub fn victims_to(
        &self,
        ratio: f64,
        now: Duration,
        data_blocks: u64,
        left_alone: &BTreeSet<Seq>,
    ) -> Vec<Victim> {
        let state = self.state();
        match state.room_of_all().is_some_and(|room| state.exceeds(&room, ratio)) {
            true => state.choose(Tariff::default(), true, now, data_blocks, left_alone, &|_, _| false),
            false => Vec::new(),
        }
    }

    /// Whether more is stored than the bound allows, if what was written behind the newest checkpoint has killed as much.
    pub fn may_exceed(&self) -> bool {
        let state = self.state();
        let ratio = state.policy.ratio();
        state.room().is_some_and(|room| room.stored_bytes + room.written_bytes > ratio * room.live_bytes)
    }

    /// Bytes of segments that only wait for a checkpoint to be retired, and bytes of all others in the accounts.
    pub fn vacated_and_others(&self) -> (u64, u64) {
        let state = self.state();
        let vacated = state.vacated().stored_bytes;
        let all = state.segments.as_ref().map_or(0, |segments| segments.totals().stored_bytes);
        (vacated, all - vacated)
    }

    pub fn shown(&self) -> Shown {
        let state = self.state();
        let vacated = state.vacated();
        Shown {
            segments: state.segments.as_ref().map(|segments| segments.totals().without(&vacated)),
            ratio: state.room().and_then(|room| room.ratio()),
            bound: state.policy.ratio(),
            bound_is_auto: state.policy.is_auto(),
            overwrites_per_month: state.policy.overwrites_per_month(),
            uncovered_bytes: state.uncovered.values().map(|segment| segment.stored_bytes).sum(),
            vacated_bytes: vacated.stored_bytes,
            billed_garbage_bytes: state.young.totals.stored_bytes - state.young.totals.live_bytes,
            grace_objects: state.grace.len() as u64,
            grace_bytes: state.grace.bytes(),
            refused: state.refused.values().next().cloned(),
            counters: state.counters,
        }
    }
}

impl State {
    /// Tells the policy what was counted up to now.
    fn measure(&mut self, now: Duration) {
        let Some(room) = self.room_of_all() else { return };
        let SpaceCounters { written_bytes, moved_bytes, .. } = self.counters;
        let (live_bytes, stored_bytes) = (room.live_bytes as u64, room.stored_bytes as u64);
        self.policy.measure(now, Measured { written_bytes, moved_bytes, live_bytes, stored_bytes });
    }

    /// Vacated segments that no checkpoint does without yet.
    fn vacated(&self) -> Totals {
        self.counted(self.vacated.keys().copied())
    }

    /// The sums over some segments, as far as they are in the accounts.
    fn counted(&self, some: impl IntoIterator<Item = Seq>) -> Totals {
        let Some(segments) = &self.segments else { return Totals::default() };
        some.into_iter().filter_map(|seq| segments.get(seq)).fold(Totals::default(), Totals::with)
    }

    fn choose(
        &self,
        tariff: Tariff,
        for_the_bound: bool,
        now: Duration,
        data_blocks: u64,
        left_alone: &BTreeSet<Seq>,
        is_cached: &dyn Fn(Seq, u64) -> bool,
    ) -> Vec<Victim> {
        let Some(segments) = &self.segments else { return Vec::new() };
        let situation = Situation {
            tariff,
            for_the_bound,
            newest: self.newest,
            times: &self.times,
            now: self.wall(now),
            vacated: &self.vacated,
            left_alone,
            is_cached,
        };
        victims::choose(segments, &situation, data_blocks)
    }
}
