//! Where a clone has its beginning from, as the next checkpoint tells it: until nothing that it or a snapshot of it shows is foreign.

use crate::{
    log::origin::CloneOrigin,
    rank::{Rank, Ranked},
    units::Seq,
};

/// Checkpoints in a row that do without what a volume came from before that is told: one of them may be damaged, and the one
/// before it counts then.
const STORED_WITHOUT: u32 = 2;

/// What a volume comes from; nothing, of one that is no clone.
pub struct Ancestry {
    state: Ranked<AncestryState>,
    /// Where it began to show anything of what it comes from.
    since: Seq,
}

struct AncestryState {
    /// As of the newest checkpoint in the store.
    stored: Descent,
    /// The newest checkpoints in the store that tell of no origins, one behind the other, up to [`STORED_WITHOUT`].
    stored_without: u32,
    /// From where on nothing that the volume shows is foreign, as far as is known.
    flattened: Option<Seq>,
}

/// As a checkpoint has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descent {
    pub origins: Vec<CloneOrigin>,
    /// From this position on the volume shows nothing of them.
    pub flattened: Option<Seq>,
}

impl Ancestry {
    /// As of the checkpoint with which the volume was opened. What comes from the volume's own snapshots alone began to do so at the
    /// last rollback, `since`.
    pub fn new(stored: Descent, since: Seq) -> Ancestry {
        let (flattened, stored_without) = (stored.flattened, u32::from(stored.origins.is_empty()));
        Ancestry {
            state: Ranked::new(Rank::Flow, AncestryState { stored, stored_without, flattened }),
            since,
        }
    }

    /// Nothing that the volume shows at a position is foreign, and so nothing will be.
    pub fn flattened(&self, at: Seq) {
        let mut state = self.state.lock();
        state.flattened = Some(state.flattened.map_or(at, |known| known.min(at)));
    }

    /// What a checkpoint tells, with snapshots at these positions, ascending: nothing, once none of them is of before that. Changes
    /// nothing: a checkpoint that is composed may never be stored.
    pub fn next(&self, snapshots: &[Seq]) -> Descent {
        let state = self.state.lock();
        let mut shows = snapshots.iter().filter(|at| **at >= self.since);
        let is_over = |flattened: Seq| shows.next().is_none_or(|oldest| *oldest > flattened);
        match state.stored.origins.is_empty() || state.flattened.is_some_and(is_over) {
            true => Descent::default(),
            false => Descent { origins: state.stored.origins.clone(), flattened: state.flattened },
        }
    }

    /// How deep it comes from.
    pub fn len(&self) -> usize {
        self.state.lock().stored.origins.len()
    }

    /// A checkpoint that tells this is in the store.
    pub fn stored(&self, descent: Descent) {
        let mut state = self.state.lock();
        assert!(
            !state.stored.origins.is_empty() || descent.origins.is_empty(),
            "what a volume comes from is known when it is opened"
        );
        state.stored_without = match descent.origins.is_empty() {
            true => (state.stored_without + 1).min(STORED_WITHOUT),
            false => 0,
        };
        state.stored = descent;
    }

    /// Whether the newest checkpoint in the store tells of nothing that it comes from.
    pub fn is_empty(&self) -> bool {
        self.state.lock().stored.origins.is_empty()
    }

    /// Whether no state of the volume that may still count comes from anything: those that it came from may be told.
    pub fn is_over(&self) -> bool {
        self.state.lock().stored_without == STORED_WITHOUT
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
        assert_eq!(ancestry.next(&[Seq(25)]), Descent::default());
    }

    /// What a checkpoint is composed of changes nothing, however often. It counts when it is stored, and what the volume came from is
    /// told behind the second one in a row; after an opening one of them is known.
    #[test]
    fn what_is_composed_is_not_stored() {
        let ancestry = Ancestry::new(Descent { origins: vec![origin()], flattened: Some(Seq(20)) }, Seq(0));
        for _ in 0..3 {
            assert_eq!(ancestry.next(&[]), Descent::default());
            assert!(!ancestry.is_empty() && !ancestry.is_over());
        }
        assert_eq!(ancestry.next(&[Seq(15)]).origins.len(), 1, "a snapshot of before is there");
        ancestry.stored(Descent::default());
        assert!(ancestry.is_empty() && !ancestry.is_over(), "the checkpoint before may count yet");
        ancestry.stored(ancestry.next(&[]));
        assert!(ancestry.is_over());
        let opened = Ancestry::new(Descent::default(), Seq(0));
        assert!(opened.is_empty() && !opened.is_over());
        opened.stored(opened.next(&[]));
        assert!(opened.is_over());
    }
}
