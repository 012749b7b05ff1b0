//! Fills on their way to the slab: a queue with a bound, readable until it is written.
//!
//! Being readable matters: the neighbours that came with a miss are usually asked for before they
//! can be on the disk, and would be fetched again.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;

use super::{
    Admission, CHUNK_BYTES, CacheKey, WRITTEN_FILL_BYTES,
    chunks::{ChunkId, mask, pieces, split},
    index::EntersAt,
    policy::Stood,
};

/// Fills that may wait. They are searched one by one.
const FILLS_MAX: usize = 64;
/// Bytes that may wait.
const FILL_BYTES_MAX: usize = 24 << 20;
/// What just written objects leave of that to what was read.
const READ_BYTES_MIN: usize = 4 << 20;
const _: () = assert!(READ_BYTES_MIN + WRITTEN_FILL_BYTES <= FILL_BYTES_MAX, "both have room");

/// Bytes of an object to be written.
#[derive(Clone)]
pub(super) struct Fill {
    /// Names this fill.
    pub ticket: u64,
    pub object: CacheKey,
    pub offset: u64,
    pub bytes: Bytes,
    pub why: Why,
}

/// Why bytes are to be written.
#[derive(Clone)]
pub(super) enum Why {
    Offered(Admission),
    /// They lay elsewhere: where each of the chunks stood there. Those that stood nowhere are not written.
    Moved(Arc<[Option<Stood>]>),
}

impl Why {
    /// Where a chunk of the fill enters, by its number in it.
    pub fn enters(&self, n: usize) -> Option<EntersAt> {
        match self {
            Why::Offered(admission) => Some(EntersAt::New(*admission)),
            Why::Moved(stood) => stood.get(n).copied().flatten().map(EntersAt::PlaceOf),
        }
    }

    fn is_written(&self) -> bool {
        matches!(self, Why::Offered(Admission::Written))
    }
}

impl Fill {
    fn has(&self, object: CacheKey, range: &Range<u64>) -> bool {
        let end = self.offset + self.bytes.len() as u64;
        self.object == object && self.offset <= range.start && range.end <= end
    }
}

/// A fill that waits.
struct Waiting {
    fill: Fill,
    /// For each of its chunks, one bit for each piece that was read meanwhile; empty while none was.
    read: Vec<u16>,
}

impl Waiting {
    fn chunks(&self) -> impl Iterator<Item = ChunkId> + use<> {
        let Fill { object, offset, bytes, .. } = &self.fill;
        let range = *offset..offset + bytes.len() as u64;
        split(*object, &range).map(|(id, _)| id)
    }

    fn note_read(&mut self, range: &Range<u64>) {
        if self.read.is_empty() {
            self.read = vec![0; self.chunks().count()];
        }
        let first = self.fill.offset / CHUNK_BYTES as u64;
        for (id, part) in split(self.fill.object, range) {
            self.read[(u64::from(id.chunk) - first) as usize] |= mask(&pieces(&part));
        }
    }

    fn into_reads(self) -> Vec<(ChunkId, u16)> {
        let reads = self.chunks().zip(self.read);
        reads.filter(|(_, pieces)| *pieces != 0).collect()
    }
}

#[derive(Default)]
pub(super) struct Queue {
    fills: VecDeque<Waiting>,
    bytes: usize,
    tickets: u64,
}

impl Queue {
    /// Whether there was room.
    pub fn push(&mut self, object: CacheKey, offset: u64, bytes: Bytes, why: Why) -> bool {
        if self.fills.len() >= FILLS_MAX || self.bytes + bytes.len() > FILL_BYTES_MAX {
            return false;
        }
        self.bytes += bytes.len();
        self.tickets += 1;
        debug_assert!(!bytes.is_empty(), "a fill brings something");
        let fill = Fill { ticket: self.tickets, object, offset, bytes, why };
        self.fills.push_back(Waiting { fill, read: Vec::new() });
        self.assert_invariant();
        true
    }

    pub fn is_half_full(&self) -> bool {
        self.fills.len() >= FILLS_MAX / 2 || self.bytes >= FILL_BYTES_MAX / 2
    }

    /// Whether an object of so many bytes that was just written may be pushed, all of it.
    pub fn takes_written(&self, bytes: usize) -> bool {
        self.fills.len() < FILLS_MAX / 2 && self.bytes + bytes <= FILL_BYTES_MAX - READ_BYTES_MIN
    }

    /// What was just written makes way for so many bytes that readers want, the last first, as far as it takes that. The
    /// oldest fill stays: it is being written. Gives the fills that are gone.
    pub fn make_way(&mut self, bytes: usize) -> u64 {
        let mut gone = 0;
        while self.fills.len() >= FILLS_MAX || self.bytes + bytes > FILL_BYTES_MAX {
            let last = self.fills.iter().rposition(|waiting| waiting.fill.why.is_written());
            let Some(last) = last.filter(|&last| last > 0) else { break };
            let waiting = self.fills.remove(last).expect("it was just seen");
            self.bytes -= waiting.fill.bytes.len();
            gone += 1;
        }
        self.assert_invariant();
        gone
    }

    /// Whether anything that was moved waits.
    pub fn has_moved(&self) -> bool {
        self.fills.iter().any(|waiting| matches!(waiting.fill.why, Why::Moved(_)))
    }

    /// Whether nothing waits but what was just written.
    pub fn is_leisurely(&self) -> bool {
        self.fills.iter().all(|waiting| waiting.fill.why.is_written())
    }

    /// Whether one fill has all bytes of a range. Is no use of them.
    pub fn has(&self, object: CacheKey, range: &Range<u64>) -> bool {
        self.fills.iter().any(|waiting| waiting.fill.has(object, range))
    }

    /// The bytes of a range, if one fill has them all.
    pub fn read(&mut self, object: CacheKey, range: &Range<u64>) -> Option<Bytes> {
        let waiting = self.fills.iter_mut().find(|waiting| waiting.fill.has(object, range))?;
        waiting.note_read(range);
        let Fill { offset, bytes, .. } = &waiting.fill;
        Some(bytes.slice((range.start - offset) as usize..(range.end - offset) as usize))
    }

    /// Counts a range as read where a fill has all of it; false where none has.
    pub fn note_read(&mut self, object: CacheKey, range: &Range<u64>) -> bool {
        let waiting = self.fills.iter_mut().find(|waiting| waiting.fill.has(object, range));
        waiting.map(|waiting| waiting.note_read(range)).is_some()
    }

    /// The oldest fill, which stays until `done`.
    pub fn front(&self) -> Option<Fill> {
        self.fills.front().map(|waiting| waiting.fill.clone())
    }

    /// Whether a fill is still wanted.
    pub fn wants(&self, ticket: u64) -> bool {
        self.fills.front().is_some_and(|waiting| waiting.fill.ticket == ticket)
    }

    /// Removes the oldest fill, if it is this one. Gives which pieces of which chunks were read while it waited, as
    /// masks.
    pub fn done(&mut self, ticket: u64) -> Vec<(ChunkId, u16)> {
        if !self.wants(ticket) {
            return Vec::new();
        }
        let waiting = self.fills.pop_front().expect("the front was just seen");
        self.bytes -= waiting.fill.bytes.len();
        self.assert_invariant();
        waiting.into_reads()
    }

    pub fn forget(&mut self, object: CacheKey) {
        self.fills.retain(|waiting| waiting.fill.object != object);
        self.bytes = self.fills.iter().map(|waiting| waiting.fill.bytes.len()).sum();
        self.assert_invariant();
    }

    fn assert_invariant(&self) {
        let fills = || self.fills.iter().map(|waiting| &waiting.fill);
        debug_assert!(self.fills.len() <= FILLS_MAX && self.bytes <= FILL_BYTES_MAX, "what waits is bounded");
        debug_assert_eq!(
            fills().map(|fill| fill.bytes.len()).sum::<usize>(),
            self.bytes,
            "the bytes are those of the fills"
        );
        debug_assert!(
            fills().map(|fill| fill.ticket).is_sorted_by(|a, b| a < b),
            "fills are written in the order in which they came"
        );
        debug_assert!(fills().all(|fill| fill.ticket <= self.tickets), "a ticket is given out once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// What was just written makes way for what was moved, but for what is being written already; what readers fetched does
    /// not.
    #[test]
    fn what_was_written_makes_way() {
        let object = |number| CacheKey::new([7; 16], number);
        let bytes = Bytes::from(vec![0; MIB]);
        let mut queue = Queue::default();
        let push = |queue: &mut Queue, number, why| queue.push(object(number), 0, bytes.clone(), why);
        for number in 0..24 {
            let admission = if number % 4 == 3 { Admission::Demand } else { Admission::Written };
            assert!(push(&mut queue, number, Why::Offered(admission)));
        }
        assert!(!push(&mut queue, 24, Why::Moved([None].into())) && !queue.has_moved());
        assert_eq!(queue.make_way(MIB), 1);
        assert!(push(&mut queue, 24, Why::Moved([None].into())) && queue.has_moved());
        assert!(!queue.has(object(22), &(0..1)) && queue.has(object(21), &(0..1)), "the last goes first");
        assert_eq!(queue.make_way(23 * MIB), 16, "all that were written but the first");
        assert_eq!(queue.make_way(23 * MIB), 0);
        let left: Vec<u64> = (0..25).filter(|&n| queue.has(object(n), &(0..1))).collect();
        assert_eq!(left, [0, 3, 7, 11, 15, 19, 23, 24]);
        assert_eq!(queue.bytes, 8 * MIB);
    }
}
