//! Local files: aligned reads and writes, fsync, locks. The door to the local disk.
//!
//! Operations complete in the caller's thread in production (call them from `Env::dedicated` or
//! `Env::blocking`), and at simulated points in the simulator. A file whose sync failed latches:
//! every later write and sync fails too, because the kernel may have dropped the dirty pages.
//!
//! Never retries, never buffers, never interprets what it stores.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    courtesy::Courtesy,
    env::{BoxFuture, Env},
    error::Result,
};

mod file;
mod names;
mod real;

pub use crate::aligned::AlignedBuf;
pub use names::rename_new;
pub use real::RealDisk;

/// A directory of local files, by plain names (no path separators).
#[async_trait]
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing, `Error::NotFound` if there is none.
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>>;
    /// The same, through the page cache: what is written survives the process once the call returns, and only a sync makes it survive the
    /// host. Not for a file that is open past the page cache as well.
    async fn open_cached(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.open(name).await
    }
    /// The same as [`open`](Self::open), for who looks at its first 64 KiB once: where another mount wrote them, they are as that left them.
    async fn open_anew(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.open(name).await
    }
    /// Creates a file of `bytes` reserved bytes (reading as zeroes), durable by name on return.
    /// `Error::Exists` if there is one already, `Error::Full` if the space cannot be reserved.
    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>>;
    /// Gives a file another name that is free; durable on return. `Error::Exists` if it is not.
    async fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Removes a file if it is there; durable on return.
    async fn remove(&self, name: &str) -> Result<()>;
    /// The names of the files whose names begin so, in no order.
    async fn names(&self, beginning: &str) -> Result<Vec<String>>;
    /// Takes the exclusive lock `name` of this directory for as long as the guard lives.
    /// `Error::Locked` when another process (or another holder here) has it.
    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>>;
    /// Whether a lock that was given here keeps out every process that can reach this directory by this kernel. It need not where the
    /// directory may be mounted twice (FUSE), or by another host.
    fn lock_is_for_all(&self) -> bool {
        true
    }
    /// Where this is, for messages.
    fn describe(&self) -> String;
    /// What is known here of others who use the same file system.
    fn courtesy(&self) -> Arc<Courtesy> {
        Arc::default()
    }
}

/// A local file of fixed size. Offsets and lengths are multiples of 4096 bytes and lie inside it.
#[async_trait]
#[allow(clippy::len_without_is_empty)] // a length in bytes; nobody asks whether it is zero
pub trait DiskFile: Send + Sync + 'static {
    /// Writes the whole buffer at `offset`.
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Writes the parts one after the other from `offset`, as one transfer where that is possible.
    async fn write_vectored_at(&self, mut offset: u64, parts: &[&[u8]]) -> Result<()> {
        for part in parts {
            self.write_at(offset, part).await?;
            offset += part.len() as u64;
        }
        Ok(())
    }
    /// Fills `out` from `offset`. Reading past the end is an error.
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
    /// The same for somebody who has time: gives way to those who sync on the same disk ([`Courtesy`]).
    async fn read_giving_way(&self, _env: &Env, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_at(offset, out).await
    }
    /// The same from a thread that must not block, where that is possible here and now. When the
    /// outcome is nothing, something is in the way: `read_at` will say what.
    fn read_without_blocking(&self, _offset: u64, _len: usize) -> Option<BoxFuture<Option<AlignedBuf>>> {
        None
    }
    /// Makes everything written before durable. A failure latches the file.
    async fn sync(&self) -> Result<()>;
    /// Bytes of the file.
    fn len(&self) -> u64;
    /// Whether the page cache is bypassed (O_DIRECT).
    fn is_direct(&self) -> bool;
}
