//! What is known of attached devices on this host: one small file each in the state directory, for whoever gives them new connections.

use std::{
    fs::{self, File, TryLockError},
    io::{Error, ErrorKind, Result, Write},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{Device, ExportAt};
use crate::atomic_file::replace_file;

pub(super) const DIRECTORY: &str = "attached";
const LOCK: &str = "keeper.lock";
/// Behind the number of a process that is the keeper until nothing is attached.
const PASSING: &str = " until detached";
/// What a keeper is called with.
const VERB: &str = "keep-attached";
/// How long one may take to end that is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// Where links to attached devices are, by name of the volume.
const LINKS: &str = "/dev/cistern";

/// A device that a volume is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub device: Device,
    /// Name and URL under which the daemon serves it.
    pub name: String,
    pub url: String,
    /// The socket of the daemon.
    pub socket: PathBuf,
    /// What the device must say that it shows.
    pub backend: String,
}

impl Attachment {
    /// Whether the device shows what is written here, and was not attached to something else since.
    pub fn holds(&self) -> bool {
        self.device.shows(&self.backend)
    }

    /// What its connections are to.
    pub fn export_at(&self) -> ExportAt {
        ExportAt { url: self.url.clone(), name: self.name.clone() }
    }

    /// Where a link leads to the device.
    pub fn link(&self) -> PathBuf {
        Path::new(LINKS).join(&self.name)
    }

    /// All that are known, by device. What cannot be read is passed over: it keeps no other from its connection.
    pub fn all(state_dir: &Path) -> Result<Vec<Attachment>> {
        let entries = match fs::read_dir(state_dir.join(DIRECTORY)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                all.extend(fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()));
            }
        }
        all.sort_by_key(|known: &Attachment| known.device);
        Ok(all)
    }

    pub fn save(&self, state_dir: &Path) -> Result<()> {
        replace_file(&self.path(state_dir), &serde_json::to_vec_pretty(self)?)
    }

    /// Makes the link to the device.
    pub fn make_link(&self) -> Result<()> {
        fs::create_dir_all(LINKS)?;
        match fs::remove_file(self.link()) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::os::unix::fs::symlink(self.device.path(), self.link())
    }

    /// Takes the link away, if it is to this device, and forgets what is written here.
    pub fn forget(&self, state_dir: &Path) -> Result<()> {
        if fs::read_link(self.link()).is_ok_and(|target| target == self.device.path()) {
            fs::remove_file(self.link())?;
        }
        match fs::remove_file(self.path(state_dir)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn path(&self, state_dir: &Path) -> PathBuf {
        state_dir.join(DIRECTORY).join(format!("{}.json", self.device.name()))
    }
}

/// Who gives devices new connections: one process for each state directory, as long as this is there.
pub struct Keeper {
    _lock: File,
}

impl Keeper {
    /// Where it writes what it does, if nobody else takes that.
    pub fn log(state_dir: &Path) -> PathBuf {
        state_dir.join(DIRECTORY).join("keeper.log")
    }

    /// The process that it is, where there is one.
    pub fn pid(state_dir: &Path) -> Option<u32> {
        Keeper::written(state_dir)?.split(' ').next()?.parse().ok()
    }

    fn written(state_dir: &Path) -> Option<String> {
        fs::read_to_string(state_dir.join(DIRECTORY).join(LOCK)).ok()
    }

    /// Becomes it. One that is there `until_detached` only, because no service was, is ended by one that is to stay: that does no harm, requests
    /// wait meanwhile.
    ///
    /// # Errors
    /// `ResourceBusy` where there is one.
    pub fn claim(state_dir: &Path, until_detached: bool) -> Result<Keeper> {
        let claimed = Keeper::try_claim(state_dir, until_detached);
        match &claimed {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && !until_detached => {
                match Keeper::end_passing(state_dir)? {
                    true => Keeper::try_claim(state_dir, until_detached),
                    false => claimed,
                }
            }
            _ => claimed,
        }
    }

    /// Ends one that is there until nothing is attached any more, so that another one may go on. Gives whether nobody is it any more.
    pub fn end_passing(state_dir: &Path) -> Result<bool> {
        let is_passing = Keeper::written(state_dir).is_some_and(|text| text.ends_with(PASSING));
        // Whoever has the lock wrote his number; one that has not yet is tried again by whoever called.
        let Some(pid) = Keeper::pid(state_dir).filter(|_| is_passing) else {
            return Keeper::is_free(state_dir);
        };
        if Keeper::is_free(state_dir)? {
            return Ok(true);
        }
        let is_one = fs::read(format!("/proc/{pid}/cmdline"))?
            .split(|byte| *byte == 0)
            .any(|arg| arg == VERB.as_bytes());
        if !is_one {
            return Ok(false);
        }
        // SAFETY: a system call without pointers.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGTERM) };
        let end = Instant::now() + ENDS_WITHIN;
        while !Keeper::is_free(state_dir)? {
            if Instant::now() >= end {
                return Ok(false);
            }
            sleep(LOOK);
        }
        Ok(true)
    }

    /// Whether nobody is it.
    pub fn is_free(state_dir: &Path) -> Result<bool> {
        match lock(state_dir) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn try_claim(state_dir: &Path, until_detached: bool) -> Result<Keeper> {
        let mut lock = lock(state_dir)?;
        let passing = if until_detached { PASSING } else { "" };
        lock.set_len(0)?;
        lock.write_all(format!("{}{passing}", std::process::id()).as_bytes())?;
        Ok(Keeper { _lock: lock })
    }
}

fn lock(state_dir: &Path) -> Result<File> {
    let directory = state_dir.join(DIRECTORY);
    fs::create_dir_all(&directory)?;
    let lock = File::options().write(true).create(true).truncate(false).open(directory.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::from(ErrorKind::ResourceBusy)),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of a device is read again, and gone once it is forgotten; what is damaged is nobody's business.
    #[test]
    fn attachments_are_remembered() {
        let state = tempfile::tempdir().expect("a temporary directory");
        let attachment = |device| Attachment {
            device,
            name: "tank".into(),
            url: "s3://bucket/tank".into(),
            socket: "/run/cistern/tank.sock".into(),
            backend: "cistern:a:-:tank".into(),
        };
        assert_eq!(Attachment::all(state.path()).expect("none"), []);
        for device in [Device::Ublk(0), Device::Nbd(11), Device::Nbd(2)] {
            attachment(device).save(state.path()).expect("saved");
        }
        fs::write(state.path().join("attached/nbd3.json"), "{").expect("written");
        assert_eq!(
            Attachment::all(state.path()).expect("three"),
            [Device::Nbd(2), Device::Nbd(11), Device::Ublk(0)].map(attachment)
        );
        attachment(Device::Nbd(2)).forget(state.path()).expect("forgotten");
        attachment(Device::Nbd(2)).forget(state.path()).expect("forgotten already");
        assert_eq!(
            Attachment::all(state.path()).expect("two"),
            [Device::Nbd(11), Device::Ublk(0)].map(attachment)
        );
    }

    /// There is one keeper at a time.
    #[test]
    fn one_keeper() {
        let state = tempfile::tempdir().expect("a temporary directory");
        assert!(Keeper::is_free(state.path()).expect("looked"));
        let first = Keeper::claim(state.path(), false).expect("the first");
        assert_eq!(Keeper::pid(state.path()), Some(std::process::id()));
        for until_detached in [true, false] {
            let second = Keeper::claim(state.path(), until_detached).err().expect("refused");
            assert_eq!(second.kind(), ErrorKind::ResourceBusy);
        }
        drop(first);
        Keeper::claim(state.path(), true).expect("the next");
    }
}
