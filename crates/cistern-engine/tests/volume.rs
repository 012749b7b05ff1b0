//! A volume from creation to reopening, on a real disk and a store in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    disk::{Disk, RealDisk},
    env::{Env, real::RealEnv},
    stats::IoKind,
    store::{MemoryStore, SharedStore, Stores},
    volume::{CreateOptions, Mode, OpenOptions, Piece, RangeKind, ReadOnlyOptions, Volume, admin},
};

const MIB: u64 = 1 << 20;

struct Host {
    env: Env,
    store: SharedStore,
    state: tempfile::TempDir,
    key: KeySource,
}

impl Host {
    async fn with_volume(size_bytes: u64, key: KeySource) -> Host {
        let env = RealEnv::start();
        let store: SharedStore = Arc::new(MemoryStore::new());
        let options = CreateOptions { size_bytes, compression: Compression::Lz4, key: key.clone() };
        Volume::create(&env, &store, options).await.expect("created");
        Host { env, store, state: tempdir(), key }
    }

    fn options(&self) -> OpenOptions {
        let state: Arc<dyn Disk> = Arc::new(RealDisk::open(self.state.path()).expect("a directory"));
        OpenOptions {
            env: self.env.clone(),
            stores: Stores::same(self.store.clone()),
            state,
            cache: None,
            key: self.key.clone(),
            mode: Mode::Writeback,
            journal_bytes: 128 * MIB,
            dirty_age_max: Duration::from_secs(30),
            dirty_bytes_max: 128 * MIB,
            paused: false,
            memory_bytes: 128 * MIB,
            host: "here".into(),
            take_over: false,
        }
    }

    async fn open(&self) -> Arc<Volume> {
        Volume::open(self.options()).await.expect("opened")
    }

    async fn open_read_only(&self) -> Arc<Volume> {
        let (env, key) = (self.env.clone(), self.key.clone());
        let stores = Stores::same(self.store.clone());
        let options = ReadOnlyOptions { env, stores, cache: None, key, memory_bytes: 64 * MIB };
        Volume::open_read_only(options).await.expect("opened read-only")
    }
}

fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

async fn read(volume: &Volume, offset: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in volume.read(offset, len).await.expect("read") {
        match piece {
            Piece::Data(data) => out.extend_from_slice(&data),
            Piece::Zeroes(n) => out.resize(out.len() + n as usize, 0),
        }
    }
    out
}

/// Bytes that do not compress and differ for every tag.
fn noise(tag: u64, len: usize) -> Vec<u8> {
    let mut x = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

async fn close(volume: Arc<Volume>) {
    let report = volume.close(Duration::from_secs(60)).await;
    assert!(report.clean, "{report:?}");
}

/// What was written is read back at once, after a drain, and by a reader without a claim.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_read_back_everywhere() {
    let host = Host::with_volume(64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    let data = noise(1, 3 * MIB as usize + 512);
    volume.write(512 * 7, Bytes::from(data.clone()), false).await.expect("written");
    volume.zero(MIB, 8192, false, false).await.expect("trimmed");
    let mut expected = data.clone();
    expected[(MIB - 512 * 7) as usize..][..8192].fill(0);
    assert_eq!(read(&volume, 512 * 7, expected.len() as u64).await, expected);
    volume.drain().await.expect("drained");
    assert_eq!(read(&volume, 512 * 7, expected.len() as u64).await, expected);
    let reader = host.open_read_only().await;
    assert_eq!(read(&reader, 512 * 7, expected.len() as u64).await, expected);
    let ranges = volume.ranges(0, 64 * MIB, 100).await.expect("ranges");
    assert_eq!(ranges[0].1, RangeKind::Data);
    assert_eq!(ranges[1], (8192, RangeKind::Hole));
    assert_eq!(ranges.iter().map(|r| r.0).sum::<u64>(), 64 * MIB);
    close(volume).await;
}

/// After a clean stop the volume opens on a host with an empty disk; nothing is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_leaves_everything_in_the_store() {
    let mut host = Host::with_volume(256 * MIB, KeySource::Passphrase("open sesame".into())).await;
    let volume = host.open().await;
    let data = noise(2, 40 * MIB as usize);
    for (n, part) in data.chunks(MIB as usize).enumerate() {
        volume.write(n as u64 * 3 * MIB, Bytes::copy_from_slice(part), false).await.expect("written");
    }
    close(volume).await;
    host.state = tempdir();
    let volume = host.open().await;
    for (n, part) in data.chunks(MIB as usize).enumerate() {
        assert_eq!(read(&volume, n as u64 * 3 * MIB, MIB).await, part, "part {n}");
    }
    close(volume).await;
    let report = admin::check(&host.env, &host.store, &host.key, true, &|_, _| {}).await.expect("checked");
    assert_eq!(report.faults, Vec::<String>::new());
    assert!(report.bytes_read >= 40 * MIB);
    let wrong = KeySource::Passphrase("open barley".into());
    let refused = admin::check(&host.env, &host.store, &wrong, true, &|_, _| {}).await;
    assert!(matches!(refused, Err(Error::Key(_))), "{refused:?}");
}

/// A host that vanished without a release is not succeeded silently, but by a take-over; its own
/// journal is then refused, with what to do about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_is_refused_until_it_takes_over() {
    let mut host = Host::with_volume(64 * MIB, KeySource::None).await;
    let first = host.open().await;
    first.write(0, Bytes::from(noise(3, 4096)), false).await.expect("written");
    first.drain().await.expect("drained");
    first.write(4096, Bytes::from(noise(4, 4096)), true).await.expect("written, not uploaded");

    let first_state = std::mem::replace(&mut host.state, tempdir());
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
    host.state = first_state;
    match Volume::open(host.options()).await {
        Err(Error::StaleJournal(text)) => assert!(text.contains("journal export"), "{text}"),
        other => panic!("expected a refusal, got {:?}", other.map(|_| ())),
    }
    let state: Arc<dyn Disk> = Arc::new(RealDisk::open(host.state.path()).expect("a directory"));
    let mut exported = Vec::new();
    admin::journal_export(&host.env, &state, first.id(), &mut |item| {
        if let admin::JournalItem::Write { offset, data } = item {
            exported.push((offset, data));
        }
        Ok(())
    })
    .await
    .expect("exported");
    assert_eq!(exported.last(), Some(&(4096, Bytes::from(noise(4, 4096)))));
    admin::journal_discard(&state).await.expect("discarded");
    close(host.open().await).await;
}

/// Two writes of 512 bytes into one block at the same time both survive.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_into_one_block_both_survive() {
    let host = Host::with_volume(16 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, Bytes::from(noise(5, 4096)), false).await.expect("written");
    volume.drain().await.expect("drained");
    for round in 0..50u64 {
        let writes = (0..8u64).map(|sector| {
            let volume = volume.clone();
            async move {
                volume
                    .write(sector * 512, Bytes::from(noise(round * 8 + sector, 512)), false)
                    .await
                    .expect("written");
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
    let host = Host::with_volume(16 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, Bytes::from(noise(6, MIB as usize)), false).await.expect("written");
    assert!(matches!(volume.resize(4096 + 512, false).await, Err(Error::Invalid(_))));
    volume.resize(4096 + 512, true).await.expect("shrunk");
    assert!(matches!(volume.read(4096, 1024).await, Err(Error::OutOfRange { .. })));
    volume.resize(32 * MIB, false).await.expect("grown");
    let mut expected = noise(6, 4096 + 512);
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
    let host = Host::with_volume(64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, Bytes::from(noise(3, 65536)), false).await.expect("written");
    volume.write(512, Bytes::from(noise(4, 512)), true).await.expect("written");
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
