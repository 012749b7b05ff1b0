//! Looks up, reads and verifies: the way of every cached read.
//!
//! One lock hold finds the pieces; the disk is read without it. The checksums that were found then
//! decide: bytes that match are the object's, whoever owns the slot meanwhile. Only a mismatch asks
//! again, because an eviction under way explains it.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bytes::Bytes;

use super::{
    CHUNK_BYTES, CacheCounts, CacheKey, CacheStats, Health, PIECE_BYTES, Queue,
    chunks::{ChunkId, fits, pieces, split},
    index::{FoundPieces, Index, Miss},
    pages::IndexId,
};
use crate::{
    Error,
    disk::{AlignedBuf, DiskFile},
    env::Env,
    rank::{Locked, Ranked},
};

/// The largest read that is looked up; no caller asks for more than a window of objects' bytes.
const READ_BYTES_MAX: u64 = 32 << 20;
/// Parts of a read in the caller's thread: more are worth a thread, which also puts them together.
const PARTS_HERE_MAX: usize = 4;

/// What readers and the writer share.
pub(super) struct CacheShared {
    pub env: Env,
    pub slab: Arc<dyn DiskFile>,
    pub index_file: Arc<dyn DiskFile>,
    pub index_id: IndexId,
    pub state: Ranked<CacheState>,
    pub counts: CacheCounts,
    pub health: Health,
    /// Held until the writer has ended too.
    pub _lock: Box<dyn Send + Sync>,
}

pub(super) struct CacheState {
    pub index: Index,
    pub queue: Queue,
}

impl CacheState {
    /// The oldest fill is written, if it is still this one: what was read while it waited counts now.
    pub fn done(&mut self, ticket: u64) {
        for (id, pieces) in self.queue.done(ticket) {
            self.index.note_read(&id, pieces);
        }
    }
}

/// A part of a read that lies in one chunk.
#[derive(Clone)]
struct ChunkPart {
    found: FoundPieces,
    /// Bytes of the object, multiples of 4096.
    range: Range<u64>,
}

impl ChunkPart {
    /// Where it begins in the slab.
    fn offset(&self) -> u64 {
        slab_offset(self.found.slot) + self.range.start % CHUNK_BYTES as u64
    }

    /// Whether these are the bytes that were written.
    fn is_sound(&self, bytes: &[u8]) -> bool {
        let crcs = &self.found.crcs[pieces(&self.range)];
        debug_assert_eq!(bytes.len(), crcs.len() * PIECE_BYTES, "every piece that was found is verified");
        bytes.chunks_exact(PIECE_BYTES).zip(crcs).all(|(piece, crc)| crc_fast::crc32_iscsi(piece) == *crc)
    }
}

/// The parts of a read, neighbours in the object. Most reads have one, which needs no allocation.
enum ChunkParts {
    One(ChunkPart),
    Many(Vec<ChunkPart>),
}

/// Why a read of the slab gave nothing.
enum Fault {
    Disk(Error),
    /// The part that failed its verification.
    Wrong(usize),
}

impl ChunkParts {
    fn as_slice(&self) -> &[ChunkPart] {
        match self {
            ChunkParts::One(part) => std::slice::from_ref(part),
            ChunkParts::Many(parts) => parts,
        }
    }
}

impl CacheShared {
    pub fn state(&self) -> Locked<'_, CacheState> {
        self.state.lock()
    }

    /// The bytes of a range, or why they are not here. Counts neither a hit nor a miss.
    pub async fn look(self: &Arc<Self>, object: CacheKey, range: Range<u64>) -> Result<Bytes, Miss> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if range.end - range.start > READ_BYTES_MAX || self.health.is_off() {
            return Err(Miss::Cold);
        }
        let parts = {
            let mut state = self.state();
            if let Some(bytes) = state.queue.read(object, &range) {
                return Ok(bytes);
            }
            find_parts(&mut state.index, object, &range)?
        };
        debug_assert!(
            parts.as_slice().windows(2).all(|two| two[0].range.end == two[1].range.start),
            "the parts of a read are neighbours"
        );
        let whole = match self.read_here(parts.as_slice()).await {
            Some(read) => self.judged(parts.as_slice(), read),
            None => {
                // Memory that the thread which reads took would stay with that.
                let (shared, out) = (self.clone(), memory_for(parts.as_slice()));
                let read = async move {
                    let read = shared.read(parts.as_slice(), out).await;
                    shared.judged(parts.as_slice(), read)
                };
                self.env.blocking(read).await
            }
        };
        let whole = whole.ok_or(Miss::Cold)?;
        let begin = (range.start % PIECE_BYTES as u64) as usize;
        debug_assert_eq!(
            whole.len(),
            (begin + (range.end - range.start) as usize).next_multiple_of(PIECE_BYTES),
            "a hit is what was asked for, rounded out to pieces"
        );
        Ok(whole.slice(begin..begin + (range.end - range.start) as usize))
    }

    /// Reads and verifies parts in the calling thread, which may block.
    async fn read(&self, parts: &[ChunkPart], mut out: AlignedBuf) -> Result<Bytes, Fault> {
        let begin = parts.first().map_or(0, |first| first.range.start);
        for (i, part) in parts.iter().enumerate() {
            let within = (part.range.start - begin) as usize..(part.range.end - begin) as usize;
            self.slab.read_at(part.offset(), &mut out[within.clone()]).await.map_err(Fault::Disk)?;
            if !part.is_sound(&out[within]) {
                return Err(Fault::Wrong(i));
            }
        }
        Ok(Bytes::from_owner(out))
    }

    /// The same for a few parts, where the disk can be read without blocking.
    async fn read_here(&self, parts: &[ChunkPart]) -> Option<Result<Bytes, Fault>> {
        if parts.len() > PARTS_HERE_MAX {
            return None;
        }
        let start = |part: &ChunkPart| {
            self.slab.read_without_blocking(part.offset(), (part.range.end - part.range.start) as usize)
        };
        if let [only] = parts {
            let read = start(only)?.await?;
            let sound = only.is_sound(&read);
            return Some(if sound { Ok(Bytes::from_owner(read)) } else { Err(Fault::Wrong(0)) });
        }
        let reads = parts.iter().map(start).collect::<Option<Vec<_>>>()?;
        let reads = futures_util::future::join_all(reads).await;
        let mut whole = Vec::new();
        for (i, (part, read)) in parts.iter().zip(reads).enumerate() {
            let read = read?;
            if !part.is_sound(&read) {
                return Some(Err(Fault::Wrong(i)));
            }
            whole.extend_from_slice(&read);
        }
        Some(Ok(whole.into()))
    }

    /// What was read, or nothing, with the consequences drawn.
    fn judged(&self, parts: &[ChunkPart], read: Result<Bytes, Fault>) -> Option<Bytes> {
        match read {
            Ok(bytes) => Some(bytes),
            Err(fault) => {
                self.report(parts, &fault);
                None
            }
        }
    }

    /// Draws the consequences of a failed read.
    fn report(&self, parts: &[ChunkPart], fault: &Fault) {
        match fault {
            Fault::Disk(e) => {
                let mut state = self.state();
                for ChunkPart { found, .. } in parts {
                    state.index.remove(found.slot, found.generation);
                }
                drop(state);
                self.fault(&e.to_string());
            }
            Fault::Wrong(at) => self.mismatch(&parts[*at].found),
        }
    }

    /// Bytes are not what the index expects. That is no fault if the chunk was evicted meanwhile, or if
    /// what the index says is from before a crash.
    fn mismatch(&self, found: &FoundPieces) {
        let mut state = self.state();
        if !state.index.is_current(found.slot, found.generation) {
            return;
        }
        let stale = state.index.is_inherited(found.slot);
        state.index.remove(found.slot, found.generation);
        drop(state);
        match stale {
            true => _ = self.counts.stale.fetch_add(1, Relaxed),
            false => self.fault("bytes are not what was written"),
        }
    }

    /// Counts a fault of the disk.
    pub fn fault(&self, what: &str) {
        self.health.fault(self.env.now(), what);
    }

    pub fn stats(&self) -> CacheStats {
        let (chunks_used, prefetched) = {
            let state = self.state();
            (state.index.used() as u64, state.index.prefetched)
        };
        self.counts.stats(self.slab.len(), chunks_used, prefetched, &self.health)
    }
}

/// Where a slot begins in the slab.
pub(super) fn slab_offset(slot: u32) -> u64 {
    u64::from(slot) * CHUNK_BYTES as u64
}

/// Memory that some parts fit into, which are neighbours.
fn memory_for(parts: &[ChunkPart]) -> AlignedBuf {
    let (begin, end) = (parts.first().map_or(0, |p| p.range.start), parts.last().map_or(0, |p| p.range.end));
    AlignedBuf::zeroed((end - begin) as usize)
}

fn find_parts(index: &mut Index, object: CacheKey, range: &Range<u64>) -> Result<ChunkParts, Miss> {
    if !fits(range.end) {
        return Err(Miss::Cold);
    }
    let mut find = |(id, part): (ChunkId, Range<u64>)| {
        let begin = u64::from(id.chunk) * CHUNK_BYTES as u64;
        let end = (range.end - begin).min(CHUNK_BYTES as u64) as u32;
        index.find(&id, pieces(&part), end).map(|found| ChunkPart { found, range: part })
    };
    let mut chunks = split(object, range);
    match (chunks.next(), chunks.next()) {
        (Some(only), None) => find(only).map(ChunkParts::One),
        (first, second) => first
            .into_iter()
            .chain(second)
            .chain(chunks)
            .map(find)
            .collect::<Result<_, _>>()
            .map(ChunkParts::Many),
    }
}
