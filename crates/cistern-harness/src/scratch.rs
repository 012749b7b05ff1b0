//! Directories of one test, on a real disk, gone afterwards.

use std::{
    ffi::CString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A directory under `target/scratch` for data, and a short one for sockets.
pub struct Scratch {
    data: TempDir,
    /// Socket paths may have 107 bytes, and a checkout may lie deep: hence the system's own directory.
    sockets: TempDir,
}

impl Scratch {
    /// Makes both; `name` tells people whose it was if the machine loses power.
    pub fn new(name: &str) -> Result<Scratch> {
        let parent = root()?;
        let data = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(parent)?;
        let sockets = tempfile::Builder::new().prefix("cistern-").tempdir()?;
        Ok(Scratch { data, sockets })
    }

    /// The same where so much is free: a store that gets full half an hour later says less.
    pub fn with_room(name: &str, gib: u64) -> Result<Scratch> {
        let scratch = Scratch::new(name)?;
        let free = free_bytes(scratch.path())?;
        ensure!(
            free >= gib << 30,
            "{name} needs {gib} GiB, and below {} {} GiB are free: make room, or name another disk with CISTERN_SCRATCH",
            root()?.display(),
            free >> 30
        );
        Ok(scratch)
    }

    /// The same in memory: for what is far away in earnest, and whose disk is not that of this machine.
    pub fn in_memory(name: &str) -> Result<Scratch> {
        let data = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in("/dev/shm")?;
        let sockets = tempfile::Builder::new().prefix("cistern-").tempdir()?;
        Ok(Scratch { data, sockets })
    }

    pub fn path(&self) -> &Path {
        self.data.path()
    }

    /// Leaves the data directory behind, for whoever looks into what happened there.
    pub fn keep(&mut self) {
        self.data.disable_cleanup(true);
    }

    /// A path in the data directory; nothing is made there.
    pub fn file(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    /// A new directory in the data directory.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.file(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// A path for a socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }
}

/// What a process that is not root may still write there.
fn free_bytes(path: &Path) -> Result<u64> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a zeroed statvfs is valid, and both live through the call.
    let (done, found) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &mut found), found)
    };
    match done {
        0 => Ok(found.f_bavail * found.f_frsize),
        _ => {
            Err(std::io::Error::last_os_error()).with_context(|| format!("cannot look at {}", path.display()))
        }
    }
}

/// Where scratch directories are: `CISTERN_SCRATCH`, or `scratch` beside the built programs.
fn root() -> Result<PathBuf> {
    let root = match std::env::var_os("CISTERN_SCRATCH") {
        Some(dir) => PathBuf::from(dir),
        None => target_dir()?.join("scratch"),
    };
    std::fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    Ok(root)
}

/// Cargo's target directory: tests are in `target/PROFILE/deps`, programs in `target/PROFILE`.
pub fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let profile = exe.ancestors().find(|dir| dir.parent().is_some_and(|p| p.join("CACHEDIR.TAG").exists()));
    Ok(profile
        .and_then(Path::parent)
        .context("this program does not lie in cargo's target directory")?
        .to_owned())
}
