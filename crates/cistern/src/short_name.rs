//! Sockets in directories with long names.

use std::{
    fs::File,
    io::Result,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

/// A directory under a name short enough for a socket's address, which is limited to 108 bytes.
/// The name is valid as long as the file is open.
pub fn short_name(directory: &Path) -> Result<(File, PathBuf)> {
    let file = File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}
