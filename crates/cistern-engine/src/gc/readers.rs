//! Readers that its writer cannot see make themselves known to a volume (`docs/format/volume.md`, "readers/").
//!
//! A reader announces itself before it lists the checkpoints; who deletes lists the announcements when the checkpoint is in the store without which
//! nothing is deleted. So a reader that is not found reads that checkpoint or a later one, and needs nothing of what is deleted. An announcement is made
//! anew under another name before it is old; how old one is tells the clock of who deletes, from when it saw that name first.
//!
//! Only where the store is on a disk that can be full: in a cloud nobody deletes soon.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde::Serialize;

use crate::{
    Result,
    env::{Env, Stop, StopOnDrop, Task},
    log::keys,
    store::{Pages, SharedStore, Store, StoreError},
};

/// How often a reader makes its announcement anew.
const RENEW_EVERY: Duration = Duration::from_secs(300);
/// An announcement that is as old has no reader any more.
const AGE_MAX: Duration = Duration::from_secs(900);
/// Names of one announcement that are deleted again and again. Others grow old.
const NAMES_MAX: usize = 16;
/// Announcements that are remembered. More of them are taken for readers.
const READERS_MAX: usize = 1000;

const _: () = assert!(RENEW_EVERY.as_secs() * 2 < AGE_MAX.as_secs());

/// The object, for people.
#[derive(Serialize)]
struct File {
    cistern: &'static str,
    format: u32,
    at_ms: u64,
}

/// A reader that is announced. Dropped, its announcement is deleted by its task, for which [`Env::parted`] waits.
pub struct Announcement {
    task: Task<()>,
    stop_on_drop: StopOnDrop,
}

impl Announcement {
    /// Announces a reader to the volume that a store holds; `None` where that is of no use or not allowed.
    ///
    /// # Errors
    /// Those of a store that does not answer.
    pub async fn make(env: &Env, store: &SharedStore) -> Result<Option<Announcement>> {
        if !matches!(store.room().await, Ok(Some(_))) {
            return Ok(None);
        }
        let id = env.uuid();
        let first = keys::reader(id, 0);
        match store.put(&first, body(env)).await {
            Ok(()) => {}
            Err(StoreError::Refused(why)) => {
                tracing::warn!(
                    why,
                    "this reader cannot tell the volume's writer of itself: what it shows may be deleted within seconds after it is \
                     overwritten, and then its reads fail. Serve the volume with `--grace 15m` while it is read from here"
                );
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        }
        let stop = Stop::new();
        let task =
            env.spawn_parting("announcement", keep(env.clone(), store.clone(), stop.clone(), (id, first)));
        Ok(Some(Announcement { task, stop_on_drop: StopOnDrop(stop) }))
    }

    /// The reader is done. One that ends without this is forgotten when its announcement is old.
    pub async fn end(self) {
        drop(self.stop_on_drop);
        self.task.await;
    }
}

/// What `work` gives, announced meanwhile.
pub async fn while_announced<T>(
    env: &Env,
    store: &SharedStore,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let announcement = Announcement::make(env, store).await?;
    let done = work.await;
    if let Some(announcement) = announcement {
        announcement.end().await;
    }
    done
}

/// Renews an announcement until it is stopped, and deletes it then.
async fn keep(env: Env, store: SharedStore, stop: Stop, (id, first): (uuid::Uuid, String)) {
    // The name that counts, and others that may be there.
    let mut names = vec![first];
    for number in 1.. {
        if stop.unless_stopped(env.sleep(RENEW_EVERY)).await.is_none() {
            break;
        }
        names.push(keys::reader(id, number));
        if store.put(&names[names.len() - 1], body(&env)).await.is_err() {
            continue; // the next one will
        }
        for old in names.drain(..names.len() - 1).collect::<Vec<_>>() {
            if store.delete(&old).await.is_err() {
                names.insert(0, old);
            }
        }
        names.drain(..names.len().saturating_sub(NAMES_MAX));
    }
    for name in names {
        let _ = store.delete(&name).await; // else it grows old
    }
}

fn body(env: &Env) -> Bytes {
    let file = File { cistern: "reader", format: 1, at_ms: env.wall_ms() };
    serde_json::to_vec(&file).expect("plain fields always serialize").into()
}

/// The announcements that who deletes has seen, and when first.
#[derive(Default)]
pub struct KnownReaders {
    seen: BTreeMap<String, Duration>,
}

/// What there is of announcements.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundReaders {
    pub is_any: bool,
    /// Their readers are gone.
    pub old: Vec<String>,
}

impl KnownReaders {
    /// Looks at the announcements.
    ///
    /// # Errors
    /// Those of the store: then there may be readers.
    pub async fn look(&mut self, store: &dyn Store, now: Duration) -> Result<FoundReaders> {
        let mut listed = Vec::new();
        let mut pages = Pages::of(store, keys::READERS_PREFIX);
        while let Some(page) = pages.next_page().await? {
            listed.extend(page.into_iter().map(|object| object.key));
            if listed.len() > READERS_MAX {
                return Ok(FoundReaders { is_any: true, old: Vec::new() });
            }
        }
        Ok(self.sort(listed, now))
    }

    fn sort(&mut self, listed: Vec<String>, now: Duration) -> FoundReaders {
        let before = std::mem::take(&mut self.seen);
        let mut found = FoundReaders::default();
        for name in listed {
            let first = before.get(&name).copied().unwrap_or(now);
            match now.saturating_sub(first) < AGE_MAX {
                true => found.is_any = true,
                false => found.old.push(name.clone()),
            }
            self.seen.insert(name, first);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An announcement counts from when it was seen first, by the clock of who looks, whatever the reader's says; one that goes and
    /// one that is made anew in time are told from one that nobody renews.
    #[test]
    fn what_nobody_renews_grows_old() {
        let mut readers = KnownReaders::default();
        let mut look = |names: &[&str], seconds: u64| {
            readers.sort(names.iter().map(|&name| name.into()).collect(), Duration::from_secs(seconds))
        };
        assert_eq!(look(&[], 10), FoundReaders::default());
        assert!(look(&["a-0", "b-0"], 100).is_any);
        assert!(look(&["a-1", "b-0"], 999).is_any);
        let found = look(&["a-1", "b-0"], 1000);
        assert_eq!((found.is_any, found.old), (true, vec!["b-0".to_owned()]));
        assert!(!look(&["b-0"], 1001).is_any);
        assert_eq!(look(&["a-1"], 2000), FoundReaders { is_any: true, old: vec![] }, "it is new again");
    }
}
