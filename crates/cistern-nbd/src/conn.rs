//! The socket under a connection: Unix or TCP, plain or inside TLS, as one type.

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

/// A client host that lost power answers no probe: after this time of silence, and probes at the
/// interval below, its connection ends instead of holding a place for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// An accepted socket that no event loop watches yet.
pub(crate) enum Accepted {
    Unix(std::os::unix::net::UnixStream),
    Tcp(std::net::TcpStream),
}

impl Accepted {
    /// The host at the other end; `None` for a Unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self {
            Accepted::Unix(_) => None,
            Accepted::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
        }
    }
}

/// A socket that the event loop of its thread watches.
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Gives a socket to this thread's event loop. TCP is set for small replies and for clients that vanish.
    pub(crate) fn watch(accepted: Accepted) -> io::Result<Socket> {
        match accepted {
            Accepted::Unix(stream) => UnixStream::from_std(stream).map(Socket::Unix),
            Accepted::Tcp(stream) => {
                stream.set_nodelay(true)?;
                let keepalive =
                    TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                TcpStream::from_std(stream).map(Socket::Tcp)
            }
        }
    }
}

/// A connection in either of its two states.
pub(crate) enum Conn {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Conn {
    /// Whether it is a Unix socket, and nothing of what was said on it is anywhere else.
    pub(crate) fn is_plain_unix(&self) -> bool {
        matches!(self, Conn::Plain(Socket::Unix(_)))
    }

    /// That socket, watched by no event loop any more.
    pub(crate) fn into_plain_unix(self) -> Option<std::os::unix::net::UnixStream> {
        match self {
            Conn::Plain(Socket::Unix(stream)) => stream.into_std().ok(),
            _ => None,
        }
    }
}

macro_rules! forward {
    ($self:ident, $inner:ident => $call:expr, $($variant:path),*) => {
        match $self.get_mut() {
            $($variant($inner) => {
                let $inner = Pin::new($inner);
                $call
            })*
        }
    };
}

macro_rules! delegate {
    ($type:ty, $($variant:path),*) => {
        impl AsyncRead for $type {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                forward!(self, inner => inner.poll_read(cx, buf), $($variant),*)
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                forward!(self, inner => inner.poll_write(cx, buf), $($variant),*)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                forward!(self, inner => inner.poll_write_vectored(cx, bufs), $($variant),*)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                forward!(self, inner => inner.poll_flush(cx), $($variant),*)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                forward!(self, inner => inner.poll_shutdown(cx), $($variant),*)
            }
        }
    };
}

delegate!(Socket, Socket::Unix, Socket::Tcp);
delegate!(Conn, Conn::Plain, Conn::Tls);
