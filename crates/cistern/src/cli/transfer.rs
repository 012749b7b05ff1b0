//! What sending and receiving share: how far it is, and how fast. For people on a terminal, for programs as lines of JSON.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    quantity::ByteSize,
    terminal::{self, Progress},
};

/// How often what is shown changes.
const SHOWN_EVERY: Duration = Duration::from_millis(250);
/// How often a program is told.
const TOLD_EVERY: Duration = Duration::from_secs(3);

/// Records that wait between a thread and a task: below 5 MiB.
pub const QUEUE_RECORDS: usize = 64;

/// What was transferred so far, of one or several things at once: shown on a terminal with rate and time left, or told where that is not seen.
pub struct Transfer(RefCell<Shown>);

struct Shown {
    progress: Progress,
    what: &'static str,
    /// Somebody wants JSON, and no terminal is there.
    is_told: bool,
    began: Instant,
    last: Option<Instant>,
    data_bytes: u64,
    /// How far each of them is, and of how much.
    parts: Vec<(u64, u64)>,
    /// When what is being transferred began, and how much of it was there then.
    from: (Instant, f64),
}

/// One of them.
pub struct TransferPart<'a> {
    all: &'a Transfer,
    n: usize,
}

/// One line of JSON on standard error: a table in the reference says what its fields are.
#[derive(Serialize)]
struct ToldProgress {
    progress: &'static str,
    data_bytes: u64,
    bytes_per_second: u64,
    done_bytes: u64,
    of_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<u64>,
}

impl Transfer {
    /// Of so many parts. With `json` it is told where no terminal shows it.
    pub fn begin(what: &'static str, parts: usize, json: bool) -> Transfer {
        let began = Instant::now();
        Transfer(RefCell::new(Shown {
            progress: Progress::spinning(what),
            what,
            is_told: json && !terminal::shows_progress(),
            began,
            last: None,
            data_bytes: 0,
            parts: vec![(0, 0); parts],
            from: (began, 0.0),
        }))
    }

    pub fn part(&self, n: usize) -> TransferPart<'_> {
        TransferPart { all: self, n }
    }
}

impl TransferPart<'_> {
    /// It is so far already: it goes on there.
    pub fn begin_at(&self, done: u64, of: u64) {
        let mut all = self.all.0.borrow_mut();
        all.parts[self.n] = (done, of);
        all.from = (Instant::now(), all.share());
    }

    /// So much more data was transferred, and so far in its volume it is.
    pub fn add(&self, data_bytes: u64, done: u64, of: u64) {
        let now = Instant::now();
        let mut all = self.all.0.borrow_mut();
        all.data_bytes += data_bytes;
        all.parts[self.n] = (done, of);
        let share = all.share();
        let (every, since) = match all.is_told {
            true => (TOLD_EVERY, Some(all.last.unwrap_or(all.began))),
            false => (SHOWN_EVERY, all.last),
        };
        if since.is_some_and(|since| now - since < every) {
            return;
        }
        all.last = Some(now);
        let progress = all.now(now);
        match all.is_told {
            true => {
                terminal::remark(serde_json::to_string(&progress).expect("plain fields always serialize"))
            }
            false => all.progress.message(progress.text(share)),
        }
    }
}

impl Shown {
    /// How much of all of it is done, at most 1. As numbers that have no end: volumes of 2^60 bytes may be several.
    fn share(&self) -> f64 {
        let sum = |each: fn(&(u64, u64)) -> u64| self.parts.iter().map(|part| each(part) as f64).sum::<f64>();
        sum(|(done, _)| *done) / sum(|(_, of)| *of).max(1.0)
    }

    fn now(&self, now: Instant) -> ToldProgress {
        let seconds = (now - self.began).as_secs_f64().max(0.001);
        let sum = |each: fn(&(u64, u64)) -> u64| self.parts.iter().map(each).fold(0, u64::saturating_add);
        ToldProgress {
            progress: self.what,
            data_bytes: self.data_bytes,
            bytes_per_second: (self.data_bytes as f64 / seconds) as u64,
            done_bytes: sum(|(done, _)| *done),
            of_bytes: sum(|(_, of)| *of),
            seconds_left: seconds_left(self.from, (now, self.share())),
        }
    }
}

/// How long the rest takes, at the pace since another moment; `None` where there is none.
fn seconds_left((then, before): (Instant, f64), (now, share): (Instant, f64)) -> Option<u64> {
    let pace = (share - before) / (now - then).as_secs_f64();
    (share > before && pace.is_finite()).then(|| ((1.0 - share).max(0.0) / pace).round() as u64)
}

impl ToldProgress {
    fn text(&self, share: f64) -> String {
        let (data, rate) = (ByteSize(self.data_bytes), ByteSize(self.bytes_per_second));
        let left = self.seconds_left.map(|left| format!(", {left} s left")).unwrap_or_default();
        let percent = share * 100.0;
        format!("{}: {data}, {rate}/s, at {percent:.0} % of the volume{left}", self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left is told by the pace since this began, not by what was there before; without a pace it is not known.
    #[test]
    fn what_is_left_goes_by_the_pace_since_it_began() {
        let then = Instant::now();
        let after = |seconds| then + Duration::from_secs(seconds);
        assert_eq!(seconds_left((then, 0.0), (after(10), 0.25)), Some(30));
        assert_eq!(seconds_left((then, 0.5), (after(10), 0.75)), Some(10), "it went on from a half");
        assert_eq!(seconds_left((then, 0.5), (after(10), 0.5)), None);
        assert_eq!(seconds_left((then, 0.5), (then, 0.75)), None);
        assert_eq!(seconds_left((then, 0.0), (after(7), 1.0)), Some(0));
    }
}
