//! How commands talk to a running daemon: one request per connection line, JSON, over a unix
//! socket in the state directory.
//!
//! Every daemon has its own socket `<state dir>/control/<pid>.sock`, so several daemons share a
//! state directory; commands ask them all. The directory is only for its owner (0700), and so is
//! the socket (0600). Requests and replies are bounded. This file is the protocol and its client;
//! `daemon::control` is the server.

use std::{
    fs::File,
    io::ErrorKind,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_engine::{
    Error,
    units::VolumeId,
    volume::{Collect, Volume, VolumeStatus, WarmTarget},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use crate::{
    failure::{Failure, Kind, Outcome},
    live::{Change, SettingStatus},
};

/// Name of the directory of sockets in the state directory.
pub const DIRECTORY: &str = "control";
/// Bytes of the longest request, its line end included.
pub const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Bytes of the longest reply: room for the status of some thousand volumes.
pub const REPLY_BYTES_MAX: u64 = 8 << 20;
/// Time for a daemon to answer a request that does not wait for anything.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What a command can ask. `volume` is a volume's name, URL or id.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of every volume: [`DaemonStatus`].
    Status,
    /// What clients ask and what that takes: [`crate::observe::Observed`].
    Io,
    /// Replies when everything acknowledged before the request is committed, or when the time is
    /// over: [`Drained`]. All volumes, or one.
    Drain { volume: Option<String>, limit_ms: Option<u64> },
    /// Sets the size of a volume: [`Resized`].
    Resize { volume: String, size_bytes: u64, force: bool },
    /// Changes settings of a volume, for now and after restarts: [`SetDone`]. After a switch to
    /// writethrough the reply comes when everything acknowledged before is committed.
    Set { volume: String, changes: Vec<Change> },
    /// Warms the chunk cache from a cursor on, for about half a second: `WarmStep`.
    Warm { volume: String, what: WarmTarget, from: u64 },
    /// One step of a collection of garbage: `CollectStep`.
    Collect { volume: String, what: Collect },
    /// The snapshots of a volume: a list of `SnapshotStatus`.
    Snapshots { volume: String },
    /// Makes snapshots, all at one instant: a list of `SnapshotStatus`, in the same order. With `wait` the reply comes when they are
    /// in the store.
    Snapshot { snapshots: Vec<NamedSnapshot>, wait: bool },
    /// Changes what there is of a snapshot: null.
    ChangeSnapshot { snapshot: NamedSnapshot, change: SnapshotChange },
    /// Rolls a volume back to a snapshot, makes a snapshot `leave` of what it leaves, and opens it again: null. While clients are
    /// connected only with `force`.
    RollBack { snapshot: NamedSnapshot, leave: String, force: bool },
    /// Serves a device of ublk that was made or readied for it: [`DeviceServed`], when the kernel can start it. Nothing new where it is served
    /// already.
    ServeDevice { export: String, device: u32 },
    /// Stops the daemon, as SIGTERM does: null, at once. Without `drain` what is not in the store stays in the journals.
    Stop { drain: bool },
}

/// A snapshot of a volume, which is named as in a [`Request`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSnapshot {
    pub volume: String,
    pub name: String,
}

/// What can be done to a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotChange {
    Remove,
    /// Remove it, and leave a bookmark.
    LeaveBookmark,
    /// A hold under this tag.
    Hold(String),
    Release(String),
    /// Keep it for a clone, to which this way leads.
    KeepForClone {
        clone: VolumeId,
        way: String,
    },
}

impl SnapshotChange {
    /// Does it.
    pub async fn make(&self, volume: &Volume, name: &str) -> Result<(), Error> {
        match self {
            SnapshotChange::Remove => volume.remove_snapshot(name).await,
            SnapshotChange::LeaveBookmark => volume.leave_bookmark(name).await,
            SnapshotChange::Hold(tag) => volume.hold_snapshot(name, tag).await,
            SnapshotChange::Release(tag) => volume.release_snapshot(name, tag).await,
            SnapshotChange::KeepForClone { clone, way } => volume.keep_for_clone(name, *clone, way).await,
        }
    }
}

/// What a daemon answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply<T> {
    Done(T),
    Failed(Failure),
}

/// The state of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonStatus {
    pub pid: u32,
    pub version: String,
    /// Set once the daemon has been told to stop.
    pub stopping: bool,
    /// Counters of the chunk cache, null without one.
    pub cache: serde_json::Value,
    /// What waits for the stores and what they bear, by place.
    #[serde(default)]
    pub scheduler: serde_json::Value,
    pub volumes: Vec<ServedStatus>,
}

/// The state of one served volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedStatus {
    pub name: String,
    pub url: String,
    /// NBD URIs under which clients find it.
    pub uris: Vec<String>,
    /// The unix socket of these; null if it listens on none.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// Numbers of the devices of ublk that it is.
    #[serde(default)]
    pub devices: Vec<u32>,
    /// Changes when another host may have had the volume since this one had it last; null where this host does not write it.
    #[serde(default)]
    pub continuity: Option<String>,
    /// Requests to the store since the start, by kind.
    pub store: serde_json::Value,
    /// The settings that can be changed while serving, and where they come from; empty when
    /// read-only.
    #[serde(default)]
    pub settings: Vec<SettingStatus>,
    /// How the automatic snapshots are; null where none are asked for.
    #[serde(default)]
    pub auto_snapshot: Option<AutoSnapshotStatus>,
    /// Since when write-back is paused, in milliseconds since 1970; null when it is not.
    #[serde(default)]
    pub paused_since_ms: Option<u64>,
    /// For how long the store has not answered; null when it does.
    #[serde(default)]
    pub store_away_ms: Option<u64>,
    #[serde(flatten)]
    pub status: VolumeStatus,
}

/// How the automatic snapshots of a volume are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoSnapshotStatus {
    pub schedule: String,
    /// When the newest was made, in milliseconds since 1970.
    pub newest_ms: Option<u64>,
    /// For how long one is overdue: something was written, and the newest is older than two of the shortest periods. 0 if none is.
    pub overdue_ms: u64,
    /// Why the last one could not be made or removed.
    pub error: Option<String>,
}

/// What a drain achieved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drained {
    /// Names of the volumes that were asked.
    pub volumes: Vec<String>,
    /// Everything acknowledged before the request is committed.
    pub clean: bool,
    /// Acknowledged bytes that are not committed.
    pub dirty_bytes: u64,
}

/// What holds after a change of settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetDone {
    pub volume: String,
    pub settings: Vec<SettingStatus>,
    pub paused_since_ms: Option<u64>,
    /// Acknowledged bytes that are not committed.
    pub dirty_bytes: u64,
}

/// Who serves a device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DeviceServed {
    pub pid: u32,
}

/// The sizes around a resize.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Resized {
    pub old_bytes: u64,
    pub size_bytes: u64,
}

/// A daemon that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonClient {
    directory: PathBuf,
    socket: String,
}

/// A directory under a name short enough for a socket's address, which is limited to 108 bytes.
/// The name is valid as long as the file is open.
pub fn short_name(directory: &Path) -> std::io::Result<(File, PathBuf)> {
    let file = File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}

/// All daemons that live in a state directory. Sockets that nobody listens on are skipped.
pub async fn daemons(state_dir: &Path) -> Outcome<Vec<DaemonClient>> {
    let directory = state_dir.join(DIRECTORY);
    let failed =
        |e: &std::io::Error| Failure::io(format!("cannot look for daemons in {}", directory.display()), e);
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(&e).hint("ask as the user who runs the daemon, or as root")),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| failed(&e))?.file_name();
        let Some(socket) = name.to_str().filter(|name| name.ends_with(".sock")) else { continue };
        let daemon = DaemonClient { directory: directory.clone(), socket: socket.to_owned() };
        match daemon.connect().await {
            Ok(_) => found.push(daemon),
            Err(e) if is_gone(&e) => {}
            Err(e) => return Err(failed(&e)),
        }
    }
    found.sort_by(|a, b| a.socket.cmp(&b.socket));
    Ok(found)
}

/// Whether nobody listens: not any more, or not from this moment on.
fn is_gone(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::NotFound)
}

/// The daemon that serves a volume (by name, URL or id) and the volume's state, if there is one.
pub async fn serving(state_dir: &Path, volume: &str) -> Outcome<Option<(DaemonClient, ServedStatus)>> {
    for daemon in daemons(state_dir).await? {
        let status: DaemonStatus = match daemon.ask(&Request::Status, Some(ANSWER_LIMIT)).await {
            Ok(status) => status,
            Err(gone) if gone.kind == Kind::NotFound => continue,
            Err(failure) => return Err(failure),
        };
        // A volume comes before a snapshot of it that is served beside it.
        let found = status.volumes.into_iter().filter(|served| served.is(volume));
        if let Some(served) = found.min_by_key(|served| served.status.read_only) {
            return Ok(Some((daemon, served)));
        }
    }
    Ok(None)
}

impl ServedStatus {
    /// Whether this is the volume that somebody means.
    pub fn is(&self, volume: &str) -> bool {
        self.name == volume || self.url == volume || self.status.volume.to_string() == volume
    }
}

impl DaemonClient {
    /// The state of the daemon's volumes.
    pub async fn status(&self) -> Outcome<DaemonStatus> {
        self.ask(&Request::Status, Some(ANSWER_LIMIT)).await
    }

    /// Asks, and waits for the answer for at most `limit`. A daemon that ended meanwhile is
    /// `NotFound`.
    pub async fn ask<T: DeserializeOwned>(&self, request: &Request, limit: Option<Duration>) -> Outcome<T> {
        let answer = self.exchange(request);
        let line = match limit {
            None => answer.await?,
            Some(limit) => tokio::time::timeout(limit, answer).await.map_err(|_| {
                Failure::new(Kind::Other, format!("the daemon behind {} does not answer", self.socket))
            })??,
        };
        let reply: Reply<T> = serde_json::from_slice(&line).map_err(|e| {
            let failure = Failure::new(Kind::Other, format!("the daemon's answer cannot be read: {e}"));
            failure.hint("is the daemon of another version? Restart it")
        })?;
        match reply {
            Reply::Done(done) => Ok(done),
            Reply::Failed(failure) => Err(failure),
        }
    }

    async fn connect(&self) -> std::io::Result<UnixStream> {
        let (_held, directory) = short_name(&self.directory)?;
        UnixStream::connect(directory.join(&self.socket)).await
    }

    async fn exchange(&self, request: &Request) -> Outcome<Vec<u8>> {
        let gone = |e: std::io::Error| {
            Failure::new(Kind::NotFound, format!("the daemon behind {} has ended: {e}", self.socket))
        };
        let mut stream = self.connect().await.map_err(gone)?;
        let mut line = serde_json::to_vec(request).expect("requests have string keys");
        line.push(b'\n');
        debug_assert!(line.len() as u64 <= REQUEST_BYTES_MAX);
        stream.write_all(&line).await.map_err(gone)?;
        let mut reply = Vec::new();
        let mut input = BufReader::new(stream.take(REPLY_BYTES_MAX));
        input.read_until(b'\n', &mut reply).await.map_err(gone)?;
        if reply.is_empty() {
            return Err(gone(ErrorKind::UnexpectedEof.into()));
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that ends while somebody connects resets him: it is gone, as one that ended before.
    #[test]
    fn who_ends_is_gone() {
        for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::ENOENT] {
            assert!(is_gone(&std::io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(!is_gone(&std::io::Error::from_raw_os_error(libc::EACCES)));
    }
}
