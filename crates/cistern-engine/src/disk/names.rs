//! Names of files that are given once.

use std::{
    fs::{self, File, OpenOptions},
    io::{Error, ErrorKind, Result},
    path::Path,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Gives a file another name, in the same directory, unless something has that name. Durable when it returns.
///
/// Where the file system knows no such rename (NFS, sshfs, bindfs, mergerfs), a link does the same. Where it knows no links either (a mount of
/// rclone), it is looked at first whether the name is free, which another process may undo in between.
///
/// # Errors
/// `AlreadyExists`; those of the file system.
pub fn rename_new(from: &Path, to: &Path) -> Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(Error::from) {
        Ok(()) => {}
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => return Err(e),
        Err(_) => link_and_remove(from, to)?,
    }
    // The sync of a directory may not be passed on (FUSE, sshfs); that of a file brings its name along.
    OpenOptions::new().write(true).open(to)?.sync_all()?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn link_and_remove(from: &Path, to: &Path) -> Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Err(e),
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rename = fn(&Path, &Path) -> Result<()>;

    /// A file gets its name once, by a rename or by a link: what is there stays as it is, and so does the other one.
    #[test]
    fn a_new_name_replaces_nothing() {
        for rename in [rename_new as Rename, link_and_remove] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let (from, to) = (dir.path().join("file.unfinished"), dir.path().join("file"));
            fs::write(&from, "one").expect("written");
            rename(&from, &to).expect("it is free");
            assert!(!from.exists() && fs::read_to_string(&to).expect("readable") == "one");
            fs::write(&from, "two").expect("written");
            let taken = rename(&from, &to).expect_err("it is taken");
            assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
            assert_eq!(
                (fs::read_to_string(&from).ok(), fs::read_to_string(&to).ok()),
                (Some("two".into()), Some("one".into()))
            );
            fs::remove_file(&from).expect("removed");
            assert_eq!(rename(&from, &to).expect_err("there is none").kind(), ErrorKind::NotFound);
        }
    }
}
