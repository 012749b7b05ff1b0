//! Clients by hand against the real binary: a stop in the middle of their work, and clients that take much memory
//! and give little.

mod daemon;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use daemon::{Daemon, Home};

const CREATE: [&str; 3] = ["./tank", "--create", "1G"];
const MIB: u64 = 1 << 20;

const READ: u16 = 0;
const WRITE: u16 = 1;

/// A client with simple replies.
struct Client(UnixStream);

impl Client {
    fn connect(home: &Home) -> Client {
        let mut stream = UnixStream::connect(home.path("run/tank.sock")).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout can be set");
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        // Fixed newstyle without zeroes; EXPORT_NAME of the default export.
        stream
            .write_all(&[&3u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat())
            .expect("sent");
        stream.read_exact(&mut [0; 10]).expect("size and flags");
        Client(stream)
    }

    fn send(&mut self, command: u16, cookie: u64, offset: u64, len: u32) {
        self.0.write_all(&header(command, cookie, offset, len)).expect("sent");
    }

    /// Errno and cookie of the next reply; `None` at the end.
    fn reply(&mut self) -> Option<(u32, u64)> {
        let mut reply = [0; 16];
        let mut have = 0;
        while have < reply.len() {
            match self.0.read(&mut reply[have..]) {
                Ok(0) => break,
                Ok(len) => have += len,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(have == 0 || have == 16, "the stream ends inside a reply");
        let errno = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        (have == 16).then(|| (errno, u64::from_be_bytes(reply[8..].try_into().expect("eight bytes"))))
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.send(READ, 1, offset, len as u32);
        assert_eq!(self.reply(), Some((0, 1)));
        let mut data = vec![0; len];
        self.0.read_exact(&mut data).expect("data");
        data
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.send(WRITE, 1, offset, data.len() as u32);
        self.0.write_all(data).expect("sent");
        assert_eq!(self.reply(), Some((0, 1)));
    }
}

fn header(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

/// The most memory a daemon ever had, in bytes.
fn peak_bytes(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Works as a well-behaved client until the daemon's memory has stopped to grow; gives its peak.
fn work_until_steady(daemon: &Daemon, client: &mut Client) -> u64 {
    let mut peak = 0;
    let mut same = 0;
    while same < 10 {
        for n in 0..200u64 {
            let data = [n as u8 + 1; 4096];
            client.write(512 * MIB + n * 4096, &data);
            assert_eq!(client.read(512 * MIB + n * 4096, 4096), data);
        }
        client.read(0, 1 << 20);
        let now = peak_bytes(daemon);
        same = if now == peak { same + 1 } else { 0 };
        peak = now;
    }
    peak
}

/// A hundred clients that ask for 32 MiB each and take nothing cost no more than the memory that was given, and
/// whoever asks for little is served all the time.
#[test]
fn replies_that_nobody_takes_are_bounded() {
    let home = Home::new();
    let daemon = home.start(&[&CREATE[..], &["--memory", "128M"]].concat());
    let mut good = Client::connect(&home);
    for n in 0..32 {
        good.write(n * MIB, &vec![n as u8 + 1; MIB as usize]);
    }
    drop(good);
    daemon.stop();
    // From here on each read of them has memory of its own.
    let daemon = home.start(&["./tank", "--memory", "128M"]);
    let mut good = Client::connect(&home);
    let mut greedy: Vec<Client> = (0..100).map(|_| Client::connect(&home)).collect();
    for client in &mut greedy {
        client.send(READ, 1, 0, 32 << 20);
    }
    let peak = work_until_steady(&daemon, &mut good);
    assert!(peak <= 256 * MIB, "{} MiB at --memory 128M", peak / MIB);
    drop(greedy);
    good.read(0, 32 << 20);
    daemon.stop();
}

/// Clients that begin to write 32 MiB each and never finish cost no more than the memory that was given either.
#[test]
fn writes_that_nobody_finishes_are_bounded() {
    let home = Home::new();
    let daemon = home.start(&[&CREATE[..], &["--memory", "128M"]].concat());
    let mut good = Client::connect(&home);
    let mut bad: Vec<Client> = (0..40).map(|_| Client::connect(&home)).collect();
    for client in &mut bad {
        client.send(WRITE, 1, 0, 32 << 20);
        client.0.set_nonblocking(true).expect("nonblocking");
    }
    let (part, mut left) = (vec![1; 64 << 10], vec![(32 << 20) - 1; bad.len()]);
    let mut idle = 0;
    while idle < 1000 {
        let mut sent = 0;
        for (client, left) in bad.iter_mut().zip(&mut left) {
            let len = client.0.write(&part[..part.len().min(*left)]).unwrap_or(0);
            *left -= len;
            sent += len;
        }
        idle = if sent == 0 { idle + 1 } else { 0 };
        good.read(0, 4096);
    }
    let peak = work_until_steady(&daemon, &mut good);
    assert!(peak <= 256 * MIB, "{} MiB at --memory 128M", peak / MIB);
    drop(bad);
    good.write(0, &vec![7; 32 << 20]);
    daemon.stop();
}

/// A stop is no error for clients: each request is either done and answered with success, or not read at all. What
/// was acknowledged is there afterwards.
#[test]
fn a_stop_is_no_error() {
    /// Blocks of 4 KiB of each client.
    const BLOCKS: u64 = 60_000;
    let place = |client: u64, n: u64| client * 256 * MIB + n * 4096;
    let home = Home::new();
    let daemon = home.start(&CREATE);
    let (begun, begins) = std::sync::mpsc::channel();
    let clients: Vec<_> = (0..4)
        .map(|id| {
            let mut client = Client::connect(&home);
            let mut sender = client.0.try_clone().expect("clone");
            std::thread::spawn(move || {
                for n in 0..BLOCKS {
                    let request =
                        [header(WRITE, n, place(id, n), 4096), n.to_be_bytes().repeat(512)].concat();
                    if sender.write_all(&request).is_err() {
                        return;
                    }
                }
            });
            let begun = begun.clone();
            std::thread::spawn(move || {
                let mut acknowledged = Vec::new();
                while let Some((errno, cookie)) = client.reply() {
                    assert_eq!(errno, 0, "after {} replies", acknowledged.len());
                    acknowledged.push(cookie);
                    if acknowledged.len() == 6000 {
                        // The journal is so full by now that writes wait.
                        begun.send(()).expect("the test waits");
                    }
                }
                acknowledged
            })
        })
        .collect();
    for _ in &clients {
        begins.recv().expect("it gets that far");
    }
    daemon.signal(libc::SIGTERM);
    let acknowledged: Vec<Vec<u64>> =
        clients.into_iter().map(|reading| reading.join().expect("no error reply")).collect();
    let ended = daemon.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let daemon = home.start(&["./tank"]);
    let mut client = Client::connect(&home);
    for (id, acknowledged) in acknowledged.into_iter().enumerate() {
        for n in acknowledged {
            assert_eq!(
                client.read(place(id as u64, n), 512),
                n.to_be_bytes().repeat(64),
                "{n} of client {id}"
            );
        }
    }
    daemon.stop();
}
