//! `cistern status`: what the daemons of this host are doing.

mod damage;
mod io;
mod space;
mod writeback;

use std::{path::Path, time::Duration};

use cistern_engine::{units::utc, volume::JournalWaits};
use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;

use crate::{
    cli::{Context, drain},
    config::StateSettings,
    control::{self, AutoSnapshotStatus, DaemonClient, DaemonStatus, ServedStatus},
    failure::{Failure, Kind, Outcome},
    place::VERSIONS,
    quantity::{ByteSize, Span},
    terminal,
};

/// Show the volumes being served on this host, and how much of them is still to be uploaded
///
/// The four frontiers are positions in a volume's journal, counted in blocks of 4096 bytes:
/// acknowledged (clients got a reply), durable (on the local disk), uploaded, and committed
/// (another host can read it). When all are equal, the volume is clean.
#[derive(Args)]
pub(super) struct Status {
    /// Only this volume: its name, URL or id
    #[arg(value_name = "VOLUME")]
    volume: Option<String>,

    /// Wait until everything acknowledged before this moment is in the store
    ///
    /// Exit code 0 means that it is; 8 that it is not within --timeout. What a store says meanwhile that takes
    /// nothing is shown.
    #[arg(long)]
    wait_clean: bool,

    /// How long --wait-clean waits; without it as long as it takes
    #[arg(long, value_name = "TIME", requires = "wait_clean")]
    timeout: Option<Span>,

    /// Show how write-back is controlled
    ///
    /// `rate`: how fast the journal is packed and uploaded; `proportional` grows with the distance
    /// of `dirty` from `target`, `integral` with how long it lasts, `change` is what the last
    /// update did, `next` when the next one comes. Age, a drain, and the high-water mark override
    /// the rate. `writes`: how far clients are slowed, because the room for dirty data fills.
    #[arg(long, conflicts_with_all = ["wait_clean", "io"])]
    writeback: bool,

    /// Show what clients ask, how long it takes, and what it costs the store
    ///
    /// Requests by kind with their bytes, the number in flight now and on average, and latencies:
    /// what half of them, 95 %, 99 % and 99.9 % did not exceed (at most 25 % too high, never too
    /// low) and the longest. Then the requests to the store, and the chunk cache: `cold` misses
    /// were never there, those `evicted before` a larger cache would have had. Counted since the
    /// volume was opened.
    #[arg(long, conflicts_with = "wait_clean")]
    io: bool,

    /// With --io: show it again every so often, for the time in between; Ctrl-C ends it
    ///
    /// What comes first covers the time since the volume was opened. With --json every interval is
    /// one line.
    #[arg(long, value_name = "TIME", requires = "io", num_args = 0..=1, default_missing_value = "1s")]
    watch: Option<Span>,

    /// With --io: also requests by size, and by alignment
    ///
    /// The alignment is the largest power of two that divides both offset and length. Requests
    /// below 4 KiB make cistern read the rest of their block first.
    #[arg(long, requires = "io")]
    histograms: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,
}

#[derive(Serialize)]
struct Shown {
    daemons: Vec<DaemonStatus>,
}

impl Status {
    pub async fn run(self, context: &Context) -> Outcome {
        let state_dir = self.state.clone().resolve(&context.file)?;
        let chosen = asked(&state_dir, self.volume.as_deref()).await?;
        if self.io {
            return self.io(&chosen).run().await;
        }
        match self.wait_clean {
            true => self.wait(&chosen).await,
            false => self.show(&chosen).await,
        }
    }

    fn io<'a>(&'a self, daemons: &'a [DaemonClient]) -> io::Io<'a> {
        io::Io {
            daemons,
            volume: self.volume.as_deref(),
            watch: self.watch.map(|span| span.0),
            histograms: self.histograms,
            json: self.json,
        }
    }

    async fn show(&self, daemons: &[DaemonClient]) -> Outcome {
        let mut shown = Shown { daemons: try_join_all(daemons.iter().map(DaemonClient::status)).await? };
        if let Some(volume) = &self.volume {
            shown.daemons.iter_mut().for_each(|daemon| daemon.volumes.retain(|served| served.is(volume)));
        }
        if self.json {
            return terminal::say_json(&shown);
        }
        if self.writeback {
            let blocks =
                shown.daemons.iter().flat_map(|daemon| daemon.volumes.iter().map(writeback::describe));
            return terminal::say(blocks.collect::<Vec<_>>().join("\n"));
        }
        let blocks =
            shown.daemons.iter().flat_map(|daemon| daemon.volumes.iter().map(|v| describe(daemon, v)));
        terminal::say(blocks.collect::<Vec<_>>().join("\n"))
    }

    async fn wait(&self, daemons: &[DaemonClient]) -> Outcome {
        let waited = drain::wait(daemons, self.volume.as_deref(), self.timeout).await?;
        if self.json {
            terminal::say_json(&waited.drained)?;
        }
        match waited.is_clean() {
            true if self.json => Ok(()),
            true => terminal::say("clean: everything acknowledged is in the store"),
            false => Err(Failure::new(Kind::NotClean, format!("not clean: {}", waited.left()))
                .hint("`cistern status` shows whether the store answers and how fast it goes")),
        }
    }
}

/// The daemon that serves a volume, or all of them; at least one.
pub(super) async fn asked(state_dir: &Path, volume: Option<&str>) -> Outcome<Vec<DaemonClient>> {
    let chosen: Vec<DaemonClient> = match volume {
        Some(volume) => {
            control::serving(state_dir, volume).await?.map(|(daemon, _)| daemon).into_iter().collect()
        }
        None => control::daemons(state_dir).await?,
    };
    if chosen.is_empty() {
        let text = match volume {
            Some(volume) => format!("no daemon with state in {} serves {volume}", state_dir.display()),
            None => format!("no daemon with state in {} is running", state_dir.display()),
        };
        let hint = "start one with `cistern serve URL`, or give the --state-dir of the one you mean";
        return Err(Failure::new(Kind::NotFound, text).hint(hint));
    }
    Ok(chosen)
}

fn describe(daemon: &DaemonStatus, served: &ServedStatus) -> String {
    let status = &served.status;
    let position = |blocks: u64| blocks.to_string();
    let mut rows = vec![
        ("url", served.url.clone()),
        ("id", status.volume.to_string()),
        (
            "served",
            format!("at {} by process {}, version {}", served.uris.join(" "), daemon.pid, daemon.version),
        ),
        ("size", ByteSize(status.size_bytes).to_string()),
    ];
    rows.extend(served.lasting_name.iter().map(|name| ("lasting name", name.clone())));
    if !served.attached.is_empty() {
        let devices: Vec<String> = served.attached.iter().map(|at| at.display().to_string()).collect();
        rows.push(("device", devices.join(" ")));
    }
    rows.push(("epoch", format!("{}, log position {}", status.epoch, status.seq)));
    if !status.read_only {
        rows.extend([
            ("mode", writeback::mode(served)),
            ("acknowledged", position(status.acknowledged)),
            ("durable", position(status.durable)),
            ("uploaded", position(status.uploaded)),
            ("committed", position(status.committed)),
            ("at risk", writeback::at_risk(served)),
            ("journal", journal(served)),
            ("uploads", format!("{} in flight", status.uploads_in_flight)),
        ]);
    }
    rows.extend(status.space.iter().flat_map(space::rows));
    rows.extend(served.auto_snapshot.as_ref().map(|auto| ("snapshots", snapshots(auto))));
    rows.extend(writeback::paused(served).map(|text| ("paused", text)));
    rows.extend(writeback::away(served).map(|text| ("store away", text)));
    rows.extend(writeback::retried(served).map(|text| ("store retried", text)));
    if served.store_keeps_versions {
        rows.push(("versions", VERSIONS.to_owned()));
    }
    if let Some(error) = &status.store_error {
        let age = Span(Duration::from_millis(status.store_error_age_ms.unwrap_or(0)));
        rows.push(("store error", format!("{age} ago: {error}")));
    }
    rows.extend(damage::lines(&status.damage).into_iter().map(|line| ("damaged", line)));
    if status.partial_blocks {
        let text = "some blocks are stored in part, with all that was written to them: the rest could not be read. They are \
                    completed when it can be";
        rows.push(("partial", text.to_owned()));
    }
    if let Some(JournalWaits { for_ms, why }) = &status.journal_waits {
        let time = Span(Duration::from_millis(*for_ms));
        rows.push((
            "disk full",
            format!("for {time}: {why}. Writes wait until there is room on it: free some"),
        ));
    }
    if let Some(why) = &status.latched {
        rows.push(("stopped", why.clone()));
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![format!("  {name}"), value]).collect();
    format!("{}: {}\n{}", served.name, verdict(daemon, served), terminal::table(&rows))
}

fn snapshots(auto: &AutoSnapshotStatus) -> String {
    let newest = auto.newest_ms.map_or("none yet".to_owned(), |newest| format!("newest of {}", utc(newest)));
    let overdue = match auto.overdue_ms {
        0 => String::new(),
        ms => format!(", overdue for {}", Span(Duration::from_millis(ms))),
    };
    let error = auto.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{}, {newest}{overdue}{error}", auto.schedule)
}

fn verdict(daemon: &DaemonStatus, served: &ServedStatus) -> &'static str {
    let status = &served.status;
    match status {
        _ if status.latched.is_some() => "stopped, see below",
        _ if status.read_only => "read-only",
        _ if daemon.stopping => "stopping",
        _ if status.journal_waits.is_some() => "the disk of the journal is full",
        _ if status.dirty_bytes == 0 => "clean",
        _ if served.paused_since_ms.is_some() => "paused",
        _ if served.store_away_ms.is_some() => "waiting for the store",
        _ => "uploading",
    }
}

fn journal(served: &ServedStatus) -> String {
    let status = &served.status;
    let percent = (status.journal_used_bytes * 100).checked_div(status.journal_bytes).unwrap_or(0);
    format!("{percent} % of {} used", ByteSize(status.journal_bytes))
}
