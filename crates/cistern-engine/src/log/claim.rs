//! Taking a volume: the claim, its race, and the fresh look behind it.
//!
//! A claim goes to the first free seq with put-if-absent. If something is there first, everything is
//! read again: an old writer's segment that landed meanwhile counts, and another claim may mean
//! that the volume is in use. After the claim the checkpoints are listed once more, because a
//! deletion is only allowed behind a checkpoint, and ours must descend from the newest.

use crate::{
    Error, Result,
    env::Env,
    log::{
        LogWriter, VolumeKeys,
        committed::{Committed, SlotContent, checkpoint_names, read_committed, read_entry},
        keys,
    },
    segment::{Claim, Entry, EntryHead, EntryKind, Slot, encode_claim},
    store::{Put, SharedStore, Stores},
    units::{Epoch, JournalId, JournalPos, Salt},
};

/// Lost races before giving up; each means another writer was faster.
const ROUNDS_MAX: usize = 16;

/// What lies in this host's state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalJournal {
    pub id: JournalId,
    /// From the oldest position still kept up to the newest.
    pub tail: JournalPos,
    pub appended: JournalPos,
}

/// Who wants the volume.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub host: String,
    pub take_over: bool,
    /// The journal at hand. It exists before the claim that names it, so that a crash in between
    /// finds it again.
    pub local: LocalJournal,
    pub size_at_creation: u64,
}

/// A volume taken. Its epoch goes on in the journal at hand, from `committed.walk.journal_pos`.
pub struct Claimed {
    pub writer: LogWriter,
    pub committed: Committed,
}

/// What came of asking for a volume.
pub enum ClaimOutcome {
    Taken(Box<Claimed>),
    /// The journal at hand is an older copy: the store has all it holds, and its positions are used
    /// up. Nothing was claimed; come again with a fresh journal.
    JournalObsolete,
}

/// Takes the volume.
///
/// # Errors
/// `InUse` when another writer holds it and `take_over` is not set; `StaleJournal` when the journal at
/// hand holds data of an epoch that was taken over; `Corrupt` when the store is behind the journal.
pub async fn claim(
    env: &Env,
    stores: &Stores,
    keys: &VolumeKeys,
    request: &ClaimRequest,
) -> Result<ClaimOutcome> {
    let store = &stores.read;
    for _ in 0..ROUNDS_MAX {
        let committed = read_committed(store.as_ref(), keys, request.size_at_creation).await?;
        check_holder(&committed, request)?;
        let Some(start) = start_position(&committed, request.local)? else {
            return Ok(ClaimOutcome::JournalObsolete);
        };
        let salt = Salt(env.random_bytes());
        let seq = committed.walk.seq.next();
        let epoch = Epoch(committed.walk.epoch_max.0 + 1);
        let slot = Slot { volume: keys.volume, epoch, seq, salt };
        let head = EntryHead { kind: EntryKind::Claim, volume: keys.volume, epoch, seq, salt };
        let claim = Claim {
            host: request.host.clone(),
            wall_ms: env.wall_ms(),
            journal: request.local.id,
            start,
            size_bytes: committed.walk.size_bytes,
        };
        let body = encode_claim(keys.key.as_deref(), &slot, &claim);
        let object_bytes = body.len() as u64;
        let key = keys::entry(seq);
        let seen = committed.newest_name;
        if store.put_if_absent(&key, body).await? == Put::Exists
            && !is_ours(store, keys, &head, object_bytes).await?
        {
            continue; // somebody was first: what it is decides how to go on
        }
        let newest = checkpoint_names(store.as_ref()).await?.first().copied();
        let committed = if newest == seen {
            let mut committed = committed;
            let was_held = committed.walk.is_held();
            committed.walk.step(&head, &Entry::Claim(claim));
            if was_held {
                // Whoever held it may have left objects behind our claim: they are void, and our seqs begin
                // after them.
                committed.walk_on(store.as_ref(), keys).await?;
            }
            committed
        } else {
            read_committed(store.as_ref(), keys, request.size_at_creation).await?
        };
        if committed.walk.epoch != epoch || committed.walk.salt_of(committed.walk.seq) != Some(salt) {
            return Err(Error::Fenced { ours: epoch.0, theirs: committed.walk.epoch.0 });
        }
        let next = committed.walk.seq.next();
        let writer = LogWriter::new(env.clone(), stores, keys.clone(), epoch, salt, next);
        return Ok(ClaimOutcome::Taken(Box::new(Claimed { writer, committed })));
    }
    Err(Error::InUse { host: "several hosts at once".into(), since: "just now".into() })
}

/// Whether the object that is there already is this very claim, put by an attempt whose reply was lost.
async fn is_ours(
    store: &SharedStore,
    keys: &VolumeKeys,
    head: &EntryHead,
    object_bytes: u64,
) -> Result<bool> {
    let key = keys::entry(head.seq);
    let found = store.list_after(&key, "", 1).await?;
    let Some(listed) = found.into_iter().find(|l| l.key == key) else { return Ok(false) };
    if listed.bytes != object_bytes {
        return Ok(false);
    }
    let found = read_entry(store.as_ref(), keys, head.seq, &listed).await?;
    Ok(matches!(found, SlotContent::Entry(found, _) if found == *head))
}

fn check_holder(committed: &Committed, request: &ClaimRequest) -> Result<()> {
    let walk = &committed.walk;
    let Some(holder) = walk.claim.as_ref().filter(|c| !c.released) else { return Ok(()) };
    let own_crash = request.local.id == walk.journal && holder.host == request.host;
    if own_crash || request.take_over {
        return Ok(());
    }
    Err(Error::InUse { host: holder.host.clone(), since: crate::units::utc(holder.wall_ms) })
}

/// Where in the journal at hand the epoch begins; `None` when that journal is obsolete. Refuses where
/// going on would drop or replay wrongly.
fn start_position(committed: &Committed, local: LocalJournal) -> Result<Option<JournalPos>> {
    let walk = &committed.walk;
    if local.id != walk.journal {
        if local.tail == local.appended {
            return Ok(Some(local.appended)); // empty: nothing of it can be lost or replayed
        }
        return Err(Error::StaleJournal(format!(
            "the journal in the state directory holds {} MiB of acknowledged writes, but the volume was \
             taken over since (epoch {}, host {}): they can neither be replayed nor dropped silently. Save them \
             with `cistern journal export`, or give them up with `cistern journal discard`, then serve again",
            (local.appended.0 - local.tail.0).div_ceil(256),
            walk.epoch,
            walk.claim.as_ref().map_or("unknown", |c| c.host.as_str()),
        )));
    }
    if local.tail > walk.journal_pos {
        return Err(Error::corrupt(
            "store",
            format!(
                "it is committed up to journal position {}, but the journal has freed everything before {}: the \
                 store lost objects or was restored from an older copy",
                walk.journal_pos, local.tail
            ),
        ));
    }
    Ok((local.appended >= walk.journal_pos).then_some(walk.journal_pos))
}
