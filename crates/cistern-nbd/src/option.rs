//! The payloads of negotiation options, parsed purely from bytes that are already bounded.
//!
//! Every length is checked against what is there; names and queries borrow from the payload.

use crate::wire::{BASE_ALLOCATION, DIRTY_BITMAP, STRING_BYTES_MAX};

/// Why a payload is not what the option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadOption {
    /// Syntactically wrong; the text says how.
    Invalid(&'static str),
    /// A string is longer than the protocol allows.
    TooBig(&'static str),
}

/// The payload of INFO and GO.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InfoRequest<'a> {
    pub(crate) name: &'a str,
    /// The kinds of information asked for, as big-endian u16 each.
    kinds: &'a [[u8; 2]],
}

impl InfoRequest<'_> {
    /// Whether this kind of information is asked for.
    pub(crate) fn wants(&self, kind: u16) -> bool {
        self.kinds.contains(&kind.to_be_bytes())
    }
}

/// The payload of LIST_META_CONTEXT and SET_META_CONTEXT, as far as it matters to a server with
/// `base:allocation` and bitmaps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetaRequest<'a> {
    pub(crate) name: &'a str,
    /// There is no query at all: all contexts for a list, none for a selection.
    pub(crate) no_query: bool,
    /// A query names `base:allocation`.
    pub(crate) exact: bool,
    /// A query is `base:`, which stands for all of that namespace in a list.
    pub(crate) wildcard: bool,
    /// The bitmaps that queries name.
    pub(crate) bitmaps: Vec<&'a str>,
    /// A query stands for all bitmaps in a list.
    pub(crate) all_bitmaps: bool,
}

/// Parses: name length u32, name, count u16, then so many kinds u16.
pub(crate) fn info(data: &[u8]) -> Result<InfoRequest<'_>, BadOption> {
    let (name, rest) = string(data, "export name")?;
    let name = text(name)?;
    let Some((count, kinds)) = rest.split_first_chunk::<2>() else {
        return Err(BadOption::Invalid("the list of information requests is missing"));
    };
    let (kinds, odd) = kinds.as_chunks::<2>();
    if kinds.len() != usize::from(u16::from_be_bytes(*count)) || !odd.is_empty() {
        return Err(BadOption::Invalid("the list of information requests has a wrong length"));
    }
    Ok(InfoRequest { name, kinds })
}

/// Parses: name length u32, name, count u32, then so many queries of length u32 and text.
pub(crate) fn meta(data: &[u8]) -> Result<MetaRequest<'_>, BadOption> {
    let (name, rest) = string(data, "export name")?;
    let name = text(name)?;
    let Some((count, mut rest)) = rest.split_first_chunk::<4>() else {
        return Err(BadOption::Invalid("the number of queries is missing"));
    };
    let count = u32::from_be_bytes(*count);
    let mut request = MetaRequest {
        name,
        no_query: count == 0,
        exact: false,
        wildcard: false,
        bitmaps: Vec::new(),
        all_bitmaps: false,
    };
    for _ in 0..count {
        // Ends at the first missing query, so a huge count costs nothing.
        let (query, more) = string(rest, "query")?;
        request.exact |= query == BASE_ALLOCATION.as_bytes();
        request.wildcard |= query == b"base:";
        let query = std::str::from_utf8(query).unwrap_or_default(); // other bytes name nothing that we have
        match query.strip_prefix(DIRTY_BITMAP) {
            Some("") => request.all_bitmaps = true,
            Some(bitmap) => request.bitmaps.push(bitmap),
            None => request.all_bitmaps |= query == "qemu:",
        }
        rest = more;
    }
    if !rest.is_empty() {
        return Err(BadOption::Invalid("bytes behind the last query"));
    }
    Ok(request)
}

/// The payload of EXPORT_NAME: nothing but the name.
pub(crate) fn export_name(data: &[u8]) -> Result<&str, BadOption> {
    if data.len() > STRING_BYTES_MAX {
        return Err(BadOption::TooBig("the export name is longer than 4096 bytes"));
    }
    text(data)
}

/// Takes a string with its length u32 before it; returns it and what follows.
fn string<'a>(data: &'a [u8], what: &'static str) -> Result<(&'a [u8], &'a [u8]), BadOption> {
    let Some((len, rest)) = data.split_first_chunk::<4>() else {
        return Err(BadOption::Invalid("ends inside a length"));
    };
    let len = u32::from_be_bytes(*len) as usize;
    if len > rest.len() {
        return Err(BadOption::Invalid("ends inside a string"));
    }
    if len > STRING_BYTES_MAX {
        return Err(match what {
            "query" => BadOption::TooBig("a query is longer than 4096 bytes"),
            _ => BadOption::TooBig("the export name is longer than 4096 bytes"),
        });
    }
    Ok(rest.split_at(len))
}

fn text(name: &[u8]) -> Result<&str, BadOption> {
    std::str::from_utf8(name).map_err(|_| BadOption::Invalid("the export name is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info_bytes(name: &[u8], count: u16, kinds: &[u16]) -> Vec<u8> {
        let mut out = (name.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(name);
        out.extend_from_slice(&count.to_be_bytes());
        out.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
        out
    }

    fn meta_bytes(name: &[u8], count: u32, queries: &[&[u8]]) -> Vec<u8> {
        let mut out = (name.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(name);
        out.extend_from_slice(&count.to_be_bytes());
        for query in queries {
            out.extend_from_slice(&(query.len() as u32).to_be_bytes());
            out.extend_from_slice(query);
        }
        out
    }

    /// Name and wanted kinds are found; a list that is shorter or longer than its count is wrong.
    #[test]
    fn info_requests() {
        let bytes = info_bytes(b"disk", 2, &[3, 1]);
        let request = info(&bytes).expect("well formed");
        assert_eq!(request.name, "disk");
        assert!(request.wants(3) && request.wants(1) && !request.wants(2));
        assert!(info(&info_bytes(b"", 0, &[])).is_ok_and(|r| r.name.is_empty()));
        assert!(matches!(info(&info_bytes(b"x", 1, &[])), Err(BadOption::Invalid(_))));
        assert!(matches!(info(&info_bytes(b"x", 0, &[1])), Err(BadOption::Invalid(_))));
        assert!(matches!(info(&info_bytes(b"\xff", 0, &[])), Err(BadOption::Invalid(_))));
        assert!(matches!(info(b"\xff\xff\xff\xffx"), Err(BadOption::Invalid(_))));
        assert!(matches!(info(&info_bytes(&[b'a'; 4097], 0, &[])), Err(BadOption::TooBig(_))));
        assert!(info(&info_bytes(&[b'a'; 4096], 0, &[])).is_ok());
    }

    /// Of many queries the known ones are found, unknown ones are ignored; bitmaps are asked for by name or all.
    #[test]
    fn meta_requests() {
        let bytes = meta_bytes(b"d", 3, &[b"qemu:dirty", b"base:allocation", b"nonsense"]);
        let request = meta(&bytes).expect("well formed");
        assert!(request.exact && !request.wildcard && !request.no_query);
        assert!(meta(&meta_bytes(b"d", 1, &[b"base:"])).is_ok_and(|r| r.wildcard && !r.exact));
        assert!(meta(&meta_bytes(b"d", 0, &[])).is_ok_and(|r| r.no_query));
        let bytes = meta_bytes(
            b"d",
            3,
            &[b"qemu:dirty-bitmap:a", b"qemu:dirty-bitmap:b@c", b"qemu:allocation-depth"],
        );
        assert!(meta(&bytes).is_ok_and(|r| r.bitmaps == ["a", "b@c"] && !r.all_bitmaps && !r.exact));
        for all in [&b"qemu:"[..], b"qemu:dirty-bitmap:"] {
            assert!(meta(&meta_bytes(b"d", 1, &[all])).is_ok_and(|r| r.all_bitmaps && r.bitmaps.is_empty()));
        }
        assert!(matches!(meta(&meta_bytes(b"d", u32::MAX, &[b"base:"])), Err(BadOption::Invalid(_))));
        assert!(matches!(meta(&meta_bytes(b"d", 0, &[b"base:"])), Err(BadOption::Invalid(_))));
        assert!(matches!(meta(&meta_bytes(b"d", 1, &[&[b'a'; 4097]])), Err(BadOption::TooBig(_))));
    }

    proptest! {
        /// No bytes make a parser panic.
        #[test]
        fn never_panics(data in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = info(&data);
            let _ = meta(&data);
            let _ = export_name(&data);
        }
    }
}
