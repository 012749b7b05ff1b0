//! What is fetched for nobody in particular: one task per volume that runs a bounded number of
//! prefetches at once. What does not fit is dropped: it is a guess, and a reader who needs it
//! fetches it. Dropping the owner ends the task and what it runs.

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{mpsc, oneshot};

use crate::env::{BoxFuture, Env};

/// Prefetches that run at once.
const RUNNING_MAX: usize = 32;
/// Prefetches that wait to run.
const WAITING_MAX: usize = 32;

/// Owns the task.
pub struct PrefetchTask {
    _stop: oneshot::Sender<()>,
}

/// Where prefetches are handed in.
#[derive(Clone)]
pub(super) struct Offers(mpsc::Sender<BoxFuture<()>>);

impl Offers {
    /// Whether it will run.
    pub fn offer(&self, prefetch: BoxFuture<()>) -> bool {
        self.0.try_send(prefetch).is_ok()
    }
}

pub(super) fn start(env: &Env) -> (PrefetchTask, Offers) {
    let (stop, stopped) = oneshot::channel();
    let (offers, waiting) = mpsc::channel(WAITING_MAX);
    env.spawn("prefetch", run(stopped, waiting));
    (PrefetchTask { _stop: stop }, Offers(offers))
}

async fn run(mut stopped: oneshot::Receiver<()>, mut waiting: mpsc::Receiver<BoxFuture<()>>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => return,
            Some(()) = running.next(), if !running.is_empty() => {}
            next = waiting.recv(), if running.len() < RUNNING_MAX => match next {
                Some(prefetch) => running.push(prefetch),
                None => return,
            }
        }
    }
}
