//! Creating and opening volumes: identity, journal, claim, map, in an order in which every crash point
//! leads back to a state that opens.
//!
//! 1. The journal and its lock: one daemon of this host. It is made if there is none, before the claim that
//!    names it: a crash in between leaves an empty journal, which any later claim may use.
//! 2. The claim. From here on this host is the writer, and a crash recovers with the journal at hand.
//! 3. What the journal holds behind the committed position becomes the dirty index again.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    Error, Result,
    cache::ChunkCache,
    codec::{Compression, KeySource, MasterKey},
    damage::Damage,
    env::Env,
    fetch::{
        Ahead, ForwardSource, Forwarding, FrameReader, HotParts, ObjectReader, OriginParts, Origins,
        StoredRuns,
    },
    gc::{self, readers::Announcement},
    journal::{self, Journal, JournalOptions, Record},
    log::{
        ClaimRequest, Claimed, Committed, LocalJournal, Prospect, VolumeKeys,
        identity::Identity,
        identity_copy, keys, look,
        origin::CloneSource,
        own_store, put_again, read_committed, read_identity, require_listed,
        roots::SnapshotTable,
        wrapping::{Wrapping, put_wrapping},
    },
    map::{Map, MapOptions},
    snapshot::{NOT_COMMITTED, Operation, Snapshot, Snapshots},
    stats::IoCounters,
    store::{Put, SharedStore, Stores, delete_all},
    units::{BLOCK_BYTES, Epoch, Extent, JournalPos, VolumeId},
    volume::{
        CreateOptions, Mode, OpenOptions, Opened, ReadOnlyOptions, Volume,
        base::CommittedBlocks,
        check_size,
        dirty::{Dirty, DirtyIndex},
        flows::{Beginning, Flows},
        hot::HotKeeper,
        live,
        load::Loading,
        order::{Core, Written},
        pacing::Pacer,
        write::Writer,
    },
    writeback::{Control, Loads, Tuning},
};

/// Shares of the memory bound. The rest is for segments being packed and uploaded.
const JOURNAL_SHARE: u64 = 4;
const FRAMES_SHARE: u64 = 8;
const MAP_SHARE: u64 = 8;
const AHEAD_SHARE: u64 = 8;
/// What one snapshot of a volume may use that is shown beside it.
const SNAPSHOT_SHARE: u64 = 8;
/// Lost races for a claim before giving up; each means another writer was faster.
const CLAIMS_MAX: usize = 16;

pub async fn create(
    env: &Env,
    store: &SharedStore,
    options: CreateOptions,
    slot_grace: Duration,
) -> Result<VolumeId> {
    check_size(options.size_bytes)?;
    refuse_what_is_there(env, store).await?;
    let CreateOptions { size_bytes, compression, key } = options;
    let master = (!matches!(key, KeySource::None)).then(|| Arc::new(MasterKey::generate(env)));
    let new = NewVolume { size_bytes, compression, origin: None, master, slot_grace };
    put_volume(env, store, new, &key).await
}

/// What a new volume begins with.
pub struct NewVolume {
    pub size_bytes: u64,
    pub compression: Compression,
    /// Of a clone.
    pub origin: Option<CloneSource>,
    /// With which it is sealed; none leaves it unencrypted.
    pub master: Option<Arc<MasterKey>>,
    /// How long a slot of its log stays filled once a checkpoint covers it.
    pub slot_grace: Duration,
}

/// Puts a volume into an empty place, its key wrapped under a secret.
pub async fn put_volume(
    env: &Env,
    store: &SharedStore,
    new: NewVolume,
    secret: &KeySource,
) -> Result<VolumeId> {
    let NewVolume { size_bytes, compression, origin, master, slot_grace } = new;
    let identity = Identity {
        volume: VolumeId(env.uuid()),
        created_ms: env.wall_ms(),
        size_bytes,
        compression,
        encrypted: master.is_some(),
        origin,
        slot_grace,
    };
    let own = own_store(store, identity.volume);
    // A copy: a volume that has nothing else yet is told from an identity that got into the wrong place.
    let body = identity.encode();
    if let Err(e) = Identity::decode(&body) {
        return Err(Error::unreadable(keys::VOLUME, e));
    }
    own.put_if_absent(keys::VOLUME, body.clone()).await?;
    let copy = identity_copy(identity.volume);
    let kept = put_again(own.as_ref(), keys::VOLUME, body.clone()).await; // a probe may be an hour old
    if let Err(e) = kept.and(require_listed(env, store.as_ref(), &copy).await) {
        let _ = delete_all(store.as_ref(), &[copy]).await;
        return Err(e);
    }
    if let Some(master) = master {
        // Before the identity: a volume never lacks its key.
        let key = master.wrap(env, secret)?;
        put_wrapping(own.as_ref(), &Wrapping { volume: identity.volume, number: 1, key }).await?;
    }
    // One put makes the volume; a race is decided by the store.
    match store.put_if_absent(keys::VOLUME, body).await? {
        Put::Created => Ok(identity.volume),
        Put::Exists => match read_identity(env, store.as_ref()).await {
            Ok(found) if found.volume == identity.volume => Ok(identity.volume), // ours, the reply was lost
            _ => Err(Error::Exists(format!("volume {}", store.url()))),
        },
    }
}

/// A volume begins in an empty place: what a removed one left would come up again as this one's, and what is
/// somebody else's would lie among ours.
pub async fn refuse_what_is_there(env: &Env, store: &SharedStore) -> Result<()> {
    let url = store.url();
    let found = match gc::left_over(store).await? {
        None => return Ok(()),
        Some(found) => found,
    };
    match read_identity(env, store.as_ref()).await {
        Err(Error::NotFound(_)) if !keys::is_of_a_volume(&found) => Err(Error::NotEmpty(format!(
            "{url} is not empty: {found} is there, which no volume made. Choose another name"
        ))),
        Err(Error::NotFound(_)) => Err(Error::NotEmpty(format!(
            "{url} is not empty: {found} of a volume is there, and no {}: creating or removing it was interrupted, or a part of \
             this place cannot be seen now (is everything mounted?). If it was interrupted, `cistern rm {url}` deletes what is left",
            keys::VOLUME
        ))),
        Err(e @ (Error::Unreachable(_) | Error::InTrash { .. })) => Err(e),
        _ => Err(Error::Exists(format!("volume {url}"))),
    }
}

pub async fn open_read_only(o: ReadOnlyOptions) -> Result<Arc<Volume>> {
    let identity = read_identity(&o.env, o.stores.read.as_ref()).await?;
    let o = ReadOnlyOptions { stores: o.stores.within(&keys::directory(identity.volume)), ..o };
    let keys = VolumeKeys::unlock(&o.env, o.stores.read.as_ref(), &identity, &o.key).await?;
    let reading = ReadOnlyParts {
        stores: o.stores.clone(),
        cache: o.cache.clone(),
        keys: keys.clone(),
        compression: identity.compression,
        size_at_creation: identity.size_at_creation(),
        memory_bytes: o.memory_bytes,
    };
    let mut volume = reading.open(&o.env, o.snapshot.as_deref()).await?;
    if o.snapshot.is_none() {
        // What is being received does not count yet.
        let before = volume.opened.snapshots.receiving().map(|(name, _)| name.to_owned());
        if let Some(before) = before {
            let newest = std::mem::replace(&mut volume, reading.open(&o.env, Some(&before)).await?);
            newest.end_announcement().await;
        }
    }
    let side = (&volume.map, &volume.frames);
    volume.hot = keep_hot_set(&o.env, &o.stores, o.cache, &keys, side, None);
    Ok(Arc::new(volume))
}

/// What it takes to open a volume for reading only.
pub struct ReadOnlyParts {
    /// Of its own objects.
    pub stores: Stores,
    pub cache: Option<Arc<ChunkCache>>,
    pub keys: VolumeKeys,
    pub size_at_creation: Option<u64>,
    pub compression: Compression,
    pub memory_bytes: u64,
}

impl ReadOnlyParts {
    /// The newest committed state, or a snapshot of it.
    pub async fn open(&self, env: &Env, snapshot: Option<&str>) -> Result<Volume> {
        let announcement = Announcement::make(env, &self.stores.read).await?;
        let (store, keys) = (self.stores.read.as_ref(), &self.keys);
        let committed = read_committed(env, store, keys, self.size_at_creation).await?;
        let (table, fault) = match committed.snapshot_table(store, keys).await {
            Err(e) if e.is_damage() && snapshot.is_none() => {
                tracing::warn!(%e, "the snapshots of the volume are not known");
                let detail = format!("no copy of the table of snapshots can be read: {e}");
                (SnapshotTable::default(), Some(Error::corrupt("snapshots", detail)))
            }
            table => (table?, None),
        };
        let (snapshots, branches) = (committed.snapshots(&table), table.branches.clone());
        let (stores, cache) = (&self.stores, self.cache.clone());
        let parts = ReadParts { env, stores, cache, memory_bytes: self.memory_bytes };
        let mut volume = match snapshot {
            Some(name) => {
                let shown = SnapshotState {
                    table: &table,
                    snapshot: snapshots.with_content_named(name)?,
                    size_at_creation: self.size_at_creation,
                };
                read_snapshot(parts, keys, &committed, shown).await?
            }
            None => read_only(parts, keys, &committed).await?,
        };
        (volume.opened.snapshots, volume.opened.branches) = (snapshots, branches);
        volume.opened.snapshots_fault = fault;
        volume.opened.compression = self.compression;
        volume.announcement = tokio::sync::Mutex::new(announcement);
        Ok(volume)
    }
}

/// A snapshot of a committed state.
pub struct SnapshotState<'a> {
    pub table: &'a SnapshotTable,
    /// One with content.
    pub snapshot: &'a Snapshot,
    pub size_at_creation: Option<u64>,
}

/// A volume that shows one committed state.
pub async fn read_only(parts: ReadParts<'_>, keys: &VolumeKeys, committed: &Committed) -> Result<Volume> {
    show(parts, keys, committed, None).await
}

/// A volume that shows a snapshot of a committed state.
pub async fn read_snapshot(
    parts: ReadParts<'_>,
    keys: &VolumeKeys,
    committed: &Committed,
    shown: SnapshotState<'_>,
) -> Result<Volume> {
    let SnapshotState { table, snapshot, size_at_creation } = shown;
    let (env, store, keys) = (parts.env.clone(), parts.stores.read.clone(), keys.clone());
    let at_snapshot = committed.clone().at_snapshot(table, snapshot, store.as_ref(), &keys).await?;
    let source = ForwardSource { env, store, keys: keys.clone(), size_at_creation };
    let forwarding = Forwarding::new(source, snapshot.id, table, committed);
    show(parts, &keys, &at_snapshot, Some(forwarding)).await
}

async fn show(
    parts: ReadParts<'_>,
    keys: &VolumeKeys,
    committed: &Committed,
    forwarding: Option<Forwarding>,
) -> Result<Volume> {
    let (env, id) = (parts.env.clone(), keys.volume);
    let (io, announcement) = (IoCounters::new(env.now()), tokio::sync::Mutex::new(None));
    let side = parts.build(keys, committed, Snapshots::default(), forwarding).await?;
    let ReadSide { map, frames, ahead, damage } = side;
    let opened = Opened {
        compression: Compression::None, // not known
        size_bytes: committed.walk.size_bytes,
        epoch: committed.walk.epoch.0,
        seq: committed.walk.seq.0,
        mode: Mode::Writeback,
        snapshots: Snapshots::default(),
        snapshots_fault: None,
        branches: Vec::new(),
    };
    Ok(Volume { env, id, io, map, frames, ahead, damage, hot: None, opened, writer: None, announcement })
}

fn keep_hot_set(
    env: &Env,
    stores: &Stores,
    cache: Option<Arc<ChunkCache>>,
    keys: &VolumeKeys,
    (map, frames): (&Arc<Map>, &Arc<FrameReader>),
    epoch: Option<Epoch>,
) -> Option<HotKeeper> {
    let parts = HotParts {
        store: stores.background.clone(),
        cache: cache?,
        reader: frames.reader().clone(),
        map: map.clone(),
        keys: keys.clone(),
        epochs: frames.epochs().clone(),
    };
    Some(HotKeeper::start(env, parts, epoch))
}

pub async fn open(o: OpenOptions) -> Result<Arc<Volume>> {
    live::check(o.mode, o.paused)?;
    let identity = read_identity(&o.env, o.stores.read.as_ref()).await?;
    let o = o.within(identity.volume).await;
    let keys = VolumeKeys::unlock(&o.env, o.stores.read.as_ref(), &identity, &o.key).await?;
    let (journal, recovered, claimed) = take(&o, &identity, &keys).await?;
    let Claimed { writer: log, slots, committed } = claimed;
    let start = committed.walk.journal_pos;

    let parts =
        ReadParts { env: &o.env, stores: &o.stores, cache: o.cache.clone(), memory_bytes: o.memory_bytes };
    let table = committed.snapshot_table(o.stores.read.as_ref(), &keys).await?;
    let snapshots = committed.snapshots(&table);
    let side = parts.build(&keys, &committed, table.snapshots.clone(), None).await?;
    let ReadSide { map, frames, ahead, damage } = side;
    let operations = recovered.operations(start, &journal).await?;
    let (dirty, size_bytes) = recovered.behind(start, committed.walk.size_bytes)?;
    let mut acknowledged = snapshots.clone();
    operations.iter().for_each(|operation| acknowledged.apply(operation, NOT_COMMITTED, size_bytes));
    journal.free(start);
    assert_eq!(journal.committed(), start, "the journal and the store agree on what is committed");
    let tuning = tuning(&o, &journal);
    let pacer = Pacer::new(o.env.clone(), journal.clone(), tuning.room_bytes);
    let admit = AtomicBool::new(o.mode != Mode::Writearound);
    let written = Written { cache: o.cache.clone(), salt: log.salt(), admit };
    let core =
        Arc::new(Core::new(journal.clone(), map.clone(), pacer, written, (dirty, acknowledged), size_bytes));

    let epoch = Some(log.epoch());
    let hot = keep_hot_set(&o.env, &o.stores, o.cache.clone(), &keys, (&map, &frames), epoch);
    let (epoch, seq, none) = (log.epoch().0, committed.walk.seq.0, Snapshots::default());
    let branches = table.branches.clone();
    let compression = identity.compression;
    let opened = Opened {
        compression,
        size_bytes,
        epoch,
        seq,
        mode: o.mode,
        snapshots: none,
        snapshots_fault: None,
        branches,
    };
    let blocks = Arc::new(CommittedBlocks { map: map.clone(), frames: frames.clone() });
    let control = Arc::new(Control::new(journal.clone(), tuning, o.paused));
    let loads = Arc::new(Loads::default());
    let beginning = Beginning {
        committed,
        table,
        snapshots,
        log: log.clone(),
        slots,
        blocks,
        damage: damage.clone(),
        compression,
        loads: loads.clone(),
    };
    let flows = Flows::start(&o, &core, &control, beginning);
    control.note_append(start, journal.appended(), o.env.now());
    tracing::info!(
        volume = %identity.volume,
        epoch = log.epoch().0,
        replayed_blocks = journal.dirty_blocks(),
        "open for writing"
    );
    let writer = Writer {
        env: o.env.clone(),
        core,
        control,
        log,
        courtesy: o.state.courtesy(),
        mode: watch::Sender::new(o.mode),
        space: flows.space(),
        collector: flows.collector(),
        resizing: tokio::sync::Mutex::new(()),
        loads,
        loading: tokio::sync::Mutex::new(Loading::new(o.memory_bytes)),
        flows: tokio::sync::Mutex::new(Some(flows)),
        reading: ReadOnlyParts {
            stores: o.stores.clone(),
            cache: o.cache.clone(),
            keys,
            compression,
            size_at_creation: identity.size_at_creation(),
            memory_bytes: o.memory_bytes / SNAPSHOT_SHARE,
        },
    };
    let (env, io) = (o.env.clone(), IoCounters::new(o.env.now()));
    Ok(Arc::new(Volume {
        env,
        id: identity.volume,
        io,
        map,
        frames,
        ahead,
        damage,
        hot,
        opened,
        announcement: tokio::sync::Mutex::new(None),
        writer: Some(writer),
    }))
}

/// The bound that the user set, within what the journal holds.
fn tuning(o: &OpenOptions, journal: &Journal) -> Tuning {
    let journal_bytes = journal.capacity_blocks() * BLOCK_BYTES as u64;
    let room_bytes = o.dirty_bytes_max.min(journal_bytes);
    Tuning { dirty_age_max: o.dirty_age_max, room_bytes, memory_bytes: o.memory_bytes }
}

/// Opens or makes the journal and claims the volume with it.
async fn take(
    o: &OpenOptions,
    identity: &Identity,
    keys: &VolumeKeys,
) -> Result<(Arc<Journal>, Recovered, Claimed)> {
    let mut found = open_journal(o, identity).await?;
    loop {
        let (fresh, (journal, recovered)) = match found.take() {
            Some(found) => (false, found),
            None => (true, (create_journal(o, identity).await?, Recovered::default())),
        };
        match claim(o, identity, keys, &journal).await {
            Ok(Some(claimed)) => return Ok((journal, recovered, claimed)),
            Ok(None) => {
                journal.close().await?;
                let kept = journal::set_aside(&o.env, &o.state).await?;
                tracing::warn!(
                    kept = %format!("{}/{kept}", o.state.describe()),
                    "the journal is an older copy and the store has all it holds: starting a new one. The old one is kept \
                     with its full size; nothing needs it"
                );
            }
            Err(e) => {
                // A lost reply may have claimed with this journal: it has to stay then.
                if fresh && matches!(e, Error::InUse { .. }) {
                    discard_fresh(o, &journal).await?;
                } else {
                    let _ = journal.close().await; // the first error says more
                }
                return Err(e);
            }
        }
    }
}

/// Claims the volume with a journal at hand; `None` when that is obsolete, and nothing was claimed.
async fn claim(
    o: &OpenOptions,
    identity: &Identity,
    keys: &VolumeKeys,
    journal: &Journal,
) -> Result<Option<Claimed>> {
    let local = LocalJournal { id: journal.id(), marks: journal.marks(), claims: journal.claims().to_vec() };
    let request = ClaimRequest {
        host: o.host.clone(),
        take_over: o.take_over,
        local,
        size_at_creation: identity.size_at_creation(),
        grace: identity.slot_grace,
    };
    for _ in 0..CLAIMS_MAX {
        let Prospect::Free(attempt) = look(&o.env, &o.stores, keys, &request).await? else {
            return Ok(None);
        };
        journal.keep_claims(attempt.claims().to_vec()).await?;
        if let Some(claimed) = attempt.put(&o.env, &o.stores, keys).await? {
            return Ok(Some(claimed));
        }
    }
    Err(Error::InUse { host: "several hosts at once".into(), since: "just now".into() })
}

/// Removes a journal that was made just now and in which nothing was ever written.
async fn discard_fresh(o: &OpenOptions, journal: &Arc<Journal>) -> Result<()> {
    assert_eq!(journal.tail(), journal.appended(), "only what holds nothing is removed");
    journal.close().await?;
    journal::discard_unused(&o.env, &o.state, journal.id()).await
}

fn journal_options(o: &OpenOptions) -> JournalOptions {
    JournalOptions { bytes: o.journal_bytes, memory_bytes: o.memory_bytes / JOURNAL_SHARE }
}

async fn create_journal(o: &OpenOptions, identity: &Identity) -> Result<Arc<Journal>> {
    Journal::create(&o.env, &o.state, identity.volume, JournalPos(0), journal_options(o)).await
}

async fn open_journal(o: &OpenOptions, identity: &Identity) -> Result<Option<(Arc<Journal>, Recovered)>> {
    let mut recovered = Recovered::default();
    let mut visit =
        |record: &Record, payload: JournalPos, group: JournalPos| recovered.visit(record, payload, group);
    let (options, recoveries) = (journal_options(o), &o.recoveries);
    let opened = Journal::open(&o.env, &o.state, identity.volume, options, recoveries, &mut visit).await;
    match opened {
        Ok(journal) => Ok(Some((journal, recovered))),
        Err(Error::NotFound(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What a journal holds, before it is known how much of it is committed.
#[derive(Default)]
struct Recovered {
    records: Vec<(Record, JournalPos, JournalPos)>,
}

impl Recovered {
    fn visit(&mut self, record: &Record, payload: JournalPos, group: JournalPos) {
        self.records.push((record.clone(), payload, group));
    }

    /// The operations on snapshots in groups from `start` on.
    ///
    /// # Errors
    /// `Corrupt` for one that nobody can have appended.
    async fn operations(&self, start: JournalPos, journal: &Journal) -> Result<Vec<Operation>> {
        let mut operations = Vec::new();
        for (record, payload, _) in self.records.iter().filter(|(_, _, group)| *group >= start) {
            let Record::Operation { bytes } = *record else { continue };
            let block = journal.read(*payload, 1).await?.expect("what was just recovered is not freed");
            let operation = Operation::decode(&block[..bytes as usize]);
            let of_no_kind = || Error::corrupt("journal", "an operation on snapshots is of no known kind");
            operations.push(operation.ok_or_else(of_no_kind)?);
        }
        Ok(operations)
    }

    /// The dirty index and the size after everything in groups from `start` on.
    ///
    /// # Errors
    /// `Corrupt` for sectors whose base is not committed: the store is behind what this journal knows of it.
    fn behind(self, start: JournalPos, size_bytes: u64) -> Result<(DirtyIndex, u64)> {
        let mut dirty = DirtyIndex::default();
        let mut size = size_bytes;
        for (record, payload, group) in self.records.into_iter().filter(|(_, _, group)| *group >= start) {
            match record {
                Record::Write(extent) => dirty.insert(extent, Dirty::Data(payload)),
                Record::Sectors { block, mask } => {
                    if !dirty.takes_sectors(block, mask) {
                        let what =
                            format!("sectors of block {block} lie over a version that is not committed");
                        return Err(Error::corrupt("journal", what));
                    }
                    dirty.insert(Extent::new(block, 1), Dirty::Sectors { at: payload, mask });
                }
                Record::Zero { extent, allocated } => {
                    dirty.insert(extent, Dirty::Zero { at: group, allocated })
                }
                Record::Resize { size_bytes } => size = size_bytes,
                // What was loaded and is not committed went with who loaded it.
                Record::Operation { .. } | Record::Load { .. } => {}
            }
        }
        Ok((dirty, size))
    }
}

/// What the read path is built from.
pub struct ReadParts<'a> {
    pub env: &'a Env,
    pub stores: &'a Stores,
    pub cache: Option<Arc<ChunkCache>>,
    pub memory_bytes: u64,
}

/// What serves reads.
struct ReadSide {
    map: Arc<Map>,
    frames: Arc<FrameReader>,
    ahead: Ahead,
    damage: Arc<Damage>,
}

impl ReadParts<'_> {
    /// Builds map, frame reader and read-ahead over a committed state; `snapshots` are those of its checkpoint, for a writer;
    /// `forwarding` is for who shows a snapshot.
    async fn build(
        self,
        keys: &VolumeKeys,
        committed: &Committed,
        snapshots: Snapshots,
        forwarding: Option<Forwarding>,
    ) -> Result<ReadSide> {
        let ahead_bytes = self.memory_bytes / AHEAD_SHARE;
        let (reader, task) =
            ObjectReader::start(self.env.clone(), self.stores.clone(), self.cache.clone(), ahead_bytes);
        let (levels, covered) = match &committed.checkpoint {
            Some(c) => (c.levels.clone(), c.covered),
            None => Default::default(),
        };
        let damage = Arc::<Damage>::default();
        let mut origins = committed.checkpoint.as_ref().map_or_else(Vec::new, |c| c.origins.clone());
        // A snapshot of a volume that was rolled back finds what other snapshots have as its own.
        origins.retain(|origin| forwarding.is_none() || origin.source.volume != keys.volume);
        let foreign = (!origins.is_empty()).then(|| {
            let parts = OriginParts {
                env: self.env.clone(),
                volume: keys.volume,
                stores: self.stores.clone(),
                key: keys.key.clone(),
                cache: self.cache.clone(),
                damage: damage.clone(),
                memory_bytes: self.memory_bytes / FRAMES_SHARE,
            };
            Arc::new(Origins::new(parts, origins))
        });
        let runs = StoredRuns::new(reader.clone(), self.stores.clone(), self.cache);
        let runs = Arc::new(match &foreign {
            Some(foreign) => runs.with_foreign(keys.volume, foreign.clone()),
            None => runs,
        });
        let memory_bytes = self.memory_bytes / MAP_SHARE;
        let options = MapOptions {
            memory_bytes,
            damage: damage.clone(),
            snapshots: snapshots.positions(),
            oldest_bookmark: snapshots.oldest_bookmark(),
            ..MapOptions::default()
        };
        let map = Map::new(self.env.clone(), runs, keys.key.clone(), keys.volume, options, levels, covered);
        super::replay::replay(&map, &committed.applied, snapshots).await?;
        let epochs = committed.walk.epochs.clone().into();
        let (env, frames_bytes) = (self.env.clone(), self.memory_bytes / FRAMES_SHARE);
        let frames = FrameReader::new(env, reader, keys.clone(), epochs, frames_bytes, damage.clone());
        let frames = match forwarding {
            Some(forwarding) => frames.with_forwarding(forwarding),
            None => frames,
        };
        let frames = Arc::new(match foreign {
            Some(foreign) => frames.with_foreign(foreign),
            None => frames,
        });
        Ok(ReadSide { map, frames: frames.clone(), ahead: Ahead::new(frames, task, ahead_bytes), damage })
    }
}
