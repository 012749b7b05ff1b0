//! The one place that deletes from the store.
//!
//! It deletes what checkpoints have retired and is due ([`crate::space`] says what is), what is superseded by its name
//! alone, announcements of readers that are gone, and whole volumes. A delete follows an append of this epoch that came later than the checkpoint which does
//! without the object, so a fenced writer cannot delete what its successor descends from.
//!
//! Many objects go in bulk where the store has such requests, and several requests are under way at once.

pub mod readers;

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use futures_util::{StreamExt, stream};

use crate::{
    Error, Result,
    log::{
        LogWriter,
        checkpoint::{Retired, RetiredName},
        identity_copies, keys,
    },
    store::{LIST_MAX, Pages, SharedStore, Store, StoreError, Undeleted, delete_all},
    units::{Epoch, Seq, VolumeId},
};

/// Checkpoints kept: the newest, and some for readers that have listed but not yet read.
const CHECKPOINTS_KEPT: usize = 4;
/// Pages of a listing whose objects are being deleted while the next one is listed.
const PAGES_IN_FLIGHT: usize = 4;
/// Passes of a removal: one deletes, the next finds nothing but what a writer put meanwhile.
const PASSES_MAX: usize = 8;
/// Slots that are emptied at once.
const PUTS_IN_FLIGHT: usize = 16;

/// What came of deleting objects that are due.
pub struct Deletion {
    pub deleted: Vec<RetiredName>,
    pub stayed: Vec<RetiredName>,
    /// What was wrong with the first that stayed.
    pub fault: Option<Error>,
}

/// Deletes objects that are due. None holds up another.
pub async fn delete_retired(store: &dyn Store, due: &[Retired]) -> Deletion {
    let keys: Vec<String> = due.iter().map(|object| object.name.key()).collect();
    let undeleted = delete_all(store, &keys).await;
    let has_stayed: HashSet<&str> = undeleted.iter().map(|undeleted| undeleted.key.as_str()).collect();
    let named = due.iter().zip(&keys).map(|(object, key)| (object.name, has_stayed.contains(key.as_str())));
    let (stayed, deleted): (Vec<_>, Vec<_>) = named.partition(|(_, has_stayed)| *has_stayed);
    let names = |some: Vec<(RetiredName, bool)>| some.into_iter().map(|(name, _)| name).collect();
    let fault = undeleted.into_iter().next().map(|first| first.why.into());
    Deletion { deleted: names(deleted), stayed: names(stayed), fault }
}

/// What came of emptying slots.
pub struct Emptying {
    /// With the bytes that are left.
    pub emptied: Vec<(Seq, u64)>,
    pub stayed: Vec<RetiredName>,
    /// What was wrong with the first that stayed.
    pub fault: Option<Error>,
}

/// Puts next to nothing in the place of segments that are due and whose slots must not be free yet. None holds up another. A request that
/// comes late does no more harm than a late delete: it meets what nothing needs, or leaves an orphan in a slot that was free.
pub async fn empty_slots(store: &dyn Store, log: &LogWriter, due: &[Seq]) -> Emptying {
    let put = |seq: Seq| async move {
        let (key, body) = (keys::entry(seq), log.emptied(seq));
        let bytes = body.len() as u64;
        (seq, bytes, log.making_room(|| store.put(&key, body.clone())).await)
    };
    let mut puts = stream::iter(due.iter().map(|seq| put(*seq)).collect::<Vec<_>>()).buffered(PUTS_IN_FLIGHT);
    let mut out = Emptying { emptied: Vec::new(), stayed: Vec::new(), fault: None };
    while let Some((seq, bytes, done)) = puts.next().await {
        match done {
            Ok(()) => out.emptied.push((seq, bytes)),
            Err(e) => {
                out.stayed.push(RetiredName::Segment(seq));
                out.fault.get_or_insert(e);
            }
        }
    }
    out
}

/// Deletes checkpoints that are older than the newest few and than `newest`, which is in the store and
/// has a later append of its epoch behind it.
pub async fn prune_checkpoints(store: &dyn Store, newest: (Epoch, Seq)) -> Result<()> {
    let listed = store.list_after(keys::CHECKPOINT_PREFIX, "", LIST_MAX).await?;
    let names: Vec<_> =
        listed.iter().filter(|l| keys::parse_checkpoint(&l.key).is_some_and(|name| name < newest)).collect();
    let surplus = (names.len() + 1).saturating_sub(CHECKPOINTS_KEPT);
    for old in &names[..surplus] {
        store.delete(&old.key).await?;
    }
    Ok(())
}

/// Deletes the hot sets that are older than `newest`, which is in the store. They are advice, and a fenced
/// writer knows no newer ones than its own: no order with the log is needed.
pub async fn prune_hot_sets(store: &dyn Store, newest: (Epoch, u64)) -> Result<()> {
    for old in store.list_after(keys::HOT_PREFIX, "", LIST_MAX).await? {
        if keys::parse_hot(&old.key).is_some_and(|name| name < newest) {
            store.delete(&old.key).await?;
        }
    }
    Ok(())
}

/// Deletes the wrapped keys that `newest`, which is in the store, outranks: whoever knows a secret that was
/// replaced finds nothing to open with it.
pub async fn prune_wrappings(store: &dyn Store, newest: u64) -> Result<()> {
    for old in store.list_after(keys::WRAPPING_PREFIX, "", LIST_MAX).await? {
        if keys::parse_wrapping(&old.key).is_some_and(|number| number < newest) {
            store.delete(&old.key).await?;
        }
    }
    Ok(())
}

/// Deletes the notes about the trash that `newest`, which is in the store, outranks.
pub async fn prune_notes(store: &dyn Store, newest: u64) -> Result<()> {
    for old in store.list_after(keys::TRASH_PREFIX, "", LIST_MAX).await? {
        if keys::parse_trash(&old.key).is_some_and(|number| number < newest) {
            store.delete(&old.key).await?;
        }
    }
    Ok(())
}

/// Deletes announcements whose readers are gone. What stays is met again.
pub async fn delete_announcements(store: &dyn Store, old: &[String]) {
    for name in old {
        let _ = store.delete(name).await;
    }
}

/// Deletes notes of clones that are gone, which the log of the volume they were made of has as operations.
pub async fn delete_released(store: &dyn Store, clones: &[VolumeId]) -> Result<()> {
    for clone in clones {
        store.delete(&keys::released(*clone)).await?;
    }
    Ok(())
}

/// An object that lies where no volume is: one of a volume's names (a removal was interrupted, or a put came
/// late) before any other. What a probe leaves does not count.
pub async fn left_over(store: &SharedStore) -> Result<Option<String>> {
    let mut other = None;
    let mut pages = Pages::of(store.as_ref(), "");
    while let Some(page) = pages.next_page().await? {
        for listed in page {
            if keys::is_of_a_volume(&listed.key) {
                return Ok(Some(listed.key));
            }
            if !listed.key.starts_with(keys::PROBE_PREFIX) {
                other.get_or_insert(listed.key);
            }
        }
    }
    Ok(other)
}

/// Deletes every object of a volume. The identity goes first, and then its copy, so that what is left by an interruption
/// is no volume any more: nothing opens it, creating refuses, and a second run finishes it. Notes about the trash go
/// last: they show that there is something to finish. Objects that have no volume's names stay: somebody else put
/// them there.
///
/// # Errors
/// That of an identity, or of a copy of one: then nothing else was deleted. Or the first object's that could not be deleted, with how many they are;
/// it held up no other.
pub async fn remove_volume(store: &SharedStore, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<()> {
    store.delete(keys::VOLUME).await?;
    for copy in identity_copies(store.as_ref()).await? {
        store.delete(&copy).await?;
    }
    let removal = VolumeDeletion { store, progress, listed: AtomicU64::new(0), done: AtomicU64::new(0) };
    removal.until_nothing(|key| keys::parse_trash(key).is_none()).await?;
    removal.until_nothing(|_| true).await
}

/// A removal under way.
struct VolumeDeletion<'a> {
    store: &'a SharedStore,
    progress: &'a (dyn Fn(u64, u64) + Send + Sync),
    listed: AtomicU64,
    done: AtomicU64,
}

/// The keys of a page, and whether there are more pages.
type Page = (Vec<String>, bool);

impl<'a> VolumeDeletion<'a> {
    /// Deletes until nothing that is wanted is listed any more: what a writer put meanwhile goes too.
    ///
    /// # Errors
    /// `Refused` by a store that goes on listing what it says is deleted.
    async fn until_nothing(&self, wanted: fn(&str) -> bool) -> Result<()> {
        let mut last = None;
        for _ in 0..PASSES_MAX {
            match self.pass(wanted).await? {
                None => return Ok(()),
                found => last = found,
            }
        }
        Err(Error::Refused(format!(
            "the store still lists {} after {PASSES_MAX} deletions that it called done. Does the bucket have \
             object lock, or something in front of it that caches?",
            last.unwrap_or_default()
        )))
    }

    /// Deletes all that lies there and is wanted, listing ahead of deleting. Gives one of the names; none where there was nothing.
    async fn pass(&self, wanted: fn(&str) -> bool) -> Result<Option<String>> {
        let pages = Pages::of(self.store.as_ref(), "");
        let pages = stream::try_unfold(pages, move |pages| self.next_page(pages, wanted));
        let pages = pages.boxed();
        let mut deletions = pages.map(|page| self.delete(page)).buffer_unordered(PAGES_IN_FLIGHT);
        let (mut count, mut first, mut name) = (0, None, None);
        while let Some(done) = deletions.next().await {
            let (listed, undeleted) = done?;
            name = name.or(listed);
            count += undeleted.len() as u64;
            first = first.or(undeleted.into_iter().next());
        }
        match first {
            Some(first) => Err(could_not_delete(&first, count)),
            None => Ok(name),
        }
    }

    /// Lists what is ours and wanted behind a key; nothing comes behind the last page.
    async fn next_page(
        &self,
        mut pages: Pages<'a>,
        wanted: fn(&str) -> bool,
    ) -> Result<Option<(Page, Pages<'a>)>> {
        let Some(page) = pages.next_page().await? else { return Ok(None) };
        let ours = |key: &str| keys::is_of_a_volume(key) || key.starts_with(keys::PROBE_PREFIX);
        let ours = page.into_iter().map(|listed| listed.key).filter(|key| ours(key) && wanted(key));
        let ours: Vec<String> = ours.collect();
        self.listed.fetch_add(ours.len() as u64, Relaxed);
        Ok(Some(((ours, pages.has_more()), pages)))
    }

    /// Deletes the objects of a page; gives the first of them, and those that stay. An error where all do: then it is not about the objects.
    async fn delete(&self, page: Result<Page>) -> Result<(Option<String>, Vec<Undeleted>)> {
        let (mut keys, has_more) = page?;
        let undeleted = delete_all(self.store.as_ref(), &keys).await;
        if let Some(first) = undeleted.first().filter(|_| undeleted.len() == keys.len()) {
            return Err(could_not_delete(first, undeleted.len() as u64));
        }
        let deleted = (keys.len() - undeleted.len()) as u64;
        let done = self.done.fetch_add(deleted, Relaxed) + deleted;
        let more = u64::from(has_more) * LIST_MAX as u64;
        (self.progress)(done, self.listed.load(Relaxed) + more);
        let first = (!keys.is_empty()).then(|| keys.swap_remove(0));
        Ok((first, undeleted))
    }
}

fn could_not_delete(first: &Undeleted, count: u64) -> Error {
    let Undeleted { why, .. } = first;
    let text = match count {
        1 => why.to_string(),
        _ => format!("{why}; {count} objects could not be deleted in all"),
    };
    match why {
        StoreError::Unreachable(_) => Error::Unreachable(text),
        StoreError::Refused(_)
        | StoreError::NotFound(_)
        | StoreError::NoRoom(_)
        | StoreError::Unusable { .. } => Error::Refused(text),
    }
}
