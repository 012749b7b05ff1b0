//! Making backups: a snapshot of all volumes, what changed of each into its backup, verified; then what is not needed any more goes.
//!
//! Nothing is removed, neither here nor there, before the new backup is complete and in its store. Never writes over what a backup shows
//! unless a snapshot of it has that.

use std::collections::BTreeSet;

use cistern_engine::{
    Error,
    store::StoreUrl,
    units::SnapshotId,
    volume::{Overwrite, SnapshotStatus},
};
use clap::Args;
use futures_util::{StreamExt, stream};
use serde::Serialize;

use crate::{
    cli::{
        Context,
        copying::{self, Brought, Leg, TargetKey},
        hooks::HookSettings,
        marks::{Maker, is_shown, newest_common},
        snapshots,
        taken::{self, Taken},
        target::{OpenTarget, TargetVolume},
        transfer::{Transfer, TransferPart},
    },
    config::{KeySettings, Resolved, StateSettings},
    control,
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, VolumeUrl, place_url, volume_url},
    quantity::ByteSize,
    schedule::Schedule,
    signals::Interruption,
    terminal,
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
    #[arg(long, value_name = "RATE")]
    rate: Option<ByteSize>,

    /// Overwrite what somebody wrote to a backup, or what is there in its place
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

/// A volume and its backup.
struct Pair<'a> {
    volume: &'a VolumeUrl,
    backup: VolumeUrl,
    encrypt: bool,
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

#[derive(Serialize)]
struct BackupMade {
    snapshot: String,
    id: String,
    /// The backup was made for it.
    created: bool,
    /// The snapshot from which it went on.
    from: Option<String>,
    size_bytes: u64,
    /// Before compression.
    data_bytes: u64,
    /// Older backups that were not to be kept.
    removed: Vec<String>,
}

/// What all of them share.
struct Making<'a> {
    run: &'a Run,
    context: &'a Context,
    settings: &'a Resolved,
    theirs: &'a Resolved,
    stop: &'a Interruption,
}

impl Run {
    pub async fn run(&self, context: &Context, stop: &Interruption) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let mut theirs = self.to_key.settings(&settings);
        theirs.memory_bytes = (theirs.memory_bytes / PARALLEL as u64).max(MEMORY_BYTES_MIN);
        let making = Making { run: self, context, settings: &settings, theirs: &theirs, stop };
        let (mut ready, mut results) = (Vec::new(), Vec::new());
        for (volume, backup) in self.pairs()? {
            match stop.or(making.look(volume, &backup)).await {
                Ok(encrypt) => ready.push(Pair { volume, backup, encrypt }),
                Err(failure) if failure.kind == Kind::Interrupted => return Err(failure),
                Err(failure) => results.push(BackedUp::failed(volume, &backup, failure)),
            }
        }
        let mut post = Ok(());
        if !ready.is_empty() {
            let pairs: Vec<_> = ready.iter().map(|pair| (pair.volume, &pair.backup)).collect();
            let taken = taken::take(context, &settings, Maker::Backup, &pairs, &self.hooks, stop).await;
            let taken = taken.inspect_err(|_| results.iter().for_each(BackedUp::remark))?;
            post = taken.post;
            if let Err(failure) = &post {
                terminal::remark(format!("{}; the snapshots are made, and are copied", failure.text));
            }
            let shown =
                (Transfer::begin("backing up", ready.len()), Transfer::begin("verifying", ready.len()));
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

impl Making<'_> {
    fn target<'a>(&'a self, pair: &'a Pair<'_>) -> TargetVolume<'a> {
        let (context, settings, take_over) = (self.context, self.theirs, self.run.take_over);
        TargetVolume { context, settings, volume: &pair.backup, encrypt: pair.encrypt, take_over }
    }

    /// Whether both places can be reached, before anything is made; gives whether a new backup is encrypted.
    async fn look(&self, volume: &VolumeUrl, backup: &VolumeUrl) -> Outcome<bool> {
        let encrypt = taken::is_encrypted(self.context, volume).await? || self.run.encrypt;
        let pair = Pair { volume, backup: backup.clone(), encrypt };
        let target = self.target(&pair);
        target.refuse_if_served().await?;
        target.is_missing().await?;
        Ok(encrypt)
    }

    async fn back_up(
        &self,
        pair: &Pair<'_>,
        taken: &Taken,
        parts: (TransferPart<'_>, TransferPart<'_>),
    ) -> Outcome<BackupMade> {
        let target = self.target(pair);
        let mut opened = None;
        let brought = self.bring(pair, target, taken, &mut opened, &parts.0).await;
        let brought = match (brought, &opened) {
            (Ok(brought), _) => brought,
            (Err(failure), opened) => {
                let failure = match opened {
                    Some(opened) => opened.go_back(failure).await,
                    None => failure,
                };
                taken.give_up(self.context, self.settings).await;
                return Err(failure);
            }
        };
        let opened = opened.expect("something was brought into it");
        let finished = self.finish(pair, taken, &opened, &brought, &parts.1).await;
        let closed = opened.close().await;
        let removed = finished?;
        closed?;
        Ok(BackupMade {
            snapshot: brought.name,
            id: taken.status.id.to_string(),
            created: brought.created,
            from: brought.from,
            size_bytes: taken.status.size_bytes,
            data_bytes: brought.data_bytes,
            removed,
        })
    }

    /// Brings what changed into the backup, which is made if there is none.
    async fn bring<'a>(
        &self,
        pair: &Pair<'_>,
        target: TargetVolume<'a>,
        taken: &Taken,
        opened: &mut Option<OpenTarget<'a>>,
        part: &TransferPart<'_>,
    ) -> Outcome<Brought> {
        *opened = self.stop.or(target.open()).await?;
        let mut theirs = Vec::new();
        if let Some(there) = opened.as_ref() {
            there.volume.go_back().await?;
            theirs = there.volume.snapshots();
            theirs.retain(is_shown);
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
        let brought = self.stop.or(leg.bring(opened, &name, overwrite, true, part)).await?;
        opened.keep();
        brought.ok_or_else(|| Failure::new(Kind::Exists, format!("{} has it already", pair.backup.url)))
    }

    async fn leg(&self, taken: &Taken, theirs: &[SnapshotStatus]) -> Outcome<Leg> {
        let leg = Leg::open(self.context, self.settings, &taken.snapshot, theirs, self.run.rate());
        self.stop.or(leg).await
    }

    /// What may be written over: what somebody wrote to a backup only where he says so. `None`: he does, and what is there cannot be read, so
    /// all of it is written anew.
    async fn overwrite(
        &self,
        pair: &Pair<'_>,
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
            Ok(false) if self.run.force => return Ok(Some(Overwrite::All)),
            Ok(false) => {}
            Err(Error::Corrupt { .. }) if self.run.force => return Ok(None),
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
        pair: &Pair<'_>,
        taken: &Taken,
        opened: &OpenTarget<'_>,
        brought: &Brought,
        part: &TransferPart<'_>,
    ) -> Outcome<Vec<String>> {
        let (context, settings) = (self.context, self.settings);
        opened.volume.drain().await?;
        let snapshot = SnapshotUrl { volume: pair.backup.clone(), name: brought.name.clone() };
        let back = copying::read_back(context, self.theirs, &snapshot, brought, part);
        let verified = self.stop.or(back).await;
        if let Err(failure) = &verified
            && failure.kind == Kind::Corrupt
        {
            opened.volume.remove_snapshot(&brought.name).await?;
            taken.give_up(context, settings).await;
            let text = format!("{}: this backup was removed again, the older ones stay", failure.text);
            let hint = format!(
                "`cistern check {} --data` finds out what else is affected; --force writes all that is damaged anew",
                pair.backup.url
            );
            return Err(Failure { text, ..failure.clone() }.hint(hint));
        }
        let settled = taken.settle(context, settings).await;
        verified.map_err(|failure| {
            failure
                .context(format!("{snapshot} is complete, but not verified"))
                .hint(format!("`cistern backup verify {snapshot}` does that"))
        })?;
        settled.map_err(|failure| failure.context(format!("{snapshot} is complete")))?;
        self.prune(pair, opened, taken.status.id).await
    }

    async fn prune(
        &self,
        pair: &Pair<'_>,
        opened: &OpenTarget<'_>,
        newest: SnapshotId,
    ) -> Outcome<Vec<String>> {
        let mut removed = Vec::new();
        let Some(keep) = &self.run.keep else { return Ok(removed) };
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

impl Run {
    fn rate(&self) -> Option<u64> {
        self.rate.map(|rate| rate.0)
    }
}

impl BackedUp {
    /// Says why it failed, if it did.
    fn remark(&self) {
        let Some(failure) = &self.error else { return };
        let hint = failure.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        terminal::remark(format!("{}: {}{hint}", self.volume, failure.text));
    }

    fn of(pair: &Pair<'_>, done: Outcome<BackupMade>) -> BackedUp {
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
