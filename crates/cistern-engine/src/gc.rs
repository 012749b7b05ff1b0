//! The one place that deletes from the store.
//!
//! For now it deletes what is superseded by its name alone: checkpoints older than the newest few.
//! A delete follows an append of this epoch that came later than the newest checkpoint, so a fenced
//! writer cannot delete what its successor descends from. And it removes whole volumes.

use crate::{
    Result,
    log::keys,
    store::{SharedStore, Store},
    units::{Epoch, Seq},
};

/// Checkpoints kept: the newest, and some for readers that have listed but not yet read.
const CHECKPOINTS_KEPT: usize = 4;
const LIST_MAX: usize = 1000;

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

/// Deletes every object of a volume. The identity goes first, so that what is left by an interruption
/// is no volume any more; a second run finishes it.
pub async fn remove_volume(store: &SharedStore, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<()> {
    store.delete(keys::VOLUME).await?;
    let mut done = 0;
    loop {
        let page = store.list_after("", "", LIST_MAX).await?;
        if page.is_empty() {
            return Ok(());
        }
        let more = u64::from(page.len() == LIST_MAX) * LIST_MAX as u64;
        for (n, listed) in page.iter().enumerate() {
            progress(done + n as u64, done + page.len() as u64 + more);
            store.delete(&listed.key).await?;
        }
        done += page.len() as u64;
    }
}
