//! `cistern snapshot`: keep what volumes hold now, under a name.

use clap::Args;
use serde::Serialize;

use cistern_engine::volume::SnapshotStatus;

use crate::{
    cli::{Context, hooks::HookSettings, snapshots},
    config::{KeySettings, StateSettings},
    failure::Outcome,
    place::{SnapshotUrl, snapshot_url},
    signals::Interruption,
    terminal,
};

/// Keep what volumes hold now, under a name
///
/// Takes no longer than a flush, also while the store is away: a snapshot is a mark in the journal, and is brought to the store
/// with everything before it. Of several volumes the snapshots are of one instant, if one daemon of this host serves all of them, or nobody any.
/// A filesystem that is mounted comes up from its snapshot as from a power cut; for more, sync or freeze it first.
///
/// A snapshot is read with `cistern serve URL@NAME`, and takes only what is written over afterwards.
#[derive(Args)]
pub(super) struct Snapshot {
    /// URL of a volume, @, and the name of the snapshot: letters, digits and -_.:+
    #[arg(value_name = "URL@NAME", required = true, value_parser = snapshot_url)]
    snapshots: Vec<SnapshotUrl>,

    /// Return when the snapshots are in the store, and other hosts can read them
    #[arg(long)]
    wait: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    hooks: HookSettings,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// A snapshot that was made.
#[derive(Serialize)]
struct Made {
    url: String,
    #[serde(flatten)]
    snapshot: SnapshotStatus,
}

impl Snapshot {
    pub async fn run(self, context: &Context) -> Outcome {
        Interruption::on_signal(async |stop| self.make(context, &stop).await).await?
    }

    async fn make(&self, context: &Context, stop: &Interruption) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        // What waits for the second command does not wait for the store.
        let hooks = self.hooks.or(&context.file);
        let wait = self.wait && !hooks.are_set();
        let making = snapshots::make(context, &settings, &self.snapshots, wait, hooks.limit());
        let mut hooked = hooks.around(&self.snapshots, stop, making).await?;
        if self.wait && !wait {
            hooked.made = stop.or(snapshots::stored(context, &settings, &self.snapshots)).await?;
        }
        let urls = self.snapshots.iter().map(SnapshotUrl::to_string);
        let made: Vec<Made> = urls.zip(hooked.made).map(|(url, snapshot)| Made { url, snapshot }).collect();
        match self.json {
            true => terminal::say_json(&made)?,
            false => made.iter().try_for_each(|made| {
                let stored = if made.snapshot.at.is_some() { "is in the store" } else { "is made" };
                terminal::say(format!("{} {stored}", made.url))
            })?,
        }
        hooked.post.map_err(|failure| failure.hint("the snapshot was made, and stands"))
    }
}
