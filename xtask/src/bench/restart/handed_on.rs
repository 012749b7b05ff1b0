//! The longest request of a client that has 64 under way while daemons stop and start, as the kernel has for an attached device. Without a
//! kernel in between, so on the host itself.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{nbd::Client, process::Guard, scratch::Scratch};

use super::super::{
    Plan,
    report::{Bound, Report},
};

const VOLUME: &str = "1G";
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = (1 << 30) / BLOCK_BYTES as u64;
const SCRATCH_GIB: u64 = 6;
const DEPTH: u64 = 64;
const STOPS: usize = 20;
/// Load between two stops.
const BETWEEN: Duration = Duration::from_secs(2);
const LONGEST_S_MAX: f64 = 1.0;
const KEEPER_LIMIT: Duration = Duration::from_secs(10);
const READ: u16 = 0;
const WRITE: u16 = 1;

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let scratch = Scratch::with_room("bench-handed-on", SCRATCH_GIB)?;
    let url = scratch.dir("store")?.join("v").display().to_string();
    plan.cistern.run(&["create", &url, "--size", VOLUME])?;
    let state = scratch.dir("state")?;
    let _keeper = keeper(plan, &state)?;
    // As services do it: whoever stops one waits for no upload.
    let serve = plan.cistern.serve(&scratch, &url).state_dir(state).args(["--drain-timeout", "0s"]);
    let mut server = serve.start()?;
    let load = Load::begin(Client::connect_outliving(server.socket(), "v")?.into_stream());
    thread::sleep(BETWEEN);
    let before_s = load.longest_s();
    let mut away_s: f64 = 0.0;
    for _ in 0..STOPS {
        thread::sleep(BETWEEN);
        let begin = Instant::now();
        server.terminate()?;
        server = serve.start()?;
        away_s = away_s.max(begin.elapsed().as_secs_f64());
    }
    thread::sleep(BETWEEN);
    let (longest_s, requests) = load.end()?;
    server.kill();
    report.row(
        &format!("longest of {DEPTH} requests at a time over {STOPS} stops, on one connection"),
        format!("{:.0} ms", longest_s * 1e3),
        format!(
            "{requests} requests, before the first stop {:.0} ms; no daemon for {:.0} ms at the most",
            before_s * 1e3,
            away_s * 1e3
        ),
        longest_s,
        Bound::AtMost(LONGEST_S_MAX),
    );
    Ok(())
}

/// Who has the connection while there is no daemon.
fn keeper(plan: &Plan, state: &Path) -> Result<Guard> {
    let mut command = plan.cistern.command();
    command.arg("keep-attached").arg("--state-dir").arg(state);
    let keeper = Guard::spawn(command)?;
    let begin = Instant::now();
    while !fs::exists(state.join("attached/keeper.sock"))? {
        ensure!(begin.elapsed() < KEEPER_LIMIT, "`cistern keep-attached` does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(keeper)
}

/// Reads and writes at random, each answered one followed by the next.
struct Load {
    ending: Arc<AtomicBool>,
    longest_us: Arc<AtomicU64>,
    thread: thread::JoinHandle<Result<u64>>,
}

impl Load {
    fn begin(stream: UnixStream) -> Load {
        let (ending, longest_us) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (end, longest) = (ending.clone(), longest_us.clone());
        Load { ending, longest_us, thread: thread::spawn(move || drive(stream, &end, &longest)) }
    }

    fn longest_s(&self) -> f64 {
        self.longest_us.load(SeqCst) as f64 / 1e6
    }

    /// The longest of all, in seconds, and how many there were.
    fn end(self) -> Result<(f64, u64)> {
        self.ending.store(true, SeqCst);
        let requests = self.thread.join().expect("it does not panic")?;
        Ok((self.longest_us.load(SeqCst) as f64 / 1e6, requests))
    }
}

fn drive(mut stream: UnixStream, ending: &AtomicBool, longest_us: &AtomicU64) -> Result<u64> {
    let mut sent = [Instant::now(); DEPTH as usize];
    let (mut requests, mut under_way, mut random) = (0, 0, 1_u64);
    let mut send = |stream: &mut UnixStream, slot: u64, sent: &mut [Instant]| -> Result<()> {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (block, command) = ((random >> 33) % BLOCKS, if random >> 63 == 0 { READ } else { WRITE });
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(u32::from(command).to_be_bytes()); // no flags
        message.extend((slot << 1 | u64::from(command)).to_be_bytes());
        message.extend((block * BLOCK_BYTES as u64).to_be_bytes());
        message.extend((BLOCK_BYTES as u32).to_be_bytes());
        if command == WRITE {
            message.extend([random as u8; BLOCK_BYTES]);
        }
        sent[slot as usize] = Instant::now();
        stream.write_all(&message).context("a request cannot be sent")
    };
    for slot in 0..DEPTH {
        send(&mut stream, slot, &mut sent)?;
        under_way += 1;
    }
    while under_way > 0 {
        let mut head = [0; 16];
        stream.read_exact(&mut head).context("a reply does not come")?;
        ensure!(head[..8] == [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "an error, or no reply: {head:?}");
        let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes"));
        if cookie & 1 == u64::from(READ) {
            stream.read_exact(&mut [0; BLOCK_BYTES])?;
        }
        let slot = cookie >> 1;
        longest_us.fetch_max(sent[slot as usize].elapsed().as_micros() as u64, SeqCst);
        requests += 1;
        match ending.load(SeqCst) {
            true => under_way -= 1,
            false => send(&mut stream, slot, &mut sent)?,
        }
    }
    Ok(requests)
}
