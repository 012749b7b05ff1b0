//! Which backups there are.

use std::time::Duration;

use cistern_engine::{store::StoreUrl, units::utc, volume::SnapshotStatus};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        ls::{self, all_readable},
        marks::is_shown,
        snapshots,
    },
    config::{KeySettings, Resolved, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, VolumeUrl, place_url},
    quantity::{ByteSize, Span},
    terminal,
};

/// List the backups in a place: which volumes, and which snapshots of each, oldest first
#[derive(Args)]
pub(in crate::cli) struct List {
    /// URL of the place, or of one backup in it
    #[arg(value_name = "PLACE", value_parser = place_url)]
    place: StoreUrl,

    /// For scripts: no header, and one tab between columns
    #[arg(short = 'H')]
    scripted: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

#[derive(Serialize)]
struct BackupLine {
    name: String,
    url: String,
    snapshots: Vec<SnapshotStatus>,
    /// Why they cannot be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    failure: Option<Failure>,
}

impl List {
    pub async fn run(&self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let mut lines = Vec::new();
        for volume in volumes(context, &self.place).await? {
            let listed = listed(context, &settings, &volume).await;
            let (snapshots, failure) = match listed {
                Ok(snapshots) => (snapshots, None),
                Err(failure) => (Vec::new(), Some(failure)), // one that is broken does not hide the others
            };
            let error = failure.as_ref().map(|failure| failure.text.clone());
            let (name, url) = (volume.name, volume.url.to_string());
            lines.push(BackupLine { name, url, snapshots, error, failure });
        }
        self.say(context, &lines)?;
        all_readable(lines.into_iter().filter_map(|line| line.failure))
    }

    fn say(&self, context: &Context, lines: &[BackupLine]) -> Outcome {
        if self.json {
            return terminal::say_json(&lines);
        }
        let now = context.env.wall_ms();
        let rows: Vec<Vec<String>> = lines.iter().flat_map(|line| line.rows(now)).collect();
        if self.scripted {
            return rows.iter().try_for_each(|row| terminal::say(row.join("\t")));
        }
        let header = ["NAME", "SNAPSHOT", "MADE", "AGE", "SIZE"].map(str::to_owned).to_vec();
        terminal::say(terminal::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()))
    }
}

impl BackupLine {
    fn rows(&self, now_ms: u64) -> Vec<Vec<String>> {
        let row = |rest: [String; 4]| [std::slice::from_ref(&self.name), &rest[..]].concat();
        let none = || "-".to_owned();
        match &self.error {
            Some(error) => return vec![row([none(), none(), none(), error.clone()])],
            None if self.snapshots.is_empty() => return vec![row([none(), none(), none(), none()])],
            None => {}
        }
        let shown = |snapshot: &SnapshotStatus| {
            let age = Duration::from_millis(now_ms.saturating_sub(snapshot.made_ms));
            let age = Span(Duration::from_secs(age.as_secs())).to_string();
            row([
                snapshot.name.clone(),
                utc(snapshot.made_ms),
                age,
                ByteSize(snapshot.size_bytes).to_string(),
            ])
        };
        self.snapshots.iter().map(shown).collect()
    }
}

/// The volume at a URL, or those in the place.
pub(super) async fn volumes(context: &Context, place: &StoreUrl) -> Outcome<Vec<VolumeUrl>> {
    if let Some(volume) = ls::volume_at(context, place).await? {
        return Ok(vec![volume]);
    }
    let volumes = ls::volumes_in(context, place).await?;
    match volumes.is_empty() {
        true => Err(Failure::new(Kind::NotFound, format!("there is no backup at {place}"))),
        false => Ok(volumes),
    }
}

/// The snapshots of a backup, oldest first.
async fn listed(context: &Context, settings: &Resolved, volume: &VolumeUrl) -> Outcome<Vec<SnapshotStatus>> {
    let mut all = snapshots::list(context, settings, volume).await?;
    all.retain(is_shown);
    Ok(all)
}

/// The newest one of a backup.
pub(super) async fn newest(
    context: &Context,
    settings: &Resolved,
    volume: &VolumeUrl,
) -> Outcome<SnapshotUrl> {
    match listed(context, settings, volume).await?.pop() {
        Some(newest) => Ok(SnapshotUrl { volume: volume.clone(), name: newest.name }),
        None => Err(Failure::new(Kind::NotFound, format!("{} has no snapshots", volume.url))),
    }
}
