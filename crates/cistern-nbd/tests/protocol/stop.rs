//! The graceful stop.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use cistern_nbd::{Settings, TlsMode};

use crate::{client::*, fixture::*};

/// What was begun is finished and answered, what comes later gets ESHUTDOWN, then the end.
#[test]
fn running_requests_finish() {
    let fixture = Fixture::start();
    let exports = fixture.exports.clone();
    let held = &exports.held;
    let mut client = Client::go(&fixture.path, "held", Style::Structured);
    client.send_write(0, 1, 0, &[6; 512]);
    while held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    let stopping = fixture.begin_stop();
    // From some moment on new requests are refused.
    let mut cookie = 2;
    loop {
        client.request(CACHE, 0, cookie, 0, 512);
        match client.errno() {
            0 => cookie += 1,
            errno => {
                assert_eq!(errno, ESHUTDOWN);
                break;
            }
        }
    }
    for _ in 0..3 {
        assert_eq!(client.run(FLUSH, 0, 0, 0), ESHUTDOWN);
    }
    held.permits.add_permits(1);
    assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: 1 });
    assert!(client.is_closed());
    assert_eq!(stopping.wait(), 0);
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

/// A request that never ends does not keep the server for ever.
#[test]
fn stuck_requests_are_cut_off() {
    let settings = Settings { stop_limit: Duration::from_millis(50), ..Settings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let exports = fixture.exports.clone();
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    client.send_write(0, 1, 0, &[6; 512]);
    while exports.held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(fixture.stop(), 1);
    assert!(client.is_closed());
}
