//! Who writes and verifies through the kills. Each has its own part of the volume.
//!
//! - [`Promised`] writes and trims on one connection, and flushes now and then. After a kill everything is read: it has to
//!   be a prefix of what was asked, with all that was flushed before. What was not flushed may be there or not.
//! - [`Fio`] knows nothing of kills. It is behind nbdkit, whose filter `fua` makes every write durable before it is replied
//!   to, and whose filter `retry` asks again on a new connection what got no reply: so whatever fio was told is
//!   promised, and what is written twice is the same. fio by itself would stop at the first error, and would not know which of
//!   its writes were promised. A lap writes every block once in random order and reads all of them. The bytes name lap
//!   and place: fio's checksums alone would pass blocks of the lap before.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::still::Still;
use anyhow::Result;
use cistern_harness::{
    fio, fixture::random_bytes, history::History, pidfile::PidFile, process::Guard, scratch::Scratch,
    serve::Server, tool,
};

const PROMISED_MIB: u64 = 128;
const FIO_MIB: u64 = 280;
/// More than the cleaner can follow at its bound helps nobody.
const PROMISED_MIB_PER_S: u64 = 12;
const FIO_MIB_PER_S: u64 = 8;
/// Most requests between two flushes.
const UNFLUSHED_MAX: u64 = 48;
/// Between two attempts to reach a daemon that is being started.
const AGAIN: Duration = Duration::from_millis(20);
/// A lap through many kills.
const LAP_LIMIT: Duration = Duration::from_secs(3600);
/// How often a request, or a connection, is tried again, a second apart.
const RETRIES: u32 = 150;

/// The client that knows exactly what was promised.
pub struct Promised {
    socket: PathBuf,
    history: History,
    seed: u64,
    pub verified_bytes: u64,
    pub checks: u64,
}

impl Promised {
    pub fn new(socket: &Path, seed: u64) -> Promised {
        let history = History::new(PROMISED_MIB << 8, seed);
        Promised { socket: socket.to_owned(), history, seed, verified_bytes: 0, checks: 0 }
    }

    /// Runs until `over`, which it sets itself when something is wrong. After a kill it has seen everything once `unseen`, the
    /// number of kills since then, is zero.
    pub fn run(&mut self, over: &AtomicBool, unseen: &AtomicU32, still: &Still) -> Result<()> {
        let begin = Instant::now();
        let mut was_killed = false;
        while !over.load(Relaxed) {
            still.pass(over);
            // A kill between two writes shows in no error.
            let step = match was_killed || unseen.load(Relaxed) > 0 {
                true => self.verify_all().map(|()| unseen.store(0, Relaxed)),
                false => self.write(),
            };
            match step {
                Ok(()) => was_killed = false,
                Err(error) if error.chain().any(|cause| cause.is::<std::io::Error>()) => {
                    was_killed = true;
                    std::thread::sleep(AGAIN);
                }
                Err(error) => {
                    over.store(true, Relaxed);
                    return Err(error.context("what was promised is not there"));
                }
            }
            let due =
                Duration::from_secs_f64(self.written_bytes() as f64 / (PROMISED_MIB_PER_S << 20) as f64);
            std::thread::sleep(due.saturating_sub(begin.elapsed()).min(Duration::from_millis(100)));
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.seed = self.seed.wrapping_add(1);
        let drawn = u64::from_le_bytes(random_bytes(8, self.seed).try_into().expect("eight bytes"));
        self.history.write(&self.socket, 1 + (drawn % UNFLUSHED_MAX) as usize)
    }

    /// Reads everything.
    pub fn verify_all(&mut self) -> Result<()> {
        self.history.check(&self.socket, self.history.flushed())?;
        self.checks += 1;
        self.verified_bytes += self.history.bytes();
        Ok(())
    }

    pub fn written_bytes(&self) -> u64 {
        self.history.written_bytes()
    }
}

/// fio behind nbdkit, lap after lap.
pub struct Fio {
    front: Guard,
    uri: String,
    directory: PathBuf,
    seed: u64,
    pub laps: u64,
    pub written_bytes: u64,
    pub verified_bytes: u64,
}

impl Fio {
    pub fn start(scratch: &Scratch, socket: &Path, seed: u64) -> Result<Fio> {
        let front = scratch.socket("front");
        let pid = PidFile::new(scratch, "front")?;
        let mut command = tool::command("nbdkit")?;
        command.arg("--foreground").arg("--pidfile").arg(pid.path()).arg("--unix").arg(&front);
        command.args(["--filter=fua", "--filter=retry", "nbd"]).arg(format!("socket={}", socket.display()));
        command
            .args(["fuamode=force", "retry-delay=1", "retry-exponential=no"])
            .arg(format!("retries={RETRIES}"))
            .arg(format!("retry={RETRIES}"));
        let uri = format!("nbd+unix:///?socket={}", front.display());
        let front = pid.start(scratch, command)?;
        let directory = scratch.dir("fio")?;
        Ok(Fio { front, uri, directory, seed, laps: 0, written_bytes: 0, verified_bytes: 0 })
    }

    /// Runs until `over`, and the lap to its end then; sets it itself when something is wrong.
    pub fn run(&mut self, over: &AtomicBool, still: &Still) -> Result<()> {
        while !over.load(Relaxed) {
            still.pass(over);
            self.laps += 1;
            let lap = fio::nbd(&self.directory, &self.uri, &strs(&self.arguments()), LAP_LIMIT);
            let lap = lap.inspect_err(|_| over.store(true, Relaxed))?;
            self.written_bytes += fio::figures(&lap, "write")?.bytes;
            self.verified_bytes += fio::figures(&lap, "read")?.bytes;
        }
        Ok(())
    }

    /// Reads what the last lap left, without the filters.
    pub fn verify_all(&mut self, server: &Server) -> Result<()> {
        self.front.kill();
        let mut arguments = self.arguments();
        arguments.push("--verify_only".into());
        let read = fio::nbd(&self.directory, &server.uri(), &strs(&arguments), LAP_LIMIT)?;
        self.verified_bytes += fio::figures(&read, "read")?.bytes;
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["--rw=randwrite", "--bs=16k", "--iodepth=16", "--verify=pattern", "--verify_fatal=1"]
                .map(str::to_owned)
                .into();
        arguments.push(format!("--verify_pattern=0x{:016x}%o", self.laps));
        arguments.push(format!("--randseed={}", self.seed.wrapping_add(self.laps)));
        arguments.push(format!("--offset={PROMISED_MIB}m"));
        arguments.push(format!("--size={FIO_MIB}m"));
        arguments.push(format!("--rate=,{FIO_MIB_PER_S}m"));
        arguments
    }
}

fn strs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
