//! The chunk cache: a bounded local copy of byte ranges of immutable objects.
//!
//! Owns the slab file `chunks` and its index `chunks.index`. What it returns is what was filled in,
//! byte for byte, or nothing: every 4 KiB piece is verified by its CRC32C at every read. It holds
//! nothing that is not in the store too, so every trouble with the disk degrades to a miss. It survives
//! restarts and crashes: the index says which bytes to expect, the checksum whether they are there.
//!
//! Objects never change, so nothing in it can be stale. It knows nothing of what the bytes mean:
//! they lie here compressed and sealed as in the store. It never asks the store: what is not here, `fetch`
//! brings. Reads never wait for writes: fills go through a bounded queue to one writer and are dropped when it is full.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    Error, Result,
    disk::Disk,
    env::{Env, Task},
    rank::{Rank, Ranked},
};

mod changed;
mod chunks;
mod files;
mod health;
mod index;
mod lookup;
mod pages;
mod policy;
mod queue;
mod replay;
mod save;
mod stats;
mod writer;

use chunks::{fits, mask, pieces, split};
pub use files::SLAB_NAME;
use health::Health;
use lookup::{CacheShared, CacheState};
use policy::Stood;
use queue::{Queue, Why};
pub use replay::Replay;
use stats::CacheCounts;
pub use stats::CacheStats;

/// Bytes of a chunk, the unit of eviction.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a piece, the unit of validity, verification and disk access.
pub const PIECE_BYTES: usize = 4096;
/// Pieces of a chunk.
const PIECES: usize = CHUNK_BYTES / PIECE_BYTES;
/// The smallest cache: below, the eviction policy has nothing to choose from.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// Of an object just written, offered at a time.
const WRITTEN_FILL_BYTES: usize = 1 << 20;
/// Ranges that were moved, looked up under one hold of the lock.
const MOVED_BATCH: usize = 128;
const _: () = assert!(WRITTEN_FILL_BYTES.is_multiple_of(CHUNK_BYTES));
/// Held by the daemon that uses the cache.
const LOCK_NAME: &str = "chunks.lock";

const _: () = assert!(CHUNK_BYTES.is_multiple_of(PIECE_BYTES) && PIECES == u16::BITS as usize);

/// Names an object: different objects have different keys, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    id: [u8; 16],
    number: u64,
}

impl CacheKey {
    /// What it was made of.
    pub const fn parts(&self) -> ([u8; 16], u64) {
        (self.id, self.number)
    }

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

/// Bytes that lie in another object from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedBytes {
    /// Where they were.
    pub object: CacheKey,
    pub from: Range<u64>,
    /// Where they are in the new one. Not always as many: blocks are compressed anew.
    pub to: Range<u64>,
}

/// A chunk that is worth having: its identity, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotChunk {
    pub object: CacheKey,
    pub chunk: u32,
    /// One bit for each 4 KiB piece that is here.
    pub valid: u16,
}

/// A cache of object bytes on the local disk, shared by all volumes of a daemon. Dropping it ends
/// its writer; `close` waits for that.
pub struct ChunkCache {
    shared: Arc<CacheShared>,
    /// Wakes the writer; without it the writer ends.
    wake: Ranked<Option<mpsc::Sender<()>>>,
    writer: Ranked<Option<Task<()>>>,
}

impl ChunkCache {
    /// Opens the cache of `bytes` (rounded down to whole chunks, at least 1 MiB) in a directory, with
    /// what it had when it was used last, or empty. `Locked` if another daemon uses it, `Full` if
    /// the disk has no room.
    pub async fn open(env: Env, disk: Arc<dyn Disk>, bytes: u64) -> Result<Arc<ChunkCache>> {
        if bytes < CACHE_BYTES_MIN {
            return Err(Error::Invalid(format!("a chunk cache needs at least {CACHE_BYTES_MIN} bytes")));
        }
        let chunks = u32::try_from(bytes / CHUNK_BYTES as u64)
            .ok()
            .filter(|&chunks| chunks < u32::MAX)
            .ok_or_else(|| Error::Invalid(format!("a chunk cache of {bytes} bytes is too large")))?;
        let lock = disk.lock(LOCK_NAME)?;
        let files = files::open(&env, &disk, chunks).await?;
        // The policy keeps all chunks but one: the free one takes the newcomer before its victim
        // is known.
        let shared = Arc::new(CacheShared {
            env: env.clone(),
            slab: files.slab,
            index_file: files.index_file,
            index_id: files.id,
            state: Ranked::new(Rank::Structure, CacheState { index: files.index, queue: Queue::default() }),
            counts: CacheCounts::default(),
            health: Health::new(disk.describe()),
            _lock: lock,
        });
        let (wake, woken) = mpsc::channel(1);
        let task = env.dedicated("cache writer", writer::run(shared.clone(), woken));
        let (wake, writer) = (Ranked::new(Rank::Wake, Some(wake)), Ranked::new(Rank::Structure, Some(task)));
        Ok(Arc::new(ChunkCache { shared, wake, writer }))
    }

    /// The bytes of a range of an object, if all of them are here and sound.
    pub async fn get(&self, object: CacheKey, range: Range<u64>) -> Option<Bytes> {
        match self.shared.look(object, range).await {
            Ok(bytes) => {
                self.shared.counts.hit();
                Some(bytes)
            }
            Err(miss) => {
                self.shared.counts.miss(miss);
                None
            }
        }
    }

    /// As `get`, for who missed the range a moment ago: that miss is counted already.
    pub async fn get_again(&self, object: CacheKey, range: Range<u64>) -> Option<Bytes> {
        self.shared.look(object, range).await.ok()
    }

    /// Offers bytes of an object. `offset` is a multiple of 4096, and so is the end, unless it is
    /// the end of the object. Never waits: dropped when the writer is busy.
    pub fn fill(&self, object: CacheKey, offset: u64, bytes: Bytes, admission: Admission) {
        self.push(object, offset, bytes, Why::Offered(admission));
    }

    fn push(&self, object: CacheKey, offset: u64, bytes: Bytes, why: Why) {
        debug_assert!(offset.is_multiple_of(PIECE_BYTES as u64), "a fill begins with a piece");
        debug_assert!(
            !matches!(&why, Why::Moved(stood) if stood.len() != bytes.len().div_ceil(CHUNK_BYTES)
                || !offset.is_multiple_of(CHUNK_BYTES as u64)),
            "of each chunk that was moved it is known where it stood"
        );
        let end = offset.saturating_add(bytes.len() as u64);
        if bytes.is_empty() || !fits(end) || self.shared.health.is_off() {
            return;
        }
        let wake = self.wake.lock();
        let Some(wake) = wake.as_ref() else { return };
        let (made_way, is_taken) = {
            let queue = &mut self.shared.state().queue;
            let made_way = if matches!(why, Why::Moved(_)) { queue.make_way(bytes.len()) } else { 0 };
            (made_way, queue.push(object, offset, bytes, why))
        };
        self.shared.counts.fills_dropped.fetch_add(made_way, Relaxed);
        match is_taken {
            true => _ = wake.try_send(()), // full: it is awake already
            false => _ = self.shared.counts.fills_dropped.fetch_add(1, Relaxed),
        }
    }

    /// Offers a whole object that was just written, in parts. A busy cache takes nothing of it: every part
    /// keeps the whole body in memory until it is on the disk.
    pub fn fill_written(&self, object: CacheKey, body: &Bytes) {
        if !self.shared.state().queue.takes_written(body.len()) {
            self.shared.counts.fills_dropped.fetch_add(1, Relaxed);
            return;
        }
        for from in (0..body.len()).step_by(WRITTEN_FILL_BYTES) {
            let part = body.slice(from..(from + WRITTEN_FILL_BYTES).min(body.len()));
            self.fill(object, from as u64, part, Admission::Written);
        }
    }

    /// Offers what of an object was here at other places, before anybody looks for it there: each chunk enters where the best
    /// of those stood that its bytes were in. What was not here does not enter.
    pub fn fill_moved(&self, object: CacheKey, body: &Bytes, moved: &[MovedBytes]) {
        assert!(
            moved.iter().all(|moved| moved.to.end <= body.len() as u64),
            "what was moved lies in the object"
        );
        let mut stood: Vec<Option<Stood>> = vec![None; body.len().div_ceil(CHUNK_BYTES)];
        for batch in moved.chunks(MOVED_BATCH) {
            let state = self.shared.state();
            for MovedBytes { object: before, from, to } in batch {
                let Some(was) = state.index.stood(*before, from) else { continue };
                for (chunk, _) in split(object, to) {
                    let stood = &mut stood[chunk.chunk as usize];
                    *stood = Some(was).max(*stood);
                }
            }
        }
        let parts = (0..body.len()).step_by(WRITTEN_FILL_BYTES);
        for (from, stood) in parts.zip(stood.chunks(WRITTEN_FILL_BYTES / CHUNK_BYTES)) {
            if stood.iter().any(Option::is_some) {
                let part = body.slice(from..(from + WRITTEN_FILL_BYTES).min(body.len()));
                self.push(object, from as u64, part, Why::Moved(stood.into()));
            }
        }
    }

    /// Counts a range as read that somebody got elsewhere, in memory: what is used there is worth keeping here.
    pub fn note_read(&self, object: CacheKey, range: &Range<u64>) {
        if range.is_empty() || !fits(range.end) {
            return;
        }
        let mut state = self.shared.state();
        if state.queue.note_read(object, range) {
            return;
        }
        for (id, part) in split(object, range) {
            state.index.note_read(&id, mask(&pieces(&part)));
        }
    }

    /// Whether all of a range is here or on its way here, as far as memory knows. Is no use of it.
    pub fn has(&self, object: CacheKey, range: Range<u64>) -> bool {
        let state = self.shared.state();
        state.queue.has(object, &range)
            || (fits(range.end)
                && split(object, &range).all(|(id, part)| state.index.has(&id, pieces(&part))))
    }

    /// From the first piece of a range that is not here, nor on its way here, to the last; `None` if all of it is.
    pub fn missing(&self, object: CacheKey, range: &Range<u64>) -> Option<Range<u64>> {
        let state = self.shared.state();
        if !fits(range.end) {
            return Some(range.clone());
        }
        let mut missing: Option<Range<u64>> = None;
        for (id, part) in split(object, range) {
            let begin = u64::from(id.chunk) * CHUNK_BYTES as u64;
            let valid = state.index.valid(&id);
            for piece in pieces(&part).filter(|piece| valid & 1 << piece == 0) {
                let start = begin + (piece * PIECE_BYTES) as u64;
                let piece = start.max(range.start)..(start + PIECE_BYTES as u64).min(range.end);
                if !state.queue.has(object, &piece) {
                    let start = missing.map_or(piece.start, |missing| missing.start);
                    missing = Some(start..piece.end);
                }
            }
        }
        debug_assert!(
            missing.as_ref().is_none_or(|m| range.start <= m.start && m.start < m.end && m.end <= range.end),
            "what is missing of a range lies in it"
        );
        missing
    }

    /// What it can hold, in bytes; 0 when it was switched off because its disk fails.
    pub fn capacity(&self) -> u64 {
        if self.shared.health.is_off() { 0 } else { self.shared.slab.len() }
    }

    /// Whether much waits for the writer: whoever fills at will should pause.
    pub fn is_busy(&self) -> bool {
        self.shared.state().queue.is_half_full()
    }

    /// Whether something that was moved waits for the writer: whoever moves more should pause.
    pub fn has_moved_waiting(&self) -> bool {
        self.shared.state().queue.has_moved()
    }

    /// Drops what is here of an object of so many bytes that nobody will look for any more.
    pub fn let_go(&self, object: CacheKey, bytes: u64) {
        if bytes == 0 || !fits(bytes) {
            return;
        }
        let mut state = self.shared.state();
        state.queue.forget(object);
        split(object, &(0..bytes)).for_each(|(id, _)| state.index.remove_chunk(&id));
    }

    /// Drops everything of an object, for instance because it failed a verification further up.
    /// Looks at the whole index: rare by nature.
    pub fn forget(&self, object: CacheKey) {
        let mut state = self.shared.state();
        state.queue.forget(object);
        state.index.forget(object);
    }

    /// What is most worth having of what was read, the most read first, of together at most
    /// `bytes_max`. Holds up readers for some milliseconds per GiB.
    pub fn hot(&self, bytes_max: u64) -> Vec<HotChunk> {
        self.shared.state().index.hot(bytes_max)
    }

    pub fn stats(&self) -> CacheStats {
        self.shared.stats()
    }

    /// Waits until the writer has written what is queued, and the index, and ends it. Later fills are
    /// dropped.
    pub async fn close(&self) {
        drop(self.wake.lock().take());
        let task = self.writer.lock().take();
        if let Some(task) = task {
            task.await;
        }
    }
}
