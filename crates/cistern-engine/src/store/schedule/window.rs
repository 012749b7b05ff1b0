//! How many requests a store bears at once in one direction: pure.
//!
//! An error halves the limit, at most once per round trip: of the requests that were under way
//! when it was halved, none halves it again. Beyond that a limit is tried and not inferred: no
//! latency, however long or uneven, lowers it. Where the limit holds somebody up, a higher one is
//! tried, and kept where more gets done. Where none more is, a lower one is tried, and kept where
//! nothing less is: then what was above it only waited for each other. What is doubtful stays.

use std::time::Duration;

use super::round::Round;

/// Bounds of a window.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Before anything is known.
    pub start: u32,
    pub max: u32,
    /// Where only errors lower the limit: enough to fill a link.
    pub calm: u32,
}

/// Bodies of up to 16 MiB: two of them fill any link, one transfers while the other waits for
/// its answer.
pub(super) const UPLOADS: Bounds = Bounds { start: 4, max: 32, calm: 2 };
/// Answers of 4 KiB to 4 MiB.
pub(super) const DOWNLOADS: Bounds = Bounds { start: 32, max: 128, calm: 8 };
/// A limit is judged when it has grown by this factor.
const GROWTH_JUDGED: f64 = 1.2;
/// Growth pays if this part of it shows in what gets done: of a quarter more requests, a tenth.
const GROWTH_PAYS: f64 = 0.43;
/// A lower limit is kept while what gets done is within so much of the best that was seen above it.
const LOSS_MAX: f64 = 0.03;
/// A step more or fewer requests do not change by more than so much what the store does; when
/// it changed by more, something else happened meanwhile, and the attempt says nothing.
const PLAUSIBLE: f64 = 0.25;
/// With answers faster than this, a read has little to wait for, and no lower limit is tried. This
/// is also what a busy processor or disk does to anybody.
const WAIT_FREE: Duration = Duration::from_millis(20);
/// After a limit has proved right, no other is tried for so long.
const REST: Duration = Duration::from_secs(15);
/// The limit when a store that was away answers again; from there it doubles with every lap, up
/// to half of what it was.
const RESTART: u32 = 2;

/// What the round under way is compared with.
#[derive(Debug)]
enum Comparison {
    /// With nothing yet.
    None,
    /// It is higher than that one.
    Higher { from: Round },
    /// It is lower. `best` did most of those above, and `from` is the lowest limit known to do as
    /// much.
    Lower { from: u32, best: Round },
}

/// The limit of one direction.
#[derive(Debug)]
pub(super) struct Window {
    bounds: &'static Bounds,
    limit: u32,
    round: Round,
    attempt: Comparison,
    /// No attempt begins before.
    rests_until: Duration,
    /// A higher limit is twice as high: until the first one that does not pay, or an error.
    doubling: bool,
    /// Up to here the limit doubles unjudged: it was borne before.
    climbs_to: u32,
    /// The limit at the last error: near it, higher is one more.
    erred_at: Option<u32>,
    /// The limit when the store answered last.
    good_limit: u32,
    /// Requests that began before do not lower the limit again.
    lowered_at: Duration,
}

impl Window {
    pub(super) fn new(bounds: &'static Bounds) -> Window {
        Window {
            bounds,
            limit: bounds.start,
            round: Round::after(0, bounds.start),
            attempt: Comparison::None,
            rests_until: Duration::ZERO,
            doubling: true,
            climbs_to: 0,
            erred_at: None,
            good_limit: bounds.start,
            lowered_at: Duration::ZERO,
        }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The limit is used up.
    pub(super) fn used_up(&mut self) {
        self.round.used_up();
    }

    /// A request that began then was answered now; `bytes` where its latency says something.
    pub(super) fn answered(&mut self, began: Duration, now: Duration, bytes: Option<u64>) {
        self.good_limit = self.limit;
        let Some(bytes) = bytes else { return };
        let latency = now.saturating_sub(began);
        if self.round.is_over(began) {
            self.give_up();
        }
        self.round.note(now, latency, bytes);
        if self.limit < self.climbs_to && self.round.is_lap() {
            self.climb();
        } else if self.limit >= self.climbs_to && self.round.is_known() {
            self.end_round(now);
        }
    }

    /// A request that began then failed now in a way that may be too much load.
    pub(super) fn failed(&mut self, began: Duration, now: Duration) {
        if began < self.lowered_at {
            return;
        }
        self.erred_at = Some(self.limit);
        self.climbs_to = 0;
        self.lower_to(now, (self.limit / 2).max(1));
    }

    /// The store answers again after it was away.
    pub(super) fn restart(&mut self, now: Duration) {
        self.climbs_to = (self.good_limit / 2).max(RESTART);
        self.erred_at = Some(self.climbs_to);
        self.lower_to(now, RESTART);
        self.round = Round::after(0, RESTART); // nothing is under way
    }

    fn lower_to(&mut self, now: Duration, limit: u32) {
        self.doubling = false;
        self.lowered_at = now;
        self.attempt = Comparison::None;
        self.rests_until = now;
        self.set(limit);
    }

    fn climb(&mut self) {
        let limit = if self.round.was_used_up() { (self.limit * 2).min(self.climbs_to) } else { self.limit };
        self.set(limit);
    }

    /// Another limit, or the same one again: what was seen so far is over.
    fn set(&mut self, limit: u32) -> Round {
        let round = Round::after(self.limit, limit);
        self.limit = limit;
        std::mem::replace(&mut self.round, round)
    }

    /// Ends an attempt for which there is no demand.
    fn give_up(&mut self) {
        let limit = match std::mem::replace(&mut self.attempt, Comparison::None) {
            Comparison::Lower { from, .. } => from,
            Comparison::None | Comparison::Higher { .. } => self.limit,
        };
        self.set(limit);
    }

    fn end_round(&mut self, now: Duration) {
        if !self.round.was_used_up() {
            return self.give_up();
        }
        if self.erred_at.is_some_and(|at| self.limit > at + at / 4) {
            self.erred_at = None;
        }
        let round = self.set(self.limit);
        match std::mem::replace(&mut self.attempt, Comparison::None) {
            Comparison::None if now < self.rests_until => {}
            Comparison::None if self.limit < self.bounds.max => self.go_higher(now, round),
            Comparison::None => self.try_lower(now, round.limit, round),
            Comparison::Higher { from } => self.judge_higher(now, from, round),
            Comparison::Lower { from, best } => self.judge_lower(now, from, best, round),
        }
    }

    fn go_higher(&mut self, now: Duration, from: Round) {
        if self.limit == self.bounds.max {
            return self.rest(now, self.limit);
        }
        self.set(self.higher());
        self.attempt = Comparison::Higher { from };
    }

    fn judge_higher(&mut self, now: Duration, from: Round, round: Round) {
        let growth = f64::from(round.limit) / f64::from(from.limit);
        if growth < GROWTH_JUDGED {
            return self.go_higher(now, from);
        }
        // Of sizes that have nothing in common nothing can be said, so nothing speaks against it.
        let gain = round.gain_on(&from).unwrap_or(f64::INFINITY);
        if gain < GROWTH_PAYS * growth.ln() {
            self.doubling = false;
            let limit = from.limit;
            if gain < -PLAUSIBLE {
                self.set(limit);
                return;
            }
            return self.try_lower(now, limit, if gain > 0.0 { round } else { from });
        }
        self.go_higher(now, round);
    }

    /// `best` did the most so far, at `from` or a little above it.
    fn try_lower(&mut self, now: Duration, from: u32, best: Round) {
        let lower = (from * 4 / 5).max(self.bounds.calm);
        if lower >= from || best.latency() < WAIT_FREE {
            return self.rest(now, from);
        }
        self.set(lower);
        self.attempt = Comparison::Lower { from, best };
    }

    fn judge_lower(&mut self, now: Duration, from: u32, best: Round, round: Round) {
        let gain = round.gain_on(&best).unwrap_or(f64::NEG_INFINITY);
        if (-LOSS_MAX..PLAUSIBLE).contains(&gain) {
            let best = if gain > 0.0 { round } else { best };
            return self.try_lower(now, self.limit, best);
        }
        self.rest(now, from);
    }

    /// This limit has proved right.
    fn rest(&mut self, now: Duration, limit: u32) {
        self.rests_until = now + REST;
        self.set(limit);
    }

    fn higher(&self) -> u32 {
        let quarter = self.limit / 4;
        let erred_near = self.erred_at.is_some_and(|at| self.limit + quarter >= at);
        let more = match (self.doubling, erred_near) {
            (true, _) => self.limit,
            (false, true) => 1,
            (false, false) => quarter.max(1),
        };
        (self.limit + more).min(self.bounds.max)
    }
}
