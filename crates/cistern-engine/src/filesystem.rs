//! What kind of file system a directory lies on.

use std::{ffi::CString, os::unix::ffi::OsStrExt, path::Path};

/// File systems of this kernel alone: the sync of a directory is one, and each has one instance however often it is mounted. ext2 to
/// ext4, XFS, btrfs, ZFS, f2fs, bcachefs, tmpfs. Numbers of statfs(2).
const LOCAL: [i64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0xf2f5_2010, 0xca45_1a4e, 0x0102_1994];

/// Its upper directory belongs to one overlay.
const OVERLAY: i64 = 0x794c_7630;

/// Whether a lock that is given on `path` is known to every process that can reach it by this kernel. It need not be where a directory may
/// be mounted twice (FUSE), or by another host.
pub fn lock_is_for_all(path: &Path) -> bool {
    kind(path).is_some_and(|kind| LOCAL.contains(&kind) || kind == OVERLAY)
}

/// Whether names are made durable with the files that have them: everywhere but on file systems that are known to sync a
/// directory when they are told to. Those over the network (NFS, SMB, Ceph, 9p), in user space (sshfs and everything of
/// FUSE), and those on top of others do not say.
pub fn syncs_names_with_files(path: &Path) -> bool {
    kind(path).is_none_or(|kind| !LOCAL.contains(&kind))
}

fn kind(path: &Path) -> Option<i64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: statfs is plain numbers, for which zero is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string that ends with a zero, and `stat`, are valid for the duration of the call.
    let rc = unsafe { libc::statfs(path.as_ptr(), &mut stat) };
    #[allow(clippy::unnecessary_cast)] // its type depends on the platform
    let kind = stat.f_type as i64;
    (rc == 0).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what is known to sync directories goes without: /proc stands for everything else.
    #[test]
    fn what_is_not_known_is_synced() {
        assert!(syncs_names_with_files(Path::new("/proc")));
        assert!(syncs_names_with_files(Path::new("/nowhere/at/all")));
        assert!(!syncs_names_with_files(Path::new("/dev/shm")), "tmpfs");
    }

    /// A lock counts as known to all only where that is known.
    #[test]
    fn a_lock_is_for_all_where_that_is_known() {
        assert!(lock_is_for_all(Path::new("/dev/shm")), "tmpfs");
        assert!(!lock_is_for_all(Path::new("/proc")));
        assert!(!lock_is_for_all(Path::new("/nowhere/at/all")));
    }
}
