//! LRU, S3-FIFO, W-TinyLFU, quick_cache and Belady's optimum, as small as they can be.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::traces::{Access, Kind};

/// A policy over keys. `access` says whether the key was there; it is afterwards, if admitted.
pub trait Policy {
    fn access(&mut self, key: u64) -> bool;
}

/// An ordered set of keys, the oldest first.
#[derive(Default)]
struct Order {
    by_age: BTreeMap<u64, u64>,
    ages: HashMap<u64, u64>,
    next: u64,
}

impl Order {
    fn push(&mut self, key: u64) {
        self.remove(key);
        self.next += 1;
        self.by_age.insert(self.next, key);
        self.ages.insert(key, self.next);
    }
    fn remove(&mut self, key: u64) -> bool {
        self.ages.remove(&key).is_some_and(|age| self.by_age.remove(&age).is_some())
    }
    fn pop(&mut self) -> Option<u64> {
        let key = self.oldest()?;
        self.remove(key);
        Some(key)
    }
    fn oldest(&self) -> Option<u64> {
        self.by_age.values().next().copied()
    }
    fn has(&self, key: u64) -> bool {
        self.ages.contains_key(&key)
    }
    fn len(&self) -> usize {
        self.ages.len()
    }
}

pub struct Lru {
    size: usize,
    order: Order,
}

impl Lru {
    pub fn new(size: usize) -> Lru {
        Lru { size, order: Order::default() }
    }
}

impl Policy for Lru {
    fn access(&mut self, key: u64) -> bool {
        let hit = self.order.has(key);
        self.order.push(key);
        if self.order.len() > self.size {
            self.order.pop();
        }
        hit
    }
}

/// "FIFO queues are all you need for cache eviction" (SOSP 2023): small 10 %, main 90 %, ghost as main.
pub struct S3Fifo {
    size: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghost: Order,
    /// How often a resident key was read since it came, up to 3.
    reads: HashMap<u64, u8>,
}

impl S3Fifo {
    pub fn new(size: usize) -> S3Fifo {
        let (small, main) = (VecDeque::new(), VecDeque::new());
        S3Fifo { size, small, main, ghost: Order::default(), reads: HashMap::new() }
    }

    fn small_max(&self) -> usize {
        (self.size / 10).max(1)
    }

    fn evict(&mut self) {
        if self.small.len() >= self.small_max() {
            while let Some(key) = self.small.pop_front() {
                if self.reads[&key] > 1 {
                    self.reads.insert(key, 0);
                    self.main.push_back(key);
                    if self.main.len() > self.size - self.small_max() {
                        return self.evict_main();
                    }
                } else {
                    self.reads.remove(&key);
                    self.ghost.push(key);
                    if self.ghost.len() > self.size - self.small_max() {
                        self.ghost.pop();
                    }
                    return;
                }
            }
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        while let Some(key) = self.main.pop_front() {
            match self.reads[&key] {
                0 => {
                    self.reads.remove(&key);
                    return;
                }
                reads => {
                    self.reads.insert(key, reads - 1);
                    self.main.push_back(key);
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, key: u64) -> bool {
        if let Some(reads) = self.reads.get_mut(&key) {
            *reads = (*reads + 1).min(3);
            return true;
        }
        while self.small.len() + self.main.len() >= self.size {
            self.evict();
        }
        self.reads.insert(key, 0);
        match self.ghost.remove(key) {
            true => self.main.push_back(key),
            false => self.small.push_back(key),
        }
        false
    }
}

/// "TinyLFU: a highly efficient cache admission policy": window 1 %, main of two segments (80 % protected),
/// with exact counts instead of a sketch, halved every ten times the size.
pub struct WTinyLfu {
    size: usize,
    window: Order,
    probation: Order,
    protected: Order,
    counts: HashMap<u64, u32>,
    reads: usize,
}

impl WTinyLfu {
    pub fn new(size: usize) -> WTinyLfu {
        let (window, probation, protected) = (Order::default(), Order::default(), Order::default());
        WTinyLfu { size, window, probation, protected, counts: HashMap::new(), reads: 0 }
    }

    fn count(&mut self, key: u64) {
        let count = self.counts.entry(key).or_default();
        *count = (*count + 1).min(15);
        self.reads += 1;
        if self.reads >= self.size * 10 {
            self.reads /= 2;
            self.counts.values_mut().for_each(|count| *count /= 2);
            self.counts.retain(|_, count| *count > 0);
        }
    }

    fn seen(&self, key: u64) -> u32 {
        self.counts.get(&key).copied().unwrap_or(0)
    }
}

impl Policy for WTinyLfu {
    fn access(&mut self, key: u64) -> bool {
        self.count(key);
        let window_max = (self.size / 100).max(1);
        let main_max = self.size - window_max;
        if self.window.has(key) {
            self.window.push(key);
            return true;
        }
        if self.protected.has(key) {
            self.protected.push(key);
            return true;
        }
        if self.probation.remove(key) {
            self.protected.push(key);
            if self.protected.len() > main_max * 8 / 10
                && let Some(oldest) = self.protected.pop()
            {
                self.probation.push(oldest);
            }
            return true;
        }
        self.window.push(key);
        if self.window.len() > window_max
            && let Some(candidate) = self.window.pop()
        {
            if self.probation.len() + self.protected.len() < main_max {
                self.probation.push(candidate);
            } else if let Some(victim) = self.probation.oldest()
                && self.seen(candidate) > self.seen(victim)
            {
                self.probation.pop();
                self.probation.push(candidate);
            }
        }
        false
    }
}

/// The crate, with one shard.
pub struct QuickCache(quick_cache::unsync::Cache<u64, ()>);

impl QuickCache {
    pub fn new(size: usize) -> QuickCache {
        QuickCache(quick_cache::unsync::Cache::new(size))
    }
}

impl Policy for QuickCache {
    fn access(&mut self, key: u64) -> bool {
        let hit = self.0.get(&key).is_some();
        if !hit {
            self.0.insert(key, ());
        }
        hit
    }
}

/// Hits of whoever knows the future: keeps what is read soonest. What is written may be kept or not.
pub fn optimum(trace: &[Access], size: usize) -> u64 {
    let mut next_read = vec![usize::MAX; trace.len()];
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for (at, access) in trace.iter().enumerate().rev() {
        next_read[at] = seen.get(&access.key()).copied().unwrap_or(usize::MAX);
        if access.kind == Kind::Read {
            seen.insert(access.key(), at);
        }
    }
    let mut hits = 0;
    let mut kept: HashMap<u64, usize> = HashMap::new();
    let mut order: BTreeSet<(usize, u64)> = BTreeSet::new();
    for (access, &next) in trace.iter().zip(&next_read) {
        let key = access.key();
        if let Some(next) = kept.remove(&key) {
            order.remove(&(next, key));
            hits += u64::from(access.kind == Kind::Read);
        }
        if next != usize::MAX {
            kept.insert(key, next);
            order.insert((next, key));
            if kept.len() > size
                && let Some((_, key)) = order.pop_last()
            {
                kept.remove(&key);
            }
        }
    }
    hits
}
