//! A client that goes on with the next daemon when one ends, as the kernel does for an attached device, loses nothing that it was told.

mod daemon;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
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
