//! Bulk transfers that give way to syncs on the same file system.
//!
//! Where the store is a directory on the journal's disk, a segment of 16 MiB read back from the journal or written at once
//! keeps the disk busy for milliseconds, and a FLUSH waits behind it. So both are done in small pieces, one piece at a time on
//! one file system, with a rest after each that is a multiple of what the piece took; the multiple follows the time that syncs
//! take against what they take undisturbed, as the kernel's writeback throttling (blk-wbt) and CoDel do it. Whoever has
//! no time says how little, and the rests shrink to nothing.
//!
//! Invariants: nobody waits for a rest of somebody in a hurry; without a sync for [`SYNCS_RECENT`] nobody rests.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    env::{Env, real::hold_thread},
    rank::{Locked, Rank, Ranked},
};

/// A bulk transfer beside somebody who syncs goes in pieces of this size: the disk takes one in 0.1 ms.
pub const SMALL_PIECE_BYTES: usize = 64 << 10;
/// Without a sync for so long nobody is in the way of one.
const SYNCS_RECENT: Duration = Duration::from_secs(1);
/// Times that a piece took for which its thread rests, at least and at most: from a sixth of what the disk can do down to a
/// thirty-third.
const RESTS: std::ops::RangeInclusive<f64> = 5.0..=32.0;
/// A sync that takes so many times what syncs take undisturbed was in somebody's way ...
const SLOW_TIMES: f64 = 4.0;
/// ... and makes rests so much longer; ...
const LONGER: f64 = 1.5;
/// ... each other one makes them so much shorter: one sync in two hundred is slow then.
const SHORTER: f64 = 0.998;
/// So does each piece, so that rests become short again where few sync.
const SHORTER_BY_PIECE: f64 = 0.9995;
/// Undisturbed is what a tenth of the syncs do not exceed. One sync moves that by this share at most.
const FLOOR_STEP: f64 = 1.0 / 64.0;
const FLOOR_SHARE: f64 = 0.1;
/// Longest rest, whatever a piece took.
const REST_MAX: Duration = Duration::from_millis(20);
/// A hurry is kept in thousandths.
const UTMOST: f64 = 1000.0;

/// What those who use one file system know of each other.
pub struct Courtesy {
    syncs: Ranked<Syncs>,
    /// Held by who transfers a piece and rests after it.
    turn: Ranked<()>,
    /// Whether a store lies here, too.
    has_store: AtomicBool,
    /// The greatest of `hurries`.
    hurry: AtomicU32,
    hurries: Ranked<Vec<u32>>,
}

#[derive(Default)]
struct Syncs {
    last: Option<Duration>,
    /// Seconds that a sync takes undisturbed; zero before the first.
    floor_s: f64,
    /// Times that a piece took for which its thread rests.
    rests: f64,
}

impl Syncs {
    fn note(&mut self, now: Duration, took: Duration) {
        let took_s = took.as_secs_f64();
        self.last = Some(now);
        if self.floor_s == 0.0 {
            self.floor_s = took_s;
            self.rests = *RESTS.start();
        }
        if took_s > self.floor_s * SLOW_TIMES {
            self.rests = (self.rests * LONGER).min(*RESTS.end());
        } else {
            self.rests = (self.rests * SHORTER).max(*RESTS.start());
        }
        let up = if took_s > self.floor_s { FLOOR_SHARE } else { FLOOR_SHARE - 1.0 };
        self.floor_s *= 1.0 + up * FLOOR_STEP;
    }

    /// How long to rest after a piece that took `took`.
    fn rest(&mut self, took: Duration) -> Duration {
        self.rests = (self.rests * SHORTER_BY_PIECE).max(*RESTS.start());
        took.mul_f64(self.rests).min(REST_MAX)
    }
}

impl Default for Courtesy {
    fn default() -> Courtesy {
        Courtesy {
            syncs: Ranked::new(Rank::File, Syncs::default()),
            turn: Ranked::new(Rank::Turn, ()),
            has_store: AtomicBool::new(false),
            hurry: AtomicU32::new(0),
            hurries: Ranked::new(Rank::File, Vec::new()),
        }
    }
}

fn lock<T>(mutex: &Ranked<T>) -> Locked<'_, T> {
    mutex.lock_after_panic()
}

impl Courtesy {
    /// That of the file system with this device number: one for all who use it.
    pub fn on(device: u64) -> Arc<Courtesy> {
        static KNOWN: Ranked<Option<HashMap<u64, Weak<Courtesy>>>> = Ranked::new(Rank::File, None);
        let mut known = lock(&KNOWN);
        let known = known.get_or_insert_default();
        if let Some(there) = known.get(&device).and_then(Weak::upgrade) {
            return there;
        }
        known.retain(|_, courtesy| courtesy.strong_count() > 0);
        let new = Arc::new(Courtesy::default());
        known.insert(device, Arc::downgrade(&new));
        new
    }

    /// Somebody waited from `began` to `now` for a sync of the disk, and not in vain: one that found nothing to do would make
    /// all others look slow.
    pub fn synced(&self, began: Duration, now: Duration) {
        lock(&self.syncs).note(now, now.saturating_sub(began));
    }

    /// How little time there is for bulk transfers, to be set as that changes.
    pub fn hurry(self: &Arc<Courtesy>) -> Hurry {
        let mut hurries = lock(&self.hurries);
        hurries.push(0);
        Hurry { courtesy: self.clone(), thousandths: 0 }
    }

    /// Whether a bulk transfer should give way now, in small pieces.
    pub fn is_due(&self, now: Duration) -> bool {
        let utmost = self.hurry.load(Relaxed) >= UTMOST as u32;
        !utmost && lock(&self.syncs).last.is_some_and(|last| now.saturating_sub(last) < SYNCS_RECENT)
    }

    /// A store lies on this file system from now on.
    pub fn note_store(&self) {
        self.has_store.store(true, Relaxed);
    }

    /// The same for what is read back from a journal. Where the store lies elsewhere its link sets the pace of that, and rests
    /// would keep the link waiting.
    pub fn is_due_for_reads(&self, now: Duration) -> bool {
        self.has_store.load(Relaxed) && self.is_due(now)
    }

    /// Reads or writes a piece by `transfer` when it is its turn, and rests. Holds the thread.
    pub fn give_way<T>(&self, env: &Env, transfer: impl FnOnce() -> T) -> T {
        let _turn = lock(&self.turn);
        let began = env.now();
        let out = transfer();
        let rest = lock(&self.syncs).rest(env.now().saturating_sub(began));
        let calm = 1.0 - f64::from(self.hurry.load(Relaxed)) / UTMOST;
        hold_thread(rest.mul_f64(calm.max(0.0)));
        out
    }

    fn replace(&self, old: u32, new: Option<u32>) {
        let mut hurries = lock(&self.hurries);
        debug_assert!(hurries.contains(&old), "everybody who hurries is in the list");
        if let Some(at) = hurries.iter().position(|hurry| *hurry == old) {
            match new {
                Some(new) => hurries[at] = new,
                None => drop(hurries.swap_remove(at)),
            }
        }
        self.hurry.store(hurries.iter().copied().max().unwrap_or(0), Relaxed);
    }
}

/// The hurry of one whose data is read and written in bulk.
pub struct Hurry {
    courtesy: Arc<Courtesy>,
    thousandths: u32,
}

impl Hurry {
    /// From 0, none, to 1: bulk transfers give way to nothing.
    pub fn set(&mut self, share: f64) {
        let thousandths = (share.clamp(0.0, 1.0) * UTMOST) as u32;
        if thousandths != self.thousandths {
            self.courtesy.replace(self.thousandths, Some(thousandths));
            self.thousandths = thousandths;
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.courtesy.replace(self.thousandths, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Syncs that go on as undisturbed leave rests short, those that became slow make them long, and quick ones and
    /// pieces make them short again. With one slow sync of a hundred they are as long as they can be, with one of a thousand
    /// as short.
    #[test]
    fn rests_follow_the_syncs() {
        let mut syncs = Syncs::default();
        let rest = |syncs: &mut Syncs| syncs.rest(100 * US).as_micros();
        for n in 0..10_000 {
            syncs.note(n * US, (40 + n % 20) * US);
            assert_eq!(rest(&mut syncs), 500);
        }
        assert!((30e-6..60e-6).contains(&syncs.floor_s), "{}", syncs.floor_s);
        for n in 0..20 {
            syncs.note(n * US, 2000 * US);
        }
        assert!(rest(&mut syncs) > 3000);
        assert!((0..6000).map(|_| rest(&mut syncs)).is_sorted_by(|a, b| a >= b));
        assert_eq!(rest(&mut syncs), 500);
        let mut after = |one_in: u32| {
            for n in 0..20_000 {
                syncs.note(n * US, if n % one_in == 0 { 2000 * US } else { 50 * US });
            }
            rest(&mut syncs)
        };
        assert!(after(100) > 2500);
        assert!(after(1000) < 800);
    }

    /// Only while somebody syncs, and not while anybody is in the utmost hurry, bulk transfers give way; those on one file
    /// system know of each other. What is read from a journal gives way only beside a store.
    #[test]
    fn gives_way_while_it_is_due() {
        let (one, other) = (Courtesy::on(u64::MAX), Courtesy::on(u64::MAX));
        let second = Duration::from_secs(1);
        assert!(!other.is_due(second));
        one.synced(second, second + 50 * US);
        assert!(other.is_due(second * 3 / 2) && !other.is_due(second * 3));
        let (mut calm, mut late) = (one.hurry(), one.hurry());
        calm.set(0.5);
        late.set(1.0);
        assert!(!other.is_due(second));
        drop(late);
        assert!(other.is_due(second));
        assert!(!Courtesy::on(u64::MAX - 1).is_due(second));
        assert!(!one.is_due_for_reads(second));
        other.note_store();
        assert!(one.is_due_for_reads(second) && !one.is_due_for_reads(second * 3));
    }
}
