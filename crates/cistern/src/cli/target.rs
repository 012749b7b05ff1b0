//! A volume into which something is received: made where there is none, opened, and as it was before if that fails.
//!
//! Nobody serves it meanwhile. One that was made for it is removed again where it comes to nothing.

use std::sync::Arc;

use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    snapshot::Receiving,
    stream::{ResumeToken, StreamHeader},
    units::SnapshotId,
    volume::{CloseReport, CreateOptions, Overwrite, Receiver, ShareReceiver, Volume, admin},
};

use crate::{
    cli::{Context, rm},
    config::Resolved,
    control,
    creation::{self, Probing},
    daemon,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, VolumeUrl},
    secret,
};

/// What --force and --differential allow.
pub(super) fn overwrite(force: bool, differential: bool) -> Overwrite {
    match (differential, force) {
        (true, _) => Overwrite::Differing,
        (_, true) => Overwrite::All,
        _ => Overwrite::Nothing,
    }
}

/// A volume, which may be missing.
#[derive(Clone, Copy)]
pub(super) struct TargetVolume<'a> {
    pub context: &'a Context,
    /// With its key.
    pub settings: &'a Resolved,
    pub volume: &'a VolumeUrl,
    /// If it is made.
    pub encrypt: bool,
    /// From a host that is gone.
    pub take_over: bool,
}

/// It, open to receive something.
pub(super) struct OpenTarget<'a> {
    target: TargetVolume<'a>,
    pub volume: Arc<Volume>,
    /// It was made for this, and holds nothing else.
    pub created: bool,
    /// What was being received already.
    before: Option<Receiving>,
}

/// A copy that broke off.
pub(super) struct BrokenOff {
    pub failure: Failure,
    /// The snapshot of which what came stays.
    pub kept: Option<SnapshotId>,
}

impl From<Failure> for BrokenOff {
    fn from(failure: Failure) -> BrokenOff {
        BrokenOff { failure, kept: None }
    }
}

impl From<BrokenOff> for Failure {
    fn from(broken: BrokenOff) -> Failure {
        broken.failure
    }
}

impl<'a> TargetVolume<'a> {
    pub async fn refuse_if_served(&self) -> Outcome {
        let url = self.volume.url.to_string();
        if control::serving(&self.settings.state_dir, &url).await?.is_none() {
            return Ok(());
        }
        let failure = Failure::new(Kind::InUse, format!("{url} is being served"));
        Err(failure.hint("nobody may use a volume that something is received into: stop its daemon first"))
    }

    /// Opens it; `None` if there is none.
    pub async fn open(&self) -> Outcome<Option<OpenTarget<'a>>> {
        match self.is_missing().await? {
            true => Ok(None),
            false => Ok(Some(self.open_there(false).await?)),
        }
    }

    /// Makes it as a stream says, and opens it.
    pub async fn make(&self, header: &StreamHeader) -> Outcome<OpenTarget<'a>> {
        if let Some(base) = &header.base {
            return Err(self.no_base(&base.name));
        }
        self.make_empty(header.size_bytes, header.compression).await
    }

    /// There is no volume, and what would be received begins with a snapshot.
    pub fn no_base(&self, base: &str) -> Failure {
        let text =
            format!("there is no volume at {}, and the stream begins with snapshot {base}", self.volume.url);
        Failure::new(Kind::NotFound, text)
            .hint("receive a full stream first: one that was sent without --from")
    }

    /// Makes it, and opens it.
    pub async fn make_empty(&self, size_bytes: u64, compression: Compression) -> Outcome<OpenTarget<'a>> {
        self.create(size_bytes, compression).await?;
        match self.open_there(true).await {
            Ok(opened) => Ok(opened),
            Err(failure) => {
                self.remove(None).await?;
                Err(failure)
            }
        }
    }

    /// Puts back what was there before a receive that was killed; gives whether there was one.
    pub async fn abort(&self) -> Outcome<bool> {
        let opened = self.open_there(false).await?;
        let was_unfinished = opened.volume.receiving().is_some();
        opened.put_back().await.map_err(|failure| failure.context(&self.volume.url))?;
        Ok(was_unfinished)
    }

    /// What whoever sends has to know to go on with what was received before.
    pub async fn resume_token(&self) -> Outcome<ResumeToken> {
        let (url, opened) = (&self.volume.url, self.open_there(false).await?);
        let token = opened.volume.resume_token().await;
        opened.close_volume().await;
        match token? {
            Some(token) => Ok(token),
            None if opened.before.is_some() => {
                let text = format!("{url}: nothing of the stream was received");
                Err(Failure::new(Kind::NotFound, text).hint("receive it again from its beginning"))
            }
            None => {
                Err(Failure::new(Kind::NotFound, format!("{url} is complete: nothing is being received")))
            }
        }
    }

    async fn open_there(&self, created: bool) -> Outcome<OpenTarget<'a>> {
        let TargetVolume { context, settings, volume, take_over, .. } = self;
        let volume = daemon::open_to_receive(&context.env, settings, volume, *take_over).await?;
        let before = volume.receiving();
        Ok(OpenTarget { target: *self, volume, created, before })
    }

    pub async fn is_missing(&self) -> Outcome<bool> {
        let (volume, env) = (self.volume, &self.context.env);
        let Ok(open) = volume.open(env, COMMAND_PATIENCE).await else {
            return Ok(volume.url.path().is_some());
        };
        match admin::info(env, &open.store, &KeySource::None).await {
            Ok(_) => Ok(false),
            Err(Error::NotFound(_)) => Ok(true),
            Err(e) => Err(volume.explain(e)),
        }
    }

    async fn create(&self, size_bytes: u64, compression: Compression) -> Outcome {
        let volume = self.volume;
        let key = match self.encrypt {
            true => secret::same_or_fresh(&self.settings.key, &volume.name).await?,
            false => KeySource::None,
        };
        let options = CreateOptions { size_bytes, compression, key };
        let state_dir = Some(self.settings.state_dir.as_path());
        creation::make(&self.context.env, volume, options, Probing::Clouds, state_dir).await?;
        Ok(())
    }

    /// Removes a volume that was made and holds nothing.
    async fn remove(&self, opened: Option<&Arc<Volume>>) -> Outcome {
        let (context, volume) = (self.context, self.volume);
        let store = volume.open(&context.env, COMMAND_PATIENCE).await?.store;
        // Whoever has claimed it meanwhile keeps it. In an encrypted one that cannot be seen without its secret, which is new.
        let removed = admin::remove(&context.env, &store, &KeySource::None, self.encrypt, &|_, _| {}).await;
        removed.map_err(|e| volume.explain(e))?;
        rm::forget(context, volume, opened.map(|opened| opened.id()), &self.settings.state_dir).await
    }
}

impl OpenTarget<'_> {
    /// Begins to receive all shares of a stream, as a snapshot of that name; `None` if the volume has it.
    pub async fn begin(
        &self,
        headers: &[StreamHeader],
        name: &str,
        overwrite: Overwrite,
    ) -> Outcome<Option<(Receiver, Vec<ShareReceiver>)>> {
        let begun = Receiver::begin(&self.volume, headers, name, overwrite).await;
        begun.map_err(|e| self.explain(e, &headers[0]))
    }

    /// What does not fit, and what to do then.
    fn explain(&self, error: Error, header: &StreamHeader) -> Failure {
        let url = &self.target.volume.url;
        let hint = match &error {
            Error::NotEmpty(_) => {
                "--force overwrites what is there; --differential too, and writes only what differs"
                    .to_owned()
            }
            Error::Exists(_) => format!("give it another one: {url}@NAME"),
            Error::Invalid(_) if header.base.is_some() => {
                format!(
                    "`cistern ls {url}` lists what it has: send from one of these, or all of it; --force puts a base back that was \
                         written over"
                )
            }
            _ => return Failure::from(error).context(url),
        };
        Failure::from(error).context(url).hint(hint)
    }

    /// It holds something complete: whatever fails from here on, it stays.
    pub fn keep(&mut self) {
        self.created = false;
    }

    async fn close_volume(&self) -> CloseReport {
        let closed = self.volume.close(COMMAND_PATIENCE).await;
        if closed.clean {
            daemon::drop_receive_journal(&self.target.context.env, self.target.settings, &self.volume).await;
        }
        closed
    }

    /// Closes it, with everything in the store.
    pub async fn close(&self) -> Outcome {
        let report = self.close_volume().await;
        daemon::closed(&self.volume, &report, "received")
    }

    /// Whether somebody left it unfinished before, and it is so now, or `resumable` says that it may be: then what came stays.
    pub fn keeps(&self, resumable: bool) -> bool {
        let now = self.volume.receiving();
        now.is_some() && (resumable || now == self.before)
    }

    /// Leaves what came of a snapshot, and adds to the failure how to go on.
    pub async fn leave(&self, to: &str, failure: Failure) -> Failure {
        let url = &self.target.volume.url;
        let token = tokio::time::timeout(COMMAND_PATIENCE, self.volume.resume_token()).await;
        self.close_volume().await;
        let go_on = match token {
            Ok(Ok(Some(token))) => format!("`cistern send URL@{to} --resume {token}` sends the rest of {to}"),
            _ => format!("`cistern receive {url} --token` says how to go on"),
        };
        let kept = format!("{url} is unfinished, and what came is kept");
        failure.hint(format!("{kept}: {go_on}; `cistern receive {url} --abort` goes back"))
    }

    /// What becomes of a copy that broke off: if that was for something that passes, what came stays, for the same command to go on from; else it
    /// is gone back on. Gives the failure, with what became of that.
    pub async fn break_off(&self, failure: Failure) -> BrokenOff {
        let passes = matches!(failure.kind, Kind::Interrupted | Kind::Store | Kind::Full);
        let Some(kept) = self.volume.receiving().filter(|_| passes) else {
            return BrokenOff { failure: self.go_back(failure).await, kept: None };
        };
        self.close_volume().await;
        let url = &self.target.volume.url;
        let failure = failure.hint(format!(
            "{url} is unfinished, and what came is kept: the same command goes on from there; `cistern receive --abort {url}` goes back"
        ));
        BrokenOff { failure, kept: Some(kept.of) }
    }

    /// What was there before is put back; a volume that was made is removed. Gives the failure, with what became of that.
    pub async fn go_back(&self, failure: Failure) -> Failure {
        let url = &self.target.volume.url;
        let back = match self.created {
            true => {
                self.close_volume().await;
                self.target.remove(Some(&self.volume)).await
            }
            false => self.put_back().await,
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

    /// Puts back what was there before, and closes the volume.
    async fn put_back(&self) -> Outcome {
        let back = self.volume.go_back().await;
        let closed = self.close_volume().await;
        back?;
        match closed.reason.filter(|_| !closed.clean) {
            Some(why) => Err(Failure::new(Kind::NotClean, format!("it is not in the store yet: {why}"))),
            None => Ok(()),
        }
    }
}
