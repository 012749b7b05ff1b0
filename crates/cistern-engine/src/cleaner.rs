//! The cleaner: moves what is live out of segments with much garbage, so that they can go.
//!
//! Owns when that happens and how much at a time. Decides nothing about the log: it offers segments of moved blocks, in
//! which a block counts only if nobody wrote it meanwhile. Deletes nothing: a segment that was vacated is retired with
//! a checkpoint, and deleted after that ([`crate::space`]).
//!
//! Invariants: a victim is vacated only when, behind the commit of all that was moved, no block of its footer resolves to
//! it any more; memory is what one round moves. Stopping at any point leaves at worst segments that are moved again.

mod moved;
mod round;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    Result,
    codec::Compression,
    env::{Env, Pauses, Running, Stop},
    log::{LogWriter, Offerer},
    map::Map,
    space::Space,
    store::SharedStore,
    units::{Mapping, Seq},
};

use round::ROUND_BLOCKS;

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
}

/// What a cleaner works with.
pub struct Parts {
    pub env: Env,
    /// For footers.
    pub store: SharedStore,
    pub map: Arc<Map>,
    pub log: LogWriter,
    pub offerer: Offerer,
    pub blocks: Arc<dyn Blocks>,
    pub space: Arc<Space>,
    pub compression: Compression,
    /// Stored bytes per live byte that are let be; infinite where nothing is to be cleaned.
    pub ratio: watch::Receiver<f64>,
    /// Whether write-back is paused.
    pub paused: watch::Receiver<bool>,
}

/// A running cleaner.
pub struct Cleaner(Running);

impl Cleaner {
    pub fn start(parts: Parts) -> Cleaner {
        Cleaner(Running::start(&parts.env.clone(), "cleaner", Stop::new(), run(parts)))
    }

    /// Stops at once. What was offered is on its way.
    pub async fn stop(self) {
        self.0.stop().await;
    }
}

/// Cleans where the bound does not hold, until dropped.
async fn run(mut parts: Parts) {
    let mut changes = parts.space.changes();
    let mut pauses = Pauses::new(PAUSE_MIN, PAUSE_MAX);
    let mut left_alone = LeftAlone::default();
    loop {
        let _ = parts.paused.wait_for(|paused| !paused).await; // who is gone pauses nobody
        changes.borrow_and_update();
        let ratio = *parts.ratio.borrow_and_update();
        let victims = parts.space.victims(ratio, ROUND_BLOCKS, left_alone.at(parts.env.now()));
        if victims.is_empty() {
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() { return },
                changed = parts.ratio.changed() => if changed.is_err() { return },
            }
            continue;
        }
        match round::clean(&parts, victims).await {
            Ok(unclean) => {
                left_alone.add(unclean, parts.env.now());
                pauses.reset();
            }
            Err(e) => {
                tracing::debug!(error = %e, "cleaning is tried again");
                pauses.rest(&parts.env).await;
            }
        }
    }
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
