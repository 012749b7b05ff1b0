//! What is known of damage in the store: objects that did not verify, or are not there, named until they
//! read well again.
//!
//! Fed by whoever reads objects, once a copy taken from the store itself was bad: what only a cache had wrong
//! is no damage. An object is known by the places in it that failed, so that its sound parts go on being
//! read as ever, and a place that is known is read past every cache. Invariants: bounded, in objects and in
//! places of each; one line in the log when an object becomes damaged and one when it is sound again. Never
//! decides what is done about it, and costs one relaxed load while nothing is damaged.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    rank::{Locked, Rank, Ranked},
};

/// Objects that are named. Further ones are only counted.
const OBJECTS_MAX: usize = 64;
/// Places of one object that are told apart. Beyond, all of it counts as suspect.
const PLACES_MAX: usize = 32;

/// Damaged objects of one volume.
#[derive(Debug)]
pub struct Damage {
    state: Ranked<State>,
    /// Objects in the state, to be read without its lock.
    count: AtomicUsize,
}

impl Default for Damage {
    fn default() -> Damage {
        Damage { state: Ranked::new(Rank::Tool, State::default()), count: AtomicUsize::new(0) }
    }
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    further: u64,
}

#[derive(Debug)]
struct Object {
    /// Ranges of bytes that failed.
    places: Vec<Range<u64>>,
    detail: String,
    first: Duration,
    last: Duration,
    failures: u64,
}

/// A damaged object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedObject {
    /// Its name in the store, relative to the volume.
    pub object: String,
    /// What was wrong with it the last time.
    pub detail: String,
    /// How long ago that was seen first, and last.
    pub first_ms: u64,
    pub last_ms: u64,
    /// Reads that failed because of it.
    pub failures: u64,
}

/// All damage that is known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageReport {
    pub objects: Vec<DamagedObject>,
    /// Failed reads of objects beyond those that can be named.
    pub further: u64,
}

impl Damage {
    /// Whether nothing is damaged, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether a range of an object touches what is known to be damaged: a copy of it is not worth a look.
    pub fn is_known(&self, object: &str, range: &Range<u64>) -> bool {
        if self.is_empty() {
            return false;
        }
        let touches = |place: &Range<u64>| place.start < range.end && range.start < place.end;
        self.state()
            .objects
            .get(object)
            .is_some_and(|known| known.places.len() >= PLACES_MAX || known.places.iter().any(touches))
    }

    /// Whether an object is named here.
    pub fn names(&self, object: &str) -> bool {
        !self.is_empty() && self.state().objects.contains_key(object)
    }

    /// What came of reading a range of an object from the store itself. Errors that are no damage say nothing.
    pub fn tell<T>(&self, object: &str, range: &Range<u64>, outcome: &Result<T>, now: Duration) {
        match outcome {
            Ok(_) => self.clear(object, range),
            Err(e) if e.is_damage() => self.note(object, range, e, now),
            Err(_) => {}
        }
    }

    /// Reads a whole object at `now`, and once more if it does not verify: a reply may be damaged as well.
    pub async fn read_twice<T, F: Future<Output = Result<T>>>(
        &self,
        object: &str,
        bytes_max: u64,
        now: Duration,
        read: impl Fn() -> F,
    ) -> Result<T> {
        let first = read().await;
        if !first.as_ref().is_err_and(Error::is_damage) {
            return first;
        }
        let second = read().await;
        self.tell(object, &(0..bytes_max), &second, now);
        second
    }

    /// What is known at `now`.
    pub fn report(&self, now: Duration) -> DamageReport {
        let state = self.state();
        let age_ms = |then: Duration| now.saturating_sub(then).as_millis() as u64;
        let describe = |(name, known): (&String, &Object)| DamagedObject {
            object: name.clone(),
            detail: known.detail.clone(),
            first_ms: age_ms(known.first),
            last_ms: age_ms(known.last),
            failures: known.failures,
        };
        DamageReport { objects: state.objects.iter().map(describe).collect(), further: state.further }
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    fn note(&self, object: &str, range: &Range<u64>, e: &Error, now: Duration) {
        let mut state = self.state();
        let is_new = !state.objects.contains_key(object);
        if is_new && state.objects.len() >= OBJECTS_MAX {
            state.further += 1;
            return;
        }
        let known = state.objects.entry(object.to_owned()).or_insert_with(|| Object {
            places: Vec::new(),
            detail: String::new(),
            first: now,
            last: now,
            failures: 0,
        });
        (known.detail, known.last) = (detail(e), now);
        known.failures += 1;
        if known.places.len() < PLACES_MAX && !known.places.contains(range) {
            known.places.push(range.clone());
        }
        self.count.store(state.objects.len(), Relaxed);
        drop(state);
        if is_new {
            tracing::error!(
                object,
                error = %e,
                "an object in the store is damaged: reads of what only it holds fail, all else goes on"
            );
        }
    }

    fn clear(&self, object: &str, range: &Range<u64>) {
        if self.is_empty() {
            return;
        }
        let mut state = self.state();
        let Some(known) = state.objects.get_mut(object) else { return };
        known.places.retain(|place| place.start < range.start || range.end < place.end);
        if !known.places.is_empty() {
            return;
        }
        state.objects.remove(object);
        self.count.store(state.objects.len(), Relaxed);
        drop(state);
        tracing::info!(object, "an object that was damaged reads well again");
    }
}

/// What is wrong, without the object's name.
fn detail(e: &Error) -> String {
    match e {
        Error::Corrupt { detail, .. } => detail.clone(),
        Error::NotFound(_) => "it is missing".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    fn bad() -> Result<()> {
        Err(Error::corrupt("x", "a bit is wrong"))
    }

    /// An object is named from the first bad place to the last that reads well again, and only what touches
    /// a bad place is suspect.
    #[test]
    fn an_object_is_named_until_all_of_it_reads_well() {
        let damage = Damage::default();
        damage.tell("log/1", &(0..10), &bad(), NOW);
        damage.tell("log/1", &(50..60), &bad(), NOW);
        damage.tell("log/1", &(50..60), &bad(), NOW);
        assert!(damage.is_known("log/1", &(5..6)) && damage.is_known("log/1", &(40..51)));
        assert!(!damage.is_known("log/1", &(10..50)) && !damage.is_known("log/2", &(0..10)));
        damage.tell("log/1", &(0..9), &Ok(()), NOW); // not all of the place
        damage.tell("log/1", &(0..60), &Err::<(), _>(Error::Unreachable("away".into())), NOW);
        let report = damage.report(NOW + Duration::from_secs(2));
        let object = DamagedObject {
            object: "log/1".into(),
            detail: "a bit is wrong".into(),
            first_ms: 2000,
            last_ms: 2000,
            failures: 3,
        };
        assert_eq!(report, DamageReport { objects: vec![object], further: 0 });
        damage.tell("log/1", &(0..10), &Ok(()), NOW);
        assert!(damage.names("log/1"));
        damage.tell("log/1", &(40..70), &Ok(()), NOW);
        assert!(!damage.names("log/1") && damage.is_empty());
    }

    /// Whatever a store does, so many objects and places are kept and no more; one with too many bad places
    /// is suspect as a whole, and still becomes sound place by place.
    #[test]
    fn what_is_kept_is_bounded() {
        let damage = Damage::default();
        for n in 0..1000 {
            damage.tell(&format!("log/{n}"), &(0..1), &bad(), NOW);
            damage.tell("log/0", &(n..n + 1), &bad(), NOW);
        }
        let report = damage.report(NOW);
        assert_eq!((report.objects.len(), report.further), (OBJECTS_MAX, 1000 - OBJECTS_MAX as u64));
        assert!(damage.is_known("log/0", &(5000..5001)));
        damage.tell("log/0", &(0..1000), &Ok(()), NOW);
        assert!(!damage.names("log/0"));
    }
}
