//! What `up` and `down` share: looking at everything a stack consists of, and doing the next step.

mod look;
mod nfs;
mod programs;
mod services;
mod steps;
mod zfs;

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_engine::{Error, codec::KeySource, env::Env, units::VolumeId, volume::admin};
pub(super) use look::mounted_from;
pub(super) use nfs::server as nfs_server;
use serde::Serialize;
use services::Services;
use tokio::process::Command;
pub(super) use zfs::host_id;

use crate::{
    cli::{Context, attach},
    config::KeySettings,
    control::{self, DaemonClient, ServedStatus},
    daemon::{host_name, volume_disk},
    failure::{Failure, Kind, Outcome},
    kernel::Keeper,
    place::{COMMAND_PATIENCE, VolumeUrl, volume_url},
    quantity::ByteSize,
    secret,
    stack::{self, Fs, HeldBy, OnDevice, StackGoal, StackRecord, StackState, StackStep, Way},
    terminal,
};

const NAME_MAX: usize = 64;
/// How often a step is done: what it did may be undone by a crash, but not again and again.
const ALIKE_MAX: usize = 2;

/// Parses the name of a stack; for clap. What ZFS allows for pools, without what means something to a shell.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() > NAME_MAX
        || !text.chars().all(is_fine)
        || !text.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return Err(format!("a letter, then letters, digits and - _ . ({NAME_MAX} at most)"));
    }
    Ok(text.to_owned())
}

/// What is remembered of a stack.
pub(super) fn load(state_dir: &Path, name: &str) -> Outcome<Option<StackRecord>> {
    StackRecord::load(state_dir, name).map_err(|e| {
        Failure::io("cannot read what is known of it", &e).hint("remove that file, and say --on URL again")
    })
}

impl StackGoal {
    pub(super) fn of(record: &StackRecord, take_over: bool, way: Way) -> StackGoal {
        let StackRecord { name, url, fs, mount, id, share, .. } = record.clone();
        StackGoal { name, url, fs, mount, id, share, take_over, way }
    }
}

/// A stack that is on its way.
pub(super) struct Stack {
    env: Env,
    state_dir: PathBuf,
    record: StackRecord,
    goal: StackGoal,
    /// What a command has of keys, and the one that was found to be right.
    key: KeySettings,
    unlocked: Option<KeySource>,
    create_bytes: Option<u64>,
    /// Held while something is done. Programs that change something have it as their standard input, so that it is held until the last of
    /// them has ended, also where this process was killed.
    lock: Option<File>,
    /// Where the log was when everything was in the store, or the daemon ended.
    seq: u64,
    /// Left in the journal.
    left_bytes: u64,
}

/// Who has a volume by what the store says, and where its log is.
struct StoredClaim {
    volume: VolumeId,
    held_by: HeldBy,
    /// Of the last claim.
    host: String,
    seq: u64,
}

/// A plan, for programs.
#[derive(Serialize)]
struct ShownPlan {
    name: String,
    url: String,
    steps: Vec<String>,
}

impl Stack {
    pub(super) fn new(
        context: &Context,
        state_dir: PathBuf,
        record: StackRecord,
        goal: StackGoal,
        key: KeySettings,
        create_bytes: Option<u64>,
    ) -> Stack {
        let env = context.env.clone();
        let (unlocked, lock, seq, left_bytes) = (None, None, 0, 0);
        Stack { env, state_dir, record, goal, key, unlocked, create_bytes, lock, seq, left_bytes }
    }

    pub(super) fn record(&self) -> &StackRecord {
        &self.record
    }

    /// What was left in the journal by a stop that was asked to.
    pub(super) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    pub(super) fn save(&self) -> Outcome {
        let saved = self.record.save(&self.state_dir);
        saved.map_err(|e| Failure::io("cannot write down what is brought up", &e))
    }

    /// Does what is missing; gives what is seen in the end.
    pub(super) async fn go(&mut self) -> Outcome<StackState> {
        self.lock().await?;
        let mut seen = self.look().await?;
        let mut done = Vec::new();
        while let Some(step) = stack::next(&self.goal, &seen)? {
            let doing = self.describe(&step);
            if done.iter().filter(|before| **before == step).count() == ALIKE_MAX {
                let failure = Failure::new(
                    Kind::Other,
                    format!("this was done {ALIKE_MAX} times, and is to be done again: {doing}"),
                );
                return Err(failure.hint(format!(
                    "`cistern status` says how the volume is, {} what the daemon said",
                    self.record.log(&self.state_dir).display()
                )));
            }
            done.push(step.clone());
            terminal::remark(&doing);
            self.act(&step, &seen).await.map_err(|failure| failure.context(format!("cannot {doing}")))?;
            seen = self.look().await?;
            self.remember(&seen)?;
            if stack::next(&self.goal, &seen).is_ok_and(|next| next.as_ref() == Some(&step)) {
                let failure = Failure::new(Kind::Other, format!("this was done and cannot be seen: {doing}"));
                return Err(failure.hint("does something else work on it at the same time? Try again"));
            }
        }
        Ok(seen)
    }

    /// Ends the daemon, if there is one, and does what is missing then. A device waits meanwhile.
    pub(super) async fn restart(&mut self) -> Outcome<StackState> {
        self.lock().await?;
        let seen = self.look().await?;
        stack::can_be_shared(&self.goal, &seen)?; // what is to be started again is not ended for nothing
        if let Some(served) = &seen.served {
            if served.shared {
                let failure = Failure::new(
                    Kind::InUse,
                    format!("the daemon of {} serves other volumes too", self.record.url),
                );
                return Err(failure.hint("stop and start it as you began it: devices wait meanwhile"));
            }
            let step = StackStep::Stop { keep_dirty: true };
            terminal::remark(self.describe(&step));
            self.act(&step, &seen).await.map_err(|failure| failure.context("cannot restart the daemon"))?;
        }
        let seen = self.go().await?;
        // Who gives devices new connections may be of another version as well.
        let ended = Keeper::end_passing(&self.state_dir);
        if ended.map_err(|e| Failure::io("cannot end who gives devices new connections", &e))? {
            attach::start_keeper(&self.state_dir)?;
        }
        Ok(seen)
    }

    /// Starts the daemon, unless there is one.
    pub(super) async fn start_daemon(&mut self) -> Outcome {
        self.lock().await?;
        match self.serving().await? {
            Some(_) => Ok(()),
            None => self.serve().await,
        }
    }

    /// Tells a service manager that it is down.
    pub(super) async fn forget_service(&self) {
        Services::of(&self.record.name, &self.state_dir).forget_pool().await;
    }

    /// One at a time works on a stack.
    async fn lock(&mut self) -> Outcome {
        let failed = |e: std::io::Error| Failure::io("cannot lock it", &e);
        while self.lock.is_none() {
            let file = self.record.lock(&self.state_dir).map_err(failed)?;
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                terminal::remark(format!(
                    "waiting for another `cistern up` or `down` of {}, or what it began",
                    self.record.name
                ));
            }
            let locked = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
            let file = locked.expect("it does not panic").map_err(failed)?;
            self.lock = self.record.is_lock(&self.state_dir, &file).map_err(failed)?.then_some(file);
        }
        Ok(())
    }

    /// Runs a program that changes something, and has to succeed.
    async fn run(&self, command: &mut Command, limit: Option<Duration>) -> Outcome {
        let lock = self.lock.as_ref().expect("it is locked before anything is done");
        let lock = lock.try_clone().map_err(|e| Failure::io("cannot share the lock", &e))?;
        programs::output(command.stdin(lock), limit).await.map(drop)
    }

    /// Says what would be done.
    pub(super) async fn show_plan(&mut self, json: bool) -> Outcome {
        let mut seen = self.look().await?;
        let mut steps = Vec::new();
        while let Some(step) = stack::next(&self.goal, &seen)? {
            steps.push(self.describe(&step));
            seen = stack::supposed(&self.goal, &seen, &step);
            if step == StackStep::Attach && seen.content.is_none() {
                steps.push("look what is on it: import or mount it; make it if there is nothing".to_owned());
                break;
            }
        }
        let StackRecord { name, url, .. } = self.record.clone();
        if json {
            return terminal::say_json(&ShownPlan { name, url, steps });
        }
        match steps.is_empty() {
            true => terminal::say(format!("{name}: nothing is to be done")),
            false => {
                steps.iter().enumerate().try_for_each(|(n, step)| terminal::say(format!("{}. {step}", n + 1)))
            }
        }
    }

    fn describe(&self, step: &StackStep) -> String {
        let StackRecord { name, url, fs, mount, .. } = &self.record;
        match step {
            StackStep::Serve => match self.create_bytes {
                Some(size) => {
                    format!("serve {url}, and create it with {} if it does not exist", ByteSize(size))
                }
                None => format!("serve {url}"),
            },
            StackStep::Attach => format!("attach {url} as a block device"),
            StackStep::Make if *fs == Fs::Zfs => format!("make pool {name} on {url}, which is empty"),
            StackStep::Make => format!("make {fs} on {url}, which is empty"),
            StackStep::Import { force: false } => format!("import pool {name}"),
            StackStep::Import { force: true } => {
                format!("import pool {name}, which another host did not export")
            }
            StackStep::Mount => match mount.as_ref().filter(|_| *fs != Fs::Zfs) {
                Some(mount) => format!("mount it on {}", mount.display()),
                None => format!("mount the filesystems of {name}"),
            },
            StackStep::Share => match &self.goal.share {
                Some(clients) => {
                    let clients: Vec<String> = clients.iter().map(ToString::to_string).collect();
                    format!("share {name} over NFS with {}", clients.join(", "))
                }
                None => format!("share {name} over NFS, as its properties say"),
            },
            StackStep::Unshare { .. } => {
                format!("share {name} over NFS no more: whoever has it still mounted sees it go stale")
            }
            StackStep::Unmount => format!("unmount {name}"),
            StackStep::Export => format!("export pool {name}"),
            StackStep::Detach => format!("detach {url}"),
            StackStep::Drain => format!("upload what {url} does not have yet"),
            StackStep::Stop { keep_dirty: false } => format!("stop the daemon of {url}, which releases it"),
            StackStep::Stop { keep_dirty: true } => {
                format!("stop the daemon of {url}, and leave the rest in the journal")
            }
        }
    }

    /// The id of the filesystem, once it is seen.
    fn remember(&mut self, seen: &StackState) -> Outcome {
        let id = match &seen.content {
            Some(OnDevice::Pool(label)) if self.goal.fs == Fs::Zfs && label.name == self.goal.name => {
                label.guid.to_string()
            }
            Some(OnDevice::Filesystem { fs, uuid }) if *fs == self.goal.fs => uuid.clone(),
            _ => return Ok(()),
        };
        if self.goal.way == Way::Up && self.record.id.is_none() {
            (self.record.id, self.goal.id) = (Some(id.clone()), Some(id));
            self.save()?;
        }
        Ok(())
    }

    fn volume(&self) -> Outcome<VolumeUrl> {
        volume_url(&self.record.url).map_err(Failure::usage)
    }

    async fn serving(&self) -> Outcome<Option<(DaemonClient, ServedStatus)>> {
        control::serving(&self.state_dir, &self.record.url).await
    }

    /// Who has the volume by what the store says.
    async fn claim(&mut self) -> Outcome<StoredClaim> {
        let volume = self.volume()?;
        let open = volume.open(&self.env, COMMAND_PATIENCE).await?;
        let known = match self.unlocked.clone() {
            Some(key) => admin::info(&self.env, &open.store, &key).await.map_err(|e| volume.explain(e))?,
            None => {
                let known = secret::unlocking(&self.key, &volume.name, |key| {
                    let (env, store) = (&self.env, &open.store);
                    async move { admin::info(env, store, &key).await }
                });
                let (known, key) = known.await.map_err(|failure| failure.context(&volume.url))?;
                self.unlocked = Some(key);
                known
            }
        };
        let Some(state) = known.state else {
            let failure = Failure::new(
                Kind::Key,
                format!("{} is encrypted: without its key nobody can see who has it", volume.url),
            );
            return Err(failure.hint("give --key-file FILE, or the passphrase in CISTERN_PASSPHRASE"));
        };
        let claim = match &state.claim_host {
            Some(host) if !state.released && *host == host_name() => HeldBy::Ours,
            Some(_) if !state.released => HeldBy::Others,
            _ => HeldBy::Free,
        };
        let host = state.claim_host.unwrap_or_default();
        Ok(StoredClaim { volume: known.volume, held_by: claim, host, seq: state.seq })
    }

    /// Whether a journal of this host has anything that is not in the store.
    async fn has_left(&self, volume: VolumeId) -> Outcome<bool> {
        if !self.state_dir.join(volume.to_string()).is_dir() {
            return Ok(false);
        }
        let (disk, mut found) = (volume_disk(&self.state_dir, volume)?, false);
        let mut visit = |_| {
            found = true;
            Err(Error::Invalid("one is enough".into()))
        };
        match admin::journal_export(&self.env, &disk, volume, &mut visit).await {
            Ok(()) | Err(Error::NotFound(_)) => Ok(false),
            Err(_) if found => Ok(true),
            Err(e) => Err(Failure::from(e).context("cannot look into the journal of this host")),
        }
    }

    /// Looks at the store as another host would: everything is there, and the volume can be had.
    pub(super) async fn verify(&mut self) -> Outcome {
        let url = self.record.url.clone();
        let StoredClaim { volume, held_by, host, seq } = self.claim().await?;
        match held_by {
            HeldBy::Free if seq < self.seq => {
                let text = format!("{url} is at {seq} in the store, and was at {} here", self.seq);
                Err(Failure::new(Kind::NotClean, text)
                    .hint("`cistern check` says what is there; keep this host's state directory"))
            }
            HeldBy::Free if self.has_left(volume).await? => {
                let text = format!(
                    "the journal of this host has writes that {url} does not have: another host had it since"
                );
                Err(Failure::new(Kind::NotClean, text)
                    .hint(format!("`cistern journal export {volume} --output FILE` saves them")))
            }
            HeldBy::Free => Ok(()),
            HeldBy::Ours => Err(Failure::new(
                Kind::NotClean,
                format!("{url} is still held by this host: not everything may be in the store"),
            )
            .hint(format!("`cistern down {}` again uploads what it has", self.record.name))),
            HeldBy::Others => Err(Failure::new(Kind::InUse, format!("{url} is held by host {host} now"))
                .hint(format!(
                    "`cistern journal export {volume} --output FILE` saves what this host has, if anything"
                ))),
        }
    }
}

/// As whoever is elsewhere has to call it.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are what a pool may be called, and nothing that a shell or a path would read otherwise.
    #[test]
    fn names() {
        for fine in ["tank", "a", "tank-2.old_x"] {
            assert_eq!(name(fine).as_deref(), Ok(fine));
        }
        for bad in ["", "2tank", "../tank", "tank/a", "tank a", "-x", "tänk", &"a".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
