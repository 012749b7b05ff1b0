//! The graceful stop.

use std::{
    io::{ErrorKind, Read, Write},
    sync::atomic::Ordering::SeqCst,
    time::Duration,
};

use cistern_nbd::{Export, ReadPiece, ServerSettings, TlsMode};

use crate::{client::*, fixture::*};

/// Slots of 4 KiB that the pipelining client writes round and round.
const SLOTS: u64 = 1024;

/// The next simple reply, or the end between two of them. A reset is an end: the server does not wait for
/// what it will not read.
fn next_errno(client: &mut Client) -> Option<u32> {
    let mut reply = [0; 16];
    let mut have = 0;
    while have < reply.len() {
        match client.stream.read(&mut reply[have..]) {
            Ok(0) => break,
            Ok(len) => have += len,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(have == 0 || have == 16, "the stream ends inside a reply");
    (have == 16).then(|| u32::from_be_bytes(reply[4..8].try_into().expect("four bytes")))
}

/// A stop is no error for anybody: what was read is done and answered, what was not read meets a closed socket.
/// A client that never stops to write gets no error reply, and everything it was told is written is there.
#[test]
fn a_stop_is_no_error() {
    let fixture = Fixture::start();
    let disk = fixture.exports.disk.clone();
    let mut client = Client::go(&fixture.path, "disk", Style::Simple);
    let mut sender = Client { stream: client.stream.try_clone().expect("clone"), extended: false };
    let sending = std::thread::spawn(move || {
        for n in 0u64.. {
            let header = sender.header(WRITE, 0, n, n % SLOTS * 4096, 4096);
            let request = [header, n.to_be_bytes().repeat(512)].concat();
            if sender.stream.write_all(&request).is_err() {
                return;
            }
        }
    });
    let mut acknowledged = 0u64;
    let mut fixture = Some(fixture);
    let mut stopping = None;
    while let Some(errno) = next_errno(&mut client) {
        assert_eq!(errno, 0, "after {acknowledged} replies");
        acknowledged += 1;
        if acknowledged == 500 {
            stopping = fixture.take().map(Fixture::begin_stop);
        }
    }
    drop(client);
    sending.join().expect("no panic");
    assert_eq!(stopping.expect("it came to the stop").wait(), 0);
    // Writes of one slot are answered in order here, so each slot has the last acknowledged one or a later one.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    for n in acknowledged.saturating_sub(SLOTS)..acknowledged {
        let pieces = runtime.block_on(disk.read(n % SLOTS * 4096, 4096)).expect("readable");
        let [ReadPiece::Data(data)] = &pieces[..] else { panic!("{n}: {pieces:?}") };
        let found = u64::from_be_bytes(data[..8].try_into().expect("eight bytes"));
        assert!(found >= n, "{found} where {n} was acknowledged");
    }
}

/// What was begun is finished and answered, and what the client goes on to ask is not read any more.
#[test]
fn running_requests_finish() {
    let fixture = Fixture::start();
    let exports = fixture.exports.clone();
    let held = &exports.held;
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    client.send_write(0, 1, 0, &[6; 512]);
    while held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    let stopping = fixture.begin_stop();
    let flush = client.header(FLUSH, 0, 2, 0, 0);
    client.stream.set_nonblocking(true).expect("nonblocking");
    let mut refused = 0;
    for _ in 0..1_000_000 {
        match client.stream.write(&flush) {
            Ok(len) => assert_eq!(len, flush.len(), "headers are not split"),
            Err(_) => refused += 1,
        }
        if refused == 10_000 {
            break;
        }
    }
    client.stream.set_nonblocking(false).expect("blocking");
    held.permits.add_permits(1_000_000);
    let mut answered = 0;
    while let Some(errno) = next_errno(&mut client) {
        assert_eq!(errno, 0);
        answered += 1;
    }
    assert!(answered >= 1);
    drop(client);
    assert_eq!(stopping.wait(), 0);
}

/// A write whose payload is still on its way when the stop comes is read to its end, done and answered.
#[test]
fn half_a_write_is_finished() {
    for payload in [8192, 1 << 20] {
        let fixture = Fixture::start();
        let mut client = Client::go(&fixture.path, "disk", Style::Structured);
        // The answer to the flush says that the header behind it was read too.
        let mut bytes = client.header(FLUSH, 0, 1, 0, 0);
        bytes.extend(client.header(WRITE, 0, 2, 0, payload as u64));
        bytes.extend(vec![6; 4096]);
        client.send(&bytes);
        assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: 1 });
        let stopping = fixture.begin_stop();
        client.send(&vec![6; payload - 4096]);
        assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: 2 });
        assert!(client.is_closed());
        assert_eq!(stopping.wait(), 0);
    }
}

/// Idle connections, and those still negotiating, are closed at once; the socket is gone.
#[test]
fn idle_connections_end() {
    let fixture = Fixture::start();
    let path = fixture.path.clone();
    let mut clients = [
        Client::go(&path, "disk", Style::Simple),
        Client::go(&path, "disk", Style::Extended),
        Client::newstyle(&path),
        Client::connect(&path),
    ];
    assert_eq!(fixture.stop(), 0);
    assert!(clients.iter_mut().all(Client::is_closed));
    assert!(!path.exists());
}

/// A request that never ends, or never arrives as a whole, does not keep the server for ever: its connection is
/// closed without an answer.
#[test]
fn stuck_requests_are_cut_off() {
    let settings = ServerSettings { stop_limit: Duration::from_millis(50), ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let exports = fixture.exports.clone();
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    client.send_write(0, 1, 0, &[6; 512]);
    while exports.held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    let mut half = Client::go(&fixture.path, "disk", Style::Simple);
    let mut bytes = half.header(FLUSH, 0, 1, 0, 0);
    bytes.extend(half.header(WRITE, 0, 2, 0, 4096));
    half.send(&bytes);
    assert_eq!(half.errno(), 0);
    assert_eq!(fixture.stop(), 2);
    assert!(client.is_closed() && half.is_closed());
}
