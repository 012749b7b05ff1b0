//! What an earlier run did not come to its end with, because it was killed or broke off: a backup that it had begun, or one that nobody has
//! verified. That is done first.
//!
//! What tells it is the volume: on it what has arrived and was verified is a bookmark, and what is a snapshot still is not that far. Never goes on
//! with what fits only by its name.

use cistern_engine::volume::Overwrite;
use serde::Serialize;

use crate::{
    cli::{copying::Leg, marks::is_shown, taken::Taken, target::OpenTarget},
    failure::{Kind, Outcome},
};

use super::making::{BackupPair, Making, Parts};

/// A backup that an earlier run began.
#[derive(Serialize)]
pub(super) struct FinishedBackup {
    pub snapshot: String,
    id: String,
    /// What was missing, before compression.
    pub data_bytes: u64,
}

impl Making<'_> {
    /// Brings what an earlier run began, verifies it, and takes what did not even come so far off the volume. Gives what there was to do.
    pub async fn finish_earlier(
        &self,
        pair: &BackupPair<'_>,
        opened: &mut OpenTarget<'_>,
        parts: &Parts<'_>,
    ) -> Outcome<Option<FinishedBackup>> {
        let data_bytes = self.bring_begun(pair, opened, parts).await?;
        let all = opened.volume.snapshots();
        let there =
            |left: &Taken| all.iter().find(|there| there.id == left.status.id && is_shown(there)).cloned();
        let mut finished = None;
        if let Some((left, there)) = pair.left.iter().rev().find_map(|left| Some((left, there(left)?))) {
            self.verify(pair, left, opened, &there.name, None, &parts.1).await?;
            finished =
                Some(FinishedBackup { snapshot: there.name, id: left.status.id.to_string(), data_bytes });
        }
        for left in pair.left.iter().filter(|left| there(left).is_none()) {
            left.give_up(self.context, self.settings).await;
        }
        Ok(finished)
    }

    /// Goes on with what is being received, if the volume has its snapshot still and both know what it began with. Gives how much that was.
    async fn bring_begun(
        &self,
        pair: &BackupPair<'_>,
        opened: &mut OpenTarget<'_>,
        parts: &Parts<'_>,
    ) -> Outcome<u64> {
        let Some(receiving) = opened.volume.receiving() else { return Ok(0) };
        let Some(left) = pair.left.iter().find(|left| left.status.id == receiving.of) else { return Ok(0) };
        let token = self.stop.or(async { Ok(opened.volume.resume_token().await?) }).await?;
        let Some(token) = token else { return Ok(0) };
        let leg = Leg::reopen(self.context, self.settings, &left.snapshot, &token, self.rate);
        let leg = match self.stop.or(leg).await {
            Err(failure) if failure.kind == Kind::NotFound => None,
            leg => leg?,
        };
        let Some(leg) = leg else { return Ok(0) };
        let there = opened.volume.snapshots();
        // Across a rollback everything is sent, and most of it is there. What cannot be read is written anew.
        let overwrite = match leg.header.base.is_none() && there.iter().any(is_shown) && !self.force {
            true => Overwrite::Differing,
            false => Overwrite::Nothing,
        };
        let name = left.name_there(&there);
        let brought = self.stop.or(leg.bring(opened, &name, overwrite, true, &parts.0)).await?;
        opened.keep();
        Ok(brought.map_or(0, |brought| brought.data_bytes))
    }
}
