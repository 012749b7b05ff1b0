//! Finds how large window and trial should be, by trying.
//!
//! Owns a few small copies of the policy, each with other shares, which see a fixed sample of the
//! chunks in a cache as much smaller. The shares of the one that hits most are used. A sample of
//! some thousand chunks tells the ratio of hits to about a percent. Memory: 40 bytes for each sampled
//! chunk and copy, under 1 MiB whatever the size of the cache.

use std::collections::BTreeMap;

use super::{Admission, Policy, Shares, WHOLE};

/// What is tried: from "what was read often" to "what was read last", which is plain LRU.
const TRIED: [Shares; 5] = [
    Shares { window: 16, trial: 64 },
    Shares { window: 128, trial: 128 },
    Shares { window: 128, trial: WHOLE },
    Shares { window: 512, trial: 256 },
    Shares { window: WHOLE, trial: WHOLE },
];
/// Which of them counts while nothing has proved better: fair to a new working set.
const FIRST: usize = 3;
/// Chunks of a sampled cache, at most twice as many.
const SAMPLE_CHUNKS: u32 = 2048;
/// Looks at the result in as many sampled reads as a sampled cache has chunks.
const LOOKS: u64 = 4;
/// At each look hits fade by one of so many parts: two sizes of a cache decide.
const FADE: u64 = 8;
/// How much better another one must be to be followed: in percent, and in hits.
const BETTER_PERCENT: u64 = 2;
const BETTER_HITS: u64 = 8;
/// Reads between looks are no fewer, for the smallest caches.
const READS_MIN: u64 = 64;

struct Copy {
    policy: Policy,
    slots: BTreeMap<u32, u32>,
    hashes: Vec<u32>,
    free: Vec<u32>,
    hits: u64,
}

pub(in crate::cache) struct Tuner {
    copies: Vec<Copy>,
    /// A chunk is in the sample if these bits of its hash are zero.
    mask: u32,
    reads: u64,
    reads_max: u64,
    used: usize,
}

impl Tuner {
    pub fn new(capacity: u32) -> Tuner {
        let one_of = (capacity / SAMPLE_CHUNKS).max(1).next_power_of_two();
        let one_of = if one_of > capacity / SAMPLE_CHUNKS && one_of > 1 { one_of / 2 } else { one_of };
        let sampled = (capacity / one_of).max(1);
        let copies = TRIED.iter().map(|&shares| Copy::new(sampled, shares)).collect();
        Tuner {
            copies,
            mask: one_of - 1,
            reads: 0,
            reads_max: (u64::from(sampled) / LOOKS).max(READS_MIN),
            used: FIRST,
        }
    }

    pub fn shares(&self) -> Shares {
        TRIED[self.used]
    }

    /// Says that a chunk was read. Gives other shares when they have become better.
    pub fn read(&mut self, hash: u32) -> Option<Shares> {
        if !self.samples(hash) {
            return None;
        }
        self.copies.iter_mut().for_each(|copy| copy.see(hash, Admission::Demand));
        self.reads += 1;
        if self.reads < self.reads_max {
            return None;
        }
        self.reads = 0;
        let best = self.best();
        self.copies.iter_mut().for_each(|copy| copy.hits -= copy.hits / FADE);
        (std::mem::replace(&mut self.used, best) != best).then(|| self.shares())
    }

    /// Says that a chunk came in that nobody has read.
    pub fn unread(&mut self, hash: u32, admission: Admission) {
        if self.samples(hash) {
            self.copies.iter_mut().for_each(|copy| copy.see(hash, admission));
        }
    }

    fn samples(&self, hash: u32) -> bool {
        hash.wrapping_mul(0x9E37_79B9) >> 8 & self.mask == 0
    }

    fn best(&self) -> usize {
        let most = (0..self.copies.len()).max_by_key(|&i| (self.copies[i].hits, usize::MAX - i)).unwrap_or(0);
        let (used, other) = (self.copies[self.used].hits, self.copies[most].hits);
        if other * 100 > used * (100 + BETTER_PERCENT) + BETTER_HITS * 100 { most } else { self.used }
    }
}

impl Copy {
    fn new(capacity: u32, shares: Shares) -> Copy {
        let slots = capacity + 1;
        Copy {
            policy: Policy::new(slots, capacity, shares),
            slots: BTreeMap::new(),
            hashes: vec![0; slots as usize],
            free: (0..slots).rev().collect(),
            hits: 0,
        }
    }

    fn see(&mut self, hash: u32, admission: Admission) {
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
        self.policy.admit(slot, hash, admission);
        while let Some(slot) = self.policy.victim() {
            self.slots.remove(&self.hashes[slot as usize]);
            self.free.push(slot);
        }
    }
}
