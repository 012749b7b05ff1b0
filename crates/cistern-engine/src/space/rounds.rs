//! What rounds of the cleaner have moved away, until a checkpoint can do without it; and which snapshots there are, whose views
//! a round has to ask.

use std::collections::BTreeMap;

use super::Space;
use crate::{
    log::{
        checkpoint::MapPair,
        roots::{FORWARDS_MAX, ForwardTarget, HeldBlocks},
    },
    units::Seq,
};

/// Segments out of which everything was moved that the volume or a snapshot sees.
#[derive(Clone, Debug, Default)]
pub struct VacatedRound {
    /// So it is in any state from here on.
    pub from: Seq,
    pub segments: Vec<Vacated>,
    /// Where it is now.
    pub to: Vec<ForwardTarget>,
    /// What of that only snapshots see.
    pub kept: Vec<HeldBlocks>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Vacated {
    pub seq: Seq,
    /// Blocks that the volume or a snapshot saw in it.
    pub needed_blocks: u64,
    /// The oldest birth of what was moved; `None` where nothing was.
    pub since: Option<Seq>,
}

/// What a checkpoint retires.
#[derive(Debug, Default)]
pub struct Retiring {
    /// Segments, ascending. They are out of the accounts.
    pub segments: Vec<Seq>,
    /// The rounds that vacated some of them, each as a whole.
    pub rounds: Vec<VacatedRound>,
}

/// The snapshots that there are.
#[derive(Clone, Debug, Default)]
pub struct SnapshotPlaces {
    /// As of the newest commit, ascending.
    pub positions: Vec<Seq>,
    /// Roots that are in the store.
    pub roots: BTreeMap<Seq, MapPair>,
    /// Segments that are forwarded.
    pub forwarded: usize,
    /// Somebody waits until each has a root.
    pub are_awaited: bool,
}

impl SnapshotPlaces {
    /// Where each snapshot is, and its root; `None` while one has none in the store.
    fn known(&self) -> Option<Vec<(Seq, MapPair)>> {
        self.positions.iter().map(|at| Some((*at, *self.roots.get(at)?))).collect()
    }
}

/// A round that is under way. What it has moved so far is spoken for.
#[must_use = "the round ends when this is dropped"]
pub struct RunningRound<'a>(&'a Space);

impl Drop for RunningRound<'_> {
    fn drop(&mut self) {
        self.0.state().running = None;
    }
}

impl Space {
    /// A round begins, with the log up to the entry that is given. One at a time.
    pub fn begin_round(&self) -> (RunningRound<'_>, Seq) {
        let mut state = self.state();
        debug_assert!(state.running.is_none(), "one round at a time");
        let base = state.newest;
        state.running = Some(base);
        (RunningRound(self), base)
    }

    /// These snapshots are there. Told before anything behind the newest is committed.
    pub fn set_snapshots(&self, positions: Vec<Seq>) {
        self.state().snapshots.positions = positions;
        self.changed();
    }

    /// These roots are in the store, and so many segments are forwarded.
    pub fn set_roots(&self, roots: BTreeMap<Seq, MapPair>, forwarded: usize) {
        let mut state = self.state();
        (state.snapshots.roots, state.snapshots.forwarded) = (roots, forwarded);
        drop(state);
        self.changed();
    }

    /// Where the snapshots are, ascending, and their roots, once all have one in the store.
    pub async fn snapshot_roots(&self) -> Vec<(Seq, MapPair)> {
        let mut changes = self.changes();
        loop {
            let is_new = {
                let mut state = self.state();
                let known = state.snapshots.known();
                let was_awaited = std::mem::replace(&mut state.snapshots.are_awaited, known.is_none());
                if let Some(known) = known {
                    return known;
                }
                !was_awaited
            };
            if is_new {
                self.changed();
            }
            let _ = changes.changed().await; // the sender is here
        }
    }

    /// Waits until somebody waits for roots, and gives the entry that a checkpoint has to cover for it.
    pub async fn roots_awaited(&self) -> Seq {
        let mut changes = self.changes();
        loop {
            {
                let state = self.state();
                let newest = state.snapshots.positions.last().filter(|_| state.snapshots.are_awaited);
                if let Some(newest) = newest.filter(|newest| **newest > state.grace.covered()) {
                    return *newest;
                }
            }
            let _ = changes.changed().await; // the sender is here
        }
    }

    /// Whether there is room to forward so many more segments.
    pub fn may_forward(&self, segments: usize) -> bool {
        self.state().snapshots.forwarded + segments <= FORWARDS_MAX
    }

    /// The round is over: nothing that is needed lies in these segments, say lookups of all their blocks.
    pub fn vacate(&self, round: VacatedRound) {
        let mut state = self.state();
        debug_assert!(round.from <= state.newest, "what is not in the map yet says nothing");
        for &Vacated { seq, needed_blocks, .. } in &round.segments {
            // What else counts as live in it had died unnoticed.
            let unnoticed = state.counted([seq]).live_blocks.saturating_sub(needed_blocks);
            state.unlearned_blocks = state.unlearned_blocks.saturating_sub(unnoticed);
            state.vacated.insert(seq, round.from);
        }
        state.counters.vacated_segments += round.segments.len() as u64;
        state.rounds.push(round);
        drop(state);
        self.changed();
    }
}
