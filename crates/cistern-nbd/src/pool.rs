//! The memory that the requests of all connections share, and who gets of it next.
//!
//! A request is covered before its payload is read or its work begins, and stays covered until its reply has left.
//! Every connection has a little of its own, [`OWN_BYTES`], so that nobody is stopped by others. Beyond that there
//! are two halves, one for small and one for large requests, each given out in the order in which it was asked for:
//! neither kind waits for the other. Never takes anything back: a session gives, or ends.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Waker},
};

use crate::export::PAYLOAD_BYTES_MAX;

/// Bytes that every connection may have beside the pool: a request of 64 KiB, or sixteen of 4 KiB.
pub(crate) const OWN_BYTES: u64 = (64 + 64) << 10;
/// Bytes of the largest request that counts as small: whatever a kernel puts into one.
const SMALL_BYTES_MAX: u64 = (4 << 20) + (64 << 10);
/// Bytes of each half at least, so that any one request fits.
const SMALL_HALF_BYTES_MIN: u64 = 2 * SMALL_BYTES_MAX;
const LARGE_HALF_BYTES_MIN: u64 = PAYLOAD_BYTES_MAX as u64 + (1 << 20);
/// Bytes that a busy connection keeps without need: to give and take for every request costs time.
const SPARE_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Small,
    Large,
}

impl Half {
    fn of(bytes: u64) -> Half {
        if bytes <= SMALL_BYTES_MAX { Half::Small } else { Half::Large }
    }
}

/// The shared memory of one server.
pub(crate) struct Pool {
    /// Connections that wait in either half.
    waiting: AtomicUsize,
    /// Held for a few operations in memory; nobody is woken under it.
    halves: [Mutex<Shelf>; 2],
}

/// One half.
struct Shelf {
    free: u64,
    /// In the order of asking.
    queue: VecDeque<Waiter>,
    /// Tickets that were given what they asked for, and have not noticed it yet.
    granted: Vec<u64>,
    tickets: u64,
}

struct Waiter {
    ticket: u64,
    bytes: u64,
    waker: Waker,
}

impl Pool {
    /// Shares about `bytes`, half of them for large requests.
    pub(crate) fn new(bytes: u64) -> Arc<Pool> {
        let shelf =
            |free| Mutex::new(Shelf { free, queue: VecDeque::new(), granted: Vec::new(), tickets: 0 });
        Arc::new(Pool {
            waiting: AtomicUsize::new(0),
            halves: [
                shelf((bytes / 2).max(SMALL_HALF_BYTES_MIN)),
                shelf((bytes / 2).max(LARGE_HALF_BYTES_MIN)),
            ],
        })
    }

    fn shelf(&self, half: Half) -> MutexGuard<'_, Shelf> {
        self.halves[half as usize].lock().expect("nothing panics while it holds the pool")
    }

    /// Takes at once, if nobody is before.
    fn try_take(&self, half: Half, bytes: u64) -> bool {
        let mut shelf = self.shelf(half);
        let fits = shelf.queue.is_empty() && bytes <= shelf.free;
        if fits {
            shelf.free -= bytes;
        }
        fits
    }

    fn join_queue(&self, half: Half, bytes: u64, waker: Waker) -> u64 {
        let mut shelf = self.shelf(half);
        shelf.tickets += 1;
        let ticket = shelf.tickets;
        shelf.queue.push_back(Waiter { ticket, bytes, waker });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let woken = self.serve(&mut shelf);
        drop(shelf);
        woken.into_iter().for_each(Waker::wake);
        ticket
    }

    /// Whether a ticket's turn has come; keeps the waker up to date while it has not.
    fn claim(&self, half: Half, ticket: u64, cx: &Context<'_>) -> bool {
        let mut shelf = self.shelf(half);
        if let Some(at) = shelf.granted.iter().position(|granted| *granted == ticket) {
            shelf.granted.swap_remove(at);
            return true;
        }
        let waiter = shelf.queue.iter_mut().find(|waiter| waiter.ticket == ticket);
        waiter.expect("a ticket waits or is granted").waker.clone_from(cx.waker());
        false
    }

    fn give(&self, half: Half, bytes: u64) {
        let mut shelf = self.shelf(half);
        shelf.free += bytes;
        let woken = self.serve(&mut shelf);
        drop(shelf);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Leaves the queue, or gives back what was granted and not claimed.
    fn cancel(&self, half: Half, ticket: u64, bytes: u64) {
        let mut shelf = self.shelf(half);
        match shelf.granted.iter().position(|granted| *granted == ticket) {
            Some(at) => {
                shelf.granted.swap_remove(at);
                shelf.free += bytes;
            }
            None => {
                shelf.queue.retain(|waiter| waiter.ticket != ticket);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // Whoever stood behind may be served now.
        let woken = self.serve(&mut shelf);
        drop(shelf);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Grants from the front what there is room for; says whom to wake.
    fn serve(&self, shelf: &mut Shelf) -> Vec<Waker> {
        let mut woken = Vec::new();
        while shelf.queue.front().is_some_and(|waiter| waiter.bytes <= shelf.free) {
            let Some(waiter) = shelf.queue.pop_front() else { break };
            shelf.free -= waiter.bytes;
            shelf.granted.push(waiter.ticket);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            woken.push(waiter.waker);
        }
        woken
    }
}

/// A place in a queue.
struct Wait {
    half: Half,
    ticket: u64,
    bytes: u64,
}

/// What one connection has of the pool. Gives everything back when dropped.
pub(crate) struct Share {
    pool: Arc<Pool>,
    taken: [u64; 2],
    wait: Option<Wait>,
}

impl Share {
    pub(crate) fn new(pool: Arc<Pool>) -> Share {
        Share { pool, taken: [0; 2], wait: None }
    }

    /// Covers a request of `cost` bytes beside the `held` ones; if that must wait, the task is woken when to try
    /// again. The same request is asked for until it is covered.
    pub(crate) fn cover(&mut self, cx: &Context<'_>, held: u64, cost: u64) -> bool {
        self.claim(cx);
        if held + cost <= self.covered() {
            self.stop_waiting();
            return true;
        }
        if self.wait.is_some() {
            return false;
        }
        let half = Half::of(cost);
        let missing = held + cost - self.covered();
        if self.pool.try_take(half, missing) {
            self.taken[half as usize] += missing;
            return true;
        }
        // Nobody waits with more in hand than it uses, so nobody waits for another who waits.
        self.give_back(held, 0);
        let bytes = held + cost - self.covered();
        let ticket = self.pool.join_queue(half, bytes, cx.waker().clone());
        self.wait = Some(Wait { half, ticket, bytes });
        self.claim(cx); // what was given back may have been enough
        held + cost <= self.covered()
    }

    /// Takes over what was granted.
    fn claim(&mut self, cx: &Context<'_>) {
        if let Some(wait) = self.wait.take_if(|wait| self.pool.claim(wait.half, wait.ticket, cx)) {
            self.taken[wait.half as usize] += wait.bytes;
        }
    }

    /// Gives back what `held` bytes do not need.
    pub(crate) fn settle(&mut self, held: u64) {
        if self.has_taken() {
            let spare = if held == 0 || self.others_wait() { 0 } else { SPARE_BYTES };
            self.give_back(held, spare);
        }
    }

    /// Bytes of the pool are in use here.
    pub(crate) fn has_taken(&self) -> bool {
        self.taken != [0; 2]
    }

    /// Somebody, perhaps this connection, waits for what others hold.
    pub(crate) fn others_wait(&self) -> bool {
        self.pool.waiting.load(Ordering::Relaxed) > 0
    }

    fn covered(&self) -> u64 {
        OWN_BYTES + self.taken[0] + self.taken[1]
    }

    /// Large ones first: they are waited for longest.
    fn give_back(&mut self, held: u64, spare: u64) {
        let mut surplus = self.covered().saturating_sub(held.max(OWN_BYTES) + spare);
        for half in [Half::Large, Half::Small] {
            let taken = &mut self.taken[half as usize];
            let bytes = surplus.min(*taken);
            if bytes > 0 {
                *taken -= bytes;
                surplus -= bytes;
                self.pool.give(half, bytes);
            }
        }
    }

    fn stop_waiting(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.pool.cancel(wait.half, wait.ticket, wait.bytes);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.stop_waiting();
        self.give_back(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Small requests are covered whatever the large ones hold, and those of a connection with nothing else even
    /// where the pool is empty.
    #[test]
    fn nobody_is_starved() {
        let (pool, cx) = (Pool::new(0), context());
        let mut large = Share::new(pool.clone());
        assert!(large.cover(&cx, 0, 32 * MIB));
        let mut second = Share::new(pool.clone());
        assert!(!second.cover(&cx, 0, 32 * MIB), "it waits for the first");
        let mut small: Vec<Share> = (0..2).map(|_| Share::new(pool.clone())).collect();
        assert!(small.iter_mut().all(|share| share.cover(&cx, 0, 4 * MIB)));
        let mut late = Share::new(pool.clone());
        assert!(!late.cover(&cx, 0, 4 * MIB));
        let mut modest = Share::new(pool.clone());
        assert!(modest.cover(&cx, 0, 64 * KIB));
        drop(large);
        assert!(second.cover(&cx, 0, 32 * MIB));
        small[0].settle(0);
        assert!(late.cover(&cx, 0, 4 * MIB));
    }

    /// A queue is left in its order, and whoever leaves it early makes way.
    #[test]
    fn first_come_first_served() {
        let (pool, cx) = (Pool::new(0), context());
        let mut shares: Vec<Share> = (0..4).map(|_| Share::new(pool.clone())).collect();
        assert!(shares[0].cover(&cx, 0, 32 * MIB));
        for share in &mut shares[1..] {
            assert!(!share.cover(&cx, 0, 32 * MIB));
        }
        drop(shares.remove(1));
        shares[0].settle(0);
        assert!(!shares[2].cover(&cx, 0, 32 * MIB), "the one before is served first");
        assert!(shares[1].cover(&cx, 0, 32 * MIB));
        drop(shares.remove(1));
        assert!(shares[1].cover(&cx, 0, 32 * MIB));
        drop(shares);
        let free = |half| pool.shelf(half).free;
        assert_eq!((free(Half::Small), free(Half::Large)), (SMALL_HALF_BYTES_MIN, LARGE_HALF_BYTES_MIN));
        assert_eq!(pool.waiting.load(Ordering::Relaxed), 0);
    }

    proptest! {
        /// Whatever connections ask for, hold and drop: what is covered is taken, nothing is lost, and where all
        /// replies leave everybody is served in the end.
        #[test]
        fn nothing_is_lost(steps in prop::collection::vec((0..6usize, 0..4u8, 1..33u64), 1..200)) {
            let (pool, cx) = (Pool::new(0), context());
            let mut shares: Vec<(Share, u64, Option<u64>)> =
                (0..6).map(|_| (Share::new(pool.clone()), 0, None)).collect();
            for (n, what, size) in steps {
                let (share, held, wanted) = &mut shares[n];
                match what {
                    0 | 1 => {
                        let cost = *wanted.get_or_insert(size * MIB);
                        if share.cover(&cx, *held, cost) {
                            *held += cost;
                            *wanted = None;
                        }
                    }
                    2 => {
                        *held -= (*held).min(size * MIB);
                        share.settle(*held);
                    }
                    _ => shares[n] = (Share::new(pool.clone()), 0, None),
                }
                let (share, held, _) = &shares[n];
                prop_assert!(share.covered() >= *held);
            }
            for _round in 0..shares.len() {
                for (share, held, wanted) in &mut shares {
                    *held = 0;
                    share.settle(0);
                    if wanted.is_some_and(|cost| share.cover(&cx, 0, cost)) {
                        *wanted = None;
                        share.settle(0);
                    }
                }
            }
            prop_assert!(shares.iter().all(|(_, _, wanted)| wanted.is_none()));
            drop(shares);
            let free = |half| pool.shelf(half).free;
            prop_assert_eq!((free(Half::Small), free(Half::Large)), (SMALL_HALF_BYTES_MIN, LARGE_HALF_BYTES_MIN));
        }
    }
}
