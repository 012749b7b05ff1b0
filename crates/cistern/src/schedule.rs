//! When snapshots are made by themselves, and which of those are kept: `15m:8,1h:24,1d:30,1M:12`.
//!
//! Pure. As with restic's `forget`: of each rule the newest snapshot of a period is kept, for so many periods in which there is one;
//! periods without one do not count, so what is old stays when nothing is written for long. Periods are those of the calendar, in UTC.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What the names of these snapshots begin with. No other is ever removed by a schedule.
pub const PREFIX: &str = "auto-";
/// Rules of one schedule, and periods of one rule, at most.
const RULES_MAX: usize = 16;
const KEEP_MAX: u32 = 10_000;
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;
/// 1970 began on a Thursday: so many days later a week began.
const FIRST_MONDAY: u64 = 4;

/// A period of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    /// So many minutes, hours, days or weeks, counted from 1970 (weeks from a Monday).
    Ms(u64),
    Months(u64),
}

impl Period {
    /// Which one a time of the wall clock lies in.
    fn number(self, wall_ms: u64) -> u64 {
        match self {
            Period::Ms(ms) if ms.is_multiple_of(7 * DAY_MS) => {
                wall_ms.saturating_sub(FIRST_MONDAY * DAY_MS) / ms
            }
            Period::Ms(ms) => wall_ms / ms,
            Period::Months(months) => month(wall_ms) / months,
        }
    }

    /// About how long it is.
    fn ms(self) -> u64 {
        match self {
            Period::Ms(ms) => ms,
            Period::Months(months) => months * 30 * DAY_MS,
        }
    }
}

/// Months since the year 0.
fn month(wall_ms: u64) -> u64 {
    let text = cistern_engine::units::utc(wall_ms);
    let number =
        |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u64>().ok());
    number(0..4).unwrap_or(0) * 12 + number(5..7).unwrap_or(1) - 1
}

/// Keep one of each of the last periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    period: Period,
    keep: u32,
}

/// Rules, by period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Schedule(Vec<Rule>);

impl Schedule {
    /// Whether a snapshot is due, with the newest one made at `newest_ms`.
    pub fn is_due(&self, newest_ms: Option<u64>, wall_ms: u64) -> bool {
        newest_ms.is_none_or(|newest| self.shortest().number(newest) < self.shortest().number(wall_ms))
    }

    /// How long after a snapshot the next one is overdue: two of the shortest periods.
    pub fn overdue_ms(&self) -> u64 {
        2 * self.shortest().ms()
    }

    fn shortest(&self) -> Period {
        self.0.iter().map(|rule| rule.period).min_by_key(|period| period.ms()).expect("there is a rule")
    }

    /// Which of some snapshots no rule keeps, by the times at which they were made. The newest is always kept.
    pub fn expired(&self, mut made_ms: Vec<u64>) -> BTreeSet<u64> {
        made_ms.sort_unstable_by(|a, b| b.cmp(a));
        let mut expired: BTreeSet<u64> = made_ms.iter().skip(1).copied().collect();
        for Rule { period, keep } in &self.0 {
            let (mut last, mut kept) = (None, 0);
            for &made in &made_ms {
                let number = period.number(made);
                if last == Some(number) {
                    continue;
                }
                if kept == *keep {
                    break;
                }
                (last, kept) = (Some(number), kept + 1);
                expired.remove(&made);
            }
        }
        expired
    }
}

/// The name of a snapshot that is made now by a schedule.
pub fn name(wall_ms: u64) -> String {
    dated(PREFIX, wall_ms)
}

/// A name that begins like this and says when.
pub fn dated(prefix: &str, wall_ms: u64) -> String {
    let utc = cistern_engine::units::utc(wall_ms);
    format!("{prefix}{}", utc.trim_end_matches(" UTC").replace(' ', "T"))
}

fn explain(text: &str) -> String {
    format!(
        "'{text}' is no schedule: write PERIOD:COUNT with m, h, d, w, M (months) or y, like 15m:8,1h:24,1d:30,1M:12"
    )
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Schedule, String> {
        let rule = |rule: &str| {
            let (period, keep) = rule.trim().split_once(':')?;
            let at = period.find(|c: char| !c.is_ascii_digit())?;
            let number = period[..at].parse::<u64>().ok().filter(|number| (1..=10_000).contains(number))?;
            let period = match &period[at..] {
                "m" => Period::Ms(number * MINUTE_MS),
                "h" => Period::Ms(number * 60 * MINUTE_MS),
                "d" => Period::Ms(number * DAY_MS),
                "w" => Period::Ms(number * 7 * DAY_MS),
                "M" => Period::Months(number),
                "y" => Period::Months(12 * number),
                _ => return None,
            };
            let keep = keep.parse().ok().filter(|keep| (1..=KEEP_MAX).contains(keep))?;
            Some(Rule { period, keep })
        };
        let rules: Option<Vec<Rule>> = text.split(',').map(rule).collect();
        rules.filter(|rules| rules.len() <= RULES_MAX).map(Schedule).ok_or_else(|| explain(text))
    }
}

impl TryFrom<String> for Schedule {
    type Error = Failure;

    fn try_from(text: String) -> Result<Schedule, Failure> {
        text.parse().map_err(Failure::usage)
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> String {
        schedule.to_string()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Rule { period, keep }) in self.0.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let units = [(7 * DAY_MS, "w"), (DAY_MS, "d"), (60 * MINUTE_MS, "h"), (MINUTE_MS, "m")];
            match *period {
                Period::Months(months) if months.is_multiple_of(12) => {
                    write!(f, "{comma}{}y:{keep}", months / 12)?;
                }
                Period::Months(months) => write!(f, "{comma}{months}M:{keep}")?,
                Period::Ms(ms) => {
                    let unit = units.iter().find(|(unit, _)| ms.is_multiple_of(*unit));
                    let (unit, name) = unit.expect("periods are whole minutes");
                    write!(f, "{comma}{}{name}:{keep}", ms / unit)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * MINUTE_MS;
    /// 2024-02-29 12:30:45, a Thursday.
    const NOW: u64 = 1_709_209_845_000;

    fn schedule(text: &str) -> Schedule {
        text.parse().expect(text)
    }

    /// What people write is read, and shown as it was written; anything else is refused with what would be right.
    #[test]
    fn schedules_people_write() {
        for text in ["15m:8,1h:24,1d:30,1M:12", "1h:1", "2w:3,1y:5"] {
            assert_eq!(schedule(text).to_string(), text);
        }
        assert_eq!(schedule("60m:2").to_string(), "1h:2");
        for wrong in [
            "",
            "15m",
            "15m:0",
            "0h:3",
            "h:3",
            "1s:3",
            "1h:3,",
            "1h:99999",
            "1h:-1",
            "99999999999999999999h:1",
        ] {
            let refused = wrong.parse::<Schedule>().expect_err(wrong);
            assert!(refused.contains("like 15m:8"), "{refused}");
        }
        assert_eq!(name(NOW), "auto-2024-02-29T12:30:45");
        cistern_engine::snapshot::check_name(&name(NOW)).expect("a name");
    }

    /// One is due when a new one of the shortest periods has begun, by the calendar, and when there is none.
    #[test]
    fn due_by_the_calendar() {
        let hourly = schedule("1d:30,1h:24");
        assert!(hourly.is_due(None, NOW));
        assert!(!hourly.is_due(Some(NOW - 30 * MINUTE_MS), NOW), "12:00 and 12:30");
        assert!(hourly.is_due(Some(NOW - 31 * MINUTE_MS), NOW), "11:59 and 12:30");
        assert!(!hourly.is_due(Some(NOW + HOUR), NOW), "a clock that was set back");
        let monthly = schedule("1M:3");
        assert!(!monthly.is_due(Some(NOW - 28 * DAY_MS), NOW), "the first and the 29th of February");
        assert!(monthly.is_due(Some(NOW - 29 * DAY_MS), NOW));
        let weekly = schedule("1w:3");
        assert!(!weekly.is_due(Some(NOW - 3 * DAY_MS), NOW), "Monday and Thursday");
        assert!(weekly.is_due(Some(NOW - 4 * DAY_MS), NOW), "Sunday and Thursday");
    }

    /// The newest of each period is kept, for so many periods in which there is one: gaps do not count. What one rule keeps stays.
    #[test]
    fn empty_periods_do_not_count() {
        let hours = |hours: &[u64]| hours.iter().map(|h| NOW - h * HOUR).collect::<Vec<u64>>();
        let expired = |text: &str, made: &[u64]| {
            let gone = schedule(text).expired(hours(made));
            made.iter().copied().filter(|h| gone.contains(&(NOW - h * HOUR))).collect::<Vec<u64>>()
        };
        assert_eq!(expired("1h:3", &[0, 1, 2, 3, 4]), [3, 4]);
        assert_eq!(expired("1h:3", &[0, 100, 200, 300]), [300], "whatever lies between");
        assert_eq!(expired("1d:2", &[0, 1, 13, 14, 40]), [1, 14, 40], "the newest of each day");
        assert_eq!(expired("1h:2,1d:3", &[0, 1, 2, 13, 14, 40]), [2, 14]);
        assert_eq!(expired("1h:1", &[0]), [0_u64; 0]);
        let half_hours: Vec<u64> = (0..3).map(|n| NOW - n * HOUR / 2).collect();
        assert_eq!(schedule("1h:1").expired(half_hours.clone()).len(), 2, "the newest is always kept");
    }

    /// Run again and again as snapshots are made, a schedule keeps what it says: the rolling window of each rule.
    #[test]
    fn a_schedule_keeps_what_it_says() {
        let rules = schedule("15m:8,1h:24,1d:30");
        let mut made: Vec<u64> = Vec::new();
        for step in 0..40 * 96 {
            let now = NOW + step * 15 * MINUTE_MS;
            if rules.is_due(made.last().copied(), now) {
                made.push(now);
            }
            let gone = rules.expired(made.clone());
            made.retain(|at| !gone.contains(at));
        }
        let age = |age: u64| made.iter().filter(|at| NOW + 40 * DAY_MS - **at <= age).count();
        assert_eq!(age(2 * HOUR), 8);
        assert!((29..=31).contains(&age(24 * HOUR)), "{}", age(24 * HOUR));
        assert!((55..=62).contains(&made.len()), "{}", made.len());
    }
}
