//! The signals that stop the daemon, counted by whoever waits for them: SIGTERM, SIGINT, and SIGHUP,
//! which the end of a terminal sends.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Outcome};

/// Signals this close together are one request: `timeout` and some service managers signal the
/// process and then its group.
const ONE_REQUEST: Duration = Duration::from_millis(100);

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Outcome<Signals> {
        let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        Ok(Signals {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hang_up: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }

    /// Takes what belongs to the signal that came just now, so that the next one is a new request.
    pub async fn settle(&mut self) {
        tokio::time::sleep(ONE_REQUEST).await;
        while self.next().now_or_never().is_some() {}
    }
}
