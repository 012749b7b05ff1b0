//! The serving process: the volumes it holds open, what can be asked of it, and its end.
//!
//! Order of a start: addresses are bound (so that a taken one fails before any volume is claimed),
//! volumes opened, the control socket made, readiness told. Order of a stop: no further request is read,
//! those that were read are answered, connections closed or handed on to the next daemon, then uploads until the time is over, then the journals are closed. Whatever happens, what was
//! acknowledged is in the store or in a journal, or the exit code says that it is not.

mod accept;
mod auto_snapshot;
mod clones;
mod closed;
mod control;
mod devices;
mod handover;
mod host;
mod http;
mod listen;
mod live;
mod open;
mod recorder;
mod rollback;
mod snapshots;
mod stop;
mod verbs;
mod watch;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub use accept::accept_all;
pub use closed::{close_once, closed};
use control::ControlSocket;
pub use host::{host_name, notify_ready};
use open::Opener;
pub use open::{drop_receive_journal, open_once, open_to_receive, volume_directory, volume_disk};

use cistern_engine::{
    cache::ChunkCache,
    codec::KeySource,
    env::Env,
    fetch::WarmStep,
    store::{Scheduler, Store as _},
    volume::{Collect, CollectStep, Volume, WarmTarget},
};
use cistern_nbd::{Server, ServerSettings};
use serde::Serialize;

use crate::{
    config::Resolved,
    continuity::identity,
    control::{DaemonStatus, DashboardAddress, Drained, Resized, ServedStatus, SetDone},
    export::{ExportSet, ServedExports, ShownSnapshots, VolumeExport, lasting_name},
    failure::{Failure, Kind, Outcome},
    live::Change,
    memory,
    observe::{Observed, ObservedVolume, stored_bytes},
    place::{OpenStore, StateUrl, VolumeUrl},
    prices::{Prices, StorePrices},
    quantity::ByteSize,
    signals::{EndAtOnce, Signals},
    terminal,
};

/// How long a command that asks for it lets a daemon upload at its end, whatever a signal would.
const ASKED_DRAIN_MIN: Duration = Duration::from_secs(60);

/// What a daemon is to do.
pub struct ServePlan {
    pub settings: Resolved,
    /// Snapshots are served read-only.
    pub volumes: Vec<StateUrl>,
    /// Create what is missing, with this size.
    pub create_bytes: Option<u64>,
    pub read_only: bool,
    pub take_over: bool,
}

/// One volume being served.
pub struct Served {
    pub name: String,
    pub url: String,
    place: VolumeUrl,
    /// With which it was opened.
    key: KeySource,
    pub uris: Vec<String>,
    /// The first unix socket of these.
    socket: Option<PathBuf>,
    /// As [`note_opening`](crate::continuity::note_opening) says; where this host does not write it, nothing.
    continuity: Option<String>,
    pub store: OpenStore,
    pub volume: Arc<Volume>,
    prices: StorePrices,
    /// Absent when read-only.
    live: Option<live::Live>,
    /// With automatic snapshots.
    trouble: auto_snapshot::Trouble,
}

/// The running daemon, as its control socket sees it.
pub struct Daemon {
    env: Env,
    state_dir: PathBuf,
    /// Each is replaced when it is opened anew; their number and order stay.
    served: Mutex<Vec<Arc<Served>>>,
    opener: Opener,
    /// What clients find.
    exports: Arc<ServedExports>,
    cache: Option<Arc<ChunkCache>>,
    /// All requests to the stores of all volumes wait in it.
    scheduler: Arc<Scheduler>,
    stopping: AtomicBool,
    /// A command asked to stop, and whether to upload what is not in the store first.
    stop_asked: tokio::sync::watch::Sender<Option<bool>>,
    /// Held over a rollback: one at a time.
    rolling_back: tokio::sync::Mutex<()>,
    /// Snapshots that clients asked for.
    shown: Arc<ShownSnapshots>,
    /// Both of these, as clients find them.
    offered: Arc<ExportSet>,
    devices: devices::Devices,
    dashboard: Option<DashboardAddress>,
    recorder: recorder::Recorder,
}

/// Serves until told to stop.
pub async fn run(env: &Env, plan: ServePlan) -> Outcome {
    let at_once = EndAtOnce::listen()?;
    host::start_logging();
    host::raise_descriptor_limit();
    check_names(&plan.volumes)?;
    let plan = Arc::new(plan);
    let prices = Prices::load(&plan.settings.prices)?;
    let doors = listen::bind(&plan.settings, &plan.volumes[0].name()).await?;
    let metrics = http::TcpDoor::metrics(&plan.settings).await?;
    let dashboard = http::TcpDoor::dashboard(&plan.settings).await?;
    let limits = listen::server_settings(plan.settings.memory_bytes);
    // Until the volumes are open a signal ends the process: at a passphrase prompt, or while a store does not answer,
    // that is what people expect, and for a volume half open it is a crash like any other.
    let scheduler = Scheduler::new(env.clone());
    let (served, opener) = open::open_all(env, &plan, prices, &doors, &scheduler).await?;
    let mut signals = Signals::listen()?;
    drop(at_once);
    let (stopping, stop_asked, rolling_back, devices, recorder) = Default::default();
    let shown = Arc::<ShownSnapshots>::default();
    let exports = Arc::new(ServedExports::new(served.iter().map(Served::export).collect()));
    let offered = Arc::new(ExportSet::new(exports.clone(), shown.clone()));
    let served = Mutex::new(served.into_iter().map(Arc::new).collect());
    let cache = opener.cache();
    let daemon = Arc::new(Daemon {
        env: env.clone(),
        state_dir: plan.settings.state_dir.clone(),
        served,
        opener,
        exports,
        cache,
        scheduler,
        stopping,
        stop_asked,
        rolling_back,
        shown,
        offered,
        devices,
        dashboard: dashboard.as_ref().map(http::TcpDoor::dashboard_address),
        recorder,
    });
    daemon.set_rates();
    if dashboard.is_some() {
        daemon.recorder.begin();
    }
    // Commands are answered until the very end: they may ask how far the stop is.
    let control = ControlSocket::bind(&plan.settings.state_dir).map(|socket| {
        let daemon = daemon.clone();
        tokio::spawn(async move {
            let socket = match socket {
                Some(socket) => socket,
                None => ControlSocket::when_there_is_room(&daemon.state_dir).await,
            };
            socket.serve(daemon.clone()).await
        })
    });
    let metrics_url = metrics.as_ref().map(http::TcpDoor::metrics_url);
    let doors_of_http =
        metrics.into_iter().chain(dashboard).map(|door| tokio::spawn(door.serve(daemon.clone())));
    // Beside what `--memory` bounds there are segments on their way, the table of new mappings and the program.
    let memory = tokio::spawn(memory::keep_near(plan.settings.memory_bytes));
    let recorder = tokio::spawn(recorder::run(daemon.clone()));
    let tasks: Vec<_> = doors_of_http.chain([memory, recorder]).collect();
    // Whatever fails from here on: the volumes are open, and closed in an orderly way.
    let served = match &control {
        Ok(_) => serve(&daemon, doors, limits, metrics_url.as_deref(), &mut signals).await,
        Err(_) => Ok(()),
    };
    let drain_limit = match *daemon.stop_asked.borrow() {
        Some(false) => Duration::ZERO,
        Some(true) => plan.settings.drain_timeout.max(ASKED_DRAIN_MIN),
        None => plan.settings.drain_timeout,
    };
    let stopped = stop::stop(&daemon, &plan.settings.state_dir, drain_limit, &mut signals).await;
    if let Some(cache) = &daemon.cache {
        cache.close().await;
    }
    let control = control?;
    for task in std::iter::once(control).chain(tasks) {
        task.abort();
        let _ = task.await; // only ever cancelled
    }
    served.and(stopped)
}

/// Answers clients until the first signal, or until a command asks to stop.
async fn serve(
    daemon: &Arc<Daemon>,
    doors: listen::Doors,
    limits: ServerSettings,
    metrics_url: Option<&str>,
    signals: &mut Signals,
) -> Outcome {
    announce(daemon, metrics_url);
    host::notify_ready();
    let server = Server::new(daemon.offered.clone(), limits);
    let mut asked = daemon.stop_asked.subscribe();
    let stop_asked = async {
        tokio::select! {
            biased;
            () = signals.next() => {}
            _ = asked.wait_for(Option::is_some) => {}
        }
        daemon.stopping.store(true, Ordering::SeqCst);
        daemon.devices.stop();
        host::notify_stopping();
        tracing::info!("stopping: no new requests");
    };
    let handed_on = daemon.take_connections().await;
    let served = tokio::select! {
        biased;
        served = server.serve(doors.listeners, handed_on, stop_asked) => {
            served.map_err(|e| Failure::io("cannot start threads", &e))
        }
        () = watch::watch(daemon) => unreachable!("watches until dropped"),
        () = auto_snapshot::run(daemon) => unreachable!("a daemon has a volume"),
        () = clones::run(daemon) => unreachable!("it never ends"),
    };
    daemon.devices.stop(); // also where the server could not begin
    daemon.devices.ended().await;
    daemon.hand_on(served?.handed_on).await;
    Ok(())
}

impl Served {
    fn paused_since_ms(&self) -> Option<u64> {
        self.live.as_ref().and_then(|live| live.kept().paused_since_ms)
    }

    fn export(&self) -> VolumeExport {
        let description = format!("cistern volume {}", self.url);
        VolumeExport::new(&self.name, &description, Some(&self.identity()), self.volume.clone())
    }

    fn identity(&self) -> String {
        identity(&self.volume.status(), self.continuity.as_deref(), &self.name)
    }
}

/// Exports are found by name, so two volumes of one daemon cannot share theirs.
fn check_names(volumes: &[StateUrl]) -> Outcome {
    for (i, volume) in volumes.iter().enumerate() {
        if volumes[..i].iter().any(|other| other.name() == volume.name()) {
            let failure = Failure::usage(format!("two of the volumes are named {}", volume.name()));
            return Err(failure.hint("serve them by two daemons, each with its own --listen address"));
        }
    }
    Ok(())
}

/// Tells the user where the volumes are and what to try next. The first word of each line is for
/// scripts that wait for readiness.
fn announce(daemon: &Daemon, metrics_url: Option<&str>) {
    let all = daemon.served();
    for served in &all {
        remind(served);
        let size = ByteSize(served.volume.size_bytes());
        let access = if served.volume.is_read_only() { ", read-only" } else { "" };
        for uri in &served.uris {
            terminal::tell(format!("serving {} ({size}{access}) at {uri}", served.name));
        }
    }
    if let Some(url) = metrics_url {
        terminal::tell(format!("metrics: {url}"));
    }
    if let Some(DashboardAddress { url, token_file }) = &daemon.dashboard {
        terminal::tell(format!("dashboard: {url}"));
        if let Some(file) = token_file {
            terminal::tell(format!("         for whoever has the token in {}", file.display()));
        }
    }
    if let Some(uri) = all.first().and_then(|served| served.uris.first()) {
        terminal::tell(format!("try:     nbdinfo '{uri}'"));
        terminal::tell(format!("         nbdcopy --progress IMAGE '{uri}'"));
        terminal::tell(format!("         qemu-img info '{uri}'"));
        terminal::tell(format!("         mkdir -p mnt && nbdfuse mnt '{uri}'     (a file mnt/nbd)"));
        terminal::tell("stop:    Ctrl-C; `cistern status` shows how much is still to be uploaded");
    }
}

/// Says what differs from the command line because somebody set it.
fn remind(served: &Served) {
    let Some(kept) = served.live.as_ref().map(live::Live::kept) else { return };
    let (name, url) = (&served.name, &served.url);
    let set = kept.describe();
    if !set.is_empty() {
        let set = set.join(" ");
        terminal::remark(format!("{name}: {set}, as `cistern set` said (NAME=default takes it back)"));
    }
    if let Some(since) = kept.paused_since_ms {
        let since = cistern_engine::units::utc(since);
        terminal::remark(format!(
            "{name}: write-back is paused since {since}: nothing is uploaded until `cistern resume {url}`"
        ));
    }
}

/// Counters as the control protocol carries them.
fn json(counters: impl Serialize) -> serde_json::Value {
    serde_json::to_value(counters).expect("counters have string keys")
}

impl Daemon {
    /// The state of all volumes.
    pub fn status(&self) -> DaemonStatus {
        let attached = self.attached();
        let served = |served: &Served| ServedStatus {
            name: served.name.clone(),
            url: served.url.clone(),
            uris: served.uris.clone(),
            socket: served.socket.clone(),
            devices: self.devices.of(&served.name),
            attached: attached.iter().filter(|it| it.url == served.url).map(|it| it.device.path()).collect(),
            continuity: served.continuity.clone(),
            lasting_name: served.continuity.as_ref().map(|_| lasting_name(&served.name, &served.identity())),
            store: json(served.store.meter.snapshot()),
            settings: served.live.as_ref().map(live::Live::show).unwrap_or_default(),
            auto_snapshot: served.auto_snapshot(self.env.wall_ms()),
            paused_since_ms: served.paused_since_ms(),
            store_away_ms: served.store.meter.away_for().map(|time| time.as_millis() as u64),
            store_retried: served.store.stores.failures.retried_now(),
            store_keeps_versions: served.store.meter.keeps_versions(),
            status: served.volume.status(),
        };
        DaemonStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            stopping: self.stopping.load(Ordering::Relaxed),
            cache: json(self.cache.as_ref().map(|cache| cache.stats())),
            scheduler: json(self.scheduler.stats()),
            dashboard: self.dashboard.clone(),
            volumes: self.served().iter().map(|one| served(one)).collect(),
        }
    }

    /// What all volumes do and take.
    pub fn observe(&self) -> Observed {
        let volume = |served: &Served| {
            let (store, io) = (served.store.meter.snapshot(), served.volume.io_stats());
            let (status, prices) = (served.volume.status(), served.prices.clone());
            let time = Duration::from_micros(io.period_us);
            ObservedVolume {
                name: served.name.clone(),
                url: served.url.clone(),
                io,
                ahead: served.volume.ahead_counts(),
                decoded: served.volume.decoded_counts(),
                cost: prices.cost(&store, stored_bytes(&status), time),
                prices,
                store,
                status,
                snapshots: served.volume.snapshots().iter().filter(|snapshot| !snapshot.is_bookmark).count()
                    as u64,
                snapshot_overdue_ms: served.auto_snapshot(self.env.wall_ms()).map(|auto| auto.overdue_ms),
                store_away_ms: served.store.meter.away_for().map(|time| time.as_millis() as u64),
                store_retried: served.store.stores.failures.retried_now(),
            }
        };
        Observed {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            wall_ms: self.env.wall_ms(),
            volumes: self.served().iter().map(|one| volume(one)).collect(),
            cache: self.cache.as_ref().map(|cache| cache.stats()),
            scheduler: self.scheduler.stats(),
            clients: self.exports.all_clients() as u64,
            memory_bytes: memory::resident_bytes(),
        }
    }

    /// Waits until everything acknowledged before is committed.
    pub async fn drain(&self, volume: Option<&str>, limit: Option<Duration>) -> Outcome<Drained> {
        let chosen = match volume {
            Some(name) => vec![self.find(name)?],
            None => self.served(),
        };
        let all = futures_util::future::try_join_all(chosen.iter().map(|served| served.volume.drain()));
        let clean = match limit {
            None => all.await.map(|_| true)?,
            Some(limit) => match tokio::time::timeout(limit, all).await {
                Ok(done) => done.map(|_| true)?,
                Err(_) => false,
            },
        };
        let dirty_bytes = chosen.iter().map(|served| served.volume.status().dirty_bytes).sum();
        Ok(Drained { volumes: chosen.iter().map(|served| served.name.clone()).collect(), clean, dirty_bytes })
    }

    /// Sets the size of a volume; clients see it with their next request, or when they reconnect.
    pub async fn resize(&self, volume: &str, size_bytes: u64, force: bool) -> Outcome<Resized> {
        let volume = self.find(volume)?.volume.clone();
        let old_bytes = volume.size_bytes();
        volume.resize(size_bytes, force).await?;
        Ok(Resized { old_bytes, size_bytes })
    }

    /// As a signal does.
    fn ask_to_stop(&self, drain: bool) {
        self.stop_asked.send_replace(Some(drain));
    }

    /// Changes settings of a volume, for now and after restarts. Returns when what they promise
    /// holds.
    pub async fn set(self: &Arc<Self>, volume: &str, changes: &[Change]) -> Outcome<SetDone> {
        let served = self.find(volume)?;
        let live = served.live.as_ref().ok_or_else(|| {
            Failure::usage(format!("{} is served read-only: there is nothing to set", served.name))
        })?;
        // A task of its own: if whoever asked hangs up, what is kept is in effect all the same.
        let change = self.clone().change(served.name.clone(), changes.to_vec());
        tokio::spawn(change).await.expect("a change does not panic and is never cancelled")?;
        let status = served.volume.status();
        if live::reaches_the_store(changes, status.mode) {
            served.volume.drain().await?;
        }
        Ok(SetDone {
            volume: served.name.clone(),
            settings: live.show(),
            paused_since_ms: served.paused_since_ms(),
            dirty_bytes: served.volume.status().dirty_bytes,
        })
    }

    /// Keeps changes of a volume and puts them into effect.
    async fn change(self: Arc<Self>, volume: String, changes: Vec<Change>) -> Outcome {
        let served = self.find(&volume)?;
        let Some(live) = &served.live else { return Ok(()) };
        live.change(&served.volume, &changes, self.env.wall_ms()).await?;
        self.set_rates();
        tracing::info!(volume, ?changes, "settings changed");
        Ok(())
    }

    /// Makes the rates count that the volumes ask for.
    fn set_rates(&self) {
        let all = self.served();
        self.scheduler.set_rates(live::least(all.iter().filter_map(|served| served.live.as_ref())));
    }

    /// Warms the chunk cache with a part of a volume.
    pub async fn warm(&self, volume: &str, what: WarmTarget, from: u64) -> Outcome<WarmStep> {
        Ok(self.find(volume)?.volume.warm(what, from).await?)
    }

    /// Does one step of a collection of garbage.
    pub async fn collect(&self, volume: &str, what: Collect) -> Outcome<CollectStep> {
        Ok(self.find(volume)?.volume.collect(what).await?)
    }

    /// All that are served, as they are now.
    fn served(&self) -> Vec<Arc<Served>> {
        self.served.lock().expect("nothing panics under this lock").clone()
    }

    fn find(&self, volume: &str) -> Outcome<Arc<Served>> {
        let by_name = |served: &Arc<Served>| {
            served.name == volume || served.url == volume || served.volume.id().to_string() == volume
        };
        // A volume comes before a snapshot of it that is served beside it.
        let found =
            self.served().into_iter().filter(by_name).min_by_key(|served| served.volume.is_read_only());
        found.ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("this daemon does not serve {volume}"))
                .hint("`cistern status` lists what is served")
        })
    }
}
