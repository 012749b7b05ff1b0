//! How long a client may take to choose an export.
//!
//! The time that the server takes for its own part does not count: a snapshot is shown once everything before it is in the
//! store, which takes as long as the store does.

use std::{future::Future, io, time::Duration};

use tokio::time::{Instant, timeout_at};

/// The time that is left to a client.
pub(crate) struct ClientTime {
    end: Instant,
}

impl ClientTime {
    pub(crate) fn new(limit: Duration) -> ClientTime {
        ClientTime { end: Instant::now() + limit }
    }

    /// Waits for the client; `TimedOut` when its time is over.
    pub(crate) async fn wait<T>(&self, client: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the client took too long");
        timeout_at(self.end, client).await.unwrap_or_else(|_elapsed| Err(late()))
    }

    /// Waits for the server, which takes nothing of the client's time.
    pub(crate) async fn stand_still<T>(&mut self, server: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = server.await;
        self.end += began.elapsed();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the server takes for its part is added to the client's time, as a whole and no more: a client that asks for two exports has as
    /// long for the second, though the first took long to open.
    #[tokio::test]
    async fn the_servers_time_is_not_the_clients() {
        let mut time = ClientTime::new(Duration::ZERO);
        let (before, began) = (time.end, Instant::now());
        let taken = time
            .stand_still(async {
                let began = Instant::now();
                tokio::task::yield_now().await;
                while began.elapsed().is_zero() {}
                began.elapsed()
            })
            .await;
        let given = time.end - before;
        assert!(taken <= given && given <= began.elapsed(), "{given:?} for {taken:?}");
    }
}
