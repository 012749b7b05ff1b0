//! The servers that are measured, each fresh for every run.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf};

use anyhow::Result;
use cistern_harness::{
    fixture,
    pidfile::PidFile,
    process::Guard,
    scratch::Scratch,
    serve::{Cistern, Server},
    tool,
};

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// cistern with a directory store: without a chunk cache unless one is asked for, as it lies on the same disk.
    Cistern,
    /// nbdkit's memory plugin: the ceiling of the protocol on this machine.
    NbdkitMemory,
    /// nbdkit's file plugin on a preallocated file, through the page cache.
    NbdkitFile,
    /// qemu-nbd on a preallocated raw file, O_DIRECT by io_uring.
    QemuNbd,
}

impl Peer {
    pub fn name(self) -> &'static str {
        match self {
            Peer::Cistern => "cistern",
            Peer::NbdkitMemory => "nbdkit memory",
            Peer::NbdkitFile => "nbdkit file",
            Peer::QemuNbd => "qemu-nbd io_uring",
        }
    }
}

/// A running server with its socket. Dropped in this order: server, directories.
pub struct Target {
    cistern: Option<Server>,
    _other: Option<Guard>,
    pub socket: PathBuf,
    pub scratch: Scratch,
}

impl Target {
    /// Starts `peer` with a fresh device of `gib` GiB. `args` are further arguments of `cistern serve`.
    pub fn start(cistern: &Cistern, peer: Peer, gib: u64, args: &[&str]) -> Result<Target> {
        let scratch = Scratch::new("bench")?;
        let socket = scratch.socket("nbd");
        if peer != Peer::Cistern {
            let other = start_other(peer, &scratch, gib)?;
            return Ok(Target { cistern: None, _other: Some(other), socket, scratch });
        }
        let url = fixture::directory_url(&scratch)?;
        cistern.run(&["create", &url, "--size", &format!("{gib}G")])?;
        let server = cistern.serve(&scratch, &url).args(args.iter().copied()).start()?;
        Ok(Target { cistern: Some(server), _other: None, socket, scratch })
    }

    /// The server, when it is cistern.
    pub fn cistern(&self) -> Option<&Server> {
        self.cistern.as_ref()
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

fn start_other(peer: Peer, scratch: &Scratch, gib: u64) -> Result<Guard> {
    let pid = PidFile::new(scratch, "peer")?;
    let socket = scratch.socket("nbd");
    let command = match peer {
        Peer::QemuNbd => {
            let mut command = tool::command("qemu-nbd")?;
            command.args(["--format=raw", "--aio=io_uring", "--cache=none", "--persistent", "--shared=16"]);
            command.arg("--pid-file").arg(pid.path()).arg("--socket").arg(&socket).arg(filled(scratch, gib)?);
            command
        }
        nbdkit => {
            let mut command = tool::command("nbdkit")?;
            command.arg("--foreground").arg("--pidfile").arg(pid.path()).arg("--unix").arg(&socket);
            match nbdkit {
                Peer::NbdkitMemory => command.arg("memory").arg(format!("{gib}G")),
                _ => command.arg("file").arg(filled(scratch, gib)?),
            };
            command
        }
    };
    pid.start(scratch, command)
}

/// A file of `gib` GiB that is allocated and written, so that nobody pays for first use.
pub fn filled(scratch: &Scratch, gib: u64) -> Result<PathBuf> {
    let path = scratch.file("raw");
    let file = File::create(&path)?;
    let piece = fixture::random_bytes(4 << 20, 1);
    for offset in (0..gib << 30).step_by(piece.len()) {
        file.write_all_at(&piece, offset)?;
    }
    file.sync_all()?;
    Ok(path)
}
