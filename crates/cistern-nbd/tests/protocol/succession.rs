//! Connections that outlive their server: what was under way on one is sent again on the next.

use std::sync::atomic::Ordering::SeqCst;

use crate::{client::*, fixture::*};

/// A write that is under way on a connection whose client goes on with another one ends before anything of that begins, and what the first
/// had sent and nobody had read is never done: so it does not overwrite what is written behind its second copy.
#[test]
fn a_write_of_before_comes_before() {
    let fixture = Fixture::start();
    let held = fixture.exports.held.clone();
    let mut old = Client::outliving(&fixture.path, "held");
    old.send_write(0, 1, 0, &[b'a'; 4096]);
    // It is under way, and half of another one has come.
    while held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    old.request(WRITE, 0, 2, 0, 4096);
    old.send(&[b'b'; 100]);
    let mut new = Client::outliving(&fixture.path, "held");
    new.send_write(0, 1, 0, &[b'c'; 4096]);
    assert!(old.is_closed(), "the next one has begun");
    assert_eq!(held.begun.load(SeqCst), 1, "and waits");
    held.permits.add_permits(100);
    assert_eq!(new.reply(), Reply::Simple { errno: 0, cookie: 1 });
    assert_eq!(held.waiting_writes_peak.load(SeqCst), 1);
    new.request(READ, 0, 3, 0, 4096);
    assert_eq!(new.reply(), Reply::Simple { errno: 0, cookie: 3 });
    assert_eq!(new.take(4096), [b'c'; 4096]);
    drop(new);
    assert_eq!(fixture.stop(), 0);
}

/// A connection that was negotiated and asks for nothing takes nothing away from the one before it, nor does an ordinary one.
#[test]
fn who_asks_for_nothing_replaces_nobody() {
    let fixture = Fixture::start();
    let mut old = Client::outliving(&fixture.path, "disk");
    let idle = Client::outliving(&fixture.path, "disk");
    let mut ordinary = Client::go(&fixture.path, "disk", Style::Simple);
    ordinary.send_write(0, 1, 4096, &[2; 4096]);
    assert_eq!(ordinary.reply(), Reply::Simple { errno: 0, cookie: 1 });
    old.send_write(0, 7, 0, &[1; 4096]);
    assert_eq!(old.reply(), Reply::Simple { errno: 0, cookie: 7 });
    drop(idle);
    old.send_write(0, 8, 8192, &[1; 4096]);
    assert_eq!(old.reply(), Reply::Simple { errno: 0, cookie: 8 });
    drop((old, ordinary));
    assert_eq!(fixture.stop(), 0);
}

/// A stop ends connections that have asked for nothing, and those that wait for others.
#[test]
fn a_stop_ends_who_waits_in_line() {
    let fixture = Fixture::start();
    let held = fixture.exports.held.clone();
    let mut old = Client::outliving(&fixture.path, "held");
    old.send_write(0, 1, 0, &[b'a'; 4096]);
    while held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    let mut new = Client::outliving(&fixture.path, "held");
    new.send_write(0, 1, 0, &[b'c'; 4096]);
    assert!(old.is_closed());
    let idle = Client::outliving(&fixture.path, "held");
    let stopping = fixture.begin_stop();
    held.permits.add_permits(100);
    assert_eq!(new.reply(), Reply::Simple { errno: 0, cookie: 1 }, "what was read is answered");
    assert_eq!(stopping.wait(), 0);
    drop(idle);
}
