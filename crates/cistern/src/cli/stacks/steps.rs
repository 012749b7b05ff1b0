//! Doing a step.

use std::{
    fs::{self, File, TryLockError},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_engine::codec::KeySource;
use tokio::process::{Child, Command};

use super::{
    Stack, nfs,
    services::Services,
    zfs::{self, Dataset},
};
use crate::{
    cli::{attach, attachments, detach, drain, program},
    control,
    failure::{Failure, Kind, Outcome},
    kernel::{Mount, mounts},
    secret,
    stack::{Fs, NfsServer, OnDevice, StackRecord, StackState, StackStep},
    terminal,
};

/// How long `zpool export` may take: it writes what is dirty, to the local disk.
const EXPORT_LIMIT: Duration = Duration::from_secs(600);
/// How long a daemon may take to end, its drain apart.
const STOP_LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
/// Of the log of a daemon that does not start.
const LOG_TAIL_BYTES: usize = 4096;

impl Stack {
    pub(super) async fn act(&mut self, step: &StackStep, seen: &StackState) -> Outcome {
        match step {
            StackStep::Serve => self.serve().await,
            StackStep::Attach => {
                let served = attachments::served(&self.state_dir, &self.record.url).await?;
                attach::attach(&self.state_dir, &served, self.record.driver.into(), true).await.map(drop)
            }
            StackStep::Make => self.make(&device(seen)?).await,
            StackStep::Import { force } => self.import(&place(seen)?, seen, *force).await,
            StackStep::Mount => self.mount(seen).await,
            StackStep::Share => self.share(seen).await,
            StackStep::Unshare { for_good } => self.unshare(seen, *for_good).await,
            StackStep::Unmount => {
                nfs::forget(&self.goal.name)?; // what is mounted there next is not shared for that
                for at in seen.mounted.iter().rev() {
                    self.run(Command::new("umount").arg(at), None).await?;
                }
                Ok(())
            }
            StackStep::Export => {
                self.run(Command::new("zpool").args(["export", &self.goal.name]), Some(EXPORT_LIMIT)).await
            }
            StackStep::Detach => {
                let known = attachments::attachment(&self.state_dir, &self.record.url)?;
                match known {
                    Some(known) => detach::free(&self.state_dir, known.device, Some(&known), false).await,
                    None => Ok(()),
                }
            }
            StackStep::Drain => self.drain().await,
            StackStep::Stop { keep_dirty } => self.stop(*keep_dirty, seen).await,
        }
    }

    /// Starts a daemon that outlives this process, and waits until it serves.
    pub(super) async fn serve(&mut self) -> Outcome {
        let services = Services::of(&self.record.name, &self.state_dir);
        // A service knows nothing of what is said once.
        if self.create_bytes.is_none() && !self.goal.take_over && services.have_daemon().await {
            services.start_daemon().await?;
            return self.keep_attached();
        }
        let failed = |e: &std::io::Error| Failure::io("the daemon cannot be started", e);
        let progress = terminal::Progress::spinning("waiting for the daemon");
        let alive = self.record.daemon_lock(&self.state_dir).map_err(|e| failed(&e))?;
        // One that was started before, and does not serve yet, or has not ended yet.
        while let Err(TryLockError::WouldBlock) = alive.try_lock() {
            if self.serving().await?.is_some() {
                return self.keep_attached();
            }
            tokio::time::sleep(LOOK).await;
        }
        let log_path = self.record.log(&self.state_dir);
        let log = File::options().create(true).append(true).open(&log_path).map_err(|e| failed(&e))?;
        let begin = log.metadata().map_err(|e| failed(&e))?.len();
        let mut command = self.daemon_command().await?;
        command.process_group(0).stdin(alive).stdout(log.try_clone().map_err(|e| failed(&e))?).stderr(log);
        let mut daemon = Command::from(command).spawn().map_err(|e| failed(&e))?;
        while self.serving().await?.is_none() {
            if let Some(failure) = ended(&mut daemon, &log_path, begin)? {
                return Err(failure);
            }
            let said = said_since(&log_path, begin);
            progress.message(said.lines().last().unwrap_or("waiting for the daemon").to_owned());
            tokio::time::sleep(LOOK).await;
        }
        self.keep_attached()
    }

    /// Becomes the daemon, for a service manager. Another one of this stack is ended, and what is attached waits meanwhile.
    ///
    /// Takes no lock of the stack: whoever has it waits for this.
    pub(in crate::cli) async fn become_daemon(&mut self) -> Outcome {
        let failed = |e: &std::io::Error| Failure::io("the daemon cannot be started", e);
        let alive = self.record.daemon_lock(&self.state_dir).map_err(|e| failed(&e))?;
        let mut is_told = false;
        while let Err(TryLockError::WouldBlock) = alive.try_lock() {
            if let Some((daemon, _)) = self.serving().await?
                && !is_told
            {
                terminal::remark("another daemon of it ends, and this one goes on");
                daemon.stop(false, STOP_LIMIT).await?;
                is_told = true;
            }
            tokio::time::sleep(LOOK).await;
        }
        let mut command = self.daemon_command().await?;
        if !self.record.serve_args.iter().any(|arg| arg.starts_with("--drain-timeout")) {
            command.args(["--drain-timeout", "0s"]); // whoever stops a service does not wait for a network
        }
        Err(failed(&command.stdin(alive).exec()))
    }

    async fn daemon_command(&mut self) -> Outcome<std::process::Command> {
        let program = program::program().map_err(|e| Failure::io("cannot find this program", &e))?;
        let mut command = std::process::Command::new(program);
        if let Some(config) = &self.record.config {
            command.arg("--config").arg(config);
        }
        command.arg("serve").arg(&self.record.url).arg("--state-dir").arg(&self.state_dir);
        if let Some(size) = self.create_bytes {
            command.arg("--create").arg(size.to_string());
        }
        if self.goal.take_over {
            command.arg("--take-over");
        }
        if let Some(file) = &self.record.key_file {
            command.arg("--key-file").arg(file);
        }
        if let Some(KeySource::Passphrase(passphrase)) = &self.passphrase().await? {
            command.env(secret::PASSPHRASE_VARIABLE, passphrase);
        }
        command.args(&self.record.serve_args).current_dir("/");
        Ok(command)
    }

    /// A device that waits for its daemon is given a connection by whoever keeps it.
    fn keep_attached(&self) -> Outcome {
        let known = attachments::attachment(&self.state_dir, &self.record.url)?;
        match known.is_some_and(|known| known.holds()) {
            true => attach::start_keeper(&self.state_dir),
            false => Ok(()),
        }
    }

    /// The passphrase of a volume that exists and is encrypted, asked for where somebody can be asked: the daemon cannot.
    async fn passphrase(&mut self) -> Outcome<Option<KeySource>> {
        if self.unlocked.is_none()
            && terminal::can_ask()
            && matches!(secret::offered(&self.key)?, KeySource::None)
        {
            match self.claim().await {
                Err(failure) if failure.kind == Kind::NotFound => {} // it is created
                found => _ = found?,
            }
        }
        Ok(self.unlocked.clone())
    }

    async fn make(&self, device: &Path) -> Outcome {
        let StackRecord { name, fs, mount, .. } = &self.record;
        let mut command;
        match fs {
            Fs::Zfs => {
                command = Command::new("zpool");
                command.args(["create", "-o", "ashift=12", "-o", "autotrim=on", "-o", "failmode=wait"]);
                command.args(["-o", "cachefile=none", "-O", "compression=lz4"]);
                if let Some(mount) = mount {
                    command.arg("-m").arg(mount);
                }
                command.arg(name);
            }
            Fs::Ext4 => {
                command = Command::new("mkfs.ext4");
                command.arg("-q");
            }
            Fs::Xfs => {
                command = Command::new("mkfs.xfs");
                command.arg("-q");
            }
            Fs::Btrfs => {
                command = Command::new("mkfs.btrfs");
                command.arg("-q");
            }
        }
        self.run(command.arg(device), None).await
    }

    async fn import(&self, device: &Path, seen: &StackState, force: bool) -> Outcome {
        let Some(OnDevice::Pool(label)) = &seen.content else {
            unreachable!("it is imported because it is there")
        };
        let mut command = Command::new("zpool");
        command.args(["import", "-N", "-o", "cachefile=none", "-d"]).arg(device);
        if force {
            command.arg("-f");
        }
        self.run(command.arg(label.guid.to_string()), None).await
    }

    async fn mount(&self, seen: &StackState) -> Outcome {
        let StackRecord { name, fs, mount, .. } = &self.record;
        if *fs != Fs::Zfs {
            let at = mount.as_ref().expect("a plan asks for it");
            fs::create_dir_all(at).map_err(|e| Failure::io(format!("cannot make {}", at.display()), &e))?;
            return self
                .run(Command::new("mount").args(["-t", fs.name()]).arg(place(seen)?).arg(at), None)
                .await;
        }
        let missing: Vec<Dataset> =
            zfs::datasets(name).await?.into_iter().filter(Dataset::is_missing).collect();
        if missing.iter().any(|dataset| dataset.is_locked) {
            // It may ask for a passphrase.
            let status = Command::new("zfs").args(["load-key", "-r", name]).status().await;
            let status = status.map_err(|e| Failure::io("cannot start zfs", &e))?;
            if !status.success() {
                return Err(Failure::new(Kind::Key, format!("keys of {name} cannot be loaded")));
            }
        }
        for dataset in missing {
            self.run(Command::new("zfs").args(["mount", &dataset.name]), None).await?;
        }
        Ok(())
    }

    async fn share(&self, seen: &StackState) -> Outcome {
        let name = &self.goal.name;
        let declaration = self.goal.declaration();
        if let (Fs::Ext4 | Fs::Xfs | Fs::Btrfs, Some(line)) = (self.goal.fs, &declaration) {
            let clients = self.goal.share.iter().flatten();
            nfs::forget(name)?;
            for export in &seen.sharing.exports {
                self.run(Command::new("exportfs").args(["-u", &export.of_exportfs()]), None).await?;
            }
            nfs::declare(name, line)?;
            for (at, client) in
                seen.mounted.iter().flat_map(|at| clients.clone().map(move |client| (at, client)))
            {
                let place = format!("{}:{}", client.of_exportfs(), at.display());
                self.run(Command::new("exportfs").args(["-o", &client.options(), &place]), None).await?;
            }
            return Ok(());
        }
        if let Some(value) = declaration.filter(|wanted| seen.sharing.declared.as_ref() != Some(wanted)) {
            self.run(Command::new("zfs").args(["set", &format!("sharenfs={value}"), name]), None).await?;
        }
        for dataset in zfs::datasets(name).await?.iter().filter(|dataset| dataset.is_to_be_shared()) {
            self.run(Command::new("zfs").args(["share", &dataset.name]), None).await?;
        }
        Ok(())
    }

    /// Behind it the NFS server has nothing of it any more, so that it can be unmounted.
    async fn unshare(&self, seen: &StackState, for_good: bool) -> Outcome {
        let name = &self.goal.name;
        match self.goal.fs {
            Fs::Zfs if for_good => {
                self.run(Command::new("zfs").args(["set", "sharenfs=off", name]), None).await?
            }
            Fs::Zfs => {
                for dataset in zfs::datasets(name).await?.iter().filter(|dataset| dataset.is_to_be_shared()) {
                    // What is not shared by ZFS is shared by somebody else, and taken back below.
                    let _ = self.run(Command::new("zfs").args(["unshare", &dataset.name]), None).await;
                }
            }
            Fs::Ext4 | Fs::Xfs | Fs::Btrfs => nfs::forget(name)?,
        }
        for export in nfs::exports(seen.sharing.server, &seen.mounted).await? {
            self.run(Command::new("exportfs").args(["-u", &export.of_exportfs()]), None).await?;
        }
        let all = mounts().map_err(|e| Failure::io("cannot look what is mounted", &e))?;
        let shared: Vec<Mount> = all.into_iter().filter(|mount| seen.mounted.contains(&mount.at)).collect();
        match seen.sharing.server {
            NfsServer::Runs => nfs::released(&shared).await,
            NfsServer::Missing | NfsServer::Stopped => Ok(()),
        }
    }

    async fn drain(&mut self) -> Outcome {
        let Some((daemon, _)) = self.serving().await? else { return Ok(()) };
        match drain::wait(&[daemon], Some(&self.record.url), None).await {
            Ok(waited) if waited.is_clean() => Ok(()),
            Ok(waited) => Err(Failure::new(Kind::NotClean, waited.left())),
            Err(ended) if ended.kind == Kind::NotFound => Ok(()), // what it left shows when it is looked again
            Err(failure) => Err(failure),
        }
    }

    async fn stop(&mut self, keep_dirty: bool, seen: &StackState) -> Outcome {
        let Some((daemon, _)) = self.serving().await? else { return Ok(()) };
        if keep_dirty {
            self.left_bytes = seen.served.as_ref().map_or(0, |served| served.dirty_bytes);
        }
        daemon.stop(!keep_dirty, STOP_LIMIT).await?;
        let alive = self.record.daemon_lock(&self.state_dir);
        let alive = alive.map_err(|e| Failure::io("cannot look after the daemon", &e))?;
        let ends = async {
            while control::daemons(&self.state_dir).await?.contains(&daemon)
                || matches!(alive.try_lock(), Err(TryLockError::WouldBlock))
            {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        match tokio::time::timeout(STOP_LIMIT, ends).await {
            Ok(ended) => ended,
            Err(_) => Err(Failure::new(Kind::NotClean, "the daemon does not end")
                .hint(format!("its log is {}", self.record.log(&self.state_dir).display()))),
        }
    }
}

fn device(seen: &StackState) -> Outcome<PathBuf> {
    seen.device.clone().ok_or_else(|| Failure::new(Kind::NotFound, "its device is gone"))
}

/// Where the filesystem is: the device, or a partition of it.
fn place(seen: &StackState) -> Outcome<PathBuf> {
    seen.partition.clone().map_or_else(|| device(seen), Ok)
}

/// What the log says since a place.
fn said_since(log: &Path, begin: u64) -> String {
    let text = fs::read(log).unwrap_or_default();
    let said = text.get(begin as usize..).unwrap_or_default();
    String::from_utf8_lossy(&said[said.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
}

/// Why a daemon ended, if it did: what it said itself, and with its code.
fn ended(daemon: &mut Child, log: &Path, begin: u64) -> Outcome<Option<Failure>> {
    let status = daemon.try_wait().map_err(|e| Failure::io("cannot look after the daemon", &e))?;
    let Some(status) = status else { return Ok(None) };
    let said = said_since(log, begin);
    let line = |begins: &str| said.lines().rev().find_map(|line| line.trim_start().strip_prefix(begins));
    let kind = Kind::ALL.iter().find(|(_, code, _)| status.code() == Some(i32::from(*code)));
    let text = line("error: ").map_or_else(|| format!("the daemon ended ({status})"), str::to_owned);
    let failure = Failure::new(kind.map_or(Kind::Other, |(kind, ..)| *kind), text);
    let hint = line("hint: ").map_or_else(|| format!("its log is {}", log.display()), str::to_owned);
    Ok(Some(failure.hint(hint)))
}
