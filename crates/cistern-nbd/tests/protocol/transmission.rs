//! Requests and replies in all three styles.

use std::{net::Shutdown, sync::atomic::Ordering::SeqCst};

use crate::{client::*, fixture::*};

const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

/// The payload of a filter for a block status.
fn filter(len: u64, ids: &[u32]) -> Vec<u8> {
    len.to_be_bytes().into_iter().chain(ids.iter().flat_map(|id| id.to_be_bytes())).collect()
}

/// What is written is read, zeroed and trimmed ranges read as zeroes, in every style.
#[test]
fn reads_what_was_written() {
    let fixture = Fixture::start();
    for style in STYLES {
        let mut client = Client::go(&fixture.path, "disk", style);
        let data: Vec<u8> = (0..200_000u32).map(|n| n as u8 | 1).take(196_608).collect();
        assert_eq!(client.write(0, 512, &data), 0);
        assert_eq!(client.write(FUA, 1 << 20, &data[..4096]), 0);
        assert_eq!(client.read(0, 512, data.len()), Ok(data.clone()));
        assert_eq!(client.run(WRITE_ZEROES, 0, 65_536, 4096), 0);
        assert_eq!(client.run(TRIM, FUA, 131_072, 4096), 0);
        assert_eq!(client.run(CACHE, 0, 0, 4096), 0);
        assert_eq!(client.run(FLUSH, FUA, 0, 0), 0);
        let got = client.read(0, 0, 262_144).expect("readable");
        assert!(got[..512].iter().all(|b| *b == 0));
        assert_eq!(got[512..65_536], data[..65_024]);
        assert!(got[65_536..69_632].iter().all(|b| *b == 0));
        assert_eq!(got[69_632..131_072], data[69_120..130_560]);
        assert!(got[131_072..135_168].iter().all(|b| *b == 0));
        assert_eq!(client.run(TRIM, 0, 0, SIZE), 0);
        client.request(DISC, 0, 0, 0, 0);
        assert!(client.is_closed());
    }
}

/// The largest read and the largest write go through as one request each.
#[test]
fn largest_requests() {
    let fixture = Fixture::start();
    let data: Vec<u8> = (0..32u32 << 20).map(|n| (n >> 9) as u8).collect();
    for style in STYLES {
        let mut client = Client::go(&fixture.path, "disk", style);
        assert_eq!(client.write(0, 4096, &data), 0);
        assert!(client.read(0, 4096, data.len()) == Ok(data.clone()));
    }
}

/// Holes are told as holes, data as one chunk where it is together; with DF all is one chunk.
#[test]
fn chunks_of_a_read() {
    let fixture = Fixture::start();
    for style in [Style::Structured, Style::Extended] {
        let mut client = Client::go(&fixture.path, "disk", style);
        client.run(TRIM, 0, 0, SIZE);
        client.write(0, 32_768, &[7; 65_536]);
        let mut chunks = |flags, offset, len| {
            client.request(READ, flags, 5, offset, len);
            let mut seen = Vec::new();
            loop {
                let Reply::Chunk { done, kind, cookie: 5, offset: header, payload } = client.reply() else {
                    panic!("a chunk")
                };
                assert_eq!(header, (style == Style::Extended).then_some(offset), "the offset of the request");
                let at = u64::from_be_bytes(payload[..8].try_into().expect("eight bytes"));
                seen.push((kind, at, payload.len()));
                if done {
                    return seen;
                }
            }
        };
        let expected = [(CHUNK_HOLE, 0, 12), (CHUNK_DATA, 32_768, 65_544), (CHUNK_HOLE, 98_304, 12)];
        assert_eq!(chunks(0, 0, 262_144), expected);
        assert_eq!(chunks(DF, 0, 262_144), [(CHUNK_DATA, 0, 262_152)]);
        assert_eq!(chunks(DF, 1 << 20, 262_144), [(CHUNK_HOLE, 1 << 20, 12)]);
        assert_eq!(chunks(0, 65_536, 512), [(CHUNK_DATA, 65_536, 520)]);
    }
}

/// Every wrong request gets its errno, in every style, and the connection goes on.
#[test]
fn wrong_requests() {
    let fixture = Fixture::start();
    for style in STYLES {
        let mut client = Client::go(&fixture.path, "disk", style);
        for (command, flags, offset, len, errno) in [
            (99, 0, 0, 512, EINVAL),
            (READ, NO_HOLE, 0, 512, EINVAL),
            (READ, 0, SIZE, 512, EINVAL),
            (READ, 0, 0, 0, EINVAL),
            (READ, 0, 0, (32 << 20) + 512, EINVAL),
            (READ, 0, 100, 512, EINVAL),
            (TRIM, 0, SIZE - 512, 1024, EINVAL),
            (CACHE, 0, u64::MAX - 511, 512, EINVAL),
            (WRITE_ZEROES, 0, SIZE, 512, ENOSPC),
            (WRITE_ZEROES, NO_HOLE | FAST_ZERO, 0, 512, ENOTSUP),
            (WRITE_ZEROES, DF, 0, 512, EINVAL),
            (FLUSH, 0, 0, 512, EINVAL),
            (FLUSH, 1 << 14, 0, 0, EINVAL),
        ] {
            assert_eq!(client.run(command, flags, offset, len), errno, "{command} {flags} {offset} {len}");
        }
        assert_eq!(client.write(0, SIZE, &[1; 512]), ENOSPC);
        assert_eq!(client.write(0, 0, &[1; 100]), EINVAL);
        assert_eq!(client.write(REQ_ONE, 0, &[1; 512]), EINVAL);
        assert_eq!(client.write(0, 0, &[]), EINVAL);
        assert_eq!(client.write(0, 0, &[1; 512]), 0);
    }
}

/// Who has not asked for block sizes has not agreed to any: every byte can be addressed, in every style.
#[test]
fn nothing_agreed_is_bytes() {
    let fixture = Fixture::start();
    let old_way = || {
        let mut client = Client::newstyle(&fixture.path);
        client.send_option(OPT_EXPORT_NAME, b"disk");
        client.take(10);
        client
    };
    let asking_nothing = STYLES.map(|style| Client::go_asking(&fixture.path, "disk", style, &[0]));
    for mut client in asking_nothing.into_iter().chain([old_way()]) {
        assert_eq!(client.write(0, 0, &[1; 8192]), 0);
        assert_eq!(client.write(FUA, 1, &[2]), 0);
        assert_eq!(client.write(0, 4095, &[3; 2]), 0);
        assert_eq!(client.run(WRITE_ZEROES, 0, 4097, 1), 0);
        assert_eq!(client.run(TRIM, 0, 100, 1), 0);
        assert_eq!(client.run(CACHE, 0, 1, 1), 0);
        assert_eq!(client.read(0, 0, 3), Ok(vec![1, 2, 1]));
        assert_eq!(client.read(0, 4094, 5), Ok(vec![1, 3, 3, 0, 1]));
        assert_eq!(client.read(0, 99, 3), Ok(vec![1, 0, 1]));
        assert_eq!(client.read(0, SIZE - 1, 1), Ok(vec![0]));
        assert_eq!(client.read(0, SIZE - 1, 2), Err(EINVAL));
        assert_eq!(client.write(0, SIZE - 1, &[1; 2]), ENOSPC);
    }
}

/// A read-only export permits reads and flushes and nothing that writes.
#[test]
fn read_only_exports() {
    let fixture = Fixture::start();
    for style in STYLES {
        let mut client = Client::go(&fixture.path, "frozen", style);
        assert_eq!(client.write(0, 0, &[1; 100_000 / 512 * 512]), EPERM);
        assert_eq!(client.run(TRIM, 0, 0, 512), EPERM);
        assert_eq!(client.run(WRITE_ZEROES, 0, 0, 512), EPERM);
        assert_eq!(client.run(FLUSH, 0, 0, 0), 0);
        assert_eq!(client.read(0, 0, 512), Ok(vec![0; 512]));
    }
}

/// A write that is too large is thrown away and answered, up to twice the limit; beyond, or with
/// extended headers at once, the connection ends.
#[test]
fn oversized_writes() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "disk", Style::Structured);
    assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 512]), EINVAL);
    assert_eq!(client.read(0, 0, 512), Ok(vec![0; 512]), "nothing was written");
    client.request(WRITE, 0, 1, 0, 0xffff_fe00);
    assert!(client.is_closed());
    let mut client = Client::go(&fixture.path, "disk", Style::Extended);
    client.request(WRITE, PAYLOAD, 1, 0, 1 << 62);
    assert!(client.is_closed());
}

/// With extended headers the flag says whether a payload follows; a write has one in any case (qemu sets no flag).
#[test]
fn payload_flag() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "disk", Style::Extended);
    client.request(WRITE, 0, 1, 0, 512);
    client.send(&[9; 512]);
    assert_eq!(client.errno(), 0);
    assert_eq!(client.read(0, 0, 512), Ok(vec![9; 512]));
    client.request(READ, PAYLOAD, 1, 0, 512);
    client.send(&[0; 512]);
    assert_eq!(client.errno(), EINVAL, "a read has none");
    client.request(99, PAYLOAD, 1, 0, 100_000);
    client.send(&[0; 100_000]);
    assert_eq!(client.errno(), EINVAL);
    assert_eq!(client.write(0, 0, &[3; 512]), 0);
}

/// One request may trim, zero or query a hundred tebibytes.
#[test]
fn whole_device_at_once() {
    let fixture = Fixture::start();
    let size = 100u64 << 40;
    let mut client = Client::go(&fixture.path, "huge", Style::Extended);
    assert_eq!(client.write(0, size - 4096, &[1; 4096]), 0);
    client.request(BLOCK_STATUS, 0, 4, 0, size);
    let descriptor = |len: u64, flags: u64| [len.to_be_bytes(), flags.to_be_bytes()].concat();
    let head = [1u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
    let expected = [head, descriptor(size - 4096, 3), descriptor(4096, 0)].concat();
    let reply =
        Reply::Chunk { done: true, kind: CHUNK_STATUS_EXT, cookie: 4, offset: Some(0), payload: expected };
    assert_eq!(client.reply(), reply);
    assert_eq!(client.run(TRIM, FUA, 0, size), 0);
    assert_eq!(client.read(0, size - 4096, 4096), Ok(vec![0; 4096]));
    assert_eq!(client.run(WRITE_ZEROES, FAST_ZERO, 0, size), 0);
    assert_eq!(client.run(CACHE, 0, 0, size), 0);
    assert_eq!(client.run(TRIM, 0, 512, size), EINVAL);
}

/// Data, allocated zeroes and holes are told apart; one range is one; 32-bit replies hold 32 bits.
#[test]
fn block_status() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "disk", Style::Structured);
    client.write(0, 4096, &[1; 4096]);
    client.run(WRITE_ZEROES, NO_HOLE, 8192, 4096);
    let mut status = |flags, offset, len| {
        client.request(BLOCK_STATUS, flags, 1, offset, len);
        let Reply::Chunk { done: true, kind: CHUNK_STATUS, payload, .. } = client.reply() else {
            panic!("a status")
        };
        assert_eq!(payload[..4], 1u32.to_be_bytes());
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        payload[4..].chunks(8).map(|d| (word(&d[..4]), word(&d[4..]))).collect::<Vec<_>>()
    };
    assert_eq!(status(0, 0, 65_536), [(4096, 3), (4096, 0), (4096, 2), (53_248, 3)]);
    assert_eq!(status(REQ_ONE, 4096, 65_536), [(4096, 0)]);
    assert_eq!(status(REQ_ONE, 4608, 512), [(512, 0)]);
    let mut client = Client::go(&fixture.path, "huge", Style::Structured);
    client.request(BLOCK_STATUS, 0, 1, 1 << 40, 0xffff_fe00);
    let Reply::Chunk { payload, .. } = client.reply() else { panic!("a status") };
    assert_eq!(payload[4..], [0xff, 0xff, 0xfe, 0, 0, 0, 0, 3]);
}

/// A block status may come with the contexts it wants; wrong filters are consumed and refused.
#[test]
fn filtered_block_status() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "disk", Style::Extended);
    let mut ask = |payload: &[u8]| {
        client.request(BLOCK_STATUS, PAYLOAD, 1, 4096, payload.len() as u64);
        client.send(payload);
        client.reply()
    };
    let Reply::Chunk { done: true, kind: CHUNK_STATUS_EXT, payload, .. } = ask(&filter(8192, &[1])) else {
        panic!("a status")
    };
    assert_eq!(
        payload,
        [&[0, 0, 0, 1, 0, 0, 0, 1][..], &8192u64.to_be_bytes(), &3u64.to_be_bytes()].concat()
    );
    assert!(matches!(ask(&filter(8192, &[])), Reply::Chunk { done: true, kind: CHUNK_NONE, .. }));
    for wrong in [filter(8192, &[2]), filter(8192, &[1, 1]), filter(SIZE, &[1]), filter(0, &[1])] {
        assert!(matches!(ask(&wrong), Reply::Chunk { done: true, kind: CHUNK_ERROR, .. }));
    }
    for wrong in [vec![0; 9], vec![0; 4], vec![0; 4096]] {
        assert!(matches!(ask(&wrong), Reply::Chunk { done: true, kind: CHUNK_ERROR, .. }));
    }
    assert_eq!(client.run(FLUSH, 0, 0, 0), 0);
}

/// An export's bitmaps are contexts: listed all or by name, selected by name, and told beside what is allocated, each in a chunk with its
/// id; with a filter only those that it names. No more are selected than there can be, and unknown ones are not.
#[test]
fn bitmaps_are_contexts() {
    let fixture = Fixture::start();
    let mut client = Client::newstyle(&fixture.path);
    assert_eq!(client.option(OPT_EXTENDED, &[]), [(REP_ACK, vec![])]);
    let context = |id: u32, name: &str| (REP_META, [&id.to_be_bytes()[..], name.as_bytes()].concat());
    let ack = || (REP_ACK, vec![]);
    let (monday, tuesday) = ("qemu:dirty-bitmap:monday", "qemu:dirty-bitmap:tuesday");
    for all in ["qemu:", "qemu:dirty-bitmap:"] {
        assert_eq!(client.option(OPT_LIST_META, &meta("held", &[all])).len(), 23);
        assert_eq!(client.option(OPT_SET_META, &meta("held", &[all])), [ack()], "not chosen by a wildcard");
    }
    assert_eq!(client.option(OPT_LIST_META, &meta("held", &[])).len(), 24, "these and base:allocation");
    assert_eq!(client.option(OPT_LIST_META, &meta("held", &[tuesday])), [context(0, tuesday), ack()]);
    let many: Vec<String> = (0..20).map(|n| format!("qemu:dirty-bitmap:more-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(client.option(OPT_SET_META, &meta("held", &many)).len(), 16, "15 and the end");
    let wanted = ["qemu:dirty-bitmap:none", tuesday, "base:allocation", monday];
    let selected = [context(1, "base:allocation"), context(2, monday), context(3, tuesday), ack()];
    assert_eq!(client.option(OPT_SET_META, &meta("held", &wanted)), selected);
    assert_eq!(client.option(OPT_GO, &info("held", &[3])).last(), Some(&ack()));
    client.extended = true;
    let mut ask = |flags: u16, ids: Option<&[u32]>| {
        match ids {
            None => client.request(BLOCK_STATUS, flags, 1, 0, 65_536),
            Some(ids) => {
                let payload = filter(65_536, ids);
                client.request(BLOCK_STATUS, flags | PAYLOAD, 1, 0, payload.len() as u64);
                client.send(&payload);
            }
        }
        let mut told = Vec::new();
        loop {
            let Reply::Chunk { done, kind: CHUNK_STATUS_EXT, payload, .. } = client.reply() else {
                panic!("a status")
            };
            let words: Vec<u64> = payload[8..]
                .chunks(8)
                .map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
                .collect();
            told.push((payload[3], words));
            if done {
                return told;
            }
        }
    };
    let (hole, mixed, clean) = (vec![65_536, 3], vec![4096, 1, 61_440, 0], vec![65_536, 0]);
    assert_eq!(ask(0, None), [(1, hole.clone()), (2, mixed.clone()), (3, clean.clone())]);
    assert_eq!(ask(REQ_ONE, None), [(1, hole), (2, vec![4096, 1]), (3, vec![4096, 0])]);
    assert_eq!(ask(0, Some(&[3, 2])), [(2, mixed), (3, clean)]);
}

/// A thousand requests sent before the first reply is read are all answered, each with its own
/// cookie, equal cookies included.
#[test]
fn pipelining() {
    let fixture = Fixture::start();
    for style in STYLES {
        let mut client = Client::go(&fixture.path, "disk", style);
        for n in 0..1000u64 {
            client.send_write(0, n / 2, n * 4096, &[n as u8; 4096]);
        }
        let mut cookies: Vec<u64> = (0..1000)
            .map(|_| match client.reply() {
                Reply::Simple { errno: 0, cookie } => cookie,
                Reply::Chunk { done: true, kind: CHUNK_NONE, cookie, .. } => cookie,
                other => panic!("{other:?}"),
            })
            .collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..1000).map(|n| n / 2).collect::<Vec<u64>>());
        for n in 0..1000u64 {
            assert_eq!(client.read(0, n * 4096, 4096), Ok(vec![n as u8; 4096]));
        }
    }
}

/// Requests that wait do not hold up others: the reply of a later one comes first.
#[test]
fn slow_requests_are_overtaken() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    client.request(READ, 0, 1, 0, 512);
    client.request(TRIM, 0, 2, 0, 512);
    assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: 2 });
    fixture.exports.held.permits.add_permits(1);
    assert_eq!(client.reply(), Reply::Simple { errno: 0, cookie: 1 });
    assert_eq!(client.take(512), vec![0; 512]);
}

/// However many requests have waited, when all are done at one moment all are answered.
#[test]
fn waiting_requests_are_all_answered() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    for count in [1, 7, 8, 9, 64, 200] {
        (0..count).for_each(|n| client.request(READ, 0, n, 0, 512));
        while fixture.exports.held.begun.load(SeqCst) < count {
            std::thread::yield_now();
        }
        fixture.exports.held.begun.store(0, SeqCst);
        fixture.exports.held.permits.add_permits(count as usize);
        let mut cookies: Vec<u64> = (0..count)
            .map(|_| {
                let Reply::Simple { errno: 0, cookie } = client.reply() else { panic!("no reply") };
                client.take(512);
                cookie
            })
            .collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..count).collect::<Vec<u64>>());
    }
}

/// A request out of step ends the connection after the ones before it were answered.
#[test]
fn bad_magic_in_the_stream() {
    let fixture = Fixture::start();
    for style in STYLES {
        let mut client = Client::go(&fixture.path, "disk", style);
        client.send_write(0, 1, 0, &[6; 512]);
        client.send(&[0x55; 100]);
        assert_eq!(client.errno(), 0);
        assert!(client.is_closed());
    }
    // A compact header on a connection with extended ones is out of step as well.
    let mut client = Client::go(&fixture.path, "disk", Style::Extended);
    client.extended = false;
    client.request(FLUSH, 0, 1, 0, 0);
    client.send(&[0; 4]);
    assert!(client.is_closed());
}

/// A client that closes its sending side still gets its replies.
#[test]
fn half_closed_connections() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    client.send_write(0, 1, 0, &[6; 512]);
    client.stream.shutdown(Shutdown::Write).expect("shutdown");
    while fixture.exports.held.begun.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    fixture.exports.held.permits.add_permits(1);
    assert_eq!(client.errno(), 0);
    assert!(client.is_closed());
}

/// After goodbye what was begun is finished.
#[test]
fn goodbye_waits_for_requests() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "held", Style::Simple);
    client.send_write(0, 1, 0, &[6; 512]);
    client.request(DISC, 0, 0, 0, 0);
    fixture.exports.held.permits.add_permits(1);
    assert_eq!(client.errno(), 0);
    assert!(client.is_closed());
}

/// A new size holds from the next request on.
#[test]
fn resize() {
    let fixture = Fixture::start();
    let mut client = Client::go(&fixture.path, "disk", Style::Simple);
    assert_eq!(client.write(0, SIZE, &[1; 512]), ENOSPC);
    fixture.exports.disk.size_bytes.store(SIZE * 2, SeqCst);
    assert_eq!(client.write(0, SIZE, &[1; 512]), 0);
    fixture.exports.disk.size_bytes.store(512, SeqCst);
    assert_eq!(client.read(0, 512, 512), Err(EINVAL));
    assert_eq!(client.read(0, 0, 512), Ok(vec![0; 512]));
}

/// Several connections see each other's writes at once.
#[test]
fn many_connections_one_disk() {
    let fixture = Fixture::start();
    let mut writer = Client::go(&fixture.path, "disk", Style::Simple);
    let mut reader = Client::go(&fixture.path, "", Style::Extended);
    for n in 0..100u8 {
        assert_eq!(writer.write(0, 0, &[n; 4096]), 0);
        assert_eq!(reader.read(0, 0, 4096), Ok(vec![n; 4096]));
    }
}
