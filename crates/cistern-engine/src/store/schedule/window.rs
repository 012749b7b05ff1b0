//! How many requests a store bears at once in one direction: additive increase, multiplicative
//! decrease, pure.
//!
//! An error halves the limit, at most once per round trip: of the requests that were under way
//! when it was halved, none halves it again. Latency is judged against its floor for requests of
//! the same size, over a whole round: where most answers of a round are far above the floor, the
//! limit falls by a fifth, but never below what fills a link; where nearly all are near it and the
//! limit was used up, the limit grows. Growth has to pay: where a quarter more requests do not get
//! a tenth more done, the link is full, and the limit goes back.

use std::time::Duration;

/// Bounds of a window.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Before anything is known.
    pub start: u32,
    pub max: u32,
    /// Where latency alone stops lowering the limit: enough to fill a link, since bodies that
    /// share it are slower each and not less together.
    pub calm: u32,
}

/// Bodies of up to 16 MiB: two of them fill any link, one transfers while the other waits for
/// its answer.
pub(super) const UPLOADS: Bounds = Bounds { start: 4, max: 32, calm: 2 };
/// Answers of 4 KiB to 4 MiB.
pub(super) const DOWNLOADS: Bounds = Bounds { start: 32, max: 128, calm: 8 };
/// A limit that has grown by this factor must get at least so much more done, or it goes back.
const GROWTH: (f64, f64) = (1.25, 1.1);
/// After growth that did not pay, none is tried for so long.
const GROWTH_PAUSE: Duration = Duration::from_secs(30);
/// What a request counts for besides its bytes when it is judged whether growth pays.
const REQUEST_BYTES: u64 = 16 << 10;
/// The limit when a store that was away answers again; from there it doubles with every good
/// round, up to half of what it was.
const RESTART: u32 = 2;
/// Answers of a round at least.
const ROUND_MIN: u32 = 4;

/// A latency up to so many floors and so much on top is near the floor.
const NEAR: (u32, Duration) = (2, Duration::from_millis(5));
/// A latency of more is inflated. The part on top is what a busy host or disk does to anybody.
const INFLATED: (u32, Duration) = (3, Duration::from_millis(20));
/// A floor is the least latency of this and the previous period.
const FLOOR_PERIOD: Duration = Duration::from_secs(300);
/// A floor rises by half per period at most: a limit that is always used up never shows the true
/// one.
const FLOOR_RISE: (u32, u32) = (3, 2);
/// Smaller bodies say more about the round trip than about the link.
const FASTEST_BYTES_MIN: u64 = 64 << 10;
/// Size classes: up to 4 KiB, then twice as much each, the last one from 64 MiB on.
const SIZES: usize = 16;
const SIZE_FIRST_BITS: u32 = 12;

/// The least latency of one size class.
#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    now: Option<Duration>,
    before: Option<Duration>,
    period: u64,
}

impl Floor {
    fn note(&mut self, now: Duration, latency: Duration) -> Duration {
        let period = now.as_secs() / FLOOR_PERIOD.as_secs();
        if period != self.period {
            (self.before, self.now, self.period) = (self.get(), None, period);
        }
        let rise = |floor: Duration| floor * FLOOR_RISE.0 / FLOOR_RISE.1;
        let latency = self.before.map_or(latency, |before| latency.min(rise(before)));
        self.now = Some(self.now.map_or(latency, |least| least.min(latency)));
        self.get().expect("noted just now")
    }

    fn get(&self) -> Option<Duration> {
        match (self.now, self.before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }
}

/// The greatest value of this and the previous period.
#[derive(Debug, Default)]
struct Peak {
    now: Option<u64>,
    before: Option<u64>,
    period: u64,
}

impl Peak {
    fn note(&mut self, now: Duration, value: u64) {
        let period = now.as_secs() / FLOOR_PERIOD.as_secs();
        if period != self.period {
            (self.before, self.now, self.period) = (self.now, None, period);
        }
        self.now = self.now.max(Some(value));
    }

    fn get(&self) -> Option<u64> {
        self.now.max(self.before)
    }
}

/// What the answers of one round showed; only of requests that began in it.
#[derive(Debug, Default)]
struct Round {
    began: Duration,
    answers: u32,
    near: u32,
    inflated: u32,
    /// The limit held somebody up.
    full: bool,
    /// What was done.
    bytes: u64,
}

/// The limit of one direction.
#[derive(Debug)]
pub(super) struct Window {
    bounds: &'static Bounds,
    limit: u32,
    /// Up to here the limit doubles instead of growing by one.
    doubling_to: u32,
    /// The limit when the store answered last.
    good_limit: u32,
    /// Where the limit began to grow, and what was done per second then.
    grown_from: Option<(u32, f64)>,
    grows_from: Duration,
    /// Requests that began before do not lower the limit again.
    lowered_at: Duration,
    round: Round,
    floors: [Floor; SIZES],
    fastest: Peak,
}

impl Window {
    pub(super) fn new(bounds: &'static Bounds) -> Window {
        Window {
            bounds,
            limit: bounds.start,
            good_limit: bounds.start,
            grown_from: None,
            grows_from: Duration::ZERO,
            doubling_to: bounds.max,
            lowered_at: Duration::ZERO,
            round: Round::default(),
            floors: Default::default(),
            fastest: Peak::default(),
        }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The limit is used up.
    pub(super) fn used_up(&mut self) {
        self.round.full = true;
    }

    /// The most bytes per second that one request has had lately.
    pub(super) fn fastest(&self) -> Option<u64> {
        self.fastest.get()
    }

    /// A request that began then was answered now; `bytes` where its latency says something.
    pub(super) fn answered(&mut self, began: Duration, now: Duration, bytes: Option<u64>) {
        self.good_limit = self.limit;
        let Some(bytes) = bytes else { return };
        let latency = now.saturating_sub(began);
        let floor = self.floors[size_class(bytes)].note(now, latency);
        if bytes >= FASTEST_BYTES_MIN {
            self.fastest.note(now, bytes * 1_000_000 / (latency.as_micros() as u64).max(1));
        }
        if began < self.round.began {
            return; // it says what the limit before did
        }
        let above = |(times, more): (u32, Duration)| latency > floor * times + more;
        self.round.answers += 1;
        self.round.bytes += bytes + REQUEST_BYTES;
        self.round.near += u32::from(!above(NEAR));
        self.round.inflated += u32::from(above(INFLATED));
        if self.round.answers >= self.limit.max(ROUND_MIN) {
            self.end_round(now);
        }
    }

    /// A request that began then failed now in a way that may be too much load.
    pub(super) fn failed(&mut self, began: Duration, now: Duration) {
        if began >= self.lowered_at {
            self.lower(now, (self.limit / 2).max(1));
        }
    }

    /// The store answers again after it was away.
    pub(super) fn restart(&mut self, now: Duration) {
        self.doubling_to = self.good_limit / 2;
        self.limit = RESTART;
        self.lowered_at = now;
        self.grown_from = None;
        self.round = Round { began: now, ..Round::default() };
    }

    fn lower(&mut self, now: Duration, limit: u32) {
        self.limit = limit;
        self.doubling_to = 0;
        self.lowered_at = now;
        self.grown_from = None;
        self.round = Round { began: now, ..Round::default() };
    }

    fn end_round(&mut self, now: Duration) {
        let Round { began, answers, near, inflated, full, bytes } = self.round;
        if inflated * 2 > answers {
            let calm = self.bounds.calm.min(self.limit);
            return self.lower(now, (self.limit * 4 / 5).max(calm));
        }
        if full && near * 4 >= answers * 3 {
            let per_s = bytes as f64 / now.saturating_sub(began).as_secs_f64().max(1e-6);
            self.grow(now, per_s);
        }
        self.round = Round { began: now, ..Round::default() };
    }

    /// Takes the next step up, or back where the last ones did not pay. `per_s` is what was done
    /// in the round that ends.
    fn grow(&mut self, now: Duration, per_s: f64) {
        if now < self.grows_from {
            return;
        }
        let (from, per_s_then) = *self.grown_from.get_or_insert((self.limit, per_s));
        if f64::from(self.limit) >= f64::from(from) * GROWTH.0 {
            self.grown_from = None;
            if per_s < per_s_then * GROWTH.1 {
                self.limit = from;
                self.doubling_to = 0;
                self.grows_from = now + GROWTH_PAUSE;
                return;
            }
            self.grown_from = Some((self.limit, per_s));
        }
        let more = if self.limit < self.doubling_to { self.limit } else { 1 };
        self.limit = (self.limit + more).min(self.bounds.max);
    }
}

fn size_class(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(SIZE_FIRST_BITS) as usize).min(SIZES - 1)
}
