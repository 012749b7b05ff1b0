//! A server in this process, and an export whose requests can be held back and counted.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_nbd::{
    Address, Allocation, Export, ExportEntry, Exports, HandedOn, Listener, Properties, ReadPiece, Result,
    Server, ServerEnd, ServerSettings, TlsMode,
};
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, oneshot},
    task::JoinHandle,
};

use crate::export::MemoryExport;

/// Size of the exports named "disk" and "frozen".
pub const SIZE: u64 = 1 << 26;

/// A disk whose writes, reads and flushes wait for a permit each.
pub struct HeldExport {
    pub memory: MemoryExport,
    pub permits: Semaphore,
    /// What it is to connections that go on with the next server.
    pub identity: Mutex<Option<String>>,
    /// Bytes of reads that have begun, that wait, and that ever waited at one time.
    pub read_bytes: AtomicU64,
    waiting_bytes: AtomicU64,
    pub waiting_bytes_peak: AtomicU64,
    /// Requests that wait or have ended.
    pub begun: AtomicU64,
    /// Writes that wait, and that ever waited at one time.
    waiting_writes: AtomicU64,
    pub waiting_writes_peak: AtomicU64,
}

impl HeldExport {
    pub fn new(name: &str, permits: usize) -> HeldExport {
        HeldExport {
            memory: MemoryExport::new(name, SIZE),
            permits: Semaphore::new(permits),
            identity: Mutex::new(Some(format!("{name} as it was"))),
            read_bytes: AtomicU64::new(0),
            waiting_bytes: AtomicU64::new(0),
            waiting_bytes_peak: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            waiting_writes: AtomicU64::new(0),
            waiting_writes_peak: AtomicU64::new(0),
        }
    }

    async fn wait(&self) {
        self.begun.fetch_add(1, SeqCst);
        self.permits.acquire().await.expect("never closed").forget();
    }
}

#[async_trait]
impl Export for HeldExport {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn properties(&self) -> Properties {
        self.memory.properties()
    }

    fn identity(&self) -> Option<String> {
        self.identity.lock().expect("nothing panics under it").clone()
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<ReadPiece>> {
        self.read_bytes.fetch_add(len, SeqCst);
        let waiting = self.waiting_bytes.fetch_add(len, SeqCst) + len;
        self.waiting_bytes_peak.fetch_max(waiting, SeqCst);
        self.wait().await;
        self.waiting_bytes.fetch_sub(len, SeqCst);
        self.memory.read(offset, len).await
    }

    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        let waiting = self.waiting_writes.fetch_add(1, SeqCst) + 1;
        self.waiting_writes_peak.fetch_max(waiting, SeqCst);
        self.wait().await;
        self.waiting_writes.fetch_sub(1, SeqCst);
        self.memory.write(offset, data, fua).await
    }

    async fn flush(&self) -> Result<()> {
        self.wait().await;
        self.memory.flush().await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.memory.trim(offset, len, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Result<()> {
        self.memory.write_zeroes(offset, len, no_hole, fast, fua).await
    }

    async fn cache(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.cache(offset, len).await
    }

    async fn block_status(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, Allocation)>> {
        self.memory.block_status(offset, len, count_max).await
    }

    /// Two, and many more: enough that no client gets all.
    fn bitmaps(&self) -> Vec<String> {
        let more = (0..20).map(|n| format!("more-{n}"));
        ["monday", "tuesday"].map(str::to_owned).into_iter().chain(more).collect()
    }

    /// On Monday the first 4 KiB changed, on Tuesday nothing.
    async fn changed(
        &self,
        bitmap: &str,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, bool)>> {
        let first = 4096u64.saturating_sub(offset).min(len);
        let mut ranges = vec![(first, bitmap == "monday"), (len - first, false)];
        ranges.retain(|(len, _)| *len > 0);
        ranges.truncate(count_max);
        Ok(ranges)
    }
}

/// The exports of the tests: "disk" (also the default), "frozen" (read-only), "huge" (100 TiB),
/// "held", and "late" and "never", which take their time to be opened.
pub struct TestExports {
    pub disk: Arc<MemoryExport>,
    pub frozen: Arc<MemoryExport>,
    pub huge: Arc<MemoryExport>,
    pub held: Arc<HeldExport>,
    /// What waits until it is opened: "late", for [`OPENING`], and "never".
    pub opening: AtomicU64,
}

/// As long as "late" takes to be opened.
pub const OPENING: Duration = Duration::from_millis(600);

impl TestExports {
    pub fn new() -> Arc<TestExports> {
        let mut frozen = MemoryExport::new("frozen", SIZE);
        frozen.read_only = true;
        Arc::new(TestExports {
            disk: Arc::new(MemoryExport::new("disk", SIZE)),
            frozen: Arc::new(frozen),
            huge: Arc::new(MemoryExport::new("huge", 100 << 40)),
            held: Arc::new(HeldExport::new("held", 0)),
            opening: AtomicU64::new(0),
        })
    }
}

#[async_trait]
impl Exports for TestExports {
    fn list(&self) -> Vec<ExportEntry> {
        [&self.disk, &self.frozen, &self.huge]
            .map(|export| export.properties())
            .map(|properties| ExportEntry { name: properties.name, description: properties.description })
            .into()
    }

    async fn find(&self, name: &str) -> Option<Arc<dyn Export>> {
        match name {
            "" | "disk" => Some(self.disk.clone()),
            "frozen" => Some(self.frozen.clone()),
            "huge" => Some(self.huge.clone()),
            "held" => Some(self.held.clone()),
            "late" => {
                self.opening.fetch_add(1, SeqCst);
                tokio::time::sleep(OPENING).await;
                Some(self.disk.clone())
            }
            "never" => {
                let _waits = Waits::count(&self.opening);
                std::future::pending().await
            }
            _ => None,
        }
    }
}

/// One that waits is counted until it no longer does.
struct Waits<'a>(&'a AtomicU64);

impl Waits<'_> {
    fn count(waiting: &AtomicU64) -> Waits<'_> {
        waiting.fetch_add(1, SeqCst);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A running server.
pub struct Fixture {
    pub path: PathBuf,
    pub exports: Arc<TestExports>,
    runtime: Runtime,
    task: JoinHandle<ServerEnd>,
    stop: oneshot::Sender<()>,
    _dir: TempDir,
}

impl Fixture {
    pub fn start() -> Fixture {
        Fixture::with(ServerSettings::default(), TlsMode::Off)
    }

    pub fn with(settings: ServerSettings, tls: TlsMode) -> Fixture {
        Fixture::serve(TestExports::new(), settings, tls, Vec::new())
    }

    /// The next server of the same exports, with connections of the one before.
    pub fn going_on(exports: Arc<TestExports>, handed_on: Vec<HandedOn>) -> Fixture {
        Fixture::serve(exports, ServerSettings::default(), TlsMode::Off, handed_on)
    }

    fn serve(
        exports: Arc<TestExports>,
        settings: ServerSettings,
        tls: TlsMode,
        handed_on: Vec<HandedOn>,
    ) -> Fixture {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("socket");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("runtime");
        let (stop, stopped) = oneshot::channel::<()>();
        let listener =
            runtime.block_on(Listener::bind(&Address::Unix(path.clone()), tls)).expect("the address is free");
        let server = Server::new(exports.clone(), settings);
        let task = runtime.spawn(async move {
            let stopped = async {
                // A dropped sender is a stop as well.
                let _ = stopped.await;
            };
            server.serve(vec![listener], handed_on, stopped).await.expect("threads")
        });
        Fixture { path, exports, runtime, task, stop, _dir: dir }
    }

    /// Tells the server to stop, without waiting for it.
    pub fn begin_stop(self) -> Stopping {
        self.stop.send(()).expect("the server runs");
        Stopping { runtime: self.runtime, task: self.task, _dir: self._dir }
    }

    /// Stops the server and returns how many connections were cut off.
    pub fn stop(self) -> usize {
        self.begin_stop().wait()
    }
}

/// A server that was told to stop.
pub struct Stopping {
    runtime: Runtime,
    task: JoinHandle<ServerEnd>,
    _dir: TempDir,
}

impl Stopping {
    /// How many connections were cut off.
    pub fn wait(self) -> usize {
        self.ended().cut_off
    }

    pub fn ended(self) -> ServerEnd {
        self.runtime.block_on(self.task).expect("the server does not panic")
    }
}
