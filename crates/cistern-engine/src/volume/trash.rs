//! The trash: what is removed stays for a time as it is, and comes back as it was.
//!
//! Moves no data: everything here is a note ([`crate::log::trash`]) that outranks the one before it. Nothing is deleted
//! before the note that says so counts, and from then on nothing is restored. Whoever has the volume open is told at its
//! next look at the store. Times are those of the hosts' wall clocks.

use std::time::Duration;

use serde::Serialize;

use super::{
    admin::{ProgressFn, refuse_if_held},
    clones::{find_source, tell_source},
};
use crate::{
    Error, Result,
    codec::KeySource,
    env::Env,
    gc,
    log::{
        identity::Identity,
        keys,
        origin::CloneSource,
        read_identity_anywhere, require_listed,
        trash::{Fate, Note, newest_number, put_note, read_note},
    },
    segment::printable,
    store::{SharedStore, Stores},
    units::VolumeId,
};

/// How somebody removes a volume.
#[derive(Clone, Debug)]
pub struct Removal {
    /// How long it can be restored at least.
    pub keep: Duration,
    /// Even though it is claimed.
    pub force: bool,
    /// Who removes it.
    pub host: String,
}

/// How somebody deletes a volume that is in the trash.
#[derive(Clone, Debug)]
pub struct TrashDeletion {
    /// Who deletes it.
    pub host: String,
    /// Not before its time.
    pub only_if_over: bool,
    /// Even though it is a clone, and the volume that it was made of is not there to be told.
    pub untold: bool,
}

/// A volume in the trash.
#[derive(Clone, Debug, Serialize)]
pub struct InTrash {
    pub volume: VolumeId,
    pub removed_ms: u64,
    pub until_ms: u64,
    pub host: String,
    /// Its deletion has begun: it cannot be restored any more.
    pub deleting: bool,
}

impl InTrash {
    fn of(note: Note) -> Option<InTrash> {
        let until_ms = note.until_ms();
        let Note { volume, at_ms: removed_ms, host, fate, .. } = note;
        let deleting = fate == Fate::Deleting;
        (fate != Fate::Restored).then_some(InTrash { volume, removed_ms, until_ms, host, deleting })
    }

    /// Whether its time is over.
    pub fn is_over(&self, env: &Env) -> bool {
        self.deleting || env.wall_ms() >= self.until_ms
    }
}

/// What is in the trash at this place, if anything is. A deletion that was interrupted shows too.
///
/// # Errors
/// `NotFound` where there is neither a volume nor a deletion that has begun.
pub async fn look(store: &SharedStore) -> Result<Option<InTrash>> {
    match read_identity_anywhere(store.as_ref()).await {
        Ok(identity) => Ok(read_note(store.as_ref(), Some(identity.volume)).await?.and_then(InTrash::of)),
        Err(e @ Error::NotFound(_)) => match read_note(store.as_ref(), None).await? {
            Some(note) if note.fate == Fate::Deleting => Ok(InTrash::of(note)),
            _ => Err(e),
        },
        Err(e) => Err(e),
    }
}

/// Puts a volume into the trash; one that is in it already stays for so long from now on. Refuses while it is
/// claimed, unless forced.
pub async fn remove(env: &Env, store: &SharedStore, key: &KeySource, removal: Removal) -> Result<InTrash> {
    let identity = read_identity_anywhere(store.as_ref()).await?;
    require_listed(env, store.as_ref(), keys::VOLUME).await?; // else it could not be deleted later
    let before = read_note(store.as_ref(), Some(identity.volume)).await?;
    let looks = match before.as_ref().map(|note| note.fate) {
        Some(Fate::Deleting) => return Err(refusal(before.as_ref().expect("it was just looked at"))),
        Some(Fate::Removed) => false, // it was looked at then, and nobody opens it since
        Some(Fate::Restored) | None => !removal.force,
    };
    if looks {
        refuse_if_held(env, store, &identity, key).await?;
    }
    let keep_ms = u64::try_from(removal.keep.as_millis()).unwrap_or(u64::MAX);
    let behind = before.map_or(0, |note| note.number);
    let note = note(env, identity.volume, behind, Fate::Removed, &removal.host);
    let counts = put_note(store.as_ref(), Note { keep_ms, ..note }).await?;
    if counts.fate != Fate::Removed {
        return Err(faster(&counts));
    }
    // Who claimed it meanwhile had not seen the note; who comes later does.
    if looks && let Err(held) = refuse_if_held(env, store, &identity, key).await {
        let back = self::note(env, identity.volume, counts.number, Fate::Restored, &removal.host);
        put_note(store.as_ref(), back).await?;
        return Err(held);
    }
    gc::prune_notes(store.as_ref(), counts.number).await?;
    Ok(InTrash::of(counts).expect("it was removed"))
}

/// Takes a volume out of the trash, or from under a note that is damaged. One that is in neither gets its note too:
/// a removal of which nobody knows whether it arrives still finds its name taken. Gives whether there was
/// anything to restore.
pub async fn restore(env: &Env, store: &SharedStore, host: &str) -> Result<bool> {
    let volume = match read_identity_anywhere(store.as_ref()).await {
        Ok(identity) => identity.volume,
        Err(e @ Error::NotFound(_)) => return Err(look(store).await.err().unwrap_or(e)),
        Err(e) => return Err(e),
    };
    let (behind, was_away) = match read_note(store.as_ref(), Some(volume)).await {
        Ok(Some(note)) if note.fate == Fate::Deleting => return Err(refusal(&note)),
        Ok(note) => (note.as_ref().map_or(0, |n| n.number), note.is_some_and(|n| n.fate == Fate::Removed)),
        Err(Error::Corrupt { .. }) => (newest_number(store.as_ref()).await?, true),
        Err(e) => return Err(e),
    };
    let counts = put_note(store.as_ref(), note(env, volume, behind, Fate::Restored, host)).await?;
    if counts.fate != Fate::Restored {
        return Err(faster(&counts));
    }
    gc::prune_notes(store.as_ref(), counts.number).await?;
    Ok(was_away)
}

/// Deletes a volume that is in the trash, for good; only if its time is over, when that is asked for. Goes on with
/// a deletion that was interrupted. Of a clone, the volume it was made of is told.
///
/// # Errors
/// `InTrash` when its time is not over; `SourceAway` for a clone when that volume is not there, and then nothing is changed.
pub async fn delete(
    env: &Env,
    place: impl Into<Stores>,
    deletion: &TrashDeletion,
    progress: ProgressFn<'_>,
) -> Result<()> {
    let place = place.into();
    // While there is an identity the source can be told.
    let clone = clone_at(&place.read).await?;
    if !deletion.untold {
        refuse_untold(&place).await?; // before anything is said that cannot be taken back
    }
    require_listed(env, place.read.as_ref(), keys::VOLUME).await?;
    let Stores { read: store, others, .. } = place;
    begin_deletion(env, &store, &deletion.host, deletion.only_if_over).await?;
    if let Some((volume, source)) = &clone {
        match tell_source(source, *volume, others.as_ref()).await {
            Err(e @ Error::SourceAway { .. }) if deletion.untold => {
                tracing::warn!(clone = %volume, error = %e, "the clone is deleted all the same");
            }
            told => told?,
        }
    }
    gc::remove_volume(&store, progress).await
}

/// What lies there, if it is a clone.
async fn clone_at(store: &SharedStore) -> Result<Option<(VolumeId, CloneSource)>> {
    match read_identity_anywhere(store.as_ref()).await {
        Ok(Identity { volume, origin, .. }) => Ok(origin.map(|source| (volume, source))),
        Err(Error::NotFound(_) | Error::Corrupt { .. } | Error::Version { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Refuses for a clone that cannot be deleted now, because the volume it was made of is not there to be told.
///
/// # Errors
/// `SourceAway`; those of the store.
pub async fn refuse_untold(place: &Stores) -> Result<()> {
    match clone_at(&place.read).await? {
        Some((_, source)) => find_source(&source, place.others.as_ref()).await.map(drop),
        None => Ok(()),
    }
}

/// From here on nobody restores it.
async fn begin_deletion(env: &Env, store: &SharedStore, host: &str, only_if_over: bool) -> Result<()> {
    let volume = match read_identity_anywhere(store.as_ref()).await {
        Ok(identity) => Some(identity.volume),
        Err(Error::NotFound(_)) => None,
        Err(e) => return Err(e),
    };
    let before = match read_note(store.as_ref(), volume).await? {
        Some(note) if note.fate == Fate::Deleting => return Ok(()),
        Some(note) if note.fate == Fate::Removed && volume.is_some() => note,
        _ => return Err(Error::Invalid("it is not in the trash".into())),
    };
    if only_if_over && env.wall_ms() < before.until_ms() {
        return Err(refusal(&before));
    }
    let note = note(env, before.volume, before.number, Fate::Deleting, host);
    let counts = put_note(store.as_ref(), note).await?;
    match counts.fate {
        Fate::Deleting => Ok(()),
        _ => Err(faster(&counts)),
    }
}

/// What is said of a volume that a note keeps from being opened.
fn refusal(note: &Note) -> Error {
    note.refusal().unwrap_or_else(|| faster(note))
}

/// Somebody did something else at the same moment, and the store let that count.
fn faster(counts: &Note) -> Error {
    let what = match counts.fate {
        Fate::Removed => "put it into the trash",
        Fate::Restored => "restored it",
        Fate::Deleting => "began to delete it",
    };
    let host = &counts.host;
    Error::Invalid(format!("host {host} {what} at the same moment, and that counts. Nothing else was done"))
}

fn note(env: &Env, volume: VolumeId, behind: u64, fate: Fate, host: &str) -> Note {
    let host = printable(host);
    Note { volume, number: behind, id: env.uuid(), fate, at_ms: env.wall_ms(), keep_ms: 0, host }
}
