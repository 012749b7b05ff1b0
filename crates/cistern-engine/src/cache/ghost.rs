//! Which chunks were evicted lately: tells a cold miss from one that a larger cache would not have had.
//!
//! A table of fixed size, 4 bytes for each chunk that the cache can hold; a newcomer displaces the
//! oldest one of its bucket. For statistics only: a collision of two fingerprints does no harm.

/// Fingerprints of a bucket, the newest first.
const WAYS: usize = 4;
/// No fingerprint.
const EMPTY: u32 = 0;

pub(super) struct Ghost(Vec<[u32; WAYS]>);

impl Ghost {
    pub fn new(chunks: u32) -> Ghost {
        let buckets = (chunks as usize).div_ceil(WAYS).next_power_of_two();
        Ghost(vec![[EMPTY; WAYS]; buckets])
    }

    pub fn add(&mut self, hash: u64) {
        let (bucket, print) = self.place(hash);
        let bucket = &mut self.0[bucket];
        let known = bucket.iter().position(|&known| known == print).unwrap_or(WAYS - 1);
        bucket[..=known].rotate_right(1);
        bucket[0] = print;
    }

    pub fn contains(&self, hash: u64) -> bool {
        let (bucket, print) = self.place(hash);
        self.0[bucket].contains(&print)
    }

    fn place(&self, hash: u64) -> (usize, u32) {
        (hash as usize & (self.0.len() - 1), ((hash >> 32) as u32).max(EMPTY + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last evicted are known, those before are forgotten.
    #[test]
    fn the_last_evicted_are_known() {
        let hash = |n: u64| (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17);
        let mut ghost = Ghost::new(1024);
        (0..10_000).for_each(|n| ghost.add(hash(n)));
        let known = |range: std::ops::Range<u64>| range.filter(|&n| ghost.contains(hash(n))).count();
        assert!(known(9_800..10_000) > 190);
        assert_eq!(known(0..5_000), 0);
    }
}
