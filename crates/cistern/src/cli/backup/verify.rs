//! Reading backups back.

use cistern_engine::{store::StoreUrl, volume::SentSince};
use clap::Args;
use futures_util::try_join;
use serde::Serialize;

use crate::{
    cli::{Context, copying, snapshots, transfer::Transfer},
    config::{KeySettings, Resolved, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, place_url, snapshot_url},
    quantity::ByteSize,
    terminal,
};

use super::browse;

/// Read backups back as a whole, and verify every part of them
///
/// The newest of each volume in the place, or the one that is named. Nothing is written, and no claim is taken. --against compares it with what another snapshot
/// shows, like that of the volume it was made of.
#[derive(Args)]
pub(in crate::cli) struct Verify {
    /// URL of the place, of one backup, or of a snapshot of it: PLACE[/NAME[@SNAPSHOT]]
    #[arg(value_name = "PLACE", value_parser = backups)]
    what: Backups,

    /// Compare its content with that of another snapshot
    #[arg(long, value_name = "URL@NAME", value_parser = snapshot_url)]
    against: Option<SnapshotUrl>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// What a user named.
#[derive(Clone, Debug)]
enum Backups {
    In(StoreUrl),
    One(SnapshotUrl),
}

fn backups(text: &str) -> Result<Backups, String> {
    match snapshot_url(text) {
        Ok(snapshot) => Ok(Backups::One(snapshot)),
        Err(_) => Ok(Backups::In(place_url(text)?)),
    }
}

#[derive(Serialize)]
struct Verified {
    snapshot: String,
    size_bytes: u64,
    /// Before compression.
    data_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    same_as: Option<String>,
}

impl Verify {
    pub async fn run(&self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let all = match &self.what {
            Backups::One(snapshot) => vec![snapshot.clone()],
            Backups::In(place) => {
                let mut all = Vec::new();
                for volume in browse::volumes(context, place).await? {
                    all.push(browse::newest(context, &settings, &volume).await?);
                }
                all
            }
        };
        if self.against.is_some() && all.len() > 1 {
            return Err(Failure::usage("--against is about one backup, and there are several: name it"));
        }
        let mut verified = Vec::new();
        for snapshot in &all {
            let done = self.verify(context, &settings, snapshot).await?;
            if !self.json {
                let data = ByteSize(done.data_bytes);
                let same = done.same_as.as_ref().map(|other| format!(", the same as {other}"));
                terminal::say(format!("{snapshot}: {data} of data, verified{}", same.unwrap_or_default()))?;
            }
            verified.push(done);
        }
        if self.json { terminal::say_json(&verified) } else { Ok(()) }
    }

    async fn verify(
        &self,
        context: &Context,
        settings: &Resolved,
        snapshot: &SnapshotUrl,
    ) -> Outcome<Verified> {
        let together = Transfer::begin("verifying", 2, self.json);
        let read = async |n: usize, snapshot: &SnapshotUrl| {
            let (volume, name) = (&snapshot.volume, &snapshot.name);
            let shown = snapshots::open_behind(context, settings, volume, Some(name), None).await?;
            let read = copying::read(&shown, SentSince::Beginning, &together.part(n)).await;
            let (sum, data_bytes) = read.map_err(|failure| {
                let hint = format!("`cistern check {} --data` finds out what else is affected", volume.url);
                failure.context(snapshot).hint(hint)
            })?;
            Ok::<_, Failure>((shown.size_bytes(), sum, data_bytes))
        };
        let ((size_bytes, sum, data_bytes), other) = match &self.against {
            None => (read(0, snapshot).await?, None),
            Some(other) => {
                let (one, theirs) = try_join!(read(0, snapshot), read(1, other))?;
                (one, Some((other, theirs)))
            }
        };
        if let Some((other, (their_size, their_sum, _))) = other
            && (their_size, their_sum) != (size_bytes, sum)
        {
            let text = format!("{snapshot} and {other} do not show the same");
            return Err(Failure::new(Kind::Corrupt, text).hint("each of them is whole in itself"));
        }
        let same_as = other.map(|(other, _)| other.to_string());
        Ok(Verified { snapshot: snapshot.to_string(), size_bytes, data_bytes, same_as })
    }
}
