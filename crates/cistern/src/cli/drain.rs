//! `cistern drain`: upload everything now, and wait for it.

use std::time::Duration;

use clap::Args;

use crate::{
    cli::Context,
    config::StateSettings,
    control::{self, Daemon, Drained, Request},
    failure::{Failure, Kind, Outcome},
    place::{VolumeUrl, volume_url},
    quantity::{ByteSize, Span},
    terminal,
};

/// Extra time for a daemon to answer after a wait: it measures the time itself.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// How often the progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(500);

/// Upload everything that a volume has acknowledged, as fast as the link allows, and wait for it
///
/// Exit code 0: everything acknowledged before this command is in the store, and another host could read it. 8:
/// it is not within --timeout. The volume goes on being served.
#[derive(Args)]
pub struct Drain {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// How long to wait; without it as long as it takes
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

impl Drain {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = self.state.clone().resolve(&context.file)?;
        let url = self.volume.url.to_string();
        let Some((daemon, _)) = control::serving(&state_dir, &url).await? else {
            let text = format!("no daemon with state in {} serves {url}", state_dir.display());
            return Err(Failure::new(Kind::NotFound, text)
                .hint("what a journal holds is uploaded once `cistern serve` opens the volume"));
        };
        let drained = self.wait(&daemon, &url).await?;
        if self.json {
            terminal::say_json(&drained)?;
        }
        match drained.clean {
            true if self.json => Ok(()),
            true => terminal::say(format!("{}: everything acknowledged is in the store", self.volume.name)),
            false => {
                let dirty = ByteSize(drained.dirty_bytes);
                Err(Failure::new(Kind::NotClean, format!("not drained: {dirty} are not in the store yet"))
                    .hint(
                        "`cistern status --writeback` shows whether the store answers and how fast it goes",
                    ))
            }
        }
    }

    async fn wait(&self, daemon: &Daemon, url: &str) -> Outcome<Drained> {
        let progress = terminal::Progress::spinning("uploading");
        let limit_ms = self.timeout.map(|span| span.0.as_millis() as u64);
        let request = Request::Drain { volume: Some(url.to_owned()), limit_ms };
        let limit = self.timeout.map(|span| span.0 + ANSWER_GRACE);
        let show = async {
            loop {
                if let Ok(status) = daemon.status().await
                    && let Some(served) = status.volumes.iter().find(|served| served.is(url))
                {
                    progress.message(format!("{} to upload", ByteSize(served.status.dirty_bytes)));
                }
                tokio::time::sleep(SHOW_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            drained = daemon.ask::<Drained>(&request, limit) => drained,
            () = show => unreachable!("shows until the other ends"),
        }
    }
}
