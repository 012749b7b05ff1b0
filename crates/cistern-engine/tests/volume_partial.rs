//! Sectors that are written over a block whose rest cannot be read: they are stored by themselves, stay readable, and the block is
//! whole again when its rest is.

#[path = "volume_support/steps.rs"]
mod steps;
mod volume_support;

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    share::Share,
    store::{Listed, MemoryStore, Store, StoreError, StoreResult},
    stream::StreamContent,
    volume::{Collect, Mode, OpenOptions, RangeKind, Volume, admin},
};
use steps::{sent, show};
use volume_support::{
    Host, MIB,
    bucket::Bucket,
    close, noise,
    passing::{Passing, Through},
    read, try_read,
};

const BLOCK: u64 = 4096;
const SIZE: u64 = 256 << 10;
/// Objects of more bytes are segments with data here.
const SEGMENT_BYTES_MIN: u64 = 1200;

/// A store in memory of which objects may be out of sight for a time: whoever asks is told that they are not there.
#[derive(Default)]
struct Hiding {
    inner: MemoryStore,
    hidden: Mutex<BTreeSet<String>>,
    /// A caller that asks for something below this is refused, waits for ever, or finds nothing.
    away: Mutex<Option<(&'static str, Away)>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Away {
    Refuses,
    Hangs,
    IsGone,
}

impl Hiding {
    async fn hide(&self, is_hidden: impl Fn(&Listed) -> bool) {
        let all = self.listed().await;
        self.hide_all(all.into_iter().filter(is_hidden));
    }

    async fn listed(&self) -> Vec<Listed> {
        self.inner.list_after("", "", 10_000).await.expect("listed")
    }

    fn hide_all(&self, all: impl Iterator<Item = Listed>) {
        self.hidden.lock().expect("not poisoned").extend(all.map(|listed| listed.key));
    }

    /// Takes segments with data out of sight, but for so many of the newest objects of the log: a writer that misses the newest one it knows of
    /// stops. Checkpoints, claims and the map stay.
    async fn hide_segments(&self, newest: usize) {
        let mut log = self.listed().await;
        log.retain(|listed| listed.key.contains("/log/"));
        log.sort_by(|a, b| a.key.cmp(&b.key));
        log.truncate(log.len().saturating_sub(newest));
        self.hide_all(log.into_iter().filter(|listed| listed.bytes > SEGMENT_BYTES_MIN));
    }

    fn show_all(&self) {
        self.hidden.lock().expect("not poisoned").clear();
    }

    fn has_hidden(&self) -> bool {
        !self.hidden.lock().expect("not poisoned").is_empty()
    }

    fn put_away(&self, away: Option<(&'static str, Away)>) {
        *self.away.lock().expect("not poisoned") = away;
    }

    async fn ask(&self, key: &str) -> StoreResult<()> {
        let away = *self.away.lock().expect("not poisoned");
        match away.filter(|(below, _)| key.starts_with(below)) {
            Some((_, Away::Refuses)) => Err(StoreError::Unreachable("nothing is mounted there".into())),
            Some((_, Away::Hangs)) => std::future::pending().await,
            Some((_, Away::IsGone)) => Err(StoreError::NotFound(key.to_owned())),
            None => self.look(key),
        }
    }

    fn look(&self, key: &str) -> StoreResult<()> {
        match self.hidden.lock().expect("not poisoned").contains(key) {
            true => Err(StoreError::NotFound(key.to_owned())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Passing for Hiding {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        self.ask(key).await?;
        self.inner.get(key, bytes_max).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        self.ask(key).await?;
        self.inner.get_range(key, range).await
    }
    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        match self.ask(prefix).await {
            Err(StoreError::NotFound(_)) => return Ok(Vec::new()),
            asked => asked?,
        }
        let mut listed = self.inner.list_after(prefix, after, count_max).await?;
        listed.retain(|listed| self.look(&listed.key).is_ok());
        Ok(listed)
    }
}

/// A host whose volume holds `noise(1)` in its first 64 KiB, in the store only, and the store.
async fn host_with_data() -> (Host, Arc<Through<Hiding>>) {
    let store = Through::new(Hiding::default());
    let host = Host::with_volume(RealEnv::start(), store.clone(), SIZE, KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 65536), false).await.expect("written");
    close(volume).await;
    (host, store)
}

fn put(bytes: &mut [u8], at: usize, data: &[u8]) {
    bytes[at..at + data.len()].copy_from_slice(data);
}

/// Waits until no block is stored in part any more.
async fn whole_again(volume: &Volume) {
    while volume.status().partial_blocks {
        volume.drain().await.expect("drained");
        tokio::task::yield_now().await;
    }
}

async fn is_sound(host: &Host) {
    let (env, store, key) = (&host.env, &host.store, &host.key);
    let report = admin::check(env, store, key, admin::Checked { data: true, space: true }, &|_, _| {}).await;
    assert_eq!(report.expect("checked").faults, Vec::<String>::new());
}

/// A segment is out of sight (a disk of a pool is not mounted, say), and a filesystem writes sectors over what lies in it. All of
/// them go to the store, and are read there, also on another host and in a snapshot; the rest of their blocks answers an error.
/// Once the segment is back the blocks are whole.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_over_a_missing_segment_stays() {
    let (mut host, store) = host_with_data().await;
    store.hide_segments(1).await;
    let volume = host.open().await;
    volume.write(512, noise(2, 512), true).await.expect("a sector");
    volume.write(8192 + 1024, noise(3, 8192), false).await.expect("parts of two blocks and a whole one");
    volume.drain().await.expect("drained");
    assert_eq!(read(&volume, 512, 512).await, noise(2, 512));
    assert_eq!(read(&volume, 8192 + 1024, 8192).await, noise(3, 8192));
    assert!(matches!(try_read(&volume, 0, 4096).await, Err(Error::NotFound(_))));
    assert!(matches!(try_read(&volume, 8192, 4096).await, Err(Error::NotFound(_))));
    volume.snapshot("s").await.expect("made");
    volume.write(2048, noise(4, 512), true).await.expect("another sector of the first block");
    volume.write(768, noise(5, 100), true).await.expect("inside a sector that is there");
    volume.drain().await.expect("drained");
    close(volume).await;

    let mut shown = noise(1, 65536).to_vec();
    put(&mut shown, 512, &noise(2, 512));
    put(&mut shown, 8192 + 1024, &noise(3, 8192));
    let mut newest = shown.clone();
    put(&mut newest, 2048, &noise(4, 512));
    put(&mut newest, 768, &noise(5, 100));

    host.replace_disk();
    let volume = host.open().await;
    assert!(volume.status().partial_blocks);
    for (from, until) in [(512, 1024), (2048, 2560), (9216, 17408)] {
        assert!(read(&volume, from, until - from).await == newest[from as usize..until as usize]);
    }
    let ranges = volume.ranges(0, 65536, 10).await.expect("ranges");
    assert_eq!(ranges, [(65536, RangeKind::Data)]);
    let snapshot = show(&host, "s").await;
    assert_eq!(read(&snapshot, 512, 512).await, noise(2, 512));
    assert!(matches!(try_read(&snapshot, 2048, 512).await, Err(Error::NotFound(_))));

    store.show_all();
    assert!(read(&volume, 0, 65536).await == newest);
    assert!(read(&snapshot, 0, 65536).await == shown);
    whole_again(&volume).await;
    assert!(read(&volume, 0, 65536).await == newest);
    close(volume).await;
    host.replace_disk();
    let volume = host.open().await;
    assert!(!volume.status().partial_blocks || read(&volume, 0, 65536).await == newest);
    close(volume).await;
    let snapshot = show(&host, "s").await;
    assert!(read(&snapshot, 0, 65536).await == shown);
    is_sound(&host).await;
}

/// In writethrough FLUSH and FUA are answered when the sectors are in the store, whatever became of the rest of their block:
/// another host reads them.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_in_writethrough_means_the_store() {
    let (host, store) = host_with_data().await;
    store.hide_segments(1).await;
    let options = OpenOptions { mode: Mode::Writethrough, ..host.options() };
    let volume = Volume::open(options).await.expect("opened");
    volume.write(512, noise(2, 512), true).await.expect("durable");
    volume.write(4096 + 3584, noise(3, 512), false).await.expect("written");
    volume.flush().await.expect("flushed");
    let reader = host.open_read_only(None).await;
    assert_eq!(read(&reader, 512, 512).await, noise(2, 512));
    assert_eq!(read(&reader, 4096 + 3584, 512).await, noise(3, 512));
    drop(volume);
}

/// What is trimmed or written whole takes the place of sectors that lay apart, for good: they do not come back when the map is
/// merged, nor on another host. A snapshot from before goes on showing them.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_block_takes_the_place_of_its_sectors() {
    let (mut host, store) = host_with_data().await;
    store.hide_segments(1).await;
    let volume = host.open().await;
    for block in 0..4 {
        volume.write(block * BLOCK + 1024, noise(2 + block, 512), false).await.expect("written");
    }
    volume.drain().await.expect("drained");
    volume.snapshot("s").await.expect("made");
    volume.trim(0, BLOCK, false).await.expect("trimmed");
    volume.zero(BLOCK, BLOCK, true, false).await.expect("zeroed");
    volume.write(2 * BLOCK, noise(9, BLOCK as usize), false).await.expect("written");
    let mut expected = vec![0; 2 * BLOCK as usize];
    expected.extend_from_slice(&noise(9, BLOCK as usize));
    for round in 0..3 {
        volume.drain().await.expect("drained");
        volume.collect(Collect::Retire).await.expect("covered");
        assert!(read(&volume, 0, 3 * BLOCK).await == expected, "round {round}");
        volume.write(8 * BLOCK, noise(20 + round, BLOCK as usize), false).await.expect("written");
    }
    close(volume).await;
    host.replace_disk();
    let volume = host.open().await;
    assert!(read(&volume, 0, 3 * BLOCK).await == expected);
    assert_eq!(read(&volume, 3 * BLOCK + 1024, 512).await, noise(5, 512));
    let kinds = volume.ranges(0, 4 * BLOCK, 10).await.expect("ranges");
    let expected = [(BLOCK, RangeKind::Hole), (BLOCK, RangeKind::Zero), (2 * BLOCK, RangeKind::Data)];
    assert_eq!(kinds, expected);
    let snapshot = show(&host, "s").await;
    for block in 0..4 {
        assert_eq!(read(&snapshot, block * BLOCK + 1024, 512).await, noise(2 + block, 512));
    }
    close(volume).await;
}

/// A difference between snapshots has the blocks that were written in part, as a whole; while their rest cannot be read it is
/// refused and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_whole_blocks() {
    let (host, store) = host_with_data().await;
    let volume = host.open().await;
    volume.snapshot("before").await.expect("made");
    volume.drain().await.expect("drained");
    store.hide_segments(1).await;
    volume.write(3 * BLOCK + 512, noise(2, 512), false).await.expect("written");
    volume.write(7 * BLOCK + 1024, noise(3, 1024), false).await.expect("written");
    volume.snapshot("after").await.expect("made");
    volume.drain().await.expect("drained");
    let changed = volume.changed_ranges("before", 0, SIZE, 100).await.expect("ranges");
    let dirty: Vec<(u64, u64)> = changed
        .iter()
        .scan(0, |at, &(len, is_dirty)| {
            let from = std::mem::replace(at, *at + len);
            Some((from, len, is_dirty))
        })
        .filter(|(.., is_dirty)| *is_dirty)
        .map(|(from, len, _)| (from, len))
        .collect();
    assert_eq!(dirty, [(3 * BLOCK, BLOCK), (7 * BLOCK, BLOCK)]);
    close(volume).await;
    store.show_all();
    let mut expected = noise(1, 65536).to_vec();
    put(&mut expected, 3 * BLOCK as usize + 512, &noise(2, 512));
    put(&mut expected, 7 * BLOCK as usize + 1024, &noise(3, 1024));
    let (_, records) = sent(&host, "after", Some("before"), (Share::ALL, 0)).await;
    let blocks: Vec<u64> = records.iter().map(|record| record.extent.start).collect();
    assert_eq!(blocks, [3, 7]);
    for from in [None, Some("before")] {
        let (_, records) = sent(&host, "after", from, (Share::ALL, 0)).await;
        for record in records {
            let place = (record.extent.start * BLOCK) as usize..(record.extent.end() * BLOCK) as usize;
            if let StreamContent::Data(data) = &record.content {
                assert!(data.unpack(place.len()).expect("unpacked") == expected[place.clone()], "{place:?}");
            }
        }
    }
}

/// A clone `b`, and beside it the volume `a` that it was made of, whose first 64 KiB are noise.
async fn clone_in_one_bucket() -> (Arc<Through<Hiding>>, Host) {
    let hiding = Through::new(Hiding::default());
    let bucket = Bucket(hiding.clone());
    let source = bucket.with_volume(&RealEnv::start(), "a", SIZE, &KeySource::None).await;
    let volume = source.open().await;
    volume.write(0, noise(1, 65536), false).await.expect("written");
    volume.snapshot("s").await.expect("made");
    volume.drain().await.expect("drained");
    let clone = bucket.clone_of((&source, "../a"), &volume, "s", (RealEnv::start(), "b")).await;
    close(volume).await;
    (hiding, clone)
}

/// The volume that a clone was made of is not in its place (its directory is not mounted). What is written to the clone goes to the
/// store and is read there; when the other volume is back, each block is what it was with what was written over it, and the clone can
/// be flattened.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_keeps_what_is_written_while_its_parent_is_away() {
    let (hiding, mut clone) = clone_in_one_bucket().await;
    hiding.hide(|listed| listed.key.starts_with("a/")).await;
    let volume = clone.open().await;
    volume.write(512, noise(2, 512), true).await.expect("written");
    volume
        .write(100_000 / 512 * 512, noise(3, 512), true)
        .await
        .expect("written where the source has nothing");
    volume.drain().await.expect("drained");
    assert_eq!(read(&volume, 512, 512).await, noise(2, 512));
    assert!(try_read(&volume, 0, 512).await.is_err());
    close(volume).await;
    clone.replace_disk();
    let volume = clone.open().await;
    assert_eq!(read(&volume, 512, 512).await, noise(2, 512));
    hiding.show_all();
    let mut expected = noise(1, 65536).to_vec();
    expected.resize(SIZE as usize, 0);
    put(&mut expected, 512, &noise(2, 512));
    put(&mut expected, 100_000 / 512 * 512, &noise(3, 512));
    assert!(read(&volume, 0, SIZE).await == expected);
    let mut next = Some(0);
    while let Some(offset) = next {
        next = volume.collect(Collect::Adopt { offset, len: SIZE - offset }).await.expect("adopted").next;
    }
    while volume.collect(Collect::LetGo).await.expect("let go").next.is_some() {}
    hiding.hide(|listed| listed.key.starts_with("a/")).await;
    assert!(read(&volume, 0, SIZE).await == expected);
    whole_again(&volume).await;
    close(volume).await;
    is_sound(&clone).await;
}

/// The same where the clone is served and has read of the other volume when that goes away: its store refuses, which may pass. What is
/// written is waited with for ten seconds, once, and then goes to the clone's own store, which is there all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_goes_on_when_its_parent_refuses() {
    goes_on_without_its_parent(Away::Refuses).await;
}

/// And where that store does not answer at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_goes_on_when_its_parent_hangs() {
    goes_on_without_its_parent(Away::Hangs).await;
}

/// And where all objects of the other volume are gone, and its place is there. Nothing says that the clone has nothing in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_goes_on_when_its_parent_is_gone() {
    goes_on_without_its_parent(Away::IsGone).await;
}

async fn goes_on_without_its_parent(away: Away) {
    let (hiding, mut clone) = clone_in_one_bucket().await;
    let volume = clone.open().await;
    assert_eq!(read(&volume, 0, BLOCK).await, noise(1, 65536).slice(..BLOCK as usize));
    hiding.put_away(Some(("a/", away)));
    let mut expected = noise(1, 65536).to_vec();
    expected.resize(SIZE as usize, 0);
    for n in 1..4 {
        let offset = n * 3 * BLOCK + 512;
        volume.write(offset, noise(n + 1, 512), true).await.expect("written");
        put(&mut expected, offset as usize, &noise(n + 1, 512));
        let drained = clone.env.timeout(Duration::from_secs(120), volume.drain()).await;
        drained.expect("it waits for nobody for ever").expect("drained");
    }
    close(volume).await;
    clone.replace_disk();
    hiding.put_away(None);
    let volume = clone.open().await;
    assert!(read(&volume, 0, SIZE).await == expected, "what was drained is in the store");
    whole_again(&volume).await;
    close(volume).await;
}

/// What of the parent is damaged is named with the parent: the clone's own objects are sound.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_of_a_parent_is_named_with_it() {
    for part in ["/log/", "/map/"] {
        let (hiding, clone) = clone_in_one_bucket().await;
        let mut all = hiding.listed().await;
        all.retain(|listed| listed.key.starts_with("a/") && listed.key.contains(part));
        for listed in all.into_iter().filter(|listed| part == "/map/" || listed.bytes > SEGMENT_BYTES_MIN) {
            let mut body = hiding.inner.get(&listed.key, listed.bytes).await.expect("read").to_vec();
            body.iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
            hiding.inner.put(&listed.key, body.into()).await.expect("damaged");
        }
        let volume = clone.open().await;
        let failed = volume.read(0, BLOCK).await.expect_err("only the parent has it");
        assert!(matches!(failed, Error::Corrupt { .. }), "{part}: {failed}");
        let damaged: Vec<String> =
            volume.status().damage.objects.into_iter().map(|found| found.object).collect();
        assert!(
            !damaged.is_empty() && damaged.iter().all(|name| name.contains(" of volume ")),
            "{damaged:?}"
        );
        close(volume).await;
    }
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

/// A volume whose segments go out of sight and come back, what it must hold, and what its snapshots must show.
struct Story {
    host: Host,
    store: Arc<Through<Hiding>>,
    volume: Arc<Volume>,
    bytes: Vec<u8>,
    snapshots: Vec<(String, Vec<u8>)>,
    dice: Dice,
    writes: u64,
}

impl Story {
    async fn begin(seed: u64) -> Story {
        let store = Through::new(Hiding::default());
        let host = Host::with_volume(RealEnv::start(), store.clone(), SIZE, KeySource::None).await;
        let volume = Volume::open(Story::options(&host)).await.expect("opened");
        let (bytes, snapshots, dice) = (vec![0; SIZE as usize], Vec::new(), Dice(seed));
        Story { host, store, volume, bytes, snapshots, dice, writes: 0 }
    }

    fn options(host: &Host) -> OpenOptions {
        OpenOptions { journal_bytes: 8 * MIB, grace: Duration::ZERO, ..host.options() }
    }

    /// A range of whole sectors, or of blocks.
    fn range(&mut self) -> (u64, u64) {
        let unit = if self.dice.below(4) == 0 { BLOCK } else { 512 };
        let offset = self.dice.below(SIZE / 2) / unit * unit;
        (offset, (1 + self.dice.below(9000)).next_multiple_of(unit).min(SIZE - offset))
    }

    async fn step(&mut self) {
        let (offset, len) = self.range();
        let place = offset as usize..(offset + len) as usize;
        match self.dice.below(100) {
            0..50 => {
                self.writes += 1;
                let data = noise(self.writes, len as usize);
                self.volume.write(offset, data.clone(), false).await.expect("written");
                self.bytes[place].copy_from_slice(&data);
            }
            50..57 => {
                self.volume.trim(offset, len, false).await.expect("trimmed");
                self.bytes[place].fill(0);
            }
            57..62 => {
                self.volume.zero(offset, len, self.dice.below(2) == 0, false).await.expect("zeroed");
                self.bytes[place].fill(0);
            }
            62..80 => self.look(offset, len).await,
            80..88 => self.volume.drain().await.expect("drained"),
            88..91 => {
                self.volume.drain().await.expect("drained");
                self.volume.collect(Collect::Retire).await.expect("covered");
                match self.store.has_hidden() {
                    true => self.store.show_all(),
                    // It may not know yet of one that is there, because it completes blocks meanwhile.
                    false => self.store.hide_segments(2).await,
                }
            }
            91..93 if self.snapshots.len() < 6 => {
                let name = format!("s{}", self.writes);
                if self.volume.snapshot(&name).await.is_ok() {
                    self.snapshots.push((name, self.bytes.clone()));
                }
            }
            93 if !self.snapshots.is_empty() => {
                let (name, _) = self.snapshots.remove(0);
                self.volume.remove_snapshot(&name).await.expect("removed");
            }
            94..96 if !self.store.has_hidden() => {
                let _ = self.volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned");
            }
            96..98 => {
                close(std::mem::replace(&mut self.volume, self.host.open_read_only(None).await)).await;
                self.host.replace_disk();
                self.volume = Volume::open(Story::options(&self.host)).await.expect("opened");
            }
            _ => {}
        }
    }

    /// What can be read is right, and everything can where nothing is out of sight.
    async fn look(&mut self, offset: u64, len: u64) {
        match try_read(&self.volume, offset, len).await {
            Err(Error::NotFound(_)) if self.store.has_hidden() => {}
            found => {
                let found = found.expect("read");
                assert!(found == self.bytes[offset as usize..(offset + len) as usize], "{offset}+{len}");
            }
        }
    }
}

/// Whatever is written, trimmed, zeroed, kept in snapshots, cleaned and moved to another host while segments go out of sight and
/// come back: what can be read is right, and in the end everything is.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_segments_come_and_go_agrees_with_an_array() {
    for seed in 0..6 {
        let mut story = Story::begin(seed).await;
        for _ in 0..300 {
            story.step().await;
        }
        story.store.show_all();
        assert!(read(&story.volume, 0, SIZE).await == story.bytes, "seed {seed}");
        close(story.volume).await;
        story.host.replace_disk();
        let volume = Volume::open(Story::options(&story.host)).await.expect("opened");
        assert!(read(&volume, 0, SIZE).await == story.bytes, "seed {seed}, on another host");
        for (name, bytes) in &story.snapshots {
            let snapshot = show(&story.host, name).await;
            assert!(read(&snapshot, 0, SIZE).await == *bytes, "seed {seed}, {name}");
        }
        whole_again(&volume).await;
        assert!(read(&volume, 0, SIZE).await == story.bytes, "seed {seed}, completed");
        close(volume).await;
        is_sound(&story.host).await;
    }
}
