//! The requests to one place (a bucket, a directory): who waits, what is under way, what it bears.
//!
//! A pure state machine: it is told what happens and when, and says who starts. Waiters are kept
//! in order of arrival by direction and class; their number is bounded by those who ask, each of
//! whom waits for its answer. Generic over the ticket by which a waiter is told.

use std::{collections::VecDeque, time::Duration};

use super::{
    DirectionStats, PlaceStats, Priority,
    away::Reachability,
    pieces::{Pieces, bytes_in},
    policy::{self, CLASSES, Direction, Load, Ready, Turns},
    rate::Bucket,
    window::{DOWNLOADS, UPLOADS, Window},
};

/// Reads count as active for so long after the last one.
const READS_LINGER: Duration = Duration::from_secs(1);
/// The bytes under way in the background hold up the first read after a pause for so long.
const DELAY_IDLE: Duration = Duration::from_millis(100);
/// Bounds of these.
const IDLE_BYTES: (u64, u64) = (2 << 20, 64 << 20);
/// With a download rate, a piece of what can be cut is at most this part of a second long, so
/// that no read waits longer for what others owe.
const RATE_PARTS: u64 = 4;
const RATE_PIECE_MIN: u64 = 64 << 10;
/// A request dropped after so long without an answer was not answered.
const DROP_FAILS: Duration = Duration::from_secs(20);

/// A request that wants to start.
#[derive(Debug)]
pub(super) struct Wish {
    pub class: Priority,
    pub direction: Direction,
    /// Body bytes, where they are known.
    pub bytes: u64,
    /// May be granted in part.
    pub divisible: bool,
}

#[derive(Debug)]
struct Waiter<T> {
    id: u64,
    since: Duration,
    wish: Wish,
    ticket: T,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct StartedRequest {
    pub class: Priority,
    pub direction: Direction,
    /// What was granted and paid.
    pub bytes: u64,
    pub began: Duration,
    /// Bytes under way in this direction, with its own.
    pub bytes_before: u64,
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// With an answer of so many body bytes; `measured` if its latency says what the store bears.
    Answered { bytes: u64, measured: bool },
    /// With an error that may be the store's absence or too much load.
    Unreachable(String),
    /// Nobody waited for it any more.
    Dropped,
}

/// What an ending changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Away,
    Back { after: Duration },
}

/// What happens next.
#[derive(Debug)]
pub(super) enum Next<T> {
    Start(T, StartedRequest),
    /// Nothing before so much time is over, unless something ends.
    Wait(Duration),
    /// Nothing before something ends or comes.
    Idle,
}

/// One direction.
#[derive(Debug)]
struct Lane<T> {
    direction: Direction,
    /// Each direction has its own: a store that is full, or slows writers down, still gives.
    presence: Reachability,
    window: Window,
    turns: Turns,
    queues: [VecDeque<Waiter<T>>; CLASSES.len()],
    in_use: [u32; CLASSES.len()],
    bytes: [u64; CLASSES.len()],
}

/// Everything about one place.
#[derive(Debug)]
pub(super) struct PlaceState<T> {
    name: String,
    /// Reads count as active until then.
    reads_until: Duration,
    pieces: Pieces,
    /// In the order of [`Direction`].
    lanes: [Lane<T>; 2],
}

/// The buckets of a daemon, in the order of [`Direction`].
pub(super) type Buckets = [Bucket; 2];

impl<T> Lane<T> {
    fn new(direction: Direction, window: Window) -> Lane<T> {
        let (queues, turns, presence) = Default::default();
        Lane { direction, presence, window, turns, queues, in_use: [0; 4], bytes: [0; 4] }
    }

    fn queued(&self, class: Priority) -> bool {
        !self.queues[class as usize].is_empty()
    }

    fn load(&self, background_bytes_max: u64) -> Load {
        Load {
            direction: self.direction,
            limit: self.window.limit(),
            in_use: self.in_use,
            background_bytes: self.bytes[Priority::Background as usize],
            background_bytes_max,
        }
    }

    /// Who waits and finds room. Notes when the limit holds somebody up.
    fn ready(&mut self, background_bytes_max: u64) -> Ready {
        let load = self.load(background_bytes_max);
        CLASSES.map(|class| {
            let queued = self.queued(class);
            if queued && !policy::has_slot(&load, class) {
                self.window.used_up();
            }
            queued && policy::has_room(&load, class)
        })
    }

    fn stats(&self, now: Duration) -> DirectionStats {
        let queued = |class: Priority| self.queues[class as usize].len() as u64;
        let oldest = self.queues.iter().filter_map(VecDeque::front).map(|w| w.since).min();
        DirectionStats {
            limit: self.window.limit().into(),
            in_use: self.in_use.iter().sum::<u32>().into(),
            bytes_in_use: self.bytes.iter().sum(),
            queued_read: queued(Priority::Read),
            queued_write_back: queued(Priority::WriteBack),
            queued_ahead: queued(Priority::Ahead),
            queued_background: queued(Priority::Background),
            oldest_wait_ms: oldest.map(|since| now.saturating_sub(since).as_millis() as u64),
        }
    }
}

impl<T> PlaceState<T> {
    pub(super) fn new(name: String) -> PlaceState<T> {
        let lanes = [
            Lane::new(Direction::Up, Window::new(&UPLOADS)),
            Lane::new(Direction::Down, Window::new(&DOWNLOADS)),
        ];
        PlaceState { name, reads_until: Duration::ZERO, pieces: Pieces::default(), lanes }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Why nothing is answered in one direction, and since when, if nothing is.
    pub(super) fn away(&self, direction: Direction) -> Option<(Duration, &str)> {
        self.lanes[direction as usize].presence.away()
    }

    /// Puts a request at the end of its queue.
    pub(super) fn enqueue(&mut self, now: Duration, id: u64, wish: Wish, ticket: T) {
        self.note_read(now, wish.class, wish.direction);
        let queue = &mut self.lanes[wish.direction as usize].queues[wish.class as usize];
        queue.push_back(Waiter { id, since: now, wish, ticket });
    }

    /// Takes a request that nobody waits for out of its queue, if it is still there.
    pub(super) fn cancel(&mut self, id: u64, class: Priority, direction: Direction) {
        self.lanes[direction as usize].queues[class as usize].retain(|waiter| waiter.id != id);
    }

    /// The next request to start, if one may.
    pub(super) fn next(&mut self, now: Duration, buckets: &mut Buckets) -> Next<T> {
        let mut wait: Option<Duration> = None;
        let mut wait_for =
            |pause: Duration| wait = Some(wait.map_or(pause, |other: Duration| other.min(pause)));
        for direction in [Direction::Down, Direction::Up] {
            let lane = &self.lanes[direction as usize];
            if !CLASSES.into_iter().any(|class| lane.queued(class)) {
                continue;
            }
            let pause = lane.presence.wait(now);
            if !pause.is_zero() {
                wait_for(pause);
                continue;
            }
            let background_max = self.background_bytes_max(now);
            let lane = &mut self.lanes[direction as usize];
            let ready = match lane.presence.away().is_some() {
                true => CLASSES.map(|class| lane.queued(class)),
                false => lane.ready(background_max),
            };
            let Some(class) = lane.turns.choose(ready) else { continue };
            let bucket = &mut buckets[direction as usize];
            let pause = bucket.wait(now, class == Priority::Read);
            if !pause.is_zero() {
                wait_for(pause);
                continue;
            }
            return self.start(now, direction, class, ready, bucket);
        }
        wait.map_or(Next::Idle, Next::Wait)
    }

    fn start(
        &mut self,
        now: Duration,
        direction: Direction,
        class: Priority,
        ready: Ready,
        bucket: &mut Bucket,
    ) -> Next<T> {
        let queue = &mut self.lanes[direction as usize].queues[class as usize];
        let Waiter { wish, ticket, .. } = queue.pop_front().expect("it was ready, so it is queued");
        let bytes = match wish.divisible {
            true => wish.bytes.min(self.piece_bytes_max(now, class, wish.bytes, bucket.rate())),
            false => wish.bytes,
        };
        let lane = &mut self.lanes[direction as usize];
        lane.turns.started(class, ready);
        lane.in_use[class as usize] += 1;
        lane.bytes[class as usize] += bytes;
        if lane.in_use.iter().sum::<u32>() >= lane.window.limit() {
            lane.window.used_up();
        }
        let bytes_before = lane.bytes.iter().sum();
        lane.presence.started(now);
        bucket.pay(signed(bytes));
        self.note_read(now, class, direction);
        Next::Start(ticket, StartedRequest { class, direction, bytes, began: now, bytes_before })
    }

    /// A request ended; its slot is free. `jitter` in 0..=1000 is drawn at random.
    pub(super) fn ended(
        &mut self,
        now: Duration,
        slot: &StartedRequest,
        outcome: Outcome,
        buckets: &mut Buckets,
        jitter: u32,
    ) -> Change {
        let StartedRequest { class, direction, bytes, began, .. } = *slot;
        let lane = &mut self.lanes[direction as usize];
        lane.in_use[class as usize] -= 1;
        lane.bytes[class as usize] -= bytes;
        self.note_read(now, class, direction);
        // What was sent was paid; of what is received the answer says how much it was.
        let came = match (&outcome, direction) {
            (_, Direction::Up) => bytes,
            (Outcome::Answered { bytes, .. }, Direction::Down) => *bytes,
            (_, Direction::Down) => 0,
        };
        buckets[direction as usize].pay(signed(came) - signed(bytes));
        match outcome {
            Outcome::Answered { measured, .. } => self.answered(now, slot, measured.then_some(came)),
            Outcome::Unreachable(why) => self.failed(now, slot, &why, jitter),
            Outcome::Dropped if now.saturating_sub(began) >= DROP_FAILS => {
                self.failed(now, slot, "no answer", jitter)
            }
            Outcome::Dropped => Change::None,
        }
    }

    fn answered(&mut self, now: Duration, slot: &StartedRequest, measured: Option<u64>) -> Change {
        let lane = &mut self.lanes[slot.direction as usize];
        match lane.presence.answered(now) {
            Some(after) => {
                lane.window.restart(now);
                Change::Back { after }
            }
            None => {
                lane.window.answered(slot.began, now, measured);
                if let (Direction::Down, Some(bytes)) = (slot.direction, measured) {
                    self.pieces.answered(now, now.saturating_sub(slot.began), bytes);
                }
                Change::None
            }
        }
    }

    fn failed(&mut self, now: Duration, slot: &StartedRequest, why: &str, jitter: u32) -> Change {
        let lane = &mut self.lanes[slot.direction as usize];
        if lane.presence.away().is_none() {
            lane.window.failed(slot.began, now);
        }
        match lane.presence.failed(slot.began, now, why, jitter) {
            true => Change::Away,
            false => Change::None,
        }
    }

    fn note_read(&mut self, now: Duration, class: Priority, direction: Direction) {
        if class == Priority::Read && direction == Direction::Down {
            self.reads_until = now + READS_LINGER;
        }
    }

    fn reads_are_active(&self, now: Duration) -> bool {
        let lane = &self.lanes[Direction::Down as usize];
        now < self.reads_until || lane.in_use[Priority::Read as usize] > 0 || lane.queued(Priority::Read)
    }

    /// Bytes that background downloads may have under way when another begins. What other downloads have under way takes
    /// the same link.
    fn background_bytes_max(&self, now: Duration) -> u64 {
        if !self.reads_are_active(now) {
            return bytes_in(self.pieces.fastest(), DELAY_IDLE).clamp(IDLE_BYTES.0, IDLE_BYTES.1);
        }
        let bytes = &self.lanes[Direction::Down as usize].bytes;
        let others = bytes.iter().sum::<u64>() - bytes[Priority::Background as usize];
        self.pieces.under_way_max().saturating_sub(others)
    }

    /// The largest piece of a divisible request of so many bytes that may start now.
    fn piece_bytes_max(&mut self, now: Duration, class: Priority, bytes: u64, rate: Option<u64>) -> u64 {
        let by_rate = rate.map_or(u64::MAX, |rate| (rate / RATE_PARTS).max(RATE_PIECE_MIN));
        match (class, self.reads_are_active(now)) {
            (Priority::Background, true) => by_rate.min(self.pieces.next(now, bytes.min(by_rate))),
            (Priority::Background, false) => by_rate.min(self.background_bytes_max(now)),
            _ => by_rate,
        }
    }

    pub(super) fn stats(&self, now: Duration) -> PlaceStats {
        let [uploads, downloads] = &self.lanes;
        let since = self.lanes.iter().filter_map(|lane| lane.presence.away()).map(|away| away.0).min();
        PlaceStats {
            place: self.name.clone(),
            away_ms: since.map(|since| now.saturating_sub(since).as_millis() as u64),
            uploads: uploads.stats(now),
            downloads: downloads.stats(now),
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
