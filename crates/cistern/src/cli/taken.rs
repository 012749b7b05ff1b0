//! Snapshots that are made of volumes in order to be copied somewhere, and what is left of them when they have arrived, or not.

use std::collections::BTreeSet;

use cistern_engine::{
    codec::KeySource,
    volume::{SnapshotStatus, admin},
};

use crate::{
    cli::{
        Context,
        hooks::{Hooked, Hooks},
        marks::{Maker, Marks},
        snapshots,
    },
    config::Resolved,
    control::SnapshotChange,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, SnapshotUrl, VolumeUrl},
    signals::Interruption,
};

/// A snapshot that was made for one place.
pub(super) struct Taken {
    pub snapshot: SnapshotUrl,
    pub status: SnapshotStatus,
    marks: Marks,
}

/// Makes snapshots of volumes at one instant, each for the place beside it, and waits until they are in the store.
pub(super) async fn take(
    context: &Context,
    settings: &Resolved,
    maker: Maker,
    volumes: &[(&VolumeUrl, &VolumeUrl)],
    hooks: &Hooks,
    stop: &Interruption,
) -> Outcome<Hooked<Vec<Taken>>> {
    let now = context.env.wall_ms();
    let (mut names, mut marks) = (Vec::with_capacity(volumes.len()), Vec::with_capacity(volumes.len()));
    for (volume, place) in volumes {
        let all = stop.or(snapshots::list(context, settings, volume)).await?;
        let taken: BTreeSet<String> = all.into_iter().map(|snapshot| snapshot.name).collect();
        let of_place = maker.marks(&place.url.to_string());
        names.push(SnapshotUrl { volume: (*volume).clone(), name: of_place.name(now, &taken) });
        marks.push(of_place);
    }
    let making = snapshots::make(context, settings, &names, false, hooks.limit());
    let Hooked { made: _, post } = hooks.around(&names, stop, making).await?;
    let stored = stop.or(snapshots::stored(context, settings, &names)).await;
    let all = names.into_iter().zip(marks);
    match stored {
        Ok(stored) => {
            let taken = |(status, (snapshot, marks))| Taken { snapshot, status, marks };
            Ok(Hooked { made: stored.into_iter().zip(all).map(taken).collect(), post })
        }
        Err(failure) => {
            for (snapshot, _) in all {
                give_up(context, settings, &snapshot).await;
            }
            Err(failure)
        }
    }
}

/// Whether an earlier run came to its end with that place.
pub(super) async fn has_arrived(
    context: &Context,
    settings: &Resolved,
    maker: Maker,
    volume: &VolumeUrl,
    place: &VolumeUrl,
) -> Outcome<bool> {
    let all = snapshots::list(context, settings, volume).await?;
    Ok(maker.marks(&place.url.to_string()).have_arrived(&all))
}

/// What earlier runs made of a volume for a place and did not come to their end with, oldest first.
pub(super) async fn left(
    context: &Context,
    settings: &Resolved,
    maker: Maker,
    volume: &VolumeUrl,
    place: &VolumeUrl,
) -> Outcome<Vec<Taken>> {
    let all = snapshots::list(context, settings, volume).await?;
    let marks = maker.marks(&place.url.to_string());
    let taken = |status: &SnapshotStatus| Taken {
        snapshot: SnapshotUrl { volume: volume.clone(), name: status.name.clone() },
        status: status.clone(),
        marks: marks.clone(),
    };
    Ok(marks.left(&all).map(taken).collect())
}

impl Taken {
    /// What it is called where it arrives, beside others.
    pub fn name_there(&self, there: &[SnapshotStatus]) -> String {
        self.marks.name_there(&self.status, there)
    }

    /// It has arrived: it becomes a bookmark, and what went before it goes.
    pub async fn settle(&self, context: &Context, settings: &Resolved) -> Outcome {
        let volume = &self.snapshot.volume;
        let all = snapshots::list(context, settings, volume).await?;
        let changes = self.marks.settle(&all, self.status.id);
        let changes: Vec<(SnapshotUrl, SnapshotChange)> = changes
            .into_iter()
            .map(|(name, change)| (SnapshotUrl { volume: volume.clone(), name }, change))
            .collect();
        let changes: Vec<_> = changes.iter().map(|(snapshot, change)| (snapshot, change)).collect();
        snapshots::change(context, settings, &changes, |_| Ok(())).await
    }

    /// It does not arrive.
    pub async fn give_up(&self, context: &Context, settings: &Resolved) {
        give_up(context, settings, &self.snapshot).await;
    }
}

/// Best effort: what is left, the next one that arrives takes along.
async fn give_up(context: &Context, settings: &Resolved, snapshot: &SnapshotUrl) {
    let _ = snapshots::change(context, settings, &[(snapshot, &SnapshotChange::Remove)], |_| Ok(())).await;
}

/// Whether a volume is encrypted; fails where there is none.
pub(super) async fn is_encrypted(context: &Context, volume: &VolumeUrl) -> Outcome<bool> {
    let store = volume.open(&context.env, COMMAND_PATIENCE).await?.store;
    let info = admin::info(&context.env, &store, &KeySource::None).await;
    Ok(info.map_err(|e| volume.explain(e))?.encrypted)
}

/// A snapshot that somebody named, when it is in the store.
pub(super) async fn named(
    context: &Context,
    settings: &Resolved,
    snapshot: &SnapshotUrl,
) -> Outcome<SnapshotStatus> {
    let mut found = snapshots::stored(context, settings, std::slice::from_ref(snapshot)).await?;
    match found.pop().filter(|found| !found.is_bookmark) {
        Some(found) => Ok(found),
        None => {
            let text = format!("{snapshot} is a bookmark: it has no content any more");
            Err(Failure::new(Kind::NotFound, text)
                .hint(format!("`cistern ls {}` lists the snapshots", snapshot.volume.url)))
        }
    }
}
