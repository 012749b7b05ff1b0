//! Where a clone has its beginning from, as the next checkpoint tells it: until nothing that it or a snapshot of it shows is foreign.

use crate::{
    log::origin::CloneOrigin,
    rank::{Rank, Ranked},
    units::Seq,
};

/// What a volume comes from; nothing, of one that is no clone.
pub struct Ancestry {
    descent: Ranked<Descent>,
    /// Where it began to show anything of what it comes from.
    since: Seq,
}

/// As a checkpoint has it.
#[derive(Clone, Default)]
pub struct Descent {
    pub origins: Vec<CloneOrigin>,
    /// From this position on the volume shows nothing of them.
    pub flattened: Option<Seq>,
}

impl Ancestry {
    /// What comes from the volume's own snapshots alone began to do so at the last rollback, `since`.
    pub fn new(descent: Descent, since: Seq) -> Ancestry {
        Ancestry { descent: Ranked::new(Rank::Flow, descent), since }
    }

    /// Nothing that the volume shows at a position is foreign, and so nothing will be.
    pub fn flattened(&self, at: Seq) {
        let mut descent = self.descent.lock();
        descent.flattened = Some(descent.flattened.map_or(at, |known| known.min(at)));
    }

    /// What the next checkpoint tells, with snapshots at these positions, ascending: nothing, once none of them is of before that.
    pub fn next(&self, snapshots: &[Seq]) -> Descent {
        let mut descent = self.descent.lock();
        let mut shows = snapshots.iter().filter(|at| **at >= self.since);
        let is_over = |flattened: Seq| shows.next().is_none_or(|oldest| *oldest > flattened);
        if descent.flattened.is_some_and(is_over) {
            *descent = Descent::default();
        }
        descent.clone()
    }

    /// How deep it comes from.
    pub fn len(&self) -> usize {
        self.descent.lock().origins.len()
    }

    /// Whether it comes from nothing, any more.
    pub fn is_empty(&self) -> bool {
        self.descent.lock().origins.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        log::origin::CloneSource,
        units::{SnapshotId, VolumeId},
    };

    fn origin() -> CloneOrigin {
        let source = CloneSource { volume: VolumeId(uuid::Uuid::nil()), way: "../a".into() };
        CloneOrigin { source, snapshot: SnapshotId(uuid::Uuid::nil()), at: Seq(10) }
    }

    /// Behind a rollback only the snapshots that were made since show what the volume goes on from.
    #[test]
    fn snapshots_of_before_a_rollback_have_their_own() {
        let ancestry = Ancestry::new(Descent { origins: vec![origin()], flattened: Some(Seq(30)) }, Seq(20));
        assert_eq!(ancestry.next(&[Seq(5), Seq(10), Seq(25)]).origins.len(), 1);
        assert_eq!(ancestry.next(&[Seq(5), Seq(10), Seq(35)]).origins.len(), 0);
    }

    /// Origins are told until the volume shows nothing of them and no snapshot is of before that; the first time counts.
    #[test]
    fn origins_stay_for_the_snapshots_of_before() {
        let ancestry = Ancestry::new(Descent { origins: vec![origin()], flattened: None }, Seq(0));
        assert_eq!(ancestry.next(&[]).origins.len(), 1);
        ancestry.flattened(Seq(20));
        ancestry.flattened(Seq(30));
        let told = ancestry.next(&[Seq(20), Seq(25)]);
        assert_eq!((told.origins.len(), told.flattened), (1, Some(Seq(20))));
        assert!(!ancestry.is_empty());
        let told = ancestry.next(&[Seq(25)]);
        assert_eq!((told.origins.len(), told.flattened), (0, None));
        assert!(ancestry.is_empty());
    }
}
