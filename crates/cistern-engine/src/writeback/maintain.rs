//! Behind the commits: memory tables become runs, runs are merged, checkpoints are written.
//!
//! One task, so there is never more than one checkpoint or merge at a time. A checkpoint names a
//! state of the map that is wholly in the store. Trouble here never stops the volume: it is tried
//! again, and commits slow down only when the queue of frozen tables is full.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::mpsc;

use crate::{
    Result,
    env::Env,
    gc,
    log::{
        LogWriter, Walk,
        checkpoint::{Checkpoint, UsageRef},
        keys,
        usage::{SegmentUsage, USAGE_BYTES_MAX, decode_usage, encode_usage},
    },
    map::{Dead, Map},
    store::Stores,
    units::{BLOCK_BYTES, Chain, Epoch, JournalPos, RunId, Seq},
    writeback::{Control, Parts},
};

/// Frozen tables that may wait. Each holds the mappings of one checkpoint interval in memory.
const POINTS_MAX: usize = 3;
/// Pause after trouble.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Usage objects a checkpoint names before they are merged into one.
const USAGE_OBJECTS_MAX: usize = 16;

/// A place in the history at which the memory table was frozen.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub covered: Seq,
    pub journal_pos: JournalPos,
    pub journal_chain: Chain,
    pub size_bytes: u64,
}

/// The flow's end: where it says what it committed.
pub struct Points {
    send: mpsc::Sender<Point>,
    progress: Arc<Mutex<Progress>>,
}

/// What was committed and is in no checkpoint yet.
struct Progress {
    /// The newest commit, frozen or not; at first the claim.
    newest: Point,
    /// Bytes of block data by seq.
    written: BTreeMap<Seq, u64>,
}

impl Points {
    /// A segment was committed.
    pub fn note(&self, point: Point, data_bytes: u64) {
        let mut progress = self.progress.lock().expect("no panic under this lock");
        progress.newest = point;
        progress.written.insert(point.covered, data_bytes);
    }

    /// The memory table was frozen at `point`. Waits while too many tables wait.
    pub async fn push(&self, point: Point) {
        // The receiver only goes away when everything is being stopped.
        let _ = self.send.send(point).await;
    }
}

/// What one segment's counts change by.
#[derive(Default)]
struct Delta {
    written: u64,
    dead: u64,
}

/// Writes runs and checkpoints.
pub struct Maintainer {
    env: Env,
    stores: Stores,
    map: Arc<Map>,
    log: LogWriter,
    walk: Walk,
    progress: Arc<Mutex<Progress>>,
    /// What the newest checkpoint named. Held over awaits: there is one writer of checkpoints.
    last: tokio::sync::Mutex<LastCheckpoint>,
}

struct LastCheckpoint {
    name: Option<(Epoch, Seq)>,
    usage: Vec<UsageRef>,
    /// What died since.
    dead: Dead,
}

impl Maintainer {
    pub fn new(parts: &Parts) -> (Maintainer, Points, mpsc::Receiver<Point>) {
        let walk = parts.walk.clone();
        let newest = Point {
            covered: walk.seq,
            journal_pos: walk.journal_pos,
            journal_chain: walk.journal_chain,
            size_bytes: walk.size_bytes,
        };
        let progress = Arc::new(Mutex::new(Progress { newest, written: parts.applied.clone() }));
        let (send, receive) = mpsc::channel(POINTS_MAX);
        let points = Points { send, progress: progress.clone() };
        let last = tokio::sync::Mutex::new(LastCheckpoint {
            name: parts.checkpoint,
            usage: parts.usage.clone(),
            dead: Dead::default(),
        });
        let maintainer = Maintainer {
            env: parts.env.clone(),
            stores: parts.stores.clone(),
            map: parts.map.clone(),
            log: parts.log.clone(),
            walk,
            progress,
            last,
        };
        (maintainer, points, receive)
    }

    /// Runs until dropped, and rests while the write-back is paused.
    pub async fn run(&self, mut frozen: mpsc::Receiver<Point>, control: &Control) {
        let mut merges_due = true;
        loop {
            control.unpaused().await;
            let next = match frozen.try_recv() {
                Ok(point) => Some(point),
                Err(mpsc::error::TryRecvError::Disconnected) => return,
                Err(mpsc::error::TryRecvError::Empty) if merges_due => None,
                Err(mpsc::error::TryRecvError::Empty) => match frozen.recv().await {
                    Some(point) => Some(point),
                    None => return,
                },
            };
            match next {
                Some(point) => {
                    self.until_done("writing a checkpoint", || self.checkpoint(point)).await;
                    merges_due = true;
                }
                None => merges_due = self.until_done("merging runs", || self.map.merge_step()).await,
            }
        }
    }

    async fn until_done<T, F: Future<Output = Result<T>>>(
        &self,
        what: &str,
        mut step: impl FnMut() -> F,
    ) -> T {
        loop {
            match step().await {
                Ok(done) => return done,
                Err(e) => {
                    tracing::warn!(error = %e, "{what} failed; it will be tried again");
                    self.env.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Covers everything committed by a last checkpoint.
    pub async fn checkpoint_all(&self) -> Result<()> {
        let newest = self.progress.lock().expect("no panic under this lock").newest;
        self.map.freeze(newest.covered);
        self.checkpoint(newest).await
    }

    /// Flushes the tables up to `point` and writes the checkpoint there.
    async fn checkpoint(&self, point: Point) -> Result<()> {
        let mut last = self.last.lock().await;
        let name = (self.log.epoch(), point.covered);
        if last.name == Some(name) {
            return Ok(()); // nothing was committed since; the name is taken
        }
        let levels = loop {
            let state = self.map.take_state();
            last.dead.add(&state.dead);
            if state.covered == point.covered {
                break state.levels;
            }
            assert!(state.covered < point.covered, "points are taken in order");
            let flushed = self.map.flush().await?;
            assert!(flushed, "a table was frozen at every point");
        };
        let usage = self.write_usage(&last.usage, &last.dead, point.covered).await?;
        self.log.put_checkpoint(&self.describe(point, levels, usage.clone())).await?;
        last.dead = Dead::default();
        self.progress.lock().expect("no panic under this lock").written.retain(|seq, _| *seq > point.covered);
        tracing::debug!(seq = point.covered.0, "checkpoint");
        let previous = last.name.replace(name);
        last.usage = usage;
        // The appends this checkpoint covers came after the previous one: older ones may go.
        if let Some(previous) = previous
            && previous.1 < point.covered
            && previous.0 == name.0
        {
            gc::prune_checkpoints(self.stores.background.as_ref(), previous).await?;
        }
        Ok(())
    }

    fn describe(&self, point: Point, levels: crate::map::Levels, usage: Vec<UsageRef>) -> Checkpoint {
        Checkpoint {
            epoch: self.log.epoch(),
            covered: point.covered,
            journal: self.walk.journal,
            journal_pos: point.journal_pos,
            journal_chain: point.journal_chain,
            size_bytes: point.size_bytes,
            claim: self.walk.claim.clone().expect("a writer has claimed"),
            epochs: self.walk.epochs.clone(),
            levels,
            usage,
            roots: None,
        }
    }

    /// Writes what became written and dead since the last checkpoint as a usage object, and joins the
    /// objects when there are many. Returns what the next checkpoint names.
    async fn write_usage(&self, named: &[UsageRef], dead: &Dead, covered: Seq) -> Result<Vec<UsageRef>> {
        let mut deltas: BTreeMap<Seq, Delta> = BTreeMap::new();
        for (seq, blocks) in &dead.free {
            deltas.entry(*seq).or_default().dead += blocks * BLOCK_BYTES as u64;
        }
        {
            let progress = self.progress.lock().expect("no panic under this lock");
            for (seq, bytes) in progress.written.range(..=covered) {
                deltas.entry(*seq).or_default().written += bytes;
            }
        }
        if deltas.is_empty() {
            return Ok(named.to_vec());
        }
        let keys = self.log.keys();
        let mut kept = named.to_vec();
        if kept.len() >= USAGE_OBJECTS_MAX {
            for old in kept.drain(..) {
                let body = self.stores.write_back.get(&keys::run(old.id), USAGE_BYTES_MAX).await?;
                for more in decode_usage(keys.key.as_deref(), keys.volume, old.id, &body)? {
                    let sum = deltas.entry(more.seq).or_default();
                    sum.written += more.written_bytes;
                    sum.dead += more.dead_bytes;
                }
            }
        }
        let id = RunId(self.env.uuid());
        let changes: Vec<SegmentUsage> = deltas
            .into_iter()
            .map(|(seq, d)| SegmentUsage { seq, written_bytes: d.written, dead_bytes: d.dead })
            .collect();
        let body = encode_usage(keys.key.as_deref(), keys.volume, id, &changes);
        kept.push(UsageRef { id, bytes: body.len() as u64 });
        self.log.put_unique(&keys::run(id), body).await?;
        Ok(kept)
    }
}
