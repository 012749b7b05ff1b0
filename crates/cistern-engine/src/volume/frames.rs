//! From mappings to bytes: fetch, verify and decode frames, keeping decoded ones for a while.
//!
//! Frames that lie side by side in an object are fetched with one request, and of raw frames only the
//! blocks that are needed. A frame that does not verify is dropped from the chunk cache and fetched
//! once more; if it fails again, the object itself is bad and the read fails.

use std::{
    borrow::Borrow,
    hash::{BuildHasherDefault, DefaultHasher},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cache::{CacheKey, ObjectReader, ObjectRef},
    codec::{ObjectKind, Sealer},
    log::{VolumeKeys, checkpoint::EpochStart, keys, salt_of},
    segment::{FrameShape, open_frame, open_raw},
    units::{BLOCK_BYTES, FrameRef, Mapping, Place, Salt, Seq},
};

/// Stored bytes fetched with one request at most.
const FETCH_BYTES_MAX: u64 = 4 << 20;
/// Fetches of one read at once.
const FETCHES_MAX: usize = 16;

/// Where the extents came from that were read out of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodedCounts {
    /// Frames in memory, already decoded.
    pub hits: u64,
    /// The chunk cache or the store.
    pub misses: u64,
}

/// Reads frames of one volume.
pub struct FrameReader {
    reader: Arc<ObjectReader>,
    keys: VolumeKeys,
    epochs: Arc<[EpochStart]>,
    shape: FrameShape,
    /// Decoded blocks by where in the object their bytes begin (seq, offset): whole packed frames, and
    /// what was read of raw ones.
    decoded: DecodedFrames,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Sealers of segments that are read.
    sealers: Sealers,
}

/// Hashed without a random seed: keys are ours, and a simulated run has to repeat exactly.
type DecodedFrames = quick_cache::sync::Cache<(u64, u64), Bytes, ByBytes, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone)]
struct ByBytes;

impl quick_cache::Weighter<(u64, u64), Bytes> for ByBytes {
    fn weight(&self, _: &(u64, u64), frame: &Bytes) -> u64 {
        frame.len() as u64 + 96 // the entry itself
    }
}

/// By seq. Deriving one costs more than opening a block.
type Sealers =
    quick_cache::sync::Cache<u64, Sealer, quick_cache::UnitWeighter, BuildHasherDefault<DefaultHasher>>;

/// Sealers that are kept, below 1 KiB each.
const SEALERS_MAX: usize = 1024;

/// A mapping and what it takes to read it.
struct Part {
    frame: FrameRef,
    blocks: u64,
    /// Of the object.
    range: Range<u64>,
}

/// Parts that are fetched together: consecutive in one object.
struct Group {
    seq: Seq,
    /// From the first part's beginning to the last one's end, in the object.
    range: Range<u64>,
    parts: Vec<Part>,
}

impl FrameReader {
    /// `memory_bytes` bounds the decoded frames that are kept.
    pub fn new(
        reader: Arc<ObjectReader>,
        keys: VolumeKeys,
        epochs: Arc<[EpochStart]>,
        memory_bytes: u64,
    ) -> Self {
        let items = (memory_bytes / 16_384).max(16) as usize;
        let (hasher, lifecycle) = Default::default();
        let decoded = DecodedFrames::with(items, memory_bytes, ByBytes, hasher, lifecycle);
        let shape = FrameShape::new(keys.key.is_some());
        let (weighter, hasher, lifecycle) = Default::default();
        let sealers = Sealers::with(SEALERS_MAX, SEALERS_MAX as u64, weighter, hasher, lifecycle);
        let (hits, misses) = Default::default();
        FrameReader { reader, keys, epochs, shape, decoded, hits, misses, sealers }
    }

    /// The blocks of data mappings, in their order. Mappings without a frame are not allowed.
    pub async fn read(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        if let Some(all) = self.all_kept(mappings.iter().map(|m| self.part(m))) {
            return Ok(all);
        }
        let mut groups = self.group(mappings);
        if groups.len() == 1 {
            return self.read_group(groups.remove(0)).await;
        }
        let parts: Vec<Vec<Bytes>> = stream::iter(groups.into_iter().map(|g| self.read_group(g)))
            .buffered(FETCHES_MAX)
            .try_collect()
            .await?;
        Ok(parts.into_iter().flatten().collect())
    }

    pub(super) fn epochs(&self) -> &Arc<[EpochStart]> {
        &self.epochs
    }

    pub(super) fn reader(&self) -> &Arc<ObjectReader> {
        &self.reader
    }

    /// Where in its object the bytes lie that a data mapping needs.
    pub(super) fn place(&self, mapping: &Mapping) -> (Seq, Range<u64>) {
        let part = self.part(mapping);
        (part.frame.seq, part.range)
    }

    fn part(&self, mapping: &Mapping) -> Part {
        let Place::Frame(frame) = mapping.place else { unreachable!("only data has frames") };
        let blocks = mapping.extent.len;
        Part { frame, blocks, range: self.shape.needed(&frame, blocks) }
    }

    fn group(&self, mappings: &[Mapping]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for part in mappings.iter().map(|m| self.part(m)) {
            match groups.last_mut() {
                Some(g) if g.takes(&part) => {
                    g.range.end = part.range.end;
                    g.parts.push(part);
                }
                _ => groups.push(Group { seq: part.frame.seq, range: part.range.clone(), parts: vec![part] }),
            }
        }
        groups
    }

    pub(super) fn counts(&self) -> DecodedCounts {
        DecodedCounts { hits: self.hits.load(Relaxed), misses: self.misses.load(Relaxed) }
    }

    /// The blocks of all parts, if they are in memory.
    fn all_kept(&self, parts: impl Iterator<Item = impl Borrow<Part>>) -> Option<Vec<Bytes>> {
        let all: Vec<Bytes> = parts.map(|part| self.kept(part.borrow())).collect::<Option<_>>()?;
        self.hits.fetch_add(all.len() as u64, Relaxed);
        Some(all)
    }

    /// The blocks of a part, if they are in memory.
    fn kept(&self, part: &Part) -> Option<Bytes> {
        self.cut(part, &self.decoded.get(&(part.frame.seq.0, part.range.start))?)
    }

    /// The blocks of a part out of what was decoded; `None` if that does not have them.
    fn cut(&self, part: &Part, decoded: &Bytes) -> Option<Bytes> {
        let index = if self.shape.is_raw(&part.frame) { 0 } else { usize::from(part.frame.index) };
        let from = index * BLOCK_BYTES;
        let to = from + part.blocks as usize * BLOCK_BYTES;
        (to <= decoded.len()).then(|| decoded.slice(from..to))
    }

    /// The blocks of a data mapping, if they are in memory.
    pub(super) fn at_hand(&self, mapping: &Mapping) -> Option<Bytes> {
        self.kept(&self.part(mapping))
    }

    /// The blocks of a data mapping for who packs: nobody waits, and nobody will want them again.
    pub(super) async fn read_to_pack(&self, mapping: &Mapping) -> Result<Bytes> {
        let part = self.part(mapping);
        if let Some(kept) = self.kept(&part) {
            return Ok(kept);
        }
        let (object, salt) = self.object(part.frame.seq)?;
        let sealer = self.sealer(salt, part.frame.seq);
        let group = Group { seq: part.frame.seq, range: part.range.clone(), parts: vec![part] };
        let stored = self.reader.read_to_pack(&object, group.range.clone()).await?;
        let decoded = match self.decode(&sealer, &group, &stored) {
            Ok(decoded) => decoded,
            Err(_) => {
                self.reader.forget(&object); // as below
                let stored = self.reader.read_to_pack(&object, group.range.clone()).await?;
                self.decode(&sealer, &group, &stored)?
            }
        };
        Ok(decoded.into_iter().next().expect("one for each part"))
    }

    async fn read_group(&self, group: Group) -> Result<Vec<Bytes>> {
        if let Some(all) = self.all_kept(group.parts.iter()) {
            return Ok(all);
        }
        self.misses.fetch_add(group.parts.len() as u64, Relaxed);
        let (object, salt) = self.object(group.seq)?;
        let sealer = self.sealer(salt, group.seq);
        let stored = self.reader.read(&object, group.range.clone(), self.reader.window_bytes()).await?;
        if let Ok(all) = self.decode(&sealer, &group, &stored) {
            return Ok(all);
        }
        // Perhaps only our copy is bad: take a fresh one, and believe that.
        self.reader.forget(&object);
        let stored = self.reader.read(&object, group.range.clone(), 0).await?;
        self.decode(&sealer, &group, &stored)
    }

    fn decode(&self, sealer: &Sealer, group: &Group, stored: &Bytes) -> Result<Vec<Bytes>> {
        let mut out: Vec<Bytes> = Vec::with_capacity(group.parts.len());
        let mut last: Option<(u64, Bytes)> = None;
        for part in &group.parts {
            let decoded = match &last {
                Some((start, decoded)) if *start == part.range.start => decoded.clone(),
                _ => {
                    let from = (part.range.start - group.range.start) as usize;
                    let to = (part.range.end - group.range.start) as usize;
                    let decoded = self.open(sealer, part, &stored[from..to])?;
                    self.decoded.insert((part.frame.seq.0, part.range.start), decoded.clone());
                    decoded
                }
            };
            out.push(self.cut(part, &decoded).ok_or_else(|| {
                Error::corrupt(keys::entry(part.frame.seq), "a frame is shorter than the map says")
            })?);
            last = Some((part.range.start, decoded));
        }
        Ok(out)
    }

    fn open(&self, sealer: &Sealer, part: &Part, stored: &[u8]) -> Result<Bytes> {
        match self.shape.is_raw(&part.frame) {
            true => open_raw(sealer, &part.frame, stored),
            false => open_frame(sealer, &part.frame, stored),
        }
    }

    pub(super) fn object(&self, seq: Seq) -> Result<(ObjectRef, Salt)> {
        let salt = salt_of(&self.epochs, seq).ok_or_else(|| {
            Error::corrupt("map", format!("it names seq {seq}, which is before the first claim"))
        })?;
        Ok((entry_object(seq, salt), salt))
    }

    fn sealer(&self, salt: Salt, seq: Seq) -> Sealer {
        if let Some(sealer) = self.sealers.get(&seq.0) {
            return sealer;
        }
        let key = self.keys.key.as_deref();
        let sealer = Sealer::new(key, self.keys.volume, ObjectKind::Segment, salt, seq.0);
        self.sealers.insert(seq.0, sealer.clone());
        sealer
    }
}

/// The log object at `seq`, for reading.
pub(super) fn entry_object(seq: Seq, salt: Salt) -> ObjectRef {
    ObjectRef { key: keys::entry(seq), cache: CacheKey::new(salt.0, seq.0), bytes: None }
}

impl Group {
    /// Whether a part goes on where this ends, or lies in the frame it ends with.
    fn takes(&self, part: &Part) -> bool {
        let last = self.parts.last().expect("no group is empty");
        self.seq == part.frame.seq
            && (self.range.end == part.range.start || last.range == part.range)
            && part.range.end - self.range.start <= FETCH_BYTES_MAX
    }
}
