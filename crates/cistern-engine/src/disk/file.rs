//! A file of the local disk, past the page cache where the filesystem allows it.
//!
//! Invariants: the size is fixed at creation and its space reserved, also where the filesystem writes elsewhere by itself
//! (btrfs: the new file is made NOCOW before it has any data); after a failed sync, or once the file was deleted under us, nothing is written or synced any more (the kernel may have
//! dropped the dirty pages, and a file without a name keeps no promise). Memory that is not
//! aligned for O_DIRECT is copied through an aligned buffer. Where O_DIRECT is refused when the file is opened, read, or written for the
//! first time, everything goes through the page cache.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;

use super::DiskFile;
use crate::{
    aligned::{ALIGN_BYTES, AlignedBuf},
    courtesy::{Courtesy, SMALL_PIECE_BYTES},
    disk_room::DiskRoom,
    env::{BoxFuture, Env},
    error::{Error, Result},
    units::BLOCK_BYTES,
    uring,
};

/// Bytes of the buffer through which unaligned memory goes.
const BOUNCE_BYTES_MAX: usize = 1 << 20;
/// Buffers of one vectored write; the kernel takes up to 1024.
const VECTOR_MAX: usize = 1024;
/// The attribute of a file that is written in place, of linux/fs.h.
const FS_NOCOW_FL: libc::c_long = 0x0080_0000;

const _: () = assert!(BOUNCE_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(SMALL_PIECE_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(BLOCK_BYTES.is_multiple_of(ALIGN_BYTES));

/// What all files of one directory share.
pub(super) struct Common {
    /// With others on this file system.
    pub courtesy: Arc<Courtesy>,
    /// Whether the log already says that this directory cannot bypass the page cache.
    pub said_buffered: AtomicBool,
}

/// An open file.
pub(super) struct RealFile {
    opened: Arc<File>,
    /// `opened` bypasses the page cache.
    direct: bool,
    /// The same file through the page cache, once a write past it was refused.
    cached: OnceLock<Arc<File>>,
    path: PathBuf,
    len: u64,
    common: Arc<Common>,
    /// Why nothing is written any more.
    failed: OnceLock<Error>,
}

impl RealFile {
    /// Opens an existing file.
    pub(super) fn open(path: &Path, common: &Arc<Common>) -> Result<RealFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        RealFile::of(open_direct(&options, path, &common.said_buffered)?, path, common)
    }

    /// The same, through the page cache.
    pub(super) fn open_cached(path: &Path, common: &Arc<Common>) -> Result<RealFile> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| Error::io(path.display().to_string(), &e))?;
        RealFile::of((file, false), path, common)
    }

    fn of((file, direct): (File, bool), path: &Path, common: &Arc<Common>) -> Result<RealFile> {
        let len = file.metadata().map_err(|e| Error::io(path.display().to_string(), &e))?.len();
        let (opened, common) = (Arc::new(file), common.clone());
        let (cached, failed) = (OnceLock::new(), OnceLock::new());
        Ok(RealFile { opened, direct, cached, path: path.into(), len, common, failed })
    }

    /// Makes a new file of `len` reserved bytes. Its content and size are durable on return, its
    /// name is not yet.
    pub(super) fn create(path: &Path, len: u64, mode: u32, common: &Arc<Common>) -> Result<RealFile> {
        if !len.is_multiple_of(BLOCK_BYTES as u64) || i64::try_from(len).is_err() {
            return Err(Error::Invalid(format!(
                "a file of {len} bytes is not made of {BLOCK_BYTES} byte blocks"
            )));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode);
        let plain = match options.open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists(path.display().to_string()));
            }
            Err(e) => return Err(Error::io(format!("create {}", path.display()), &e)),
        };
        overwrite_in_place(&plain);
        reserve(&plain, path, len)?;
        plain.sync_all().map_err(|e| Error::io(format!("sync {}", path.display()), &e))?;
        drop(plain);
        RealFile::open(path, common)
    }

    /// Reads of its first 64 KiB go to the file system again, unless they do so anyway.
    pub(super) fn forget_beginning(&self) {
        const BYTES: libc::off_t = 64 << 10;
        if !self.is_past_cache() {
            // SAFETY: a call on an open descriptor without memory arguments; failure changes nothing.
            let _ =
                unsafe { libc::posix_fadvise(self.file().as_raw_fd(), 0, BYTES, libc::POSIX_FADV_DONTNEED) };
        }
    }

    fn file(&self) -> &Arc<File> {
        self.cached.get().unwrap_or(&self.opened)
    }

    fn is_past_cache(&self) -> bool {
        self.direct && self.cached.get().is_none()
    }

    /// Writes, and goes through the page cache from now on where the filesystem refuses to write past it: some that pass writes on to others
    /// (mergerfs, unionfs-fuse, mhddfs) take O_DIRECT for opening and reading alone.
    fn writing(&self, write: impl Fn() -> io::Result<()>) -> Result<()> {
        let failed = |e| self.io("write", &e);
        let is_past_cache = self.is_past_cache();
        match write() {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && is_past_cache => {
                // The same file, whatever has its name now.
                let same = format!("/proc/self/fd/{}", self.opened.as_raw_fd());
                let file = OpenOptions::new().read(true).write(true).open(same).map_err(failed)?;
                self.cached.get_or_init(|| Arc::new(file));
                say_buffered(&self.path, &self.common.said_buffered);
                write().map_err(failed)
            }
            done => done.map_err(failed),
        }
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        let aligned = offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES);
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        if aligned && inside {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{}: {len} bytes at {offset} are not whole blocks of a file of {} bytes",
            self.path.display(),
            self.len
        )))
    }

    fn check_writable(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |e| Err(e.clone()))
    }

    fn latch(&self, error: Error) -> Error {
        // Room that comes back brings nothing back that a failed sync has dropped, so this is not for waiting.
        let error = match error {
            Error::Full(cause) => Error::Io { what: self.path.display().to_string(), cause },
            other => other,
        };
        tracing::error!(file = %self.path.display(), %error, "nothing is written to this file any more");
        self.failed.get_or_init(|| error).clone()
    }

    fn io(&self, what: &str, cause: &io::Error) -> Error {
        Error::io(format!("{what} {}", self.path.display()), cause)
    }

    /// Whether the kernel takes this memory as it is.
    fn takes(&self, memory: &[u8]) -> bool {
        !self.is_past_cache() || (memory.as_ptr() as usize).is_multiple_of(ALIGN_BYTES)
    }

    fn write_one(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.takes(data) {
            return self.file().write_all_at(data, offset);
        }
        let mut bounce = AlignedBuf::zeroed(data.len().min(BOUNCE_BYTES_MAX));
        for (n, part) in data.chunks(BOUNCE_BYTES_MAX).enumerate() {
            bounce[..part.len()].copy_from_slice(part);
            self.file().write_all_at(&bounce[..part.len()], offset + (n * BOUNCE_BYTES_MAX) as u64)?;
        }
        Ok(())
    }

    fn read_one(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.takes(out) {
            return self.file().read_exact_at(out, offset);
        }
        let mut bounce = AlignedBuf::zeroed(out.len().min(BOUNCE_BYTES_MAX));
        for (n, part) in out.chunks_mut(BOUNCE_BYTES_MAX).enumerate() {
            self.file().read_exact_at(&mut bounce[..part.len()], offset + (n * BOUNCE_BYTES_MAX) as u64)?;
            part.copy_from_slice(&bounce[..part.len()]);
        }
        Ok(())
    }

    /// Writes aligned parts with as few calls as the kernel allows.
    fn write_many(&self, mut offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        for batch in parts.chunks(VECTOR_MAX) {
            let bytes: usize = batch.iter().map(|p| p.len()).sum();
            let written = self.write_vector(offset, batch)?;
            let mut skip = written;
            let mut at = offset;
            // A short write is legal (a signal, a limit of the kernel): finish part by part.
            for part in batch {
                let done = skip.min(part.len());
                skip -= done;
                if done < part.len() {
                    self.file().write_all_at(&part[done..], at + done as u64)?;
                }
                at += part.len() as u64;
            }
            offset += bytes as u64;
        }
        Ok(())
    }

    /// One pwritev; the number of bytes it wrote.
    fn write_vector(&self, offset: u64, parts: &[&[u8]]) -> io::Result<usize> {
        debug_assert!(parts.len() <= VECTOR_MAX, "the kernel takes all buffers of a call");
        let vector: Vec<libc::iovec> = parts
            .iter()
            .map(|p| libc::iovec { iov_base: p.as_ptr() as *mut libc::c_void, iov_len: p.len() })
            .collect();
        loop {
            // SAFETY: every entry points into a slice that outlives the call, and the kernel only
            // reads from it; the count is at most VECTOR_MAX; the offset fits (checked on entry).
            let rc = unsafe {
                libc::pwritev(self.file().as_raw_fd(), vector.as_ptr(), vector.len() as i32, offset as i64)
            };
            if rc >= 0 {
                return Ok(rc as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Opens without the page cache if a read works that way, otherwise with it.
fn open_direct(options: &OpenOptions, path: &Path, said_buffered: &AtomicBool) -> Result<(File, bool)> {
    let mut direct = options.clone();
    direct.custom_flags(libc::O_DIRECT);
    let refused = match direct.open(path) {
        Ok(file) => match file.read_at(&mut AlignedBuf::zeroed(BLOCK_BYTES), 0) {
            Ok(_) => return Ok((file, true)),
            Err(e) => e,
        },
        Err(e) => e,
    };
    let unsupported = [libc::EINVAL, libc::EOPNOTSUPP];
    if !refused.raw_os_error().is_some_and(|code| unsupported.contains(&code)) {
        return Err(Error::io(path.display().to_string(), &refused));
    }
    let file = options.open(path).map_err(|e| Error::io(path.display().to_string(), &e))?;
    say_buffered(path, said_buffered);
    Ok((file, false))
}

/// Says once for each directory that its filesystem has no O_DIRECT.
fn say_buffered(path: &Path, said: &AtomicBool) {
    if !said.swap(true, Ordering::Relaxed) {
        tracing::info!(file = %path.display(), "the filesystem has no O_DIRECT: going through the page cache");
    }
}

/// How many names the file has. Asks for nothing else: whoever asks for its times makes the kernel (from 6.13
/// on) give the next write a time of its own, and that costs a metadata write at every sync (36 us of 180 for
/// a 4 KiB write and its flush on ext4).
fn count_names(file: &File) -> io::Result<u32> {
    // SAFETY: statx is plain numbers, for which zero is valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, an empty path that ends in zero, and `stat` is valid for the call.
    let rc = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_NLINK, &mut stat)
    };
    if rc == 0 { Ok(stat.stx_nlink) } else { Err(io::Error::last_os_error()) }
}

/// Asks a copy-on-write filesystem to write this file in place (`chattr +C`). There a reservation is used up by the first
/// write to a block, and every later one needs new space. Only an empty file can be told; it loses the filesystem's checksums,
/// and what lies in such a file has its own. Filesystems without copy-on-write refuse the flag, which changes nothing.
fn overwrite_in_place(file: &File) {
    let mut flags: libc::c_long = 0;
    // SAFETY: an open descriptor, and a pointer to a long, of which the kernel writes 32 bits.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut flags) } != 0 {
        return;
    }
    flags |= FS_NOCOW_FL;
    // SAFETY: as above, and here the kernel reads.
    let _ = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) }; // refused where it means nothing
}

/// Reserves the space of a new file, so that no later write meets a full disk.
fn reserve(file: &File, path: &Path, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    // Some filesystems take all there is before they notice that it does not suffice, and
    // everybody else meets a full disk meanwhile.
    if let Some(free) = DiskRoom::beside(file).map(|room| room.free_bytes).filter(|&free| free < len) {
        return Err(Error::Full(format!("{} needs {len} bytes, {free} are free", path.display())));
    }
    loop {
        // The bare system call: posix_fallocate of the C library writes into every block where
        // the filesystem cannot reserve, which takes minutes.
        // SAFETY: a call on an open descriptor without memory arguments; `len` fits (checked).
        let rc = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => break,
            _ => return Err(Error::io(format!("reserve {len} bytes for {}", path.display()), &error)),
        }
    }
    tracing::warn!(
        file = %path.display(),
        "the filesystem cannot reserve space: a disk that fills up will stop the writer of this file"
    );
    file.set_len(len).map_err(|e| Error::io(format!("size {}", path.display()), &e))
}

#[async_trait]
impl DiskFile for RealFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.check(offset, data.len())?;
        self.writing(|| self.write_one(offset, data))
    }

    async fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.check_writable()?;
        self.check(offset, parts.iter().map(|p| p.len()).sum())?;
        if parts.iter().all(|p| self.takes(p) && p.len().is_multiple_of(BLOCK_BYTES)) {
            return self.writing(|| self.write_many(offset, parts));
        }
        let whole = parts.concat();
        self.writing(|| self.write_one(offset, &whole))
    }

    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len())?;
        self.read_one(offset, out).map_err(|e| self.io("read", &e))
    }

    async fn read_giving_way(&self, env: &Env, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len())?;
        let read = |offset, out: &mut [u8]| self.read_one(offset, out).map_err(|e| self.io("read", &e));
        let courtesy = &self.common.courtesy;
        let (mut offset, mut rest) = (offset, out);
        while !rest.is_empty() {
            if !courtesy.is_due_for_reads(env.now()) {
                return read(offset, rest);
            }
            let (part, behind) = rest.split_at_mut(rest.len().min(SMALL_PIECE_BYTES));
            let bytes = part.len() as u64;
            courtesy.give_way(env, || read(offset, part))?;
            (offset, rest) = (offset + bytes, behind);
        }
        Ok(())
    }

    fn read_without_blocking(&self, offset: u64, len: usize) -> Option<BoxFuture<Option<AlignedBuf>>> {
        self.check(offset, len).ok()?;
        let reading = uring::start(self.file(), offset, len)?;
        Some(Box::pin(async move {
            let (read, buf) = reading.await.ok()?;
            (read == len).then_some(buf)
        }))
    }

    async fn sync(&self) -> Result<()> {
        self.check_writable()?;
        self.file().sync_data().map_err(|e| self.latch(self.io("sync", &e)))?;
        let names = count_names(self.file()).map_err(|e| self.latch(self.io("stat", &e)))?;
        if names == 0 {
            return Err(self.latch(Error::Io {
                what: self.path.display().to_string(),
                cause: "the file was deleted while in use; what is written to it would be lost".into(),
            }));
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn is_direct(&self) -> bool {
        self.is_past_cache()
    }
}
