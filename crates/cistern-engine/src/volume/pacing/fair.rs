//! Whose write goes next: start-time fair queueing over clients, by bytes. Pure.
//!
//! Every write gets a start in virtual time: where its client's last one ended, but not before now.
//! The least start goes first. So a client with one write at a time goes before the rest of a flood,
//! and each gets an equal share of the bytes, whatever the depth of its queue.

use std::collections::BTreeMap;

/// Somebody who writes, such as a connection. Numbers mean nothing but that equal ones are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Writes that wait, each with a `T` to tell it by.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// By virtual start, then by arrival.
    waiting: BTreeMap<(u64, u64), (u64, T)>,
    /// Where the last write of each client ends in virtual time, if that is ahead.
    ends: BTreeMap<ClientId, u64>,
    /// Virtual start of the last write that went.
    virtual_now: u64,
    arrivals: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue { waiting: BTreeMap::new(), ends: BTreeMap::new(), virtual_now: 0, arrivals: 0 }
    }
}

impl<T> FairQueue<T> {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn push(&mut self, client: ClientId, bytes: u64, item: T) {
        let end = self.ends.entry(client).or_insert(self.virtual_now);
        let start = (*end).max(self.virtual_now);
        *end = start + bytes;
        self.waiting.insert((start, self.arrivals), (bytes, item));
        self.arrivals += 1;
    }

    /// Takes the write that goes next, and its bytes.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        let ((start, _), write) = self.waiting.pop_first()?;
        debug_assert!(self.virtual_now <= start, "virtual time does not go back");
        self.virtual_now = start;
        match self.waiting.is_empty() {
            true => self.ends.clear(),
            false => self.ends.retain(|_, end| *end > start),
        }
        Some(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Beside a flood of a thousand writes, one at a time gets every second turn.
    #[test]
    fn one_at_a_time_beside_a_flood() {
        let (flood, single) = (ClientId(1), ClientId(2));
        let mut queue = FairQueue::default();
        (0..1000).for_each(|_| queue.push(flood, 4 * KIB, flood));
        let mut turns = 0;
        queue.push(single, 4 * KIB, single);
        for _ in 0..100 {
            if queue.pop().expect("not empty").1 == single {
                turns += 1;
                queue.push(single, 4 * KIB, single);
            }
        }
        assert!((49..=51).contains(&turns), "{turns} of 100");
    }

    /// Shares are of bytes: who writes 64 KiB at a time gets as many bytes as who writes 4 KiB.
    #[test]
    fn shares_are_of_bytes() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|_| queue.push(ClientId(1), 64 * KIB, 1usize));
        (0..16_000).for_each(|_| queue.push(ClientId(2), 4 * KIB, 2usize));
        let mut bytes = [0; 3];
        for _ in 0..8000 {
            let (size, client) = queue.pop().expect("not empty");
            bytes[client] += size;
        }
        assert!(bytes[1].abs_diff(bytes[2]) <= 64 * KIB, "{bytes:?}");
    }

    /// Who was idle has no credit for it, and one client's writes keep their order.
    #[test]
    fn idling_earns_nothing() {
        let mut queue = FairQueue::default();
        (0..100).for_each(|n| queue.push(ClientId(1), KIB, n));
        (0..50).for_each(|n| assert_eq!(queue.pop(), Some((KIB, n))));
        (100..110).for_each(|n| queue.push(ClientId(2), KIB, n));
        let next: Vec<i32> = (0..6).filter_map(|_| queue.pop()).map(|(_, n)| n).collect();
        assert!(next.iter().filter(|n| **n >= 100).count() >= 2, "{next:?}");
        assert!(next.iter().filter(|n| **n < 100).count() >= 2, "{next:?}");
    }
}
