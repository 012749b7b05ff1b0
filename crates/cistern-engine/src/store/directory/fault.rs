//! What an error of the file system means for whoever asked: come back later, or do not.

use std::{io, path::Path};

use super::StoreError;

/// Sorts an error by recourse. Where there is no room it is `NoRoom`. Anything else that a person or a server that comes back can
/// cure while we wait is `Unreachable`; what needs a different path or different rights is
/// `Refused`. "Not found" depends on what was looked for, so callers sort it themselves.
pub(super) fn fault(what: &str, path: &Path, e: &io::Error) -> StoreError {
    let path = path.display();
    match e.raw_os_error() {
        Some(libc::ENOSPC) => StoreError::NoRoom(format!("{what} {path}: the file system is full")),
        Some(libc::EDQUOT) => StoreError::NoRoom(format!("{what} {path}: the disk quota is used up")),
        Some(libc::EROFS) => StoreError::Refused(format!("{what} {path}: the file system is read-only")),
        Some(libc::EACCES | libc::EPERM) => {
            StoreError::Refused(format!("{what} {path}: permission denied (check its owner and mode)"))
        }
        Some(
            libc::ENOTDIR
            | libc::EISDIR
            | libc::ELOOP
            | libc::ENAMETOOLONG
            | libc::EFBIG
            | libc::EINVAL
            | libc::EXDEV
            | libc::EOPNOTSUPP
            | libc::ENOSYS,
        ) => StoreError::Refused(format!("{what} {path}: {e}")),
        _ => StoreError::Unreachable(format!("{what} {path}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk has no room, a server may come back, a read-only file system is refused by name.
    #[test]
    fn faults_are_sorted_by_recourse() {
        let sorted = |errno| fault("cannot write", Path::new("/s/x"), &io::Error::from_raw_os_error(errno));
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            assert!(matches!(sorted(errno), StoreError::NoRoom(_)), "{errno}");
        }
        for errno in [libc::EIO, libc::ESTALE, libc::ETIMEDOUT, libc::EMFILE] {
            assert!(matches!(sorted(errno), StoreError::Unreachable(_)), "{errno}");
        }
        for errno in [libc::EROFS, libc::EACCES, libc::EPERM, libc::ENOTDIR, libc::EOPNOTSUPP] {
            assert!(matches!(sorted(errno), StoreError::Refused(_)), "{errno}");
        }
        assert!(sorted(libc::ENOSPC).to_string().contains("full"));
        assert!(sorted(libc::EROFS).to_string().contains("/s/x"));
    }
}
