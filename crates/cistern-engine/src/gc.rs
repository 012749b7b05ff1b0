//! The one place that deletes from the store.
//!
//! It deletes what checkpoints have retired and is due ([`crate::space`] says what is), what is superseded by its name
//! alone, and whole volumes. A delete follows an append of this epoch that came later than the checkpoint which does
//! without the object, so a fenced writer cannot delete what its successor descends from.

use futures_util::{StreamExt, stream};

use crate::{
    Error, Result,
    log::{
        checkpoint::{Retired, RetiredName},
        keys,
    },
    store::{SharedStore, Store},
    units::{Epoch, Seq},
};

/// Checkpoints kept: the newest, and some for readers that have listed but not yet read.
const CHECKPOINTS_KEPT: usize = 4;
const LIST_MAX: usize = 1000;

/// Deletes under way at a time.
const DELETES_MAX: usize = 16;

/// Deletes objects that are due. Gives those that are not there any more, and what was wrong with the others.
pub async fn delete_retired(store: &dyn Store, due: &[Retired]) -> (Vec<RetiredName>, Option<Error>) {
    let names: Vec<RetiredName> = due.iter().map(|object| object.name).collect();
    let deletes = names.into_iter().map(|name| async move { (name, store.delete(&name.key()).await) });
    let (mut deleted, mut fault) = (Vec::new(), None);
    let mut answers = stream::iter(deletes).buffer_unordered(DELETES_MAX);
    while let Some((name, answer)) = answers.next().await {
        match answer {
            Ok(()) => deleted.push(name),
            Err(e) => fault = fault.or(Some(e.into())),
        }
    }
    (deleted, fault)
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

/// An object that lies where no volume is: one of a volume's names (a removal was interrupted, or a put came
/// late) before any other. What a probe leaves does not count.
pub async fn left_over(store: &SharedStore) -> Result<Option<String>> {
    let mut after = String::new();
    let mut other = None;
    loop {
        let page = store.list_after("", &after, LIST_MAX).await?;
        let Some(last) = page.last() else { return Ok(other) };
        after = last.key.clone();
        for listed in page {
            if keys::is_of_a_volume(&listed.key) {
                return Ok(Some(listed.key));
            }
            if !listed.key.starts_with(keys::PROBE_PREFIX) {
                other.get_or_insert(listed.key);
            }
        }
    }
}

/// Deletes every object of a volume. The identity goes first, so that what is left by an interruption
/// is no volume any more: nothing opens it, creating refuses, and a second run finishes it. Objects that
/// have no volume's names stay: somebody else put them there.
pub async fn remove_volume(store: &SharedStore, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<()> {
    store.delete(keys::VOLUME).await?;
    let mut done = 0;
    let mut after = String::new();
    let mut deleted = false;
    loop {
        let page = store.list_after("", &after, LIST_MAX).await?;
        let Some(last) = page.last() else {
            if !std::mem::take(&mut deleted) {
                return Ok(());
            }
            after = String::new(); // once more, for what came meanwhile
            continue;
        };
        after = last.key.clone();
        let more = u64::from(page.len() == LIST_MAX) * LIST_MAX as u64;
        let ours = |key: &str| keys::is_of_a_volume(key) || key.starts_with(keys::PROBE_PREFIX);
        let ours: Vec<_> = page.iter().filter(|listed| ours(&listed.key)).collect();
        for (n, listed) in ours.iter().enumerate() {
            progress(done + n as u64, done + ours.len() as u64 + more);
            store.delete(&listed.key).await?;
            deleted = true;
        }
        done += ours.len() as u64;
    }
}
