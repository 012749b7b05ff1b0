//! The signals that stop the daemon, counted by whoever waits for them: SIGTERM, SIGINT, and SIGHUP,
//! which the end of a terminal sends. Before a daemon serves, and in every other command, they end the process.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
};

use crate::failure::{Failure, Kind, Outcome};

/// Signals this close together are one request: `timeout` and some service managers signal the
/// process and then its group.
pub const ONE_REQUEST: Duration = Duration::from_millis(100);

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
    requests: mpsc::UnboundedReceiver<()>,
    listening: tokio::task::JoinHandle<()>,
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Outcome<Signals> {
        let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        let mut hang_up = on(SignalKind::hangup())?;
        let (told, requests) = mpsc::unbounded_channel();
        // By itself, so that what comes while nobody waits for the next one is told apart by when it came.
        let listening = tokio::spawn(async move {
            let mut last = None;
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    _ = hang_up.recv() => {}
                }
                if is_new_request(&mut last, Instant::now()) && told.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Signals { requests, listening })
    }

    /// Waits for the next request to end.
    pub async fn next(&mut self) {
        if self.requests.recv().await.is_none() {
            std::future::pending().await // nobody listens any more: the runtime ends
        }
    }
}

/// Whether a signal that comes now is not of the same request as the last one, which began one.
fn is_new_request(last: &mut Option<Instant>, now: Instant) -> bool {
    let is_new = last.is_none_or(|last| now - last >= ONE_REQUEST);
    if is_new {
        *last = Some(now);
    }
    is_new
}

/// Tells work that it shall end.
#[derive(Clone)]
pub struct Interruption(watch::Receiver<bool>);

impl Interruption {
    /// Does work that ends when it is told to by a signal. A second signal ends the process at once.
    pub async fn on_signal<T>(work: impl AsyncFnOnce(Interruption) -> T) -> Outcome<T> {
        let mut signals = Signals::listen()?;
        let (tell, told) = watch::channel(false);
        let mut work = pin!(work(Interruption(told)));
        tokio::select! {
            biased;
            () = signals.next() => {}
            done = &mut work => return Ok(done),
        }
        tell.send_replace(true);
        tokio::select! {
            biased;
            () = signals.next() => std::process::exit(Kind::Interrupted.exit_code().into()),
            done = &mut work => Ok(done),
        }
    }

    /// Does work, or fails when it shall end: then the work is dropped.
    pub async fn or<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let mut told = self.0.clone();
        tokio::select! {
            biased;
            // Nobody tells any more: the process ends, and this with it.
            _ = told.wait_for(|stop| *stop) => Err(Failure::new(Kind::Interrupted, "interrupted")),
            done = work => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes within a tenth of a second of the signal that began a request belongs to it; what comes later is another one.
    #[test]
    fn signals_close_together_are_one_request() {
        let (begin, mut last) = (Instant::now(), None);
        let mut at = |ms| is_new_request(&mut last, begin + Duration::from_millis(ms));
        assert_eq!(
            [0, 1, 99, 100, 150, 200, 1000].map(&mut at),
            [true, false, false, true, false, true, true]
        );
    }
}
