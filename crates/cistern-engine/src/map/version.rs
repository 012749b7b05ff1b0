//! A mapping as runs keep it: with how far back it stands for others that it replaced.
//!
//! What a newer mapping covers is dropped by the merge that meets the two; which snapshots still see it depends on when it lost its
//! place, and that may have been to a version that an earlier merge has dropped. So a version remembers since when something
//! newer than all that lies beneath it stood there, in whatever version.

use crate::units::{Extent, FrameRef, Mapping, Place, Seq};

/// A mapping, and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub mapping: Mapping,
    /// Whatever lies beneath had lost its place here.
    pub over: Seq,
}

impl Version {
    /// That of a mapping which replaced nothing, as far as the map knows.
    pub fn new(mapping: Mapping) -> Version {
        Version { over: placed(&mapping), mapping }
    }

    /// Since when it is where it is.
    pub fn placed(&self) -> Seq {
        placed(&self.mapping)
    }

    pub fn extent(&self) -> Extent {
        self.mapping.extent
    }

    /// The part of it that lies in `part`.
    pub fn slice(&self, part: Extent) -> Version {
        Version { mapping: self.mapping.slice(part), over: self.over }
    }

    /// Makes this one cover `next` too, if that goes on where this one ends, and stands for as much.
    pub fn try_join(&mut self, next: &Version) -> bool {
        self.over == next.over && try_join(&mut self.mapping, &next.mapping)
    }
}

/// Since when a mapping is where it is: a moved block came to its place with the segment there.
pub(super) fn placed(mapping: &Mapping) -> Seq {
    match mapping.place {
        Place::Frame(frame) => frame.seq,
        Place::Hole | Place::Zero => mapping.birth,
    }
}

/// Makes `a` cover `b` too, if `b` goes on where `a` ends: the same frame, hole or zeroes of the
/// same birth. False when it does not.
pub(super) fn try_join(a: &mut Mapping, b: &Mapping) -> bool {
    let next_index = |f: FrameRef| u64::from(f.index) + a.extent.len;
    let same_place = match (a.place, b.place) {
        (Place::Hole, Place::Hole) | (Place::Zero, Place::Zero) => true,
        (Place::Frame(f), Place::Frame(g)) => {
            (f.seq, f.offset, f.stored) == (g.seq, g.offset, g.stored) && next_index(f) == u64::from(g.index)
        }
        _ => false,
    };
    let joins = same_place && a.birth == b.birth && a.extent.end() == b.extent.start;
    if joins {
        a.extent.len += b.extent.len;
    }
    joins
}
