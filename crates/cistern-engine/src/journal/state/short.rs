//! What a disk without room means for the state: nothing more is appended until something was written again.

use std::time::Duration;

use super::{JournalState, Phase};
use crate::journal::shortage::Shortage;

impl JournalState {
    /// The disk had no room: until there is some, nothing more is appended. Says whether that is news.
    pub fn run_short(&mut self, now: Duration, why: String) -> bool {
        self.grants.clear(); // whoever had one waits again
        self.disk.run_short(now, why)
    }

    /// Whether the writer goes on trying, because there is no shortage or it is tried once more now; otherwise it holds back.
    pub fn tries(&mut self, is_due: bool) -> bool {
        if self.disk.holds_back() && (is_due || matches!(self.phase, Phase::Closing)) {
            self.disk.try_again();
        }
        !self.disk.holds_back()
    }

    /// Something was written, so there is room: gives the shortage that has ended.
    pub fn found_room(&mut self) -> Option<Shortage> {
        let before = self.disk.found_room();
        if before.is_some() {
            self.grant();
        }
        before
    }

    pub fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing)
    }
}
