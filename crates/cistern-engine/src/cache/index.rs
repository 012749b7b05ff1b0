//! What lies where in the slab, which pieces are valid, and whose turn it is to go.
//!
//! A slot's generation changes whenever its content changes owner, so that a reader that was at
//! the disk meanwhile can tell. All in memory: about 170 bytes a chunk, 2.7 MiB per GiB of cache.
//! The pages of the index file whose records changed are remembered for the writer. Deterministic:
//! fixed hashes, and no order depends on them.

use std::ops::Range;

use hashbrown::HashTable;

use super::{
    Admission, CHUNK_BYTES, CacheKey, HotChunk, PIECE_BYTES, PIECES,
    changed::Changed,
    chunks::{ChunkId, mask, pieces, split},
    policy::{EvictionPolicy, Ghost, Standing, Stood, Tuner},
};

mod restore;

pub(super) use restore::Restore;

/// One place of the slab.
#[derive(Clone)]
struct SlabSlot {
    /// Whose bytes these are, while the slot is in use.
    owner: ChunkId,
    generation: u32,
    /// Bytes of the chunk up to the end of the object, where that lies in this chunk.
    end: u32,
    /// One bit for each piece that holds its bytes.
    valid: u16,
    /// One bit for each prefetched piece that nobody has read.
    unread: u16,
    /// From an earlier life of the cache: the slab may hold other bytes than the record says.
    inherited: bool,
    crcs: [u32; PIECES],
}

/// Valid pieces of a chunk.
#[derive(Clone, Copy)]
pub(super) struct FoundPieces {
    pub slot: u32,
    pub generation: u32,
    /// CRC32C of every piece of the chunk; only those of valid ones mean something.
    pub crcs: [u32; PIECES],
}

/// Why a chunk is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    Cold,
    Evicted,
}

/// Where a chunk enters the policy.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntersAt {
    New(Admission),
    /// Where a chunk stood that had its bytes.
    PlaceOf(Stood),
}

/// A slot that the writer may write to.
pub(super) struct SlotFill {
    pub slot: u32,
    pub generation: u32,
    /// One bit for each piece that is not valid yet; the others must not be written.
    pub missing: u16,
}

/// What became of prefetched pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefetched {
    pub used: u64,
    pub wasted: u64,
}

pub(super) struct Index {
    map: HashTable<u32>,
    slots: Vec<SlabSlot>,
    free: Vec<u32>,
    policy: EvictionPolicy,
    tuner: Tuner,
    ghost: Ghost,
    pub changed: Changed,
    pub prefetched: Prefetched,
}

impl Index {
    /// An empty index of so many slots, at least two. One of them is always free.
    pub fn new(slots: u32) -> Index {
        assert!(slots >= 2, "one slot is always free");
        let kept = slots - 1;
        let owner = ChunkId { object: CacheKey::new([0; 16], 0), chunk: 0 };
        let slot = SlabSlot {
            owner,
            generation: 0,
            end: CHUNK_BYTES as u32,
            valid: 0,
            unread: 0,
            inherited: false,
            crcs: [0; PIECES],
        };
        let tuner = Tuner::new(kept);
        Index {
            map: HashTable::with_capacity(slots as usize),
            slots: vec![slot; slots as usize],
            free: (0..slots).rev().collect(),
            policy: EvictionPolicy::new(slots, kept, tuner.shares()),
            tuner,
            ghost: Ghost::new(kept),
            changed: Changed::new(slots),
            prefetched: Prefetched::default(),
        }
    }

    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slot of a chunk if all of `pieces` are valid, up to byte `end` of the chunk. Counts as a
    /// read of what is there.
    pub fn find(&mut self, id: &ChunkId, pieces: Range<usize>, end: u32) -> Result<FoundPieces, Miss> {
        let hash = id.hash();
        let Some(no) = self.slot_of(id, hash) else {
            return Err(if self.ghost.last(hash).is_some() { Miss::Evicted } else { Miss::Cold });
        };
        self.touch(no, hash);
        let slot = &self.slots[no as usize];
        let wanted = mask(&pieces);
        if slot.valid & wanted != wanted || end > slot.end {
            return Err(Miss::Cold);
        }
        let found = FoundPieces { slot: no, generation: slot.generation, crcs: slot.crcs };
        self.use_up(no, wanted);
        self.assert_slot(no);
        Ok(found)
    }

    /// Counts as a read of some pieces of a chunk, as a mask, that somebody got before they were here.
    pub fn note_read(&mut self, id: &ChunkId, pieces: u16) {
        let hash = id.hash();
        if let Some(no) = self.slot_of(id, hash) {
            self.touch(no, hash);
            self.use_up(no, pieces);
        }
    }

    /// Counts prefetched pieces that are read.
    fn use_up(&mut self, no: u32, pieces: u16) {
        let slot = &mut self.slots[no as usize];
        self.prefetched.used += u64::from((slot.unread & pieces).count_ones());
        slot.unread &= !pieces;
    }

    /// Whether all of `pieces` are valid. Is no use of them.
    pub fn has(&self, id: &ChunkId, pieces: Range<usize>) -> bool {
        let wanted = mask(&pieces);
        self.valid(id) & wanted == wanted
    }

    /// One bit for each valid piece of a chunk.
    pub fn valid(&self, id: &ChunkId) -> u16 {
        self.slot_of(id, id.hash()).map_or(0, |no| self.slots[no as usize].valid)
    }

    /// Where the best of the chunks of a range stands, if all of that is valid. Is no use of it.
    pub fn stood(&self, object: CacheKey, range: &Range<u64>) -> Option<Stood> {
        let stood = |(id, part): (ChunkId, Range<u64>)| {
            let no = self.slot_of(&id, id.hash())?;
            let wanted = mask(&pieces(&part));
            (self.slots[no as usize].valid & wanted == wanted).then(|| self.policy.stood(no))?
        };
        split(object, range).map(stood).try_fold(None, |best, stood| Some(best.max(Some(stood?)))).flatten()
    }

    /// The slot for filling `pieces` of a chunk, with the pieces that are still to be written.
    /// May evict another chunk. `None` when there is nothing to write. `end` is where the fill
    /// ends in the chunk.
    pub fn claim(
        &mut self,
        id: &ChunkId,
        pieces: Range<usize>,
        end: u32,
        enters: EntersAt,
    ) -> Option<SlotFill> {
        let hash = id.hash();
        let known = self.slot_of(id, hash);
        let no = match known {
            Some(no) if self.slots[no as usize].end >= end => no,
            // An earlier fill took an earlier byte for the object's end: it was wrong, start anew.
            Some(no) => {
                self.release(no);
                self.admit(id, hash, enters)?
            }
            None => self.admit(id, hash, enters)?,
        };
        self.assert_invariant();
        self.assert_slot(no);
        let slot = &self.slots[no as usize];
        debug_assert_eq!(slot.owner, *id, "a chunk is written where it is looked for");
        debug_assert!(end <= slot.end, "a fill ends where its object ends, or before");
        let missing = mask(&pieces) & !slot.valid;
        (missing != 0).then_some(SlotFill { slot: no, generation: slot.generation, missing })
    }

    fn admit(&mut self, id: &ChunkId, hash: u64, enters: EntersAt) -> Option<u32> {
        debug_assert!(self.slot_of(id, hash).is_none(), "a chunk has one slot");
        let no = self.free.pop()?;
        debug_assert_eq!(self.slots[no as usize].valid, 0, "a free slot holds nothing");
        self.slots[no as usize].owner = *id;
        self.link(no, hash);
        match enters {
            EntersAt::New(admission) => {
                self.policy.admit(no, self.ghost.last(hash), admission);
                match admission {
                    Admission::Demand => self.tune(hash),
                    Admission::Prefetch | Admission::Written => self.tuner.unread(hash, admission),
                }
            }
            EntersAt::PlaceOf(stood) => self.policy.admit_in_place(no, stood),
        }
        self.make_room();
        self.policy.place(no).map(|_| no)
    }

    /// Evicts until the policy keeps no more than it should: one slot is always free.
    fn make_room(&mut self) {
        while let Some(victim) = self.policy.victim() {
            self.ghost.add(self.slots[victim as usize].owner.hash(), self.policy.last(victim));
            self.release(victim);
        }
        debug_assert!(!self.free.is_empty(), "the policy keeps one chunk less than there are slots");
    }

    /// Marks pieces as written, if the slot still belongs to whom it was claimed for.
    /// `end` is where the object ends in this chunk, if it does.
    pub fn confirm(
        &mut self,
        claim: &SlotFill,
        crcs: &[(usize, u32)],
        end: Option<u32>,
        is_prefetched: bool,
    ) {
        let slot = &mut self.slots[claim.slot as usize];
        if slot.generation != claim.generation {
            return;
        }
        for &(piece, crc) in crcs {
            debug_assert!(claim.missing & (1 << piece) != 0, "only what was claimed is written");
            debug_assert!(slot.valid & (1 << piece) == 0, "a valid piece is never written again");
            slot.valid |= 1 << piece;
            slot.crcs[piece] = crc;
            if is_prefetched {
                slot.unread |= 1 << piece;
            }
        }
        if let Some(end) = end {
            slot.end = end;
        }
        self.changed.mark(claim.slot);
        self.assert_slot(claim.slot);
    }

    pub fn is_current(&self, slot: u32, generation: u32) -> bool {
        self.slots[slot as usize].generation == generation
    }

    /// Whether a slot was filled in an earlier life of the cache.
    pub fn is_inherited(&self, slot: u32) -> bool {
        self.slots[slot as usize].inherited
    }

    /// Drops what is in a slot, if it is still the one of this generation.
    pub fn remove(&mut self, slot: u32, generation: u32) {
        if self.is_current(slot, generation) && self.policy.place(slot).is_some() {
            self.release(slot);
        }
        self.assert_invariant();
    }

    /// Drops a chunk, if it is here.
    pub fn remove_chunk(&mut self, id: &ChunkId) {
        if let Some(no) = self.slot_of(id, id.hash()) {
            self.release(no);
        }
        self.assert_invariant();
    }

    /// Drops all chunks of an object.
    pub fn forget(&mut self, object: CacheKey) {
        for no in 0..self.slots.len() as u32 {
            if self.slots[no as usize].owner.object == object && self.policy.place(no).is_some() {
                self.release(no);
            }
        }
        self.assert_invariant();
    }

    /// What is worth having of what was read, the most read first, of together at most `bytes_max`.
    pub fn hot(&self, bytes_max: u64) -> Vec<HotChunk> {
        let mut bytes = 0;
        let queues = [Standing::Kept, Standing::Cold, Standing::Window];
        let mut hot: Vec<(u8, HotChunk)> = queues
            .into_iter()
            .flat_map(|place| self.policy.slots(place))
            .map(|no| (self.policy.reads(no), &self.slots[no as usize]))
            .take_while(|(_, slot)| {
                bytes += u64::from(slot.valid.count_ones()) * PIECE_BYTES as u64;
                bytes <= bytes_max
            })
            .map(|(reads, slot)| {
                (reads, HotChunk { object: slot.owner.object, chunk: slot.owner.chunk, valid: slot.valid })
            })
            .filter(|(_, hot)| hot.valid != 0)
            .collect();
        hot.sort_by_key(|(reads, _)| std::cmp::Reverse(*reads)); // stable: else by queue and age
        hot.into_iter().map(|(_, hot)| hot).collect()
    }

    /// Between two calls every slot is either free, or found by its owner and in a queue of the policy.
    fn assert_invariant(&self) {
        debug_assert_eq!(
            self.map.len() + self.free.len(),
            self.slots.len(),
            "a slot is free or found by its owner"
        );
        debug_assert_eq!(self.map.len(), self.policy.used() as usize, "what is found stands in a queue");
        debug_assert!(!self.free.is_empty(), "one slot is always free");
    }

    /// What holds of a slot in use.
    fn assert_slot(&self, no: u32) {
        let slot = &self.slots[no as usize];
        debug_assert!(self.policy.place(no).is_some(), "a slot in use stands in a queue");
        debug_assert_eq!(slot.unread & !slot.valid, 0, "only what is here waits for its first reader");
        debug_assert!(
            (1..=CHUNK_BYTES as u32).contains(&slot.end),
            "an object ends behind a byte of its chunk"
        );
    }

    fn slot_of(&self, id: &ChunkId, hash: u64) -> Option<u32> {
        self.map.find(hash, |&no| self.slots[no as usize].owner == *id).copied()
    }

    fn touch(&mut self, no: u32, hash: u64) {
        let touch = self.policy.touch(no);
        if touch.counted {
            self.tune(hash);
        }
        if touch.moved {
            self.changed.mark(no);
        }
    }

    fn tune(&mut self, hash: u64) {
        if let Some(shares) = self.tuner.read(hash) {
            self.policy.set_shares(shares);
        }
    }

    fn link(&mut self, no: u32, hash: u64) {
        let slots = &self.slots;
        self.map.insert_unique(hash, no, |&no| slots[no as usize].owner.hash());
    }

    fn release(&mut self, no: u32) {
        let hash = self.slots[no as usize].owner.hash();
        let entry = self.map.find_entry(hash, |&other| other == no);
        debug_assert!(entry.is_ok(), "a slot in use is found by its owner");
        if let Ok(entry) = entry {
            entry.remove();
        }
        self.policy.remove(no);
        let slot = &mut self.slots[no as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.prefetched.wasted += u64::from(slot.unread.count_ones());
        (slot.valid, slot.unread, slot.inherited) = (0, 0, false);
        slot.end = CHUNK_BYTES as u32;
        debug_assert!(self.free.len() < self.slots.len(), "a slot is freed once");
        self.free.push(no);
        self.changed.mark(no);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64, chunk: u32) -> ChunkId {
        ChunkId { object: CacheKey::new([7; 16], number), chunk }
    }

    fn fill(index: &mut Index, id: &ChunkId, pieces: Range<usize>, admission: Admission) {
        let Some(claim) = index.claim(id, pieces.clone(), CHUNK_BYTES as u32, EntersAt::New(admission))
        else {
            return;
        };
        let crcs: Vec<(usize, u32)> =
            pieces.filter(|p| claim.missing & (1 << p) != 0).map(|p| (p, 9)).collect();
        index.confirm(&claim, &crcs, None, admission == Admission::Prefetch);
    }

    /// Only what was confirmed is found, and only while nobody else got the slot.
    #[test]
    fn pieces_are_found_when_confirmed() {
        let mut index = Index::new(4);
        assert_eq!(index.find(&id(1, 0), 0..1, 1).err(), Some(Miss::Cold));
        fill(&mut index, &id(1, 0), 2..5, Admission::Demand);
        assert!(index.find(&id(1, 0), 2..5, 1).is_ok() && index.has(&id(1, 0), 2..5));
        assert!(index.find(&id(1, 0), 1..5, 1).is_err() && !index.has(&id(1, 0), 1..5));
        assert!(index.find(&id(1, 1), 2..5, 1).is_err());
        assert!(
            index.claim(&id(1, 0), 2..5, 1, EntersAt::New(Admission::Demand)).is_none(),
            "nothing is missing"
        );
        let found = index.find(&id(1, 0), 3..4, 1).expect("valid");
        index.forget(CacheKey::new([7; 16], 1));
        assert!(!index.is_current(found.slot, found.generation));
        assert!(index.find(&id(1, 0), 3..4, 1).is_err());
        assert_eq!(index.used(), 0);
    }

    /// However many chunks come by, each slot has one owner and one is free.
    #[test]
    fn slots_never_leak() {
        let mut index = Index::new(20);
        let admissions = [Admission::Demand, Admission::Prefetch, Admission::Written];
        for n in 0..1000u64 {
            fill(&mut index, &id(n % 37, (n % 3) as u32), 0..16, admissions[n as usize % 3]);
            let _ = index.find(&id(n % 11, (n % 2) as u32), 0..16, 1);
            if n % 50 == 0 {
                index.forget(CacheKey::new([7; 16], n % 37));
            }
            assert!(index.used() < 20);
            assert_eq!(index.used(), index.map.len());
            assert_eq!(index.used(), index.policy.used() as usize);
        }
        let mut owners: Vec<u32> = index.map.iter().copied().chain(index.free.clone()).collect();
        owners.sort_unstable();
        assert_eq!(owners, (0..20).collect::<Vec<u32>>());
    }

    /// A chunk whose end was taken for the object's end serves no byte behind it.
    #[test]
    fn nothing_is_served_beyond_the_end_of_the_object() {
        let mut index = Index::new(4);
        let claim = index.claim(&id(1, 0), 0..2, 5000, EntersAt::New(Admission::Demand)).expect("new");
        index.confirm(&claim, &[(0, 1), (1, 1)], Some(5000), false);
        assert!(index.find(&id(1, 0), 0..2, 5000).is_ok());
        assert!(index.find(&id(1, 0), 0..2, 5001).is_err());
        let claim = index
            .claim(&id(1, 0), 1..3, 12_288, EntersAt::New(Admission::Demand))
            .expect("the end was elsewhere");
        assert_eq!(claim.missing, 0b110);
    }

    /// A miss knows whether the chunk was here lately; prefetched pieces are counted once.
    #[test]
    fn misses_and_prefetches_are_told_apart() {
        let mut index = Index::new(17);
        (0..16).for_each(|chunk| fill(&mut index, &id(1, chunk), 0..16, Admission::Prefetch));
        assert!(index.find(&id(1, 3), 0..4, 1).is_ok());
        assert!(index.find(&id(1, 3), 2..6, 1).is_ok());
        assert_eq!(index.prefetched, Prefetched { used: 6, wasted: 0 });
        index.note_read(&id(1, 3), mask(&(5..7)));
        index.note_read(&id(9, 9), mask(&(5..7)));
        assert_eq!(index.prefetched, Prefetched { used: 7, wasted: 0 });
        (0..15).for_each(|chunk| fill(&mut index, &id(2, chunk), 0..16, Admission::Written));
        assert_eq!(index.prefetched, Prefetched { used: 7, wasted: 15 * 16 });
        assert_eq!(index.find(&id(1, 15), 0..1, 1).err(), Some(Miss::Evicted));
        assert_eq!(index.find(&id(5, 0), 0..1, 1).err(), Some(Miss::Cold));
    }

    /// The most read come first, what nobody read does not come.
    #[test]
    fn the_hottest_come_first() {
        let mut index = Index::new(100);
        (0..10).for_each(|chunk| fill(&mut index, &id(1, chunk), 0..8, Admission::Demand));
        (0..10).for_each(|chunk| fill(&mut index, &id(2, chunk), 0..8, Admission::Written));
        for chunk in [3, 7, 7] {
            assert!(index.find(&id(1, chunk), 0..8, 1).is_ok());
        }
        let hot = index.hot(1 << 30);
        assert_eq!(hot.iter().map(|hot| hot.chunk).take(2).collect::<Vec<_>>(), [7, 3]);
        assert!(hot.len() == 10 && hot.iter().all(|hot| hot.object.number == 1 && hot.valid == 0xff));
        assert_eq!(index.hot(3 * 8 * PIECE_BYTES as u64).len(), 3);
    }

    /// A chunk enters where the best stood that had its bytes, however full the cache is of what was read later; what stood
    /// nowhere, and what is not all here, tells nothing.
    #[test]
    fn who_takes_a_place_stands_there() {
        let mut index = Index::new(1000);
        let here =
            |chunk: u32| u64::from(chunk) * CHUNK_BYTES as u64..u64::from(chunk + 1) * CHUNK_BYTES as u64;
        (0..3).for_each(|chunk| fill(&mut index, &id(1, chunk), 0..16, Admission::Written));
        fill(&mut index, &id(1, 3), 0..8, Admission::Demand);
        let again = |index: &mut Index, chunk: u32| {
            for read in 0..2 {
                assert!(index.find(&id(1, chunk), 0..8, 1).is_ok());
                let others = (0..200).map(|n| id(100 + read, chunk * 1000 + n));
                others.for_each(|other| fill(index, &other, 0..1, Admission::Demand));
            }
        };
        again(&mut index, 1);
        let object = CacheKey::new([7; 16], 1);
        assert!(index.stood(object, &here(9)).is_none() && index.stood(object, &here(3)).is_none());
        let (trial, read) = (index.stood(object, &here(0)), index.stood(object, &here(1)));
        assert!(trial.is_some() && trial < read);
        assert_eq!(index.stood(object, &(here(0).start..here(2).end)), read, "the best of them");
        let enters = EntersAt::PlaceOf(read.expect("it was read"));
        let claim = index.claim(&id(2, 0), 0..16, CHUNK_BYTES as u32, enters).expect("new");
        let (old, new) = (index.slot_of(&id(1, 1), id(1, 1).hash()).expect("here"), claim.slot);
        assert_eq!(index.policy.stood(new), index.policy.stood(old));
        index.remove_chunk(&id(1, 1));
        index.remove_chunk(&id(1, 1));
        assert!(index.find(&id(1, 1), 0..1, 1).is_err() && index.policy.place(new).is_some());
    }
}
