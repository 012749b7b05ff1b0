//! Listings: complete right after a write, in order, from any place on, in pages, and by directories.

use bytes::Bytes;

use super::{RULE_DIRS, RULE_LIST, RULE_PAGES, Session};
use crate::{
    Result,
    store::{PagedNames, StoreError, StoreResult},
};

/// Objects that listings are tried with.
const LISTED: usize = 5;
/// Names of a page: several full ones, and a last one that is not.
const PAGE_NAMES: usize = 2;
/// Directories that listings are tried with, and objects in each.
const DIRS: [&str; 3] = ["a", "b", "d"];
const IN_DIR: usize = 2;

/// Tries them all.
pub(super) async fn check(session: &Session<'_>) -> Result<()> {
    let keys: Vec<String> = (0..LISTED).map(|i| session.key(&format!("list/{i}"))).collect();
    let prefix = format!("{}list/", session.prefix());
    let fault = after_writes(session, &prefix, &keys).await;
    session.note(RULE_LIST, fault_of(fault)?);
    let fault = in_pages(session, &prefix, &keys).await;
    session.note(RULE_PAGES, fault_of(fault)?);
    let fault = of_directories(session).await;
    session.note(RULE_DIRS, fault_of(fault)?);
    Ok(())
}

/// A listing that is refused breaks its rule; one that is not answered says nothing.
fn fault_of(checked: StoreResult<Option<String>>) -> Result<Option<String>> {
    match checked {
        Ok(fault) => Ok(fault),
        Err(e @ StoreError::Unreachable(_)) => Err(e.into()),
        Err(e) => Ok(Some(e.to_string())),
    }
}

async fn after_writes(session: &Session<'_>, prefix: &str, keys: &[String]) -> StoreResult<Option<String>> {
    let mut fault = None;
    for (i, key) in keys.iter().enumerate() {
        session.store.put(key, Bytes::from(vec![0; i + 1])).await?;
        let listed = session.store.list_after(prefix, "", LISTED + 1).await?;
        let wanted = keys[..=i].iter().enumerate().map(|(n, key)| (key.clone(), n as u64 + 1));
        if listed.into_iter().map(|l| (l.key, l.bytes)).ne(wanted) {
            fault = Some("a new object was missing from a listing, or the order was wrong".to_owned());
        }
        let behind = session.store.list_after(prefix, key, LISTED + 1).await?;
        if !behind.is_empty() {
            fault = Some("a listing ignored where to start".to_owned());
        }
    }
    Ok(fault)
}

/// Pages that continue by the store's token, and pages that each begin after the last name of the one before.
async fn in_pages(session: &Session<'_>, prefix: &str, keys: &[String]) -> StoreResult<Option<String>> {
    let by_token = session.store.list_in_pages(prefix, PagedNames::Objects, PAGE_NAMES).await?;
    if by_token != keys {
        return Ok(Some(differs("a listing continued by its token", &by_token, keys)));
    }
    let mut by_name: Vec<String> = Vec::new();
    while by_name.len() <= keys.len() {
        let after = by_name.last().cloned().unwrap_or_default();
        let page = session.store.list_after(prefix, &after, PAGE_NAMES).await?;
        let is_last = page.len() < PAGE_NAMES;
        by_name.extend(page.into_iter().map(|listed| listed.key));
        if is_last {
            break;
        }
    }
    Ok((by_name != keys).then(|| differs("a listing continued after a name", &by_name, keys)))
}

async fn of_directories(session: &Session<'_>) -> StoreResult<Option<String>> {
    let prefix = format!("{}tree/", session.prefix());
    let in_dirs = DIRS.iter().flat_map(|dir| (0..IN_DIR).map(move |n| format!("tree/{dir}/{n}")));
    // An object beside them is no directory.
    for name in in_dirs.chain(["tree/c".to_owned()]) {
        session.store.put(&session.key(&name), Bytes::from_static(b"x")).await?;
    }
    let whole = session.store.list_dirs(&prefix).await?;
    if whole != DIRS {
        return Ok(Some(differs("a listing of directories", &whole, &DIRS)));
    }
    let by_token = session.store.list_in_pages(&prefix, PagedNames::Directories, PAGE_NAMES).await?;
    Ok((by_token != DIRS)
        .then(|| differs("a listing of directories continued by its token", &by_token, &DIRS)))
}

fn differs<T: AsRef<str>>(what: &str, listed: &[String], written: &[T]) -> String {
    let missing = written.iter().filter(|key| !listed.iter().any(|l| l == key.as_ref())).count();
    format!("{what} gave {} names instead of {}, {missing} are missing", listed.len(), written.len())
}
