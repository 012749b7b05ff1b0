//! Deleting what is due, and seeing to it that it becomes due.
//!
//! While a volume is written, checkpoints follow each other and retired objects become due by themselves. When writing
//! stops, the last ones would stay for ever: then an empty entry is offered, behind which a checkpoint is written. That is
//! done for what is worth it only, so a volume at rest comes to rest: an entry and a checkpoint leave some small objects to
//! retire themselves.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    Error, Result,
    env::Pauses,
    gc::{
        self,
        readers::{FoundReaders, KnownReaders},
    },
    log::{LogWriter, NewEntry, Offer, Offerer, checkpoint::RetiredName, nothing},
    segment::Slot,
    space::{Deleting, Due, Graces},
    units::{BLOCK_BYTES, Seq},
    upkeep::maintain::Maintainer,
};

/// Objects that are deleted before what became due meanwhile is looked at again.
const BATCH: usize = 256;
/// What is worth an entry and a checkpoint of its own: so many bytes to delete, or objects.
const WORTH_BYTES: u64 = 4 << 20;
const WORTH_OBJECTS: u64 = 1000;
/// When nothing was committed for this time, what was committed before gets a checkpoint: until then it is not known what
/// it killed. Less where what is retired goes sooner: half of the grace, but no less than the other one, which is also for a store
/// that has no room for more.
const QUIET: Duration = Duration::from_secs(20);
const QUIET_MIN: Duration = Duration::from_secs(1);
/// While there are readers it is looked so often whether they have gone.
const READERS_LOOK: Duration = Duration::from_secs(30);
/// Pauses after a delete that failed.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// What to do next.
struct NextDeletion {
    due: Due,
    /// When something may be due that is not.
    next: Option<Duration>,
}

impl Maintainer {
    /// Deletes what is due, until dropped.
    pub async fn delete_retired(&self) {
        let mut changes = self.space.changes();
        let mut pauses = Pauses::new(PAUSE_MIN, PAUSE_MAX);
        // What the store did not delete, and when it is tried again. It holds up nothing else.
        let (mut stayed, mut again) = (BTreeSet::new(), Duration::ZERO);
        let mut readers = KnownReaders::default();
        loop {
            self.unpaused().await;
            changes.borrow_and_update();
            let now = self.env.now();
            if now >= again {
                stayed.clear();
            }
            let NextDeletion { due, next } = self.look_for_due(now, &stayed, &mut readers).await;
            if due.is_empty() {
                let again = (!stayed.is_empty()).then_some(again);
                let until = [next, again].into_iter().flatten().min();
                let time = async {
                    match until {
                        Some(at) => self.env.sleep(at.saturating_sub(now)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    changed = changes.changed() => if changed.is_err() { return },
                    () = time => {}
                }
                continue;
            }
            self.map.unpinned().await;
            // A copy of this writer that somebody went on with deletes nothing.
            if let Err(e) = self.log.look().await {
                tracing::debug!(error = %e, "nothing is deleted any more");
                return std::future::pending().await;
            }
            let (done, fault) = self.let_go(due).await;
            match fault {
                None if stayed.is_empty() => {
                    pauses.reset();
                    self.space.delete_failed(Deleting::Retired, None);
                }
                None => {}
                Some(e @ (Error::Unreachable(_) | Error::NoRoom(_))) => {
                    self.say_refused(Deleting::Retired, &e);
                    pauses.rest(&self.env).await;
                }
                Some(e) => {
                    if stayed.is_empty() {
                        self.say_refused(Deleting::Retired, &e);
                        again = self.env.now() + pauses.after_failure();
                    }
                    stayed.extend(done);
                }
            }
        }
    }

    fn graces(&self, readers: Duration) -> Graces {
        Graces { readers, slots: self.log.slot_grace() }
    }

    /// What is due, and else when to look again. Whether there are readers is asked when it is known what would go: one that is announced
    /// after that reads a checkpoint that does without it.
    async fn look_for_due(
        &self,
        now: Duration,
        stayed: &BTreeSet<RetiredName>,
        readers: &mut KnownReaders,
    ) -> NextDeletion {
        let alone = self.graces(self.grace_alone);
        let due = self.space.due(now, alone, BATCH, stayed);
        if due.is_empty() || !self.may_be_read(readers, now).await {
            return NextDeletion { due, next: self.space.next_due(now, alone) };
        }
        let graces = self.graces(self.grace);
        let due = self.space.due(now, graces, BATCH, stayed);
        let next = self.space.next_due(now, graces).unwrap_or(Duration::MAX);
        NextDeletion { due, next: Some(next.min(now + READERS_LOOK)) }
    }

    /// Whether somebody may read what this writer does not see, and has to be given time.
    async fn may_be_read(&self, readers: &mut KnownReaders, now: Duration) -> bool {
        if self.grace_alone == self.grace {
            return true;
        }
        if self.progress.snapshots().has_clones() {
            return true; // they read what snapshots show, from anywhere
        }
        if self.log.is_room_short().await {
            return false;
        }
        let store = self.stores.background.as_ref();
        match readers.look(store, now).await {
            Ok(FoundReaders { is_any, old }) => {
                gc::delete_announcements(store, &old).await;
                is_any
            }
            Err(_) => true,
        }
    }

    /// Deletes and empties what is due. Gives what stayed, and why the first of it did.
    async fn let_go(&self, due: Due) -> (Vec<RetiredName>, Option<Error>) {
        let store = self.stores.background.as_ref();
        let emptied = gc::empty_slots(store, &self.log, &due.emptied).await;
        self.space.emptied(&emptied.emptied);
        let deleted = gc::delete_retired(store, &due.deleted).await;
        self.space.deleted(&deleted.deleted);
        if !deleted.deleted.is_empty() || !emptied.emptied.is_empty() {
            self.log.room_was_made();
        }
        tracing::debug!(
            objects = deleted.deleted.len(),
            slots = emptied.emptied.len(),
            "deleted and emptied"
        );
        ([emptied.stayed, deleted.stayed].concat(), emptied.fault.or(deleted.fault))
    }

    /// Something that is not needed any more could not be deleted: that stops nothing.
    pub(super) fn say_refused(&self, what: Deleting, e: &Error) {
        if self.space.delete_failed(what, Some(e.to_string())) {
            tracing::warn!(error = %e, "the store does not delete what is not needed any more; it is tried again");
        }
    }

    /// Asks for checkpoints where commits do not bring them about, until dropped; and when somebody asks for one.
    pub async fn keep_checkpoints_coming(&self, offerer: Offerer, mut wanted: watch::Receiver<Seq>) {
        let mut seen = self.progress.newest().covered;
        loop {
            let is_short = self.log.is_room_short().await;
            let quiet = if is_short { QUIET_MIN } else { (self.grace_alone / 2).clamp(QUIET_MIN, QUIET) };
            let goal = tokio::select! {
                biased;
                Ok(goal) = wanted.wait_for(|goal| *goal > self.space.covered()) => Some(*goal),
                goal = self.space.roots_awaited() => Some(goal),
                () = self.env.sleep(quiet) => None,
            };
            self.unpaused().await;
            if let Some(goal) = goal {
                match self.cover(&offerer, goal).await {
                    Some(seq) => seen = seq,
                    None => {
                        drop(wanted); // whoever waits learns that it will not come
                        return std::future::pending().await;
                    }
                }
                continue;
            }
            let newest = self.progress.newest().covered;
            let is_quiet = std::mem::replace(&mut seen, newest) == newest;
            if (is_quiet || is_short)
                && !self.progress.is_checkpoint_outstanding()
                && self.is_checkpoint_worth_it(is_short)
            {
                seen = self.offer_nothing(&offerer).await.unwrap_or(seen);
            }
        }
    }

    /// Sees to it that a checkpoint covers `goal`, and gives the newest entry then. `None` where nothing is published any more.
    async fn cover(&self, offerer: &Offerer, goal: Seq) -> Option<Seq> {
        let mut changes = self.space.changes();
        while self.space.covered() < goal {
            // While an earlier table waits to be written, an entry would bring nothing about.
            if !self.progress.is_checkpoint_outstanding() {
                self.offer_nothing(offerer).await?;
            }
            if self.progress.is_checkpoint_outstanding() {
                changes.changed().await.ok()?;
            }
        }
        Some(self.progress.newest().covered)
    }

    /// An empty entry, for a checkpoint behind it.
    async fn offer_nothing(&self, offerer: &Offerer) -> Option<Seq> {
        self.progress.request_checkpoint();
        let nothing = Arc::new(Nothing { log: self.log.clone(), base: self.progress.newest().covered });
        let vacancy = offerer.vacancy().await;
        let seq = offerer.offer(vacancy, nothing).await.ok()?;
        tracing::debug!(seq = seq.0, "an empty entry, for a checkpoint behind it");
        Some(seq)
    }

    /// Where room is short the second checkpoint does not wait for the grace behind the first.
    fn is_checkpoint_worth_it(&self, is_short: bool) -> bool {
        let grace = if is_short { Duration::ZERO } else { self.grace_alone };
        let (bytes, objects) = self.space.waits_for_checkpoint(self.env.now(), grace);
        let shown = self.space.shown();
        self.progress.uncovered_by_writes() > 0
            || bytes >= WORTH_BYTES
            || objects >= WORTH_OBJECTS
            || shown.vacated_bytes >= WORTH_BYTES
            || self.map.died_blocks() * BLOCK_BYTES as u64 >= WORTH_BYTES
    }
}

/// An entry that changes nothing.
struct Nothing {
    log: LogWriter,
    base: Seq,
}

#[async_trait]
impl Offer for Nothing {
    async fn seal(&self, slot: &Slot) -> Result<NewEntry> {
        Ok(nothing(self.log.keys(), slot, self.base))
    }
    fn waits_for_room(&self) -> bool {
        true
    }
}
