//! GETs under way, and what prefetches brought that nobody has read yet. No IO.
//!
//! A reader asks which parts of its range somebody fetches already, and fetches the rest. What a
//! prefetch brings stays here, bounded in bytes, until it was read or newer prefetches need the
//! room: its reader gets it from memory, also where there is no chunk cache.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::Shared};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::CacheKey;
use crate::Result;

/// What a GET under way will tell. A sender that went without a word was cancelled. Those who wait
/// are woken in the order in which they came (a watch channel has an order of its own chance,
/// which the simulator could not replay).
pub(super) type Outcome = Shared<oneshot::Receiver<Result<Bytes>>>;

/// Names a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// Who wants what a GET brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A reader waits for it; it is gone when it has told.
    Demand,
    /// A reader is expected; it stays.
    Ahead,
    /// It goes to the chunk cache only.
    Warm,
}

/// A GET under way or landed.
#[derive(Clone)]
pub(super) struct Flight {
    pub range: Range<u64>,
    pub outcome: Outcome,
    pub purpose: Purpose,
    ticket: Ticket,
    landed: bool,
    /// Bytes that readers took.
    taken: u64,
}

/// A part of a range: somebody fetches it, or nobody does.
pub(super) struct Part {
    pub range: Range<u64>,
    pub flight: Option<Flight>,
}

/// What became of prefetched bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadCounts {
    pub fetched_bytes: u64,
    pub used_bytes: u64,
    /// Pushed out before anybody read them.
    pub wasted_bytes: u64,
    /// Reads that had to wait for a prefetch under way.
    pub waits: u64,
}

pub(super) struct Flights {
    objects: BTreeMap<CacheKey, Vec<Flight>>,
    /// What landed and stays, oldest first. May name flights that are gone.
    landed: VecDeque<(CacheKey, Ticket)>,
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
            landed: VecDeque::new(),
            held_bytes: 0,
            landed_bytes: 0,
            held_bytes_max,
            under_way_bytes: 0,
            tickets: 0,
            counts: AheadCounts::default(),
        }
    }

    /// `range` in ascending parts without gaps. What prefetches have of it counts as taken.
    pub fn cover(&mut self, object: CacheKey, range: &Range<u64>) -> Vec<Part> {
        let Some(list) = self.objects.get_mut(&object) else {
            return vec![Part { range: range.clone(), flight: None }];
        };
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let covering = list.iter_mut().filter(|f| f.range.contains(&at)).max_by_key(|f| f.range.end);
            let (end, flight) = match covering {
                Some(flight) => {
                    let end = flight.range.end.min(range.end);
                    flight.taken += end - at;
                    (end, Some(flight.clone()))
                }
                None => {
                    let next = list.iter().map(|f| f.range.start).filter(|start| *start > at).min();
                    (next.map_or(range.end, |next| next.min(range.end)), None)
                }
            };
            parts.push(Part { range: at..end, flight });
            at = end;
        }
        self.drop_read(object);
        parts
    }

    /// The parts of `range` that nobody fetches, without counting as a reader.
    pub fn gaps(&self, object: CacheKey, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let list = self.objects.get(&object).map_or(&[][..], Vec::as_slice);
        while at < range.end {
            if let Some(end) = list.iter().filter(|f| f.range.contains(&at)).map(|f| f.range.end).max() {
                at = end;
                continue;
            }
            let next = list.iter().map(|f| f.range.start).filter(|start| *start > at).min();
            let end = next.map_or(range.end, |next| next.min(range.end));
            gaps.push(at..end);
            at = end;
        }
        gaps
    }

    /// What will be told of the GETs that touch `range`.
    pub fn touching(&self, object: CacheKey, range: &Range<u64>) -> Vec<Outcome> {
        let list = self.objects.get(&object).map_or(&[][..], Vec::as_slice);
        let touches = |f: &&Flight| f.range.start < range.end && range.start < f.range.end;
        list.iter().filter(touches).map(|f| f.outcome.clone()).collect()
    }

    /// A GET under way that a reader would have to wait for and that has all of `range`.
    pub fn joinable(&self, object: CacheKey, range: &Range<u64>, demand_only: bool) -> Option<Flight> {
        let covers = |f: &&Flight| {
            f.range.start <= range.start
                && range.end <= f.range.end
                && (!demand_only || f.purpose == Purpose::Demand)
        };
        self.objects.get(&object)?.iter().find(covers).cloned()
    }

    /// Bytes that GETs have yet to bring.
    pub fn under_way_bytes(&self) -> u64 {
        self.under_way_bytes
    }

    /// Makes room for a prefetch of so many bytes, or says that there is none.
    pub fn make_room(&mut self, bytes: u64) -> bool {
        if self.held_bytes - self.landed_bytes + bytes > self.held_bytes_max {
            return false; // what is under way alone is too much
        }
        while self.held_bytes + bytes > self.held_bytes_max {
            let Some((object, ticket)) = self.landed.pop_front() else { return false };
            if let Some(flight) = self.remove(object, ticket) {
                let len = flight.range.end - flight.range.start;
                self.counts.wasted_bytes += len.saturating_sub(flight.taken);
            }
        }
        true
    }

    /// A GET begins.
    pub fn begin(
        &mut self,
        object: CacheKey,
        range: Range<u64>,
        purpose: Purpose,
    ) -> (Ticket, oneshot::Sender<Result<Bytes>>) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (tell, outcome) = oneshot::channel();
        self.under_way_bytes += range.end - range.start;
        if purpose == Purpose::Ahead {
            self.held_bytes += range.end - range.start;
        }
        let outcome = outcome.shared();
        let flight = Flight { range, outcome, purpose, ticket, landed: false, taken: 0 };
        self.objects.entry(object).or_default().push(flight);
        (ticket, tell)
    }

    /// A GET has ended, well or not. What a prefetch brought stays.
    pub fn end(&mut self, object: CacheKey, ticket: Ticket, bytes: Option<u64>) {
        let list = self.objects.get_mut(&object);
        let flight = list.and_then(|list| list.iter_mut().find(|f| f.ticket == ticket));
        match (flight, bytes) {
            (Some(flight), Some(bytes)) if flight.purpose == Purpose::Ahead => {
                flight.landed = true;
                self.under_way_bytes -= flight.range.end - flight.range.start;
                self.landed_bytes += flight.range.end - flight.range.start;
                self.counts.fetched_bytes += bytes;
                self.landed.push_back((object, ticket));
                self.drop_read(object);
            }
            _ => _ = self.remove(object, ticket),
        }
    }

    /// Nothing of an object is served from here any more.
    pub fn forget(&mut self, object: CacheKey) {
        while let Some(ticket) = self.objects.get(&object).and_then(|list| list.first()).map(|f| f.ticket) {
            self.remove(object, ticket);
        }
    }

    #[cfg(test)]
    fn held(&self) -> u64 {
        self.held_bytes
    }

    /// Drops what landed and was read in full.
    fn drop_read(&mut self, object: CacheKey) {
        let is_read = |f: &&Flight| f.landed && f.taken >= f.range.end - f.range.start;
        while let Some(ticket) =
            self.objects.get(&object).and_then(|l| l.iter().find(is_read)).map(|f| f.ticket)
        {
            self.remove(object, ticket);
            self.landed.retain(|(_, other)| *other != ticket);
        }
    }

    fn remove(&mut self, object: CacheKey, ticket: Ticket) -> Option<Flight> {
        let list = self.objects.get_mut(&object)?;
        let at = list.iter().position(|f| f.ticket == ticket)?;
        let flight = list.remove(at);
        if list.is_empty() {
            self.objects.remove(&object);
        }
        let len = flight.range.end - flight.range.start;
        self.under_way_bytes -= if flight.landed { 0 } else { len };
        if flight.purpose == Purpose::Ahead {
            self.held_bytes -= len;
            self.landed_bytes -= if flight.landed { len } else { 0 };
            self.counts.used_bytes += flight.taken.min(len);
        }
        Some(flight)
    }
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
        Begin { object: u64, start: u64, len: u64, ahead: bool },
        End { nth: usize, well: bool },
        Cover { object: u64, start: u64, len: u64 },
        Forget(u64),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => (0u64..3, 0u64..100, 1u64..40, any::<bool>())
                .prop_map(|(object, start, len, ahead)| Op::Begin { object, start, len, ahead }),
            4 => (0usize..8, any::<bool>()).prop_map(|(nth, well)| Op::End { nth, well }),
            4 => (0u64..3, 0u64..120, 1u64..60).prop_map(|(object, start, len)| Op::Cover { object, start, len }),
            1 => (0u64..3).prop_map(Op::Forget),
        ];
        prop::collection::vec(op, 1..80)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Parts tile the range, gaps are exactly the parts without a flight, a flight has what its
        /// part says, and prefetches never hold more than their bound.
        #[test]
        fn parts_tile_and_memory_is_bounded(ops in ops()) {
            let mut flights = Flights::new(100);
            let mut under_way = Vec::new();
            for op in ops {
                match op {
                    Op::Begin { object, start, len, ahead } => {
                        if !ahead || flights.make_room(len) {
                            let purpose = if ahead { Purpose::Ahead } else { Purpose::Demand };
                            let (ticket, _) = flights.begin(key(object), start..start + len, purpose);
                            under_way.push((key(object), ticket, len));
                        }
                    }
                    Op::End { nth, well } if !under_way.is_empty() => {
                        let (object, ticket, len) = under_way.remove(nth % under_way.len());
                        flights.end(object, ticket, well.then_some(len));
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
                let listed: u64 = flights.objects.values().flatten()
                    .filter(|f| f.purpose == Purpose::Ahead).map(|f| f.range.end - f.range.start).sum();
                prop_assert_eq!(flights.held(), listed);
                let coming: u64 = flights.objects.values().flatten()
                    .filter(|f| !f.landed).map(|f| f.range.end - f.range.start).sum();
                prop_assert_eq!(flights.under_way_bytes(), coming);
            }
            for (object, ticket, _) in under_way {
                flights.end(object, ticket, None);
            }
            for object in 0..3 {
                flights.forget(key(object));
            }
            prop_assert_eq!(flights.held(), 0);
        }
    }
}
