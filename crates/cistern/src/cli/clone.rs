//! `cistern clone`: a volume that begins as a snapshot of another one.

use cistern_engine::volume::{begin_clone, finish_clone};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, snapshots},
    config::{KeySettings, StateSettings},
    control::SnapshotChange,
    daemon::host_name,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, SnapshotUrl, VolumeUrl, snapshot_url, volume_url},
    secret, terminal,
};

/// Make a volume that begins as a snapshot of another one, and shares with it what neither overwrites
///
/// Takes some requests, however large the snapshot is: no data is copied. The clone is a volume like any other, on any host; the volume
/// it is made of may be served meanwhile. Both lie in the same bucket or file system, and keep their places relative to each
/// other. It has the same key or passphrase at first; `cistern key change` gives it one of its own.
///
/// The snapshot stays as long as the clone: removed before, it is hidden until the clone is gone. `cistern ls URL` shows what has clones.
#[derive(Args)]
pub(super) struct Clone {
    /// URL of the volume, @, and the name of the snapshot
    #[arg(value_name = "URL@NAME", value_parser = snapshot_url)]
    snapshot: SnapshotUrl,

    /// URL of the new volume
    #[arg(value_name = "NEW-URL", value_parser = volume_url)]
    clone: VolumeUrl,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// A clone that was made.
#[derive(Serialize)]
struct Cloned {
    url: String,
    volume: String,
    of: String,
}

impl Clone {
    pub async fn run(self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let (from, to) = (&self.snapshot.volume, &self.clone);
        let (Some(way), Some(back)) = (to.url.way_to(&from.url), from.url.way_to(&to.url)) else {
            let failure = Failure::usage(format!("{} is in another store than {}", to.url, from.url));
            return Err(failure
                .hint("a clone shares objects with the volume it is made of, so both lie in one bucket"));
        };
        let all = snapshots::list(context, &settings, from).await?;
        if !all.iter().any(|snapshot| snapshot.name == self.snapshot.name && !snapshot.is_bookmark) {
            let failure = Failure::new(Kind::NotFound, format!("{}: no such snapshot", self.snapshot));
            return Err(failure.hint(format!("`cistern ls {}` lists its snapshots", from.url)));
        }
        let source = from.open(&context.env, COMMAND_PATIENCE).await?.store;
        let place = to.create(&context.env, COMMAND_PATIENCE).await?.store;
        let begun = secret::unlocking(&settings.key, &from.name, |key| {
            let (env, source, place, way) = (&context.env, &source, &place, &way);
            async move { begin_clone(env, source, place, &key, way).await }
        });
        let (clone, key) = begun.await.map_err(|failure| failure.context(&to.url))?;
        let finished = async {
            let keep = SnapshotChange::KeepForClone { clone, way: back };
            snapshots::change(context, &settings, &[(&self.snapshot, &keep)], |_| Ok(())).await?;
            finish_clone(&context.env, &source, &place, &key, &host_name()).await?;
            Ok(())
        };
        finished.await.map_err(|failure: Failure| {
            failure.hint(format!("nothing was cloned; `cistern rm --now {}` removes what was begun", to.url))
        })?;
        if self.json {
            let (url, of) = (to.url.to_string(), self.snapshot.to_string());
            return terminal::say_json(&Cloned { url, volume: clone.to_string(), of });
        }
        terminal::say(format!("{} is a clone of {}", to.url, self.snapshot))?;
        terminal::say(format!("next:    cistern serve {}", to.url))
    }
}
