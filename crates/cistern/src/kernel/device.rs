//! `/dev/nbdN` and `/dev/ublkbN`, and what the kernel tells of them below `/sys/block`.

use std::{
    fmt, fs,
    io::{Error, ErrorKind, Result},
    os::fd::AsRawFd,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use cistern_engine::aligned::AlignedBuf;
use cistern_ublk::{UblkControl, UblkState};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{
    BLOCK_BYTES,
    mounts::{Mount, mounts},
    ublk::ublk_mark,
};

/// After how long a request that waits for a new connection is looked at, in milliseconds, and again as long after that; the kernel adds a second to
/// it, so as to look at many at a time. It sends them again at the first such moment behind the connection. The default is 30 s; where
/// it is less, the kernel's log has a line for more of those that are merely slow (docs/design/attach.md).
const TICK_MS: u32 = 400;
/// Reads a table of partitions again (`linux/fs.h`).
const BLKRRPART: libc::c_ulong = 0x125f;
/// Sectors of sysfs.
const SECTOR_BYTES: u64 = 512;

/// What makes devices of volumes in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceDriver {
    /// Its NBD client
    #[default]
    Nbd,
    /// Its userspace block driver
    Ublk,
}

/// A device by its driver and number. Written as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// Of the kernel's NBD client.
    Nbd(u32),
    /// Of the kernel's userspace block driver.
    Ublk(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/{}", self.name())
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.name()
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<Device, String> {
        Device::named(&name).ok_or_else(|| format!("{name} is no device of ours"))
    }
}

impl Device {
    /// All of the kernel's NBD client, ascending.
    pub fn all_nbd() -> Result<Vec<Device>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/sys/block")? {
            let name = entry?.file_name();
            let device = name.to_str().and_then(Device::named);
            all.extend(device.filter(|device| matches!(device, Device::Nbd(_))));
        }
        all.sort_unstable();
        Ok(all)
    }

    fn named(name: &str) -> Option<Device> {
        let number = |prefix| name.strip_prefix(prefix).and_then(|number| number.parse().ok());
        number("nbd").map(Device::Nbd).or_else(|| number("ublkb").map(Device::Ublk))
    }

    /// Its name in the kernel.
    pub fn name(&self) -> String {
        match self {
            Device::Nbd(number) => format!("nbd{number}"),
            Device::Ublk(number) => format!("ublkb{number}"),
        }
    }

    /// The one that a path names.
    pub fn at(path: &Path) -> Result<Device> {
        let wrong = |why: &str| Error::new(ErrorKind::InvalidInput, format!("{}: {why}", path.display()));
        let metadata = fs::metadata(path)?;
        if !metadata.file_type().is_block_device() {
            return Err(wrong("it is not a block device"));
        }
        let link =
            format!("/sys/dev/block/{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        let target = fs::read_link(link)?;
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Device::named(name)
            .ok_or_else(|| wrong("it is not a whole device of the kernel's NBD client or of ublk"))
    }

    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(self.name())
    }

    fn sys(&self, what: &str) -> PathBuf {
        Path::new("/sys/block").join(self.name()).join(what)
    }

    /// Whether somebody attached something to it.
    pub fn is_attached(&self) -> bool {
        match self {
            Device::Nbd(_) => self.sys("pid").exists(),
            // Also one that was made and not started.
            Device::Ublk(number) => Path::new(&format!("/sys/class/ublk-char/ublkc{number}")).exists(),
        }
    }

    /// What a device of the NBD client was said to show when it was attached.
    pub fn backend(&self) -> Option<String> {
        let backend = fs::read_to_string(self.sys("backend")).ok()?;
        Some(backend.trim_end().to_owned())
    }

    /// Whether this is what it was said to show.
    pub fn shows(&self, backend: &str) -> bool {
        match self {
            Device::Nbd(_) => self.is_attached() && self.backend().as_deref() == Some(backend),
            Device::Ublk(number) => UblkControl::open()
                .and_then(|mut control| control.info(*number))
                .is_ok_and(|info| info.mark == ublk_mark(backend)),
        }
    }

    /// Whether requests wait because who served it is gone. Of a device of the NBD client the kernel tells when it happens.
    pub fn is_orphaned(&self) -> bool {
        match self {
            Device::Nbd(_) => false,
            Device::Ublk(number) => UblkControl::open()
                .and_then(|mut control| control.info(*number))
                .is_ok_and(|info| info.state == UblkState::Orphaned),
        }
    }

    pub fn size_bytes(&self) -> Result<u64> {
        let sectors = fs::read_to_string(self.sys("size"))?;
        let sectors: u64 = sectors.trim().parse().map_err(|_| ErrorKind::InvalidData)?;
        Ok(sectors * SECTOR_BYTES)
    }

    /// Requests that were sent and not answered. Those that wait for a connection the kernel does not count.
    pub fn in_flight(&self) -> Result<u64> {
        let counts = fs::read_to_string(self.sys("inflight"))?;
        Ok(counts.split_whitespace().filter_map(|count| count.parse::<u64>().ok()).sum())
    }

    /// Sets what a queue needs so that a dead connection is a short pause, and a TRIM of everything few requests.
    pub fn tune(&self) -> Result<()> {
        if matches!(self, Device::Nbd(_)) {
            fs::write(self.sys("queue/io_timeout"), TICK_MS.to_string())?;
        }
        let most = fs::read_to_string(self.sys("queue/discard_max_hw_bytes"))?;
        // Some kernels do not let it be set.
        let _ = fs::write(self.sys("queue/discard_max_bytes"), most.trim());
        Ok(())
    }

    /// Reads a block from behind the kernel's cache. Waits while the connection is dead.
    pub fn read_block(&self) -> Result<()> {
        let file = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(self.path())?;
        file.read_exact_at(&mut AlignedBuf::zeroed(BLOCK_BYTES as usize), 0)
    }

    /// Who uses it: mounts, swap, other devices on top of it or of its partitions, or somebody who has opened it for himself alone.
    pub fn users(&self) -> Result<Vec<String>> {
        if !self.path().exists() {
            return Ok(Vec::new()); // never started
        }
        let parts = self.parts()?;
        let mut users = Vec::new();
        let is_of_it = |mount: &Mount| parts.iter().any(|part| part.number == mount.number);
        for mount in mounts()?.iter().filter(|mount| is_of_it(mount)) {
            users.push(format!("it is mounted on {}", mount.at.display()));
        }
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        for part in &parts {
            let path = format!("/dev/{}", part.name);
            if swaps.lines().any(|line| line.split_whitespace().next() == Some(&path)) {
                users.push(format!("{path} is swap"));
            }
            for holder in fs::read_dir(part.sys.join("holders")).into_iter().flatten().flatten() {
                users.push(format!("{} is on top of {path}", holder.file_name().to_string_lossy()));
            }
        }
        if users.is_empty() && self.is_held()? {
            users.push("somebody has it for himself alone, like a ZFS pool that is imported".into());
        }
        Ok(users)
    }

    /// Whether somebody opened it exclusively.
    fn is_held(&self) -> Result<bool> {
        let opened =
            fs::File::options().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(self.path());
        match opened {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(true),
            Err(e) => Err(e),
            Ok(_) => Ok(false),
        }
    }

    /// Makes the volume behind it durable. Through a descriptor that cannot write: udev reads a device again that somebody closes who could.
    pub fn sync(&self) -> Result<()> {
        fs::File::open(self.path())?.sync_all()
    }

    /// Its partitions. Where the kernel knows none it is asked to look again.
    pub fn partitions(&self) -> Result<Vec<PathBuf>> {
        if self.parts()?.len() == 1 {
            let file = fs::File::open(self.path())?;
            // SAFETY: takes no argument, and the descriptor lives through the call.
            let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKRRPART) };
            if result != 0 {
                return Err(Error::last_os_error());
            }
        }
        let mut found: Vec<PathBuf> =
            self.parts()?.into_iter().skip(1).map(|part| Path::new("/dev").join(part.name)).collect();
        found.sort();
        Ok(found)
    }

    /// Whether a path is that of the device or of a partition of it.
    pub fn has(&self, path: &Path) -> bool {
        let own = self.path();
        let own = own.to_str().expect("it is ASCII");
        let rest = path.to_str().and_then(|path| path.strip_prefix(own));
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.strip_prefix('p').is_some_and(|n| n.parse::<u32>().is_ok())
        })
    }

    /// Itself and its partitions.
    fn parts(&self) -> Result<Vec<Part>> {
        let own = self.sys("");
        let mut parts = vec![Part::read(&own)?];
        for entry in fs::read_dir(&own)? {
            let path = entry?.path();
            if path.join("partition").exists() {
                parts.push(Part::read(&path)?);
            }
        }
        Ok(parts)
    }
}

/// A device or a partition.
struct Part {
    name: String,
    /// As mounts tell it.
    number: String,
    sys: PathBuf,
}

impl Part {
    fn read(sys: &Path) -> Result<Part> {
        let number = fs::read_to_string(sys.join("dev"))?.trim().to_owned();
        let name = sys.components().next_back().map(|name| name.as_os_str().to_string_lossy().into_owned());
        Ok(Part { name: name.unwrap_or_default(), number, sys: sys.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition is of the device whose number it has, and of no other that begins alike.
    #[test]
    fn partitions_are_of_their_device() {
        let has = |path: &str| Device::Nbd(1).has(Path::new(path));
        assert!(has("/dev/nbd1") && has("/dev/nbd1p1") && has("/dev/nbd1p15"));
        assert!(
            !has("/dev/nbd10")
                && !has("/dev/nbd10p1")
                && !has("/dev/nbd1p")
                && !has("/dev/nbd")
                && !has("tank")
        );
    }
}
