//! `cistern drain`: upload everything now, and wait for it.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use futures_util::future::{join_all, try_join_all};

use crate::{
    cli::{Context, waiting::StoreNews},
    config::StateSettings,
    control::{self, DaemonClient, Drained, Request},
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
        let waited = wait(&[daemon], Some(&url), self.timeout).await?;
        if self.json {
            waited.drained.iter().try_for_each(terminal::say_json)?;
        }
        match waited.is_clean() {
            true if self.json => Ok(()),
            true => terminal::say(format!("{}: everything acknowledged is in the store", self.volume.name)),
            false => Err(Failure::new(Kind::NotClean, format!("not drained: {}", waited.left()))
                .hint("`cistern status --writeback` shows whether the store answers and how fast it goes")),
        }
    }
}

/// What the store of a volume, by its name, said last while it took nothing, and what was told of that.
type StoreTroubles = BTreeMap<String, (String, StoreNews)>;

/// What a drain of some daemons came to.
pub(super) struct Waited {
    pub drained: Vec<Drained>,
    trouble: StoreTroubles,
}

impl Waited {
    pub fn is_clean(&self) -> bool {
        self.drained.iter().all(|drained| drained.clean)
    }

    /// How much is not in the store, and why.
    pub fn left(&self) -> String {
        let dirty = ByteSize(self.drained.iter().map(|drained| drained.dirty_bytes).sum());
        let said = self.trouble.iter().map(|(name, (said, _))| format!("; the store of {name}: {said}"));
        format!("{dirty} are not in the store yet{}", said.collect::<String>())
    }
}

/// Waits until one volume of these daemons, or each, is in the store; tells meanwhile, once, what a store says that takes nothing.
pub(super) async fn wait(
    daemons: &[DaemonClient],
    volume: Option<&str>,
    timeout: Option<Span>,
) -> Outcome<Waited> {
    let progress = terminal::Progress::spinning("uploading");
    let limit_ms = timeout.map(|span| span.0.as_millis() as u64);
    let request = Request::Drain { volume: volume.map(str::to_owned), limit_ms };
    let limit = timeout.map(|span| span.0 + ANSWER_GRACE);
    let mut trouble = StoreTroubles::new();
    let showing = async {
        loop {
            show(daemons, volume, &progress, &mut trouble).await;
            tokio::time::sleep(SHOW_INTERVAL).await;
        }
    };
    let asked = try_join_all(daemons.iter().map(|daemon| daemon.ask::<Drained>(&request, limit)));
    let drained = tokio::select! {
        biased;
        drained = asked => drained?,
        () = showing => unreachable!("shows until the other ends"),
    };
    let mut waited = Waited { drained, trouble };
    if !waited.is_clean() {
        show(daemons, volume, &progress, &mut waited.trouble).await; // it may have ended before the first look
    }
    Ok(waited)
}

/// Shows once how far it is; puts into `trouble` what is new of that.
async fn show(
    daemons: &[DaemonClient],
    volume: Option<&str>,
    progress: &terminal::Progress,
    trouble: &mut StoreTroubles,
) {
    let shown = join_all(daemons.iter().map(DaemonClient::status)).await;
    let served = shown.iter().flatten().flat_map(|daemon| &daemon.volumes);
    let mut dirty_bytes = 0;
    for served in served.filter(|served| volume.is_none_or(|volume| served.is(volume))) {
        dirty_bytes += served.status.dirty_bytes;
        let Some(now) = served.store_refusal() else { continue };
        let (said, told) = trouble.entry(served.name.clone()).or_default();
        if told.is_news(&now) {
            progress.remark(format!(
                "the store of {}: {now}. It is tried again, and everything is safe in the journal meanwhile",
                served.name
            ));
        }
        *said = now;
    }
    progress.message(format!("{} to upload", ByteSize(dirty_bytes)));
}
