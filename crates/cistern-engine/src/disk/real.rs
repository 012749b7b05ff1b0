//! A directory of the local disk.
//!
//! Owns names: what is created, renamed or removed here is durable by name on return. Files are
//! [`super::file::RealFile`]s. Never removes a lock file, because a lock on a name that is gone
//! protects nobody.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use async_trait::async_trait;

use super::{
    Disk, DiskFile,
    file::{Common, RealFile},
    names::rename_new,
};
use crate::{
    courtesy::Courtesy,
    error::{Error, Result},
    filesystem,
};

/// Bytes of the longest file name.
const NAME_BYTES_MAX: usize = 128;
/// Attempts to lock a file that somebody keeps replacing.
const LOCK_ATTEMPTS_MAX: usize = 8;
/// Files hold user data: nobody but the owner reads them.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// A directory of the local disk.
pub struct RealDisk {
    dir: PathBuf,
    common: Arc<Common>,
}

impl RealDisk {
    /// An existing directory; `Error::NotFound` if there is none.
    pub fn open(dir: &Path) -> Result<RealDisk> {
        let dir = dir.canonicalize().map_err(|e| Error::io(dir.display().to_string(), &e))?;
        let meta = dir.metadata().map_err(|e| Error::io(dir.display().to_string(), &e))?;
        if !meta.is_dir() {
            return Err(Error::Invalid(format!("{} is not a directory", dir.display())));
        }
        let common = Common { courtesy: Courtesy::on(meta.dev()), said_buffered: AtomicBool::new(false) };
        Ok(RealDisk { dir, common: Arc::new(common) })
    }

    /// The same, but makes the directory (and its parents, durably) where it is missing.
    pub fn create(dir: &Path) -> Result<RealDisk> {
        let missing: Vec<&Path> =
            dir.ancestors().take_while(|d| !d.as_os_str().is_empty() && !d.exists()).collect();
        for made in missing.into_iter().rev() {
            match DirBuilder::new().mode(DIR_MODE).create(made) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::io(format!("create {}", made.display()), &e));
                }
                _ => {}
            }
            let parent = made.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            sync_dir(parent)?;
        }
        RealDisk::open(dir)
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let valid = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(plain)
            && !name.bytes().all(|b| b == b'.');
        if !valid {
            return Err(Error::Invalid(format!("{name:?} is not a plain file name")));
        }
        Ok(self.dir.join(name))
    }

    fn create_file(&self, path: &Path, bytes: u64) -> Result<RealFile> {
        let file = RealFile::create(path, bytes, FILE_MODE, &self.common)?;
        sync_dir(&self.dir)?;
        Ok(file)
    }
}

/// Makes the names in a directory durable.
fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| Error::io(format!("sync the directory {}", dir.display()), &e))
}

#[async_trait]
impl Disk for RealDisk {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile::open(&self.path(name)?, &self.common)?))
    }

    async fn open_cached(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile::open_cached(&self.path(name)?, &self.common)?))
    }

    async fn open_anew(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        let file = RealFile::open(&self.path(name)?, &self.common)?;
        file.forget_beginning();
        Ok(Arc::new(file))
    }

    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        let path = self.path(name)?;
        let made = self.create_file(&path, bytes);
        if let Err(e) = &made
            && !matches!(e, Error::Exists(_))
        {
            let _ = fs::remove_file(&path); // the first error is the one to report
        }
        Ok(Arc::new(made?))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.path(from)?, self.path(to)?);
        rename_new(&from, &to).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists(to.display().to_string()),
            _ => Error::io(format!("rename {} to {}", from.display(), to.display()), &e),
        })
    }

    async fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Ok(()) => sync_dir(&self.dir),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io(format!("remove {}", path.display()), &e)),
        }
    }

    async fn names(&self, beginning: &str) -> Result<Vec<String>> {
        let failed = |e| Error::io(format!("list {}", self.dir.display()), &e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            // A name that is not of this program is none that it looks for.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string()
                && name.starts_with(beginning)
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>> {
        let path = self.path(name)?;
        let failed = |e: &io::Error| Error::io(format!("lock {}", path.display()), e);
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(FILE_MODE)
                .open(&path)
                .map_err(|e| failed(&e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::Locked(path.display().to_string())),
                Err(TryLockError::Error(e)) => return Err(failed(&e)),
            }
            // Somebody may have replaced the file between open and lock: then the lock is on a
            // file that nobody else will find.
            let ours = file.metadata().map_err(|e| failed(&e))?;
            if fs::metadata(&path).is_ok_and(|m| m.ino() == ours.ino() && m.dev() == ours.dev()) {
                return Ok(Box::new(file)); // closing the file releases the lock
            }
        }
        Err(Error::Locked(path.display().to_string()))
    }

    fn lock_is_for_all(&self) -> bool {
        filesystem::lock_is_for_all(&self.dir)
    }

    fn describe(&self) -> String {
        self.dir.display().to_string()
    }

    fn courtesy(&self) -> Arc<Courtesy> {
        self.common.courtesy.clone()
    }
}
