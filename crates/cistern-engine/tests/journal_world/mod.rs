//! A small deterministic world for the journal's tests: an executor in which a seed picks the next
//! task, a virtual clock, and a disk that at a power cut keeps what was synced and any subset of
//! the sectors that were not.
//!
//! One seed gives one history. A crash is: stop polling, drop all tasks, cut the power.
#![allow(dead_code)] // every test file uses its own part

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use async_trait::async_trait;
use cistern_engine::{
    Error, Result,
    disk::{Disk, DiskFile},
    env::{BoxFuture, Env, Environment, ProcessFate, ProcessIdentity},
};

const SECTOR: usize = 512;
/// Where the ring begins in the file of a journal.
const RING_AT: u64 = 16 * 4096;

/// A small random generator (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct TaskWaker {
    id: u64,
    ready: Arc<Mutex<BTreeSet<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().insert(self.id);
    }
}

/// The executor and the clock.
pub struct World {
    dice: Mutex<Dice>,
    tasks: Mutex<BTreeMap<u64, BoxFuture<()>>>,
    ready: Arc<Mutex<BTreeSet<u64>>>,
    timers: Mutex<BTreeMap<(Duration, u64), Waker>>,
    now: Mutex<Duration>,
    ids: Mutex<u64>,
}

impl World {
    pub fn new(seed: u64) -> Arc<World> {
        Arc::new(World {
            dice: Mutex::new(Dice::new(seed)),
            tasks: Mutex::default(),
            ready: Arc::default(),
            timers: Mutex::default(),
            now: Mutex::default(),
            ids: Mutex::default(),
        })
    }

    pub fn env(self: &Arc<World>) -> Env {
        Env::new(Arc::new(WorldEnv(self.clone(), ProcessFate::Ended)))
    }

    /// The same, of a process that cannot know what became of another.
    pub fn env_of_a_stranger(self: &Arc<World>) -> Env {
        Env::new(Arc::new(WorldEnv(self.clone(), ProcessFate::Unknown)))
    }

    pub fn below(&self, n: u64) -> u64 {
        self.dice.lock().unwrap().below(n)
    }

    fn id(&self) -> u64 {
        let mut ids = self.ids.lock().unwrap();
        *ids += 1;
        *ids
    }

    fn start(&self, task: BoxFuture<()>) {
        let id = self.id();
        self.tasks.lock().unwrap().insert(id, task);
        self.ready.lock().unwrap().insert(id);
    }

    /// Runs until `main` ends, or crashes after `steps`: `None`, and every task is gone.
    pub fn run<T: Send + 'static>(
        self: &Arc<World>,
        steps: Option<u64>,
        main: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let out = Arc::new(Mutex::new(None));
        let slot = out.clone();
        self.start(Box::pin(async move {
            let value = main.await;
            *slot.lock().unwrap() = Some(value);
        }));
        let mut left = steps.unwrap_or(u64::MAX);
        while out.lock().unwrap().is_none() && left > 0 {
            left -= 1;
            self.step();
        }
        // Dropped outside the lock: what is dropped may wake others.
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        drop(tasks);
        self.ready.lock().unwrap().clear();
        self.timers.lock().unwrap().clear();
        out.lock().unwrap().take()
    }

    fn step(&self) {
        let chosen = {
            let mut ready = self.ready.lock().unwrap();
            let n = if ready.is_empty() { 0 } else { self.below(ready.len() as u64) as usize };
            let id = ready.iter().nth(n).copied();
            id.inspect(|id| {
                ready.remove(id);
            })
        };
        let Some(id) = chosen else { return self.advance() };
        let Some(mut task) = self.tasks.lock().unwrap().remove(&id) else { return };
        let waker = Waker::from(Arc::new(TaskWaker { id, ready: self.ready.clone() }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks.lock().unwrap().insert(id, task);
        }
    }

    fn advance(&self) {
        let first = self.timers.lock().unwrap().pop_first();
        let ((at, _), waker) = first.expect("everybody waits and nothing will ever happen");
        let mut now = self.now.lock().unwrap();
        *now = at.max(*now);
        drop(now);
        waker.wake();
    }

    /// Whether nothing would happen any more: no task is ready and no alarm is set.
    pub fn is_still(&self) -> bool {
        self.ready.lock().unwrap().is_empty() && self.timers.lock().unwrap().is_empty()
    }

    /// Lets others go first, some random number of times.
    pub async fn pause(&self) {
        for _ in 0..self.below(3) {
            let mut polled = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut polled, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }
}

struct WorldEnv(Arc<World>, ProcessFate);

/// An alarm that takes its timer with it when it is dropped.
struct Alarm {
    world: Arc<World>,
    key: (Duration, u64),
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.world.timers.lock().unwrap().remove(&self.key);
    }
}

impl Environment for WorldEnv {
    fn now(&self) -> Duration {
        *self.0.now.lock().unwrap()
    }
    fn wall_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }
    fn random(&self, out: &mut [u8]) {
        out.fill_with(|| self.0.below(256) as u8);
    }
    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        let alarm = Alarm { world: self.0.clone(), key: (self.now() + time, self.0.id()) };
        Box::pin(poll_fn(move |cx| {
            if *alarm.world.now.lock().unwrap() >= alarm.key.0 {
                return Poll::Ready(());
            }
            alarm.world.timers.lock().unwrap().insert(alarm.key, cx.waker().clone());
            Poll::Pending
        }))
    }
    fn spawn(&self, _name: &'static str, task: BoxFuture<()>) {
        self.0.start(task);
    }
    fn dedicated(&self, _name: &'static str, task: BoxFuture<()>) {
        self.0.start(task);
    }
    fn blocking(&self, task: BoxFuture<()>) {
        self.0.start(task);
    }
    fn compute(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        work();
    }
    fn fate_of(&self, _process: &ProcessIdentity) -> ProcessFate {
        self.1
    }
}

#[derive(Clone, Default)]
struct FileState {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// In the order in which they were issued.
    unsynced: Vec<(usize, Vec<u8>)>,
}

type Inode = usize;

#[derive(Default)]
struct DiskState {
    names: BTreeMap<String, Inode>,
    /// Those that have a name, and those that are open or were.
    files: BTreeMap<Inode, FileState>,
    syncs: u64,
    writes: u64,
    read_bytes: u64,
    /// The sync with this number fails.
    failing_sync: Option<u64>,
    /// The write with this number fails.
    failing_write: Option<u64>,
    /// Whether writes find no space; what they wrote until then stays.
    is_full: bool,
}

/// A directory whose power can be cut.
#[derive(Clone)]
pub struct FaultyDisk {
    world: Arc<World>,
    state: Arc<Mutex<DiskState>>,
    locks: Arc<Mutex<BTreeSet<String>>>,
    /// The longest times for which an operation is on its way, and its answer, where others mount the directory too.
    shared: Option<(Duration, Duration)>,
    /// How long every write to the ring of a journal is on its way through this mount.
    ring_takes: Arc<Mutex<Duration>>,
}

impl FaultyDisk {
    pub fn new(world: &Arc<World>) -> FaultyDisk {
        FaultyDisk {
            world: world.clone(),
            state: Arc::default(),
            locks: Arc::default(),
            shared: None,
            ring_takes: Arc::default(),
        }
    }

    /// The same platters in another world.
    pub fn moved_to(&self, world: &Arc<World>) -> FaultyDisk {
        FaultyDisk { world: world.clone(), ..self.clone() }
    }

    /// The same directory through a mount of its own, which knows no lock of the others; what is done there takes some time now and then.
    pub fn mounted_again(&self, on_its_way_max: Duration, answer_max: Duration) -> FaultyDisk {
        let (locks, ring_takes) = Default::default();
        FaultyDisk { locks, ring_takes, shared: Some((on_its_way_max, answer_max)), ..self.clone() }
    }

    /// From now on every write to the ring of a journal is so long on its way.
    pub fn delay_ring(&self, time: Duration) {
        *self.ring_takes.lock().unwrap() = time;
    }

    /// Now and then, of a directory that is mounted more than once, some time passes.
    async fn dawdle(&self, choose: impl FnOnce((Duration, Duration)) -> Duration) {
        let Some(limit) = self.shared.map(choose) else { return };
        if !limit.is_zero() && self.world.below(8) == 0 {
            let time = Duration::from_millis(self.world.below(limit.as_millis() as u64));
            self.world.env().sleep(time).await;
        }
    }

    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Keeps what was synced and, of the rest, sector by sector whatever the dice say.
    pub fn cut_power(&self, dice: &mut Dice) {
        assert!(self.locks.lock().unwrap().is_empty(), "the tasks are gone and with them their locks");
        let mut state = self.state.lock().unwrap();
        for file in state.files.values_mut() {
            for (offset, data) in std::mem::take(&mut file.unsynced) {
                // Often all or nothing of a write survives, sometimes any part of it.
                let mode = dice.below(3);
                for (n, sector) in data.chunks(SECTOR).enumerate() {
                    if mode == 0 || (mode == 2 && dice.one_in(2)) {
                        let at = offset + n * SECTOR;
                        file.durable[at..at + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            file.current.copy_from_slice(&file.durable);
        }
    }

    /// Keeps what was synced and the unsynced writes whose number `keeps` accepts.
    pub fn cut_power_keeping(&self, keeps: impl Fn(usize) -> bool) {
        let mut state = self.state.lock().unwrap();
        for file in state.files.values_mut() {
            for (n, (at, data)) in std::mem::take(&mut file.unsynced).into_iter().enumerate() {
                if keeps(n) {
                    file.durable[at..at + data.len()].copy_from_slice(&data);
                }
            }
            file.current.copy_from_slice(&file.durable);
        }
    }

    /// A killed process: everything written stays, synced or not.
    pub fn kill(&self) {
        assert!(self.locks.lock().unwrap().is_empty());
    }

    /// Changes one bit of a file for good.
    pub fn flip(&self, name: &str, byte: usize, bit: u32) {
        let mut state = self.state.lock().unwrap();
        let inode = state.names[name];
        let file = state.files.get_mut(&inode).expect("the file exists");
        file.durable[byte] ^= 1 << bit;
        file.current[byte] ^= 1 << bit;
    }

    pub fn contents(&self, name: &str) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        state.files[&state.names[name]].current.clone()
    }

    pub fn fail_sync(&self, after: u64) {
        let mut state = self.state.lock().unwrap();
        state.failing_sync = Some(state.syncs + after);
    }

    pub fn fail_write(&self, after: u64) {
        let mut state = self.state.lock().unwrap();
        state.failing_write = Some(state.writes + after);
    }

    /// From now on writes find no space, or find it again.
    pub fn fill(&self, is_full: bool) {
        self.state.lock().unwrap().is_full = is_full;
    }

    pub fn syncs(&self) -> u64 {
        self.state.lock().unwrap().syncs
    }

    pub fn writes(&self) -> u64 {
        self.state.lock().unwrap().writes
    }

    pub fn read_bytes(&self) -> u64 {
        self.state.lock().unwrap().read_bytes
    }

    fn file(&self, name: &str, inode: Inode, len: usize) -> Arc<dyn DiskFile> {
        Arc::new(FaultyFile { disk: self.clone(), name: name.into(), inode, len, failed: Mutex::new(false) })
    }
}

struct LockGuard(FaultyDisk, String);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.locks.lock().unwrap().remove(&self.1);
    }
}

#[async_trait]
impl Disk for FaultyDisk {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.dawdle(|(on_its_way, _)| on_its_way).await;
        let state = self.state.lock().unwrap();
        let inode = *state.names.get(name).ok_or_else(|| Error::NotFound(name.into()))?;
        Ok(self.file(name, inode, state.files[&inode].current.len()))
    }
    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        let zeroes = vec![0; bytes as usize];
        let new = FileState { durable: zeroes.clone(), current: zeroes, unsynced: Vec::new() };
        self.dawdle(|(on_its_way, _)| on_its_way).await;
        let inode = {
            let mut state = self.state.lock().unwrap();
            if state.names.contains_key(name) {
                return Err(Error::Exists(name.into()));
            }
            let inode = state.files.len();
            state.files.insert(inode, new);
            state.names.insert(name.into(), inode);
            inode
        };
        self.dawdle(|(_, answer)| answer).await;
        Ok(self.file(name, inode, bytes as usize))
    }
    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.dawdle(|(on_its_way, _)| on_its_way).await;
        {
            let mut state = self.state.lock().unwrap();
            if state.names.contains_key(to) {
                return Err(Error::Exists(to.into()));
            }
            let inode = state.names.remove(from).ok_or_else(|| Error::NotFound(from.into()))?;
            state.names.insert(to.into(), inode);
        }
        self.dawdle(|(_, answer)| answer).await;
        Ok(())
    }
    async fn remove(&self, name: &str) -> Result<()> {
        self.dawdle(|(on_its_way, _)| on_its_way).await;
        self.state.lock().unwrap().names.remove(name);
        self.dawdle(|(_, answer)| answer).await;
        Ok(())
    }
    async fn names(&self, beginning: &str) -> Result<Vec<String>> {
        self.dawdle(|(on_its_way, _)| on_its_way).await;
        let state = self.state.lock().unwrap();
        Ok(state.names.keys().filter(|name| name.starts_with(beginning)).cloned().collect())
    }
    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>> {
        if !self.locks.lock().unwrap().insert(name.into()) {
            return Err(Error::Locked(name.into()));
        }
        Ok(Box::new(LockGuard(self.clone(), name.into())))
    }
    fn lock_is_for_all(&self) -> bool {
        self.shared.is_none()
    }
    fn describe(&self) -> String {
        "faulty".into()
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    name: String,
    inode: Inode,
    len: usize,
    failed: Mutex<bool>,
}

impl FaultyFile {
    fn with<T>(&self, change: impl FnOnce(&mut FileState) -> T) -> T {
        let mut state = self.disk.state.lock().unwrap();
        change(state.files.get_mut(&self.inode).expect("an open file exists"))
    }

    fn broken(&self, cause: &str) -> Error {
        *self.failed.lock().unwrap() = true;
        Error::Io { what: self.name.clone(), cause: cause.into() }
    }
}

impl FaultyFile {
    /// A write, at once as far as other mounts can tell.
    async fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        assert!(!*self.failed.lock().unwrap(), "nothing is written after a failure");
        assert!(offset.is_multiple_of(4096) && data.len().is_multiple_of(4096));
        let (fails, is_full) = {
            let mut state = self.disk.state.lock().unwrap();
            state.writes += 1;
            (state.failing_write == Some(state.writes), state.is_full)
        };
        if fails {
            return Err(self.broken("medium error"));
        }
        let at = offset as usize;
        let sectors = (data.len() / SECTOR) as u64;
        let fits = if is_full { self.disk.world.below(sectors + 1) as usize * SECTOR } else { data.len() };
        // What goes past the page cache is on the medium some time before it is answered, and a kill may come first.
        if self.name != "staging" {
            self.disk.world.pause().await;
        }
        self.with(|file| {
            file.unsynced.push((at, data[..fits].to_vec()));
            file.current[at..at + fits].copy_from_slice(&data[..fits]);
        });
        self.disk.world.pause().await;
        if is_full { Err(Error::Full(self.name.clone())) } else { Ok(()) }
    }
}

#[async_trait]
impl DiskFile for FaultyFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_vectored_at(offset, &[data]).await
    }

    async fn write_vectored_at(&self, mut offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.disk.dawdle(|(on_its_way, _)| on_its_way).await;
        let ring_takes = *self.disk.ring_takes.lock().unwrap();
        if offset >= RING_AT && !ring_takes.is_zero() {
            self.disk.world.env().sleep(ring_takes).await;
        }
        for part in parts {
            self.write(offset, part).await?;
            offset += part.len() as u64;
        }
        self.disk.dawdle(|(_, answer)| answer).await;
        Ok(())
    }

    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        assert!(offset.is_multiple_of(4096) && out.len().is_multiple_of(4096));
        self.disk.world.pause().await;
        self.disk.dawdle(|(on_its_way, _)| on_its_way).await;
        let at = offset as usize;
        self.disk.state.lock().unwrap().read_bytes += out.len() as u64;
        self.with(|file| out.copy_from_slice(&file.current[at..at + out.len()]));
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        assert!(!*self.failed.lock().unwrap(), "nothing is synced after a failure");
        let covered = self.with(|file| file.unsynced.len());
        self.disk.world.pause().await;
        let fails = {
            let mut state = self.disk.state.lock().unwrap();
            state.syncs += 1;
            state.failing_sync == Some(state.syncs)
        };
        if fails {
            return Err(self.broken("medium error"));
        }
        self.with(|file| {
            let rest = file.unsynced.split_off(covered.min(file.unsynced.len()));
            for (at, data) in std::mem::replace(&mut file.unsynced, rest) {
                file.durable[at..at + data.len()].copy_from_slice(&data);
            }
        });
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len as u64
    }

    fn is_direct(&self) -> bool {
        true
    }
}

/// The payload of `blocks` blocks that nothing else in a history has.
pub fn payload(id: u64, blocks: u64) -> Vec<u8> {
    payload_part(id, 0, blocks)
}

/// A part of that payload.
pub fn payload_part(id: u64, skip: u64, blocks: u64) -> Vec<u8> {
    let mut out = vec![0; blocks as usize * 4096];
    let mut value = (id << 32 | skip).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for block in out.chunks_exact_mut(4096) {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&value.to_le_bytes());
            value = value.rotate_left(1);
        }
        value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    out
}
