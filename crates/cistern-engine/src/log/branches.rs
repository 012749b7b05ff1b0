//! How a volume's history branches where it was rolled back (`docs/design/snapshots.md`, "Rollback").
//!
//! Positions of the log only grow; what was written before a position and belongs to what the volume shows there is told by these. Pure.

use serde::{Deserialize, Serialize};

use crate::units::{Seq, VolumeId};

/// Rollbacks of one volume at most.
pub const BRANCHES_MAX: usize = 10_000;

/// The history that begins with a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Under which the snapshot is kept from which it goes on, as for a clone.
    pub id: VolumeId,
    /// The position of that snapshot.
    pub fork: Seq,
    /// The release that rolled back: what is behind it, up to the next one, is of this branch.
    pub from: Seq,
}

/// What later code relies on.
pub fn are_valid(branches: &[Branch]) -> bool {
    branches.len() <= BRANCHES_MAX
        && branches.iter().all(|branch| branch.fork < branch.from)
        && branches.windows(2).all(|pair| pair[0].from < pair[1].from)
}

/// The branch that a position is of; `None` for what was never rolled back to.
fn branch_of(branches: &[Branch], at: Seq) -> Option<&Branch> {
    branches[..branches.partition_point(|branch| branch.from <= at)].last()
}

/// Up to where the histories of two positions are one.
pub fn common(branches: &[Branch], one: Seq, other: Seq) -> Seq {
    let (mut older, mut younger) = (one.min(other), one.max(other));
    while let Some(branch) = branch_of(branches, younger)
        && older < branch.from
    {
        (older, younger) = (older.min(branch.fork), older.max(branch.fork));
    }
    older
}

/// The last of some positions, which ascend, in the history that leads to `at`, but for `at` itself.
pub fn parent(branches: &[Branch], positions: &[Seq], at: Seq) -> Option<Seq> {
    let (mut below, mut branch) = (positions.partition_point(|seq| *seq < at), branch_of(branches, at));
    loop {
        let found = positions[..below].last().copied();
        match branch {
            Some(Branch { fork, from, .. }) if found.is_none_or(|found| found < *from) => {
                below = positions.partition_point(|seq| seq <= fork);
                branch = branch_of(branches, *fork);
            }
            _ => return found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rolled back at 20 to 10, at 30 to 25, and at 40 to 15, which the first rollback left.
    fn branches() -> Vec<Branch> {
        let branch =
            |fork, from| Branch { id: VolumeId(uuid::Uuid::nil()), fork: Seq(fork), from: Seq(from) };
        vec![branch(10, 20), branch(25, 30), branch(15, 40)]
    }

    /// Two positions share what lies before the first place at which somebody went another way, whichever is asked for first.
    #[test]
    fn histories_are_one_up_to_a_fork() {
        for (one, other, expected) in [
            (5, 8, 5),
            (8, 25, 8),
            (15, 25, 10),
            (15, 35, 10),
            (22, 35, 22),
            (27, 35, 25),
            (27, 45, 10),
            (12, 45, 12),
            (17, 45, 15),
            (45, 45, 45),
        ] {
            assert_eq!(common(&branches(), Seq(one), Seq(other)), Seq(expected), "{one} and {other}");
            assert_eq!(common(&branches(), Seq(other), Seq(one)), Seq(expected), "{other} and {one}");
        }
        assert!(are_valid(&branches()));
        assert_eq!(common(&[], Seq(7), Seq(9)), Seq(7));
    }

    /// Before a snapshot comes the last one of those that lead to it: those that a rollback left do not.
    #[test]
    fn what_a_rollback_left_leads_nowhere() {
        let positions = [5, 10, 12, 15, 17, 25, 27, 33, 45].map(Seq);
        for (at, expected) in [
            (5, None),
            (10, Some(5)),
            (17, Some(15)),
            (25, Some(10)),
            (27, Some(25)),
            (33, Some(25)),
            (45, Some(15)),
            (u64::MAX, Some(45)),
        ] {
            assert_eq!(parent(&branches(), &positions, Seq(at)), expected.map(Seq), "{at}");
        }
        assert_eq!(parent(&branches(), &[Seq(12), Seq(27)], Seq(33)), None);
    }
}
