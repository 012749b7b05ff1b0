//! A volume from creation to reopening, on a real disk and a store in memory.

mod volume_support;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    stats::IoKind,
    store::MemoryStore,
    volume::{OpenOptions, RangeKind, Volume, admin},
};
use volume_support::{Host, MIB, close, noise, read};

async fn host(size_bytes: u64, key: KeySource) -> Host {
    Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), size_bytes, key).await
}

/// What was written is read back at once, after a drain, and by a reader without a claim.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_read_back_everywhere() {
    let host = host(64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    let data = noise(1, 3 * MIB as usize + 512);
    volume.write(512 * 7, data.clone(), false).await.expect("written");
    volume.zero(MIB, 8192, false, false).await.expect("trimmed");
    let mut expected = data.to_vec();
    expected[(MIB - 512 * 7) as usize..][..8192].fill(0);
    assert_eq!(read(&volume, 512 * 7, expected.len() as u64).await, expected);
    volume.drain().await.expect("drained");
    assert_eq!(read(&volume, 512 * 7, expected.len() as u64).await, expected);
    let reader = host.open_read_only(None).await;
    assert_eq!(read(&reader, 512 * 7, expected.len() as u64).await, expected);
    let ranges = volume.ranges(0, 64 * MIB, 100).await.expect("ranges");
    assert_eq!(ranges[0].1, RangeKind::Data);
    assert_eq!(ranges[1], (8192, RangeKind::Hole));
    assert_eq!(ranges.iter().map(|r| r.0).sum::<u64>(), 64 * MIB);
    close(volume).await;
}

/// A write larger than the journal goes through it in parts, whole blocks or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_may_be_larger_than_the_journal() {
    let host = host(64 * MIB, KeySource::None).await;
    let options = OpenOptions { journal_bytes: 8 * MIB, dirty_bytes_max: 8 * MIB, ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    let data = noise(1, 32 * MIB as usize);
    for offset in [0, 512, 4096] {
        volume.write(offset, data.clone(), false).await.expect("written");
        assert!(read(&volume, offset, data.len() as u64).await == data, "at {offset}");
    }
    close(volume).await;
}

/// After a clean stop the volume opens on a host with an empty disk; nothing is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_leaves_everything_in_the_store() {
    let mut host = host(256 * MIB, KeySource::Passphrase("open sesame".into())).await;
    let volume = host.open().await;
    let data = noise(2, 40 * MIB as usize);
    for (n, part) in data.chunks(MIB as usize).enumerate() {
        volume.write(n as u64 * 3 * MIB, data.slice_ref(part), false).await.expect("written");
    }
    close(volume).await;
    host.replace_disk();
    let volume = host.open().await;
    for (n, part) in data.chunks(MIB as usize).enumerate() {
        assert_eq!(read(&volume, n as u64 * 3 * MIB, MIB).await, part, "part {n}");
    }
    close(volume).await;
    let report = admin::check(
        &host.env,
        &host.store,
        &host.key,
        admin::Checked { data: true, space: true },
        &|_, _| {},
    )
    .await
    .expect("checked");
    assert_eq!(report.faults, Vec::<String>::new());
    assert!(report.bytes_read >= 40 * MIB);
    let wrong = KeySource::Passphrase("open barley".into());
    let refused = admin::check(&host.env, &host.store, &wrong, admin::Checked::default(), &|_, _| {}).await;
    assert!(matches!(refused, Err(Error::Key(_))), "{refused:?}");
}

/// A host that vanished without a release is not succeeded silently, but by a take-over; its own
/// journal is then refused, with what to do about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_is_refused_until_it_takes_over() {
    let mut host = host(64 * MIB, KeySource::None).await;
    let first = host.open().await;
    first.write(0, noise(3, 4096), false).await.expect("written");
    first.drain().await.expect("drained");
    first.write(4096, noise(4, 4096), true).await.expect("written, not uploaded");

    let first_disk = host.replace_disk();
    let mut options = host.options();
    options.host = "there".into();
    match Volume::open(options).await {
        Err(Error::InUse { host, .. }) => assert_eq!(host, "here"),
        other => panic!("expected a refusal, got {:?}", other.map(|_| ())),
    }
    let mut options = host.options();
    (options.host, options.take_over) = ("there".into(), true);
    let second = Volume::open(options).await.expect("taken over");
    assert_eq!(read(&second, 0, 4096).await, noise(3, 4096));
    assert_eq!(read(&second, 4096, 4096).await, vec![0; 4096]);

    // The first one finds out when it next uploads, and stops.
    let lost = first.drain().await;
    assert!(matches!(lost, Err(Error::Fenced { ours: 1, theirs: 2 })), "{lost:?}");
    assert!(first.write(0, Bytes::from(vec![1; 4096]), false).await.is_err());
    let report = first.close(Duration::from_secs(1)).await;
    assert!(!report.clean && report.journal_bytes_left > 0, "{report:?}");
    close(second).await;

    // Its journal holds what it acknowledged: neither replayed nor dropped.
    host.put_back(first_disk);
    match Volume::open(host.options()).await {
        Err(Error::StaleJournal(text)) => assert!(text.contains("journal export"), "{text}"),
        other => panic!("expected a refusal, got {:?}", other.map(|_| ())),
    }
    let state = host.state();
    let mut exported = Vec::new();
    admin::journal_export(&host.env, &state, first.id(), &mut |item| {
        if let admin::JournalItem::Write { offset, data } = item {
            exported.push((offset, data));
        }
        Ok(())
    })
    .await
    .expect("exported");
    assert_eq!(exported.last(), Some(&(4096, noise(4, 4096))));
    admin::journal_discard(&host.env, &state).await.expect("discarded");
    close(host.open().await).await;
}

/// Two writes of 512 bytes into one block at the same time both survive.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_into_one_block_both_survive() {
    let host = host(16 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(5, 4096), false).await.expect("written");
    volume.drain().await.expect("drained");
    for round in 0..50u64 {
        let writes = (0..8u64).map(|sector| {
            let volume = volume.clone();
            async move {
                volume.write(sector * 512, noise(round * 8 + sector, 512), false).await.expect("written");
            }
        });
        futures_util::future::join_all(writes).await;
        let expected: Vec<u8> = (0..8).flat_map(|sector| noise(round * 8 + sector, 512)).collect();
        assert_eq!(read(&volume, 0, 4096).await, expected);
    }
    close(volume).await;
}

/// Growing shows zeroes even where data lay before a shrink, and shrinking below data needs force.
#[tokio::test(flavor = "multi_thread")]
async fn resizing_keeps_what_remains_and_zeroes_what_comes() {
    let host = host(16 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(6, MIB as usize), false).await.expect("written");
    assert!(matches!(volume.resize(4096 + 512, false).await, Err(Error::Invalid(_))));
    volume.resize(4096 + 512, true).await.expect("shrunk");
    assert!(matches!(volume.read(4096, 1024).await, Err(Error::OutOfRange { .. })));
    volume.resize(32 * MIB, false).await.expect("grown");
    let mut expected = noise(6, 4096 + 512).to_vec();
    expected.resize(MIB as usize, 0);
    assert_eq!(read(&volume, 0, MIB).await, expected);
    close(volume).await;
    let volume = host.open().await;
    assert_eq!(volume.size_bytes(), 32 * MIB);
    assert_eq!(read(&volume, 0, MIB).await, expected);
    close(volume).await;
}

/// Every request is counted once under its kind, with the range the client gave: a trim too, although
/// only the whole blocks inside are trimmed. What fails counts as an error and moves no bytes.
#[tokio::test(flavor = "multi_thread")]
async fn what_clients_ask_is_counted() {
    let host = host(64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(3, 65536), false).await.expect("written");
    volume.write(512, noise(4, 512), true).await.expect("written");
    read(&volume, 0, 8192).await;
    assert!(volume.read(64 * MIB, 512).await.is_err());
    volume.trim(512, 8192, false).await.expect("trimmed");
    volume.zero(MIB, MIB, true, false).await.expect("zeroed");
    volume.flush().await.expect("flushed");
    let io = volume.io_stats();
    let told: Vec<_> =
        io.kinds.iter().map(|k| (k.kind, k.requests, k.errors, k.bytes, k.in_flight)).collect();
    let expected = [
        (IoKind::Read, 2, 1, 8192, 0),
        (IoKind::Write, 2, 0, 66048, 0),
        (IoKind::Flush, 1, 0, 0, 0),
        (IoKind::Trim, 1, 0, 8192, 0),
        (IoKind::WriteZeroes, 1, 0, MIB, 0),
        (IoKind::Cache, 0, 0, 0, 0),
        (IoKind::BlockStatus, 0, 0, 0, 0),
    ];
    assert_eq!(told, expected);
    let trim = &io.kinds[IoKind::Trim as usize];
    assert_eq!((trim.alignments[0].bytes, trim.sizes[0].up_to_bytes), (512, Some(8192)));
    close(volume).await;
}

/// A loop device turns the zeroing of a filesystem into a punched hole, and that arrives as a trim: what was
/// trimmed reads as zeroes to the byte, also at ends that are no whole blocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_trim_zeroes_its_ragged_ends() {
    let host = host(16 * MIB, KeySource::None).await;
    let volume = host.open().await;
    let mut expected = noise(7, 65536).to_vec();
    volume.write(0, noise(7, 65536), false).await.expect("written");
    volume.drain().await.expect("drained");
    for (offset, len) in [(512, 512), (4096 + 1024, 8192), (16384 - 512, 1024), (32768 + 100, 5000)] {
        volume.trim(offset, len, false).await.expect("trimmed");
        expected[offset as usize..][..len as usize].fill(0);
        assert!(read(&volume, 0, 65536).await == expected, "{offset}+{len}");
    }
    volume.trim(65536 + 512, 65536, false).await.expect("a hole is trimmed");
    let ranges = volume.ranges(65536, 131072, 10).await.expect("ranges");
    assert_eq!(ranges, [(131072, RangeKind::Hole)], "it stays one hole");
    close(volume).await;
    let volume = host.open().await;
    assert!(read(&volume, 0, 65536).await == expected);
    close(volume).await;
}

/// One block status looks at a bounded number of pieces, however many are dirty: it ends early, and whoever
/// asks on learns the rest.
#[tokio::test(flavor = "multi_thread")]
async fn one_block_status_looks_at_a_bounded_number_of_pieces() {
    const BLOCKS: u64 = 6000;
    let host = host(64 * MIB, KeySource::None).await;
    // Held back: what is committed meanwhile would lie in fewer and larger pieces.
    let volume = Volume::open(OpenOptions { paused: true, ..host.options() }).await.expect("opened");
    let block = noise(8, 4096);
    for n in 0..BLOCKS {
        volume.write(n * 4096, block.clone(), false).await.expect("written");
    }
    let (mut at, mut answers) = (0, 0);
    while at < BLOCKS * 4096 {
        let ranges = volume.ranges(at, BLOCKS * 4096 - at, 1).await.expect("ranges");
        let [(len, RangeKind::Data)] = ranges[..] else { panic!("{ranges:?}") };
        assert!((1..=4096 * 4096).contains(&len), "{len} bytes, of which each block is one piece");
        (at, answers) = (at + len, answers + 1);
    }
    assert!((2..=2 + BLOCKS / 4096).contains(&answers), "{answers} answers");
}
