//! From mappings to bytes: fetch, verify and decode frames, keeping decoded ones for a while.
//!
//! Frames that lie near each other in an object are fetched with one request, and of raw frames only the
//! blocks that are needed. A frame that does not verify is dropped from the chunk cache and fetched
//! once more, from the store itself; if it fails again, the object is damaged, which is told, and the read
//! fails.

use std::{
    borrow::Cow,
    hash::{BuildHasherDefault, DefaultHasher},
    ops::{Range, RangeInclusive},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, future::try_join, stream};
use serde::{Deserialize, Serialize};

use super::{
    flights::AheadCounts,
    foreign::{BlockUser, ForeignBlocks},
    forward::{Forwarding, Refreshed},
    link::LinkEstimate,
    reader::{ObjectReader, ObjectRef},
};
use crate::{
    Error, Result,
    cache::CacheKey,
    codec::{ObjectKind, Sealer},
    damage::Damage,
    env::Env,
    log::{VolumeKeys, checkpoint::EpochStart, keys, read_emptied, salt_of},
    segment::{FrameShape, open_frame, open_raw},
    units::{BLOCK_BYTES, FrameRef, Mapping, Place, Salt, Seq},
};

/// Stored bytes fetched with one request at most.
const FETCH_BYTES_MAX: u64 = 4 << 20;
/// Fetches of one read at once.
const FETCHES_MAX: usize = 16;
/// Of what is moved: bytes between two parts that are fetched along, since a request costs more than they do.
pub const MOVE_GAP_BYTES: u64 = 256 << 10;
/// Of that, bytes fetched with one request at most: as many as the scheduler lets go in one piece over a thin link while
/// nobody reads, so that `gc --dry-run` knows how many requests there will be.
const MOVE_FETCH_BYTES_MAX: u64 = 2 << 20;
/// And its fetches at once: each is in memory up to three times.
const MOVE_FETCHES: RangeInclusive<u64> = 2..=4;

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
    env: Env,
    reader: Arc<ObjectReader>,
    damage: Arc<Damage>,
    keys: VolumeKeys,
    epochs: Arc<[EpochStart]>,
    shape: FrameShape,
    /// Decoded blocks by where in the object their bytes begin (seq, offset): whole packed frames, and
    /// what was read of raw ones.
    decoded: DecodedFrames,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Fetches of what is moved, at once.
    move_fetches: usize,
    /// Sealers of segments that are read.
    sealers: Sealers,
    /// Where what a snapshot sees was moved, of who shows one.
    forwarding: Option<Forwarding>,
    /// Of a clone.
    foreign: Option<Arc<dyn ForeignBlocks>>,
    /// It reads a volume of which the one that is open is a clone.
    is_of_origin: bool,
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
pub(super) struct FramePart {
    /// Which of the mappings that were asked for.
    pub at: usize,
    pub frame: FrameRef,
    pub blocks: u64,
    /// Of the object.
    pub range: Range<u64>,
}

/// The blocks of parts, each with which of the mappings that were asked for it answers.
type Decoded = Vec<(usize, Bytes)>;

/// Parts that are fetched together: near each other in one object, ascending.
pub(super) struct JointRead {
    pub seq: Seq,
    /// From the first part's beginning to the last one's end, in the object.
    pub range: Range<u64>,
    pub parts: Vec<FramePart>,
}

impl FrameReader {
    /// `memory_bytes` bounds the decoded frames that are kept.
    pub fn new(
        env: Env,
        reader: Arc<ObjectReader>,
        keys: VolumeKeys,
        epochs: Arc<[EpochStart]>,
        memory_bytes: u64,
        damage: Arc<Damage>,
    ) -> Self {
        let items = (memory_bytes / 16_384).max(16) as usize;
        let (hasher, lifecycle) = Default::default();
        let decoded = DecodedFrames::with(items, memory_bytes, ByBytes, hasher, lifecycle);
        let shape = FrameShape::new(keys.key.is_some());
        let (weighter, hasher, lifecycle) = Default::default();
        let sealers = Sealers::with(SEALERS_MAX, SEALERS_MAX as u64, weighter, hasher, lifecycle);
        let (hits, misses) = Default::default();
        let move_fetches = memory_bytes / (4 * MOVE_FETCH_BYTES_MAX);
        FrameReader {
            env,
            reader,
            damage,
            keys,
            epochs,
            shape,
            decoded,
            hits,
            misses,
            move_fetches: move_fetches.clamp(*MOVE_FETCHES.start(), *MOVE_FETCHES.end()) as usize,
            sealers,
            forwarding: None,
            foreign: None,
            is_of_origin: false,
        }
    }

    /// The same for a volume of which the one that is read is a clone: what is damaged there is told with its name.
    pub fn of_origin(self) -> Self {
        FrameReader { is_of_origin: true, ..self }
    }

    /// The same for a snapshot.
    pub fn with_forwarding(self, forwarding: Forwarding) -> Self {
        FrameReader { forwarding: Some(forwarding), ..self }
    }

    /// The same for a clone.
    pub fn with_foreign(self, foreign: Arc<dyn ForeignBlocks>) -> Self {
        FrameReader { foreign: Some(foreign), ..self }
    }

    /// Whether a mapping's data is in another volume's hands.
    pub fn is_foreign(&self, mapping: &Mapping) -> bool {
        let is_foreign = |foreign: &Arc<dyn ForeignBlocks>| match mapping.place {
            Place::Frame(frame) => foreign.is_foreign(frame.seq),
            Place::Hole | Place::Zero => false,
        };
        self.foreign.as_ref().is_some_and(is_foreign)
    }

    /// Whether a volume that this one was cloned from has not answered for so long that a caller that can do without it should not wait.
    pub fn is_origin_away(&self) -> bool {
        self.foreign.as_ref().is_some_and(|foreign| foreign.is_away())
    }

    /// Returns when one of them has no answer for so long to what it was asked since.
    pub async fn origin_hangs(&self) -> Error {
        match &self.foreign {
            Some(foreign) => foreign.hangs().await,
            None => std::future::pending().await,
        }
    }

    /// What a lookup found, where it is now.
    ///
    /// # Errors
    /// As for [`Forwarding::resolve`].
    pub async fn resolve(&self, mappings: Vec<Mapping>) -> Result<Vec<Mapping>> {
        match &self.forwarding {
            Some(forwarding) => forwarding.resolve(mappings).await,
            None => Ok(mappings),
        }
    }

    /// Something was not found where a snapshot has it: looks where that is by now. `None` where another try is not worth it.
    ///
    /// # Errors
    /// As for [`Forwarding::refresh`].
    pub async fn refresh(&self) -> Result<Option<Refreshed>> {
        match &self.forwarding {
            Some(forwarding) => forwarding.refresh().await,
            None => Ok(None),
        }
    }

    /// The blocks of data mappings, in their order. Mappings without a frame are not allowed.
    pub async fn read(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        let read = match mappings.iter().any(|mapping| self.is_foreign(mapping)) {
            true => Box::pin(self.read_all(mappings, BlockUser::Reader)).await?,
            false => self.read_own(mappings).await?,
        };
        debug_assert!(are_whole(mappings, &read), "every mapping has its blocks");
        Ok(read)
    }

    /// The blocks of data mappings that are the volume's own, whoever wants them.
    pub async fn read_own_for(&self, user: BlockUser, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        match user {
            BlockUser::Reader => self.read_own(mappings).await,
            BlockUser::Packer => {
                let mut out = Vec::with_capacity(mappings.len());
                for mapping in mappings {
                    out.push(self.read_own_to_pack(mapping).await?);
                }
                Ok(out)
            }
            BlockUser::Mover => self.read_own_to_move(mappings).await,
        }
    }

    /// Blocks of which some are foreign.
    async fn read_all(&self, mappings: &[Mapping], user: BlockUser) -> Result<Vec<Bytes>> {
        let foreign = self.foreign.as_ref().expect("some are foreign");
        let (theirs, own): (Vec<usize>, Vec<usize>) =
            (0..mappings.len()).partition(|at| self.is_foreign(&mappings[*at]));
        let some = |places: &[usize]| places.iter().map(|at| mappings[*at]).collect::<Vec<Mapping>>();
        let (their_mappings, own_mappings) = (some(&theirs), some(&own));
        let read_own = async {
            match own.is_empty() {
                true => Ok(Vec::new()),
                false => self.read_own_for(user, &own_mappings).await,
            }
        };
        let (their_blocks, own_blocks) = try_join(foreign.read(&their_mappings, user), read_own).await?;
        assert_eq!(
            their_blocks.len(),
            their_mappings.len(),
            "who has foreign blocks gives those of each mapping"
        );
        assert_eq!(own_blocks.len(), own_mappings.len(), "every mapping has its blocks");
        let mut out = vec![Bytes::new(); mappings.len()];
        let places = theirs.into_iter().zip(their_blocks).chain(own.into_iter().zip(own_blocks));
        places.for_each(|(at, blocks)| out[at] = blocks);
        Ok(out)
    }

    async fn read_own(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        let mut out = vec![Bytes::new(); mappings.len()];
        let mut missing = Vec::new();
        for (at, mapping) in mappings.iter().enumerate() {
            let part = self.part(at, mapping);
            match self.kept(&part) {
                Some(blocks) => out[at] = blocks,
                None => missing.push(part),
            }
        }
        self.hits.fetch_add((mappings.len() - missing.len()) as u64, Relaxed);
        self.misses.fetch_add(missing.len() as u64, Relaxed);
        match missing.is_empty() {
            true => Ok(out),
            // In memory of its own: a read that finds everything does not carry what this needs.
            false => Box::pin(self.read_missing(missing, out)).await,
        }
    }

    /// Reads the parts that are not at hand into their places.
    async fn read_missing(&self, missing: Vec<FramePart>, mut out: Vec<Bytes>) -> Result<Vec<Bytes>> {
        // What lies apart was written apart: the neighbours of many small parts are many times what is wanted.
        let mut groups = group(missing, self.reader.gap_bytes(), FETCH_BYTES_MAX);
        if groups.len() == 1 {
            for (at, blocks) in self.read_group(groups.remove(0), self.reader.window_bytes()).await? {
                out[at] = blocks;
            }
            return Ok(out);
        }
        let mut read =
            stream::iter(groups.into_iter().map(|g| self.read_group(g, 0))).buffer_unordered(FETCHES_MAX);
        while let Some(group) = read.try_next().await? {
            for (at, blocks) in group {
                out[at] = blocks;
            }
        }
        Ok(out)
    }

    /// Those that are foreign, and who has them; `None` where none is.
    pub(super) fn foreign_among(&self, mappings: &[Mapping]) -> Option<(&dyn ForeignBlocks, Vec<Mapping>)> {
        let foreign = self.foreign.as_deref()?;
        let theirs: Vec<Mapping> = mappings.iter().filter(|m| self.is_foreign(m)).copied().collect();
        (!theirs.is_empty()).then_some((foreign, theirs))
    }

    /// What became of what was fetched ahead, of other volumes too.
    pub fn ahead_counts(&self) -> AheadCounts {
        let mut counts = self.reader.ahead_counts();
        self.foreign.iter().for_each(|foreign| counts.add(&foreign.ahead_counts()));
        counts
    }

    /// What is known of the link to the store.
    pub fn link(&self) -> Option<LinkEstimate> {
        self.reader.link().or_else(|| self.foreign.as_ref()?.link())
    }

    pub fn epochs(&self) -> &Arc<[EpochStart]> {
        &self.epochs
    }

    pub fn reader(&self) -> &Arc<ObjectReader> {
        &self.reader
    }

    /// Where in its object the bytes lie that a data mapping needs.
    pub(super) fn place(&self, mapping: &Mapping) -> (Seq, Range<u64>) {
        let part = self.part(0, mapping);
        (part.frame.seq, part.range)
    }

    pub(super) fn parts(&self, mappings: &[Mapping]) -> Vec<FramePart> {
        mappings.iter().enumerate().map(|(at, mapping)| self.part(at, mapping)).collect()
    }

    pub(super) fn shape(&self) -> FrameShape {
        self.shape
    }

    fn part(&self, at: usize, mapping: &Mapping) -> FramePart {
        let Place::Frame(frame) = mapping.place else { unreachable!("only data has frames") };
        let blocks = mapping.extent.len;
        FramePart { at, frame, blocks, range: self.shape.needed(&frame, blocks) }
    }

    pub fn counts(&self) -> DecodedCounts {
        DecodedCounts { hits: self.hits.load(Relaxed), misses: self.misses.load(Relaxed) }
    }

    /// The blocks of a part, if they are in memory.
    fn kept(&self, part: &FramePart) -> Option<Bytes> {
        self.cut(part, &self.decoded.get(&(part.frame.seq.0, part.range.start))?)
    }

    /// The blocks of a part out of what was decoded; `None` if that does not have them.
    fn cut(&self, part: &FramePart, decoded: &Bytes) -> Option<Bytes> {
        let index = if self.shape.is_raw(&part.frame) { 0 } else { usize::from(part.frame.index) };
        let from = index * BLOCK_BYTES;
        let to = from + part.blocks as usize * BLOCK_BYTES;
        (to <= decoded.len()).then(|| decoded.slice(from..to))
    }

    /// The blocks of a data mapping, if they are in memory.
    pub fn at_hand(&self, mapping: &Mapping) -> Option<Bytes> {
        self.kept(&self.part(0, mapping))
    }

    /// The blocks of a data mapping for who packs: nobody waits, and nobody will want them again.
    pub async fn read_to_pack(&self, mapping: &Mapping) -> Result<Bytes> {
        if self.is_foreign(mapping) {
            let read = self.read_all(std::slice::from_ref(mapping), BlockUser::Packer).await?;
            return Ok(read.into_iter().next().expect("one for each mapping"));
        }
        self.read_own_to_pack(mapping).await
    }

    async fn read_own_to_pack(&self, mapping: &Mapping) -> Result<Bytes> {
        let part = self.part(0, mapping);
        if let Some(kept) = self.kept(&part) {
            return Ok(kept);
        }
        let (object, salt) = self.object(part.frame.seq)?;
        let group = JointRead { seq: part.frame.seq, range: part.range.clone(), parts: vec![part] };
        let read = self.reader.read_to_pack(&object, group.range.clone());
        // Of a packed frame its neighbours are wanted next; of a raw one each block is read by itself.
        let keeps = |part: &FramePart| !self.shape.is_raw(&part.frame);
        let decode = |s: &Sealer, g: &JointRead, b: &Bytes| self.decode(s, g, b, keeps);
        let decoded = self.read_twice(&object, salt, &group, read, decode).await?;
        Ok(decoded.into_iter().next().expect("one for each part").1)
    }

    /// The blocks of data mappings, in their order, for who moves them: as `read_to_pack`.
    pub async fn read_to_move(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        if mappings.iter().any(|mapping| self.is_foreign(mapping)) {
            return self.read_all(mappings, BlockUser::Mover).await;
        }
        self.read_own_to_move(mappings).await
    }

    async fn read_own_to_move(&self, mappings: &[Mapping]) -> Result<Vec<Bytes>> {
        let mut out = vec![Bytes::new(); mappings.len()];
        let groups = group_to_move(self.parts(mappings));
        let mut read = stream::iter(groups.into_iter().map(|g| self.read_group_to_move(g)))
            .buffer_unordered(self.move_fetches);
        while let Some(group) = read.try_next().await? {
            for (at, blocks) in group {
                out[at] = blocks;
            }
        }
        debug_assert!(are_whole(mappings, &out), "every mapping has its blocks");
        Ok(out)
    }

    /// The requests and the bytes that [`read_to_move`](Self::read_to_move) takes where nothing is in a cache.
    pub fn cost_to_move(&self, mappings: &[Mapping]) -> (u64, u64) {
        let groups = group_to_move(self.parts(mappings));
        (groups.len() as u64, groups.iter().map(|group| group.range.end - group.range.start).sum())
    }

    async fn read_group_to_move(&self, group: JointRead) -> Result<Decoded> {
        let (object, salt) = self.object(group.seq)?;
        let read = self.reader.read_to_move(&object, group.range.clone());
        self.read_twice(&object, salt, &group, read, |s, g, b| self.decode_to_move(s, g, b)).await
    }

    /// The blocks of every part, with what was asked for; a miss brings neighbours up to `window` bytes in all.
    async fn read_group(&self, group: JointRead, window: u64) -> Result<Decoded> {
        let (object, salt) = self.object(group.seq)?;
        let read = self.reader.read(&object, group.range.clone(), window);
        self.read_twice(&object, salt, &group, read, |s, g, b| self.decode(s, g, b, |_| true)).await
    }

    /// What `decode` makes of a group as `read` brings it, or, if that is damaged, as the store itself has it.
    pub(super) async fn read_twice<T>(
        &self,
        object: &ObjectRef,
        salt: Salt,
        group: &JointRead,
        read: impl Future<Output = Result<Bytes>>,
        decode: impl Fn(&Sealer, &JointRead, &Bytes) -> Result<T, (Range<u64>, Error)>,
    ) -> Result<T> {
        let sealer = self.sealer(salt, group.seq);
        let name = match self.is_of_origin {
            true => keys::of_volume(&object.key, self.keys.volume).into(),
            false => Cow::from(&object.key),
        };
        if !self.damage.is_known(&name, &group.range) {
            match read.await.and_then(|stored| decode(&sealer, group, &stored).map_err(|(_, e)| e)) {
                Err(e) if e.is_damage() => self.reader.forget(object), // perhaps only our copy is bad
                decoded => return decoded,
            }
        }
        let (place, decoded) = match self.reader.read_fresh(object, group.range.clone()).await {
            Ok(stored) => match decode(&sealer, group, &stored) {
                Ok(all) => (group.range.clone(), Ok(all)),
                Err((place, e)) => (place, Err(e)),
            },
            Err(e) => (group.range.clone(), Err(e)),
        };
        let decoded = match decoded {
            Err(e @ Error::Corrupt { .. }) => {
                match read_emptied(self.reader.store().as_ref(), &self.keys, group.seq).await {
                    Ok(Some(_)) => Err(Error::NotFound(object.key.clone())),
                    _ => Err(e),
                }
            }
            decoded => decoded,
        };
        let may_be_moved = self.forwarding.is_some() && matches!(decoded, Err(Error::NotFound(_)));
        if !may_be_moved {
            self.damage.tell(&name, &place, &decoded, self.env.now());
        }
        decoded
    }

    /// The blocks of all parts; or what does not verify, and where it lies in the object. `keeps` tells which of them stay in memory.
    fn decode(
        &self,
        sealer: &Sealer,
        group: &JointRead,
        stored: &Bytes,
        keeps: impl Fn(&FramePart) -> bool,
    ) -> Result<Decoded, (Range<u64>, Error)> {
        let mut out: Decoded = Vec::with_capacity(group.parts.len());
        let keep = |part: &FramePart, decoded: &Bytes| {
            if keeps(part) {
                self.decoded.insert((part.frame.seq.0, part.range.start), decoded.clone());
            }
        };
        self.decode_each(sealer, group, stored, keep, |part, blocks| out.push((part.at, blocks)))?;
        Ok(out)
    }

    /// The same, all in one piece of memory and nothing of it kept: what is read to be moved goes from its place, and pieces of a
    /// block each, let go by other threads, would leave the allocator with pages that are hardly used.
    fn decode_to_move(
        &self,
        sealer: &Sealer,
        group: &JointRead,
        stored: &Bytes,
    ) -> Result<Decoded, (Range<u64>, Error)> {
        let blocks: u64 = group.parts.iter().map(|part| part.blocks).sum();
        let mut all = BytesMut::with_capacity(blocks as usize * BLOCK_BYTES);
        self.decode_each(sealer, group, stored, |_, _| {}, |_, blocks| all.extend_from_slice(&blocks))?;
        let mut all = all.freeze();
        let cut = |part: &FramePart| (part.at, all.split_to(part.blocks as usize * BLOCK_BYTES));
        Ok(group.parts.iter().map(cut).collect())
    }

    /// Gives the blocks of one part after the other, and each frame when it was decoded.
    fn decode_each(
        &self,
        sealer: &Sealer,
        group: &JointRead,
        stored: &Bytes,
        decoded: impl Fn(&FramePart, &Bytes),
        mut take: impl FnMut(&FramePart, Bytes),
    ) -> Result<(), (Range<u64>, Error)> {
        debug_assert_eq!(
            stored.len() as u64,
            group.range.end - group.range.start,
            "a read brings what was asked for"
        );
        let mut last: Option<(u64, Bytes)> = None;
        for part in &group.parts {
            let frame = match last.take() {
                Some((start, frame)) if start == part.range.start => frame,
                _ => {
                    let from = (part.range.start - group.range.start) as usize;
                    let to = (part.range.end - group.range.start) as usize;
                    let frame =
                        self.open(sealer, part, &stored[from..to]).map_err(|e| (part.range.clone(), e))?;
                    decoded(part, &frame);
                    frame
                }
            };
            let blocks = self.cut(part, &frame).ok_or_else(|| {
                let short = "a frame is shorter than the map says";
                (part.range.clone(), Error::corrupt(keys::entry(part.frame.seq), short))
            })?;
            take(part, blocks);
            last = Some((part.range.start, frame));
        }
        Ok(())
    }

    fn open(&self, sealer: &Sealer, part: &FramePart, stored: &[u8]) -> Result<Bytes> {
        match self.shape.is_raw(&part.frame) {
            true => open_raw(sealer, &part.frame, stored),
            false => open_frame(sealer, &part.frame, stored),
        }
    }

    /// Whether all of a segment is in the chunk cache.
    pub fn is_cached(&self, seq: Seq, stored_bytes: u64) -> bool {
        self.object(seq).is_ok_and(|(object, _)| self.reader.is_cached(&object, 0..stored_bytes))
    }

    pub(super) fn object(&self, seq: Seq) -> Result<(ObjectRef, Salt)> {
        let salt = match &self.forwarding {
            Some(forwarding) => forwarding.salt_of(seq),
            None => salt_of(&self.epochs, seq),
        };
        let salt = salt.ok_or_else(|| {
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

/// Whether each mapping has all of its blocks.
fn are_whole(mappings: &[Mapping], blocks: &[Bytes]) -> bool {
    let is_whole = |(m, blocks): (&Mapping, &Bytes)| blocks.len() as u64 == m.extent.len * BLOCK_BYTES as u64;
    blocks.len() == mappings.len() && mappings.iter().zip(blocks).all(is_whole)
}

/// The log object at `seq`, for reading.
pub(super) fn entry_object(seq: Seq, salt: Salt) -> ObjectRef {
    ObjectRef { key: keys::entry(seq), cache: entry_key(seq, salt), bytes: None }
}

/// Its name in the chunk cache.
pub fn entry_key(seq: Seq, salt: Salt) -> CacheKey {
    CacheKey::new(salt.0, seq.0)
}

/// The same for who moves them.
pub(super) fn group_to_move(parts: Vec<FramePart>) -> Vec<JointRead> {
    group(parts, MOVE_GAP_BYTES, MOVE_FETCH_BYTES_MAX)
}

/// Parts by object and place, together where no more than `gap_bytes` lie between them: data that was written at
/// random lies in the order of its blocks in each of many objects.
fn group(mut parts: Vec<FramePart>, gap_bytes: u64, bytes_max: u64) -> Vec<JointRead> {
    let count = parts.len();
    parts.sort_unstable_by_key(|part| (part.frame.seq, part.range.start));
    let mut groups: Vec<JointRead> = Vec::new();
    for part in parts {
        match groups.last_mut() {
            Some(g) if g.takes(&part, gap_bytes, bytes_max) => {
                g.range.end = g.range.end.max(part.range.end);
                g.parts.push(part);
            }
            _ => groups.push(JointRead { seq: part.frame.seq, range: part.range.clone(), parts: vec![part] }),
        }
    }
    debug_assert_eq!(groups.iter().map(|g| g.parts.len()).sum::<usize>(), count, "each part is read once");
    groups
}

impl JointRead {
    /// Whether a part begins where this ends, or not far behind.
    fn takes(&self, part: &FramePart, gap_bytes: u64, bytes_max: u64) -> bool {
        self.seq == part.frame.seq
            && part.range.start <= self.range.end + gap_bytes
            && part.range.end - self.range.start <= bytes_max
    }
}
