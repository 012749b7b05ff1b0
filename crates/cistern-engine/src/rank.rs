//! Locks that know their rank: the order in which a thread takes the engine's locks, asserted in debug builds.
//!
//! **Whoever holds a lock takes locks of later ranks only, and never two of one rank**, unless together. So no two threads wait for each other. The
//! order is that of the layers (`lib.rs`), from above: code calls downward, also under a lock. `tests/layers.rs` compares.
//!
//! | rank | layer | locks, and what is taken under them |
//! |---|---|---|
//! | `Turn` | 2 | turn at a bulk transfer (`courtesy`), held while a piece is read or written and rested for: anything below |
//! | `Facade` | 8 | order point (`volume::order`), under which lie journal and map; writes that wait (`volume::pacing`) |
//! | `Flow` | 7 | what write-back shows (`writeback::control`), loaded groups; points (`upkeep`), under which the map's table is frozen |
//! | `Space` | 6 | accounts |
//! | `Fetch` | 6 | flights, the link; streams; what is hot |
//! | `Log` | 5 | trouble with the store; the limit of uploads |
//! | `Wake` | 4 | who may wake the cache's writer, under which lies its queue |
//! | `Structure` | 4 | state of the journal, buffers of recoveries; tables and levels of the map, its names; index of the cache |
//! | `World` | 3 | scheduler; meters; what the kinds of store remember |
//! | `File` | 2 | rings of reads (`uring`); syncs and hurries (`courtesy`) |
//! | `Tool` | 1 | damage; kept buffers |
//!
//! None of these is held while a task waits: their guards cannot leave the thread. What tasks hold over awaits comes before all of
//! them, in this order: the end of a volume (`Writer::flows`) or its resize, held extents (`volume::locks`), the turnstile of writes;
//! beside them the flush, the merge, the hot set, the checkpoint (`upkeep`); behind any of those the look at the store
//! (`log::presence`) and the end of the journal. That order is not asserted.
//!
//! A panic under a lock leaves half a change behind, and nobody goes on with that: taking the lock panics from then on.

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// When a lock is taken, among those that one thread holds: the first first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Turn,
    Facade,
    Flow,
    Space,
    Fetch,
    Log,
    Wake,
    Structure,
    World,
    File,
    Tool,
}

impl Rank {
    fn bit(self) -> u16 {
        1 << self as u16
    }
}

thread_local! {
    /// The ranks of the locks that this thread holds, one bit each.
    static HELD: Cell<u16> = const { Cell::new(0) };
}

/// Notes that a lock of a rank is held, in debug builds.
struct RankHeld(Rank);

impl RankHeld {
    fn take(rank: Rank) -> RankHeld {
        if cfg!(debug_assertions) {
            let held = HELD.get();
            assert!(held < rank.bit(), "order of locks: {rank:?} is taken under {}", names(held));
            HELD.set(held | rank.bit());
        }
        RankHeld(rank)
    }
}

impl Drop for RankHeld {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() & !self.0.bit());
        }
    }
}

/// The ranks that are held, for a message.
fn names(held: u16) -> String {
    use Rank::{Facade, File, Flow, Log, Space, Structure, Tool, Turn, Wake, World};
    let all = [Turn, Facade, Flow, Space, Log, Wake, Structure, World, File, Tool];
    let names: Vec<String> =
        all.into_iter().filter(|rank| held & rank.bit() != 0).map(|rank| format!("{rank:?}")).collect();
    names.join(" and ")
}

/// A value behind a lock of a rank.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: Rank,
    value: Mutex<T>,
}

/// What is locked, and is let go when this is dropped.
pub struct Locked<'a, T> {
    // In this order: let go, then forgotten.
    value: MutexGuard<'a, T>,
    _note: RankHeld,
}

impl<T> Ranked<T> {
    pub const fn new(rank: Rank, value: T) -> Ranked<T> {
        Ranked { rank, value: Mutex::new(value) }
    }

    pub fn lock(&self) -> Locked<'_, T> {
        let note = RankHeld::take(self.rank);
        Locked { value: self.value.lock().expect("nobody panics under a lock"), _note: note }
    }

    /// For who must not panic: also what a panic left behind.
    pub fn lock_after_panic(&self) -> Locked<'_, T> {
        let note = RankHeld::take(self.rank);
        Locked { value: self.value.lock().unwrap_or_else(PoisonError::into_inner), _note: note }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// The same behind a lock that can be handed to who waits: a lock that goes to the fastest would stay with who takes it again
/// and again.
pub struct FairlyRanked<T> {
    rank: Rank,
    value: parking_lot::Mutex<T>,
    /// Somebody panicked under the lock.
    poisoned: AtomicBool,
}

/// What is locked.
pub struct FairlyLocked<'a, T> {
    // In this order: marked, let go, then forgotten.
    poison: Poison<'a>,
    value: parking_lot::MutexGuard<'a, T>,
    /// Of several that were taken together the first has it.
    note: Option<RankHeld>,
}

/// Marks a lock under which somebody panics; not one that is taken to clear up after a panic elsewhere.
struct Poison<'a> {
    poisoned: &'a AtomicBool,
    panicked_before: bool,
}

impl Drop for Poison<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicked_before {
            self.poisoned.store(true, Relaxed);
        }
    }
}

impl<T> FairlyRanked<T> {
    pub const fn new(rank: Rank, value: T) -> FairlyRanked<T> {
        FairlyRanked { rank, value: parking_lot::Mutex::new(value), poisoned: AtomicBool::new(false) }
    }

    pub fn lock(&self) -> FairlyLocked<'_, T> {
        let locked = self.lock_after_panic();
        assert!(!self.poisoned.load(Relaxed), "nobody panics under a lock");
        locked
    }

    /// For who must not panic: also what a panic left behind.
    pub fn lock_after_panic(&self) -> FairlyLocked<'_, T> {
        self.take(Some(RankHeld::take(self.rank)))
    }

    /// Several locks of one rank at once, each a different one, in the order of the list. They are taken in the order of
    /// their addresses: so two that take some of the same do not wait for each other.
    pub fn lock_all<'a>(locks: &[&'a FairlyRanked<T>]) -> Vec<FairlyLocked<'a, T>> {
        let mut order: Vec<usize> = (0..locks.len()).collect();
        order.sort_by_key(|&n| std::ptr::from_ref(locks[n]));
        let mut locked: Vec<Option<FairlyLocked<'a, T>>> = locks.iter().map(|_| None).collect();
        let mut note = locks.first().map(|first| RankHeld::take(first.rank));
        for n in order {
            let taken = locks[n].take(note.take());
            assert!(!locks[n].poisoned.load(Relaxed), "nobody panics under a lock");
            locked[n] = Some(taken);
        }
        locked.into_iter().flatten().collect()
    }

    fn take(&self, note: Option<RankHeld>) -> FairlyLocked<'_, T> {
        let value = self.value.lock();
        let poison = Poison { poisoned: &self.poisoned, panicked_before: std::thread::panicking() };
        FairlyLocked { poison, value, note }
    }
}

impl<T> FairlyLocked<'_, T> {
    /// Lets go: who waits longest has it next.
    pub fn unlock_fairly(self) {
        let FairlyLocked { value, poison, note } = self;
        drop(poison);
        parking_lot::MutexGuard::unlock_fair(value);
        drop(note);
    }
}

impl<T> Deref for FairlyLocked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for FairlyLocked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn panics(f: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(f)).is_err()
    }

    /// Locks are taken from above, and let go in any order; two of one rank, or one above, is a panic in debug builds.
    #[test]
    fn a_wrong_order_panics() {
        let order = FairlyRanked::new(Rank::Facade, 1);
        let (journal, map) = (Ranked::new(Rank::Structure, 2), Ranked::new(Rank::Structure, 3));
        for _ in 0..2 {
            let above = order.lock();
            let below = journal.lock();
            drop(above);
            assert_eq!(panics(|| drop(order.lock())), cfg!(debug_assertions));
            assert_eq!(panics(|| drop(map.lock())), cfg!(debug_assertions));
            drop(below);
        }
        let above = order.lock();
        above.unlock_fairly();
        assert_eq!(*map.lock(), 3);
        assert_eq!(*order.lock(), 1, "one after the other");
    }

    /// Several of one rank are taken together or not at all, in any order of the list, and count as one.
    #[test]
    fn several_of_a_rank_are_taken_together() {
        let all: Vec<_> = (0..3).map(|n| FairlyRanked::new(Rank::Facade, n)).collect();
        let below = Ranked::new(Rank::Structure, 7);
        std::thread::scope(|scope| {
            for order in [[0, 1, 2], [2, 0, 1]] {
                let (all, below) = (&all, &below);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let mut locked = FairlyRanked::lock_all(&order.map(|n: usize| &all[n]));
                        let _below = below.lock();
                        locked.iter_mut().for_each(|value| **value += 10);
                    }
                });
            }
        });
        let locked = FairlyRanked::lock_all(&[&all[2], &all[0]]);
        assert_eq!(locked.iter().map(|value| **value).collect::<Vec<_>>(), [20_002, 20_000]);
        assert_eq!(panics(|| drop(all[1].lock())), cfg!(debug_assertions));
    }

    /// What other threads hold is no matter of order.
    #[test]
    fn threads_have_ranks_of_their_own() {
        let (journal, order) = (Ranked::new(Rank::Structure, 2), FairlyRanked::new(Rank::Facade, 1));
        let _held = journal.lock();
        std::thread::scope(|scope| _ = scope.spawn(|| assert_eq!(*order.lock(), 1)));
    }

    /// Whoever clears up after a panic elsewhere leaves no half a change behind.
    #[test]
    fn clearing_up_is_no_panic() {
        struct ClearsUp<'a>(&'a FairlyRanked<u32>);
        impl Drop for ClearsUp<'_> {
            fn drop(&mut self) {
                *self.0.lock_after_panic() += 1;
            }
        }
        let fair = FairlyRanked::new(Rank::Facade, 1);
        assert!(panics(|| {
            let _clears_up = ClearsUp(&fair);
            panic!("elsewhere");
        }));
        assert_eq!(*fair.lock(), 2);
    }

    /// Half a change is not gone on with, but who must not panic may clear up.
    #[test]
    fn a_panic_under_a_lock_is_the_end() {
        let (lock, fair) = (Ranked::new(Rank::Structure, 2), FairlyRanked::new(Rank::Facade, 1));
        assert!(panics(|| {
            let (_first, _second) = (fair.lock(), lock.lock());
            panic!("under both");
        }));
        assert!(panics(|| drop(lock.lock())) && panics(|| drop(fair.lock())));
        assert_eq!(*fair.lock_after_panic() + *lock.lock_after_panic(), 3);
    }
}
