//! `cistern receive`: a stream into a volume, as a snapshot; all of it or nothing.

mod input;

use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    sync::Arc,
};

use cistern_engine::{
    codec::KeySource,
    stream::{StreamContent, StreamHeader},
    units::BLOCK_BYTES,
    volume::{CreateOptions, Overwrite, Receiver, ShareReceiver, Volume, admin},
};
use clap::Args;
use futures_util::future::{join_all, try_join_all};
use serde::Serialize;

use crate::{
    cli::{Context, rm, snapshots, transfer::Transfer},
    config::{KeySettings, Resolved, StateSettings},
    control,
    creation::{self, Probing},
    daemon,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, StateUrl, VolumeUrl, state_url},
    quantity::ByteSize,
    secret,
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
        let volume = &self.state.volume;
        if control::serving(&settings.state_dir, &volume.url.to_string()).await?.is_some() {
            let failure = Failure::new(Kind::InUse, format!("{} is being served", volume.url));
            return Err(failure
                .hint("nobody may use a volume that something is received into: stop its daemon first"));
        }
        if self.abort {
            return self.abort(context, &settings, at_once).await;
        }
        if self.token {
            return self.tell_token(context, &settings).await;
        }
        let inputs = try_join_all(self.from.iter().map(|path| Input::open(path))).await?;
        let headers: Vec<StreamHeader> = inputs.iter().map(|input| input.header.clone()).collect();
        StreamHeader::check_together(&headers).map_err(|e| {
            Failure::from(e).hint("name all files or pipes to which it was sent, with commas between")
        })?;
        let created = self.is_missing(context).await?;
        if created {
            self.create(context, &headers[0]).await?;
        }
        let opened = daemon::open_to_receive(&context.env, &settings, volume, self.take_over).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                if created {
                    self.remove(context, &settings, None).await?;
                }
                return Err(failure);
            }
        };
        let before = opened.receiving();
        // From here on there may be something to go back on.
        let mut signals = Signals::listen()?;
        drop(at_once);
        let received = tokio::select! {
            biased;
            () = signals.next() => Err(Failure::new(Kind::Interrupted, "interrupted")),
            received = self.receive(&opened, inputs, &headers, created) => received,
        };
        drop(signals);
        let _at_once = EndAtOnce::listen()?;
        let received = match received {
            Ok(received) => received,
            // What somebody left unfinished stays so, whether something was added to it or the stream did not fit.
            Err(failure)
                if opened.receiving().is_some() && (self.resumable || opened.receiving() == before) =>
            {
                return Err(self.keep(&opened, &headers, failure).await);
            }
            Err(failure) => return Err(self.go_back(context, &settings, &opened, created, failure).await),
        };
        let closed = opened.close(COMMAND_PATIENCE).await;
        if let Some(why) = closed.reason.filter(|_| !closed.clean) {
            let failure =
                Failure::new(Kind::NotClean, format!("received here, but not in the store yet: {why}"));
            return Err(
                failure.hint("the journal holds it; the next `cistern serve` on this host brings it there")
            );
        }
        self.say(&received)
    }

    async fn receive(
        &self,
        opened: &Arc<Volume>,
        inputs: Vec<Input>,
        headers: &[StreamHeader],
        created: bool,
    ) -> Outcome<Received> {
        let header = &headers[0];
        let name = self.state.snapshot.clone().unwrap_or_else(|| header.to.name.clone());
        let overwrite = match (self.differential, self.force) {
            (true, _) => Overwrite::Differing,
            (_, true) => Overwrite::All,
            _ => Overwrite::Nothing,
        };
        let mut received = Received {
            volume: self.state.volume.url.to_string(),
            snapshot: name.clone(),
            id: header.to.id.to_string(),
            size_bytes: header.size_bytes,
            data_bytes: 0,
            created,
            known: false,
        };
        let begun = Receiver::begin(opened, headers, &name, overwrite).await;
        let Some((receiver, shares)) = begun.map_err(|e| self.explain(e, header))? else {
            received.known = true;
            return Ok(received);
        };
        let transfer = Transfer::begin("receiving", shares.len(), header.size_bytes);
        let transfer = RefCell::new(transfer);
        let data_bytes = Cell::new(0);
        let shares = inputs.into_iter().zip(shares).enumerate();
        let written = shares.map(async |(n, (mut input, mut share))| -> Outcome<ShareReceiver> {
            while let Some(record) = input.next().await? {
                let at = (record.extent.end() * BLOCK_BYTES as u64).min(header.size_bytes);
                let bytes = match &record.content {
                    StreamContent::Data(data) => data.len() as u64,
                    _ => 0,
                };
                share.record(record).await?;
                data_bytes.set(data_bytes.get() + bytes);
                transfer.borrow_mut().add(n, bytes, at);
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

    /// Leaves what came, and adds to the failure how to go on.
    async fn keep(&self, opened: &Arc<Volume>, headers: &[StreamHeader], failure: Failure) -> Failure {
        let url = &self.state.volume.url;
        let token = tokio::time::timeout(COMMAND_PATIENCE, opened.resume_token()).await;
        opened.close(COMMAND_PATIENCE).await;
        let to = &headers[0].to.name;
        let go_on = match token {
            Ok(Ok(Some(token))) => format!("`cistern send URL@{to} --resume {token}` sends the rest of {to}"),
            _ => format!("`cistern receive {url} --token` says how to go on"),
        };
        let kept = format!("{url} is unfinished, and what came is kept");
        failure.hint(format!("{kept}: {go_on}; `cistern receive {url} --abort` goes back"))
    }

    async fn tell_token(&self, context: &Context, settings: &Resolved) -> Outcome {
        let url = &self.state.volume.url;
        let opened =
            daemon::open_to_receive(&context.env, settings, &self.state.volume, self.take_over).await?;
        let (receiving, token) = (opened.receiving(), opened.resume_token().await);
        opened.close(COMMAND_PATIENCE).await;
        match token? {
            Some(token) if self.json => terminal::say_json(&Told { token: token.to_string() }),
            Some(token) => terminal::say(token.to_string()),
            None if receiving.is_some() => {
                let failure =
                    Failure::new(Kind::NotFound, format!("{url}: nothing of the stream was received"));
                Err(failure.hint("receive it again from its beginning"))
            }
            None => {
                Err(Failure::new(Kind::NotFound, format!("{url} is complete: nothing is being received")))
            }
        }
    }

    /// What does not fit, and what to do then.
    fn explain(&self, error: cistern_engine::Error, header: &StreamHeader) -> Failure {
        let url = &self.state.volume.url;
        let hint = match &error {
            cistern_engine::Error::NotEmpty(_) => {
                "--force overwrites what is there; --differential too, and writes only what differs"
                    .to_owned()
            }
            cistern_engine::Error::Exists(_) => format!("give it another one: {url}@NAME"),
            cistern_engine::Error::Invalid(_) if header.base.is_some() => {
                format!(
                    "`cistern ls {url}` lists what it has: send from one of these, or all of it; --force puts a base back that was \
                         written over"
                )
            }
            _ => return Failure::from(error).context(url),
        };
        Failure::from(error).context(url).hint(hint)
    }

    async fn is_missing(&self, context: &Context) -> Outcome<bool> {
        let volume = &self.state.volume;
        let Ok(open) = volume.open(&context.env, COMMAND_PATIENCE).await else {
            return Ok(volume.url.path().is_some());
        };
        match admin::info(&context.env, &open.store, &KeySource::None).await {
            Ok(_) => Ok(false),
            Err(cistern_engine::Error::NotFound(_)) => Ok(true),
            Err(e) => Err(volume.explain(e)),
        }
    }

    async fn create(&self, context: &Context, header: &StreamHeader) -> Outcome {
        let volume = &self.state.volume;
        if let Some(base) = &header.base {
            let failure = Failure::new(
                Kind::NotFound,
                format!(
                    "there is no volume at {}, and the stream begins with snapshot {}",
                    volume.url, base.name
                ),
            );
            return Err(failure.hint("receive a full stream first: one that was sent without --from"));
        }
        let key = match self.encrypt {
            true => secret::fresh(&self.key.clone().or(&context.file), secret::PASSPHRASE_VARIABLE)?,
            false => KeySource::None,
        };
        let options = CreateOptions { size_bytes: header.size_bytes, compression: header.compression, key };
        creation::make(&context.env, volume, options, Probing::Clouds).await?;
        Ok(())
    }

    /// What was there before is put back; a volume that was made is removed. Gives the failure, with what became of that.
    async fn go_back(
        &self,
        context: &Context,
        settings: &Resolved,
        opened: &Arc<Volume>,
        created: bool,
        failure: Failure,
    ) -> Failure {
        let url = &self.state.volume.url;
        let back = match created {
            true => {
                opened.close(COMMAND_PATIENCE).await;
                self.remove(context, settings, Some(opened)).await
            }
            false => put_back(opened).await,
        };
        match back {
            Ok(()) if failure.hint.is_some() => failure,
            Ok(()) => failure.hint(format!("nothing was received: {url} is as it was")),
            Err(why) => {
                let text =
                    format!("{}. What was there before could not be put back: {}", failure.text, why.text);
                let failure = Failure { text, ..failure };
                failure.hint(format!("`cistern receive --abort {url}` tries that again"))
            }
        }
    }

    /// Removes a volume that was made and holds nothing.
    async fn remove(&self, context: &Context, settings: &Resolved, opened: Option<&Arc<Volume>>) -> Outcome {
        let volume: &VolumeUrl = &self.state.volume;
        let store = volume.open(&context.env, COMMAND_PATIENCE).await?.store;
        // Whoever has claimed it meanwhile keeps it. In an encrypted one that cannot be seen without its secret, which is new.
        let removed = admin::remove(&context.env, &store, &KeySource::None, self.encrypt, &|_, _| {}).await;
        removed.map_err(|e| volume.explain(e))?;
        rm::forget(context, volume, opened.map(|opened| opened.id()), &settings.state_dir).await
    }

    async fn abort(&self, context: &Context, settings: &Resolved, at_once: EndAtOnce) -> Outcome {
        let url = &self.state.volume.url;
        let opened =
            daemon::open_to_receive(&context.env, settings, &self.state.volume, self.take_over).await?;
        let was_unfinished = opened.receiving().is_some();
        let back = put_back(&opened).await;
        drop(at_once);
        back.map_err(|failure| failure.context(url))?;
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

/// Puts back what was there before, and closes the volume.
async fn put_back(opened: &Arc<Volume>) -> Outcome {
    let back = opened.go_back().await;
    let closed = opened.close(COMMAND_PATIENCE).await;
    back?;
    match closed.reason.filter(|_| !closed.clean) {
        Some(why) => Err(Failure::new(Kind::NotClean, format!("it is not in the store yet: {why}"))),
        None => Ok(()),
    }
}
