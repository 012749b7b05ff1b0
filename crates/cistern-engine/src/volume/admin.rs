//! What can be done to a volume that is not open here: look, check, change keys, remove.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::{
    Error, Result,
    codec::{Compression, KeySource},
    disk::Disk,
    env::Env,
    gc,
    journal::{self, Group, PlacedRecord, Record},
    log::{
        Committed, VolumeKeys, find_volume, has_checkpoint,
        identity::{FORMAT, IDENTITY_BYTES_MAX, Identity},
        identity_copies, keys,
        origin::CloneSource,
        own_store, read_committed, read_identity, read_identity_anywhere, require_listed,
        wrapping::{read_wrapping, replace_wrapping},
    },
    store::{SharedStore, StoreError},
    units::{BLOCK_BYTES, VolumeId},
};

pub use super::check::{CheckReport, Checked, check};
use super::{
    accounting::{Accounted, read_accounts},
    clones::refuse_if_cloned,
};

/// What a store says of a volume. Sealed parts are `None` without the key.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeInfo {
    pub volume: VolumeId,
    pub format: u32,
    pub created_ms: u64,
    pub encrypted: bool,
    pub compression: Compression,
    /// Of a clone.
    pub origin: Option<CloneSource>,
    pub state: Option<StoredState>,
}

/// The committed state of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct StoredState {
    pub size_bytes: u64,
    pub epoch: u64,
    pub seq: u64,
    /// Who claimed the volume last, when, and whether it was released.
    pub claim_host: Option<String>,
    pub claim_ms: Option<u64>,
    pub released: bool,
    pub checkpoint_seq: u64,
    pub runs: u64,
    pub map_bytes: u64,
    pub log_objects_since_checkpoint: u64,
}

/// What the newest checkpoint says of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoredSpace {
    pub live_bytes: u64,
    /// Bytes of its segments that belong to dead blocks.
    pub garbage_bytes: u64,
    /// Bytes of the segments behind it that count: what of them is garbage is not known.
    pub uncovered_bytes: u64,
    /// Retired, and not deleted yet when it was written.
    pub grace_objects: u64,
    pub grace_bytes: u64,
}

/// Looks at a volume without changing anything. Without a key, what is sealed stays `None`.
pub async fn info(env: &Env, store: &SharedStore, key: &KeySource) -> Result<VolumeInfo> {
    let (identity, store) = find_volume(env, store).await?;
    let state = if identity.encrypted && matches!(key, KeySource::None) {
        None
    } else {
        let keys = VolumeKeys::unlock(env, store.as_ref(), &identity, key).await?;
        Some(stored_state(&read_committed(env, store.as_ref(), &keys, identity.size_at_creation()).await?))
    };
    Ok(VolumeInfo {
        volume: identity.volume,
        format: FORMAT,
        created_ms: identity.created_ms,
        encrypted: identity.encrypted,
        compression: identity.compression,
        origin: identity.origin,
        state,
    })
}

/// Whether there is a volume at a place, in the trash or not.
pub async fn has_volume(store: &SharedStore) -> Result<bool> {
    match read_identity_anywhere(store.as_ref()).await {
        Ok(_) => Ok(true),
        Err(Error::NotFound(_)) => Ok(false),
        Err(e) => Err(e),
    }
}

fn stored_state(committed: &Committed) -> StoredState {
    let walk = &committed.walk;
    let runs = || committed.checkpoint.iter().flat_map(|c| c.levels.iter().flatten());
    StoredState {
        size_bytes: walk.size_bytes,
        epoch: walk.epoch.0,
        seq: walk.seq.0,
        claim_host: walk.claim.as_ref().map(|c| c.host.clone()),
        claim_ms: walk.claim.as_ref().map(|c| c.wall_ms),
        released: !walk.is_held(),
        checkpoint_seq: committed.checkpoint.as_ref().map_or(0, |c| c.covered.0),
        runs: runs().count() as u64,
        map_bytes: runs().map(|r| r.bytes).sum(),
        log_objects_since_checkpoint: committed.log_objects,
    }
}

/// What the newest checkpoint says of space; `None` where some of its accounts are damaged. Reads all of them.
pub async fn stored_space(env: &Env, store: &SharedStore, key: &KeySource) -> Result<Option<StoredSpace>> {
    let Accounted { committed, accounting, faults, .. } = read_accounts(env, store, key).await?;
    if !faults.is_empty() {
        return Ok(None);
    }
    let counted = accounting.totals();
    let retired = || committed.checkpoint.iter().flat_map(|c| &c.retired);
    Ok(Some(StoredSpace {
        live_bytes: counted.live_bytes,
        garbage_bytes: counted.stored_bytes.saturating_sub(counted.live_bytes),
        uncovered_bytes: committed.applied.iter().map(|segment| segment.stored_bytes).sum(),
        grace_objects: retired().count() as u64,
        grace_bytes: retired().map(|object| object.bytes).sum(),
    }))
}

/// Progress of a long operation: units done, units in all.
pub type ProgressFn<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Wraps the master key anew. The data is not rewritten.
///
/// # Errors
/// `Invalid` when another change was faster: its secret holds. After `Unreachable` either secret may hold.
pub async fn change_key(env: &Env, store: &SharedStore, old: &KeySource, new: &KeySource) -> Result<()> {
    let (identity, store) = find_volume(env, store).await?;
    if !identity.encrypted {
        return Err(Error::Key("the volume is not encrypted: there is no key to change".into()));
    }
    let wrapping = read_wrapping(store.as_ref(), identity.volume).await?;
    let (wrapped, old, new, for_random) = (wrapping.key.clone(), old.clone(), new.clone(), env.clone());
    let wrapped = env.compute(move || wrapped.unwrap(&old)?.wrap(&for_random, &new)).await?;
    let counts = replace_wrapping(store.as_ref(), &wrapping, wrapped.clone()).await?;
    gc::prune_wrappings(store.as_ref(), counts.number).await?;
    match counts.key == wrapped {
        true => Ok(()),
        false => Err(Error::Invalid(
            "another change of the key was faster: its secret holds, and this change came to nothing".into(),
        )),
    }
}

/// Whether a store holds objects of a volume whose identity is gone: its removal was interrupted, or a put came
/// late.
pub async fn is_half_removed(store: &SharedStore) -> Result<bool> {
    Ok(gc::left_over(store).await?.is_some_and(|key| keys::is_of_a_volume(&key)))
}

/// Deletes a volume and everything it has in the store, and what an interrupted removal left. Refuses while
/// the volume is claimed, unless `force`. What is no volume's stays.
pub async fn remove(
    env: &Env,
    store: &SharedStore,
    key: &KeySource,
    force: bool,
    progress: ProgressFn<'_>,
) -> Result<()> {
    match read_identity(env, store.as_ref()).await {
        Ok(identity) if identity.origin.is_some() => {
            return Err(Error::Invalid("a clone is deleted by way of the trash".into()));
        }
        Ok(identity) if !force => refuse_if_held(env, store, &identity, key).await?,
        Ok(_) => {}
        Err(e @ Error::NotFound(_)) => {
            if !is_half_removed(store).await? {
                return Err(e);
            }
            if !force {
                refuse_if_copy_is_held(env, store, key).await?;
            }
        }
        Err(e @ Error::InTrash { .. }) => return Err(e), // see `trash::delete`
        Err(e) if !force => return Err(e),
        Err(_) => {}
    }
    require_listed(env, store.as_ref(), keys::VOLUME).await?;
    gc::remove_volume(store, progress).await
}

/// A removal deletes the identity and then its copy, before all else. So where a copy is there none has begun, and an identity that is not found may
/// be out of sight: what the volume itself says counts.
async fn refuse_if_copy_is_held(env: &Env, store: &SharedStore, key: &KeySource) -> Result<()> {
    for copy in identity_copies(store.as_ref()).await? {
        match store.get(&copy, IDENTITY_BYTES_MAX).await {
            Err(StoreError::NotFound(_)) => {}
            copy => refuse_if_held(env, store, &Identity::decode(&copy?)?, key).await?,
        }
    }
    Ok(())
}

/// Refuses while a volume is claimed, or has clones.
pub(super) async fn refuse_if_held(
    env: &Env,
    store: &SharedStore,
    identity: &Identity,
    key: &KeySource,
) -> Result<()> {
    let store = own_store(store, identity.volume);
    let keys = VolumeKeys::unlock(env, store.as_ref(), identity, key).await?;
    if identity.origin.is_some() && !has_checkpoint(store.as_ref()).await? {
        return Ok(()); // a clone that was never finished
    }
    let committed = read_committed(env, store.as_ref(), &keys, identity.size_at_creation()).await?;
    let table = committed.snapshot_table(store.as_ref(), &keys).await?;
    refuse_if_cloned(committed.snapshots(&table).with_content())?;
    match committed.walk.claim {
        Some(claim) if !claim.released => {
            Err(Error::InUse { host: claim.host, since: crate::units::utc(claim.wall_ms) })
        }
        _ => Ok(()),
    }
}

/// Reads what a journal holds, in order, without changing it. A damaged journal gives its sound prefix, then
/// the error that says what is damaged.
pub async fn journal_export(
    env: &Env,
    state: &Arc<dyn Disk>,
    volume: VolumeId,
    visit: &mut (dyn FnMut(JournalItem) -> Result<()> + Send),
) -> Result<()> {
    let scan = journal::read_only_scan(env, state, &mut |group: &Group| {
        group.records().iter().try_for_each(|placed| export(group, placed, visit))
    })
    .await?;
    if scan.volume != volume {
        return Err(Error::corrupt("journal", format!("it belongs to volume {}", scan.volume)));
    }
    scan.damage.map_or(Ok(()), Err)
}

fn export(
    group: &Group,
    placed: &PlacedRecord,
    visit: &mut (dyn FnMut(JournalItem) -> Result<()> + Send),
) -> Result<()> {
    let block = BLOCK_BYTES as u64;
    let payload = |blocks| group.payload(placed.pos, blocks).expect("the record lies in its group");
    match placed.record {
        Record::Write(extent) => {
            visit(JournalItem::Write { offset: extent.start * block, data: payload(extent.len) })
        }
        Record::Sectors { block: number, mask } => {
            let data = payload(1);
            mask.runs().try_for_each(|run| {
                let offset = number * block + run.start as u64;
                visit(JournalItem::Write { offset, data: data.slice(run) })
            })
        }
        Record::Zero { extent, .. } => {
            visit(JournalItem::Zero { offset: extent.start * block, len: extent.len * block })
        }
        Record::Resize { size_bytes } => visit(JournalItem::Resize { size_bytes }),
        // What is exported is what was written.
        Record::Operation { .. } | Record::Load { .. } => Ok(()),
    }
}

/// One acknowledged write of a journal, for export.
pub enum JournalItem {
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, len: u64 },
    Resize { size_bytes: u64 },
}

/// Removes a journal with everything it holds.
///
/// # Errors
/// `Locked` if a process has it open.
pub async fn journal_discard(env: &Env, state: &Arc<dyn Disk>) -> Result<()> {
    journal::discard(env, state).await
}
