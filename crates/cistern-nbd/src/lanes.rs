//! The threads that serve connections, each with an event loop of its own.
//!
//! A connection stays on one thread from its first byte to its last: between the socket and the
//! export no request waits for another thread to wake up. Owns the threads; they end with it.

use std::{
    future::Future,
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::{AbortHandle, JoinSet},
};

/// More threads than this do not help: what a connection costs is mostly its system calls.
const LANES_MAX: usize = 16;

/// One thread.
struct Lane {
    runtime: Handle,
    /// One more reference for each connection that is served here.
    load: Arc<()>,
    /// Its end is the thread's end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    fn start(on_start: fn()) -> io::Result<Lane> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("connections".into()).spawn(move || {
            on_start();
            // The sender only ever goes away.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Lane { runtime: handle, load: Arc::new(()), stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a connection's panic was reported by its task
        }
    }
}

/// The threads of one server.
pub(crate) struct Lanes(Vec<Lane>);

impl Lanes {
    /// Starts one thread per processor; each calls `on_start` first.
    pub(crate) fn start(on_start: fn()) -> io::Result<Lanes> {
        let count = thread::available_parallelism().map_or(2, |n| n.get()).min(LANES_MAX);
        (0..count).map(|_| Lane::start(on_start)).collect::<io::Result<_>>().map(Lanes)
    }

    /// Runs a connection on the thread that serves the fewest.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        tasks: &mut JoinSet<T>,
        connection: impl Future<Output = T> + Send + 'static,
    ) -> AbortHandle {
        let lane =
            self.0.iter().min_by_key(|lane| Arc::strong_count(&lane.load)).expect("there is a processor");
        let place = lane.load.clone();
        let task = async move {
            let ended = connection.await;
            drop(place);
            ended
        };
        tasks.spawn_on(task, &lane.runtime)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Connections spread evenly over the threads, stay there, and make room when they end.
    #[tokio::test]
    async fn connections_spread_evenly() {
        let lanes = Lanes::start(|| {}).expect("threads");
        for _round in 0..2 {
            let mut tasks = JoinSet::new();
            let (tell, mut told) = tokio::sync::mpsc::channel(64);
            let gate = Arc::new(tokio::sync::Barrier::new(4 * lanes.0.len() + 1));
            for _ in 0..4 * lanes.0.len() {
                let (tell, gate) = (tell.clone(), gate.clone());
                lanes.spawn(&mut tasks, async move {
                    let before = thread::current().id();
                    gate.wait().await;
                    assert_eq!(thread::current().id(), before);
                    tell.send(format!("{before:?}")).await.expect("somebody listens");
                });
            }
            drop(tell);
            gate.wait().await;
            let mut counts = BTreeMap::new();
            while let Some(thread) = told.recv().await {
                *counts.entry(thread).or_insert(0) += 1;
            }
            assert_eq!(counts.into_values().collect::<Vec<_>>(), vec![4; lanes.0.len()]);
            tasks.join_all().await;
        }
    }
}
