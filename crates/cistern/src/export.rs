//! The whole adapter between NBD and the engine: types, error numbers, one log line per fault.
//!
//! Thin by intent: this is on the path of every request. Holds no state of a volume.

use std::{
    collections::VecDeque,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    units::SnapshotId,
    volume::{self, ClientId, Piece, Volume},
};
use cistern_nbd::{Allocation, Errno, Export, ExportEntry, ExportError, Exports, Properties, ReadPiece};

/// How often the same kind of fault is logged.
const SAME_FAULT_INTERVAL: Duration = Duration::from_secs(60);
/// Snapshots that are shown beside their volumes at a time: each has some memory for its map.
const SHOWN_MAX: usize = 16;

/// A volume as one connection sees it.
#[derive(Clone)]
pub struct VolumeExport {
    name: Arc<str>,
    description: Arc<str>,
    /// For connections that go on with the next daemon.
    identity: Option<Arc<str>>,
    volume: Arc<Volume>,
    faults: Arc<FaultLog>,
    /// Tells the connections apart, so that each gets its share where writes are slowed.
    client: ClientId,
}

/// Differs after every start of the host; empty where it cannot be read.
static BOOT: LazyLock<String> =
    LazyLock::new(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default());

/// The name of an export with a mark of its identity: for clients that reconnect by themselves and must not go on with another history of the
/// volume, because it was rolled back, another host had it in between, or its host crashed and lost what was not flushed.
pub fn lasting_name(name: &str, identity: &str) -> String {
    let shown = format!("{identity}:{}", BOOT.trim());
    let mark = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, shown.as_bytes());
    format!("{name}:{mark:016x}")
}

impl VolumeExport {
    pub fn new(name: &str, description: &str, identity: Option<&str>, volume: Arc<Volume>) -> Self {
        let faults = Arc::new(FaultLog::default());
        Self {
            name: name.into(),
            description: description.into(),
            identity: identity.map(Into::into),
            volume,
            faults,
            client: ClientId::default(),
        }
    }

    /// Whether a name has the mark of what this is.
    fn lasts_as(&self, name: &str) -> bool {
        let lasting = self.identity.as_deref().map(|identity| lasting_name(&self.name, identity));
        lasting.is_some_and(|lasting| lasting == name)
    }

    /// Connections that have it, when nobody else has a copy.
    fn clients(&self) -> usize {
        Arc::strong_count(&self.faults) - 1
    }

    /// Whether a client has it.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.volume) > 1
    }

    fn failed(&self, operation: &'static str, error: Error) -> ExportError {
        self.faults.note(&self.name, operation, &error);
        ExportError::new(errno(operation, &error), error.to_string())
    }
}

#[async_trait]
impl Export for VolumeExport {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn properties(&self) -> Properties {
        Properties {
            name: self.name.to_string(),
            description: self.description.to_string(),
            read_only: self.volume.is_read_only(),
            // One journal orders the writes of all connections, and a flush syncs all of it.
            can_multi_conn: true,
            // Zeroes are an entry of the map, whatever the length.
            fast_zero: true,
        }
    }

    fn identity(&self) -> Option<String> {
        self.identity.as_deref().map(str::to_owned)
    }

    async fn read(&self, offset: u64, len: u64) -> cistern_nbd::Result<Vec<ReadPiece>> {
        match self.volume.read(offset, len).await {
            Ok(pieces) => Ok(pieces.into_iter().map(piece).collect()),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> cistern_nbd::Result<()> {
        self.volume
            .write_as(self.client, offset, data, fua)
            .await
            .map_err(|error| self.failed("write", error))
    }

    async fn flush(&self) -> cistern_nbd::Result<()> {
        self.volume.flush().await.map_err(|error| self.failed("flush", error))
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> cistern_nbd::Result<()> {
        self.volume.trim_as(self.client, offset, len, fua).await.map_err(|error| self.failed("trim", error))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        no_hole: bool,
        _fast: bool, // always is
        fua: bool,
    ) -> cistern_nbd::Result<()> {
        self.volume
            .zero_as(self.client, offset, len, no_hole, fua)
            .await
            .map_err(|error| self.failed("write zeroes", error))
    }

    async fn cache(&self, offset: u64, len: u64) -> cistern_nbd::Result<()> {
        self.volume.prefetch(offset, len).await.map_err(|error| self.failed("cache", error))
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> cistern_nbd::Result<Vec<(u64, Allocation)>> {
        match self.volume.ranges(offset, len, count_max).await {
            Ok(ranges) => Ok(ranges.into_iter().map(|(len, kind)| (len, range_kind(kind))).collect()),
            Err(error) => Err(self.failed("block status", error)),
        }
    }

    fn bitmaps(&self) -> Vec<String> {
        self.volume.bases()
    }

    async fn changed(
        &self,
        bitmap: &str,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> cistern_nbd::Result<Vec<(u64, bool)>> {
        let ranges = self.volume.changed_ranges(bitmap, offset, len, count_max).await;
        ranges.map_err(|error| self.failed("block status", error))
    }
}

fn piece(piece: Piece) -> ReadPiece {
    match piece {
        Piece::Data(data) => ReadPiece::Data(data),
        Piece::Zeroes(len) => ReadPiece::Zeroes(len),
    }
}

fn range_kind(kind: volume::RangeKind) -> Allocation {
    match kind {
        volume::RangeKind::Data => Allocation::Data,
        volume::RangeKind::Hole => Allocation::Hole,
        volume::RangeKind::Zero => Allocation::Zero,
    }
}

/// The number a client gets for an engine error.
fn errno(operation: &'static str, error: &Error) -> Errno {
    match error {
        // What the protocol asks for: writing beyond the end is a lack of space.
        Error::OutOfRange { .. } if operation == "read" => Errno::Inval,
        Error::OutOfRange { .. } | Error::Full(_) => Errno::NoSpc,
        Error::Invalid(_) | Error::PausedWritethrough => Errno::Inval,
        Error::ReadOnly => Errno::Perm,
        Error::Closed => Errno::Shutdown,
        Error::NotFound(_)
        | Error::SourceAway { .. }
        | Error::Unfinished
        | Error::InTrash { .. }
        | Error::Exists(_)
        | Error::NotEmpty(_)
        | Error::Gone(_)
        | Error::Overwrites(_)
        | Error::Unreachable(_)
        | Error::Refused(_)
        | Error::NoRoom(_)
        | Error::InUse { .. }
        | Error::Locked(_)
        | Error::Fenced { .. }
        | Error::Copied { .. }
        | Error::StaleJournal(_)
        | Error::Corrupt { .. }
        | Error::Version { .. }
        | Error::Key(_)
        | Error::Io { .. }
        | Error::Latched(_) => Errno::Io,
    }
}

/// Keeps a failing volume from flooding the log: a kind of fault is logged when it is new, and
/// then at most once per [`SAME_FAULT_INTERVAL`] with the number in between.
#[derive(Default)]
struct FaultLog {
    /// The last fault logged: operation, kind, when, and how many of it followed in silence.
    last: Mutex<Vec<Fault>>,
}

struct Fault {
    operation: &'static str,
    kind: std::mem::Discriminant<Error>,
    logged: Instant,
    silent: u64,
}

impl FaultLog {
    fn note(&self, name: &str, operation: &'static str, error: &Error) {
        let of_the_client = matches!(error, Error::Invalid(_) | Error::OutOfRange { .. } | Error::ReadOnly);
        if of_the_client || matches!(error, Error::Closed) {
            tracing::debug!(volume = name, operation, %error, "refused");
            return;
        }
        if let Some(silent) = self.due(operation, error, Instant::now()) {
            tracing::error!(volume = name, operation, silent, %error, "request failed");
        }
    }

    /// Whether to log this fault: the number of the same kind since the last time.
    fn due(&self, operation: &'static str, error: &Error, now: Instant) -> Option<u64> {
        let kind = std::mem::discriminant(error);
        let mut last = self.last.lock().expect("nothing panics under this lock");
        match last.iter_mut().find(|fault| fault.operation == operation && fault.kind == kind) {
            Some(fault) if now.duration_since(fault.logged) < SAME_FAULT_INTERVAL => {
                fault.silent += 1;
                None
            }
            Some(fault) => {
                fault.logged = now;
                Some(std::mem::take(&mut fault.silent))
            }
            None => {
                // Bounded: there are a few operations and a few kinds.
                last.push(Fault { operation, kind, logged: now, silent: 0 });
                Some(0)
            }
        }
    }
}

/// Snapshots of volumes that somebody asked for, beside the volumes: opened when they are, and kept open.
#[derive(Default)]
pub struct ShownSnapshots(Mutex<VecDeque<(SnapshotId, VolumeExport)>>);

impl ShownSnapshots {
    /// The snapshot `VOLUME@NAME` of a volume that is open for writing. `None` where there is none, or it cannot be opened now.
    async fn open(&self, name: &str, of: &VolumeExport) -> Option<VolumeExport> {
        let (_, snapshot) = name.rsplit_once('@')?;
        // A name may have been given to another one since.
        let id = of.volume.snapshot_named(snapshot)?.id;
        if let Some((_, open)) = self.exports().iter().find(|(shown, _)| *shown == id) {
            return Some(open.clone());
        }
        let opened = match of.volume.open_snapshot(snapshot).await {
            Ok(opened) if opened.snapshot_named(snapshot).is_some_and(|found| found.id == id) => opened,
            Ok(_) => return None, // it went, and there is another of its name: who asks again gets that
            Err(error) => {
                tracing::warn!(snapshot = name, %error, "a client asked for a snapshot that cannot be shown");
                return None;
            }
        };
        let export = VolumeExport::new(
            name,
            &format!("snapshot {snapshot} of {}", of.description),
            None,
            Arc::new(opened),
        );
        let mut open = self.exports();
        if let Some(unused) =
            open.iter().position(|(_, export)| !export.is_used()).filter(|_| open.len() >= SHOWN_MAX)
        {
            open.remove(unused);
        }
        if open.len() >= SHOWN_MAX {
            tracing::warn!(
                snapshot = name,
                "clients use {SHOWN_MAX} snapshots already: this one is not shown"
            );
            return None;
        }
        open.push_back((id, export.clone()));
        Some(export)
    }

    /// Closes a snapshot; false while a client uses it.
    pub fn close(&self, name: &str) -> bool {
        let mut open = self.exports();
        let is_used = open.iter().any(|(_, export)| &*export.name == name && export.is_used());
        if !is_used {
            open.retain(|(_, export)| &*export.name != name);
        }
        !is_used
    }

    fn exports(&self) -> MutexGuard<'_, VecDeque<(SnapshotId, VolumeExport)>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

/// The volumes of a daemon, as who connects now finds them.
pub struct ServedExports(Mutex<Vec<VolumeExport>>);

impl ServedExports {
    /// The names must differ.
    pub fn new(exports: Vec<VolumeExport>) -> Self {
        debug_assert!(exports.iter().enumerate().all(|(i, a)| exports[..i].iter().all(|b| a.name != b.name)));
        Self(Mutex::new(exports))
    }

    fn all(&self) -> MutexGuard<'_, Vec<VolumeExport>> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// Connections to a volume.
    pub fn clients(&self, name: &str) -> usize {
        self.all().iter().find(|export| &*export.name == name).map_or(0, VolumeExport::clients)
    }

    /// Connections to all volumes.
    pub fn all_clients(&self) -> usize {
        self.all().iter().map(VolumeExport::clients).sum()
    }

    /// Puts a volume in the place of the one of its name.
    pub fn replace(&self, export: VolumeExport) {
        if let Some(place) = self.all().iter_mut().find(|known| known.name == export.name) {
            *place = export;
        }
    }

    /// The volume of a name; where there is only one it has the empty name too. With the mark of what a client saw behind it
    /// ([`lasting_name`]) only while it is still that.
    fn find(&self, name: &str) -> Option<VolumeExport> {
        let all = self.all();
        match (name, &all[..]) {
            ("", [only]) => Some(only.clone()),
            _ => all.iter().find(|export| &*export.name == name || export.lasts_as(name)).cloned(),
        }
    }
}

/// All volumes of a daemon, and their snapshots.
pub struct ExportSet {
    exports: Arc<ServedExports>,
    snapshots: Arc<ShownSnapshots>,
    /// Connections so far.
    clients: AtomicU64,
}

impl ExportSet {
    pub fn new(exports: Arc<ServedExports>, snapshots: Arc<ShownSnapshots>) -> Self {
        Self { exports, snapshots, clients: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Exports for ExportSet {
    fn list(&self) -> Vec<ExportEntry> {
        let entry = |e: &VolumeExport| ExportEntry {
            name: e.name.to_string(),
            description: e.description.to_string(),
        };
        self.exports.all().iter().map(entry).collect()
    }

    async fn find(&self, name: &str) -> Option<Arc<dyn Export>> {
        let found = match (self.exports.find(name), name.rsplit_once('@')) {
            (Some(found), _) => found,
            (None, Some((volume, _))) if !volume.is_empty() => {
                self.snapshots.open(name, &self.exports.find(volume)?).await?
            }
            (None, _) => return None,
        };
        let client = ClientId(self.clients.fetch_add(1, Ordering::Relaxed) + 1);
        Some(Arc::new(VolumeExport { client, ..found }))
    }
}

#[cfg(test)]
mod tests {
    use cistern_engine::{
        codec::{Compression, KeySource},
        disk::RealDisk,
        env::real::RealEnv,
        journal::Recoveries,
        price::Tariff,
        space::Bound,
        store::{MemoryStore, SharedStore, Stores},
        volume::{CreateOptions, OpenOptions},
    };

    use super::*;

    /// Clients can tell a full journal, a read-only volume and a stop from a fault.
    #[test]
    fn error_numbers() {
        let beyond = Error::OutOfRange { size_bytes: 1 };
        assert_eq!(errno("read", &beyond), Errno::Inval);
        assert_eq!(errno("write", &beyond), Errno::NoSpc);
        assert_eq!(errno("write", &Error::Full("journal".into())), Errno::NoSpc);
        assert_eq!(errno("write", &Error::ReadOnly), Errno::Perm);
        assert_eq!(errno("flush", &Error::Closed), Errno::Shutdown);
        assert_eq!(errno("read", &Error::corrupt("frame", "crc")), Errno::Io);
        assert_eq!(errno("write", &Error::Fenced { ours: 1, theirs: 2 }), Errno::Io);
    }

    /// A fault is logged once, not once per request; another kind is logged at once.
    #[test]
    fn faults_do_not_flood_the_log() {
        let log = FaultLog::default();
        let away = Error::Unreachable("time-out".into());
        let start = Instant::now();
        assert_eq!(log.due("read", &away, start), Some(0));
        assert_eq!(log.due("read", &away, start), None);
        assert_eq!(log.due("write", &away, start), Some(0));
        assert_eq!(log.due("read", &Error::corrupt("frame", "crc"), start), Some(0));
        assert_eq!(log.due("read", &away, start + SAME_FAULT_INTERVAL), Some(1));
    }

    /// A name that was given to another snapshot shows that one, and not what was shown under it before; one that is removed is not shown,
    /// whoever still has it.
    #[tokio::test]
    async fn a_name_shows_the_snapshot_that_has_it() {
        let (env, dir) = (RealEnv::start(), tempfile::tempdir().expect("a directory"));
        let store: SharedStore = Arc::new(MemoryStore::new());
        let options =
            CreateOptions { size_bytes: 1 << 20, compression: Compression::Lz4, key: KeySource::None };
        Volume::create(&env, &store, options).await.expect("created");
        let opened = Volume::open(OpenOptions {
            env: env.clone(),
            stores: Stores::same(store),
            state: Arc::new(RealDisk::create(dir.path()).expect("a directory")),
            cache: None,
            key: KeySource::None,
            mode: volume::Mode::Writeback,
            journal_bytes: 64 << 20,
            dirty_age_max: Duration::from_secs(3600),
            dirty_bytes_max: 64 << 20,
            paused: false,
            memory_bytes: 64 << 20,
            recoveries: Recoveries::new(1),
            host: "here".into(),
            take_over: false,
            grace: Duration::ZERO,
            grace_alone: Duration::ZERO,
            cleaning: Bound::Auto.into(),
            tariff: Tariff::default(),
        });
        let of = VolumeExport::new("tank", "", None, opened.await.expect("opened"));
        let shown = ShownSnapshots::default();
        let first_byte = async || {
            let export = shown.open("tank@a", &of).await?;
            match export.read(0, 512).await.expect("read").into_iter().next() {
                Some(ReadPiece::Data(data)) => Some(data[0]),
                _ => Some(0),
            }
        };
        for value in [1, 2] {
            of.write(0, Bytes::from(vec![value; 4096]), false).await.expect("written");
            of.volume.snapshot("a").await.expect("made");
            assert_eq!((first_byte().await, first_byte().await), (Some(value), Some(value)));
            of.volume.remove_snapshot("a").await.expect("removed, without a word to who shows it");
            assert_eq!(first_byte().await, None);
        }
        of.volume.close(Duration::from_secs(60)).await;
    }
}
