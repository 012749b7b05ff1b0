//! How an object comes into a directory and leaves it.
//!
//! The order of a put is what makes it safe: write the file in `.tmp`, sync it, give it its name
//! (rename, or link where the name must be free), sync the directories from its parent to the
//! root. The directories are synced even if they were there before: the writer that made them may
//! not have come to that yet.
//!
//! File systems over the network and in user space may take the sync of a directory for done without passing it on (sshfs
//! does). There the file itself is synced once more under its name: a file system with a journal, which is what the other
//! side has, cannot make that durable without the name.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Seek, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Put, Root, StoreError, StoreResult, TEMP_DIR, fault};
use crate::{
    aligned::{ALIGN_BYTES, AlignedBuf},
    courtesy::SMALL_PIECE_BYTES,
};

/// Age after which a file in `.tmp` was left by a crash. No put takes this long.
const TEMP_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Entries of `.tmp` that one sweep looks at, so that it stays cheap for the put that does it.
const SWEEP_ENTRIES_MAX: usize = 1000;
/// How often the directories of a name are made again when others remove them as empty.
const PLACE_TRIES_MAX: usize = 8;

/// Bodies from this size on are written past the page cache.
const DIRECT_BYTES_MIN: usize = 1 << 20;
/// They are written so much at a time, through aligned memory of this size if need be.
const BOUNCE_BYTES: usize = 1 << 20;

/// What is made is its owner's alone: without encryption the files are the volume's data.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

const _: () = assert!(BOUNCE_BYTES.is_multiple_of(ALIGN_BYTES));
const _: () = assert!(SMALL_PIECE_BYTES <= BOUNCE_BYTES && SMALL_PIECE_BYTES.is_multiple_of(ALIGN_BYTES));

/// A synced file in `.tmp`; removed when dropped.
struct Temp {
    path: PathBuf,
    file: File,
    modified: SystemTime,
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // renamed away, or swept later
    }
}

impl Temp {
    fn write(root: &Root, name: &str, body: &[u8]) -> StoreResult<Temp> {
        root.check_synced()?;
        let path = root.temp_dir().join(name);
        // The name is of no use to anybody, and another one each time.
        let failed = |e: &io::Error| fault("cannot write in", &root.temp_dir(), e);
        let file = match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(root.missing(TEMP_DIR)),
            Err(e) => return Err(failed(&e)),
        };
        let mut temp = Temp { path: path.clone(), file, modified: SystemTime::UNIX_EPOCH };
        temp.fill(root, body).map_err(|e| failed(&e))?;
        temp.file.sync_all().map_err(|e| failed(&e))?;
        temp.modified = temp.file.metadata().and_then(|m| m.modified()).map_err(|e| failed(&e))?;
        Ok(temp)
    }

    /// Writes the whole body: a large one past the page cache, where nobody would find it useful and where
    /// it would push out what others need.
    fn fill(&mut self, root: &Root, body: &[u8]) -> io::Result<()> {
        if body.len() < DIRECT_BYTES_MIN || !self.set_direct(true)? {
            return self.file.write_all(body);
        }
        let direct = self.fill_direct(root, body);
        self.set_direct(false)?;
        let rest = match direct {
            Ok(written) => &body[written..],
            // The filesystem takes the flag and not the write, or stopped in the middle of a block.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.file.rewind()?;
                body
            }
            Err(e) => return Err(e),
        };
        self.file.write_all(rest)
    }

    /// Writes the whole blocks of a body, through aligned memory where it does not lie in such; gives how many bytes that
    /// were. Gives way to those who sync on this file system.
    fn fill_direct(&mut self, root: &Root, body: &[u8]) -> io::Result<usize> {
        let whole = body.len() - body.len() % ALIGN_BYTES;
        let mut bounce = None;
        let mut rest = &body[..whole];
        while !rest.is_empty() {
            let gives_way = root.courtesy.is_due(root.env.now());
            let most = if gives_way { SMALL_PIECE_BYTES } else { BOUNCE_BYTES };
            let (part, behind) = rest.split_at(rest.len().min(most));
            let aligned = match part.as_ptr().align_offset(ALIGN_BYTES) {
                0 => part,
                _ => {
                    let bounce = bounce.get_or_insert_with(|| AlignedBuf::zeroed(BOUNCE_BYTES));
                    bounce[..part.len()].copy_from_slice(part);
                    &bounce[..part.len()]
                }
            };
            let mut write = || self.file.write_all(aligned);
            if gives_way { root.courtesy.give_way(&root.env, write) } else { write() }?;
            rest = behind;
        }
        Ok(whole)
    }

    /// Switches O_DIRECT; false where the filesystem does not have it.
    fn set_direct(&self, direct: bool) -> io::Result<bool> {
        let fd = self.file.as_raw_fd();
        // SAFETY: fcntl on an open descriptor; neither command takes a pointer.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let flags = if direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
        // SAFETY: as above.
        match unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } {
            0 => Ok(true),
            _ if direct => Ok(false),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the file at `target` is this one: what tells a lost reply of a network file
    /// system, whose repeated request fails, from another writer's file.
    fn is_at(&self, target: &Path) -> bool {
        match (self.file.metadata(), fs::metadata(target)) {
            (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
            _ => false,
        }
    }
}

/// Writes an object, replacing any of the same name.
pub(super) fn put(root: &Root, key: &str, temp_name: &str, body: &[u8]) -> StoreResult<()> {
    let temp = Temp::write(root, temp_name, body)?;
    sweep(root, &temp);
    place(root, key, |target| match fs::rename(&temp.path, target) {
        Err(_) if temp.is_at(target) => Ok(()),
        done => done,
    })?;
    root.sync_named(&root.file(key), Some(&temp.file))
}

/// Writes an object where none of this name exists.
pub(super) fn put_if_absent(root: &Root, key: &str, temp_name: &str, body: &[u8]) -> StoreResult<Put> {
    let temp = Temp::write(root, temp_name, body)?;
    sweep(root, &temp);
    let put = place(root, key, |target| match fs::hard_link(&temp.path, target) {
        Ok(()) => Ok(Put::Created),
        Err(_) if temp.is_at(target) => Ok(Put::Created),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(Put::Exists),
        Err(e) => Err(e),
    })?;
    // Also where it exists: its writer may not have come to that, and whoever hears of it builds on it.
    let ours = (put == Put::Created).then_some(&temp.file);
    root.sync_named(&root.file(key), ours).map(|()| put)
}

/// Gives a file its name by `act`, making the directories it needs, and makes the name durable.
/// An existing name is made durable too: whoever hears of it builds on it.
fn place<T>(root: &Root, key: &str, act: impl Fn(&Path) -> io::Result<T>) -> StoreResult<T> {
    let target = root.file(key);
    for _ in 0..PLACE_TRIES_MAX {
        make_parents(root, key)?;
        match act(&target) {
            Ok(out) => {
                sync_parents(root, key)?;
                return Ok(out);
            }
            // A directory was removed as empty between its making and its use.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS)) => {
                return Err(StoreError::Refused(format!(
                    "cannot make {}: {e}. A directory store needs a file system with hard links",
                    target.display()
                )));
            }
            Err(e) => return Err(fault("cannot make", &target, &e)),
        }
    }
    root.check_there()?;
    Err(StoreError::Unreachable(format!("cannot make {}: its directory keeps vanishing", target.display())))
}

/// The directories above a key, from the root's child down; empty for a key in the root.
fn parents(key: &str) -> impl DoubleEndedIterator<Item = &str> {
    let slashes: Vec<usize> = key.match_indices('/').map(|(at, _)| at).collect();
    slashes.into_iter().map(move |at| &key[..at])
}

fn make_parents(root: &Root, key: &str) -> StoreResult<()> {
    for dir in parents(key) {
        match private_dir(&root.file(dir)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            // The root is gone, or a parent went again: `place` comes back or finds out.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return root.check_there(),
            Err(e) => return Err(fault("cannot make the directory", &root.file(dir), &e)),
        }
    }
    Ok(())
}

/// Makes a directory for its owner alone.
pub(super) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)
}

fn sync_parents(root: &Root, key: &str) -> StoreResult<()> {
    for dir in parents(key).rev() {
        sync_dir(root, &root.file(dir))?;
    }
    sync_dir(root, &root.path)
}

fn sync_dir(root: &Root, path: &Path) -> StoreResult<()> {
    let dir = File::open(path).map_err(|e| fault("cannot sync the directory", path, &e))?;
    root.synced(path, dir.sync_all())
}

impl Root {
    /// Takes the result of a sync. One that failed is the last: the system forgets that it did, so the next
    /// would succeed with the names lost.
    fn synced(&self, path: &Path, result: io::Result<()>) -> StoreResult<()> {
        let Err(e) = result else { return Ok(()) };
        let why = self.unsynced.get_or_init(|| {
            format!(
                "{} could not be synced ({e}): what was put there may be lost in a crash, so nothing more is put. \
                 Repair the file system, then start again",
                path.display()
            )
        });
        Err(StoreError::Refused(why.clone()))
    }

    /// Makes the name of a file durable where a sync of its directory is no proof of that. `ours`: the file, if we have it open.
    fn sync_named(&self, path: &Path, ours: Option<&File>) -> StoreResult<()> {
        if !self.syncs_names {
            return Ok(());
        }
        if let Some(file) = ours {
            return self.synced(path, file.sync_all());
        }
        // SMB ignores the sync of a file that is open for reading only.
        let opened = OpenOptions::new().write(true).open(path).or_else(|_| File::open(path));
        match opened {
            Ok(file) => self.synced(path, file.sync_all()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.check_there(), // deleted meanwhile
            Err(e) => Err(fault("cannot sync", path, &e)),
        }
    }

    fn check_synced(&self) -> StoreResult<()> {
        self.unsynced.get().map_or(Ok(()), |why| Err(StoreError::Refused(why.clone())))
    }
}

/// Deletes an object and the directories that it leaves empty: to the reader of a store there
/// are no directories. A deleted object that a crash brings back is harmless, so nothing is synced.
pub(super) fn delete(root: &Root, key: &str) -> StoreResult<()> {
    let path = root.file(key);
    match fs::remove_file(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return root.check_there(),
        Err(e) => return Err(fault("cannot delete", &path, &e)),
    }
    for dir in parents(key).rev() {
        if fs::remove_dir(root.file(dir)).is_err() {
            break; // not empty
        }
    }
    Ok(())
}

/// Makes the mark of a new root, durable by name.
pub(super) fn make_mark(root: &Root) -> StoreResult<()> {
    match private_dir(&root.temp_dir()) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(fault("cannot make the directory", &root.temp_dir(), &e)),
    }
    sync_dir(root, &root.path)?;
    match root.path.parent() {
        // A mount point's parent is often not readable; then its name was there before.
        Some(parent) => match File::open(parent) {
            Ok(dir) => root.synced(parent, dir.sync_all()),
            Err(e) => match fault("cannot sync the directory", parent, &e) {
                StoreError::Refused(_) => Ok(()),
                other => Err(other),
            },
        },
        None => Ok(()),
    }
}

/// Removes an empty root with its mark. A root with anything else in it keeps both.
pub(super) fn remove_root(root: &Root) -> StoreResult<()> {
    let entries = fs::read_dir(&root.path).map_err(|e| fault("cannot read", &root.path, &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| fault("cannot read", &root.path, &e))?;
        if entry.file_name() != TEMP_DIR {
            return Err(StoreError::Refused(format!("{} is not empty", root.path.display())));
        }
    }
    fs::remove_dir_all(root.temp_dir()).map_err(|e| fault("cannot remove", &root.temp_dir(), &e))?;
    fs::remove_dir(&root.path).map_err(|e| fault("cannot remove", &root.path, &e))
}

/// Removes what crashed writers left in `.tmp`, once a day. Ages are differences between times of
/// the file system, whose clock need not be ours. Best effort: the next sweep comes.
fn sweep(root: &Root, temp: &Temp) {
    {
        let mut swept = root.swept.lock();
        let age = |then: SystemTime| temp.modified.duration_since(then).unwrap_or_default();
        if swept.is_some_and(|then| age(then) < TEMP_AGE_MAX) {
            return;
        }
        *swept = Some(temp.modified);
    }
    let Ok(entries) = fs::read_dir(root.temp_dir()) else { return };
    for entry in entries.flatten().take(SWEEP_ENTRIES_MAX) {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        let age = modified.ok().and_then(|then| temp.modified.duration_since(then).ok());
        if age.is_some_and(|age| age > TEMP_AGE_MAX) && fs::remove_file(entry.path()).is_ok() {
            tracing::debug!(path = %entry.path().display(), "removed a file that a crash left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::real::RealEnv;

    /// A failed sync of a directory is the last word: no later put is answered well, even though the system
    /// would sync now without complaint.
    #[tokio::test]
    async fn a_failed_sync_of_a_directory_is_not_tried_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = Root::create(&RealEnv::start(), dir.path().join("tank")).expect("made");
        assert_eq!(put_if_absent(&root, "log/1", "t1", b"one").expect("sound"), Put::Created);
        let failed = root.synced(&root.path, Err(io::Error::from_raw_os_error(libc::EIO)));
        assert!(matches!(failed, Err(StoreError::Refused(_))), "{failed:?}");
        for (key, temp) in [("log/1", "t2"), ("log/2", "t3")] {
            let again = put_if_absent(&root, key, temp, b"two");
            assert!(matches!(again, Err(StoreError::Refused(_))), "{key}: {again:?}");
        }
        assert!(matches!(put(&root, "log/3", "t4", b"three"), Err(StoreError::Refused(_))));
        assert_eq!(fs::read(dir.path().join("tank/log/1")).expect("readable"), b"one");
    }
}
