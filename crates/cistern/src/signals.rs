//! The signals that stop the daemon, counted by whoever waits for them: SIGTERM, SIGINT, and SIGHUP,
//! which the end of a terminal sends. Before a daemon serves, and in every other command, they end the process.

use std::{pin::pin, time::Duration};

use futures_util::FutureExt;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

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
        signals.settle().await;
        drop(signals);
        let _at_once = EndAtOnce::listen()?;
        Ok(work.await)
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
