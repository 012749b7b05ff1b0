//! Where a stream goes: encoded and written on a thread of its own, so that who reads slowly holds up nothing else.
//!
//! A new file has its name when it is whole. Until then it lies beside, and is removed if it does not come to that.

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    os::unix::fs::FileTypeExt,
    path::PathBuf,
    str::FromStr,
    thread::JoinHandle,
};

use cistern_engine::stream::{RbdWriter, StreamHeader, StreamRecord, StreamTotals, StreamWriter};
use clap::ValueEnum;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    cli::{new_file::NewFile, transfer::QUEUE_RECORDS},
    failure::{Failure, Kind, Outcome},
};

/// Bytes that are gathered before they are written. Less than a record with data, which is written as it is: copying those took a tenth of a
/// send's processor time.
const BUFFER_BYTES: usize = 32 << 10;

/// What the user named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    Stdout,
    Path(PathBuf),
}

impl FromStr for Destination {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Destination, Infallible> {
        Ok(if text == "-" { Destination::Stdout } else { Destination::Path(text.into()) })
    }
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// For `cistern receive`: compressed, with checksums and identities
    #[default]
    Cistern,
    /// As `rbd export-diff` of Ceph writes it, for `rbd import-diff`: without any checksum
    Rbd,
    /// Only where what lies, no data: a line of JSON for each range
    Extents,
}

/// What is open to be written.
pub enum Output {
    Stdout,
    /// A pipe or a device, until it is being written: whoever reads it comes to its end when that is done.
    There(Option<File>, PathBuf),
    New(NewFile),
}

impl Destination {
    /// Opens it; a pipe waits for whoever reads it.
    pub async fn open(&self) -> Outcome<Output> {
        let path = match self {
            Destination::Stdout if io::stdout().is_terminal() => {
                let failure = Failure::usage("a stream is nothing for a terminal");
                return Err(failure.hint("send it to a file, --to FILE, or into a pipe"));
            }
            Destination::Stdout => return Ok(Output::Stdout),
            Destination::Path(path) => path,
        };
        let failed = |e: io::Error| Failure::io(format!("cannot write to {}", path.display()), &e);
        match fs::metadata(path) {
            Ok(there) if there.file_type().is_fifo() || there.file_type().is_char_device() => {
                let named = path.clone();
                let open = move || File::options().write(true).open(named);
                let file = tokio::task::spawn_blocking(open).await.expect("opening does not panic");
                Ok(Output::There(Some(file.map_err(failed)?), path.clone()))
            }
            Ok(_) => Err(Failure::new(Kind::Exists, format!("{} is there already", path.display()))
                .hint("choose another name, or remove it first")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                NewFile::create(path).map(Output::New).map_err(failed)
            }
            Err(e) => Err(failed(e)),
        }
    }
}

impl Output {
    pub fn is_stdout(&self) -> bool {
        matches!(self, Output::Stdout)
    }

    fn name(&self) -> String {
        match self {
            Output::Stdout => "standard output".to_owned(),
            Output::There(_, path) => path.display().to_string(),
            Output::New(file) => file.place().display().to_string(),
        }
    }

    fn writer(&mut self) -> Outcome<BufWriter<Box<dyn Write + Send>>> {
        let out: Box<dyn Write + Send> = match self {
            Output::Stdout => Box::new(io::stdout()),
            Output::There(file, _) => Box::new(file.take().expect("it is written once")),
            Output::New(file) => Box::new(file.file().try_clone().map_err(|e| self.failed(&e))?),
        };
        Ok(BufWriter::with_capacity(BUFFER_BYTES, out))
    }

    /// All of it was written: a new file gets its name.
    pub fn put(&self) -> Outcome {
        match self {
            Output::New(file) => file.put().map_err(|e| self.failed(&e)),
            Output::Stdout | Output::There(..) => Ok(()),
        }
    }

    fn failed(&self, e: &io::Error) -> Failure {
        let failure = Failure::io(format!("cannot write to {}", self.name()), e);
        match e.kind() {
            io::ErrorKind::BrokenPipe => failure.hint("whoever reads the stream ended before it did"),
            _ => failure,
        }
    }

    /// Begins lines of JSON.
    pub fn lines(mut self) -> Outcome<Lines> {
        let out = self.writer()?;
        Ok(Lines { output: self, out })
    }

    /// Begins a stream, with data.
    pub fn begin(mut self, header: StreamHeader, dialect: Dialect) -> Outcome<Encoder> {
        let out = self.writer()?;
        let (send, receive) = mpsc::channel(QUEUE_RECORDS);
        let thread = std::thread::spawn(move || write(out, &header, dialect, receive));
        Ok(Encoder { output: self, send: Some(send), thread: Some(thread) })
    }
}

enum Step {
    Record(StreamRecord),
    End,
}

/// What came to its end.
pub struct WrittenShare {
    pub output: Output,
    pub totals: StreamTotals,
    pub bytes: u64,
}

type Ended = io::Result<Option<(StreamTotals, u64)>>;

/// A stream that is being written.
pub struct Encoder {
    output: Output,
    send: Option<mpsc::Sender<Step>>,
    thread: Option<JoinHandle<Ended>>,
}

impl Encoder {
    pub async fn record(&mut self, record: StreamRecord) -> Outcome {
        self.step(Step::Record(record)).await
    }

    /// Ends it: whoever reads it knows that it is complete. A new file has no name yet.
    pub async fn finish(mut self) -> Outcome<WrittenShare> {
        self.step(Step::End).await?;
        let (totals, bytes) = self.joined().await?.expect("it came to its end");
        Ok(WrittenShare { output: self.output, totals, bytes })
    }

    async fn step(&mut self, step: Step) -> Outcome {
        let send = self.send.as_ref().expect("nothing follows the end");
        if send.send(step).await.is_ok() {
            return Ok(());
        }
        // The thread says why it went.
        self.joined().await?;
        Err(Failure::new(Kind::Other, format!("nothing is written to {} any more", self.output.name())))
    }

    async fn joined(&mut self) -> Outcome<Option<(StreamTotals, u64)>> {
        self.send = None;
        let thread = self.thread.take().expect("joined once");
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        let written = joined.ok().and_then(Result::ok).expect("writing does not panic");
        written.map_err(|e| self.output.failed(&e))
    }
}

/// Lines of JSON that are being written.
pub struct Lines {
    output: Output,
    out: BufWriter<Box<dyn Write + Send>>,
}

impl Lines {
    pub fn line(&mut self, line: &impl Serialize) -> Outcome {
        let mut json = serde_json::to_vec(line).expect("our results have string keys");
        json.push(b'\n');
        self.out.write_all(&json).map_err(|e| self.output.failed(&e))
    }

    pub fn finish(mut self) -> Outcome {
        self.out.flush().map_err(|e| self.output.failed(&e))?;
        self.output.put()
    }
}

type Out = Counted<BufWriter<Box<dyn Write + Send>>>;

enum Writer {
    Cistern(Box<StreamWriter<Out>>),
    Rbd(RbdWriter<Out>),
}

impl Writer {
    fn begin(out: Out, header: &StreamHeader, dialect: Dialect) -> io::Result<Writer> {
        Ok(match dialect {
            Dialect::Cistern => Writer::Cistern(Box::new(StreamWriter::begin(out, header)?)),
            Dialect::Rbd => Writer::Rbd(RbdWriter::begin(out, header)?),
            Dialect::Extents => unreachable!("extents have no data"),
        })
    }

    fn record(&mut self, record: &StreamRecord) -> io::Result<()> {
        match self {
            Writer::Cistern(writer) => writer.record(record),
            Writer::Rbd(writer) => writer.record(record),
        }
    }

    fn finish(self) -> io::Result<(StreamTotals, Out)> {
        match self {
            Writer::Cistern(writer) => writer.finish(),
            Writer::Rbd(writer) => writer.finish(),
        }
    }
}

/// Writes what comes. A stream of which the end never comes has none.
fn write(
    out: BufWriter<Box<dyn Write + Send>>,
    header: &StreamHeader,
    dialect: Dialect,
    mut steps: mpsc::Receiver<Step>,
) -> Ended {
    let mut writer = Writer::begin(Counted { out, bytes: 0 }, header, dialect)?;
    while let Some(step) = steps.blocking_recv() {
        match step {
            Step::Record(record) => writer.record(&record)?,
            Step::End => {
                let (totals, counted) = writer.finish()?;
                return Ok(Some((totals, counted.bytes)));
            }
        }
    }
    Ok(None)
}

struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
