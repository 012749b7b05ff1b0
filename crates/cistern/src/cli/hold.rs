//! `cistern hold` and `cistern release`: what must not be removed.

use clap::Args;

use crate::{
    cli::{Context, snapshots},
    config::{KeySettings, StateSettings},
    control::SnapshotChange,
    failure::Outcome,
    place::{SnapshotUrl, snapshot_url},
    terminal,
};

/// Keep a snapshot from being removed
///
/// It stays until every hold on it is released. Who sends snapshots elsewhere holds those that are not sent yet.
#[derive(Args)]
pub(super) struct Hold {
    #[command(flatten)]
    held: Held,
}

/// End a hold on a snapshot
#[derive(Args)]
pub(super) struct Release {
    #[command(flatten)]
    held: Held,
}

#[derive(Args)]
struct Held {
    /// URL of the volume, @, and the name of the snapshot
    #[arg(value_name = "URL@NAME", value_parser = snapshot_url)]
    snapshot: SnapshotUrl,

    /// What the hold is for: each tag is a hold of its own
    #[arg(value_name = "TAG")]
    tag: String,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

impl Hold {
    pub async fn run(self, context: &Context) -> Outcome {
        let Held { snapshot, tag, .. } = &self.held;
        self.held.change(context, SnapshotChange::Hold(tag.clone())).await?;
        terminal::say(format!("{snapshot} is held: {tag}"))
    }
}

impl Release {
    pub async fn run(self, context: &Context) -> Outcome {
        let Held { snapshot, tag, .. } = &self.held;
        self.held.change(context, SnapshotChange::Release(tag.clone())).await?;
        terminal::say(format!("{snapshot} is released: {tag}"))
    }
}

impl Held {
    async fn change(&self, context: &Context, change: SnapshotChange) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        snapshots::change(context, &settings, &[(&self.snapshot, &change)], |_| Ok(())).await
    }
}
