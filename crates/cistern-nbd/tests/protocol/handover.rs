//! Connections that the next server goes on with: their clients see a pause.

use std::{
    collections::BTreeSet,
    os::unix::net::UnixStream,
    sync::{atomic::Ordering::SeqCst, mpsc},
    thread,
    time::Duration,
};

use cistern_nbd::HandedOn;

use crate::{client::*, fixture::*};

fn done(cookie: u64) -> Reply {
    Reply::Simple { errno: 0, cookie }
}

fn write_request(client: &Client, cookie: u64, block: u64, data: &[u8; 4096]) -> Vec<u8> {
    [&client.header(WRITE, 0, cookie, block * 4096, 4096)[..], data].concat()
}

/// A client in the middle of its life, and the other end of its connection.
fn handed_on(identity: &str) -> (Client, HandedOn) {
    let (stream, socket) = UnixStream::pair().expect("a pair of sockets");
    stream.set_read_timeout(Some(Duration::from_secs(600))).expect("a timeout can be set");
    let handed_on = HandedOn { export: "held".to_owned(), identity: identity.to_owned(), socket };
    (Client { stream, extended: false }, handed_on)
}

fn until_begun(held: &HeldExport, count: u64) {
    while held.begun.load(SeqCst) < count {
        thread::yield_now();
    }
}

/// What a server had begun when it was told to stop it answers, with what it had taken of the next request; what lay in the socket the next
/// server answers, and the client goes on on the same connection.
#[test]
fn a_connection_goes_on_with_the_next_server() {
    let fixture = Fixture::start();
    let exports = fixture.exports.clone();
    let mut client = Client::outliving(&fixture.path, "held");
    let [first, second, third] = [1, 2, 3].map(|n| write_request(&client, n, n, &[n as u8; 4096]));
    client.send(&[&first[..], &second[..10]].concat());
    until_begun(&exports.held, 1);
    let stopping = fixture.begin_stop();
    client.send(&second[10..]);
    client.send(&third);
    exports.held.permits.add_permits(100);
    let stopped = stopping.ended();
    assert_eq!((stopped.cut_off, stopped.handed_on.len()), (0, 1));

    let fixture = Fixture::going_on(exports, stopped.handed_on);
    let mut replies = [1, 2, 3].map(|_| client.reply());
    replies.sort_by_key(|reply| format!("{reply:?}"));
    assert_eq!(replies, [1, 2, 3].map(done));
    for n in 1..=3 {
        assert_eq!(client.read(0, n * 4096, 4096), Ok(vec![n as u8; 4096]));
    }
    drop(client);
    assert_eq!(fixture.stop(), 0);
}

/// However the stream is cut up, and whenever servers stop: each request is answered once, and what is written is there.
#[test]
fn each_request_is_answered_once() {
    const REQUESTS: u64 = 4000;
    const LIVES: u64 = 8;
    let mut fixture = Fixture::start();
    let exports = fixture.exports.clone();
    exports.held.permits.add_permits(4 * REQUESTS as usize);
    let mut client = Client::outliving(&fixture.path, "held");
    let same = |client: &Client| Client {
        stream: client.stream.try_clone().expect("a second handle"),
        extended: false,
    };
    let (mut sending, mut receiving) = (same(&client), same(&client));
    let sender = thread::spawn(move || {
        let content = |n: u64| std::array::from_fn(|at| (n as usize + at) as u8);
        let stream: Vec<u8> =
            (0..REQUESTS).flat_map(|n| write_request(&sending, n, n, &content(n))).collect();
        let (mut rest, mut cuts) = (&stream[..], [11, 28, 4100, 1, 63, 9000, 300].into_iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(cuts.next().expect("endless").min(rest.len()));
            sending.send(now);
            rest = later;
        }
    });
    let (tell, answers) = mpsc::channel();
    let receiver = thread::spawn(move || {
        (0..REQUESTS).for_each(|_| tell.send(receiving.reply()).expect("somebody counts"));
    });
    let mut answered = BTreeSet::new();
    for life in 1..=LIVES {
        while (answered.len() as u64) < life * REQUESTS / LIVES {
            let Ok(Reply::Simple { errno: 0, cookie }) = answers.recv() else { panic!("an error") };
            assert!(answered.insert(cookie), "{cookie} was answered before");
        }
        let stopped = fixture.begin_stop().ended();
        assert_eq!((stopped.cut_off, stopped.handed_on.len()), (0, 1));
        fixture = Fixture::going_on(exports.clone(), stopped.handed_on);
    }
    sender.join().expect("all was sent");
    receiver.join().expect("all was answered");
    assert_eq!(exports.held.begun.load(SeqCst), REQUESTS, "none was done twice");
    for n in 0..REQUESTS {
        let content: Vec<u8> = (0..4096).map(|at| (n as usize + at) as u8).collect();
        assert_eq!(client.read(0, n * 4096, 4096), Ok(content));
    }
    drop(client);
    assert_eq!(fixture.stop(), 0);
}

/// A connection whose export is not any more what it was ends: whoever is behind it has other data in his caches.
#[test]
fn another_export_of_that_name_is_another() {
    let (mut client, connection) = handed_on("held, rolled back");
    let fixture = Fixture::going_on(TestExports::new(), vec![connection]);
    assert!(client.is_closed());
    assert_eq!(fixture.stop(), 0);
}

/// What the next server could not know of a connection, or nobody asked for, is not handed on.
#[test]
fn other_connections_end() {
    let fixture = Fixture::start();
    let mut ordinary = Client::go(&fixture.path, "held", Style::Simple);
    let mut nameless = Client::outliving(&fixture.path, "disk");
    let mut structured = Client::newstyle(&fixture.path);
    let mut unaligned = Client::newstyle(&fixture.path);
    for (client, kinds) in [(&mut structured, &[3][..]), (&mut unaligned, &[])] {
        assert_eq!(client.option(OPT_OUTLIVE, &[]), [(REP_ACK, vec![])]);
        if !kinds.is_empty() {
            assert_eq!(client.option(OPT_STRUCTURED, &[]), [(REP_ACK, vec![])]);
        }
        assert_eq!(client.option(OPT_GO, &info("held", kinds)).last(), Some(&(REP_ACK, vec![])));
    }
    let stopped = fixture.begin_stop().ended();
    assert_eq!((stopped.cut_off, stopped.handed_on.len()), (0, 0));
    for client in [&mut ordinary, &mut nameless, &mut structured, &mut unaligned] {
        assert!(client.is_closed());
    }
}

/// Connections that were handed on go on for one another as before: what was sent on the older one and not begun is never done.
#[test]
fn the_line_is_kept() {
    let exports = TestExports::new();
    let ((mut old, first), (mut new, second)) = (handed_on("held as it was"), handed_on("held as it was"));
    let fixture = Fixture::going_on(exports.clone(), vec![first, second]);
    old.send_write(0, 1, 0, &[b'a'; 4096]);
    until_begun(&exports.held, 1);
    new.send_write(0, 1, 0, &[b'b'; 4096]);
    assert!(old.is_closed(), "the next one has begun");
    assert_eq!(exports.held.begun.load(SeqCst), 1, "and waits");
    exports.held.permits.add_permits(100);
    assert_eq!(new.reply(), done(1));
    assert_eq!(new.read(0, 0, 4096), Ok(vec![b'b'; 4096]));
    drop(new);
    assert_eq!(fixture.stop(), 0);
}
