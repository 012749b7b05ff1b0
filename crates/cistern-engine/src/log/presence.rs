//! Whether the volume is still in its store.
//!
//! A bucket that was deleted and made again, empty, takes every put. So whenever there was trouble, or nobody looked
//! for long, a writer looks at its identity, into the trash, and at the newest object that it knows to be in the log, before it sends
//! anything more and before it counts anything as committed. Where all goes well that is three small requests in
//! [`CONFIRM_AGE`] while something is written, and three whenever somebody is to hear that everything is in the store.
//!
//! Decides nothing about the order of the log.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    Error, Result,
    env::Env,
    log::{
        identity::{IDENTITY_BYTES_MAX, Identity},
        keys,
        trash::read_note,
    },
    store::{Failures, SharedStore, StoreError},
    units::{Seq, VolumeId},
};

/// A store that was not looked at for so long is looked at before it is written to.
const CONFIRM_AGE: Duration = Duration::from_secs(600);

/// What a writer knows about the presence of its volume.
pub(super) struct Presence {
    env: Env,
    store: SharedStore,
    volume: VolumeId,
    /// Requests that failed in the store's decorators; whoever asked may have got a good answer in the end.
    failures: Failures,
    /// Requests that failed for good.
    troubles: AtomicU64,
    /// The newest object that is known to lie in the log.
    newest: AtomicU64,
    /// Held while looking, so that one looks and the others wait for what it sees.
    confirmed: tokio::sync::Mutex<Confirmed>,
}

struct Confirmed {
    at: Duration,
    /// The doubts that were dispelled then.
    doubts: u64,
}

impl Presence {
    /// The volume was just seen, with `newest` in its log.
    pub(super) fn new(
        env: Env,
        store: SharedStore,
        failures: Failures,
        volume: VolumeId,
        newest: Seq,
    ) -> Presence {
        let confirmed = tokio::sync::Mutex::new(Confirmed { at: env.now(), doubts: failures.count() });
        let (troubles, newest) = (AtomicU64::new(0), AtomicU64::new(newest.0));
        Presence { env, store, volume, failures, troubles, newest, confirmed }
    }

    /// A request failed.
    pub(super) fn doubt(&self) {
        self.troubles.fetch_add(1, Ordering::Relaxed);
    }

    /// `seq` lies in the log.
    pub(super) fn saw(&self, seq: Seq) {
        self.newest.fetch_max(seq.0, Ordering::Relaxed);
    }

    fn doubts(&self) -> u64 {
        self.failures.count() + self.troubles.load(Ordering::Relaxed)
    }

    /// Looks, if it is asked for or there is reason to.
    ///
    /// # Errors
    /// `Gone` when the volume is not there, which stays in doubt; what the store says when it cannot be seen.
    pub(super) async fn confirm(&self, asked: bool) -> Result<()> {
        let mut confirmed = self.confirmed.lock().await;
        let age = self.env.now().saturating_sub(confirmed.at);
        if !asked && confirmed.doubts == self.doubts() && age <= CONFIRM_AGE {
            return Ok(());
        }
        *confirmed = self.look().await.inspect_err(|_| self.doubt())?;
        Ok(())
    }

    async fn look(&self) -> Result<Confirmed> {
        let confirmed = Confirmed { at: self.env.now(), doubts: self.doubts() };
        match self.store.get(keys::VOLUME, IDENTITY_BYTES_MAX).await {
            // A damaged one is no proof: the next opening complains.
            Ok(body) => match Identity::decode(&body) {
                Ok(found) if found.volume != self.volume => {
                    return Err(Error::Gone(format!("volume {} is in its place", found.volume)));
                }
                _ => {}
            },
            Err(StoreError::NotFound(_)) => {
                return Err(Error::Gone(format!("{} is not there any more", keys::VOLUME)));
            }
            Err(e) => return Err(e.into()),
        }
        self.refuse_trash().await?;
        let newest = keys::entry(Seq(self.newest.load(Ordering::Relaxed)));
        let listed = self.store.list_after(&newest, "", 1).await?;
        match listed.first().is_some_and(|listed| listed.key == newest) {
            true => Ok(confirmed),
            false => Err(Error::Gone(format!("{newest}, which was there, is not there any more"))),
        }
    }

    /// Somebody may have put the volume into the trash all the same.
    async fn refuse_trash(&self) -> Result<()> {
        match read_note(self.store.as_ref(), Some(self.volume)).await {
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
