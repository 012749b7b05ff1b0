//! The cache's policy without a disk: what would have been a hit.
//!
//! Runs the index itself, so that a replay of a trace tests what serves. Used by the tests that compare
//! policies, and by the example that prints them.

use super::{
    Admission, CHUNK_BYTES, CacheKey, PIECES,
    chunks::ChunkId,
    index::{EntersAt, Index},
};

/// A cache of so many chunks without bytes.
pub struct Replay(Index);

impl Replay {
    pub fn new(chunks: u32) -> Replay {
        Replay(Index::new(chunks + 1)) // one slot is always free
    }

    /// Reads a chunk, and fills it in on a miss. Whether it was there.
    pub fn read(&mut self, object: u64, chunk: u32) -> bool {
        let id = id(object, chunk);
        let hit = self.0.find(&id, 0..PIECES, CHUNK_BYTES as u32).is_ok();
        if !hit {
            self.fill(&id, Admission::Demand);
        }
        hit
    }

    /// Fills in a chunk that nobody asked for.
    pub fn offer(&mut self, object: u64, chunk: u32, admission: Admission) {
        self.fill(&id(object, chunk), admission);
    }

    fn fill(&mut self, id: &ChunkId, admission: Admission) {
        let enters = EntersAt::New(admission);
        if let Some(claim) = self.0.claim(id, 0..PIECES, CHUNK_BYTES as u32, enters) {
            let crcs: [(usize, u32); PIECES] = std::array::from_fn(|piece| (piece, 0));
            self.0.confirm(&claim, &crcs, None, admission == Admission::Prefetch);
        }
    }
}

fn id(object: u64, chunk: u32) -> ChunkId {
    ChunkId { object: CacheKey::new([0; 16], object), chunk }
}
