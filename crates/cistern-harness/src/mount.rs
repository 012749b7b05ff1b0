//! A volume as a block device and a mounted filesystem: nbdfuse, a loop device, mount.
//!
//! Kernel devices outlive processes, so every step is a guard that takes it back in reverse order:
//! gently on [`Mounted::unmount`], lazily on drop (the server may be dead by then).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{pidfile::PidFile, process::Guard, scratch::Scratch, tool};

/// nbdfuse connects and mounts within this.
const FUSE_LIMIT: Duration = Duration::from_secs(30);
/// Unmounting writes back what is dirty.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(300);

/// An NBD export as a file, through nbdfuse.
struct FuseFile {
    process: Guard,
    dir: PathBuf,
}

impl FuseFile {
    fn start(scratch: &Scratch, uri: &str) -> Result<FuseFile> {
        let dir = scratch.dir("fuse")?;
        let mut command = tool::command("nbdfuse")?;
        let pid_file = PidFile::new(scratch, "nbdfuse")?;
        command.arg("-P").arg(pid_file.path()).arg(dir.join("nbd")).arg(uri);
        let process = pid_file.start(scratch, command)?;
        Ok(FuseFile { process, dir })
    }

    fn file(&self) -> PathBuf {
        self.dir.join("nbd")
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        let _ = tool::run("umount", [Path::new("-l"), &self.dir]);
    }
}

/// A loop device over a file.
struct LoopDevice {
    path: PathBuf,
    attached: bool,
}

impl LoopDevice {
    fn attach(file: &Path, sector_bytes: u32) -> Result<LoopDevice> {
        let sectors = sector_bytes.to_string();
        let out = tool::run(
            "losetup",
            [
                "--find".as_ref(),
                "--show".as_ref(),
                "--sector-size".as_ref(),
                sectors.as_ref(),
                file.as_os_str(),
            ],
        )?;
        Ok(LoopDevice { path: PathBuf::from(out.stdout.trim()), attached: true })
    }

    fn detach(&mut self) -> Result<()> {
        self.attached = false;
        tool::run("losetup", [Path::new("--detach"), &self.path]).map(drop)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.attached {
            let _ = self.detach();
        }
    }
}

/// A volume as a block device. Fields are dropped in this order: device, then file.
pub struct BlockDevice {
    device: LoopDevice,
    fuse: FuseFile,
}

impl BlockDevice {
    /// Attaches the export at `uri`, with logical sectors of `sector_bytes`.
    pub fn attach(scratch: &Scratch, uri: &str, sector_bytes: u32) -> Result<BlockDevice> {
        let fuse = FuseFile::start(scratch, uri)?;
        let device = LoopDevice::attach(&fuse.file(), sector_bytes)?;
        Ok(BlockDevice { device, fuse })
    }

    pub fn path(&self) -> &Path {
        &self.device.path
    }

    /// Flushes the device and takes everything back; any error is one.
    pub fn detach(mut self) -> Result<()> {
        tool::run("blockdev", [Path::new("--flushbufs"), self.path()])?;
        self.device.detach()?;
        let dir = self.fuse.dir.clone();
        tool::run("umount", [&dir])?;
        let status = self.fuse.process.wait(FUSE_LIMIT)?;
        if !status.success() {
            bail!("nbdfuse ended with {status}");
        }
        Ok(())
    }
}

/// A mounted filesystem on a volume. Fields are dropped in this order: mount, then device.
pub struct Mounted {
    mount: MountPoint,
    device: BlockDevice,
}

struct MountPoint {
    dir: PathBuf,
    mounted: bool,
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if self.mounted {
            let _ = tool::run("umount", [Path::new("-l"), &self.dir]);
        }
    }
}

impl Mounted {
    /// Mounts the filesystem that is on `device`.
    pub fn mount(scratch: &Scratch, device: BlockDevice, kind: &str) -> Result<Mounted> {
        let dir = scratch.dir("mnt")?;
        tool::run("mount", ["-t".as_ref(), kind.as_ref(), device.path().as_os_str(), dir.as_os_str()])?;
        Ok(Mounted { mount: MountPoint { dir, mounted: true }, device })
    }

    pub fn dir(&self) -> &Path {
        &self.mount.dir
    }

    /// Unmounts and gives the device back.
    pub fn unmount(mut self) -> Result<BlockDevice> {
        let mut command = tool::command("umount")?;
        command.arg(&self.mount.dir);
        tool::run_command(command, UNMOUNT_LIMIT).context("umount")?;
        self.mount.mounted = false;
        Ok(self.device)
    }

    /// Takes everything back after the server died: what was not written is lost, as in a power cut.
    pub fn crash(mut self) -> Result<()> {
        let mut command = tool::command("umount")?;
        command.arg(&self.mount.dir);
        if tool::run_command(command, UNMOUNT_LIMIT).is_err() {
            tool::run("umount", [Path::new("-l"), &self.mount.dir])?;
        }
        self.mount.mounted = false;
        self.device.device.detach()?;
        self.device.fuse.process.kill();
        Ok(())
    }
}
