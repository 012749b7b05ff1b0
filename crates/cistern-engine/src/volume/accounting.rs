//! Every byte of every object accounted for: what the listing of a store shows against what the committed state needs.
//!
//! Live is what a walk over the whole map finds; everything else is compared with it. So nothing here relies on the accounts
//! that the cleaner works with: they are what is checked.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    Result,
    codec::KeySource,
    env::Env,
    log::{
        Committed, SlotContent, VolumeKeys, Walk,
        checkpoint::RetiredName,
        find_volume, keys, own_store, read_committed, read_entry, require_listed,
        usage::{USAGE_BYTES_MAX, decode_usage},
    },
    space::{Segments, Totals},
    store::{Listed, Pages, SharedStore},
    units::{RunId, Seq},
};

/// Objects of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub objects: u64,
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// What a volume's objects are for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpaceReport {
    /// Everything that was listed.
    pub all: Sum,
    /// Segments that the state counts, wholly or in part live.
    pub segments: Sum,
    /// Those of which nothing is live. They are retired with a checkpoint, as soon as that is known to the accounts.
    pub dead: Sum,
    /// The bytes of them that belong to live blocks, as if all blocks of a segment were stored in equally many.
    pub live_bytes: u64,
    /// Garbage of them, and of the dead, that the accounts do not know to be garbage yet.
    pub unlearned_bytes: u64,
    /// Runs of the map, and usage objects.
    pub map: Sum,
    /// Retired, and not deleted yet.
    pub grace: Sum,
    /// Claims, releases and void entries of the log, and what does not verify there: they stay.
    pub fences: Sum,
    /// Checkpoints, hot sets, the identity, the wrapped key, notes about the trash, what other volumes left.
    pub other: Sum,
    /// Nobody knows them: left by crashes and by writers that were fenced, until a sweep finds them.
    pub orphans: Sum,
}

impl SpaceReport {
    fn assert_sorted(&self) {
        let SpaceReport { segments, dead, map, grace, fences, other, orphans, .. } = self;
        let sorts = [segments, dead, map, grace, fences, other, orphans];
        debug_assert_eq!(
            sorts.iter().map(|sum| sum.bytes).sum::<u64>(),
            self.all.bytes,
            "every byte is of one sort"
        );
        debug_assert_eq!(
            sorts.iter().map(|sum| sum.objects).sum::<u64>(),
            self.all.objects,
            "every object is of one sort"
        );
        debug_assert!(self.live_bytes <= segments.bytes, "what is live is a part of what counts");
    }

    fn counted(&mut self, is_live: bool) -> &mut Sum {
        if is_live { &mut self.segments } else { &mut self.dead }
    }
}

/// Objects that are needed and not listed, of which so many are asked for by name.
const UNLISTED_MAX: usize = 100;

/// Blocks of a segment that states resolve to, the newest one and those of snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeenVersions {
    /// Those of which the state before does not see the same version: each version once.
    pub versions: u64,
    /// Those of which the state before sees another copy. Where a copy was left behind by a round of the cleaner that no checkpoint
    /// took, one place may be come to several times.
    pub copies: u64,
}

/// What the committed state says of space, before it is compared with a walk over the map.
pub struct Accounting {
    /// By the usage objects of the checkpoint.
    counts: Segments,
    /// Blocks of each segment to which a state resolves.
    seen: BTreeMap<Seq, SeenVersions>,
    retired: BTreeSet<RetiredName>,
    map: BTreeSet<RunId>,
    covered: Seq,
    walk: Walk,
    /// Segments behind the checkpoint that count, and their blocks.
    behind: BTreeMap<Seq, u64>,
}

/// The committed state of a volume that is not open here, with its accounts and what is wrong with them.
pub struct Accounted {
    pub keys: VolumeKeys,
    pub committed: Committed,
    pub accounting: Accounting,
    pub faults: Vec<String>,
}

/// Reads the newest committed state and all its accounts.
pub async fn read_accounts(env: &Env, store: &SharedStore, key: &KeySource) -> Result<Accounted> {
    let (identity, store) = find_volume(env, store).await?;
    let keys = VolumeKeys::unlock(env, store.as_ref(), &identity, key).await?;
    let committed = read_committed(env, store.as_ref(), &keys, identity.size_at_creation()).await?;
    let (accounting, faults) = Accounting::read(&store, &keys, &committed).await?;
    Ok(Accounted { keys, committed, accounting, faults })
}

impl Accounting {
    /// Reads the usage objects. Gives what is wrong with them too.
    pub async fn read(
        store: &SharedStore,
        keys: &VolumeKeys,
        committed: &Committed,
    ) -> Result<(Accounting, Vec<String>)> {
        let mut faults = Vec::new();
        let checkpoint = committed.checkpoint.as_ref();
        let behind = committed.applied.iter().map(|segment| (segment.seq, segment.data_blocks())).collect();
        let mut accounting = Accounting {
            counts: Segments::default(),
            seen: BTreeMap::new(),
            retired: checkpoint.iter().flat_map(|c| &c.retired).map(|retired| retired.name).collect(),
            map: checkpoint.iter().flat_map(|c| c.levels.iter().flatten()).map(|run| run.id).collect(),
            covered: checkpoint.map_or(Seq(0), |c| c.covered),
            walk: committed.walk.clone(),
            behind,
        };
        for usage in checkpoint.iter().flat_map(|c| &c.usage) {
            accounting.map.insert(usage.id);
            let read = match store.get(&keys::run(usage.id), USAGE_BYTES_MAX).await {
                Ok(body) => decode_usage(keys.key.as_deref(), keys.volume, usage.id, &body),
                Err(e) => Err(e.into()),
            };
            match read {
                Ok(changes) => changes.iter().for_each(|usage| accounting.counts.apply(usage)),
                Err(e) if e.is_damage() => faults.push(format!("usage: {e}")),
                Err(e) => return Err(e),
            }
        }
        Ok((accounting, faults))
    }

    /// What the accounts say of all segments that they count.
    pub fn totals(&self) -> Totals {
        self.counts.totals()
    }

    /// What the accounts say of each.
    pub fn segments(&self) -> &Segments {
        &self.counts
    }

    /// The walk over the map of a state came to blocks that the state before does not resolve to.
    pub fn note(&mut self, segment: Seq, seen: SeenVersions) {
        let sum = self.seen.entry(segment).or_default();
        sum.versions += seen.versions;
        sum.copies += seen.copies;
    }

    /// Snapshots need these objects under `map/`.
    pub fn need(&mut self, objects: impl IntoIterator<Item = RunId>) {
        self.map.extend(objects);
    }

    /// How the accounts contradict the walk: each contradiction could have something deleted that is needed.
    pub fn contradictions(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (&seq, &SeenVersions { versions: live, copies }) in &self.seen {
            let object = keys::entry(seq);
            if self.retired.contains(&RetiredName::Segment(seq)) && live + copies > 0 {
                out.push(format!(
                    "{object} is to be deleted, but {} of its blocks are needed",
                    live + copies
                ));
            }
            let known = self.counts.get(seq).filter(|_| seq <= self.covered);
            if let Some(counts) = known.filter(|counts| counts.live_blocks() < live) {
                let (written, dead) = (counts.written_blocks, counts.dead_blocks);
                out.push(format!(
                    "{object}: {dead} of {written} blocks count as dead, but {live} are needed"
                ));
            }
        }
        for name in &self.retired {
            if let RetiredName::Map(id) = name
                && self.map.contains(id)
            {
                out.push(format!("{} is to be deleted, but it is needed", keys::run(*id)));
            }
        }
        out
    }

    /// Sorts everything that is at a volume's place.
    pub async fn sort(&self, env: &Env, place: &SharedStore, keys: &VolumeKeys) -> Result<SpaceReport> {
        let store = own_store(place, keys.volume);
        let dir = format!("{}/", keys::directory(keys.volume));
        let mut report = SpaceReport::default();
        let segments = self.seen.keys().chain(self.behind.keys()).map(|seq| RetiredName::Segment(*seq));
        let mut unlisted: BTreeSet<RetiredName> =
            segments.chain(self.map.iter().copied().map(RetiredName::Map)).collect();
        require_listed(env, place.as_ref(), keys::VOLUME).await?;
        let mut pages = Pages::of(place.as_ref(), "");
        while let Some(page) = pages.next_page().await? {
            for Listed { key, bytes } in page {
                report.all.add(bytes);
                match key.strip_prefix(&dir) {
                    Some(own) => {
                        if let Some(name) = RetiredName::parse(own) {
                            unlisted.remove(&name);
                        }
                        let listed = Listed { key: own.to_owned(), bytes };
                        self.sort_one(&store, keys, &listed, &mut report).await?;
                    }
                    None => report.other.add(bytes),
                }
            }
        }
        // What is missing altogether the check of the map has told. What is listed now came behind an old listing.
        for name in unlisted.iter().take(UNLISTED_MAX) {
            let key = format!("{dir}{}", name.key());
            if let Some(Listed { bytes, .. }) = require_listed(env, place.as_ref(), &key).await? {
                report.all.add(bytes);
                let listed = Listed { key: name.key(), bytes };
                self.sort_one(&store, keys, &listed, &mut report).await?;
            }
        }
        report.assert_sorted();
        Ok(report)
    }

    async fn sort_one(
        &self,
        store: &SharedStore,
        keys: &VolumeKeys,
        listed: &Listed,
        report: &mut SpaceReport,
    ) -> Result<()> {
        if let Some(seq) = keys::parse_entry(&listed.key) {
            return self.sort_entry(store, keys, seq, listed, report).await;
        }
        let sort = match keys::parse_run(&listed.key) {
            Some(id) if self.map.contains(&id) => &mut report.map,
            Some(id) if self.retired.contains(&RetiredName::Map(id)) => &mut report.grace,
            Some(_) => {
                tracing::debug!(object = listed.key, "an orphan");
                &mut report.orphans
            }
            None => &mut report.other,
        };
        sort.add(listed.bytes);
        Ok(())
    }

    async fn sort_entry(
        &self,
        store: &SharedStore,
        keys: &VolumeKeys,
        seq: Seq,
        listed: &Listed,
        report: &mut SpaceReport,
    ) -> Result<()> {
        let share = |live: u64, of: u64| {
            (u128::from(listed.bytes) * u128::from(live.min(of)) / u128::from(of.max(1))) as u64
        };
        let SeenVersions { versions, copies } = self.seen.get(&seq).copied().unwrap_or_default();
        let live = versions + copies;
        if self.retired.contains(&RetiredName::Segment(seq)) {
            report.grace.add(listed.bytes);
        } else if let Some(blocks) = self.behind.get(&seq) {
            report.counted(live > 0).add(listed.bytes);
            report.live_bytes += share(live, *blocks);
        } else if let Some(counts) = self.counts.get(seq) {
            report.counted(live > 0).add(listed.bytes);
            let live_bytes = share(live, counts.written_blocks);
            report.live_bytes += live_bytes;
            report.unlearned_bytes += counts.live_bytes().saturating_sub(live_bytes);
        } else {
            let is_fence = match read_entry(store.as_ref(), keys, seq, listed).await {
                Ok(SlotContent::Entry(head, entry)) => self.walk.is_fence(&head, &entry),
                Ok(SlotContent::Foreign(_)) => true,
                Err(e) if e.is_damage() => true,
                Err(e) => return Err(e),
            };
            if !is_fence {
                tracing::debug!(object = listed.key, "an orphan");
            }
            let sort = if is_fence { &mut report.fences } else { &mut report.orphans };
            sort.add(listed.bytes);
        }
        Ok(())
    }
}
