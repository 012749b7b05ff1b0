//! The cleaner: moves what is live out of segments with much garbage, so that they can go.
//!
//! Owns when that happens and how much at a time. Decides nothing about the log: it offers segments of moved blocks, in
//! which a block counts only if nobody wrote it meanwhile. Deletes nothing: a segment that was vacated is retired with
//! a checkpoint, and deleted after that ([`crate::space`]).
//!
//! Invariants: a victim is vacated only when, behind the commit of all that was moved, no block of its footer resolves to
//! it any more; memory is what one round moves. Stopping at any point leaves at worst segments that are moved again.

mod adopt;
mod defragment;
mod moved;
mod round;
mod seen;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    Error, Result,
    codec::Compression,
    env::{Env, Pauses, Running, Stop},
    log::{LogWriter, Offerer, RoomFor},
    map::Map,
    space::{LOOK_EVERY, Space},
    store::SharedStore,
    units::{BLOCK_BYTES, Extent, Mapping, Seq},
};

pub use defragment::round as defragmented;
pub use round::RoundSize;

/// Pauses after a round that failed.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Segments that could not be cleaned are left alone for this time: somebody may have restored what was damaged.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Whoever reads committed blocks.
#[async_trait]
pub trait Blocks: Send + Sync + 'static {
    /// The blocks of data mappings of one segment, in their order. Nobody waits for them, and nobody will want them again
    /// from there.
    async fn read(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>>;
    /// Whether a mapping's data lies with another volume.
    fn is_foreign(&self, mapping: &Mapping) -> bool;
    /// Returns once what was moved is at hand for its readers.
    async fn settled(&self);
    /// The volume has nothing in a segment of so many bytes any more.
    fn let_go(&self, seq: Seq, stored_bytes: u64);
    /// Whether a segment of so many bytes is in the cache, all of it.
    fn is_cached(&self, seq: Seq, stored_bytes: u64) -> bool;
}

/// What a cleaner works with.
pub struct CleanerParts {
    pub env: Env,
    /// For footers.
    pub store: SharedStore,
    pub map: Arc<Map>,
    pub log: LogWriter,
    pub offerer: Offerer,
    pub blocks: Arc<dyn Blocks>,
    pub space: Arc<Space>,
    pub compression: Compression,
    pub round: RoundSize,
    /// Whether write-back is paused.
    pub paused: watch::Receiver<bool>,
}

/// Demands that wait for a round to end. Whoever makes them waits for each.
const DEMANDS_MAX: usize = 4;

/// A running cleaner.
pub struct Cleaner {
    running: Running,
    demands: mpsc::Sender<Demand>,
}

/// What somebody is told whose demand needs room that is not there.
const NO_ROOM: &str = "too little for what would be moved or copied there, beside what is held back for clients and for cleaning. Make some \
     there, and begin again: what was moved stays moved";

/// Where the store has no room for what a round would put there.
pub fn no_room() -> Error {
    Error::NoRoom(NO_ROOM.into())
}

/// Where a cleaner is asked for what its bound does not ask for. It may be gone.
#[derive(Clone)]
pub struct Demands(mpsc::Sender<Demand>);

/// What somebody wants done now.
struct Demand {
    what: What,
    answer: oneshot::Sender<Result<Moved>>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A round, unless not more than so many bytes are stored per live byte.
    Clean { ratio: f64 },
    /// Blocks of a range side by side that follow each other, as many as a round takes.
    Defragment { extent: Extent },
    /// Foreign blocks of a range, as many as a round takes.
    Adopt { extent: Extent },
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub blocks: u64,
    /// Segments of which nothing is live any more.
    pub segments: u64,
    /// Where the next round goes on; `None` when there is nothing more to do.
    pub next: Option<u64>,
}

impl Cleaner {
    pub fn start(parts: CleanerParts) -> Cleaner {
        let (demands, queue) = mpsc::channel(DEMANDS_MAX);
        let env = parts.env.clone();
        Cleaner { running: Running::start(&env, "cleaner", Stop::new(), run(parts, queue)), demands }
    }

    /// Stops at once. What was offered is on its way.
    pub async fn stop(self) {
        self.running.stop().await;
    }

    pub fn demands(&self) -> Demands {
        Demands(self.demands.clone())
    }
}

impl Demands {
    /// Cleans for one round, whatever the bound, unless not more than `ratio` bytes are stored per live byte, as far as that
    /// is known.
    pub async fn clean(&self, ratio: f64) -> Result<Moved> {
        self.ask(What::Clean { ratio }).await
    }

    /// Writes blocks of `extent` that follow each other side by side, from its beginning on, until a round is full.
    pub async fn defragment(&self, extent: Extent) -> Result<Moved> {
        self.ask(What::Defragment { extent }).await
    }

    /// Writes foreign blocks of `extent` as the volume's own, from its beginning on, until a round is full.
    pub async fn adopt(&self, extent: Extent) -> Result<Moved> {
        self.ask(What::Adopt { extent }).await
    }

    async fn ask(&self, what: What) -> Result<Moved> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Demand { what, answer }).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }
}

/// The last round, which the next one follows at a distance.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    began: Duration,
    bytes: u64,
}

impl Pace {
    /// When the next round may begin at a rate.
    fn next(&self, rate: Option<u64>) -> Duration {
        let takes_s = rate.map_or(0.0, |rate| self.bytes as f64 / rate.max(1) as f64);
        self.began.saturating_add(Duration::try_from_secs_f64(takes_s).unwrap_or(Duration::MAX))
    }
}

/// Cleans where the bound does not hold or cleaning pays, and what is asked for, until dropped.
async fn run(mut parts: CleanerParts, mut demands: mpsc::Receiver<Demand>) {
    let mut changes = parts.space.changes();
    let mut pauses = Pauses::new(PAUSE_MIN, PAUSE_MAX);
    let mut left_alone = LeftAlone::default();
    let mut pace = Pace::default();
    loop {
        let _ = parts.paused.wait_for(|paused| !paused).await; // who is gone pauses nobody
        while let Ok(demand) = demands.try_recv() {
            answer(&parts, demand, &mut left_alone).await;
        }
        changes.borrow_and_update();
        let now = parts.env.now();
        let is_cached = |seq, stored_bytes| parts.blocks.is_cached(seq, stored_bytes);
        let wait = pace.next(parts.space.rate()).saturating_sub(now);
        let victims = match wait.is_zero() {
            true => parts.space.victims(now, parts.round.blocks(), left_alone.at(now), &is_cached),
            false => Vec::new(),
        };
        if victims.is_empty() {
            let wait = if wait.is_zero() { LOOK_EVERY } else { wait };
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() { return },
                Some(demand) = demands.recv() => answer(&parts, demand, &mut left_alone).await,
                () = parts.env.sleep(wait) => {}
            }
            continue;
        }
        if !has_room(&parts).await {
            pauses.rest(&parts.env).await;
            continue;
        }
        let moved_bytes = parts.space.moved_bytes();
        let cleaned = tokio::select! {
            biased;
            () = parts.space.switched_off() => continue, // at once: the rest of a round is minutes of a thin link
            cleaned = round::clean(&parts, victims) => cleaned,
        };
        match cleaned {
            Ok(cleaned) => {
                left_alone.add(cleaned.unclean, parts.env.now());
                pauses.reset();
                pace = Pace { began: now, bytes: parts.space.moved_bytes() - moved_bytes };
            }
            Err(e) => {
                tracing::debug!(error = %e, "cleaning is tried again");
                pauses.rest(&parts.env).await;
            }
        }
    }
}

/// Whether the store has room for what a round moves, which is at most all that is live. What it has then may be gone when the round
/// comes to it: each segment asks again.
async fn has_room(parts: &CleanerParts) -> bool {
    let round_bytes = parts.round.blocks() * BLOCK_BYTES as u64;
    let live_bytes = parts.space.shown().segments.map_or(u64::MAX, |segments| segments.live_bytes);
    parts.log.take_room(RoomFor::Moved, live_bytes.min(round_bytes)).await.is_some()
}

/// Does what was asked for, unless nobody waits for it any more.
async fn answer(parts: &CleanerParts, demand: Demand, left_alone: &mut LeftAlone) {
    if demand.answer.is_closed() {
        return;
    }
    let done = match demand.what {
        What::Clean { .. } | What::Defragment { .. } if !has_room(parts).await => Err(no_room()),
        What::Clean { ratio } => clean_to(parts, ratio, left_alone).await,
        What::Defragment { extent } => defragment::defragment(parts, extent).await,
        What::Adopt { extent } => adopt::adopt(parts, extent).await,
    };
    let _ = demand.answer.send(done); // whoever asked may have gone
}

async fn clean_to(parts: &CleanerParts, ratio: f64, left_alone: &mut LeftAlone) -> Result<Moved> {
    let now = parts.env.now();
    let victims = parts.space.victims_to(ratio, now, parts.round.blocks(), left_alone.at(now));
    if victims.is_empty() {
        return Ok(Moved::default());
    }
    let cleaned = round::clean(parts, victims).await?;
    left_alone.add(cleaned.unclean, parts.env.now());
    Ok(Moved { blocks: cleaned.blocks, segments: cleaned.segments, next: Some(0) })
}

/// Segments that could not be cleaned.
#[derive(Default)]
struct LeftAlone {
    segments: BTreeSet<Seq>,
    since: Duration,
}

impl LeftAlone {
    fn at(&mut self, now: Duration) -> &BTreeSet<Seq> {
        if now.saturating_sub(self.since) >= LOOK_AGAIN {
            self.segments.clear();
        }
        &self.segments
    }

    fn add(&mut self, segments: Vec<Seq>, now: Duration) {
        if self.segments.is_empty() {
            self.since = now;
        }
        self.segments.extend(segments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next round begins when what the last one moved has had its time at the rate, counted from its beginning.
    #[test]
    fn rounds_keep_their_distance() {
        let second = Duration::from_secs;
        let pace = Pace { began: second(100), bytes: 30 << 20 };
        assert_eq!(pace.next(None), second(100));
        assert_eq!(pace.next(Some(1 << 20)), second(130));
        assert!(pace.next(Some(1)) > second(1 << 24));
        assert_eq!(Pace::default().next(Some(1)), Duration::ZERO);
    }
}
