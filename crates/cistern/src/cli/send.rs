//! `cistern send`: a snapshot, or what changed since an older one, as a stream.

mod output;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cistern_engine::{
    stream::{StreamContent, StreamRecord, StreamTotals},
    units::BLOCK_BYTES,
    volume::{ChangedRange, RangeKind, SentSince},
};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Context, snapshots, source::Source, transfer::Transfer},
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, snapshot_url},
    quantity::ByteSize,
    signals::Signals,
    terminal,
};

use output::{Destination, Dialect, Output};

/// Write a snapshot, or what changed since an older one, as a stream for `cistern receive`
///
/// What changed is known from the maps alone; its data is read from the store, at the lowest priority, whether a daemon serves the
/// volume or not, and goes through no chunk cache. The daemon does not know of it: --rate keeps the link free for others.
///
/// A stream is not encrypted, also where the volume is: send it through something that does, like `ssh` or `age`, where others could read
/// it.
///
/// Ctrl-C at any time: the volume is not changed, and no file is left.
#[derive(Args)]
pub(super) struct Send {
    /// URL of the volume, @, and the name of the snapshot
    #[arg(value_name = "URL@NAME", value_parser = snapshot_url)]
    snapshot: SnapshotUrl,

    /// Only what changed since this snapshot or bookmark of the volume
    ///
    /// Whoever receives the stream has that snapshot, received or as its own.
    #[arg(long, value_name = "NAME")]
    from: Option<String>,

    /// Where to: a new file, a pipe or device that is there, or - for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    to: Destination,

    /// What is written
    ///
    /// `extents` begins with a line about the snapshot and ends with one of totals; what no line between them tells is a hole, or as in
    /// --from.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    format: Dialect,

    /// Read at most so many bytes per second from the store, like 50M
    #[arg(long, value_name = "RATE")]
    rate: Option<ByteSize>,

    /// Only say how much it would be; reads no data
    #[arg(long, short = 'n')]
    dry_run: bool,

    /// Print the result as JSON: to standard output, or to standard error if the stream goes there
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    state: StateSettings,

    #[command(flatten)]
    key: KeySettings,
}

/// What was sent, or would be.
#[derive(Serialize)]
struct Sent {
    snapshot: String,
    id: String,
    from: Option<String>,
    size_bytes: u64,
    /// Before compression.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_bytes: Option<u64>,
    /// Of the stream; of a dry run not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_bytes: Option<u64>,
}

/// The last line of extents.
#[derive(Serialize)]
struct Totals {
    ranges: u64,
    data_bytes: u64,
}

impl Send {
    pub async fn run(self, context: &Context) -> Outcome {
        let mut signals = Signals::listen()?;
        tokio::select! {
            biased;
            // What was begun is dropped, and a file with it.
            () = signals.next() => Err(Failure::new(Kind::Interrupted, "interrupted; nothing was left")),
            sent = self.send(context) => sent,
        }
    }

    async fn send(&self, context: &Context) -> Outcome {
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let output = match self.dry_run {
            true => None,
            false => Some(self.to.open()?),
        };
        let rate = self.rate.map(|rate| rate.0);
        let source = Source::open(context, &settings, &self.snapshot, self.from.as_deref(), rate).await?;
        match output {
            None => self.estimate(&source).await,
            Some(output) if self.format == Dialect::Extents => self.list(&source, output).await,
            Some(output) => self.write(context, &source, output).await,
        }
    }

    /// Tells the ranges; gives how many bytes of data they have.
    async fn ranges(&self, source: &Source, mut tell: impl FnMut(&ChangedRange) -> Outcome) -> Outcome<u64> {
        let (at, aside) = match &source.since {
            SentSince::Beginning => (0, None),
            SentSince::Position(at, aside) => (*at, aside.as_deref()),
        };
        let progress = terminal::Progress::counting("bytes");
        let mut data_bytes = 0;
        let look = |change: &ChangedRange| -> Outcome {
            data_bytes += if change.kind == RangeKind::Data { change.len } else { 0 };
            // Of all of a snapshot, what is not told is a hole.
            match source.base.is_none() && change.kind == RangeKind::Hole {
                true => Ok(()),
                false => tell(change),
            }
        };
        source.shown.changes_since(at, aside, look, &|done, of| progress.set(done, of)).await?;
        Ok(data_bytes)
    }

    async fn list(&self, source: &Source, output: Output) -> Outcome {
        let mut lines = output.lines()?;
        lines.line(&self.sent(source, None, None))?;
        let mut ranges: u64 = 0;
        let tell = |change: &ChangedRange| {
            ranges += 1;
            lines.line(change)
        };
        let data_bytes = self.ranges(source, tell).await?;
        lines.line(&Totals { ranges, data_bytes })?;
        lines.finish()
    }

    async fn estimate(&self, source: &Source) -> Outcome {
        let data_bytes = self.ranges(source, |_| Ok(())).await?;
        let sent = self.sent(source, Some(data_bytes), None);
        match self.json {
            true => terminal::say_json(&sent),
            false => terminal::say(format!(
                "{}: {} of data, before compression",
                sent.what(),
                ByteSize(data_bytes)
            )),
        }
    }

    async fn write(&self, context: &Context, source: &Source, output: Output) -> Outcome {
        let header = source.header(context, &self.snapshot).await?;
        let to_stdout = output.is_stdout();
        let mut encoder = output.begin(header, self.format)?;
        let at = AtomicU64::new(0);
        let mut transfer = Transfer::begin("sending");
        let size = source.shown.size_bytes();
        let tell = async |record: StreamRecord| -> Outcome {
            let bytes = match &record.content {
                StreamContent::Data(data) => data.len() as u64,
                _ => 0,
            };
            encoder.record(record).await?;
            transfer.add(bytes, at.load(Relaxed), size);
            Ok(())
        };
        source.shown.send(source.since.clone(), tell, &|done, _| at.store(done, Relaxed)).await?;
        drop(transfer);
        let (StreamTotals { data_blocks, .. }, stream_bytes) = encoder.finish().await?;
        let data_bytes = data_blocks * BLOCK_BYTES as u64;
        let sent = self.sent(source, Some(data_bytes), Some(stream_bytes));
        let (data, stream) = (ByteSize(data_bytes), ByteSize(stream_bytes));
        let text = match self.json {
            true => serde_json::to_string_pretty(&sent).expect("plain fields always serialize"),
            false => format!("sent {}: {data} of data, a stream of {stream}", sent.what()),
        };
        match to_stdout {
            true => {
                terminal::remark(text);
                Ok(())
            }
            false => terminal::say(text),
        }
    }

    fn sent(&self, source: &Source, data_bytes: Option<u64>, stream_bytes: Option<u64>) -> Sent {
        Sent {
            snapshot: self.snapshot.to_string(),
            id: source.to.id.to_string(),
            from: self.from.clone(),
            size_bytes: source.shown.size_bytes(),
            data_bytes,
            stream_bytes,
        }
    }
}

impl Sent {
    fn what(&self) -> String {
        match &self.from {
            Some(from) => format!("{} since {from}", self.snapshot),
            None => self.snapshot.clone(),
        }
    }
}
