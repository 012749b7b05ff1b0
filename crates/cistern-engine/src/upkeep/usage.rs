//! The accounts of space as they lie in the store: changes of the counts, as usage objects.
//!
//! Nobody reads them to serve: so an object that is damaged stays named and is told, one that does not come just now is
//! read another time, and neither holds up a checkpoint. Invariant: the named objects and what is not stored yet
//! together are exact up to `counted`, as far as they can be read; [`Space`] has their sum once they were.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use crate::{
    Result,
    damage::Damage,
    env::Env,
    log::{
        LogWriter,
        checkpoint::{MapObject, Retired, RetiredName},
        keys,
        usage::{
            CHANGES_MAX, Counts, SegmentUsage, USAGE_BYTES_MAX, UsageChange, decode_usage, encode_usage,
        },
    },
    map::SegmentBlocks,
    space::{Retiring, Segments, Space},
    store::SharedStore,
    units::{RunId, Seq},
    upkeep::{holdings::Holdings, points::CheckpointLag},
};

/// Usage objects a checkpoint names, beside those that a full table takes, before all are written anew as one table.
const OBJECTS_MAX: usize = 16;

/// What the next checkpoint has to say of space.
pub struct Accounts {
    env: Env,
    store: SharedStore,
    log: LogWriter,
    damage: Arc<Damage>,
    space: Arc<Space>,
    /// Oldest first.
    named: Vec<MapObject>,
    /// Those that could not be read. Looked at again when the volume is opened the next time.
    damaged: BTreeSet<RunId>,
    /// What is in no usage object yet.
    unstored: BTreeMap<Seq, UsageChange>,
    /// What was written up to here is counted.
    counted: Seq,
}

impl Accounts {
    pub fn new(
        env: Env,
        store: SharedStore,
        log: LogWriter,
        damage: Arc<Damage>,
        space: Arc<Space>,
        named: Vec<MapObject>,
        counted: Seq,
    ) -> Accounts {
        let (damaged, unstored) = Default::default();
        Accounts { env, store, log, damage, space, named, damaged, unstored, counted }
    }

    /// What the next checkpoint names.
    pub fn named(&self) -> &[MapObject] {
        &self.named
    }

    /// Reads the named objects, unless that was done.
    pub async fn load(&mut self) -> Result<()> {
        if self.space.is_loaded() {
            return Ok(());
        }
        let mut segments = Segments::default();
        for usage in self.named.clone() {
            match self.read(usage.id).await {
                Ok(changes) => changes.iter().for_each(|usage| segments.apply(usage)),
                Err(e) if e.is_damage() => {
                    self.damaged.insert(usage.id);
                }
                Err(e) => return Err(e),
            }
        }
        self.unstored.iter().for_each(|(&seq, &change)| segments.apply(&SegmentUsage { seq, change }));
        self.space.load(segments, self.env.now());
        Ok(())
    }

    /// Whether every named object could be read: a segment that is not counted then does not count.
    pub fn is_whole(&self) -> bool {
        self.space.is_loaded() && self.damaged.is_empty()
    }

    /// Counts what was written up to `covered`, and what nothing needs any more.
    pub fn count(&mut self, free: &SegmentBlocks, progress: &CheckpointLag, covered: Seq) {
        let mut changes: BTreeMap<Seq, Counts> = BTreeMap::new();
        for (seq, written) in progress.written(self.counted, covered) {
            let (stored_bytes, written_blocks) = (written.stored_bytes, written.data_blocks);
            changes.insert(seq, Counts { stored_bytes, written_blocks, dead_blocks: 0, touched: covered });
        }
        for (&seq, &dead_blocks) in free {
            let died = Counts { dead_blocks, touched: covered, ..Counts::default() };
            changes.entry(seq).or_default().add(&died);
        }
        changes.retain(|&seq, counts| {
            let is_counted = counts.stored_bytes > 0 || self.space.counts(seq);
            if !is_counted {
                self.space.met_gone(counts.dead_blocks);
            }
            is_counted
        });
        let change = |(seq, counts)| SegmentUsage { seq, change: UsageChange::Added(counts) };
        let changes: Vec<SegmentUsage> = changes.into_iter().map(change).collect();
        changes.iter().for_each(|usage| self.note(usage));
        self.space.apply(changes);
        self.counted = covered;
    }

    /// Retires the segments that a checkpoint at `covered` can do without. What rounds of the cleaner moved for snapshots counts as
    /// written where those say so.
    pub fn retire(&mut self, covered: Seq, holdings: &mut Holdings) {
        let Retiring { segments, rounds } = self.space.retire(covered);
        for seq in segments {
            self.note(&SegmentUsage { seq, change: UsageChange::Gone });
        }
        let kept = rounds.into_iter().flat_map(|round| holdings.forward(round, covered));
        let kept = kept.map(|(seq, counts)| SegmentUsage { seq, change: UsageChange::Added(counts) });
        let kept: Vec<SegmentUsage> = kept.collect();
        kept.iter().for_each(|usage| self.note(usage));
        self.space.apply(kept);
    }

    fn note(&mut self, usage: &SegmentUsage) {
        match (self.unstored.entry(usage.seq), usage.change) {
            (Entry::Occupied(mut known), UsageChange::Gone) => *known.get_mut() = UsageChange::Gone,
            (Entry::Occupied(mut known), UsageChange::Added(added)) => match known.get_mut() {
                UsageChange::Added(sum) => sum.add(&added),
                UsageChange::Gone => {}
            },
            (Entry::Vacant(new), change) => {
                new.insert(change);
            }
        }
    }

    /// Stores what is not stored yet; or all counts anew, where there are many objects.
    pub async fn store(&mut self) -> Result<()> {
        if self.unstored.is_empty() {
            return Ok(());
        }
        let is_lost = |usage: &MapObject| self.damaged.contains(&usage.id);
        let (lost, sound): (Vec<_>, Vec<_>) = self.named.iter().copied().partition(is_lost);
        if self.space.is_loaded()
            && sound.len() >= OBJECTS_MAX + (self.space.segments() as usize).div_ceil(CHANGES_MAX)
        {
            let counts = |(seq, counts)| SegmentUsage { seq, change: UsageChange::Added(counts) };
            let stored = self.store_all(self.space.all().into_iter().map(counts).collect()).await?;
            self.named = [lost, stored].concat();
            self.space.use_up(sound.into_iter().map(|usage| {
                let MapObject { id, bytes } = usage;
                Retired { name: RetiredName::Map(id), bytes }
            }));
        } else {
            let changes = self.unstored.iter().map(|(&seq, &change)| SegmentUsage { seq, change });
            let stored = self.store_all(changes.collect()).await?;
            self.named.extend(stored);
        }
        self.unstored.clear();
        Ok(())
    }

    async fn read(&self, id: RunId) -> Result<Vec<SegmentUsage>> {
        let (keys, name) = (self.log.keys(), keys::run(id));
        let read = || async {
            let body = self.store.get(&name, USAGE_BYTES_MAX).await?;
            decode_usage(keys.key.as_deref(), keys.volume, id, &body)
        };
        self.damage.read_twice(&name, USAGE_BYTES_MAX, self.env.now(), read).await
    }

    async fn store_all(&self, changes: Vec<SegmentUsage>) -> Result<Vec<MapObject>> {
        let keys = self.log.keys();
        let mut stored = Vec::new();
        for part in changes.chunks(CHANGES_MAX) {
            let id = RunId(self.env.uuid());
            let body = encode_usage(keys.key.as_deref(), keys.volume, id, part);
            let usage = MapObject { id, bytes: body.len() as u64 };
            stored.push(usage);
            self.log.put_unique(&keys::run(id), body).await?;
            self.space.stored(usage.bytes);
        }
        Ok(stored)
    }
}
