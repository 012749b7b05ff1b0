//! Which chunks were evicted lately, and when they were last read.
//!
//! A table of fixed size, 32 bytes for each chunk that the cache can hold: it reaches back about eight
//! times the cache. A newcomer displaces the oldest one of its bucket. Two chunks whose fingerprints
//! collide are taken for one, which costs a wrong guess and no more.

/// Chunks of a bucket, the newest first.
const WAYS: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Gone {
    /// Not 0.
    print: u16,
    tick: u16,
}

const EMPTY: Gone = Gone { print: 0, tick: 0 };

pub(in crate::cache) struct Ghost(Vec<[Gone; WAYS]>);

impl Ghost {
    pub fn new(chunks: u32) -> Ghost {
        Ghost(vec![[EMPTY; WAYS]; chunks.max(1) as usize])
    }

    /// Says that a chunk went that was last read at a tick of the policy.
    pub fn add(&mut self, hash: u64, tick: u16) {
        let (bucket, print) = self.place(hash);
        let bucket = &mut self.0[bucket];
        let known = bucket.iter().position(|gone| gone.print == print).unwrap_or(WAYS - 1);
        bucket[..=known].rotate_right(1);
        bucket[0] = Gone { print, tick };
        debug_assert_eq!(
            bucket.iter().filter(|gone| gone.print == print).count(),
            1,
            "a chunk is remembered once"
        );
    }

    /// When a chunk was last read that was here once.
    pub fn last(&self, hash: u64) -> Option<u16> {
        let (bucket, print) = self.place(hash);
        self.0[bucket].iter().find(|gone| gone.print == print).map(|gone| gone.tick)
    }

    fn place(&self, hash: u64) -> (usize, u16) {
        let bucket = (u64::from(hash as u32) * self.0.len() as u64) >> 32;
        (bucket as usize, ((hash >> 48) as u16).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that went last are known with the time of their last read, those long before are forgotten.
    #[test]
    fn who_went_lately_is_known() {
        let hash = |n: u16| (u64::from(n) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17);
        let mut ghost = Ghost::new(1024);
        (0..30_000).for_each(|n| ghost.add(hash(n), n));
        let known = |range: std::ops::Range<u16>| range.filter(|&n| ghost.last(hash(n)) == Some(n)).count();
        assert!(known(28_000..30_000) > 1900);
        assert_eq!(known(0..10_000), 0);
    }
}
