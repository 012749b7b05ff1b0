//! Writes of sectors: they stand in the journal as what they are, and are completed behind it.

mod volume_support;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Store, StoreError, StoreResult},
    volume::{Mode, OpenOptions, RangeKind, Volume, admin},
};
use volume_support::{
    Host, MIB, close, is_own_below, noise,
    passing::{Passing, Through},
    read, try_read,
};

/// A store in memory that may be away, or give damaged bytes of segments.
#[derive(Default)]
struct Moody {
    inner: MemoryStore,
    away: AtomicBool,
    /// So many more replies with bytes of segments are damaged.
    damaged_replies: AtomicU64,
}

impl Moody {
    fn set_away(&self, away: bool) {
        self.away.store(away, SeqCst);
    }
}

#[async_trait]
impl Passing for Moody {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        match self.away.load(SeqCst) {
            true => Err(StoreError::Unreachable("away".into())),
            false => Ok(()),
        }
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        let bytes = self.inner.get_range(key, range).await?;
        let left = |n: u64| n.checked_sub(1);
        match is_own_below("log/", key) && self.damaged_replies.fetch_update(SeqCst, SeqCst, left).is_ok() {
            true => Ok(bytes.iter().map(|byte| byte ^ 1).collect()),
            false => Ok(bytes),
        }
    }
}

/// A host whose volume holds `noise(1)` in its first 64 KiB, in the store only, and the store.
async fn host_with_data() -> (Host, Arc<Through<Moody>>) {
    let store = Through::new(Moody::default());
    let host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 65536), false).await.expect("written");
    close(volume).await;
    (host, store)
}

/// A filesystem writes sectors while the store is away: they are acknowledged, durable and read back, and
/// once the store is there again they are in it, in blocks whose other sectors are what they were.
#[tokio::test(flavor = "multi_thread")]
async fn sectors_are_written_while_the_store_is_away() {
    let (mut host, store) = host_with_data().await;
    let volume = host.open().await;
    store.set_away(true);
    volume.write(512, noise(2, 512), true).await.expect("one sector");
    volume.write(8192 + 1024, noise(3, 8192), false).await.expect("with a whole block in the middle");
    volume.write(2048, noise(4, 512), false).await.expect("another sector of the first block");
    volume.flush().await.expect("flushed");
    assert_eq!(read(&volume, 512, 512).await, noise(2, 512));
    assert_eq!(read(&volume, 2048, 512).await, noise(4, 512));
    assert_eq!(read(&volume, 8192 + 1024, 8192).await, noise(3, 8192));
    assert!(volume.read(0, 4096).await.is_err(), "the rest of the block is in the store");
    let ranges = volume.ranges(0, 4096, 10).await.expect("known without the store");
    assert_eq!(ranges, [(4096, RangeKind::Data)]);

    store.set_away(false);
    let mut expected = noise(1, 65536).to_vec();
    expected[512..1024].copy_from_slice(&noise(2, 512));
    expected[2048..2560].copy_from_slice(&noise(4, 512));
    expected[9216..9216 + 8192].copy_from_slice(&noise(3, 8192));
    assert!(read(&volume, 0, 65536).await == expected);
    volume.drain().await.expect("drained");
    assert!(read(&volume, 0, 65536).await == expected);
    close(volume).await;
    host.replace_disk();
    let volume = host.open().await;
    assert!(read(&volume, 0, 65536).await == expected);
    close(volume).await;
}

/// What a crash leaves in the journal is sectors too: they are read after it, exported as what they are, and
/// completed.
#[tokio::test(flavor = "multi_thread")]
async fn sectors_survive_a_crash_in_the_journal() {
    let (host, store) = host_with_data().await;
    let volume = host.open().await;
    store.set_away(true);
    volume.write(4096 + 512, noise(2, 1024), false).await.expect("written");
    volume.write(4096 + 3072, noise(3, 512), false).await.expect("written");
    volume.trim(8192 + 512, 512, true).await.expect("trimmed");
    let id = volume.id();
    drop(volume);
    let mut exported = Vec::new();
    let state = host.state();
    loop {
        let visit = &mut |item| {
            if let admin::JournalItem::Write { offset, data } = item {
                exported.push((offset, data));
            }
            Ok(())
        };
        match admin::journal_export(&host.env, &state, id, visit).await {
            Err(Error::Locked(_)) => tokio::task::yield_now().await, // the crash is not over
            other => break other.expect("exported"),
        }
    }
    let again = [(4608, noise(2, 1024)), (7168, noise(3, 512))];
    let expected = [(4608, noise(2, 1024)), again[0].clone(), again[1].clone(), (8704, vec![0; 512].into())];
    assert!(exported == expected, "each record holds all sectors that are not committed");

    store.set_away(false);
    let volume = reopen(|| host.options()).await;
    let mut expected = noise(1, 65536).to_vec();
    expected[4608..5632].copy_from_slice(&noise(2, 1024));
    expected[7168..7680].copy_from_slice(&noise(3, 512));
    expected[8704..9216].fill(0);
    assert!(read(&volume, 0, 65536).await == expected);
    close(volume).await;
}

/// Opens again after a crash, once the volume that died has let go of its journal.
async fn reopen(options: impl Fn() -> OpenOptions) -> Arc<Volume> {
    loop {
        match Volume::open(options()).await {
            Err(Error::Locked(_)) => tokio::task::yield_now().await,
            other => return other.expect("opened"),
        }
    }
}

/// In writethrough a sector is in the store when its write is acknowledged: another host reads it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sector_reaches_the_store_in_writethrough() {
    let (host, _) = host_with_data().await;
    let options = OpenOptions { mode: Mode::Writethrough, ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    volume.write(1024, noise(2, 512), true).await.expect("written");
    let reader = host.open_read_only(None).await;
    let mut expected = noise(1, 65536).to_vec();
    expected[1024..1536].copy_from_slice(&noise(2, 512));
    assert!(read(&reader, 0, 65536).await == expected);
    close(volume).await;
}

/// One damaged reply is no damaged object: the sectors over it are not given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_reply_loses_no_sectors() {
    let (host, store) = host_with_data().await;
    let volume = host.open().await;
    volume.write(512, noise(2, 512), false).await.expect("written");
    store.damaged_replies.store(3, SeqCst);
    volume.drain().await.expect("drained");
    assert_eq!(store.damaged_replies.load(SeqCst), 0, "they were met");
    let mut expected = noise(1, 65536).to_vec();
    expected[512..1024].copy_from_slice(&noise(2, 512));
    assert!(read(&volume, 0, 65536).await == expected);
    close(volume).await;
}

/// A block whose rest is damaged in the store stops nothing but itself: everything else is uploaded, it goes
/// on failing, and a whole write heals it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_base_holds_nothing_up() {
    let (host, store) = host_with_data().await;
    let volume = host.open().await;
    store.damaged_replies.store(u64::MAX, SeqCst);
    volume.write(512, noise(2, 512), false).await.expect("written");
    volume.write(MIB, noise(3, 4096), false).await.expect("written");
    assert_eq!(read(&volume, 512, 512).await, noise(2, 512));
    volume.drain().await.expect("drained");
    store.damaged_replies.store(1000, SeqCst);
    assert!(matches!(volume.read(0, 4096).await, Err(Error::Corrupt { .. })));
    store.damaged_replies.store(0, SeqCst);
    assert_eq!(read(&volume, MIB, 4096).await, noise(3, 4096));
    volume.write(0, noise(4, 4096), false).await.expect("written");
    volume.drain().await.expect("drained");
    assert_eq!(read(&volume, 0, 4096).await, noise(4, 4096));
    close(volume).await;
}

/// The numbers of splitmix64 (Steele, Lea and Flood 2014): the same in every run.
struct Dice(u64);

impl Dice {
    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// A volume and what it must hold.
struct Story {
    host: Host,
    store: Arc<Through<Moody>>,
    volume: Arc<Volume>,
    with_cache: bool,
    bytes: Vec<u8>,
    dice: Dice,
    writes: u64,
}

const STORY_BYTES: u64 = 256 << 10;

impl Story {
    async fn begin(seed: u64) -> Story {
        let store = Through::new(Moody::default());
        let host = Host::with_volume(RealEnv::start(), store.clone(), STORY_BYTES, KeySource::None).await;
        let with_cache = seed.is_multiple_of(2);
        let volume = Volume::open(Story::options(&host, with_cache).await).await.expect("opened");
        let dice = Dice(seed);
        Story { host, store, volume, with_cache, bytes: vec![0; STORY_BYTES as usize], dice, writes: 0 }
    }

    async fn options(host: &Host, with_cache: bool) -> OpenOptions {
        let cache = if with_cache { Some(host.cache("cache").await) } else { None };
        // Uploads go on all the time, so that blocks are committed at any moment.
        let dirty_age_max = Duration::from_millis(1);
        OpenOptions { cache, dirty_age_max, journal_bytes: 8 * MIB, ..host.options() }
    }

    fn is_away(&self) -> bool {
        self.store.away.load(SeqCst)
    }

    /// A range inside the volume: few blocks, many beginnings and ends in them; of whole sectors, or not.
    fn range(&mut self) -> (u64, u64) {
        let unit = if self.is_away() || self.dice.below(5) > 0 { 512 } else { 1 };
        let size = self.bytes.len() as u64;
        let offset = self.dice.below(size.min(16 * 4096)) / unit * unit;
        let len = (1 + self.dice.below(12_288)).next_multiple_of(unit);
        (offset, len.min(size - offset))
    }

    async fn step(&mut self) {
        let (offset, len) = self.range();
        let place = offset as usize..(offset + len) as usize;
        let fua = self.dice.below(10) == 0;
        match self.dice.below(100) {
            0..45 => {
                self.writes += 1;
                let data = noise(self.writes, len as usize);
                self.volume.write(offset, data.clone(), fua).await.expect("written");
                self.bytes[place].copy_from_slice(&data);
            }
            45..55 => {
                self.volume.trim(offset, len, fua).await.expect("trimmed");
                self.bytes[place].fill(0);
            }
            55..65 => {
                let allocated = self.dice.below(2) == 0;
                self.volume.zero(offset, len, allocated, fua).await.expect("zeroed");
                self.bytes[place].fill(0);
            }
            65..85 => self.look(offset, len).await,
            85..88 => self.volume.flush().await.expect("flushed"),
            88..93 if !self.is_away() => self.volume.drain().await.expect("drained"),
            93..96 => self.store.set_away(!self.is_away()),
            96..98 => {
                let size = (128 + self.dice.below(STORY_BYTES / 512 - 127)) * 512;
                self.volume.resize(size, true).await.expect("resized");
                self.bytes.resize(size as usize, 0);
            }
            98 => self.crash().await,
            _ => {}
        }
    }

    /// What can be read is right; everything can while the store is there.
    async fn look(&mut self, offset: u64, len: u64) {
        let read = match try_read(&self.volume, offset, len).await {
            Err(Error::Unreachable(_)) if self.is_away() => return,
            read => read.expect("read"),
        };
        assert!(read == self.bytes[offset as usize..(offset + len) as usize], "{offset}+{len}");
    }

    async fn crash(&mut self) {
        self.volume.flush().await.expect("flushed");
        self.store.set_away(false);
        let dead = std::mem::replace(&mut self.volume, self.host.open_read_only(None).await);
        drop(dead);
        let options = Story::options(&self.host, false).await;
        let (host, with_cache) = (&self.host, self.with_cache);
        let cache = if with_cache { Some(host.cache("another cache").await) } else { None };
        self.volume = reopen(|| OpenOptions {
            state: host.state(),
            cache: cache.clone(),
            journal_bytes: options.journal_bytes,
            dirty_age_max: options.dirty_age_max,
            ..host.options()
        })
        .await;
    }
}

/// Whatever is written, trimmed, zeroed and resized at any alignment, while the store comes and goes and the daemon
/// dies: reads are right, and so is what ends up in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_written_in_sectors_agrees_with_an_array() {
    for seed in 0..8 {
        let mut story = Story::begin(seed).await;
        for _ in 0..250 {
            story.step().await;
        }
        story.store.set_away(false);
        let size = story.bytes.len() as u64;
        assert!(read(&story.volume, 0, size).await == story.bytes, "seed {seed}");
        close(story.volume).await;
        story.host.replace_disk();
        let volume = story.host.open().await;
        assert!(read(&volume, 0, size).await == story.bytes, "seed {seed}, on another host");
        close(volume).await;
        let (env, store, key) = (&story.host.env, &story.host.store, &story.host.key);
        let report = admin::check(env, store, key, admin::Checked { data: true, space: true }, &|_, _| {})
            .await
            .expect("checked");
        assert_eq!(report.faults, Vec::<String>::new(), "seed {seed}");
    }
}

/// A request that begins and ends inside blocks is there as a whole: in every snapshot that is made while it is written, and behind a crash. So are
/// zeroes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_is_there_as_a_whole_or_not() {
    const AT: u64 = 4096 + 512;
    const LEN: u64 = 3 * 4096;
    let (host, _) = host_with_data().await;
    let volume = host.open().await;
    let is_over = Arc::new(AtomicBool::new(false));
    // On a thread of its own: what one place is, nothing on another thread divides.
    let writes = {
        let (volume, is_over) = (volume.clone(), is_over.clone());
        async move {
            for tag in (1..=250).cycle() {
                match tag % 2 {
                    0 => volume.zero(AT, LEN, false, false).await.expect("zeroed"),
                    _ => {
                        volume.write(AT, Bytes::from(vec![tag; LEN as usize]), false).await.expect("written")
                    }
                }
                if is_over.load(SeqCst) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    };
    let writes = host.env.spawn("writes", writes);
    for n in 0..SNAPSHOTS {
        volume.snapshot(&format!("s{n}")).await.expect("made");
    }
    is_over.store(true, SeqCst);
    writes.await.expect("written");
    volume.drain().await.expect("drained");
    for n in 1..SNAPSHOTS {
        let shown = volume.open_snapshot(&format!("s{n}")).await.expect("shown");
        let found = read(&shown, AT, LEN).await;
        assert!(found.iter().all(|byte| *byte == found[0]), "snapshot {n} has a part of a request");
    }
    close(volume).await;
}

const SNAPSHOTS: usize = 60;
