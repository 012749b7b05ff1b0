//! The signals that stop the daemon, counted by whoever waits for them: SIGTERM, SIGINT, and SIGHUP,
//! which the end of a terminal sends. Before a daemon serves, and in every other command, they end the process.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Kind, Outcome};

/// Signals this close together are one request: `timeout` and some service managers signal the
/// process and then its group.
const ONE_REQUEST: Duration = Duration::from_millis(100);

/// While this lives, SIGINT and SIGTERM end the process at once, with an exit code that says so, also where it has
/// no default for them (the first process of a container).
pub struct EndAtOnce(tokio::task::JoinHandle<()>);

impl EndAtOnce {
    pub fn listen() -> Outcome<EndAtOnce> {
        let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        Ok(EndAtOnce(tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(Kind::Interrupted.exit_code().into());
        })))
    }
}

impl Drop for EndAtOnce {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn on(kind: SignalKind) -> Outcome<Signal> {
    signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e))
}

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Outcome<Signals> {
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
