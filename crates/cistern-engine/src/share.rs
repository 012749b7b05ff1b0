//! Which blocks of a volume one of several streams has (`docs/design/backup.md`).
//!
//! Pure. The shares of one number have every block once; each has about as much as any other of a volume that is used evenly.

use crate::units::Extent;

/// Shares at most.
pub const SHARES_MAX: u32 = 64;
/// Blocks of the parts of which shares are made, if there is more than one: 1 GiB.
pub const SHARE_PART_BLOCKS: u64 = 1 << 18;

/// One of several shares: of the parts of a volume those whose number leaves its index when it is divided by the number of shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    index: u32,
    count: u32,
}

impl Share {
    /// All there is.
    pub const ALL: Share = Share { index: 0, count: 1 };

    /// `None` for one that cannot be.
    pub fn new(index: u32, count: u32) -> Option<Share> {
        (index < count && count <= SHARES_MAX).then_some(Share { index, count })
    }

    /// Each of so many.
    pub fn each(count: u32) -> impl Iterator<Item = Share> {
        debug_assert!((1..=SHARES_MAX).contains(&count), "a number of shares");
        (0..count).map(move |index| Share { index, count })
    }

    pub fn index(self) -> u32 {
        self.index
    }

    pub fn count(self) -> u32 {
        self.count
    }

    /// What of an extent it has, ascending.
    pub fn within(self, extent: Extent) -> impl Iterator<Item = Extent> {
        let (index, count) = (u64::from(self.index), u64::from(self.count));
        let first = extent.start / SHARE_PART_BLOCKS;
        let skipped = (index + count - first % count) % count;
        let parts = (first + skipped..).step_by(self.count as usize);
        let parts = parts.map(|part| Extent::new(part * SHARE_PART_BLOCKS, SHARE_PART_BLOCKS));
        let whole = Some(extent).filter(|_| count == 1 && !extent.is_empty());
        let parts = parts.take_while(move |part| count > 1 && part.start < extent.end());
        whole.into_iter().chain(parts.filter_map(move |part| part.intersect(extent)))
    }

    /// Whether a record may be of that extent: it has all of it, in one part.
    pub fn has(self, extent: Extent) -> bool {
        let mut parts = self.within(extent);
        parts.next() == Some(extent) && parts.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every block of an extent is of one share, and each share tells its own in order.
        #[test]
        fn every_block_is_of_one_share(start in 0..1_u64 << 24, len in 0..1_u64 << 24, count in 1..=SHARES_MAX) {
            let extent = Extent::new(start, len);
            let mut all = Vec::new();
            for share in Share::each(count) {
                let parts: Vec<Extent> = share.within(extent).collect();
                prop_assert!(parts.windows(2).all(|two| two[0].end() <= two[1].start));
                prop_assert!(parts.iter().all(|part| share.has(*part)));
                all.extend(parts);
            }
            all.sort_unstable_by_key(|part| part.start);
            let ends = all.iter().try_fold(start, |at, part| (part.start == at).then_some(part.end()));
            prop_assert_eq!(ends, Some(start + len));
        }
    }

    /// A share has nothing of the parts of others, and there is no share beyond their number.
    #[test]
    fn a_share_has_its_parts_alone() {
        let part = |number: u64| Extent::new(number * SHARE_PART_BLOCKS, SHARE_PART_BLOCKS);
        let share = Share::new(1, 3).expect("it is one");
        assert!(share.has(part(1)) && share.has(part(4)) && !share.has(part(2)) && !share.has(part(3)));
        assert!(!share.has(Extent::new(2 * SHARE_PART_BLOCKS - 1, 2)), "two parts");
        assert!(Share::ALL.has(Extent::new(5, 1 << 40)));
        assert_eq!((Share::new(3, 3), Share::new(0, 0), Share::new(0, SHARES_MAX + 1)), (None, None, None));
    }
}
