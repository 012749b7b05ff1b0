//! `cistern journal`: what a journal holds, when it cannot be uploaded any more.

use std::{
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
    sync::Arc,
};

use cistern_engine::{
    Error,
    codec::KeySource,
    disk::Disk,
    units::VolumeId,
    volume::admin::{self, JournalItem},
};
use clap::{ArgGroup, Args, Subcommand};

use crate::{
    cli::Context,
    config::StateSettings,
    daemon::volume_disk,
    failure::{Failure, Kind, Outcome},
    place::{COMMAND_PATIENCE, volume_url},
    quantity::ByteSize,
    stream::{ImageSink, Sink, StreamSink},
    terminal,
};

/// Save or give up what a journal holds, after its volume was taken over by another host
#[derive(Args)]
pub(super) struct Journal {
    #[command(subcommand)]
    verb: JournalVerb,
}

#[derive(Subcommand)]
enum JournalVerb {
    Export(Export),
    Discard(Discard),
}

#[derive(Args)]
struct Subject {
    /// URL of the volume, or its id: the name of its directory in the state directory
    ///
    /// The id works without the store.
    #[arg(value_name = "URL|ID")]
    volume: String,

    #[command(flatten)]
    state: StateSettings,
}

/// Write out the writes in a journal, in their order; the journal is not changed
///
/// What is in the journal may be in the store as well: the export holds at least everything that
/// is not.
#[derive(Args)]
#[command(group = ArgGroup::new("target").required(true))]
struct Export {
    #[command(flatten)]
    subject: Subject,

    /// Write them as a stream of records to a new file, or to standard output with -
    ///
    /// The format is documented in the reference of the commands.
    #[arg(long, value_name = "FILE", group = "target")]
    output: Option<PathBuf>,

    /// Apply them to a raw image of the volume, such as nbdcopy makes it; a new file is made
    #[arg(long, value_name = "IMAGE", group = "target")]
    apply_to: Option<PathBuf>,
}

/// Delete a journal with everything it holds that is not in the store
#[derive(Args)]
struct Discard {
    #[command(flatten)]
    subject: Subject,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Journal {
    pub async fn run(self, context: &Context) -> Outcome {
        match self.verb {
            JournalVerb::Export(export) => export.run(context).await,
            JournalVerb::Discard(discard) => discard.run(context).await,
        }
    }
}

impl Subject {
    /// The volume's id and its existing directory on this host.
    async fn find(&self, context: &Context) -> Outcome<(VolumeId, PathBuf, Arc<dyn Disk>)> {
        let state_dir = self.state.clone().resolve(&context.file)?;
        let id = match uuid::Uuid::parse_str(&self.volume) {
            Ok(id) => VolumeId(id),
            Err(_) => {
                let volume = volume_url(&self.volume).map_err(Failure::usage)?;
                let open = volume.open(&context.env, COMMAND_PATIENCE).await?;
                let info = admin::info(&context.env, &open.store, &KeySource::None).await;
                info.map_err(|e| volume.explain(e))?.volume
            }
        };
        let directory = state_dir.join(id.to_string());
        if !directory.is_dir() {
            let text = format!("there is no journal of this volume in {}", state_dir.display());
            return Err(Failure::new(Kind::NotFound, text).hint("is --state-dir the one its daemon used?"));
        }
        Ok((id, directory, volume_disk(&state_dir, id)?))
    }
}

impl Export {
    async fn run(self, context: &Context) -> Outcome {
        let (id, _, disk) = self.subject.find(context).await?;
        let (mut sink, target) = self.sink(id)?;
        let what = format!("writing to {target}");
        let mut totals = Totals::default();
        let mut visit = |item| {
            totals.count(&item);
            sink.item(&item).map_err(|e| Error::io(what.clone(), &e))
        };
        let visited = admin::journal_export(&context.env, &disk, id, &mut visit).await;
        visited.map_err(|e| Failure::from(e).context("exporting the journal"))?;
        sink.finish().map_err(|e| Failure::io(&what, &e))?;
        terminal::remark(format!("{} writes, {} of data", totals.items, ByteSize(totals.bytes)));
        Ok(())
    }

    fn sink(&self, id: VolumeId) -> Outcome<(Box<dyn Sink>, String)> {
        let failed =
            |path: &Path, e: io::Error| Failure::io(format!("cannot write to {}", path.display()), &e);
        match (&self.output, &self.apply_to) {
            (Some(path), _) if path == Path::new("-") => {
                let sink =
                    StreamSink::begin(BufWriter::new(io::stdout()), id).map_err(|e| failed(path, e))?;
                Ok((Box::new(sink), "standard output".to_owned()))
            }
            (Some(path), _) => {
                let file = File::create_new(path).map_err(|e| failed(path, e))?;
                let sink =
                    StreamSink::begin(Synced(BufWriter::new(file)), id).map_err(|e| failed(path, e))?;
                Ok((Box::new(sink), path.display().to_string()))
            }
            (None, Some(path)) => {
                let image = File::options().create(true).truncate(false).write(true).open(path);
                Ok((
                    Box::new(ImageSink::new(image.map_err(|e| failed(path, e))?)),
                    path.display().to_string(),
                ))
            }
            (None, None) => unreachable!("clap requires one of the group"),
        }
    }
}

/// A buffered file whose flush makes it durable.
struct Synced(BufWriter<File>);

impl io::Write for Synced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()?;
        self.0.get_ref().sync_all()
    }
}

#[derive(Default)]
struct Totals {
    items: u64,
    bytes: u64,
}

impl Totals {
    fn count(&mut self, item: &JournalItem) {
        self.items += 1;
        if let JournalItem::Write { data, .. } = item {
            self.bytes += data.len() as u64;
        }
    }
}

impl Discard {
    async fn run(self, context: &Context) -> Outcome {
        let (id, directory, disk) = self.subject.find(context).await?;
        let warning = format!(
            "This deletes the journal in {} with everything in it that is not in the store.",
            directory.display()
        );
        terminal::confirm(&warning, "discard", self.yes)?;
        admin::journal_discard(&context.env, &disk)
            .await
            .map_err(|e| Failure::from(e).context("discarding the journal"))?;
        terminal::say(format!("discarded the journal of {id}"))
    }
}
