//! `cistern flatten`: a clone that stands by itself.

use cistern_engine::volume::Collect;
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, worker::Worker},
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{VolumeUrl, volume_url},
    quantity::ByteSize,
    signals::{EndAtOnce, Signals},
    terminal::{self, Progress},
};

/// Copy what a clone shares with the volume it was made of, so that it needs that one no more
///
/// Reads what the clone shows and has not overwritten, and writes it as its own. Then what was kept for it there is let go of, as soon
/// as that volume is served again. Snapshots of the clone from before still need the other volume: remove them, and flatten again.
///
/// Works while the clone is served, or not. Ctrl-C stops it; what was copied stays copied, and the next run goes on.
#[derive(Args)]
pub(super) struct Flatten {
    /// URL of the clone
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// What was done.
#[derive(Serialize)]
struct Flattened {
    volume: String,
    copied_bytes: u64,
}

impl Flatten {
    pub async fn run(self, context: &Context) -> Outcome {
        let at_once = EndAtOnce::listen()?;
        let (worker, served) = Worker::open(context, &self.volume, &self.state, &self.key).await?;
        // From here on there may be something to close.
        let mut signals = Signals::listen()?;
        drop(at_once);
        let done = tokio::select! {
            biased;
            () = signals.next() => Err(interrupted()),
            done = self.flatten(&worker, served.size_bytes) => done,
        };
        let flattened = worker.close(done).await?;
        let (url, copied) = (&self.volume.url, ByteSize(flattened.copied_bytes));
        match self.json {
            true => terminal::say_json(&flattened),
            false => terminal::say(format!("{url} stands by itself; {copied} copied")),
        }
    }

    async fn flatten(&self, worker: &Worker, size_bytes: u64) -> Outcome<Flattened> {
        let progress = Progress::spinning("looking for what is shared");
        let mut steps = worker.steps(&progress);
        let (mut offset, mut copied_bytes) = (Some(0), 0);
        while let Some(at) = offset {
            let step = steps.step(Collect::Adopt { offset: at, len: size_bytes - at }).await?;
            (offset, copied_bytes) =
                (step.next.filter(|next| *next < size_bytes), copied_bytes + step.moved_bytes);
            let (at, end, copied) =
                (ByteSize(step.next.unwrap_or(size_bytes)), ByteSize(size_bytes), ByteSize(copied_bytes));
            progress.message(format!("copying: {at} of {end}, {copied} copied"));
        }
        progress.message("letting go of the other volume".to_owned());
        while steps.step(Collect::LetGo).await?.next.is_some() {}
        Ok(Flattened { volume: self.volume.name.clone(), copied_bytes })
    }
}

fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted; what was copied stays copied, and the next run goes on")
}
