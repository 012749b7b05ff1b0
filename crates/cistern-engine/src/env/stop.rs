//! A signal that ends futures at their next await point, and tasks that run until it comes.

use std::future::Future;

use tokio::sync::watch;

use super::{Env, Task};

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

/// A task that runs until it is stopped: one of a volume that is dropped without being closed ends too.
pub struct Running {
    task: Task<()>,
    stop_on_drop: StopOnDrop,
}

impl Running {
    /// Runs `task` until `stop` says so.
    pub fn start(
        env: &Env,
        name: &'static str,
        stop: Stop,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Running {
        let stopped = stop.clone();
        let task = env.spawn(name, async move {
            stopped.unless_stopped(task).await;
        });
        Running { task, stop_on_drop: StopOnDrop(stop) }
    }

    /// Stops it at its next await point, and waits for its end.
    pub async fn stop(self) {
        drop(self.stop_on_drop);
        self.task.await;
    }
}
