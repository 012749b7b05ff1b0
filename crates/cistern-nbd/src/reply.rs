//! Replies of the transmission phase, encoded into the output queue.
//!
//! Owns the three styles of replies. What an export answers is checked here before it is encoded:
//! an answer that does not fit its request becomes EIO and never a malformed reply.

use crate::{
    export::{Allocation, Errno, ReadPiece},
    output::Output,
    wire::{
        BASE_ALLOCATION_ID, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX,
        STRUCTURED_REPLY_MAGIC, chunk, state,
    },
};

/// How replies look, by negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A header and nothing else, or the data of a read.
    Simple,
    /// Chunks; successes without payload stay simple, which the protocol allows and is shorter.
    Structured,
    /// Chunks with 64-bit headers, for every reply.
    Extended,
}

/// What of a request its reply needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) cookie: u64,
    /// As in the request's header.
    pub(crate) offset: u64,
    /// Bytes of the request's range; 0 if it has none.
    pub(crate) len: u64,
    /// READ: at most one chunk of content. BLOCK_STATUS: at most one range.
    pub(crate) one: bool,
}

/// Success of a request that returns nothing.
pub(crate) fn done(out: &mut Output, style: Style, ticket: &Ticket) {
    match style {
        Style::Simple | Style::Structured => simple(out, ticket, 0),
        Style::Extended => head(out, style, ticket, chunk::FLAG_DONE, chunk::NONE, 0),
    }
}

/// Failure of a request, with a text for those who can receive one.
pub(crate) fn error(out: &mut Output, style: Style, ticket: &Ticket, errno: Errno, message: &str) {
    if style == Style::Simple {
        return simple(out, ticket, errno.code());
    }
    let mut len = message.len().min(STRING_BYTES_MAX);
    while !message.is_char_boundary(len) {
        len -= 1;
    }
    let message = &message[..len];
    head(out, style, ticket, chunk::FLAG_DONE, chunk::ERROR, 6 + message.len() as u64);
    out.put(&errno.code().to_be_bytes());
    out.put(&(message.len() as u16).to_be_bytes());
    out.put(message.as_bytes());
}

/// The data of a read.
pub(crate) fn read(out: &mut Output, style: Style, ticket: &Ticket, pieces: &[ReadPiece]) {
    let total = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece_len(piece)));
    if total != Some(ticket.len) {
        return broken(out, style, ticket, "the export answered a read with a wrong length");
    }
    if style == Style::Simple {
        simple(out, ticket, 0);
        return pieces.iter().for_each(|piece| put_piece(out, piece));
    }
    let kind = |piece: &ReadPiece| matches!(piece, ReadPiece::Data(_));
    let mixed = pieces.iter().any(kind) && !pieces.iter().all(kind);
    if ticket.one && mixed {
        return data_chunk(out, style, ticket, chunk::FLAG_DONE, ticket.offset, ticket.len, pieces);
    }
    let end = ticket.offset + ticket.len;
    let mut at = ticket.offset;
    for run in pieces.chunk_by(|a, b| kind(a) == kind(b)) {
        let len: u64 = run.iter().map(piece_len).sum();
        if len == 0 {
            continue;
        }
        let flags = if at + len == end { chunk::FLAG_DONE } else { 0 };
        if kind(&run[0]) {
            data_chunk(out, style, ticket, flags, at, len, run);
        } else {
            head(out, style, ticket, flags, chunk::OFFSET_HOLE, 12);
            out.put(&at.to_be_bytes());
            // Reads are at most 32 MiB, so this fits.
            out.put(&(len as u32).to_be_bytes());
        }
        at += len;
    }
}

/// The ranges of a block status in one context, with flags.
pub(crate) struct ContextRanges {
    pub(crate) id: u32,
    pub(crate) ranges: Vec<(u64, u32)>,
}

impl ContextRanges {
    pub(crate) fn of_allocation(ranges: Vec<(u64, Allocation)>) -> ContextRanges {
        let flags = |kind| match kind {
            Allocation::Data => 0,
            Allocation::Hole => state::HOLE | state::ZERO,
            Allocation::Zero => state::ZERO,
        };
        let ranges = ranges.into_iter().map(|(len, kind)| (len, flags(kind))).collect();
        ContextRanges { id: BASE_ALLOCATION_ID, ranges }
    }

    pub(crate) fn of_bitmap(id: u32, ranges: Vec<(u64, bool)>) -> ContextRanges {
        let flags = |changed| if changed { state::DIRTY } else { 0 };
        ContextRanges { id, ranges: ranges.into_iter().map(|(len, changed)| (len, flags(changed))).collect() }
    }
}

/// The ranges of a block status, a chunk for each context.
pub(crate) fn status(out: &mut Output, style: Style, ticket: &Ticket, contexts: &[ContextRanges]) {
    debug_assert_ne!(style, Style::Simple, "contexts need structured replies");
    let fitted: Option<Vec<_>> =
        contexts.iter().map(|context| Some((context.id, fitted(ticket, &context.ranges)?))).collect();
    let Some(contexts) = fitted.filter(|contexts| !contexts.is_empty()) else {
        return broken(out, style, ticket, "the export answered a block status with an empty range");
    };
    let last = contexts.len() - 1;
    for (n, (id, ranges)) in contexts.into_iter().enumerate() {
        let count = ranges.len() as u64;
        let flags = if n == last { chunk::FLAG_DONE } else { 0 };
        if style == Style::Extended {
            head(out, style, ticket, flags, chunk::BLOCK_STATUS_EXT, 8 + 16 * count);
            out.put(&id.to_be_bytes());
            out.put(&(count as u32).to_be_bytes());
            for (len, flags) in ranges {
                out.put(&len.to_be_bytes());
                out.put(&u64::from(flags).to_be_bytes());
            }
        } else {
            head(out, style, ticket, flags, chunk::BLOCK_STATUS, 4 + 8 * count);
            out.put(&id.to_be_bytes());
            for (len, flags) in ranges {
                // Without extended headers a request's length has 32 bits, and ranges end with it.
                out.put(&(len as u32).to_be_bytes());
                out.put(&flags.to_be_bytes());
            }
        }
    }
}

/// The block status of no context at all, as a filter may ask.
pub(crate) fn status_of_nothing(out: &mut Output, style: Style, ticket: &Ticket) {
    head(out, style, ticket, chunk::FLAG_DONE, chunk::NONE, 0);
}

/// Neighbours with the same flags joined, cut to the request. `None` if a range is empty.
fn fitted(ticket: &Ticket, ranges: &[(u64, u32)]) -> Option<Vec<(u64, u32)>> {
    if ranges.is_empty() || ranges.iter().any(|(len, _)| *len == 0) {
        return None;
    }
    let mut fitted: Vec<(u64, u32)> = Vec::with_capacity(ranges.len());
    let mut left = ticket.len;
    for &(len, flags) in ranges {
        let len = len.min(left);
        left -= len;
        match fitted.last_mut() {
            Some((before, same)) if *same == flags => *before += len,
            Some(_) if ticket.one || len == 0 => break,
            _ => fitted.push((len, flags)),
        }
    }
    Some(fitted)
}

fn broken(out: &mut Output, style: Style, ticket: &Ticket, message: &'static str) {
    tracing::error!(offset = ticket.offset, len = ticket.len, "{message}");
    error(out, style, ticket, Errno::Io, message);
}

fn piece_len(piece: &ReadPiece) -> u64 {
    match piece {
        ReadPiece::Data(data) => data.len() as u64,
        ReadPiece::Zeroes(len) => *len,
    }
}

fn put_piece(out: &mut Output, piece: &ReadPiece) {
    match piece {
        ReadPiece::Data(data) => out.put_data(data),
        ReadPiece::Zeroes(len) => out.put_zeroes(*len),
    }
}

fn data_chunk(
    out: &mut Output,
    style: Style,
    ticket: &Ticket,
    flags: u16,
    at: u64,
    len: u64,
    run: &[ReadPiece],
) {
    head(out, style, ticket, flags, chunk::OFFSET_DATA, 8 + len);
    out.put(&at.to_be_bytes());
    run.iter().for_each(|piece| put_piece(out, piece));
}

/// Magic u32, errno u32, cookie u64.
fn simple(out: &mut Output, ticket: &Ticket, errno: u32) {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..].copy_from_slice(&ticket.cookie.to_be_bytes());
    out.put(&bytes);
}

/// The head of a chunk. Structured: magic u32, flags u16, type u16, cookie u64, length u32.
/// Extended: the same with offset u64 before a length of u64.
fn head(out: &mut Output, style: Style, ticket: &Ticket, flags: u16, kind: u16, len: u64) {
    let extended = style == Style::Extended;
    let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&magic.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&ticket.cookie.to_be_bytes());
    if extended {
        bytes[16..24].copy_from_slice(&ticket.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&len.to_be_bytes());
        out.put(&bytes);
    } else {
        debug_assert!(len <= u64::from(u32::MAX));
        bytes[16..20].copy_from_slice(&(len as u32).to_be_bytes());
        out.put(&bytes[..20]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(len: u64, one: bool) -> Ticket {
        Ticket { cookie: 1, offset: 4096, len, one }
    }

    /// Neighbours of one kind become one range, ranges end with the request, one means one.
    #[test]
    fn ranges_are_fitted() {
        use Allocation::*;
        let flags = |ranges: &[(u64, Allocation)]| ContextRanges::of_allocation(ranges.to_vec()).ranges;
        let ranges = flags(&[(512, Data), (512, Data), (1024, Hole), (u64::MAX, Zero)]);
        assert_eq!(fitted(&ticket(4096, false), &ranges), Some(vec![(1024, 0), (1024, 3), (2048, 2)]));
        assert_eq!(fitted(&ticket(2048, false), &ranges), Some(vec![(1024, 0), (1024, 3)]));
        assert_eq!(fitted(&ticket(4096, true), &ranges), Some(vec![(1024, 0)]));
        assert_eq!(fitted(&ticket(512, true), &ranges), Some(vec![(512, 0)]));
        assert_eq!(fitted(&ticket(512, false), &[]), None);
        assert_eq!(fitted(&ticket(512, false), &flags(&[(512, Data), (0, Hole)])), None);
    }

    /// A read of the wrong length is EIO, not a reply that the client would misread.
    #[test]
    fn wrong_lengths_become_errors() {
        let mut out = Output::default();
        read(&mut out, Style::Simple, &ticket(512, false), &[ReadPiece::Zeroes(1024)]);
        assert_eq!(out.queued(), 16);
        read(
            &mut out,
            Style::Simple,
            &ticket(512, false),
            &[ReadPiece::Zeroes(u64::MAX), ReadPiece::Zeroes(513)],
        );
        assert_eq!(out.queued(), 32);
    }
}
