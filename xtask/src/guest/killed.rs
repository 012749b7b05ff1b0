//! A daemon of the host whose volume the guest has as a disk, through QEMU's own client of NBD. It is killed every few seconds, until the
//! guest has ended, and nobody asks for a FLUSH before.

use std::{
    path::Path,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, ensure};
use cistern_harness::{
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
};

/// Kills that a case has to see: twenty for each of its two file systems.
const KILLS_MIN: usize = 40;
/// Between a start and the next kill, in turn.
const PAUSES_MS: [u64; 5] = [1500, 3100, 700, 2300, 3900];
/// How long QEMU waits for a daemon that has gone.
const RECONNECT_DELAY_S: u64 = 300;

pub struct KilledDaemon {
    socket: String,
    /// Dropped when it is over.
    over: Sender<()>,
    killer: JoinHandle<Result<usize>>,
    _scratch: Scratch,
}

impl KilledDaemon {
    /// Serves a new volume of that size, and begins to kill.
    pub fn start(binary: &Path, size: &str) -> Result<KilledDaemon> {
        let scratch = Scratch::new("guest-killed")?;
        let url = scratch.file("tank").display().to_string();
        let arguments = ["--create", size, "--journal-size", "256M", "--cache-size", "256M"];
        let serve = Cistern::new(binary).serve(&scratch, url).args(arguments);
        let server = serve.start()?;
        let socket = server.socket().display().to_string();
        let (over, ends) = mpsc::channel();
        let killer = std::thread::spawn(move || kill_until(&ends, &serve, server));
        Ok(KilledDaemon { socket, over, killer, _scratch: scratch })
    }

    /// What gives the guest `/dev/disk/vm/tank`.
    pub fn qemu_arguments(&self) -> [String; 4] {
        let drive = format!(
            "driver=nbd,node-name=tank,server.type=unix,server.path={},export=tank,reconnect-delay={RECONNECT_DELAY_S},discard=unmap",
            self.socket
        );
        let device = "virtio-blk-pci,drive=tank,serial=tank".to_owned();
        ["-blockdev".to_owned(), drive, "-device".to_owned(), device]
    }

    /// The guest has ended.
    pub fn end(self) -> Result<()> {
        drop(self.over);
        let kills = self.killer.join().expect("it does not panic")?;
        println!("{kills} kills of the daemon");
        ensure!(kills >= KILLS_MIN, "that is less than {KILLS_MIN}");
        Ok(())
    }
}

fn kill_until(ends: &mpsc::Receiver<()>, serve: &Serve, mut server: Server) -> Result<usize> {
    for (kills, pause) in PAUSES_MS.into_iter().cycle().enumerate() {
        if ends.recv_timeout(Duration::from_millis(pause)) != Err(RecvTimeoutError::Timeout) {
            server.stop()?;
            return Ok(kills);
        }
        server.kill();
        server = serve.start()?;
    }
    unreachable!("it goes round")
}
