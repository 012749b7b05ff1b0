//! Looks at something while a load runs: at a daemon and its link once a second, or at whatever one likes.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{link::Link, serve::Server};

const INTERVAL: Duration = Duration::from_secs(1);

/// One look.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at_s: f64,
    pub dirty_bytes: f64,
    /// Carried since the start of the link.
    pub up_bytes: u64,
}

/// Runs `load`, looking at the daemon meanwhile.
pub fn during<T>(server: &Server, link: &Link, load: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Sample>)> {
    let begin = Instant::now();
    let look = || {
        let (up_bytes, at_s) = (link.carried().up, begin.elapsed().as_secs_f64());
        Ok(Sample { at_s, dirty_bytes: dirty_bytes(server)?, up_bytes })
    };
    looking(INTERVAL, look, load)
}

/// Runs `load`, looking at something meanwhile: at once, and then at this interval, or as often as a look is done.
pub fn looking<T, L: Send>(
    interval: Duration,
    mut look: impl FnMut() -> Result<L> + Send,
    load: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<L>)> {
    let (stop, stopped) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let begin = Instant::now();
            let mut seen = Vec::new();
            loop {
                seen.push(look()?);
                let next = interval.mul_f64(seen.len() as f64);
                match stopped.recv_timeout(next.saturating_sub(begin.elapsed())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return anyhow::Ok(seen),
                }
            }
        });
        let outcome = load();
        drop(stop);
        let seen = looks.join().expect("looking does not panic");
        Ok((outcome?, seen?))
    })
}

/// Returns once `bytes` are dirty: the load has got going.
pub fn await_dirty(server: &Server, bytes: f64, limit: Duration) -> Result<()> {
    let begin = Instant::now();
    while dirty_bytes(server)? < bytes {
        ensure!(begin.elapsed() < limit, "the load did not get going");
        std::thread::sleep(INTERVAL / 4); // nobody tells when it is so far
    }
    Ok(())
}

fn dirty_bytes(server: &Server) -> Result<f64> {
    server.status()?["daemons"][0]["volumes"][0]["dirty_bytes"]
        .as_f64()
        .context("no dirty_bytes in the status")
}

/// MB/s uploaded between each sample and the next.
pub fn upload_rates(samples: &[Sample]) -> Vec<f64> {
    samples
        .windows(2)
        .map(|w| (w[1].up_bytes - w[0].up_bytes) as f64 / 1e6 / (w[1].at_s - w[0].at_s))
        .collect()
}
