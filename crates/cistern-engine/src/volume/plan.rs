//! What a collection would do and take, by the newest committed state: `cistern gc --dry-run`. Changes nothing.

use std::sync::Arc;

use serde::Serialize;

use crate::{
    Error, Result,
    cleaner::{RoundSize, defragmented},
    codec::KeySource,
    env::Env,
    fetch::MOVE_GAP_BYTES,
    gc::readers::while_announced,
    log::{Committed, VolumeKeys, find_volume, keys, usage::Counts},
    space::{Plan, plan},
    store::{Meter, SharedStore, StoreKind, StoreStats, Stores},
    units::{BLOCK_BYTES, Extent, Mapping, Place, Seq},
    upkeep::SEGMENTS_PER_CHECKPOINT,
    volume::{
        Collect,
        accounting::{Accounted, read_accounts},
        admin::ProgressFn,
        open::{ReadParts, read_only},
    },
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Objects that come with a checkpoint, about: itself, the counts, a run, and one for what merges make of runs or an empty entry.
const PUTS_PER_CHECKPOINT: u64 = 4;
/// Memory for map and frames.
const MEMORY_BYTES: u64 = 256 << 20;

/// What would be done, and what that takes. What died lately may not be known, so it may be a little more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CollectPlan {
    /// Segments, what they take and what of that is live.
    pub segments: u64,
    pub stored_bytes: u64,
    pub live_bytes: u64,
    /// Segments of which nothing is live: deleted, unread.
    pub dead_segments: u64,
    pub dead_bytes: u64,
    /// Segments out of which what is live is moved.
    pub victims: u64,
    pub victim_bytes: u64,
    pub moved_blocks: u64,
    /// Requests, and the bytes that are fetched and stored; nothing is assumed to be in a cache.
    pub gets: u64,
    pub fetched_bytes: u64,
    pub puts: u64,
    pub put_bytes: u64,
    /// What segments take when it is done and the grace is over.
    pub after_bytes: u64,
}

/// Looks at a volume and says what `what` would do, in all its steps. Progress counts blocks of the volume.
///
/// # Errors
/// `Corrupt` where the accounts are damaged: run a check. `Invalid` for a range behind the end.
pub async fn plan_collection(
    env: &Env,
    place: impl Into<Stores>,
    key: &KeySource,
    what: Collect,
    progress: ProgressFn<'_>,
) -> Result<CollectPlan> {
    let place = place.into();
    let planning = plan_announced(env, &place, key, what, progress);
    match place.read.room().await {
        Ok(Some(_)) => {
            let (_, own) = find_volume(env, &place.read).await?;
            while_announced(env, &own, planning).await
        }
        _ => planning.await,
    }
}

async fn plan_announced(
    env: &Env,
    place: &Stores,
    key: &KeySource,
    what: Collect,
    progress: ProgressFn<'_>,
) -> Result<CollectPlan> {
    let Accounted { keys, committed, accounting, faults } = read_accounts(env, &place.read, key).await?;
    if let Some(fault) = faults.into_iter().next() {
        return Err(Error::corrupt("map/", fault));
    }
    let ratio = match what {
        Collect::Clean { ratio } => ratio,
        _ => f64::INFINITY,
    };
    let mut out = CollectPlan::of(&plan(accounting.segments(), committed.walk.seq, ratio));
    if let Collect::Defragment { offset, len } = what {
        let within = place.within(&keys::directory(keys.volume));
        let meter = Meter::new(within.read.clone(), env.clone());
        let [ahead, background] = [&within.ahead, &within.background]
            .map(|store| Arc::new(meter.beside(store.clone())) as SharedStore);
        let meter = Arc::new(meter);
        let stores = Stores { read: meter.clone(), ahead, background, ..within };
        let parts = ReadParts { env, stores: &stores, cache: None, memory_bytes: MEMORY_BYTES };
        out.add_defragmentation(parts, &keys, &committed, (offset, len), progress).await?;
        out.add_reads_of_the_map(&meter.snapshot());
    }
    out.add_checkpoints();
    Ok(out)
}

/// As of a daemon that has the memory for full segments.
fn round_size() -> RoundSize {
    RoundSize::new(u64::MAX)
}

impl CollectPlan {
    fn of(plan: &Plan) -> CollectPlan {
        let Plan { before, dead, victims, after_bytes } = plan;
        let sum = |of: fn(&Counts) -> u64| victims.iter().map(|victim| of(&victim.counts)).sum();
        let moved_blocks: u64 = sum(Counts::live_blocks);
        CollectPlan {
            segments: before.segments,
            stored_bytes: before.stored_bytes,
            live_bytes: before.live_bytes,
            dead_segments: dead.segments,
            dead_bytes: dead.stored_bytes,
            victims: victims.len() as u64,
            victim_bytes: sum(|counts| counts.stored_bytes),
            moved_blocks,
            gets: sum(gets_to_clean),
            fetched_bytes: sum(Counts::live_bytes),
            puts: moved_blocks.div_ceil(round_size().segment_blocks()),
            put_bytes: sum(Counts::live_bytes),
            after_bytes: *after_bytes,
        }
    }

    /// One for so many segments, and those that it begins and ends with.
    fn add_checkpoints(&mut self) {
        if self.puts + self.dead_segments > 0 {
            self.puts += PUTS_PER_CHECKPOINT * (self.puts / SEGMENTS_PER_CHECKPOINT + 2);
        }
    }

    /// The rounds have read of the map what the cleaner will read, and nothing else.
    fn add_reads_of_the_map(&mut self, read: &StoreStats) {
        for kind in read.kinds.iter().filter(|kind| matches!(kind.kind, StoreKind::Get | StoreKind::GetRange))
        {
            self.gets += kind.requests;
            self.fetched_bytes += kind.bytes;
        }
    }

    /// Goes through the rounds as the cleaner will.
    async fn add_defragmentation(
        &mut self,
        parts: ReadParts<'_>,
        keys: &VolumeKeys,
        committed: &Committed,
        (offset, len): (u64, u64),
        progress: ProgressFn<'_>,
    ) -> Result<()> {
        let volume = read_only(parts, keys, committed).await?;
        volume.check_bounds(offset, len)?;
        let end = (offset + len).div_ceil(BLOCK);
        let mut next = Some(offset / BLOCK);
        while let Some(at) = next {
            progress(at, end);
            let round =
                defragmented(&volume.map, Extent::between(at, end), Seq(u64::MAX), round_size().blocks())
                    .await?;
            let (gets, fetched_bytes) = volume.frames.cost_to_move(&round.moved);
            let blocks: u64 = round.moved.iter().map(|mapping| mapping.extent.len).sum();
            let put_bytes: u64 = round.moved.iter().map(stored_bytes).sum();
            self.moved_blocks += blocks;
            self.gets += gets;
            self.fetched_bytes += fetched_bytes;
            self.puts += blocks.div_ceil(round_size().segment_blocks());
            self.put_bytes += put_bytes;
            self.after_bytes += put_bytes;
            next = round.next;
        }
        Ok(())
    }
}

/// Requests for what is live in a victim, if that lies anywhere in it: one for the footer, and one for each stretch without a
/// gap that is wide enough to ask around it.
fn gets_to_clean(counts: &Counts) -> u64 {
    let live = counts.live_blocks() as f64 / counts.written_blocks.max(1) as f64;
    let gap_blocks = (MOVE_GAP_BYTES / BLOCK) as i32;
    1 + (counts.live_blocks() as f64 * (1.0 - live).powi(gap_blocks)).ceil() as u64
}

/// What the blocks of a mapping will take, about: what they take now, or less where they are a part of a packed frame.
fn stored_bytes(mapping: &Mapping) -> u64 {
    match mapping.place {
        Place::Frame(frame) => u64::from(frame.stored).min(mapping.extent.len * BLOCK),
        Place::Hole | Place::Zero => 0,
    }
}
