//! The loop of a listener that few talk to: accepts connections, a bounded number at once.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::Semaphore, task::JoinSet};

/// After a failure to accept: out of descriptors, some may be free by then.
const PAUSE: Duration = Duration::from_secs(1);

/// Talks to whoever comes, until dropped, and its connections with it. More than `connections_max` wait in the
/// system's queue.
pub async fn accept_all<C, T: Future<Output = ()> + Send + 'static>(
    what: &'static str,
    connections_max: usize,
    poll_accept: impl Fn(&mut Context<'_>) -> Poll<std::io::Result<C>>,
    talk: impl Fn(C) -> T,
) {
    let slots = Arc::new(Semaphore::new(connections_max));
    let mut connections = JoinSet::new();
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match poll_fn(&poll_accept).await {
            Ok(client) => {
                let talk = talk(client);
                connections.spawn(async move {
                    talk.await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "{what}: cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
