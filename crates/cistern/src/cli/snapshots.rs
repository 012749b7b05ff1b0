//! What the verbs about snapshots share: asking the daemon that has the volume open, or opening it for a moment.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_engine::{
    Error,
    codec::KeySource,
    store::{Scheduler, Stores},
    volume::{ReadOnlyOptions, SnapshotStatus, Volume, VolumeStatus, admin, snapshot_together, unique_space},
};

use crate::{
    cli::{Context, read_rate::ReadRate, waiting::telling},
    config::{KeySettings, Resolved, Settings, StateSettings},
    control::{self, DaemonClient, Drained, NamedSnapshot, Request, ServedStatus, SnapshotChange},
    daemon,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, SnapshotUrl, VolumeUrl},
    secret,
};

/// How long a rollback goes on while nothing comes to the store.
const STUCK_LIMIT: Duration = Duration::from_secs(60);
const STUCK_PAUSE: Duration = Duration::from_secs(1);
/// Memory for the map of a volume that a command looks at.
const MEMORY_BYTES: u64 = 128 << 20;

/// The settings with which a volume is opened for a moment.
pub fn settings(context: &Context, state: &StateSettings, key: &KeySettings) -> Outcome<Resolved> {
    let flags = Settings { state: state.clone(), key: key.clone(), ..Settings::default() };
    flags.resolve(context.file.clone())
}

impl SnapshotUrl {
    fn named(&self) -> NamedSnapshot {
        NamedSnapshot { volume: self.volume.url.to_string(), name: self.name.clone() }
    }

    /// In the words of somebody who typed its URL.
    fn explain(&self, failure: Failure) -> Failure {
        let kind = failure.kind;
        let failure = failure.context(&self.volume.url);
        match kind {
            Kind::NotFound => failure.hint(format!("`cistern ls {}` lists its snapshots", self.volume.url)),
            _ => failure,
        }
    }
}

/// Makes snapshots, all at one instant. Where nobody serves the volumes they are in the store when this returns. A daemon is given up after some
/// time, if that is said: it may make them later.
pub async fn make(
    context: &Context,
    settings: &Resolved,
    snapshots: &[SnapshotUrl],
    wait: bool,
    limit: Option<Duration>,
) -> Outcome<Vec<SnapshotStatus>> {
    let mut served = Vec::with_capacity(snapshots.len());
    for snapshot in snapshots {
        served.push(control::serving(&settings.state_dir, &snapshot.volume.url.to_string()).await?);
    }
    let explain = |failure: Failure| match snapshots {
        [one] => one.explain(failure),
        _ => failure,
    };
    match one_daemon(snapshots, &served)? {
        Some(daemon) => {
            let request =
                Request::Snapshot { snapshots: snapshots.iter().map(SnapshotUrl::named).collect(), wait };
            let volumes: Vec<&VolumeUrl> = snapshots.iter().map(|snapshot| &snapshot.volume).collect();
            telling(daemon, &volumes, daemon.ask(&request, limit)).await.map_err(explain)
        }
        None => make_here(context, settings, snapshots).await,
    }
}

/// The daemon that has all of the volumes open; `None` if none of them is open.
fn one_daemon<'a>(
    snapshots: &[SnapshotUrl],
    served: &'a [Option<(DaemonClient, ServedStatus)>],
) -> Outcome<Option<&'a DaemonClient>> {
    let daemons: Vec<Option<&DaemonClient>> =
        served.iter().map(|served| served.as_ref().map(|(daemon, _)| daemon)).collect();
    match daemons.iter().position(|daemon| *daemon != daemons[0]) {
        None => Ok(daemons[0]),
        Some(other) => {
            let (first, other) = (&snapshots[0].volume.url, &snapshots[other].volume.url);
            let failure =
                Failure::usage(format!("{first} and {other} are not served by the same daemon of this host"));
            Err(failure.hint(
                "snapshots of one instant need one daemon: serve the volumes together, `cistern serve URL URL2`; or make the \
                 snapshots one after the other",
            ))
        }
    }
}

async fn make_here(
    context: &Context,
    settings: &Resolved,
    snapshots: &[SnapshotUrl],
) -> Outcome<Vec<SnapshotStatus>> {
    let mut open: Vec<Arc<Volume>> = Vec::with_capacity(snapshots.len());
    let mut made = Ok(());
    for snapshot in snapshots {
        match daemon::open_once(&context.env, settings, &snapshot.volume).await {
            Ok(volume) => open.push(volume),
            Err(failure) => {
                made = Err(failure);
                break;
            }
        }
    }
    if made.is_ok() {
        let named: Vec<(&Volume, &str)> = open
            .iter()
            .zip(snapshots)
            .map(|(volume, snapshot)| (&**volume, snapshot.name.as_str()))
            .collect();
        made = snapshot_together(&named).await.map_err(Failure::from);
    }
    let closed = close(&open, "made").await;
    let status = |(volume, snapshot): (&Arc<Volume>, &SnapshotUrl)| volume.snapshot_named(&snapshot.name);
    match made {
        Ok(()) => closed.map(|()| open.iter().zip(snapshots).filter_map(status).collect()),
        Err(failure) => match snapshots {
            [one] => Err(one.explain(failure)),
            _ => Err(failure),
        },
    }
}

/// Closes what was opened for a moment. Gives the first failure.
async fn close(open: &[Arc<Volume>], done: &str) -> Outcome {
    let mut closed = Ok(());
    for volume in open {
        closed = closed.and(daemon::close_once(volume, done).await);
    }
    closed
}

/// Changes what there is of some snapshots of one volume, one after the other, and tells of each; stops at the first that can not be changed.
pub async fn change(
    context: &Context,
    settings: &Resolved,
    changes: &[(&SnapshotUrl, &SnapshotChange)],
    told: impl Fn(&SnapshotUrl) -> Outcome,
) -> Outcome {
    let Some((first, _)) = changes.first() else { return Ok(()) };
    let volume = &first.volume;
    if let Some((daemon, _)) = control::serving(&settings.state_dir, &volume.url.to_string()).await? {
        for (snapshot, change) in changes {
            let request = Request::ChangeSnapshot { snapshot: snapshot.named(), change: (*change).clone() };
            let changed: Outcome = telling(&daemon, &[volume], daemon.ask(&request, None)).await;
            changed.map_err(|failure| snapshot.explain(failure))?;
            told(snapshot)?;
        }
        return Ok(());
    }
    let open = daemon::open_once(&context.env, settings, volume).await;
    let open = open.map_err(|failure| first.explain(failure))?;
    let (mut changed, mut failed) = (Vec::new(), Ok(()));
    for (snapshot, change) in changes {
        match change.make(&open, &snapshot.name).await.map_err(Failure::from) {
            Ok(()) => changed.push(snapshot),
            Err(failure) => {
                failed = Err(snapshot.explain(failure));
                break;
            }
        }
    }
    // Told when it is in the store: until then another host may take the volume over.
    let closed = daemon::close_once(&open, "changed").await;
    match closed.map_err(|failure| first.explain(failure)) {
        Ok(()) => changed.into_iter().try_for_each(|snapshot| told(snapshot)).and(failed),
        Err(unstored) => failed.and(Err(unstored)),
    }
}

/// Returns when snapshots that were made are in the store, as they are there.
pub async fn stored(
    context: &Context,
    settings: &Resolved,
    snapshots: &[SnapshotUrl],
) -> Outcome<Vec<SnapshotStatus>> {
    let mut all = Vec::with_capacity(snapshots.len());
    for snapshot in snapshots {
        let url = snapshot.volume.url.to_string();
        if let Some((daemon, _)) = control::serving(&settings.state_dir, &url).await? {
            let drain = Request::Drain { volume: Some(url), limit_ms: None };
            let drained: Drained = telling(&daemon, &[&snapshot.volume], daemon.ask(&drain, None)).await?;
            if !drained.clean {
                let failure = Failure::new(Kind::NotClean, format!("{snapshot} is not in the store yet"));
                return Err(failure.hint("`cistern status` shows why"));
            }
        }
        let found = list(context, settings, &snapshot.volume).await?;
        let found = found.into_iter().find(|found| found.name == snapshot.name);
        all.push(found.ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("{snapshot} was removed just now: try again"))
        })?);
    }
    Ok(all)
}

/// Rolls a volume back to a snapshot, and makes a snapshot `leave` of what it leaves.
pub async fn roll_back(
    context: &Context,
    settings: &Resolved,
    snapshot: &SnapshotUrl,
    leave: &str,
    force: bool,
) -> Outcome {
    let volume = &snapshot.volume;
    if let Some((daemon, _)) = control::serving(&settings.state_dir, &volume.url.to_string()).await? {
        let request = Request::RollBack { snapshot: snapshot.named(), leave: leave.to_owned(), force };
        let done: Outcome = daemon.ask(&request, None).await;
        return done.map_err(|failure| snapshot.explain(failure));
    }
    let open = daemon::open_once(&context.env, settings, volume).await;
    let open = open.map_err(|failure| snapshot.explain(failure))?;
    let rolled_back = open.roll_back(&snapshot.name, leave);
    let done = tokio::select! {
        biased;
        done = rolled_back => done,
        why = stuck(&open) => Err(Error::Unreachable(format!(
            "{why}. Whether the volume was rolled back is not known: opened again, it shows"
        ))),
    };
    // Closed, if it came to it; otherwise now.
    let closed = daemon::close_once(&open, "rolled back").await;
    done.map_err(|e| snapshot.explain(e.into()))?;
    closed.map_err(|failure| snapshot.explain(failure))?;
    // Opened once more, so that a checkpoint says it, and no later opening has to find out.
    let open = daemon::open_once(&context.env, settings, volume).await?;
    daemon::close_once(&open, "rolled back").await
}

/// Returns when nothing comes to the store of a volume any more, and why: nothing has for so long as a command tries at most, and the store is in
/// trouble.
async fn stuck(volume: &Volume) -> String {
    let mut last = (volume.status().committed, volume.status().seq, Instant::now());
    loop {
        tokio::time::sleep(STUCK_PAUSE).await;
        let VolumeStatus { committed, seq, store_error, store_error_age_ms, .. } = volume.status();
        if (committed, seq) != (last.0, last.1) {
            last = (committed, seq, Instant::now());
        }
        let is_now = store_error_age_ms.is_some_and(|age_ms| age_ms < STUCK_LIMIT.as_millis() as u64);
        if let Some(why) = store_error.filter(|_| is_now && last.2.elapsed() >= STUCK_LIMIT) {
            return why;
        }
    }
}

/// The snapshots of a volume, oldest first: as the daemon of this host has them that serves it, or as they are in the store.
pub async fn list(
    context: &Context,
    settings: &Resolved,
    volume: &VolumeUrl,
) -> Outcome<Vec<SnapshotStatus>> {
    let url = volume.url.to_string();
    let mut all: Vec<SnapshotStatus> = match control::serving(&settings.state_dir, &url).await? {
        Some((daemon, _)) => daemon.ask(&Request::Snapshots { volume: url }, None).await?,
        None => {
            let opened = open(context, settings, volume, None).await?;
            opened.known_snapshots().map_err(|e| volume.explain(e))?
        }
    };
    all.sort_by(|a, b| {
        let key = |snapshot: &SnapshotStatus| (snapshot.at.unwrap_or(u64::MAX), snapshot.made_ms);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    Ok(all)
}

/// The newest committed state of a volume, or a snapshot of it.
pub async fn open(
    context: &Context,
    settings: &Resolved,
    volume: &VolumeUrl,
    snapshot: Option<&str>,
) -> Outcome<Arc<Volume>> {
    let stores = volume.open(&context.env, COMMAND_PATIENCE).await?.stores;
    open_in(context, settings, volume, snapshot, stores).await
}

/// The newest committed state of a volume, or a snapshot of it, whose data is read as of one who reads ahead, and at no more than so many bytes
/// per second.
pub async fn open_behind(
    context: &Context,
    settings: &Resolved,
    volume: &VolumeUrl,
    snapshot: Option<&str>,
    rate: Option<&ReadRate>,
) -> Outcome<Arc<Volume>> {
    let scheduler = Scheduler::in_bulk(context.env.clone());
    if let Some(rate) = rate {
        rate.limit(&scheduler)?;
    }
    let stores = volume.open_scheduled(&context.env, &scheduler, COMMAND_PATIENCE).await?.stores;
    // Nobody else has this scheduler: what gives way to others there leaves a link idle.
    let stores = Stores { background: stores.ahead.clone(), ..stores };
    open_in(context, settings, volume, snapshot, stores).await
}

async fn open_in(
    context: &Context,
    settings: &Resolved,
    volume: &VolumeUrl,
    snapshot: Option<&str>,
    stores: Stores,
) -> Outcome<Arc<Volume>> {
    let opened = secret::unlocking(&settings.key, &volume.name, |key| {
        Volume::open_read_only(ReadOnlyOptions {
            env: context.env.clone(),
            stores: stores.clone(),
            cache: None,
            key,
            memory_bytes: MEMORY_BYTES,
            snapshot: snapshot.map(str::to_owned),
        })
    });
    let failure = match opened.await {
        Ok((opened, _)) => return Ok(opened),
        Err(failure) => failure,
    };
    if let (Kind::NotFound, Err(e)) =
        (failure.kind, admin::info(&context.env, &stores.read, &KeySource::None).await)
    {
        return Err(volume.explain(e));
    }
    match snapshot {
        Some(name) => Err(SnapshotUrl { volume: volume.clone(), name: name.to_owned() }.explain(failure)),
        None => Err(failure.context(&volume.url)),
    }
}

/// What removing a snapshot frees, before compression.
pub async fn unique_bytes(context: &Context, settings: &Resolved, snapshot: &SnapshotUrl) -> Outcome<u64> {
    let stores = snapshot.volume.open(&context.env, COMMAND_PATIENCE).await?.stores;
    let looked = secret::unlocking(&settings.key, &snapshot.volume.name, |key| {
        let (env, stores) = (&context.env, &stores);
        async move { unique_space(env, stores, &key, &snapshot.name).await }
    });
    looked.await.map(|(bytes, _)| bytes).map_err(|failure| snapshot.explain(failure))
}
