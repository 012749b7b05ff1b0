//! `cistern export`: what a snapshot shows, as a disk image.

mod writer;

use std::path::Path;

use cistern_engine::{share::Share, volume::SentSince};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    cli::{Context, read_rate::ReadRate, snapshots, transfer::Transfer},
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{StateUrl, state_url},
    quantity::ByteSize,
    signals::Signals,
    terminal,
};

use writer::ImageWriter;

/// Export a snapshot of a volume as a disk image
///
/// Without @NAME it is what the volume shows in the store now: what a daemon has not uploaded yet is not in it, and if one writes on, this may
/// fail later because its data is gone. A snapshot is safe.
///
/// Data is read as `cistern send` reads it. What is a hole or zero takes no space in the file. A file has its name when it is whole; Ctrl-C at any
/// time leaves none.
#[derive(Args)]
pub(super) struct ExportImage {
    /// URL of the volume, and the name of a snapshot
    #[arg(value_name = "URL[@NAME]", value_parser = state_url)]
    state: StateUrl,

    /// A new file, a pipe that is there, a block device with --force, or - for standard output
    #[arg(value_name = "FILE")]
    to: String,

    /// How the image lies in the file; without it qcow2 where the name ends with .qcow2, else raw
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<ExportFormat>,

    /// Write over a block device; the rest of a larger one stays as it is
    #[arg(long)]
    force: bool,

    /// Read at most so many bytes per second from the store, like 50M
    ///
    /// @FILE stands for what that file says, and may say otherwise meanwhile: it is looked at once a second. If nothing is in it, there is no limit.
    #[arg(long, value_name = "RATE|@FILE")]
    rate: Option<ReadRate>,

    /// Print the result as JSON: to standard output, or to standard error if the image goes there
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// How an image is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum ExportFormat {
    /// As a disk has it, byte for byte
    Raw,
    /// Of QEMU, by qemu-nbd
    Qcow2,
}

/// What was exported.
#[derive(Serialize)]
struct Exported {
    state: String,
    file: String,
    format: ExportFormat,
    size_bytes: u64,
    /// Before compression.
    data_bytes: u64,
}

impl ExportImage {
    pub async fn run(self, context: &Context) -> Outcome {
        let mut signals = Signals::listen()?;
        tokio::select! {
            biased;
            // What was begun is dropped, and a file with it.
            () = signals.next() => Err(Failure::new(Kind::Interrupted, "interrupted; no file was left")),
            exported = self.export(context) => exported,
        }
    }

    async fn export(&self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.settings, &self.key)?;
        let format = self.format.unwrap_or(match Path::new(&self.to).extension() {
            Some(end) if end == "qcow2" => ExportFormat::Qcow2,
            _ => ExportFormat::Raw,
        });
        let (volume, rate) = (&self.state.volume, self.rate.as_ref());
        let snapshot = self.state.snapshot.as_deref();
        let shown = snapshots::open_behind(context, &settings, volume, snapshot, rate).await?;
        let size = shown.size_bytes();
        if snapshot.is_none() {
            terminal::remark(format!(
                "{} as it is in the store now; {}@NAME exports a snapshot",
                volume.url, volume.url
            ));
        }
        let mut writing = match format {
            ExportFormat::Raw => ImageWriter::raw(&self.to, size, self.force)?,
            ExportFormat::Qcow2 => ImageWriter::image(&context.env, Path::new(&self.to), "qcow2", size)?,
        };
        let mut data_bytes = 0;
        let transfer = Transfer::begin("exporting", 1, self.json);
        let mut sending = shown.send(SentSince::Beginning, Share::ALL, 0);
        while let Some(record) = sending.next().await? {
            let bytes = record.data_bytes();
            writing.record(record).await?;
            data_bytes += bytes;
            transfer.part(0).add(bytes, sending.place_bytes(), size);
        }
        drop(transfer);
        writing.finish().await?;
        let (state, file) = (self.state.to_string(), self.to.clone());
        self.say(&Exported { state, file, format, size_bytes: size, data_bytes })
    }

    fn say(&self, exported: &Exported) -> Outcome {
        let Exported { state, file, size_bytes, data_bytes, .. } = exported;
        let text = match self.json {
            true => serde_json::to_string_pretty(exported).expect("plain fields always serialize"),
            false => format!(
                "exported {state} to {file}: {} of data, {} in all",
                ByteSize(*data_bytes),
                ByteSize(*size_bytes)
            ),
        };
        match file == "-" {
            true => {
                terminal::remark(text);
                Ok(())
            }
            false => terminal::say(text),
        }
    }
}
