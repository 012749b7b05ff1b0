//! What of the state makes records survive the process: which groups are staged next, and who waits for that.

use std::time::Duration;

use super::{
    super::staging::{StagedPiece, StagingRoom},
    JournalState, Phase,
};
use crate::{
    error::Result,
    journal::waiters::{ReplyReceiver, ReplySender},
};

/// What has to happen so that something survives the process.
pub(in crate::journal) enum Outliving {
    /// Nothing: it does.
    Done,
    Wait(ReplyReceiver),
    /// This is to be staged, by who asked.
    Stage(StagedPiece),
}

impl JournalState {
    /// What is acknowledged may be staged from now on.
    pub fn stage(&mut self) {
        self.staging = Some(StagingRoom::default());
    }

    /// What has to happen so that everything before `to` survives the process. The time is asked only where something is to be
    /// staged; without one, it is not.
    pub fn outlive(&mut self, to: u64, now: impl FnOnce() -> Option<Duration>) -> Result<Outliving> {
        if to <= self.staged {
            return Ok(Outliving::Done);
        }
        if let Some(why) = self.stopped() {
            return Err(why);
        }
        assert!(to <= self.at.appended, "nobody waits for what was not appended");
        if self.is_staging {
            return Ok(Outliving::Wait(self.waiters.wait_staged(to)));
        }
        match now().and_then(|now| self.take_piece(now)) {
            Some(piece) => Ok(Outliving::Stage(piece)),
            None => Ok(Outliving::Wait(self.waiters.wait_written(to))),
        }
    }

    /// Everything that is neither written nor staged, if there is room for it. Without what lies before it it would be nothing, so it
    /// begins where the ring or what was staged before ends.
    fn take_piece(&mut self, now: Duration) -> Option<StagedPiece> {
        if !matches!(self.phase, Phase::Running) || self.staging.is_none() {
            return None;
        }
        self.seal();
        debug_assert!(self.at.written <= self.staged, "what is written needs no staging");
        let first = self.memory.partition_point(|group| group.start().0 < self.staged);
        let groups: Vec<_> = self.memory.range(first..).cloned().collect();
        debug_assert!(
            groups.first().is_none_or(|group| group.start().0 == self.staged),
            "what is staged goes on where the last piece or the ring ends"
        );
        let piece = self.staging.as_mut()?.take(groups, self.at.durable, now)?;
        self.is_staging = true;
        Some(piece)
    }

    /// A piece was staged. Gives those who waited for it, and what is to be staged next, for those who came meanwhile.
    pub fn finish_staging(
        &mut self,
        piece: &StagedPiece,
        goes_on: bool,
        (began, now): (Duration, Duration),
    ) -> (Vec<ReplySender>, Option<StagedPiece>) {
        debug_assert!(self.is_staging, "one at a time");
        self.is_staging = false;
        if let Some(room) = &mut self.staging {
            room.note_time(began, now);
        }
        self.staged = self.staged.max(piece.end);
        let done = self.waiters.outlived(self.staged);
        let next = if goes_on && self.waiters.want_staging() { self.take_piece(now) } else { None };
        if next.is_none() {
            self.waiters.give_up_staging();
        }
        (done, next)
    }

    /// A piece was staged in vain: who waits for it waits for the ring.
    pub fn pass_over_staging(&mut self) {
        self.is_staging = false;
        self.waiters.give_up_staging();
    }

    /// A piece was not staged: nothing is from now on. What was staged before stays where it is until it is in the ring.
    pub fn stop_staging(&mut self) {
        self.staging = None;
        self.pass_over_staging();
    }
}
