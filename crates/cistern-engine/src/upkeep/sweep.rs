//! The sweep: finds orphans, which nothing names, and has them retired like everything else
//! (`docs/design/space.md`, "Orphans").
//!
//! Owns when that happens and what was found. Deletes nothing: what it adopts is named by a checkpoint first.
//!
//! Invariants: an object is adopted only if two looks, at least a grace apart, found it with nothing that names it; one of the
//! log only where the accounts are whole, if it is a segment of the epoch in force in its slot, and nothing resolves to it.
//! Memory is bounded. Whatever is in doubt stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    Error, Result,
    env::Pauses,
    log::{
        SlotContent,
        checkpoint::{Retired, RetiredName},
        keys, read_entry,
    },
    segment::Entry,
    store::{Listed, Pages},
    units::{Place, Seq},
    upkeep::maintain::Maintainer,
};

/// Graces between sweeps: a day, if a grace is a quarter of an hour.
const REST_GRACES: u32 = 96;
/// The shortest pause between two looks.
const BETWEEN_MIN: Duration = Duration::from_secs(1);
/// Pauses after trouble.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Objects that one look finds at most. More are found by a later one.
const FOUND_MAX: usize = 10_000;
/// Objects of the log that are remembered to stay. More are read again by every look.
const STAYING_MAX: usize = 100_000;

/// What the looks have found so far.
#[derive(Default)]
struct Sweep {
    /// What nothing named at the last look, and its bytes.
    candidates: BTreeMap<RetiredName, u64>,
    /// Objects of the log that the accounts do not know and that stay: fences, and what can not be read.
    staying: BTreeSet<Seq>,
}

impl Sweep {
    fn keep(&mut self, seq: Seq) {
        if self.staying.len() < STAYING_MAX {
            self.staying.insert(seq);
        }
    }

    /// Of what a look found, what the one before had found too, and what waits for the next.
    fn split(&self, found: BTreeMap<RetiredName, u64>) -> (Vec<Retired>, BTreeMap<RetiredName, u64>) {
        let (again, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
            found.into_iter().partition(|(name, _)| self.candidates.contains_key(name));
        (again.into_iter().map(|(name, bytes)| Retired { name, bytes }).collect(), new)
    }
}

impl Maintainer {
    /// Looks for orphans, until dropped: once after an opening, and rarely while something is written.
    pub async fn sweep_orphans(&self) {
        let between = self.grace.max(BETWEEN_MIN);
        let (mut sweep, mut seen) = (Sweep::default(), None);
        loop {
            let rests = seen.is_some() && sweep.candidates.is_empty();
            self.env.sleep(if rests { between * REST_GRACES } else { between }).await;
            let newest = Some(self.progress.newest().covered);
            if rests && seen == newest {
                continue;
            }
            seen = newest;
            let mut pauses = Pauses::new(PAUSE_MIN, PAUSE_MAX);
            while let Err(e) = self.look(&mut sweep).await {
                self.rest("looking for orphans", &e, &mut pauses).await;
            }
        }
    }

    async fn look(&self, sweep: &mut Sweep) -> Result<()> {
        let mut found = BTreeMap::new();
        self.look_into(keys::MAP_PREFIX, Seq(0), sweep, &mut found).await?;
        if let Some(covered) = self.accounts_are_whole_up_to().await? {
            self.look_into(keys::LOG_PREFIX, covered, sweep, &mut found).await?;
        }
        let (again, new) = sweep.split(found);
        let orphans = self.judge(again, sweep).await?;
        sweep.candidates = new;
        if !orphans.is_empty() {
            let bytes: u64 = orphans.iter().map(|orphan| orphan.bytes).sum();
            tracing::info!(
                objects = orphans.len(),
                bytes,
                "orphans: nothing names them, and they will be deleted"
            );
            self.space.adopt(&orphans, self.space.newest());
        }
        Ok(())
    }

    /// Lists a part of the store, the log up to `covered`, and takes what nothing names.
    async fn look_into(
        &self,
        prefix: &str,
        covered: Seq,
        sweep: &mut Sweep,
        found: &mut BTreeMap<RetiredName, u64>,
    ) -> Result<()> {
        let mut pages = Pages::of(self.stores.background.as_ref(), prefix);
        loop {
            self.unpaused().await;
            let Some(page) = pages.next_page().await? else { return Ok(()) };
            let objects: Vec<Retired> = page.iter().filter_map(retirable).collect();
            let is_beyond =
                |object: &Retired| matches!(object.name, RetiredName::Segment(seq) if seq > covered);
            let reaches_beyond = objects.last().is_some_and(is_beyond);
            let within = objects.into_iter().filter(|object| !is_beyond(object)).collect();
            for object in self.unnamed(within).await {
                if found.len() == FOUND_MAX {
                    return Ok(());
                }
                if !self.stays(&object, sweep).await? {
                    found.insert(object.name, object.bytes);
                }
            }
            if reaches_beyond {
                return Ok(());
            }
        }
    }

    /// Whether an object of the log stays that the accounts do not know: unless it is a segment of the epoch in force there.
    async fn stays(&self, object: &Retired, sweep: &mut Sweep) -> Result<bool> {
        let RetiredName::Segment(seq) = object.name else { return Ok(false) };
        if sweep.staying.contains(&seq) {
            return Ok(true);
        }
        if sweep.candidates.contains_key(&object.name) {
            return Ok(false);
        }
        let stays = match self.read(seq, object.bytes).await {
            Ok(SlotContent::Entry(head, entry)) => self.walk.is_fence(&head, &entry),
            Ok(SlotContent::Foreign(_)) => true,
            Err(Error::NotFound(_)) => return Ok(true), // it went meanwhile; a late request may bring it back
            Err(e) if e.is_damage() => true,
            Err(e) => return Err(e),
        };
        if stays {
            sweep.keep(seq);
        }
        Ok(stays)
    }

    /// Leaves out segments to which something resolves, or may: the accounts are wrong then.
    async fn judge(&self, found: Vec<Retired>, sweep: &mut Sweep) -> Result<Vec<Retired>> {
        let mut orphans = Vec::new();
        for object in found {
            let is_needed = match object.name {
                RetiredName::Map(_) => false,
                RetiredName::Segment(seq) => match self.is_needed(seq, object.bytes).await {
                    Err(Error::NotFound(_)) => continue, // it went meanwhile
                    Err(e) if e.is_damage() => true,
                    // Behind a rollback the map may name what was moved away long ago.
                    asked => asked? && !self.is_forwarded(seq).await,
                },
            };
            match object.name {
                RetiredName::Segment(seq) if is_needed => {
                    tracing::warn!(
                        seq = seq.0,
                        "a segment that the accounts do not know may be needed: it stays"
                    );
                    sweep.keep(seq);
                }
                _ => orphans.push(object),
            }
        }
        Ok(orphans)
    }

    /// Whether anything that a segment maps resolves to it.
    async fn is_needed(&self, seq: Seq, bytes: u64) -> Result<bool> {
        let footer = match self.read(seq, bytes).await? {
            SlotContent::Entry(_, Entry::Segment(footer)) => footer,
            SlotContent::Entry(_, Entry::Emptied) => return Ok(false),
            _ => return Ok(true),
        };
        for mapping in footer.mappings {
            let found = self.map.lookup(mapping.extent).await?;
            if found.iter().any(|found| matches!(found.place, Place::Frame(frame) if frame.seq == seq)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn read(&self, seq: Seq, bytes: u64) -> Result<SlotContent> {
        let listed = Listed { key: keys::entry(seq), bytes };
        read_entry(self.stores.background.as_ref(), self.log.keys(), seq, &listed).await
    }
}

/// An object that could be retired, by its name.
fn retirable(listed: &Listed) -> Option<Retired> {
    Some(Retired { name: RetiredName::parse(&listed.key)?, bytes: listed.bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was seen once may be on its way to being named: only what the next look finds as well is an orphan, and only once.
    #[test]
    fn an_orphan_is_found_twice() {
        let name = |n| RetiredName::Segment(Seq(n));
        let found = |names: &[u64]| names.iter().map(|&n| (name(n), 10)).collect::<BTreeMap<_, _>>();
        let mut sweep = Sweep::default();
        let mut look = |names: &[u64]| {
            let (again, new) = sweep.split(found(names));
            sweep.candidates = new;
            again
        };
        assert_eq!(look(&[1, 2]), []);
        assert_eq!(look(&[2, 3]), [Retired { name: name(2), bytes: 10 }]);
        assert_eq!(look(&[1]), [], "it had gone meanwhile");
        assert_eq!(look(&[]), []);
        assert!(sweep.candidates.is_empty());
    }
}
