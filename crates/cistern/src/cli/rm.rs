//! `cistern rm`: remove a snapshot, put a volume into the trash, or delete it from its store.

use std::{path::Path, time::Duration};

use cistern_engine::{
    Error,
    codec::KeySource,
    store::{StoreUrl, remove_store},
    units::{VolumeId, utc},
    volume::{
        admin,
        trash::{self, InTrash, Removal, TrashDeletion},
    },
};
use clap::Args;

use crate::{
    cli::{Context, snapshots},
    config::{KeySettings, StateSettings},
    control::{self, SnapshotChange},
    daemon::{host_name, volume_disk},
    failure::{Failure, Kind, Outcome},
    known::Known,
    place::{COMMAND_PATIENCE, OpenStore, SnapshotUrl, VolumeUrl, place_url, snapshot_url, volume_url},
    quantity::{ByteSize, Span},
    secret, terminal,
};

mod expired;

/// How long a volume stays in the trash where nothing else is said.
const KEEP: &str = "24h";
/// The longest that can be asked for: a century.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Remove snapshots; or put a volume into the trash, or delete it for good
///
/// Snapshots (URL@NAME, any number of them) are removed at once, one after the other, and for good: what nothing else holds is deleted in
/// the background. One that is held is not removed, and neither are those behind it.
///
/// In the trash everything stays in the store as it is, at its price, and nothing opens the volume. `cistern restore`
/// brings it back, `cistern ls --trash` lists what is there. When its time is over nothing deletes it by itself:
/// that is what `cistern rm --expired PLACE` is for, from a timer for example. Until then it can be restored.
///
/// Refuses while the volume is served or claimed. With --now it is deleted at once, after asking for its name on a
/// terminal; that also finishes a deletion that was interrupted. What a removed volume left is deleted either way.
#[derive(Args)]
pub(super) struct Rm {
    /// URL of the volume, or URL@NAME of each snapshot; with --expired of a place, like s3://bucket/ or /srv/volumes
    #[arg(value_name = "URL", required = true, value_parser = target)]
    targets: Vec<RemovalTarget>,

    /// Of a snapshot: say what removing it would free, and change nothing
    #[arg(long, conflicts_with_all = ["now", "expired", "force"])]
    dry_run: bool,

    /// Of a snapshot: leave a bookmark, its name and position: a base for `cistern diff` and for NBD clients that holds no data
    #[arg(long, conflicts_with_all = ["now", "expired", "force", "dry_run"])]
    bookmark: bool,

    /// How long it can be restored at least, by the clock of this host. Given again, the time begins anew
    #[arg(long, value_name = "TIME", default_value = KEEP)]
    keep: Span,

    /// Delete it for good, at once
    #[arg(long, conflicts_with_all = ["keep", "expired"])]
    now: bool,

    /// Delete for good every volume in this place whose time in the trash is over
    #[arg(long, conflicts_with = "keep")]
    expired: bool,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,

    /// Remove it even though it is claimed or, with --now, damaged, or a clone of a volume that is not there to be told
    #[arg(long, conflicts_with = "expired")]
    force: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// What is to be removed. With --expired it is a place, whatever it looks like: a directory may have an @ in its name.
#[derive(Clone, Debug)]
struct RemovalTarget {
    /// Nothing where it can be a snapshot only.
    url: Option<StoreUrl>,
    snapshot: Option<SnapshotUrl>,
}

fn target(text: &str) -> Result<RemovalTarget, String> {
    match (place_url(text), snapshot_url(text).ok()) {
        (Err(wrong), None) => Err(wrong),
        (place, snapshot) => Ok(RemovalTarget { url: place.ok(), snapshot }),
    }
}

/// What lies at a URL.
enum There {
    Volume(VolumeId),
    Clone(VolumeId),
    InTrash(InTrash),
    /// No identity, or a damaged one.
    Remains(&'static str),
}

impl Rm {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = self.state.clone().resolve(&context.file)?;
        let snapshots: Option<Vec<&SnapshotUrl>> =
            self.targets.iter().map(|target| target.snapshot.as_ref()).collect();
        if let Some(snapshots) = snapshots.filter(|_| !self.expired) {
            return self.remove_snapshots(context, &snapshots).await;
        }
        let [RemovalTarget { url: Some(url), .. }] = &self.targets[..] else {
            return Err(Failure::usage(
                "one volume or place at a time; of several, all are snapshots: URL@NAME",
            ));
        };
        if self.expired {
            return expired::delete(context, url, &state_dir, self.yes).await;
        }
        if self.dry_run || self.bookmark {
            return Err(Failure::usage("--dry-run and --bookmark are about a snapshot: write URL@NAME"));
        }
        let volume = volume_url(&url.to_string()).map_err(Failure::usage)?;
        let open = volume.open(&context.env, COMMAND_PATIENCE).await?;
        let there = self.look(context, &volume, &open).await?;
        self.refuse_if_served(&volume, &state_dir, there.id()).await?;
        match there {
            There::Volume(_) | There::Clone(_) if !self.now => {
                self.put_into_trash(context, &volume, &open).await
            }
            There::InTrash(found) if !self.now && !found.deleting => {
                self.put_into_trash(context, &volume, &open).await
            }
            there => self.delete(context, &volume, &open, there, &state_dir).await,
        }
    }

    async fn remove_snapshots(&self, context: &Context, all: &[&SnapshotUrl]) -> Outcome {
        if self.now || self.force {
            return Err(Failure::usage(
                "--now and --force are about volumes: a snapshot is always removed at once",
            ));
        }
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        if self.dry_run {
            for snapshot in all {
                let bytes = snapshots::unique_bytes(context, &settings, snapshot).await?;
                let frees = ByteSize(bytes);
                terminal::say(format!("{snapshot}: removing it frees {frees} (before compression)"))?;
            }
            return Ok(());
        }
        for snapshot in all {
            if let Some((_, served)) = control::serving(&settings.state_dir, &snapshot.to_string()).await? {
                let failure = Failure::new(Kind::InUse, format!("{snapshot} is being served"));
                return Err(failure.hint(format!("stop the daemon that serves {} first", served.name)));
            }
        }
        let (change, left) = match self.bookmark {
            true => (SnapshotChange::LeaveBookmark, "; a bookmark is left"),
            false => (SnapshotChange::Remove, ""),
        };
        let removed = |snapshot: &SnapshotUrl| terminal::say(format!("removed {snapshot}{left}"));
        for of_one_volume in all.chunk_by(|a, b| a.volume.url == b.volume.url) {
            let changes: Vec<_> = of_one_volume.iter().map(|snapshot| (*snapshot, &change)).collect();
            snapshots::change(context, &settings, &changes, removed).await?;
        }
        Ok(())
    }

    async fn look(&self, context: &Context, volume: &VolumeUrl, open: &OpenStore) -> Outcome<There> {
        match trash::look(&open.store).await {
            Ok(Some(found)) => return Ok(There::InTrash(found)),
            Ok(None) | Err(Error::NotFound(_)) => {}
            Err(_) if self.now && self.force => return Ok(There::Remains("")),
            Err(e) => return Err(volume.explain(e)),
        }
        match admin::info(&context.env, &open.store, &KeySource::None).await {
            Ok(info) if info.origin.is_some() => Ok(There::Clone(info.volume)),
            Ok(info) => Ok(There::Volume(info.volume)),
            Err(Error::NotFound(_)) if self.force || admin::is_half_removed(&open.store).await? => {
                Ok(There::Remains(
                    " has no identity: creating or removing it was interrupted, or a part of its place cannot be seen now (is \
                     everything mounted?)",
                ))
            }
            Err(_) if self.now && self.force => Ok(There::Remains("")),
            Err(e) => Err(volume.explain(e)),
        }
    }

    async fn put_into_trash(&self, context: &Context, volume: &VolumeUrl, open: &OpenStore) -> Outcome {
        if self.keep.0.is_zero() || self.keep.0 > KEEP_MAX {
            let failure = Failure::usage(format!("a volume cannot be kept in the trash for {}", self.keep));
            return Err(failure.hint("--keep takes up to a century, like 7d; --now deletes it at once"));
        }
        let found = self.note_removal(context, volume, open, self.keep.0).await?;
        let (url, until) = (&volume.url, utc(found.until_ms));
        terminal::say(format!("{url} is in the trash, until {until} at least"))?;
        terminal::say(format!("back:    cistern restore {url}"))
    }

    async fn note_removal(
        &self,
        context: &Context,
        volume: &VolumeUrl,
        open: &OpenStore,
        keep: Duration,
    ) -> Outcome<InTrash> {
        let removal = Removal { keep, force: self.force, host: host_name() };
        let key = self.key.clone().or(&context.file);
        let removed = secret::unlocking(&key, &volume.name, |key| {
            let (env, store, removal) = (&context.env, &open.store, removal.clone());
            async move { trash::remove(env, store, &key, removal).await }
        });
        let (found, _) = removed.await.map_err(|failure| match failure.kind {
            Kind::InUse => {
                failure.hint("--force removes it even so; whoever writes to it then stops with errors")
            }
            _ => failure.context(&volume.url),
        })?;
        Ok(found)
    }

    async fn delete(
        &self,
        context: &Context,
        volume: &VolumeUrl,
        open: &OpenStore,
        there: There,
        state_dir: &Path,
    ) -> Outcome {
        let url = &volume.url;
        let warning = match &there {
            There::Volume(_) | There::Clone(_) => format!("This deletes {url} and all its data, for good."),
            There::InTrash(_) => {
                format!("{url} is in the trash. This deletes it and all its data, for good.")
            }
            There::Remains(why) => format!("{url}{why}. This deletes what is left of the volume, for good."),
        };
        terminal::confirm(&warning, &volume.name, self.yes)?;
        match &there {
            There::InTrash(_) => delete_from_trash(context, volume, open, self.deletion()).await?,
            There::Clone(_) => {
                if !self.force {
                    trash::refuse_untold(&open.stores).await.map_err(|e| volume.explain(e))?;
                }
                // By way of the trash: nobody can have it back when the volume it was made of is told.
                self.note_removal(context, volume, open, Duration::ZERO).await?;
                delete_from_trash(context, volume, open, self.deletion()).await?;
            }
            _ => self.remove(context, volume, open).await?,
        }
        forget(context, volume, there.id(), state_dir).await?;
        terminal::say(format!("removed {url}"))
    }

    fn deletion(&self) -> TrashDeletion {
        TrashDeletion { host: host_name(), only_if_over: false, untold: self.force }
    }

    async fn refuse_if_served(&self, volume: &VolumeUrl, state_dir: &Path, id: Option<VolumeId>) -> Outcome {
        let wanted = id.map_or_else(|| volume.url.to_string(), |id| id.to_string());
        match control::serving(state_dir, &wanted).await? {
            None => Ok(()),
            Some(_) => {
                let failure = Failure::new(Kind::InUse, format!("{} is being served", volume.url));
                Err(failure.hint("stop its daemon first; `cistern status` shows which one it is"))
            }
        }
    }

    async fn remove(&self, context: &Context, volume: &VolumeUrl, open: &OpenStore) -> Outcome {
        let progress = terminal::Progress::counting("objects");
        let show = |done, of| progress.set(done, of);
        let key = self.key.clone().or(&context.file);
        let removed = secret::unlocking(&key, &volume.name, |key| {
            let (env, store, show) = (&context.env, &open.store, &show);
            async move {
                match admin::remove(env, store, &key, self.force, show).await {
                    // All gone already, but perhaps for a directory.
                    Err(Error::NotFound(_)) if self.force => Ok(()),
                    other => other,
                }
            }
        });
        removed.await.map(|_| ()).map_err(|failure| match failure.kind {
            Kind::InUse => {
                failure.hint("--force deletes it even so; whoever writes to it then stops with errors")
            }
            _ => failure.context(&volume.url),
        })
    }
}

impl There {
    fn id(&self) -> Option<VolumeId> {
        match self {
            There::Volume(id) | There::Clone(id) => Some(*id),
            There::InTrash(found) => Some(found.volume),
            There::Remains(_) => None,
        }
    }
}

/// Deletes everything of a volume that is in the trash.
async fn delete_from_trash(
    context: &Context,
    volume: &VolumeUrl,
    open: &OpenStore,
    deletion: TrashDeletion,
) -> Outcome {
    let progress = terminal::Progress::counting("objects");
    let show = |done, of| progress.set(done, of);
    let deleted = trash::delete(&context.env, &open.stores, &deletion, &show).await;
    deleted.map_err(|e| volume.explain(e))
}

/// What is left to do once all objects are gone: the directory, and what this host knows of the volume.
pub(super) async fn forget(
    context: &Context,
    volume: &VolumeUrl,
    id: Option<VolumeId>,
    state_dir: &Path,
) -> Outcome {
    remove_store(&volume.url, &context.env).await.map_err(|e| volume.explain(e))?;
    if let Some(id) = id {
        forget_journal(context, state_dir, id).await;
    }
    Known::of(state_dir).forget(&volume.url)
}

/// The journal of a volume that is gone is of no use; one that cannot be removed does no harm.
async fn forget_journal(context: &Context, state_dir: &Path, id: VolumeId) {
    let directory = state_dir.join(id.to_string());
    if !directory.exists() {
        return;
    }
    let Ok(disk) = volume_disk(state_dir, id) else { return };
    match admin::journal_discard(&context.env, &disk).await {
        Ok(()) => {
            let _ = std::fs::remove_dir_all(&directory);
        }
        Err(e) => terminal::remark(format!("the journal in {} stays: {e}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot of a volume in a bucket is told from credentials, which are refused.
    #[test]
    fn snapshots_in_buckets() {
        for (text, volume) in [("s3://bucket/tank@monday", "s3://bucket/tank"), ("gs://b/t@x", "gs://b/t")] {
            let found = target(text).expect("a snapshot");
            assert!(found.url.is_none());
            assert_eq!(found.snapshot.expect("a snapshot").volume.url.to_string(), volume);
        }
        for wrong in ["s3://key:secret@bucket/tank", "s3://key@bucket"] {
            assert!(target(wrong).is_err_and(|e| e.contains("credentials")), "{wrong}");
        }
        let directory = target("/srv/a@b").expect("a directory, or a snapshot");
        assert!(directory.url.is_some() && directory.snapshot.is_some());
        assert!(target("s3://bucket/tank").expect("a volume").snapshot.is_none());
    }
}
