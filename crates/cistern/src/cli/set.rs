//! `cistern set`, `pause` and `resume`: change how a volume is served, now and after restarts.

use cistern_engine::Error;
use clap::Args;

use crate::{
    cli::Context,
    config::{KeySettings, Settings, StateSettings},
    control::{self, Request, SetDone},
    daemon,
    failure::Outcome,
    live::{Change, Kept, parse_change},
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    quantity::ByteSize,
    terminal,
};

/// Where a volume and its state are.
#[derive(Args)]
struct Target {
    /// URL of the volume
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: VolumeUrl,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

/// Change settings of a volume, while it is served or before
///
/// A change takes effect at once and stays until it is taken back with NAME=default: it is kept in the state
/// directory of this host and wins over the command line and the settings file.
///
/// mode=writeback|writethrough|writearound: how far a flush reaches. After a switch to writethrough the command
/// returns when everything acknowledged before is in the store.
///
/// upload-rate, download-rate: bytes a second, like 10M. All volumes of a daemon share one link: the least of
/// what is set for them counts.
///
/// max-dirty-bytes, max-dirty-age: what may be missing if this host and its disk are lost.
///
/// space-bound=auto|RATIO|none: stored bytes per live byte that are let be; what is more is cleaned.
///
/// gc-rate: bytes a second that the cleaner moves by itself at the most, like 1M: each is read and written. Where less
/// is moved than it takes, the bound does not hold. `cistern gc` does not wait for it.
///
/// auto-snapshot=SCHEDULE|none: snapshots by themselves, as `cistern auto-snapshot` says.
#[derive(Args)]
pub(super) struct Set {
    #[command(flatten)]
    target: Target,

    /// What to change, like mode=writethrough or upload-rate=10M; `default` takes it back
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = parse_change)]
    changes: Vec<Change>,
}

/// Make snapshots of a volume by themselves, and remove old ones
///
/// The daemon that serves the volume on this host makes one when a new one of the shortest periods begins (by the calendar, in UTC)
/// and something was written since the newest. It is named auto- and its time. Of each rule PERIOD:COUNT the newest of a period is
/// kept, for so many periods in which there is one: periods without one do not count. Others of that name are removed, unless they
/// are held (`cistern hold`) or read. `cistern status` shows when one is overdue.
#[derive(Args)]
pub(super) struct AutoSnapshot {
    #[command(flatten)]
    target: Target,

    /// Which to keep: PERIOD:COUNT with m, h, d, w, M (months) or y, like 15m:8,1h:24,1d:30,1M:12; `none` makes no more, and
    /// removes none
    #[arg(long, value_name = "SCHEDULE", value_parser = parse_keep)]
    keep: Change,
}

fn parse_keep(text: &str) -> Result<Change, String> {
    parse_change(&format!("auto-snapshot={text}"))
}

/// Hold the uploads of a volume: what is written stays in the journal
///
/// Reads, writes and flushes go on. What is on its way to the store is finished. While paused max-dirty-age is not
/// kept; max-dirty-bytes is: writes slow down before it, and then wait. A stop leaves everything in the journal,
/// and a restart stays paused, until `cistern resume`. Not possible in the mode writethrough, where every flush
/// would wait.
#[derive(Args)]
pub(super) struct Pause {
    #[command(flatten)]
    target: Target,
}

/// Let a paused volume upload again
#[derive(Args)]
pub(super) struct Resume {
    #[command(flatten)]
    target: Target,
}

impl Set {
    pub async fn run(self, context: &Context) -> Outcome {
        self.target.change(context, self.changes).await
    }
}

impl AutoSnapshot {
    pub async fn run(self, context: &Context) -> Outcome {
        self.target.change(context, vec![self.keep]).await
    }
}

impl Pause {
    pub async fn run(self, context: &Context) -> Outcome {
        self.target.change(context, vec![Change::Paused(true)]).await
    }
}

impl Resume {
    pub async fn run(self, context: &Context) -> Outcome {
        self.target.change(context, vec![Change::Paused(false)]).await
    }
}

impl Target {
    async fn change(self, context: &Context, changes: Vec<Change>) -> Outcome {
        let flags =
            Settings { state: self.state.clone(), key: KeySettings::default(), ..Settings::default() };
        let state_dir = flags.resolve(context.file.clone())?.state_dir;
        let url = self.volume.url.to_string();
        match control::serving(&state_dir, &url).await? {
            Some((daemon, _)) => {
                let _progress = terminal::Progress::spinning("waiting until it holds");
                let done: SetDone = daemon.ask(&Request::Set { volume: url, changes }, None).await?;
                match self.json {
                    true => terminal::say_json(&done),
                    false => terminal::say(describe(&done)),
                }
            }
            None => self.keep(context, &state_dir, &changes).await,
        }
    }

    /// Nobody serves the volume here: what is kept counts from the next start on.
    async fn keep(&self, context: &Context, state_dir: &std::path::Path, changes: &[Change]) -> Outcome {
        let store = self.volume.open(&context.env, COMMAND_PATIENCE).await?.store;
        let info = cistern_engine::volume::admin::info(
            &context.env,
            &store,
            &cistern_engine::codec::KeySource::None,
        )
        .await
        .map_err(|e| self.volume.explain(e))?;
        let directory = daemon::volume_directory(state_dir, info.volume)?;
        let kept = Kept::load(&directory)?.after(changes, context.env.wall_ms());
        if kept.mode == Some(crate::config::ModeSetting::Writethrough) && kept.paused_since_ms.is_some() {
            return Err(Error::PausedWritethrough.into());
        }
        kept.save(&directory)?;
        match self.json {
            true => terminal::say_json(&kept),
            false => terminal::say(format!(
                "{}: kept; nobody serves it on this host now, it counts from the next `cistern serve` on",
                self.volume.name
            )),
        }
    }
}

fn describe(done: &SetDone) -> String {
    let settings = done.settings.iter().map(|s| format!("{}={} ({})", s.name, s.value, s.from));
    let settings = settings.collect::<Vec<_>>().join("\n  ");
    let mut text = format!("{}:\n  {settings}", done.volume);
    if done.paused_since_ms.is_some() {
        let dirty = ByteSize(done.dirty_bytes);
        text += &format!("\n  write-back is paused: {dirty} are only in the journal of this host");
    }
    text
}
