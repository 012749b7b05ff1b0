//! Where an image goes: written on a thread of its own, in the order of the volume.
//!
//! A new file has its name when it is whole. Holes and blocks of zeroes take no space in it; on a device they are zeroed, since something else may lie there.

use std::{
    fs::{self, File},
    io::{self, IsTerminal, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileExt, FileTypeExt, OpenOptionsExt},
            net::UnixStream,
        },
    },
    path::Path,
    thread::JoinHandle,
};

use cistern_engine::{
    env::Env,
    stream::{StreamRecord, zero_runs},
    units::BLOCK_BYTES,
};
use cistern_nbd::Remote;
use tokio::sync::mpsc;

use crate::{
    cli::{
        new_file::NewFile,
        qemu::{self, QemuNbd},
        transfer::QUEUE_RECORDS,
    },
    failure::{Failure, Kind, Outcome},
    quantity::ByteSize,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of zeroes that are written at once.
const ZEROES_BYTES: usize = 256 << 10;

/// What an image is written to.
enum Outlet {
    /// A file that is empty: what is not written is a hole.
    New(File),
    Device(File),
    /// In order, zeroes too.
    Pipe(Box<dyn Write + Send>),
    /// An empty image, by its server.
    Image(Remote<UnixStream>, QemuNbd),
}

enum Step {
    Record(StreamRecord),
    End,
}

/// An image that is being written.
pub struct ImageWriter {
    name: String,
    /// If it is one.
    file: Option<NewFile>,
    send: Option<mpsc::Sender<Step>>,
    thread: Option<JoinHandle<Outcome>>,
}

impl ImageWriter {
    /// A raw image of some bytes: to a new file, a pipe, standard output, or over a device.
    pub fn raw(to: &str, size_bytes: u64, force: bool) -> Outcome<ImageWriter> {
        if to == "-" {
            if io::stdout().is_terminal() {
                let failure = Failure::usage("an image is nothing for a terminal");
                return Err(failure.hint("name a file, or send it into a pipe"));
            }
            return Ok(ImageWriter::begin(
                "standard output",
                None,
                size_bytes,
                Outlet::Pipe(Box::new(io::stdout())),
            ));
        }
        let path = Path::new(to);
        let failed = |e: io::Error| Failure::io(format!("cannot write to {to}"), &e);
        let there = match fs::metadata(path) {
            Ok(there) => there.file_type(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let file = NewFile::create(path).map_err(failed)?;
                let out = file.file().try_clone().map_err(failed)?;
                out.set_len(size_bytes).map_err(failed)?;
                return Ok(ImageWriter::begin(to, Some(file), size_bytes, Outlet::New(out)));
            }
            Err(e) => return Err(failed(e)),
        };
        if there.is_fifo() || there.is_char_device() {
            let out = File::options().write(true).open(path).map_err(failed)?;
            return Ok(ImageWriter::begin(to, None, size_bytes, Outlet::Pipe(Box::new(out))));
        }
        if !there.is_block_device() {
            return Err(is_there(path));
        }
        if !force {
            let failure = Failure::new(Kind::Exists, format!("{to} is a device, and may hold something"));
            return Err(failure.hint("--force writes over it"));
        }
        // The kernel refuses one that is mounted, or used otherwise.
        let mut device = File::options().write(true).custom_flags(libc::O_EXCL).open(path).map_err(failed)?;
        let device_bytes = io::Seek::seek(&mut device, io::SeekFrom::End(0)).map_err(failed)?;
        if device_bytes < size_bytes {
            let (has, needs) = (ByteSize(device_bytes), ByteSize(size_bytes));
            return Err(Failure::new(Kind::Full, format!("{to} has {has}, and the volume {needs}")));
        }
        Ok(ImageWriter::begin(to, None, size_bytes, Outlet::Device(device)))
    }

    /// An image of a format of qemu, in a new file.
    pub fn image(env: &Env, path: &Path, format: &str, size_bytes: u64) -> Outcome<ImageWriter> {
        let name = path.display().to_string();
        if name == "-" || fs::symlink_metadata(path).is_ok() {
            return Err(if name == "-" {
                Failure::usage(format!("{format} is not written into a pipe")).hint("name a file")
            } else {
                is_there(path)
            });
        }
        let file = NewFile::create(path).map_err(|e| Failure::io(format!("cannot write to {name}"), &e))?;
        qemu::make(file.beside(), format, size_bytes)?;
        let (remote, server) = QemuNbd::open(env, file.beside(), format, false)?;
        Ok(ImageWriter::begin(&name, Some(file), size_bytes, Outlet::Image(remote, server)))
    }

    fn begin(name: &str, file: Option<NewFile>, size_bytes: u64, outlet: Outlet) -> ImageWriter {
        let (send, receive) = mpsc::channel(QUEUE_RECORDS);
        let in_error = name.to_owned();
        let thread = std::thread::spawn(move || {
            let failed = |e: io::Error| match e.kind() {
                io::ErrorKind::BrokenPipe => Failure::io(format!("cannot write to {in_error}"), &e)
                    .hint("whoever reads the image ended before it did"),
                _ => Failure::io(format!("cannot write to {in_error}"), &e),
            };
            write(outlet, size_bytes, receive, &failed)
        });
        ImageWriter { name: name.to_owned(), file, send: Some(send), thread: Some(thread) }
    }

    pub async fn record(&mut self, record: StreamRecord) -> Outcome {
        self.step(Step::Record(record)).await
    }

    /// All of it was told: makes it durable, and gives it its name.
    pub async fn finish(mut self) -> Outcome {
        self.step(Step::End).await?;
        self.joined().await?;
        let name = &self.name;
        self.file
            .iter()
            .try_for_each(|file| file.put())
            .map_err(|e| Failure::io(format!("cannot write to {name}"), &e))
    }

    async fn step(&mut self, step: Step) -> Outcome {
        let send = self.send.as_ref().expect("nothing follows the end");
        if send.send(step).await.is_ok() {
            return Ok(());
        }
        // The thread says why it went.
        self.joined().await?;
        Err(Failure::new(Kind::Other, format!("nothing is written to {} any more", self.name)))
    }

    async fn joined(&mut self) -> Outcome {
        self.send = None;
        let thread = self.thread.take().expect("joined once");
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        joined.ok().and_then(Result::ok).expect("writing does not panic")
    }
}

fn is_there(path: &Path) -> Failure {
    Failure::new(Kind::Exists, format!("{} is there already", path.display()))
        .hint("choose another name, or remove it first")
}

/// Writes what comes. What never ends is not made durable.
fn write(
    mut outlet: Outlet,
    size: u64,
    mut steps: mpsc::Receiver<Step>,
    failed: &dyn Fn(io::Error) -> Failure,
) -> Outcome {
    let mut at = 0;
    while let Some(step) = steps.blocking_recv() {
        let Step::Record(record) = step else {
            outlet.zeroes(at, size - at).map_err(failed)?;
            return outlet.finish(failed);
        };
        let offset = record.extent.start * BLOCK;
        let end = (record.extent.end() * BLOCK).min(size);
        outlet.zeroes(at, offset - at).map_err(failed)?;
        match record.data()? {
            Some(data) => outlet.data(offset, &data[..(end - offset) as usize]).map_err(failed)?,
            None => outlet.zeroes(offset, end - offset).map_err(failed)?,
        }
        at = end;
    }
    Ok(())
}

impl Outlet {
    /// Data; of what is zero in it nothing is written where that is zero already.
    fn data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self {
            Outlet::Pipe(out) => return out.write_all(data),
            Outlet::Device(device) => return device.write_all_at(data, offset),
            Outlet::New(_) | Outlet::Image(..) => {}
        }
        let mut at = 0;
        for (len, is_zero) in zero_runs(offset, data) {
            let (place, part) = (offset + at as u64, &data[at..at + len]);
            match self {
                _ if is_zero => {}
                Outlet::New(file) => file.write_all_at(part, place)?,
                Outlet::Image(remote, _) => remote.write(place, part)?,
                Outlet::Pipe(_) | Outlet::Device(_) => unreachable!("written above"),
            }
            at += len;
        }
        Ok(())
    }

    fn zeroes(&mut self, mut offset: u64, len: u64) -> io::Result<()> {
        match self {
            Outlet::New(_) | Outlet::Image(..) => return Ok(()),
            Outlet::Device(device) if len == 0 || zero_range(device, offset, len) => return Ok(()),
            Outlet::Device(_) | Outlet::Pipe(_) => {}
        }
        let end = offset + len;
        let zeroes = vec![0; ZEROES_BYTES.min(len as usize)];
        while offset < end {
            let part = &zeroes[..zeroes.len().min((end - offset) as usize)];
            self.data(offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn finish(self, failed: &dyn Fn(io::Error) -> Failure) -> Outcome {
        match self {
            // Made durable where it gets its name.
            Outlet::New(_) => Ok(()),
            Outlet::Device(device) => device.sync_all().map_err(failed),
            Outlet::Pipe(mut out) => out.flush().map_err(failed),
            Outlet::Image(mut remote, server) => {
                remote.flush().map_err(failed)?;
                remote.close().map_err(failed)?;
                server.end()
            }
        }
    }
}

/// Has the kernel zero a range of a device; whether it did.
fn zero_range(device: &File, offset: u64, len: u64) -> bool {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return false };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open for the duration of the call, which touches no memory.
    unsafe { libc::fallocate(device.as_raw_fd(), mode, offset, len) == 0 }
}
