//! `cistern restore`: take a volume out of the trash.

use cistern_engine::volume::trash;
use clap::Args;

use crate::{
    cli::Context,
    daemon::host_name,
    failure::Outcome,
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    terminal,
};

/// Take a volume out of the trash: it is as it was when it was removed
///
/// Needs no key. Also brings back a volume that does not open because its note in the trash is damaged, and makes sure
/// that a `cistern rm` which got no answer does not take effect later. What `cistern rm` has begun to delete for good
/// cannot be restored.
#[derive(Args)]
pub(super) struct Restore {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,
}

impl Restore {
    pub async fn run(self, context: &Context) -> Outcome {
        let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
        let restored = trash::restore(&context.env, &open.store, &host_name()).await;
        let was_away = restored.map_err(|e| self.volume.explain(e))?;
        let url = &self.volume.url;
        match was_away {
            true => terminal::say(format!("restored {url}"))?,
            false => terminal::say(format!("{url} was not in the trash, and stays out of it"))?,
        }
        terminal::say(format!("next:    cistern serve {url}"))
    }
}
