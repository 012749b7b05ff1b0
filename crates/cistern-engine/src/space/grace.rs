//! What is retired and not deleted yet, and when it may be.
//!
//! X is due when (1) a checkpoint C that retires it is in the store, (2) so is a later one, C', that covers an entry
//! whose slot was given out when C was in the store already, and (3) the time of grace has passed since, which is for readers. Why
//! that is enough: `docs/design/space.md`.
//!
//! A slot of the log is empty only when, beside that, a checkpoint that covers it is in the store for the slot grace: a copy of a writer that slept
//! may put something into it, late, and must meet something. What is due before gives way to a few bytes, and stays listed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    time::Duration,
};

use crate::{
    log::checkpoint::{Retired, RetiredName},
    units::Seq,
};

/// The moment at which it was known that a checkpoint is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// By the clock that does not jump.
    pub stored_at: Duration,
    /// The last slot of the log that had been given out.
    pub given: Seq,
}

/// How long things stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graces {
    /// What is retired, for readers, from the checkpoint on that retires it.
    pub readers: Duration,
    /// What lies in a slot of the log, from the first checkpoint on that covers it: the volume's, the same for all writers.
    pub slots: Duration,
}

/// What may be done with objects that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    pub deleted: Vec<Retired>,
    /// Segments whose slots are to be emptied, and not free yet.
    pub emptied: Vec<Seq>,
}

impl Due {
    pub fn is_empty(&self) -> bool {
        self.deleted.is_empty() && self.emptied.is_empty()
    }
}

/// Objects in grace.
#[derive(Debug, Default)]
pub struct Grace {
    objects: BTreeMap<RetiredName, InGrace>,
    bytes: u64,
    /// What the newest checkpoint of this writer covers that is in the store.
    covered: Seq,
    /// When checkpoints were known to be in the store, and what they cover: ascending, and of those that are there for the slot grace one at most.
    covers: VecDeque<(Duration, Seq)>,
}

#[derive(Clone, Copy, Debug)]
struct InGrace {
    bytes: u64,
    /// It is a segment of which nothing is left but that its slot is not empty.
    is_emptied: bool,
    /// Since a checkpoint that names it is in the store.
    since: Option<Since>,
}

impl InGrace {
    fn is_over(&self, now: Duration, grace: Duration) -> Option<Since> {
        self.since.filter(|since| now.saturating_sub(since.stored_at) >= grace)
    }
}

impl Grace {
    /// What a checkpoint names that covers the log up to `covered` and was in the store at `since`.
    pub fn new(retired: Vec<Retired>, covered: Seq, since: Since) -> Grace {
        let mut grace = Grace::default();
        grace.covers.push_back((since.stored_at, covered));
        for object in retired {
            grace.retire(object);
        }
        grace.objects.values_mut().for_each(|object| object.since = Some(since));
        grace
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn has(&self, name: &RetiredName) -> bool {
        self.objects.contains_key(name)
    }

    /// To be named by the next checkpoint. What is retired already stays as it is: where a usage object was lost, a segment
    /// that is gone may come up again.
    pub fn retire(&mut self, object: Retired) {
        if let Entry::Vacant(new) = self.objects.entry(object.name) {
            new.insert(InGrace { bytes: object.bytes, is_emptied: false, since: None });
            self.bytes += object.bytes;
        }
    }

    /// All of it.
    pub fn listed(&self) -> Vec<Retired> {
        self.objects.iter().map(|(&name, object)| Retired { name, bytes: object.bytes }).collect()
    }

    /// A checkpoint that names all of it is in the store.
    pub fn covered(&self) -> Seq {
        self.covered
    }

    pub fn checkpoint_stored(&mut self, covered: Seq, since: Since) {
        debug_assert!(covered >= self.covered, "checkpoints cover more and more");
        self.covered = covered;
        self.covers.push_back((since.stored_at, covered));
        for object in self.objects.values_mut() {
            object.since.get_or_insert(since);
        }
    }

    /// Forgets when checkpoints were stored that are there for the slot grace, but for the newest of these.
    fn forget_covers(&mut self, now: Duration, slots: Duration) {
        while self.covers.get(1).is_some_and(|(stored_at, _)| *stored_at + slots <= now) {
            self.covers.pop_front();
        }
    }

    /// When the slot of a segment may be empty; never, as far as is known, before a checkpoint of this writer covers it.
    fn slot_free_at(&self, name: &RetiredName, slots: Duration) -> Option<Duration> {
        match name {
            RetiredName::Map(_) => Some(Duration::ZERO),
            RetiredName::Segment(_) if slots.is_zero() => Some(Duration::ZERO),
            RetiredName::Segment(seq) => {
                let first = self.covers.get(self.covers.partition_point(|(_, covered)| covered < seq));
                first.map(|(stored_at, _)| *stored_at + slots)
            }
        }
    }

    /// What may be deleted or emptied, without some.
    pub fn due(
        &mut self,
        now: Duration,
        graces: Graces,
        count_max: usize,
        without: &BTreeSet<RetiredName>,
    ) -> Due {
        self.forget_covers(now, graces.slots);
        let is_due = |object: &InGrace| {
            object.is_over(now, graces.readers).is_some_and(|since| self.covered > since.given)
        };
        let mut due = Due::default();
        for (&name, object) in &self.objects {
            if due.deleted.len() + due.emptied.len() == count_max {
                break;
            }
            if !is_due(object) || without.contains(&name) {
                continue;
            }
            let is_free = self.slot_free_at(&name, graces.slots).is_some_and(|at| at <= now);
            match name {
                RetiredName::Segment(seq) if !is_free => {
                    if !object.is_emptied {
                        due.emptied.push(seq);
                    }
                }
                _ => due.deleted.push(Retired { name, bytes: object.bytes }),
            }
        }
        due
    }

    /// The next moment behind `now` at which the time of something is over.
    pub fn next_due(&self, now: Duration, graces: Graces) -> Option<Duration> {
        let at = |(name, object): (&RetiredName, &InGrace)| {
            let over = object.since?.stored_at + graces.readers;
            let free = self.slot_free_at(name, graces.slots);
            [Some(over), free].into_iter().flatten().filter(|at| *at > now).min()
        };
        self.objects.iter().filter_map(at).min()
    }

    /// Bytes and number of what only lacks a checkpoint behind another entry.
    pub fn waits_for_checkpoint(&self, now: Duration, grace: Duration) -> (u64, u64) {
        let waits =
            |object: &&InGrace| object.is_over(now, grace).is_some_and(|since| self.covered <= since.given);
        let waiting = self.objects.values().filter(waits);
        waiting.fold((0, 0), |(bytes, count), object| (bytes + object.bytes, count + 1))
    }

    /// The slots of segments have so many bytes left in them.
    pub fn emptied(&mut self, segments: &[(Seq, u64)]) {
        for (seq, bytes) in segments {
            let Some(object) = self.objects.get_mut(&RetiredName::Segment(*seq)) else { continue };
            debug_assert!(
                object.since.is_some(),
                "only what a stored checkpoint retires is emptied: {seq:?}"
            );
            self.bytes = self.bytes - object.bytes + bytes;
            (object.bytes, object.is_emptied) = (*bytes, true);
        }
    }

    pub fn deleted(&mut self, names: &[RetiredName]) {
        for name in names {
            let Some(object) = self.objects.remove(name) else { continue };
            debug_assert!(
                object.since.is_some(),
                "only what a stored checkpoint retires is deleted: {name:?}"
            );
            self.bytes -= object.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);
    const GRACES: Graces = Graces { readers: GRACE, slots: Duration::ZERO };

    fn object(seq: u64) -> Retired {
        Retired { name: RetiredName::Segment(Seq(seq)), bytes: 10 }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn due(grace: &mut Grace, seconds: u64) -> usize {
        grace.due(at(seconds), GRACES, 100, &BTreeSet::new()).deleted.len()
    }

    /// Nothing is due before a second checkpoint covers an entry that was begun behind the first, however long it takes; and
    /// not before the time is over, however many there are.
    #[test]
    fn two_checkpoints_an_entry_between_and_time() {
        let mut grace = Grace::default();
        grace.retire(object(5));
        assert_eq!(due(&mut grace, 1000), 0, "no checkpoint names it");
        grace.checkpoint_stored(Seq(10), Since { stored_at: at(1000), given: Seq(13) });
        assert_eq!(due(&mut grace, 2000), 0, "the newest checkpoint is the only one");
        assert_eq!(grace.waits_for_checkpoint(at(2000), GRACE), (10, 1));
        grace.checkpoint_stored(Seq(13), Since { stored_at: at(1001), given: Seq(20) });
        assert_eq!(due(&mut grace, 2000), 0, "entry 13 was on its way when the first one was stored");
        grace.checkpoint_stored(Seq(14), Since { stored_at: at(1002), given: Seq(20) });
        assert_eq!(due(&mut grace, 1059), 0, "readers have a minute");
        assert_eq!(grace.next_due(at(1059), GRACES), Some(at(1060)));
        assert_eq!(due(&mut grace, 1060), 1);
        assert_eq!(grace.waits_for_checkpoint(at(2000), GRACE), (0, 0));
        grace.deleted(&[RetiredName::Segment(Seq(5))]);
        assert_eq!(due(&mut grace, 2000), 0);
        assert_eq!((grace.len(), grace.bytes()), (0, 0));
    }

    /// Where what says that a segment is gone was lost, it is retired once more: it is counted once, and its time goes on.
    #[test]
    fn what_is_retired_again_is_counted_once() {
        let mut grace = Grace::new(vec![object(5)], Seq(9), Since { stored_at: at(100), given: Seq(30) });
        grace.retire(object(5));
        assert_eq!((grace.len(), grace.bytes()), (1, 10));
        grace.checkpoint_stored(Seq(31), Since { stored_at: at(110), given: Seq(31) });
        assert_eq!((due(&mut grace, 159), due(&mut grace, 160)), (0, 1));
    }

    /// What a predecessor retired has its time once more, and waits for an entry behind the claim.
    #[test]
    fn what_a_predecessor_retired_waits_again() {
        let mut grace = Grace::new(vec![object(5)], Seq(9), Since { stored_at: at(100), given: Seq(30) });
        assert_eq!(due(&mut grace, 1000), 0);
        grace.checkpoint_stored(Seq(31), Since { stored_at: at(110), given: Seq(31) });
        assert_eq!((due(&mut grace, 159), due(&mut grace, 160)), (0, 1));
    }

    /// Where readers need it no more, a segment is emptied at once, and its slot is free when a checkpoint that covers it is there for the slot grace,
    /// which began before the segment was retired. A run has no slot.
    #[test]
    fn a_slot_stays_filled_for_its_own_grace() {
        let graces = Graces { readers: at(5), slots: GRACE };
        let none = BTreeSet::new();
        let mut grace = Grace::default();
        grace.checkpoint_stored(Seq(4), Since { stored_at: at(1000), given: Seq(4) });
        grace.checkpoint_stored(Seq(6), Since { stored_at: at(1010), given: Seq(6) });
        let run = Retired { name: RetiredName::Map(crate::units::RunId(uuid::Uuid::nil())), bytes: 10 };
        [object(4), object(5), run].into_iter().for_each(|retired| grace.retire(retired));
        grace.checkpoint_stored(Seq(8), Since { stored_at: at(1020), given: Seq(8) });
        grace.checkpoint_stored(Seq(9), Since { stored_at: at(1021), given: Seq(9) });
        assert!(grace.due(at(1024), graces, 9, &none).is_empty());
        assert_eq!(grace.next_due(at(1024), graces), Some(at(1025)));
        let due = grace.due(at(1025), graces, 9, &none);
        assert_eq!(due, Due { deleted: vec![run], emptied: vec![Seq(4), Seq(5)] });
        grace.deleted(&[run.name]);
        grace.emptied(&[(Seq(4), 1), (Seq(5), 1)]);
        assert_eq!(grace.bytes(), 2);
        assert!(grace.due(at(1059), graces, 9, &none).is_empty());
        assert_eq!(grace.next_due(at(1059), graces), Some(at(1060)));
        assert_eq!(grace.due(at(1060), graces, 9, &none).deleted.len(), 1, "the first one");
        assert_eq!(grace.due(at(1070), graces, 9, &none).deleted.len(), 2);
        grace.deleted(&[object(4).name, object(5).name]);
        assert_eq!((grace.len(), grace.bytes()), (0, 0));
    }
}
