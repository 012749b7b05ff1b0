//! What is remembered of a stack on this host: one small file each in the state directory.

use std::{
    fmt,
    fs::{self, File, TryLockError},
    io::{Error, ErrorKind, Result},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::share::ShareClient;
use crate::{atomic_file::replace_file, kernel::DeviceDriver};

const DIRECTORY: &str = "up";

/// Kinds of filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Fs {
    /// A ZFS pool of one device
    Zfs,
    Ext4,
    Xfs,
    Btrfs,
}

impl Fs {
    pub fn name(self) -> &'static str {
        match self {
            Fs::Zfs => "zfs",
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
            Fs::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackRecord {
    pub name: String,
    /// Of the volume.
    pub url: String,
    pub fs: Fs,
    /// Where it is mounted. Of a pool that exists its own properties say it.
    pub mount: Option<PathBuf>,
    /// The guid of the pool or the UUID of the filesystem, once it was seen.
    pub id: Option<String>,
    /// Which driver of the kernel makes a device of it.
    #[serde(default)]
    pub driver: DeviceDriver,
    /// With whom it is shared over NFS: nobody where the list is empty, whatever a pool says itself where there is none.
    #[serde(default)]
    pub share: Option<Vec<ShareClient>>,
    /// Of the daemon: file with settings, file with the key.
    pub config: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// More arguments of `cistern serve`.
    pub serve_args: Vec<String>,
    /// The daemon was started by `up`, so nobody else starts it again.
    pub starts_daemon: bool,
}

impl StackRecord {
    /// The one of a name.
    ///
    /// # Errors
    /// `InvalidData` where it cannot be read as one.
    pub fn load(state_dir: &Path, name: &str) -> Result<Option<StackRecord>> {
        let path = path(state_dir, name);
        let text = match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|e| Error::new(ErrorKind::InvalidData, format!("{}: {e}", path.display())))
    }

    /// All that can be read.
    pub fn all(state_dir: &Path) -> Vec<StackRecord> {
        let entries = fs::read_dir(state_dir.join(DIRECTORY)).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let records = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        records.filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok()).collect()
    }

    pub fn save(&self, state_dir: &Path) -> Result<()> {
        replace_file(&path(state_dir, &self.name), &serde_json::to_vec_pretty(self)?)
    }

    /// Forgets the one of a name, if there is one.
    ///
    /// # Errors
    /// `ResourceBusy` while somebody works on it, or its daemon lives.
    pub fn forget(state_dir: &Path, name: &str) -> Result<()> {
        let file = |extension| path(state_dir, name).with_extension(extension);
        let mut held = Vec::new();
        for extension in ["lock", "daemon"] {
            let lock = match File::open(file(extension)) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                lock => lock?,
            };
            match lock.try_lock() {
                Ok(()) => held.push(lock),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(ErrorKind::ResourceBusy, format!("{name} is being worked on")));
                }
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        // Whoever waits for a lock finds out afterwards (`is_lock`).
        for extension in ["json", "log", "daemon", "lock"] {
            match fs::remove_file(file(extension)) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether what `lock` gave is still the file that others lock: it is not where the stack was forgotten meanwhile.
    pub fn is_lock(&self, state_dir: &Path, lock: &File) -> Result<bool> {
        match fs::metadata(path(state_dir, &self.name).with_extension("lock")) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            there => {
                let (there, locked) = (there?, lock.metadata()?);
                Ok((there.dev(), there.ino()) == (locked.dev(), locked.ino()))
            }
        }
    }

    /// The file that is locked while somebody works on it.
    pub fn lock(&self, state_dir: &Path) -> Result<File> {
        self.lock_file(state_dir, "lock")
    }

    /// The file that is locked as long as its daemon lives, if it was started by `up`.
    pub fn daemon_lock(&self, state_dir: &Path) -> Result<File> {
        self.lock_file(state_dir, "daemon")
    }

    fn lock_file(&self, state_dir: &Path, extension: &str) -> Result<File> {
        fs::create_dir_all(state_dir.join(DIRECTORY))?;
        let path = path(state_dir, &self.name).with_extension(extension);
        File::options().read(true).write(true).create(true).truncate(false).open(path)
    }

    /// Where its daemon writes what it does.
    pub fn log(&self, state_dir: &Path) -> PathBuf {
        path(state_dir, &self.name).with_extension("log")
    }
}

fn path(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join(DIRECTORY).join(format!("{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> StackRecord {
        StackRecord {
            name: "tank".into(),
            url: "s3://bucket/tank".into(),
            fs: Fs::Zfs,
            mount: None,
            id: Some("17".into()),
            driver: DeviceDriver::Ublk,
            share: Some(vec!["10.0.0.0/24".parse().expect("a network")]),
            config: None,
            key_file: None,
            serve_args: vec!["--journal-size".into(), "10G".into()],
            starts_daemon: true,
        }
    }

    /// A stack on which somebody works, or whose daemon lives, is not forgotten; whoever waited for its lock while it was
    /// forgotten sees that he has another.
    #[test]
    fn a_stack_in_use_is_not_forgotten() {
        let state = tempfile::tempdir().expect("a temporary directory");
        let record = record();
        record.save(state.path()).expect("saved");
        let (mine, daemons) = (record.lock(state.path()), record.daemon_lock(state.path()));
        for held in [mine.expect("a lock"), daemons.expect("a lock")] {
            held.lock().expect("locked");
            let refused = StackRecord::forget(state.path(), "tank").expect_err("in use");
            assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{refused}");
            assert_eq!(StackRecord::load(state.path(), "tank").expect("one"), Some(record.clone()));
        }
        let waits = record.lock(state.path()).expect("a lock");
        assert!(record.is_lock(state.path(), &waits).expect("looked"));
        StackRecord::forget(state.path(), "tank").expect("forgotten");
        assert_eq!(StackRecord::load(state.path(), "tank").expect("none"), None);
        assert!(!record.is_lock(state.path(), &waits).expect("looked"), "it is gone");
        let _next = record.lock(state.path()).expect("a lock");
        assert!(!record.is_lock(state.path(), &waits).expect("looked"), "it is another");
        StackRecord::forget(state.path(), "none").expect("nothing to forget");
    }

    /// What is remembered is read again; what is damaged is an error that names the file.
    #[test]
    fn stacks_are_remembered() {
        let state = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(StackRecord::load(state.path(), "tank").expect("none"), None);
        let record = record();
        record.save(state.path()).expect("saved");
        assert_eq!(StackRecord::load(state.path(), "tank").expect("one"), Some(record.clone()));
        assert_eq!(StackRecord::all(state.path()), std::slice::from_ref(&record));
        // One of before there were shares.
        let mut old: serde_json::Value = serde_json::to_value(&record).expect("JSON");
        old.as_object_mut().expect("an object").remove("share");
        fs::write(state.path().join("up/tank.json"), old.to_string()).expect("written");
        let old = StackRecord { share: None, ..record };
        assert_eq!(StackRecord::load(state.path(), "tank").expect("one"), Some(old));
        fs::write(state.path().join("up/tank.json"), "{").expect("written");
        let damaged = StackRecord::load(state.path(), "tank").expect_err("damaged");
        assert!(damaged.to_string().contains("tank.json"), "{damaged}");
    }
}
