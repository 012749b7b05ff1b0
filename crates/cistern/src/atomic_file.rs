//! Files that come to their place as a whole.
//!
//! Invariant: whoever finds one there, also behind a power cut, finds what was there before or what was written, never a part.
//!
//! A file is synced once more under its name: file systems over the network and in user space may not pass on the sync of a
//! directory.

use std::{
    fs::{self, File, OpenOptions},
    io::{Result, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Replaces a file, for its owner alone; its directory is made if need be. Durable when it returns.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(directory_of(path))?;
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    file.sync_all()?;
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was there is gone, nothing lies beside it, and directories are made.
    #[test]
    fn it_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("deep/er/file.json");
        for text in ["a long text that was there first", "short"] {
            replace_file(&path, text.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("readable"), text);
        }
        let beside = fs::read_dir(path.parent().expect("it has one")).expect("readable");
        assert_eq!(beside.count(), 1);
    }

    /// A new file that cannot be written leaves the old one.
    #[test]
    fn a_failure_leaves_what_was_there() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("file.json");
        replace_file(&path, b"old").expect("written");
        fs::create_dir(dir.path().join("file.new")).expect("made");
        replace_file(&path, b"new").expect_err("in the way");
        assert_eq!(fs::read(&path).expect("readable"), b"old");
    }
}
