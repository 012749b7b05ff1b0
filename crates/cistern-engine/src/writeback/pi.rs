//! How fast to write back: a PI controller on dirty bytes. Pure.
//!
//! Below the target the rate is the least one; above it grows with the distance (proportional) and
//! with how long it has lasted (integral), so that a steady load settles at the target. From
//! [`Goal::unlimited_bytes`] on there is no limit. The integral term only grows while write-back
//! follows the rate: time spent behind a slow or dead store is not remembered (no wind-up).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Seconds in which the proportional term alone would write back what is above the target.
const PROPORTIONAL_S: f64 = 8.0;
/// Seconds of a constant distance after which the integral term equals the proportional one. Nine
/// times as long makes the damping of the closed loop 1.5: it settles without ringing.
const INTEGRAL_S: f64 = 9.0 * PROPORTIONAL_S;
/// Time between two updates.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Time that one update accounts for at most: what passed unobserved is not made up for.
const STEP_MAX: Duration = Duration::from_secs(5);
/// The target is this part of the room for dirty data: enough to absorb a burst and to keep the
/// link busy, little enough to be uploaded within a minute of a usual link.
const TARGET_PART: u64 = 8;
/// From this share of the room on write-back is not limited. Below where writes are slowed, so
/// that no write waits for an upload that was held back.
const UNLIMITED_SHARE: (u64, u64) = (3, 8);
/// The shortest age the least rate is derived from.
const AGE_MIN: Duration = Duration::from_secs(1);

const _: () = assert!(UNLIMITED_SHARE.0 * TARGET_PART > UNLIMITED_SHARE.1, "at the target there is a limit");
const _: () = assert!(INTERVAL.as_millis() <= STEP_MAX.as_millis(), "an update accounts for an interval");

/// What the controller aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    pub target_bytes: u64,
    /// Dirty bytes from which on there is no limit.
    pub unlimited_bytes: u64,
    /// The least rate: it uploads the target within the greatest age.
    pub least_bytes_per_s: f64,
}

impl Goal {
    /// The goal for so much room for dirty data, which must not become older than `age_max`.
    pub fn new(room_bytes: u64, age_max: Duration) -> Goal {
        let target_bytes = room_bytes / TARGET_PART;
        Goal {
            target_bytes,
            unlimited_bytes: room_bytes / UNLIMITED_SHARE.1 * UNLIMITED_SHARE.0,
            least_bytes_per_s: target_bytes as f64 / age_max.max(AGE_MIN).as_secs_f64(),
        }
    }
}

/// What the controller decided, and from what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Journal bytes a second that may be sealed.
    pub rate_bytes_per_s: f64,
    /// The rate does not count: so much is dirty that write-back goes as fast as it can.
    pub unlimited: bool,
    pub dirty_bytes: u64,
    pub target_bytes: u64,
    pub proportional_bytes_per_s: f64,
    pub integral_bytes_per_s: f64,
    /// By how much the last update changed the rate.
    pub change_bytes_per_s: f64,
}

/// The controller.
#[derive(Debug)]
pub struct Controller {
    rate: Rate,
    updated: Duration,
}

impl Controller {
    pub fn new(goal: &Goal, now: Duration) -> Controller {
        let rate = Rate {
            rate_bytes_per_s: goal.least_bytes_per_s,
            target_bytes: goal.target_bytes,
            ..Rate::default()
        };
        Controller { rate, updated: now }
    }

    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    /// When the rate was last updated.
    pub fn updated(&self) -> Duration {
        self.updated
    }

    /// Time until the next update.
    pub fn next(&self, now: Duration) -> Duration {
        (self.updated + INTERVAL).saturating_sub(now)
    }

    /// Updates the rate if it is time. `follows`: write-back keeps up with the present rate.
    pub fn update(&mut self, goal: &Goal, now: Duration, dirty_bytes: u64, follows: bool) {
        if !self.next(now).is_zero() {
            return;
        }
        let step_s = (now - self.updated).min(STEP_MAX).as_secs_f64();
        self.updated = now;
        let error_bytes = dirty_bytes as f64 - goal.target_bytes as f64;
        let proportional = error_bytes / PROPORTIONAL_S;
        let mut integral = self.rate.integral_bytes_per_s;
        if error_bytes < 0.0 || follows {
            integral = (integral + proportional * step_s / INTEGRAL_S).max(0.0);
        }
        let rate = (proportional + integral).max(goal.least_bytes_per_s);
        debug_assert!(rate.is_finite() && integral.is_finite(), "a rate is a number: {rate}, {integral}");
        self.rate = Rate {
            rate_bytes_per_s: rate,
            unlimited: dirty_bytes >= goal.unlimited_bytes,
            dirty_bytes,
            target_bytes: goal.target_bytes,
            proportional_bytes_per_s: proportional,
            integral_bytes_per_s: integral,
            change_bytes_per_s: rate - self.rate.rate_bytes_per_s,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn goal() -> Goal {
        Goal::new(800 * MIB, Duration::from_secs(25))
    }

    /// Below the target the rate is the least one, whatever came before; far above there is none.
    #[test]
    fn least_below_and_unlimited_far_above() {
        let goal = goal();
        let mut pi = Controller::new(&goal, Duration::ZERO);
        pi.update(&goal, INTERVAL, 10 * MIB, true);
        assert_eq!(pi.rate().rate_bytes_per_s, (4 * MIB) as f64);
        assert!(!pi.rate().unlimited);
        pi.update(&goal, INTERVAL * 2, 300 * MIB, true);
        assert!(pi.rate().unlimited);
    }

    /// An hour behind a dead store leaves nothing in the integral term.
    #[test]
    fn saturation_does_not_wind_up() {
        let goal = goal();
        let mut pi = Controller::new(&goal, Duration::ZERO);
        for second in 1..3600 {
            pi.update(&goal, Duration::from_secs(second), 700 * MIB, false);
        }
        assert_eq!(pi.rate().integral_bytes_per_s, 0.0);
    }

    /// Updates come once an interval, however often somebody asks.
    #[test]
    fn updates_keep_their_interval() {
        let goal = goal();
        let mut pi = Controller::new(&goal, Duration::ZERO);
        pi.update(&goal, INTERVAL, 200 * MIB, true);
        let once = *pi.rate();
        pi.update(&goal, INTERVAL + INTERVAL / 2, 200 * MIB, true);
        assert_eq!(*pi.rate(), once);
        assert_eq!(pi.next(INTERVAL + INTERVAL / 4), INTERVAL * 3 / 4);
    }
}
