//! Finds how large window and trial should be, by trying.
//!
//! Owns a few small copies of the policy, each with other shares, which see a fixed sample of the
//! chunks in a cache as much smaller. The cache follows one of them until another has hit more often by a
//! good part of what a cache holds, for that is what it costs to follow. A sample of some thousand
//! chunks tells the ratio of hits to about a percent. Memory: 80 bytes for each sampled chunk and copy, under
//! 1.5 MiB whatever the size of the cache.

use std::collections::BTreeMap;

use super::{Admission, EvictionPolicy, Ghost, Shares, WHOLE};

/// What is tried: from "what was read often" to "what was read last", which is LRU.
const TRIED: [Shares; 4] = [
    Shares { window: 16, trial: 64 },
    Shares { window: 128, trial: 256 },
    Shares { window: 512, trial: 384 },
    Shares { window: WHOLE, trial: 512 },
];
/// Which of them is followed first: fair to a new working set, and not yet to be flushed by one pass.
const FIRST: usize = 2;
/// Chunks of a sampled cache, at most twice as many.
const SAMPLE_CHUNKS: u32 = 2048;
/// How many hits the followed one may fall behind the best: what a sampled cache holds, divided by this.
const PATIENCE_DIVISOR: u32 = 10;
const _: () = assert!(FIRST < TRIED.len());
const _: () = {
    let mut tried = 0;
    while tried < TRIED.len() {
        assert!(TRIED[tried].window <= WHOLE && TRIED[tried].trial <= WHOLE);
        tried += 1;
    }
};

struct Copy {
    policy: EvictionPolicy,
    ghost: Ghost,
    slots: BTreeMap<u64, u32>,
    hashes: Vec<u64>,
    free: Vec<u32>,
    /// Nobody falls behind the best by more than the patience: what was long ago does not count.
    hits: u64,
}

pub(in crate::cache) struct Tuner {
    copies: Vec<Copy>,
    /// A chunk is in the sample if these bits of its hash are zero.
    mask: u64,
    patience: u64,
    followed: usize,
}

impl Tuner {
    pub fn new(capacity: u32) -> Tuner {
        let one_of = (capacity / SAMPLE_CHUNKS).max(1);
        let one_of = 1 << one_of.ilog2();
        let sampled = (capacity / one_of).max(1);
        Tuner {
            copies: TRIED.iter().map(|&shares| Copy::new(sampled, shares)).collect(),
            mask: u64::from(one_of - 1) << 32,
            patience: u64::from((sampled / PATIENCE_DIVISOR).max(1)),
            followed: FIRST,
        }
    }

    pub fn shares(&self) -> Shares {
        TRIED[self.followed]
    }

    /// Says that a chunk was read. Gives other shares when they have become better.
    pub fn read(&mut self, hash: u64) -> Option<Shares> {
        if hash & self.mask != 0 {
            return None;
        }
        self.copies.iter_mut().for_each(|copy| copy.see(hash, Admission::Demand));
        let best = (0..self.copies.len()).max_by_key(|&copy| self.copies[copy].hits)?;
        let behind = self.copies[best].hits.saturating_sub(self.patience);
        self.copies.iter_mut().for_each(|copy| copy.hits = copy.hits.max(behind));
        if behind == 0 || self.copies[self.followed].hits > behind {
            return None;
        }
        self.followed = best;
        Some(self.shares())
    }

    /// Says that a chunk came in that nobody has read.
    pub fn unread(&mut self, hash: u64, admission: Admission) {
        if hash & self.mask == 0 {
            self.copies.iter_mut().for_each(|copy| copy.see(hash, admission));
        }
    }
}

impl Copy {
    fn new(capacity: u32, shares: Shares) -> Copy {
        let slots = capacity + 1;
        Copy {
            policy: EvictionPolicy::new(slots, capacity, shares),
            ghost: Ghost::new(capacity),
            slots: BTreeMap::new(),
            hashes: vec![0; slots as usize],
            free: (0..slots).rev().collect(),
            hits: 0,
        }
    }

    fn see(&mut self, hash: u64, admission: Admission) {
        if let Some(&slot) = self.slots.get(&hash) {
            if admission == Admission::Demand {
                self.policy.touch(slot);
                self.hits += 1;
            }
            return;
        }
        let slot = self.free.pop().expect("one slot more than the policy keeps");
        self.hashes[slot as usize] = hash;
        self.slots.insert(hash, slot);
        self.policy.admit(slot, self.ghost.last(hash), admission);
        while let Some(slot) = self.policy.victim() {
            let gone = self.hashes[slot as usize];
            self.ghost.add(gone, self.policy.last(slot));
            self.slots.remove(&gone);
            self.free.push(slot);
        }
        debug_assert_eq!(self.slots.len() + self.free.len(), self.hashes.len(), "a slot is free or taken");
        debug_assert_eq!(self.slots.len(), self.policy.used() as usize, "what is taken stands in a queue");
        debug_assert!(!self.free.is_empty(), "one slot is always free");
    }
}
