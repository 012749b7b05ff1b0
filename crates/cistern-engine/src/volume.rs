//! The facade: a volume that is created, opened, read, written, flushed and closed.
//!
//! Owns the order point: one lock under which a write gets its place in the journal and in the
//! dirty index ([`order`]). Never talks to the store but through `log`, `map` and the read path.

mod accounting;
mod apart;
mod base;
mod changes;
mod check;
mod clones;
mod close;
mod collect;
mod complete;
mod dirty;
mod flows;
mod hot;
mod in_parts;
mod live;
mod load;
mod locks;
mod log_sizes;
mod open;
mod order;
pub mod pacing;
mod partial;
mod plan;
mod prefetch;
mod read;
mod receive;
mod replay;
mod rollback;
mod send;
mod snapshots;
mod space_status;
mod write;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cache::ChunkCache,
    codec::{Compression, KeySource},
    damage::{Damage, DamageReport},
    disk::Disk,
    env::{BoxFuture, Env},
    fetch::{Ahead, AheadCounts, DecodedCounts, FrameReader},
    gc::readers::Announcement,
    journal::Recoveries,
    log::{GRACE, branches::Branch, keys},
    map::Map,
    price::Tariff,
    snapshot::Snapshots,
    space::Cleaning,
    stats::{IoCounters, IoKind, IoStats, RunningRequest},
    store::{SharedStore, Stores},
    units::{SECTOR_BYTES, VOLUME_BYTES_MAX, VolumeId},
};

pub mod admin;
pub mod trash;

pub use accounting::{SpaceReport, Sum};
pub use changes::{ChangedRange, SnapshotSpace, snapshot_space, unique_space};
pub use clones::{begin_clone, finish_clone};
pub use collect::{Collect, CollectStep};
pub use live::{LiveSettings, WriteBackStatus};
pub use pacing::ClientId;
pub use plan::{CollectPlan, plan_collection};
pub use prefetch::WarmTarget;
pub use receive::{ForeignReceiver, ForeignState, Overwrite, Receiver, ShareReceiver};
pub use send::{Sending, SentSince};
pub use snapshots::{SnapshotStatus, snapshot_together};
pub use space_status::{SegmentsStatus, SpaceStatus};

/// How long what is on its way at an end may take that nobody asked for.
const END_LIMIT: Duration = Duration::from_secs(60);

/// What a new volume is to be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Size in bytes, a multiple of 512, at most `VOLUME_BYTES_MAX`.
    pub size_bytes: u64,
    pub compression: Compression,
    /// `KeySource::None` leaves the volume unencrypted.
    pub key: KeySource,
}

/// How far FLUSH reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// FLUSH means: on the local disk.
    Writeback,
    /// FLUSH means: in the store, readable by another host.
    Writethrough,
    /// As `Writeback`, and what is written never enters the chunk cache by being written.
    Writearound,
}

/// How to open a volume for writing.
pub struct OpenOptions {
    pub env: Env,
    /// The store, rooted at the volume.
    pub stores: Stores,
    /// The state directory of this volume (journal).
    pub state: Arc<dyn Disk>,
    /// The chunk cache, shared by all volumes of a daemon.
    pub cache: Option<Arc<ChunkCache>>,
    pub key: KeySource,
    pub mode: Mode,
    pub journal_bytes: u64,
    /// Acknowledged data older than this is sealed and uploaded even if a segment is not full.
    pub dirty_age_max: Duration,
    /// Bytes that may be acknowledged and not yet committed; writes wait beyond.
    pub dirty_bytes_max: u64,
    /// Open with write-back held, as [`LiveSettings::paused`] says. Not in `Mode::Writethrough`.
    pub paused: bool,
    /// Bound of the memory this volume may use for buffers and caches.
    pub memory_bytes: u64,
    /// One for all volumes of a daemon.
    pub recoveries: Arc<Recoveries>,
    /// The name of this host, shown to whoever finds the volume claimed.
    pub host: String,
    /// Take the volume from a writer that did not release it.
    pub take_over: bool,
    /// How long what is not needed any more stays in the store, for readers that this writer does not see.
    pub grace: Duration,
    /// The same where there is none: no reader is announced and the volume has no clones; and where the store has no room for more,
    /// unless the volume has clones. The other one where that is shorter.
    pub grace_alone: Duration,
    /// How much may be stored for what is live, and how fast that is seen to.
    pub cleaning: Cleaning,
    /// What the store charges, by which the cleaner goes.
    pub tariff: Tariff,
}

impl OpenOptions {
    /// For the objects of a volume.
    async fn within(self, volume: VolumeId) -> OpenOptions {
        // Where there is always room no reader announces itself.
        let are_announced = matches!(self.stores.read.room().await, Ok(Some(_)));
        let grace_alone = if are_announced { self.grace_alone.min(self.grace) } else { self.grace };
        OpenOptions { stores: self.stores.within(&keys::directory(volume)), grace_alone, ..self }
    }
}

/// How to open a volume for reading only.
pub struct ReadOnlyOptions {
    pub env: Env,
    pub stores: Stores,
    pub cache: Option<Arc<ChunkCache>>,
    pub key: KeySource,
    pub memory_bytes: u64,
    /// Show this snapshot, and not the newest state.
    pub snapshot: Option<String>,
}

/// One piece of a read, in ascending order and without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Data(Bytes),
    /// So many bytes of zeroes.
    Zeroes(u64),
}

/// What a range of the volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RangeKind {
    Data,
    /// Unallocated, reads as zeroes.
    Hole,
    /// Allocated, reads as zeroes.
    Zero,
}

/// The state of a volume at one instant. Byte positions are counted since the volume was opened
/// by this writer; acknowledged >= durable, acknowledged >= uploaded >= committed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeStatus {
    pub volume: VolumeId,
    pub size_bytes: u64,
    pub read_only: bool,
    /// The id of the history that it shows since it was rolled back; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<VolumeId>,
    pub mode: Mode,
    pub epoch: u64,
    /// The newest committed position of the log.
    pub seq: u64,
    /// The four frontiers as journal positions, in blocks of 4096 bytes.
    pub acknowledged: u64,
    pub durable: u64,
    pub uploaded: u64,
    pub committed: u64,
    /// Acknowledged bytes that are not committed, and for how long the oldest has been so.
    pub dirty_bytes: u64,
    pub dirty_age_ms: u64,
    pub journal_bytes: u64,
    pub journal_used_bytes: u64,
    pub uploads_in_flight: u64,
    /// The last error the store gave, and how many milliseconds ago.
    pub store_error: Option<String>,
    pub store_error_age_ms: Option<u64>,
    /// Whether something is tried again now because the store refused it, did not answer, or has no room.
    #[serde(default)]
    pub store_refuses: bool,
    /// Set while writes wait because the disk of the journal has no room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_waits: Option<JournalWaits>,
    /// Why the volume has stopped, if it has.
    pub latched: Option<String>,
    /// Objects in the store that were found damaged or missing, since the volume was opened.
    #[serde(default)]
    pub damage: DamageReport,
    /// Some blocks are stored in part, because the rest could not be read when they were written. Each is completed when that can
    /// be read, and none of what was written is missing.
    #[serde(default)]
    pub partial_blocks: bool,
    /// How write-back is controlled; absent when open read-only.
    #[serde(default)]
    pub write_back: Option<WriteBackStatus>,
    /// What it takes in the store; absent when open read-only.
    #[serde(default)]
    pub space: Option<SpaceStatus>,
}

/// Writes wait for room on the disk of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JournalWaits {
    pub for_ms: u64,
    /// What the disk says.
    pub why: String,
}

/// What a clean close achieved.
#[derive(Clone, Debug, Serialize)]
pub struct CloseReport {
    /// Everything acknowledged is committed and the volume is released in the log.
    pub clean: bool,
    /// Acknowledged bytes that stay in the journal.
    pub journal_bytes_left: u64,
    /// Why, when not clean.
    pub reason: Option<String>,
}

/// An open volume. Dropping it without `close` is a crash: the journal keeps what it has.
pub struct Volume {
    env: Env,
    id: VolumeId,
    /// What clients asked: counted here, in the methods that answer them.
    io: IoCounters,
    map: Arc<Map>,
    frames: Arc<FrameReader>,
    ahead: Ahead,
    damage: Arc<Damage>,
    /// Absent without a chunk cache.
    hot: Option<hot::HotKeeper>,
    /// The committed state that a reader opened, or what a writer began with.
    opened: Opened,
    /// Absent when open read-only.
    writer: Option<write::Writer>,
    /// Of a reader, while it is open, where it has to be known.
    announcement: tokio::sync::Mutex<Option<Announcement>>,
}

/// Facts of the moment of opening.
struct Opened {
    /// How what is written is compressed; `None` also where nobody asks.
    compression: Compression,
    size_bytes: u64,
    epoch: u64,
    seq: u64,
    mode: Mode,
    /// Of a reader: those in the state that it opened.
    snapshots: Snapshots,
    /// Of a reader: why these are not known, if the store has no sound copy of them.
    snapshots_fault: Option<Error>,
    /// Where the volume was rolled back.
    branches: Vec<Branch>,
}

/// Opens for writing. Compiled here once, with all that is started then: what a boxed future does is not compiled again in each program that awaits it.
fn open_boxed(options: OpenOptions) -> BoxFuture<Result<Arc<Volume>>> {
    Box::pin(open::open(options))
}

impl Volume {
    /// Creates a volume in an empty place of a store.
    ///
    /// # Errors
    /// `Exists` if there is one, `Invalid` for a size that no volume can have.
    pub async fn create(env: &Env, store: &SharedStore, options: CreateOptions) -> Result<VolumeId> {
        open::create(env, store, options, GRACE).await
    }

    /// The same, with a log whose slots stay filled for another time than the usual one.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub async fn create_with_slot_grace(
        env: &Env,
        store: &SharedStore,
        options: CreateOptions,
        slot_grace: Duration,
    ) -> Result<VolumeId> {
        open::create(env, store, options, slot_grace).await
    }

    /// Opens a volume for writing: recovers the journal if there is one, claims the log.
    ///
    /// # Errors
    /// `Unfinished` where something was received and is not complete.
    pub async fn open(options: OpenOptions) -> Result<Arc<Volume>> {
        let volume = open_boxed(options).await?;
        match volume.receiving() {
            None => Ok(volume),
            Some(_) => {
                volume.close(END_LIMIT).await;
                Err(Error::Unfinished)
            }
        }
    }

    /// As `open`, for whoever goes on receiving, or goes back.
    pub async fn open_to_receive(options: OpenOptions) -> Result<Arc<Volume>> {
        open_boxed(options).await
    }

    /// Opens the newest committed state, or a snapshot of it, without a claim. Where something was received and is not complete, what was
    /// there before.
    pub async fn open_read_only(options: ReadOnlyOptions) -> Result<Arc<Volume>> {
        open::open_read_only(options).await
    }

    pub fn id(&self) -> VolumeId {
        self.id
    }

    pub fn size_bytes(&self) -> u64 {
        self.writer.as_ref().map_or(self.opened.size_bytes, write::Writer::size_bytes)
    }

    pub fn is_read_only(&self) -> bool {
        self.writer.is_none()
    }

    /// Reads `[offset, offset + len)`; any byte alignment, bounds checked.
    pub async fn read(&self, offset: u64, len: u64) -> Result<Vec<Piece>> {
        let counted = self.count(IoKind::Read, Some((offset, len)));
        let answer = async {
            self.check_bounds(offset, len)?;
            self.read_bytes(offset, len).await
        };
        counted.end(answer.await)
    }

    /// Writes; any byte alignment. Returns when the write is acknowledged: it survives the end of this process (`fua`: it is
    /// durable).
    pub async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        self.write_as(ClientId::default(), offset, data, fua).await
    }

    /// As `write`, by a client: where writes are slowed, clients get equal shares.
    pub async fn write_as(&self, client: ClientId, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        let len = data.len() as u64;
        let counted = self.count(IoKind::Write, Some((offset, len)));
        let answer = async {
            self.check_bounds(offset, len)?;
            self.write_bytes(client, offset, data, fua).await
        };
        counted.end(answer.await)
    }

    /// Makes a range read as zeroes: a hole, or `allocated` zeroes.
    pub async fn zero(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        self.zero_as(ClientId::default(), offset, len, allocated, fua).await
    }

    /// As `zero`, by a client.
    pub async fn zero_as(
        &self,
        client: ClientId,
        offset: u64,
        len: u64,
        allocated: bool,
        fua: bool,
    ) -> Result<()> {
        let counted = self.count(IoKind::WriteZeroes, Some((offset, len)));
        let answer = async {
            self.check_bounds(offset, len)?;
            self.zero_bytes(client, offset, len, allocated, fua).await
        };
        counted.end(answer.await)
    }

    /// Gives up what a range holds: it reads as zeroes, to the byte, and its whole blocks become holes.
    pub async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.trim_as(ClientId::default(), offset, len, fua).await
    }

    /// As `trim`, by a client.
    pub async fn trim_as(&self, client: ClientId, offset: u64, len: u64, fua: bool) -> Result<()> {
        let counted = self.count(IoKind::Trim, Some((offset, len)));
        let answer = async {
            self.check_bounds(offset, len)?;
            self.zero_bytes(client, offset, len, false, fua).await
        };
        counted.end(answer.await)
    }

    /// Makes everything acknowledged before this call durable, as far as the mode says.
    pub async fn flush(&self) -> Result<()> {
        let counted = self.count(IoKind::Flush, None);
        let answer = async {
            match &self.writer {
                Some(writer) => writer.flush().await,
                None => Ok(()),
            }
        };
        counted.end(answer.await)
    }

    /// What `[offset, offset + len)` is, ascending, at most `count_max` ranges; may end early.
    pub async fn ranges(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, RangeKind)>> {
        let counted = self.count(IoKind::BlockStatus, Some((offset, len)));
        let answer = async {
            self.check_bounds(offset, len)?;
            self.ranges_of(offset, len, count_max).await
        };
        counted.end(answer.await)
    }

    /// Brings a range into the chunk cache; does nothing without one.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let counted = self.count(IoKind::Cache, Some((offset, len)));
        let answer = async {
            self.check_bounds(offset, len)?;
            self.prefetch_bytes(offset, len).await
        };
        counted.end(answer.await)
    }

    /// Sets the size. Shrinking below existing data needs `force`, and drops that data.
    pub async fn resize(&self, size_bytes: u64, force: bool) -> Result<()> {
        check_size(size_bytes)?;
        self.resize_to(size_bytes, force).await
    }

    /// Returns when everything acknowledged before this call is committed.
    ///
    /// # Errors
    /// `Invalid` while write-back is paused and something is dirty: it would never return.
    pub async fn drain(&self) -> Result<()> {
        match &self.writer {
            Some(writer) => writer.drain().await,
            None => Ok(()),
        }
    }

    /// Stops: drains for at most `drain_limit`, writes a checkpoint, releases. Requests that
    /// arrive after this call fail with `Closed`. Safe to call again.
    pub async fn close(&self, drain_limit: Duration) -> CloseReport {
        match &self.writer {
            Some(writer) => {
                let (report, ()) = futures_util::join!(writer.close(drain_limit), self.save_hot_set());
                report
            }
            None => {
                self.end_announcement().await;
                CloseReport { clean: true, journal_bytes_left: 0, reason: None }
            }
        }
    }

    /// The volume's writer need not count with this reader any more.
    async fn end_announcement(&self) {
        if let Some(announcement) = self.announcement.lock().await.take() {
            announcement.end().await;
        }
    }

    /// Whether it was closed by this process: every request fails.
    pub fn is_closed(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| matches!(writer.core.refusal(), Some(Error::Closed)))
    }

    pub fn status(&self) -> VolumeStatus {
        close::status(self)
    }

    /// What clients asked since the volume was opened.
    pub fn io_stats(&self) -> IoStats {
        self.io.snapshot(self.env.now())
    }

    /// What became of the bytes that were fetched ahead of readers.
    pub fn ahead_counts(&self) -> AheadCounts {
        self.ahead.counts()
    }

    /// How many reads were answered by frames that were decoded already.
    pub fn decoded_counts(&self) -> DecodedCounts {
        self.frames.counts()
    }

    /// A request arrives; `range` is its offset and length, if it has one.
    fn count(&self, kind: IoKind, range: Option<(u64, u64)>) -> Counted<'_> {
        Counted { running: self.io.begin(kind, self.env.now()), env: &self.env, range }
    }

    fn check_bounds(&self, offset: u64, len: u64) -> Result<()> {
        let size_bytes = self.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(Error::OutOfRange { size_bytes }),
        }
    }
}

/// A request that is counted. Beside its future, and not around it: a future that has another one within is moved into place, and those of
/// a volume are long.
struct Counted<'a> {
    running: RunningRequest<'a>,
    env: &'a Env,
    range: Option<(u64, u64)>,
}

impl Counted<'_> {
    /// The request is answered.
    fn end<T>(self, answer: Result<T>) -> Result<T> {
        self.running.end(self.env.now(), self.range, answer.is_ok());
        answer
    }
}

/// A size that a volume can have.
fn check_size(size_bytes: u64) -> Result<()> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
        return Err(Error::Invalid(format!(
            "a volume's size must be a positive multiple of {SECTOR_BYTES} bytes, not {size_bytes}"
        )));
    }
    if size_bytes > VOLUME_BYTES_MAX {
        return Err(Error::Invalid(format!("a volume is at most {VOLUME_BYTES_MAX} bytes (1 EiB)")));
    }
    Ok(())
}
