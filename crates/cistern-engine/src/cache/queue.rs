//! Fills on their way to the slab: a queue with a bound, readable until it is written.
//!
//! Being readable matters: the neighbours that came with a miss are usually asked for before they
//! can be on the disk, and would be fetched again.

use std::{collections::VecDeque, ops::Range};

use bytes::Bytes;

use super::{Admission, CacheKey};

/// Fills that may wait. They are searched one by one.
const FILLS_MAX: usize = 64;
/// Bytes that may wait.
const FILL_BYTES_MAX: usize = 24 << 20;
/// What just written objects leave of that to what was read.
const READ_BYTES_MIN: usize = 4 << 20;

/// Bytes of an object to be written.
#[derive(Clone)]
pub(super) struct Fill {
    /// Names this fill.
    pub ticket: u64,
    pub object: CacheKey,
    pub offset: u64,
    pub bytes: Bytes,
    pub admission: Admission,
}

#[derive(Default)]
pub(super) struct Queue {
    fills: VecDeque<Fill>,
    bytes: usize,
    tickets: u64,
}

impl Queue {
    /// Whether there was room.
    pub fn push(&mut self, object: CacheKey, offset: u64, bytes: Bytes, admission: Admission) -> bool {
        if self.fills.len() >= FILLS_MAX || self.bytes + bytes.len() > FILL_BYTES_MAX {
            return false;
        }
        self.bytes += bytes.len();
        self.tickets += 1;
        debug_assert!(!bytes.is_empty(), "a fill brings something");
        self.fills.push_back(Fill { ticket: self.tickets, object, offset, bytes, admission });
        true
    }

    pub fn is_half_full(&self) -> bool {
        self.fills.len() >= FILLS_MAX / 2 || self.bytes >= FILL_BYTES_MAX / 2
    }

    /// Whether an object of so many bytes that was just written may be pushed, all of it.
    pub fn takes_written(&self, bytes: usize) -> bool {
        self.fills.len() < FILLS_MAX / 2 && self.bytes + bytes <= FILL_BYTES_MAX - READ_BYTES_MIN
    }

    /// Whether nothing waits but what was just written.
    pub fn is_leisurely(&self) -> bool {
        self.fills.iter().all(|fill| fill.admission == Admission::Written)
    }

    /// The bytes of a range, if one fill has them all.
    pub fn find(&self, object: CacheKey, range: &Range<u64>) -> Option<Bytes> {
        self.fills.iter().filter(|fill| fill.object == object).find_map(|fill| {
            let begin = range.start.checked_sub(fill.offset)? as usize;
            let end = range.end.checked_sub(fill.offset)? as usize;
            (end <= fill.bytes.len()).then(|| fill.bytes.slice(begin..end))
        })
    }

    /// The oldest fill, which stays until `done`.
    pub fn front(&self) -> Option<Fill> {
        self.fills.front().cloned()
    }

    /// Whether a fill is still wanted.
    pub fn wants(&self, ticket: u64) -> bool {
        self.fills.front().is_some_and(|fill| fill.ticket == ticket)
    }

    /// Removes the oldest fill, if it is this one.
    pub fn done(&mut self, ticket: u64) {
        if self.wants(ticket) {
            let fill = self.fills.pop_front().expect("the front was just seen");
            self.bytes -= fill.bytes.len();
            debug_assert_eq!(self.fills.is_empty(), self.bytes == 0, "the bytes are those of the fills");
        }
    }

    pub fn forget(&mut self, object: CacheKey) {
        self.fills.retain(|fill| fill.object != object);
        self.bytes = self.fills.iter().map(|fill| fill.bytes.len()).sum();
    }
}
