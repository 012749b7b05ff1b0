//! What is retired and not deleted yet, and when it may be.
//!
//! X is due when (1) a checkpoint C that retires it is in the store, (2) so is a later one, C', that covers an entry
//! whose slot was given out when C was in the store already, and (3) the time of grace has passed since. Why
//! that is enough: `docs/design/space.md`.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
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

/// Objects in grace.
#[derive(Debug, Default)]
pub struct Grace {
    objects: BTreeMap<RetiredName, InGrace>,
    bytes: u64,
    /// What the newest checkpoint of this writer covers that is in the store.
    covered: Seq,
}

#[derive(Clone, Copy, Debug)]
struct InGrace {
    bytes: u64,
    /// Since a checkpoint that names it is in the store.
    since: Option<Since>,
}

impl InGrace {
    fn is_over(&self, now: Duration, grace: Duration) -> Option<Since> {
        self.since.filter(|since| now.saturating_sub(since.stored_at) >= grace)
    }
}

impl Grace {
    /// What a checkpoint names that was in the store at `since`.
    pub fn new(retired: Vec<Retired>, since: Since) -> Grace {
        let mut grace = Grace::default();
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
            new.insert(InGrace { bytes: object.bytes, since: None });
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
        for object in self.objects.values_mut() {
            object.since.get_or_insert(since);
        }
    }

    /// What may be deleted, without some.
    pub fn due(
        &self,
        now: Duration,
        grace: Duration,
        count_max: usize,
        without: &BTreeSet<RetiredName>,
    ) -> Vec<Retired> {
        let is_due =
            |object: &InGrace| object.is_over(now, grace).is_some_and(|since| self.covered > since.given);
        let due = self.objects.iter().filter(|(name, object)| is_due(object) && !without.contains(name));
        due.take(count_max).map(|(&name, object)| Retired { name, bytes: object.bytes }).collect()
    }

    /// The next moment at which the time of something is over, if that was not reached long ago.
    pub fn next_due(&self, grace: Duration) -> Option<Duration> {
        self.objects.values().filter_map(|object| object.since).map(|since| since.stored_at + grace).min()
    }

    /// Bytes and number of what only lacks a checkpoint behind another entry.
    pub fn waits_for_checkpoint(&self, now: Duration, grace: Duration) -> (u64, u64) {
        let waits =
            |object: &&InGrace| object.is_over(now, grace).is_some_and(|since| self.covered <= since.given);
        let waiting = self.objects.values().filter(waits);
        waiting.fold((0, 0), |(bytes, count), object| (bytes + object.bytes, count + 1))
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

    fn object(seq: u64) -> Retired {
        Retired { name: RetiredName::Segment(Seq(seq)), bytes: 10 }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn due(grace: &Grace, seconds: u64) -> usize {
        grace.due(at(seconds), GRACE, 100, &BTreeSet::new()).len()
    }

    /// Nothing is due before a second checkpoint covers an entry that was begun behind the first, however long it takes; and
    /// not before the time is over, however many there are.
    #[test]
    fn two_checkpoints_an_entry_between_and_time() {
        let mut grace = Grace::default();
        grace.retire(object(5));
        assert_eq!(due(&grace, 1000), 0, "no checkpoint names it");
        grace.checkpoint_stored(Seq(10), Since { stored_at: at(1000), given: Seq(13) });
        assert_eq!(due(&grace, 2000), 0, "the newest checkpoint is the only one");
        assert_eq!(grace.waits_for_checkpoint(at(2000), GRACE), (10, 1));
        grace.checkpoint_stored(Seq(13), Since { stored_at: at(1001), given: Seq(20) });
        assert_eq!(due(&grace, 2000), 0, "entry 13 was on its way when the first one was stored");
        grace.checkpoint_stored(Seq(14), Since { stored_at: at(1002), given: Seq(20) });
        assert_eq!(due(&grace, 1059), 0, "readers have a minute");
        assert_eq!(grace.next_due(GRACE), Some(at(1060)));
        assert_eq!(due(&grace, 1060), 1);
        assert_eq!(grace.waits_for_checkpoint(at(2000), GRACE), (0, 0));
        grace.deleted(&[RetiredName::Segment(Seq(5))]);
        assert_eq!((grace.len(), grace.bytes(), due(&grace, 2000)), (0, 0, 0));
    }

    /// Where what says that a segment is gone was lost, it is retired once more: it is counted once, and its time goes on.
    #[test]
    fn what_is_retired_again_is_counted_once() {
        let mut grace = Grace::new(vec![object(5)], Since { stored_at: at(100), given: Seq(30) });
        grace.retire(object(5));
        assert_eq!((grace.len(), grace.bytes()), (1, 10));
        grace.checkpoint_stored(Seq(31), Since { stored_at: at(110), given: Seq(31) });
        assert_eq!((due(&grace, 159), due(&grace, 160)), (0, 1));
    }

    /// What a predecessor retired has its time once more, and waits for an entry behind the claim.
    #[test]
    fn what_a_predecessor_retired_waits_again() {
        let mut grace = Grace::new(vec![object(5)], Since { stored_at: at(100), given: Seq(30) });
        assert_eq!(due(&grace, 1000), 0);
        grace.checkpoint_stored(Seq(31), Since { stored_at: at(110), given: Seq(31) });
        assert_eq!((due(&grace, 159), due(&grace, 160)), (0, 1));
    }
}
