//! Whether a store answers at all, and how a store that does not is asked: pure.
//!
//! After [`FAILURES_MAX`] failures in a row a store counts as away. Then one request at a time
//! finds out whether it is back, with growing pauses, and everything else waits: nobody needs a
//! hundred requests to learn that nobody answers. Any answer, an error of its own included, ends
//! it.

use std::time::Duration;

/// Failures in a row, without any answer between them, that mean "away".
pub(super) const FAILURES_MAX: u32 = 4;
/// The pause after the first failed probe; twice as long after each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause: a store that comes back is noticed within this time.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A probe without an answer for so long may hang: another one may start beside it.
const PROBE_HANGS: Duration = Duration::from_secs(5);

/// What is known about a store's presence.
#[derive(Debug, Default)]
pub(super) struct Reachability {
    failures: u32,
    away: Option<Away>,
}

#[derive(Debug)]
struct Away {
    since: Duration,
    pause: Duration,
    next_probe: Duration,
    /// What the last failure said.
    why: String,
}

impl Reachability {
    /// Since when the store has been away, and the last failure.
    pub(super) fn away(&self) -> Option<(Duration, &str)> {
        self.away.as_ref().map(|away| (away.since, away.why.as_str()))
    }

    /// How long until the next request may start; zero when it may.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        self.away.as_ref().map_or(Duration::ZERO, |away| away.next_probe.saturating_sub(now))
    }

    /// A request starts.
    pub(super) fn started(&mut self, now: Duration) {
        if let Some(away) = &mut self.away {
            away.next_probe = now + PROBE_HANGS;
        }
    }

    /// The store said something. For how long it had been away, if it had.
    pub(super) fn answered(&mut self, now: Duration) -> Option<Duration> {
        self.failures = 0;
        self.away.take().map(|away| now.saturating_sub(away.since))
    }

    /// A request that began then found nobody. `jitter` in 0..=1000 spreads the hosts that lost
    /// the same store. True when the store is away from now on.
    pub(super) fn failed(&mut self, began: Duration, now: Duration, why: &str, jitter: u32) -> bool {
        self.failures = self.failures.saturating_add(1);
        let spread = |pause: Duration| pause / 2 + pause / 2 * jitter.min(1000) / 1000;
        match &mut self.away {
            // It was under way when the others failed, and says nothing new.
            Some(away) if began < away.since => false,
            Some(away) => {
                away.pause = (away.pause * 2).min(PAUSE_MAX);
                away.next_probe = now + spread(away.pause);
                away.why = why.to_owned();
                false
            }
            None if self.failures >= FAILURES_MAX => {
                let next_probe = now + spread(PAUSE_FIRST);
                let why = why.to_owned();
                self.away = Some(Away { since: now, pause: PAUSE_FIRST, next_probe, why });
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// A few failures between answers are no absence.
    #[test]
    fn scattered_failures_are_no_absence() {
        let mut presence = Reachability::default();
        for _ in 0..10 {
            for _ in 1..FAILURES_MAX {
                assert!(!presence.failed(S, S, "503", 0));
            }
            assert_eq!(presence.answered(S), None);
        }
        assert!(presence.away().is_none() && presence.wait(S).is_zero());
    }

    /// In an hour away few probes go out, never one right after another, and the return is noticed
    /// within the longest pause.
    #[test]
    fn an_hour_away_costs_few_probes() {
        let mut presence = Reachability::default();
        let mut now = 100 * S;
        for _ in 0..FAILURES_MAX {
            presence.failed(now, now, "refused", 500);
        }
        let (mut probes, end) = (0, now + 3600 * S);
        while now < end {
            let wait = presence.wait(now);
            assert!(wait <= PAUSE_MAX);
            now += wait;
            presence.started(now);
            assert_eq!(presence.wait(now), PROBE_HANGS, "one at a time");
            now += Duration::from_millis(1);
            presence.failed(now, now, "refused", probes % 1000);
            probes += 1;
        }
        assert!((700..1500).contains(&probes), "{probes}");
        assert_eq!(presence.away(), Some((100 * S, "refused")));
        assert!(presence.answered(now).is_some_and(|away| away >= 3600 * S));
        assert!(presence.wait(now).is_zero());
    }

    /// A probe that hangs does not keep the next one back for good.
    #[test]
    fn a_probe_that_hangs_is_not_waited_for() {
        let mut presence = Reachability::default();
        (0..FAILURES_MAX).for_each(|_| _ = presence.failed(S, S, "away", 0));
        presence.started(2 * S);
        assert!(presence.wait(2 * S + PROBE_HANGS).is_zero());
    }
}
