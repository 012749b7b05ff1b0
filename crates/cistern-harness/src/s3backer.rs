//! s3backer: a peer that keeps a device in the same S3 server, a block an object, and shows it as a file by FUSE.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    minio::{self, BUCKET},
    mount,
    process::Guard,
    scratch::Scratch,
    tool,
};

/// Bytes of its objects. Small ones cost requests, great ones cost bytes.
const OBJECT: &str = "128k";
/// It looks for its mount token first.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);
/// It uploads what is dirty before it ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);

/// A mounted one, with its cache empty and in memory (128 MB, its default).
pub struct S3Backer {
    process: Guard,
    dir: PathBuf,
}

impl S3Backer {
    /// Of a device of `size_bytes` that lies below `prefix` of the bucket, in the server on `port` of loopback.
    pub fn start(scratch: &Scratch, port: u16, prefix: &str, size_bytes: u64) -> Result<S3Backer> {
        let dir = scratch.dir("s3backer")?;
        let log = std::fs::File::create(scratch.file("s3backer.log"))?;
        let mut command = tool::command("s3backer")?;
        command
            .arg(format!("--accessId={}", minio::USER))
            .arg(format!("--accessKey={}", minio::SECRET))
            .arg(format!("--baseURL=http://127.0.0.1:{port}/"))
            .arg(format!("--blockSize={OBJECT}"))
            .arg(format!("--size={size_bytes}"))
            .arg(format!("--prefix={prefix}"))
            .args(["--listBlocks", "--quiet", "-f", BUCKET])
            .arg(&dir)
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut backer = S3Backer { process: Guard::spawn(command)?, dir };
        mount::await_mount(&backer.dir, &mut backer.process, MOUNT_LIMIT)?;
        Ok(backer)
    }

    /// What the device is.
    pub fn file(&self) -> PathBuf {
        self.dir.join("file")
    }

    /// Unmounts and waits until everything is uploaded.
    pub fn stop(mut self) -> Result<()> {
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
