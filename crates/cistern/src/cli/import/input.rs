//! Where an image comes from: read on a thread of its own, in pieces, of which some wait. What is a hole there is not read.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, IsTerminal, Read, Seek, SeekFrom},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt},
    },
    path::Path,
};

use bytes::Bytes;
use cistern_engine::{
    env::Env,
    stream::{Patch, PatchContent, RbdHeader, RbdReader},
};
use cistern_nbd::Remote;
use tokio::sync::mpsc;

use crate::{
    cli::qemu::QemuNbd,
    failure::{Failure, Kind, Outcome},
    quantity::ByteSize,
    terminal::{self, Progress},
};

use super::{
    format::{ImageFormat, LOOK_BYTES},
    uri::NbdUri,
};

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 256 << 10;
/// Pieces that wait between the thread and the task: 8 MiB.
const QUEUE_PIECES: usize = 32;
/// Bytes that are read at once of a stream.
const BUFFER_BYTES: usize = 1 << 20;

/// An image that is being read.
pub struct ImageInput {
    pub format: &'static str,
    /// Of the image: any number.
    pub size_bytes: u64,
    /// The names of the snapshots that it is of, if it says so.
    pub names: Names,
    pieces: mpsc::Receiver<Outcome<Option<Patch>>>,
}

/// What an image says of the snapshots that it is of.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Takes what is read.
struct Tell(mpsc::Sender<Outcome<Option<Patch>>>);

impl Tell {
    fn data(&self, offset: u64, data: Vec<u8>) -> Outcome {
        self.patch(Patch { offset, content: PatchContent::Data(Bytes::from(data)) })
    }

    fn patch(&self, patch: Patch) -> Outcome {
        let told = self.0.blocking_send(Ok(Some(patch)));
        told.map_err(|_| Failure::new(Kind::Interrupted, "nobody imports any more"))
    }
}

impl ImageInput {
    /// Opens what was named. Only a pipe needs to be told the size of a raw image: it does not say whether all of it came.
    pub async fn open(
        env: &Env,
        source: &str,
        told: Option<ImageFormat>,
        size: Option<ByteSize>,
    ) -> Outcome<ImageInput> {
        let (env, source) = (env.clone(), source.to_owned());
        let open = move || match NbdUri::parse(&source).map_err(Failure::usage)? {
            Some(uri) => ImageInput::of_export(&uri, told),
            None if source == "-" => ImageInput::of_pipe(told, size),
            None => ImageInput::of_file(&env, Path::new(&source), told)
                .map_err(|failure| failure.context(&source)),
        };
        tokio::task::spawn_blocking(open).await.expect("opening does not panic")
    }

    /// The next piece; `None` when all of it was read.
    pub async fn next(&mut self) -> Outcome<Option<Patch>> {
        self.pieces.recv().await.expect("nothing is read behind the end, or an error")
    }

    fn begin(
        format: &'static str,
        size_bytes: u64,
        names: Names,
        read: impl FnOnce(&Tell) -> Outcome + Send + 'static,
    ) -> ImageInput {
        let (send, pieces) = mpsc::channel(QUEUE_PIECES);
        std::thread::spawn(move || {
            let tell = Tell(send);
            let ended = read(&tell).map(|()| None);
            // Whoever does not listen any more knows why.
            let _ = tell.0.blocking_send(ended);
        });
        ImageInput { format, size_bytes, names, pieces }
    }

    fn of_export(uri: &NbdUri, told: Option<ImageFormat>) -> Outcome<ImageInput> {
        if let Some(told) = told.filter(|told| *told != ImageFormat::Raw) {
            let text = format!("an export is imported as it is, not as {}", told.name());
            return Err(Failure::usage(text).hint("leave --format away"));
        }
        let remote = Remote::open(uri.connect()?, uri.export()).map_err(|e| Failure::io("the export", &e))?;
        let size = remote.size_bytes();
        Ok(ImageInput::begin("nbd", size, Names::default(), move |tell| read_export(remote, tell)))
    }

    fn of_pipe(told: Option<ImageFormat>, size: Option<ByteSize>) -> Outcome<ImageInput> {
        if io::stdin().is_terminal() {
            let failure = Failure::usage("an image does not come from a terminal");
            return Err(failure.hint("name the file, or send it into this command"));
        }
        let mut begin = Vec::new();
        let failed = |e: io::Error| Failure::io("cannot read standard input", &e);
        io::stdin().take(LOOK_BYTES as u64).read_to_end(&mut begin).map_err(failed)?;
        let format = ImageFormat::of(told, &begin, &[])?;
        warn(format, &begin, &[]);
        let all = Cursor::new(begin).chain(io::stdin());
        match (format, size) {
            (ImageFormat::Rbd, _) => ImageInput::of_rbd(all),
            (ImageFormat::Raw, Some(ByteSize(size))) => {
                Ok(ImageInput::begin(format.name(), size, Names::default(), move |tell| {
                    read_pipe(all, size, tell)
                }))
            }
            (ImageFormat::Raw, None) => {
                Err(Failure::usage("a pipe does not say how large the image is, and whether all of it came")
                    .hint("--size SIZE; or name a file"))
            }
            _ => {
                let text = format!("{} cannot be read from a pipe", format.name());
                Err(Failure::usage(text).hint("name a file"))
            }
        }
    }

    fn of_file(env: &Env, path: &Path, told: Option<ImageFormat>) -> Outcome<ImageInput> {
        let failed = |e: io::Error| Failure::io("cannot read it", &e);
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            let failure = Failure::usage("it is neither a file nor a block device");
            return Err(failure.hint("send a pipe into the command: cistern import - URL"));
        }
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let [begin, end] = [0, size.saturating_sub(LOOK_BYTES as u64)].map(|at| look(&file, at));
        let (begin, end) = (begin.map_err(failed)?, end.map_err(failed)?);
        let format = ImageFormat::of(told, &begin, &end)?;
        warn(format, &begin, &end);
        match format {
            ImageFormat::Raw => Ok(ImageInput::begin(format.name(), size, Names::default(), move |tell| {
                read_file(&file, size, tell)
            })),
            ImageFormat::Rbd => {
                file.rewind().map_err(failed)?;
                if metadata.is_file() {
                    verify(&file)?;
                }
                ImageInput::of_rbd(file)
            }
            _ => {
                let (remote, server) = QemuNbd::open(env, path, format.name(), true)?;
                let size = remote.size_bytes();
                Ok(ImageInput::begin(format.name(), size, Names::default(), move |tell| {
                    read_export(remote, tell)?;
                    server.end()
                }))
            }
        }
    }

    fn of_rbd(from: impl Read + Send + 'static) -> Outcome<ImageInput> {
        let begun = RbdReader::begin(BufReader::with_capacity(BUFFER_BYTES, from));
        let (mut reader, RbdHeader { from, to, size_bytes }) = begun?;
        let names = Names { from, to };
        Ok(ImageInput::begin(ImageFormat::Rbd.name(), size_bytes, names, move |tell| {
            while let Some(patch) = reader.next_patch()? {
                tell.patch(patch)?;
            }
            Ok(())
        }))
    }
}

fn warn(format: ImageFormat, begin: &[u8], end: &[u8]) {
    if let Some(seen) = format.looks_different(begin, end) {
        terminal::remark(format!("it looks like {seen}, and is imported as {}, as told", format.name()));
    }
}

fn look(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut place = at;
    while bytes.len() < LOOK_BYTES {
        let mut some = [0; LOOK_BYTES];
        let n = file.read_at(&mut some[..LOOK_BYTES - bytes.len()], place)?;
        if n == 0 {
            break;
        }
        bytes.extend_from_slice(&some[..n]);
        place += n as u64;
    }
    Ok(bytes)
}

/// Reads all of a difference, and goes back to its beginning: so that nothing has to be gone back on.
fn verify(mut file: &File) -> Outcome {
    let _progress = Progress::spinning("looking for the end of the difference");
    let mut reader = RbdReader::begin(BufReader::with_capacity(BUFFER_BYTES, file))?.0;
    while reader.next_patch()?.is_some() {}
    file.rewind().map_err(|e| Failure::io("cannot read it", &e))
}

fn read_export(mut remote: Remote<impl Read + io::Write>, tell: &Tell) -> Outcome {
    let failed = |e: io::Error| Failure::io("reading the export", &e);
    let (mut at, size) = (0, remote.size_bytes());
    while at < size {
        let mut data = Vec::new();
        for (len, is_zero) in remote.ranges(at, size - at).map_err(failed)? {
            if !is_zero {
                data.push((at, len as usize));
            }
            at += len;
        }
        let mut stopped = None;
        let give = |offset, bytes| {
            tell.data(offset, bytes).map_err(|failure| {
                stopped = Some(failure);
                io::ErrorKind::Interrupted.into()
            })
        };
        let read = remote.read_each(data, give);
        read.map_err(|e| stopped.unwrap_or_else(|| failed(e)))?;
    }
    remote.close().map_err(failed)
}

/// Reads exactly so much.
fn read_pipe(mut from: impl Read, size: u64, tell: &Tell) -> Outcome {
    let failed = |e: io::Error| Failure::io("cannot read standard input", &e);
    let mut at = 0;
    while at < size {
        let len = PIECE_BYTES.min(size - at);
        let mut data = Vec::with_capacity(len as usize);
        (&mut from).take(len).read_to_end(&mut data).map_err(failed)?;
        if (data.len() as u64) < len {
            let came = at + data.len() as u64;
            return Err(Failure::new(
                Kind::Corrupt,
                format!("the image ends after {came} bytes, not {size}"),
            )
            .hint("whatever writes into the pipe may have failed; or another --size"));
        }
        tell.data(at, data)?;
        at += len;
    }
    match from.read(&mut [0]).map_err(failed)? {
        0 => Ok(()),
        _ => Err(Failure::new(Kind::Corrupt, format!("the image does not end after {size} bytes"))
            .hint("give its whole size: --size SIZE")),
    }
}

fn read_file(file: &File, size: u64, tell: &Tell) -> Outcome {
    let failed = |e: io::Error| Failure::io("cannot read it", &e);
    let mut at = 0;
    while at < size {
        let (data, end) = next_data(file, at, size).map_err(failed)?;
        at = data;
        while at < end {
            let len = (end - at).min(PIECE_BYTES - at % PIECE_BYTES);
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, at).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    Failure::new(Kind::Corrupt, "it became shorter while it was read")
                }
                _ => failed(e),
            })?;
            tell.data(at, bytes)?;
            at += len;
        }
    }
    Ok(())
}

/// Where data lies next that is no hole: its beginning and its end. A device knows no holes.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<(u64, u64)> {
    let seek = |at: u64, whence| {
        let at = i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the descriptor is open for the duration of the call, which touches no memory.
        match unsafe { libc::lseek(file.as_raw_fd(), at, whence) } {
            -1 => Err(io::Error::last_os_error()),
            found => Ok(found as u64),
        }
    };
    match seek(at, libc::SEEK_DATA) {
        Ok(data) => Ok((data.min(size), seek(data, libc::SEEK_HOLE)?.min(size))),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok((size, size)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok((at, size)),
        Err(e) => Err(e),
    }
}
