//! What is served: the traits a storage engine implements, and the words they use.
//!
//! Never speaks of bytes on the wire. Every range handed to an [`Export`] was checked before: it
//! is not empty, inside the size the export gave at that moment, for most clients aligned to [`BLOCK_BYTES_MIN`],
//! and for `read` and `write` not longer than [`PAYLOAD_BYTES_MAX`].

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

/// What clients are told as minimum block size. Who asked for it keeps to it; others may ask for any bytes.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// Bytes of a request that cost least for their size; told to clients.
pub(crate) const BLOCK_BYTES_PREFERRED: u32 = 65536;
/// Bytes of the largest read or write. 32 MiB is what every client may assume without asking.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

const _: () = assert!(BLOCK_BYTES_MIN.is_power_of_two() && BLOCK_BYTES_PREFERRED.is_power_of_two());
const _: () = assert!(PAYLOAD_BYTES_MAX.is_multiple_of(BLOCK_BYTES_PREFERRED));

/// The errors the protocol can carry; the numbers are fixed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// Input or output failed.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// The request is wrong.
    Inval = 22,
    /// No space left, or a write beyond the end.
    NoSpc = 28,
    /// Too large to answer in one piece.
    Overflow = 75,
    /// A fast zero that would not be fast.
    NotSup = 95,
    /// The server is stopping.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// Why a request failed: a number for programs and a text for people. Clients with structured
/// replies see both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExportError {
    pub errno: Errno,
    pub message: Cow<'static, str>,
}

impl ExportError {
    pub fn new(errno: Errno, message: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, message: message.into() }
    }
}

/// The result of an export's operations.
pub type Result<T, E = ExportError> = std::result::Result<T, E>;

/// A piece of a read, ascending and without gaps; the lengths add up to the length asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPiece {
    Data(Bytes),
    /// So many bytes of zeroes.
    Zeroes(u64),
}

/// What a range is, in the terms of `base:allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    Data,
    /// Unallocated, reads as zeroes.
    Hole,
    /// Allocated, reads as zeroes.
    Zero,
}

/// What a client learns of an export when it negotiates; constant for the life of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The canonical name; the same export may also be found by the empty name.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// Writing requests are answered with EPERM.
    pub read_only: bool,
    /// FLUSH and FUA on one connection cover what was acknowledged on all connections, and a
    /// read on one sees every write acknowledged on another. See [`Export`].
    pub can_multi_conn: bool,
    /// `write_zeroes` honours its `fast` argument.
    pub fast_zero: bool,
}

/// A block device. One object may serve all connections to it, or each have its own.
///
/// What the protocol promises to clients, and an implementation has to keep:
/// - `write`, `trim` and `write_zeroes` are visible to every later `read`, of any connection,
///   once they have returned, and survive the end of this process, though perhaps not of the host: a client that goes on
///   with the next server does not send again what this one answered.
/// - `flush` returns after everything is durable that any of them acknowledged before the call,
///   **whichever connection it came from** (this is what `can_multi_conn` tells clients).
/// - With `fua` an operation returns only when its own effect is durable.
/// - Operations run concurrently and may complete in any order.
///
/// Futures are polled in the connection's task: they must not block. A future that is ready at
/// the first poll is answered without any queueing. Once begun, an operation is polled to its end
/// even if the client has gone, except when the time for a graceful stop runs out.
#[async_trait]
pub trait Export: Send + Sync {
    /// Size in bytes; may change while clients are connected. Asked for every request, so cheap.
    /// What exceeds a multiple of [`BLOCK_BYTES_MIN`] cannot be reached by clients.
    fn size_bytes(&self) -> u64;

    fn properties(&self) -> Properties;

    /// What it is, where a connection that outlives its server may be handed on to the next one: that one goes on with it only where its
    /// export of that name says the same. `None`: the connection ends with the server. Constant.
    fn identity(&self) -> Option<String> {
        None
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<ReadPiece>>;

    /// `data` may be a slice of a larger buffer (up to 256 KiB of requests that arrived together).
    async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<()>;

    async fn flush(&self) -> Result<()>;

    /// A hint that the range is no longer needed. `len` may be the whole device.
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()>;

    /// The range reads as zeroes afterwards; with `no_hole` it stays allocated. With `fast` it
    /// fails with `NotSup`, unchanged, unless it is faster than writing. `len` may be the whole device.
    async fn write_zeroes(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Result<()>;

    /// A hint that the range will be read soon. `len` may be the whole device.
    async fn cache(&self, offset: u64, len: u64) -> Result<()>;

    /// What the range is: lengths in bytes, ascending from `offset` and without gaps, at least
    /// one and at most `count_max` of them. May end before the range does.
    async fn block_status(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, Allocation)>>;

    /// Earlier states against which it knows what changed: to clients each is the context `qemu:dirty-bitmap:NAME`, as the bitmaps
    /// of QEMU's exports are. Asked when a client negotiates contexts.
    fn bitmaps(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the parts of the range changed since the state of a bitmap; as `block_status` else. What did not change may be called
    /// changed.
    async fn changed(
        &self,
        bitmap: &str,
        _offset: u64,
        _len: u64,
        _count_max: usize,
    ) -> Result<Vec<(u64, bool)>> {
        Err(ExportError::new(Errno::Inval, format!("there is no bitmap {bitmap}")))
    }
}

/// One line of the list of exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}

/// The exports of a server.
#[async_trait]
pub trait Exports: Send + Sync {
    /// All exports, as shown to clients that ask for a list.
    fn list(&self) -> Vec<ExportEntry>;

    /// The export of that name; the empty name is the default export, if there is one. Asked
    /// for every connection, and several times: it may get an object of its own, which tells it from the others. It may take a
    /// while, if the export is to be opened first.
    async fn find(&self, name: &str) -> Option<Arc<dyn Export>>;
}
