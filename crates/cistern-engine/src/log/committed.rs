//! Reading the committed state of a volume: identity, newest checkpoint, the log behind it.
//!
//! Needs no claim and changes nothing. The number of requests does not depend on the size of the
//! volume: three listings, one checkpoint, one ranged GET per log object behind it, in parallel, and one for the object behind the last.
//!
//! The log is read from a checkpoint on, and what a later one covers may be deleted meanwhile: where a listing of the log ends may
//! be its end or an emptied slot. So the checkpoints are listed before and after, and what was read counts if there is no new one.
//!
//! A listing may be old or short, so it proves nothing: what follows is asked for by name (docs/design/answers.md, "Listings").

use std::{collections::VecDeque, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, future::join3, stream};

use crate::{
    Error, Result,
    env::Env,
    log::{
        checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, MapPair},
        identity::{IDENTITY_BYTES_MAX, Identity},
        keys,
        origin::{CloneOrigin, CloneSource},
        roots::{LeftState, ROOTS_BYTES_MAX, RootsObject, SnapshotTable, decode_roots},
        slots::{ENTRIES_IN_FLIGHT, ListedLog, SlotContent, believed_twice, list_log, read_entry},
        trash,
        unlisted::{ListingPatience, is_there, require_listed},
        walk::{Step, Walk},
        wrapping::VolumeKeys,
    },
    map::{Levels, RunMeta},
    segment::{CheckpointName, Content, Entry, Footer, Release, Rollback},
    snapshot::{Operation, Snapshot, Snapshots},
    store::{Listed, Pages, SharedStore, Store, StoreError, Within},
    units::{Mapping, Place, RunId, Seq, VolumeId},
};

/// A checkpoint may be deleted between listing and reading, because a newer one is there; and a newer one may come while the
/// log is read. So many looks follow each other at once, and further ones a second apart.
const ROUNDS_AT_ONCE: u32 = 8;
/// The newest checkpoints that are looked at. Writers keep a handful.
const CHECKPOINTS_MAX: usize = 64;

/// A segment behind the checkpoint that counts.
#[derive(Clone)]
pub struct AppliedSegment {
    pub seq: Seq,
    /// Bytes of the object.
    pub stored_bytes: u64,
    pub content: Content,
    pub operations: Vec<Operation>,
    pub mappings: Vec<Mapping>,
}

impl AppliedSegment {
    /// Blocks of data in it that the volume sees.
    pub fn data_blocks(&self) -> u64 {
        if matches!(self.content, Content::Kept { .. }) {
            return 0;
        }
        let blocks = |m: &Mapping| if matches!(m.place, Place::Frame(_)) { m.extent.len } else { 0 };
        self.mappings.iter().map(blocks).sum()
    }
}

/// An object of another volume that lies under one of our names: a removed volume's writer put it there after
/// all, late. It is stepped over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub key: String,
    pub volume: VolumeId,
}

/// A checkpoint that does not verify. An older one and the log replace it.
#[derive(Clone, Debug)]
pub struct DamagedCheckpoint {
    pub name: CheckpointName,
    pub fault: Error,
}

/// The committed state of a volume.
#[derive(Clone)]
pub struct Committed {
    pub checkpoint: Option<Checkpoint>,
    /// The names of the newest checkpoints, whether they were of use or not.
    pub names: Vec<CheckpointName>,
    /// Where the log stands, after its last object without a gap.
    pub walk: Walk,
    /// What counts behind the checkpoint, in order.
    pub applied: Vec<AppliedSegment>,
    /// Log objects behind the checkpoint, void ones included.
    pub log_objects: u64,
    /// What was stepped over on the way here.
    pub foreign: Vec<Foreign>,
    pub damaged: Vec<DamagedCheckpoint>,
    /// The checkpoint's state was left by a rollback behind it: the levels and origins here are those with which the volume went on.
    pub left: Option<LeftState>,
    /// The newest checkpoint that an entry of the log names.
    told: Option<CheckpointName>,
}

/// Reads and checks `volume.json` of a volume that is not in the trash.
pub async fn read_identity(env: &Env, store: &dyn Store) -> Result<Identity> {
    let (identity, notes, dirs) =
        join3(read_identity_anywhere(store), trash::numbers(store), store.list_dirs("")).await;
    let identity = identity?;
    refuse_misplaced(env, store, &identity, &dirs?).await?;
    let note = trash::note_among(store, Some(identity.volume), notes?).await?;
    match note.and_then(|note| note.refusal()) {
        Some(refusal) => Err(refusal),
        None => Ok(identity),
    }
}

/// An identity beside which there is no directory of its volume, but another one's, is not that of a new volume, which has a
/// copy of the identity there: it got into the wrong place, and the other one is not to be taken for removed. Where the copy is there and not listed,
/// no listing of this place is to be believed.
async fn refuse_misplaced(env: &Env, store: &dyn Store, identity: &Identity, dirs: &[String]) -> Result<()> {
    if dirs.contains(&keys::directory(identity.volume)) {
        return Ok(());
    }
    let copy = require_listed(env, store, &identity_copy(identity.volume)).await?;
    if copy.is_some() {
        return Ok(());
    }
    let why = match dirs.iter().find(|dir| keys::is_directory(dir)) {
        Some(other) => format!(
            "but {other}/ is a volume's: bring back the identity of that one, which has a copy there"
        ),
        None => "not even the copy of its identity, which comes first and stays. Either a part of the store is out of sight (a disk, a \
                 mount), or it was deleted"
            .to_owned(),
    };
    Err(Error::corrupt(
        keys::VOLUME,
        format!("it is of volume {}, of which there is nothing here, {why}", identity.volume),
    ))
}

/// The volume at a place, unless it is in the trash, and the store of its own objects.
pub async fn find_volume(env: &Env, place: &SharedStore) -> Result<(Identity, SharedStore)> {
    let identity = read_identity(env, place.as_ref()).await?;
    let own = own_store(place, identity.volume);
    Ok((identity, own))
}

/// The store of a volume's objects: all but its identity and the notes about the trash.
pub fn own_store(place: &SharedStore, volume: VolumeId) -> SharedStore {
    Arc::new(Within::new(place.clone(), &keys::directory(volume)))
}

/// Reads and checks `volume.json`, even of a volume in the trash.
pub async fn read_identity_anywhere(store: &dyn Store) -> Result<Identity> {
    let read = || async {
        match store.get(keys::VOLUME, IDENTITY_BYTES_MAX).await {
            Ok(body) => Identity::decode(&body),
            Err(StoreError::NotFound(_)) => Err(Error::NotFound(format!("volume {}", store.url()))),
            Err(e) => Err(e.into()),
        }
    };
    believed_twice(read).await
}

/// The names of the newest checkpoints in the store by (epoch, seq), the newest first.
pub async fn checkpoint_names(store: &dyn Store) -> Result<Vec<CheckpointName>> {
    let mut names = VecDeque::new();
    let mut pages = Pages::of(store, keys::CHECKPOINT_PREFIX);
    while let Some(page) = pages.next_page().await? {
        for listed in page {
            names.extend(keys::parse_checkpoint(&listed.key));
            if names.len() > CHECKPOINTS_MAX {
                names.pop_front();
            }
        }
    }
    Ok(names.into_iter().rev().collect())
}

/// What is said of a clone that has no checkpoint.
const UNFINISHED_CLONE: &str = "the making of this clone was interrupted, so there is nothing in it. `cistern rm --now` removes it; then clone again";

/// Reads the committed state. A clone has no size at its creation, and none before its first checkpoint. What a listing does not show yet is looked
/// for until no listing can be so old.
///
/// # Errors
/// `Corrupt` when an object that counts does not verify, or is out of sight; `Unreachable`/`Refused` from the store.
pub async fn read_committed(
    env: &Env,
    store: &dyn Store,
    keys: &VolumeKeys,
    size_at_creation: Option<u64>,
) -> Result<Committed> {
    let patience = ListingPatience::begin(env);
    let (mut told, mut rounds) = (None, 0);
    loop {
        let (fault, is_hidden) = match try_committed(store, keys, size_at_creation, told).await? {
            Attempted::Whole(committed) => return Ok(*committed),
            Attempted::Again { told: newest } => {
                told = told.max(newest);
                (Error::Unreachable("checkpoints come and go faster than the log is read".into()), false)
            }
            Attempted::Hidden(fault) => (fault, true),
        };
        rounds += 1;
        if (is_hidden || rounds >= ROUNDS_AT_ONCE) && !patience.wait(env).await {
            return Err(fault);
        }
    }
}

/// What is said of an object of the log that lies behind the newest checkpoint that verifies.
const NEEDED_AND_GONE: &str =
    "it was deleted, because newer checkpoints do without it; and none of those is sound";

/// What came of a look at a volume.
enum Attempted {
    Whole(Box<Committed>),
    /// The checkpoints changed meanwhile, or there is one that is not listed: read again.
    Again {
        /// The newest checkpoint that an entry of the log names.
        told: Option<CheckpointName>,
    },
    /// A part of it is out of sight, or not shown yet.
    Hidden(Error),
}

async fn try_committed(
    store: &dyn Store,
    keys: &VolumeKeys,
    size_at_creation: Option<u64>,
    told: Option<CheckpointName>,
) -> Result<Attempted> {
    let Some(found) = try_checkpoints(store, keys, told).await? else { return Ok(Attempted::Again { told }) };
    let FoundCheckpoint { checkpoint, names, foreign, damaged, gone } = found;
    let walk = match (&checkpoint, size_at_creation) {
        (Some(c), _) => Walk::at_checkpoint(c),
        (None, Some(size_bytes)) => Walk::at_creation(size_bytes),
        (None, None) => {
            return match (gone, damaged.into_iter().next()) {
                (Some(fault), _) => Ok(Attempted::Hidden(fault)),
                (None, Some(found)) => Err(found.fault),
                (None, None) => match miss_checkpoints(store, &names, told).await? {
                    Some(missed) => Ok(missed),
                    None => Err(Error::Invalid(UNFINISHED_CLONE.to_owned())),
                },
            };
        }
    };
    let mut committed = Committed {
        checkpoint,
        names,
        walk,
        applied: Vec::new(),
        log_objects: 0,
        foreign,
        damaged,
        left: None,
        told,
    };
    let claim = committed.checkpoint.as_ref().and_then(Checkpoint::claim_in_log);
    let (names, walked, has_claim) =
        join3(checkpoint_names(store), committed.walk_on(store, keys), has_entry(store, claim)).await;
    let names = match walked {
        Err(Error::NotFound(_)) => checkpoint_names(store).await?, // deleted or emptied since it was listed
        _ => names?,
    };
    if committed.is_behind(&names) || committed.is_told_of_another() {
        return Ok(Attempted::Again { told: committed.told });
    }
    // What was listed or named is gone once newer ones are there: the end of what is left of the log may not be the end of the log.
    if let Some(fault) = gone {
        return Ok(Attempted::Hidden(fault));
    }
    if !has_claim? {
        return Err(Error::corrupt(keys::LOG_PREFIX, HIDDEN_LOG));
    }
    let has_none = committed.checkpoint.is_none() && committed.damaged.is_empty();
    if has_none && let Some(missed) = miss_checkpoints(store, &names, committed.told).await? {
        return Ok(missed);
    }
    walked.map_err(|e| match e {
        Error::NotFound(what) => Error::corrupt(what, NEEDED_AND_GONE),
        e => e,
    })?;
    if has_none && committed.walk.seq == Seq::default() && is_there(store, keys::LOG_PROOF).await? {
        return Err(Error::corrupt(keys::LOG_PREFIX, HIDDEN_LOG));
    }
    committed.replaces_what_is_damaged()?;
    Ok(Attempted::Whole(Box::new(committed)))
}

/// Where none of the listed checkpoints counts, there must never have been one: entries that it covered may be gone. Gives what it means if there
/// was one.
async fn miss_checkpoints(
    store: &dyn Store,
    listed: &[CheckpointName],
    told: Option<CheckpointName>,
) -> Result<Option<Attempted>> {
    if !is_there(store, keys::PROOF).await? {
        return Ok(None);
    }
    Ok(Some(match checkpoint_names(store).await? == listed {
        true => Attempted::Hidden(Error::corrupt(keys::CHECKPOINT_PREFIX, HIDDEN_CHECKPOINTS)),
        false => Attempted::Again { told }, // the first came since
    }))
}

/// Whether the log has an entry, if one is asked for.
async fn has_entry(store: &dyn Store, seq: Option<Seq>) -> Result<bool> {
    match seq {
        Some(seq) => is_there(store, &keys::entry(seq)).await,
        None => Ok(true),
    }
}

/// Whether the volume has had a checkpoint, whatever is listed now.
pub async fn has_checkpoint(store: &dyn Store) -> Result<bool> {
    Ok(!checkpoint_names(store).await?.is_empty() || is_there(store, keys::PROOF).await?)
}

/// The copy of a volume's identity, from the volume's place.
pub fn identity_copy(volume: VolumeId) -> String {
    format!("{}/{}", keys::directory(volume), keys::VOLUME)
}

/// The copies of identities that may lie at a place.
pub async fn identity_copies(place: &dyn Store) -> Result<Vec<String>> {
    let dirs = place.list_dirs("").await?.into_iter().filter(|dir| keys::is_directory(dir));
    Ok(dirs.map(|dir| format!("{dir}/{}", keys::VOLUME)).collect())
}

/// What is said of a volume that has had checkpoints, and of which none is listed.
const HIDDEN_CHECKPOINTS: &str = "the volume has had checkpoints, and none is listed. Either a part of the store is out of sight (a disk, a \
     mount, a directory that a cache shows as it was), or they were deleted";

/// What is said of a volume whose log lacks what is never deleted from it.
const HIDDEN_LOG: &str = "the volume has been written to, and the claim of its writer is not in the log, where it stays for good. Either a part of \
     the store is out of sight (a disk, a mount), or the log was deleted";

impl Committed {
    /// Walks over what the log holds behind this state.
    pub async fn walk_on(&mut self, store: &dyn Store, keys: &VolumeKeys) -> Result<()> {
        let ListedLog { entries, beyond } = list_log(store, self.walk.seq).await?;
        if let Some((seq, listed)) = beyond
            && let Ok(SlotContent::Entry(head, _)) = read_entry(store, keys, seq, &listed).await
        {
            self.told = self.told.max(head.checkpoint); // it counts for nothing else
        }
        self.walk_over(entries, store, keys).await
    }

    async fn walk_over(
        &mut self,
        objects: Vec<(Seq, Listed)>,
        store: &dyn Store,
        keys: &VolumeKeys,
    ) -> Result<()> {
        self.log_objects += objects.len() as u64;
        // All of them first: what is read in between would wait for their turns, which nobody would end meanwhile.
        let tails = stream::iter(objects.into_iter().map(|(seq, listed)| async move {
            match read_entry(store, keys, seq, &listed).await {
                Err(e) if !e.is_damage() => Err(e),
                content => Ok((seq, listed, content)),
            }
        }))
        .buffered(ENTRIES_IN_FLIGHT)
        .try_collect::<Vec<_>>()
        .await?;
        for (.., content) in &tails {
            if let Ok(SlotContent::Entry(head, _)) = content {
                self.told = self.told.max(head.checkpoint);
            }
        }
        for (seq, listed, content) in tails {
            let (head, entry) = match content? {
                // No way leads through here: what was in the slot is missing behind it.
                SlotContent::Entry(_, Entry::Emptied) => return Err(Error::NotFound(listed.key)),
                SlotContent::Entry(head, entry) => (head, entry),
                SlotContent::Foreign(volume) => {
                    self.walk.step_over(seq);
                    self.foreign.push(Foreign { key: listed.key, volume });
                    continue;
                }
            };
            match (self.walk.step(&head, &entry), entry) {
                (Step::Applied, Entry::Segment(footer)) => {
                    let Footer { content, operations, mappings } = footer;
                    let (seq, stored_bytes) = (head.seq, listed.bytes);
                    self.applied.push(AppliedSegment { seq, stored_bytes, content, operations, mappings });
                }
                (Step::Released, Entry::Release(Release { rollback: Some(rollback), .. })) => {
                    self.roll_back(head.seq, rollback, store, keys).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The table of snapshots that the checkpoint names.
    pub async fn snapshot_table(&self, store: &dyn Store, keys: &VolumeKeys) -> Result<SnapshotTable> {
        match self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.snapshots) {
            Some(table) => {
                let mut table: SnapshotTable = read_roots(store, keys, table).await?;
                self.left.iter().for_each(|left| table.roll_back(left));
                Ok(table)
            }
            None => Ok(SnapshotTable::default()),
        }
    }

    /// Goes on from a snapshot, as the release at `at` says: as a clone of that, made by the volume itself. The state before it is wholly
    /// in the checkpoint, but for what the cleaner moved since: whoever rolls back sees to that.
    async fn roll_back(
        &mut self,
        at: Seq,
        rollback: Rollback,
        store: &dyn Store,
        keys: &VolumeKeys,
    ) -> Result<()> {
        let is_empty =
            |segment: &AppliedSegment| segment.mappings.is_empty() && segment.operations.is_empty();
        // What was only moved is where it was, too: nothing is deleted of which one checkpoint alone knows that it was moved.
        self.applied.retain(|segment| matches!(segment.content, Content::Written { .. }));
        let is_covered = self.left.is_none() && self.applied.iter().all(is_empty);
        let table = self.snapshot_table(store, keys).await?;
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|_| is_covered) else {
            return Err(Error::corrupt(
                keys::entry(at),
                "the volume was rolled back there, and the checkpoint before it is damaged",
            ));
        };
        let lost = || Error::corrupt(keys::entry(at), "the snapshot is not there to which it rolls back");
        let (_, snapshot) = table.snapshots.with_id(rollback.to).ok_or_else(lost)?;
        let root = table.roots.get(&snapshot.at).ok_or_else(lost)?;
        let levels: Levels = read_roots(store, keys, *root).await?;
        let own = |run: RunMeta| RunMeta { owner: run.owner.or(Some(keys.volume)), ..run };
        let levels = levels.into_iter().map(|level| level.into_iter().map(own).collect()).collect();
        let covered = checkpoint.covered;
        let levels = std::mem::replace(&mut checkpoint.levels, levels);
        checkpoint.origins.retain(|origin| origin.source.volume != keys.volume && origin.at < snapshot.at);
        checkpoint.origins.push(CloneOrigin {
            source: CloneSource { volume: keys.volume, way: String::new() },
            snapshot: snapshot.id,
            at: snapshot.at,
        });
        checkpoint.flattened = None;
        self.walk.size_bytes = snapshot.size_bytes;
        self.left = Some(LeftState { levels, covered, rollback, at });
        Ok(())
    }

    /// The snapshots as of this state, with that table.
    pub fn snapshots(&self, table: &SnapshotTable) -> Snapshots {
        let mut snapshots = table.snapshots.clone();
        for segment in &self.applied {
            if let Content::Written { size_bytes, .. } = segment.content {
                let operations = segment.operations.iter();
                operations.for_each(|operation| snapshots.apply(operation, segment.seq, size_bytes));
            }
        }
        snapshots
    }

    /// The state that a snapshot shows, one of those of this state with that table.
    ///
    /// # Errors
    /// Of reading its root.
    pub async fn at_snapshot(
        mut self,
        table: &SnapshotTable,
        snapshot: &Snapshot,
        store: &dyn Store,
        keys: &VolumeKeys,
    ) -> Result<Committed> {
        debug_assert!(!snapshot.is_bookmark, "it has content");
        match &mut self.checkpoint {
            Some(checkpoint) if snapshot.at <= checkpoint.covered => {
                let root = table.roots.get(&snapshot.at).expect("a table that is read has the root of each");
                checkpoint.levels = read_roots(store, keys, *root).await?;
                checkpoint.covered = snapshot.at;
                self.applied.clear();
            }
            _ => self.applied.retain(|segment| segment.seq <= snapshot.at),
        }
        (self.walk.seq, self.walk.size_bytes) = (snapshot.at, snapshot.size_bytes);
        Ok(self)
    }

    /// Whether a checkpoint came that this state does not know of. Segments that it covers may be deleted since.
    pub(super) fn is_behind(&self, names: &[CheckpointName]) -> bool {
        names.iter().any(|name| !self.names.contains(name))
    }

    /// The name of the checkpoint that counts.
    pub(super) fn checkpoint_name(&self) -> Option<CheckpointName> {
        self.checkpoint.as_ref().map(Checkpoint::name)
    }

    /// Whether an entry names a checkpoint that is newer than the one that counts here, and that was not looked at: the listing is old, or cut.
    pub(super) fn is_told_of_another(&self) -> bool {
        let ours = self.checkpoint_name();
        self.told.is_some_and(|told| Some(told) > ours && !self.names.contains(&told))
    }

    /// A damaged checkpoint is replaced by an older one if the log has everything since: then nothing of what
    /// it covered is missing. Its epoch must be the one in force where it stands: else the way there leads over something
    /// that came late into an emptied slot.
    fn replaces_what_is_damaged(&self) -> Result<()> {
        let reaches =
            |(epoch, covered)| self.walk.seq >= covered && self.walk.epoch_at(covered) == Some(epoch);
        match self.damaged.iter().find(|d| !reaches(d.name)) {
            Some(missed) => Err(missed.fault.clone()),
            None => Ok(()),
        }
    }
}

/// Reads the table of snapshots or a root, from the second object where the first one is damaged or missing.
pub async fn read_roots<T: RootsObject>(store: &dyn Store, keys: &VolumeKeys, pair: MapPair) -> Result<T> {
    let [first, second] = pair.ids;
    match read_roots_object(store, keys, first).await {
        Err(e) if e.is_damage() => {
            let found = read_roots_object(store, keys, second).await;
            if found.is_ok() {
                tracing::warn!(error = %e, "damaged, and read from its copy");
            }
            found
        }
        found => found,
    }
}

/// Reads one object of a pair.
pub async fn read_roots_object<T: RootsObject>(store: &dyn Store, keys: &VolumeKeys, id: RunId) -> Result<T> {
    believed_twice(|| async move {
        let body = store.get(&keys::run(id), ROOTS_BYTES_MAX).await?;
        decode_roots(keys.key.as_deref(), keys.volume, id, &body)
    })
    .await
}

/// What looking for the checkpoint gave.
#[derive(Default)]
struct FoundCheckpoint {
    checkpoint: Option<Checkpoint>,
    names: Vec<CheckpointName>,
    foreign: Vec<Foreign>,
    damaged: Vec<DamagedCheckpoint>,
    /// What is said of the newest that is listed or named and not there, and newer than the one that counts.
    gone: Option<Error>,
}

/// Finds the newest checkpoint that is ours and verifies.
/// `None` when one was pruned meanwhile, because there is a newer one: look again. One that an entry of the log names is asked for too. One that is
/// listed or named is gone once there are newer ones: where those are not found, nothing replaces it.
async fn try_checkpoints(
    store: &dyn Store,
    keys: &VolumeKeys,
    told: Option<CheckpointName>,
) -> Result<Option<FoundCheckpoint>> {
    let listed = checkpoint_names(store).await?;
    let mut names = listed.clone();
    names.extend(told.filter(|told| !listed.contains(told)));
    names.sort_unstable_by(|a, b| b.cmp(a));
    let mut found = FoundCheckpoint { names: names.clone(), ..FoundCheckpoint::default() };
    for name in names {
        let key = keys::checkpoint(name.0, name.1);
        match believed_twice(|| read_checkpoint(store, keys, name)).await {
            Ok(StoredCheckpoint::Ours(checkpoint)) => {
                found.checkpoint = Some(*checkpoint);
                break;
            }
            Ok(StoredCheckpoint::Foreign(volume)) => found.foreign.push(Foreign { key, volume }),
            Ok(StoredCheckpoint::Gone) if checkpoint_names(store).await? != listed => return Ok(None),
            Ok(StoredCheckpoint::Gone) => {
                let by = if listed.contains(&name) { "listed" } else { "named by the log" };
                let fault = format!(
                    "it is {by}, and not there. Is a part of the store out of sight, or its listing old?"
                );
                found.gone.get_or_insert(Error::corrupt(key, fault));
            }
            Err(fault @ Error::Corrupt { .. }) => found.damaged.push(DamagedCheckpoint { name, fault }),
            Err(e) => return Err(e),
        }
    }
    Ok(Some(found))
}

enum StoredCheckpoint {
    Ours(Box<Checkpoint>),
    Foreign(VolumeId),
    Gone,
}

async fn read_checkpoint(
    store: &dyn Store,
    keys: &VolumeKeys,
    name: CheckpointName,
) -> Result<StoredCheckpoint> {
    let body = match store.get(&keys::checkpoint(name.0, name.1), CHECKPOINT_BYTES_MAX).await {
        Ok(body) => body,
        Err(StoreError::NotFound(_)) => return Ok(StoredCheckpoint::Gone),
        Err(e) => return Err(e.into()),
    };
    match Checkpoint::foreign_volume(keys.volume, &body) {
        Some(volume) => Ok(StoredCheckpoint::Foreign(volume)),
        None => {
            let checkpoint = Checkpoint::decode(keys.key.as_deref(), keys.volume, name, &body)?;
            Ok(StoredCheckpoint::Ours(Box::new(checkpoint)))
        }
    }
}
