//! Histograms of the size and of the alignment of requests, by powers of two.
//!
//! The alignment of a request is the largest power of two that divides both its offset and its
//! length: what the block size of a store without a log would have to be, to spare it a
//! read-modify-write.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// The bound of the first bucket of sizes, and the least alignment told apart: a sector.
const FIRST_BITS: u32 = 9;
/// Sizes with a bound: 512 bytes to 32 MiB, the largest payload of a request. Only ranges without
/// payload are longer; they are in the last, unbounded bucket.
const SIZES: usize = 17;
/// Alignments told apart: below a sector, and 512 bytes to 1 MiB.
const ALIGNMENTS: usize = 13;

/// Requests whose length is at most `up_to_bytes` and more than the bound of the bucket below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeCount {
    /// `None`: no bound.
    pub up_to_bytes: Option<u64>,
    pub count: u64,
}

/// Requests aligned to `bytes` and to no larger power of two, but for the largest one (1 MiB), which
/// holds all that are aligned to more. 1 stands for everything below a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlignmentCount {
    pub bytes: u64,
    pub count: u64,
}

#[derive(Default)]
pub struct Shapes {
    sizes: [AtomicU64; SIZES + 1],
    alignments: [AtomicU64; ALIGNMENTS],
}

impl Shapes {
    pub fn record(&self, offset: u64, len: u64) {
        self.sizes[size_index(len)].fetch_add(1, Relaxed);
        self.alignments[alignment_index(offset, len)].fetch_add(1, Relaxed);
    }

    /// Ascending, without the empty ones.
    pub fn sizes(&self) -> Vec<SizeCount> {
        let counted = self.sizes.iter().enumerate().map(|(i, count)| SizeCount {
            up_to_bytes: (i < SIZES).then_some(1 << (FIRST_BITS + i as u32)),
            count: count.load(Relaxed),
        });
        counted.filter(|size| size.count > 0).collect()
    }

    /// Ascending, without the empty ones.
    pub fn alignments(&self) -> Vec<AlignmentCount> {
        let counted = self.alignments.iter().enumerate().map(|(i, count)| AlignmentCount {
            bytes: if i == 0 { 1 } else { 1 << (FIRST_BITS - 1 + i as u32) },
            count: count.load(Relaxed),
        });
        counted.filter(|alignment| alignment.count > 0).collect()
    }
}

/// What was added to a histogram of sizes.
pub fn sizes_since(now: &[SizeCount], then: &[SizeCount]) -> Vec<SizeCount> {
    let before = |size: &SizeCount| {
        then.iter().find(|then| then.up_to_bytes == size.up_to_bytes).map_or(0, |then| then.count)
    };
    let grown = now.iter().map(|size| SizeCount { count: size.count.saturating_sub(before(size)), ..*size });
    grown.filter(|size| size.count > 0).collect()
}

/// What was added to a histogram of alignments.
pub fn alignments_since(now: &[AlignmentCount], then: &[AlignmentCount]) -> Vec<AlignmentCount> {
    let before = |alignment: &AlignmentCount| {
        then.iter().find(|then| then.bytes == alignment.bytes).map_or(0, |then| then.count)
    };
    let grown = now.iter().map(|a| AlignmentCount { count: a.count.saturating_sub(before(a)), ..*a });
    grown.filter(|alignment| alignment.count > 0).collect()
}

fn size_index(len: u64) -> usize {
    let bits = u64::BITS - len.saturating_sub(1).leading_zeros(); // len <= 1 << bits
    (bits.saturating_sub(FIRST_BITS) as usize).min(SIZES)
}

fn alignment_index(offset: u64, len: u64) -> usize {
    let bits = (offset | len).trailing_zeros();
    ((bits + 1).saturating_sub(FIRST_BITS) as usize).min(ALIGNMENTS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(offset: u64, len: u64) -> (Option<u64>, u64) {
        let shapes = Shapes::default();
        shapes.record(offset, len);
        let (sizes, alignments) = (shapes.sizes(), shapes.alignments());
        assert_eq!((sizes[0].count, alignments[0].count, sizes.len(), alignments.len()), (1, 1, 1, 1));
        (sizes[0].up_to_bytes, alignments[0].bytes)
    }

    /// Both the offset and the length count, and what is aligned to nothing is told apart from a sector.
    #[test]
    fn alignment_is_that_of_offset_and_length() {
        assert_eq!(recorded(0, 4096), (Some(4096), 4096));
        assert_eq!(recorded(512, 4096), (Some(4096), 512));
        assert_eq!(recorded(1 << 30, 12288), (Some(16384), 4096));
        assert_eq!(recorded(1 << 30, 1 << 30), (None, 1 << 20));
        assert_eq!(recorded(3, 100), (Some(512), 1));
        assert_eq!(recorded(0, 0), (Some(512), 1 << 20));
        assert_eq!(recorded(u64::MAX, u64::MAX), (None, 1));
    }

    proptest! {
        /// A request lies in the one bucket whose bounds enclose it.
        #[test]
        fn buckets_enclose(offset in 0..1u64 << 50, len in 1..1u64 << 34) {
            let (up_to, alignment) = recorded(offset, len);
            match up_to {
                Some(bound) => prop_assert!(len <= bound && (bound == 512 || len > bound / 2)),
                None => prop_assert!(len > 32 << 20),
            }
            if alignment > 1 {
                prop_assert!(offset.is_multiple_of(alignment) && len.is_multiple_of(alignment));
            }
            if alignment < 1 << 20 {
                let next = (alignment * 2).max(512);
                prop_assert!(!(offset.is_multiple_of(next) && len.is_multiple_of(next)));
            }
        }
    }
}
