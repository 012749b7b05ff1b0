//! The gate: decides purely, for every request header, what it is or which error it gets, and how
//! many bytes of payload follow it. Everything a client can ask for passes here and nowhere else.
//!
//! Never reads, writes or allocates. The table in `docs/format/nbd.md` says the same in prose.

use std::fmt;

use crate::{
    export::{BLOCK_BYTES_MIN, Errno, PAYLOAD_BYTES_MAX, Properties},
    wire::{Header, cmd, cmd_flag},
};

/// Bytes of the largest payload of a refused compact write that is read and thrown away. More is
/// not worth its bandwidth: the connection is closed. Twice the maximum, so that a client that
/// ignores the limit a little learns so by an error.
const SKIP_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64;
/// Metadata contexts a filter may name. No more can be selected, so more is nonsense or a duplicate.
const FILTER_IDS_MAX: u64 = Contexts::MAX as u64;
/// Bytes of a filter before its ids: the length of effect.
const FILTER_PREFIX_BYTES: usize = 8;

/// A set of metadata contexts, by their ids: `base:allocation` and bitmaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contexts(u16);

impl Contexts {
    /// How many there can be: ids begin at 1.
    pub(crate) const MAX: u32 = u16::BITS;

    pub(crate) fn add(&mut self, id: u32) {
        debug_assert!((1..=Contexts::MAX).contains(&id));
        self.0 |= 1 << (id - 1);
    }

    pub(crate) fn has(self, id: u32) -> bool {
        (1..=Contexts::MAX).contains(&id) && self.0 & (1 << (id - 1)) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Their ids, ascending.
    pub(crate) fn ids(self) -> impl Iterator<Item = u32> {
        (1..=Contexts::MAX).filter(move |id| self.has(*id))
    }
}

/// What was negotiated for a connection, as far as it bears on requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Extended headers; they imply structured replies.
    pub(crate) extended: bool,
    pub(crate) structured: bool,
    /// The metadata contexts that were selected for this export.
    pub(crate) contexts: Contexts,
    pub(crate) read_only: bool,
    pub(crate) fast_zero: bool,
    /// The client asked for the block sizes, and so has agreed to keep to them.
    pub(crate) aligned: bool,
}

impl Terms {
    /// Of a client that asks for the block sizes and nothing more, as who gives connections to the kernel does.
    pub(crate) fn plain(properties: &Properties) -> Terms {
        Terms {
            extended: false,
            structured: false,
            contexts: Contexts::default(),
            read_only: properties.read_only,
            fast_zero: properties.fast_zero && !properties.read_only,
            aligned: true,
        }
    }
}

/// What may differ from one request to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) size_bytes: u64,
}

/// A request that may be run. Ranges are not empty, inside the export, and aligned where that was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Read {
        offset: u64,
        len: u64,
        one_chunk: bool,
    },
    /// `len` bytes of data follow the header.
    Write {
        offset: u64,
        len: u64,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        len: u64,
        fua: bool,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        no_hole: bool,
        fast: bool,
        fua: bool,
    },
    Cache {
        offset: u64,
        len: u64,
    },
    BlockStatus {
        offset: u64,
        len: u64,
        one_range: bool,
        contexts: Contexts,
    },
    /// A block status whose length and contexts follow as payload, for [`filter`].
    FilteredStatus {
        offset: u64,
        one_range: bool,
        /// Those that can be asked for.
        contexts: Contexts,
    },
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) message: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

/// The decision about one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Run it after its payload of so many bytes has arrived.
    Run { request: Request, payload: u64 },
    /// Answer with an error after throwing away the payload of so many bytes.
    Refuse { refusal: Refusal, payload: u64 },
    /// The client says goodbye.
    Disconnect,
    /// Going on would cost more than it is worth: close the connection.
    HangUp(&'static str),
}

/// Decides about one header.
pub(crate) fn judge(header: &Header, terms: &Terms, moment: &Moment) -> Verdict {
    if header.command == cmd::DISC {
        return Verdict::Disconnect;
    }
    let payload = payload_bytes(header, terms);
    let most = if terms.extended { u64::from(PAYLOAD_BYTES_MAX) } else { SKIP_BYTES_MAX };
    if payload > most {
        return Verdict::HangUp("the payload of a request is far above the maximum");
    }
    match request(header, terms, moment, payload) {
        Ok(request) => Verdict::Run { request, payload },
        Err(refusal) => Verdict::Refuse { refusal, payload },
    }
}

/// Bytes that follow the header, whatever else is wrong with it. A write always has its data behind it: the protocol
/// wants a flag for that with extended headers, which qemu (10.0) does not set.
fn payload_bytes(header: &Header, terms: &Terms) -> u64 {
    let flagged = terms.extended && header.flags & cmd_flag::PAYLOAD_LEN != 0;
    if flagged || header.command == cmd::WRITE { header.length } else { 0 }
}

fn request(header: &Header, terms: &Terms, moment: &Moment, payload: u64) -> Result<Request, Refusal> {
    check_flags(header, terms)?;
    let fua = header.flags & cmd_flag::FUA != 0;
    match header.command {
        cmd::READ => {
            let one_chunk = header.flags & cmd_flag::DF != 0;
            if header.length > u64::from(PAYLOAD_BYTES_MAX) {
                let errno = if one_chunk { Errno::Overflow } else { Errno::Inval };
                return refuse(errno, "longer than the maximum read of 32 MiB");
            }
            let (offset, len) = range(header, terms, moment, Errno::Inval)?;
            Ok(Request::Read { offset, len, one_chunk })
        }
        cmd::WRITE => {
            check_writable(terms)?;
            if header.length > u64::from(PAYLOAD_BYTES_MAX) {
                return refuse(Errno::Inval, "longer than the maximum write of 32 MiB");
            }
            let (offset, len) = range(header, terms, moment, Errno::NoSpc)?;
            Ok(Request::Write { offset, len, fua })
        }
        cmd::FLUSH if header.offset != 0 || header.length != 0 => {
            refuse(Errno::Inval, "a flush has neither offset nor length")
        }
        cmd::FLUSH => Ok(Request::Flush),
        cmd::TRIM => {
            check_writable(terms)?;
            let (offset, len) = range(header, terms, moment, Errno::Inval)?;
            Ok(Request::Trim { offset, len, fua })
        }
        cmd::WRITE_ZEROES => {
            check_writable(terms)?;
            let (offset, len) = range(header, terms, moment, Errno::NoSpc)?;
            let no_hole = header.flags & cmd_flag::NO_HOLE != 0;
            let fast = header.flags & cmd_flag::FAST_ZERO != 0;
            Ok(Request::WriteZeroes { offset, len, no_hole, fast, fua })
        }
        cmd::CACHE => {
            let (offset, len) = range(header, terms, moment, Errno::Inval)?;
            Ok(Request::Cache { offset, len })
        }
        cmd::BLOCK_STATUS => block_status(header, terms, moment, payload),
        _ => refuse(Errno::Inval, "unknown command"),
    }
}

fn block_status(header: &Header, terms: &Terms, moment: &Moment, payload: u64) -> Result<Request, Refusal> {
    let contexts = terms.contexts;
    if contexts.is_empty() {
        return refuse(Errno::Inval, "no metadata context was negotiated");
    }
    let one_range = header.flags & cmd_flag::REQ_ONE != 0;
    if header.flags & cmd_flag::PAYLOAD_LEN == 0 {
        let (offset, len) = range(header, terms, moment, Errno::Inval)?;
        return Ok(Request::BlockStatus { offset, len, one_range, contexts });
    }
    let ids = payload.checked_sub(FILTER_PREFIX_BYTES as u64);
    if !ids.is_some_and(|bytes| bytes.is_multiple_of(4) && bytes / 4 <= FILTER_IDS_MAX) {
        return refuse(Errno::Inval, "the filter of a block status has a wrong length");
    }
    Ok(Request::FilteredStatus { offset: header.offset, one_range, contexts })
}

/// Decides about the payload of a [`Request::FilteredStatus`]: the length of effect u64, then the
/// ids of the wanted contexts, u32 each. `None` if it asks for no context at all.
pub(crate) fn filter(
    offset: u64,
    one_range: bool,
    payload: &[u8],
    terms: &Terms,
    moment: &Moment,
) -> Result<Option<Request>, Refusal> {
    let Some((len, ids)) = payload.split_first_chunk::<FILTER_PREFIX_BYTES>() else {
        return refuse(Errno::Inval, "the filter of a block status has a wrong length");
    };
    let (offset, len) = bounded(offset, u64::from_be_bytes(*len), terms, moment, Errno::Inval)?;
    let (ids, rest) = ids.as_chunks::<4>();
    let mut contexts = Contexts::default();
    for id in ids.iter().map(|id| u32::from_be_bytes(*id)) {
        if !terms.contexts.has(id) || contexts.has(id) {
            return refuse(Errno::Inval, "unknown or repeated metadata context");
        }
        contexts.add(id);
    }
    if !rest.is_empty() {
        return refuse(Errno::Inval, "the filter of a block status has a wrong length");
    }
    Ok((!contexts.is_empty()).then_some(Request::BlockStatus { offset, len, one_range, contexts }))
}

/// FUA is valid with every command; each other flag with one, if its feature was negotiated.
fn check_flags(header: &Header, terms: &Terms) -> Result<(), Refusal> {
    let when = |condition: bool, flag: u16| if condition { flag } else { 0 };
    let known = match header.command {
        cmd::READ => when(terms.structured, cmd_flag::DF),
        cmd::WRITE => when(terms.extended, cmd_flag::PAYLOAD_LEN),
        cmd::FLUSH | cmd::TRIM | cmd::CACHE => 0,
        cmd::WRITE_ZEROES => cmd_flag::NO_HOLE | when(terms.fast_zero, cmd_flag::FAST_ZERO),
        cmd::BLOCK_STATUS => {
            let is_filtered = terms.extended && !terms.contexts.is_empty();
            cmd_flag::REQ_ONE | when(is_filtered, cmd_flag::PAYLOAD_LEN)
        }
        _ => return refuse(Errno::Inval, "unknown command"),
    };
    if header.flags & !(known | cmd_flag::FUA) != 0 {
        return refuse(Errno::Inval, "a flag that this command does not have");
    }
    Ok(())
}

fn check_writable(terms: &Terms) -> Result<(), Refusal> {
    if terms.read_only { refuse(Errno::Perm, "the export is read-only") } else { Ok(()) }
}

fn range(header: &Header, terms: &Terms, moment: &Moment, beyond: Errno) -> Result<(u64, u64), Refusal> {
    bounded(header.offset, header.length, terms, moment, beyond)
}

fn bounded(
    offset: u64,
    len: u64,
    terms: &Terms,
    moment: &Moment,
    beyond: Errno,
) -> Result<(u64, u64), Refusal> {
    // Where nothing was agreed the protocol's own minimum holds: one byte.
    let unit = if terms.aligned { u64::from(BLOCK_BYTES_MIN) } else { 1 };
    if len == 0 {
        return refuse(Errno::Inval, "the length is zero");
    }
    if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
        return refuse(Errno::Inval, "offset or length is not a multiple of 512");
    }
    match offset.checked_add(len) {
        Some(end) if end <= moment.size_bytes => Ok((offset, len)),
        _ => refuse(beyond, "beyond the end of the export"),
    }
}

fn refuse<T>(errno: Errno, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, message })
}

#[cfg(test)]
mod tests;
