//! Turns at reading whole journals, and the memory that goes round among those who have one.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::recover::WINDOW_BYTES;
use crate::{
    disk::AlignedBuf,
    rank::{Rank, Ranked},
};

/// Buffers that one recovery uses by turns.
pub(super) const BUFFERS_PER_TURN: usize = 2;

/// What the volumes of a daemon share for opening their journals: only so many are read at once, each with two
/// buffers of 8 MiB, which the next one takes over. Clearing new ones for each of two hundred journals took longer
/// than reading them. When nobody has a turn any more, the buffers are let go.
#[derive(Debug)]
pub struct Recoveries {
    turns: Semaphore,
    turns_max: usize,
    kept: Ranked<Vec<AlignedBuf>>,
}

impl Recoveries {
    /// At most `turns_max` journals are read at once, one or more.
    pub fn new(turns_max: usize) -> Arc<Recoveries> {
        assert!(turns_max > 0, "nobody would ever have a turn");
        let (turns, kept) = (Semaphore::new(turns_max), Ranked::new(Rank::Structure, Vec::new()));
        Arc::new(Recoveries { turns, turns_max, kept })
    }

    pub(super) async fn turn(&self) -> Turn<'_> {
        let permit = self.turns.acquire().await.expect("the turns are never closed");
        Turn { recoveries: self, permit: Some(permit) }
    }
}

/// The right to read a journal, until it is dropped.
pub(super) struct Turn<'a> {
    recoveries: &'a Recoveries,
    permit: Option<SemaphorePermit<'a>>,
}

impl Turn<'_> {
    /// A buffer of so many bytes with anything in it.
    pub fn buffer(&self, bytes: usize) -> AlignedBuf {
        let kept = if bytes == WINDOW_BYTES { self.recoveries.kept.lock().pop() } else { None };
        kept.unwrap_or_else(|| AlignedBuf::zeroed(bytes))
    }

    /// For the next who asks for one of its size.
    pub fn give_back(&self, buffer: AlignedBuf) {
        let mut kept = self.recoveries.kept.lock();
        if buffer.len() == WINDOW_BYTES && kept.len() < BUFFERS_PER_TURN * self.recoveries.turns_max {
            kept.push(buffer);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        // Who waited for a turn has it already, and counts.
        if self.recoveries.turns.available_permits() == self.recoveries.turns_max {
            let unused = std::mem::take(&mut *self.recoveries.kept.lock());
            drop(unused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer goes from one recovery to the next as long as somebody has a turn, and stays with nobody afterwards.
    #[tokio::test]
    async fn buffers_go_round_and_do_not_stay() {
        let recoveries = Recoveries::new(2);
        let (first, second) = (recoveries.turn().await, recoveries.turn().await);
        let buffer = first.buffer(WINDOW_BYTES);
        let place = buffer.as_ptr();
        first.give_back(buffer);
        first.give_back(AlignedBuf::zeroed(4096));
        drop(first);
        let third = recoveries.turn().await;
        assert_eq!(third.buffer(4096).len(), 4096);
        let buffer = third.buffer(WINDOW_BYTES);
        assert_eq!((buffer.as_ptr(), recoveries.kept.lock().len()), (place, 0));
        third.give_back(buffer);
        drop((second, third));
        assert_eq!(recoveries.kept.lock().capacity(), 0);
    }
}
