//! Slowing writes gradually before the journal is full, so that full shows as a lower rate.
//!
//! A leaky bucket that all writes share: from the high-water mark on, its rate goes from a multiple
//! of the rate at which the journal drains down to a part of it. [`allowed_rate`] is pure.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use crate::env::Env;

/// Share of the room in use from which on writes are slowed.
const HIGH_WATER: f64 = 0.7;
/// Multiples of the drain rate allowed at the high-water mark and when full. In between the curve
/// is a parabola, which passes 1 well before the end.
const FACTOR_AT_HIGH_WATER: f64 = 8.0;
const FACTOR_AT_FULL: f64 = 0.25;
/// Never slower than this (bytes a second), so that a store that is away does not stop writes before the
/// journal is really full.
const RATE_MIN: f64 = 4.0 * (1 << 20) as f64;
/// The drain rate is the mean over this time.
const RATE_WINDOW: Duration = Duration::from_secs(4);
/// A single write is never held back longer than this by pacing.
const DELAY_MAX: Duration = Duration::from_millis(250);

/// Bytes a second that may be acknowledged; `None` without limit.
///
/// `fill` is the share of the room in use (0 to 1), `drain_rate` in bytes a second.
pub fn allowed_rate(fill: f64, drain_rate: f64) -> Option<f64> {
    if fill < HIGH_WATER {
        return None;
    }
    let left = ((1.0 - fill) / (1.0 - HIGH_WATER)).clamp(0.0, 1.0);
    let factor = FACTOR_AT_FULL + (FACTOR_AT_HIGH_WATER - FACTOR_AT_FULL) * left * left;
    Some((drain_rate * factor).max(RATE_MIN))
}

/// The shared bucket.
pub struct Pacer {
    env: Env,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the next write may go.
    next: Duration,
    /// Recent commits: time and bytes.
    commits: VecDeque<(Duration, u64)>,
}

impl Pacer {
    pub fn new(env: Env) -> Pacer {
        Pacer { env, state: Mutex::new(State::default()) }
    }

    /// So many journal bytes were committed.
    pub fn note_commit(&self, bytes: u64) {
        let now = self.env.now();
        let mut state = self.state.lock().expect("no panic under this lock");
        state.commits.push_back((now, bytes));
        while state.commits.front().is_some_and(|(t, _)| now.saturating_sub(*t) > RATE_WINDOW) {
            state.commits.pop_front();
        }
    }

    /// Waits until `bytes` may be acknowledged at the present fill.
    pub async fn admit(&self, bytes: u64, fill: f64) {
        if fill < HIGH_WATER {
            return;
        }
        let delay = {
            let now = self.env.now();
            let mut state = self.state.lock().expect("no panic under this lock");
            let recent = state.commits.iter().filter(|(t, _)| now.saturating_sub(*t) <= RATE_WINDOW);
            let drained: u64 = recent.map(|(_, bytes)| bytes).sum();
            let drain_rate = drained as f64 / RATE_WINDOW.as_secs_f64();
            let Some(rate) = allowed_rate(fill, drain_rate) else { return };
            let start = state.next.max(now).min(now + DELAY_MAX);
            state.next = start + Duration::from_secs_f64(bytes as f64 / rate);
            start - now
        };
        if !delay.is_zero() {
            self.env.sleep(delay).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No limit below the mark; from there the rate only falls, passes the drain rate before the
    /// journal is full, and never reaches zero.
    #[test]
    fn the_rate_falls_gradually_and_never_to_zero() {
        let drain = 100e6;
        assert_eq!(allowed_rate(HIGH_WATER - 0.01, drain), None);
        let rates: Vec<f64> = (0..=30)
            .map(|i| allowed_rate(HIGH_WATER + f64::from(i) * 0.01, drain).expect("limited"))
            .collect();
        assert!(rates.windows(2).all(|w| w[1] <= w[0]));
        assert!(rates[0] >= 7.0 * drain && rates[22] < drain && rates[30] > 0.0);
        assert_eq!(allowed_rate(1.0, 0.0), Some(RATE_MIN));
    }
}
