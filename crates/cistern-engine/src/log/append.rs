//! Appending to the log: slots are given out once, and resolved one by one.
//!
//! A slot is a seq that this process gives out for one content and never for another ([`Slots`] is not copied), but that next to nothing fills one
//! whose content found no room. A copy of the process (a restored
//! snapshot, a cloned machine) may seal other content for it, under the same key; the nonce of the sealing then
//! differs, and tells whose object lies there. [`LogWriter::append`] returns only when it is known what the slot
//! holds. What follows from that is decided in [`super::publish`], the only caller.

use std::{
    mem::discriminant,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    Error, Result,
    env::Env,
    log::{
        VolumeKeys,
        checkpoint::CHECKPOINT_BYTES_MAX,
        keys,
        presence::{Before, Presence},
        reserve::Reserve,
        room::RoomShortage,
        slots::{SlotContent, read_entry},
        unlisted::is_there,
    },
    rank::{Locked, Rank, Ranked},
    segment::{
        CheckpointName, EntryHead, EntryKind, Release, Rollback, Slot, Tail, encode_emptied, encode_release,
        read_tail,
    },
    store::{Listed, PromisedRoom, Put, SharedStore, Store, Stores},
    units::{Epoch, Salt, SealNonce, Seq},
};

/// Pause between attempts while the store is away, on top of what the store's own retries take.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What became of an append.
#[derive(Clone, Debug)]
pub(super) enum Appended {
    /// The slot holds our content.
    Ours,
    /// A late object of a fenced writer or of a removed volume took the slot: it is void, ours has to go further on.
    Taken,
    /// The slot holds what was refused before for lack of room: it had been sent more than once.
    Earlier,
    /// The store has no room, and the slot holds nothing that is known.
    NoRoom(Error),
}

/// What is put into a slot.
pub(super) struct EntryBody<'a> {
    pub body: Bytes,
    /// What was refused there before.
    pub earlier: Option<&'a Bytes>,
    /// Whether it takes the reserve where there is no room, and waits in its slot until there is.
    pub waits_for_room: bool,
}

/// What a claim that is in force gives its writer.
pub(super) struct Tenure {
    pub keys: VolumeKeys,
    pub epoch: Epoch,
    pub salt: Salt,
    /// The first slot; everything before it is in the log.
    pub next: Seq,
    /// When the volume was seen last, by a look that began then: its checkpoints were none but those this writer descends from.
    pub seen: Duration,
    /// What deletions in the log wait for.
    pub grace: Duration,
    /// The checkpoint that it goes on from.
    pub checkpoint: Option<CheckpointName>,
}

/// The one writer of an epoch.
#[derive(Clone)]
pub struct LogWriter {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    store: SharedStore,
    keys: VolumeKeys,
    epoch: Epoch,
    salt: Salt,
    presence: Presence,
    /// The checkpoint that the epoch went on from, and up to where the newest of its own covers; 0 without one.
    found: Option<CheckpointName>,
    covered: AtomicU64,
    /// The last slot that was given out.
    given: AtomicU64,
    trouble: Ranked<Option<Trouble>>,
    /// How many uploads the store refused, or did not answer, that are tried again.
    refused: AtomicU64,
    promised: PromisedRoom,
    reserve: Reserve,
    /// More data is stored.
    grown: Notify,
    shortage: Ranked<Option<RoomShortage>>,
}

/// The slots of an epoch that are left. There is one of it, so no seq is given out twice.
pub struct Slots {
    log: LogWriter,
    next: Seq,
}

impl Slots {
    /// The seq of the next slot.
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// Who appends to them.
    pub(super) fn log(&self) -> &LogWriter {
        &self.log
    }

    /// Gives out the next slot, for one content only.
    pub(super) fn give_out(&mut self) -> Slot {
        let seq = self.next;
        self.next = seq.next();
        self.log.inner.given.store(seq.0, Ordering::Relaxed);
        self.log.slot(seq)
    }

    /// Ends the epoch. Only after everything of it is committed, and if anything was offered, by the publisher's
    /// [`release`](super::Ended::release).
    pub async fn release(mut self, size_bytes: u64, rollback: Option<Rollback>) -> Result<()> {
        loop {
            let slot = self.give_out();
            let Inner { env, keys, .. } = &*self.log.inner;
            let release = Release { wall_ms: env.wall_ms(), size_bytes, rollback };
            let body = encode_release(keys.key.as_deref(), &slot, &release);
            let content = EntryBody { body, earlier: None, waits_for_room: true };
            if matches!(self.log.append(&slot, content).await?, Appended::Ours) {
                return Ok(());
            }
        }
    }
}

impl LogWriter {
    pub(super) fn claimed(env: Env, stores: &Stores, tenure: Tenure) -> (LogWriter, Slots) {
        let presence = Presence::new(env.clone(), stores, &tenure);
        let Tenure { keys, epoch, salt, next, checkpoint: found, .. } = tenure;
        let (store, trouble) = (stores.write_back.clone(), Ranked::new(Rank::Log, None));
        let given = AtomicU64::new(next.0 - 1);
        let (refused, promised) = (AtomicU64::new(0), stores.promised.clone());
        let (reserve, shortage) = (Reserve::new(store.clone()), Ranked::new(Rank::Log, None));
        let inner = Inner {
            env,
            store,
            keys,
            epoch,
            salt,
            presence,
            found,
            covered: AtomicU64::new(0),
            given,
            trouble,
            refused,
            promised,
            reserve,
            grown: Notify::new(),
            shortage,
        };
        let log = LogWriter { inner: Arc::new(inner) };
        (log.clone(), Slots { log, next })
    }

    pub fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    /// How long a slot of the log stays filled after what was in it is needless.
    pub fn slot_grace(&self) -> Duration {
        self.inner.presence.grace()
    }

    /// What takes the place of a segment that nothing needs any more, in a slot that a checkpoint of this epoch covers.
    pub fn emptied(&self, seq: Seq) -> Bytes {
        debug_assert!(seq <= self.given(), "only what was filled is emptied");
        encode_emptied(self.inner.keys.key.as_deref(), &self.slot(seq))
    }

    /// A slot of this epoch, for a content that has no other's nonce.
    pub(super) fn slot(&self, seq: Seq) -> Slot {
        let Inner { env, keys, epoch, salt, .. } = &*self.inner;
        let nonce = SealNonce(env.random_bytes());
        let checkpoint = self.newest_checkpoint();
        Slot { volume: keys.volume, epoch: *epoch, seq, salt: *salt, nonce, checkpoint }
    }

    /// The newest checkpoint that is known to be in the store.
    fn newest_checkpoint(&self) -> Option<CheckpointName> {
        let Inner { epoch, found, covered, .. } = &*self.inner;
        match covered.load(Ordering::SeqCst) {
            0 => *found,
            covered => Some((*epoch, Seq(covered))),
        }
    }

    /// The last slot that was given out; at first the claim's, or one behind it.
    pub fn given(&self) -> Seq {
        Seq(self.inner.given.load(Ordering::Relaxed))
    }

    /// Where entries go.
    pub(super) fn store(&self) -> &dyn Store {
        self.inner.store.as_ref()
    }

    pub(super) fn env(&self) -> &Env {
        &self.inner.env
    }

    pub(super) fn reserve(&self) -> &Reserve {
        &self.inner.reserve
    }

    /// Returns once more data is stored than when it was asked last.
    pub async fn grown(&self) {
        self.inner.grown.notified().await;
    }

    pub(super) fn shortage(&self) -> Locked<'_, Option<RoomShortage>> {
        self.inner.shortage.lock()
    }

    /// What is on its way there, of everybody.
    pub(super) fn promised(&self) -> &PromisedRoom {
        &self.inner.promised
    }

    /// What this epoch's objects carry.
    pub fn salt(&self) -> Salt {
        self.inner.salt
    }

    pub fn keys(&self) -> &VolumeKeys {
        &self.inner.keys
    }

    /// The last trouble with the store and the time it was seen.
    pub fn trouble(&self) -> Option<(Error, Duration)> {
        self.inner.trouble.lock().as_ref().map(|trouble| (trouble.error.clone(), trouble.at))
    }

    /// Whether something that is to be uploaded was refused, or not answered, and is tried again.
    pub fn is_refused(&self) -> bool {
        self.inner.refused.load(Ordering::Relaxed) > 0
    }

    /// Puts a content into its slot and returns when it is known what the slot holds. Tries for as long
    /// as the store is away; where it has no room, only what waits for room.
    ///
    /// # Errors
    /// `Fenced` when another writer's claim or object of a later epoch is there; `Copied` when an object of this
    /// epoch is there that was not sealed here; `Gone` when the volume is not. The first two also when the slot was free, and
    /// a checkpoint tells that they went on.
    pub(super) async fn append(&self, slot: &Slot, content: EntryBody<'_>) -> Result<Appended> {
        let EntryBody { body, earlier, waits_for_room } = content;
        let store = &self.inner.store;
        let key = keys::entry(slot.seq);
        let sent =
            |body: &Bytes| Ok::<_, Error>((readable(&self.inner.keys, slot, body)?, body.len() as u64));
        let (ours, bytes) = sent(&body)?;
        let earlier = earlier.map(sent).transpose()?;
        debug_assert_eq!(
            (ours.epoch, ours.salt),
            (slot.epoch, slot.salt),
            "an object is sealed for its slot"
        );
        let mut refused = None;
        loop {
            self.confirm(Before::Sending).await?;
            let put = || store.put_if_absent(&key, body.clone());
            let answer = match waits_for_room {
                true => self.making_room(put).await,
                false => put().await.map_err(Error::from),
            };
            let answer = match answer {
                Ok(Put::Created) => Ok(Appended::Ours),
                Ok(Put::Exists) => self.who_is_there((&ours, bytes), earlier.as_ref()).await,
                Err(e) => Err(e),
            };
            match answer {
                Ok(appended) => {
                    self.confirm(Before::Counting).await?; // it may have become doubtful what was written to
                    self.inner.presence.saw(slot.seq);
                    if !waits_for_room {
                        self.had_room(bytes);
                        self.inner.grown.notify_one();
                    }
                    return Ok(appended);
                }
                Err(e @ Error::NoRoom(_)) if !waits_for_room => {
                    self.lacked_room();
                    self.note_trouble(&e);
                    return Ok(Appended::NoRoom(e));
                }
                Err(
                    e @ (Error::Unreachable(_) | Error::Refused(_) | Error::NotFound(_) | Error::NoRoom(_)),
                ) => self.wait_to_retry(&e, &mut refused).await,
                Err(e) => return Err(e),
            }
        }
    }

    /// Looks whether this is still the volume's store, and this still its writer. Tries for as long as the store is away.
    ///
    /// # Errors
    /// `Gone`, `Fenced` or `Copied` when it is not.
    pub async fn look(&self) -> Result<()> {
        self.confirm(Before::Saying).await
    }

    /// Whether nothing of the volume is to be seen but its identity, as where a disk of a pool is away: then what is not found is not gone.
    pub async fn is_out_of_sight(&self) -> bool {
        let said = self.inner.presence.out_of_sight().await;
        said.iter().for_each(|said| self.note_trouble(said));
        said.is_some()
    }

    /// The same, only if there is reason to.
    async fn confirm(&self, before: Before) -> Result<()> {
        let mut refused = None;
        loop {
            match self.inner.presence.confirm(before).await {
                Err(e @ (Error::Unreachable(_) | Error::Refused(_) | Error::NotFound(_))) => {
                    self.wait_to_retry(&e, &mut refused).await
                }
                done => return done,
            }
        }
    }

    /// Notes that something was refused, or not answered, and waits before it is tried again.
    async fn wait_to_retry(&self, e: &Error, refused: &mut Option<Refused>) {
        self.note_trouble(e);
        refused.get_or_insert_with(|| self.refused());
        self.inner.env.sleep(RETRY_PAUSE).await;
    }

    /// Tells our own object (a lost reply) from a fenced writer's, from the one that fences us and from one of a copy
    /// of this writer.
    async fn who_is_there(
        &self,
        (ours, object_bytes): (&EntryHead, u64),
        earlier: Option<&(EntryHead, u64)>,
    ) -> Result<Appended> {
        let Inner { store, keys, epoch, .. } = &*self.inner;
        let key = keys::entry(ours.seq);
        let bytes = store.size(&key).await?.ok_or_else(|| Error::NotFound(key.clone()))?;
        let listed = Listed { key, bytes };
        let SlotContent::Entry(head, _) = read_entry(store.as_ref(), keys, ours.seq, &listed).await? else {
            return Ok(Appended::Taken); // another volume's: as void as a fenced writer's
        };
        if head.kind == EntryKind::Emptied && head.epoch <= *epoch {
            return Err(Error::Copied { seq: head.seq.0 }); // nobody before this writer was given its slots
        }
        if head.epoch > *epoch {
            return Err(Error::Fenced { ours: epoch.0, theirs: head.epoch.0 });
        }
        if head == *ours && listed.bytes == object_bytes {
            return Ok(Appended::Ours);
        }
        if earlier.is_some_and(|(earlier, bytes)| head == *earlier && listed.bytes == *bytes) {
            return Ok(Appended::Earlier);
        }
        if head.epoch == *epoch {
            return Err(Error::Copied { seq: head.seq.0 });
        }
        Ok(Appended::Taken)
    }

    /// Stores a checkpoint of this epoch: `body` is what `Checkpoint::encode` gave, the same bytes at every
    /// attempt, because an attempt whose reply was lost may have stored them.
    ///
    /// # Errors
    /// `Corrupt` when other bytes are stored under its name: they are not what the caller knows.
    pub async fn put_checkpoint(&self, covered: Seq, body: Bytes) -> Result<()> {
        let Inner { store, epoch, presence, .. } = &*self.inner;
        presence.sends_checkpoint(covered);
        let key = keys::checkpoint(*epoch, covered);
        match self.making_room(|| store.put_if_absent(&key, body.clone())).await? {
            Put::Created => {}
            Put::Exists if store.get(&key, CHECKPOINT_BYTES_MAX).await? == body => {}
            Put::Exists => return Err(Error::corrupt(key, "another checkpoint is stored under this name")),
        }
        // Behind the first of the epoch, and so before the epoch deletes anything: where no checkpoint is listed then, what is left of the log
        // is not taken for the whole.
        if self.inner.covered.load(Ordering::SeqCst) == 0 && !is_there(store.as_ref(), keys::PROOF).await? {
            self.put_unique(keys::PROOF, keys::PROOF_BODY.into()).await?;
        }
        self.inner.covered.fetch_max(covered.0, Ordering::SeqCst);
        Ok(())
    }

    /// Writes an immutable object under a name that nobody else uses.
    pub async fn put_unique(&self, key: &str, body: Bytes) -> Result<()> {
        match self.making_room(|| self.inner.store.put_if_absent(key, body.clone())).await? {
            Put::Created | Put::Exists => Ok(()),
        }
    }

    /// An upload is refused until it is through, or nobody asks any more.
    pub fn refused(&self) -> Refused {
        self.inner.refused.fetch_add(1, Ordering::Relaxed);
        Refused { log: self.clone() }
    }

    /// Something could not be stored and will be tried again: for `status`.
    pub fn note_trouble(&self, e: &Error) {
        self.inner.presence.doubt();
        let now = self.inner.env.now();
        let mut trouble = self.inner.trouble.lock();
        let logged = trouble.take().filter(|before| !before.is_news(e, now)).map(|before| before.logged);
        // Whoever serves the volume says, once, that its store is away.
        if logged.is_none() && !matches!(e, Error::Unreachable(_)) {
            tracing::warn!(error = %e, "the store is in trouble; uploads are tried again until it is back");
        }
        let logged = logged.unwrap_or_else(|| (e.clone(), now));
        *trouble = Some(Trouble { error: e.clone(), at: now, logged });
    }
}

/// The head of an object that is to join the log, once whoever walks over the log would take it: what is put there and is not read ends
/// the volume for everybody.
pub(super) fn readable(keys: &VolumeKeys, slot: &Slot, body: &Bytes) -> Result<EntryHead> {
    match read_tail(keys.key.as_deref(), keys.volume, slot.seq, body.len() as u64, body) {
        Ok(Tail::Whole(head, _)) => Ok(head),
        Ok(_) => Err(Error::unreadable(keys::entry(slot.seq), "it is no entry of this volume")),
        Err(e) => Err(Error::unreadable(keys::entry(slot.seq), e)),
    }
}

/// An upload that is refused.
pub struct Refused {
    log: LogWriter,
}

impl Drop for Refused {
    fn drop(&mut self) {
        let before = self.log.inner.refused.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "an upload that is refused is counted once");
    }
}

/// Trouble that goes on is logged at most this often: what is refused names another object each time.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// The last trouble with the store and when it was, for `status`.
struct Trouble {
    error: Error,
    at: Duration,
    /// What was logged last.
    logged: (Error, Duration),
}

impl Trouble {
    /// Whether what is met now is another kind of trouble than what was logged, or a new one, or was not logged for long in these words.
    fn is_news(&self, e: &Error, now: Duration) -> bool {
        let (logged, logged_at) = &self.logged;
        let is_other = logged.to_string() != e.to_string();
        discriminant(logged) != discriminant(e)
            || now.saturating_sub(self.at) > LOG_PERIOD
            || (is_other && now.saturating_sub(*logged_at) > LOG_PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that refuses one object after the other is in the log once a minute; what is of another kind, or comes again after a
    /// quiet minute, at once.
    #[test]
    fn trouble_that_goes_on_is_no_flood() {
        let refused = |key: &str| Error::Refused(format!("cannot make {key}: the file system is read-only"));
        let seconds = Duration::from_secs;
        let before =
            Trouble { error: refused("log/2"), at: seconds(100), logged: (refused("log/1"), seconds(90)) };
        assert!(!before.is_news(&refused("log/1"), seconds(155)), "in the same words");
        assert!(!before.is_news(&refused("log/3"), seconds(150)), "of another object");
        assert!(before.is_news(&refused("log/3"), seconds(151)), "a minute after the last line");
        assert!(before.is_news(&refused("log/1"), seconds(161)), "after a minute without any");
        assert!(before.is_news(&Error::NoRoom("full".into()), seconds(101)), "of another kind");
    }
}
