//! How commands talk to a running daemon: JSON over HTTP/1.1, over a unix socket in the state directory.
//!
//! Every daemon has its own socket `<state dir>/control/<pid>.sock`, so several daemons share a state directory; commands ask them all. The
//! directory is only for its owner (0700), and so is the socket (0600). `docs/reference/http.md` is the interface as others see it. What can
//! be seen is got by GET; what does something is posted, as a [`Request`]: `POST /api/v1/VERB`. This file is the protocol, `client` the
//! commands' end, and `daemon::http` the server.

use std::path::PathBuf;

use cistern_engine::{
    Error,
    units::VolumeId,
    volume::{Collect, Volume, VolumeStatus, WarmTarget},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    failure::Failure,
    live::{Change, SettingStatus},
};

mod client;

pub use client::{ANSWER_LIMIT, DaemonClient, daemons, serving};

/// Name of the directory of sockets in the state directory.
pub const DIRECTORY: &str = "control";
/// What all paths of this version of the interface begin with.
pub const API: &str = "/api/v1/";
/// Bytes of the longest body of a request.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// The field that names the verb of a [`Request`]; over HTTP the path does.
const VERB: &str = "request";

/// What a command can have a daemon do. `volume` is a volume's name, URL or id.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
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

impl Request {
    /// The verb of its path, and its body.
    pub fn parts(&self) -> (String, Value) {
        let mut value = serde_json::to_value(self).expect("requests have string keys");
        match value.as_object_mut().and_then(|fields| fields.remove(VERB)) {
            Some(Value::String(verb)) => (verb, value),
            _ => unreachable!("its tag is a string"),
        }
    }

    /// The request of a verb with this body; an empty one has no fields.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_parts(verb: &str, body: &[u8]) -> Result<Request, serde_json::Error> {
        let mut fields: Map<String, Value> = match body {
            [] => Map::new(),
            body => serde_json::from_slice(body)?,
        };
        fields.insert(VERB.to_owned(), verb.into());
        serde_json::from_value(fields.into())
    }
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
    /// Where its dashboard is, if it has one.
    #[serde(default)]
    pub dashboard: Option<DashboardAddress>,
    pub volumes: Vec<ServedStatus>,
}

/// Where a dashboard is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DashboardAddress {
    pub url: String,
    /// The file with the token that it asks for, where it does.
    pub token_file: Option<PathBuf>,
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
    /// Devices of the kernel that show it, as `cistern attach` made them.
    #[serde(default)]
    pub attached: Vec<PathBuf>,
    /// Changes when another host may have had the volume since this one had it last; null where this host does not write it.
    #[serde(default)]
    pub continuity: Option<String>,
    /// The export's name with a mark of what it shows: refused once that is another history. Null where it is only read.
    #[serde(default)]
    pub lasting_name: Option<String>,
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
    /// For how long the store has neither given nor taken anything: it does not answer, or refuses; null when it does.
    #[serde(default)]
    pub store_away_ms: Option<u64>,
    /// Requests to the store that have failed and are tried again now.
    #[serde(default)]
    pub store_retried: u64,
    /// The bucket keeps versions of what is deleted and replaced there, as far as its answers have told.
    #[serde(default)]
    pub store_keeps_versions: bool,
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

impl ServedStatus {
    /// Whether this is the volume that somebody means.
    pub fn is(&self, volume: &str) -> bool {
        self.name == volume || self.url == volume || self.status.volume.to_string() == volume
    }

    /// What keeps the store from taking data now: it refuses what is to be uploaded, failed a request that is tried again, or is away.
    pub fn store_refusal(&self) -> Option<String> {
        match &self.status.store_error {
            Some(error) if self.status.store_refuses => Some(error.clone()),
            _ if self.store_retried > 0 || self.store_away_ms.is_some() => {
                self.store["last_error"]["text"].as_str().map(str::to_owned)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request comes over the path and the body as it was; fields that it does not have are refused, and so are missing ones.
    #[test]
    fn requests_go_by_path_and_body() {
        let request = Request::Drain { volume: Some("tank".into()), limit_ms: Some(u64::MAX) };
        let (verb, body) = request.parts();
        assert_eq!(verb, "drain");
        assert_eq!(body, serde_json::json!({"volume": "tank", "limit_ms": u64::MAX}));
        let back = Request::of_parts(&verb, body.to_string().as_bytes()).expect("the same");
        assert_eq!(format!("{back:?}"), format!("{request:?}"));
        assert!(matches!(
            Request::of_parts("drain", b""),
            Ok(Request::Drain { volume: None, limit_ms: None })
        ));
        for (verb, body) in [("drain", "{\"volumes\":1}"), ("resize", "{}"), ("drains", "{}"), ("stop", "[]")]
        {
            assert!(Request::of_parts(verb, body.as_bytes()).is_err(), "{verb} {body}");
        }
    }
}
