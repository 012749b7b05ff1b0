//! Peers that serve a device out of the same S3 server: s3backer, and nbdkit's S3 plugin.
//!
//! Both get the same image, uploaded beside the link, and read it through the link with empty caches.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;
use cistern_harness::{
    minio::{self, BUCKET},
    mount::{Access, BlockDevice},
    pidfile::PidFile,
    s3backer::S3Backer,
    tool,
};

use super::{
    tree::{self, FILESYSTEM_BYTES, SECTOR_BYTES, Walk},
    wan::Wan,
};

/// s3backer's objects are below it.
const PREFIX: &str = "peer/s3backer/";
/// Key of the image as one object, as nbdkit's plugin wants it.
const IMAGE_KEY: &str = "peer/image";
const COPY_LIMIT: Duration = Duration::from_secs(300);

/// Copies the filesystem's part of a device into a sparse file.
pub fn copy_image(wan: &Wan, device: &BlockDevice) -> Result<PathBuf> {
    let image = wan.scratch.file("image");
    dd(
        device.path(),
        &image,
        &["conv=sparse", &format!("count={}", FILESYSTEM_BYTES >> 22), "iflag=fullblock"],
    )?;
    std::fs::File::options().write(true).open(&image)?.set_len(FILESYSTEM_BYTES)?;
    Ok(image)
}

fn dd(from: &Path, to: &Path, more: &[&str]) -> Result<()> {
    let mut command = tool::command("dd")?;
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display())).arg("bs=4M").args(more);
    tool::run_command(command, COPY_LIMIT).map(drop)
}

/// Puts the image where both peers find it. Nothing of this crosses the link.
pub fn upload(wan: &Wan, image: &Path) -> Result<()> {
    let backer = S3Backer::start(&wan.scratch, wan.minio.port(), PREFIX, FILESYSTEM_BYTES)?;
    dd(image, &backer.file(), &["conv=sparse,notrunc,fsync"])?;
    backer.stop()?;
    wan.minio.put(IMAGE_KEY, image)
}

/// The walk through s3backer, with its own cache empty and in memory (128 MB, its default).
pub fn walk_s3backer(wan: &Wan, limit: Duration) -> Result<Walk> {
    let backer = S3Backer::start(&wan.scratch, wan.link.port(), PREFIX, FILESYSTEM_BYTES)?;
    let device = BlockDevice::of_file(&backer.file(), SECTOR_BYTES, Access::ReadOnly)?;
    let walk = tree::walk(&wan.scratch, device, limit)?;
    backer.stop()?;
    Ok(walk)
}

/// The walk through nbdkit's S3 plugin, which has no cache.
pub fn walk_nbdkit(wan: &Wan, limit: Duration) -> Result<Walk> {
    let pid = PidFile::new(&wan.scratch, "nbdkit-s3")?;
    let socket = wan.scratch.socket("nbdkit-s3");
    let _ = std::fs::remove_file(&socket); // one that was ended in the turn before may have left it
    let mut command: Command = tool::command("nbdkit")?;
    command.arg("--foreground").arg("--pidfile").arg(pid.path()).arg("--unix").arg(&socket);
    command
        .args(["S3", &format!("access-key={}", minio::USER), &format!("secret-key={}", minio::SECRET)])
        .arg(format!("endpoint-url=http://127.0.0.1:{}", wan.link.port()))
        .args([&format!("bucket={BUCKET}"), &format!("key={IMAGE_KEY}")]);
    let _server = pid.start(&wan.scratch, command)?;
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let device = BlockDevice::attach_as(&wan.scratch, &uri, SECTOR_BYTES, Access::ReadOnly)?;
    tree::walk(&wan.scratch, device, limit)
}
