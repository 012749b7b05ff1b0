//! Accepting connections, the cap on their number, and the graceful stop.
//!
//! Owns every task: `serve` returns when all connections have ended or were ended.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};

use crate::{
    conn::{Accepted, Conn, Socket},
    export::Exports,
    handshake::{Agreed, Handshake, HandshakeError, Step},
    input::Input,
    lanes::Lanes,
    listen::{Listener, TlsMode},
    session::{self, End},
};

/// After accepting failed (no descriptors left, usually) the next try waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Connections at one time; more are closed as soon as they are accepted.
    pub connections_max: usize,
    /// How long a connection may take until it has chosen an export.
    pub handshake_limit: Duration,
    /// How long a graceful stop waits for running requests before it drops them.
    pub stop_limit: Duration,
    /// Bytes one connection may have received, running and waiting to be sent, counting 4 KiB
    /// for every request beside its data. Beyond it the connection is not read until it is
    /// below again. A single request always fits. Not counted: a receive buffer of 256 KiB.
    pub connection_bytes_max: u64,
    /// What every thread that serves connections does first, such as setting its priority.
    pub on_thread_start: fn(),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            handshake_limit: Duration::from_secs(30),
            stop_limit: Duration::from_secs(30),
            // Two of the largest requests.
            connection_bytes_max: 64 << 20,
            on_thread_start: || {},
        }
    }
}

/// An NBD server for a set of exports.
pub struct Server {
    exports: Arc<dyn Exports>,
    settings: Settings,
}

/// What a connection's task needs.
struct Entry {
    socket: Accepted,
    tls: TlsMode,
    exports: Arc<dyn Exports>,
    settings: Settings,
    stop: watch::Receiver<bool>,
}

impl Server {
    pub fn new(exports: Arc<dyn Exports>, settings: Settings) -> Server {
        Server { exports, settings }
    }

    /// Serves connections from all listeners until `stop` is ready, then stops gracefully:
    /// closes the listeners, answers new requests with ESHUTDOWN, lets running ones end, closes
    /// the connections. Returns the number of connections that had to be cut off because they
    /// had not ended within `stop_limit`.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub async fn serve(&self, listeners: Vec<Listener>, stop: impl Future<Output = ()>) -> io::Result<usize> {
        let lanes = Lanes::start(self.settings.on_thread_start)?;
        let (announce, announced) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut stop = pin!(stop);
        let mut full = false;
        let mut turn = 0;
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = tasks.join_next() => {
                    report(ended);
                    continue;
                }
                accepted = accept(&listeners, &mut turn) => accepted,
            };
            match accepted {
                Ok((socket, tls)) if tasks.len() < self.settings.connections_max => {
                    full = false;
                    lanes.spawn(&mut tasks, connection(self.entry(socket, tls, announced.clone())));
                }
                Ok(_too_many) => {
                    if !full {
                        tracing::warn!(
                            max = self.settings.connections_max,
                            "too many connections: closing new ones"
                        );
                    }
                    full = true;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::select! {
                        biased;
                        () = &mut stop => break,
                        () = sleep(ACCEPT_PAUSE) => {}
                    }
                }
            }
        }
        drop(listeners);
        announce.send_replace(true);
        Ok(self.wind_down(tasks).await)
    }

    fn entry(&self, socket: Accepted, tls: TlsMode, stop: watch::Receiver<bool>) -> Entry {
        Entry { socket, tls, exports: self.exports.clone(), settings: self.settings.clone(), stop }
    }

    async fn wind_down(&self, mut tasks: JoinSet<()>) -> usize {
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                report(ended);
            }
        };
        if timeout(self.settings.stop_limit, all).await.is_ok() {
            return 0;
        }
        let cut_off = tasks.len();
        tracing::warn!(connections = cut_off, "connections did not end in time and are cut off");
        tasks.shutdown().await;
        cut_off
    }
}

/// The next connection of any listener; each in its turn is asked first.
async fn accept(listeners: &[Listener], turn: &mut usize) -> io::Result<(Accepted, TlsMode)> {
    poll_fn(|cx| {
        for step in 0..listeners.len() {
            let at = (*turn + step) % listeners.len();
            if let Poll::Ready(accepted) = listeners[at].poll_accept(cx) {
                *turn = at + 1;
                return Poll::Ready(accepted.map(|socket| (socket, listeners[at].tls().clone())));
            }
        }
        Poll::Pending
    })
    .await
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}

/// One connection from its first byte to its last.
async fn connection(entry: Entry) {
    let Entry { socket, tls, exports, settings, stop } = entry;
    let negotiation = negotiate(socket, &tls, &*exports, stop.clone());
    let (conn, input, agreed) = match timeout(settings.handshake_limit, negotiation).await {
        Err(_elapsed) => return tracing::info!("a client did not finish its negotiation in time"),
        Ok(Err(error)) => return tracing::info!(%error, "a negotiation failed"),
        Ok(Ok(None)) => return,
        Ok(Ok(Some(agreement))) => agreement,
    };
    let terms = &agreed.terms;
    tracing::debug!(extended = terms.extended, structured = terms.structured, "a client begins");
    let budget = settings.connection_bytes_max;
    match session::run(conn, input, &*agreed.export, agreed.terms, budget, stop).await {
        End::Violation(reason) => tracing::info!(reason, "a client broke the protocol"),
        End::Broken(error) => tracing::debug!(%error, "a connection broke"),
        end => tracing::debug!(?end, "a connection ended"),
    }
}

/// Negotiates, with TLS on the way if that is agreed. `None` if the client wants nothing.
async fn negotiate(
    socket: Accepted,
    tls: &TlsMode,
    exports: &dyn Exports,
    stop: watch::Receiver<bool>,
) -> Result<Option<(Conn, Input, Agreed)>, HandshakeError> {
    let mut conn = Conn::Plain(Socket::watch(socket)?);
    let mut input = Input::new();
    let greeted = Handshake::new(&mut conn, &mut input, exports, tls, stop.clone()).greet().await?;
    let Some(flags) = greeted else { return Ok(None) };
    loop {
        // A new one after TLS began, so that nothing said in the clear counts.
        let handshake = Handshake::new(&mut conn, &mut input, exports, tls, stop.clone());
        match handshake.haggle(flags).await? {
            Step::Transmit(agreed) => return Ok(Some((conn, input, agreed))),
            Step::StartTls => conn = start_tls(conn, tls).await?,
            Step::Close => {
                conn.shutdown().await?;
                return Ok(None);
            }
        }
    }
}

async fn start_tls(conn: Conn, tls: &TlsMode) -> Result<Conn, HandshakeError> {
    match (conn, tls) {
        (Conn::Plain(socket), TlsMode::Offered(config) | TlsMode::Required(config)) => {
            Ok(Conn::Tls(Box::new(config.acceptor().accept(socket).await?)))
        }
        _ => Err(HandshakeError::Protocol("TLS cannot begin here")),
    }
}
