//! The negotiation: order rules, malformed options, limits.

use std::{io::Write, net::Shutdown, sync::atomic::Ordering::SeqCst};

use cistern_nbd::{ServerSettings, TlsMode};

use crate::{certificates, client::*, fixture::*};

/// A client whose first words make no sense is dropped, and the server goes on.
#[test]
fn garbage_greetings() {
    let fixture = Fixture::start();
    for garbage in [[0xff; 4], [0, 0, 0, 4], *b"GET "] {
        let mut client = Client::connect(&fixture.path);
        client.send(&garbage);
        assert!(client.is_closed());
    }
    let mut client = Client::newstyle(&fixture.path);
    client.send(b"not an option ha");
    assert!(client.is_closed());
    Client::go(&fixture.path, "disk", Style::Simple);
    assert_eq!(fixture.stop(), 0);
}

/// An option that claims more than a mebibyte ends the connection, one of some KiB too much is
/// answered as too big, and neither is stored.
#[test]
fn huge_options() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    client.send(&[b"IHAVEOPT", &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff][..]].concat());
    assert!(client.is_closed());

    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_GO, &[0; 100_000]), ERR_TOO_BIG);
    assert_eq!(client.verdict(77, &[0; 40_000]), ERR_TOO_BIG);
    assert_eq!(client.verdict(77, &[0; 1000]), ERR_UNSUP);
    assert_eq!(client.option(OPT_GO, &info("disk", &[])).len(), 3);
}

/// Names may have 4096 bytes. One more: an error where the option can say so, else the end.
#[test]
fn long_names() {
    let fixture = Fixture::start();
    let long = "x".repeat(4097);
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_INFO, &info(&long, &[])), ERR_TOO_BIG);
    assert_eq!(client.verdict(OPT_GO, &info(&long, &[])), ERR_TOO_BIG);
    assert_eq!(client.verdict(OPT_GO, &info(&long[1..], &[])), ERR_UNKNOWN);
    client.send_option(OPT_EXPORT_NAME, long.as_bytes());
    assert!(client.is_closed());
}

/// A client that never comes to an end with its options is sent away.
#[test]
fn option_flood() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    let mut reader = client.stream.try_clone().expect("clone");
    let sink = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let option = [b"IHAVEOPT", &[0, 0, 0, 3, 0, 0, 0, 0][..]].concat();
    let refused = (0..100_000).any(|_| client.stream.write_all(&option).is_err());
    assert!(refused, "the server would listen for ever");
    // The reader ends with the connection, however it ended.
    let _ = sink.join().expect("no panic");
}

/// Asking for an export that is not there is an error, and the client may ask again.
#[test]
fn unknown_exports() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_INFO, &info("nothing", &[])), ERR_UNKNOWN);
    assert_eq!(client.verdict(OPT_GO, &info("nothing", &[])), ERR_UNKNOWN);
    assert_eq!(client.verdict(OPT_STRUCTURED, &[]), REP_ACK);
    assert_eq!(client.verdict(OPT_SET_META, &meta("nothing", &["base:allocation"])), ERR_UNKNOWN);
    client.send_option(OPT_EXPORT_NAME, b"nothing");
    assert!(client.is_closed());
}

/// The list has every export with its description; LIST takes no data.
#[test]
fn list() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    let replies = client.option(OPT_LIST, &[]);
    let entry = |name: &str| {
        let len = (name.len() as u32).to_be_bytes();
        (REP_SERVER, [&len[..], name.as_bytes(), b"a disk in memory"].concat())
    };
    assert_eq!(replies, [entry("disk"), entry("frozen"), entry("huge"), (REP_ACK, vec![])]);
    for code in [OPT_LIST, OPT_STRUCTURED, OPT_EXTENDED, OPT_STARTTLS] {
        assert_eq!(client.verdict(code, b"data"), ERR_INVALID);
    }
}

/// Requests should be multiples of 512 bytes, so every client that can be told is told, asked for or not.
#[test]
fn block_sizes_are_told_unasked() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    let sizes = [&[0, 3][..], &[512u32, 65536, 32 << 20].map(u32::to_be_bytes).concat()].concat();
    for code in [OPT_INFO, OPT_GO] {
        let told = client.option(code, &info("disk", &[]));
        assert!(told.contains(&(REP_INFO, sizes.clone())), "{told:?}");
    }
}

/// INFO tells what GO tells: size, flags and block sizes always, the rest where it is asked for, once each.
#[test]
fn information() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    let asked = info("", &[3, 1, 2, 1, 999]);
    let told = client.option(OPT_INFO, &asked);
    let kinds: Vec<u16> =
        told[..told.len() - 1].iter().map(|(_, data)| u16::from_be_bytes([data[0], data[1]])).collect();
    assert_eq!(kinds, [0, 1, 2, 3]);
    assert!(told[..4].iter().all(|(kind, _)| *kind == REP_INFO));
    assert_eq!(told[0].1[2..10], SIZE.to_be_bytes());
    assert_eq!(&told[1].1[2..], b"disk", "the default export tells its name");
    let sizes = [512u32, 65536, 32 << 20].map(u32::to_be_bytes).concat();
    assert_eq!(told[3].1[2..], sizes);
    assert_eq!(client.option(OPT_GO, &asked), told);
    assert_eq!(client.run(FLUSH, 0, 0, 0), 0, "GO has begun the transmission");

    let mut client = Client::newstyle(&fixture.path);
    for bad in [
        &b""[..],
        b"\0\0\0",
        b"\0\0\0\x09abc\0\0",
        b"\0\0\0\x03abc",
        b"\0\0\0\x03abc\0\x01",
        b"\0\0\0\x01\xff\0\0",
    ] {
        assert_eq!(client.verdict(OPT_GO, bad), ERR_INVALID, "{bad:?}");
    }
}

/// Each transmission flag is there exactly when its requests are honoured.
#[test]
fn transmission_flags() {
    let fixture = Fixture::start();
    let flags = |name: &str, style: Style, context: bool| {
        let mut client = Client::newstyle(&fixture.path);
        match style {
            Style::Simple => {}
            Style::Structured => drop(client.option(OPT_STRUCTURED, &[])),
            Style::Extended => drop(client.option(OPT_EXTENDED, &[])),
        }
        if context {
            client.option(OPT_SET_META, &meta(name, &["base:allocation"]));
        }
        let told = client.option(OPT_INFO, &info(name, &[]));
        u16::from_be_bytes([told[0].1[10], told[0].1[11]])
    };
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO.
    let writable = 1 | 4 | 8 | 32 | 64 | 256 | 1024 | 2048;
    assert_eq!(flags("disk", Style::Simple, false), writable);
    assert_eq!(flags("disk", Style::Structured, true), writable | 128);
    assert_eq!(flags("disk", Style::Extended, false), writable | 128);
    assert_eq!(flags("disk", Style::Extended, true), writable | 128 | 4096);
    assert_eq!(flags("frozen", Style::Simple, false), 1 | 2 | 4 | 8 | 256 | 1024);
}

/// The old way in: size and flags, and 124 zeroes for those who want them.
#[test]
fn export_name() {
    let fixture = Fixture::start();
    for (client_flags, zeroes) in [(3u32, 0), (1, 124), (0, 124), (2, 0)] {
        let mut client = Client::connect(&fixture.path);
        client.send(&client_flags.to_be_bytes());
        client.send_option(OPT_EXPORT_NAME, b"disk");
        assert_eq!(client.u64(), SIZE);
        assert_eq!(client.u16() & 1, 1);
        assert_eq!(client.take(zeroes), vec![0; zeroes]);
        assert_eq!(client.run(FLUSH, 0, 0, 0), 0);
    }
}

/// Contexts need structured replies or extended headers; extended headers cannot be taken back.
#[test]
fn order_of_options() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    for code in [OPT_LIST_META, OPT_SET_META] {
        assert_eq!(client.verdict(code, &meta("disk", &["base:allocation"])), ERR_INVALID);
    }
    assert_eq!(client.verdict(OPT_STRUCTURED, &[]), REP_ACK);
    assert_eq!(client.option(OPT_SET_META, &meta("disk", &["base:allocation"])).len(), 2);
    assert_eq!(client.verdict(OPT_EXTENDED, &[]), REP_ACK);
    assert_eq!(client.verdict(OPT_STRUCTURED, &[]), ERR_EXT_HEADER_REQD);
    client.send_option(OPT_EXPORT_NAME, b"disk");
    assert!(client.is_closed(), "EXPORT_NAME cannot follow extended headers");
}

/// Queries: unknown ones are ignored, wildcards list but do not select, none lists all.
#[test]
fn metadata_contexts() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    client.option(OPT_STRUCTURED, &[]);
    let context = |id: u32| (REP_META, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let ack = (REP_ACK, vec![]);
    let mut ask = |code, queries: &[&str]| client.option(code, &meta("disk", queries));
    let many = ["qemu:dirty-bitmap:x", "base:allocation", "base:nonsense", "no colon", "base:allocation"];
    assert_eq!(ask(OPT_SET_META, &many), [context(1), ack.clone()]);
    assert_eq!(ask(OPT_LIST_META, &many), [context(0), ack.clone()]);
    assert_eq!(ask(OPT_LIST_META, &[]), [context(0), ack.clone()]);
    assert_eq!(ask(OPT_LIST_META, &["base:"]), [context(0), ack.clone()]);
    let nothing = [ack];
    assert_eq!(ask(OPT_LIST_META, &["qemu:"]), nothing);
    assert_eq!(ask(OPT_SET_META, &["base:"]), nothing);
    assert_eq!(ask(OPT_SET_META, &[]), nothing);
    assert_eq!(client.verdict(OPT_SET_META, b"\0\0\0\x04disk\xff\xff\xff\xff\0\0\0\x01"), ERR_INVALID);
    assert_eq!(client.verdict(OPT_SET_META, &meta("disk", &[&"q".repeat(4097)])), ERR_TOO_BIG);
}

/// A selection holds for the export it named and for the last time it was made, failed or not.
#[test]
fn contexts_belong_to_their_export() {
    let fixture = Fixture::start();
    let select = |queries: &[(&str, &str)]| {
        let mut client = Client::newstyle(&fixture.path);
        client.option(OPT_STRUCTURED, &[]);
        for (name, query) in queries {
            client.option(OPT_SET_META, &meta(name, &[query]));
        }
        client.option(OPT_GO, &info("disk", &[]));
        client.request(BLOCK_STATUS, 0, 1, 0, 4096);
        match client.reply() {
            Reply::Chunk { kind, .. } => kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(select(&[("disk", "base:allocation")]), CHUNK_STATUS);
    assert_eq!(select(&[]), CHUNK_ERROR);
    assert_eq!(select(&[("huge", "base:allocation")]), CHUNK_ERROR);
    assert_eq!(select(&[("disk", "base:allocation"), ("nothing", "base:allocation")]), CHUNK_ERROR);
    assert_eq!(select(&[("disk", "base:allocation"), ("disk", "other:")]), CHUNK_ERROR);
}

/// ABORT is acknowledged and ends the connection; leaving without a word is fine as well.
#[test]
fn leaving_early() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_ABORT, b"ignored"), REP_ACK);
    assert!(client.is_closed());
    let client = Client::newstyle(&fixture.path);
    client.stream.shutdown(Shutdown::Both).expect("shutdown");
    assert_eq!(fixture.stop(), 0);
}

/// Who cannot make up his mind in time loses his place.
#[test]
fn half_open_handshakes_end() {
    let settings =
        ServerSettings { handshake_limit: std::time::Duration::from_millis(50), ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    let mut silent = Client::connect(&fixture.path);
    let mut slow = Client::newstyle(&fixture.path);
    slow.send(b"IHAVE");
    assert!(silent.is_closed() && slow.is_closed());
}

/// The time in which the server opens an export takes nothing of the client's. A client that was late by itself, on a busy machine, tries
/// again: what counts is one whose export was being opened.
#[test]
fn who_waits_for_the_server_is_not_late() {
    let settings = ServerSettings { handshake_limit: OPENING / 2, ..ServerSettings::default() };
    let fixture = Fixture::with(settings, TlsMode::Off);
    loop {
        let begun = fixture.exports.opening.load(SeqCst);
        let Some(answered) = Client::try_to_go(&fixture.path, "late") else {
            assert_eq!(
                fixture.exports.opening.load(SeqCst),
                begun,
                "closed while the server opened the export"
            );
            continue;
        };
        return assert!(answered, "it is opened in the end");
    }
}

/// Who goes while an export is being opened is noticed, and a stop waits for no opening.
#[test]
fn nothing_is_opened_for_nobody() {
    let fixture = Fixture::start();
    let waiting = |count| {
        while fixture.exports.opening.load(SeqCst) != count {
            std::thread::yield_now();
        }
    };
    let mut client = Client::newstyle(&fixture.path);
    client.send_option(OPT_GO, &info("never", &[]));
    waiting(1);
    drop(client);
    waiting(0);
    let mut client = Client::newstyle(&fixture.path);
    client.send_option(OPT_GO, &info("never", &[]));
    waiting(1);
    let stopping = fixture.begin_stop();
    assert_eq!(client.option_replies(OPT_GO).last().map(|(code, _)| *code), Some(ERR_SHUTDOWN));
    assert!(client.is_closed());
    assert_eq!(stopping.wait(), 0);
}

/// Where there is no TLS, asking for it is refused and nothing else changes.
#[test]
fn no_tls_here() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_STARTTLS, &[]), ERR_POLICY);
    assert_eq!(client.option(OPT_GO, &info("disk", &[])).len(), 3);
}

/// Where TLS is required, nothing is told in the clear, and what is sent in the clear behind
/// STARTTLS never counts.
#[test]
fn tls_required() {
    let dir = tempfile::tempdir().expect("temporary directory");
    certificates::write(dir.path());
    let tls = TlsMode::Required(certificates::server(dir.path()));
    let fixture = Fixture::with(ServerSettings::default(), tls);
    let mut client = Client::newstyle(&fixture.path);
    for code in [OPT_LIST, OPT_INFO, OPT_GO, OPT_STRUCTURED, OPT_EXTENDED, OPT_SET_META, 99] {
        assert_eq!(client.verdict(code, &[]), ERR_TLS_REQD);
    }
    assert_eq!(client.verdict(OPT_STARTTLS, b"x"), ERR_INVALID);
    // The option that follows in the same packet would be read as if it came through TLS.
    let start = [b"IHAVEOPT", &[0, 0, 0, 5, 0, 0, 0, 0][..]].concat();
    let list = [b"IHAVEOPT", &[0, 0, 0, 3, 0, 0, 0, 0][..]].concat();
    client.send(&[start, list].concat());
    assert!(client.is_closed());

    let mut client = Client::newstyle(&fixture.path);
    client.send_option(OPT_EXPORT_NAME, b"disk");
    assert!(client.is_closed());
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_ABORT, &[]), REP_ACK);
    let mut client = Client::connect(&fixture.path);
    client.send(&0u32.to_be_bytes());
    assert!(client.is_closed(), "without fixed newstyle there is no way to TLS");
    // Plain text where the TLS handshake should be.
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.verdict(OPT_STARTTLS, &[]), REP_ACK);
    client.send_option(OPT_LIST, &[]);
    let mut rest = Vec::new();
    // An alert may come before the end.
    let _ = std::io::Read::read_to_end(&mut client.stream, &mut rest);
    assert!(!rest.windows(4).any(|w| w == b"disk"));
    assert_eq!(fixture.stop(), 0);
}
