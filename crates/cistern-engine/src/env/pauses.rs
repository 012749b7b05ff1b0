//! Growing pauses between attempts.

use std::time::Duration;

use super::Env;

/// Each pause is twice as long as the one before, up to a bound.
#[derive(Clone, Debug)]
pub struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    pub const fn new(first: Duration, longest: Duration) -> Pauses {
        assert!(!first.is_zero() && first.as_nanos() <= longest.as_nanos(), "pauses rest, and grow");
        Pauses { first, longest, next: first }
    }

    /// Nothing failed since the last success.
    pub fn is_first(&self) -> bool {
        self.next == self.first
    }

    /// An attempt succeeded: the next pause is short again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// The pause after a failure.
    pub fn after_failure(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// Waits after a failure.
    pub async fn rest(&mut self, env: &Env) {
        env.sleep(self.after_failure()).await;
    }
}
