//! Notices by the dates in a store's answers that this machine stood still and its clock with it: held by its hypervisor, or
//! put back to a snapshot with its memory.
//!
//! Such a machine goes on with what it believed before. So an answer whose date is further ahead of our clock than that of the
//! answers before its request was sent counts as none: the request is made again, and whoever writes hears of a failure and
//! looks whether the volume is still his (docs/design/engine.md, "Emptied slots").
//!
//! Trusts no date: a wrong one costs a request more, and what it hides is not noticed, as without it.

use std::time::Duration;

use crate::rank::{Locked, Rank, Ranked};

/// What is not noticed. Far below a third of the grace of deletions, and above what servers of one store differ by.
const UNNOTICED: Duration = Duration::from_secs(60);
/// Our clock may run slower than theirs by one part in so many.
const DRIFT: u32 = 1000;
/// So that a store of which nothing was heard for days is not taken for one that is ahead.
const DRIFT_MAX: Duration = Duration::from_secs(30);

/// What is known of a store's clock.
#[derive(Debug)]
pub(super) struct Standstill {
    ahead: Ranked<Option<Skew>>,
}

impl Default for Standstill {
    fn default() -> Standstill {
        Standstill { ahead: Ranked::new(Rank::World, None) }
    }
}

/// By how much the store's clock is ahead of ours, or behind.
#[derive(Clone, Copy, Debug)]
struct Skew {
    by_s: i64,
    /// When that was known, by our clock.
    at: Duration,
}

impl Skew {
    /// The least that it must be by now.
    fn by_now(self, now: Duration) -> Skew {
        let drifted = (now.saturating_sub(self.at) / DRIFT).min(DRIFT_MAX);
        match drifted.as_secs() {
            0 => self,
            s => Skew { by_s: self.by_s - s as i64, at: now },
        }
    }
}

/// What was known when a request was sent.
pub(super) struct Sent(Option<Skew>);

impl Standstill {
    /// A request is about to be sent.
    pub fn sent(&self) -> Sent {
        Sent(*self.lock())
    }

    /// It was answered, with this date: how long this machine stood still since, if it did.
    pub fn answered(&self, sent: &Sent, date_s: i64, now: Duration) -> Option<Duration> {
        let by_s = date_s - i64::try_from(now.as_secs()).ok()?;
        let before = sent.0.map(|ahead| ahead.by_now(now).by_s);
        let mut ahead = self.lock();
        let known = ahead.map(|ahead| ahead.by_now(now));
        *ahead = known.filter(|known| known.by_s >= by_s).or(Some(Skew { by_s, at: now }));
        let still = Duration::from_secs(u64::try_from(by_s - before?).ok()?);
        (still > UNNOTICED).then_some(still)
    }

    fn lock(&self) -> Locked<'_, Option<Skew>> {
        self.ahead.lock()
    }
}

/// Seconds since 1970 of a date as servers write it: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn unix_seconds(date: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = date.split_once(", ")?.1.split(' ');
    let mut number = |max: i64| words.next()?.parse::<i64>().ok().filter(|n| (0..=max).contains(n));
    let day = number(31)?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let year = words.next()?.parse::<i64>().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut time = words.next()?.split(':');
    let mut part = |max: i64| time.next()?.parse::<i64>().ok().filter(|n| (0..=max).contains(n));
    let (hour, minute, second) = (part(23)?, part(59)?, part(60)?);
    // Days since 1970-03-01 of a year that begins in March, so that the leap day is its last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    (words.next() == Some("GMT")).then_some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dates are read as `date -u` reads them; what is none says nothing.
    #[test]
    fn dates_are_read() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
            ("Wed, 31 Dec 2098 23:59:59 GMT", 4_070_908_799),
        ] {
            assert_eq!(unix_seconds(date), Some(seconds), "{date}");
        }
        for date in [
            "",
            "yesterday",
            "Sun, 06 Nov 1994",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 40 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(unix_seconds(date), None, "{date}");
        }
    }

    /// The first answer of which the store's clock has gone on without ours is noticed, whoever asked; also every other that was
    /// asked for before. What is asked then is as ever.
    #[test]
    fn a_standstill_is_noticed_by_all_who_asked_before() {
        let clock = Standstill::default();
        let ours = Duration::from_secs;
        assert_eq!(clock.answered(&clock.sent(), 1000, ours(5)), None, "nothing was known");
        let (one, other) = (clock.sent(), clock.sent());
        assert_eq!(clock.answered(&one, 4600, ours(6)), Some(ours(3599)));
        assert_eq!(clock.answered(&other, 4600, ours(6)), Some(ours(3599)));
        assert_eq!(clock.answered(&clock.sent(), 4601, ours(7)), None);
    }

    /// Slow answers, clocks that differ a little and drift, a server that is behind the others, and silence for hours are none.
    #[test]
    fn what_is_ordinary_is_no_standstill() {
        let clock = Standstill::default();
        let (mut ours, mut theirs) = (100.0, 7000.0);
        for n in 0..400_u32 {
            let sent = clock.sent();
            let (idle, behind) = (f64::from(n % 7) * 30.0, f64::from(n % 3) * 50.0);
            ours += idle;
            theirs += idle * 1.0002;
            let seen = clock.answered(&sent, (theirs - behind) as i64, Duration::from_secs_f64(ours));
            assert_eq!(seen, None, "answer {n}");
        }
    }
}
