//! `cistern import`: an image, or a difference of Ceph, into a volume as a snapshot; all of it or nothing.

mod format;
mod input;
mod uri;

use cistern_engine::{
    Error,
    units::SECTOR_BYTES,
    volume::{ForeignReceiver, ForeignState, Overwrite},
};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        create::CompressionChoice,
        snapshots,
        target::{OpenTarget, TargetVolume},
        transfer::Transfer,
    },
    config::{KeySettings, StateSettings},
    creation::check_size,
    failure::{Failure, Kind, Outcome},
    place::{StateUrl, state_url},
    quantity::ByteSize,
    schedule,
    signals::{EndAtOnce, Signals},
    terminal,
};

use format::ImageFormat;
use input::ImageInput;

/// What the names of snapshots begin with that nobody named.
const PREFIX: &str = "import-";

/// Import a disk image, an NBD export, or a difference of Ceph RBD into a volume, as a snapshot
///
/// An image goes into a new volume, which is made, or into an empty one; a difference of rbd that begins with a snapshot goes into a volume that
/// has a snapshot of that name and shows it. What is a hole stays a hole, and so does a block that is zero. It counts as a whole: if the source
/// fails, the image ends early or Ctrl-C is pressed, what was there before is put back, and a volume that was made is gone.
///
/// Formats but raw and rbd are read by qemu-nbd. A difference of rbd has no checksums: damage within its data is not found. An image that
/// is in use changes while it is read: import a snapshot of it.
///
/// If the command is killed, `cistern receive --abort URL` goes back.
#[derive(Args)]
pub(super) struct Import {
    /// A file, a block device, nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, or - for standard input
    #[arg(value_name = "SOURCE")]
    source: String,

    /// URL of the volume; with @NAME the snapshot gets that name, else the one that the source has, or import-DATE
    #[arg(value_name = "URL[@NAME]", value_parser = state_url)]
    state: StateUrl,

    /// How the image lies in the file; without it that is seen in its first bytes
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<ImageFormat>,

    /// Bytes of a raw image that comes by a pipe
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// The snapshot of the volume with which a difference of rbd begins, where it has another name here
    #[arg(long, value_name = "NAME")]
    from: Option<String>,

    /// Overwrite what is there, or what was written since the snapshot with which a difference begins
    #[arg(long)]
    force: bool,

    /// How a new volume compresses its data
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    compression: CompressionChoice,

    /// Encrypt a new volume, with a key file or a passphrase
    #[arg(long)]
    encrypt: bool,

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

/// What was imported.
#[derive(Serialize)]
struct Imported {
    volume: String,
    snapshot: String,
    id: String,
    format: &'static str,
    /// Of the volume.
    size_bytes: u64,
    /// Of the image.
    image_bytes: u64,
    /// What was written, without zeroes and before compression.
    data_bytes: u64,
    /// The volume was made for it.
    created: bool,
}

impl Import {
    pub async fn run(self, context: &Context) -> Outcome {
        let at_once = EndAtOnce::listen()?;
        let settings = snapshots::settings(context, &self.settings, &self.key)?;
        let target = TargetVolume {
            context,
            settings: &settings,
            volume: &self.state.volume,
            encrypt: self.encrypt,
            take_over: self.take_over,
        };
        target.refuse_if_served().await?;
        let input = ImageInput::open(&context.env, &self.source, self.format, self.size).await?;
        let size = input.size_bytes.next_multiple_of(SECTOR_BYTES as u64);
        check_size(ByteSize(size)).map_err(|failure| failure.context(&self.source))?;
        let state = self.what(context, &input)?;
        let opened = match (target.open().await?, &state.base) {
            (Some(opened), _) => opened,
            (None, Some(base)) => return Err(target.no_base(base)),
            (None, None) => target.make_empty(size, self.compression.into()).await?,
        };
        // From here on there may be something to go back on.
        let mut signals = Signals::listen()?;
        drop(at_once);
        let imported = tokio::select! {
            biased;
            () = signals.next() => Err(Failure::new(Kind::Interrupted, "interrupted")),
            imported = self.import(&opened, input, &state) => imported,
        };
        drop(signals);
        let _at_once = EndAtOnce::listen()?;
        match imported {
            Ok(imported) => {
                opened.close().await?;
                self.say(&imported)
            }
            Err(failure) => Err(opened.go_back(failure).await),
        }
    }

    /// What becomes a snapshot.
    fn what(&self, context: &Context, input: &ImageInput) -> Outcome<ForeignState> {
        let named = self.state.snapshot.clone().or_else(|| input.names.to.clone());
        let name = named.unwrap_or_else(|| schedule::dated(PREFIX, context.env.wall_ms()));
        cistern_engine::snapshot::check_name(&name).map_err(|e| {
            Failure::usage(e.to_string()).hint(format!("give it another one: {}@NAME", self.state.volume.url))
        })?;
        if let (None, Some(_)) = (&input.names.from, &self.from) {
            let failure = Failure::usage("--from is for a difference, and this is all of an image");
            return Err(failure.hint("leave it away"));
        }
        let base = input.names.from.as_ref().map(|from| self.from.as_ref().unwrap_or(from).clone());
        Ok(ForeignState { name, base, size_bytes: input.size_bytes })
    }

    async fn import(
        &self,
        opened: &OpenTarget<'_>,
        mut input: ImageInput,
        state: &ForeignState,
    ) -> Outcome<Imported> {
        let overwrite = if self.force { Overwrite::All } else { Overwrite::Nothing };
        let begun = ForeignReceiver::begin(&opened.volume, state, overwrite).await;
        let mut receiver = begun.map_err(|e| self.explain(e))?;
        let (size, mut data_bytes) = (state.size_bytes, 0);
        let transfer = Transfer::begin("importing", 1, self.json);
        while let Some(patch) = input.next().await? {
            let end = patch.offset + patch.len();
            let written = receiver.patch(patch).await?;
            data_bytes += written;
            transfer.part(0).add(written, end, size);
        }
        drop(transfer);
        let id = receiver.end().await?;
        Ok(Imported {
            volume: self.state.volume.url.to_string(),
            snapshot: state.name.clone(),
            id: id.to_string(),
            format: input.format,
            size_bytes: opened.volume.size_bytes(),
            image_bytes: size,
            data_bytes,
            created: opened.created,
        })
    }

    /// What does not fit, and what to do then.
    fn explain(&self, error: Error) -> Failure {
        let url = &self.state.volume.url;
        let hint = match &error {
            Error::NotEmpty(_) => "--force overwrites what is there".to_owned(),
            Error::Exists(_) => format!("give it another one: {url}@NAME"),
            Error::NotFound(_) => {
                format!("`cistern ls {url}` lists what it has: import what comes before, or say --from NAME")
            }
            Error::Invalid(_) => "--force puts back the snapshot with which it begins".to_owned(),
            _ => return Failure::from(error).context(url),
        };
        Failure::from(error).context(url).hint(hint)
    }

    fn say(&self, imported: &Imported) -> Outcome {
        if self.json {
            return terminal::say_json(imported);
        }
        let Imported { volume, snapshot, format, size_bytes, image_bytes, data_bytes, created, .. } =
            imported;
        if *created {
            terminal::say(format!("created {volume} ({})", ByteSize(*size_bytes)))?;
        }
        if size_bytes != image_bytes {
            let more = size_bytes - image_bytes;
            terminal::remark(format!(
                "the volume is {more} bytes larger than the image: its size is a multiple of 512"
            ));
        }
        let data = ByteSize(*data_bytes);
        terminal::say(format!("imported {} ({format}) as {volume}@{snapshot}: {data} of data", self.source))
    }
}
