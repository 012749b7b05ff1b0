//! Making backups: a snapshot of all volumes, of one instant, and of each what changed into its backup. One that fails stops no other.

use std::collections::BTreeSet;

use cistern_engine::store::StoreUrl;
use clap::Args;
use futures_util::{StreamExt, stream};
use serde::Serialize;

use crate::{
    cli::{
        Context, copying::TargetKey, hooks::HookSettings, marks::Maker, read_rate::ReadRate, snapshots,
        taken, transfer::Transfer,
    },
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{VolumeUrl, place_url, volume_url},
    quantity::ByteSize,
    schedule::Schedule,
    signals::Interruption,
    terminal,
};

use super::{
    earlier::FinishedBackup,
    making::{BackupMade, BackupPair, Making},
};

/// Volumes that are copied at once.
const PARALLEL: usize = 4;
/// Bytes of memory of a volume that is written, at least.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

#[derive(Args)]
pub(in crate::cli) struct Run {
    /// URLs of the volumes
    #[arg(value_name = "URL", required = true, value_delimiter = ',', value_parser = volume_url)]
    volumes: Vec<VolumeUrl>,

    /// Where the backups are: for each volume one of its name in this place
    #[arg(long, value_name = "PLACE", required = true, value_parser = place_url)]
    to: Option<StoreUrl>,

    /// Which backups to keep, like 1d:7,1w:5,1M:12: the newest of each of the last seven days on which there is one, and so on. Others that
    /// this command made are removed, but for those that are held, cloned or shown. [default: all]
    #[arg(long, value_name = "PERIOD:COUNT,...")]
    keep: Option<Schedule>,

    #[command(flatten)]
    hooks: HookSettings,

    /// Read at most so many bytes per second of each volume from the store, like 50M
    ///
    /// @FILE stands for what that file says, and may say otherwise meanwhile: it is looked at once a second. If nothing is in it, there is no limit.
    #[arg(long, value_name = "RATE|@FILE")]
    rate: Option<ReadRate>,

    /// Overwrite what somebody wrote to a backup, or what is there in its place; begin anew in an empty place where backups were
    #[arg(long)]
    force: bool,

    /// Encrypt new backups, with a key file or a passphrase; those of encrypted volumes are always encrypted
    #[arg(long)]
    encrypt: bool,

    /// Take a backup from a host that is gone and did not release it
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

/// What came of one.
#[derive(Serialize)]
struct BackedUp {
    volume: String,
    backup: String,
    #[serde(flatten)]
    done: Option<BackupMade>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

impl Run {
    pub async fn run(&self, context: &Context, stop: &Interruption) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let mut theirs = self.to_key.settings(&settings);
        theirs.memory_bytes = (theirs.memory_bytes / PARALLEL as u64).max(MEMORY_BYTES_MIN);
        let making = Making {
            context,
            settings: &settings,
            theirs: &theirs,
            stop,
            rate: self.rate.as_ref(),
            force: self.force,
            encrypt: self.encrypt,
            take_over: self.take_over,
            keep: self.keep.as_ref(),
        };
        let (mut ready, mut results) = (Vec::new(), Vec::new());
        for (volume, backup) in self.pairs()? {
            match stop.or(making.look(volume, backup.clone())).await {
                Ok(pair) => ready.push(pair),
                Err(failure) if failure.kind == Kind::Interrupted => return Err(failure),
                Err(failure) => results.push(BackedUp::failed(volume, &backup, failure)),
            }
        }
        let mut post = Ok(());
        if !ready.is_empty() {
            let hooks = self.hooks.or(&context.file);
            let pairs: Vec<_> = ready.iter().map(|pair| (pair.volume, &pair.backup)).collect();
            let taken = taken::take(context, &settings, Maker::Backup, &pairs, &hooks, stop).await;
            let taken = taken.inspect_err(|_| results.iter().for_each(BackedUp::remark))?;
            post = taken.post;
            if let Err(failure) = &post {
                terminal::remark(format!("{}; the snapshots are made, and are copied", failure.text));
            }
            let shown = |what| Transfer::begin(what, ready.len(), self.json);
            let shown = (shown("backing up"), shown("verifying"));
            let each = ready.iter().zip(&taken.made).enumerate().map(|(n, (pair, taken))| {
                let parts = (shown.0.part(n), shown.1.part(n));
                async { BackedUp::of(pair, making.back_up(pair, taken, parts).await) }
            });
            results.extend(stream::iter(each).buffered(PARALLEL).collect::<Vec<_>>().await);
        }
        self.say(&results)?;
        failed(results)?;
        post.map_err(|failure| failure.hint("the snapshots were made before, and the backups are complete"))
    }

    /// Each volume with the place of its backup.
    fn pairs(&self) -> Outcome<Vec<(&VolumeUrl, VolumeUrl)>> {
        let place = self.to.as_ref().expect("clap asks for it");
        if place.path().is_some_and(|path| !path.is_dir()) {
            let failure =
                Failure::new(Kind::NotFound, format!("there is no directory {place} (is it mounted?)"));
            return Err(failure.hint("nothing makes it unasked: else backups would fill the disk below it"));
        }
        let (mut names, mut pairs) = (BTreeSet::new(), Vec::new());
        for volume in &self.volumes {
            let VolumeUrl { url, name } = volume;
            if !names.insert(name) {
                let failure = Failure::usage(format!("two of the volumes are called {name}"));
                return Err(failure.hint("in one place backups have different names: give each its own --to"));
            }
            let backup = VolumeUrl { url: place.child(name)?, name: name.clone() };
            if backup.url.to_string() == url.to_string() {
                return Err(Failure::usage(format!("{url} cannot be its own backup")));
            }
            pairs.push((volume, backup));
        }
        Ok(pairs)
    }

    fn say(&self, results: &[BackedUp]) -> Outcome {
        if self.json {
            return terminal::say_json(&results);
        }
        for (result, kept) in results.iter().filter_map(|result| Some((result, result.done.as_ref()?))) {
            let BackedUp { volume, backup, .. } = result;
            let since = kept.from.as_ref().map(|_| " of changes").unwrap_or_default();
            let data = ByteSize(kept.data_bytes);
            if let Some(FinishedBackup { snapshot, data_bytes, .. }) = &kept.finished {
                let rest = ByteSize(*data_bytes);
                terminal::say(format!(
                    "finished {backup}@{snapshot} of an earlier run: {rest} more, verified"
                ))?;
            }
            terminal::say(format!(
                "backed up {volume} to {backup}@{}: {data}{since}, verified",
                kept.snapshot
            ))?;
            for removed in &kept.removed {
                terminal::say(format!("removed {backup}@{removed}"))?;
            }
        }
        Ok(())
    }
}

/// Says which volumes are not backed up, if there are any.
fn failed(results: Vec<BackedUp>) -> Outcome {
    let count = results.len();
    if count > 1 {
        results.iter().for_each(BackedUp::remark);
    }
    let failures: Vec<(String, Failure)> =
        results.into_iter().filter_map(|result| Some((result.volume, result.error?))).collect();
    let Some((first, one)) = failures.first().cloned() else { return Ok(()) };
    if count == 1 {
        return Err(one);
    }
    let kind = match failures.iter().all(|(_, failure)| failure.kind == one.kind) {
        true => one.kind,
        false => Kind::Other,
    };
    let volumes: Vec<&str> = failures.iter().map(|(volume, _)| volume.as_str()).collect();
    let text = match volumes.as_slice() {
        [_] => format!("of {count} volumes one is not backed up: {first}"),
        all if all.len() == count => format!("none of {count} volumes is backed up"),
        some => format!("of {count} volumes {} are not backed up: {}", some.len(), some.join(", ")),
    };
    Err(Failure::new(kind, text).hint("the same command tries it again"))
}

impl BackedUp {
    /// Says why it failed, if it did.
    fn remark(&self) {
        let Some(failure) = &self.error else { return };
        let hint = failure.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        terminal::remark(format!("{}: {}{hint}", self.volume, failure.text));
    }

    fn of(pair: &BackupPair<'_>, done: Outcome<BackupMade>) -> BackedUp {
        match done {
            Ok(kept) => {
                let (volume, backup) = (pair.volume.url.to_string(), pair.backup.url.to_string());
                BackedUp { volume, backup, done: Some(kept), error: None }
            }
            Err(failure) => BackedUp::failed(pair.volume, &pair.backup, failure),
        }
    }

    fn failed(volume: &VolumeUrl, backup: &VolumeUrl, failure: Failure) -> BackedUp {
        let (volume, backup) = (volume.url.to_string(), backup.url.to_string());
        BackedUp { volume, backup, done: None, error: Some(failure) }
    }
}
