//! Servers that write a pid file when they are ready: started, and waited for without polling.

use std::{
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Result, bail};

use crate::{
    process::{self, Guard, Limit},
    scratch::Scratch,
};

/// A server that is not ready by then has failed.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// A pid file to come, alone in a directory of its own that is watched.
pub struct PidFile {
    name: String,
    path: PathBuf,
    watch: DirWatch,
}

impl PidFile {
    /// `name` is the server's, for its log.
    pub fn new(scratch: &Scratch, name: &str) -> Result<PidFile> {
        let dir = scratch.dir(&format!("pid-{name}"))?;
        let path = dir.join("pid");
        let _ = std::fs::remove_file(&path); // left by the server before, if any
        Ok(PidFile { name: name.to_owned(), path, watch: DirWatch::new(&dir)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the server, which has to stay in the foreground, and returns when it is ready.
    pub fn start(self, scratch: &Scratch, mut command: Command) -> Result<Guard> {
        let log_path = scratch.file(&format!("{}.log", self.name));
        let log = std::fs::File::create(&log_path)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut server = Guard::spawn(command)?;
        let fds = [self.watch.fd.as_raw_fd(), server.ended_fd()];
        let ready = process::readable_within(&fds, &mut Limit::new(READY_LIMIT))?;
        if !ready[0] || server.has_ended() {
            bail!("{} did not start: {}", self.name, std::fs::read_to_string(log_path).unwrap_or_default());
        }
        Ok(server)
    }
}

/// Becomes readable when a file of a directory was written to (qemu-nbd keeps its file open).
struct DirWatch {
    fd: OwnedFd,
}

impl DirWatch {
    fn new(dir: &Path) -> Result<DirWatch> {
        let name = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
        // SAFETY: `name` is a valid C string during the calls; the descriptor is ours alone.
        let fd = unsafe {
            let fd = libc::inotify_init1(libc::IN_CLOEXEC);
            if fd < 0 || libc::inotify_add_watch(fd, name.as_ptr(), libc::IN_MODIFY) < 0 {
                bail!("inotify: {}", std::io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(DirWatch { fd })
    }
}
