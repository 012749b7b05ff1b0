//! Which chunk goes when room is needed.
//!
//! Owns the order of the slots, by number; knows neither owners nor bytes. Four queues: *trial* holds
//! what nobody has read yet (prefetched, written back), *window* what was read lately, and *main*,
//! split into *cold* and *kept*, what was read again. A chunk is expected after as many reads as lay
//! between its last two; it gets into a full main only in place of one that was not read for longer (as in
//! LIRS). So one pass over a volume displaces what the window holds and nothing else, and what a workload
//! leaves behind goes as soon as another one comes back to its own. How large window and trial are is
//! the tuner's.
//!
//! Deterministic and O(1): linked lists in one array, ages in ticks. Reads of one chunk that follow each
//! other closely count once: a sequential reader touches a chunk many times.

use super::Admission;

mod ghost;
mod list;
mod tuner;

pub(super) use ghost::Ghost;
use list::{Links, List, NONE};
pub(super) use tuner::Tuner;

/// The part of main that is kept for what was read again in it, in percent (as W-TinyLFU has it).
const KEPT_PERCENT: u64 = 80;
/// What is kept goes before what is cold if it was not read for so many times as long.
const KEPT_PATIENCE: u32 = 8;
/// What was not read within so many times as many reads as the cache has chunks is new: a pass over ten
/// times the cache leaves what was read before it.
const HORIZON: u32 = 12;
/// Chunks that leave a window that is too large, for each newcomer, until it fits.
const SHRINK_STEP: usize = 4;
/// A chunk counts as read again after so many counted reads: the cache's size divided by this, and
/// at most `SPAN_MAX` (256 MiB of chunks).
const SPAN_DIVISOR: u32 = 64;
const SPAN_MAX: u32 = 4096;
/// The clock of a slot ticks so often within a span.
const TICKS_PER_SPAN: u32 = 4;
/// And at most so often within as many reads as the cache has chunks: it wraps long after the horizon.
const TICKS_MAX: u32 = 2048;
const _: () = assert!(TICKS_MAX * HORIZON < u16::MAX as u32 / 2);

/// Reads of a chunk are counted up to this.
const READS_MAX: u8 = 15;

/// How much of the cache is window and trial at most, in 1024ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub window: u32,
    pub trial: u32,
}

/// A part in 1024ths.
const WHOLE: u32 = 1024;

/// Where a slot stands. The numbers are those of the index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Standing {
    Trial = 0,
    Window = 1,
    Cold = 2,
    Kept = 3,
}

const PLACES: [Standing; 4] = [Standing::Trial, Standing::Window, Standing::Cold, Standing::Kept];

impl Standing {
    pub fn of(number: u8) -> Option<Standing> {
        PLACES.get(usize::from(number)).copied()
    }
}

#[derive(Clone, Copy)]
struct Node {
    /// When it was last counted, in ticks; wraps.
    tick: u16,
    /// Ticks between the last two reads, at most up to the horizon.
    gap: u16,
    /// Reads since it came, up to 15.
    reads: u8,
    /// `None` while the slot is free.
    place: Option<Standing>,
}

/// Where a chunk stood whose bytes lie elsewhere from now on. The greater, the better it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stood {
    place: Standing,
    /// The greatest age less its own, in ticks since it was last counted.
    youth: u16,
    reads: u8,
    gap: u16,
}

/// What a read of a chunk meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    /// It counted.
    pub counted: bool,
    /// The chunk stands in another queue now.
    pub moved: bool,
}

pub(super) struct EvictionPolicy {
    capacity: u32,
    shares: Shares,
    nodes: Vec<Node>,
    links: Links,
    lists: [List; PLACES.len()],
    /// Counted reads since the beginning.
    clock: u64,
    /// Counted reads to a tick.
    tick_reads: u32,
}

impl EvictionPolicy {
    /// For `slots` slots of which at most `capacity` are to be used.
    pub fn new(slots: u32, capacity: u32, shares: Shares) -> EvictionPolicy {
        assert!(capacity >= 1 && slots >= capacity, "there are slots for what is kept");
        let node = Node { tick: 0, gap: 0, reads: 0, place: None };
        let policy = EvictionPolicy {
            capacity,
            shares,
            nodes: vec![node; slots as usize],
            links: Links::new(slots),
            lists: [List::default(); PLACES.len()],
            clock: 0,
            tick_reads: ((capacity / SPAN_DIVISOR).min(SPAN_MAX) / TICKS_PER_SPAN)
                .max(capacity / TICKS_MAX)
                .max(1),
        };
        assert!(
            capacity / policy.tick_reads * HORIZON < u32::from(u16::MAX) / 2,
            "the clock wraps long after the horizon"
        );
        policy
    }

    pub fn set_shares(&mut self, shares: Shares) {
        self.shares = shares;
    }

    /// Takes a slot in, for a chunk that was here last at this tick, if it was. Follow up with `victim`
    /// until there is none.
    pub fn admit(&mut self, slot: u32, last: Option<u16>, admission: Admission) {
        debug_assert!(self.nodes[slot as usize].place.is_none(), "only a free slot is taken in");
        self.nodes[slot as usize] = Node { tick: self.tick(), gap: self.horizon(), reads: 0, place: None };
        match admission {
            Admission::Written | Admission::Prefetch => self.enter(slot, Standing::Trial),
            Admission::Demand => {
                self.count(slot, last);
                let again = self.nodes[slot as usize].gap < self.horizon();
                let place = if again && self.beats(slot, self.resident()) {
                    Standing::Cold
                } else {
                    Standing::Window
                };
                self.enter(slot, place);
            }
        }
    }

    /// Where a slot in use stands, for who takes its place.
    pub fn stood(&self, slot: u32) -> Option<Stood> {
        let Node { gap, reads, place, .. } = self.nodes[slot as usize];
        Some(Stood { place: place?, youth: u16::MAX - self.age(slot), reads, gap })
    }

    /// Takes a slot in where another stood, as the youngest of its queue. Follow up with `victim` until there is none.
    pub fn admit_in_place(&mut self, slot: u32, stood: Stood) {
        debug_assert!(self.nodes[slot as usize].place.is_none(), "only a free slot is taken in");
        let tick = self.tick().wrapping_sub(u16::MAX - stood.youth);
        self.nodes[slot as usize] = Node { tick, gap: stood.gap, reads: stood.reads, place: None };
        self.enter(slot, stood.place);
        self.demote();
    }

    /// Says that the chunk of a slot was read.
    pub fn touch(&mut self, slot: u32) -> Touch {
        let Node { tick, place, .. } = self.nodes[slot as usize];
        let again = u32::from(self.tick().wrapping_sub(tick)) >= TICKS_PER_SPAN || self.tick_reads == 1;
        let (next, last) = match place {
            None => return Touch { counted: false, moved: false },
            Some(Standing::Trial) => (Standing::Window, None),
            Some(_) if !again => return Touch { counted: false, moved: false },
            Some(Standing::Window) => (Standing::Window, Some(tick)),
            Some(Standing::Cold | Standing::Kept) => (Standing::Kept, Some(tick)),
        };
        self.count(slot, last);
        self.leave(slot);
        self.enter(slot, next);
        self.demote();
        Touch { counted: true, moved: place != Some(next) }
    }

    /// The slot to free, while more are used than there should be. It is out of every queue then.
    pub fn victim(&mut self) -> Option<u32> {
        self.shrink_window();
        if self.used() <= self.capacity {
            return None;
        }
        let chosen = self.choose();
        debug_assert!(chosen.is_some(), "of those that are used one can go");
        let slot = chosen?;
        self.leave(slot);
        Some(slot)
    }

    /// Forgets a slot, if it is in use.
    pub fn remove(&mut self, slot: u32) {
        if self.nodes[slot as usize].place.is_some() {
            self.leave(slot);
        }
    }

    pub fn used(&self) -> u32 {
        self.lists.iter().map(|list| list.len).sum()
    }

    pub fn place(&self, slot: u32) -> Option<Standing> {
        self.nodes[slot as usize].place
    }

    /// How often a slot's chunk was read since it came, from 0 to 15.
    pub fn reads(&self, slot: u32) -> u8 {
        self.nodes[slot as usize].reads
    }

    /// When a slot was last counted, also one that has just gone: what `admit` wants to know when its chunk
    /// comes back.
    pub fn last(&self, slot: u32) -> u16 {
        self.nodes[slot as usize].tick
    }

    /// When a slot was last counted, by a clock that goes on in the next life of the cache.
    pub fn stamp(&self, slot: u32) -> u32 {
        self.now().wrapping_sub(u32::from(self.age(slot)))
    }

    /// Sets the clock of an empty policy: stamps up to this one are in the past.
    pub fn resume(&mut self, stamp: u32) {
        debug_assert_eq!(self.used(), 0, "the clock is set before anything is counted by it");
        self.clock = u64::from(stamp) * u64::from(self.tick_reads);
    }

    /// Puts a slot where it was in an earlier life, which may have counted on. To be called from the oldest to the youngest.
    pub fn restore(&mut self, slot: u32, place: Standing, reads: u8, stamp: u32) {
        debug_assert!(self.nodes[slot as usize].place.is_none(), "a slot is restored once");
        debug_assert!(stamp <= self.now(), "what was counted is in the past");
        let age = self.now().saturating_sub(stamp).min(u32::from(u16::MAX)) as u16;
        let tick = self.tick().wrapping_sub(age);
        let reads = reads.min(READS_MAX);
        self.nodes[slot as usize] = Node { tick, gap: self.horizon(), reads, place: None };
        self.enter(slot, place);
    }

    /// The slots of a queue, the youngest first.
    pub fn slots(&self, place: Standing) -> impl Iterator<Item = u32> {
        self.links.walk(&self.lists[place as usize])
    }

    fn now(&self) -> u32 {
        (self.clock / u64::from(self.tick_reads)) as u32
    }

    fn tick(&self) -> u16 {
        self.now() as u16
    }

    /// Ticks since a slot was last counted.
    fn age(&self, slot: u32) -> u16 {
        self.tick().wrapping_sub(self.nodes[slot as usize].tick)
    }

    /// Ticks until what was read is new again.
    fn horizon(&self) -> u16 {
        (self.capacity / self.tick_reads * HORIZON) as u16
    }

    /// Counts a read of what was read before at tick `last`, if it was.
    fn count(&mut self, slot: u32, last: Option<u16>) {
        self.clock += 1;
        let (tick, horizon) = (self.tick(), self.horizon());
        let node = &mut self.nodes[slot as usize];
        node.tick = tick;
        node.gap = last.map_or(horizon, |last| tick.wrapping_sub(last).min(horizon));
        node.reads = (node.reads + 1).min(READS_MAX);
    }

    /// Whether a slot is expected to be read sooner than one of main: in as many reads as lay between its last
    /// two, and no less than it has waited already.
    fn beats(&self, slot: u32, resident: u32) -> bool {
        resident != NONE && self.nodes[slot as usize].gap.max(self.age(slot)) < self.age(resident)
    }

    fn enter(&mut self, slot: u32, place: Standing) {
        let before = self.nodes[slot as usize].place.replace(place);
        debug_assert_eq!(before, None, "a slot stands in one queue");
        self.links.push(&mut self.lists[place as usize], slot);
    }

    fn leave(&mut self, slot: u32) {
        let place = self.nodes[slot as usize].place.take().expect("only used slots leave a queue");
        self.links.unlink(&mut self.lists[place as usize], slot);
    }

    fn list(&self, place: Standing) -> &List {
        &self.lists[place as usize]
    }

    fn share(&self, share: u32) -> u32 {
        let part = u64::from(self.capacity) * u64::from(share.min(WHOLE)) / u64::from(WHOLE);
        (part as u32).max(1)
    }

    /// Keeps the kept part of main within its bound; who leaves it gets another chance in the cold
    /// one.
    fn demote(&mut self) {
        let main = u64::from(self.list(Standing::Cold).len + self.list(Standing::Kept).len);
        if u64::from(self.list(Standing::Kept).len) * 100 > main.max(2) * KEPT_PERCENT {
            self.pass(Standing::Kept, Standing::Cold);
        }
    }

    /// Passes the oldest of one queue on to another.
    fn pass(&mut self, from: Standing, to: Standing) {
        let oldest = self.list(from).tail;
        if oldest != NONE {
            self.leave(oldest);
            self.enter(oldest, to);
        }
    }

    /// While there is room, who leaves the window gets into main for nothing; and a window that the
    /// tuner made smaller shrinks step by step.
    fn shrink_window(&mut self) {
        let full = u32::from(self.used() > self.capacity);
        let target = self.share(self.shares.window) + full;
        for _ in 0..SHRINK_STEP {
            if self.list(Standing::Window).len <= target {
                break;
            }
            self.pass(Standing::Window, Standing::Cold);
        }
    }

    /// Whether a slot on trial was not read within as many reads as the cache has chunks.
    fn stale(&self, slot: u32) -> bool {
        u32::from(self.age(slot)) > self.capacity / self.tick_reads
    }

    /// Who of main would go first.
    fn resident(&self) -> u32 {
        let (cold, kept) = (self.list(Standing::Cold).tail, self.list(Standing::Kept).tail);
        let age = |slot: u32| u32::from(self.age(slot));
        if cold == NONE || kept != NONE && age(kept) / KEPT_PATIENCE > age(cold) { kept } else { cold }
    }

    fn choose(&mut self) -> Option<u32> {
        let trial = self.list(Standing::Trial).tail;
        if trial != NONE
            && (self.list(Standing::Trial).len > self.share(self.shares.trial) || self.stale(trial))
        {
            return Some(trial);
        }
        let (candidate, resident) = (self.list(Standing::Window).tail, self.resident());
        let over = self.list(Standing::Window).len > self.share(self.shares.window);
        match (candidate, resident) {
            (NONE, NONE) => Some(trial).filter(|&slot| slot != NONE),
            (candidate, NONE) => Some(candidate),
            (NONE, resident) => Some(resident),
            (_, resident) if !over => Some(resident),
            (candidate, resident) if self.beats(candidate, resident) => {
                self.pass(Standing::Window, Standing::Cold);
                Some(resident)
            }
            (candidate, _) => Some(candidate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count of reads that no life of the cache could have left does not run over when it is counted on.
    #[test]
    fn an_inherited_count_does_not_overflow() {
        let shares = Shares { window: 1024, trial: 1024 };
        let mut policy = EvictionPolicy::new(2, 1, shares);
        policy.restore(0, Standing::Trial, u8::MAX, 0);
        assert!(policy.touch(0).counted);
        assert_eq!(policy.reads(0), READS_MAX);
    }
}
