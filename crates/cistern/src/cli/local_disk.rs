//! A file without a name on the local disk, written as a journal is: past the page cache where that is possible, durable by fdatasync.
//!
//! Nothing is left of it, whatever ends the process.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
};

use cistern_engine::disk::AlignedBuf;

/// Files hold nothing of anybody, but lie where others do that do.
const MODE: u32 = 0o600;

/// A file of fixed size whose name is gone.
pub struct UnnamedFile {
    file: File,
    bytes: u64,
}

impl UnnamedFile {
    /// Makes one of so many reserved bytes in a directory, under a name that is nobody's.
    pub fn make(directory: &Path, name: &str, bytes: u64) -> io::Result<UnnamedFile> {
        let path = directory.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(MODE);
        let opened = match options.clone().custom_flags(libc::O_DIRECT).open(&path) {
            // The file system has no such way; the name may be there all the same.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let _ = std::fs::remove_file(&path);
                options.open(&path)
            }
            opened => opened,
        };
        let file = opened?;
        std::fs::remove_file(&path)?;
        let len = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a call on a descriptor that is open through it.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        let made = UnnamedFile { file, bytes };
        // What was reserved is written once: the first write to a reserved place costs more, and a journal is used for long.
        let zeroes = AlignedBuf::zeroed(ONCE_BYTES.min(bytes as usize));
        for offset in (0..bytes).step_by(zeroes.len()) {
            made.write(offset, &zeroes[..(zeroes.len() as u64).min(bytes - offset) as usize])?;
        }
        made.sync()?;
        Ok(made)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes whole blocks of 4096 bytes, from aligned memory.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Bytes that are written at once when the file is made.
const ONCE_BYTES: usize = 1 << 20;
