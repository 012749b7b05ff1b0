//! Which volume in which store: URLs opened as stores with retries and metering around them.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use cistern_engine::{
    Error,
    env::Env,
    snapshot::check_name,
    store::{self, Meter, OtherPlaces, Retry, RideOut, Scheduler, SharedStore, StoreUrl, Stores},
};

use crate::failure::{Failure, Kind, Outcome};

mod silence;

use silence::Silence;
pub use silence::VERSIONS;

/// How long a command tries to reach the store before it gives up.
pub const COMMAND_PATIENCE: Duration = Duration::from_secs(30);
/// How long one request of the daemon is tried. Uploads begin again after that: this only bounds
/// how long a read hangs before its client gets an error.
pub const DAEMON_PATIENCE: Duration = Duration::from_secs(60);

/// A store that is being used: what the engine gets, and its counters.
#[derive(Clone)]
pub struct OpenStore {
    /// For what somebody waits for: `stores.read`, and it says on stderr when it does not answer.
    pub store: SharedStore,
    pub stores: Stores,
    pub meter: Arc<Meter>,
}

impl OpenStore {
    /// The same store, whose large objects may take as long as a slow link needs. A request that is not answered is tried for
    /// the patience of a command.
    pub fn unhurried(&self, env: &Env) -> SharedStore {
        let retry = Retry::patient(self.meter.clone(), env.clone(), COMMAND_PATIENCE);
        Silence::breaking(Arc::new(retry), env, &self.meter, COMMAND_PATIENCE)
    }
}

/// A URL that names a volume.
#[derive(Clone, Debug)]
pub struct VolumeUrl {
    pub url: StoreUrl,
    pub name: String,
}

/// Parses the URL of a volume; for clap.
pub fn volume_url(text: &str) -> Result<VolumeUrl, String> {
    let url = StoreUrl::parse(text).map_err(|e| e.to_string())?;
    let name = url.volume_name().map_err(|e| e.to_string())?.to_owned();
    Ok(VolumeUrl { url, name })
}

/// The newest state of a volume, or a snapshot of it: `URL` or `URL@NAME`.
#[derive(Clone, Debug)]
pub struct StateUrl {
    pub volume: VolumeUrl,
    pub snapshot: Option<String>,
}

/// A snapshot: `URL@NAME`.
#[derive(Clone, Debug)]
pub struct SnapshotUrl {
    pub volume: VolumeUrl,
    pub name: String,
}

/// Parses the URL of a volume or of a snapshot; for clap.
pub fn state_url(text: &str) -> Result<StateUrl, String> {
    match text.rsplit_once('@').filter(|(_, name)| !name.contains('/')) {
        Some((url, name)) => {
            check_name(name).map_err(|e| e.to_string())?;
            Ok(StateUrl { volume: volume_url(url)?, snapshot: Some(name.to_owned()) })
        }
        None => Ok(StateUrl { volume: volume_url(text)?, snapshot: None }),
    }
}

/// Parses the URL of a snapshot; for clap.
pub fn snapshot_url(text: &str) -> Result<SnapshotUrl, String> {
    match state_url(text)? {
        StateUrl { volume, snapshot: Some(name) } => Ok(SnapshotUrl { volume, name }),
        StateUrl { .. } => Err(format!("'{text}' names no snapshot: write {text}@NAME")),
    }
}

impl StateUrl {
    /// The name of the volume, or of the volume and the snapshot.
    pub fn name(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.volume.name),
            None => self.volume.name.clone(),
        }
    }
}

impl fmt::Display for StateUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume.url),
            None => write!(f, "{}", self.volume.url),
        }
    }
}

impl fmt::Display for SnapshotUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume.url, self.name)
    }
}

/// Parses the URL of a place that holds volumes; for clap.
pub fn place_url(text: &str) -> Result<StoreUrl, String> {
    StoreUrl::parse(text).map_err(|e| e.to_string())
}

impl VolumeUrl {
    /// Opens the store of an existing volume.
    pub async fn open(&self, env: &Env, patience: Duration) -> Outcome<OpenStore> {
        let store = store::open_store(&self.url, env).await.map_err(|error| self.explain(error))?;
        let open = wrap(store, env, patience);
        let others = Beside::of(&self.url, env, &open.meter, Reached::Alike(patience));
        Ok(OpenStore { stores: open.stores.with_others(others), ..open })
    }

    /// Opens the store of an existing volume for a daemon, or for whoever does what a daemon does: its requests wait in the
    /// scheduler, and what is on its way takes as long as the link needs.
    pub async fn open_scheduled(
        &self,
        env: &Env,
        scheduler: &Arc<Scheduler>,
        patience: Duration,
    ) -> Outcome<OpenStore> {
        let store = store::open_store(&self.url, env).await.map_err(|error| self.explain(error))?;
        let meter = Arc::new(Meter::new(store, env.clone()));
        let metered: SharedStore = meter.clone();
        let stores = scheduler.stores(&metered, patience);
        let reached = Reached::Scheduled(scheduler.clone(), patience, stores.ride_out.clone());
        let stores = stores.with_others(Beside::of(&self.url, env, &meter, reached));
        // The first contact: what happens to the store of a daemon later is in its log.
        let store = Silence::breaking(stores.read.clone(), env, &meter, patience);
        Ok(OpenStore { stores: Stores { read: store.clone(), ..stores }, store, meter })
    }

    /// Opens the store by another endpoint than the environment names.
    pub fn open_endpoint(&self, endpoint: &str, env: &Env, patience: Duration) -> Outcome<OpenStore> {
        let store = store::open_endpoint(&self.url, endpoint, env).map_err(|error| self.explain(error))?;
        Ok(wrap(store, env, patience))
    }

    /// Opens the store for a new volume; makes the directory of a directory store.
    pub async fn create(&self, env: &Env, patience: Duration) -> Outcome<OpenStore> {
        let store = store::create_store(&self.url, env).await.map_err(|error| self.explain(error))?;
        Ok(wrap(store, env, patience))
    }

    /// Whether a volume that is missing may lie on a file system that is not mounted: its own directory, or where there is none the
    /// one that it lay in, has nothing in it, as a mount point.
    pub fn may_be_unmounted(&self) -> bool {
        let Some(path) = self.url.path() else { return false };
        let place = if path.is_dir() { &path } else { path.parent().unwrap_or(&path) };
        std::fs::read_dir(place).map_or(true, |mut entries| entries.next().is_none())
    }

    /// An engine error about this volume, in the words of somebody who typed its URL.
    pub fn explain(&self, error: Error) -> Failure {
        let missing = matches!(error, Error::NotFound(_));
        let exists = matches!(error, Error::Exists(_));
        let not_empty = matches!(error, Error::NotEmpty(_));
        let failure = Failure::from(error);
        if not_empty {
            return failure; // it names the place
        }
        if missing {
            let hint = match self.url.parent() {
                Some(parent) => {
                    format!("`cistern ls {parent}` lists what is there, `cistern create` makes a new one")
                }
                None => "`cistern create` makes a new one".to_owned(),
            };
            // In a bucket nothing is missing but the volume.
            let why = if self.url.path().is_some() { format!(": {}", failure.text) } else { String::new() };
            return Failure::new(Kind::NotFound, format!("there is no volume at {}{why}", self.url))
                .hint(hint);
        }
        if exists {
            let failure = Failure::new(Kind::Exists, format!("there is a volume at {} already", self.url));
            return failure
                .hint(format!("serve it with `cistern serve {}`, or choose another name", self.url));
        }
        failure.context(&self.url)
    }
}

/// Other places of the same bucket or file system, from which clones have their beginning.
struct Beside {
    url: StoreUrl,
    env: Env,
    /// Of the volume for which they are asked.
    meter: Arc<Meter>,
    reached: Reached,
}

/// How a store is used.
#[derive(Clone)]
enum Reached {
    /// All requests alike, for so long.
    Alike(Duration),
    Scheduled(Arc<Scheduler>, Duration, RideOut),
}

impl Beside {
    fn of(url: &StoreUrl, env: &Env, meter: &Arc<Meter>, reached: Reached) -> Arc<dyn OtherPlaces> {
        Arc::new(Beside { url: url.clone(), env: env.clone(), meter: meter.clone(), reached })
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "beside {}", self.url)
    }
}

#[async_trait]
impl OtherPlaces for Beside {
    async fn stores(&self, way: &str) -> Result<Stores, Error> {
        let url = self.url.by_way(way)?;
        let store = store::open_store(&url, &self.env).await?;
        let metered: SharedStore = Arc::new(self.meter.beside(store));
        let stores = match &self.reached {
            Reached::Alike(patience) => {
                Stores::same(Arc::new(Retry::new(metered, self.env.clone(), *patience)))
            }
            Reached::Scheduled(scheduler, patience, ride_out) => {
                scheduler.stores_beside(&metered, *patience, ride_out)
            }
        };
        Ok(stores.with_others(Beside::of(&url, &self.env, &self.meter, self.reached.clone())))
    }
}

/// Opens a place that holds volumes, to list them.
pub async fn browse(url: &StoreUrl, env: &Env) -> Outcome<SharedStore> {
    let store = store::browse_store(url, env).await.map_err(|e| Failure::from(e).context(url))?;
    Ok(wrap(store, env, COMMAND_PATIENCE).store)
}

/// Counts every try, and tries again.
fn wrap(store: SharedStore, env: &Env, patience: Duration) -> OpenStore {
    let meter = Arc::new(Meter::new(store, env.clone()));
    let retry = Retry::new(meter.clone(), env.clone(), patience);
    let failures = retry.failures();
    let store = Silence::breaking(Arc::new(retry), env, &meter, patience);
    OpenStore { stores: Stores { failures, ..Stores::same(store.clone()) }, store, meter }
}
