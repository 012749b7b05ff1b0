//! `cistern rm`: delete a volume from its store.

use std::path::Path;

use cistern_engine::{Error, codec::KeySource, store::remove_store, units::VolumeId, volume::admin};
use clap::Args;

use crate::{
    cli::Context,
    config::{KeySettings, StateSettings},
    control,
    daemon::volume_disk,
    failure::{Failure, Kind, Outcome},
    known::Known,
    place::{COMMAND_PATIENCE, OpenStore, VolumeUrl, volume_url},
    secret, terminal,
};

/// Delete a volume and everything it has in the store, for good
///
/// Asks for the volume's name on a terminal. Refuses while the volume is served or claimed. Also finishes a removal
/// that was interrupted, and clears what came late of a volume that was removed.
#[derive(Args)]
pub struct Rm {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,

    /// Delete even though the volume is claimed or damaged
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

impl Rm {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = self.state.clone().resolve(&context.file)?;
        let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
        let url = &self.volume.url;
        let (id, warning) = match admin::info(&context.env, &open.store, &KeySource::None).await {
            Ok(info) => (Some(info.volume), format!("This deletes {url} and all its data, for good.")),
            Err(Error::NotFound(_)) if self.force || is_half_removed(&open).await? => (
                None,
                format!("{url} has no identity any more. This deletes what is left of the volume, for good."),
            ),
            Err(_) if self.force => (None, format!("This deletes {url} and all its data, for good.")),
            Err(e) => return Err(self.volume.explain(e)),
        };
        self.refuse_if_served(&state_dir, id).await?;
        terminal::confirm(&warning, &self.volume.name, self.yes)?;
        self.remove(context, &open).await?;
        if let Some(id) = id {
            forget_journal(&state_dir, id).await;
        }
        Known::of(&state_dir).forget(&self.volume.url)?;
        terminal::say(format!("removed {}", self.volume.url))
    }

    async fn refuse_if_served(&self, state_dir: &Path, id: Option<VolumeId>) -> Outcome {
        let wanted = id.map_or_else(|| self.volume.url.to_string(), |id| id.to_string());
        match control::serving(state_dir, &wanted).await? {
            None => Ok(()),
            Some(_) => {
                let failure = Failure::new(Kind::InUse, format!("{} is being served", self.volume.url));
                Err(failure.hint("stop its daemon first; `cistern status` shows which one it is"))
            }
        }
    }

    async fn remove(&self, context: &Context, open: &OpenStore) -> Outcome {
        let progress = terminal::Progress::counting("objects");
        let show = |done, of| progress.set(done, of);
        let key = self.key.clone().or(&context.file);
        let removed = secret::unlocking(&key, &self.volume.name, |key| {
            let (env, store, show) = (&context.env, &open.store, &show);
            async move {
                match admin::remove(env, store, &key, self.force, show).await {
                    // All gone already, but perhaps for a directory.
                    Err(Error::NotFound(_)) if self.force => Ok(()),
                    other => other,
                }
            }
        });
        removed.await.map_err(|failure| match failure.kind {
            Kind::InUse => {
                failure.hint("--force deletes it even so; whoever writes to it then stops with errors")
            }
            _ => failure.context(&self.volume.url),
        })?;
        remove_store(&self.volume.url, &context.env).await.map_err(|e| self.volume.explain(e))
    }
}

/// Whether something is left of a volume without identity.
async fn is_half_removed(open: &OpenStore) -> Outcome<bool> {
    Ok(admin::is_half_removed(&open.store).await?)
}

/// The journal of a volume that is gone is of no use; one that cannot be removed does no harm.
async fn forget_journal(state_dir: &Path, id: VolumeId) {
    let directory = state_dir.join(id.to_string());
    if !directory.exists() {
        return;
    }
    let Ok(disk) = volume_disk(state_dir, id) else { return };
    match admin::journal_discard(&disk).await {
        Ok(()) => {
            let _ = std::fs::remove_dir_all(&directory);
        }
        Err(e) => terminal::remark(format!("the journal in {} stays: {e}", directory.display())),
    }
}
