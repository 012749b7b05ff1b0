//! A volume from a backup.

use cistern_engine::volume::{Overwrite, SnapshotStatus};
use clap::Args;

use crate::{
    cli::{
        Context,
        copying::{Flight, Landed, TargetKey},
        read_rate::ReadRate,
        snapshots, taken,
        target::{OpenTarget, TargetVolume, overwrite},
    },
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, StateUrl, VolumeUrl, state_url, volume_url},
    signals::Interruption,
    terminal,
};

use super::browse;

/// Restore a backup: into a new volume, or over what a volume holds
///
/// It counts as a whole. If it is interrupted or killed, or a store fails, the volume is unfinished, and what came is kept: the same command goes on from there, and `cistern
/// receive --abort NEW-URL` goes back. If something else fails, the volume is as it was. The restored snapshot is the same as that of the backup, so the next
/// backup of the volume goes on from it.
#[derive(Args)]
pub(in crate::cli) struct RestoreBackup {
    /// URL of the backup; with @SNAPSHOT that one, else the newest
    #[arg(value_name = "PLACE/NAME[@SNAPSHOT]", value_parser = state_url)]
    backup: StateUrl,

    /// URL of the volume
    #[arg(value_name = "NEW-URL", value_parser = volume_url)]
    to: VolumeUrl,

    /// Overwrite what the volume holds
    #[arg(long)]
    force: bool,

    /// As --force, but read what is there, and write only what differs
    #[arg(long)]
    differential: bool,

    /// Read at most so many bytes per second from the store, like 50M
    ///
    /// @FILE stands for what that file says, and may say otherwise meanwhile: it is looked at once a second. If nothing is in it, there is no limit.
    #[arg(long, value_name = "RATE|@FILE")]
    rate: Option<ReadRate>,

    /// Encrypt a new volume, with a key file or a passphrase; from an encrypted backup it always is
    #[arg(long)]
    encrypt: bool,

    /// Take the volume from a host that is gone and did not release it
    #[arg(long)]
    take_over: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    to_key: TargetKey,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

impl RestoreBackup {
    pub async fn run(&self, context: &Context, stop: &Interruption) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let theirs = self.to_key.settings(&settings);
        let (from, volume) = (&self.backup.volume, &self.to);
        let snapshot = match &self.backup.snapshot {
            Some(name) => SnapshotUrl { volume: from.clone(), name: name.clone() },
            None => stop.or(browse::newest(context, &settings, from)).await?,
        };
        let wanted = stop.or(taken::named(context, &settings, &snapshot)).await?;
        let encrypt = self.encrypt || stop.or(taken::is_encrypted(context, from)).await?;
        let target = TargetVolume { context, settings: &theirs, volume, encrypt, take_over: self.take_over };
        stop.or(target.refuse_if_served()).await?;
        let opened = stop.or(target.open()).await?;
        if let Some(opened) = &opened {
            match self.clear(opened, &wanted).await {
                Ok(false) => {}
                Ok(true) => {
                    opened.close().await?;
                    let nothing = Landed { created: false, brought: Vec::new() };
                    return match self.json {
                        true => nothing.say("restored", &volume.url, true),
                        false => terminal::say(format!("{} shows {} already", volume.url, wanted.name)),
                    };
                }
                Err(failure) => return Err(opened.go_back(failure).await),
            }
        }
        let rate = self.rate.as_ref();
        let flight = Flight { context, settings: &settings, from, target, rate, json: self.json, stop };
        let name = wanted.name.clone();
        let landed =
            flight.bring(opened, vec![(wanted, name)], overwrite(self.force, self.differential)).await?;
        landed.say("restored", &volume.url, self.json)
    }

    /// Takes a bookmark of what is restored out of the way: it comes back as a snapshot. Gives whether the volume shows it already.
    async fn clear(&self, opened: &OpenTarget<'_>, wanted: &SnapshotStatus) -> Outcome<bool> {
        let volume = &opened.volume;
        if volume.receiving().is_some_and(|receiving| receiving.of == wanted.id) {
            return Ok(false); // an earlier run did that, and began
        }
        volume.go_back().await?;
        let Some(there) = volume.snapshots().into_iter().find(|there| there.id == wanted.id) else {
            return Ok(false);
        };
        if there.is_bookmark {
            if overwrite(self.force, self.differential) != Overwrite::Nothing {
                volume.remove_snapshot(&there.name).await?;
            }
            return Ok(false);
        }
        if volume.shows(&there).await? {
            return Ok(true);
        }
        let url = &self.to.url;
        let failure =
            Failure::new(Kind::Exists, format!("{url} has that snapshot itself, as {}", there.name));
        Err(failure.hint(format!("`cistern rollback {url}@{}` brings it back at once", there.name)))
    }
}
