//! Whether a writer still has its volume: whether that is still in its store, and nobody went on with it.
//!
//! A put says neither. A bucket that was deleted and made again, empty, takes every put; and so does a slot whose segment
//! counted, was cleaned and deleted: a copy of this writer that slept meanwhile would call committed what nobody will
//! ever read (docs/design/engine.md, "Emptied slots"). So a writer looks, also into the trash: before it sends anything when it
//! has not looked for a third of the grace, and before it counts anything as committed that was answered later than two thirds
//! after the last look; whenever there was trouble; and whenever somebody is to hear that everything is in the store. Where
//! all goes well that is five small requests a third of the grace while something is written.
//!
//! All that stands on put-if-absent. That was proven when the volume was made and is proven again by each opening; but a store may stop keeping it
//! under a writer, when versioning of its bucket is switched on or its gateway is replaced. So while something is written, what has long been there is put again
//! every half minute, before anything more is sent or counts: it has to exist.
//!
//! Decides nothing about the order of the log.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    Error, Result,
    env::Env,
    log::{
        append::Tenure,
        checkpoint::{self, Checkpoint},
        committed::checkpoint_names,
        identity::{IDENTITY_BYTES_MAX, Identity},
        keys,
        trash::read_note,
        unlisted::is_there,
    },
    store::{Failures, Put, SharedStore, Store, StoreError, Stores},
    units::{Epoch, Seq, VolumeId},
};

/// How long a slot of the log stays filled after a checkpoint that covers it is in the store, by the clock of who empties it, in a volume whose
/// identity says nothing else. All that tells a slept writer in time that somebody went on follows from it, so it is the volume's and not the host's.
/// Also how long what readers may need stays by default.
pub const GRACE: Duration = Duration::from_secs(15 * 60);
/// How long what readers could need stays where there are none: long enough for reads that are under way in this process.
pub const GRACE_ALONE: Duration = Duration::from_secs(5);
/// A writer proves so often that the store keeps put-if-absent, while it writes.
const PROOF_AGE_MAX: Duration = Duration::from_secs(30);
/// A store that was not looked at for so long is looked at before it is written to, however long the grace is.
const LOOK_AGE_MAX: Duration = Duration::from_secs(600);

/// How much later it is looked once more for a volume that is not there.
const GONE_PAUSE: Duration = Duration::from_secs(2);

/// What a writer knows about the presence of its volume.
pub(super) struct Presence {
    env: Env,
    /// Where the volume lies, and its own objects there.
    place: SharedStore,
    store: SharedStore,
    volume: VolumeId,
    epoch: Epoch,
    /// What every deletion in the log waits for, whoever deletes.
    grace: Duration,
    /// Requests that failed in the store's decorators; whoever asked may have got a good answer in the end.
    failures: Failures,
    /// Requests that failed for good.
    troubles: AtomicU64,
    /// The newest object that is known to lie in the log.
    newest: AtomicU64,
    /// Up to where the checkpoints cover that this process has sent, answered or not.
    covered: AtomicU64,
    /// Held while looking, so that one looks and the others wait for what it sees.
    confirmed: tokio::sync::Mutex<Confirmed>,
}

struct Confirmed {
    /// When the look began.
    at: Duration,
    /// The doubts that were dispelled then.
    doubts: u64,
    /// When it was proven last that the store keeps what is there.
    proven_at: Duration,
}

/// When a look is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Before something is sent: so that there is time for the answer.
    Sending,
    /// Before what was answered just now counts.
    Counting,
    /// Before somebody hears that everything is there: always.
    Saying,
}

/// Puts what lies there already, with the same content, if it is absent. Whether that shows that the store keeps the rule: not where it has no room,
/// and says so before it looks.
///
/// # Errors
/// `Overwrites` when the store takes it.
pub async fn put_again(store: &dyn Store, key: &str, body: Bytes) -> Result<bool> {
    match store.put_if_absent(key, body).await {
        Ok(Put::Exists) => Ok(true),
        Ok(Put::Created) => Err(Error::Overwrites(key.to_owned())),
        Err(StoreError::NoRoom(_)) => Ok(false), // what takes nothing overwrites nothing
        Err(e) => Err(e.into()),
    }
}

/// Puts the copy of the identity again that lies beside the log, byte for byte: it stays as it is as long as the volume is there. Whether that
/// showed that the store, which is the volume's own, keeps the rule.
pub(super) async fn keeps_what_is_there(store: &dyn Store) -> Result<bool> {
    match store.get(keys::VOLUME, IDENTITY_BYTES_MAX).await {
        Err(StoreError::NotFound(_)) => Ok(true), // a look tells whether the volume is gone
        copy => put_again(store, keys::VOLUME, copy?).await,
    }
}

/// The same before the first put of an opening, which proves it in any case: a copy that is missing is put before, as the identity is.
///
/// # Errors
/// `Overwrites`; `NotFound` where the volume went meanwhile.
pub(super) async fn refuse_if_overwriting(stores: &Stores) -> Result<()> {
    let store = stores.read.as_ref();
    let copy = match store.get(keys::VOLUME, IDENTITY_BYTES_MAX).await {
        Err(StoreError::NotFound(_)) => {
            let identity = stores.whole.get(keys::VOLUME, IDENTITY_BYTES_MAX).await?;
            match store.put_if_absent(keys::VOLUME, identity.clone()).await {
                Ok(_) | Err(StoreError::NoRoom(_)) => identity,
                Err(e) => return Err(e.into()),
            }
        }
        copy => copy?,
    };
    put_again(store, keys::VOLUME, copy).await.map(drop)
}

impl Presence {
    pub(super) fn new(env: Env, stores: &Stores, tenure: &Tenure) -> Presence {
        let (place, store) = (stores.whole.clone(), stores.write_back.clone());
        let failures = stores.failures.clone();
        let Tenure { keys, epoch, next, seen, grace, .. } = tenure;
        let confirmed = Confirmed { at: *seen, doubts: failures.count(), proven_at: *seen };
        let confirmed = tokio::sync::Mutex::new(confirmed);
        Presence {
            env,
            place,
            store,
            volume: keys.volume,
            epoch: *epoch,
            grace: *grace,
            failures,
            troubles: AtomicU64::new(0),
            newest: AtomicU64::new(next.0 - 1),
            covered: AtomicU64::new(0),
            confirmed,
        }
    }

    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// A request failed.
    pub(super) fn doubt(&self) {
        self.troubles.fetch_add(1, Ordering::Relaxed);
    }

    /// `seq` lies in the log.
    pub(super) fn saw(&self, seq: Seq) {
        self.newest.fetch_max(seq.0, Ordering::Relaxed);
    }

    /// A checkpoint is about to be sent: from now on it may be listed.
    pub(super) fn sends_checkpoint(&self, covered: Seq) {
        self.covered.fetch_max(covered.0, Ordering::SeqCst);
    }

    fn doubts(&self) -> u64 {
        self.failures.count() + self.troubles.load(Ordering::Relaxed)
    }

    /// How old the last look may be.
    fn age_max(&self, before: Before) -> Option<Duration> {
        match before {
            Before::Sending => Some((self.grace / 3).min(LOOK_AGE_MAX)),
            Before::Counting => Some(self.grace / 3 * 2),
            Before::Saying => None,
        }
    }

    /// Looks, if there is reason to.
    ///
    /// # Errors
    /// `Gone` when the volume is not there, which stays in doubt; `Fenced` or `Copied` when another writer or a copy of
    /// this one went on with it; `Overwrites` when the store does not keep what is there; what it says when it cannot be seen.
    pub(super) async fn confirm(&self, before: Before) -> Result<()> {
        let mut confirmed = self.confirmed.lock().await;
        let now = self.env.now();
        if before != Before::Saying
            && now.saturating_sub(confirmed.proven_at) >= PROOF_AGE_MAX
            && keeps_what_is_there(self.store.as_ref()).await.inspect_err(|_| self.doubt())?
        {
            confirmed.proven_at = now;
        }
        let age = self.env.now().saturating_sub(confirmed.at);
        let is_recent = self.age_max(before).is_some_and(|max| age <= max);
        if is_recent && confirmed.doubts == self.doubts() {
            return Ok(());
        }
        let (at, doubts) = (self.env.now(), self.doubts());
        self.look_twice().await.inspect_err(|_| self.doubt())?;
        (confirmed.at, confirmed.doubts) = (at, doubts);
        Ok(())
    }

    /// That the volume is gone is believed when it is still so after a moment.
    async fn look_twice(&self) -> Result<()> {
        match self.look().await {
            Err(Error::Gone(_)) => {
                self.env.sleep(GONE_PAUSE).await;
                self.look().await
            }
            seen => seen,
        }
    }

    async fn look(&self) -> Result<()> {
        // Asked at once, because each costs a way to the store and back; judged in order: who went on is named before what they
        // deleted is missed.
        let (identity, trash, others, missing) = futures_util::join!(
            self.identity_is_there(),
            self.refuse_trash(),
            self.nobody_went_on(),
            self.missing_newest()
        );
        // A store that refuses one of them now is not believed that the others are gone.
        let errors =
            [identity.as_ref().err(), trash.as_ref().err(), others.as_ref().err(), missing.as_ref().err()];
        let passes = |e: &&Error| matches!(e, Error::Unreachable(_) | Error::Refused(_));
        if let Some(refused) = errors.into_iter().flatten().find(passes) {
            return Err(refused.clone());
        }
        let has_identity = identity?;
        trash?;
        others?;
        match (has_identity, missing?) {
            (true, None) => Ok(()),
            (true, Some(key)) => self.tell_missing(key, false).await,
            (false, _) => self.tell_missing(keys::VOLUME.to_owned(), true).await,
        }
    }

    /// Something is not there that has to be. A removal takes the identity and then the copy of it beside the log, before anything else: where one of
    /// the two is there, and what lies with the other is missing, a part of the store is out of sight, and may come back.
    async fn tell_missing(&self, key: String, passes_with_copy: bool) -> Result<()> {
        let has_copy = is_there(self.store.as_ref(), keys::VOLUME).await?;
        if has_copy != passes_with_copy {
            return Err(Error::Gone(format!("{key}, which was there, is not there any more")));
        }
        let copy = keys::of_volume(keys::VOLUME, self.volume);
        Err(match has_copy {
            true => Error::Unreachable(format!(
                "{key} is not there, and its copy {copy} is. Was it deleted, or moved? Copy it back, and all goes on"
            )),
            false => self.only_identity(&key),
        })
    }

    fn only_identity(&self, missing: &str) -> Error {
        let copy = keys::of_volume(keys::VOLUME, self.volume);
        Error::Unreachable(format!(
            "{missing} is not there, and not even {copy}. Is a part of the store out of sight (a disk, a mount), or was its directory moved?"
        ))
    }

    /// Whether nothing of the volume is to be seen but its identity: what is said of that.
    pub(super) async fn out_of_sight(&self) -> Option<Error> {
        let has_copy = is_there(self.store.as_ref(), keys::VOLUME).await.ok()?;
        let has_identity = self.identity_is_there().await.ok()?;
        (has_identity && !has_copy).then(|| self.only_identity("what a client reads"))
    }

    async fn identity_is_there(&self) -> Result<bool> {
        match self.place.get(keys::VOLUME, IDENTITY_BYTES_MAX).await {
            // A damaged one is no proof: the next opening complains.
            Ok(body) => match Identity::decode(&body) {
                Ok(found) if found.volume != self.volume => {
                    Err(Error::Gone(format!("volume {} is in its place", found.volume)))
                }
                _ => Ok(true),
            },
            Err(StoreError::NotFound(_)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether all checkpoints are of this writer, or of those before it.
    async fn nobody_went_on(&self) -> Result<()> {
        let names = checkpoint_names(self.store.as_ref()).await?;
        // Read behind the listing: what this process sent was noted before it could be listed.
        let own = (self.epoch, Seq(self.covered.load(Ordering::SeqCst)));
        for (epoch, covered) in names.into_iter().take_while(|name| *name > own) {
            if self.is_foreign(epoch, covered).await? {
                continue;
            }
            return Err(match epoch == self.epoch {
                true => Error::Copied { seq: covered.0 },
                false => Error::Fenced { ours: self.epoch.0, theirs: epoch.0 },
            });
        }
        Ok(())
    }

    /// Whether a checkpoint is of another volume, which says nothing. One that does not verify may be our successor's.
    async fn is_foreign(&self, epoch: Epoch, covered: Seq) -> Result<bool> {
        let key = keys::checkpoint(epoch, covered);
        match self.store.get_range(&key, 0..checkpoint::HEADER_BYTES as u64).await {
            Ok(head) => Ok(Checkpoint::foreign_volume(self.volume, &head).is_some()),
            Err(StoreError::NotFound(_)) => Ok(false), // pruned, because there is a newer one
            Err(e) => Err(e.into()),
        }
    }

    /// The newest object of the log, if it is not there.
    async fn missing_newest(&self) -> Result<Option<String>> {
        loop {
            let newest = self.newest.load(Ordering::Relaxed);
            let key = keys::entry(Seq(newest));
            let listed = self.store.list_after(&key, "", 1).await?;
            if listed.first().is_some_and(|listed| listed.key == key) {
                return Ok(None);
            }
            // A listing may be older than what it lists (caches of network file systems): only its name tells.
            if is_there(self.store.as_ref(), &key).await? {
                return Ok(None);
            }
            // Once there are newer ones it may be cleaned; so it may where somebody went on while this request was on its way.
            if self.newest.load(Ordering::Relaxed) == newest {
                self.nobody_went_on().await?;
                return Ok(Some(key));
            }
        }
    }

    /// Somebody may have put the volume into the trash all the same.
    async fn refuse_trash(&self) -> Result<()> {
        match read_note(self.place.as_ref(), Some(self.volume)).await {
            Ok(note) => match note.and_then(|note| note.refusal()) {
                Some(refusal) => Err(Error::Gone(refusal.to_string())),
                None => Ok(()),
            },
            // No proof either.
            Err(Error::Corrupt { .. } | Error::Version { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
