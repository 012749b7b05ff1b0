//! What a clone has of the volumes it comes from: their runs and blocks, found where those volumes have them by now
//! (`docs/design/snapshots.md`, "Clones").
//!
//! An origin is opened when something of it is read for the first time, and a few are kept open. What it moved since is found as
//! by whoever reads its snapshot: by block and birth ([`super::forward`]).

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use tokio::sync::OnceCell;

use super::{
    flights::AheadCounts,
    foreign::{BlockUser, ForeignBlocks, Located},
    forward::{ForwardSource, Forwarding},
    frames::FrameReader,
    link::LinkEstimate,
    pool::PrefetchTask,
    reader::ObjectReader,
    runs::StoredRuns,
};
use crate::{
    Error, Result,
    cache::ChunkCache,
    codec::MasterKey,
    damage::Damage,
    env::Env,
    log::{
        VolumeKeys, keys,
        origin::{CloneOrigin, origin_of},
        read_committed,
    },
    map::{RunIo, RunMeta},
    rank::{Rank, Ranked},
    store::Stores,
    units::{BLOCK_BYTES, Mapping, Place, RunId, Seq, VolumeId},
};

/// Origins that are kept open.
const OPEN_MAX: usize = 4;
/// How long an origin that does not answer is waited for by a caller that can do without it: a server that starts anew takes no longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// For so long after it was asked last, a caller that can do without it is told at once that it is away.
const ASKED_AGAIN: Duration = Duration::from_secs(10);
/// Refusals that are further apart tell of two times at which it was away.
const APART: Duration = Duration::from_secs(60);

/// Where a clone has its beginning from, for reading.
pub struct Origins {
    parts: OriginParts,
    /// Ascending by position.
    all: Vec<CloneOrigin>,
    /// Those that are open, which was used last last.
    open: Ranked<VecDeque<(usize, Arc<OnceCell<OpenOrigin>>)>>,
    /// Those that did not answer.
    away: Ranked<BTreeMap<usize, Away>>,
    /// What is asked of them now, by number: of which, and since when.
    asking: Ranked<BTreeMap<u64, (usize, Duration)>>,
    asked: AtomicU64,
}

/// Something that is asked of an origin. Where it is given up before there is an answer, it says how long there was none.
struct Asking<'a> {
    origins: &'a Origins,
    number: u64,
    at: usize,
    began: Duration,
    is_answered: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.origins.asking.lock().remove(&self.number);
        if !self.is_answered && self.origins.parts.env.now() - self.began >= PATIENCE {
            self.origins.note_away(self.at, self.began);
        }
    }
}

/// An origin that did not answer. What it did answer in between says little: it may be from the cache.
struct Away {
    since: Duration,
    /// When it was asked last.
    asked: Duration,
}

impl Away {
    fn is_long(&self, now: Duration) -> bool {
        self.asked - self.since >= PATIENCE && now - self.asked < APART
    }
}

/// What it takes to open origins.
pub struct OriginParts {
    pub env: Env,
    /// The clone: of a snapshot of its own, where it was rolled back.
    pub volume: VolumeId,
    /// The clone's, which know other places.
    pub stores: Stores,
    /// All of a family share one.
    pub key: Option<Arc<MasterKey>>,
    pub cache: Option<Arc<ChunkCache>>,
    pub damage: Arc<Damage>,
    /// For what is kept of all of them.
    pub memory_bytes: u64,
}

/// An origin, open.
struct OpenOrigin {
    stores: Stores,
    keys: VolumeKeys,
    reader: Arc<ObjectReader>,
    runs: StoredRuns,
    frames: OnceCell<FrameReader>,
    _prefetches: PrefetchTask,
}

impl Origins {
    pub fn new(parts: OriginParts, all: Vec<CloneOrigin>) -> Origins {
        debug_assert!(all.is_sorted_by(|a, b| a.at < b.at), "origins ascend by their positions");
        let open = Ranked::new(Rank::Fetch, VecDeque::new());
        let (away, asking) =
            (Ranked::new(Rank::Fetch, BTreeMap::new()), Ranked::new(Rank::Fetch, BTreeMap::new()));
        Origins { parts, all, open, away, asking, asked: AtomicU64::new(0) }
    }

    /// The place for an origin among those that are open.
    fn cell(&self, at: usize) -> Arc<OnceCell<OpenOrigin>> {
        let mut open = self.open.lock();
        let known = open.iter().position(|(other, _)| *other == at).and_then(|place| open.remove(place));
        let cell = known.map_or_else(Arc::default, |(_, cell)| cell);
        open.push_back((at, cell.clone()));
        if open.len() > OPEN_MAX {
            open.pop_front(); // whoever reads it goes on with it
        }
        debug_assert_eq!(open.iter().filter(|(other, _)| *other == at).count(), 1, "an origin is open once");
        cell
    }

    /// Does something with an origin.
    async fn with<T, F: Future<Output = Result<T>>>(
        &self,
        at: usize,
        act: impl FnOnce(Arc<OnceCell<OpenOrigin>>) -> F,
    ) -> Result<T> {
        let mut asking = self.ask(at);
        let done = async {
            let cell = self.cell(at);
            cell.get_or_try_init(|| self.telling(at, self.open(at))).await?;
            act(cell).await
        };
        let done = done.await;
        asking.is_answered = true;
        match done {
            // A volume of which there is nothing any more looks like a clone that was never finished.
            Err(e @ Error::Invalid(_)) => Err(self.explain(at, e)),
            Err(e) if e.is_damage() => Err(self.name_volume(at, e)),
            Err(e) => {
                self.note_away(at, asking.began);
                Err(self.tell(at, e))
            }
            done => done,
        }
    }

    fn ask(&self, at: usize) -> Asking<'_> {
        let (number, began) = (self.asked.fetch_add(1, Relaxed), self.parts.env.now());
        self.asking.lock().insert(number, (at, began));
        Asking { origins: self, number, at, began, is_answered: false }
    }

    /// An origin has not answered what it was asked at `began`.
    fn note_away(&self, at: usize, began: Duration) {
        let now = self.parts.env.now();
        let mut away = self.away.lock();
        let since = away.get(&at).filter(|away| now - away.asked < APART).map_or(began, |away| away.since);
        away.insert(at, Away { since: since.min(began), asked: now });
    }

    /// Whether an origin has not answered for so long that it is not to be asked now by a caller that can do without it.
    fn is_away_now(&self, at: usize) -> bool {
        let now = self.parts.env.now();
        let has_failed = |away: &Away| away.is_long(now) && now - away.asked < ASKED_AGAIN;
        self.hanging(|of| of == at).is_some() || self.away.lock().get(&at).is_some_and(has_failed)
    }

    /// One of some origins that has had no answer to something for too long.
    fn hanging(&self, is_asked_for: impl Fn(usize) -> bool) -> Option<usize> {
        let now = self.parts.env.now();
        let hangs = |(at, began): &&(usize, Duration)| is_asked_for(*at) && now - *began >= PATIENCE;
        self.asking.lock().values().find(hangs).map(|(at, _)| *at)
    }

    /// Why an origin is not waited for.
    fn unanswered(&self, at: usize) -> Error {
        Error::Unreachable(format!("{}: no answer for {} s", self.place(at), PATIENCE.as_secs()))
    }

    /// Says whose store it is that does not answer.
    fn tell(&self, at: usize, error: Error) -> Error {
        match error {
            e if self.all[at].source.volume == self.parts.volume => e,
            Error::Unreachable(why) => Error::Unreachable(format!("{}: {why}", self.place(at))),
            Error::Refused(why) => Error::Refused(format!("{}: {why}", self.place(at))),
            e => e,
        }
    }

    async fn open(&self, at: usize) -> Result<OpenOrigin> {
        let OriginParts { env, volume, stores, key, cache, memory_bytes, .. } = &self.parts;
        let source = &self.all[at].source;
        let stores = match source.volume == *volume {
            true => stores.clone(),
            false => {
                let place = stores.others.stores(&source.way).await.map_err(|e| self.explain(at, e))?;
                place.within(&keys::directory(source.volume))
            }
        };
        let keys = VolumeKeys { volume: source.volume, key: key.clone() };
        let ahead_bytes = memory_bytes / OPEN_MAX as u64 / 2;
        let (reader, prefetches) =
            ObjectReader::start(env.clone(), stores.clone(), cache.clone(), ahead_bytes);
        let runs = StoredRuns::new(reader.clone(), stores.clone(), cache.clone());
        Ok(OpenOrigin { stores, keys, reader, runs, frames: OnceCell::new(), _prefetches: prefetches })
    }

    /// The frames of an origin as its snapshot shows them.
    async fn frames<'a>(&self, at: usize, open: &'a OpenOrigin) -> Result<&'a FrameReader> {
        open.frames.get_or_try_init(|| self.telling(at, self.open_frames(at, open))).await
    }

    /// What came of opening an origin. Where that is damaged or not there, it is shown as damage, until it is opened.
    async fn telling<T>(&self, at: usize, opening: impl Future<Output = Result<T>>) -> Result<T> {
        let opened = opening.await;
        let (name, now) = (&self.all[at].source.way, self.parts.env.now());
        self.parts.damage.tell(name, &(0..u64::MAX), &opened, now);
        opened
    }

    /// Says whose objects are damaged.
    fn name_volume(&self, at: usize, error: Error) -> Error {
        let volume = self.all[at].source.volume;
        if volume == self.parts.volume || error.to_string().contains(&volume.to_string()) {
            return error;
        }
        match error {
            Error::NotFound(what) => Error::NotFound(format!("{what} of volume {volume}")),
            Error::Corrupt { what, detail } => {
                Error::Corrupt { what: format!("{what} of volume {volume}"), detail }
            }
            error => error,
        }
    }

    /// What was to be read is not there, wherever it was moved: shown as damage, block by block, since some of it may be there.
    async fn tell_missing(&self, at: usize, frames: &FrameReader, mappings: &[Mapping], user: BlockUser) {
        for mapping in mappings {
            let Place::Frame(frame) = mapping.place else { continue };
            let read = read_resolved(frames, std::slice::from_ref(mapping), user).await;
            let name = keys::of_volume(&keys::entry(frame.seq), self.all[at].source.volume);
            let range = u64::from(frame.offset)..u64::from(frame.offset) + u64::from(frame.stored);
            self.parts.damage.tell(&name, &range, &read, self.parts.env.now());
        }
    }

    async fn open_frames(&self, at: usize, open: &OpenOrigin) -> Result<FrameReader> {
        let OriginParts { env, damage, memory_bytes, .. } = &self.parts;
        let (store, keys) = (open.stores.read.clone(), open.keys.clone());
        let committed =
            read_committed(env, store.as_ref(), &keys, None).await.map_err(|e| self.explain(at, e))?;
        let table = committed.snapshot_table(store.as_ref(), &keys).await?;
        let source = ForwardSource { env: env.clone(), store, keys: keys.clone(), size_at_creation: None };
        let forwarding = Forwarding::new(source, self.all[at].snapshot, &table, &committed);
        let (env, epochs) = (env.clone(), committed.walk.epochs.clone().into());
        let bytes = memory_bytes / OPEN_MAX as u64 / 2;
        let frames = FrameReader::new(env, open.reader.clone(), keys, epochs, bytes, damage.clone());
        Ok(frames.of_origin().with_forwarding(forwarding))
    }

    fn place(&self, at: usize) -> String {
        let source = &self.all[at].source;
        format!("volume {}, of which this is a clone, at {} from here", source.volume, source.way)
    }

    /// An error of looking for an origin.
    fn explain(&self, at: usize, error: Error) -> Error {
        match error {
            Error::NotFound(_) | Error::Invalid(_) => Error::NotFound(format!("{},", self.place(at))),
            error => error,
        }
    }

    async fn read_of(&self, at: usize, mappings: &[Mapping], user: BlockUser) -> Result<Vec<Bytes>> {
        if user == BlockUser::Packer && self.is_away_now(at) {
            return Err(self.unanswered(at));
        }
        let read = |cell: Arc<OnceCell<OpenOrigin>>| async move {
            let open = cell.get().expect("it was opened");
            let frames = self.frames(at, open).await?;
            let read = match read_resolved(frames, mappings, user).await {
                // It was moved since the origin was opened, and a newer state says where to.
                Err(Error::NotFound(_)) if frames.refresh().await?.is_some() => {
                    read_resolved(frames, mappings, user).await
                }
                read => read,
            };
            if matches!(read, Err(Error::NotFound(_))) {
                Box::pin(self.tell_missing(at, frames, mappings, user)).await;
            }
            read
        };
        self.with(at, read).await
    }

    /// Which of data mappings that are all foreign come from which origin.
    fn by_origin(&self, mappings: &[Mapping]) -> Vec<(usize, Vec<usize>)> {
        let mut by_origin: Vec<(usize, Vec<usize>)> = Vec::new();
        for (place, mapping) in mappings.iter().enumerate() {
            let Place::Frame(frame) = mapping.place else { unreachable!("only data is read") };
            let at = origin_of(&self.all, frame.seq).expect("only foreign blocks are asked for");
            match by_origin.iter_mut().find(|(other, _)| *other == at) {
                Some((_, places)) => places.push(place),
                None => by_origin.push((at, vec![place])),
            }
        }
        by_origin
    }

    /// Of the origins that are open, which was used last first.
    fn readers(&self) -> Vec<Arc<ObjectReader>> {
        let open: Vec<Arc<OnceCell<OpenOrigin>>> =
            self.open.lock().iter().rev().map(|(_, cell)| cell.clone()).collect();
        open.iter().filter_map(|cell| Some(cell.get()?.reader.clone())).collect()
    }

    fn index_of(&self, volume: VolumeId) -> Result<usize> {
        let found = self.all.iter().position(|origin| origin.source.volume == volume);
        found.ok_or_else(|| {
            Error::corrupt("map", format!("it names volume {volume}, from which nothing comes"))
        })
    }

    /// Reads a part of an origin's run.
    async fn read_run(&self, run: &RunMeta, range: Range<u64>, how: RunRead) -> Result<Bytes> {
        let volume = run.owner.expect("it is another volume's");
        let read = |cell: Arc<OnceCell<OpenOrigin>>| async move {
            let runs = &cell.get().expect("it was opened").runs;
            match how {
                RunRead::Any => runs.read(run, range).await,
                RunRead::Fresh => runs.read_fresh(run, range).await,
                RunRead::Patient => runs.read_patiently(run, range).await,
            }
        };
        self.with(self.index_of(volume)?, read).await
    }
}

#[derive(Clone, Copy)]
enum RunRead {
    Any,
    Fresh,
    Patient,
}

/// The blocks of mappings of an origin, in their order, each in one piece.
async fn read_resolved(frames: &FrameReader, mappings: &[Mapping], user: BlockUser) -> Result<Vec<Bytes>> {
    let (mut counts, mut parts) = (Vec::with_capacity(mappings.len()), Vec::with_capacity(mappings.len()));
    for mapping in mappings {
        let found = frames.resolve(vec![*mapping]).await?;
        counts.push(found.len());
        parts.extend(found);
    }
    let mut blocks = frames.read_own_for(user, &parts).await?.into_iter();
    let join = |count: usize| match count {
        1 => blocks.next().expect("one for each part"),
        _ => {
            let mut whole = BytesMut::new();
            blocks.by_ref().take(count).for_each(|part| whole.extend_from_slice(&part));
            whole.freeze()
        }
    };
    let joined: Vec<Bytes> = counts.into_iter().map(join).collect();
    let is_whole = |(blocks, mapping): (&Bytes, &Mapping)| {
        blocks.len() as u64 == mapping.extent.len * BLOCK_BYTES as u64
    };
    assert!(joined.iter().zip(mappings).all(is_whole), "an origin gives the blocks of each mapping");
    Ok(joined)
}

#[async_trait]
impl ForeignBlocks for Origins {
    fn is_foreign(&self, seq: Seq) -> bool {
        origin_of(&self.all, seq).is_some()
    }

    fn is_away(&self) -> bool {
        let now = self.parts.env.now();
        self.hanging(|_| true).is_some() || self.away.lock().values().any(|away| away.is_long(now))
    }

    async fn hangs(&self) -> Error {
        let mut wait = PATIENCE;
        loop {
            self.parts.env.sleep(wait).await;
            if let Some(at) = self.hanging(|_| true) {
                return self.unanswered(at);
            }
            wait = PATIENCE / 10;
        }
    }

    async fn read(&self, mappings: &[Mapping], user: BlockUser) -> Result<Vec<Bytes>> {
        let read = self.by_origin(mappings).into_iter().map(|(at, places)| async move {
            let some: Vec<Mapping> = places.iter().map(|place| mappings[*place]).collect();
            Ok::<_, Error>((places, self.read_of(at, &some, user).await?))
        });
        let mut out = vec![Bytes::new(); mappings.len()];
        for (places, blocks) in try_join_all(read).await? {
            assert_eq!(blocks.len(), places.len(), "an origin gives the blocks of each mapping");
            places.into_iter().zip(blocks).for_each(|(place, blocks)| out[place] = blocks);
        }
        Ok(out)
    }

    async fn locate(&self, mapping: &Mapping) -> Result<Located> {
        let Place::Frame(frame) = mapping.place else { unreachable!("only data is looked for") };
        let at = origin_of(&self.all, frame.seq).expect("only foreign blocks are asked for");
        let locate = |cell: Arc<OnceCell<OpenOrigin>>| async move {
            let open = cell.get().expect("it was opened");
            let parts = self.frames(at, open).await?.resolve(vec![*mapping]).await?;
            let (volume, store) = (self.all[at].source.volume, open.stores.read.clone());
            Ok(Located { volume, store, parts })
        };
        self.with(at, locate).await
    }

    async fn prefetch(&self, mappings: &[Mapping], get_bytes: u64) -> Result<()> {
        for (at, places) in self.by_origin(mappings) {
            let some = places.into_iter().map(|place| mappings[place]).collect();
            let fetch = |cell: Arc<OnceCell<OpenOrigin>>| async move {
                let frames = self.frames(at, cell.get().expect("it was opened")).await?;
                frames.prefetch_data(&frames.resolve(some).await?, get_bytes).await
            };
            self.with(at, fetch).await?;
        }
        Ok(())
    }

    async fn warm(&self, mappings: &[Mapping], at_once: usize) -> Result<u64> {
        let mut fetched = 0;
        for (at, places) in self.by_origin(mappings) {
            let some = places.into_iter().map(|place| mappings[place]).collect();
            let warm = |cell: Arc<OnceCell<OpenOrigin>>| async move {
                let frames = self.frames(at, cell.get().expect("it was opened")).await?;
                frames.warm(&frames.resolve(some).await?, at_once).await
            };
            fetched += self.with(at, warm).await?;
        }
        Ok(fetched)
    }

    fn ahead_counts(&self) -> AheadCounts {
        let mut counts = AheadCounts::default();
        self.readers().iter().for_each(|reader| counts.add(&reader.ahead_counts()));
        counts
    }

    fn link(&self) -> Option<LinkEstimate> {
        self.readers().iter().find_map(|reader| reader.link())
    }
}

impl FrameReader {
    /// Where the blocks of a foreign data mapping are by now, as that volume's objects say.
    ///
    /// # Errors
    /// `NotFound` where that volume is not there; damage of what leads to the blocks.
    pub async fn locate_foreign(&self, mapping: &Mapping) -> Result<Located> {
        let (foreign, _) = self.foreign_among(&[*mapping]).expect("it is foreign");
        foreign.locate(mapping).await
    }
}

/// Runs of the volumes a clone comes from. Nobody writes any.
#[async_trait]
impl RunIo for Origins {
    async fn read(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.read_run(run, range, RunRead::Any).await
    }

    async fn read_fresh(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.read_run(run, range, RunRead::Fresh).await
    }

    async fn read_patiently(&self, run: &RunMeta, range: Range<u64>) -> Result<Bytes> {
        self.read_run(run, range, RunRead::Patient).await
    }

    fn forget(&self, run: &RunMeta) {
        let at = run.owner.and_then(|volume| self.index_of(volume).ok());
        let open = self.open.lock();
        let cell =
            at.and_then(|at| open.iter().find(|(other, _)| *other == at)).map(|(_, cell)| cell.clone());
        drop(open);
        if let Some(open) = cell.as_ref().and_then(|cell| cell.get()) {
            open.runs.forget(run);
        }
    }

    async fn write(&self, _id: RunId, _body: Bytes) -> Result<()> {
        Err(Error::ReadOnly)
    }

    async fn write_merged(&self, _id: RunId, _body: Bytes) -> Result<()> {
        Err(Error::ReadOnly)
    }
}
