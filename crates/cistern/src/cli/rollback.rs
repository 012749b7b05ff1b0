//! `cistern rollback`: a volume that goes on from one of its snapshots.

use cistern_engine::volume::SnapshotStatus;
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, snapshots},
    config::{KeySettings, StateSettings},
    control::SnapshotChange,
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, snapshot_url},
    quantity::ByteSize,
    terminal,
};

/// Make a volume go on from one of its snapshots
///
/// Takes some requests, however much has changed since: no data is copied. What the volume showed until now stays as a snapshot,
/// `before-rollback-N` unless --leave names it, and so do all other snapshots, also those that are younger than the one it goes back
/// to: rolling back to one of these is how a rollback is taken back.
///
/// Whoever uses the volume has to let go of it first: unmount it, or export the pool. A volume that a daemon of this host serves is
/// opened anew by it; while clients are connected it is refused, unless --force is given: their requests fail from then on, and who connects again finds
/// another content, as if the device had been exchanged.
///
/// The snapshot stays as long as the volume shares anything with it: removed before, it is hidden. `cistern flatten` copies what is
/// shared.
#[derive(Args)]
pub(super) struct Rollback {
    /// URL of the volume, @, and the name of the snapshot
    #[arg(value_name = "URL@NAME", value_parser = snapshot_url)]
    snapshot: SnapshotUrl,

    /// Name of the snapshot that is made of what the volume shows until now
    #[arg(long, value_name = "NAME", conflicts_with = "discard")]
    leave: Option<String>,

    /// Remove that snapshot when it is done: what was written since is given up
    #[arg(long)]
    discard: bool,

    /// Also while clients are connected
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// A rollback that was made.
#[derive(Serialize)]
struct RolledBack {
    volume: String,
    to: String,
    /// What it left; none if that was given up.
    left: Option<String>,
    size_bytes: u64,
}

impl Rollback {
    pub async fn run(self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let volume = &self.snapshot.volume;
        let all = snapshots::list(context, &settings, volume).await?;
        let is_target = |found: &&SnapshotStatus| found.name == self.snapshot.name && !found.is_bookmark;
        let Some(target) = all.iter().find(is_target) else {
            let failure = Failure::new(Kind::NotFound, format!("{}: no such snapshot", self.snapshot));
            return Err(failure.hint(format!("`cistern ls {}` lists its snapshots", volume.url)));
        };
        let leave = self.leave.clone().unwrap_or_else(|| free_name(&all));
        snapshots::roll_back(context, &settings, &self.snapshot, &leave, self.force).await?;
        if self.discard {
            let left = SnapshotUrl { volume: volume.clone(), name: leave.clone() };
            let removed =
                snapshots::change(context, &settings, &[(&left, &SnapshotChange::Remove)], |_| Ok(())).await;
            removed.map_err(|failure| failure.context(format!("rolled back, but {left} is still there")))?;
        }
        let left = (!self.discard).then_some(leave);
        if self.json {
            let (volume, to) = (volume.url.to_string(), self.snapshot.name.clone());
            return terminal::say_json(&RolledBack { volume, to, left, size_bytes: target.size_bytes });
        }
        let size = ByteSize(target.size_bytes);
        terminal::say(format!("{} shows what {} shows ({size})", volume.url, self.snapshot.name))?;
        match left {
            Some(left) => terminal::say(format!("what it showed before: {}@{left}", volume.url)),
            None => terminal::say("what it showed before is given up"),
        }
    }
}

/// A name that no snapshot has.
fn free_name(all: &[SnapshotStatus]) -> String {
    let name = |n: usize| format!("before-rollback-{n}");
    let is_free = |name: &String| all.iter().all(|snapshot| snapshot.name != *name);
    (1..).map(name).find(is_free).expect("there are finitely many")
}
