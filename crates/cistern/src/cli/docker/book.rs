//! What is remembered of Docker's volumes: one file in the state directory, written before a call is answered.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    atomic_file::replace_file,
    failure::{Failure, Kind, Outcome},
    stack::Fs,
};

/// Differs after every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A volume of Docker's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub url: String,
    /// As it was asked for.
    pub size_bytes: u64,
    pub fs: Fs,
    /// Made for Docker, by this host: what Docker removes is removed.
    pub is_ours: bool,
    /// Since 1970.
    pub created_ms: u64,
    /// Ids of those who have it mounted, and which process of Docker's said so.
    #[serde(default)]
    pub users: BTreeMap<String, Engine>,
    /// It was brought up, and not taken down since until everything was in the store.
    #[serde(default)]
    pub is_here: bool,
}

/// A process of Docker's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Engine {
    pid: i32,
    /// In ticks of the clock since the boot: no other process has both.
    started: u64,
}

impl Engine {
    /// The one of a process id, while it lives.
    pub(super) fn of(pid: i32) -> Option<Engine> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Counted from behind the name, which may hold anything: field 22 of proc(5).
        let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(Engine { pid, started })
    }

    pub(super) fn lives(&self) -> bool {
        Engine::of(self.pid).as_ref() == Some(self)
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Book {
    /// When its users were noted: after a boot nobody has anything mounted.
    boot: String,
    pub volumes: BTreeMap<String, Entry>,
    #[serde(skip)]
    path: PathBuf,
    /// Held as long as this lives: there is one such process for a state directory.
    #[serde(skip)]
    _lock: Option<File>,
}

impl Book {
    pub(super) fn load(directory: &Path) -> Outcome<Book> {
        let path = directory.join("volumes.json");
        let failed = |e| Failure::io(format!("cannot read {}", path.display()), &e);
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(Kind::InUse, "another `cistern docker` has this state directory")
                    .hint("another driver takes another --state-dir"));
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        let boot = fs::read_to_string(BOOT_ID).map_err(failed)?.trim().to_owned();
        let mut book = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| {
                let failure = Failure::new(Kind::Corrupt, format!("{} cannot be read: {e}", path.display()));
                failure.hint(
                    "move it away and create the volumes again by their names: they are taken as they are",
                )
            })?,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Book { boot: boot.clone(), volumes: BTreeMap::new(), path: PathBuf::new(), _lock: None }
            }
            Err(e) => return Err(failed(e)),
        };
        if book.boot != boot {
            book.volumes.values_mut().for_each(|entry| entry.users.clear());
            book.boot = boot;
        }
        Ok(Book { path, _lock: Some(lock), ..book })
    }

    /// Durable when it returns.
    pub(super) fn save(&self) -> Outcome {
        let bytes = serde_json::to_vec_pretty(self).expect("names are strings");
        replace_file(&self.path, &bytes)
            .map_err(|e| Failure::io(format!("cannot write {}", self.path.display()), &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            url: "s3://bucket/db".into(),
            size_bytes: 1,
            fs: Fs::Ext4,
            is_ours: true,
            created_ms: 1,
            users: [("one".to_owned(), Engine { pid: 1, started: 0 })].into(),
            is_here: true,
        }
    }

    /// What was noted is there for the next process, users too; after another boot nobody has anything mounted, and what was up is
    /// still to be taken down.
    #[test]
    fn users_end_with_the_boot() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut book = Book::load(dir.path()).expect("new");
        book.volumes.insert("db".into(), entry());
        book.save().expect("writable");
        drop(book);
        let mut book = Book::load(dir.path()).expect("there");
        assert_eq!(book.volumes["db"], entry());
        book.boot = "another".into();
        book.save().expect("writable");
        drop(book);
        let book = Book::load(dir.path()).expect("there");
        assert_eq!(book.volumes["db"], Entry { users: BTreeMap::new(), ..entry() });
    }

    /// A process lives as long as its id is its own.
    #[test]
    fn a_process_is_known_by_its_start() {
        let own = Engine::of(std::process::id().cast_signed()).expect("it lives");
        assert!(own.lives());
        assert!(!Engine { started: own.started + 1, ..own }.lives());
        assert_eq!(Engine::of(0), None);
    }

    /// Two processes would forget what the other noted: the second is refused. A damaged file is not taken for an empty one.
    #[test]
    fn one_process_has_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = Book::load(dir.path()).expect("new");
        assert_eq!(Book::load(dir.path()).err().map(|e| e.kind), Some(Kind::InUse));
        drop(first);
        fs::write(dir.path().join("volumes.json"), "{").expect("writable");
        assert_eq!(Book::load(dir.path()).err().map(|e| e.kind), Some(Kind::Corrupt));
    }
}
