//! Reading runs: their parts, opened, verified and cached within one bound of memory.
//!
//! Invariants: nothing is used that was not opened with its own sealer and found well-formed; a
//! run or fence is never in memory as a whole; lengths read from bytes are checked before
//! anything is allocated for them. Whatever does not fit is `Error::Corrupt` with run and offset. A part that
//! does not verify is read once more, from the store itself: only what is bad there is damage, and is told.

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use quick_cache::{OptionsBuilder, Weighter, sync::Cache};

use super::{
    RunIo, RunMeta,
    block::{self, Block},
    fence::{self, Fence, FencePart, TAG_SECTION, TAG_TOP, TAIL_MARK_BYTES, TRAILER_BYTES, Trailer},
    names::RunsBeingWritten,
    writer::PART_BYTES_MAX,
};
use crate::{
    Error, Result,
    codec::{MasterKey, ObjectKind, Sealer},
    damage::Damage,
    env::Env,
    units::{Extent, Mapping, RunId, Salt, Seq, VolumeId},
};

/// Bytes that are read at the end of a run to find trailer and top in one request.
const TAIL_BYTES: u64 = 4 << 10;
/// Bytes of a cached part beyond its content: key, bookkeeping of the cache, allocation.
const CACHED_OVERHEAD_BYTES: u64 = 192;
const MALFORMED: &str = "the block is malformed";
/// Parts of the cache with a lock of their own. Fixed, so that what is evicted does not depend on
/// the machine.
const CACHE_SHARDS: usize = 4;

/// A part of a run in memory, verified.
#[derive(Clone)]
pub(super) enum Part {
    Top(Arc<Top>),
    Section(Arc<Fence>),
    Block(Arc<Block>),
}

/// The first thing that is read of a run.
pub(super) struct Top {
    pub sealer: Sealer,
    /// Its sections.
    pub fence: Fence,
}

/// Run and offset of a part; the top has the offset `TOP`.
type PartKey = (RunId, u64);
const TOP: u64 = u64::MAX;

#[derive(Clone)]
struct Weigh;

impl Weighter<PartKey, Part> for Weigh {
    fn weight(&self, _: &PartKey, part: &Part) -> u64 {
        let bytes = match part {
            Part::Top(top) => std::mem::size_of::<Top>() + 1024 + fence_bytes(&top.fence),
            Part::Section(fence) => fence_bytes(fence),
            Part::Block(block) => block.memory_bytes(),
        };
        bytes as u64 + CACHED_OVERHEAD_BYTES
    }
}

fn fence_bytes(fence: &Fence) -> usize {
    fence.entries.capacity() * std::mem::size_of::<FencePart>()
}

/// A part that is needed next and is not in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    Top,
    Section(FencePart),
    Block(FencePart),
}

impl Wanted {
    fn key(&self, run: &RunMeta) -> PartKey {
        match self {
            Wanted::Top => (run.id, TOP),
            Wanted::Section(e) | Wanted::Block(e) => (run.id, e.offset),
        }
    }

    /// The bytes that must be sound for it.
    fn place(&self, run: &RunMeta) -> Range<u64> {
        match self {
            Wanted::Top => tail_at(run)..run.bytes,
            Wanted::Section(e) | Wanted::Block(e) => place_of(e),
        }
    }
}

fn place_of(e: &FencePart) -> Range<u64> {
    e.offset..e.offset.saturating_add(u64::from(e.bytes))
}

fn tail_at(run: &RunMeta) -> u64 {
    run.bytes.saturating_sub(TAIL_BYTES)
}

/// Which copy of a part is read.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// Any that is at hand.
    Any,
    /// The same, and nobody waits for it.
    Patient,
    /// What the store has.
    Store,
    /// All bytes of the run, which were read before.
    Whole(&'a Bytes),
}

/// What one look into a run gives without waiting.
pub(super) enum Look {
    /// Mappings of one chunk, cut to the run's span; the first one is the first that ends behind
    /// the block asked for, the last one reaches the limit or is the chunk's last.
    Found(Vec<Mapping>),
    /// No mapping of the run ends behind that block.
    End,
    Missing(Wanted),
}

/// Parts that a reader holds itself, so that an eviction cannot make it start over.
#[derive(Default)]
pub(super) struct HeldParts(Vec<(PartKey, Part)>);

/// All runs of a volume.
pub(super) struct Runs {
    env: Env,
    damage: Arc<Damage>,
    io: Arc<dyn RunIo>,
    key: Option<Arc<MasterKey>>,
    volume: VolumeId,
    cache: Cache<PartKey, Part, Weigh, BuildHasherDefault<DefaultHasher>>,
    written_bytes: AtomicU64,
    /// Those that are being written.
    pub(super) written: RunsBeingWritten,
}

impl Runs {
    pub(super) fn new(
        env: Env,
        io: Arc<dyn RunIo>,
        key: Option<Arc<MasterKey>>,
        volume: VolumeId,
        memory_bytes: u64,
        damage: Arc<Damage>,
    ) -> Runs {
        let options = OptionsBuilder::new()
            .shards(CACHE_SHARDS)
            .estimated_items_capacity((memory_bytes >> 13) as usize)
            .weight_capacity(memory_bytes)
            .build()
            .expect("both capacities are set");
        let cache = Cache::with_options(options, Weigh, Default::default(), Default::default());
        let (written_bytes, written) = Default::default();
        Runs { env, damage, io, key, volume, cache, written_bytes, written }
    }

    /// Stores a new run.
    pub(super) async fn write(&self, id: RunId, body: Bytes) -> Result<()> {
        self.stored(body.len(), self.io.write(id, body)).await
    }

    /// As `write`, of what a merge made.
    pub(super) async fn write_merged(&self, id: RunId, body: Bytes) -> Result<()> {
        self.stored(body.len(), self.io.write_merged(id, body)).await
    }

    async fn stored(&self, bytes: usize, write: impl Future<Output = Result<()>>) -> Result<()> {
        write.await?;
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
        Ok(())
    }

    /// Bytes of the runs that were stored.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Relaxed)
    }

    /// The sealer of a run that is written.
    pub(super) fn sealer(&self, id: RunId) -> Sealer {
        self.sealer_of(self.volume, id)
    }

    /// The sealer of a run, by the volume that wrote it.
    fn sealer_of(&self, volume: VolumeId, id: RunId) -> Sealer {
        Sealer::new(self.key.as_deref(), volume, ObjectKind::Run, Salt(*id.0.as_bytes()), 0)
    }

    fn sealer_to_read(&self, run: &RunMeta) -> Sealer {
        self.sealer_of(run.owner.unwrap_or(self.volume), run.id)
    }

    /// Looks for the first mappings of `run` that end behind the beginning of `blocks`, up to one that reaches its end, using
    /// what is in memory. Parts of which nothing was born behind `since` are passed over.
    pub(super) fn look(
        &self,
        run: &RunMeta,
        blocks: Range<u64>,
        since: Seq,
        held: &HeldParts,
    ) -> Result<Look> {
        let (block, limit) = (blocks.start.max(run.span.start), blocks.end);
        let Some(Part::Top(top)) = self.get((run.id, TOP), held) else {
            return Ok(Look::Missing(Wanted::Top));
        };
        let sections = &top.fence.entries[top.fence.find(block)..];
        for section in sections.iter().filter(|section| section.birth_max > since) {
            let Some(Part::Section(fence)) = self.get((run.id, section.offset), held) else {
                return Ok(Look::Missing(Wanted::Section(*section)));
            };
            for entry in &fence.entries[fence.find(block)..] {
                // What begins behind the limit is not read: nobody asks for it, and it may be damaged.
                if entry.first >= run.span.end().min(limit) {
                    return Ok(Look::End);
                }
                if entry.birth_max <= since {
                    continue;
                }
                let Some(Part::Block(part)) = self.get((run.id, entry.offset), held) else {
                    return Ok(Look::Missing(Wanted::Block(*entry)));
                };
                let Some(found) = part.find(block, limit, run.span) else {
                    self.cache.remove(&(run.id, entry.offset));
                    let malformed = Err(corrupt(run, entry.offset, MALFORMED));
                    self.tell(run, &place_of(entry), &malformed);
                    return malformed;
                };
                if !found.is_empty() {
                    return Ok(Look::Found(found));
                }
            }
        }
        Ok(Look::End)
    }

    fn get(&self, key: PartKey, held: &HeldParts) -> Option<Part> {
        let own = held.0.iter().find(|(k, _)| *k == key).map(|(_, part)| part.clone());
        own.or_else(|| self.cache.get(&key))
    }

    /// Reads a part that `look` missed, and keeps it in the cache and in `held`.
    pub(super) async fn load(
        &self,
        origin: Origin<'_>,
        run: &RunMeta,
        wanted: Wanted,
        held: &mut HeldParts,
    ) -> Result<()> {
        let part = self.load_sound(origin, run, wanted, held).await?;
        let key = wanted.key(run);
        debug_assert!(held.0.iter().all(|(other, _)| *other != key), "a part that is held is not read again");
        self.cache.insert(key, part.clone());
        held.0.push((key, part));
        Ok(())
    }

    /// The top of a run, from memory or read.
    async fn top(&self, run: &RunMeta) -> Result<Arc<Top>> {
        let mut held = HeldParts::default();
        loop {
            if let Some(Part::Top(top)) = self.get((run.id, TOP), &held) {
                return Ok(top);
            }
            self.load(Origin::Any, run, Wanted::Top, &mut held).await?;
        }
    }

    /// The top for a merge, from all bytes of the run where they are here and verify.
    pub(super) async fn top_to_merge(&self, run: &RunMeta, whole: Option<&Bytes>) -> Result<Arc<Top>> {
        match whole {
            Some(whole) => match self.load_top(Origin::Whole(whole), run).await {
                Ok(top) => Ok(Arc::new(top)),
                Err(_) => self.top(run).await,
            },
            None => self.top(run).await,
        }
    }

    /// A section for a merge, the same way; past the cache.
    pub(super) async fn section_to_merge(
        &self,
        run: &RunMeta,
        entry: FencePart,
        whole: Option<&Bytes>,
    ) -> Result<Arc<Fence>> {
        if let Some(Part::Section(fence)) = self.cache.get(&(run.id, entry.offset)) {
            return Ok(fence);
        }
        let (wanted, held) = (Wanted::Section(entry), HeldParts::default());
        let here = match whole {
            Some(whole) => self.load_from(Origin::Whole(whole), run, wanted, &held).await.ok(),
            None => None,
        };
        let part = match here {
            Some(part) => part,
            None => self.load_sound(Origin::Any, run, wanted, &held).await?,
        };
        match part {
            Part::Section(fence) => Ok(fence),
            Part::Top(_) | Part::Block(_) => unreachable!("a section was wanted"),
        }
    }

    /// A part, verified. What does not verify is read from the store itself before it is believed.
    async fn load_sound(
        &self,
        origin: Origin<'_>,
        run: &RunMeta,
        wanted: Wanted,
        held: &HeldParts,
    ) -> Result<Part> {
        let place = wanted.place(run);
        if self.damage.is_empty() || !self.damage.is_known(&self.io.name(run), &place) {
            match self.load_from(origin, run, wanted, held).await {
                Err(e) if e.is_damage() => self.io.forget(run),
                loaded => return loaded,
            }
        }
        let loaded = self.load_from(Origin::Store, run, wanted, held).await;
        self.tell(run, &place, &loaded);
        loaded
    }

    /// The sealed bytes of a block that did not verify, from the store itself, and verified.
    pub(super) async fn read_block_again(
        &self,
        run: &RunMeta,
        entry: FencePart,
        sealer: &Sealer,
    ) -> Result<Bytes> {
        self.io.forget(run);
        let place = place_of(&entry);
        let read = async {
            let sealed = self.read(Origin::Store, run, place.clone()).await?;
            let plain = open(sealer, run, entry.offset, &sealed)?;
            let is_well_formed = block::decode(&plain, &mut Vec::new()).is_some();
            is_well_formed.then_some(sealed).ok_or_else(|| corrupt(run, entry.offset, MALFORMED))
        };
        let read = read.await;
        self.tell(run, &place, &read);
        read
    }

    /// A merge found a run damaged. Most damage was told where it was met.
    pub(super) fn note_unmergeable(&self, run: &RunMeta, e: Error) {
        let name = self.io.name(run);
        if !self.damage.names(&name) {
            self.damage.tell(&name, &(0..0), &Err::<(), _>(e), self.env.now());
        }
    }

    /// Tells what came of reading a part from the store itself.
    fn tell<T>(&self, run: &RunMeta, place: &Range<u64>, outcome: &Result<T>) {
        if outcome.is_err() || !self.damage.is_empty() {
            self.damage.tell(&self.io.name(run), place, outcome, self.env.now());
        }
    }

    async fn load_from(
        &self,
        origin: Origin<'_>,
        run: &RunMeta,
        wanted: Wanted,
        held: &HeldParts,
    ) -> Result<Part> {
        Ok(match wanted {
            Wanted::Top => Part::Top(Arc::new(self.load_top(origin, run).await?)),
            Wanted::Section(e) => {
                let plain = self.load_plain(origin, run, e, held).await?;
                let fence = Fence::decode(TAG_SECTION, &plain, e.offset)
                    .ok_or_else(|| corrupt(run, e.offset, "the section is malformed"))?;
                Part::Section(Arc::new(fence))
            }
            Wanted::Block(e) => {
                let plain = self.load_plain(origin, run, e, held).await?;
                let block = Block::new(plain).ok_or_else(|| corrupt(run, e.offset, MALFORMED))?;
                Part::Block(Arc::new(block))
            }
        })
    }

    async fn load_plain(
        &self,
        origin: Origin<'_>,
        run: &RunMeta,
        entry: FencePart,
        held: &HeldParts,
    ) -> Result<Vec<u8>> {
        let sealed = self.read(origin, run, place_of(&entry)).await?;
        let sealer = match self.get((run.id, TOP), held) {
            Some(Part::Top(top)) => top.sealer.clone(),
            _ => self.sealer_to_read(run),
        };
        open(&sealer, run, entry.offset, &sealed)
    }

    /// Reads exactly `range` of a run, at most a few parts long.
    async fn read(&self, origin: Origin<'_>, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        check_range(run, &range)?;
        let bytes = match origin {
            Origin::Any => self.io.read(run, range.clone()).await?,
            Origin::Patient => self.io.read_patiently(run, range.clone()).await?,
            Origin::Store => self.io.read_fresh(run, range.clone()).await?,
            Origin::Whole(bytes) => bytes.slice(range.start as usize..range.end as usize),
        };
        whole(run, &range, bytes)
    }

    /// Some of a run as it is stored, for a merge; from all of it, where that is here.
    pub(super) async fn read_to_merge(
        &self,
        run: &RunMeta,
        range: Range<u64>,
        whole: Option<&Bytes>,
    ) -> Result<Bytes> {
        self.read(whole.map_or(Origin::Patient, Origin::Whole), run, range).await
    }

    async fn load_top(&self, origin: Origin<'_>, run: &RunMeta) -> Result<Top> {
        let sealer = self.sealer_to_read(run);
        let tail_at = tail_at(run);
        let tail = self.read(origin, run, tail_at..run.bytes).await?;
        let trailer_bytes = TRAILER_BYTES + sealer.overhead();
        let Some((rest, mark)) = tail.split_last_chunk::<TAIL_MARK_BYTES>() else {
            return Err(corrupt(run, tail_at, "the object is too short for a run"));
        };
        match fence::tail_version(*mark) {
            Some(fence::VERSION) => {}
            Some(found) => {
                let (found, known) = (found.into(), fence::VERSION.into());
                return Err(Error::Version { what: name(run), found, known });
            }
            None => return Err(corrupt(run, run.bytes, "there is no tail mark")),
        }
        let Some(at) = rest.len().checked_sub(trailer_bytes) else {
            return Err(corrupt(run, tail_at, "the object is too short for a run"));
        };
        let trailer_at = tail_at + at as u64;
        let plain = open(&sealer, run, trailer_at, &rest[at..])?;
        let trailer = Trailer::decode(&plain)
            .filter(|t| t.top_bytes <= PART_BYTES_MAX && contains(t.span, run.span))
            .filter(|t| t.top_offset.checked_add(u64::from(t.top_bytes)) == Some(trailer_at))
            .ok_or_else(|| corrupt(run, trailer_at, "the trailer is malformed"))?;
        let sealed = if trailer.top_offset >= tail_at {
            tail.slice((trailer.top_offset - tail_at) as usize..at)
        } else {
            self.read(origin, run, trailer.top_offset..trailer_at).await?
        };
        let plain = open(&sealer, run, trailer.top_offset, &sealed)?;
        let fence = Fence::decode(TAG_TOP, &plain, trailer.top_offset)
            .ok_or_else(|| corrupt(run, trailer.top_offset, "the top is malformed"))?;
        Ok(Top { sealer, fence })
    }
}

fn check_range(run: &RunMeta, range: &Range<u64>) -> Result<()> {
    match range.start < range.end && range.end <= run.bytes {
        true => Ok(()),
        false => Err(corrupt(run, range.start, "a listed part lies outside the object")),
    }
}

/// `bytes`, if they are all of `range`.
fn whole(run: &RunMeta, range: &Range<u64>, bytes: Bytes) -> Result<Bytes> {
    match bytes.len() as u64 == range.end - range.start {
        true => Ok(bytes),
        false => Err(corrupt(run, range.start, "the object is shorter than it was")),
    }
}

fn contains(outer: Extent, inner: Extent) -> bool {
    let ends = (outer.start.checked_add(outer.len), inner.start.checked_add(inner.len));
    matches!(ends, (Some(outer_end), Some(end)) if outer.start <= inner.start && end <= outer_end)
}

/// The plain bytes of a part.
pub(super) fn open(sealer: &Sealer, run: &RunMeta, offset: u64, sealed: &[u8]) -> Result<Vec<u8>> {
    if sealed.len() > PART_BYTES_MAX as usize {
        return Err(corrupt(run, offset, "a part is longer than any part"));
    }
    match sealer.open(offset, sealed) {
        Ok(plain) => Ok(plain.into_owned()),
        Err(cause) => Err(corrupt(run, offset, &cause.to_string())),
    }
}

fn name(run: &RunMeta) -> String {
    format!("run {}", run.id)
}

/// The error for bytes at `offset` of a run that are not what was written.
pub(super) fn corrupt(run: &RunMeta, offset: u64, detail: &str) -> Error {
    Error::corrupt(name(run), format!("at offset {offset}: {detail}"))
}
