//! Docker's volumes, each a stack of its own: what is done is done by `create`, `up`, `down` and `rm`, as programs.
//!
//! Invariants: the book is written before a call is answered, and before something is begun that has to be undone; with a volume one thing
//! at a time is done; what has no users is taken down and uploaded, by this process or by the next.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cistern_engine::store::StoreUrl;
use clap::ValueEnum;
use tokio::{
    process::Command,
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot},
    task::JoinHandle,
};

use super::{
    OnRemove,
    book::{Book, Engine, Entry},
};
use crate::{
    cli::{program, stacks},
    failure::{Failure, Kind, Outcome},
    kernel::{DeviceDriver, is_bound},
    place::volume_url,
    quantity::ByteSize,
    stack::{Fs, StackRecord},
    terminal,
};

/// Below the state directory: the book, and a directory for each filesystem.
const DIRECTORY: &str = "docker";
/// In front of a volume's name in those of the stacks of this host.
const STACK: &str = "docker-";
/// What containers see is a directory on the filesystem: beside it lies what a new one has of its own, like `lost+found`, which programs
/// take for data.
const DATA: &str = "data";
/// Docker waits two minutes for an answer.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two attempts to take a volume down.
const AGAIN: Duration = Duration::from_secs(30);

/// How volumes are made.
pub(super) struct VolumeDefaults {
    pub place: StoreUrl,
    pub size: ByteSize,
    pub fs: Fs,
    pub driver: Option<DeviceDriver>,
    pub on_remove: OnRemove,
    pub serve_args: Vec<String>,
    pub config: Option<PathBuf>,
}

/// A volume as Docker sees it.
pub(super) struct DockerVolume {
    pub name: String,
    pub entry: Entry,
    /// What a container gets, while it is mounted.
    pub at: PathBuf,
}

pub(super) struct Volumes {
    defaults: VolumeDefaults,
    state_dir: PathBuf,
    book: Mutex<Book>,
    turns: Mutex<HashMap<String, Turn>>,
}

/// Held by whoever does something with a volume; in it, what goes on behind that.
type Turn = Arc<AsyncMutex<Option<TakeDown>>>;

/// A `cistern down` that uploads what a volume has in the journal, and releases it.
struct TakeDown {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl TakeDown {
    /// It goes on where it was when the volume is taken down the next time.
    async fn interrupt(self) {
        let _ = self.stop.send(()); // it has ended
        self.ended.await.expect("it does not panic and is never aborted");
    }
}

impl Volumes {
    pub(super) fn load(state_dir: PathBuf, defaults: VolumeDefaults) -> Outcome<Volumes> {
        let book = Mutex::new(Book::load(&state_dir.join(DIRECTORY))?);
        Ok(Volumes { defaults, state_dir, book, turns: Mutex::default() })
    }

    /// Takes down what the last process left.
    pub(super) fn resume(self: &Arc<Self>) {
        self.forget_the_dead();
        let left = |(name, entry): (&String, &Entry)| {
            (entry.is_here && entry.users.is_empty()).then(|| name.clone())
        };
        let names: Vec<String> = self.book().volumes.iter().filter_map(left).collect();
        for name in names {
            // Somebody who has it by now takes it down himself.
            if let Ok(mut turn) = self.turn(&name).try_lock_owned() {
                turn.get_or_insert_with(|| self.take_down(&name));
            }
        }
    }

    /// Takes down what nobody will unmount: a process of Docker's that was killed says nothing of containers that ended with it. Of one that is
    /// gone no container begins any more, and one that lives on has its directory of the filesystem.
    pub(super) fn forget_the_dead(self: &Arc<Self>) {
        let names: Vec<String> = self.book().volumes.keys().cloned().collect();
        for name in names {
            let Ok(mut turn) = self.turn(&name).try_lock_owned() else { continue };
            let Ok(true) = self.entry(&name).map(|entry| self.is_of_the_dead(&name, &entry)) else {
                continue;
            };
            match self.change(&name, |entry| entry.users.clear()) {
                Ok(()) => {
                    turn.get_or_insert_with(|| self.take_down(&name));
                }
                Err(failure) => terminal::tell(failure.text),
            }
        }
    }

    fn is_of_the_dead(&self, name: &str, entry: &Entry) -> bool {
        !entry.users.is_empty()
            && !entry.users.values().any(Engine::lives)
            && is_bound(&self.at(name), &Path::new("/").join(DATA)).is_ok_and(|is_used| !is_used)
    }

    pub(super) async fn create(&self, name: &str, mut opts: BTreeMap<String, String>) -> Outcome {
        let stack = format!("{STACK}{name}");
        stacks::name(&stack).map_err(|e| {
            Failure::usage(format!("{name:?} cannot be the name of a volume: with {STACK} before it {e}"))
        })?;
        let url = match opts.remove("url") {
            Some(url) => volume_url(&url).map_err(|e| Failure::usage(format!("url={url}: {e}")))?.url,
            None => self.defaults.place.child(name)?,
        };
        let size = match opts.remove("size") {
            Some(size) => size.parse().map_err(|e| Failure::usage(format!("size={size}: {e}")))?,
            None => self.defaults.size,
        };
        let fs = match opts.remove("fs") {
            Some(fs) => Fs::from_str(&fs, true)
                .map_err(|_| Failure::usage(format!("fs={fs}: it can be zfs, ext4, xfs or btrfs")))?,
            None => self.defaults.fs,
        };
        if let Some(unknown) = opts.keys().next() {
            let failure = Failure::usage(format!("there is no option {unknown}"));
            return Err(failure.hint("options are size, fs and url"));
        }
        let url = url.to_string();
        let _turn = self.turn(name).lock_owned().await;
        let known = self.book().volumes.get(name).cloned();
        if let Some(known) = known {
            // Docker asks again where it is not sure.
            return match known.url == url && known.fs == fs && known.size_bytes == size.0 {
                true => Ok(()),
                false => Err(Failure::new(
                    Kind::Exists,
                    format!("{name} exists, and is another one: {}", known.url),
                )),
            };
        }
        let made = self.run(&["create", &url, "--size", &size.0.to_string()]).await;
        let is_ours = match made {
            // It is there, or it is in the trash.
            Err(failure) if failure.kind == Kind::Exists => match self.run(&["info", &url]).await {
                Err(info) if info.kind == Kind::NotFound => return Err(failure),
                _ => false,
            },
            made => made.map(|()| true)?,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ms = u64::try_from(now.as_millis()).unwrap_or_default();
        let (size_bytes, users, is_here) = (size.0, BTreeMap::new(), false);
        let entry = Entry { url, size_bytes, fs, is_ours, created_ms, users, is_here };
        self.note(|book| drop(book.volumes.insert(name.to_owned(), entry)))
    }

    /// Gives what a container is to see.
    pub(super) async fn mount(self: &Arc<Self>, name: &str, id: &str, engine: Engine) -> Outcome<PathBuf> {
        let (entry, mut turn) = self.begin(name).await?;
        if let Some(under_way) = turn.take() {
            under_way.interrupt().await;
        }
        self.change(name, |entry| entry.is_here = true)?;
        let at = self.at(name);
        let (stack, fs, mount) = (format!("{STACK}{name}"), entry.fs.to_string(), at.display().to_string());
        let mut up = vec!["up", &stack, "--on", &entry.url, "--fs", &fs, "--mount", &mount];
        let driver = self.defaults.driver.and_then(|driver| driver.to_possible_value());
        if let Some(driver) = &driver {
            up.extend(["--driver", driver.get_name()]);
        }
        let state_dir = self.state_dir.display().to_string();
        up.extend(["--state-dir", &state_dir]);
        if !self.defaults.serve_args.is_empty() {
            up.push("--");
            up.extend(self.defaults.serve_args.iter().map(String::as_str));
        }
        let shown = self.at(name).join(DATA);
        let standing = match self.run(&up).await {
            Ok(()) => fs::create_dir_all(&shown)
                .map_err(|e| Failure::io(format!("cannot make {}", shown.display()), &e)),
            failed => failed,
        };
        if let Err(failure) = standing {
            // Half of it may stand.
            if self.entry(name)?.users.is_empty() {
                *turn = Some(self.take_down(name));
            }
            return Err(failure);
        }
        self.change(name, |entry| entry.users.extend([(id.to_owned(), engine)]))?;
        Ok(shown)
    }

    /// Behind the last one the filesystem is taken down; what is not in the store yet is uploaded behind the answer.
    pub(super) async fn unmount(self: &Arc<Self>, name: &str, id: &str) -> Outcome {
        let (_, mut turn) = self.begin(name).await?;
        self.change(name, |entry| entry.users.retain(|user, _| user != id))?;
        let entry = self.entry(name)?;
        if self.is_of_the_dead(name, &entry) {
            self.change(name, |entry| entry.users.clear())?;
        } else if !entry.users.is_empty() {
            return Ok(());
        }
        if !entry.is_here || turn.is_some() {
            return Ok(());
        }
        let down = self.down(name, &["--keep-dirty"]).await;
        *turn = Some(self.take_down(name));
        down
    }

    pub(super) async fn remove(self: &Arc<Self>, name: &str) -> Outcome {
        let (entry, mut turn) = self.begin(name).await?;
        if !entry.users.is_empty() {
            return Err(Failure::new(
                Kind::InUse,
                format!("{name} is in use by {} containers", entry.users.len()),
            ));
        }
        if entry.is_here {
            if let Some(under_way) = turn.take() {
                under_way.interrupt().await;
            }
            let down = tokio::time::timeout(PATIENCE, self.down(name, &[])).await;
            let down = down.unwrap_or_else(|_| {
                let failure = Failure::new(Kind::InUse, format!("{name} is being uploaded"));
                Err(failure.hint("try again later"))
            });
            if let Err(failure) = down {
                *turn = Some(self.take_down(name));
                return Err(failure);
            }
            self.change(name, |entry| entry.is_here = false)?;
        }
        let state_dir = self.state_dir.display().to_string();
        let rm = ["rm", &entry.url, "--state-dir", &state_dir];
        let removed = match (entry.is_ours, self.defaults.on_remove) {
            (false, _) | (_, OnRemove::Keep) => Ok(()),
            (true, OnRemove::Trash) => self.run(&rm).await,
            (true, OnRemove::Delete) => self.run(&[&rm[..], &["--now", "--yes"]].concat()).await,
        };
        match removed {
            Err(failure) if failure.kind != Kind::NotFound => return Err(failure),
            Err(_) if volume_url(&entry.url).is_ok_and(|volume| volume.may_be_unmounted()) => {
                let text = format!("{name} is not at {} now (is its file system mounted?)", entry.url);
                let failure = Failure::new(Kind::NotFound, text);
                return Err(failure.hint(
                    "remove it when it is there: else it stays in its store, and nothing here knows of it",
                ));
            }
            _ => {}
        }
        StackRecord::forget(&self.state_dir, &format!("{STACK}{name}"))
            .map_err(|e| Failure::io("cannot forget it, try again later", &e))?;
        let _ = fs::remove_dir(self.at(name)); // it was never mounted
        self.note(|book| drop(book.volumes.remove(name)))
    }

    pub(super) fn get(&self, name: &str) -> Outcome<DockerVolume> {
        self.entry(name).map(|entry| self.shown(name, entry))
    }

    pub(super) fn list(&self) -> Vec<DockerVolume> {
        let volumes = self.book().volumes.clone();
        volumes.into_iter().map(|(name, entry)| self.shown(&name, entry)).collect()
    }

    fn shown(&self, name: &str, entry: Entry) -> DockerVolume {
        DockerVolume { name: name.to_owned(), entry, at: self.at(name).join(DATA) }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.state_dir.join(DIRECTORY).join("mounts").join(name)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, name: &str) -> Outcome<Entry> {
        let entry = self.book().volumes.get(name).cloned();
        entry.ok_or_else(|| Failure::new(Kind::NotFound, format!("there is no volume {name}")))
    }

    fn note(&self, change: impl FnOnce(&mut Book)) -> Outcome {
        let mut book = self.book();
        change(&mut book);
        book.save()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Entry)) -> Outcome {
        self.note(|book| {
            if let Some(entry) = book.volumes.get_mut(name) {
                change(entry);
            }
        })
    }

    fn turn(&self, name: &str) -> Turn {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(name.to_owned()).or_default().clone()
    }

    /// Waits until nobody else does something with a volume that is known.
    async fn begin(&self, name: &str) -> Outcome<(Entry, OwnedMutexGuard<Option<TakeDown>>)> {
        self.entry(name)?;
        let turn = self.turn(name).lock_owned().await;
        Ok((self.entry(name)?, turn))
    }

    /// Takes a volume down until everything is in the store, beside whatever else is done; again and again, as a store may be away.
    fn take_down(self: &Arc<Self>, name: &str) -> TakeDown {
        let (stop, mut stopped) = oneshot::channel();
        let (volumes, name) = (self.clone(), name.to_owned());
        let ended = tokio::spawn(async move {
            loop {
                let down = tokio::select! {
                    down = volumes.down(&name, &[]) => down,
                    _ = &mut stopped => return,
                };
                match down.and_then(|()| volumes.change(&name, |entry| entry.is_here = false)) {
                    Ok(()) => return,
                    Err(failure) => terminal::tell(format!("{name} is not taken down yet: {}", failure.text)),
                }
                tokio::select! {
                    () = tokio::time::sleep(AGAIN) => {}
                    _ = &mut stopped => return,
                }
            }
        });
        TakeDown { stop, ended }
    }

    async fn down(&self, name: &str, how: &[&str]) -> Outcome {
        let (stack, state_dir) = (format!("{STACK}{name}"), self.state_dir.display().to_string());
        if stacks::load(&self.state_dir, &stack)?.is_none() {
            return Ok(()); // it never stood
        }
        self.run(&[&["down", &stack, "--state-dir", &state_dir], how].concat()).await
    }

    /// This program with other arguments; it ends at once where nobody waits for it any more, and another one goes on.
    ///
    /// # Errors
    /// What it says itself, and of the kind that its exit code says.
    async fn run(&self, arguments: &[&str]) -> Outcome {
        let program = program::program().map_err(|e| Failure::io("cannot find this program", &e))?;
        let mut command = Command::new(program);
        if let Some(config) = &self.defaults.config {
            command.arg("--config").arg(config);
        }
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.map_err(|e| Failure::io("cannot start this program", &e))?;
        if output.status.success() {
            return Ok(());
        }
        let kind = |(kind, code, _): &(Kind, u8, &str)| {
            (output.status.code() == Some(i32::from(*code))).then_some(*kind)
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let said_of = |what: &str| said.lines().find_map(|line| line.trim().strip_prefix(what));
        let kind = Kind::ALL.iter().find_map(kind).unwrap_or(Kind::Other);
        let failure = Failure::new(kind, said_of("error: ").unwrap_or(said.trim()));
        Err(match said_of("hint: ") {
            Some(hint) => failure.hint(hint),
            None => failure,
        })
    }
}
