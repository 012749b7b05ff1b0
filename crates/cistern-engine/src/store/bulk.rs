//! Deleting many objects: in bulk where the store can, with several requests under way everywhere.
//!
//! An object that cannot be deleted holds up no other. But once the store does not answer, no request is begun
//! any more: whoever deletes comes again.

use futures_util::{StreamExt, stream};

use super::{Store, StoreError};
use crate::rank::{Rank, Ranked};

/// Requests of one call under way.
const PARALLEL: usize = 16;

/// An object that could not be deleted: it may be there still.
#[derive(Clone, Debug)]
pub struct Undeleted {
    pub key: String,
    pub why: StoreError,
}

/// Deletes objects; gives those that could not be deleted. One that is not there counts as deleted.
pub async fn delete_all(store: &dyn Store, keys: &[String]) -> Vec<Undeleted> {
    let away = Ranked::new(Rank::World, None);
    let chunks = keys.chunks(store.deletes_at_once().max(1));
    let requests: Vec<_> = chunks.map(|keys| delete_unless_away(store, keys, &away)).collect();
    stream::iter(requests).buffer_unordered(PARALLEL).map(stream::iter).flatten().collect().await
}

/// Deletes what one request can delete; once the store is away, nothing.
async fn delete_unless_away(
    store: &dyn Store,
    keys: &[String],
    away: &Ranked<Option<StoreError>>,
) -> Vec<Undeleted> {
    let why = away.lock().clone();
    if let Some(why) = why {
        return all(keys, &why);
    }
    let undeleted = delete_chunk(store, keys).await;
    if let Some(last) = undeleted.iter().find(|u| matches!(u.why, StoreError::Unreachable(_))) {
        *away.lock() = Some(last.why.clone());
    }
    undeleted
}

async fn delete_chunk(store: &dyn Store, keys: &[String]) -> Vec<Undeleted> {
    let [first, rest @ ..] = keys else { return Vec::new() };
    if rest.is_empty() {
        return single(store, first).await.into_iter().collect();
    }
    match store.delete_many(keys).await {
        Ok(undeleted) => undeleted,
        // A server that does not know bulk deletes knows single ones. Where it refuses the first of these too,
        // it is not the bulk that it minds.
        Err(StoreError::Refused(_)) => match single(store, first).await {
            Some(Undeleted { why, .. }) => all(keys, &why),
            None => {
                let singles: Vec<_> = rest.iter().map(|key| single(store, key)).collect();
                stream::iter(singles)
                    .buffer_unordered(PARALLEL)
                    .filter_map(std::future::ready)
                    .collect()
                    .await
            }
        },
        Err(why) => all(keys, &why),
    }
}

async fn single(store: &dyn Store, key: &str) -> Option<Undeleted> {
    let why = store.delete(key).await.err()?;
    Some(Undeleted { key: key.to_owned(), why })
}

fn all(keys: &[String], why: &StoreError) -> Vec<Undeleted> {
    keys.iter().map(|key| Undeleted { key: key.clone(), why: why.clone() }).collect()
}
