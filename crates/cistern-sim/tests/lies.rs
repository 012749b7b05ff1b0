//! The checker notices when a layer around the real engine lies: each test breaks one promise of the
//! disk, the store or the client's side, and some seed must report it.

#[path = "../../cistern-engine/tests/store_support/passing.rs"]
mod passing;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Result,
    disk::{Disk, DiskFile},
    store::{Put, SharedStore, Store, StoreResult},
    volume::{CloseReport, Mode, RangeKind, VolumeStatus},
};
use cistern_sim::{
    device::{Device, RealEngine},
    plan::Theme,
    world::{Lies, Run},
};
use passing::{Passing, Through};

/// Seeds within which a lie must be found.
const SEEDS_MAX: u64 = 200;

/// Runs seeds until one fails, and checks that it names the expected kind of violation.
fn must_notice(theme: Theme, lies: Lies, expected: &[&str]) {
    for seed in 0..SEEDS_MAX {
        let run = Run { theme: Some(theme), lies: lies.clone(), ..Run::of(seed, Arc::new(RealEngine)) };
        if let Some(why) = run.go().failure {
            assert!(expected.iter().any(|e| why.contains(e)), "seed {seed}: noticed something else: {why}");
            println!("seed {seed}: {why}");
            return;
        }
    }
    panic!("not noticed in {SEEDS_MAX} seeds");
}

/// True for every `n`th call.
struct Every(AtomicU64, u64);

impl Every {
    fn new(n: u64) -> Every {
        Every(AtomicU64::new(0), n)
    }
    fn now(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % self.1 == self.1 - 1
    }
}

#[derive(Clone, Copy, PartialEq)]
enum DiskLie {
    SyncDoesNothing,
    /// Some writes never reach the medium.
    LosesWrites,
    /// A write stays in the memory of the process until the next one, or a read or a sync.
    BuffersWrites,
}

struct LyingDisk(Arc<dyn Disk>, DiskLie);

struct LyingFile {
    inner: Arc<dyn DiskFile>,
    lie: DiskLie,
    due: Every,
    buffered: Mutex<Option<(u64, Vec<u8>)>>,
}

impl LyingFile {
    /// Writes what is buffered.
    async fn settle(&self) -> Result<()> {
        let buffered = self.buffered.lock().expect("no panic under this lock").take();
        match buffered {
            Some((offset, data)) => self.inner.write_at(offset, &data).await,
            None => Ok(()),
        }
    }
}

impl LyingDisk {
    fn lies(lie: DiskLie) -> Lies {
        Lies { disk: Some(Arc::new(move |disk| Arc::new(LyingDisk(disk, lie)))), ..Lies::default() }
    }
    fn wrap(&self, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(LyingFile { inner, lie: self.1, due: Every::new(40), buffered: Mutex::default() })
    }
}

#[async_trait]
impl Disk for LyingDisk {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.0.open(name).await.map(|f| self.wrap(f))
    }
    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        self.0.create(name, bytes).await.map(|f| self.wrap(f))
    }
    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to).await
    }
    async fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name).await
    }
    async fn names(&self, beginning: &str) -> Result<Vec<String>> {
        self.0.names(beginning).await
    }
    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>> {
        self.0.lock(name)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[async_trait]
impl DiskFile for LyingFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.lie == DiskLie::LosesWrites && data.len() < 1 << 20 && self.due.now() {
            return Ok(());
        }
        self.settle().await?;
        if self.lie == DiskLie::BuffersWrites {
            *self.buffered.lock().expect("no panic under this lock") = Some((offset, data.to_vec()));
            return Ok(());
        }
        self.inner.write_at(offset, data).await
    }
    async fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.write_at(offset, &parts.concat()).await
    }
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.settle().await?;
        self.inner.read_at(offset, out).await
    }
    async fn sync(&self) -> Result<()> {
        self.settle().await?;
        match self.lie {
            DiskLie::SyncDoesNothing => Ok(()),
            DiskLie::LosesWrites | DiskLie::BuffersWrites => self.inner.sync().await,
        }
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum StoreLie {
    /// Some segments are said to be stored and are not.
    LosesPuts,
    /// Put-if-absent overwrites what is there.
    IgnoresAbsence,
    /// Now and then an object that was stored before goes away.
    LosesObjects,
}

struct LyingStore {
    inner: SharedStore,
    lie: StoreLie,
    due: AtomicU64,
}

impl LyingStore {
    fn lies(lie: StoreLie) -> Lies {
        let wrap =
            move |inner| -> SharedStore { Through::new(LyingStore { inner, lie, due: AtomicU64::new(0) }) };
        Lies { store: Some(Arc::new(wrap)), ..Lies::default() }
    }
}

#[async_trait]
impl Passing for LyingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let due = key.contains("/log/") && self.due.fetch_add(1, Ordering::Relaxed) % 7 == 6;
        match self.lie {
            StoreLie::LosesPuts if due => Ok(Put::Created),
            StoreLie::IgnoresAbsence => self.inner.put(key, body).await.map(|()| Put::Created),
            StoreLie::LosesObjects if due => {
                let put = self.inner.put_if_absent(key, body).await?;
                self.inner.delete(key).await?;
                Ok(put)
            }
            _ => self.inner.put_if_absent(key, body).await,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum DeviceLie {
    /// Zeroes are acknowledged and forgotten.
    DropsZeroes,
    /// FLUSH and FUA are acknowledged at once.
    FlushesEarly,
    /// A drain is reported before it happened.
    DrainsEarly,
    /// A switch of the mode is acknowledged and forgotten.
    KeepsMode,
    /// A pause is acknowledged and forgotten.
    GoesOnUploading,
    /// Some writes end up one sector further on.
    Shifts,
    /// Some writes are acknowledged and forgotten.
    DropsWrites,
}

struct LyingDevice {
    inner: Arc<dyn Device>,
    lie: DeviceLie,
    due: Every,
}

impl LyingDevice {
    fn lies(lie: DeviceLie) -> Lies {
        let wrap =
            move |inner| -> Arc<dyn Device> { Arc::new(LyingDevice { inner, lie, due: Every::new(20) }) };
        Lies { device: Some(Arc::new(wrap)), ..Lies::default() }
    }
}

#[async_trait]
impl Device for LyingDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    async fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.inner.read(offset, len).await
    }
    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()> {
        let fua = fua && self.lie != DeviceLie::FlushesEarly;
        if self.lie == DeviceLie::DropsWrites && self.due.now() {
            return Ok(());
        }
        let fits = offset + 512 + data.len() as u64 <= self.size_bytes();
        let shift = self.lie == DeviceLie::Shifts && fits && self.due.now();
        self.inner.write(offset + u64::from(shift) * 512, data, fua).await
    }
    async fn zero(&self, offset: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        match self.lie {
            DeviceLie::DropsZeroes => Ok(()),
            lie => self.inner.zero(offset, len, allocated, fua && lie != DeviceLie::FlushesEarly).await,
        }
    }
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        match self.lie {
            DeviceLie::DropsZeroes => Ok(()),
            lie => self.inner.trim(offset, len, fua && lie != DeviceLie::FlushesEarly).await,
        }
    }
    async fn flush(&self) -> Result<()> {
        match self.lie {
            DeviceLie::FlushesEarly => Ok(()),
            _ => self.inner.flush().await,
        }
    }
    async fn ranges(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, RangeKind)>> {
        self.inner.ranges(offset, len, count_max).await
    }
    async fn resize(&self, size_bytes: u64) -> Result<()> {
        self.inner.resize(size_bytes).await
    }
    async fn drain(&self) -> Result<()> {
        match self.lie {
            DeviceLie::DrainsEarly => Ok(()),
            _ => self.inner.drain().await,
        }
    }
    async fn close(&self, drain_limit: Duration) -> CloseReport {
        self.inner.close(drain_limit).await
    }
    fn status(&self) -> VolumeStatus {
        self.inner.status()
    }
    async fn set_mode(&self, mode: Mode) -> Result<bool> {
        match self.lie {
            DeviceLie::KeepsMode => Ok(true),
            _ => self.inner.set_mode(mode).await,
        }
    }
    async fn set_paused(&self, paused: bool) -> Result<bool> {
        match self.lie {
            DeviceLie::GoesOnUploading => Ok(true),
            DeviceLie::KeepsMode => Ok(false), // only its flushes are to give it away
            _ => self.inner.set_paused(paused).await,
        }
    }
}

/// A disk whose sync does nothing breaks P1 at a power cut.
#[test]
fn a_sync_that_does_nothing() {
    must_notice(Theme::Crashes, LyingDisk::lies(DiskLie::SyncDoesNothing), &["P1", "cannot open"]);
}

/// A disk that loses writes breaks P1, unless the engine finds its journal damaged.
#[test]
fn a_disk_that_loses_writes() {
    must_notice(
        Theme::Crashes,
        LyingDisk::lies(DiskLie::LosesWrites),
        &["P1", "cannot open", "fails without"],
    );
}

/// A disk that keeps a write in the memory of the process loses what was acknowledged when that is killed.
#[test]
fn a_write_that_does_not_outlive_the_process() {
    must_notice(Theme::Crashes, LyingDisk::lies(DiskLie::BuffersWrites), &["P3: it was acknowledged"]);
}

/// A switch to writethrough that does nothing breaks P1 when the host is lost; a zero with FUA that is said to be in
/// the store asks for all that came before it (P3).
#[test]
fn a_mode_that_does_not_change() {
    must_notice(Theme::TakeOvers, LyingDevice::lies(DeviceLie::KeepsMode), &["P1", "P2", "P3"]);
}

/// A pause that does nothing is noticed by what is uploaded all the same, can be drained, or is not refused.
#[test]
fn a_pause_that_holds_nothing() {
    let lies = LyingDevice::lies(DeviceLie::GoesOnUploading);
    let expected = ["pause: more than", "pause: a drain", "pause: one in writethrough", "pause: a switch"];
    must_notice(Theme::Calm, lies, &expected);
}

/// A store that loses a put which it has confirmed breaks P2.
#[test]
fn a_store_that_loses_puts() {
    let expected = ["P2", "P3", "P1", "P5", "P7", "cannot", "NotFound", "fails", "not clean"];
    must_notice(Theme::TakeOvers, LyingStore::lies(StoreLie::LosesPuts), &expected);
}

/// A store that ignores the condition lets two writers in: P5 or a lost history.
#[test]
fn a_store_without_a_fence() {
    let expected = ["P5", "P2", "P3", "P7", "cannot", "fails without"];
    must_notice(Theme::TakeOvers, LyingStore::lies(StoreLie::IgnoresAbsence), &expected);
}

/// A store that loses objects breaks P7.
#[test]
fn a_store_that_loses_objects() {
    let expected = ["P2", "P3", "P1", "P5", "P7", "cannot", "NotFound", "fails", "not clean"];
    must_notice(Theme::Calm, LyingStore::lies(StoreLie::LosesObjects), &expected);
}

/// Zeroes that are forgotten break P4; after a flush also P1, in the store P2, and behind a crash P3, where later zeroes were kept.
#[test]
fn zeroes_that_are_forgotten() {
    must_notice(Theme::Calm, LyingDevice::lies(DeviceLie::DropsZeroes), &["P4", "P1", "P2", "P3"]);
}

/// A flush that is acknowledged early breaks P1.
#[test]
fn a_flush_that_comes_early() {
    must_notice(Theme::Crashes, LyingDevice::lies(DeviceLie::FlushesEarly), &["P1", "P2", "P3"]);
}

/// A drain that is reported early breaks P2.
#[test]
fn a_drain_that_comes_early() {
    must_notice(Theme::TakeOvers, LyingDevice::lies(DeviceLie::DrainsEarly), &["P2", "P5", "not clean"]);
}

/// A write one sector off is nobody's data.
#[test]
fn writes_that_go_astray() {
    must_notice(Theme::Calm, LyingDevice::lies(DeviceLie::Shifts), &["P4", "P6"]);
}

/// A write that is acknowledged and forgotten breaks P4; after a flush also P1, in the store P2, and behind a crash P3.
#[test]
fn writes_that_are_forgotten() {
    must_notice(Theme::Calm, LyingDevice::lies(DeviceLie::DropsWrites), &["P4", "P1", "P2", "P3"]);
}
