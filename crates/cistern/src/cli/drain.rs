//! `cistern drain`: upload everything now, and wait for it.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use clap::Args;

use crate::{
    cli::Context,
    config::StateSettings,
    control::{self, DaemonClient, Drained, Request, ServedStatus},
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
pub(super) struct Drain {
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
        let trouble = RefCell::default();
        let drained = wait(&daemon, &url, self.timeout, &trouble).await?;
        if self.json {
            terminal::say_json(&drained)?;
        }
        match drained.clean {
            true if self.json => Ok(()),
            true => terminal::say(format!("{}: everything acknowledged is in the store", self.volume.name)),
            false => {
                let dirty = ByteSize(drained.dirty_bytes);
                let said = trouble.take().map(|said| format!("; the store: {said}")).unwrap_or_default();
                let text = format!("not drained: {dirty} are not in the store yet{said}");
                Err(Failure::new(Kind::NotClean, text).hint(
                    "`cistern status --writeback` shows whether the store answers and how fast it goes",
                ))
            }
        }
    }
}

/// Waits, and tells what the store says meanwhile where it refuses or does not answer: once, and in `trouble`.
pub(super) async fn wait(
    daemon: &DaemonClient,
    url: &str,
    timeout: Option<Span>,
    trouble: &RefCell<Option<String>>,
) -> Outcome<Drained> {
    let (progress, began) = (terminal::Progress::spinning("uploading"), Instant::now());
    let limit_ms = timeout.map(|span| span.0.as_millis() as u64);
    let request = Request::Drain { volume: Some(url.to_owned()), limit_ms };
    let limit = timeout.map(|span| span.0 + ANSWER_GRACE);
    let show = async {
        loop {
            if let Ok(status) = daemon.status().await
                && let Some(served) = status.volumes.iter().find(|served| served.is(url))
            {
                progress.message(format!("{} to upload", ByteSize(served.status.dirty_bytes)));
                let now = trouble_since(served, began.elapsed());
                if now.is_some() && *trouble.borrow() != now {
                    progress.remark(format!(
                        "the store: {}. It is tried again, and everything is safe in the journal meanwhile",
                        now.as_deref().unwrap_or_default()
                    ));
                    *trouble.borrow_mut() = now;
                }
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

/// What keeps a store from taking data now: it is away, or it said so within the time that was `waited`.
fn trouble_since(served: &ServedStatus, waited: Duration) -> Option<String> {
    let status = &served.status;
    let recent = status.store_error_age_ms.is_some_and(|age| u128::from(age) <= waited.as_millis());
    match &status.store_error {
        Some(error) if recent => Some(error.clone()),
        _ => served.store_away_ms.and(served.store["last_error"]["text"].as_str().map(str::to_owned)),
    }
}
