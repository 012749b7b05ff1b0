//! The local disk of a simulated host: it survives the host's crashes, and fails as told.
//!
//! A [`SimDisk`] belongs to a host; [`SimDisk::mount`] gives the view of one incarnation. Operations
//! take effect at a moment of their own between call and return. What a dead incarnation had in
//! flight may have taken place in part; after its death it changes nothing any more.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use cistern_engine::{
    Error, Result,
    disk::{Disk, DiskFile},
    journal::FILE_NAME as JOURNAL,
    units::{BLOCK_BYTES, SECTOR_BYTES},
};

use crate::runtime::{Incarnation, Sim};

mod media;

pub use media::{Death, Media};

/// A volume goes on where nothing can be staged: a write to this file fails where the next write to any other file will, and that fails too.
const STAGING: &str = "staging";
/// Bytes of a journal's file before its groups.
const SUPERBLOCKS_BYTES: usize = 16 * BLOCK_BYTES;

/// What is wrong with a disk. All off by default.
#[derive(Clone, Debug, Default)]
pub struct DiskFaults {
    /// The next sync fails and drops what it should have made durable.
    pub fail_next_sync: bool,
    /// The next write fails.
    pub fail_next_write: bool,
    /// There is no space for new files.
    pub full: bool,
    /// Chance that a write finds no space, as where a file system does not keep what was reserved; it takes place in part.
    pub no_space: f64,
    /// Chance that an operation takes seconds.
    pub slow: f64,
    /// Chance that a read takes seconds.
    pub slow_reads: f64,
    /// Chance that a read or a write fails.
    pub fail: f64,
    /// Chance that a read gives a bit that is not what was written.
    pub lie: f64,
}

struct State {
    name: String,
    files: BTreeMap<String, Arc<Mutex<Media>>>,
    locks: BTreeMap<String, Incarnation>,
    faults: DiskFaults,
    /// When the last sync failed, in ticks.
    failed_sync: Option<u64>,
    /// Something that was written may be missing, because it was not synced or the medium failed.
    lost: bool,
}

/// The disk of one host.
#[derive(Clone)]
pub struct SimDisk {
    sim: Sim,
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    pub fn new(sim: &Sim, name: impl Into<String>) -> SimDisk {
        let state = State {
            name: name.into(),
            files: BTreeMap::new(),
            locks: BTreeMap::new(),
            faults: DiskFaults::default(),
            failed_sync: None,
            lost: false,
        };
        SimDisk { sim: sim.clone(), state: Arc::new(Mutex::new(state)) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().expect("no panic under this lock"))
    }

    /// The disk as an incarnation of its host sees it.
    pub fn mount(&self, inc: Incarnation) -> Arc<dyn Disk> {
        Arc::new(Mounted { disk: self.clone(), inc })
    }

    /// Changes what is wrong with the disk.
    pub fn faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        self.with(|s| change(&mut s.faults));
    }

    /// When the last sync failed, in ticks of the world; `None` if none has since the last death.
    pub fn failed_sync(&self) -> Option<u64> {
        self.with(|s| s.failed_sync)
    }

    /// The host dies; called while its operations in flight are still there.
    pub fn die(&self, inc: Incarnation, death: Death) {
        let files: Vec<_> = self.with(|s| {
            s.locks.retain(|_, holder| *holder != inc);
            s.failed_sync = None;
            s.faults.fail_next_sync = false;
            s.faults.fail_next_write = false;
            s.lost |= death == Death::PowerCut;
            s.files.values().cloned().collect()
        });
        for file in files {
            self.sim.draw(|rng| file.lock().expect("no panic under this lock").die(death, rng));
        }
    }

    /// From now on nothing was lost.
    pub fn forget_losses(&self) {
        self.with(|s| s.lost = false);
    }

    /// Whether everything that was written since is there: processes have ended, and neither the host nor the disk failed.
    pub fn has_all(&self) -> bool {
        self.with(|s| !s.lost)
    }

    /// The disk is lost with everything on it.
    pub fn wipe(&self) {
        self.with(|s| s.files.clear());
    }

    /// Holds from now on what another disk holds, as a power cut of that one would leave it.
    pub fn copy_of(&self, other: &SimDisk) {
        let files: Vec<_> = other.with(|s| s.files.iter().map(|(n, f)| (n.clone(), f.clone())).collect());
        let copy = |media: &Mutex<Media>| {
            let mut media = media.lock().expect("no panic under this lock").clone();
            self.sim.draw(|rng| media.die(Death::PowerCut, rng));
            Arc::new(Mutex::new(media))
        };
        let files = files.into_iter().map(|(name, media)| (name, copy(&media))).collect();
        self.with(|s| (s.files, s.lost) = (files, true));
    }

    /// Whether a journal is there, whatever it is called by now.
    pub fn has_journal(&self) -> bool {
        self.with(|s| s.files.keys().any(|name| name.starts_with(JOURNAL)))
    }

    /// Whether there is a file of that name.
    pub fn has(&self, name: &str) -> bool {
        self.with(|s| s.files.contains_key(name))
    }

    /// Some file; `None` when there is none.
    fn some_file(&self) -> Option<(String, Arc<Mutex<Media>>)> {
        let files: Vec<_> = self.with(|s| s.files.iter().map(|(n, f)| (n.clone(), f.clone())).collect());
        (!files.is_empty()).then(|| files[self.sim.range(0, files.len() as u64) as usize].clone())
    }

    /// Removes some file, or puts zeroes of some length in its place.
    pub fn spoil_some_file(&self) {
        let Some((name, file)) = self.some_file() else { return };
        let bytes = file.lock().expect("no panic under this lock").bytes();
        let left = match self.sim.range(0, 3) {
            0 => None,
            1 => Some(bytes),
            _ => Some(self.sim.range(0, bytes as u64 / 4096 + 1) as usize * 4096),
        };
        self.sim.note(format_args!("disk {}: {name} of {bytes} bytes becomes {left:?} zeroes", self.name()));
        self.with(|s| match left {
            None => drop(s.files.remove(&name)),
            Some(left) => drop(s.files.insert(name, Arc::new(Mutex::new(Media::zeroed(left))))),
        });
    }

    /// Whether a fault that was to come has been met.
    pub fn fault_is_met(&self) -> bool {
        self.with(|s| !s.faults.fail_next_sync && !s.faults.fail_next_write)
    }

    /// One bit of the journal is lost, among those that are not zero; every third time one of a superblock.
    pub fn rot(&self) {
        let Some(file) = self.with(|s| s.files.get(JOURNAL).cloned()) else { return };
        let mut media = file.lock().expect("no panic under this lock");
        let mut written = media.written();
        if self.sim.chance(1.0 / 3.0) {
            written.retain(|&at| at < SUPERBLOCKS_BYTES);
        }
        if written.is_empty() {
            return;
        }
        let sector = written[self.sim.range(0, written.len() as u64) as usize];
        let (at, bit) = (sector + self.sim.range(0, SECTOR_BYTES as u64) as usize, self.sim.range(0, 8));
        media.flip(at, bit as u8);
        self.with(|s| s.lost = true);
        self.sim.note(format_args!("disk {}: bit {bit} of byte {at} of the journal rots", self.name()));
    }

    fn name(&self) -> String {
        self.with(|s| s.name.clone())
    }

    /// Flips one bit somewhere in some file; false when there is nothing to flip.
    pub fn flip_somewhere(&self) -> bool {
        let Some((name, file)) = self.some_file() else { return false };
        let mut media = file.lock().expect("no panic under this lock");
        if media.bytes() == 0 {
            return false;
        }
        let (at, bit) = (self.sim.range(0, media.bytes() as u64), self.sim.range(0, 8));
        media.flip(at as usize, bit as u8);
        self.with(|s| s.lost = true);
        self.sim.note(format_args!("disk {}: bit {bit} of byte {at} of {name} flips", self.name()));
        true
    }
}

struct Mounted {
    disk: SimDisk,
    inc: Incarnation,
}

impl Mounted {
    /// A moment passes; then the caller may take effect, if it still lives.
    async fn moment(&self, what: &str, name: &str) {
        self.disk.sim.dawdle().await;
        debug_assert!(self.disk.sim.is_alive(self.inc), "tasks of the dead are not polled");
        self.disk.sim.note(format_args!("disk {}: {what} {name}", self.describe()));
    }

    fn handle(&self, name: &str, media: Arc<Mutex<Media>>) -> Arc<dyn DiskFile> {
        let len = media.lock().expect("no panic under this lock").bytes() as u64;
        Arc::new(SimFile {
            disk: self.disk.clone(),
            name: name.to_owned(),
            media,
            len,
            latched: AtomicBool::new(false),
        })
    }
}

fn io_error(name: &str, cause: &str) -> Error {
    Error::Io { what: name.to_owned(), cause: cause.to_owned() }
}

#[async_trait]
impl Disk for Mounted {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.moment("open", name).await;
        let media = self.disk.with(|s| s.files.get(name).cloned());
        media.map(|m| self.handle(name, m)).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        self.moment("create", name).await;
        let media = self.disk.with(|s| {
            if s.faults.full {
                return Err(Error::Full(format!("{name}: no space left on device")));
            }
            if s.files.contains_key(name) {
                return Err(Error::Exists(name.to_owned()));
            }
            let media = Arc::new(Mutex::new(Media::zeroed(bytes as usize)));
            s.files.insert(name.to_owned(), media.clone());
            Ok(media)
        })?;
        self.disk.sim.dawdle().await; // may die between the effect and the reply
        Ok(self.handle(name, media))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.moment("rename", from).await;
        self.disk.with(|s| {
            if s.files.contains_key(to) {
                return Err(Error::Exists(to.to_owned()));
            }
            let media = s.files.remove(from).ok_or_else(|| Error::NotFound(from.to_owned()))?;
            s.files.insert(to.to_owned(), media);
            Ok::<_, Error>(())
        })?;
        self.disk.sim.dawdle().await;
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<()> {
        self.moment("remove", name).await;
        self.disk.with(|s| s.files.remove(name));
        self.disk.sim.dawdle().await;
        Ok(())
    }

    async fn names(&self, beginning: &str) -> Result<Vec<String>> {
        self.moment("list", beginning).await;
        Ok(self.disk.with(|s| s.files.keys().filter(|name| name.starts_with(beginning)).cloned().collect()))
    }

    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>> {
        self.disk.with(|s| match s.locks.get(name) {
            Some(_) => Err(Error::Locked(name.to_owned())),
            None => {
                s.locks.insert(name.to_owned(), self.inc);
                Ok::<_, Error>(())
            }
        })?;
        Ok(Box::new(LockGuard { disk: self.disk.clone(), name: name.to_owned(), inc: self.inc }))
    }

    fn describe(&self) -> String {
        self.disk.with(|s| s.name.clone())
    }
}

struct LockGuard {
    disk: SimDisk,
    name: String,
    inc: Incarnation,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.disk.with(|s| {
            if s.locks.get(&self.name) == Some(&self.inc) {
                s.locks.remove(&self.name);
            }
        });
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
    media: Arc<Mutex<Media>>,
    len: u64,
    latched: AtomicBool,
}

impl SimFile {
    fn media<T>(&self, f: impl FnOnce(&mut Media) -> T) -> T {
        f(&mut self.media.lock().expect("no panic under this lock"))
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        assert!(offset.is_multiple_of(BLOCK_BYTES as u64), "{}: unaligned offset {offset}", self.name);
        assert!(len.is_multiple_of(BLOCK_BYTES), "{}: unaligned length {len}", self.name);
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io_error(&self.name, "beyond the end of the file"));
        }
        Ok(())
    }

    async fn wait(&self) {
        self.wait_slowly(self.disk.with(|s| s.faults.slow)).await;
    }

    /// A moment passes, or with this chance seconds.
    async fn wait_slowly(&self, slow: f64) {
        if self.disk.sim.chance(slow) {
            let time = std::time::Duration::from_secs(self.disk.sim.range(1, 8));
            self.disk.sim.sleep(time).await;
        }
        self.disk.sim.dawdle().await;
    }

    /// Whether an operation fails by chance.
    fn fails(&self, what: &str) -> Result<()> {
        let fail = self.disk.with(|s| s.faults.fail);
        if self.disk.sim.chance(fail) {
            self.disk.with(|s| s.lost = true);
            self.disk.sim.note(format_args!("disk file {}: {what} fails", self.name));
            return Err(io_error(&self.name, "input/output error"));
        }
        Ok(())
    }

    fn take_fault(&self, pick: impl FnOnce(&mut DiskFaults) -> &mut bool) -> bool {
        self.disk.with(|s| {
            let fails = std::mem::take(pick(&mut s.faults));
            s.lost |= fails;
            fails
        })
    }
}

/// Ends a write whose caller goes away before it completes.
struct InFlight<'a> {
    file: &'a SimFile,
    number: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // A completed write, or one of a dead host, is not in flight any more: no effect.
        self.file.disk.sim.draw(|rng| self.file.media(|m| m.abandon(self.number, rng)));
    }
}

#[async_trait]
impl DiskFile for SimFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(offset, data.len())?;
        if self.latched.load(Ordering::Relaxed) {
            return Err(io_error(&self.name, "an earlier sync failed"));
        }
        let number = self.media(|m| m.begin(offset as usize, data));
        let in_flight = InFlight { file: self, number };
        self.wait().await;
        let fails = match self.name == STAGING {
            true => self.disk.with(|s| s.faults.fail_next_write),
            false => self.take_fault(|f| &mut f.fail_next_write),
        };
        if fails {
            self.disk.sim.note(format_args!("disk file {}: write at {offset} fails", self.name));
            drop(in_flight);
            return Err(io_error(&self.name, "input/output error"));
        }
        self.fails("write")?; // in flight: it took place, or not, or in part
        let no_space = self.disk.with(|s| s.faults.no_space);
        if self.disk.sim.chance(no_space) {
            self.disk.sim.note(format_args!("disk file {}: no space for a write at {offset}", self.name));
            drop(in_flight);
            return Err(Error::Full(format!("{}: no space left on device", self.name)));
        }
        self.media(|m| m.complete(number));
        self.disk.sim.note(format_args!("disk file {}: wrote {} at {offset}", self.name, data.len()));
        self.disk.sim.dawdle().await;
        Ok(())
    }

    /// One transfer, so that how the caller's memory is cut changes nothing.
    async fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.write_at(offset, &parts.concat()).await
    }

    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len())?;
        self.wait_slowly(self.disk.with(|s| s.faults.slow.max(s.faults.slow_reads))).await;
        self.fails("read")?;
        self.media(|m| m.read(offset as usize, out));
        let lie = self.disk.with(|s| s.faults.lie);
        if self.disk.sim.chance(lie) && !out.is_empty() {
            let (at, bit) = (self.disk.sim.range(0, out.len() as u64), self.disk.sim.range(0, 8));
            out[at as usize] ^= 1 << bit;
            self.disk.sim.note(format_args!("disk file {}: a read at {offset} lies", self.name));
        }
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        if self.latched.load(Ordering::Relaxed) {
            return Err(io_error(&self.name, "an earlier sync failed"));
        }
        let point = self.media(|m| m.sync_point());
        self.wait().await;
        if self.take_fault(|f| &mut f.fail_next_sync) {
            self.latched.store(true, Ordering::Relaxed);
            self.disk.sim.draw(|rng| self.media(|m| m.fail_sync(point, rng)));
            let tick = self.disk.sim.tick();
            self.disk.with(|s| s.failed_sync = Some(tick));
            self.disk.sim.note(format_args!("disk file {}: sync fails", self.name));
            return Err(io_error(&self.name, "input/output error"));
        }
        self.media(|m| m.settle(point));
        self.disk.sim.note(format_args!("disk file {}: synced", self.name));
        self.disk.sim.dawdle().await;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn is_direct(&self) -> bool {
        true
    }
}
