//! Where the daemon listens: addresses given, inherited or chosen; when TLS is required.

use std::{
    fmt::Write,
    fs::DirBuilder,
    io::ErrorKind,
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_engine::{env::real::prefer_latency, uring::use_ring_on_this_thread};
use cistern_nbd::{Address, Listener, ServerSettings, TlsConfig, TlsMode};

use crate::{
    config::{Resolved, paths::Surroundings},
    failure::{Failure, Kind, Outcome},
};

/// Bytes of the longest path of a unix socket (the system's limit, less the final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Time for the requests that were read to end once a stop was asked. What a client waits for longer than
/// this (a full journal, a store that is away) will not end soon.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The bound addresses.
pub struct Doors {
    pub listeners: Vec<Listener>,
    entrances: Vec<Entrance>,
}

/// How clients name one address.
struct Entrance {
    address: Address,
    tls: bool,
}

/// Share of the daemon's memory that clients' requests may take on their way in and out.
const REQUESTS_SHARE: u64 = 2;

/// What every thread that serves requests does first.
pub fn on_thread_start() {
    prefer_latency();
    use_ring_on_this_thread();
}

/// The limits of the NBD server, and how its threads begin.
pub fn server_settings(memory_bytes: u64) -> ServerSettings {
    let bytes_max = memory_bytes / REQUESTS_SHARE;
    ServerSettings { stop_limit: STOP_LIMIT, bytes_max, on_thread_start, ..ServerSettings::default() }
}

/// Binds every address: those given, those inherited from a service manager, or else a unix
/// socket named after the first volume.
pub async fn bind(settings: &Resolved, first_volume: &str) -> Outcome<Doors> {
    let tls = settings.tls_dir.as_deref().map(load_tls).transpose()?;
    let mut doors = Doors { listeners: Vec::new(), entrances: Vec::new() };
    for fd in inherited()? {
        let bad = |e: std::io::Error| Failure::io("an inherited descriptor is not a listening socket", &e);
        let address = Listener::from_fd(fd.try_clone().map_err(bad)?, TlsMode::Off)
            .and_then(|listener| listener.address())
            .map_err(bad)?;
        let mode = terms(&address, tls.as_ref(), settings.insecure_listen).await?;
        let encrypted = is_required(&mode);
        doors.add(Listener::from_fd(fd, mode).map_err(bad)?, encrypted)?;
    }
    let mut wanted = Vec::new();
    for text in &settings.listen {
        let address = text.parse::<Address>();
        wanted.push(address.map_err(|e| Failure::usage(format!("--listen {text}: {e}")))?);
    }
    if wanted.is_empty() && doors.listeners.is_empty() {
        wanted.push(default_address(settings, first_volume)?);
    }
    for address in wanted {
        let address = absolute(address)?;
        let mode = terms(&address, tls.as_ref(), settings.insecure_listen).await?;
        check_length(&address)?;
        let encrypted = is_required(&mode);
        let listener = Listener::bind(&address, mode).await;
        doors.add(listener.map_err(|e| cannot_listen(&address, &e))?, encrypted)?;
    }
    Ok(doors)
}

impl Doors {
    fn add(&mut self, listener: Listener, tls: bool) -> Outcome {
        let address = listener.address().map_err(|e| Failure::io("a listening socket has no address", &e))?;
        self.entrances.push(Entrance { address, tls });
        self.listeners.push(listener);
        Ok(())
    }

    /// The NBD URIs of an export.
    pub fn uris(&self, export: &str) -> Vec<String> {
        self.entrances.iter().map(|entrance| entrance.uri(export)).collect()
    }

    /// The first unix socket.
    pub fn socket(&self) -> Option<PathBuf> {
        self.entrances.iter().find_map(|entrance| match &entrance.address {
            Address::Unix(path) => std::path::absolute(path).ok(),
            Address::Tcp(_) => None,
        })
    }
}

impl Entrance {
    /// As in the NBD project's `doc/uri.md`. The names of exports need no escapes.
    fn uri(&self, export: &str) -> String {
        match &self.address {
            Address::Tcp(address) if self.tls => format!("nbds://{address}/{export}"),
            Address::Tcp(address) => format!("nbd://{address}/{export}"),
            Address::Unix(path) => format!("nbd+unix:///{export}?socket={}", escape(path)),
        }
    }
}

fn escape(path: &Path) -> String {
    let mut out = String::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte.into())
            }
            _ => write!(out, "%{byte:02X}").expect("a string grows"),
        }
    }
    out
}

/// Sockets that systemd or another service manager made for us.
fn inherited() -> Outcome<Vec<OwnedFd>> {
    let fds =
        sd_notify::listen_fds().map_err(|e| Failure::io("cannot take over sockets (LISTEN_FDS)", &e))?;
    // SAFETY: the protocol of LISTEN_FDS gives these descriptors to this process, and nobody else
    // here takes them: this runs once, before anything listens.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}

fn is_required(mode: &TlsMode) -> bool {
    matches!(mode, TlsMode::Required(_))
}

/// Whether an address needs TLS, and an error where that is so and there is none.
async fn terms(address: &Address, tls: Option<&TlsConfig>, insecure: bool) -> Outcome<TlsMode> {
    let Address::Tcp(text) = address else { return Ok(TlsMode::Off) };
    if let Some(tls) = tls {
        return Ok(TlsMode::Required(tls.clone()));
    }
    let failed = |e: std::io::Error| Failure::io(format!("--listen {text}"), &e);
    if insecure || is_loopback(text).await.map_err(failed)? {
        return Ok(TlsMode::Off);
    }
    let failure =
        Failure::usage(format!("listening on {text} without TLS would give everybody there the volume"));
    Err(failure.hint("give certificates with --tls-dir, or listen on a unix socket or on localhost; --insecure-listen insists"))
}

/// Whether an address is one that only this host reaches.
pub async fn is_loopback(address: &str) -> std::io::Result<bool> {
    let found: Vec<_> = tokio::net::lookup_host(address).await?.collect();
    Ok(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()))
}

/// The certificates, by the names that libnbd, nbdkit and qemu give them.
fn load_tls(dir: &Path) -> Outcome<TlsConfig> {
    let (authority, certificate, key) =
        (dir.join("ca-cert.pem"), dir.join("server-cert.pem"), dir.join("server-key.pem"));
    TlsConfig::from_pem_files(&authority, &certificate, &key).map_err(|e| {
        Failure::usage(format!("TLS cannot be set up: {e}"))
            .hint("--tls-dir needs ca-cert.pem, server-cert.pem and server-key.pem")
    })
}

fn default_address(settings: &Resolved, first_volume: &str) -> Outcome<Address> {
    let dir = Surroundings::of_this_process().socket_dir(&settings.state_dir);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|e| {
        Failure::io(format!("cannot make {} for the socket", dir.display()), &e)
            .hint("say where to listen: --listen unix:PATH")
    })?;
    Ok(Address::Unix(dir.join(format!("{first_volume}.sock"))))
}

/// Clients have working directories of their own.
fn absolute(address: Address) -> Outcome<Address> {
    match address {
        Address::Unix(path) => match std::path::absolute(&path) {
            Ok(path) => Ok(Address::Unix(path)),
            Err(e) => Err(Failure::io(format!("--listen unix:{}", path.display()), &e)),
        },
        tcp => Ok(tcp),
    }
}

fn check_length(address: &Address) -> Outcome {
    match address {
        Address::Unix(path) if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX => {
            let failure = Failure::usage(format!("the path of the socket is too long: {}", path.display()));
            Err(failure.hint(format!(
                "the system allows {SOCKET_PATH_BYTES_MAX} bytes: choose a shorter one with --listen unix:PATH"
            )))
        }
        _ => Ok(()),
    }
}

fn cannot_listen(address: &Address, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format!("cannot listen on {address}"), error);
    match error.kind() {
        ErrorKind::AddrInUse => Failure::new(Kind::InUse, failure.text)
            .hint("another server listens there: stop it, or choose another address with --listen"),
        _ => failure.hint("choose another address with --listen HOST:PORT or --listen unix:PATH"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// URIs are what nbdinfo, nbdcopy and qemu understand.
    #[test]
    fn uris() {
        let uri =
            |address: &str, tls| Entrance { address: address.parse().expect("an address"), tls }.uri("tank");
        assert_eq!(uri("unix:/run/x.sock", false), "nbd+unix:///tank?socket=/run/x.sock");
        assert_eq!(uri("unix:/my dir/ä?", false), "nbd+unix:///tank?socket=/my%20dir/%C3%A4%3F");
        assert_eq!(uri("127.0.0.1:10809", false), "nbd://127.0.0.1:10809/tank");
        assert_eq!(uri("[::1]:7", true), "nbds://[::1]:7/tank");
    }

    /// Only addresses of this host may do without TLS, unless the user insists.
    #[tokio::test]
    async fn tls_beyond_this_host() {
        let tcp = |text: &str| text.parse::<Address>().expect("an address");
        assert!(terms(&tcp("127.0.0.1:0"), None, false).await.is_ok());
        assert!(terms(&tcp("[::1]:0"), None, false).await.is_ok());
        assert!(terms(&tcp("unix:/x"), None, false).await.is_ok());
        let refused = terms(&tcp("0.0.0.0:0"), None, false).await.err().expect("must be refused");
        assert_eq!(refused.kind, Kind::Usage);
        assert!(refused.hint.expect("a hint").contains("--tls-dir"));
        assert!(terms(&tcp("0.0.0.0:0"), None, true).await.is_ok());
    }
}
