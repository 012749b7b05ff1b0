//! The daemon's end of the control socket.
//!
//! Owns the socket's file: made under a lock so that no daemon takes another's for stale, removed at the end. What comes in is served by `http`.

use std::{
    fs::{DirBuilder, File, Permissions},
    io::ErrorKind,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    task::Context,
    time::Duration,
};

use tokio::net::UnixListener;

use crate::{
    control::DIRECTORY,
    daemon::{
        Daemon,
        accept::accept_all,
        http::{self, Door},
    },
    failure::{Failure, Outcome, is_full},
    short_name::short_name,
};

/// Connections served at a time; more wait.
const CONNECTIONS_MAX: usize = 64;
/// Sockets of one process id to try: more than one only where hosts or containers share a
/// state directory.
const NAMES_MAX: u32 = 16;

/// How often is looked whether a full disk has room again.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(1);

/// The bound control socket. Dropping it removes the file.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Binds this process's socket in the state directory and clears away those of dead daemons. `None` where its disk is full, or its file
    /// system knows no sockets: then no command reaches this daemon, until [`when_there_is_room`](Self::when_there_is_room), and clients are
    /// served all the same.
    pub fn bind(state_dir: &Path) -> Outcome<Option<ControlSocket>> {
        let directory = state_dir.join(DIRECTORY);
        match bind(&directory) {
            Ok(socket) => Ok(Some(socket)),
            Err(e) if is_full(&e) => {
                tracing::warn!(directory = %directory.display(), error = %e, "the disk of the state directory is full: commands do not \
                    reach this daemon until there is room for its control socket");
                Ok(None)
            }
            Err(e) if knows_no_sockets(&e) => {
                tracing::warn!(directory = %directory.display(), "the file system of the state directory knows no sockets: commands \
                    do not reach this daemon. Give it a --state-dir on another one");
                Ok(None)
            }
            Err(e) => {
                Err(Failure::io(format!("cannot make a control socket in {}", directory.display()), &e))
            }
        }
    }

    /// Binds it as soon as that succeeds; never where the file system knows no sockets.
    pub async fn when_there_is_room(state_dir: &Path) -> ControlSocket {
        loop {
            tokio::time::sleep(LOOK_FOR_ROOM).await;
            match bind(&state_dir.join(DIRECTORY)) {
                Ok(socket) => {
                    tracing::info!("commands reach this daemon now");
                    return socket;
                }
                Err(e) if knows_no_sockets(&e) => std::future::pending().await,
                Err(_) => {}
            }
        }
    }

    /// Answers requests until dropped.
    pub async fn serve(&self, daemon: Arc<Daemon>) {
        let accept = |cx: &mut Context<'_>| self.listener.poll_accept(cx);
        let door = Arc::new(Door::Control);
        accept_all("control socket", CONNECTIONS_MAX, accept, |(stream, _)| {
            http::talk(stream, door.clone(), daemon.clone())
        })
        .await;
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // a stale one is cleared by the next daemon
    }
}

/// What mknod(2) answers where a file system has no such files.
fn knows_no_sockets(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP))
}

fn bind(directory: &Path) -> std::io::Result<ControlSocket> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let _lock = lock(&directory.join("lock"))?;
    let (_held, short) = short_name(directory)?;
    clear_stale(&short)?;
    let pid = std::process::id();
    for n in 0..NAMES_MAX {
        let name = if n == 0 { format!("{pid}.sock") } else { format!("{pid}-{n}.sock") };
        match UnixListener::bind(short.join(&name)) {
            Ok(listener) => {
                let path = directory.join(&name);
                std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
                return Ok(ControlSocket { listener, path });
            }
            Err(e) if e.kind() == ErrorKind::AddrInUse => {} // alive: it survived the clearing
            Err(e) => return Err(e),
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Removes sockets nobody listens on. Only under the lock: between `bind` and `listen` a live
/// socket looks dead.
fn clear_stale(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        let connected = std::os::unix::net::UnixStream::connect(&path);
        if connected.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Waits for the exclusive lock of the directory of sockets; held while the file is open.
pub(super) fn lock(path: &Path) -> std::io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    // SAFETY: flock on an open descriptor touches no memory.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(file),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dead daemon's socket is cleared away, a live one of the same process id is left alone.
    #[tokio::test]
    async fn live_sockets_are_never_stolen() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stale = dir.path().join(DIRECTORY).join("1.sock");
        std::fs::create_dir(dir.path().join(DIRECTORY)).expect("writable");
        drop(std::os::unix::net::UnixListener::bind(&stale).expect("bindable"));
        let first = ControlSocket::bind(dir.path()).expect("bindable").expect("there is room");
        assert!(!stale.exists());
        let second = ControlSocket::bind(dir.path()).expect("bindable").expect("there is room");
        assert_ne!(first.path, second.path);
        assert!(first.path.exists());
        let mode = std::fs::metadata(&first.path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let path = second.path.clone();
        drop(second);
        assert!(!path.exists());
    }

    /// The length of the state directory's path does not matter.
    #[tokio::test]
    async fn long_state_directories_work() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let long = dir.path().join("d".repeat(120));
        let socket = ControlSocket::bind(&long).expect("bindable").expect("there is room");
        assert!(socket.path.exists());
        assert_eq!(crate::control::daemons(&long).await.expect("readable").len(), 1);
    }
}
