//! Who starts next in one direction: pure turn-taking, without clock, store or queue.
//!
//! Strict priority with a guaranteed share. The guarantee, proven below: a class that could start
//! is passed over at most [`PASSES_MAX`] times in a row (and [`EXTRA`] times more where other
//! classes are overdue at the same moment), and while reads could start, at most [`EXTRA`] + 1
//! starts in a row are not reads.

use super::Priority;

/// Priorities, highest first.
pub(super) const CLASSES: [Priority; 4] =
    [Priority::Read, Priority::WriteBack, Priority::Ahead, Priority::Background];

/// How often each class may be passed over in a row: with all overdue at times, write-back still
/// has a seventh of the starts, read-ahead an eleventh, the background a nineteenth. Reads are
/// first in any case.
pub(super) const PASSES_MAX: [u32; CLASSES.len()] = [0, 4, 8, 16];
/// Other classes that may be overdue when one becomes so.
#[cfg(test)]
pub(super) const EXTRA: u32 = 2;

/// Which classes could start now: they wait, and nothing but their turn holds them up.
pub(super) type Ready = [bool; CLASSES.len()];

/// How often each class was passed over.
#[derive(Debug, Default)]
pub(super) struct Turns {
    passed: [u32; CLASSES.len()],
}

impl Turns {
    /// Whose turn it is: an overdue class, or else the highest.
    pub(super) fn choose(&self, ready: Ready) -> Option<Priority> {
        let overdue = |class: &Priority| {
            let c = *class as usize;
            c > 0 && ready[c] && self.passed[c] >= PASSES_MAX[c]
        };
        let highest = || CLASSES.into_iter().find(|class| ready[*class as usize]);
        CLASSES.into_iter().find(overdue).or_else(highest)
    }

    /// A class started while these could have.
    pub(super) fn started(&mut self, class: Priority, ready: Ready) {
        debug_assert!(ready[class as usize]);
        for other in CLASSES {
            let passed = &mut self.passed[other as usize];
            *passed = if other == class || !ready[other as usize] { 0 } else { *passed + 1 };
        }
    }
}

/// What goes to and comes from a store at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Bodies of puts.
    Up,
    /// Everything else.
    Down,
}

/// What is under way in one direction, and what it may come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub direction: Direction,
    /// Requests that the store bears.
    pub limit: u32,
    pub in_use: [u32; CLASSES.len()],
    /// Bytes of the background's requests under way.
    pub background_bytes: u64,
    /// What these may come to, beyond one request.
    pub background_bytes_max: u64,
}

/// Whether there is room for one more request of a class.
pub(super) fn has_room(load: &Load, class: Priority) -> bool {
    has_slot(load, class) && (class != Priority::Background || has_bytes(load))
}

/// Whether the limit leaves a class one more request.
pub(super) fn has_slot(load: &Load, class: Priority) -> bool {
    let total: u32 = load.in_use.iter().sum();
    if total >= load.limit {
        return false;
    }
    let others = total - load.in_use[Priority::Read as usize];
    let own = load.in_use[class as usize];
    match (class, load.direction) {
        (Priority::Read, _) | (Priority::WriteBack, Direction::Up) => true,
        (Priority::WriteBack | Priority::Ahead, _) => others < others_max(load.limit),
        (Priority::Background, Direction::Up) => own < half(load.limit),
        (Priority::Background, Direction::Down) => own < half(load.limit) && others < others_max(load.limit),
    }
}

/// Downloads in the background must not fill the link in front of a read; one is always allowed.
fn has_bytes(load: &Load) -> bool {
    let idle = load.in_use[Priority::Background as usize] == 0;
    idle || load.direction == Direction::Up || load.background_bytes < load.background_bytes_max
}

/// Slots for what is not a read: a quarter of them, and one at least, is kept free for reads.
fn others_max(limit: u32) -> u32 {
    limit.saturating_sub((limit / 4).max(1)).max(1)
}

fn half(limit: u32) -> u32 {
    (limit / 2).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Whatever waits and comes, a class that could start is passed over a bounded number of
        /// times, and reads are never kept waiting by a row of others.
        #[test]
        fn nobody_starves(history in prop::collection::vec(any::<[bool; 4]>(), 1..400), insistent in 0usize..4) {
            let mut turns = Turns::default();
            let mut row = 0;
            for mut ready in history {
                ready[insistent] = true;
                let class = turns.choose(ready).expect("somebody could start");
                prop_assert!(ready[class as usize], "who starts could start");
                turns.started(class, ready);
                row = if class as usize == insistent { 0 } else { row + 1 };
                let bound = if insistent == 0 { EXTRA + 1 } else { PASSES_MAX[insistent] + EXTRA };
                prop_assert!(row <= bound, "class {insistent} was passed over {row} times");
            }
        }

        /// With nobody overdue the highest class goes first.
        #[test]
        fn the_highest_goes_first(ready: [bool; 4]) {
            let first = CLASSES.into_iter().find(|c| ready[*c as usize]);
            prop_assert_eq!(Turns::default().choose(ready), first);
        }

        /// The limit holds, a slot is left for reads, and whoever has nothing under way gets one
        /// when nothing else is.
        #[test]
        fn room_is_bounded_and_never_denied_for_good(
            limit in 1u32..200, steps in prop::collection::vec((0usize..4, 0u64..1 << 22), 1..300), up: bool,
        ) {
            let direction = if up { Direction::Up } else { Direction::Down };
            let mut load = Load {
                direction, limit, in_use: [0; 4], background_bytes: 0, background_bytes_max: 1 << 20,
            };
            for class in CLASSES {
                prop_assert!(has_room(&load, class), "an idle store takes anything");
            }
            for (class, bytes) in steps {
                let class = CLASSES[class];
                if !has_room(&load, class) {
                    continue;
                }
                load.in_use[class as usize] += 1;
                if class == Priority::Background {
                    prop_assert!(load.in_use[3] == 1 || load.background_bytes < 1 << 20 || up);
                    load.background_bytes += bytes;
                }
                let total: u32 = load.in_use.iter().sum();
                prop_assert!(total <= limit);
                if !up && limit > 1 && load.in_use[0] == 0 {
                    prop_assert!(has_room(&load, Priority::Read), "a read finds a slot");
                }
            }
        }
    }

    /// With all four waiting all the time, each gets about what is promised.
    #[test]
    fn shares_are_as_promised() {
        let mut turns = Turns::default();
        let mut starts = [0; 4];
        for _ in 0..1000 {
            let class = turns.choose([true; 4]).expect("all wait");
            turns.started(class, [true; 4]);
            starts[class as usize] += 1;
        }
        assert!(starts[0] > 600 && starts[1] >= 190 && starts[2] >= 100 && starts[3] >= 55, "{starts:?}");
    }
}
