//! What an earlier run did not come to its end with, because it was killed or broke off: a backup that it had begun, or one that nobody has
//! verified. That is done first.
//!
//! What tells it is the volume: on it what has arrived and was verified is a bookmark, and what is a snapshot still is not that far. Never goes on
//! with what fits only by its name.

use cistern_engine::{
    units::SnapshotId,
    volume::{Overwrite, SnapshotStatus},
};
use serde::Serialize;

use crate::{
    cli::{copying::Leg, marks::is_shown, target::OpenTarget},
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
    /// Brings what an earlier run began, and verifies it. Of what did not even come so far, nothing is left on the volume. Gives what there was
    /// to do.
    pub async fn finish_earlier(
        &self,
        pair: &BackupPair<'_>,
        opened: &mut OpenTarget<'_>,
        parts: &Parts<'_>,
    ) -> Outcome<Option<FinishedBackup>> {
        let receiving = opened.volume.receiving().map(|what| what.of);
        let all = opened.volume.snapshots();
        // What takes many runs holds no space for each of them.
        self.forget(pair, |id| receiving == Some(id) || arrived(&all, id).is_some()).await;
        let data_bytes = self.bring_begun(pair, opened, parts).await?;
        let all = opened.volume.snapshots();
        let newest = pair.left.iter().rev().find_map(|left| Some((left, arrived(&all, left.status.id)?)));
        let Some((left, name)) = newest else { return Ok(None) };
        self.verify(pair, left, opened, name, None, &parts.1).await?;
        Ok(Some(FinishedBackup { snapshot: name.to_owned(), id: left.status.id.to_string(), data_bytes }))
    }

    /// Takes what earlier runs left off the volume, but for some of it.
    pub async fn forget(&self, pair: &BackupPair<'_>, keep: impl Fn(SnapshotId) -> bool) {
        for left in pair.left.iter().filter(|left| !keep(left.status.id)) {
            left.give_up(self.context, self.settings).await;
        }
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

/// The name of a snapshot where it has arrived.
fn arrived(all: &[SnapshotStatus], id: SnapshotId) -> Option<&str> {
    all.iter().find(|there| there.id == id && is_shown(there)).map(|there| there.name.as_str())
}
