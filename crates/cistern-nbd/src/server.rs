//! Accepting connections, the cap on their number, and the graceful stop.
//!
//! Owns every task: `serve` returns when all connections have ended or were ended.

use std::{
    future::{Future, poll_fn},
    io,
    os::unix::net::UnixStream,
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
    client_time::ClientTime,
    conn::{Accepted, Conn, Socket},
    export::Exports,
    handover::HandedOn,
    handshake::{Agreed, Handshake, HandshakeError, Step},
    input::Input,
    lanes::Lanes,
    listen::{Listener, TlsMode},
    pool::{Pool, Share},
    session::{self, Allowance, End},
    slots::{Place, Slots},
    succession::{Succession, Turn},
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
    /// How long a client may take until it has chosen an export. The time in which an export is opened for it does not count.
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

/// How a server ended.
#[derive(Debug)]
pub struct ServerEnd {
    /// Connections that had to be cut off because they had not ended in time.
    pub cut_off: usize,
    /// Those that the next server can go on with, in their order of coming.
    pub handed_on: Vec<HandedOn>,
}

/// What a connection's task needs.
struct Entry {
    exports: Arc<dyn Exports>,
    settings: ServerSettings,
    succession: Arc<Succession>,
    share: Share,
    place: Place,
    stop: watch::Receiver<bool>,
}

impl Entry {
    /// The place among those that go on for one another.
    fn turn(&self, agreed: &Agreed) -> Option<Turn> {
        agreed.outlives.then(|| self.succession.join(&agreed.export.properties().name))
    }
}

/// A connection that has ended here, and can go on elsewhere.
struct Left {
    /// Its number in the order of coming.
    order: u64,
    /// Whether another one has begun to go on for it. Then that is the one.
    cut: watch::Receiver<bool>,
    connection: HandedOn,
}

/// The tasks of all connections.
type Tasks = JoinSet<Option<Left>>;

impl Server {
    pub fn new(exports: Arc<dyn Exports>, settings: ServerSettings) -> Server {
        Server { exports, settings, succession: Arc::default() }
    }

    /// Serves connections from all listeners until `stop` is ready, then stops gracefully:
    /// closes the listeners, reads no further request, brings those that were read to their end and
    /// answers them, closes the connections, but for those that another server can go on with. What has not ended within `stop_limit` is cut off.
    ///
    /// Goes on with those that were handed on before it accepts any; it ends those whose export is not what it was.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub async fn serve(
        &self,
        listeners: Vec<Listener>,
        handed_on: Vec<HandedOn>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<ServerEnd> {
        let lanes = Lanes::start(self.settings.on_thread_start)?;
        let slots = Slots::new(self.settings.connections_max, self.settings.unfinished_max);
        let pool = Pool::new(self.settings.bytes_max);
        let (announce, announced) = watch::channel(false);
        let mut tasks = Tasks::new();
        for connection in handed_on {
            let Some(agreed) = connection.agreed(&*self.exports).await else {
                tracing::info!(
                    export = connection.export,
                    "a connection of the server before shows what is not there any more"
                );
                continue;
            };
            let Some(mut place) = slots.enter(None) else { continue };
            if !place.serve() {
                continue;
            }
            let entry = self.entry(Share::new(pool.clone()), place, announced.clone());
            let turn = entry.turn(&agreed); // here and not in its task, for the order
            lanes.spawn(&mut tasks, go_on(connection.socket, agreed, turn, entry));
        }
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
                    let entry = self.entry(share, place, announced.clone());
                    slots.assign(id, lanes.spawn(&mut tasks, connection(socket, tls, entry)));
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

    fn entry(&self, share: Share, place: Place, stop: watch::Receiver<bool>) -> Entry {
        let (exports, settings) = (self.exports.clone(), self.settings.clone());
        let succession = self.succession.clone();
        Entry { exports, settings, succession, share, place, stop }
    }

    async fn wind_down(&self, mut tasks: Tasks) -> ServerEnd {
        let mut left = Vec::new();
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                left.extend(report(ended));
            }
        };
        let mut cut_off = 0;
        if timeout(self.settings.stop_limit, all).await.is_err() {
            cut_off = tasks.len();
            tracing::warn!(connections = cut_off, "connections did not end in time and are cut off");
            tasks.shutdown().await;
        }
        ServerEnd { cut_off, handed_on: heirs(left) }
    }
}

/// Those that go on, in their order of coming. One for which another has begun to go on does not, although it had ended in peace: what
/// its client sent on it last would be done behind what came on the other.
fn heirs(mut left: Vec<Left>) -> Vec<HandedOn> {
    left.retain(|left| !*left.cut.borrow());
    left.sort_by_key(|left| left.order);
    left.into_iter().map(|left| left.connection).collect()
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

/// What a connection's task left; what went wrong with it is logged.
fn report<T>(ended: Result<Option<T>, JoinError>) -> Option<T> {
    match ended {
        Ok(left) => left,
        Err(error) if error.is_cancelled() => None,
        Err(error) => {
            tracing::error!(%error, "a connection's task failed");
            None
        }
    }
}

/// One connection from its first byte to its last.
async fn connection(socket: Accepted, tls: TlsMode, mut entry: Entry) -> Option<Left> {
    let time = ClientTime::new(entry.settings.handshake_limit);
    let (conn, input, agreed) = match negotiate(socket, &tls, &*entry.exports, time, entry.stop.clone()).await
    {
        Err(error) => {
            tracing::info!(%error, "a negotiation failed");
            return None;
        }
        Ok(None) => return None,
        Ok(Some(agreement)) => agreement,
    };
    if !entry.place.serve() {
        tracing::info!("too many connections: closing one that has just finished its negotiation");
        return None;
    }
    let turn = entry.turn(&agreed);
    // Those before it that are handed on had left the line by now, perhaps, and it would not wait for them.
    if turn.is_some() && *entry.stop.borrow() {
        return None;
    }
    transmit((conn, input), agreed, turn, entry).await
}

/// One that another server began.
async fn go_on(socket: UnixStream, agreed: Agreed, turn: Option<Turn>, entry: Entry) -> Option<Left> {
    let watched = socket.set_nonblocking(true).and_then(|()| Socket::watch(Accepted::Unix(socket)));
    let socket =
        watched.inspect_err(|error| tracing::warn!(%error, "cannot go on with a connection")).ok()?;
    transmit((Conn::Plain(socket), Input::new()), agreed, turn, entry).await
}

/// The requests of a connection.
async fn transmit(
    connection: (Conn, Input),
    agreed: Agreed,
    turn: Option<Turn>,
    entry: Entry,
) -> Option<Left> {
    let Entry { settings, share, place, stop, .. } = entry;
    let terms = &agreed.terms;
    tracing::debug!(extended = terms.extended, structured = terms.structured, "a client begins");
    let (bytes_max, stall_limit) = (settings.connection_bytes_max, settings.stall_limit);
    let allowance = Allowance { bytes_max, share, stall_limit };
    let export = (&*agreed.export, &agreed.bitmaps[..]);
    let cut = turn.as_ref().map(Turn::cut);
    match session::run(connection, export, agreed.terms, allowance, stop, turn).await {
        End::Stalled => tracing::warn!(
            seconds = settings.stall_limit.as_secs(),
            "closing a connection: its client did not move, and others waited for the memory it held"
        ),
        End::Violation(reason) => tracing::info!(reason, "a client broke the protocol"),
        End::Broken(error) => tracing::debug!(%error, "a connection broke"),
        End::HandedOn(socket) => {
            let connection = HandedOn::of(&*agreed.export, socket)?;
            return Some(Left { order: place.id(), cut: cut?, connection });
        }
        end => tracing::debug!(?end, "a connection ended"),
    }
    None
}

/// Negotiates, with TLS on the way if that is agreed. `None` if the client wants nothing.
async fn negotiate(
    socket: Accepted,
    tls: &TlsMode,
    exports: &dyn Exports,
    mut time: ClientTime,
    stop: watch::Receiver<bool>,
) -> Result<Option<(Conn, Input, Agreed)>, HandshakeError> {
    let mut conn = Conn::Plain(Socket::watch(socket)?);
    let mut input = Input::new();
    let handshake = Handshake::new((&mut conn, &mut input), exports, tls, &mut time, stop.clone());
    let greeted = { handshake }.greet().await?;
    let Some(flags) = greeted else { return Ok(None) };
    loop {
        // A new one after TLS began, so that nothing said in the clear counts.
        let handshake = Handshake::new((&mut conn, &mut input), exports, tls, &mut time, stop.clone());
        match handshake.haggle(flags).await? {
            Step::Transmit(agreed) => return Ok(Some((conn, input, agreed))),
            Step::StartTls => {
                let mut stop = stop.clone();
                tokio::select! {
                    biased;
                    secured = time.wait(start_tls(conn, tls)) => conn = secured?,
                    _ = stop.wait_for(|stop| *stop) => return Ok(None),
                }
            }
            Step::Close => {
                time.wait(conn.shutdown()).await?;
                return Ok(None);
            }
        }
    }
}

async fn start_tls(conn: Conn, tls: &TlsMode) -> io::Result<Conn> {
    match (conn, tls) {
        (Conn::Plain(socket), TlsMode::Offered(config) | TlsMode::Required(config)) => {
            Ok(Conn::Tls(Box::new(config.acceptor().accept(socket).await?)))
        }
        _ => Err(io::Error::other("TLS cannot begin here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections are handed on in the order in which they came, without those that another one goes on for.
    #[test]
    fn who_was_replaced_is_not_handed_on() {
        let left = |order: u64, cut: bool| {
            let (socket, _other_end) = UnixStream::pair().expect("a pair of sockets");
            let connection = HandedOn { export: "disk".to_owned(), identity: order.to_string(), socket };
            Left { order, cut: watch::channel(cut).1, connection }
        };
        let heirs = heirs(vec![left(7, false), left(1, true), left(3, false)]);
        assert_eq!(heirs.iter().map(|heir| &heir.identity[..]).collect::<Vec<_>>(), ["3", "7"]);
    }
}
