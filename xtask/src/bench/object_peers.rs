//! Peers that serve a device out of the same S3 server: s3backer, and nbdkit's S3 plugin.
//!
//! Both get the same image, uploaded beside the link, and read it through the link with empty caches.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use cistern_harness::{
    minio::{self, BUCKET},
    mount::{self, Access, BlockDevice},
    pidfile::PidFile,
    process::Guard,
    tool,
};

use super::{
    tree::{self, FILESYSTEM_BYTES, SECTOR_BYTES, Walk},
    wan::Wan,
};

/// s3backer's objects. Small ones cost requests, great ones cost bytes.
const OBJECT: &str = "128k";
/// Key of the image as one object, as nbdkit's plugin wants it.
const IMAGE_KEY: &str = "peer/image";
/// s3backer looks for its mount token first.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);
/// It uploads what is dirty before it ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);

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
    tool::run_command(command, FLUSH_LIMIT).map(drop)
}

/// A mounted s3backer. Its file is `file`.
struct S3Backer {
    process: Guard,
    dir: PathBuf,
}

impl S3Backer {
    fn start(wan: &Wan, port: u16) -> Result<S3Backer> {
        let dir = wan.scratch.dir("s3backer")?;
        let log = std::fs::File::create(wan.scratch.file("s3backer.log"))?;
        let mut command = tool::command("s3backer")?;
        command
            .arg(format!("--accessId={}", minio::USER))
            .arg(format!("--accessKey={}", minio::SECRET))
            .arg(format!("--baseURL=http://127.0.0.1:{port}/"))
            .arg(format!("--blockSize={OBJECT}"))
            .arg(format!("--size={FILESYSTEM_BYTES}"))
            .args(["--prefix=peer/s3backer/", "--listBlocks", "--quiet", "-f", BUCKET])
            .arg(&dir)
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut backer = S3Backer { process: Guard::spawn(command)?, dir };
        mount::await_mount(&backer.dir, &mut backer.process, MOUNT_LIMIT)?;
        Ok(backer)
    }

    fn file(&self) -> PathBuf {
        self.dir.join("file")
    }

    /// Unmounts and waits until everything is uploaded.
    fn stop(mut self) -> Result<()> {
        tool::run("umount", [&self.dir])?;
        self.process.wait(FLUSH_LIMIT).context("s3backer").map(drop)
    }
}

impl Drop for S3Backer {
    fn drop(&mut self) {
        if !self.process.has_ended() {
            let _ = tool::run("umount", [Path::new("-l"), &self.dir]);
        }
    }
}

/// Puts the image where both peers find it. Nothing of this crosses the link.
pub fn upload(wan: &Wan, image: &Path) -> Result<()> {
    let backer = S3Backer::start(wan, wan.minio.port())?;
    dd(image, &backer.file(), &["conv=sparse,notrunc,fsync"])?;
    backer.stop()?;
    wan.minio.put(IMAGE_KEY, image)
}

/// The walk through s3backer, with its own cache empty and in memory (128 MB, its default).
pub fn walk_s3backer(wan: &Wan, limit: Duration) -> Result<Walk> {
    let backer = S3Backer::start(wan, wan.link.port())?;
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
