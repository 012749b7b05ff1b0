//! A directory as a file system of user space shows it. Mounted twice, one directory has two file systems that know nothing of each
//! other's locks.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{scratch::Scratch, tool};

/// What sshfs speaks to.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// What shows the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// By way of a server of its own and without a network.
    Sshfs,
    Bindfs,
    /// Takes O_DIRECT for opening and reading, and refuses such writes.
    Mergerfs,
    /// Encrypts what lies in the directory.
    Gocryptfs,
}

impl Layer {
    pub const ALL: [Layer; 4] = [Layer::Sshfs, Layer::Bindfs, Layer::Mergerfs, Layer::Gocryptfs];

    /// Makes an empty directory ready to be shown.
    pub fn prepare(self, directory: &Path) -> Result<()> {
        if self == Layer::Gocryptfs {
            let init = [Path::new("-q"), Path::new("-init"), Path::new("-extpass"), Path::new("echo secret")];
            tool::run("gocryptfs", init.into_iter().chain([directory]))?;
        }
        Ok(())
    }
}

/// A mount; dropped, it is gone.
pub struct Stacked {
    mount: PathBuf,
}

impl Stacked {
    /// Shows `directory` under `name` in the scratch.
    pub fn mount(layer: Layer, scratch: &Scratch, directory: &Path, name: &str) -> Result<Stacked> {
        let mount = scratch.dir(name)?;
        match layer {
            Layer::Sshfs => {
                let server = scratch.file("server.sh");
                fs::write(&server, format!("#!/bin/sh\nexec {}\n", tool::find(SFTP_SERVER)?.display()))?;
                fs::set_permissions(&server, fs::Permissions::from_mode(0o700))?;
                let place = format!("host:{}", directory.display());
                let option = format!("ssh_command={}", server.display());
                tool::run("sshfs", [Path::new("-o"), option.as_ref(), place.as_ref(), &mount])?;
            }
            Layer::Bindfs => drop(tool::run("bindfs", [directory, &mount])?),
            Layer::Mergerfs => {
                let room = Path::new("minfreespace=1M");
                drop(tool::run("mergerfs", [Path::new("-o"), room, directory, &mount])?);
            }
            Layer::Gocryptfs => {
                let options = [Path::new("-q"), Path::new("-extpass"), Path::new("echo secret")];
                tool::run("gocryptfs", options.into_iter().chain([directory, &mount]))?;
            }
        }
        Ok(Stacked { mount })
    }

    pub fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for Stacked {
    fn drop(&mut self) {
        let _ = tool::run("fusermount3", [Path::new("-u"), Path::new("-z"), &self.mount]);
    }
}
