//! `cistern doctor`: what this host and a store have and lack.

use clap::Args;
use serde::Serialize;

use crate::{
    cli::Context,
    config::{Settings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{VolumeUrl, volume_url},
    quantity::ByteSize,
    terminal,
};

mod devices;
mod host;
mod journal_disk;
mod store;

/// Say what this host lacks for serving volumes, and a store for holding one, and how to get it
///
/// Looks at the disk of the state directory (and writes 64 MiB there, to a file without a name), free space, memory, limits, the clock, and the versions of
/// running daemons; with URL at the store, as `cistern probe` does; and at what `up` and `attach` need, which nobody needs who only serves NBD.
///
/// Changes nothing, but for loading the kernel's modules nbd, ublk_drv and zfs if they can be. Each line says ok, note (it is missed in some cases) or
/// bad. Exit code 1 if anything is bad.
#[derive(Args)]
pub(super) struct Doctor {
    /// URL of a volume, existing or not: its store is probed
    #[arg(value_name = "URL", value_parser = volume_url)]
    volume: Option<VolumeUrl>,

    /// Devices are wanted here: what `up` and `attach` cannot do without is bad where it is missing, not a note
    #[arg(long)]
    up: bool,

    /// What `cistern serve --memory` will say here
    ///
    /// [default: 256M, or what the settings file says]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Missed in some cases.
    Note,
    Bad,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Ok, text: text.into(), hint: None }
    }

    fn note(what: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Note, text: text.into(), hint: Some(hint.into()) }
    }

    fn bad(what: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Bad, text: text.into(), hint: Some(hint.into()) }
    }

    /// The same for who can do without.
    fn at_most_note(self) -> Finding {
        match self.verdict {
            Verdict::Bad => Finding { verdict: Verdict::Note, ..self },
            Verdict::Ok | Verdict::Note => self,
        }
    }
}

impl Doctor {
    pub async fn run(self, context: &Context) -> Outcome {
        let flags = Settings { state: self.state.clone(), memory: self.memory, ..Settings::default() };
        let settings = flags.resolve(context.file.clone())?;
        let mut checks = host::versions(&settings.state_dir).await;
        if let Some(volume) = &self.volume {
            checks.push(store::look(context, volume).await);
        }
        checks.push(host::clock());
        checks.push(journal_disk::room(&settings.state_dir));
        checks.push(journal_disk::honesty(context, &settings.state_dir).await);
        checks.push(host::memory(settings.memory_bytes));
        checks.push(host::limits());
        checks.extend(devices::all(self.up));
        checks.extend(devices::attached(&settings.state_dir).await?);
        let bad = checks.iter().filter(|check| check.verdict == Verdict::Bad).count();
        match self.json {
            true => terminal::say_json(&checks)?,
            false => show(&checks)?,
        }
        match bad {
            0 => Ok(()),
            n => Err(Failure::new(
                Kind::Other,
                format!("{n} of {} things that were looked at are bad", checks.len()),
            )),
        }
    }
}

fn show(checks: &[Finding]) -> Outcome {
    let mut rows = Vec::new();
    for Finding { what, verdict, text, hint } in checks {
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Bad => "bad",
        };
        rows.push(vec![verdict.to_owned(), (*what).to_owned(), text.clone()]);
        rows.extend(hint.iter().map(|hint| vec![String::new(), String::new(), format!("-> {hint}")]));
    }
    terminal::say(terminal::table(&rows))
}
