//! Windows against simulated stores: whatever a store bears, the limit finds it, keeps its link
//! filled, and comes back.

use std::time::Duration;

use super::window::{Bounds, DOWNLOADS, UPLOADS, Window};

const STEP: Duration = Duration::from_micros(500);
const MIB: u64 = 1 << 20;

/// A store behind a link that carries one body after the other, and whose own work takes time before it answers.
struct World {
    /// From a request's begin to its first byte, however small it is.
    round_trip: Duration,
    link_bytes_per_s: u64,
    /// More requests than so many at once are refused.
    bears: u32,
}

struct Request {
    began: Duration,
    left: f64,
}

/// What came of a time of always asking as much as the window allows.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes that the link carried.
    carried: f64,
    refused: u64,
    answered: u64,
    limit_max: u32,
    limit_min: u32,
}

struct Run {
    window: Window,
    now: Duration,
    under_way: Vec<Request>,
}

impl Run {
    fn new(bounds: &'static Bounds) -> Run {
        Run { window: Window::new(bounds), now: Duration::from_secs(1), under_way: Vec::new() }
    }

    /// Keeps the window full of requests of `bytes` for `time`.
    fn go(&mut self, world: &World, bytes: u64, time: Duration) -> Seen {
        let end = self.now + time;
        let mut seen = Seen { limit_min: u32::MAX, ..Seen::default() };
        while self.now < end {
            while (self.under_way.len() as u32) < self.window.limit() {
                self.start(world, bytes, &mut seen);
                if self.under_way.len() as u32 >= world.bears {
                    break; // one refusal per step is enough
                }
            }
            if self.under_way.len() as u32 >= self.window.limit() {
                self.window.used_up();
            }
            self.step(world, bytes, &mut seen);
            seen.limit_max = seen.limit_max.max(self.window.limit());
            seen.limit_min = seen.limit_min.min(self.window.limit());
        }
        seen
    }

    fn start(&mut self, world: &World, bytes: u64, seen: &mut Seen) {
        if self.under_way.len() as u32 >= world.bears {
            seen.refused += 1;
            self.window.failed(self.now, self.now + world.round_trip);
        } else {
            self.under_way.push(Request { began: self.now, left: bytes as f64 });
        }
    }

    fn step(&mut self, world: &World, bytes: u64, seen: &mut Seen) {
        self.now += STEP;
        let now = self.now;
        // The link carries one body after the other.
        let mut room = world.link_bytes_per_s as f64 * STEP.as_secs_f64();
        for request in self.under_way.iter_mut().filter(|r| r.began + world.round_trip <= now) {
            let carried = room.min(request.left);
            request.left -= carried;
            room -= carried;
            seen.carried += carried;
        }
        let (done, left) = self.under_way.drain(..).partition(|r| r.left <= 0.0);
        self.under_way = left;
        for request in done {
            seen.answered += 1;
            self.window.answered(request.began, now, Some(bytes));
        }
    }
}

fn used(seen: &Seen, world: &World, time: Duration) -> f64 {
    seen.carried / (world.link_bytes_per_s as f64 * time.as_secs_f64())
}

/// A store that bears N requests is asked about N at once: most of what it could do is done, and
/// few requests are refused.
#[test]
fn finds_what_a_store_bears() {
    let world = World { round_trip: Duration::from_millis(20), link_bytes_per_s: 1 << 34, bears: 24 };
    let mut run = Run::new(&DOWNLOADS);
    run.go(&world, 4096, Duration::from_secs(5));
    let time = Duration::from_secs(20);
    let seen = run.go(&world, 4096, time);
    let could = 24.0 * time.as_secs_f64() / 0.0205;
    assert!(seen.answered as f64 > 0.6 * could, "{seen:?} of {could}");
    assert!((seen.refused as f64) < 0.05 * seen.answered as f64, "{seen:?}");
    assert!(seen.limit_max <= 26, "{seen:?}");
}

/// When a store bears less all of a sudden, one round trip halves the limit once, it settles, and
/// it grows again when the store recovers.
#[test]
fn follows_a_store_down_and_up() {
    let strong = World { round_trip: Duration::from_millis(20), link_bytes_per_s: 1 << 34, bears: 1000 };
    let weak = World { bears: 4, ..strong };
    let mut run = Run::new(&DOWNLOADS);
    run.go(&strong, 4096, Duration::from_secs(5));
    assert_eq!(run.window.limit(), DOWNLOADS.max, "nothing held it");
    let began = run.now;
    for _ in 0..100 {
        run.window.failed(began, began + STEP);
    }
    assert_eq!(run.window.limit(), DOWNLOADS.max / 2, "one round trip, one halving");
    let seen = run.go(&weak, 4096, Duration::from_secs(10));
    assert!(run.window.limit() <= 6 && seen.refused < seen.answered / 5, "{seen:?}");
    run.go(&strong, 4096, Duration::from_secs(60));
    assert_eq!(run.window.limit(), DOWNLOADS.max);
}

/// On a link of any rate the limit falls to what fills it and no further: at least 95 % of the
/// link carries bodies, at one request's size or another.
#[test]
fn fills_a_narrow_link() {
    for (link_bytes_per_s, round_trip_ms) in [(1_000_000, 20), (30_000_000, 20), (30_000_000, 2)] {
        let round_trip = Duration::from_millis(round_trip_ms);
        let world = World { round_trip, link_bytes_per_s, bears: 1000 };
        for (bounds, bytes) in [(&UPLOADS, 16 * MIB), (&DOWNLOADS, 256 << 10), (&DOWNLOADS, 4 * MIB)] {
            let mut run = Run::new(bounds);
            run.go(&world, bytes, Duration::from_secs(600));
            let time = Duration::from_secs(600);
            let seen = run.go(&world, bytes, time);
            let used = used(&seen, &world, time);
            assert!(used > 0.95, "{used} of {link_bytes_per_s} B/s with {bytes}: {seen:?}");
            assert!(seen.limit_min >= bounds.calm, "latency alone went below what fills a link: {seen:?}");
        }
    }
}

/// Many small requests on a narrow link do not pile up: the limit falls to where the link is full.
#[test]
fn does_not_fill_queues() {
    let world = World { round_trip: Duration::from_millis(20), link_bytes_per_s: 30_000_000, bears: 1000 };
    let mut run = Run::new(&DOWNLOADS);
    run.go(&world, 256 << 10, Duration::from_secs(20));
    let time = Duration::from_secs(60);
    let seen = run.go(&world, 256 << 10, time);
    assert!(seen.limit_max <= 16, "{seen:?}");
    assert!(used(&seen, &world, time) > 0.95, "{seen:?}");
}

/// A large body is not slow because it is large, nor does one slow answer among many count.
#[test]
fn size_and_single_outliers_are_no_trouble() {
    let mut run = Run::new(&DOWNLOADS);
    let before = run.window.limit();
    for i in 0..1000 {
        let (bytes, latency) = match i % 50 {
            0 => (4096, Duration::from_secs(2)),
            n if n % 2 == 0 => (4096, Duration::from_millis(20)),
            _ => (4 * MIB, Duration::from_millis(160)),
        };
        run.window.answered(run.now, run.now + latency, Some(bytes));
        run.now += latency;
    }
    assert_eq!(run.window.limit(), before, "it was never used up, and nothing was wrong");
}

/// After an absence the limit begins low and doubles, up to half of what it was.
#[test]
fn comes_back_slowly() {
    let world = World { round_trip: Duration::from_millis(20), link_bytes_per_s: 1 << 34, bears: 1000 };
    let mut run = Run::new(&DOWNLOADS);
    run.go(&world, 4096, Duration::from_secs(5));
    run.under_way.clear();
    run.window.restart(run.now);
    assert_eq!(run.window.limit(), 2);
    run.go(&world, 4096, Duration::from_millis(450));
    assert!((8..=80).contains(&run.window.limit()), "{}", run.window.limit());
    run.go(&world, 4096, Duration::from_secs(5));
    assert!(run.window.limit() > 64);
}
