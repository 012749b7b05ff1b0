//! What sending and receiving share: how far it is, and how fast.

use std::time::{Duration, Instant};

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
    /// How far each share is, in bytes of the volume.
    places: Vec<u64>,
    size_bytes: u64,
}

impl Transfer {
    /// Of so many shares of a volume.
    pub fn begin(what: &'static str, shares: usize, size_bytes: u64) -> Transfer {
        Transfer {
            progress: Progress::spinning(what),
            what,
            began: Instant::now(),
            shown: None,
            data_bytes: 0,
            places: vec![0; shares],
            size_bytes,
        }
    }

    /// So much more data of a share was transferred, and so far in the volume it is.
    pub fn add(&mut self, share: usize, data_bytes: u64, at: u64) {
        self.data_bytes += data_bytes;
        self.places[share] = at;
        if self.shown.is_some_and(|shown| shown.elapsed() < SHOWN_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let (data, rate) = (ByteSize(self.data_bytes), ByteSize((self.data_bytes as f64 / seconds) as u64));
        let all = self.size_bytes.max(1) as f64 * self.places.len() as f64;
        let done = self.places.iter().map(|place| *place as f64).sum::<f64>() / all;
        let left = match done > 0.0 {
            true => format!(", {:.0} s left", seconds * (1.0 - done) / done),
            false => String::new(),
        };
        let (what, percent) = (self.what, done * 100.0);
        self.progress.message(format!("{what}: {data}, {rate}/s, at {percent:.0} % of the volume{left}"));
    }
}
