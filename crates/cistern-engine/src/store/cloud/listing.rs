//! How a listing goes on behind a page, and when it is complete. Pure.
//!
//! A page is the last one only where the server says so. It goes on by the server's token; where that is missing, empty or the one before, behind the
//! last name that was seen. Invariants: every page brings a new name, or is one of few in a row that bring none, so a listing ends; one that
//! says that there is more and cannot be continued is an error and never a short listing.

use object_store::list::PaginatedListOptions;

use super::{StoreError, StoreResult, sort::Asked};

/// Pages without a name in a row. A bucket with many deleted versions, and a server that moves data, gives some.
const IDLE_PAGES_MAX: usize = 1000;

/// What a page says of what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::cloud) enum PageEnd {
    /// It is the last one.
    Nothing,
    More,
    /// Nothing, against the protocol.
    Unsaid,
}

/// A listing under way.
pub(super) struct ListingWalk {
    /// Names up to here are left out, where no token says more.
    behind: Option<String>,
    token: Option<String>,
    /// The greatest name so far.
    seen: Option<String>,
    idle_pages: usize,
}

impl ListingWalk {
    /// Behind a name, or from the beginning.
    pub fn new(behind: Option<String>) -> ListingWalk {
        ListingWalk { seen: behind.clone(), behind, token: None, idle_pages: 0 }
    }

    /// Where the next page begins.
    pub fn options(&self) -> PaginatedListOptions {
        let (offset, page_token) = (self.behind.clone(), self.token.clone());
        PaginatedListOptions { offset, page_token, ..Default::default() }
    }

    /// Where names of the next page begin that were not seen: behind this one. Some servers begin anew wherever they are to begin.
    pub fn begins_behind(&self) -> Option<&str> {
        self.behind.as_deref().filter(|_| self.token.is_none())
    }

    /// Takes a page, whose names end with `last`. Gives whether there is another one.
    ///
    /// # Errors
    /// `Refused` where there is more, and no way to it.
    pub fn goes_on(
        &mut self,
        asked: Asked<'_>,
        last: Option<String>,
        token: Option<String>,
        end: PageEnd,
    ) -> StoreResult<bool> {
        let is_new = last > self.seen;
        self.idle_pages = if is_new { 0 } else { self.idle_pages + 1 };
        let token = token.filter(|token| !token.is_empty() && self.token.as_ref() != Some(token));
        let more = match (token, end) {
            (Some(_), PageEnd::Nothing) if !is_new => false,
            (Some(token), _) => {
                self.token = Some(token);
                true
            }
            (None, PageEnd::Nothing) => false,
            (None, PageEnd::More | PageEnd::Unsaid) if is_new => {
                (self.behind, self.token) = (last.clone(), None);
                true
            }
            (None, PageEnd::Unsaid) => false,
            (None, PageEnd::More) => {
                return Err(StoreError::Refused(format!(
                    "{asked}: the listing is cut off, and the store does not say how it goes on"
                )));
            }
        };
        self.seen = last.max(self.seen.take());
        match more && self.idle_pages > IDLE_PAGES_MAX {
            true => Err(StoreError::Refused(format!("{asked}: the listing has no end"))),
            false => Ok(more),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Asked<'_> = Asked { what: "LIST", key: "log/", condition: false };

    /// What a walk does behind pages, each of its last name, its token and what it says: where the next one begins, or `None` behind the last.
    fn walk(
        pages: &[(&str, Option<&str>, PageEnd)],
    ) -> StoreResult<Option<(Option<String>, Option<String>)>> {
        let mut walk = ListingWalk::new(Some("a".into()));
        for (last, token, end) in pages {
            let last = (!last.is_empty()).then(|| (*last).to_owned());
            if !walk.goes_on(LIST, last, token.map(str::to_owned), *end)? {
                return Ok(None);
            }
        }
        let PaginatedListOptions { offset, page_token, .. } = walk.options();
        Ok(Some((offset, page_token)))
    }

    fn at(behind: &str, token: Option<&str>) -> Option<(Option<String>, Option<String>)> {
        Some((Some(behind.to_owned()), token.map(str::to_owned)))
    }

    /// A token leads on; without one, with an empty one or the same again, the last name does; and what is complete ends.
    #[test]
    fn a_listing_goes_on_where_it_was() {
        use PageEnd::{More, Nothing, Unsaid};
        for (pages, expected) in [
            (&[("c", Some("t"), More)][..], at("a", Some("t"))),
            (&[("c", None, More)], at("c", None)),
            (&[("c", Some(""), More)], at("c", None)),
            (&[("c", Some("t"), More), ("e", Some("t"), More)], at("e", None)),
            (&[("c", Some("t"), More), ("", Some("u"), More)], at("a", Some("u"))),
            (&[("c", None, Unsaid)], at("c", None)),
            (&[("c", None, Unsaid), ("", None, Unsaid)], None),
            (&[("c", Some("t"), Nothing)], at("a", Some("t"))),
            (&[("c", Some("t"), Nothing), ("", Some("u"), Nothing)], None),
            (&[("c", None, Nothing)], None),
            (&[("", None, Nothing)], None),
        ] {
            assert_eq!(walk(pages).expect("no fault"), expected, "{pages:?}");
        }
    }

    /// What says that there is more and leads nowhere is refused: a server that begins again, and one whose tokens have no end.
    #[test]
    fn a_listing_that_leads_nowhere_is_refused() {
        for pages in
            [&[("", None, PageEnd::More)][..], &[("c", None, PageEnd::More), ("c", None, PageEnd::More)]]
        {
            assert!(
                matches!(walk(pages), Err(StoreError::Refused(why)) if why.contains("cut off")),
                "{pages:?}"
            );
        }
        let tokens: Vec<String> = (0..=IDLE_PAGES_MAX).map(|n| n.to_string()).collect();
        let endless: Vec<_> = tokens.iter().map(|token| ("", Some(token.as_str()), PageEnd::More)).collect();
        assert!(walk(&endless[..IDLE_PAGES_MAX]).is_ok());
        assert!(matches!(walk(&endless), Err(StoreError::Refused(why)) if why.contains("no end")));
    }
}
