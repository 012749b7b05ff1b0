//! How what was appended comes to survive the process: who asks for it stages it, together with what others have appended.

use std::time::Duration;

use super::{
    Journal,
    staging::StagedPiece,
    state::{JournalState, Outliving},
    waiters::GiveWay,
};
use crate::{
    error::{Error, Result},
    units::JournalPos,
};

/// The turn of who stages. Where it ends early, because the file cannot be written or its caller has gone, nothing is staged any more.
struct StagingTurn<'a>(&'a Journal);

impl Drop for StagingTurn<'_> {
    fn drop(&mut self) {
        self.0.with_state(JournalState::stop_staging);
    }
}

impl Journal {
    /// Waits until everything before `to` survives the end of this process, though not of the host: it is staged, or in the ring.
    pub async fn outlive(&self, to: JournalPos) -> Result<()> {
        // What else has just arrived is appended first, and shares the piece.
        GiveWay::default().await;
        loop {
            match self.with_state(|state| state.outlive(to.0, || self.time_to_stage()))? {
                Outliving::Done => return Ok(()),
                Outliving::Wait(answer) => return answer.await.unwrap_or(Err(Error::Closed)),
                Outliving::Stage(piece) => Box::pin(self.stage(piece)).await,
            }
        }
    }

    /// The time, if something may be staged now. Where it is not known whether this process still has the journal, the ring's writer looks.
    fn time_to_stage(&self) -> Option<Duration> {
        let now = self.shared.env.now();
        self.shared.owner.may_write(now).then_some(now)
    }

    /// Stages a piece, and what others append and wait for meanwhile.
    async fn stage(&self, piece: StagedPiece) {
        /// Pieces that one caller stages: then the others, who may come for ever, wait for the ring.
        const PIECES_MAX: u32 = 4;
        let turn = StagingTurn(self);
        let Some(file) = &self.shared.staging else { return };
        let mut next = Some(piece);
        for n in 1.. {
            let Some(piece) = next.take() else { break };
            let began = self.shared.env.now();
            let headers = self.shared.scribe.lock().headers(&piece.groups, piece.durable);
            if let Err(error) = piece.write(&**file, &headers).await {
                tracing::warn!(journal = %self.shared.name, %error, "every write waits for the disk from now on: nothing can be staged");
                return;
            }
            // The time went by without a look: whether the piece counts is not known.
            let now = self.shared.env.now();
            if !self.shared.owner.is_sure(now) {
                self.with_state(JournalState::pass_over_staging);
                break;
            }
            let goes_on = n < PIECES_MAX && self.shared.owner.may_write(now);
            let (done, following) =
                self.with_state(|state| state.finish_staging(&piece, goes_on, (began, now)));
            for answer in done {
                let _ = answer.send(Ok(())); // whoever waited may have given up
            }
            next = following;
        }
        std::mem::forget(turn);
    }
}
