//! What a listing does not show is asked for by name (docs/design/answers.md, "Listings"): a listing may be old, or lack a part of the store.

use std::time::Duration;

use super::keys;
use crate::{
    Error, Result,
    env::Env,
    store::{LIST_MAX, Listed, Store},
};

/// No listing is older than this: sshfs keeps one for 20 s.
const LISTING_AGE_MAX: Duration = Duration::from_secs(25);
const LISTING_PAUSE: Duration = Duration::from_secs(1);

/// Waits for listings to show what is there.
pub(super) struct ListingPatience {
    until: Duration,
}

impl ListingPatience {
    pub(super) fn begin(env: &Env) -> ListingPatience {
        ListingPatience { until: env.now() + LISTING_AGE_MAX }
    }

    /// Pauses before the next look; false, at once, when no listing can be so old any more.
    pub(super) async fn wait(&self, env: &Env) -> bool {
        let waits = env.now() < self.until;
        if waits {
            env.sleep(LISTING_PAUSE).await;
        }
        waits
    }
}

/// Whether there is an object of this name, listed or not.
pub(super) async fn is_there(store: &dyn Store, key: &str) -> Result<bool> {
    Ok(store.size(key).await?.is_some())
}

/// Who has to find everything that lies at a place has to be shown an object of which it is known that it is there. Gives what the listing
/// says of it, `None` if there is no such object. Lists again for as long as a listing may be old.
///
/// # Errors
/// `Refused` by a store that has it and does not list it.
pub async fn require_listed(env: &Env, store: &dyn Store, key: &str) -> Result<Option<Listed>> {
    let patience = ListingPatience::begin(env);
    loop {
        // Of everything, as those list who rely on it: a server may show in the listing of a directory what it hides in that of the place.
        let first = store.list_after("", &key[..key.len() - 1], 1).await?.pop();
        if first.as_ref().is_some_and(|first| first.key == key) {
            return Ok(first);
        }
        if !is_there(store, key).await? {
            return Ok(None);
        }
        if !patience.wait(env).await {
            return Err(Error::Refused(format!(
                "the store has {key} and does not list it. Is the listing older than that, or is there an object that is named like a \
                 directory on the way there? Some servers list nothing below one: delete it, or give it another name"
            )));
        }
    }
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
