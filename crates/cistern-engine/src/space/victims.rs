//! Which segments to clean: those whose garbage is worth most for what moving their live data costs.
//!
//! Pure. The score is the cost-benefit rule of Rosenblum and Ousterhout ("The Design and Implementation of a
//! Log-Structured File System", SOSP 1991) with the cost of writing alone: `(1 - u) * age / u`, u being the live share and
//! age the time since the segment last lost a block, counted in entries of the log.

use std::collections::{BTreeMap, BTreeSet};

use crate::{log::usage::Counts, space::segments::Segments, units::Seq};

/// Live share above which a segment is never a victim: moving it would gain next to nothing.
const LIVE_SHARE_MAX: f64 = 0.98;
/// Victims that are chosen together. Their footers are in memory, and of all the others nothing needs to be sorted.
const VICTIMS_MAX: usize = 1024;

/// A segment to clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub seq: Seq,
    pub counts: Counts,
}

/// The best first, until their live data is at least `data_blocks`. The log is at `newest`.
pub fn choose(
    segments: &Segments,
    vacated: &BTreeMap<Seq, Seq>,
    left_alone: &BTreeSet<Seq>,
    newest: Seq,
    data_blocks: u64,
) -> Vec<Victim> {
    let mut scored: Vec<(f64, Victim)> = segments
        .iter()
        .filter(|(seq, _)| !vacated.contains_key(seq) && !left_alone.contains(seq))
        .filter_map(|(seq, counts)| Some((score(&counts, newest)?, Victim { seq, counts })))
        .collect();
    let best_first = |a: &(f64, Victim), b: &(f64, Victim)| b.0.total_cmp(&a.0).then(a.1.seq.cmp(&b.1.seq));
    if scored.len() > VICTIMS_MAX {
        scored.select_nth_unstable_by(VICTIMS_MAX, best_first);
        scored.truncate(VICTIMS_MAX);
    }
    scored.sort_unstable_by(best_first);
    let mut chosen = Vec::new();
    let mut blocks = 0;
    for (_, victim) in scored {
        if blocks >= data_blocks {
            break;
        }
        blocks += victim.counts.live_blocks();
        chosen.push(victim);
    }
    chosen
}

/// What cleaning a segment gains for what it costs; `None` where that is nothing.
pub fn score(counts: &Counts, newest: Seq) -> Option<f64> {
    if counts.dead_blocks >= counts.written_blocks {
        return None; // it goes without being cleaned
    }
    let live = counts.live_blocks() as f64 / counts.written_blocks as f64;
    let age = newest.0.saturating_sub(counts.touched.0) as f64 + 1.0;
    (live <= LIVE_SHARE_MAX).then(|| (1.0 - live) * age / live)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::usage::{SegmentUsage, UsageChange};

    fn segments(rows: &[(u64, u64, u64)]) -> Segments {
        let mut segments = Segments::default();
        for &(seq, dead_blocks, touched) in rows {
            let counts =
                Counts { stored_bytes: 100, written_blocks: 100, dead_blocks, touched: Seq(touched) };
            segments.apply(&SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) });
        }
        segments
    }

    fn chosen(segments: &Segments, data_blocks: u64) -> Vec<u64> {
        let (vacated, left_alone) = (BTreeMap::from([(Seq(6), Seq(1000))]), BTreeSet::from([Seq(7)]));
        let chosen = choose(segments, &vacated, &left_alone, Seq(1000), data_blocks);
        chosen.iter().map(|victim| victim.seq.0).collect()
    }

    /// Of equal age the emptiest goes first; of equal share the one that has been quiet for longer; what is nearly full,
    /// dead, vacated or to be left alone not at all.
    #[test]
    fn the_emptiest_and_quietest_first() {
        let rows = [(1, 50, 900), (2, 70, 900), (3, 50, 500), (4, 1, 1), (5, 100, 1), (6, 90, 1), (7, 90, 1)];
        let segments = segments(&rows);
        assert_eq!(chosen(&segments, 1000), [3, 2, 1]);
        assert_eq!(chosen(&segments, 51), [3, 2], "enough to fill what was asked for");
    }
}
