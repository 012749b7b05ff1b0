//! Whoever does long work on a volume in steps: the daemon that serves it, or this process where nobody does.

use std::sync::Arc;

use cistern_engine::volume::{Collect, CollectStep, SpaceStatus, Volume};

use crate::{
    cli::{Context, waiting::StoreNews},
    config::{KeySettings, Settings, StateSettings},
    control::{self, DaemonClient, Request},
    daemon,
    failure::{Failure, Outcome},
    place::VolumeUrl,
    quantity::SpaceBound,
    terminal::Progress,
};

/// Who does the steps.
pub enum Worker {
    Daemon(DaemonClient, String),
    /// Nobody serves it: opened here.
    Here(Arc<Volume>),
}

/// What is worked on.
pub struct WorkedVolume {
    pub size_bytes: u64,
    /// Stored bytes per live byte with which it is kept.
    pub bound: Option<f64>,
}

impl Worker {
    pub async fn open(
        context: &Context,
        volume: &VolumeUrl,
        state: &StateSettings,
        key: &KeySettings,
    ) -> Outcome<(Worker, WorkedVolume)> {
        let flags = Settings { state: state.clone(), key: key.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let url = volume.url.to_string();
        Ok(match control::serving(&settings.state_dir, &url).await? {
            Some((daemon, served)) => {
                let bound = served.status.space.as_ref().and_then(|space| space.bound);
                let size_bytes = served.status.size_bytes;
                (Worker::Daemon(daemon, url), WorkedVolume { size_bytes, bound })
            }
            None => {
                let opened = daemon::open_once(&context.env, &settings, volume).await?;
                let (size_bytes, bound) = (opened.size_bytes(), SpaceBound(settings.space_bound).ratio());
                (Worker::Here(opened), WorkedVolume { size_bytes, bound })
            }
        })
    }

    /// Steps that tell in `progress` what a store says for which they wait.
    pub fn steps<'a>(&'a self, progress: &'a Progress) -> Steps<'a> {
        Steps { worker: self, progress, told: StoreNews::default() }
    }

    async fn step(&self, what: Collect) -> Outcome<CollectStep> {
        match self {
            Worker::Daemon(daemon, url) => {
                daemon.ask(&Request::Collect { volume: url.clone(), what }, None).await
            }
            Worker::Here(volume) => Ok(volume.collect(what).await?),
        }
    }

    /// What keeps the store from taking data now.
    async fn store_refusal(&self) -> Option<String> {
        match self {
            Worker::Daemon(daemon, url) => {
                daemon.status().await.ok()?.volumes.iter().find(|served| served.is(url))?.store_refusal()
            }
            Worker::Here(volume) => {
                let status = volume.status();
                status.store_error.filter(|_| status.store_refuses)
            }
        }
    }

    pub async fn space(&self) -> Outcome<SpaceStatus> {
        let space = match self {
            Worker::Daemon(daemon, url) => {
                let served = daemon.status().await?.volumes.into_iter().find(|served| served.is(url));
                served.and_then(|served| served.status.space)
            }
            Worker::Here(volume) => volume.status().space,
        };
        space.ok_or_else(|| Failure::usage("the volume is served read-only: nothing can be done to it"))
    }

    /// Closes what was opened here. Gives what was done, unless that did not come to the store.
    pub async fn close<T>(self, done: Outcome<T>) -> Outcome<T> {
        if let Worker::Here(volume) = self {
            let closed = daemon::close_once(&volume, "done").await;
            return done.and_then(|done| closed.map(|()| done));
        }
        done
    }
}

/// Steps of one command, one after the other.
pub struct Steps<'a> {
    worker: &'a Worker,
    progress: &'a Progress,
    /// What the store said, as far as it was told.
    told: StoreNews,
}

impl Steps<'_> {
    pub async fn step(&mut self, what: Collect) -> Outcome<CollectStep> {
        let Steps { worker, progress, told } = self;
        let tell = |said| progress.remark(format!("the store: {said}. It is tried again"));
        told.telling(worker.step(what), async || worker.store_refusal().await, tell).await
    }
}
