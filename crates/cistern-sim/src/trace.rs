//! The event history of a run: a hash over everything, the text of the last events.
//!
//! The hash covers every event's text and time and every scheduling decision, so that two runs
//! with one hash went the same way.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt::{self, Write},
    sync::Once,
    time::Duration,
};

/// Events kept as text for the report of a failure.
const TAIL_EVENTS_MAX: usize = 300;

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The growing history.
pub struct Trace {
    hash: u64,
    tail: VecDeque<String>,
    live: bool,
    line: String,
}

impl Trace {
    pub fn new(live: bool) -> Trace {
        watch_panics();
        Trace { hash: FNV_OFFSET, tail: VecDeque::new(), live, line: String::new() }
    }

    /// Adds an event.
    pub fn add(&mut self, now: Duration, event: fmt::Arguments<'_>) {
        self.line.clear();
        write!(self.line, "{:>14.6} {event}", now.as_secs_f64()).expect("a string takes everything");
        self.hash = self.line.bytes().fold(self.hash, |h, b| (h ^ u64::from(b)).wrapping_mul(FNV_PRIME));
        if self.live {
            eprintln!("{}", self.line);
        }
        if self.tail.len() == TAIL_EVENTS_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(self.line.clone());
    }

    /// Adds a decision that has no text.
    pub fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(FNV_PRIME).rotate_left(5);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn tail(&self) -> Vec<String> {
        self.tail.iter().cloned().collect()
    }
}

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message and place of a panic for the report instead of printing it: a panic of a
/// simulated task is a result of the run. Other threads keep their usual output.
fn watch_panics() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHED.get() {
                LAST_PANIC.with_borrow_mut(|last| *last = info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs `f` with panics kept for [`last_panic`].
pub fn quietly<T>(f: impl FnOnce() -> T) -> T {
    let before = WATCHED.replace(true);
    let out = f();
    WATCHED.set(before);
    out
}

/// The message and place of this thread's last kept panic.
pub fn last_panic() -> String {
    LAST_PANIC.with_borrow(|last| last.replace('\n', " "))
}
