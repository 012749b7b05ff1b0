//! `cistern receive`: a stream into a volume, as a snapshot; all of it or nothing.

mod input;

use std::{cell::Cell, path::PathBuf};

use cistern_engine::{stream::StreamHeader, units::BLOCK_BYTES, volume::ShareReceiver};
use clap::Args;
use futures_util::future::{join_all, try_join_all};
use serde::Serialize;

use crate::{
    cli::{
        Context, snapshots,
        target::{OpenTarget, TargetVolume, overwrite},
        transfer::Transfer,
    },
    config::{KeySettings, Resolved, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{StateUrl, state_url},
    quantity::ByteSize,
    signals::{EndAtOnce, Signals},
    terminal,
};

use input::Input;

/// Receive a stream of `cistern send` into a volume, as a snapshot
///
/// A full stream goes into a new volume, which is made, or into an empty one; what changed since a snapshot goes into a volume that shows that
/// snapshot and was not written to since. It counts as a whole: every part is verified before it is written, and if one is damaged, the
/// stream ends early or Ctrl-C is pressed, what was there before is put back. A file is verified before anything is written. A stream that
/// the volume has already changes nothing.
///
/// If the command is killed, the volume is served read-only, as it was before, until the stream is received again, or --abort goes back. Nobody may serve the volume
/// meanwhile; its snapshots may be shown. What was received need not be sent again: `cistern send` takes what --token says, and this command the rest. With
/// --resumable that is so too after a stream that breaks.
#[derive(Args)]
pub(super) struct Receive {
    /// URL of the volume; with @NAME the received snapshot gets that name, else the one it has
    #[arg(value_name = "URL[@NAME]", value_parser = state_url)]
    state: StateUrl,

    /// The stream: a file, a pipe, or - for standard input; all shares, with commas between, if it was sent so
    #[arg(value_name = "FILE,...", default_value = "-", value_delimiter = ',', conflicts_with_all = ["abort", "token"])]
    from: Vec<PathBuf>,

    /// Overwrite what is there, or what was written since the snapshot with which the stream begins
    #[arg(long)]
    force: bool,

    /// As --force, but read what is there, and write only what differs
    #[arg(long)]
    differential: bool,

    /// Encrypt a new volume, with a key file or a passphrase
    #[arg(long)]
    encrypt: bool,

    /// If the stream breaks, or Ctrl-C is pressed, keep what came, to go on from there; say the token for that
    #[arg(long, conflicts_with_all = ["abort", "token"])]
    resumable: bool,

    /// Say what `cistern send --resume` takes, to go on where a receive was killed or broke
    #[arg(long, conflicts_with_all = ["abort", "force", "differential", "encrypt"])]
    token: bool,

    /// Go back to what was there before a receive that was killed or broke
    #[arg(long, conflicts_with_all = ["force", "differential", "encrypt"])]
    abort: bool,

    /// Take the volume from a host that is gone and did not release it, as `cistern serve` does
    #[arg(long)]
    take_over: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

#[derive(Serialize)]
struct Told {
    token: String,
}

/// What was received.
#[derive(Serialize)]
struct Received {
    volume: String,
    snapshot: String,
    id: String,
    size_bytes: u64,
    /// Before compression.
    data_bytes: u64,
    /// The volume was made for it.
    created: bool,
    /// It had that snapshot before, and nothing was done.
    known: bool,
}

impl Receive {
    pub async fn run(self, context: &Context) -> Outcome {
        let at_once = EndAtOnce::listen()?;
        let settings = snapshots::settings(context, &self.settings, &self.key)?;
        let target = self.target(context, &settings);
        target.refuse_if_served().await?;
        if self.abort {
            return self.abort(&target, at_once).await;
        }
        if self.token {
            let token = target.resume_token().await?.to_string();
            return if self.json { terminal::say_json(&Told { token }) } else { terminal::say(token) };
        }
        let inputs = try_join_all(self.from.iter().map(|path| Input::open(path))).await?;
        let headers: Vec<StreamHeader> = inputs.iter().map(|input| input.header.clone()).collect();
        StreamHeader::check_together(&headers).map_err(|e| {
            Failure::from(e).hint("name all files or pipes to which it was sent, with commas between")
        })?;
        let opened = match target.open().await? {
            Some(opened) => opened,
            None => target.make(&headers[0]).await?,
        };
        // From here on there may be something to go back on.
        let mut signals = Signals::listen()?;
        drop(at_once);
        let received = tokio::select! {
            biased;
            () = signals.next() => Err(Failure::new(Kind::Interrupted, "interrupted")),
            received = self.receive(&opened, inputs, &headers) => received,
        };
        drop(signals);
        let _at_once = EndAtOnce::listen()?;
        match received {
            Ok(received) => {
                opened.close().await?;
                self.say(&received)
            }
            Err(failure) if opened.keeps(self.resumable) => {
                Err(opened.leave(&headers[0].to.name, failure).await)
            }
            Err(failure) => Err(opened.go_back(failure).await),
        }
    }

    fn target<'a>(&'a self, context: &'a Context, settings: &'a Resolved) -> TargetVolume<'a> {
        let (encrypt, take_over) = (self.encrypt, self.take_over);
        TargetVolume { context, settings, volume: &self.state.volume, encrypt, take_over }
    }

    async fn receive(
        &self,
        opened: &OpenTarget<'_>,
        inputs: Vec<Input>,
        headers: &[StreamHeader],
    ) -> Outcome<Received> {
        let header = &headers[0];
        let name = self.state.snapshot.clone().unwrap_or_else(|| header.to.name.clone());
        let overwrite = overwrite(self.force, self.differential);
        let mut received = Received {
            volume: self.state.volume.url.to_string(),
            snapshot: name.clone(),
            id: header.to.id.to_string(),
            size_bytes: header.size_bytes,
            data_bytes: 0,
            created: opened.created,
            known: false,
        };
        let Some((receiver, shares)) = opened.begin(headers, &name, overwrite).await? else {
            received.known = true;
            return Ok(received);
        };
        let transfer = Transfer::begin("receiving", shares.len(), self.json);
        let data_bytes = Cell::new(0);
        let shares = inputs.into_iter().zip(shares).enumerate();
        let written = shares.map(async |(n, (mut input, mut share))| -> Outcome<ShareReceiver> {
            transfer.part(n).begin_at(headers[n].from * BLOCK_BYTES as u64, header.size_bytes);
            while let Some(record) = input.next().await? {
                let at = (record.extent.end() * BLOCK_BYTES as u64).min(header.size_bytes);
                let bytes = record.data_bytes();
                share.record(record).await?;
                data_bytes.set(data_bytes.get() + bytes);
                transfer.part(n).add(bytes, at, header.size_bytes);
            }
            Ok(share)
        });
        let shares = match self.resumable {
            // What the other shares still bring need not be sent again.
            true => join_all(written).await.into_iter().collect::<Outcome<_>>()?,
            false => try_join_all(written).await?,
        };
        drop(transfer);
        receiver.end(shares).await?;
        received.data_bytes = data_bytes.get();
        Ok(received)
    }

    async fn abort(&self, target: &TargetVolume<'_>, at_once: EndAtOnce) -> Outcome {
        let url = &self.state.volume.url;
        let was_unfinished = target.abort().await?;
        drop(at_once);
        match was_unfinished {
            true => terminal::say(format!("{url} is as it was before the receive")),
            false => terminal::say(format!("{url} is complete: there is nothing to go back on")),
        }
    }

    fn say(&self, received: &Received) -> Outcome {
        let Received { volume, snapshot, data_bytes, created, known, .. } = received;
        if self.json {
            return terminal::say_json(received);
        }
        if *known {
            return terminal::say(format!("{volume} has {snapshot} already; nothing was done"));
        }
        let (data, size) = (ByteSize(*data_bytes), ByteSize(received.size_bytes));
        if *created {
            terminal::say(format!("created {volume} ({size})"))?;
        }
        terminal::say(format!("received {volume}@{snapshot}: {data} of data"))
    }
}
