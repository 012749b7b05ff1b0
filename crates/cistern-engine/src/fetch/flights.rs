//! GETs under way, and what prefetches brought that nobody has read yet. No IO.
//!
//! A reader asks which parts of its range somebody fetches already, and fetches the rest. What a
//! prefetch brings stays here, bounded in bytes, until what is wanted of it was read: its reader gets it
//! from memory, also where there is no chunk cache. What was fetched for a stream is not pushed out by
//! newer prefetches, which are refused instead, unless nobody came for it for [`STALE`]; neighbours of
//! a miss, which nobody may ever want, make room for anything.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::Shared};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{Result, cache::CacheKey};

/// A stream whose reader stays away for so long has ended.
const STALE: Duration = Duration::from_secs(10);

/// What a GET under way will tell. A sender that went without a word was cancelled. Those who wait
/// are woken in the order in which they came (a watch channel has an order of its own chance,
/// which the simulator could not replay).
pub(super) type Landing = Shared<oneshot::Receiver<Result<Bytes>>>;

/// Names a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// Who wants what a GET brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A reader waits for it; it is gone when it has told.
    Demand,
    /// The reader of a stream is expected; it stays until then.
    Ahead,
    /// It lies beside what a reader waits for; it stays while there is room.
    Beside,
    /// It goes to the chunk cache only.
    Warm,
}

/// A GET under way or landed, for who wants a part of it.
#[derive(Clone)]
pub(super) struct Flight {
    pub range: Range<u64>,
    pub outcome: Landing,
    pub purpose: Purpose,
}

/// A flight on the table.
struct TrackedFlight {
    flight: Flight,
    ticket: Ticket,
    landed: bool,
    /// What is wanted of a prefetch and was not read yet: ascending, apart.
    unread: Vec<Range<u64>>,
}

impl TrackedFlight {
    fn bytes(&self) -> u64 {
        self.flight.range.end - self.flight.range.start
    }

    fn is_kept(&self) -> bool {
        matches!(self.flight.purpose, Purpose::Ahead | Purpose::Beside)
    }
}

/// What a prefetch is to bring, and which parts of it somebody will read.
pub(super) struct PrefetchPlan {
    pub range: Range<u64>,
    pub wanted: Vec<Range<u64>>,
}

/// A part of a range: somebody fetches it, or nobody does.
pub(super) struct CoveredPart {
    pub range: Range<u64>,
    pub flight: Option<Flight>,
}

/// What became of bytes that were prefetched into memory. What lies between wanted ones and came along is fetched, and
/// neither used nor wasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadCounts {
    pub fetched_bytes: u64,
    pub used_bytes: u64,
    /// Wanted, and thrown away before anybody read them.
    pub wasted_bytes: u64,
    /// Reads that had to wait for a prefetch under way.
    pub waits: u64,
}

impl AheadCounts {
    pub(super) fn add(&mut self, other: &AheadCounts) {
        self.fetched_bytes += other.fetched_bytes;
        self.used_bytes += other.used_bytes;
        self.wasted_bytes += other.wasted_bytes;
        self.waits += other.waits;
    }

    /// What came since these were taken, which become `now`. Readers look at the same time, and so one may come with counts that are
    /// older than what another has noted: he learns nothing.
    pub(super) fn learn(&mut self, now: &AheadCounts) -> AheadCounts {
        let mut new = AheadCounts::default();
        for (new, before, now) in [
            (&mut new.fetched_bytes, &mut self.fetched_bytes, now.fetched_bytes),
            (&mut new.used_bytes, &mut self.used_bytes, now.used_bytes),
            (&mut new.wasted_bytes, &mut self.wasted_bytes, now.wasted_bytes),
            (&mut new.waits, &mut self.waits, now.waits),
        ] {
            *new = now.saturating_sub(*before);
            *before = now.max(*before);
        }
        new
    }
}

pub(super) struct Flights {
    objects: BTreeMap<CacheKey, Vec<TrackedFlight>>,
    /// What landed and stays, oldest first, and when it landed: neighbours, and what streams wait for. May name
    /// flights that are gone.
    landed_beside: VecDeque<(CacheKey, Ticket)>,
    landed_ahead: VecDeque<(CacheKey, Ticket, Duration)>,
    /// Bytes of prefetches, under way and landed.
    held_bytes: u64,
    /// Those of them that landed.
    landed_bytes: u64,
    held_bytes_max: u64,
    /// Bytes of all GETs that have not landed, whoever wants them.
    under_way_bytes: u64,
    tickets: u64,
    pub counts: AheadCounts,
}

impl Flights {
    /// `held_bytes_max` bounds what prefetches hold in memory.
    pub fn new(held_bytes_max: u64) -> Flights {
        Flights {
            objects: BTreeMap::new(),
            landed_beside: VecDeque::new(),
            landed_ahead: VecDeque::new(),
            held_bytes: 0,
            landed_bytes: 0,
            held_bytes_max,
            under_way_bytes: 0,
            tickets: 0,
            counts: AheadCounts::default(),
        }
    }

    /// `range` in ascending parts without gaps. What prefetches have of it counts as taken.
    pub fn cover(&mut self, object: CacheKey, range: &Range<u64>) -> Vec<CoveredPart> {
        let Some(list) = self.objects.get_mut(&object) else {
            return vec![CoveredPart { range: range.clone(), flight: None }];
        };
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let covering =
                list.iter_mut().filter(|e| e.flight.range.contains(&at)).max_by_key(|e| e.flight.range.end);
            let (end, flight) = match covering {
                Some(entry) => {
                    let end = entry.flight.range.end.min(range.end);
                    (end, Some(entry.flight.clone()))
                }
                None => {
                    let next = list.iter().map(|e| e.flight.range.start).filter(|start| *start > at).min();
                    (next.map_or(range.end, |next| next.min(range.end)), None)
                }
            };
            debug_assert!(end > at, "every part brings a reader on");
            parts.push(CoveredPart { range: at..end, flight });
            at = end;
        }
        // Whichever flight gave it: nobody comes for these bytes again.
        let read = |entry: &mut TrackedFlight| subtract(&mut entry.unread, range);
        self.counts.used_bytes += list.iter_mut().map(read).sum::<u64>();
        self.drop_read(object);
        self.assert_invariant();
        parts
    }

    /// The parts of `range` that nobody fetches, each with what of `wanted` (ascending, apart) lies in it; what
    /// lies in prefetches under way or landed is kept there until it is read.
    pub fn plan(&mut self, object: CacheKey, range: &Range<u64>, wanted: &[Range<u64>]) -> Vec<PrefetchPlan> {
        debug_assert!(are_apart(wanted), "what is wanted ascends and is apart");
        for entry in self.objects.get_mut(&object).into_iter().flatten().filter(|entry| entry.is_kept()) {
            entry.unread = union(&entry.unread, &within(wanted, &entry.flight.range));
        }
        let gaps = self.gaps(object, range).into_iter();
        gaps.map(|gap| PrefetchPlan { wanted: within(wanted, &gap), range: gap }).collect()
    }

    /// The parts of `range` that nobody fetches, without counting as a reader.
    pub fn gaps(&self, object: CacheKey, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let list = self.objects.get(&object).map_or(&[][..], Vec::as_slice);
        while at < range.end {
            let ranges = list.iter().map(|e| &e.flight.range);
            if let Some(end) = ranges.clone().filter(|r| r.contains(&at)).map(|r| r.end).max() {
                at = end;
                continue;
            }
            let next = ranges.map(|r| r.start).filter(|start| *start > at).min();
            let end = next.map_or(range.end, |next| next.min(range.end));
            debug_assert!(end > at, "every gap is one");
            gaps.push(at..end);
            at = end;
        }
        gaps
    }

    /// What will be told of the GETs that touch `range`.
    pub fn touching(&self, object: CacheKey, range: &Range<u64>) -> Vec<Landing> {
        let list = self.objects.get(&object).map_or(&[][..], Vec::as_slice);
        let flights = list.iter().map(|entry| &entry.flight);
        let touches = |f: &&Flight| f.range.start < range.end && range.start < f.range.end;
        flights.filter(touches).map(|f| f.outcome.clone()).collect()
    }

    /// A GET under way that a reader would have to wait for and that has all of `range`.
    pub fn joinable(&self, object: CacheKey, range: &Range<u64>, demand_only: bool) -> Option<Flight> {
        let covers = |f: &&Flight| {
            f.range.start <= range.start
                && range.end <= f.range.end
                && (!demand_only || f.purpose == Purpose::Demand)
        };
        self.objects.get(&object)?.iter().map(|entry| &entry.flight).find(covers).cloned()
    }

    /// Bytes that GETs have yet to bring.
    pub fn under_way_bytes(&self) -> u64 {
        self.under_way_bytes
    }

    /// Makes room for a prefetch of so many bytes, or says that there is none.
    pub fn make_room(&mut self, bytes: u64, now: Duration) -> bool {
        if self.held_bytes - self.landed_bytes + bytes > self.held_bytes_max {
            return false; // what is under way alone is too much
        }
        while self.held_bytes + bytes > self.held_bytes_max {
            match self.landed_beside.pop_front().or_else(|| self.pop_stale(now)) {
                Some((object, ticket)) => self.remove(object, ticket),
                None => return false, // all of it is waited for
            }
        }
        self.assert_invariant();
        true
    }

    fn pop_stale(&mut self, now: Duration) -> Option<(CacheKey, Ticket)> {
        let (object, ticket, landed) = *self.landed_ahead.front()?;
        (now.saturating_sub(landed) >= STALE).then(|| self.landed_ahead.pop_front())?;
        Some((object, ticket))
    }

    /// A GET begins; `wanted` is what readers are expected to take of a prefetch.
    pub fn begin(
        &mut self,
        object: CacheKey,
        range: Range<u64>,
        purpose: Purpose,
        wanted: Vec<Range<u64>>,
    ) -> (Ticket, oneshot::Sender<Result<Bytes>>) {
        debug_assert!(range.start < range.end, "a GET brings something");
        debug_assert!(are_apart(&wanted), "what is wanted ascends and is apart");
        debug_assert!(
            wanted.iter().all(|w| range.start <= w.start && w.end <= range.end),
            "it brings what is wanted"
        );
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (tell, outcome) = oneshot::channel();
        let flight = Flight { range, outcome: outcome.shared(), purpose };
        let entry = TrackedFlight { flight, ticket, landed: false, unread: wanted };
        self.under_way_bytes += entry.bytes();
        self.held_bytes += if entry.is_kept() { entry.bytes() } else { 0 };
        self.objects.entry(object).or_default().push(entry);
        self.assert_invariant();
        (ticket, tell)
    }

    /// A GET has ended, well or not. What a prefetch brought stays.
    pub fn end(&mut self, object: CacheKey, ticket: Ticket, bytes: Option<u64>, now: Duration) {
        let list = self.objects.get_mut(&object);
        let entry = list.and_then(|list| list.iter_mut().find(|e| e.ticket == ticket));
        match (entry, bytes) {
            (Some(entry), Some(bytes)) if entry.is_kept() => {
                debug_assert!(!entry.landed, "a GET ends once");
                debug_assert!(bytes <= entry.bytes(), "a GET brings no more than it asks for");
                entry.landed = true;
                self.under_way_bytes -= entry.bytes();
                self.landed_bytes += entry.bytes();
                self.counts.fetched_bytes += bytes;
                match entry.flight.purpose {
                    Purpose::Ahead => self.landed_ahead.push_back((object, ticket, now)),
                    _ => self.landed_beside.push_back((object, ticket)),
                }
                self.drop_read(object);
            }
            _ => self.remove(object, ticket),
        }
        self.assert_invariant();
    }

    /// Nothing of an object is served from here any more.
    pub fn forget(&mut self, object: CacheKey) {
        while let Some(ticket) = self.objects.get(&object).and_then(|list| list.first()).map(|f| f.ticket) {
            self.remove(object, ticket);
        }
        self.assert_invariant();
    }

    fn assert_invariant(&self) {
        debug_assert!(self.landed_bytes <= self.held_bytes, "what landed and stays is held");
        debug_assert!(
            self.held_bytes - self.landed_bytes <= self.under_way_bytes,
            "what is held and has not landed is under way"
        );
        debug_assert!(
            !self.objects.is_empty() || (self.held_bytes, self.under_way_bytes) == (0, 0),
            "where nothing is fetched nothing is held"
        );
    }

    #[cfg(test)]
    fn held(&self) -> u64 {
        self.held_bytes
    }

    /// Drops what landed and has nothing that somebody wants.
    fn drop_read(&mut self, object: CacheKey) {
        let is_read = |e: &&TrackedFlight| e.landed && e.unread.is_empty();
        while let Some(ticket) =
            self.objects.get(&object).and_then(|l| l.iter().find(is_read)).map(|e| e.ticket)
        {
            self.remove(object, ticket);
            self.landed_ahead.retain(|(_, other, _)| *other != ticket);
            self.landed_beside.retain(|(_, other)| *other != ticket);
        }
    }

    fn remove(&mut self, object: CacheKey, ticket: Ticket) {
        let Some(list) = self.objects.get_mut(&object) else { return };
        let Some(at) = list.iter().position(|e| e.ticket == ticket) else { return };
        let entry = list.remove(at);
        if list.is_empty() {
            self.objects.remove(&object);
        }
        debug_assert!(
            entry.landed || entry.bytes() <= self.under_way_bytes,
            "what did not land is under way"
        );
        self.under_way_bytes -= if entry.landed { 0 } else { entry.bytes() };
        if entry.is_kept() {
            self.held_bytes -= entry.bytes();
            self.landed_bytes -= if entry.landed { entry.bytes() } else { 0 };
            self.counts.wasted_bytes += total(&entry.unread) * u64::from(entry.landed);
        }
    }
}

fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

/// Whether ranges ascend, each with something in it, and none overlaps the next.
fn are_apart(ranges: &[Range<u64>]) -> bool {
    ranges.iter().all(|r| !r.is_empty()) && ranges.is_sorted_by(|a, b| a.end <= b.start)
}

/// What of `ranges` lies in `bounds`.
pub(super) fn within(ranges: &[Range<u64>], bounds: &Range<u64>) -> Vec<Range<u64>> {
    let cut = ranges.iter().map(|r| r.start.max(bounds.start)..r.end.min(bounds.end));
    cut.filter(|r| !r.is_empty()).collect()
}

/// Takes `range` out of `ranges`; gives how much that was.
fn subtract(ranges: &mut Vec<Range<u64>>, range: &Range<u64>) -> u64 {
    let touches = |r: &Range<u64>| r.start < range.end && range.start < r.end;
    let from = ranges.partition_point(|r| r.end <= range.start);
    let to = from + ranges[from..].iter().take_while(|r| touches(r)).count();
    if from == to {
        return 0;
    }
    let before = total(&ranges[from..to]);
    let ends = [ranges[from].start..range.start, range.end..ranges[to - 1].end];
    let rest: Vec<Range<u64>> = ends.into_iter().filter(|r| r.start < r.end).collect();
    let left = total(&rest);
    ranges.splice(from..to, rest);
    debug_assert!(are_apart(ranges), "what is left ascends and is apart");
    before - left
}

/// Both, ascending and apart.
fn union(a: &[Range<u64>], b: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = [a, b].concat();
    all.sort_unstable_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(all.len());
    for range in all {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u64) -> CacheKey {
        CacheKey::new([3; 16], number)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Begin { object: u64, start: u64, len: u64, purpose: Purpose },
        End { nth: usize, well: bool },
        Cover { object: u64, start: u64, len: u64 },
        Forget(u64),
    }

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0u64..60, 1u64..10).prop_map(|(start, len)| start..start + len), 0..6)
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => (0u64..3, 0u64..100, 1u64..40, 0usize..3).prop_map(|(object, start, len, purpose)| {
                let purpose = [Purpose::Demand, Purpose::Ahead, Purpose::Beside][purpose];
                Op::Begin { object, start, len, purpose }
            }),
            4 => (0usize..8, any::<bool>()).prop_map(|(nth, well)| Op::End { nth, well }),
            4 => (0u64..3, 0u64..120, 1u64..60).prop_map(|(object, start, len)| Op::Cover { object, start, len }),
            1 => (0u64..3).prop_map(Op::Forget),
        ];
        prop::collection::vec(op, 1..80)
    }

    /// Of two readers that look at the same time the slower one comes with counts that are older than what the other has noted: it
    /// learns nothing, and the next one no more than is new.
    #[test]
    fn an_older_look_learns_nothing() {
        let at = |n: u64| AheadCounts { fetched_bytes: 9 * n, used_bytes: n, wasted_bytes: 2 * n, waits: n };
        let mut noted = at(1);
        assert_eq!(noted.learn(&at(5)), at(4));
        assert_eq!(noted.learn(&at(3)), AheadCounts::default());
        assert_eq!(noted.learn(&at(6)), at(1));
    }

    /// What a stream waits for is not pushed out before its reader was away for long; a neighbour is at once.
    #[test]
    fn a_stream_is_waited_for() {
        let mut flights = Flights::new(100);
        let mut now = Duration::ZERO;
        let fetch = |flights: &mut Flights, number: u64, purpose, now| {
            flights.make_room(60, now) && {
                let wanted = union(&[], std::slice::from_ref(&(0..60)));
                let (ticket, _) = flights.begin(key(number), 0..60, purpose, wanted);
                flights.end(key(number), ticket, Some(60), now);
                true
            }
        };
        assert!(fetch(&mut flights, 1, Purpose::Beside, now));
        assert!(fetch(&mut flights, 2, Purpose::Ahead, now), "a neighbour makes room");
        now += STALE / 2;
        assert!(!fetch(&mut flights, 3, Purpose::Ahead, now));
        assert_eq!(flights.counts.wasted_bytes, 60);
        now += STALE / 2;
        assert!(fetch(&mut flights, 3, Purpose::Ahead, now));
        assert_eq!(flights.counts.wasted_bytes, 120);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Ranges are joined and taken away byte by byte as sets of bytes are.
        #[test]
        fn ranges_are_sets(a in ranges(), b in ranges(), taken in (0u64..60, 0u64..30)) {
            let bytes = |ranges: &[Range<u64>]| ranges.iter().cloned().flatten().collect::<std::collections::BTreeSet<u64>>();
            let (a, b) = (union(&a, &[]), union(&b, &[]));
            let mut both = union(&a, &b);
            prop_assert_eq!(bytes(&both), &bytes(&a) | &bytes(&b));
            let taken = taken.0..taken.0 + taken.1;
            let before = bytes(&both);
            prop_assert_eq!(bytes(&within(&both, &taken)), before.iter().copied().filter(|x| taken.contains(x)).collect());
            let count = subtract(&mut both, &taken);
            prop_assert_eq!(bytes(&both), before.iter().copied().filter(|x| !taken.contains(x)).collect());
            prop_assert_eq!(count, (before.len() - bytes(&both).len()) as u64);
            prop_assert!(both.iter().all(|r| !r.is_empty()));
            prop_assert!(both.windows(2).all(|pair| pair[0].end < pair[1].start || pair[0].end == taken.start || pair[1].start == taken.end));
        }

        /// Parts tile the range, gaps are exactly the parts without a flight, a flight has what its
        /// part says, and prefetches never hold more than their bound.
        #[test]
        fn parts_tile_and_memory_is_bounded(ops in ops()) {
            let mut flights = Flights::new(100);
            let mut under_way = Vec::new();
            let mut now = Duration::ZERO;
            for op in ops {
                match op {
                    Op::Begin { object, start, len, purpose } => {
                        now += Duration::from_secs(1);
                        if purpose == Purpose::Demand || flights.make_room(len, now) {
                            let range = start..start + len;
                            let plan = flights.plan(key(object), &range, std::slice::from_ref(&range));
                            let wanted = plan.into_iter().flat_map(|plan| plan.wanted).collect();
                            let (ticket, _) = flights.begin(key(object), range, purpose, wanted);
                            under_way.push((key(object), ticket, len));
                        }
                    }
                    Op::End { nth, well } if !under_way.is_empty() => {
                        let (object, ticket, len) = under_way.remove(nth % under_way.len());
                        flights.end(object, ticket, well.then_some(len), now);
                    }
                    Op::End { .. } => {}
                    Op::Cover { object, start, len } => {
                        let range = start..start + len;
                        let gaps = flights.gaps(key(object), &range);
                        let parts = flights.cover(key(object), &range);
                        let mut at = start;
                        for part in &parts {
                            prop_assert!(part.range.start == at && !part.range.is_empty());
                            at = part.range.end;
                            if let Some(f) = &part.flight {
                                prop_assert!(f.range.start <= part.range.start && part.range.end <= f.range.end);
                            }
                        }
                        prop_assert_eq!(at, range.end);
                        let free: Vec<_> =
                            parts.iter().filter(|p| p.flight.is_none()).map(|p| p.range.clone()).collect();
                        prop_assert_eq!(gaps, free);
                    }
                    Op::Forget(object) => flights.forget(key(object)),
                }
                prop_assert!(flights.held() <= 100);
                let listed: u64 =
                    flights.objects.values().flatten().filter(|e| e.is_kept()).map(TrackedFlight::bytes).sum();
                prop_assert_eq!(flights.held(), listed);
                let coming: u64 =
                    flights.objects.values().flatten().filter(|e| !e.landed).map(TrackedFlight::bytes).sum();
                prop_assert_eq!(flights.under_way_bytes(), coming);
            }
            for (object, ticket, _) in under_way {
                flights.end(object, ticket, None, now);
            }
            for object in 0..3 {
                flights.forget(key(object));
            }
            prop_assert_eq!(flights.held(), 0);
        }
    }
}
