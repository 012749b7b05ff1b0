//! A client that goes on with the next daemon when one ends, as the kernel does for an attached device, loses nothing that it was told, and
//! can name what it saw so that it does not go on with another history.

mod daemon;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::{UnixDatagram, UnixStream},
    path::Path,
    process::Child,
    sync::mpsc,
    thread,
};

use cistern_nbd::choose_export;
use daemon::Home;

const BLOCK: usize = 4096;
/// Blocks of the volume, each of which is written once in a life.
const BLOCKS: u64 = 16384;
/// Requests under way.
const DEPTH: u64 = 64;
/// Writes that are confirmed before the daemon is killed.
const CONFIRMED: u64 = 3000;
const LIVES: u64 = 5;

fn connect(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    let chosen = choose_export(&mut stream, "tank").expect("it is served");
    assert_eq!(chosen.size_bytes, BLOCKS * BLOCK as u64);
    stream
}

/// A request of the kernel's dialect, whose cookie is its block.
fn request(command: u16, block: u64) -> Vec<u8> {
    let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
    out.extend(0_u16.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(block.to_be_bytes());
    out.extend((block * BLOCK as u64).to_be_bytes());
    out.extend((BLOCK as u32).to_be_bytes());
    out
}

fn content(life: u64, block: u64) -> Vec<u8> {
    [life.to_be_bytes(), block.to_be_bytes()].concat().repeat(BLOCK / 16)
}

/// Reads a reply that must be a good one; gives its cookie.
fn reply(stream: &mut UnixStream) -> u64 {
    let mut head = [0; 16];
    stream.read_exact(&mut head).expect("a reply");
    assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "an error");
    u64::from_be_bytes(head[8..].try_into().expect("eight bytes"))
}

/// Every write that was confirmed is there behind a kill -9 of the daemon, without any flush before it.
#[test]
fn what_was_confirmed_outlives_the_daemon() {
    let home = Home::new();
    let socket = home.path("tank.sock");
    let listen = format!("unix:{}", socket.display());
    for life in 1..=LIVES {
        let daemon = home.start(&["./tank", "--create", "64M", "--listen", &listen]);
        let mut stream = connect(&socket);
        let send = |stream: &mut UnixStream, block: u64| {
            stream.write_all(&[request(1, block), content(life, block)].concat()).expect("sent");
        };
        (0..DEPTH).for_each(|block| send(&mut stream, block));
        let mut confirmed = BTreeSet::new();
        for next in DEPTH..DEPTH + CONFIRMED {
            confirmed.insert(reply(&mut stream));
            send(&mut stream, next);
        }
        daemon.kill();

        let daemon = home.start(&["./tank", "--listen", &listen]);
        let mut stream = connect(&socket);
        let mut lost = Vec::new();
        for block in confirmed {
            stream.write_all(&request(0, block)).expect("sent");
            assert_eq!(reply(&mut stream), block);
            let mut found = vec![0; BLOCK];
            stream.read_exact(&mut found).expect("a block");
            lost.extend((found != content(life, block)).then_some(block));
        }
        assert_eq!(lost, Vec::<u64>::new(), "life {life}: confirmed, and gone");
        daemon.stop();
    }
}

/// Whoever gives attached devices new connections, until this is dropped.
struct Keeper(Child);

impl Keeper {
    fn start(home: &Home) -> Keeper {
        let notify = UnixDatagram::bind(home.path("notify")).expect("a socket");
        let mut command = home.command(&["keep-attached"]);
        let keeper = Keeper(command.env("NOTIFY_SOCKET", home.path("notify")).spawn().expect("it starts"));
        let mut said = [0; 64];
        let length = notify.recv(&mut said).expect("it says something");
        assert!(said[..length].starts_with(b"READY=1"));
        keeper
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// While somebody keeps attached devices, a connection goes on over stops of the daemon: every request is answered once and well, with 64
/// under way, and what was written is there.
#[test]
fn a_connection_goes_on_over_stops() {
    const WRITES: u64 = 15_000;
    let home = Home::new();
    let _keeper = Keeper::start(&home);
    let socket = home.path("tank.sock");
    let listen = format!("unix:{}", socket.display());
    let mut daemon = home.start(&["./tank", "--create", "64M", "--listen", &listen]);
    let mut stream = connect(&socket);
    let another = || stream.try_clone().expect("another handle");
    let (mut sending, mut receiving) = (another(), another());
    let (answered, answers) = mpsc::channel();
    let receiver = thread::spawn(move || {
        (0..WRITES).for_each(|_| answered.send(reply(&mut receiving)).expect("somebody counts"));
    });
    let (may_send, turns) = mpsc::channel();
    let sender = thread::spawn(move || {
        for block in turns {
            sending.write_all(&[request(1, block), content(1, block)].concat()).expect("sent");
        }
    });
    (0..DEPTH).for_each(|block| may_send.send(block).expect("it sends"));
    let mut confirmed = BTreeSet::new();
    for count in 1..=WRITES {
        assert!(confirmed.insert(answers.recv().expect("a reply")), "answered twice");
        if count + DEPTH <= WRITES {
            may_send.send(count + DEPTH - 1).expect("it sends");
        }
        if count % (WRITES / LIVES) == WRITES / LIVES / 2 {
            daemon.signal(libc::SIGTERM);
            let ended = daemon.wait();
            assert!(ended.stderr.contains("keep their connections"), "{}", ended.stderr);
            daemon = home.start(&["./tank", "--listen", &listen]);
        }
    }
    drop(may_send);
    sender.join().expect("all was sent");
    receiver.join().expect("all was answered");
    for block in confirmed {
        stream.write_all(&request(0, block)).expect("sent");
        assert_eq!(reply(&mut stream), block);
        let mut found = vec![0; BLOCK];
        stream.read_exact(&mut found).expect("a block");
        assert!(found == content(1, block), "block {block}");
    }
    daemon.stop();
}

/// A connection ends where the volume was somebody else's in between, and where nobody keeps it.
#[test]
fn a_connection_does_not_go_on_with_what_others_had() {
    let home = Home::new();
    let (socket, other) = (home.path("tank.sock"), home.path("other.sock"));
    let [listen, elsewhere] = [&socket, &other].map(|socket| format!("unix:{}", socket.display()));
    let write = |stream: &mut UnixStream| {
        stream.write_all(&[request(1, 7), content(1, 7)].concat()).expect("sent");
        assert_eq!(reply(stream), 7);
    };
    let keeper = Keeper::start(&home);
    let daemon = home.start(&["./tank", "--create", "64M", "--listen", &listen]);
    let mut stream = connect(&socket);
    write(&mut stream);
    daemon.stop();
    let state = home.path("state-of-another");
    let state = state.to_str().expect("a name");
    home.start(&["./tank", "--listen", &elsewhere, "--state-dir", state]).stop();
    let mut daemon = home.start(&["./tank", "--listen", &listen]);
    assert_eq!(stream.read(&mut [0]).expect("it has ended"), 0);
    daemon.wait_to_say("shows what is not there any more");
    let mut stream = connect(&socket);
    write(&mut stream);
    drop(keeper);
    daemon.stop();
    assert_eq!(stream.read(&mut [0]).expect("it has ended"), 0);
}

/// A connection from before a rollback that was forced under it does not go on with what is there behind it.
#[test]
fn a_connection_does_not_go_on_over_a_rollback() {
    let home = Home::new();
    let socket = home.path("tank.sock");
    let listen = format!("unix:{}", socket.display());
    let _keeper = Keeper::start(&home);
    let daemon = home.start(&["./tank", "--create", "64M", "--listen", &listen]);
    home.ok(&["snapshot", "./tank@before"]);
    let mut stream = connect(&socket);
    stream.write_all(&[request(1, 7), content(1, 7)].concat()).expect("sent");
    assert_eq!(reply(&mut stream), 7);
    home.ok(&["rollback", "./tank@before", "--force"]);
    daemon.stop();
    let mut daemon = home.start(&["./tank", "--listen", &listen]);
    daemon.wait_to_say("shows what is not there any more");
    assert_eq!(stream.read(&mut [0]).expect("it has ended"), 0);
}

/// The name with the mark is refused once it means another history: behind a rollback, and where another host had the volume in between.
/// Stops and kills of the daemon change nothing.
#[test]
fn a_lasting_name_is_refused_once_it_is_another_history() {
    let home = Home::new();
    let (socket, other) = (home.path("tank.sock"), home.path("other.sock"));
    let [listen, elsewhere] = [&socket, &other].map(|socket| format!("unix:{}", socket.display()));
    let lasting = || {
        let name = home.status()["daemons"][0]["volumes"][0]["lasting_name"].clone();
        name.as_str().expect("a name").to_owned()
    };
    let chosen = |name: &str| {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        choose_export(&mut stream, name).map(|chosen| chosen.size_bytes).map_err(|error| error.kind())
    };
    let daemon = home.start(&["./tank", "--create", "64M", "--listen", &listen]);
    let name = lasting();
    assert!(name.starts_with("tank:") && home.ok(&["status", "tank"]).contains(&name));
    assert_eq!(chosen(&name), Ok(BLOCKS * BLOCK as u64));
    assert_eq!(chosen("tank:0123456789abcdef"), Err(std::io::ErrorKind::NotFound));
    daemon.stop();
    let daemon = home.start(&["./tank", "--listen", &listen]);
    assert_eq!((lasting(), chosen(&name).is_ok()), (name.clone(), true), "a stop");
    daemon.kill();
    let daemon = home.start(&["./tank", "--listen", &listen]);
    assert_eq!((lasting(), chosen(&name).is_ok()), (name.clone(), true), "a kill");

    home.ok(&["snapshot", "./tank@before"]);
    home.ok(&["rollback", "./tank@before", "--force"]);
    let behind = lasting();
    assert_ne!(behind, name);
    assert_eq!(chosen(&name), Err(std::io::ErrorKind::NotFound), "a rollback");
    assert!(chosen(&behind).is_ok() && chosen("tank").is_ok());
    daemon.stop();

    let state = home.path("state-of-another");
    let state = state.to_str().expect("a name");
    home.start(&["./tank", "--listen", &elsewhere, "--state-dir", state]).stop();
    let daemon = home.start(&["./tank", "--listen", &listen]);
    assert_eq!(chosen(&behind), Err(std::io::ErrorKind::NotFound), "another host");
    assert!(chosen("tank").is_ok());
    daemon.stop();
}
