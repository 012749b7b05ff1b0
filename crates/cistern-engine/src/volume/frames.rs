//! From mappings to bytes: fetch, verify and decode frames, keeping decoded ones for a while.
//!
//! Frames that lie side by side in an object are fetched with one request. A frame that does not
//! verify is dropped from the chunk cache and fetched once more; if it fails again, the object itself
//! is bad and the read fails.

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    Error, Result,
    cache::{CacheKey, ObjectReader, ObjectRef},
    codec::{ObjectKind, Sealer},
    log::{VolumeKeys, checkpoint::EpochStart, keys, salt_of},
    segment::open_frame,
    units::{BLOCK_BYTES, FrameRef, Mapping, Place, Salt, Seq},
};

/// Bytes around a miss that are fetched with it: what was written together is read together.
const WINDOW_BYTES: u64 = 256 << 10;
/// Stored bytes fetched with one request at most.
const FETCH_BYTES_MAX: u64 = 4 << 20;
/// Fetches of one read at once.
const FETCHES_MAX: usize = 16;

/// Reads frames of one volume.
pub struct FrameReader {
    reader: Arc<ObjectReader>,
    keys: VolumeKeys,
    epochs: Arc<[EpochStart]>,
    /// Decoded frames by (seq, offset).
    decoded: DecodedFrames,
}

/// Hashed without a random seed: keys are ours, and a simulated run has to repeat exactly.
type DecodedFrames = quick_cache::sync::Cache<(u64, u32), Bytes, ByBytes, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone)]
struct ByBytes;

impl quick_cache::Weighter<(u64, u32), Bytes> for ByBytes {
    fn weight(&self, _: &(u64, u32), frame: &Bytes) -> u64 {
        frame.len() as u64 + 96 // the entry itself
    }
}

/// Frames that are fetched together: consecutive in one object.
struct Group {
    seq: Seq,
    /// Of the first frame's beginning and the last one's end, in the object.
    range: std::ops::Range<u64>,
    mappings: Vec<(Mapping, FrameRef)>,
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
        FrameReader { reader, keys, epochs, decoded }
    }

    /// The blocks of data mappings, in their order. Mappings without a frame are not allowed.
    pub async fn read(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        let groups = self.group(mappings);
        let parts: Vec<Vec<Bytes>> = stream::iter(groups.into_iter().map(|g| self.read_group(g)))
            .buffered(FETCHES_MAX)
            .try_collect()
            .await?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Brings the stored bytes of mappings into the chunk cache.
    pub async fn prefetch(&self, mappings: &[Mapping]) -> Result<()> {
        let groups = self.group(mappings);
        stream::iter(groups.into_iter().map(|g| async move {
            let object = self.object(g.seq)?.0;
            self.reader.read(&object, g.range, WINDOW_BYTES).await.map(drop)
        }))
        .buffer_unordered(FETCHES_MAX)
        .try_collect()
        .await
    }

    fn group(&self, mappings: &[Mapping]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for mapping in mappings {
            let Place::Frame(frame) = mapping.place else { unreachable!("only data has frames") };
            let range = u64::from(frame.offset)..u64::from(frame.offset) + u64::from(frame.stored);
            match groups.last_mut() {
                Some(g)
                    if g.seq == frame.seq
                        && (g.range.end == range.start
                            || g.mappings.last().is_some_and(|(_, f)| f.offset == frame.offset))
                        && range.end - g.range.start <= FETCH_BYTES_MAX =>
                {
                    g.range.end = range.end;
                    g.mappings.push((*mapping, frame));
                }
                _ => groups.push(Group { seq: frame.seq, range, mappings: vec![(*mapping, frame)] }),
            }
        }
        groups
    }

    async fn read_group(&self, group: Group) -> Result<Vec<Bytes>> {
        let cached = |(m, f): &(Mapping, FrameRef)| cut(&self.decoded.get(&(f.seq.0, f.offset))?, m, f);
        if let Some(all) = group.mappings.iter().map(cached).collect() {
            return Ok(all);
        }
        let (object, salt) = self.object(group.seq)?;
        let sealer = self.sealer(salt, group.seq);
        let stored = self.reader.read(&object, group.range.clone(), WINDOW_BYTES).await?;
        if let Ok(all) = self.decode(&sealer, &group, &stored) {
            return Ok(all);
        }
        // Perhaps only our copy is bad: take a fresh one, and believe that.
        self.reader.forget(&object);
        let stored = self.reader.read(&object, group.range.clone(), 0).await?;
        self.decode(&sealer, &group, &stored)
    }

    fn decode(&self, sealer: &Sealer, group: &Group, stored: &Bytes) -> Result<Vec<Bytes>> {
        let mut out: Vec<Bytes> = Vec::with_capacity(group.mappings.len());
        let mut last: Option<(u32, Bytes)> = None;
        for (mapping, frame) in &group.mappings {
            let decoded = match &last {
                Some((offset, bytes)) if *offset == frame.offset => bytes.clone(),
                _ => {
                    let from = u64::from(frame.offset) - group.range.start;
                    let part = &stored[from as usize..][..frame.stored as usize];
                    open_frame(sealer, frame, part)?
                }
            };
            let part = cut(&decoded, mapping, frame).ok_or_else(|| {
                Error::corrupt(keys::entry(frame.seq), "a frame is shorter than the map says")
            })?;
            out.push(part);
            self.decoded.insert((frame.seq.0, frame.offset), decoded.clone());
            last = Some((frame.offset, decoded));
        }
        Ok(out)
    }

    fn object(&self, seq: Seq) -> Result<(ObjectRef, Salt)> {
        let salt = salt_of(&self.epochs, seq).ok_or_else(|| {
            Error::corrupt("map", format!("it names seq {seq}, which is before the first claim"))
        })?;
        let key = keys::entry(seq);
        Ok((ObjectRef { key, cache: CacheKey::new(salt.0, seq.0), bytes: None }, salt))
    }

    fn sealer(&self, salt: Salt, seq: Seq) -> Sealer {
        Sealer::new(self.keys.key.as_deref(), self.keys.volume, ObjectKind::Segment, salt, seq.0)
    }
}

/// The mapping's blocks of a decoded frame; `None` if the frame does not have them.
fn cut(decoded: &Bytes, mapping: &Mapping, frame: &FrameRef) -> Option<Bytes> {
    let from = usize::from(frame.index) * BLOCK_BYTES;
    let to = from + mapping.extent.len as usize * BLOCK_BYTES;
    (to <= decoded.len()).then(|| decoded.slice(from..to))
}
