//! Behind the commits: memory tables become runs, runs are merged, checkpoints are written.
//!
//! One task with loops side by side: one writes checkpoints, one merges, one deletes what checkpoints have retired
//! ([`super::reclaim`]), one looks for orphans ([`super::sweep`]), so there is never more than one of each, and none waits for another. A checkpoint names a
//! state of the map that is wholly in the store. Trouble here never stops the volume: it is shown, and tried again at growing intervals; commits go
//! on meanwhile, as far as memory allows ([`super::points`]).

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};

use crate::{
    Error, Result,
    env::{Env, Pauses},
    gc,
    log::{
        LogWriter, Offerer, RoomFor, Walk,
        checkpoint::{Checkpoint, Retired, RetiredName},
    },
    map::Map,
    space::{Deleting, Space},
    store::{Promise, Stores},
    units::{Epoch, RunId, Seq},
    upkeep::{
        UpkeepParts,
        ancestry::{Ancestry, Descent},
        holdings::{Holdings, NamedHoldings},
        points::{CheckpointLag, Point, Points},
        usage::Accounts,
    },
};

/// Pause after trouble: at first, and at most after more of it.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often a merge that finds no room looks again.
const ROOM_PAUSE: Duration = Duration::from_secs(1);
/// An opening has better things to do at first than reading the counts of segments.
const LOAD_PAUSE: Duration = Duration::from_secs(60);

/// Writes runs and checkpoints.
pub struct Maintainer {
    pub(super) env: Env,
    pub(super) stores: Stores,
    pub(super) map: Arc<Map>,
    pub(super) log: LogWriter,
    pub(super) walk: Walk,
    pub(super) progress: Arc<CheckpointLag>,
    pub(super) space: Arc<Space>,
    /// How long retired objects stay, for readers, and how long where there is none.
    pub(super) grace: Duration,
    pub(super) grace_alone: Duration,
    /// Whether write-back is.
    paused: watch::Receiver<bool>,
    pub(super) ancestry: Arc<Ancestry>,
    /// The levels have changed since merges were done.
    merges_due: Notify,
    /// What the newest checkpoint named. Held over awaits: there is one writer of checkpoints.
    last: tokio::sync::Mutex<LastCheckpoint>,
}

struct LastCheckpoint {
    name: Option<(Epoch, Seq)>,
    accounts: Accounts,
    holdings: Holdings,
    /// A checkpoint that may be in the store or not, because its reply was lost or never came: nothing else
    /// may be sent under its name.
    sent: Option<Composed>,
}

/// A checkpoint on its way. Nothing that it says holds before it is stored.
#[derive(Clone)]
struct Composed {
    covered: Seq,
    body: Bytes,
    descent: Descent,
}

impl Maintainer {
    pub fn new(parts: UpkeepParts) -> (Maintainer, Points, mpsc::Receiver<Point>) {
        let UpkeepParts {
            env,
            stores,
            map,
            log,
            walk,
            checkpoint,
            usage,
            holdings,
            behind,
            damage,
            space,
            grace,
            grace_alone,
            paused,
            ancestry,
        } = parts;
        let newest = Point {
            covered: walk.seq,
            journal_pos: walk.journal_pos,
            journal_chain: walk.journal_chain,
            size_bytes: walk.size_bytes,
        };
        let progress = CheckpointLag::new(newest, behind);
        let (points, receive) = Points::new(progress.clone(), space.clone());
        let counted = checkpoint.map_or(Seq(0), |(_, covered)| covered);
        let store = stores.write_back.clone();
        let holdings = Holdings::new(
            env.clone(),
            store.clone(),
            log.clone(),
            damage.clone(),
            space.clone(),
            holdings,
            counted,
        );
        let accounts = Accounts::new(env.clone(), store, log.clone(), damage, space.clone(), usage, counted);
        let last = LastCheckpoint { name: checkpoint, accounts, holdings, sent: None };
        let merges_due = Notify::new();
        merges_due.notify_one();
        let last = tokio::sync::Mutex::new(last);
        let maintainer = Maintainer {
            env,
            stores,
            map,
            log,
            walk,
            progress,
            space,
            grace,
            grace_alone,
            paused,
            ancestry,
            merges_due,
            last,
        };
        (maintainer, points, receive)
    }

    /// Runs until dropped, and rests while the write-back is paused.
    pub async fn run(&self, frozen: mpsc::Receiver<Point>, offerer: Offerer, wanted: watch::Receiver<Seq>) {
        tokio::select! {
            biased;
            () = self.write_checkpoints(frozen) => {}
            () = self.merge_runs() => {}
            () = self.load_accounts() => {}
            () = self.delete_retired() => {}
            () = self.keep_checkpoints_coming(offerer, wanted) => {}
            () = self.sweep_orphans() => {}
            () = self.keep_reserve() => {}
        }
    }

    /// Sees to it that the reserve grows with the volume.
    async fn keep_reserve(&self) {
        let mut changes = self.space.changes();
        let mut pauses = Pauses::new(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        loop {
            self.unpaused().await;
            changes.borrow_and_update();
            let shown = self.space.shown();
            let stored_bytes =
                shown.segments.map_or(0, |segments| segments.stored_bytes) + shown.uncovered_bytes;
            match self.log.keep_reserve(stored_bytes).await {
                Ok(()) => {
                    pauses.reset();
                    tokio::select! {
                        biased;
                        changed = changes.changed() => if changed.is_err() { return std::future::pending().await },
                        () = self.log.grown() => {}
                    }
                }
                Err(e) => {
                    tracing::debug!(error = %e, "the reserve does not grow now");
                    pauses.rest(&self.env).await;
                }
            }
        }
    }

    /// Reads the counts of segments, so that they are known also where nothing is written.
    async fn load_accounts(&self) {
        self.env.sleep(LOAD_PAUSE).await;
        self.until_done("reading the counts of segments", || self.load()).await;
        std::future::pending().await
    }

    async fn load(&self) -> Result<()> {
        self.last.lock().await.accounts.load().await
    }

    /// Until nothing is committed any more.
    async fn write_checkpoints(&self, mut frozen: mpsc::Receiver<Point>) {
        while let Some(mut point) = frozen.recv().await {
            self.progress.point_taken();
            self.flush_until_done(point.covered).await;
            let mut pauses = Pauses::new(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
            while let Err(e) = self.checkpoint(point).await {
                self.rest("writing a checkpoint", &e, &mut pauses).await;
                self.unpaused().await;
                // A later one is as good, and its table leaves memory even while checkpoints are refused.
                if let Ok(later) = frozen.try_recv() {
                    point = later;
                    self.progress.point_taken();
                    self.flush_until_done(point.covered).await;
                }
            }
        }
    }

    async fn merge_runs(&self) {
        loop {
            self.merges_due.notified().await;
            while let Some(bytes) = self.map.next_merge_bytes().await {
                let _room = self.room_to_merge(bytes).await;
                self.until_done("merging runs", || self.map.merge_step()).await;
            }
        }
    }

    /// Room for a merge: what it replaces is deleted later, and a disk is not filled by that.
    async fn room_to_merge(&self, bytes: u64) -> Promise {
        loop {
            if let Some(room) = self.log.take_room(RoomFor::Merged, bytes).await {
                return room;
            }
            self.env.sleep(ROOM_PAUSE).await;
        }
    }

    async fn flush_until_done(&self, covered: Seq) {
        self.until_done("writing the map", || self.flush_to(covered)).await;
    }

    async fn until_done<T, F: Future<Output = Result<T>>>(
        &self,
        what: &str,
        mut step: impl FnMut() -> F,
    ) -> T {
        let mut pauses = Pauses::new(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        loop {
            self.unpaused().await;
            match step().await {
                Ok(done) => return done,
                Err(e) => self.rest(what, &e, &mut pauses).await,
            }
        }
    }

    pub(super) async fn unpaused(&self) {
        let _ = self.paused.clone().wait_for(|paused| !paused).await; // who is gone pauses nobody
    }

    /// After trouble: shows it and waits.
    pub(super) async fn rest(&self, what: &str, e: &Error, pauses: &mut Pauses) {
        self.log.note_trouble(e);
        match pauses.is_first() {
            true => tracing::warn!(error = %e, "{what} failed; it will be tried again"),
            false => tracing::debug!(error = %e, "{what} failed again"),
        }
        pauses.rest(&self.env).await;
    }

    /// Covers everything committed by a last checkpoint.
    pub async fn checkpoint_all(&self) -> Result<()> {
        let newest = self.progress.newest();
        self.map.freeze(newest.covered);
        self.flush_to(newest.covered).await?;
        self.checkpoint(newest).await
    }

    /// Writes the frozen tables up to `covered` as runs.
    async fn flush_to(&self, covered: Seq) -> Result<()> {
        while self.map.covered() < covered {
            let flushed = self.map.flush_to(covered).await?;
            assert!(flushed, "a table was frozen at every point");
            self.progress.flushed();
            self.merges_due.notify_one();
        }
        Ok(())
    }

    /// Writes the checkpoint at `point`, up to which everything is in runs.
    async fn checkpoint(&self, point: Point) -> Result<()> {
        let mut last = self.last.lock().await;
        let name = (self.log.epoch(), point.covered);
        if last.name == Some(name) {
            return Ok(()); // nothing was committed since; the name is taken
        }
        let Composed { body, descent, .. } = match &last.sent {
            Some(sent) if sent.covered == point.covered => sent.clone(),
            _ => self.compose(&mut last, point).await?,
        };
        let bytes = body.len() as u64;
        self.log.put_checkpoint(point.covered, body).await?;
        self.space.stored(bytes);
        last.sent = None;
        self.ancestry.stored(descent);
        self.progress.covered(point.covered);
        self.space.checkpoint_stored(point.covered, self.env.now(), self.log.given());
        tracing::debug!(seq = point.covered.0, "checkpoint");
        // The appends this checkpoint covers came after the previous one: older ones may go.
        if let Some(previous) = last.name.replace(name)
            && previous.1 < point.covered
            && previous.0 == name.0
        {
            // Pruned or not, the checkpoint is in the store; the next one prunes too.
            match gc::prune_checkpoints(self.stores.background.as_ref(), previous).await {
                Ok(_) => _ = self.space.delete_failed(Deleting::Checkpoints, None),
                Err(e) => self.say_refused(Deleting::Checkpoints, &e),
            }
        }
        Ok(())
    }

    /// Those of some objects which nothing names, neither now nor later. They must have been listed before this is asked:
    /// what this process puts is named before it is put.
    pub(super) async fn unnamed(&self, listed: Vec<Retired>) -> Vec<Retired> {
        // Held: nothing is on its way from the map to the accounts, and no usage object is being put.
        let last = self.last.lock().await;
        let mut named: BTreeSet<RunId> = self.map.names();
        named.extend(last.accounts.named().iter().map(|usage| usage.id));
        named.extend(last.holdings.objects());
        let mut unnamed = self.space.unknown(listed);
        unnamed.retain(|object| !matches!(object.name, RetiredName::Map(id) if named.contains(&id)));
        unnamed
    }

    /// Whether what is needed of a segment is elsewhere, and whoever still finds it goes on to there.
    pub(super) async fn is_forwarded(&self, segment: Seq) -> bool {
        self.last.lock().await.holdings.is_forwarded(segment)
    }

    /// Up to where every segment that counts is in the accounts, if they could all be read.
    pub(super) async fn accounts_are_whole_up_to(&self) -> Result<Option<Seq>> {
        let mut last = self.last.lock().await;
        last.accounts.load().await?;
        Ok(last.name.filter(|_| last.accounts.is_whole()).map(|(_, covered)| covered))
    }

    /// The checkpoint at `point`, whose bytes from now on are the only ones for its name.
    async fn compose(&self, last: &mut LastCheckpoint, point: Point) -> Result<Composed> {
        if last.holdings.needs_segments() {
            last.accounts.load().await?;
        }
        last.holdings.prepare(&self.progress, point.covered).await?;
        let mut state = self.map.take_state();
        assert_eq!(state.covered, point.covered, "points are taken in order, and each is flushed first");
        let free = last.holdings.take(&mut state, &self.progress);
        last.accounts.count(&free, &self.progress, point.covered);
        self.space.expect(self.map.probably_dead(), point.covered);
        match last.accounts.load().await {
            Ok(()) => last.accounts.retire(point.covered, &mut last.holdings),
            Err(e) => tracing::debug!(error = %e, "nothing is retired before the counts are known"),
        }
        last.accounts.store().await?;
        last.holdings.store().await?;
        let NamedHoldings { table, held } = last.holdings.named();
        let descent = self.ancestry.next(&last.holdings.positions());
        let checkpoint = Checkpoint {
            epoch: self.log.epoch(),
            covered: point.covered,
            journal: self.walk.journal,
            journal_pos: point.journal_pos,
            journal_chain: point.journal_chain,
            size_bytes: point.size_bytes,
            claim: self.walk.claim.clone().expect("a writer has claimed"),
            epochs: self.walk.epochs.clone(),
            levels: state.levels,
            usage: last.accounts.named().to_vec(),
            retired: self.space.retired(point.covered),
            times: self.space.times(),
            snapshots: table,
            held,
            origins: descent.origins.clone(),
            flattened: descent.flattened,
        };
        let keys = self.log.keys();
        let body = checkpoint.encode(&self.env, keys.key.as_deref(), keys.volume);
        debug_assert!(!matches!(body, Err(Error::Invalid(_))), "what is composed is read: {body:?}");
        let composed = Composed { covered: point.covered, body: body?, descent };
        last.sent = Some(composed.clone());
        Ok(composed)
    }
}
