//! How fast writes may be acknowledged as the room for dirty data fills. Pure.
//!
//! Below the high-water mark there is no limit. From there the rate is the rate at which dirty data
//! drains, times a factor that falls smoothly with the fill and passes 1 well before the end: a
//! steady load settles there, at the speed of the upload. Commits come in lumps of several
//! segments; the fill is taken as if they came evenly, so that the rate does not jump with them.

use std::time::Duration;

use crate::volume::pacing::recent::Recent;

/// Share of the room in use from which on writes are slowed.
pub const HIGH_WATER: f64 = 0.5;
/// Share of the room above the mark at which writes go exactly as fast as data drains: what is left
/// absorbs the lumps, and a link that suddenly is slower.
const BALANCE: f64 = 0.45;
/// Multiples of the drain rate at the high-water mark. The factor falls exponentially from there:
/// 1 at the balance, a twelfth at the end.
const FACTOR_AT_HIGH_WATER: f64 = 8.0;
/// What is left of the room may always be used up in this time, whatever drains: a store that is
/// away slows writes down, and never stops them before the end.
const LEFT_S: f64 = 30.0;
/// Bytes a second that are always allowed: the end of the room decides, not this curve.
const LEAST_BYTES_PER_S: f64 = 64.0 * 1024.0;
/// Unused rate that is kept: longer than a timer is late.
const BURST_S: f64 = 0.02;
/// A decision to wait is looked at again after this time: the rate may have changed.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// The drain rate is measured over this time, and over at least so many commits.
const DRAIN_SPAN: Duration = Duration::from_secs(4);
const DRAIN_COMMITS_MIN: usize = 12;
/// Commits over which their lumps are evened out. Without one for as long as so many take, data is
/// draining more slowly than it did.
const SMOOTH_COMMITS: u32 = 6;
const SMOOTH_MIN: Duration = Duration::from_millis(100);
const SMOOTH_MAX: Duration = Duration::from_secs(120);
/// Share of the room by which the even view of commits may differ from the real one.
const AHEAD_SHARE_MAX: f64 = 0.15;
/// The rate of writing is measured over this time, for people.
const WRITTEN_SPAN: Duration = Duration::from_secs(10);
const WRITTEN_RESOLUTION: Duration = Duration::from_millis(250);
/// Without a commit for so long nothing drains, for people.
const STANDSTILL: Duration = Duration::from_secs(15);
const _: () = assert!(0.0 < HIGH_WATER && HIGH_WATER < 1.0 && 0.0 < BALANCE && BALANCE < 1.0);
const _: () = assert!(LEAST_BYTES_PER_S > 0.0, "who waits has a time for which to");

/// Bytes a second that may be acknowledged; `None` without limit. `fill` is the share of the room
/// in use, `left_bytes` what is left of it.
pub fn allowed_rate(fill: f64, left_bytes: f64, drain_bytes_per_s: f64) -> Option<f64> {
    if fill < HIGH_WATER {
        return None;
    }
    let above = ((fill - HIGH_WATER) / (1.0 - HIGH_WATER)).clamp(0.0, 1.0);
    let factor = FACTOR_AT_HIGH_WATER.powf(1.0 - above / BALANCE);
    Some((drain_bytes_per_s * factor).max(left_bytes / LEFT_S).max(LEAST_BYTES_PER_S))
}

/// The state of the throttle.
#[derive(Debug)]
pub struct Throttle {
    room_bytes: u64,
    /// As it was last seen: the account is the journal's.
    dirty_bytes: u64,
    drained: Recent,
    /// The drain rate, smoothed.
    drain_bytes_per_s: f64,
    /// By how much more would have been committed if commits came evenly.
    ahead_bytes: f64,
    written: Recent,
    /// What may pass now; below zero after a write larger than that.
    credit_bytes: f64,
    at: Duration,
}

impl Throttle {
    pub fn new(now: Duration, room_bytes: u64, dirty_bytes: u64) -> Throttle {
        Throttle {
            room_bytes,
            dirty_bytes,
            drained: Recent::new(now, DRAIN_SPAN, Duration::ZERO, DRAIN_COMMITS_MIN),
            drain_bytes_per_s: 0.0,
            ahead_bytes: 0.0,
            written: Recent::new(now, WRITTEN_SPAN, WRITTEN_RESOLUTION, 2),
            credit_bytes: 0.0,
            at: now,
        }
    }

    pub fn set_room(&mut self, room_bytes: u64) {
        self.room_bytes = room_bytes;
    }

    /// So many bytes are dirty now.
    pub fn see(&mut self, dirty_bytes: u64) {
        self.dirty_bytes = dirty_bytes;
    }

    pub fn note_write(&mut self, now: Duration, bytes: u64) {
        if self.dirty_bytes == 0 {
            // Time without anything to drain says nothing about how fast it drains.
            self.drained.restart(now);
            self.ahead_bytes = 0.0;
        }
        self.written.note(now, bytes);
    }

    pub fn note_commit(&mut self, now: Duration, bytes: u64) {
        self.advance(now);
        self.ahead_bytes -= bytes as f64;
        self.drained.note(now, bytes);
    }

    /// Time until something may pass; zero: now.
    pub fn wait(&mut self, now: Duration) -> Duration {
        self.advance(now);
        match self.rate() {
            Some(rate) if self.credit_bytes < 0.0 => {
                Duration::from_secs_f64(-self.credit_bytes / rate).min(WAIT_MAX)
            }
            _ => Duration::ZERO,
        }
    }

    /// So many bytes passed, or (below zero) were fewer than had been thought.
    pub fn spend(&mut self, bytes: i64) {
        self.credit_bytes -= bytes as f64;
    }

    /// The rate that is allowed now; `None` without limit.
    pub fn rate(&self) -> Option<f64> {
        allowed_rate(self.fill(), self.left_bytes(), self.drain_bytes_per_s)
    }

    fn fill(&self) -> f64 {
        (self.dirty_bytes as f64 - self.ahead_bytes) / self.room_bytes.max(1) as f64
    }

    fn left_bytes(&self) -> f64 {
        (self.room_bytes as f64 - self.dirty_bytes as f64).max(0.0)
    }

    pub fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    pub fn written_bytes_per_s(&self, now: Duration) -> f64 {
        self.written.bytes_per_s(now)
    }

    pub fn drained_bytes_per_s(&self, now: Duration) -> f64 {
        match now.saturating_sub(self.drained.last()) > STANDSTILL.max(self.drained.interval(now) * 2) {
            true => 0.0,
            false => self.drained.bytes_per_s(now),
        }
    }

    /// Seconds until the room is full at the present rates; `None` when it does not fill.
    pub fn full_in_s(&self, now: Duration) -> Option<f64> {
        let growth = self.written_bytes_per_s(now) - self.drained_bytes_per_s(now);
        (growth >= 1.0).then(|| self.left_bytes() / growth)
    }

    fn advance(&mut self, now: Duration) {
        let step_s = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        let smooth = (self.drained.interval(now) * SMOOTH_COMMITS).clamp(SMOOTH_MIN, SMOOTH_MAX);
        let share = 1.0 - (-step_s / smooth.as_secs_f64()).exp();
        let silence = now.saturating_sub(self.drained.last()).as_secs_f64() / smooth.as_secs_f64();
        let measured = self.drained.bytes_per_s(now) / silence.max(1.0);
        self.drain_bytes_per_s += (measured - self.drain_bytes_per_s) * share;
        let most = self.room_bytes as f64 * AHEAD_SHARE_MAX;
        let ahead = self.ahead_bytes + self.drain_bytes_per_s * step_s;
        self.ahead_bytes = (ahead - ahead * share).clamp(-most, most);
        debug_assert!(
            self.drain_bytes_per_s >= 0.0 && self.ahead_bytes.is_finite(),
            "rates are numbers: {self:?}"
        );
        self.credit_bytes = match self.rate() {
            None => self.drain_bytes_per_s * BURST_S,
            Some(rate) => (self.credit_bytes + rate * step_s).min(rate * BURST_S),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No limit below the mark; from there the rate only falls, passes the drain rate at the
    /// balance, and never reaches zero.
    #[test]
    fn the_rate_falls_gradually_and_never_to_zero() {
        let drain = 100e6;
        assert_eq!(allowed_rate(HIGH_WATER - 0.01, 1e9, drain), None);
        let rates: Vec<f64> = (0..=50)
            .map(|i| allowed_rate(HIGH_WATER + f64::from(i) * 0.01, 0.0, drain).expect("limited"))
            .collect();
        assert!(rates.windows(2).all(|w| w[1] < w[0]));
        assert!((rates[0] - 8.0 * drain).abs() < 1.0);
        assert!(rates[22] > drain && rates[23] < drain && rates[50] > drain / 13.0);
        assert_eq!(allowed_rate(1.0, 0.0, 0.0), Some(LEAST_BYTES_PER_S));
    }

    /// A store that is away slows writes down with what is left, and stops none before the end.
    #[test]
    fn a_store_away_leaves_a_rate() {
        let left = 300e6;
        assert_eq!(allowed_rate(0.6, left, 0.0), Some(left / LEFT_S));
    }
}
