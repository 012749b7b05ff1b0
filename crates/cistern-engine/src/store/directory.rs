//! A store in a directory of any file system with hard links: XFS, ext4, ZFS, NFS.
//!
//! Owns the layout: a key is a path below the root, and `.tmp` in the root holds files on their
//! way in. `.tmp` is also the mark of a volume's root. It is made once, with the volume, and never
//! again: where a mount is missing there is no mark either, so an empty mount point is never taken
//! for an empty store, and nothing is written into it.
//!
//! An object appears whole or not at all, and is durable before a put returns: the file is synced
//! before it gets its name, and then every directory up to the root.
//!
//! File operations run on `Env::blocking`, but for short reads of objects that are open already ([`open`]).
//! At most [`OPERATIONS_MAX`] of them hold a thread, so
//! that a server which hangs cannot use up the process's threads.

use std::{
    fmt, fs, io,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::{
    DiskRoom, Listed, Put, Store, StoreError, StoreResult,
    key::{check_dir, check_key, check_prefix},
    memory::{clip, too_long},
};
use crate::{
    courtesy::Courtesy,
    env::Env,
    filesystem,
    rank::{Rank, Ranked},
};

mod fault;
mod list;
mod open;
mod write;

use fault::fault;
use open::{OpenObject, OpenObjects};

/// The directory of files on their way in, and the mark of a root.
const TEMP_DIR: &str = ".tmp";
/// Operations that may hold a thread at the same time; more than any window of ours asks for.
const OPERATIONS_MAX: usize = 64;

/// A directory as a store.
pub struct DirectoryStore {
    env: Env,
    root: Arc<Root>,
    slots: Arc<Semaphore>,
    open: Arc<OpenObjects>,
}

/// The root directory and what is known about it.
struct Root {
    env: Env,
    path: PathBuf,
    /// Of the file system on which it lies.
    courtesy: Arc<Courtesy>,
    /// Whether this root bears the mark. One without (the place where volumes lie) is read only.
    marked: bool,
    /// When `.tmp` was last swept, by the clock of the file system.
    swept: Ranked<Option<SystemTime>>,
    /// The sync of a directory may be taken for done without being passed on to where the files are.
    syncs_names: bool,
    /// A directory could not be synced, and why. What was named in it may vanish, and another sync would not say
    /// so: nothing is put any more.
    unsynced: OnceLock<String>,
}

impl DirectoryStore {
    /// Makes the root directory of a new volume. Its parent must exist: a path into a file system
    /// that is not mounted must not silently become a local directory. An empty directory that is
    /// there already is fine.
    pub async fn create(env: &Env, path: &Path) -> StoreResult<DirectoryStore> {
        let (path, inside) = (path.to_owned(), env.clone());
        let root = env.blocking(async move { Root::create(&inside, path) }).await?;
        Ok(DirectoryStore::new(env, root))
    }

    /// Opens the root directory of a volume. `NotFound` if there is none, or none with the mark.
    pub async fn open(env: &Env, path: &Path) -> StoreResult<DirectoryStore> {
        let (path, inside) = (path.to_owned(), env.clone());
        let root = env.blocking(async move { Root::open(&inside, path) }).await?;
        Ok(DirectoryStore::new(env, root))
    }

    /// Opens a directory in which volumes lie, for reading.
    pub async fn browse(env: &Env, path: &Path) -> StoreResult<DirectoryStore> {
        let (path, inside) = (path.to_owned(), env.clone());
        let find = async move {
            let root = Root::new(&inside, path, false);
            root.check_there().map(|()| root)
        };
        let root = env.blocking(find).await?;
        Ok(DirectoryStore::new(env, root))
    }

    /// Removes the root directory of a volume whose objects are deleted. `Refused` if any is left.
    pub async fn remove(env: &Env, path: &Path) -> StoreResult<()> {
        let (path, inside) = (path.to_owned(), env.clone());
        env.blocking(async move { write::remove_root(&Root::open(&inside, path)?) }).await
    }

    fn new(env: &Env, root: Root) -> DirectoryStore {
        let slots = Arc::new(Semaphore::new(OPERATIONS_MAX));
        DirectoryStore { env: env.clone(), root: Arc::new(root), slots, open: Arc::new(OpenObjects::new()) }
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Root) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let root = self.root.clone();
        let work = async move {
            let out = job(&root);
            drop(slot);
            out
        };
        self.env.blocking(work).await
    }

    /// Reads a range that lies in the file. Its memory is taken here: each of the many threads that read would keep some of every
    /// size that it ever took.
    async fn read(&self, key: &str, file: Arc<fs::File>, range: Range<u64>) -> StoreResult<Bytes> {
        let (key, mut out) = (key.to_owned(), vec![0; (range.end - range.start) as usize]);
        self.run(move |root| {
            let failed = |e: io::Error| fault("cannot read", &root.file(&key), &e);
            file.read_exact_at(&mut out, range.start).map_err(failed)?;
            Ok(out.into())
        })
        .await
    }

    /// A name that no other writer of this directory has, on any host.
    fn temp_name(&self) -> String {
        self.env.uuid().simple().to_string()
    }
}

impl Root {
    fn new(env: &Env, path: PathBuf, marked: bool) -> Root {
        let courtesy = fs::metadata(&path).map(|meta| Courtesy::on(meta.dev())).unwrap_or_default();
        let (env, swept, unsynced) = (env.clone(), Ranked::new(Rank::World, None), OnceLock::new());
        courtesy.note_store();
        let syncs_names = filesystem::syncs_names_with_files(&path);
        Root { env, path, courtesy, marked, swept, syncs_names, unsynced }
    }

    fn create(env: &Env, path: PathBuf) -> StoreResult<Root> {
        match write::private_dir(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Root::refuse_foreign(env, &path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&path).display();
                return Err(StoreError::NotFound(format!("the directory {parent} (is it mounted?)")));
            }
            Err(e) => return Err(fault("cannot make the directory", &path, &e)),
        }
        let root = Root::new(env, path, true);
        write::make_mark(&root)?;
        Ok(root)
    }

    /// A directory with files and without the mark is somebody's: it does not become a volume's.
    fn refuse_foreign(env: &Env, path: &Path) -> StoreResult<()> {
        let root = Root::new(env, path.to_owned(), false);
        if root.path.join(TEMP_DIR).is_dir() {
            return Ok(());
        }
        match list::list_after(&root, "", "", 1)?.first() {
            None => Ok(()),
            Some(found) => Err(StoreError::Refused(format!(
                "the directory {} is not empty and no volume's: {} is there. Choose another name. For a volume \
                 that was copied here by hand: mkdir {}/{TEMP_DIR}",
                path.display(),
                found.key,
                path.display()
            ))),
        }
    }

    fn open(env: &Env, path: PathBuf) -> StoreResult<Root> {
        let root = Root::new(env, path, true);
        if root.is_marked()? {
            return Ok(root);
        }
        let path = root.path.display();
        if !root.path.is_dir() {
            return Err(StoreError::NotFound(format!("the directory {path}")));
        }
        Err(StoreError::NotFound(format!(
            "a volume in {path} (it has no {TEMP_DIR} directory: is its file system mounted? \
             For a volume that was copied here by hand: mkdir {path}/{TEMP_DIR})"
        )))
    }

    fn temp_dir(&self) -> PathBuf {
        self.path.join(TEMP_DIR)
    }

    fn file(&self, key: &str) -> PathBuf {
        debug_assert!(!key.starts_with('/'), "a key is checked before it becomes a path");
        self.path.join(key)
    }

    fn is_marked(&self) -> StoreResult<bool> {
        match fs::metadata(self.temp_dir()) {
            Ok(meta) => Ok(meta.is_dir()),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(fault("cannot read", &self.temp_dir(), &e)),
        }
    }

    /// Fails when the root itself has vanished. Asked wherever something is not found.
    fn check_there(&self) -> StoreResult<()> {
        let there = match self.marked {
            true => self.is_marked()?,
            false => self.path.is_dir(),
        };
        match there {
            true => Ok(()),
            false if self.marked => Err(StoreError::Unreachable(format!(
                "the directory {} of the store is gone (is its file system still mounted?)",
                self.path.display()
            ))),
            false => Err(StoreError::NotFound(format!("the directory {}", self.path.display()))),
        }
    }

    /// What it means that `key` was not found. It is looked for once more behind the mark: the file system may have come back between
    /// the first look and that.
    fn missing(&self, key: &str) -> StoreError {
        match self.check_there() {
            Ok(()) if self.file(key).exists() => {
                StoreError::Unreachable(format!("{} has just come back", self.file(key).display()))
            }
            Ok(()) => StoreError::NotFound(key.to_owned()),
            Err(gone) => gone,
        }
    }

    fn open_object(&self, key: &str) -> StoreResult<(fs::File, u64)> {
        let path = self.file(key);
        let failed = |e: &io::Error| match e.kind() {
            io::ErrorKind::NotFound => self.missing(key),
            _ => fault("cannot read", &path, e),
        };
        let file = fs::File::open(&path).map_err(|e| failed(&e))?;
        let meta = file.metadata().map_err(|e| failed(&e))?;
        match meta.is_file() {
            true => Ok((file, meta.len())),
            false => Err(StoreError::NotFound(key.to_owned())),
        }
    }
}

impl fmt::Debug for DirectoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirectoryStore").field(&self.root.path).finish()
    }
}

#[async_trait]
impl Store for DirectoryStore {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        check_key(key)?;
        self.open.forget(key);
        let (key, temp) = (key.to_owned(), self.temp_name());
        self.run(move |root| write::put(root, &key, &temp, &body)).await
    }

    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        check_key(key)?;
        let (key, temp) = (key.to_owned(), self.temp_name());
        self.run(move |root| write::put_if_absent(root, &key, &temp, &body)).await
    }

    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        check_key(key)?;
        let own = key.to_owned();
        let (file, len) = self.run(move |root| root.open_object(&own)).await?;
        if len > bytes_max {
            return Err(too_long(key, len, bytes_max));
        }
        self.read(key, Arc::new(file), 0..len).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        check_key(key)?;
        let now = self.env.now();
        let found = self.open.get(key, now);
        if let Some(object) = &found
            && let Some(bytes) = object.read_here(&range).await
        {
            return Ok(bytes);
        }
        let object = match found {
            Some(object) => object,
            None => {
                let (own, open) = (key.to_owned(), self.open.clone());
                let found = move |root: &Root| {
                    let (file, bytes) = root.open_object(&own)?;
                    Ok(open.keep(&own, OpenObject { file: Arc::new(file), bytes, since: now }))
                };
                self.run(found).await?
            }
        };
        self.read(key, object.file.clone(), clip(&range, object.bytes)).await
    }

    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        check_key(key)?;
        let key = key.to_owned();
        match self.run(move |root| root.open_object(&key)).await {
            Ok((_, bytes)) => Ok(Some(bytes)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        check_prefix(prefix)?;
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.run(move |root| list::list_after(root, &prefix, &after, count_max)).await
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        check_dir(prefix)?;
        let prefix = prefix.to_owned();
        self.run(move |root| list::list_dirs(root, &prefix)).await
    }

    async fn delete(&self, key: &str) -> StoreResult<()> {
        check_key(key)?;
        self.open.forget(key);
        let key = key.to_owned();
        self.run(move |root| write::delete(root, &key)).await
    }

    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        self.run(|root| {
            let failed = |e: &io::Error| fault("cannot see how much room there is for", &root.path, e);
            Ok(DiskRoom::beside(&fs::File::open(&root.path).map_err(|e| failed(&e))?))
        })
        .await
    }

    fn url(&self) -> String {
        format!("file://{}", self.root.path.display())
    }
}
