//! Rows of what snapshots hold: by segment and by the snapshots between which it is seen, how many blocks (`docs/design/snapshots.md`,
//! "Rows").
//!
//! Exact as long as there are few. Every segment may have a row for each snapshot, so beyond a bound rows of one segment are joined: the
//! snapshots that are told of a joined row are those of all its parts. Invariants: joining never changes how many blocks of a segment are
//! held in all, and what a row tells as held goes no sooner than the row before did. So nothing that is needed is deleted, and when the
//! snapshots go everything is let go of.

use std::collections::BTreeMap;

use crate::{log::roots::HELD_MAX, map::SeenBy, units::Seq};

/// Blocks that are held.
pub type HeldRows = BTreeMap<(Seq, SeenBy), u64>;

/// Rows for each segment in a volume of few.
const ROWS_PER_SEGMENT: u64 = 16;
/// Rows of small volumes.
const ROWS_MIN: u64 = 4096;
/// Rows of large ones, unless there are more segments: some 40 MB, as stored in JSON before compression and in memory.
const ROWS_MAX: u64 = HELD_MAX as u64;

/// How many rows there may be of so many segments.
fn rows_max(segments: u64) -> u64 {
    (segments * ROWS_PER_SEGMENT).clamp(ROWS_MIN, ROWS_MAX).max(2 * segments)
}

/// Whether there are more than there may be.
pub fn are_too_many(rows: &HeldRows) -> bool {
    let mut last = None;
    let is_new = |segment: &Seq| last.replace(*segment) != Some(*segment);
    let count = rows.len() as u64;
    count > ROWS_MIN
        && count > rows_max(rows.keys().map(|(segment, _)| segment).copied().filter(is_new).count() as u64)
}

/// Joins rows if there are more than there may be, down to half of that, so that it is done seldom. `positions` are where the snapshots
/// are, ascending. True if it changed anything.
pub fn bound(rows: &mut HeldRows, positions: &[Seq]) -> bool {
    if !are_too_many(rows) {
        return false;
    }
    let mut by_segment: BTreeMap<Seq, Vec<JoinedRow>> = BTreeMap::new();
    for ((segment, seen_by), blocks) in std::mem::take(rows) {
        by_segment.entry(segment).or_default().push(JoinedRow::new(seen_by, blocks, positions));
    }
    let max = rows_max(by_segment.len() as u64);
    let each = (max / 2 / by_segment.len().max(1) as u64).max(1) as usize;
    for (segment, of_segment) in by_segment {
        for row in joined(of_segment, each) {
            *rows.entry((segment, row.seen_by(positions))).or_default() += row.blocks;
        }
    }
    debug_assert!(rows.len() as u64 <= max, "{} rows of at most {max}", rows.len());
    true
}

/// Blocks that are seen by some snapshots, told by their numbers: from `first` on, and before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JoinedRow {
    first: usize,
    end: usize,
    blocks: u64,
}

impl JoinedRow {
    fn new(seen_by: SeenBy, blocks: u64, positions: &[Seq]) -> JoinedRow {
        let first = positions.partition_point(|at| *at < seen_by.first);
        let end = positions.partition_point(|at| *at <= seen_by.last);
        debug_assert!(first < end, "what no snapshot sees is let go of");
        JoinedRow { first, end: end.max(first + 1), blocks }
    }

    fn seen_by(&self, positions: &[Seq]) -> SeenBy {
        // The end of the list stands for what no snapshot sees: nothing ever lies there.
        let at = |n: usize| positions.get(n).copied().unwrap_or(SeenBy::MAX.last);
        SeenBy { first: at(self.first), last: at(self.end - 1) }
    }

    fn with(&self, other: &JoinedRow) -> JoinedRow {
        let (first, end) = (self.first.min(other.first), self.end.max(other.end));
        JoinedRow { first, end, blocks: self.blocks + other.blocks }
    }

    /// By how much more is held, and for how many snapshots, if these become one.
    fn cost(&self, other: &JoinedRow) -> u128 {
        let snapshots = |row: &JoinedRow| (row.end - row.first) as u128;
        let both = snapshots(&self.with(other));
        (both - snapshots(self)) * u128::from(self.blocks)
            + (both - snapshots(other)) * u128::from(other.blocks)
    }
}

/// The rows of one segment as at most so many: always the neighbours that cost least. Those that tell of the same snapshots cost nothing.
fn joined(mut rows: Vec<JoinedRow>, count_max: usize) -> Vec<JoinedRow> {
    rows.sort_unstable();
    rows.dedup_by(|next, row| {
        let is_same = (next.first, next.end) == (row.first, row.end);
        row.blocks += if is_same { next.blocks } else { 0 };
        is_same
    });
    while rows.len() > count_max {
        let pairs = rows.windows(2).enumerate();
        let (at, _) = pairs.min_by_key(|(_, pair)| pair[0].cost(&pair[1])).expect("there are several");
        rows[at] = rows[at].with(&rows[at + 1]);
        rows.remove(at + 1);
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        log::roots::{HeldBlocks, ROOTS_BYTES_MAX, encode_roots},
        units::{RunId, VolumeId},
    };

    fn seen_by(first: u64, last: u64) -> SeenBy {
        SeenBy { first: Seq(first), last: Seq(last) }
    }

    /// Blocks of each segment that are held, where only these snapshots are left.
    fn held(rows: &HeldRows, positions: &[Seq]) -> BTreeMap<Seq, u64> {
        let mut held: BTreeMap<Seq, u64> = BTreeMap::new();
        for ((segment, seen_by), blocks) in rows {
            *held.entry(*segment).or_default() += if seen_by.any(positions) { *blocks } else { 0 };
        }
        held
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is joined, and whichever snapshots go then: no block is let go of sooner than before, and all of them with the last.
        #[test]
        fn what_is_joined_goes_no_sooner(
            rows in proptest::collection::vec((1..4_u64, 0..60_u64, 0..60_u64, 1..9_u64), 1..200),
            count_max in 1..9_usize,
            left in proptest::collection::vec(any::<bool>(), 30),
        ) {
            let positions: Vec<Seq> = (0..30).map(|n| Seq(2 * n + 1)).collect();
            let mut before = HeldRows::new();
            for (segment, a, b, blocks) in rows {
                let seen_by = seen_by(a.min(b), a.max(b));
                if seen_by.any(&positions) {
                    *before.entry((Seq(segment), seen_by)).or_default() += blocks;
                }
            }
            let mut after = HeldRows::new();
            for segment in [1, 2, 3].map(Seq) {
                let of = before.range((segment, SeenBy::MIN)..=(segment, SeenBy::MAX));
                let rows = of.map(|((_, seen_by), blocks)| JoinedRow::new(*seen_by, *blocks, &positions)).collect();
                let rows = joined(rows, count_max);
                prop_assert!(rows.len() <= count_max);
                for row in rows {
                    *after.entry((segment, row.seen_by(&positions))).or_default() += row.blocks;
                }
            }
            prop_assert_eq!(held(&before, &positions), held(&after, &positions));
            let left: Vec<Seq> = positions.iter().zip(left).filter(|(_, left)| *left).map(|(at, _)| *at).collect();
            let (exact, told) = (held(&before, &left), held(&after, &left));
            for (segment, blocks) in exact {
                prop_assert!(told[&segment] >= blocks, "segment {segment}");
            }
            prop_assert!(held(&after, &[]).values().all(|blocks| *blocks == 0));
        }
    }

    /// Few rows stay as they are.
    #[test]
    fn few_rows_are_exact() {
        let positions: Vec<Seq> = (1..1000).map(Seq).collect();
        let mut rows: HeldRows =
            (0..ROWS_MIN).map(|n| ((Seq(n % 9), seen_by(n % 9, n % 999 + 1)), 1)).collect();
        let before = rows.clone();
        assert!(!bound(&mut rows, &positions));
        assert_eq!(rows, before);
    }

    /// A volume of 1 TiB whose every part is overwritten between each two of 1,000 snapshots: what is stored of that stays within 64 MiB,
    /// all of it is told, and reading it back takes no more.
    #[test]
    fn a_tebibyte_with_a_thousand_snapshots_has_rows_of_64_mib() {
        const SEGMENTS: u64 = (1 << 40) / (16 << 20);
        let (mut rows, mut positions, mut blocks, mut joins) = (HeldRows::new(), Vec::new(), 0, 0);
        for snapshot in 0..1000_u64 {
            positions.push(Seq(SEGMENTS + snapshot));
            // Every segment loses a block with each fourth snapshot: 16 million rows.
            let row = |segment: u64| {
                let since = SEGMENTS + snapshot.saturating_sub(segment % 50);
                ((Seq(segment), seen_by(since, SEGMENTS + snapshot)), 1)
            };
            let mut new: HeldRows = (snapshot % 4..SEGMENTS).step_by(4).map(row).collect();
            rows.append(&mut new);
            blocks += SEGMENTS / 4;
            joins += u64::from(bound(&mut rows, &positions));
            assert!(rows.len() as u64 <= rows_max(SEGMENTS));
        }
        assert_eq!(rows.values().sum::<u64>(), blocks);
        assert!((20..100).contains(&joins), "{joins}");
        let row =
            |(&(segment, seen_by), &blocks): (&(Seq, SeenBy), &u64)| HeldBlocks { segment, seen_by, blocks };
        let all: Vec<HeldBlocks> = rows.iter().map(row).collect();
        let json = serde_json::to_vec(&all).expect("plain fields").len() as u64;
        assert!(json <= 64 << 20, "{} MiB", json >> 20);
        let id = RunId(uuid::Uuid::nil());
        let stored =
            encode_roots(None, VolumeId(uuid::Uuid::nil()), id, &all).expect("one object takes them");
        assert!(stored.len() as u64 <= ROOTS_BYTES_MAX);
    }
}
