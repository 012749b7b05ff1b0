//! `cistern probe`: does a store keep the rules, and how fast is it?

use cistern_engine::store::remove_store;
use clap::Args;

use crate::{
    cli::{Context, stores},
    failure::{Kind, Outcome},
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    probing::{judge, probe, show},
    terminal,
};

/// Find out whether a store keeps the rules that a volume relies on, and how fast it is
///
/// Writes some small objects and 32 MiB of large ones below URL/probe/, reads them, and deletes
/// them again. Existing volumes are not touched.
#[derive(Args)]
#[command(after_long_help = stores::help())]
pub(super) struct Probe {
    /// URL of a volume, existing or not
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Probe {
    pub async fn run(self, context: &Context) -> Outcome {
        let env = &context.env;
        let (open, made) = match self.volume.open(env, COMMAND_PATIENCE).await {
            Ok(open) => (open, false),
            Err(missing) if missing.kind == Kind::NotFound => {
                (self.volume.create(env, COMMAND_PATIENCE).await?, true)
            }
            Err(failure) => return Err(failure),
        };
        let probed = probe(env, &open.store).await;
        if made {
            // Refuses where the probe left something behind, which the report says.
            let _ = remove_store(&self.volume.url, env).await;
        }
        let report = probed?;
        match self.json {
            true => terminal::say_json(&report)?,
            false => show(&report),
        }
        judge(&report)
    }
}
