//! Samples the daemon once a second, for its history and for those who watch.
//!
//! Begins when it is first wanted: with a dashboard at the start, else when somebody asks for a history or for events. An idle daemon that
//! nobody looks at is never sampled.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    control::DaemonStatus,
    daemon::{
        Daemon,
        http::{Frames, HttpBody, Viewer, event},
    },
    history::{History, Moment},
};

/// Milliseconds of a sample.
const STEP_MS: u64 = 1000;

/// What was sampled, and who wants it.
#[derive(Default)]
pub struct Recorder {
    wanted: watch::Sender<bool>,
    history: Mutex<History>,
    frames: Frames,
}

impl Recorder {
    /// Samples from now on.
    pub fn begin(&self) {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }

    /// What was sampled. Whoever asks has the next seconds sampled too.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.begin();
        self.history.lock().expect("nothing panics under this lock")
    }

    /// A viewer of the events, who is told at once how the daemon is; `None` while as many watch as may.
    pub fn watch(&self, status: impl FnOnce() -> DaemonStatus) -> Option<(Viewer, HttpBody)> {
        self.begin();
        self.frames.watch(|| event("status", &status()))
    }
}

/// Samples until dropped.
pub async fn run(daemon: Arc<Daemon>) {
    let recorder = &daemon.recorder;
    if recorder.wanted.subscribe().wait_for(|wanted| *wanted).await.is_err() {
        return;
    }
    let (mut last, mut at) = (daemon.observe(), daemon.env.now());
    loop {
        daemon.env.sleep(until_next(daemon.env.wall_ms())).await;
        let (seen, now) = (daemon.observe(), daemon.env.now());
        let moment = Moment::of(&seen.since(&last), now.saturating_sub(at));
        (last, at) = (seen, now);
        recorder.history().note(&moment);
        if recorder.frames.are_wanted() {
            recorder.frames.send(event("sample", &moment) + &event("status", &daemon.status()));
        }
    }
}

/// The time until the middle of the next second: a sample that is a little early or late still falls into a second of its own.
fn until_next(wall_ms: u64) -> Duration {
    let into_ms = wall_ms % STEP_MS;
    Duration::from_millis(STEP_MS + STEP_MS / 2 - into_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From anywhere in a second the next sample is in the middle of the next one.
    #[test]
    fn every_second_has_a_sample() {
        for (wall_ms, wait_ms) in [(7000, 1500), (7499, 1001), (7500, 1000), (7501, 999), (7999, 501)] {
            assert_eq!(until_next(wall_ms), Duration::from_millis(wait_ms), "{wall_ms}");
        }
    }
}
