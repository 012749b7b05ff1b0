//! How much room a file system has.

use std::{fs::File, os::fd::AsRawFd};

/// Room on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// For whoever is not its administrator.
    pub free_bytes: u64,
    pub total_bytes: u64,
}

impl DiskRoom {
    /// On the file system of a file or directory. `None` where it does not say: some have no end.
    pub fn beside(file: &File) -> Option<DiskRoom> {
        // SAFETY: statvfs is plain numbers, for which zero is valid.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: an open descriptor, and `stat` is valid for the duration of the call.
        let rc = unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) };
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        (rc == 0 && stat.f_blocks > 0)
            .then(|| DiskRoom { free_bytes: bytes(stat.f_bavail), total_bytes: bytes(stat.f_blocks) })
    }
}
