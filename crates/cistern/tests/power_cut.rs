//! A directory store on a filesystem that loses its power: a real ext4, which is told to stop at once, without
//! writing what it holds in memory. What a put has confirmed must be there when it is mounted again.
//!
//! Needs root, for a loop device and a mount.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::Path,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cistern_engine::{
    env::{Env, real::RealEnv},
    store::{DirectoryStore, Put, Store},
};
use cistern_harness::{
    scratch::Scratch,
    stacked::{Layer, Stacked},
    tool,
};

/// EXT4_IOC_SHUTDOWN, which every filesystem with such a request shares: `_IOR('X', 125, __u32)`.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Not even the filesystem's own journal is written.
const WITHOUT_LOG: u32 = 2;
/// So that nothing is written for the sake of its age meanwhile.
const OPTIONS: &str = "loop,commit=1000";

/// While a command of one test begins, its process still has what the others have open: their filesystems are busy.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A filesystem in a file.
struct Disk {
    scratch: Scratch,
    mounted: bool,
    _alone: MutexGuard<'static, ()>,
}

impl Disk {
    fn make() -> Result<Disk> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner); // whatever became of another test
        let scratch = Scratch::new("power-cut")?;
        scratch.dir("mnt")?;
        File::create(scratch.file("disk"))?.set_len(64 << 20)?;
        tool::run("mkfs.ext4", [Path::new("-q"), Path::new("-F"), &scratch.file("disk")])?;
        let mut disk = Disk { scratch, mounted: false, _alone: alone };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&mut self) -> Result<()> {
        let mut command = tool::command("mount")?;
        command.args(["-t", "ext4", "-o", OPTIONS]);
        self.run(command.arg(self.scratch.file("disk")).arg(self.scratch.file("mnt")))?;
        self.mounted = true;
        Ok(())
    }

    fn run(&self, command: &mut Command) -> Result<()> {
        ensure!(command.status()?.success(), "{command:?} failed: this test needs root");
        Ok(())
    }

    /// Stops the filesystem where it is, and mounts it again.
    fn cut_power(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    fn stop(&self) -> Result<()> {
        let root = File::open(self.scratch.file("mnt"))?;
        // SAFETY: the request reads one u32, which lives across the call.
        let rc = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &WITHOUT_LOG) };
        ensure!(rc == 0, "the filesystem cannot be stopped: {}", std::io::Error::last_os_error());
        Ok(())
    }

    fn start_again(&mut self) -> Result<()> {
        self.run(tool::command("umount")?.arg(self.scratch.file("mnt")))?;
        self.mounted = false;
        self.mount()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            let _ = tool::run("umount", [Path::new("-l"), &self.scratch.file("mnt")]);
        }
    }
}

fn body(tag: u8, bytes: usize) -> Bytes {
    vec![tag; bytes].into()
}

/// What a filesystem without a sync would lose is lost here: else this test would prove nothing.
#[test]
fn an_unsynced_file_is_lost() -> Result<()> {
    let mut disk = Disk::make()?;
    let file = disk.scratch.file("mnt/unsynced");
    fs::write(&file, "gone")?;
    disk.cut_power()?;
    ensure!(!file.exists());
    Ok(())
}

/// Whatever a put confirmed survives the power cut that follows at once: the volume's own directory, objects in
/// new directories and in old ones, new, replaced, and found to exist already; large ones too, which are written
/// past the page cache.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_put_confirmed_survives_a_power_cut() -> Result<()> {
    let mut disk = Disk::make()?;
    let env: Env = RealEnv::start();
    let root = disk.scratch.file("mnt/tank");
    DirectoryStore::create(&env, &root).await?;
    disk.cut_power()?;
    // An object each: a sync of the filesystem's journal for one would save the others.
    for (n, bytes) in [3000, 300, (2 << 20) + 100].into_iter().enumerate() {
        let key = format!("log/{n}");
        let store = DirectoryStore::open(&env, &root).await?;
        ensure!(store.put_if_absent(&key, body(1, bytes)).await? == Put::Created);
        drop(store);
        disk.cut_power()?;
        let store = DirectoryStore::open(&env, &root).await?;
        ensure!(store.get(&key, 4 << 20).await? == body(1, bytes), "{key} is not what was put");
        store.put("settings.json", body(2, bytes)).await?;
        drop(store);
        disk.cut_power()?;
        let store = DirectoryStore::open(&env, &root).await?;
        ensure!(store.get("settings.json", 4 << 20).await? == body(2, bytes), "it is not what was put");
    }
    Ok(())
}

/// Who hears that an object exists already builds on it, although somebody else has put it: it stays.
#[tokio::test(flavor = "multi_thread")]
async fn what_exists_for_others_survives_a_power_cut() -> Result<()> {
    let mut disk = Disk::make()?;
    let env: Env = RealEnv::start();
    let root = disk.scratch.file("mnt/tank");
    let store = Arc::new(DirectoryStore::create(&env, &root).await?);
    disk.cut_power()?;
    // Another host has named it, and has not yet synced the directory when it dies.
    fs::create_dir(root.join("log"))?;
    let file = File::create(root.join("log/1"))?;
    std::io::Write::write_all(&mut &file, b"theirs")?;
    ensure!(store.put_if_absent("log/1", body(1, 10)).await? == Put::Exists);
    drop(file);
    disk.cut_power()?;
    ensure!(root.join("log/1").exists(), "it was said to exist");
    Ok(())
}

/// A directory behind sshfs, which takes the sync of a directory for done and tells its server nothing of it: what a put confirmed,
/// and what it found to exist, survives the server's power cut all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_put_confirmed_over_sshfs_survives_the_servers_power_cut() -> Result<()> {
    let mut disk = Disk::make()?;
    let env: Env = RealEnv::start();
    let here = disk.scratch.file("mnt/tank");
    for (key, bytes) in [("log/1", 300), ("log/2", (2 << 20) + 100), ("settings.json", 10)] {
        let far = Stacked::mount(Layer::Sshfs, &disk.scratch, &disk.scratch.file("mnt"), "far")?;
        let root = far.path().join("tank");
        let store = DirectoryStore::create(&env, &root).await?;
        if key.starts_with("log") {
            ensure!(store.put_if_absent(key, body(1, bytes)).await? == Put::Created);
        } else {
            store.put(key, body(1, bytes)).await?;
        }
        drop(store);
        disk.stop()?;
        drop(far);
        disk.start_again()?;
        let read = fs::read(here.join(key)).with_context(|| format!("{key} was put"))?;
        ensure!(read == body(1, bytes), "{key} is not what was put");
    }
    // Another host has named it, and nobody has synced that.
    let far = Stacked::mount(Layer::Sshfs, &disk.scratch, &disk.scratch.file("mnt"), "far")?;
    let store = DirectoryStore::open(&env, &far.path().join("tank")).await?;
    fs::write(here.join("log/3"), "theirs")?;
    ensure!(store.put_if_absent("log/3", body(1, 10)).await? == Put::Exists);
    drop(store);
    disk.stop()?;
    drop(far);
    disk.start_again()?;
    ensure!(here.join("log/3").exists(), "it was said to exist");
    Ok(())
}
