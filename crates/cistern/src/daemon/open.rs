//! Opening volumes: for the daemon, and for commands that need one for a moment.

use std::{
    fs::{DirBuilder, File},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use cistern_engine::{
    Error,
    cache::{self, ChunkCache},
    codec::{Compression, KeySource},
    disk::{Disk, RealDisk},
    disk_room::DiskRoom,
    env::Env,
    journal::Recoveries,
    store::{Scheduler, Stores},
    units::VolumeId,
    volume::{CreateOptions, OpenOptions, ReadOnlyOptions, Volume, admin},
};
use futures_util::{
    StreamExt,
    future::{join_all, try_join_all},
    stream,
};

use crate::{
    config::{
        CACHE_BYTES_DEFAULT, LiveBase, Resolved, cache_bytes_wanted, fitting_bytes, journal_bytes_fitting,
        journal_bytes_wanted,
    },
    continuity::{note_opening, opened_at},
    creation::{Probing, make},
    daemon::{
        ServePlan, Served, auto_snapshot::Trouble, clones::forget_removed, host, listen::Doors, live::Live,
    },
    failure::{Failure, Kind, Outcome},
    known::Known,
    memory,
    place::{COMMAND_PATIENCE, DAEMON_PATIENCE, OpenStore, StateUrl, VolumeUrl},
    prices::Prices,
    quantity::ByteSize,
    secret, terminal,
};

/// Daemons of one host that can have a chunk cache in the same directory.
const CACHES_MAX: u32 = 16;
/// Journals read at once when many volumes are opened: enough to keep a disk busy. Two hundred at once took more than
/// a GiB of memory.
const RECOVERIES_MAX: usize = 2;
/// Volumes opened at once: enough to wait for a distant store only a few times, and few enough that what all of them need meanwhile
/// is not much.
const OPENINGS_MAX: usize = 16;

/// Opens all volumes of a plan. If one cannot be opened, those that could are closed again.
pub async fn open_all(
    env: &Env,
    plan: &Arc<ServePlan>,
    prices: Prices,
    doors: &Doors,
    scheduler: &Arc<Scheduler>,
) -> Outcome<(Vec<Served>, Opener)> {
    let _frugal = memory::GiveBackAtOnce::begin(); // reading the journals takes much, for a moment
    let finding = plan.volumes.iter().map(|state| find_or_create(env, plan, scheduler, state));
    let found = try_join_all(finding).await?;
    let cached: Vec<&Found> = found.iter().filter(|found| found.wants_cache).collect();
    let sizes: Option<Vec<u64>> = cached.iter().map(|found| found.size_bytes).collect();
    let cache = match cached.is_empty() {
        true => None,
        false => open_cache(env, &plan.settings, sizes.map(|sizes| sizes.iter().sum())).await?,
    };
    let memory_bytes = plan.settings.memory_bytes / plan.volumes.len() as u64;
    let recoveries = Recoveries::new(RECOVERIES_MAX);
    let (env, plan) = (env.clone(), plan.clone());
    let opener = Opener { env, plan, prices, cache, memory_bytes, recoveries };
    let volumes = opener.plan.volumes.iter().zip(found);
    let openings = stream::iter(volumes.map(|(state, found)| opener.open(state, found, doors)));
    let results: Vec<Outcome<Served>> = openings.buffered(OPENINGS_MAX).collect().await;
    let (opened, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let opened: Vec<Served> = opened.into_iter().flatten().collect();
    match failed.into_iter().find_map(Result::err) {
        None => Ok((opened, opener)),
        Some(failure) => {
            join_all(opened.iter().map(|served| served.volume.close(COMMAND_PATIENCE))).await;
            Err(failure)
        }
    }
}

/// A volume that is there.
struct Found {
    store: OpenStore,
    /// `None`: sealed, as long as there is no key.
    size_bytes: Option<u64>,
    wants_cache: bool,
}

async fn find_or_create(
    env: &Env,
    plan: &ServePlan,
    scheduler: &Arc<Scheduler>,
    state: &StateUrl,
) -> Outcome<Found> {
    let volume = &state.volume;
    let wants_cache = wants_cache(&plan.settings, volume);
    let found = match volume.open_scheduled(env, scheduler, DAEMON_PATIENCE).await {
        Ok(store) => admin::info(env, &store.store, &KeySource::None)
            .await
            .map(|info| Found { store, size_bytes: info.state.map(|state| state.size_bytes), wants_cache })
            .map_err(|e| (matches!(e, Error::NotFound(_)), volume.explain(e))),
        Err(failure) => Err((failure.kind == Kind::NotFound, failure)),
    };
    let found = found.map_err(|(is_absent, failure)| {
        let was_there = || where_one_was(&plan.settings.state_dir, volume);
        is_absent.then(was_there).flatten().unwrap_or(failure)
    });
    match (found, plan.create_bytes.filter(|_| state.snapshot.is_none())) {
        (Err(failure), Some(size_bytes)) if failure.kind == Kind::NotFound => {
            let options =
                CreateOptions { size_bytes, compression: Compression::default(), key: KeySource::None };
            Known::of(&plan.settings.state_dir).refuse_plain(&volume.url, None)?;
            if volume.may_be_unmounted()
                && let Some(failure) = where_one_was(&plan.settings.state_dir, volume)
            {
                return Err(Failure {
                    text: format!("{}. None was made in its place", failure.text),
                    ..failure
                });
            }
            make(env, volume, options, Probing::Clouds, Some(&plan.settings.state_dir)).await?;
            tracing::info!(volume = volume.name, size = %ByteSize(size_bytes), "created");
            let store = volume.open_scheduled(env, scheduler, DAEMON_PATIENCE).await?;
            Ok(Found { store, size_bytes: Some(size_bytes), wants_cache })
        }
        (found, _) => found,
    }
}

/// What is said of a place without a volume where this host served one: a file system may not be mounted.
fn where_one_was(state_dir: &Path, volume: &VolumeUrl) -> Option<Failure> {
    let VolumeUrl { url, .. } = volume;
    let directory = opened_at(state_dir, &url.to_string())?;
    let why = if url.path().is_some() { " (is its file system mounted?)" } else { "" };
    let text = format!("there is no volume at {url}, where this host served one before{why}");
    Some(Failure::new(Kind::NotFound, text).hint(format!(
        "bring it back; or if it is gone for good, `cistern create {url}` makes a new one. What is left of the old one's journal is in {}",
        directory.display()
    )))
}

/// Opens the volumes of a daemon.
pub struct Opener {
    env: Env,
    plan: Arc<ServePlan>,
    prices: Prices,
    cache: Option<Arc<ChunkCache>>,
    /// The share of one volume.
    memory_bytes: u64,
    recoveries: Arc<Recoveries>,
}

impl Opener {
    /// The chunk cache that the volumes share.
    pub fn cache(&self) -> Option<Arc<ChunkCache>> {
        self.cache.clone()
    }

    /// Opens a volume again that was closed.
    pub async fn reopen(&self, served: &Served) -> Outcome<Served> {
        let Served { name, url, place, key, uris, socket, store, prices, .. } = served;
        let cache = self.cache.clone().filter(|_| wants_cache(&self.plan.settings, place));
        let opened = self.open_for_writing(place, &store.stores, cache, Some(key)).await?;
        let OpenedForWriting { volume, live, continuity, .. } = opened;
        Ok(Served {
            name: name.clone(),
            url: url.clone(),
            place: place.clone(),
            key: key.clone(),
            uris: uris.clone(),
            socket: socket.clone(),
            store: store.clone(),
            volume,
            prices: prices.clone(),
            live: Some(live),
            continuity: Some(continuity),
            trouble: Trouble::default(),
        })
    }

    async fn open(&self, state: &StateUrl, found: Found, doors: &Doors) -> Outcome<Served> {
        let Found { store, wants_cache, .. } = found;
        let cache = self.cache.clone().filter(|_| wants_cache);
        let volume = &state.volume;
        let opened = match self.plan.read_only || state.snapshot.is_some() {
            true => {
                self.open_read_only(state, &store.stores, cache).await.map(|(v, key)| (v, None, None, key))
            }
            false => {
                let opened = self.open_for_writing(volume, &store.stores, cache, None).await;
                opened.map(|o| (o.volume, Some(o.live), Some(o.continuity), o.key))
            }
        };
        let (name, url) = (state.name(), state.to_string());
        let opened = opened.map_err(|failure| failure.context(format!("cannot open {url}")));
        let (opened, live, continuity, key) = opened?;
        let wanted = self.plan.create_bytes.filter(|_| live.is_some());
        if let Some(wanted) = wanted.filter(|bytes| *bytes != opened.size_bytes()) {
            let (has, wanted) = (ByteSize(opened.size_bytes()), ByteSize(wanted));
            terminal::remark(format!("{name} exists and has {has}, not {wanted}: serving it as it is"));
        }
        let (uris, socket, prices) = (doors.uris(&name), doors.socket(), self.prices.of(&volume.url));
        let (place, trouble) = (volume.clone(), Trouble::default());
        let volume = opened;
        store.stores.ride_out.begin();
        Ok(Served { name, url, place, key, uris, socket, store, volume, prices, live, continuity, trouble })
    }

    async fn open_read_only(
        &self,
        StateUrl { volume, snapshot }: &StateUrl,
        stores: &Stores,
        cache: Option<Arc<ChunkCache>>,
    ) -> Outcome<(Arc<Volume>, KeySource)> {
        let info = admin::info(&self.env, &stores.read, &KeySource::None).await;
        let info = info.map_err(|e| volume.explain(e))?;
        if !info.encrypted {
            Known::of(&self.plan.settings.state_dir).refuse_plain(&volume.url, Some(info.volume))?;
        }
        let opened = secret::unlocking(&self.plan.settings.key, &volume.name, |key| {
            Volume::open_read_only(ReadOnlyOptions {
                env: self.env.clone(),
                stores: stores.clone(),
                cache: cache.clone(),
                key,
                memory_bytes: self.memory_bytes,
                snapshot: snapshot.clone(),
            })
        });
        opened.await
    }

    async fn open_for_writing(
        &self,
        volume: &VolumeUrl,
        stores: &Stores,
        cache: Option<Arc<ChunkCache>>,
        key: Option<&KeySource>,
    ) -> Outcome<OpenedForWriting> {
        let writing = Writing {
            env: &self.env,
            settings: &self.plan.settings,
            prices: &self.prices,
            cache,
            memory_bytes: self.memory_bytes,
            volumes: self.plan.volumes.len() as u64,
            recoveries: self.recoveries.clone(),
            take_over: self.plan.take_over && key.is_none(),
            to_receive: false,
            key,
        };
        writing.open(volume, stores).await
    }
}

/// Opens one volume for a moment, as a daemon with these settings would.
pub async fn open_once(env: &Env, settings: &Resolved, volume: &VolumeUrl) -> Outcome<Arc<Volume>> {
    open_alone(env, settings, volume, false, false).await
}

/// Bytes of the journal of who receives, if there is none yet: what is received does not go through it, and what is put right before hardly fills it. So
/// much that segments are as large as ever.
const RECEIVE_JOURNAL_BYTES: u64 = 384 << 20;

/// Removes the journal that [`open_to_receive`] made, behind a clean close: nothing is in it, and who serves the volume here wants a larger one. One that
/// is large is somebody's, and stays.
pub async fn drop_receive_journal(env: &Env, settings: &Resolved, volume: &Volume) {
    if volume.status().journal_bytes <= RECEIVE_JOURNAL_BYTES
        && let Ok(disk) = volume_disk(&settings.state_dir, volume.id())
        && let Err(e) = admin::journal_discard(env, &disk).await
    {
        tracing::debug!(error = %e, "an empty journal stays");
    }
}

/// As [`open_once`], also where something was received and is not complete, and from a host that is gone.
pub async fn open_to_receive(
    env: &Env,
    settings: &Resolved,
    volume: &VolumeUrl,
    take_over: bool,
) -> Outcome<Arc<Volume>> {
    open_alone(env, settings, volume, true, take_over).await
}

async fn open_alone(
    env: &Env,
    settings: &Resolved,
    volume: &VolumeUrl,
    to_receive: bool,
    take_over: bool,
) -> Outcome<Arc<Volume>> {
    let prices = Prices::load(&settings.prices)?;
    let scheduler = Scheduler::new(env.clone());
    let stores = volume.open_scheduled(env, &scheduler, COMMAND_PATIENCE).await?.stores;
    let (memory_bytes, recoveries) = (settings.memory_bytes, Recoveries::new(1));
    let writing = Writing {
        env,
        settings,
        prices: &prices,
        cache: None,
        memory_bytes,
        volumes: 1,
        recoveries,
        take_over,
        to_receive,
        key: None,
    };
    let opened = writing.open(volume, &stores).await;
    let opened = opened.map_err(|failure| failure.context(format!("cannot open {}", volume.url)))?.volume;
    forget_removed(&volume.name, &opened).await;
    Ok(opened)
}

/// A volume that this host writes.
struct OpenedForWriting {
    volume: Arc<Volume>,
    live: Live,
    /// As [`note_opening`] says.
    continuity: String,
    key: KeySource,
}

/// How volumes are opened for writing.
struct Writing<'a> {
    env: &'a Env,
    settings: &'a Resolved,
    prices: &'a Prices,
    cache: Option<Arc<ChunkCache>>,
    memory_bytes: u64,
    /// That share the disk of the state directory.
    volumes: u64,
    recoveries: Arc<Recoveries>,
    take_over: bool,
    /// Also what is not complete.
    to_receive: bool,
    /// The secret, where it is known.
    key: Option<&'a KeySource>,
}

impl Writing<'_> {
    async fn open(&self, volume: &VolumeUrl, stores: &Stores) -> Outcome<OpenedForWriting> {
        let settings = self.settings;
        let info = admin::info(self.env, &stores.read, &KeySource::None).await;
        let info = info.map_err(|e| volume.explain(e))?;
        let (id, known) = (info.volume, Known::of(&settings.state_dir));
        if !info.encrypted {
            known.refuse_plain(&volume.url, Some(id))?;
        }
        let state = volume_disk(&settings.state_dir, id)?;
        let journal_bytes = self.journal_bytes(info.state.map(|state| state.size_bytes))?;
        let dirty_bytes_max = settings.dirty_bytes_max.unwrap_or(journal_bytes / 4 * 3);
        let base = LiveBase {
            mode: settings.mode,
            dirty_age_max: settings.dirty_age_max,
            dirty_bytes_max,
            space_bound: settings.space_bound,
            sources: settings.sources,
        };
        let live = Live::load(settings.state_dir.join(id.to_string()), base)?;
        let set = live.settings();
        let open = |key| {
            let options = OpenOptions {
                env: self.env.clone(),
                stores: stores.clone(),
                state: state.clone(),
                cache: self.cache.clone(),
                key,
                mode: set.mode.unwrap_or(settings.mode.into()),
                journal_bytes,
                dirty_age_max: set.dirty_age_max.unwrap_or(settings.dirty_age_max),
                dirty_bytes_max: set.dirty_bytes_max.unwrap_or(dirty_bytes_max),
                paused: set.paused.unwrap_or(false),
                memory_bytes: self.memory_bytes,
                recoveries: self.recoveries.clone(),
                host: host::host_name(),
                take_over: self.take_over,
                grace: settings.grace,
                grace_alone: settings.grace_alone,
                cleaning: set.cleaning.unwrap_or(settings.space_bound.into()),
                tariff: self.prices.of(&volume.url).tariff,
            };
            async move {
                match self.to_receive {
                    true => Volume::open_to_receive(options).await,
                    false => Volume::open(options).await,
                }
            }
        };
        let (opened, key) = match self.key {
            Some(key) => (open(key.clone()).await?, key.clone()),
            None => secret::unlocking(&settings.key, &volume.name, open).await?,
        };
        tracing::info!(volume = volume.name, journal = %ByteSize(opened.status().journal_bytes), "opened");
        if info.encrypted
            && let Err(failure) = known.remember(&volume.url, id)
        {
            opened.close(COMMAND_PATIENCE).await;
            return Err(failure);
        }
        let directory = settings.state_dir.join(id.to_string());
        let (url, new) = (volume.url.to_string(), self.env.uuid().to_string());
        match note_opening(&directory, &url, opened.status().epoch, new) {
            Ok(continuity) => Ok(OpenedForWriting { volume: opened, live, continuity, key }),
            Err(e) => {
                opened.close(COMMAND_PATIENCE).await;
                Err(Failure::io(format!("cannot write to {}", directory.display()), &e))
            }
        }
    }

    /// The size of a journal that does not exist yet.
    fn journal_bytes(&self, volume_bytes: Option<u64>) -> Outcome<u64> {
        if let Some(bytes) = self.settings.journal_bytes {
            return Ok(bytes);
        }
        let free = free_bytes(&self.settings.state_dir)?;
        let wanted = match self.to_receive {
            true => RECEIVE_JOURNAL_BYTES,
            false => journal_bytes_wanted(volume_bytes),
        };
        Ok(journal_bytes_fitting(wanted, free, self.volumes))
    }
}

/// The directory of a volume's journal, made if need be.
pub fn volume_disk(state_dir: &Path, volume: VolumeId) -> Outcome<Arc<dyn Disk>> {
    disk(&volume_directory(state_dir, volume)?)
}

/// Where this host keeps what it has of a volume, made if need be.
pub fn volume_directory(state_dir: &Path, volume: VolumeId) -> Outcome<PathBuf> {
    let directory = state_dir.join(volume.to_string());
    make_private(&directory)?;
    Ok(directory)
}

fn disk(directory: &Path) -> Outcome<Arc<dyn Disk>> {
    let disk = RealDisk::open(directory).map_err(|e| Failure::from(e).context(directory.display()))?;
    Ok(Arc::new(disk))
}

/// Whether what is read of a volume is kept in the chunk cache. Where nobody says how large that is, a store on the same
/// file system goes without: a copy would be no nearer, and cost a write for every read and every write.
fn wants_cache(settings: &Resolved, volume: &VolumeUrl) -> bool {
    match (settings.cache_bytes, volume.url.path()) {
        (None, Some(store)) => !on_same_file_system(&store, &settings.cache_dir),
        _ => true,
    }
}

/// Where a directory does not exist yet, what it will be made in counts.
fn on_same_file_system(a: &Path, b: &Path) -> bool {
    let device = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        path.ancestors().find_map(|path| Some(path.metadata().ok()?.dev()))
    };
    device(a).is_some_and(|a| device(b) == Some(a))
}

/// The chunk cache of the daemon. Serving goes on without one if there is no room for it: it makes
/// reading faster and nothing else.
async fn open_cache(
    env: &Env,
    settings: &Resolved,
    volumes_bytes: Option<u64>,
) -> Outcome<Option<Arc<ChunkCache>>> {
    if settings.cache_bytes == Some(0) {
        return Ok(None);
    }
    match find_cache(env, settings, volumes_bytes).await {
        Ok(cache) => Ok(Some(cache)),
        Err(failure) if failure.kind == Kind::Usage => Err(failure),
        Err(failure) => {
            tracing::warn!(%failure, "serving without a chunk cache");
            Ok(None)
        }
    }
}

/// Opens the first cache that no other daemon uses.
async fn find_cache(env: &Env, settings: &Resolved, volumes_bytes: Option<u64>) -> Outcome<Arc<ChunkCache>> {
    for n in 1..=CACHES_MAX {
        let name = if n == 1 { "chunks".to_owned() } else { format!("chunks-{n}") };
        let directory = settings.cache_dir.join(name);
        make_private(&directory)?;
        let bytes = match settings.cache_bytes {
            Some(bytes) => bytes,
            None => default_cache_bytes(&directory, volumes_bytes)?,
        };
        tracing::info!(directory = %directory.display(), size = %ByteSize(bytes), "chunk cache");
        match ChunkCache::open(env.clone(), disk(&directory)?, bytes).await {
            Err(Error::Locked(_)) => {}
            opened => return opened.map_err(|e| Failure::from(e).context("chunk cache")),
        }
    }
    let text = format!("{} is used by {CACHES_MAX} other daemons", settings.cache_dir.display());
    Err(Failure::new(Kind::InUse, text))
}

/// The size of a cache for which none is set.
fn default_cache_bytes(directory: &Path, volumes_bytes: Option<u64>) -> Outcome<u64> {
    let bytes = |name: &str| std::fs::metadata(directory.join(name)).map_or(0, |meta| meta.len());
    let there = bytes(cache::SLAB_NAME);
    let fitting = fitting_bytes(CACHE_BYTES_DEFAULT, free_bytes(directory)? + there);
    Ok(kept_cache_bytes(there, fitting, cache_bytes_wanted(volumes_bytes)))
}

/// A cache of another size starts empty, and the free space is never the same: a cache that is there keeps
/// its size while that is not far from what fits, nor far below what is wanted. A larger one than is wanted stays:
/// other volumes may be served from it next.
fn kept_cache_bytes(there: u64, fitting: u64, wanted: u64) -> u64 {
    let taken = fitting.min(wanted);
    let near = taken / 2..=(fitting.saturating_mul(2)).min(CACHE_BYTES_DEFAULT);
    if there > 0 && near.contains(&there) { there } else { taken }
}

/// Bytes that can still be written to the file system of a directory.
fn free_bytes(directory: &Path) -> Outcome<u64> {
    let opened = File::open(directory);
    let opened = opened
        .map_err(|e| Failure::io(format!("cannot see how much space {} has", directory.display()), &e))?;
    Ok(DiskRoom::beside(&opened).map_or(0, |room| room.free_bytes))
}

/// Makes a directory that only its owner can enter: journals and caches hold the volumes' data.
fn make_private(directory: &Path) -> Outcome {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|e| {
        let failure = Failure::io(format!("cannot make the directory {}", directory.display()), &e);
        failure.hint("name places where this user may write with --state-dir and --cache-dir")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directories that are not there yet lie where they will be made, also those of the working directory; another
    /// file system is told apart.
    #[test]
    fn knows_what_shares_a_file_system() {
        let here = std::env::current_dir().expect("there is one");
        assert!(on_same_file_system(&here.join("a/b/c"), Path::new("d/e")));
        assert!(!on_same_file_system(&here, Path::new("/proc/none")));
    }

    /// A cache survives a start at which more or less of the disk is free, but grows with a disk that became
    /// empty and gives way on one that became full.
    #[test]
    fn a_cache_keeps_its_size() {
        let gib = 1 << 30;
        let kept = |there, fitting| kept_cache_bytes(there, fitting, CACHE_BYTES_DEFAULT);
        assert_eq!(kept(0, 3 * gib), 3 * gib);
        assert_eq!(kept(4 * gib, 3 * gib), 4 * gib);
        assert_eq!(kept(4 * gib, 7 * gib), 4 * gib);
        assert_eq!(kept(4 * gib, 9 * gib), 9 * gib);
        assert_eq!(kept(4 * gib, gib), gib);
        assert_eq!(kept(100 * gib, CACHE_BYTES_DEFAULT), CACHE_BYTES_DEFAULT);
        // For a small volume a small one is made, and a large one that is there stays.
        assert_eq!(kept_cache_bytes(0, 9 * gib, gib), gib);
        assert_eq!(kept_cache_bytes(6 * gib, 9 * gib, gib), 6 * gib);
    }
}
