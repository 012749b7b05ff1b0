//! Block devices of the kernel's NBD client: attached without anybody in between, and given a new connection when theirs dies; and those of
//! its userspace block driver (`cistern_ublk`), as far as they are the same to who uses them.
//!
//! What stays true (docs/design/attach.md): a device of ours names its volume, and the history it shows, in `backend`, which the
//! kernel compares whenever it gets a new connection; one connection, no time-out of the kernel's own, and a dead one is waited for for
//! [`DEAD_LIMIT`]. So no request fails because a daemon ends. Knows nothing of volumes or daemons but their sockets.

mod cgroup;
mod device;
mod kept;
mod mounts;
mod netlink;
mod record;
mod ublk;

use std::{
    io::{Error, ErrorKind, Result},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};

use cistern_nbd::{Negotiated, choose_export};

pub use cgroup::Cgroup;
pub use device::{Device, DeviceDriver};
pub use kept::{ExportAt, keep_connection, keep_connections, take_connections};
pub use mounts::{Mount, is_bound, mounts, unescape};
pub use netlink::{DeadLinks, KernelNbd};
pub use record::{Attachment, Keeper};
pub use ublk::{UblkFitness, ublk_mark};

/// Bytes of the blocks that a device has: those of the volume, and of whoever is on it.
pub const BLOCK_BYTES: u64 = 4096;
/// How long requests wait for a new connection before they fail.
pub const DEAD_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a daemon may take to negotiate.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// A connection to an export, to be handed to the kernel.
pub struct Link {
    stream: UnixStream,
    export: Negotiated,
}

impl Link {
    /// Connects to a daemon's socket and chooses an export.
    ///
    /// # Errors
    /// Of the socket, and of [`choose_export`].
    pub fn open(socket: &Path, export: &str) -> Result<Link> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(NEGOTIATION_LIMIT))?;
        stream.set_write_timeout(Some(NEGOTIATION_LIMIT))?;
        let export = choose_export(&mut stream, export)?;
        if export.size_bytes % BLOCK_BYTES != 0 {
            let size = export.size_bytes;
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("its size of {size} bytes is not a multiple of {BLOCK_BYTES}"),
            ));
        }
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(Link { stream, export })
    }

    pub fn size_bytes(&self) -> u64 {
        self.export.size_bytes
    }

    pub fn is_read_only(&self) -> bool {
        self.export.is_read_only()
    }

    fn descriptor(&self) -> u32 {
        u32::try_from(self.stream.as_raw_fd()).expect("descriptors are not negative")
    }

    fn flags(&self) -> u64 {
        u64::from(self.export.flags)
    }
}
