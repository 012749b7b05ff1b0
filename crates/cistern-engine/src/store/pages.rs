//! A listing in pages: all that lies below a prefix, a bounded number of names at a time.

use super::{Listed, Store, StoreResult};

/// Names that are asked for with one request.
pub const LIST_MAX: usize = 1000;

/// What is left of a listing. What comes or goes meanwhile behind the place that it has reached may be seen or not.
pub struct Pages<'a> {
    store: &'a dyn Store,
    prefix: &'a str,
    /// The last name that was seen; `None` behind the last page.
    after: Option<String>,
}

impl<'a> Pages<'a> {
    /// Everything below `prefix`.
    pub fn of(store: &'a dyn Store, prefix: &'a str) -> Pages<'a> {
        Pages::behind(store, prefix, String::new())
    }

    /// What of it lies behind the key `after`.
    pub fn behind(store: &'a dyn Store, prefix: &'a str, after: String) -> Pages<'a> {
        Pages { store, prefix, after: Some(after) }
    }

    /// The next objects, ascending, one at least; `None` behind the last. After an error the same is asked again.
    pub async fn next_page(&mut self) -> StoreResult<Option<Vec<Listed>>> {
        let Some(after) = &self.after else { return Ok(None) };
        let page = self.store.list_after(self.prefix, after, LIST_MAX).await?;
        // One that is not full is the last. Every name counts here, also one that means nothing to who lists.
        self.after = page.last().filter(|_| page.len() >= LIST_MAX).map(|last| last.key.clone());
        Ok(Some(page).filter(|page| !page.is_empty()))
    }

    /// Whether a request is needed to learn that there is no more.
    pub fn has_more(&self) -> bool {
        self.after.is_some()
    }
}
