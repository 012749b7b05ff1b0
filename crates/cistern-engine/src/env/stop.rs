//! A signal that ends futures at their next await point.

use std::future::Future;

use tokio::sync::watch;

/// Stops what runs under it, once and for all. Copies are one and the same signal.
#[derive(Clone)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    #[allow(clippy::new_without_default)] // a signal is made on purpose
    pub fn new() -> Stop {
        Stop(watch::Sender::new(false))
    }

    /// Stops everything at its next await point.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Runs `future` unless and until it is stopped: then `None`, and it is dropped.
    pub async fn unless_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut stopped = self.0.subscribe();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => None,
            out = future => Some(out),
        }
    }
}

/// Stops when it is dropped: tasks of an owner that is dropped without being closed end too.
pub struct StopOnDrop(pub Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
