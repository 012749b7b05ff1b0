//! What a listing does not show is asked for by name (docs/design/answers.md, "Listings"): a listing may be old, or lack a part of the store.

use super::keys;
use crate::{
    Error, Result,
    store::{LIST_MAX, Store, StoreError},
};

/// Whether there is an object of this name, listed or not.
pub(super) async fn is_there(store: &dyn Store, key: &str) -> Result<bool> {
    match store.size(key).await {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound(_)) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Who has to find everything that lies at a place has to be shown an object of which it is known that it is there.
///
/// # Errors
/// `Refused` by a store that has it and does not list it.
pub async fn refuse_unlisted(store: &dyn Store, key: &str) -> Result<()> {
    // Of everything, as those list who rely on it: a server may show with its whole name what it hides in the listing of a place.
    let listed = store.list_after("", &key[..key.len() - 1], 1).await?;
    if listed.first().is_some_and(|listed| listed.key == key) || !is_there(store, key).await? {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the store has {key} and does not list it. Is the listing older than that, or is there an object that is named like a directory on the way there? Some servers list nothing below one: delete it, or give it another name"
    )))
}

/// Numbers behind what is listed that are asked for by name.
const UNLISTED_MAX: usize = 64;

/// The numbers of what lies below a prefix, ascending, where names are consecutive numbers from 1 on and the highest counts: wrapped keys, notes about
/// the trash. Whether there is one behind the last that is listed is asked by name.
pub(super) async fn numbers(store: &dyn Store, prefix: &str) -> Result<Vec<u64>> {
    let listed = store.list_after(prefix, "", LIST_MAX).await?;
    let mut numbers: Vec<u64> = listed.iter().filter_map(|l| keys::parse_numbered(prefix, &l.key)).collect();
    for _ in 0..UNLISTED_MAX {
        let Some(next) = numbers.last().unwrap_or(&0).checked_add(1) else { return Ok(numbers) };
        match is_there(store, &keys::numbered(prefix, next)).await? {
            true => numbers.push(next),
            false => return Ok(numbers),
        }
    }
    Err(Error::Refused(format!("the store has many objects below {prefix} that it does not list")))
}
