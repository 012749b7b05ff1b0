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
    pool::{Pool, Share},
    session::{self, Allowance, End},
    slots::{Place, Slots},
    succession::Succession,
};

/// After accepting failed (no descriptors left, usually) the next try waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of a server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Connections that are served at one time; more are closed as soon as they are accepted.
    pub connections_max: usize,
    /// Connections beside them that have not chosen an export yet, TLS included. Where there are more, the oldest
    /// of the address with most of them is closed.
    pub unfinished_max: usize,
    /// How long a connection may take until it has chosen an export.
    pub handshake_limit: Duration,
    /// How long a graceful stop waits for running requests before it drops them.
    pub stop_limit: Duration,
    /// Bytes one connection may have received, running and waiting to be sent, counting 4 KiB
    /// for every request beside its data. Beyond it the connection is not read until it is
    /// below again. A single request always fits. Not counted: a receive buffer of 256 KiB.
    pub connection_bytes_max: u64,
    /// Bytes that all connections together may have so beside 128 KiB for each, half of them for requests above
    /// 4 MiB. Whoever needs more waits until others have their replies. Raised to what one request of each kind takes.
    pub bytes_max: u64,
    /// How long a client that neither takes its replies nor goes on sending may keep others waiting for memory
    /// that it holds. Then it loses its connection.
    pub stall_limit: Duration,
    /// What every thread that serves connections does first, such as setting its priority.
    pub on_thread_start: fn(),
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            unfinished_max: 256,
            handshake_limit: Duration::from_secs(30),
            stop_limit: Duration::from_secs(30),
            // Two of the largest requests.
            connection_bytes_max: 64 << 20,
            bytes_max: 256 << 20,
            stall_limit: Duration::from_secs(30),
            on_thread_start: || {},
        }
    }
}

/// An NBD server for a set of exports.
pub struct Server {
    exports: Arc<dyn Exports>,
    settings: ServerSettings,
    succession: Arc<Succession>,
}

/// What a connection's task needs.
struct Entry {
    socket: Accepted,
    tls: TlsMode,
    exports: Arc<dyn Exports>,
    settings: ServerSettings,
    succession: Arc<Succession>,
    share: Share,
    place: Place,
    stop: watch::Receiver<bool>,
}

impl Server {
    pub fn new(exports: Arc<dyn Exports>, settings: ServerSettings) -> Server {
        Server { exports, settings, succession: Arc::default() }
    }

    /// Serves connections from all listeners until `stop` is ready, then stops gracefully:
    /// closes the listeners, reads no further request, brings those that were read to their end and
    /// answers them, closes the connections. Returns the number of connections that had to be cut off because they
    /// had not ended within `stop_limit`.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub async fn serve(&self, listeners: Vec<Listener>, stop: impl Future<Output = ()>) -> io::Result<usize> {
        let lanes = Lanes::start(self.settings.on_thread_start)?;
        let slots = Slots::new(self.settings.connections_max, self.settings.unfinished_max);
        let pool = Pool::new(self.settings.bytes_max);
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
            let placed = accepted.map(|(socket, tls)| (slots.enter(socket.peer()), socket, tls));
            match placed {
                Ok((Some(place), socket, tls)) => {
                    full = false;
                    let id = place.id();
                    let share = Share::new(pool.clone());
                    let entry = self.entry(socket, tls, share, place, announced.clone());
                    slots.assign(id, lanes.spawn(&mut tasks, connection(entry)));
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

    fn entry(
        &self,
        socket: Accepted,
        tls: TlsMode,
        share: Share,
        place: Place,
        stop: watch::Receiver<bool>,
    ) -> Entry {
        let (exports, settings) = (self.exports.clone(), self.settings.clone());
        let succession = self.succession.clone();
        Entry { socket, tls, exports, settings, succession, share, place, stop }
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
    if let Err(error) = ended.or_else(|error| if error.is_cancelled() { Ok(()) } else { Err(error) }) {
        tracing::error!(%error, "a connection's task failed");
    }
}

/// One connection from its first byte to its last.
async fn connection(entry: Entry) {
    let Entry { socket, tls, exports, settings, succession, share, mut place, stop } = entry;
    let negotiation = negotiate(socket, &tls, &*exports, stop.clone());
    let (conn, input, agreed) = match timeout(settings.handshake_limit, negotiation).await {
        Err(_elapsed) => return tracing::info!("a client did not finish its negotiation in time"),
        Ok(Err(error)) => return tracing::info!(%error, "a negotiation failed"),
        Ok(Ok(None)) => return,
        Ok(Ok(Some(agreement))) => agreement,
    };
    if !place.serve() {
        return tracing::info!("too many connections: closing one that has just finished its negotiation");
    }
    let terms = &agreed.terms;
    tracing::debug!(extended = terms.extended, structured = terms.structured, "a client begins");
    let (bytes_max, stall_limit) = (settings.connection_bytes_max, settings.stall_limit);
    let allowance = Allowance { bytes_max, share, stall_limit };
    let turn = agreed.outlives.then(|| succession.join(&agreed.export.properties().name));
    let export = (&*agreed.export, &agreed.bitmaps[..]);
    match session::run((conn, input), export, agreed.terms, allowance, stop, turn).await {
        End::Stalled => tracing::warn!(
            seconds = settings.stall_limit.as_secs(),
            "closing a connection: its client did not move, and others waited for the memory it held"
        ),
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
            Step::StartTls => {
                let mut stop = stop.clone();
                tokio::select! {
                    biased;
                    secured = start_tls(conn, tls) => conn = secured?,
                    _ = stop.wait_for(|stop| *stop) => return Ok(None),
                }
            }
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
