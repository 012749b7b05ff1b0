//! The index as records, for its file, and back.

use hashbrown::hash_table::Entry;

use super::Index;
use crate::cache::{pages::SlotRecord, policy::Standing};

/// An index that takes in the records of an earlier life.
pub(in crate::cache) struct Restore {
    index: Index,
    inherited: Vec<Inherited>,
}

/// What the policy must know of a slot.
struct Inherited {
    stamp: u32,
    slot: u32,
    place: Standing,
    reads: u8,
}

impl Index {
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Wants every page written that has something to remember.
    pub fn mark_used(&mut self) {
        for no in 0..self.slots() {
            if self.policy.place(no).is_some() {
                self.changed.mark(no);
            }
        }
    }

    /// What is to be remembered of a slot.
    pub fn record(&self, no: u32) -> Option<SlotRecord> {
        let slot = &self.slots[no as usize];
        let place = self.policy.place(no).filter(|_| slot.valid != 0)?;
        Some(SlotRecord {
            owner: slot.owner,
            end: slot.end,
            valid: slot.valid,
            unread: slot.unread,
            place,
            reads: self.policy.reads(no),
            stamp: self.policy.stamp(no),
            crcs: slot.crcs,
        })
    }
}

impl Restore {
    pub fn new(slots: u32) -> Restore {
        Restore { index: Index::new(slots), inherited: Vec::with_capacity(slots as usize) }
    }

    /// Takes a record in. A chunk that two slots claim (the page of one is older) is taken from the
    /// first: the checksums tell whether it is still there.
    pub fn add(&mut self, no: u32, record: SlotRecord) {
        let index = &mut self.index;
        let hash = record.owner.hash();
        let slots = &index.slots;
        let owner_of = |no: u32| slots[no as usize].owner;
        match index.map.entry(hash, |&other| owner_of(other) == record.owner, |&other| owner_of(other).hash())
        {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => _ = place.insert(no),
        }
        let slot = &mut index.slots[no as usize];
        debug_assert_eq!(slot.valid, 0, "a slot has one record");
        slot.owner = record.owner;
        (slot.end, slot.valid, slot.unread) = (record.end, record.valid, record.unread);
        (slot.inherited, slot.crcs) = (true, record.crcs);
        let (stamp, place, reads) = (record.stamp, record.place, record.reads);
        self.inherited.push(Inherited { stamp, slot: no, place, reads });
    }

    /// The index with everything in the order in which it was read last.
    pub fn finish(self) -> Index {
        let Restore { mut index, mut inherited } = self;
        inherited.sort_unstable_by_key(|slot| (slot.stamp, slot.slot));
        index.policy.resume(inherited.last().map_or(0, |slot| slot.stamp));
        for Inherited { stamp, slot, place, reads } in inherited {
            index.policy.restore(slot, place, reads, stamp);
        }
        let policy = &index.policy;
        index.free.retain(|&no| policy.place(no).is_none());
        while let Some(victim) = index.policy.victim() {
            index.release(victim); // every slot was full: one must be free
        }
        index.assert_invariant();
        index
    }
}
