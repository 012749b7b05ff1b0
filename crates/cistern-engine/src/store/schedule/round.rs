//! What the answers at one limit showed: how long they took, and whether the limit held somebody
//! up meanwhile. Pure.
//!
//! A latency counts by its root. Where nothing is shared but a queue, what is done in a second is
//! the limit by the mean latency (Little's law), but one request in a hundred that hangs would
//! move a plain mean by more than what is looked for. A round lasts until its mean is known well
//! enough to tell one limit from the next, which takes few answers that are alike and many that
//! are not.

use std::time::Duration;

/// Size classes: up to 4 KiB, then twice as much each, the last one from 64 MiB on.
const SIZES: usize = 16;
const SIZE_FIRST_BITS: u32 = 12;
/// Answers of a round at least, besides as many as the limit.
const ANSWERS_MIN: u32 = 16;
/// The standard error that a round's mean may have: a quarter more requests that wait for each
/// other show as a shift of 0.22.
const ERROR_MAX: f64 = 0.035;
/// A round ends after so many laps (as many answers as the limit), however uneven they are.
const LAPS_MAX: u32 = 64;
/// Nothing was asked for so long: what was seen before it says nothing about now.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Roots of latencies in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    answers: u32,
    mean: f64,
    /// Of squared distances from the mean.
    squares: f64,
}

impl Class {
    fn note(&mut self, value: f64) {
        self.answers += 1;
        let before = value - self.mean;
        self.mean += before / f64::from(self.answers);
        self.squares += before * (value - self.mean);
    }

    /// The logarithm of what a latency is in the mean.
    fn log(&self) -> f64 {
        2.0 * self.mean.ln()
    }

    /// The variance of that, times the square of the answers.
    fn doubt(&self) -> f64 {
        if self.answers == 0 { 0.0 } else { 4.0 * self.squares / (self.mean * self.mean) }
    }
}

/// The answers at one limit.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) limit: u32,
    /// Answers that are not looked at yet: what was under way before says what another limit did.
    settling: u32,
    answers: u32,
    /// Of these, such as came while the limit held somebody up.
    held_up: u32,
    /// Answers since the limit was used up, if ever.
    since_used_up: Option<u32>,
    last: Option<Duration>,
    classes: [Class; SIZES],
}

impl Round {
    /// A round at a limit after one at another.
    pub(super) fn after(before: u32, limit: u32) -> Round {
        let (answers, held_up, since_used_up, last, classes) = Default::default();
        Round { limit, settling: limit.max(before), answers, held_up, since_used_up, last, classes }
    }

    /// The limit is used up now.
    pub(super) fn used_up(&mut self) {
        self.since_used_up = Some(0);
    }

    /// Whether nothing was under way for a while before a request that began then.
    pub(super) fn is_over(&self, began: Duration) -> bool {
        self.last.is_some_and(|last| began > last + PAUSE_MAX)
    }

    pub(super) fn note(&mut self, now: Duration, latency: Duration, bytes: u64) {
        self.last = Some(now);
        // As many answers as the limit may come at once, of requests that waited for each other.
        let used_up = self.since_used_up.is_some_and(|answers| answers < self.limit);
        self.since_used_up = self.since_used_up.map(|answers| answers.saturating_add(1));
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        self.answers += 1;
        self.held_up += u32::from(used_up);
        let latency = latency.max(Duration::from_micros(1));
        self.classes[size_class(bytes)].note(latency.as_secs_f64().sqrt());
    }

    /// A lap is done: as many answers as the limit have come.
    pub(super) fn is_lap(&self) -> bool {
        self.answers >= self.limit
    }

    /// It says what it can.
    pub(super) fn is_known(&self) -> bool {
        if self.answers < self.limit.max(ANSWERS_MIN) {
            return false;
        }
        let answers = f64::from(self.answers);
        let doubt: f64 = self.classes.iter().map(Class::doubt).sum();
        let error = doubt.sqrt() / answers;
        error <= ERROR_MAX || self.answers >= LAPS_MAX.saturating_mul(self.limit)
    }

    /// The limit held somebody up, most of the time.
    pub(super) fn was_used_up(&self) -> bool {
        self.held_up * 2 >= self.answers.max(1)
    }

    /// The logarithm of what was done in the same time, beside `before`: with a limit that is used
    /// up, requests per second are the limit by their latency. Sizes are compared each with its
    /// own; none where no size is in both.
    pub(super) fn gain_on(&self, before: &Round) -> Option<f64> {
        let (mut weights, mut slower) = (0.0, 0.0);
        for (own, other) in self.classes.iter().zip(&before.classes) {
            let weight = f64::from(own.answers.min(other.answers));
            if weight > 0.0 {
                weights += weight;
                slower += weight * (own.log() - other.log());
            }
        }
        (weights > 0.0).then(|| (f64::from(self.limit) / f64::from(before.limit)).ln() - slower / weights)
    }

    /// What most answers took: the geometric mean.
    pub(super) fn latency(&self) -> Duration {
        let sum: f64 = self.classes.iter().map(|class| class.mean * f64::from(class.answers)).sum();
        Duration::from_secs_f64((sum / f64::from(self.answers.max(1))).powi(2))
    }
}

fn size_class(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(SIZE_FIRST_BITS) as usize).min(SIZES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Duration = Duration::from_secs(1);

    fn round(limit: u32, latencies_ms: impl IntoIterator<Item = (u64, u64)>) -> Round {
        let mut round = Round::after(0, limit);
        round.settling = 0;
        for (latency_ms, bytes) in latencies_ms {
            round.note(ALL, Duration::from_millis(latency_ms), bytes);
        }
        round
    }

    /// A round of answers that are alike is over with its first lap; uneven ones take many.
    #[test]
    fn lasts_as_long_as_it_must() {
        assert!(!round(32, (0..31).map(|_| (20, 4096))).is_known());
        assert!(round(32, (0..32).map(|_| (20, 4096))).is_known());
        assert!(round(32, (0..32).map(|n| if n % 2 == 0 { (20, 4096) } else { (200, 1 << 20) })).is_known());
        let uneven = |answers| round(32, (0..answers).map(|n| (20 + n % 10 * 20, 4096)));
        assert!(!uneven(200).is_known() && uneven(600).is_known());
    }

    /// Twice the limit at the same latency does twice as much, at twice the latency no more; sizes
    /// are compared with their own, whatever their shares are.
    #[test]
    fn gains_are_by_size() {
        let before = round(16, (0..160).map(|n| if n % 2 == 0 { (20, 4096) } else { (200, 1 << 20) }));
        let as_fast = round(32, (0..160).map(|n| if n % 8 == 0 { (20, 4096) } else { (200, 1 << 20) }));
        let as_slow = round(32, (0..160).map(|n| if n % 8 == 0 { (40, 4096) } else { (400, 1 << 20) }));
        let near = |gain: Option<f64>, value: f64| gain.is_some_and(|gain| (gain - value).abs() < 1e-9);
        assert!(near(as_fast.gain_on(&before), 2f64.ln()), "{:?}", as_fast.gain_on(&before));
        assert!(near(as_slow.gain_on(&before), 0.0), "{:?}", as_slow.gain_on(&before));
        assert_eq!(round(32, [(20, 64 << 20)]).gain_on(&before), None, "nothing in common");
    }

    /// One answer in a hundred that hangs for five seconds passes for less than what tells one limit
    /// from the next.
    #[test]
    fn a_few_that_hang_move_little() {
        let sound = round(32, (0..1000).map(|_| (30, 4096)));
        let hanging = round(32, (0..1000).map(|n| if n % 100 == 0 { (5000, 4096) } else { (30, 4096) }));
        assert!(hanging.gain_on(&sound).is_some_and(|gain| gain > -0.23), "{:?}", hanging.gain_on(&sound));
    }

    /// What was under way before a change does not count.
    #[test]
    fn what_began_before_settles() {
        let mut round = Round::after(8, 4);
        (0..8).for_each(|_| round.note(ALL, ALL, 4096));
        assert_eq!((round.answers, round.is_lap()), (0, false));
        (0..4).for_each(|_| round.note(ALL, ALL, 4096));
        assert!(round.is_lap() && !round.was_used_up());
    }

    /// A pause, and only a pause, ends what a round was about.
    #[test]
    fn a_pause_ends_it() {
        let round = round(8, [(20, 4096)]);
        assert!(!round.is_over(ALL + PAUSE_MAX) && round.is_over(ALL + PAUSE_MAX * 2));
    }
}
