//! `cistern warm`: fill the chunk cache of a running daemon before somebody reads.
//!
//! Asks in steps of about half a second, and keeps the cursor here: whoever interrupts it has
//! stopped it, and what was fetched stays.

use cistern_engine::{fetch::WarmStep, volume::WarmTarget};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::Context,
    config::{Settings, StateSettings},
    control::{self, Request, ServedStatus},
    failure::{Failure, Kind, Outcome},
    place::{VolumeUrl, volume_url},
    quantity::{ByteRange, ByteSize},
    terminal::{self, Progress},
};

/// Bring a served volume, or a part of it, into the chunk cache
///
/// Fetches at low priority what is not in the cache yet; reads and write-back go first. Without
/// RANGE or an option: the whole volume. Ctrl-C stops it, and what was fetched stays.
#[derive(Args)]
pub(super) struct Warm {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Only these bytes of the volume: FROM-TO like 0-10G, or FROM+LENGTH like 10G+1G
    #[arg(value_name = "RANGE", conflicts_with_all = ["metadata", "hot"])]
    range: Option<ByteRange>,

    /// Only cistern's own metadata: where each block lies. The metadata of a filesystem on the volume
    /// is data to cistern, and part of the hot set when it is used often
    #[arg(long, conflicts_with = "hot")]
    metadata: bool,

    /// Only what was hot when the volume was closed last, or within the last half hour. A daemon with
    /// an empty cache does this by itself
    #[arg(long)]
    hot: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

/// What was done.
#[derive(Serialize)]
struct Report {
    volume: String,
    /// Bytes looked at: of the volume, or of objects with --metadata and --hot.
    bytes: u64,
    /// Bytes of them, as they lie in the store, that were not in the cache.
    fetched_bytes: u64,
}

impl Warm {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let url = self.volume.url.to_string();
        let Some((daemon, served)) = control::serving(&settings.state_dir, &url).await? else {
            let failure = Failure::new(Kind::NotFound, format!("no daemon serves {}", self.volume.name));
            return Err(failure.hint("warming fills the cache of a running daemon: `cistern serve` it first"));
        };
        let what = self.what(&served)?;
        let progress = Progress::spinning("warming");
        let mut report = Report { volume: self.volume.name.clone(), bytes: 0, fetched_bytes: 0 };
        let mut from = 0;
        loop {
            let request = Request::Warm { volume: url.clone(), what, from };
            let step: WarmStep =
                daemon.ask(&request, None).await.map_err(|failure| explain(failure, what))?;
            (report.bytes, report.fetched_bytes) = (step.total, report.fetched_bytes + step.fetched_bytes);
            let Some(next) = step.next else { break };
            from = next;
            let (done, of, fetched) = (ByteSize(next), ByteSize(step.total), ByteSize(report.fetched_bytes));
            progress.message(format!("warming: {done} of {of}, {fetched} fetched"));
        }
        drop(progress);
        match self.json {
            true => terminal::say_json(&report),
            false => {
                let (bytes, fetched) = (ByteSize(report.bytes), ByteSize(report.fetched_bytes));
                terminal::say(format!("{}: {bytes} warm, {fetched} fetched", report.volume))
            }
        }
    }

    fn what(&self, served: &ServedStatus) -> Outcome<WarmTarget> {
        let size_bytes = served.status.size_bytes;
        match (self.metadata, self.hot, self.range) {
            (true, ..) => Ok(WarmTarget::Metadata),
            (_, true, _) => Ok(WarmTarget::Hot),
            (.., None) => Ok(WarmTarget::Range { offset: 0, len: size_bytes }),
            (.., Some(range)) => {
                let (offset, len) = range.within(&self.volume.name, size_bytes)?;
                Ok(WarmTarget::Range { offset, len })
            }
        }
    }
}

fn explain(failure: Failure, what: WarmTarget) -> Failure {
    match (failure.kind, what) {
        (Kind::NotFound, WarmTarget::Hot) => {
            failure.hint("it is written when a volume with a chunk cache is closed")
        }
        _ => failure,
    }
}
