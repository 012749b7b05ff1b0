//! Where a clone has its beginning from: a snapshot of another volume of the same store (`docs/design/snapshots.md`, "Clones").
//!
//! Everything up to the position of the last origin is *foreign* to a clone. Does no IO.

use serde::{Deserialize, Serialize};

use crate::units::{Seq, SnapshotId, VolumeId};

/// Origins of one volume at most: clones of clones of clones, so deep.
pub const ORIGINS_MAX: usize = 10_000;

/// A snapshot that a clone was made of, or one further back, of which that one was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneOrigin {
    pub source: CloneSource,
    pub snapshot: SnapshotId,
    /// The position of the snapshot. What lies in the log at or before it, and behind the origin before this one, is that volume's.
    pub at: Seq,
}

/// The volume that a clone was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneSource {
    pub volume: VolumeId,
    /// The way there from the clone's place: `../` for each component up, then what leads down.
    pub way: String,
}

/// Which of some origins what lies at a seq comes from; `None` for what is the volume's own.
pub fn origin_of(origins: &[CloneOrigin], seq: Seq) -> Option<usize> {
    let at = origins.partition_point(|origin| origin.at < seq);
    (at < origins.len()).then_some(at)
}

/// What later code relies on: they ascend, and none is behind `covered`.
pub fn are_valid(origins: &[CloneOrigin], covered: Seq) -> bool {
    origins.len() <= ORIGINS_MAX
        && origins.windows(2).all(|pair| pair[0].at < pair[1].at)
        && origins.last().is_none_or(|last| last.at <= covered)
}

/// The way to a third place, from the way to a second one and the way from there.
pub fn join_ways(first: &str, then: &str) -> String {
    let mut way: Vec<&str> = first.split('/').collect();
    for component in then.split('/') {
        match (component, way.last()) {
            ("..", Some(last)) if *last != ".." => _ = way.pop(),
            _ => way.push(component),
        }
    }
    way.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What lies up to an origin's position is that origin's, unless an older one reaches it; what is behind the last is the
    /// volume's own.
    #[test]
    fn a_seq_belongs_to_the_first_origin_that_reaches_it() {
        let origin = |at| CloneOrigin {
            source: CloneSource { volume: VolumeId(uuid::Uuid::nil()), way: "../a".into() },
            snapshot: SnapshotId(uuid::Uuid::nil()),
            at: Seq(at),
        };
        let origins = [origin(10), origin(20)];
        let owners: Vec<_> = [1, 10, 11, 20, 21].map(|seq| origin_of(&origins, Seq(seq))).into();
        assert_eq!(owners, [Some(0), Some(0), Some(1), Some(1), None]);
        assert!(are_valid(&origins, Seq(20)) && !are_valid(&origins, Seq(19)));
        assert!(!are_valid(&[origin(20), origin(20)], Seq(30)));
        assert_eq!(origin_of(&[], Seq(0)), None);
    }

    /// A clone of a clone knows its way to where both came from.
    #[test]
    fn ways_are_joined() {
        for (first, then, joined) in [
            ("../b", "../a", "../a"),
            ("../x/b", "../../a", "../a"),
            ("../b", "../x/a", "../x/a"),
            ("../../b", "../a", "../../a"),
        ] {
            assert_eq!(join_ways(first, then), joined, "{first} {then}");
        }
    }
}
