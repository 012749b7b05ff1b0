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

/// What was transferred so far, shown on a terminal with rate and time left.
pub struct Transfer {
    progress: Progress,
    what: &'static str,
    began: Instant,
    shown: Option<Instant>,
    data_bytes: u64,
}

impl Transfer {
    pub fn begin(what: &'static str) -> Transfer {
        let (began, data_bytes) = (Instant::now(), 0);
        Transfer { progress: Progress::spinning(what), what, began, shown: None, data_bytes }
    }

    /// So much more data was transferred, and so far in the volume it is.
    pub fn add(&mut self, data_bytes: u64, done: u64, of: u64) {
        self.data_bytes += data_bytes;
        if self.shown.is_some_and(|shown| shown.elapsed() < SHOWN_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let (data, rate) = (ByteSize(self.data_bytes), ByteSize((self.data_bytes as f64 / seconds) as u64));
        let share = done as f64 / of.max(1) as f64;
        let left = match share > 0.0 {
            true => format!(", {:.0} s left", seconds * (1.0 - share) / share),
            false => String::new(),
        };
        let (what, percent) = (self.what, share * 100.0);
        self.progress.message(format!("{what}: {data}, {rate}/s, at {percent:.0} % of the volume{left}"));
    }
}

/// Several volumes that are transferred at once, shown as one.
pub struct Together(RefCell<(Transfer, Vec<(u64, u64)>)>);

/// One of them.
pub struct TransferShare<'a> {
    all: &'a Together,
    n: usize,
}

impl Together {
    pub fn begin(what: &'static str, count: usize) -> Together {
        Together(RefCell::new((Transfer::begin(what), vec![(0, 0); count])))
    }

    pub fn share(&self, n: usize) -> TransferShare<'_> {
        TransferShare { all: self, n }
    }
}

impl TransferShare<'_> {
    /// As [`Transfer::add`], of this one.
    pub fn add(&self, data_bytes: u64, done: u64, of: u64) {
        let (transfer, parts) = &mut *self.all.0.borrow_mut();
        parts[self.n] = (done, of);
        let (done, of) = parts.iter().fold((0, 0), |(done, of), part| (done + part.0, of + part.1));
        transfer.add(data_bytes, done, of);
    }
}
