//! One backup: what changed of a volume into it, verified; then what is not needed any more goes.
//!
//! Nothing is removed, neither here nor there, before the new backup is complete and in its store. Never writes over what a backup shows
//! unless a snapshot of it has that.

use cistern_engine::{
    Error,
    units::SnapshotId,
    volume::{Overwrite, SnapshotStatus},
};
use serde::Serialize;

use crate::{
    cli::{
        Context,
        copying::{self, Brought, Leg, SentSum},
        marks::{Maker, is_shown, newest_common},
        read_rate::ReadRate,
        taken::{self, Taken},
        target::{OpenTarget, TargetVolume},
        transfer::TransferPart,
    },
    config::Resolved,
    control,
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, VolumeUrl},
    schedule::Schedule,
    signals::Interruption,
};

use super::earlier::FinishedBackup;

/// A volume and its backup.
pub(super) struct BackupPair<'a> {
    pub volume: &'a VolumeUrl,
    pub backup: VolumeUrl,
    encrypt: bool,
    /// What earlier runs made of the volume and did not come to their end with, oldest first.
    pub left: Vec<Taken>,
}

/// What came of one.
#[derive(Serialize)]
pub(super) struct BackupMade {
    pub snapshot: String,
    id: String,
    /// The backup was made for it.
    created: bool,
    /// The snapshot from which it went on.
    pub from: Option<String>,
    size_bytes: u64,
    /// Before compression.
    pub data_bytes: u64,
    /// What an earlier run had not come to its end with, and this one did before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<FinishedBackup>,
    /// Older backups that were not to be kept.
    pub removed: Vec<String>,
}

/// What all of them share.
pub(super) struct Making<'a> {
    pub context: &'a Context,
    pub settings: &'a Resolved,
    pub theirs: &'a Resolved,
    pub stop: &'a Interruption,
    /// Of each volume, per second.
    pub rate: Option<&'a ReadRate>,
    pub force: bool,
    /// New ones also of volumes that are not encrypted.
    pub encrypt: bool,
    pub take_over: bool,
    pub keep: Option<&'a Schedule>,
}

/// What of one is shown while it is made: how much was brought, and how much verified.
pub(super) type Parts<'a> = (TransferPart<'a>, TransferPart<'a>);

impl Making<'_> {
    fn target<'a>(&'a self, pair: &'a BackupPair<'_>) -> TargetVolume<'a> {
        let (context, settings, take_over) = (self.context, self.theirs, self.take_over);
        TargetVolume { context, settings, volume: &pair.backup, encrypt: pair.encrypt, take_over }
    }

    /// Whether both places can be reached, before anything is made.
    pub async fn look<'a>(&self, volume: &'a VolumeUrl, backup: VolumeUrl) -> Outcome<BackupPair<'a>> {
        let encrypt = taken::is_encrypted(self.context, volume).await? || self.encrypt;
        let pair = BackupPair { volume, backup, encrypt, left: Vec::new() };
        let target = self.target(&pair);
        target.refuse_if_served().await?;
        if target.is_missing().await? && pair.backup.may_be_unmounted() && !self.force {
            self.refuse_where_one_was(&pair).await?;
        }
        let left = taken::left(self.context, self.settings, Maker::Backup, volume, &pair.backup).await?;
        Ok(BackupPair { left, ..pair })
    }

    /// Refuses to begin anew in an empty place to which the volume was backed up before: it would fill the disk below a mount point, and
    /// take the bookmark from which the backup that is not mounted goes on.
    async fn refuse_where_one_was(&self, pair: &BackupPair<'_>) -> Outcome {
        let BackupPair { volume, backup, .. } = pair;
        if !taken::has_arrived(self.context, self.settings, Maker::Backup, volume, backup).await? {
            return Ok(());
        }
        let text =
            format!("there is no backup at {}, where one was made before (is it mounted?)", backup.url);
        Err(Failure::new(Kind::NotFound, text).hint("mount it; or --force begins anew there"))
    }

    pub async fn back_up(
        &self,
        pair: &BackupPair<'_>,
        taken: &Taken,
        parts: Parts<'_>,
    ) -> Outcome<BackupMade> {
        let target = self.target(pair);
        let mut opened = None;
        let brought = self.bring(pair, target, taken, &mut opened, &parts).await;
        let (finished, brought) = match (brought, &opened) {
            (Ok(brought), _) => brought,
            (Err(failure), opened) => {
                let broken = match opened {
                    Some(opened) => opened.break_off(failure).await,
                    None => failure.into(),
                };
                if broken.kept != Some(taken.status.id) {
                    taken.give_up(self.context, self.settings).await;
                }
                return Err(broken.failure);
            }
        };
        let opened = opened.expect("something was brought into it");
        let removed = self.finish(pair, taken, &opened, &brought, &parts.1).await;
        let closed = opened.close().await;
        let removed = removed?;
        closed?;
        Ok(BackupMade {
            snapshot: brought.name,
            id: taken.status.id.to_string(),
            created: brought.created,
            from: brought.from,
            size_bytes: taken.status.size_bytes,
            data_bytes: brought.data_bytes,
            finished,
            removed,
        })
    }

    /// Brings what changed into the backup, which is made if there is none.
    async fn bring<'a>(
        &self,
        pair: &BackupPair<'_>,
        target: TargetVolume<'a>,
        taken: &Taken,
        opened: &mut Option<OpenTarget<'a>>,
        parts: &Parts<'_>,
    ) -> Outcome<(Option<FinishedBackup>, Brought)> {
        *opened = self.stop.or(target.open()).await?;
        let (mut finished, mut theirs) = (None, Vec::new());
        if let Some(there) = opened.as_mut() {
            finished = self.finish_earlier(pair, there, parts).await?;
            there.volume.go_back().await?;
            theirs = there.volume.snapshots();
            theirs.retain(is_shown);
        } else {
            self.forget(pair, |_| false).await;
        }
        let mut leg = self.leg(taken, &theirs).await?;
        let overwrite = match opened.as_ref() {
            Some(there) => match self.stop.or(self.overwrite(pair, &leg, there, &theirs)).await? {
                Some(overwrite) => overwrite,
                None => {
                    leg = self.leg(taken, &[]).await?;
                    Overwrite::All
                }
            },
            None => {
                *opened = Some(target.make(&leg.header).await?);
                Overwrite::Nothing
            }
        };
        let opened = opened.as_mut().expect("there, or made");
        let name = taken.name_there(&opened.volume.snapshots());
        let brought = self.stop.or(leg.bring(opened, &name, overwrite, true, &parts.0)).await?;
        opened.keep();
        let known = || Failure::new(Kind::Exists, format!("{} has it already", pair.backup.url));
        Ok((finished, brought.ok_or_else(known)?))
    }

    async fn leg(&self, taken: &Taken, theirs: &[SnapshotStatus]) -> Outcome<Leg> {
        let leg = Leg::open(self.context, self.settings, &taken.snapshot, theirs, self.rate);
        self.stop.or(leg).await
    }

    /// What may be written over: what somebody wrote to a backup only where he says so. `None`: he does, and what is there cannot be read, so
    /// all of it is written anew.
    async fn overwrite(
        &self,
        pair: &BackupPair<'_>,
        leg: &Leg,
        there: &OpenTarget<'_>,
        theirs: &[SnapshotStatus],
    ) -> Outcome<Option<Overwrite>> {
        let (volume, url) = (&there.volume, &pair.backup.url);
        let base = leg.header.base.as_ref().and_then(|base| theirs.iter().find(|their| their.id == base.id));
        let is_nothing_lost = match base {
            Some(base) => volume.shows(base).await,
            None => Ok(theirs.is_empty() && volume.maps_nothing().await?),
        };
        match is_nothing_lost {
            Ok(true) => return Ok(Some(Overwrite::Nothing)),
            Ok(false) if self.force => return Ok(Some(Overwrite::All)),
            Ok(false) => {}
            Err(Error::Corrupt { .. }) if self.force => return Ok(None),
            Err(e) => return Err(Failure::from(e).context(url)),
        }
        let all = leg.source.shown.snapshots();
        if newest_common(&all, theirs, &leg.source.to, |_| true).is_none() {
            let failure = Failure::new(Kind::Exists, format!("{url} is no backup of {}", pair.volume.url));
            return Err(failure.hint(
                "they have no snapshot in common: choose another place; or --force overwrites what is there, and leaves its snapshots",
            ));
        }
        match theirs.iter().max_by_key(|snapshot| snapshot.at) {
            Some(newest) if volume.shows(newest).await? => {
                Ok(Some(if base.is_some() { Overwrite::All } else { Overwrite::Differing }))
            }
            _ => {
                let text = format!("{url} was written to since its last backup");
                let hint = format!("`cistern snapshot {url}@NAME` keeps that; --force writes over it");
                Err(Failure::new(Kind::Exists, text).hint(hint))
            }
        }
    }

    /// Verifies what has arrived; then what is not needed any more goes. Gives what was removed.
    async fn finish(
        &self,
        pair: &BackupPair<'_>,
        taken: &Taken,
        opened: &OpenTarget<'_>,
        brought: &Brought,
        part: &TransferPart<'_>,
    ) -> Outcome<Vec<String>> {
        self.verify(pair, taken, opened, &brought.name, brought.sum.as_ref(), part).await?;
        self.prune(pair, opened, taken.status.id).await
    }

    /// Verifies what has arrived under that name, by what was sent if that is known; then it becomes a bookmark on its volume. If it is damaged it goes.
    pub(super) async fn verify(
        &self,
        pair: &BackupPair<'_>,
        taken: &Taken,
        opened: &OpenTarget<'_>,
        name: &str,
        sent: Option<&SentSum>,
        part: &TransferPart<'_>,
    ) -> Outcome {
        let snapshot = SnapshotUrl { volume: pair.backup.clone(), name: name.to_owned() };
        let verified = self.stop.or(async {
            opened.volume.drain().await?;
            match sent {
                Some(sent) => copying::read_back(self.context, self.theirs, &snapshot, sent, part).await,
                None => self.compare(taken, &snapshot, part).await,
            }
        });
        let unverified = |failure: Failure| {
            let failure = failure.context(format!("{snapshot} is complete, but not verified"));
            failure.hint("the same command verifies it first")
        };
        if let Some(damage) = verified.await.map_err(unverified)? {
            let failure = self.withdraw(pair, opened, name, damage).await.map_err(unverified)?;
            taken.give_up(self.context, self.settings).await;
            return Err(failure);
        }
        let settled = taken.settle(self.context, self.settings).await;
        settled.map_err(|failure| failure.context(format!("{snapshot} is complete")))
    }

    /// Removes a backup that is not what was sent: what the volume showed before is put back. Gives what is to be said of it.
    async fn withdraw(
        &self,
        pair: &BackupPair<'_>,
        opened: &OpenTarget<'_>,
        name: &str,
        damage: Failure,
    ) -> Outcome<Failure> {
        let (volume, url) = (&opened.volume, &pair.backup.url);
        let all = volume.snapshots();
        let others = all.iter().filter(|snapshot| is_shown(snapshot) && snapshot.name != name);
        let put_back = match others.max_by_key(|snapshot| snapshot.at) {
            Some(before) => volume.put_back(&before.name).await,
            None => volume.trim(0, volume.size_bytes(), false).await,
        };
        let and_then = match put_back {
            Ok(()) => "the same command makes a new one",
            // What cannot be read cannot be put back, and what a rollback left is not known to be what was there.
            Err(Error::Corrupt { .. } | Error::Invalid(_)) => "--force writes all that is damaged anew",
            Err(e) => return Err(e.into()),
        };
        volume.remove_snapshot(name).await?;
        let text = format!("{}: this backup was removed again, the older ones stay", damage.text);
        let hint = format!("`cistern check {url} --data` finds out what else is affected; {and_then}");
        Ok(Failure { text, ..damage }.hint(hint))
    }

    async fn prune(
        &self,
        pair: &BackupPair<'_>,
        opened: &OpenTarget<'_>,
        newest: SnapshotId,
    ) -> Outcome<Vec<String>> {
        let mut removed = Vec::new();
        let Some(keep) = self.keep else { return Ok(removed) };
        for name in Maker::Backup.expired(keep, &opened.volume.snapshots(), newest) {
            let shown = format!("{}@{name}", pair.backup.url);
            if control::serving(&self.theirs.state_dir, &shown).await?.is_none() {
                opened.volume.remove_snapshot(&name).await?;
                removed.push(name);
            }
        }
        Ok(removed)
    }
}
