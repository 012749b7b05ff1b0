//! The counts of all segments, in memory: 24 bytes for one, so 160 MB for 100 TiB of full segments.
//!
//! A segment is known from the change that tells its stored bytes until the one that says it is gone; what is said of it
//! before or after that does not count.

use std::collections::BTreeSet;

use crate::{
    log::usage::{Counts, SegmentUsage, UsageChange},
    units::Seq,
};

/// Rows that are gone are kept until they are this part of all.
const GONE_PART: usize = 8;

/// Counts by segment.
#[derive(Debug, Default)]
pub struct Segments {
    /// Ascending by seq.
    rows: Vec<Row>,
    gone: usize,
    /// Those of which nothing is live.
    dead: BTreeSet<Seq>,
    totals: Totals,
}

/// Sums over segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub segments: u64,
    pub stored_bytes: u64,
    /// The part of them that belongs to blocks which something may map.
    pub live_bytes: u64,
    pub written_blocks: u64,
    pub live_blocks: u64,
}

impl Totals {
    pub fn with(mut self, counts: Counts) -> Totals {
        self.segments += 1;
        self.stored_bytes += counts.stored_bytes;
        self.live_bytes += counts.live_bytes();
        self.written_blocks += counts.written_blocks;
        self.live_blocks += counts.live_blocks();
        self
    }

    /// Without some of those that were summed up.
    pub fn without(self, some: &Totals) -> Totals {
        Totals {
            segments: self.segments - some.segments,
            stored_bytes: self.stored_bytes - some.stored_bytes,
            live_bytes: self.live_bytes - some.live_bytes,
            written_blocks: self.written_blocks - some.written_blocks,
            live_blocks: self.live_blocks - some.live_blocks,
        }
    }
}

/// Narrow on purpose. A segment holds at most 32 MiB in 8192 blocks; logs of more than 2^32 entries lose the upper bits of
/// when a segment was touched, which is advice.
#[derive(Clone, Copy, Debug)]
struct Row {
    seq: u64,
    /// None when the segment is gone.
    stored_bytes: u32,
    written_blocks: u32,
    dead_blocks: u32,
    touched: u32,
}

impl Row {
    fn of(seq: Seq, counts: &Counts) -> Row {
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Row {
            seq: seq.0,
            stored_bytes: narrow(counts.stored_bytes),
            written_blocks: narrow(counts.written_blocks),
            dead_blocks: narrow(counts.dead_blocks),
            touched: narrow(counts.touched.0),
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            stored_bytes: self.stored_bytes.into(),
            written_blocks: self.written_blocks.into(),
            dead_blocks: self.dead_blocks.into(),
            touched: Seq(self.touched.into()),
        }
    }

    fn is_gone(&self) -> bool {
        self.stored_bytes == 0
    }
}

impl Segments {
    pub fn get(&self, seq: Seq) -> Option<Counts> {
        let at = self.rows.binary_search_by_key(&seq.0, |row| row.seq).ok()?;
        Some(&self.rows[at]).filter(|row| !row.is_gone()).map(Row::counts)
    }

    /// All that are known, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Counts)> + '_ {
        self.rows.iter().filter(|row| !row.is_gone()).map(|row| (Seq(row.seq), row.counts()))
    }

    /// Sums over those behind one.
    pub fn totals_behind(&self, seq: Seq) -> Totals {
        let first = self.rows.partition_point(|row| row.seq <= seq.0);
        let behind = self.rows[first..].iter().filter(|row| !row.is_gone());
        behind.fold(Totals::default(), |sum, row| sum.with(row.counts()))
    }

    /// Those of which nothing is live.
    pub fn dead(&self) -> impl Iterator<Item = Seq> + '_ {
        self.dead.iter().copied()
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub fn apply(&mut self, usage: &SegmentUsage) {
        let seq = usage.seq;
        let found = self.rows.binary_search_by_key(&seq.0, |row| row.seq);
        match (found, usage.change) {
            (Ok(at), change) if !self.rows[at].is_gone() => {
                let before = self.rows[at].counts();
                self.totals = self.totals.without(&Totals::default().with(before));
                self.dead.remove(&seq);
                match change {
                    UsageChange::Gone => {
                        self.rows[at].stored_bytes = 0;
                        self.gone += 1;
                    }
                    UsageChange::Added(added) => {
                        let mut counts = before;
                        counts.add(&added);
                        self.rows[at] = Row::of(seq, &counts);
                        self.count(at);
                    }
                }
            }
            (Err(at), UsageChange::Added(added)) if added.stored_bytes > 0 => {
                debug_assert!(at == 0 || self.rows[at - 1].seq < seq.0, "rows ascend, one for each segment");
                self.rows.insert(at, Row::of(seq, &added)); // at the end, but for objects that are read out of order
                self.count(at);
            }
            _ => {}
        }
        if self.gone > self.rows.len() / GONE_PART {
            self.rows.retain(|row| !row.is_gone());
            self.gone = 0;
        }
    }

    /// Counts what the row says, which is what is subtracted when it changes.
    fn count(&mut self, at: usize) {
        let row = &self.rows[at];
        self.totals = self.totals.with(row.counts());
        // More dead than written can not be, nor more than a row holds: such counts are wrong, and nothing is deleted
        // because of them.
        if row.dead_blocks == row.written_blocks && row.written_blocks < u32::MAX {
            self.dead.insert(Seq(row.seq));
        }
        debug_assert!(self.dead.len() as u64 <= self.totals.segments, "what is dead is counted");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn added(seq: u64, stored_bytes: u64, written_blocks: u64, dead_blocks: u64) -> SegmentUsage {
        let counts = Counts { stored_bytes, written_blocks, dead_blocks, touched: Seq(seq) };
        SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) }
    }

    fn gone(seq: u64) -> SegmentUsage {
        SegmentUsage { seq: Seq(seq), change: UsageChange::Gone }
    }

    /// A segment is dead when all its blocks are, and not a block before; one that has none is dead at once. Counts
    /// that can not be right make nothing dead.
    #[test]
    fn a_segment_dies_with_its_last_block() {
        let mut segments = Segments::default();
        for usage in [added(1, 100, 10, 0), added(2, 50, 0, 0), added(3, 100, 10, 9), added(1, 0, 0, 9)] {
            segments.apply(&usage);
        }
        assert_eq!(segments.dead().collect::<Vec<_>>(), [Seq(2)]);
        segments.apply(&added(1, 0, 0, 1));
        segments.apply(&added(3, 0, 0, 2));
        assert_eq!(segments.dead().collect::<Vec<_>>(), [Seq(1), Seq(2)]);
    }

    /// Counts that no segment can have leave no trace once they are gone, and make nothing dead.
    #[test]
    fn counts_beyond_a_segment_leave_with_it() {
        let mut segments = Segments::default();
        segments.apply(&added(1, u64::MAX, 1 << 40, 0));
        segments.apply(&added(2, u64::MAX, 1 << 40, 1 << 41));
        assert_eq!(segments.dead().next(), None);
        [gone(1), gone(2)].iter().for_each(|gone| segments.apply(gone));
        assert_eq!(segments.totals(), Totals::default());
    }

    /// What is gone stays gone, and what died in a segment that nobody told of counts for nothing.
    #[test]
    fn what_is_gone_is_not_counted() {
        let mut segments = Segments::default();
        for usage in [added(1, 100, 10, 0), gone(1), added(1, 0, 0, 4), added(7, 0, 0, 3)] {
            segments.apply(&usage);
        }
        assert_eq!(segments.iter().count(), 0);
        assert_eq!(segments.totals(), Totals::default());
        assert_eq!((segments.get(Seq(1)), segments.get(Seq(7))), (None, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever is told in whatever order, counts and totals are those of a plain table.
        #[test]
        fn counts_are_those_of_a_plain_table(
            told in proptest::collection::vec((1..40_u64, 0..3_u64, 0..20_u64, 0..20_u64, any::<bool>()), 0..200),
        ) {
            let (mut segments, mut plain) = (Segments::default(), BTreeMap::<u64, Counts>::new());
            let mut retired = BTreeSet::new();
            for (seq, stored, written, dead, is_gone) in told {
                if is_gone {
                    segments.apply(&gone(seq));
                    if plain.remove(&seq).is_some() {
                        retired.insert(seq);
                    }
                    continue;
                }
                // Nobody writes a segment again that was retired.
                let usage = added(seq, if retired.contains(&seq) { 0 } else { stored }, written, dead);
                segments.apply(&usage);
                let UsageChange::Added(counts) = usage.change else { unreachable!() };
                match plain.get_mut(&seq) {
                    Some(known) => known.add(&counts),
                    None if counts.stored_bytes > 0 => {
                        plain.insert(seq, counts);
                    }
                    None => {}
                }
            }
            let expected: Vec<_> = plain.into_iter().map(|(seq, counts)| (Seq(seq), counts)).collect();
            prop_assert_eq!(segments.iter().collect::<Vec<_>>(), expected.clone());
            let totals = expected.iter().fold(Totals::default(), |sum, (_, counts)| sum.with(*counts));
            prop_assert_eq!(segments.totals(), totals);
            let dead: Vec<Seq> =
                expected.iter().filter(|(_, c)| c.dead_blocks == c.written_blocks).map(|(seq, _)| *seq).collect();
            prop_assert_eq!(segments.dead().collect::<Vec<_>>(), dead);
        }
    }
}
