//! `cistern probe`: does a store keep the rules, and how fast is it?

use cistern_engine::store::{ProbeDepth, ProbeReport, remove_store};
use clap::Args;

use crate::{
    cli::{Context, stores},
    config::StateSettings,
    failure::{Kind, Outcome},
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    probing::{judge, probe, probe_through, remember, show},
    terminal,
};

/// Find out whether a store keeps the rules that a volume relies on, and how fast it is
///
/// Writes some thousand small objects and 112 MiB of large ones below URL/probe/, reads them, and deletes
/// them again. Existing volumes are not touched. At Amazon's price that costs about five cents.
///
/// 16 writers race for one object, 400 to 640 times. That takes three seconds, and on a slow store up to
/// ten, in which fewer races are held: the report counts them. Two probes at the same time, from two
/// hosts with correct clocks, race each other as well.
///
/// An acceptance proves that each rule was kept during the probe, as seen from this host. A store that
/// breaks put-if-absent once in 60 races is accepted in one of 800 probes, and a rarer fault more often.
/// An acceptance proves nothing about durability: the probe cannot see whether the store keeps what it
/// has acknowledged when it crashes.
///
/// `cistern create` does not probe an accepted bucket again for an hour. This command always probes.
#[derive(Args)]
#[command(after_long_help = stores::help())]
pub(super) struct Probe {
    /// URL of a volume, existing or not
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Look through this endpoint of the store, instead of that of the environment; given several times, through all of them at once
    ///
    /// Each request goes through the next endpoint. So gateways are refused that keep the rules each for itself and not
    /// together. For s3:// only.
    #[arg(long = "endpoint", value_name = "URL")]
    endpoints: Vec<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Probe {
    pub async fn run(self, context: &Context) -> Outcome {
        let report = match self.endpoints.is_empty() {
            true => {
                let report = probe_at(context, &self.volume, ProbeDepth::Full).await?;
                let state_dir = StateSettings::default().resolve(&context.file).ok();
                remember(&context.env, &self.volume, state_dir.as_deref(), &report);
                report
            }
            false => {
                let open =
                    |endpoint: &String| self.volume.open_endpoint(endpoint, &context.env, COMMAND_PATIENCE);
                let opened = self.endpoints.iter().map(open).collect::<Outcome<Vec<_>>>()?;
                probe_through(&context.env, &opened).await?
            }
        };
        match self.json {
            true => terminal::say_json(&report)?,
            false => show(&report),
        }
        judge(&report)
    }
}

/// Probes the store of a volume, existing or not.
pub(super) async fn probe_at(
    context: &Context,
    volume: &VolumeUrl,
    depth: ProbeDepth,
) -> Outcome<ProbeReport> {
    let env = &context.env;
    let (open, made) = match volume.open(env, COMMAND_PATIENCE).await {
        Ok(open) => (open, false),
        Err(missing) if missing.kind == Kind::NotFound => (volume.create(env, COMMAND_PATIENCE).await?, true),
        Err(failure) => return Err(failure),
    };
    let probed = probe(env, &open, depth).await;
    if made {
        // Refuses where the probe left something behind, which the report says.
        let _ = remove_store(&volume.url, env).await;
    }
    probed
}
