//! The accounts of space: by how much segments were written and have died, as usage objects.
//!
//! Advice for whoever frees space, and nobody reads it to serve: so an object that is damaged stays named and
//! is told, one that does not come just now is joined another time, and neither holds up a checkpoint.
//! Invariant: the named objects together are exact up to `counted`, as far as they can be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    Result,
    damage::Damage,
    env::Env,
    log::{
        LogWriter,
        checkpoint::UsageRef,
        keys,
        usage::{CHANGES_MAX, SegmentUsage, USAGE_BYTES_MAX, decode_usage, encode_usage},
    },
    map::Dead,
    store::SharedStore,
    units::{BLOCK_BYTES, RunId, Seq},
    upkeep::points::Progress,
};

/// Usage objects a checkpoint names before they are joined.
const OBJECTS_MAX: usize = 16;

/// What one segment's counts change by.
#[derive(Clone, Copy, Default)]
struct Delta {
    written: u64,
    dead: u64,
}

type Deltas = BTreeMap<Seq, Delta>;

/// What the next checkpoint has to say of space.
pub struct Accounts {
    env: Env,
    store: SharedStore,
    log: LogWriter,
    damage: Arc<Damage>,
    named: Vec<UsageRef>,
    /// Those that could not be read. Looked at again when the volume is opened the next time.
    damaged: BTreeSet<RunId>,
    /// What died and is in no usage object yet.
    dead: Dead,
    /// The objects hold what was written up to here.
    counted: Seq,
}

impl Accounts {
    pub fn new(
        env: Env,
        store: SharedStore,
        log: LogWriter,
        damage: Arc<Damage>,
        named: Vec<UsageRef>,
        counted: Seq,
    ) -> Accounts {
        Accounts { env, store, log, damage, named, damaged: BTreeSet::new(), dead: Dead::default(), counted }
    }

    /// What the next checkpoint names.
    pub fn named(&self) -> &[UsageRef] {
        &self.named
    }

    /// Something died.
    pub fn add_dead(&mut self, dead: &Dead) {
        self.dead.add(dead);
    }

    /// Writes what became written up to `covered` and dead so far, and joins the objects when there are many.
    pub async fn write(&mut self, progress: &Progress, covered: Seq) -> Result<()> {
        let mut deltas = Deltas::new();
        for (seq, blocks) in &self.dead.free {
            deltas.entry(*seq).or_default().dead += blocks * BLOCK_BYTES as u64;
        }
        for (seq, bytes) in progress.written(self.counted, covered) {
            deltas.entry(seq).or_default().written += bytes;
        }
        if !deltas.is_empty() {
            let kept = self.join(&mut deltas).await;
            let mut named = self.store_all(deltas).await?;
            named.splice(..0, kept);
            self.named = named;
        }
        (self.dead, self.counted) = (Dead::default(), covered);
        Ok(())
    }

    /// Adds what the named objects say to `deltas`, if there are many; gives those that stay named.
    async fn join(&mut self, deltas: &mut Deltas) -> Vec<UsageRef> {
        let (lost, sound): (Vec<_>, Vec<_>) =
            self.named.iter().copied().partition(|usage| self.damaged.contains(&usage.id));
        if sound.len() < OBJECTS_MAX {
            return self.named.clone();
        }
        let mut joined = deltas.clone();
        let mut kept = lost;
        for usage in sound {
            match self.read(usage.id).await {
                Ok(changes) => {
                    for change in changes {
                        let sum = joined.entry(change.seq).or_default();
                        sum.written = sum.written.saturating_add(change.written_bytes);
                        sum.dead = sum.dead.saturating_add(change.dead_bytes);
                    }
                }
                Err(e) if e.is_damage() => {
                    self.damaged.insert(usage.id);
                    kept.push(usage);
                }
                Err(e) => {
                    tracing::debug!(error = %e, "usage objects are joined another time");
                    return self.named.clone();
                }
            }
        }
        *deltas = joined;
        kept
    }

    /// Reads an object, and once more if it does not verify: a reply may be damaged as well.
    async fn read(&self, id: RunId) -> Result<Vec<SegmentUsage>> {
        let first = self.read_once(id).await;
        if !first.as_ref().is_err_and(|e| e.is_damage()) {
            return first;
        }
        let second = self.read_once(id).await;
        self.damage.tell(&keys::run(id), &(0..USAGE_BYTES_MAX), &second, self.env.now());
        second
    }

    async fn read_once(&self, id: RunId) -> Result<Vec<SegmentUsage>> {
        let keys = self.log.keys();
        let body = self.store.get(&keys::run(id), USAGE_BYTES_MAX).await?;
        decode_usage(keys.key.as_deref(), keys.volume, id, &body)
    }

    async fn store_all(&self, deltas: Deltas) -> Result<Vec<UsageRef>> {
        let keys = self.log.keys();
        let changes: Vec<SegmentUsage> = deltas
            .into_iter()
            .map(|(seq, d)| SegmentUsage { seq, written_bytes: d.written, dead_bytes: d.dead })
            .collect();
        let mut stored = Vec::new();
        for part in changes.chunks(CHANGES_MAX) {
            let id = RunId(self.env.uuid());
            let body = encode_usage(keys.key.as_deref(), keys.volume, id, part);
            stored.push(UsageRef { id, bytes: body.len() as u64 });
            self.log.put_unique(&keys::run(id), body).await?;
        }
        Ok(stored)
    }
}
