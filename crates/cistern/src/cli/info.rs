//! `cistern info`: what a store says of a volume.

use cistern_engine::{
    codec::KeySource,
    units::utc,
    volume::admin::{self, StoredSpace, StoredState, VolumeInfo},
};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::Context,
    config::KeySettings,
    failure::Outcome,
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    quantity::ByteSize,
    secret, terminal,
};

/// Show what the store says of a volume: size, writer, how much log and map there is, and what space it takes
///
/// Changes nothing and needs no daemon. Of an encrypted volume only the outside is shown unless a
/// key file or CISTERN_PASSPHRASE is given.
#[derive(Args)]
pub(super) struct Info {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    key: KeySettings,
}

/// What is known of a volume.
#[derive(Serialize)]
struct InfoShown {
    #[serde(flatten)]
    info: VolumeInfo,
    /// Absent where it is sealed, or the accounts are damaged.
    space: Option<StoredSpace>,
}

impl Info {
    pub async fn run(self, context: &Context) -> Outcome {
        let open = self.volume.open(&context.env, COMMAND_PATIENCE).await?;
        let outside = admin::info(&context.env, &open.store, &KeySource::None)
            .await
            .map_err(|e| self.volume.explain(e))?;
        let key = secret::offered(&self.key.clone().or(&context.file))?;
        let info = match (outside.encrypted, &key) {
            (true, KeySource::None) | (false, _) => outside,
            _ => admin::info(&context.env, &open.store, &key).await.map_err(|e| self.volume.explain(e))?,
        };
        let space = match &info.state {
            Some(_) => {
                let key = if info.encrypted { key } else { KeySource::None };
                let space = admin::stored_space(&context.env, &open.store, &key).await;
                space.map_err(|e| self.volume.explain(e))?
            }
            None => None,
        };
        let known = InfoShown { info, space };
        match self.json {
            true => terminal::say_json(&known),
            false => terminal::say(describe(&self.volume, &known)),
        }
    }
}

fn describe(volume: &VolumeUrl, known: &InfoShown) -> String {
    let info = &known.info;
    let mut rows = vec![
        ("url", volume.url.to_string()),
        ("id", info.volume.to_string()),
        ("created", utc(info.created_ms)),
        ("format", info.format.to_string()),
        ("compression", format!("{:?}", info.compression).to_lowercase()),
        ("encrypted", if info.encrypted { "yes".to_owned() } else { "no".to_owned() }),
    ];
    if let Some(source) = &info.origin {
        rows.push(("clone of", format!("volume {} at {}", source.volume, source.way)));
    }
    match &info.state {
        None => rows.push(("state", "sealed: give the key to see it".to_owned())),
        Some(state) => rows.extend([
            ("size", ByteSize(state.size_bytes).to_string()),
            ("writer", writer(state)),
            ("epoch", state.epoch.to_string()),
            ("log", format!("position {}, checkpoint at {}", state.seq, state.checkpoint_seq)),
            ("map", format!("{} runs, {}", state.runs, ByteSize(state.map_bytes))),
            ("space", space(known.space.as_ref())),
        ]),
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    terminal::table(&rows)
}

fn space(space: Option<&StoredSpace>) -> String {
    let Some(space) = space else {
        return "not known: the accounts are damaged. `cistern check` says more".to_owned();
    };
    let (live, garbage) = (ByteSize(space.live_bytes), ByteSize(space.garbage_bytes));
    let (behind, grace) = (ByteSize(space.uncovered_bytes), ByteSize(space.grace_bytes));
    format!("{live} live, {garbage} garbage, {behind} not counted yet, {grace} in grace")
}

/// Who holds a volume.
pub fn writer(state: &StoredState) -> String {
    match (&state.claim_host, state.claim_ms, state.released) {
        (Some(host), Some(ms), false) => format!("{host} since {}", utc(ms)),
        (Some(host), ..) => format!("none; the last was {host}"),
        (None, ..) => "none".to_owned(),
    }
}
