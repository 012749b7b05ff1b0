//! What sending and receiving share: how far it is, and how fast.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use crate::{quantity::ByteSize, terminal::Progress};

/// How often what is shown changes.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

/// Records that wait between a thread and a task: below 5 MiB.
pub const QUEUE_RECORDS: usize = 64;

/// What was transferred so far, of one or several things at once, shown on a terminal with rate and time left.
pub struct Transfer(RefCell<Shown>);

struct Shown {
    progress: Progress,
    what: &'static str,
    began: Instant,
    shown: Option<Instant>,
    data_bytes: u64,
    /// How far each of them is, and of how much.
    parts: Vec<(u64, u64)>,
}

/// One of them.
pub struct TransferPart<'a> {
    all: &'a Transfer,
    n: usize,
}

impl Transfer {
    /// Of so many parts.
    pub fn begin(what: &'static str, parts: usize) -> Transfer {
        Transfer(RefCell::new(Shown {
            progress: Progress::spinning(what),
            what,
            began: Instant::now(),
            shown: None,
            data_bytes: 0,
            parts: vec![(0, 0); parts],
        }))
    }

    pub fn part(&self, n: usize) -> TransferPart<'_> {
        TransferPart { all: self, n }
    }
}

impl TransferPart<'_> {
    /// So much more data was transferred, and so far in its volume it is.
    pub fn add(&self, data_bytes: u64, done: u64, of: u64) {
        let mut all = self.all.0.borrow_mut();
        all.data_bytes += data_bytes;
        all.parts[self.n] = (done, of);
        if all.shown.is_some_and(|shown| shown.elapsed() < SHOWN_EVERY) {
            return;
        }
        all.shown = Some(Instant::now());
        let seconds = all.began.elapsed().as_secs_f64().max(0.001);
        let (data, rate) = (ByteSize(all.data_bytes), ByteSize((all.data_bytes as f64 / seconds) as u64));
        // As numbers that have no end: volumes of 2^60 bytes may be several.
        let sum = |each: fn(&(u64, u64)) -> u64| all.parts.iter().map(|part| each(part) as f64).sum::<f64>();
        let share = sum(|(done, _)| *done) / sum(|(_, of)| *of).max(1.0);
        let left = match share > 0.0 {
            true => format!(", {:.0} s left", seconds * (1.0 - share) / share),
            false => String::new(),
        };
        let (what, percent) = (all.what, share * 100.0);
        all.progress.message(format!("{what}: {data}, {rate}/s, at {percent:.0} % of the volume{left}"));
    }
}
