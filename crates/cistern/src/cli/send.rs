//! `cistern send`: a snapshot, or what changed since an older one, as a stream.

mod output;

use std::collections::HashSet;

use cistern_engine::{
    share::{SHARES_MAX, Share},
    stream::{ResumeToken, StreamHeader},
    units::BLOCK_BYTES,
    volume::{ChangedRange, RangeKind, SentSince},
};
use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        read_rate::ReadRate,
        snapshots,
        source::{Base, Source},
        transfer::{Transfer, TransferPart},
    },
    config::{KeySettings, StateSettings},
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, snapshot_url},
    quantity::ByteSize,
    signals::Signals,
    terminal,
};

use output::{Destination, Dialect, Encoder, Output, WrittenShare};

/// Write a snapshot, or what changed since an older one, as a stream for `cistern receive`
///
/// What changed is known from the maps alone; its data is read from the store, whether a daemon serves the volume or not, and goes through no chunk
/// cache. The daemon does not know of it: --rate keeps the link free for others.
///
/// A stream is not encrypted, also where the volume is: send it through something that does, like `ssh` or `age`, where others could read
/// it.
///
/// Given several files or pipes, like --to a,b,c, each gets a share: of the parts of 1 GiB of the volume every third, here. They are written side by
/// side, none waits for another, and `cistern receive URL a,b,c` takes them together.
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

    /// Where to: a new file, a pipe or device that is there, or - for standard output; several with commas between
    #[arg(long, value_name = "FILE,...", default_value = "-", value_delimiter = ',')]
    to: Vec<Destination>,

    /// What is written
    ///
    /// `extents` begins with a line about the snapshot and ends with one of totals; what no line between them tells is a hole, or as in
    /// --from.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    format: Dialect,

    /// Send only what was not received before a stream broke, to as many files as before: what `cistern receive --token` says
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["from", "dry_run"])]
    resume: Option<ResumeToken>,

    /// Read at most so many bytes per second from the store, like 50M
    ///
    /// @FILE stands for what that file says, and may say otherwise meanwhile: it is looked at once a second. If nothing is in it, there is no limit.
    #[arg(long, value_name = "RATE|@FILE")]
    rate: Option<ReadRate>,

    /// Only say how much it would be; reads no data
    #[arg(long, short = 'n')]
    dry_run: bool,

    /// With --dry-run: say also how many ranges there are of each kind, and their bytes; --format extents lists them
    #[arg(long, short = 'v', requires = "dry_run")]
    verbose: bool,

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
    /// It goes on where another stream broke.
    resumed: bool,
    size_bytes: u64,
    /// Before compression.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_bytes: Option<u64>,
    /// Of the stream; of a dry run not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranges: Option<RangeCounts>,
}

/// How many ranges there are of each kind; zeroes and holes are told, and have no data.
#[derive(Serialize, Default)]
struct RangeCounts {
    data: RangeCount,
    zero: RangeCount,
    hole: RangeCount,
}

#[derive(Serialize, Default)]
struct RangeCount {
    ranges: u64,
    bytes: u64,
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
        self.check()?;
        let settings = snapshots::settings(context, &self.state, &self.key)?;
        let outputs = match self.dry_run {
            true => Vec::new(),
            false => try_join_all(self.to.iter().map(Destination::open)).await?,
        };
        let base = match (&self.from, &self.resume) {
            (Some(name), _) => Base::Name(name),
            (None, Some(token)) => Base::Token(token),
            (None, None) => Base::Nothing,
        };
        let rate = self.rate.as_ref();
        let source = Source::open(context, &settings, &self.snapshot, base, rate).await?;
        if self.dry_run {
            return self.estimate(&source).await;
        }
        match self.format {
            Dialect::Extents => {
                let only = outputs.into_iter().next().expect("checked: there is one");
                self.list(&source, only).await
            }
            Dialect::Cistern | Dialect::Rbd => self.write(context, &source, outputs).await,
        }
    }

    /// What does not go together.
    fn check(&self) -> Outcome {
        let is_ours = self.format == Dialect::Cistern;
        if self.to.len() > SHARES_MAX as usize {
            return Err(Failure::usage(format!("at most {SHARES_MAX} files take a share each")));
        }
        if self.to.len() > 1 && !is_ours {
            return Err(Failure::usage("only a stream of cistern can be split over several files"));
        }
        let names: HashSet<&Destination> = self.to.iter().collect();
        if names.len() < self.to.len() {
            return Err(Failure::usage("two shares cannot go to the same file"));
        }
        match &self.resume {
            Some(_) if !is_ours => Err(Failure::usage("only a stream of cistern can go on where it broke")),
            Some(token) if token.places.len() != self.to.len() => {
                let text =
                    format!("the stream that broke had {} shares: name as many files", token.places.len());
                Err(Failure::usage(text))
            }
            _ => Ok(()),
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
        let mut counts = RangeCounts::default();
        let count = |change: &ChangedRange| {
            counts.add(change);
            Ok(())
        };
        let data_bytes = self.ranges(source, count).await?;
        let mut sent = self.sent(source, Some(data_bytes), None);
        if self.json {
            sent.ranges = self.verbose.then_some(counts);
            return terminal::say_json(&sent);
        }
        terminal::say(format!("{}: {} of data, before compression", sent.what(), ByteSize(data_bytes)))?;
        let RangeCounts { data, zero, hole } = &counts;
        let rows = [("data", data), ("zeroes", zero), ("holes", hole)].map(|(kind, count)| {
            vec![kind.to_owned(), format!("{} ranges", count.ranges), ByteSize(count.bytes).to_string()]
        });
        if self.verbose { terminal::say(terminal::right_aligned(&rows)) } else { Ok(()) }
    }

    async fn write(&self, context: &Context, source: &Source, outputs: Vec<Output>) -> Outcome {
        let header = source.header(context, &self.snapshot).await?;
        let places = self.resume.as_ref().map_or(vec![0; outputs.len()], |token| token.places.clone());
        let shares = Share::each(outputs.len() as u32).zip(places);
        let to_stdout = outputs.iter().any(Output::is_stdout);
        let transfer = Transfer::begin("sending", outputs.len(), self.json);
        let shares = outputs.into_iter().zip(shares).enumerate();
        // Each ends as soon as it can, and waits for no other.
        let written = try_join_all(shares.map(async |(n, (output, share))| {
            let header = StreamHeader { share: share.0, from: share.1, ..header.clone() };
            let mut encoder = output.begin(header, self.format)?;
            write_share(source, share, &mut encoder, &transfer.part(n)).await?;
            encoder.finish().await
        }));
        let written = written.await?;
        drop(transfer);
        let (mut data_bytes, mut stream_bytes) = (0, 0);
        for WrittenShare { output, totals, bytes } in written {
            output.put()?;
            data_bytes += totals.data_blocks * BLOCK_BYTES as u64;
            stream_bytes += bytes;
        }
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
            from: source.base.as_ref().map(|base| base.name.clone()),
            resumed: self.resume.is_some(),
            size_bytes: source.shown.size_bytes(),
            data_bytes,
            stream_bytes,
            ranges: None,
        }
    }
}

impl RangeCounts {
    fn add(&mut self, change: &ChangedRange) {
        let count = match change.kind {
            RangeKind::Data => &mut self.data,
            RangeKind::Zero => &mut self.zero,
            RangeKind::Hole => &mut self.hole,
        };
        count.ranges += 1;
        count.bytes += change.len;
    }
}

impl Sent {
    fn what(&self) -> String {
        let rest = if self.resumed { "the rest of " } else { "" };
        match &self.from {
            Some(from) => format!("{rest}{} since {from}", self.snapshot),
            None => format!("{rest}{}", self.snapshot),
        }
    }
}

/// Writes all records of a share.
async fn write_share(
    source: &Source,
    (share, from): (Share, u64),
    encoder: &mut Encoder,
    part: &TransferPart<'_>,
) -> Outcome {
    part.begin_at(from * BLOCK_BYTES as u64, source.shown.size_bytes());
    let mut sending = source.shown.send(source.since.clone(), share, from);
    while let Some(record) = sending.next().await? {
        let bytes = record.data_bytes();
        encoder.record(record).await?;
        part.add(bytes, sending.place_bytes(), source.shown.size_bytes());
    }
    Ok(())
}
