//! `cistern copy`: a snapshot of a volume, or its history, into another volume, in whatever store.

use cistern_engine::volume::SnapshotStatus;
use clap::Args;

use crate::{
    cli::{
        Context,
        copying::{Flight, TargetKey},
        hooks::Hooks,
        marks::{Maker, is_shown},
        read_rate::ReadRate,
        snapshots,
        taken::{self, Taken},
        target::{OpenTarget, TargetVolume, overwrite},
    },
    config::{KeySettings, Resolved, StateSettings},
    failure::{Failure, Outcome},
    place::{SnapshotUrl, StateUrl, VolumeUrl, state_url, volume_url},
    signals::Interruption,
    terminal,
};

/// Copy a snapshot of a volume into another volume, in whatever store
///
/// Into a new volume, which is made; or into one that was copied before, which is brought to the newer snapshot: then only what changed
/// since the newest snapshot that both have is read and written. A copied snapshot is the same snapshot, with its id. Nobody may serve the volume that is written meanwhile; the
/// one that is read may be in use. It counts as a whole. If it is interrupted or killed, or a store fails, the other volume is unfinished, and what came is kept: the same
/// command goes on from there, and `cistern receive --abort NEW-URL` goes back. If something else fails, what was there before is put back.
///
/// Without @NAME a snapshot is made for it, of what the volume holds now. It stays in the copy, as copy-TIME; on the volume a bookmark is
/// left of it, from which the next copy goes on. What an earlier run began is finished first.
///
/// An encrypted volume is copied into an encrypted one.
#[derive(Args)]
pub(super) struct Copy {
    /// URL of the volume; with @NAME that snapshot
    #[arg(value_name = "URL[@NAME]", value_parser = state_url)]
    from: StateUrl,

    /// URL of the volume that it is copied into
    #[arg(value_name = "NEW-URL", value_parser = volume_url)]
    to: VolumeUrl,

    /// Copy the snapshots before it too, oldest first: those that are newer than what both have
    #[arg(long)]
    snapshots: bool,

    /// Read at most so many bytes per second from the store, like 50M
    ///
    /// @FILE stands for what that file says, and may say otherwise meanwhile: it is looked at once a second. If nothing is in it, there is no limit.
    #[arg(long, value_name = "RATE|@FILE")]
    rate: Option<ReadRate>,

    /// Overwrite what is there, or what was written since the snapshot that both have
    #[arg(long)]
    force: bool,

    /// As --force, but read what is there, and write only what differs
    #[arg(long)]
    differential: bool,

    /// Encrypt a new volume, with a key file or a passphrase
    #[arg(long)]
    encrypt: bool,

    /// Take the volume that is written from a host that is gone and did not release it
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

/// What is to be copied, oldest first, each with the name that it gets.
struct WantedSnapshots {
    snapshots: Vec<(SnapshotStatus, String)>,
    /// The last of these names.
    newest: String,
    /// It was made for this.
    taken: Option<Taken>,
}

impl Copy {
    pub async fn run(self, context: &Context) -> Outcome {
        Interruption::on_signal(async |stop| self.copy(context, &stop).await).await?
    }

    async fn copy(&self, context: &Context, stop: &Interruption) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let theirs = self.to_key.settings(&settings);
        let (from, volume) = (&self.from.volume, &self.to);
        if from.url.to_string() == volume.url.to_string() {
            return Err(Failure::usage(format!("{} cannot be copied into itself", from.url)));
        }
        let encrypt = self.encrypt || stop.or(taken::is_encrypted(context, from)).await?;
        let target = TargetVolume { context, settings: &theirs, volume, encrypt, take_over: self.take_over };
        stop.or(target.refuse_if_served()).await?;
        let opened = stop.or(target.open()).await?;
        let rate = self.rate.as_ref();
        let flight = Flight { context, settings: &settings, from, target, rate, json: self.json, stop };
        let wanted = match self.wanted(context, &settings, opened.as_ref(), stop).await {
            Ok(wanted) => wanted,
            Err(failure) => {
                // Nothing was begun; what an earlier run left stays.
                if let Some(opened) = &opened {
                    let _ = opened.close().await;
                }
                return Err(failure);
            }
        };
        let landed = flight.bring(opened, wanted.snapshots, overwrite(self.force, self.differential)).await;
        if let Some(taken) = &wanted.taken {
            match &landed {
                Ok(_) => taken.settle(context, &settings).await?,
                Err(broken) if broken.kept == Some(taken.status.id) => {}
                Err(_) => taken.give_up(context, &settings).await,
            }
        }
        let landed = landed?;
        if landed.brought.is_empty() && !self.json {
            let text = format!("{} has {} already; nothing was done", self.to.url, wanted.newest);
            return terminal::say(text);
        }
        landed.say("copied", &self.to.url, self.json)
    }

    async fn wanted(
        &self,
        context: &Context,
        settings: &Resolved,
        opened: Option<&OpenTarget<'_>>,
        stop: &Interruption,
    ) -> Outcome<WantedSnapshots> {
        let volume = &self.from.volume;
        let there = opened.map(|opened| opened.volume.snapshots()).unwrap_or_default();
        let mut begun = None;
        let (newest, name, taken) = match &self.from.snapshot {
            Some(name) => {
                let snapshot = SnapshotUrl { volume: volume.clone(), name: name.clone() };
                let found = stop.or(taken::named(context, settings, &snapshot)).await?;
                (found, name.clone(), None)
            }
            None => {
                // What an earlier run has begun comes first: then that is not lost.
                if let Some(receiving) = opened.and_then(|opened| opened.volume.receiving()) {
                    let left = taken::left(context, settings, Maker::Copy, volume, &self.to);
                    let left = stop.or(left).await?.into_iter().find(|left| left.status.id == receiving.of);
                    begun = left.map(|left| (left.name_there(&there), left.status));
                }
                let pairs = [(volume, &self.to)];
                let none = Hooks::none();
                let made = taken::take(context, settings, Maker::Copy, &pairs, &none, stop).await?.made;
                let taken = made.into_iter().next().expect("one was asked for");
                (taken.status.clone(), taken.name_there(&there), Some(taken))
            }
        };
        let mut wanted = Vec::new();
        if self.snapshots {
            let all = stop.or(snapshots::list(context, settings, volume)).await?;
            let is_before = |snapshot: &SnapshotStatus| {
                is_shown(snapshot)
                    && snapshot.id != newest.id
                    && snapshot.at.is_some_and(|at| Some(at) <= newest.at)
            };
            wanted.extend(all.into_iter().filter(is_before).map(|snapshot| match &begun {
                Some((name, begun)) if begun.id == snapshot.id => (snapshot, name.clone()),
                _ => (snapshot.clone(), snapshot.name),
            }));
        } else if let Some((name, begun)) = begun {
            wanted.push((begun, name));
        }
        wanted.push((newest, name.clone()));
        Ok(WantedSnapshots { snapshots: wanted, newest: name, taken })
    }
}
