//! Windows beside models of whole stores, in simulated time: stores that are slow in any number, that
//! saturate, whose link is full. Deterministic; the table in `docs/design/scheduler.md` is what they print.

use std::{cmp::Reverse, collections::BinaryHeap, f64::consts::TAU, time::Duration};

use super::window::{DOWNLOADS, Window};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const LINK_BYTES_PER_S: u64 = 30_000_000;
/// Requests of a second that the saturating stores can do.
const CAPACITY: f64 = 300.0;
/// Seeds that each claim holds for.
const SEEDS: u64 = 3;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Draws that recur.
struct Draws(u64);

impl Draws {
    /// In (0, 1].
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-self.uniform().ln())
    }

    fn lognormal(&mut self, median: Duration, p99: Duration) -> Duration {
        let sigma = (p99.as_secs_f64() / median.as_secs_f64()).ln() / 2.326;
        let normal = (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos();
        median.mul_f64((sigma * normal).exp())
    }
}

/// What a request takes before anything that requests share.
#[derive(Clone, Copy)]
enum Delay {
    Constant(Duration),
    /// Median 20 ms, p99 200 ms.
    LikeS3,
    /// The same on a machine that others load now and then: four times as slow for up to three seconds.
    Disturbed,
}

/// What requests share.
#[derive(Clone, Copy)]
enum Shared {
    Nothing,
    /// Two processors, which do [`CAPACITY`] together.
    Processors,
    /// The same, but the more wait the more work each is: half as much is done with 64 more.
    Thrashing,
    /// One body after the other.
    Link,
}

#[derive(Clone, Copy)]
struct Kind {
    delay: Delay,
    shared: Shared,
}

/// A request on its way: first to what requests share, then to its end. Ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    at: Duration,
    began: Duration,
    bytes: u64,
    ends: bool,
}

/// A store, its clients, and the window between them.
struct World {
    kind: Kind,
    window: Window,
    draws: Draws,
    now: Duration,
    under_way: BinaryHeap<Reverse<Request>>,
    free_at: [Duration; 2],
    slow_until: Duration,
    calm_until: Duration,
}

/// What came of a time of constant demand.
#[derive(Debug, Default)]
struct Seen {
    answers: u64,
    bytes: u64,
    /// Requests that were under way, on average, of as many as there are clients.
    asked: f64,
    limit_min: u32,
    limit_max: u32,
    latencies: Vec<Duration>,
    time: Duration,
}

impl Seen {
    fn per_s(&self) -> f64 {
        self.answers as f64 / self.time.as_secs_f64()
    }

    fn link_use(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64() / LINK_BYTES_PER_S as f64
    }

    fn median_latency(&mut self) -> Duration {
        self.latencies.sort();
        self.latencies[self.latencies.len() / 2]
    }

    fn shown(&mut self) -> String {
        let (median, per_s) = (self.median_latency(), self.per_s());
        let (min, max) = (self.limit_min, self.limit_max);
        format!("limit {min} to {max}, {per_s:.0}/s, median {median:.0?}, asked {:.2} at once", self.asked)
    }
}

impl World {
    fn new(delay: Delay, shared: Shared, seed: u64) -> World {
        let (under_way, free_at, slow_until, calm_until) = Default::default();
        World {
            kind: Kind { delay, shared },
            window: Window::new(&DOWNLOADS),
            draws: Draws(seed),
            now: s(1),
            under_way,
            free_at,
            slow_until,
            calm_until,
        }
    }

    /// `depth` clients, each of which asks again as soon as it is answered; sizes in turns.
    fn go(&mut self, depth: usize, sizes: &[u64], time: Duration) -> Seen {
        let mut seen = Seen { limit_min: u32::MAX, time, ..Seen::default() };
        let end = self.now + time;
        let mut next_size = sizes.iter().cycle();
        loop {
            while self.under_way.len() < depth.min(self.window.limit() as usize) {
                let bytes = *next_size.next().expect("there is a size");
                let at = self.now + self.delay();
                let ends = matches!(self.kind.shared, Shared::Nothing);
                self.under_way.push(Reverse(Request { at, began: self.now, bytes, ends }));
            }
            if self.under_way.len() >= self.window.limit() as usize {
                self.window.used_up();
            }
            let Some(&Reverse(Request { at, began, bytes, ends })) = self.under_way.peek() else { break };
            if at >= end {
                break;
            }
            self.under_way.pop();
            self.now = at;
            if !ends {
                let at = self.share(bytes);
                self.under_way.push(Reverse(Request { at, began, bytes, ends: true }));
                continue;
            }
            self.window.answered(began, at, Some(bytes));
            seen.answers += 1;
            seen.bytes += bytes;
            seen.latencies.push(at - began);
            seen.limit_min = seen.limit_min.min(self.window.limit());
            seen.limit_max = seen.limit_max.max(self.window.limit());
        }
        self.now = end;
        let waited: Duration = seen.latencies.iter().sum();
        seen.asked = waited.as_secs_f64() / time.as_secs_f64() / depth as f64;
        seen
    }

    /// When a request that comes to what is shared now has had its turn.
    fn share(&mut self, bytes: u64) -> Duration {
        let service = match self.kind.shared {
            Shared::Nothing => Duration::ZERO,
            Shared::Link => Duration::from_secs_f64(bytes as f64 / LINK_BYTES_PER_S as f64),
            Shared::Processors => self.draws.exponential(Duration::from_secs_f64(2.0 / CAPACITY)),
            Shared::Thrashing => {
                let work = 1.0 + self.under_way.len().saturating_sub(16) as f64 / 64.0;
                self.draws.exponential(Duration::from_secs_f64(2.0 / CAPACITY).mul_f64(work))
            }
        };
        let servers = if matches!(self.kind.shared, Shared::Link) { 1 } else { 2 };
        let free = self.free_at[..servers].iter_mut().min().expect("there is a server");
        *free = (*free).max(self.now) + service;
        *free
    }

    fn delay(&mut self) -> Duration {
        match self.kind.delay {
            Delay::Constant(delay) => delay,
            Delay::LikeS3 => self.draws.lognormal(ms(20), ms(200)),
            Delay::Disturbed => {
                if self.now >= self.calm_until {
                    self.slow_until = self.now + s(3).mul_f64(self.draws.uniform());
                    self.calm_until = self.slow_until + s(3).mul_f64(self.draws.uniform());
                }
                let factor = if self.now < self.slow_until { 4 } else { 1 };
                self.draws.lognormal(ms(20), ms(200)) * factor
            }
        }
    }
}

/// A store that is slow but in any number is asked as much at once as clients ask, however its delays
/// are spread: the limit never lies below 32, and opens to all of them. It may err for a moment where
/// the store's speed itself changes from second to second.
#[test]
fn opens_where_a_store_is_slow_in_any_number() {
    for (what, delay, least) in [
        ("constant 200 ms", Delay::Constant(ms(200)), 0.95),
        ("median 20 ms, p99 200 ms", Delay::LikeS3, 0.95),
        ("the same, disturbed", Delay::Disturbed, 0.85),
    ] {
        for (depth, seed) in [32, 128].into_iter().flat_map(|depth| (0..SEEDS).map(move |seed| (depth, seed)))
        {
            let mut world = World::new(delay, Shared::Nothing, seed);
            let first = world.go(depth, &[4 * KIB], s(60));
            let mut seen = world.go(depth, &[4 * KIB], s(120));
            println!("{what}, depth {depth}: {}", seen.shown());
            assert!(seen.asked >= least, "{what}, depth {depth}, {seed}: {}", seen.asked);
            let limit_min = seen.limit_min.min(first.limit_min);
            assert!(limit_min >= 32 || least < 0.9, "{what}, depth {depth}, {seed}: {limit_min}");
        }
    }
}

/// A store that does no more however much it is asked keeps its work: the limit may fall to where it
/// saturates, at least nine tenths are done; and when it is fast again, the limit opens again.
#[test]
fn keeps_a_saturated_store_busy_and_comes_back() {
    for (what, delay, shared, least) in [
        ("two processors behind 20 ms", Delay::Constant(ms(20)), Shared::Processors, 0.9),
        ("two processors behind 20 to 200 ms", Delay::LikeS3, Shared::Processors, 0.9),
        ("thrashing behind 20 ms", Delay::Constant(ms(20)), Shared::Thrashing, 0.85),
    ] {
        for seed in 0..SEEDS {
            let mut world = World::new(delay, shared, seed);
            world.go(128, &[4 * KIB], s(60));
            let mut seen = world.go(128, &[4 * KIB], s(120));
            println!("{what}: {}", seen.shown());
            assert!(seen.per_s() >= least * CAPACITY, "{what}, {seed}");
            world.kind = Kind { delay: Delay::LikeS3, shared: Shared::Nothing };
            world.go(128, &[4 * KIB], s(60));
            let mut again = world.go(128, &[4 * KIB], s(60));
            println!("{what}, fast again: {}", again.shown());
            assert!(again.limit_min >= 96, "{what}, {seed}: {}", again.limit_min);
        }
    }
}

/// Large reads keep a link busy, and no more of them are under way than that takes: what waits does
/// so in the queue, where a client's read passes it.
#[test]
fn fills_a_link_and_no_queue() {
    for (what, delay) in [("20 ms", Delay::Constant(ms(20))), ("20 to 200 ms", Delay::LikeS3)] {
        for sizes in [&[256 * KIB][..], &[4 * MIB], &[256 * KIB, 4 * MIB]] {
            for seed in 0..SEEDS {
                let mut world = World::new(delay, Shared::Link, seed);
                world.go(128, sizes, s(120));
                let mut seen = world.go(128, sizes, s(120));
                println!("{what}, {sizes:?}: {}, link {:.3}", seen.shown(), seen.link_use());
                assert!(seen.link_use() >= 0.9, "{what}, {sizes:?}, {seed}: {}", seen.link_use());
                assert!(seen.limit_max <= 20, "{what}, {sizes:?}, {seed}: {}", seen.limit_max);
            }
        }
    }
}
