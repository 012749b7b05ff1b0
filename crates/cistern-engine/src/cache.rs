//! The chunk cache: a bounded local copy of byte ranges of immutable objects.
//!
//! Owns the slab file `chunks` and its index. What it returns is what was filled in, byte for
//! byte, or nothing: every 4 KiB piece is verified by its CRC32C at every read. It holds nothing
//! that is not in the store too, so every trouble with the disk degrades to a miss.
//!
//! Objects never change, so nothing in it can be stale. It knows nothing of what the bytes mean:
//! they lie here compressed and sealed as in the store. Reads never wait for writes: fills go
//! through a bounded queue to one writer and are dropped when it is full.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    Error, Result,
    disk::{AlignedBuf, Disk, DiskFile},
    env::{Env, Task},
};

mod flights;
mod index;
mod link;
mod pool;
mod queue;
mod reader;
mod window;
mod writer;

pub use flights::AheadCounts;
use index::{ChunkId, Found, Index};
pub use link::LinkEstimate;
pub use pool::PrefetchTask;
use queue::Queue;
pub use reader::{ObjectReader, ObjectRef};

/// Bytes of a chunk, the unit of eviction.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a piece, the unit of validity, verification and disk access.
pub const PIECE_BYTES: usize = 4096;
/// Pieces of a chunk.
const PIECES: usize = CHUNK_BYTES / PIECE_BYTES;
/// The smallest cache: below, the eviction policy has nothing to choose from.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// The largest read that is looked up; no caller asks for more than a window of objects' bytes.
const READ_BYTES_MAX: u64 = 32 << 20;
/// Parts of a read in the caller's thread: more are worth a thread, which also puts them together.
const PARTS_HERE_MAX: usize = 4;
/// Faults of the disk after which the cache is switched off.
const FAULTS_MAX: u64 = 16;
/// The slab file and the lock file.
const SLAB_NAME: &str = "chunks";
const LOCK_NAME: &str = "chunks.lock";

const _: () = assert!(CHUNK_BYTES.is_multiple_of(PIECE_BYTES) && PIECES == u16::BITS as usize);

/// Names an object: different objects have different keys, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    id: [u8; 16],
    number: u64,
}

impl CacheKey {
    /// `id` is unique by randomness (an epoch's salt, a run's id), `number` counts within it.
    pub const fn new(id: [u8; 16], number: u64) -> CacheKey {
        CacheKey { id, number }
    }
}

/// Why bytes are offered to the cache: decides where they enter its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Somebody reads them now.
    Demand,
    /// Expected to be read soon: on probation until then.
    Prefetch,
    /// Just written back: on probation until somebody reads them.
    Written,
}

/// A chunk that is worth having: its identity, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotChunk {
    pub object: CacheKey,
    pub chunk: u32,
    /// One bit for each 4 KiB piece that is here.
    pub valid: u16,
}

/// What a cache has done since it was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    pub bytes: u64,
    pub chunks_used: u64,
    pub hits: u64,
    /// All misses, whatever their cause.
    pub misses: u64,
    /// Misses of chunks that were never here, or so long ago that it is forgotten.
    pub misses_cold: u64,
    /// Misses of chunks that were evicted not long ago: a larger cache would have had them.
    pub misses_evicted: u64,
    /// Bytes written to the slab, by the reason of their coming.
    pub fill_bytes: u64,
    pub fill_demand_bytes: u64,
    pub fill_prefetch_bytes: u64,
    pub fill_written_bytes: u64,
    /// Prefetched bytes that somebody read, and those that were evicted before anybody did.
    pub prefetch_used_bytes: u64,
    pub prefetch_wasted_bytes: u64,
    /// Fills that were dropped because the writer was busy.
    pub fills_dropped: u64,
    /// Errors of the disk and pieces that failed their verification.
    pub faults: u64,
    /// The disk failed too often; everything is a miss now.
    pub off: bool,
    /// Why it was switched off, where it was.
    pub off_reason: Option<String>,
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    misses_evicted: AtomicU64,
    fill_demand_bytes: AtomicU64,
    fill_prefetch_bytes: AtomicU64,
    fill_written_bytes: AtomicU64,
    prefetch_used_bytes: AtomicU64,
    prefetch_wasted_bytes: AtomicU64,
    fills_dropped: AtomicU64,
    faults: AtomicU64,
}

/// What readers and the writer share.
struct Shared {
    env: Env,
    file: Arc<dyn DiskFile>,
    /// Where the slab is, for messages.
    place: String,
    state: Mutex<State>,
    counts: Counts,
    off: AtomicBool,
    /// Held until the writer has ended too.
    _lock: Box<dyn Send + Sync>,
}

struct State {
    index: Index,
    queue: Queue,
}

/// A cache of object bytes on the local disk, shared by all volumes of a daemon. Dropping it ends
/// its writer; `close` waits for that.
pub struct ChunkCache {
    shared: Arc<Shared>,
    /// Wakes the writer; without it the writer ends.
    wake: Mutex<Option<mpsc::Sender<()>>>,
    writer: Mutex<Option<Task<()>>>,
}

/// A part of a read that lies in one chunk.
struct Part {
    id: ChunkId,
    found: Found,
    /// Bytes of the object, multiples of 4096.
    range: Range<u64>,
}

/// Why a read of the slab gave nothing.
enum Fault {
    Disk(Error),
    /// The part that failed its verification.
    Wrong(usize),
}

impl ChunkCache {
    /// Opens an empty cache of `bytes` (rounded down to whole chunks, at least 1 MiB) in a
    /// directory. `Locked` if another daemon uses it, `Full` if the disk has no room.
    pub async fn open(env: Env, disk: Arc<dyn Disk>, bytes: u64) -> Result<Arc<ChunkCache>> {
        if bytes < CACHE_BYTES_MIN {
            return Err(Error::Invalid(format!("a chunk cache needs at least {CACHE_BYTES_MIN} bytes")));
        }
        let chunks = u32::try_from(bytes / CHUNK_BYTES as u64)
            .map_err(|_| Error::Invalid(format!("a chunk cache of {bytes} bytes is too large")))?;
        let lock = disk.lock(LOCK_NAME)?;
        let file = open_slab(&env, &disk, u64::from(chunks) * CHUNK_BYTES as u64).await?;
        // The policy keeps all chunks but one: the free one takes the newcomer before its victim
        // is known.
        let state = State { index: Index::new(chunks), queue: Queue::default() };
        let shared = Arc::new(Shared {
            env: env.clone(),
            file,
            place: format!("{}/{SLAB_NAME}", disk.describe()),
            state: Mutex::new(state),
            counts: Counts::default(),
            off: AtomicBool::new(false),
            _lock: lock,
        });
        let (wake, woken) = mpsc::channel(1);
        let task = env.dedicated("cache writer", writer::run(shared.clone(), woken));
        let (wake, writer) = (Mutex::new(Some(wake)), Mutex::new(Some(task)));
        Ok(Arc::new(ChunkCache { shared, wake, writer }))
    }

    /// The bytes of a range of an object, if all of them are here and sound.
    pub async fn get(&self, object: CacheKey, range: Range<u64>) -> Option<Bytes> {
        let found = self.shared.get(object, range).await;
        let count = if found.is_some() { &self.shared.counts.hits } else { &self.shared.counts.misses };
        count.fetch_add(1, Relaxed);
        found
    }

    /// Offers bytes of an object. `offset` is a multiple of 4096, and so is the end, unless it is
    /// the end of the object. Never waits: dropped when the writer is busy.
    pub fn fill(&self, object: CacheKey, offset: u64, bytes: Bytes, admission: Admission) {
        debug_assert!(offset.is_multiple_of(PIECE_BYTES as u64));
        let end = offset.saturating_add(bytes.len() as u64);
        let fits = end / CHUNK_BYTES as u64 <= u64::from(u32::MAX);
        if bytes.is_empty() || !fits || self.shared.off.load(Relaxed) {
            return;
        }
        let wake = self.wake.lock().expect("nothing panics while it holds the sender");
        let Some(wake) = wake.as_ref() else { return };
        match self.shared.state().queue.push(object, offset, bytes, admission) {
            true => _ = wake.try_send(()), // full: it is awake already
            false => _ = self.shared.counts.fills_dropped.fetch_add(1, Relaxed),
        }
    }

    /// Whether all of a range is here or on its way here, as far as memory knows. Is no use of it.
    pub fn has(&self, object: CacheKey, range: Range<u64>) -> bool {
        let state = self.shared.state();
        let fits = range.end / CHUNK_BYTES as u64 <= u64::from(u32::MAX);
        state.queue.find(object, &range).is_some()
            || (fits && split(object, &range).all(|(id, part)| state.index.has(&id, pieces(&part))))
    }

    /// Drops everything of an object, for instance because it failed a verification further up.
    /// Looks at the whole index: rare by nature.
    pub fn forget(&self, object: CacheKey) {
        let mut state = self.shared.state();
        state.queue.forget(object);
        state.index.forget(object);
    }

    /// What is most worth having, the hottest first, of together at most `bytes_max`.
    pub fn hot(&self, bytes_max: u64) -> Vec<HotChunk> {
        self.shared.state().index.hot(bytes_max)
    }

    pub fn stats(&self) -> CacheStats {
        let chunks_used = self.shared.state().index.used() as u64;
        let counts = &self.shared.counts;
        let of = |count: &AtomicU64| count.load(Relaxed);
        let misses = of(&counts.misses);
        let misses_evicted = of(&counts.misses_evicted);
        let fills =
            [&counts.fill_demand_bytes, &counts.fill_prefetch_bytes, &counts.fill_written_bytes].map(of);
        let off = self.shared.off.load(Relaxed);
        CacheStats {
            bytes: self.shared.file.len(),
            chunks_used,
            hits: of(&counts.hits),
            misses,
            misses_cold: misses.saturating_sub(misses_evicted),
            misses_evicted,
            fill_bytes: fills.iter().sum(),
            fill_demand_bytes: fills[0],
            fill_prefetch_bytes: fills[1],
            fill_written_bytes: fills[2],
            prefetch_used_bytes: of(&counts.prefetch_used_bytes),
            prefetch_wasted_bytes: of(&counts.prefetch_wasted_bytes),
            fills_dropped: of(&counts.fills_dropped),
            faults: of(&counts.faults),
            off,
            off_reason: off.then(|| format!("{} failed too often", self.shared.place)),
        }
    }

    /// Waits until the writer has written what is queued, and ends it. Later fills are dropped.
    pub async fn close(&self) {
        drop(self.wake.lock().expect("nothing panics while it holds the sender").take());
        let task = self.writer.lock().expect("nothing panics while it holds the task").take();
        if let Some(task) = task {
            task.await;
        }
    }
}

/// The slab, reserved in full: a cache that could not grow later would fail in mid-life, and a
/// sparse file would fragment in the order of misses. Its old content is never looked at.
async fn open_slab(env: &Env, disk: &Arc<dyn Disk>, bytes: u64) -> Result<Arc<dyn DiskFile>> {
    let disk = disk.clone();
    let work = async move {
        match disk.open(SLAB_NAME).await {
            Ok(file) if file.len() == bytes => return Ok(file),
            Ok(_) | Err(Error::NotFound(_)) => {}
            Err(e) => return Err(e),
        }
        disk.remove(SLAB_NAME).await?;
        disk.create(SLAB_NAME, bytes).await
    };
    env.blocking(work).await
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the index")
    }

    async fn get(self: &Arc<Self>, object: CacheKey, range: Range<u64>) -> Option<Bytes> {
        if range.is_empty() {
            return Some(Bytes::new());
        }
        if range.end - range.start > READ_BYTES_MAX || self.off.load(Relaxed) {
            return None;
        }
        let parts = {
            let state = self.state();
            if let Some(bytes) = state.queue.find(object, &range) {
                return Some(bytes);
            }
            find_parts(&state.index, object, &range)?
        };
        let (parts, read) = match self.read_here(&parts).await {
            Some(read) => (parts, read),
            None => {
                let shared = self.clone();
                self.env.blocking(async move { shared.read(parts).await }).await
            }
        };
        let whole = match read {
            Ok(whole) if self.still_there(&parts) => whole,
            Ok(_) => return None,
            Err(fault) => {
                self.report(&parts, fault);
                return None;
            }
        };
        let begin = (range.start - parts.first()?.range.start) as usize;
        Some(whole.slice(begin..begin + (range.end - range.start) as usize))
    }

    /// Reads and verifies parts that are neighbours in the object.
    async fn read(&self, parts: Vec<Part>) -> (Vec<Part>, Result<Bytes, Fault>) {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return (parts, Ok(Bytes::new()));
        };
        let begin = first.range.start;
        let mut out = AlignedBuf::zeroed((last.range.end - begin) as usize);
        for (i, part) in parts.iter().enumerate() {
            let within = (part.range.start - begin) as usize..(part.range.end - begin) as usize;
            let at = slab_offset(part.found.slot) + part.range.start % CHUNK_BYTES as u64;
            if let Err(e) = self.file.read_at(at, &mut out[within.clone()]).await {
                return (parts, Err(Fault::Disk(e)));
            }
            if !part.is_sound(&out[within]) {
                return (parts, Err(Fault::Wrong(i)));
            }
        }
        (parts, Ok(Bytes::from_owner(out)))
    }

    /// The same in the calling thread, for a few parts and where the disk can be read without blocking.
    async fn read_here(&self, parts: &[Part]) -> Option<Result<Bytes, Fault>> {
        if parts.len() > PARTS_HERE_MAX {
            return None;
        }
        let start = |part: &Part| {
            let at = slab_offset(part.found.slot) + part.range.start % CHUNK_BYTES as u64;
            self.file.read_without_blocking(at, (part.range.end - part.range.start) as usize)
        };
        let mut whole = Vec::new();
        if let [only] = parts {
            let read = start(only)?.await?;
            let sound = only.is_sound(&read);
            return Some(if sound { Ok(Bytes::from_owner(read)) } else { Err(Fault::Wrong(0)) });
        }
        let reads =
            futures_util::future::join_all(parts.iter().map(start).collect::<Option<Vec<_>>>()?).await;
        for (i, (part, read)) in parts.iter().zip(reads).enumerate() {
            let read = read?;
            if !part.is_sound(&read) {
                return Some(Err(Fault::Wrong(i)));
            }
            whole.extend_from_slice(&read);
        }
        Some(Ok(whole.into()))
    }

    /// Whether no part was evicted while it was read.
    fn still_there(&self, parts: &[Part]) -> bool {
        let state = self.state();
        parts.iter().all(|part| state.index.is_current(part.found.slot, part.found.generation))
    }

    /// Draws the consequences of a failed read.
    fn report(&self, parts: &[Part], fault: Fault) {
        match fault {
            Fault::Disk(e) => {
                for part in parts {
                    self.state().index.remove(&part.id, part.found.generation);
                }
                self.fault(&e.to_string());
            }
            // Bytes that changed because the chunk was evicted meanwhile are no fault.
            Fault::Wrong(at) if self.still_there(&parts[at..=at]) => {
                self.state().index.remove(&parts[at].id, parts[at].found.generation);
                self.fault("bytes are not what was written");
            }
            Fault::Wrong(_) => {}
        }
    }

    /// Counts a fault of the disk, and switches off after too many. Says so once each.
    fn fault(&self, what: &str) {
        let faults = self.counts.faults.fetch_add(1, Relaxed) + 1;
        let place = &self.place;
        match faults {
            1 => tracing::error!(what, "the chunk cache {place} fails; such reads go to the store"),
            FAULTS_MAX => {
                self.off.store(true, Relaxed);
                tracing::error!(
                    what,
                    "the chunk cache {place} failed {FAULTS_MAX} times and is switched off"
                );
            }
            _ => tracing::debug!(what, faults, "the chunk cache {place} fails"),
        }
    }
}

impl Part {
    /// Whether these are the bytes that were written.
    fn is_sound(&self, bytes: &[u8]) -> bool {
        let pieces = bytes.chunks_exact(PIECE_BYTES);
        pieces.zip(self.found.crcs.iter()).all(|(piece, crc)| crc_fast::crc32_iscsi(piece) == *crc)
    }
}

/// Where a slot begins in the slab.
fn slab_offset(slot: u32) -> u64 {
    u64::from(slot) * CHUNK_BYTES as u64
}

/// The chunks that a range touches, each with the touched bytes rounded out to pieces.
fn split(object: CacheKey, range: &Range<u64>) -> impl Iterator<Item = (ChunkId, Range<u64>)> {
    let (chunk, piece) = (CHUNK_BYTES as u64, PIECE_BYTES as u64);
    let begin = range.start - range.start % piece;
    let end = range.end.next_multiple_of(piece);
    (begin / chunk..end.div_ceil(chunk)).map(move |c| {
        let part = begin.max(c * chunk)..end.min((c + 1) * chunk);
        (ChunkId { object, chunk: c as u32 }, part)
    })
}

/// The pieces of its chunk that a part touches.
fn pieces(part: &Range<u64>) -> Range<usize> {
    debug_assert!(!part.is_empty());
    let first = (part.start % CHUNK_BYTES as u64) as usize / PIECE_BYTES;
    first..first + (part.end - part.start) as usize / PIECE_BYTES
}

fn find_parts(index: &Index, object: CacheKey, range: &Range<u64>) -> Option<Vec<Part>> {
    if range.end / CHUNK_BYTES as u64 > u64::from(u32::MAX) {
        return None;
    }
    split(object, range)
        .map(|(id, part)| {
            let begin = u64::from(id.chunk) * CHUNK_BYTES as u64;
            let end = (range.end - begin).min(CHUNK_BYTES as u64) as u32;
            index.find(&id, pieces(&part), end).map(|found| Part { id, found, range: part })
        })
        .collect()
}
