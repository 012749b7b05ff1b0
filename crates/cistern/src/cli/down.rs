//! `cistern down`: the way back from `cistern up`, until it is safe to disconnect.

use clap::Args;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        stacks::{self, Stack},
    },
    config::{KeySettings, Settings, StateSettings},
    failure::{Failure, Kind, Outcome},
    quantity::ByteSize,
    stack::{StackGoal, Way},
    terminal,
};

/// Take a filesystem down that `cistern up` brought up, and say when it is safe to disconnect
///
/// Exports the pool or unmounts the filesystem, frees the device, uploads what is not in the store yet, stops the daemon, which releases the
/// volume, and then looks at the store as another host would: only when everything is there it says "safe to disconnect". While
/// anybody uses the filesystem nothing is changed, and it says who.
///
/// May be interrupted anywhere, and run again. Exit code 8: not everything is in the store.
#[derive(Args)]
pub(super) struct Down {
    /// As for `cistern up`
    #[arg(value_name = "NAME", value_parser = stacks::name)]
    name: String,

    /// Upload nothing: what is not in the store stays in the journal of this host, which keeps the volume
    ///
    /// For a shutdown in a hurry. `cistern up` or `cistern down` on this host uploads it later.
    #[arg(long)]
    keep_dirty: bool,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// How it ended.
#[derive(Serialize)]
struct Ended {
    name: String,
    url: String,
    /// Everything that was acknowledged is in the store, and the volume is released.
    safe_to_disconnect: bool,
    /// Acknowledged bytes that are in the journal of this host alone, at most; null where that is not known.
    dirty_bytes: Option<u64>,
}

impl Down {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let name = &self.name;
        let Some(record) = stacks::load(&settings.state_dir, name)? else {
            let failure = Failure::new(Kind::NotFound, format!("nothing is known of {name} on this host"));
            return Err(failure.hint(
                "`cistern up` has to have brought it up here; `cistern status` lists volumes that are served",
            ));
        };
        let goal = StackGoal::of(&record, false, Way::Down { keep_dirty: self.keep_dirty });
        let key_file = self.key.key_file.clone().or_else(|| record.key_file.clone());
        let key = KeySettings { key_file }.or(&context.file);
        let url = record.url.clone();
        let mut stack = Stack::new(context, settings.state_dir, record, goal, key, None);
        if self.dry_run {
            return stack.show_plan(self.json).await;
        }
        let seen = stack.go().await?;
        stack.forget_service().await;
        let (text, ended) = match &seen.served {
            Some(served) => {
                let there = match served.dirty_bytes {
                    0 => format!("everything is in {url}"),
                    dirty => format!("{} are in the journal of this host alone", ByteSize(dirty)),
                };
                let why = format!(
                    "{name} is down and {there}; its daemon serves other volumes and goes on, so this host keeps the volume"
                );
                (why, self.ended(&url, false, Some(served.dirty_bytes)))
            }
            None if self.keep_dirty && stack.left_bytes() > 0 => {
                let left = ByteSize(stack.left_bytes());
                let why = format!(
                    "{name} is down; up to {left} are in the journal of this host alone, which keeps the volume: `cistern down {name}` uploads them"
                );
                (why, self.ended(&url, false, Some(stack.left_bytes())))
            }
            None => {
                stack.verify().await?;
                let why = format!("{name} is down and everything is in {url}: safe to disconnect");
                (why, self.ended(&url, true, Some(0)))
            }
        };
        match self.json {
            true => terminal::say_json(&ended),
            false => terminal::say(text),
        }
    }

    fn ended(&self, url: &str, safe_to_disconnect: bool, dirty_bytes: Option<u64>) -> Ended {
        Ended { name: self.name.clone(), url: url.to_owned(), safe_to_disconnect, dirty_bytes }
    }
}
