//! What only snapshots see of a segment that is cleaned, and which of them.
//!
//! A version is told by its block and its birth, and is seen by snapshots without gaps, from the first that lies at or behind its
//! birth on. So that one's root tells whether any sees it, and bisection over the roots tells which is the last.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Result,
    cleaner::{CleanerParts, round::joined},
    log::{checkpoint::MapPair, read_roots},
    map::{Levels, SeenBy},
    units::{Extent, Mapping, Seq},
};

/// Roots that are kept in memory. A volume of 100 TiB has some thousand runs, of 200 bytes each here.
const ROOTS_MAX: usize = 32;

/// A version that snapshots see, and by which.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub version: Mapping,
    pub by: SeenBy,
}

/// The snapshots of a volume, by what each shows.
pub struct Views<'a> {
    parts: &'a CleanerParts,
    /// Where each is, ascending, and its root.
    roots: Vec<(Seq, MapPair)>,
    /// Those that were asked last, the newest last.
    levels: Vec<(MapPair, Arc<Levels>)>,
}

/// Something that is seen by the snapshots `first..=last` of all, and perhaps by those up to `last_max`.
#[derive(Clone, Copy)]
struct Bracket {
    version: Mapping,
    /// Which of the versions that were asked about it is part of.
    of: usize,
    first: usize,
    last: usize,
    last_max: usize,
}

impl<'a> Views<'a> {
    pub fn new(parts: &'a CleanerParts, roots: Vec<(Seq, MapPair)>) -> Views<'a> {
        debug_assert!(roots.is_sorted_by(|a, b| a.0 < b.0), "snapshots ascend");
        Views { parts, roots, levels: Vec::new() }
    }

    /// Whether a snapshot lies at a position or behind it.
    pub fn any_from(&self, position: Seq) -> bool {
        self.roots.last().is_some_and(|(newest, _)| *newest >= position)
    }

    /// The parts of versions that snapshots see, each with its version's place in the list.
    ///
    /// # Errors
    /// Those of reading roots and runs.
    pub async fn seen(&mut self, versions: &[Mapping]) -> Result<Vec<(usize, Seen)>> {
        let mut asked: BTreeMap<usize, Vec<Bracket>> = BTreeMap::new();
        let Some(newest) = self.roots.len().checked_sub(1) else { return Ok(Vec::new()) };
        for (of, &version) in versions.iter().enumerate() {
            let first = self.roots.partition_point(|(at, _)| *at < version.birth);
            if first <= newest {
                let bounds = Bracket { version, of, first, last: first, last_max: newest };
                asked.entry(first).or_default().push(bounds);
            }
        }
        let mut found = Vec::new();
        while let Some((root, bounds)) = asked.pop_first() {
            for (is_seen, part) in self.ask(root, &bounds).await? {
                let part = match is_seen {
                    true => Bracket { last: root, ..part },
                    false if root == part.first => continue, // nobody sees it
                    false => Bracket { last_max: root - 1, ..part },
                };
                debug_assert!(part.first <= part.last && part.last <= part.last_max, "a bracket closes");
                if part.last < part.last_max {
                    let middle = (part.last + part.last_max).div_ceil(2);
                    asked.entry(middle).or_default().push(part);
                    continue;
                }
                let by = SeenBy { first: self.roots[part.first].0, last: self.roots[part.last].0 };
                found.push((part.of, Seen { version: part.version, by }));
            }
        }
        Ok(found)
    }

    /// Whether a root has the versions: parts of them.
    async fn ask(&mut self, root: usize, bounds: &[Bracket]) -> Result<Vec<(bool, Bracket)>> {
        let levels = self.levels(self.roots[root].1).await?;
        let extents = joined(bounds.iter().map(|bounds| bounds.version.extent).collect());
        let shown = self.parts.map.lookup_each_in(&levels, &extents).await?;
        let mut out = Vec::with_capacity(bounds.len());
        for bounds in bounds {
            let extent = bounds.version.extent;
            let first = shown.partition_point(|m| m.extent.end() <= extent.start);
            let mut add = |is_seen: bool, part: Extent| {
                out.push((is_seen, Bracket { version: bounds.version.slice(part), ..*bounds }));
            };
            let mut open: Option<(bool, Extent)> = None;
            for m in shown[first..].iter().take_while(|m| m.extent.start < extent.end()) {
                let part = m.extent.intersect(extent).expect("it overlaps");
                let is_seen = m.birth == bounds.version.birth;
                match &mut open {
                    Some((last, whole)) if *last == is_seen => whole.len += part.len,
                    _ => open.replace((is_seen, part)).into_iter().for_each(|(seen, part)| add(seen, part)),
                }
            }
            open.into_iter().for_each(|(seen, part)| add(seen, part));
        }
        Ok(out)
    }

    async fn levels(&mut self, root: MapPair) -> Result<Arc<Levels>> {
        let known = match self.levels.iter().position(|(known, _)| *known == root) {
            Some(at) => self.levels.remove(at).1,
            None => Arc::new(read_roots(self.parts.store.as_ref(), self.parts.log.keys(), root).await?),
        };
        if self.levels.len() == ROOTS_MAX {
            self.levels.remove(0);
        }
        self.levels.push((root, known.clone()));
        Ok(known)
    }
}
