//! Clients that take much and give little.

use std::{io::Write, sync::atomic::Ordering::SeqCst};

use cistern_nbd::{ServerSettings, TlsMode};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{certificates, client::*, fixture::*};

/// A client that vanishes in the middle of a write has written nothing, and no one else notices.
#[test]
fn vanishing_in_a_write() {
    let fixture = Fixture::start();
    for size in [4096, 1 << 20] {
        let mut client = Client::go(&fixture.path, "disk", Style::Simple);
        client.request(WRITE, 0, 1, 0, size as u64);
        client.send(&vec![1; size / 2]);
        drop(client);
        let mut client = Client::go(&fixture.path, "disk", Style::Simple);
        assert_eq!(client.read(0, 0, size), Ok(vec![0; size]));
    }
    assert_eq!(fixture.stop(), 0);
}

/// A thousand connections at one time, each of them served.
#[test]
fn a_thousand_connections() {
    // Both ends of every connection are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("the soft limit may be raised");
    let fixture = Fixture::start();
    let mut clients: Vec<Client> =
        (0..1000).map(|_| Client::go(&fixture.path, "disk", Style::Structured)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send_write(0, n as u64, n as u64 * 512, &[n as u8; 512]);
    }
    for client in &mut clients {
        assert_eq!(client.errno(), 0);
    }
    assert_eq!(clients[0].read(0, 999 * 512, 512), Ok(vec![231; 512]));
    assert_eq!(fixture.stop(), 0);
}

/// Beyond the cap a connection is closed at once; when one goes its place is free again.
#[test]
fn the_cap_on_connections() {
    let settings = ServerSettings { connections_max: 3, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::go(&fixture.path, "disk", Style::Simple)).collect();
    assert!(clients.iter_mut().all(|client| client.run(FLUSH, 0, 0, 0) == 0), "all three are served");
    let stream = std::os::unix::net::UnixStream::connect(&fixture.path).expect("the backlog takes it");
    let mut refused = Client { stream, extended: false };
    assert!(refused.is_closed(), "without a greeting");
    let mut leaving = clients.pop().expect("three clients");
    leaving.request(DISC, 0, 0, 0, 0);
    assert!(leaving.is_closed());
    // The place is free when the server has joined the connection's task, soon after.
    let again = || {
        let stream = std::os::unix::net::UnixStream::connect(&fixture.path).expect("the server listens");
        !Client { stream, extended: false }.is_closed()
    };
    assert!((0..10_000).any(|_| again()));
}

/// Clients that never finish their negotiation take no place from those that have, nor from those that will:
/// the oldest of them makes way.
#[test]
fn unfinished_negotiations_take_no_place() {
    let dir = tempfile::tempdir().expect("temporary directory");
    certificates::write(dir.path());
    for tls in [TlsMode::Off, TlsMode::Required(certificates::server(dir.path()))] {
        let secured = !matches!(tls, TlsMode::Off);
        let settings = ServerSettings { connections_max: 2, unfinished_max: 20, ..ServerSettings::default() };
        let fixture = Fixture::with(settings, tls);
        let mut silent: Vec<Client> = (0..100)
            .map(|_| {
                let mut client = Client::newstyle(&fixture.path);
                if secured {
                    assert_eq!(client.verdict(OPT_STARTTLS, &[]), REP_ACK);
                }
                client
            })
            .collect();
        assert!(silent[..80].iter_mut().all(Client::is_closed), "the oldest made way");
        match secured {
            true => assert_eq!(Client::newstyle(&fixture.path).verdict(OPT_LIST, &[]), ERR_TLS_REQD),
            false => {
                let mut served = [(); 2].map(|()| Client::go(&fixture.path, "disk", Style::Simple));
                assert!(served.iter_mut().all(|client| client.run(FLUSH, 0, 0, 0) == 0));
            }
        }
        assert_eq!(fixture.stop(), 0);
    }
}

/// A client that asks and never takes its replies costs no more than its budget, stops being
/// read, and does not slow the others.
#[test]
fn replies_nobody_reads() {
    let budget = 1 << 20;
    let settings = ServerSettings { connection_bytes_max: budget, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let held = &fixture.exports.held;
    held.permits.add_permits(1_000_000);
    let mut filler = Client::go(&fixture.path, "held", Style::Simple);
    assert_eq!(filler.write(0, 0, &[1; 65_536]), 0);

    let mut greedy = Client::go(&fixture.path, "held", Style::Structured);
    greedy.stream.set_nonblocking(true).expect("nonblocking");
    let request = greedy.header(READ, 0, 1, 0, 65_536);
    // 10,000 reads of 64 KiB would be 640 MB of replies.
    let mut sent = 0;
    let mut idle = 0;
    let mut seen = 0;
    while idle < 2000 && sent < 10_000 {
        match greedy.stream.write(&request) {
            Ok(len) => assert_eq!(len, request.len(), "headers are not split"),
            Err(_) => std::thread::yield_now(),
        }
        sent += 1;
        let now = held.read_bytes.load(SeqCst);
        idle = if now == seen { idle + 1 } else { 0 };
        seen = now;
        // Someone else, on another connection, is served all the time.
        if sent % 100 == 0 {
            assert_eq!(filler.write(0, 65_536, &[1; 4096]), 0);
        }
    }
    // What is in the socket's buffers has left the budget, nothing else has.
    let bound = budget + (4 << 20);
    assert!(seen <= bound, "{seen} bytes were read for a client that takes none");
    drop(greedy);
    assert_eq!(filler.run(FLUSH, 0, 0, 0), 0);
    assert_eq!(fixture.stop(), 0);
}

/// Two reads that do not fit the budget together run one after the other.
#[test]
fn running_requests_fit_the_budget() {
    let settings = ServerSettings { connection_bytes_max: 1 << 20, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let held = &fixture.exports.held;
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    let reads: Vec<u8> = (0..4).flat_map(|n| client.header(READ, 0, n, 0, 614_400)).collect();
    client.send(&reads);
    while held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    held.permits.add_permits(4);
    for n in 0..4 {
        assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: n });
        client.take(614_400);
    }
    assert_eq!(held.waiting_bytes_peak.load(SeqCst), 614_400);
}

/// Requests that arrive together and are answered at once go on when the reply before them has left.
#[test]
fn answered_requests_make_room() {
    let settings = ServerSettings { connection_bytes_max: 1, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut client = Client::go(&fixture.path, "disk", Style::Simple);
    let reads: Vec<u8> = (0..100).flat_map(|n| client.header(READ, 0, n, 0, 4096)).collect();
    client.send(&reads);
    for n in 0..100 {
        assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: n });
        client.take(4096);
    }
}

/// Wrong requests without end, whose errors nobody reads, are stopped by the same budget.
#[test]
fn errors_nobody_reads() {
    let settings = ServerSettings { connection_bytes_max: 64 << 10, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut greedy = Client::go(&fixture.path, "disk", Style::Structured);
    greedy.stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).expect("a timeout");
    let requests = greedy.header(99, 0, 1, 0, 512).repeat(100);
    let blocked = (0..100_000).any(|_| greedy.stream.write_all(&requests).is_err());
    assert!(blocked, "the server would take wrong requests for ever");
    let mut other = Client::go(&fixture.path, "disk", Style::Simple);
    assert_eq!(other.run(FLUSH, 0, 0, 0), 0);
}

/// A budget smaller than a request slows the client down and stops nothing.
#[test]
fn tiny_budgets_still_work() {
    let settings = ServerSettings { connection_bytes_max: 1, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut client = Client::go(&fixture.path, "disk", Style::Structured);
    for n in 0..20u64 {
        client.send_write(0, n, n << 20, &vec![n as u8; 1 << 20]);
    }
    for _ in 0..20 {
        assert_eq!(client.errno(), 0);
    }
    assert_eq!(client.read(0, 19 << 20, 1 << 20), Ok(vec![19; 1 << 20]));
}

/// A client that holds what others wait for, and neither takes its replies nor finishes its write, makes way for
/// them; one that only thinks is left alone.
#[test]
fn those_who_do_not_move_make_way() {
    let settings = ServerSettings {
        bytes_max: 0,
        stall_limit: std::time::Duration::from_millis(200),
        ..ServerSettings::default()
    };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut idle = Client::go(&fixture.path, "disk", Style::Simple);
    assert_eq!(idle.write(0, 0, &vec![7; 32 << 20]), 0);
    for round in 0..4 {
        let mut stuck = Client::go(&fixture.path, "disk", Style::Simple);
        match round % 2 {
            // Its reply begins, so it has the memory.
            0 => {
                stuck.request(READ, 0, 1, 0, 32 << 20);
                stuck.take(16);
            }
            // The answer to the flush says that the header behind it was read too.
            _ => {
                let write = stuck.header(WRITE, 0, 2, 0, 32 << 20);
                stuck.send(&[stuck.header(FLUSH, 0, 1, 0, 0), write, vec![1; 4096]].concat());
                assert_eq!(stuck.errno(), 0);
            }
        }
        let mut next = Client::go(&fixture.path, "disk", Style::Simple);
        assert_eq!(next.read(0, 0, 32 << 20), Ok(vec![7; 32 << 20]));
        let mut rest = Vec::new();
        // What was on its way may come, and a reset: but it ends.
        let _ = std::io::Read::read_to_end(&mut stuck.stream, &mut rest);
        assert!(rest.len() < 32 << 20);
    }
    assert_eq!(idle.run(FLUSH, 0, 0, 0), 0);
    assert_eq!(fixture.stop(), 0);
}

/// While many hold all there is, a client that asks for little is served, and with many waiting for large requests
/// one of medium size is too.
#[test]
fn modest_clients_go_on() {
    let settings = ServerSettings { bytes_max: 0, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut modest = Client::go(&fixture.path, "disk", Style::Simple);
    assert_eq!(modest.write(0, 0, &vec![7; 4 << 20]), 0);
    let large: Vec<Client> = (0..100)
        .map(|_| {
            let mut client = Client::go(&fixture.path, "disk", Style::Simple);
            client.request(READ, 0, 1, 0, 32 << 20);
            client
        })
        .collect();
    assert_eq!(modest.read(0, 0, 4 << 20), Ok(vec![7; 4 << 20]));
    let small: Vec<Client> = (0..100)
        .map(|_| {
            let mut client = Client::go(&fixture.path, "disk", Style::Simple);
            client.request(READ, 0, 1, 0, 2 << 20);
            client
        })
        .collect();
    for n in 0..1000u64 {
        assert_eq!(modest.write(0, n * 4096, &[n as u8; 4096]), 0);
        assert_eq!(modest.read(0, n * 4096, 64 << 10).map(|data| data[0]), Ok(n as u8));
    }
    drop((large, small));
    assert_eq!(modest.read(0, 0, 32 << 20).map(|data| data.len()), Ok(32 << 20));
    assert_eq!(fixture.stop(), 0);
}
