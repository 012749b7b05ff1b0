//! An ordered map from extents to values, newest insert wins: the shape of the dirty index, of
//! the map's memory table and of a segment being packed.
//!
//! Invariant: stored extents are non-empty and never overlap. Neighbours are not joined.

use std::collections::BTreeMap;

use crate::units::Extent;

/// A value that stands for consecutive blocks and can be cut.
pub trait Divisible: Clone {
    /// The value for the part that begins `blocks` further on.
    fn skip(&self, blocks: u64) -> Self;
}

/// Values by extents of blocks.
#[derive(Clone, Debug)]
pub struct ExtentMap<V> {
    /// First block -> (blocks, value of the first block).
    map: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        Self { map: BTreeMap::new() }
    }
}

impl<V: Divisible> ExtentMap<V> {
    /// Number of stored extents.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All extents, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Extent, &V)> {
        self.map.iter().map(|(&start, (len, v))| (Extent::new(start, *len), v))
    }

    /// Sets `extent` to `value`; every part that was set before is handed to `dropped`.
    pub fn insert(&mut self, extent: Extent, value: V, mut dropped: impl FnMut(Extent, V)) {
        if extent.is_empty() {
            return;
        }
        // Most inserts replace nothing, or one of the same extent: one search finds that out, and warms up the next.
        match self.map.range_mut(..extent.end()).next_back() {
            Some((start, (len, old))) if Extent::new(*start, *len) == extent => {
                return dropped(extent, std::mem::replace(old, value));
            }
            Some((start, (len, _))) if *start + *len > extent.start => self.remove(extent, dropped),
            _ => {}
        }
        self.map.insert(extent.start, (extent.len, value));
        debug_assert!(self.is_apart(extent), "stored extents never overlap");
    }

    /// Whether no other stored extent reaches into this one.
    fn is_apart(&self, extent: Extent) -> bool {
        let before = self.map.range(..extent.start).next_back();
        let behind = self.map.range(extent.start + 1..).next();
        before.is_none_or(|(start, (len, _))| start + len <= extent.start)
            && behind.is_none_or(|(start, _)| *start >= extent.end())
    }

    /// Unsets `extent`; every part that was set is handed to `dropped`.
    pub fn remove(&mut self, extent: Extent, mut dropped: impl FnMut(Extent, V)) {
        if extent.is_empty() {
            return;
        }
        // The one that begins before and reaches in: cut off what lies inside, keep both ends.
        if let Some((&start, (len, value))) = self.map.range_mut(..extent.start).next_back() {
            let end = start + *len;
            if end > extent.start {
                let keep = extent.start - start;
                let value = value.clone();
                *len = keep;
                let cut = Extent::between(extent.start, end.min(extent.end()));
                dropped(cut, value.skip(keep));
                if end > extent.end() {
                    let rest = value.skip(extent.end() - start);
                    self.map.insert(extent.end(), (end - extent.end(), rest));
                    return;
                }
            }
        }
        // Those that begin inside.
        while let Some((&start, &(len, _))) = self.map.range(extent.start..extent.end()).next() {
            let (_, value) = self.map.remove(&start).expect("found just above");
            let end = start + len;
            if end > extent.end() {
                let inside = extent.end() - start;
                self.map.insert(extent.end(), (end - extent.end(), value.skip(inside)));
                dropped(Extent::new(start, inside), value);
                return;
            }
            dropped(Extent::new(start, len), value);
        }
    }

    /// The parts of `extent` that are set, ascending, cut to it.
    pub fn overlapping(&self, extent: Extent) -> impl Iterator<Item = (Extent, V)> + '_ {
        let first = self.first_reaching(extent.start);
        self.map.range(first..extent.end().max(first)).filter_map(move |(&start, (len, value))| {
            let part = Extent::new(start, *len).intersect(extent)?;
            Some((part, value.skip(part.start - start)))
        })
    }

    /// The first stored extent that ends behind `block`, as it is stored.
    pub fn next(&self, block: u64) -> Option<(Extent, V)> {
        self.starting_at(self.first_reaching(block)).next()
    }

    /// The stored extents that begin at `from` or later, ascending.
    pub fn starting_at(&self, from: u64) -> impl Iterator<Item = (Extent, V)> + '_ {
        self.map.range(from..).map(|(&start, (len, value))| (Extent::new(start, *len), value.clone()))
    }

    /// The start of the extent that covers `block`, or `block`.
    fn first_reaching(&self, block: u64) -> u64 {
        let before = self.map.range(..block).next_back();
        before.filter(|(start, (len, _))| *start + len > block).map_or(block, |(&start, _)| start)
    }

    /// `extent` in pieces, ascending and without gaps: set ones with their value, others `None`.
    pub fn cover(&self, extent: Extent) -> Vec<(Extent, Option<V>)> {
        self.cover_first(extent, usize::MAX)
    }

    /// The first `pieces_max` of what `cover` gives. Work grows with the result and not with the extent.
    pub fn cover_first(&self, extent: Extent, pieces_max: usize) -> Vec<(Extent, Option<V>)> {
        let mut out = Vec::new();
        let mut at = extent.start;
        for (part, value) in self.overlapping(extent).take(pieces_max) {
            if part.start > at {
                out.push((Extent::between(at, part.start), None));
            }
            at = part.end();
            out.push((part, Some(value)));
        }
        if at < extent.end() {
            out.push((Extent::between(at, extent.end()), None));
        }
        // Where the walk was cut short, everything behind it is beyond the bound.
        out.truncate(pieces_max);
        debug_assert!(out.windows(2).all(|w| w[0].0.end() == w[1].0.start), "pieces have no gaps");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Divisible for u64 {
        fn skip(&self, blocks: u64) -> u64 {
            self + blocks
        }
    }

    proptest! {
        /// Whatever is inserted and removed, every block reads as in a plain array, and every
        /// block that loses its value is reported exactly once with the value it had.
        #[test]
        fn agrees_with_an_array(ops in prop::collection::vec((0u64..64, 1u64..32, any::<bool>()), 1..60)) {
            let mut map = ExtentMap::default();
            let mut array = [None; 96];
            for (n, (start, len, insert)) in ops.into_iter().enumerate() {
                let extent = Extent::new(start, len);
                let mut lost = Vec::new();
                let drop = |e: Extent, v: u64| lost.extend((e.start..e.end()).map(|b| (b, v + b - e.start)));
                let base = (n as u64 + 1) * 1000;
                if insert { map.insert(extent, base, drop) } else { map.remove(extent, drop) }
                let mut expected = Vec::new();
                for b in start..start + len {
                    if let Some(old) = array[b as usize] { expected.push((b, old)); }
                    array[b as usize] = insert.then_some(base + b - start);
                }
                lost.sort();
                prop_assert_eq!(lost, expected);
                let seen: Vec<Option<u64>> = map.cover(Extent::new(0, 96)).into_iter()
                    .flat_map(|(e, v)| (0..e.len).map(move |i| v.map(|v| v + i))).collect();
                prop_assert_eq!(&seen[..], &array[..]);
                let all = map.cover(Extent::new(3, 80));
                for pieces_max in 1..all.len() + 2 {
                    let first = map.cover_first(Extent::new(3, 80), pieces_max);
                    prop_assert_eq!(&first[..], &all[..pieces_max.min(all.len())]);
                }
            }
        }
    }
}
