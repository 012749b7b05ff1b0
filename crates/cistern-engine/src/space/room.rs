//! What is held against the bound: how much is stored, for how much that is live, as well as that is known now.

use std::time::Duration;

use super::{ROUND_BYTES, State, Totals, Uncovered};
use crate::{price::RATIO_MIN, units::Seq};

/// Cleaning begins when so many bytes less are garbage than the bound allows: while a round is under way what it moves is
/// stored twice, and clients go on. But not before so large a part of what is allowed is garbage.
const RESERVE_BYTES: f64 = 2.0 * ROUND_BYTES as f64;
pub(super) const RESERVE_PART: f64 = 0.25;

/// The segments that the store bills whatever is done, because they are younger than its minimum duration.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Young {
    /// They are behind this one.
    pub(super) behind: Option<Seq>,
    pub(super) totals: Totals,
}

/// What segments take, and what they take it for, as well as that is known now.
pub(super) struct Room {
    pub(super) stored_bytes: f64,
    pub(super) live_bytes: f64,
    /// What clients wrote behind the newest checkpoint, beside that.
    pub(super) written_bytes: f64,
}

impl Room {
    pub(super) fn ratio(&self) -> Option<f64> {
        (self.live_bytes > 0.0).then(|| self.stored_bytes / self.live_bytes)
    }
}

impl State {
    /// Whether it is time to clean, if what was written behind the newest checkpoint has killed what such writes killed lately.
    pub(super) fn garbage_exceeds(&self, ratio: f64) -> bool {
        self.room().is_some_and(|room| self.exceeds(&room, ratio))
    }

    pub(super) fn exceeds(&self, room: &Room, ratio: f64) -> bool {
        let live_bytes = room.live_bytes + self.growth.share() * room.written_bytes;
        let garbage_bytes = room.stored_bytes + room.written_bytes - live_bytes;
        let allowed_bytes = (ratio - 1.0) * live_bytes;
        garbage_bytes > allowed_bytes - RESERVE_BYTES.min(RESERVE_PART * allowed_bytes)
    }

    /// A checkpoint covers so many bytes of clients.
    pub(super) fn learn_growth(&mut self, written_bytes: u64) {
        if let Some(room) = self.room_of_all() {
            self.growth.measure(room.live_bytes, written_bytes as f64);
        }
    }

    /// Whether anything is to be cleaned while the bound holds: not where nothing is cleaned at all, nor where so little is
    /// garbage that moving would go on for ever.
    pub(super) fn may_pay(&self) -> bool {
        self.policy.ratio().is_finite()
            && self.room().is_some_and(|room| room.stored_bytes > RATIO_MIN * room.live_bytes)
    }

    /// By the clock of `times`.
    pub(super) fn wall(&self, now: Duration) -> Duration {
        self.wall_ahead + now
    }

    /// Finds out which segments are billed whatever is done.
    pub(super) fn find_young(&mut self, now: Duration) {
        let least = self.policy.tariff().least_duration();
        let wall = self.wall(now);
        self.young.behind = (!least.is_zero()).then(|| self.times.older_than(least, wall));
        self.count_young();
    }

    /// Their sums, which change with the counts.
    pub(super) fn count_young(&mut self) {
        if let (Some(behind), Some(segments)) = (self.young.behind, &self.segments) {
            self.young.totals = segments.totals_behind(behind);
        }
    }

    /// What is held against the bound: without what is billed whatever is done.
    pub(super) fn room(&self) -> Option<Room> {
        let Some(behind) = self.young.behind else { return self.room_of_all() };
        let old = self.segments.as_ref()?.totals().without(&self.young.totals);
        let vacated = self.counted(self.vacated.keys().copied().filter(|seq| *seq <= behind));
        let old = old.without(&vacated);
        let (stored_bytes, live_bytes) = (old.stored_bytes as f64, old.live_bytes as f64);
        Some(Room { stored_bytes, live_bytes, written_bytes: 0.0 })
    }

    /// The counts are those of the newest checkpoint. What was moved since is live there instead of where it was.
    pub(super) fn room_of_all(&self) -> Option<Room> {
        let totals = self.segments.as_ref()?.totals().without(&self.vacated());
        let sum = |of: fn(&&Uncovered) -> bool| {
            self.uncovered.values().filter(of).map(|segment| segment.stored_bytes).sum::<u64>() as f64
        };
        let unlearned =
            self.unlearned_blocks.min(totals.live_blocks) as f64 / totals.live_blocks.max(1) as f64;
        debug_assert!((0.0..=1.0).contains(&unlearned), "no more dies than is live");
        Some(Room {
            stored_bytes: totals.stored_bytes as f64 + sum(|segment| segment.is_moved),
            written_bytes: sum(|segment| !segment.is_moved),
            live_bytes: totals.live_bytes as f64 * (1.0 - unlearned) + sum(|segment| segment.is_moved),
        })
    }
}
