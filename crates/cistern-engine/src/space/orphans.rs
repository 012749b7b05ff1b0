//! Orphans that a sweep found, until a checkpoint retires them.

use std::collections::BTreeMap;

use crate::{
    log::checkpoint::{Retired, RetiredName},
    units::Seq,
};

/// Objects that nothing names.
#[derive(Debug, Default)]
pub struct Orphans(BTreeMap<RetiredName, Orphan>);

#[derive(Clone, Copy, Debug)]
struct Orphan {
    bytes: u64,
    /// No state from this entry on needs it.
    from: Seq,
}

impl Orphans {
    pub fn has(&self, name: &RetiredName) -> bool {
        self.0.contains_key(name)
    }

    pub fn add(&mut self, orphans: &[Retired], from: Seq) {
        self.0.extend(orphans.iter().map(|orphan| (orphan.name, Orphan { bytes: orphan.bytes, from })));
    }

    /// Takes out what a checkpoint at `covered` can do without, at most so many.
    pub fn take(&mut self, covered: Seq, count_max: usize) -> Vec<Retired> {
        let ready = self.0.iter().filter(|(_, orphan)| orphan.from <= covered).take(count_max);
        let ready: Vec<Retired> =
            ready.map(|(&name, orphan)| Retired { name, bytes: orphan.bytes }).collect();
        ready.iter().for_each(|orphan| _ = self.0.remove(&orphan.name));
        ready
    }

    /// Bytes and number.
    pub fn sum(&self) -> (u64, u64) {
        (self.0.values().map(|orphan| orphan.bytes).sum(), self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use uuid::Uuid;

    use super::*;
    use crate::{
        log::usage::{Counts, SegmentUsage, UsageChange},
        space::{Segments, Space, Start, Uncovered},
        units::RunId,
    };

    fn segment(seq: u64) -> Retired {
        Retired { name: RetiredName::Segment(Seq(seq)), bytes: 10 }
    }

    fn run(n: u128) -> Retired {
        Retired { name: RetiredName::Map(RunId(Uuid::from_u128(n))), bytes: 10 }
    }

    fn space() -> Space {
        let uncovered = Uncovered { stored_bytes: 10, is_moved: false };
        let uncovered = BTreeMap::from([(Seq(8), uncovered)]);
        let start = Start { uncovered, retired: vec![segment(2), run(2)], ..Start::at(Seq(9)) };
        Space::new(start, Duration::ZERO)
    }

    fn load(space: &Space, seq: u64) {
        let mut segments = Segments::default();
        let counts = Counts { stored_bytes: 10, written_blocks: 2, dead_blocks: 1, touched: Seq(1) };
        segments.apply(&SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) });
        space.load(segments, Duration::ZERO);
    }

    /// What is counted, behind the checkpoint, to be deleted or to be retired is known; and every segment, as long as the
    /// counts are not.
    #[test]
    fn what_the_accounts_know_is_no_orphan() {
        let space = space();
        let all = || (1..9).map(segment).chain((1..5).map(run)).collect::<Vec<_>>();
        space.use_up([run(3)]);
        space.adopt(&[run(4)], Seq(9));
        assert_eq!(space.unknown(all()), [run(1)]);
        load(&space, 3);
        space.adopt(&[segment(4)], Seq(9));
        let unknown = [1, 5, 6, 7].map(segment);
        assert_eq!(space.unknown(all()), [&unknown[..], &[run(1)]].concat());
    }

    /// An orphan is retired by a checkpoint that covers what was in the map when nothing was found to need it, and not by an
    /// earlier one. Until then it is a reason to write one.
    #[test]
    fn an_orphan_waits_for_a_checkpoint_that_can_do_without_it() {
        let space = space();
        let (now, grace) = (Duration::from_secs(5), Duration::from_secs(60));
        space.adopt(&[segment(4), run(4)], Seq(9));
        assert_eq!(space.waits_for_checkpoint(now, grace), (20, 2));
        assert_eq!(space.retired(Seq(8)), [segment(2), run(2)]);
        assert_eq!(space.retired(Seq(9)), [segment(2), segment(4), run(2), run(4)]);
        assert_eq!(space.waits_for_checkpoint(now, grace), (0, 0));
        let counters = space.shown().counters;
        assert_eq!((counters.swept_objects, counters.swept_bytes), (2, 20));
    }
}
