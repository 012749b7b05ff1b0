//! Addresses and listening sockets: TCP, Unix, or inherited from whoever started the process.
//!
//! A Unix socket that this process made is removed again when its listener goes, unless someone
//! has put another one in its place meanwhile.

use std::{
    fmt, io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    str::FromStr,
    task::{Context, Poll, ready},
};

use tokio::net::{TcpListener, UnixListener};

use crate::{conn::Accepted, tls::TlsConfig};

/// Where to listen: `unix:PATH` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(String),
}

/// Text that is neither `unix:PATH` nor `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address: use unix:PATH or HOST:PORT")]
pub struct BadAddress(String);

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Address::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        Ok(Address::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => f.write_str(address),
        }
    }
}

/// Whether connections of a listener use TLS.
#[derive(Clone, Default)]
pub enum TlsMode {
    /// No TLS; a client that asks for it is refused.
    #[default]
    Off,
    /// A client may ask for TLS. Who can change the traffic can also make it not ask.
    Offered(TlsConfig),
    /// Nothing but the beginning of TLS is answered in the clear.
    Required(TlsConfig),
}

enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A listening socket and the terms of entry.
pub struct Listener {
    door: Door,
    tls: TlsMode,
    /// The socket file to remove, if this process made it.
    _file: Option<SocketFile>,
}

impl Listener {
    /// Listens at an address. A stale Unix socket (nobody answers) is replaced.
    pub async fn bind(address: &Address, tls: TlsMode) -> io::Result<Listener> {
        let (door, file) = match address {
            Address::Unix(path) => {
                let listener = bind_unix(path)?;
                (Door::Unix(listener), Some(SocketFile::at(path)?))
            }
            Address::Tcp(address) => (Door::Tcp(TcpListener::bind(address).await?), None),
        };
        Ok(Listener { door, tls, _file: file })
    }

    /// Takes a socket that is listening already, Unix or TCP, as socket activation hands over.
    pub fn from_fd(fd: OwnedFd, tls: TlsMode) -> io::Result<Listener> {
        let door = match socket2::SockRef::from(&fd).domain()? {
            socket2::Domain::UNIX => {
                let listener = std::os::unix::net::UnixListener::from(fd);
                listener.set_nonblocking(true)?;
                Door::Unix(UnixListener::from_std(listener)?)
            }
            _ => {
                let listener = std::net::TcpListener::from(fd);
                listener.set_nonblocking(true)?;
                Door::Tcp(TcpListener::from_std(listener)?)
            }
        };
        Ok(Listener { door, tls, _file: None })
    }

    /// Where this listens; tells the port when 0 was asked for.
    pub fn address(&self) -> io::Result<Address> {
        match &self.door {
            Door::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Door::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(Address::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned()))
            }
        }
    }

    pub(crate) fn tls(&self) -> &TlsMode {
        &self.tls
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        Poll::Ready(match &self.door {
            Door::Unix(listener) => {
                ready!(listener.poll_accept(cx)).and_then(|(stream, _)| stream.into_std()).map(Accepted::Unix)
            }
            Door::Tcp(listener) => {
                ready!(listener.poll_accept(cx)).and_then(|(stream, _)| stream.into_std()).map(Accepted::Tcp)
            }
        })
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// A socket at which nobody listens any more.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused)
}

/// A socket file of ours, known by its inode.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        let meta = std::fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), device: meta.dev(), inode: meta.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |meta: std::fs::Metadata| meta.dev() == self.device && meta.ino() == self.inode;
        if std::fs::symlink_metadata(&self.path).is_ok_and(ours) {
            // If it cannot be removed it is stale, and the next to bind replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms of address are understood and shown as they were written; others are refused.
    #[test]
    fn addresses() {
        for text in ["unix:/run/x.sock", "unix:relative", "localhost:10809", "[::1]:0", "0.0.0.0:65535"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in ["unix:", "localhost", ":10809", "host:port", "host:65536", ""] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    /// A socket left behind by a dead process is replaced, one in use or of another kind is not,
    /// and ours goes with its listener.
    #[tokio::test]
    async fn unix_sockets_come_and_go() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("s");
        let address = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bind"));
        let listener = Listener::bind(&address, TlsMode::Off).await.expect("the stale socket is replaced");
        assert!(Listener::bind(&address, TlsMode::Off).await.is_err(), "the address is in use");
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "precious").expect("write");
        assert!(Listener::bind(&address, TlsMode::Off).await.is_err(), "a file is not a socket");
        assert!(path.exists());
    }

    /// An inherited descriptor is recognised as what it is, and its file is left alone.
    #[tokio::test]
    async fn inherited_descriptors() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("s");
        let unix = std::os::unix::net::UnixListener::bind(&path).expect("bind");
        let listener = Listener::from_fd(unix.into(), TlsMode::Off).expect("listener");
        assert_eq!(listener.address().expect("address"), Address::Unix(path.clone()));
        drop(listener);
        assert!(path.exists());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let expected = Address::Tcp(tcp.local_addr().expect("address").to_string());
        let listener = Listener::from_fd(tcp.into(), TlsMode::Off).expect("listener");
        assert_eq!(listener.address().expect("address"), expected);
    }
}
