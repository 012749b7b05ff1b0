//! What lies where in the slab, which pieces are valid, and who goes next.
//!
//! A slot's generation changes whenever its content changes owner, so that a reader that was at
//! the disk meanwhile can tell. All in memory: about 130 bytes a chunk, 2 MiB per GiB of cache.
//! The policy (of the S3-FIFO family) is deterministic: one shard, a fixed hash.

use std::{hash::BuildHasherDefault, hash::DefaultHasher, ops::Range};

use quick_cache::{Lifecycle, OptionsBuilder, UnitWeighter, unsync::Cache};

use super::{CHUNK_BYTES, CacheKey, HotChunk, PIECE_BYTES, PIECES};

/// Names a chunk of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ChunkId {
    pub object: CacheKey,
    pub chunk: u32,
}

/// One place of the slab.
#[derive(Clone)]
struct Slot {
    generation: u32,
    /// One bit for each piece that holds its bytes.
    valid: u16,
    /// Bytes of the chunk up to the end of the object, where that lies in this chunk.
    end: u32,
    crcs: [u32; PIECES],
}

/// Valid pieces of a chunk.
pub(super) struct Found {
    pub slot: u32,
    pub generation: u32,
    /// CRC32C of each piece asked for.
    pub crcs: Vec<u32>,
}

/// A slot that the writer may write to.
pub(super) struct Claim {
    pub slot: u32,
    pub generation: u32,
    /// One bit for each piece that is not valid yet; the others must not be written.
    pub missing: u16,
}

/// Collects the slots of evicted chunks.
struct Evict;

impl Lifecycle<ChunkId, u32> for Evict {
    type RequestState = Vec<u32>;
    fn on_evict(&self, evicted: &mut Vec<u32>, _id: ChunkId, slot: u32) {
        evicted.push(slot);
    }
}

pub(super) struct Index {
    policy: Cache<ChunkId, u32, UnitWeighter, BuildHasherDefault<DefaultHasher>, Evict>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Index {
    /// An empty index of so many slots, at least two. One of them is always free.
    pub fn new(slots: u32) -> Index {
        assert!(slots >= 2);
        let kept = slots as usize - 1;
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(kept)
            .weight_capacity(kept as u64)
            .build()
            .expect("every option is given");
        let slot = Slot { generation: 0, valid: 0, end: CHUNK_BYTES as u32, crcs: [0; PIECES] };
        Index {
            policy: Cache::with_options(options, UnitWeighter, BuildHasherDefault::default(), Evict),
            slots: vec![slot; slots as usize],
            free: (0..slots).rev().collect(),
        }
    }

    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slot of a chunk if all of `pieces` are valid, up to byte `end` of the chunk.
    pub fn find(&self, id: &ChunkId, pieces: Range<usize>, end: u32) -> Option<Found> {
        let no = *self.policy.get(id)?;
        let slot = &self.slots[no as usize];
        let wanted = mask(&pieces);
        (slot.valid & wanted == wanted && end <= slot.end).then(|| Found {
            slot: no,
            generation: slot.generation,
            crcs: slot.crcs[pieces].to_vec(),
        })
    }

    /// Whether `pieces` of a chunk are valid, without counting as a use.
    pub fn has(&self, id: &ChunkId, pieces: Range<usize>) -> bool {
        let wanted = mask(&pieces);
        self.policy.peek(id).is_some_and(|&no| self.slots[no as usize].valid & wanted == wanted)
    }

    /// The slot for filling `pieces` of a chunk, with the pieces that are still to be written.
    /// May evict another chunk. `None` when there is nothing to write. `end` is where the fill
    /// ends in the chunk.
    pub fn claim(&mut self, id: &ChunkId, pieces: Range<usize>, end: u32) -> Option<Claim> {
        let known = self.policy.peek(id).copied();
        // An earlier fill took an earlier byte for the object's end: it was wrong, start anew.
        if let Some(no) = known.filter(|&no| self.slots[no as usize].end < end) {
            self.remove(id, self.slots[no as usize].generation);
        }
        let no = match self.policy.peek(id) {
            Some(no) => *no,
            None => self.admit(id)?,
        };
        let slot = &self.slots[no as usize];
        let missing = mask(&pieces) & !slot.valid;
        (missing != 0).then_some(Claim { slot: no, generation: slot.generation, missing })
    }

    fn admit(&mut self, id: &ChunkId) -> Option<u32> {
        let no = self.free.pop()?;
        let mut evicted = Vec::new();
        self.policy.insert_with_lifecycle(*id, no, &mut evicted);
        let stays = !evicted.contains(&no);
        for slot in evicted {
            self.release(slot);
        }
        debug_assert!(!self.free.is_empty(), "the policy keeps one chunk less than there are slots");
        stays.then_some(no)
    }

    /// Marks pieces as written, if the slot still belongs to whom it was claimed for.
    /// `end` is where the object ends in this chunk, if it does.
    pub fn confirm(&mut self, claim: &Claim, crcs: &[(usize, u32)], end: Option<u32>) {
        let slot = &mut self.slots[claim.slot as usize];
        if slot.generation != claim.generation {
            return;
        }
        for &(piece, crc) in crcs {
            debug_assert!(slot.valid & (1 << piece) == 0, "a valid piece is never written again");
            slot.valid |= 1 << piece;
            slot.crcs[piece] = crc;
        }
        if let Some(end) = end {
            slot.end = end;
        }
    }

    pub fn is_current(&self, slot: u32, generation: u32) -> bool {
        self.slots[slot as usize].generation == generation
    }

    /// Drops a chunk, if it is still the one of this generation.
    pub fn remove(&mut self, id: &ChunkId, generation: u32) {
        let slots = &self.slots;
        let removed = self.policy.remove_if(id, |&no| slots[no as usize].generation == generation);
        if let Some((_, slot)) = removed {
            self.release(slot);
        }
    }

    /// Drops all chunks of an object.
    pub fn forget(&mut self, object: CacheKey) {
        let mut chunks: Vec<(ChunkId, u32)> =
            self.policy.iter().filter(|(id, _)| id.object == object).map(|(id, no)| (*id, *no)).collect();
        chunks.sort_unstable(); // the policy's order is arbitrary
        for (id, no) in chunks {
            self.remove(&id, self.slots[no as usize].generation);
        }
    }

    /// What is worth having, of together at most `bytes_max`.
    pub fn hot(&self, bytes_max: u64) -> Vec<HotChunk> {
        let mut hot: Vec<HotChunk> = self
            .policy
            .iter()
            .map(|(id, &no)| HotChunk {
                object: id.object,
                chunk: id.chunk,
                valid: self.slots[no as usize].valid,
            })
            .collect();
        hot.sort_unstable_by_key(|hot| (hot.object, hot.chunk)); // the policy's order is arbitrary
        let mut bytes = 0;
        let fits = hot.iter().take_while(|hot| {
            bytes += u64::from(hot.valid.count_ones()) * PIECE_BYTES as u64;
            bytes <= bytes_max
        });
        fits.copied().collect()
    }

    fn release(&mut self, no: u32) {
        let slot = &mut self.slots[no as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.valid = 0;
        slot.end = CHUNK_BYTES as u32;
        self.free.push(no);
    }
}

/// One bit for each piece.
fn mask(pieces: &Range<usize>) -> u16 {
    debug_assert!(pieces.end <= PIECES);
    let below = |n: usize| (1u32 << n) - 1;
    (below(pieces.end) & !below(pieces.start)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64, chunk: u32) -> ChunkId {
        ChunkId { object: CacheKey::new([7; 16], number), chunk }
    }

    fn fill(index: &mut Index, id: &ChunkId, pieces: Range<usize>) {
        let Some(claim) = index.claim(id, pieces.clone(), CHUNK_BYTES as u32) else { return };
        let crcs: Vec<(usize, u32)> =
            pieces.filter(|p| claim.missing & (1 << p) != 0).map(|p| (p, 9)).collect();
        index.confirm(&claim, &crcs, None);
    }

    /// Only what was confirmed is found, and only while nobody else got the slot.
    #[test]
    fn pieces_are_found_when_confirmed() {
        let mut index = Index::new(4);
        assert!(index.find(&id(1, 0), 0..1, 1).is_none());
        fill(&mut index, &id(1, 0), 2..5);
        assert!(index.find(&id(1, 0), 2..5, 1).is_some());
        assert!(index.find(&id(1, 0), 1..5, 1).is_none());
        assert!(index.find(&id(1, 1), 2..5, 1).is_none());
        assert!(index.claim(&id(1, 0), 2..5, 1).is_none(), "nothing is missing");
        let found = index.find(&id(1, 0), 3..4, 1).expect("valid");
        index.forget(CacheKey::new([7; 16], 1));
        assert!(!index.is_current(found.slot, found.generation));
        assert!(index.find(&id(1, 0), 3..4, 1).is_none());
        assert_eq!(index.used(), 0);
    }

    /// However many chunks come by, each slot has one owner and one is free.
    #[test]
    fn slots_never_leak() {
        let mut index = Index::new(20);
        for n in 0..1000u64 {
            fill(&mut index, &id(n % 37, (n % 3) as u32), 0..16);
            if n % 50 == 0 {
                index.forget(CacheKey::new([7; 16], n % 37));
            }
            assert!(index.used() < 20);
            assert_eq!(index.used(), index.policy.len());
        }
        let mut owners: Vec<u32> = index.policy.iter().map(|(_, no)| *no).chain(index.free.clone()).collect();
        owners.sort_unstable();
        assert_eq!(owners, (0..20).collect::<Vec<u32>>());
    }

    /// A chunk whose end was taken for the object's end serves no byte behind it.
    #[test]
    fn nothing_is_served_beyond_the_end_of_the_object() {
        let mut index = Index::new(4);
        let claim = index.claim(&id(1, 0), 0..2, 5000).expect("new");
        index.confirm(&claim, &[(0, 1), (1, 1)], Some(5000));
        assert!(index.find(&id(1, 0), 0..2, 5000).is_some());
        assert!(index.find(&id(1, 0), 0..2, 5001).is_none());
        let claim = index.claim(&id(1, 0), 1..3, 12_288).expect("the end was elsewhere");
        assert_eq!(claim.missing, 0b110);
    }
}
