//! A volume as a block device and a mounted filesystem: nbdfuse, a loop device, mount.
//!
//! Kernel devices outlive processes, so every step is a guard that takes it back in reverse order:
//! gently on [`Mounted::unmount`], lazily on drop (the server may be dead by then). A loop device is gone
//! with the process too, and mounts are where the process has [its own](crate::process::own_mounts).

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    pidfile::PidFile,
    process::{Guard, Limit},
    scratch::Scratch,
    tool,
};

/// nbdfuse connects and mounts within this.
const FUSE_LIMIT: Duration = Duration::from_secs(30);
/// Unmounting writes back what is dirty.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(300);
/// For so long a mount may be busy with what is closed, and is asked again after so much.
const BUSY_LIMIT: Duration = Duration::from_secs(20);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadWrite,
    /// Nothing below sees a write, not even that of a mount.
    ReadOnly,
}

/// An NBD export as a file, through nbdfuse.
pub struct FuseFile {
    process: Guard,
    dir: PathBuf,
}

impl FuseFile {
    pub fn start(scratch: &Scratch, uri: &str, access: Access) -> Result<FuseFile> {
        let dir = scratch.dir("fuse")?;
        let mut command = tool::command("nbdfuse")?;
        let pid_file = PidFile::new(scratch, "nbdfuse")?;
        if access == Access::ReadOnly {
            command.arg("-r");
        }
        command.arg("-P").arg(pid_file.path()).arg(dir.join("nbd")).arg(uri);
        let process = pid_file.start(scratch, command)?;
        Ok(FuseFile { process, dir })
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join("nbd")
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        let _ = tool::run("umount", [Path::new("-l"), &self.dir]);
    }
}

/// A loop device over a file. The kernel takes it back when nobody has it open any more: also when this process is killed, for
/// what stays behind on a file whose server is dead is in the way of whoever looks at every loop device (mkfs.btrfs).
pub struct LoopDevice {
    path: PathBuf,
    /// Keeps it.
    _open: File,
}

impl LoopDevice {
    /// With logical sectors of `sector_bytes`.
    pub fn attach(file: &Path, sector_bytes: u32, access: Access) -> Result<LoopDevice> {
        let mut command = tool::command("losetup")?;
        if access == Access::ReadOnly {
            command.arg("--read-only");
        }
        command.args(["--find", "--show", "--sector-size", &sector_bytes.to_string()]).arg(file);
        let out = tool::run_command(command, tool::RUN_LIMIT)?;
        let path = PathBuf::from(out.stdout.trim());
        let open = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        // Of one that is open the kernel understands: as soon as it no longer is.
        tool::run("losetup", [Path::new("--detach"), &path])?;
        Ok(LoopDevice { path, _open: open })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A volume as a block device. Fields are dropped in this order: device, then file.
pub struct BlockDevice {
    device: LoopDevice,
    /// None where the file is somebody else's.
    fuse: Option<FuseFile>,
    access: Access,
}

impl BlockDevice {
    /// Attaches the export at `uri`, with logical sectors of `sector_bytes`.
    pub fn attach(scratch: &Scratch, uri: &str, sector_bytes: u32) -> Result<BlockDevice> {
        BlockDevice::attach_as(scratch, uri, sector_bytes, Access::ReadWrite)
    }

    /// As [`BlockDevice::attach`], for this kind of access.
    pub fn attach_as(scratch: &Scratch, uri: &str, sector_bytes: u32, access: Access) -> Result<BlockDevice> {
        let fuse = FuseFile::start(scratch, uri, access)?;
        let device = LoopDevice::attach(&fuse.file(), sector_bytes, access)?;
        Ok(BlockDevice { device, fuse: Some(fuse), access })
    }

    /// A file that is there already, such as another program's FUSE file.
    pub fn of_file(file: &Path, sector_bytes: u32, access: Access) -> Result<BlockDevice> {
        Ok(BlockDevice { device: LoopDevice::attach(file, sector_bytes, access)?, fuse: None, access })
    }

    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Flushes the device and takes everything back; any error is one.
    pub fn detach(self) -> Result<()> {
        let BlockDevice { device, fuse, .. } = self;
        tool::run("blockdev", [Path::new("--flushbufs"), device.path()])?;
        drop(device);
        let Some(mut fuse) = fuse else { return Ok(()) };
        // Whoever looks at every device just now (a scan for btrfs) keeps the loop device, and so the file,
        // for a moment longer: nbdfuse ends when the last one lets go.
        tool::run("umount", [Path::new("--lazy"), &fuse.dir])?;
        let status = fuse.process.wait(FUSE_LIMIT)?;
        if !status.success() {
            bail!("nbdfuse ended with {status}");
        }
        Ok(())
    }
}

/// Waits until something is mounted on `dir`, by the kernel's notice that the mounts changed.
pub fn await_mount(dir: &Path, by: &mut Guard, limit: Duration) -> Result<()> {
    let mounts = File::open("/proc/self/mountinfo")?;
    let seconds = limit.as_secs();
    let mut limit = Limit::new(limit);
    loop {
        let text = std::fs::read_to_string("/proc/self/mountinfo")?;
        if text.lines().any(|line| line.split(' ').nth(4) == dir.to_str()) {
            return Ok(());
        }
        if by.has_ended() {
            bail!("the program that was to mount {} ended", dir.display());
        }
        let Some(wait) = limit.next_wait() else {
            bail!("nothing was mounted on {} within {seconds} s of an idle machine", dir.display());
        };
        let mut polls = [
            libc::pollfd { fd: mounts.as_raw_fd(), events: libc::POLLPRI, revents: 0 },
            libc::pollfd { fd: by.ended_fd(), events: libc::POLLIN, revents: 0 },
        ];
        // SAFETY: `polls` is a valid array of two for the duration of the call.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, wait.as_millis() as i32) };
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

impl MountPoint {
    fn try_unmount(&self) -> Result<()> {
        let mut command = tool::command("umount")?;
        command.arg(&self.dir);
        tool::run_command(command, UNMOUNT_LIMIT).map(drop)
    }
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
        let options = if device.access == Access::ReadOnly { "ro" } else { "rw" };
        let mut command = tool::command("mount")?;
        command.args(["-t", kind, "-o", options]).arg(device.path()).arg(&dir);
        tool::run_command(command, tool::RUN_LIMIT)?;
        Ok(Mounted { mount: MountPoint { dir, mounted: true }, device })
    }

    pub fn dir(&self) -> &Path {
        &self.mount.dir
    }

    /// Unmounts and gives the device back.
    ///
    /// A process that another thread starts has this one's files open until it runs its own program, also one on the mount that is closed here by
    /// now: while the kernel says "busy", it is asked again.
    pub fn unmount(mut self) -> Result<BlockDevice> {
        let mut limit = Limit::new(BUSY_LIMIT);
        while let Err(error) = self.mount.try_unmount() {
            let wait = limit.next_wait().filter(|_| error.to_string().contains("busy"));
            std::thread::sleep(wait.ok_or(error).context("umount")?.min(BUSY_PAUSE));
        }
        self.mount.mounted = false;
        Ok(self.device)
    }

    /// Takes everything back after the server died: what was not written is lost, as in a power cut.
    pub fn crash(mut self) -> Result<()> {
        if self.mount.try_unmount().is_err() {
            tool::run("umount", [Path::new("-l"), &self.mount.dir])?;
        }
        self.mount.mounted = false;
        let BlockDevice { device, fuse, .. } = self.device;
        drop(device);
        if let Some(mut fuse) = fuse {
            fuse.process.kill();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel takes a loop device back when its process is gone, however it ended.
    #[test]
    fn a_loop_device_does_not_outlive_its_process() {
        let scratch = Scratch::new("loop").expect("a directory");
        let file = scratch.file("image");
        File::create(&file).and_then(|file| file.set_len(1 << 20)).expect("a file");
        let device = LoopDevice::attach(&file, 512, Access::ReadWrite).expect("a loop device");
        let name = device.path().file_name().expect("it has one");
        let of_kernel = Path::new("/sys/block").join(name).join("loop/autoclear");
        assert_eq!(std::fs::read_to_string(of_kernel).expect("it is attached").trim(), "1");
    }
}
