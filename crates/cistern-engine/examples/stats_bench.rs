//! What counting costs: nanoseconds per request, alone and with every processor at it.
//!
//! `cargo run --release -p cistern-engine --example stats_bench`

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use cistern_engine::{
    env::real::RealEnv,
    stats::{IoCounters, IoKind},
};

const REQUESTS: u64 = 2_000_000;

#[allow(clippy::disallowed_methods)] // a measurement, outside the engine
fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let _inside = runtime.enter();
    let env = RealEnv::start();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, threads] {
        let counters = IoCounters::new(env.now());
        let slowest = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let begin = Instant::now();
                    for i in 0..REQUESTS {
                        let running = counters.begin(IoKind::Write, env.now());
                        running.end(env.now(), Some((i * 4096, 4096)), true);
                    }
                    slowest.fetch_max(begin.elapsed().as_nanos() as u64, Relaxed);
                });
            }
        });
        let each = Duration::from_nanos(slowest.load(Relaxed) / REQUESTS);
        println!("{threads} threads: {} ns per request, two looks at the clock included", each.as_nanos());
    }
}
