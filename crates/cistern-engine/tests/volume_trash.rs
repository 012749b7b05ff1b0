//! The trash: what is removed comes back as it was, until its deletion begins, whoever does what at the same moment
//! and wherever it is interrupted.

mod volume_support;

use std::{
    fmt,
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
    codec::{Compression, KeySource},
    env::real::RealEnv,
    log::trash::{Fate, Note},
    store::{MemoryStore, Put, SharedStore, Store, StoreError, StoreResult, Stores},
    units::VolumeId,
    volume::{
        CreateOptions, ReadOnlyOptions, Volume, admin,
        trash::{self, InTrash, Removal, TrashDeletion},
    },
};
use volume_support::{
    Host, MIB, close, is_own_below, noise,
    passing::{Passing, Through},
    read,
};

const DAY: Duration = Duration::from_secs(86_400);
const OBJECT_MAX: u64 = 1 << 20;

async fn used(store: SharedStore, key: KeySource) -> Host {
    let host = Host::with_volume(RealEnv::start(), store, 64 * MIB, key).await;
    write_session(&host, 1).await;
    host
}

async fn write_session(host: &Host, n: u64) {
    let volume = host.open().await;
    volume.write(n * 4096, noise(n, 4096), false).await.expect("written");
    close(volume).await;
}

fn removal(keep: Duration, force: bool) -> Removal {
    Removal { keep, force, host: "remover".into() }
}

async fn remove(host: &Host, keep: Duration) -> Result<InTrash, Error> {
    trash::remove(&host.env, &host.store, &host.key, removal(keep, false)).await
}

async fn restore(host: &Host) -> Result<bool, Error> {
    trash::restore(&host.env, &host.store, "restorer").await
}

async fn delete(host: &Host, only_if_over: bool) -> Result<(), Error> {
    let deletion = TrashDeletion { host: "deleter".into(), only_if_over, untold: false };
    trash::delete(&host.env, &host.store, &deletion, &|_, _| ()).await
}

async fn keys_of(store: &SharedStore, prefix: &str) -> Vec<String> {
    let listed = store.list_after(prefix, "", 10_000).await.expect("listed");
    listed.into_iter().map(|l| l.key).collect()
}

fn in_trash<T: fmt::Debug>(result: Result<T, Error>, text: &str) {
    match result {
        Err(Error::InTrash { what, .. }) => assert!(what.contains(text), "{what}"),
        other => panic!("not in the trash: {other:?}"),
    }
}

/// Every way to a volume in the trash says that it is there; restored, it is as it was, again and again, and what was
/// noted before does not pile up.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_volume_comes_back_as_it_was() {
    for key in [KeySource::None, KeySource::KeyFile(vec![7; 32])] {
        let host = used(Arc::new(MemoryStore::new()), key).await;
        let objects = keys_of(&host.store, "").await;
        for n in 2..5 {
            assert!(trash::look(&host.store).await.expect("a volume").is_none());
            let removed = remove(&host, DAY).await.expect("removed");
            assert_eq!(removed.until_ms - removed.removed_ms, 86_400_000);
            assert!(!removed.is_over(&host.env));
            in_trash(Volume::open(host.options()).await.map(drop), "host remover removed it");
            let (env, stores, key) = (host.env.clone(), Stores::same(host.store.clone()), host.key.clone());
            let reader =
                ReadOnlyOptions { env, stores, cache: None, key, memory_bytes: 128 * MIB, snapshot: None };
            in_trash(Volume::open_read_only(reader).await.map(drop), "is in the trash");
            in_trash(admin::info(&host.env, &host.store, &host.key).await, "is in the trash");
            in_trash(admin::remove(&host.env, &host.store, &host.key, true, &|_, _| ()).await, "trash");
            let options =
                CreateOptions { size_bytes: MIB, compression: Compression::Lz4, key: KeySource::None };
            in_trash(Volume::create(&host.env, &host.store, options).await, "is in the trash");
            assert!(restore(&host).await.expect("restored"));
            write_session(&host, n).await;
            let notes = keys_of(&host.store, "trash/").await;
            assert_eq!(notes, [format!("trash/{:016x}", 2 * (n - 1))]);
        }
        let volume = host.open().await;
        for n in 1..5 {
            assert!(read(&volume, n * 4096, 4096).await == noise(n, 4096), "block {n}");
        }
        close(volume).await;
        assert!(objects.iter().filter(|key| is_own_below("log/", key)).count() > 0);
        assert!(!restore(&host).await.expect("an answer"), "it was not in the trash");
        remove(&host, DAY).await.expect("removed");
        delete(&host, false).await.expect("deleted");
        assert_eq!(keys_of(&host.store, "").await, Vec::<String>::new());
    }
}

/// Removing again lets the time begin anew; nothing deletes it before, where only what is over is to go.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_is_kept() {
    let host = used(Arc::new(MemoryStore::new()), KeySource::None).await;
    remove(&host, Duration::ZERO).await.expect("removed");
    let again = remove(&host, DAY).await.expect("removed again");
    in_trash(delete(&host, true).await, "is kept until");
    let found = trash::look(&host.store).await.expect("a volume").expect("in the trash");
    assert_eq!((found.until_ms, found.deleting), (again.until_ms, false));
    assert!(remove(&host, Duration::ZERO).await.expect("removed again").is_over(&host.env));
    delete(&host, true).await.expect("its time is over");
    assert_eq!(keys_of(&host.store, "").await, Vec::<String>::new());
}

/// A claimed volume is not removed, unless that is forced. Then its writer stops at its next look, before anything more
/// counts as uploaded; and after a restoration it goes on with all it had acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_a_removed_volume_stops_and_loses_nothing() {
    let host = used(Arc::new(MemoryStore::new()), KeySource::None).await;
    let volume = host.open().await;
    volume.write(0, noise(7, 4096), true).await.expect("the journal takes it");
    assert!(matches!(remove(&host, DAY).await, Err(Error::InUse { .. })));
    volume.drain().await.expect("it is still there");
    trash::remove(&host.env, &host.store, &host.key, removal(DAY, true)).await.expect("forced");
    volume.write(4096, noise(8, 4096), true).await.expect("the journal takes it");
    let gone = volume.drain().await.expect_err("it is in the trash");
    assert!(matches!(&gone, Error::Gone(why) if why.contains("is in the trash")), "{gone}");
    assert!(!volume.close(Duration::from_secs(60)).await.clean);
    drop(volume);
    in_trash(Volume::open(host.options()).await.map(drop), "is in the trash");
    assert!(restore(&host).await.expect("restored"));
    let volume = host.open().await;
    for (n, tag) in [(0, 7), (1, 8)] {
        assert!(read(&volume, n * 4096, 4096).await == noise(tag, 4096), "block {n}");
    }
    close(volume).await;
}

/// Of a restoration and a deletion at the same moment one counts, and the other hears of it: either everything is
/// there, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_restoration_and_a_deletion_never_both_succeed() {
    let (mut restored, mut deleted) = (0, 0);
    for late in 0..40 {
        let store = Through::new(Failing::default());
        let host = used(store.clone(), KeySource::None).await;
        remove(&host, Duration::ZERO).await.expect("removed");
        let all = keys_of(&host.own().await, "log/").await;
        store.yields.store(true, SeqCst);
        let restored_late = async {
            for _ in 0..late {
                tokio::task::yield_now().await;
            }
            restore(&host).await
        };
        let ends = tokio::join!(restored_late, delete(&host, true));
        store.yields.store(false, SeqCst);
        match ends {
            (Ok(_), Err(_)) => {
                restored += 1;
                assert_eq!(keys_of(&host.own().await, "log/").await, all);
                write_session(&host, 2).await;
            }
            (Err(_), Ok(())) => {
                deleted += 1;
                assert_eq!(keys_of(&host.store, "").await, Vec::<String>::new());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(restored > 0 && deleted > 0, "{restored} restored, {deleted} deleted");
}

/// Requests that come late: an old removal does not bring a restored volume back into the trash, and a note of the
/// volume that was here before does nothing to the one that is here now.
#[tokio::test(flavor = "multi_thread")]
async fn late_notes_change_nothing() {
    let store = Arc::new(MemoryStore::new());
    let mut host = used(store.clone(), KeySource::None).await;
    remove(&host, DAY).await.expect("removed");
    let first = "trash/0000000000000001";
    let late = store.get(first, OBJECT_MAX).await.expect("a note");
    assert!(restore(&host).await.expect("restored"));
    assert_eq!(store.put_if_absent(first, late.clone()).await.expect("an answer"), Put::Created);
    write_session(&host, 2).await;
    // A removal without an answer: nobody knows whether it comes. Who restores it is on the safe side.
    let second = "trash/0000000000000003";
    let unanswered = Note::decode(1, &late).map(|note| Note { number: 3, ..note }).expect("a note").encode();
    assert!(!restore(&host).await.expect("an answer"), "it was not in the trash");
    assert_eq!(store.put_if_absent(second, unanswered).await.expect("an answer"), Put::Exists);
    write_session(&host, 3).await;
    remove(&host, DAY).await.expect("removed");
    delete(&host, false).await.expect("deleted");

    host.replace_disk();
    let options = CreateOptions { size_bytes: MIB, compression: Compression::Lz4, key: KeySource::None };
    Volume::create(&host.env, &host.store, options).await.expect("an empty place");
    assert_eq!(store.put_if_absent(first, late).await.expect("an answer"), Put::Created);
    write_session(&host, 1).await;
    remove(&host, DAY).await.expect("removed, with the number behind it");
    in_trash(Volume::open(host.options()).await.map(drop), "is in the trash");
    assert!(restore(&host).await.expect("restored"));
    write_session(&host, 2).await;
}

/// A note that is damaged keeps the volume shut, since it may say that it is in the trash; restoring puts another one
/// over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_note_is_outranked() {
    let store = Arc::new(MemoryStore::new());
    let host = used(store.clone(), KeySource::None).await;
    remove(&host, DAY).await.expect("removed");
    let key = "trash/0000000000000001";
    let mut body = store.get(key, OBJECT_MAX).await.expect("a note").to_vec();
    let middle = body.len() / 2;
    body[middle] ^= 1;
    store.put(key, body.into()).await.expect("damaged");
    let refused = Volume::open(host.options()).await.map(drop);
    assert!(matches!(&refused, Err(Error::Corrupt { what, .. }) if what == key), "{refused:?}");
    assert!(restore(&host).await.expect("restored"));
    write_session(&host, 2).await;
}

/// Wherever a deletion is interrupted, either the volume can still be restored, or it shows as being deleted and
/// a second run finishes it; nothing is built upon what is left.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_deletion_is_finished() {
    let objects = {
        let host = used(Arc::new(MemoryStore::new()), KeySource::None).await;
        keys_of(&host.store, "").await.len() as u64 + 2 // and two notes
    };
    for deletes in 0..objects {
        let store = Through::new(Failing::default());
        let mut host = used(store.clone(), KeySource::None).await;
        remove(&host, DAY).await.expect("removed");
        store.deletes.store(deletes, SeqCst);
        store.dies.store(true, SeqCst);
        delete(&host, false).await.expect_err("interrupted");
        store.dies.store(false, SeqCst);
        let found = trash::look(&host.store).await.expect("something").expect("in the trash");
        assert!(found.deleting && found.is_over(&host.env));
        match restore(&host).await {
            Err(Error::InTrash { restorable: false, .. } | Error::NotFound(_)) => {}
            other => panic!("{deletes}: {other:?}"),
        }
        let options = CreateOptions { size_bytes: MIB, compression: Compression::Lz4, key: KeySource::None };
        let refused = Volume::create(&host.env, &host.store, options.clone()).await;
        assert!(matches!(refused, Err(Error::InTrash { .. } | Error::NotEmpty(_))), "{refused:?}");
        delete(&host, true).await.expect("finished");
        assert_eq!(keys_of(&host.store, "").await, Vec::<String>::new());
        host.replace_disk();
        Volume::create(&host.env, &host.store, options).await.expect("an empty place");
    }
}

/// A note whose reply was lost and that was put again counts as ours.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_are_ours() {
    let store = Through::new(Failing::default());
    let host = used(store.clone(), KeySource::None).await;
    store.loses_replies.store(true, SeqCst);
    remove(&host, DAY).await.expect("removed");
    in_trash(Volume::open(host.options()).await.map(drop), "is in the trash");
    assert!(restore(&host).await.expect("restored"));
    remove(&host, DAY).await.expect("removed");
    delete(&host, false).await.expect("deleted");
    assert_eq!(keys_of(&host.store, "").await, Vec::<String>::new());
}

/// Who claims a volume between the look at its claim and the note has not seen the note: then the removal is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_at_the_same_moment_wins() {
    let store = Through::new(Failing::default());
    let host = used(store.clone(), KeySource::None).await;
    let volume = Arc::new(tokio::sync::Mutex::new(None));
    let opened = volume.clone();
    let options = host.options();
    let claiming: Opening = Box::pin(async move {
        *opened.lock().await = Some(Volume::open(options).await.expect("nobody is there"));
    });
    let claiming = Claiming { inner: store, host: tokio::sync::Mutex::new(Some(claiming)) };
    let racing: SharedStore = Through::new(claiming);
    let refused = trash::remove(&host.env, &racing, &host.key, removal(DAY, false)).await;
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    let volume = volume.lock().await.take().expect("opened");
    volume.write(0, noise(9, 4096), false).await.expect("written");
    volume.drain().await.expect("it was not removed");
    close(volume).await;
}

/// Notes say what they said, under their number only.
#[test]
fn notes_read_back() {
    let note = Note {
        volume: VolumeId(uuid::Uuid::from_u128(1)),
        number: 5,
        id: uuid::Uuid::from_u128(2),
        fate: Fate::Removed,
        at_ms: u64::MAX,
        keep_ms: u64::MAX,
        host: "here".into(),
    };
    assert_eq!(note.until_ms(), u64::MAX);
    assert!(note.refusal().is_some(), "times that cannot be are shown somehow");
    assert_eq!(Note::decode(5, &note.encode()).expect("ours"), note);
    assert!(matches!(Note::decode(6, &note.encode()), Err(Error::Corrupt { .. })));
    for host in ["a\x1b[2J".to_owned(), "x".repeat(256)] {
        let bytes = Note { host, ..note.clone() }.encode();
        assert!(matches!(Note::decode(5, &bytes), Err(Error::Corrupt { .. })));
    }
}

/// A store that fails as it is told.
#[derive(Default)]
struct Failing {
    inner: MemoryStore,
    /// Deletes fail once these are used up.
    dies: AtomicBool,
    deletes: AtomicU64,
    /// Conditional puts are done twice: the first reply was lost.
    loses_replies: AtomicBool,
    /// Others get their turn before every request.
    yields: AtomicBool,
}

#[async_trait]
impl Passing for Failing {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, _request: &str, _key: &str) -> StoreResult<()> {
        if self.yields.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        if self.loses_replies.load(SeqCst) && key.starts_with("trash/") {
            self.inner.put_if_absent(key, body.clone()).await?;
        }
        self.inner.put_if_absent(key, body).await
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        if self.dies.load(SeqCst)
            && self.deletes.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err()
        {
            return Err(StoreError::Unreachable("interrupted".into()));
        }
        self.inner.delete(key).await
    }
}

type Opening = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store in which somebody opens the volume just before the first note is put.
struct Claiming {
    inner: Arc<Through<Failing>>,
    host: tokio::sync::Mutex<Option<Opening>>,
}

#[async_trait]
impl Passing for Claiming {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let opening = self.host.lock().await.take();
        if let Some(opening) = opening {
            opening.await;
        }
        self.inner.put_if_absent(key, body).await
    }
}
