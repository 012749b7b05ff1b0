//! Reading the committed state of a volume: identity, newest checkpoint, the log behind it.
//!
//! Needs no claim and changes nothing. The number of requests does not depend on the size of the
//! volume: two listings, one checkpoint, and one ranged GET per log object behind it, in parallel.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    Error, Result,
    codec::{KeySource, MasterKey},
    env::Env,
    log::{
        checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint},
        identity::{IDENTITY_BYTES_MAX, Identity},
        keys,
        walk::{Step, Walk},
    },
    segment::{Entry, EntryHead, TAIL_BYTES, Tail, read_tail},
    store::{Listed, Store},
    units::{BLOCK_BYTES, Mapping, Place, Seq, VolumeId},
};

/// Tails fetched at once. The log behind a checkpoint is bounded, so this only smooths the burst.
const TAILS_IN_FLIGHT: usize = 32;
/// Log objects taken from one listing.
const LIST_MAX: usize = 1000;
/// A checkpoint may be deleted between listing and reading, because a newer one is there. More
/// rounds than this mean something else is wrong.
const CHECKPOINT_ROUNDS_MAX: usize = 8;

/// The identity of a volume and the key that opens it.
#[derive(Clone)]
pub struct VolumeKeys {
    pub volume: VolumeId,
    pub key: Option<Arc<MasterKey>>,
}

/// A segment behind the checkpoint that counts.
pub struct AppliedSegment {
    pub seq: Seq,
    pub mappings: Vec<Mapping>,
}

impl AppliedSegment {
    /// Bytes of block data it brought.
    pub fn data_bytes(&self) -> u64 {
        let blocks = |m: &Mapping| if matches!(m.place, Place::Frame(_)) { m.extent.len } else { 0 };
        self.mappings.iter().map(blocks).sum::<u64>() * BLOCK_BYTES as u64
    }
}

/// The committed state of a volume.
pub struct Committed {
    pub checkpoint: Option<Checkpoint>,
    /// Where the log stands, after its last object without a gap.
    pub walk: Walk,
    /// What counts behind the checkpoint, in order.
    pub applied: Vec<AppliedSegment>,
    /// Log objects behind the checkpoint, void ones included.
    pub log_objects: u64,
}

/// Reads and checks `volume.json`.
pub async fn read_identity(store: &dyn Store) -> Result<Identity> {
    match store.get(keys::VOLUME, IDENTITY_BYTES_MAX).await {
        Ok(body) => Identity::decode(&body),
        Err(crate::store::StoreError::NotFound(_)) => Err(Error::NotFound(format!("volume {}", store.url()))),
        Err(e) => Err(e.into()),
    }
}

impl VolumeKeys {
    /// Opens the identity's key with the user's secret.
    pub async fn unlock(env: &Env, identity: &Identity, secret: &KeySource) -> Result<VolumeKeys> {
        let volume = identity.volume;
        let (identity, secret) = (identity.clone(), secret.clone());
        let key = env.compute(move || identity.unlock(&secret)).await?; // stretching a passphrase takes a second
        Ok(VolumeKeys { volume, key })
    }
}

/// The newest checkpoint in the store, by (epoch, seq).
pub async fn newest_checkpoint(store: &dyn Store) -> Result<Option<(String, u64)>> {
    let mut newest = None;
    let mut after = String::new();
    loop {
        let page = store.list_after(keys::CHECKPOINT_PREFIX, &after, LIST_MAX).await?;
        let full = page.len() == LIST_MAX;
        for listed in page {
            if keys::parse_checkpoint(&listed.key).is_some() {
                newest = Some((listed.key.clone(), listed.bytes));
            }
            after = listed.key;
        }
        if !full {
            return Ok(newest);
        }
    }
}

/// Reads the committed state.
///
/// # Errors
/// `Corrupt` when an object that counts does not verify, `Unreachable`/`Refused` from the store.
pub async fn read_committed(
    store: &dyn Store,
    keys: &VolumeKeys,
    size_at_creation: u64,
) -> Result<Committed> {
    let checkpoint = read_newest_checkpoint(store, keys).await?;
    let walk = match &checkpoint {
        Some(c) => Walk::at_checkpoint(c),
        None => Walk::at_creation(size_at_creation),
    };
    let mut committed = Committed { checkpoint, walk, applied: Vec::new(), log_objects: 0 };
    committed.walk_on(store, keys).await?;
    Ok(committed)
}

impl Committed {
    /// Walks over what the log holds behind this state.
    pub async fn walk_on(&mut self, store: &dyn Store, keys: &VolumeKeys) -> Result<()> {
        let objects = list_log(store, self.walk.seq).await?;
        self.log_objects += objects.len() as u64;
        let mut tails = stream::iter(objects.into_iter().map(|(seq, listed)| async move {
            let (head, entry) = read_entry(store, keys, seq, &listed).await?;
            Ok::<_, Error>((head, entry))
        }))
        .buffered(TAILS_IN_FLIGHT);
        while let Some((head, entry)) = tails.try_next().await? {
            if self.walk.step(&head, &entry) == Step::Applied
                && let Entry::Segment(footer) = entry
            {
                self.applied.push(AppliedSegment { seq: head.seq, mappings: footer.mappings });
            }
        }
        Ok(())
    }
}

async fn read_newest_checkpoint(store: &dyn Store, keys: &VolumeKeys) -> Result<Option<Checkpoint>> {
    for _ in 0..CHECKPOINT_ROUNDS_MAX {
        let Some((key, _)) = newest_checkpoint(store).await? else { return Ok(None) };
        let (epoch, seq) = keys::parse_checkpoint(&key).expect("newest_checkpoint returns only such names");
        match store.get(&key, CHECKPOINT_BYTES_MAX).await {
            Ok(body) => {
                return Checkpoint::decode(keys.key.as_deref(), keys.volume, (epoch, seq), &body).map(Some);
            }
            Err(crate::store::StoreError::NotFound(_)) => continue, // pruned meanwhile: look again
            Err(e) => return Err(e.into()),
        }
    }
    Err(Error::Unreachable("checkpoints vanish as fast as they are listed".into()))
}

/// The log's objects after `covered`, up to the first gap.
async fn list_log(store: &dyn Store, covered: Seq) -> Result<Vec<(Seq, Listed)>> {
    let mut out = Vec::new();
    let mut expect = covered.next();
    let mut after = keys::entry(covered);
    loop {
        let page = store.list_after(keys::LOG_PREFIX, &after, LIST_MAX).await?;
        let full = page.len() == LIST_MAX;
        for listed in page {
            let Some(seq) = keys::parse_entry(&listed.key) else { continue };
            if seq != expect {
                return Ok(out);
            }
            expect = seq.next();
            after = listed.key.clone();
            out.push((seq, listed));
        }
        if !full {
            return Ok(out);
        }
    }
}

/// Reads one log object's head and entry by its tail.
pub async fn read_entry(
    store: &dyn Store,
    keys: &VolumeKeys,
    seq: Seq,
    listed: &Listed,
) -> Result<(EntryHead, Entry)> {
    let mut from = listed.bytes.saturating_sub(TAIL_BYTES);
    // The footer says where it begins, so a second look is always enough.
    for _ in 0..2 {
        let tail = store.get_range(&listed.key, from..listed.bytes).await?;
        match read_tail(keys.key.as_deref(), keys.volume, seq, listed.bytes, &tail)? {
            Tail::Whole(head, entry) => return Ok((head, entry)),
            Tail::NeedMore { from: start } => from = start,
        }
    }
    Err(Error::corrupt(listed.key.clone(), "the footer does not lie where the trailer says"))
}
