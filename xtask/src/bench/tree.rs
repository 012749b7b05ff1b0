//! A tree of many small files, always the same, and a walk through it with cold kernel caches.

use std::{
    fs::File,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    filesystem::Kind,
    fixture::random_bytes,
    mount::{BlockDevice, Mounted},
    process::Guard,
    scratch::Scratch,
    tool,
};

/// Files in each of the innermost directories.
const FILES: usize = 50;
/// The greatest size of a file; sizes are spread evenly below.
const FILE_BYTES_MAX: usize = 8 << 10;
/// The part of a device that the filesystem takes.
pub const FILESYSTEM_BYTES: u64 = 2 << 30;
/// Logical sectors of the devices.
pub const SECTOR_BYTES: u32 = 4096;

/// Makes ext4 on the first `FILESYSTEM_BYTES` of a device.
pub fn make_filesystem(device: &BlockDevice) -> Result<()> {
    let mut command = tool::command("mkfs.ext4")?;
    // An inode for every 8 KiB: the default has too few for small files.
    command.args(["-q", "-F", "-b", "4096", "-i", "8192"]).arg(device.path());
    command.arg((FILESYSTEM_BYTES / 4096).to_string());
    tool::run_command(command, tool::RUN_LIMIT).map(drop)
}

/// Directories three deep, `width` in each, with files in the innermost. Gives the number of entries.
pub fn fill(root: &Path, width: usize) -> Result<usize> {
    let content = random_bytes(FILE_BYTES_MAX + width * width * width * FILES, 3);
    let mut entries = 0;
    let mut number = 0;
    for a in 0..width {
        for b in 0..width {
            for c in 0..width {
                let dir = root.join(format!("part-{a:02}/group-{b:02}/set-{c:02}"));
                std::fs::create_dir_all(&dir)?;
                for file in 0..FILES {
                    let bytes = number * 2_654_435_761 % FILE_BYTES_MAX;
                    std::fs::write(
                        dir.join(format!("item-{file:03}.dat")),
                        &content[number..number + bytes],
                    )?;
                    number += 1;
                }
                entries += 1 + FILES;
            }
            entries += 1;
        }
        entries += 1;
    }
    Ok(entries)
}

/// What a walk did.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub mount_s: f64,
    pub walk_s: f64,
    pub entries: usize,
    /// Stopped at the limit before the end.
    pub cut: bool,
}

impl Walk {
    /// From the mount on: it fetches what the walk would.
    pub fn total_s(&self) -> f64 {
        self.mount_s + self.walk_s
    }

    /// Seconds as a table shows them; a walk that was cut says how far it had come.
    pub fn shown(&self, expected: usize) -> String {
        let (total, mount) = (self.total_s(), self.mount_s);
        if self.cut {
            let percent = self.entries as f64 * 100.0 / expected as f64;
            format!(">= {total:.0} s (stopped at {percent:.0} % of the entries)")
        } else {
            format!("{total:.2} s (mount {mount:.2})")
        }
    }
}

/// Mounts the filesystem and reads all its metadata once with `find -ls`, for at most `limit`.
///
/// The device was just attached and is taken away afterwards, so nothing of it is in the kernel's caches.
pub fn walk(scratch: &Scratch, device: BlockDevice, limit: Duration) -> Result<Walk> {
    let begin = Instant::now();
    let mounted = Kind::Ext4.mount(scratch, device)?;
    let mount_s = begin.elapsed().as_secs_f64();
    let walk = find(scratch, &mounted, mount_s, limit)?;
    mounted.unmount()?.detach()?;
    Ok(walk)
}

fn find(scratch: &Scratch, mounted: &Mounted, mount_s: f64, limit: Duration) -> Result<Walk> {
    let listing = scratch.file("listing");
    let mut command: Command = tool::command("find")?;
    command.arg(mounted.dir()).arg("-ls").stdout(File::create(&listing)?);
    let begin = Instant::now();
    let mut process = Guard::spawn(command)?;
    let ended = process.wait(limit);
    let walk_s = begin.elapsed().as_secs_f64();
    let cut = ended.is_err();
    if let Ok(status) = ended {
        ensure!(status.success(), "find: {status}");
    }
    let bytes = std::fs::read(&listing).context("find's listing")?;
    // Not the root, and not lost+found.
    let entries = bytes.iter().filter(|b| **b == b'\n').count().saturating_sub(2);
    Ok(Walk { mount_s, walk_s, entries, cut })
}
