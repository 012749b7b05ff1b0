//! How long what nothing needs stays: for readers that are known, for late puts, and until a checkpoint that came behind another one.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    env::Env,
    log::GRACE,
    store::{DiskRoom, LIST_MAX, MemoryStore, Put, Store, StoreResult},
    volume::{Collect, CreateOptions, OpenOptions, Volume, admin},
};
use own_time::{hurried_env, real_env};
use tokio::sync::Notify;
use volume_support::{
    Host, MIB, close, noise, own_name,
    passing::{Passing, Through},
    read, try_read,
};

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(1 << 24);
const LIVE: u64 = 16 * MIB;
/// What is stored of a volume at rest: up to 4 MiB that nothing needs are not worth a checkpoint.
const AT_REST: u64 = LIVE + 5 * MIB;

/// A store in memory, on a disk or in a cloud, that tells in which order it was asked.
#[derive(Default)]
struct Watched {
    inner: MemoryStore,
    disk_bytes: AtomicU64,
    /// Of others.
    ballast_bytes: AtomicU64,
    asked: Mutex<Vec<String>>,
    /// The next checkpoint waits until it is told to go on.
    holds_a_checkpoint: AtomicBool,
    is_held: Notify,
    go_on: Notify,
}

impl Watched {
    fn on_disk(mib: u64) -> Arc<Through<Watched>> {
        Through::new(Watched { disk_bytes: (mib * MIB).into(), ..Watched::default() })
    }

    fn note(&self, what: &str, key: &str) {
        self.asked.lock().expect("sound").push(format!("{what} {}", own_name(key)));
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("sound").clone()
    }

    fn count(&self, what: &str) -> usize {
        self.asked().iter().filter(|asked| asked.starts_with(what)).count()
    }

    /// Bytes and names of the objects of the log.
    async fn log(&self) -> Vec<(String, u64)> {
        let all = self.inner.list_after("", "", LIST_MAX).await.expect("listed");
        let own = all.into_iter().map(|object| (own_name(&object.key).to_owned(), object.bytes));
        own.filter(|(name, _)| name.starts_with("log/")).collect()
    }

    async fn stored_bytes(&self) -> u64 {
        let all = self.inner.list_after("", "", LIST_MAX).await.expect("listed");
        all.iter().map(|object| object.bytes).sum()
    }
}

#[async_trait]
impl Passing for Watched {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        self.note("put", key);
        self.inner.put(key, body).await
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        if own_name(key).starts_with("checkpoint/") && self.holds_a_checkpoint.swap(false, SeqCst) {
            self.is_held.notify_one();
            self.go_on.notified().await;
        }
        self.note("add", key);
        self.inner.put_if_absent(key, body).await
    }
    async fn list_after(
        &self,
        prefix: &str,
        after: &str,
        count_max: usize,
    ) -> StoreResult<Vec<cistern_engine::store::Listed>> {
        self.note("list", prefix);
        self.inner.list_after(prefix, after, count_max).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.note("delete", key);
        self.inner.delete(key).await
    }
    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        let total_bytes = self.disk_bytes.load(SeqCst);
        let taken = self.stored_bytes().await + self.ballast_bytes.load(SeqCst);
        let free_bytes = total_bytes.saturating_sub(taken);
        Ok((total_bytes > 0).then_some(DiskRoom { free_bytes, total_bytes }))
    }
}

async fn host(env: Env, store: &Arc<Through<Watched>>, slot_grace: Duration) -> Host {
    let options = CreateOptions { size_bytes: 64 * MIB, compression: Compression::Lz4, key: KeySource::None };
    let shared = store.clone() as Arc<dyn Store>;
    Volume::create_with_slot_grace(&env, &shared, options, slot_grace).await.expect("created");
    Host::of_volume(env, shared, KeySource::None)
}

async fn open(host: &Host, grace: Duration, grace_alone: Duration) -> Arc<Volume> {
    Volume::open(OpenOptions { grace, grace_alone, ..host.options() }).await.expect("opened")
}

async fn overwrite(volume: &Volume, tag: u64) {
    volume.write(0, noise(tag, LIVE as usize), false).await.expect("written");
    volume.drain().await.expect("drained");
}

async fn until(host: &Host, mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        host.env.sleep(Duration::from_millis(500)).await;
    }
}

/// While no reader is known, what is overwritten goes within seconds. While a reader is announced that the writer does not see, it
/// stays, and the reader goes on showing what it showed; when that has ended it goes.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_is_given_time() {
    let store = Watched::on_disk(4096);
    let host = host(hurried_env(), &store, Duration::ZERO).await;
    let volume = open(&host, FOR_EVER, Duration::from_secs(5)).await;
    for tag in 0..4 {
        overwrite(&volume, tag).await;
    }
    until(&host, async || store.stored_bytes().await < AT_REST).await;
    let reader = host.open_read_only(None).await;
    assert_eq!(store.count("put readers/"), 1);
    overwrite(&volume, 4).await;
    let looks = store.count("list readers/");
    let is_gone = async || store.stored_bytes().await < 2 * LIVE;
    until(&host, async || store.count("list readers/") > looks + 2 || is_gone().await).await;
    assert!(store.stored_bytes().await > 2 * LIVE);
    assert!(read(&reader, 0, LIVE).await == noise(3, LIVE as usize), "it shows what it showed");
    close(reader).await;
    until(&host, async || store.stored_bytes().await < AT_REST).await;
    assert!(read(&volume, 0, LIVE).await == noise(4, LIVE as usize));
    close(volume).await;
}

/// A command that is done with a volume and forgets it leaves no announcement behind, if its process waits for what is still to be put right.
#[tokio::test(flavor = "multi_thread")]
async fn who_forgets_its_reader_leaves_nothing() {
    let store = Watched::on_disk(4096);
    let host = host(real_env(), &store, Duration::ZERO).await;
    close(open(&host, Duration::ZERO, Duration::ZERO).await).await;
    for _ in 0..50 {
        drop(host.open_read_only(None).await);
        host.env.parted().await;
        assert_eq!(store.count("put readers/"), store.count("delete readers/"));
    }
    assert_eq!(store.count("put readers/"), 50);
}

/// What clones read, from wherever, is given time even where no reader is announced and the disk is full.
#[tokio::test(flavor = "multi_thread")]
async fn clones_are_given_time_on_a_full_disk() {
    let store = Watched::on_disk(4096);
    let host = host(hurried_env(), &store, Duration::ZERO).await;
    let volume = open(&host, FOR_EVER, Duration::from_secs(5)).await;
    overwrite(&volume, 1).await;
    volume.snapshot("s").await.expect("made");
    let clone = cistern_engine::units::VolumeId(host.env.uuid());
    volume.keep_for_clone("s", clone, "../clone").await.expect("kept");
    for tag in 2..5 {
        overwrite(&volume, tag).await;
    }
    store.ballast_bytes.store(4096 * MIB, SeqCst);
    volume.collect(Collect::Retire).await.expect("retired");
    volume.collect(Collect::Retire).await.expect("covered");
    until(&host, async || volume.status().space.is_some_and(|space| space.grace_bytes > LIVE)).await;
    volume.collect(Collect::Retire).await.expect("covered");
    assert!(store.stored_bytes().await > 4 * LIVE, "what the clone reads has gone");
    assert_eq!(store.count("list readers/"), 0, "it does not matter");
    close(volume).await;
}

/// Where the disk has no room for more, what is overwritten goes for all that a reader is announced. The reader finds its state gone, and never sees anything else.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_goes_before_readers() {
    let store = Watched::on_disk(4096);
    let host = host(hurried_env(), &store, Duration::ZERO).await;
    let volume = open(&host, FOR_EVER, Duration::from_secs(5)).await;
    overwrite(&volume, 1).await;
    let reader = host.open_read_only(None).await;
    overwrite(&volume, 2).await;
    store.ballast_bytes.store(4096 * MIB, SeqCst);
    until(&host, async || store.stored_bytes().await < AT_REST).await;
    store.ballast_bytes.store(0, SeqCst);
    let found = try_read(&reader, 0, LIVE).await;
    assert!(matches!(found, Err(Error::NotFound(_))), "{:?}", found.map(|bytes| bytes.len()));
    assert!(read(&volume, 0, LIVE).await == noise(2, LIVE as usize));
    close(reader).await;
    close(volume).await;
}

/// What goes sooner than a late put may come leaves a few bytes in its slot, which are accounted for, across openings too, and go when
/// their time is over. Who reads the state before finds it gone, and not damaged.
#[tokio::test(flavor = "multi_thread")]
async fn slots_stay_filled_for_their_own_grace() {
    let store = Watched::on_disk(4096);
    let host = host(hurried_env(), &store, GRACE).await;
    let volume = open(&host, FOR_EVER, Duration::from_secs(5)).await;
    for tag in 0..4 {
        overwrite(&volume, tag).await;
    }
    until(&host, async || store.stored_bytes().await < AT_REST).await;
    let emptied: Vec<String> = {
        let log = store.log().await;
        log.into_iter().filter(|(_, bytes)| *bytes < 140).map(|(name, _)| name).collect()
    };
    assert!(store.count("put log/") >= 3 && emptied.len() >= 3, "{emptied:?}");
    close(volume).await;
    let what = admin::Checked { data: true, space: true };
    let sound = async || {
        let report = admin::check(&host.env, host.stores(), &KeySource::None, what, &|_, _| ()).await;
        let report = report.expect("checked");
        assert_eq!(report.faults, Vec::<String>::new());
        assert_eq!(report.space.expect("asked for").orphans.objects, 0);
    };
    sound().await;
    let volume = open(&host, FOR_EVER, Duration::from_secs(5)).await;
    overwrite(&volume, 9).await;
    until(&host, async || {
        let log = store.log().await;
        log.iter().all(|(name, _)| !emptied.contains(name))
    })
    .await;
    sound().await;
    assert!(read(&volume, 0, LIVE).await == noise(9, LIVE as usize));
    close(volume).await;
}

/// A checkpoint that retires a segment is being stored; meanwhile an entry joins the log, and the next checkpoint covers that and nothing
/// else. Nothing goes behind it: who took the volume over may have listed the checkpoints before either. It goes when one covers an entry whose slot was
/// given out later, at which this writer would have met the other one's claim.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_on_its_way_already_lets_nothing_go() {
    let store = Watched::on_disk(4096);
    let host = host(real_env(), &store, Duration::ZERO).await;
    let volume = open(&host, Duration::ZERO, Duration::ZERO).await;
    overwrite(&volume, 1).await;
    overwrite(&volume, 2).await;
    store.holds_a_checkpoint.store(true, SeqCst);
    let retiring = volume.clone();
    let retires =
        host.env.spawn("retiring", async move { retiring.collect(Collect::Retire).await.map(drop) });
    store.is_held.notified().await;
    volume.snapshot("s").await.expect("made");
    volume.drain().await.expect("drained");
    store.go_on.notify_one();
    retires.await.expect("it ends").expect("retired");
    let retired = "delete log/0000000000000002";
    until(&host, async || store.count(retired) > 0).await;
    let asked = store.asked();
    let at = |what: &str| asked.iter().rposition(|asked| asked.starts_with(what)).expect("it was asked");
    let gone = at(retired);
    let checkpoints: Vec<usize> = (0..gone).filter(|n| asked[*n].starts_with("add checkpoint/")).collect();
    let entries =
        |from: usize, to: usize| asked[from..to].iter().filter(|a| a.starts_with("add log/")).count();
    let [.., held, _, last] = checkpoints[..] else { panic!("it goes behind two checkpoints: {asked:#?}") };
    assert!(entries(held, last) > 0, "nothing came between: {asked:#?}");
    close(volume).await;
}
