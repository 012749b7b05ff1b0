//! Places that are used again: what a removed volume's writer leaves, or sends late, at the URL of the next one.

mod volume_support;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    env::real::RealEnv,
    log::read_identity,
    store::{MemoryStore, Put, SharedStore, Store, StoreError, StoreResult},
    units::VolumeId,
    volume::{CreateOptions, OpenOptions, Volume, admin},
};
use volume_support::{
    Host, MIB, close, noise,
    passing::{Passing, Through},
    read,
};

const OBJECT_MAX: u64 = 32 << 20;

async fn create(host: &Host) -> Result<VolumeId, Error> {
    let options =
        CreateOptions { size_bytes: 64 * MIB, compression: Compression::Lz4, key: host.key.clone() };
    Volume::create(&host.env, &host.store, options).await
}

async fn remove(host: &Host) -> Result<(), Error> {
    admin::remove(&host.env, &host.store, &host.key, true, &|_, _| {}).await
}

async fn keys_of(store: &SharedStore) -> Vec<String> {
    let listed = store.list_after("", "", 10_000).await.expect("listed");
    listed.into_iter().map(|l| l.key).collect()
}

/// A host with a volume of `sessions` epochs, each with a block of its own at its number.
async fn used(store: SharedStore, key: KeySource, sessions: u64) -> Host {
    let host = Host::with_volume(RealEnv::start(), store, 64 * MIB, key).await;
    for n in 0..sessions {
        write_session(&host, n).await;
    }
    host
}

async fn write_session(host: &Host, n: u64) {
    let volume = host.open().await;
    volume.write(n * 4096, noise(n, 4096), false).await.expect("written");
    close(volume).await;
}

/// Removes the volume, and creates the next one at the same place.
async fn make_anew(host: &mut Host) -> VolumeId {
    remove(host).await.expect("removed");
    host.replace_disk();
    create(host).await.expect("created")
}

async fn check(host: &Host) -> admin::CheckReport {
    admin::check(&host.env, &host.store, &host.key, admin::Checked { data: true, space: true }, &|_, _| {})
        .await
        .expect("checked")
}

/// Somebody puts more objects with names of their own beside the log's than a listing gives at once: the volume opens, here and
/// read-only, and has everything.
#[tokio::test(flavor = "multi_thread")]
async fn strange_names_in_the_log_are_passed_over() {
    let host = used(Arc::new(MemoryStore::new()), KeySource::None, 2).await;
    let own = host.own().await;
    for n in 0..2100 {
        own.put(&format!("log/strange-{n}"), Bytes::from_static(b"?")).await.expect("put");
    }
    write_session(&host, 2).await;
    let volume = host.open_read_only(None).await;
    for n in 0..3 {
        assert!(read(&volume, n * 4096, 4096).await == noise(n, 4096), "session {n}");
    }
    close(volume).await;
    assert_eq!(check(&host).await.faults, [""; 0]);
}

/// Puts and deletes of a removed volume's writer, and of whoever removed it, arrive late, while another volume that was created
/// there is written: they meet nothing of it, and a check finds no fault.
#[tokio::test(flavor = "multi_thread")]
async fn late_requests_of_a_removed_volume_meet_nothing() {
    for key in [KeySource::None, KeySource::KeyFile(vec![7; 32])] {
        let store = Arc::new(MemoryStore::new());
        let mut host = used(store.clone(), key, 3).await;
        let names = keys_of(&host.store).await.into_iter().filter(|key| key != "volume.json");
        let mut late = Vec::new();
        for name in names {
            late.push((name.clone(), store.get(&name, OBJECT_MAX).await.expect("read")));
        }
        make_anew(&mut host).await;
        for (n, (name, body)) in (0..).zip(late) {
            store.put(&name, body).await.expect("it arrives");
            write_session(&host, n).await;
            store.delete(&name).await.expect("it arrives");
            host.replace_disk();
            let volume = host.open().await;
            for n in 0..=n {
                assert!(read(&volume, n * 4096, 4096).await == noise(n, 4096), "block {n} after {name}");
            }
            close(volume).await;
        }
        assert_eq!(check(&host).await.faults, Vec::<String>::new());
    }
}

/// What is copied from another volume's directory into this one's: a segment is a void slot, behind which the writer goes on, and
/// a checkpoint of a later epoch neither hides what is committed, nor makes the writer believe that it was fenced. A check tells
/// of both without calling them damage.
#[tokio::test(flavor = "multi_thread")]
async fn another_volumes_objects_count_for_nothing() {
    for key in [KeySource::None, KeySource::KeyFile(vec![7; 32])] {
        let theirs = used(Arc::new(MemoryStore::new()), key.clone(), 9).await;
        let old = read_identity(&theirs.env, theirs.store.as_ref()).await.expect("an identity").volume;
        let host = used(Arc::new(MemoryStore::new()), key, 0).await;
        let own = host.own().await;
        let copied = theirs.own().await;
        let checkpoint = keys_of(&copied).await.into_iter().rfind(|key| key.starts_with("checkpoint/"));
        let strange = ["log/0000000000000004".to_owned(), checkpoint.expect("there is one")];
        let volume = host.open().await;
        for n in 0..2 {
            volume.write(n * 4096, noise(n + 7, 4096), false).await.expect("written");
            volume.drain().await.expect("drained");
        }
        for name in &strange {
            let body = copied.get(name, OBJECT_MAX).await.expect("read");
            assert_eq!(own.put_if_absent(name, body).await.expect("an answer"), Put::Created);
        }
        volume.write(2 * 4096, noise(9, 4096), true).await.expect("written");
        volume.drain().await.expect("the writer goes on behind it");
        assert_eq!(volume.status().latched, None);
        let report = check(&host).await;
        assert_eq!(report.faults, Vec::<String>::new());
        for name in &strange {
            let told = |text: &String| text.contains(name) && text.contains(&old.to_string());
            assert!(report.findings.iter().any(told), "{:?}", report.findings);
        }
        close(volume).await;
        let volume = host.open().await;
        for n in 0..3 {
            assert!(read(&volume, n * 4096, 4096).await == noise(n + 7, 4096), "block {n}");
        }
        close(volume).await;
    }
}

/// The identity of another volume in this one's place is no new volume, and what lies there is not written over.
#[tokio::test(flavor = "multi_thread")]
async fn an_identity_in_the_wrong_place_is_refused() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let host = used(store.clone(), KeySource::None, 2).await;
    let other: SharedStore = Arc::new(MemoryStore::new());
    let theirs = used(other.clone(), KeySource::None, 0).await;
    let directory = store.list_dirs("").await.expect("listed").remove(0);
    let identity = other.get("volume.json", OBJECT_MAX).await.expect("an identity");
    store.put("volume.json", identity).await.expect("put in the wrong place");
    let refused = Volume::open(OpenOptions { state: theirs.state(), ..host.options() }).await;
    let text = refused.err().expect("everything there is another volume's").to_string();
    assert!(text.contains("volume.json") && text.contains(&directory), "{text}");
    let before = keys_of(&store).await;
    admin::info(&host.env, &store, &KeySource::None).await.expect_err("nor is it shown as new");
    assert_eq!(keys_of(&store).await, before);
}

/// A checkpoint that is damaged is replaced by the one before it and the log since, and named by a check; if the
/// log does not reach that far, nothing older passes for the newest.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_replaced_or_refused() {
    let mut host = used(Arc::new(MemoryStore::new()), KeySource::None, 3).await;
    let store = host.own().await;
    let checkpoints: Vec<String> =
        keys_of(&host.own().await).await.into_iter().filter(|key| key.starts_with("checkpoint/")).collect();
    let newest = checkpoints.last().expect("there are three");
    let mut damaged = store.get(newest, OBJECT_MAX).await.expect("read").to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    store.put(newest, damaged.into()).await.expect("damaged");
    let report = check(&host).await;
    assert!(report.faults.len() == 1 && report.faults[0].contains(newest), "{:?}", report.faults);
    host.replace_disk();
    let volume = host.open_read_only(None).await;
    for n in 0..3 {
        assert!(read(&volume, n * 4096, 4096).await == noise(n, 4096), "block {n}");
    }
    drop(volume);
    // What the checkpoint before covers is there, and the log behind it is not.
    let covered = u64::from_str_radix(&checkpoints[1][checkpoints[1].len() - 16..], 16).expect("a seq");
    store.delete(&format!("log/{:016x}", covered + 1)).await.expect("deleted");
    let refused = Volume::open(host.options()).await.err().expect("the newest state cannot be read");
    assert!(matches!(&refused, Error::Corrupt { what, .. } if what == newest), "{refused}");
}

/// Whenever a removal is interrupted, either the volume is still whole, or creating one there is refused with what
/// to do, and removing again finishes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_removal_is_finished_and_never_built_upon() {
    let objects = {
        let host = used(Arc::new(MemoryStore::new()), KeySource::None, 2).await;
        keys_of(&host.store).await.len() as u64
    };
    for deletes in 0..objects {
        let store = Through::new(Dying { inner: MemoryStore::new(), deletes: AtomicU64::new(u64::MAX) });
        let mut host = used(store.clone(), KeySource::None, 2).await;
        store.deletes.store(deletes, SeqCst);
        remove(&host).await.expect_err("interrupted");
        store.deletes.store(u64::MAX, SeqCst);
        if deletes == 0 {
            let volume = host.open().await;
            assert!(read(&volume, 4096, 4096).await == noise(1, 4096));
            close(volume).await;
            continue;
        }
        let refused = create(&host).await.expect_err("something is left");
        assert!(matches!(refused, Error::NotEmpty(_)), "{refused}");
        assert!(refused.to_string().contains("cistern rm"), "{refused}");
        let gone = Volume::open(host.options()).await.err().expect("it has no identity");
        assert!(matches!(gone, Error::NotFound(_)), "{gone}");
        admin::remove(&host.env, &host.store, &host.key, false, &|_, _| {}).await.expect("finished");
        assert_eq!(keys_of(&host.store).await, Vec::<String>::new());
        host.replace_disk();
        create(&host).await.expect("an empty place");
        write_session(&host, 0).await;
    }
}

/// Objects of others are neither built upon nor deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_volumes_stays() {
    let store = Arc::new(MemoryStore::new());
    let host = used(store.clone(), KeySource::None, 1).await;
    let strange = ["README", "log/0000000000000001", "zebra"];
    for key in strange {
        store.put(key, Bytes::from_static(b"by hand")).await.expect("put");
    }
    remove(&host).await.expect("removed");
    assert_eq!(keys_of(&host.store).await, strange);
    let refused = create(&host).await.expect_err("not an empty place");
    assert!(refused.to_string().contains("README"), "{refused}");
    let nothing = admin::remove(&host.env, &host.store, &host.key, false, &|_, _| {}).await;
    assert!(matches!(nothing, Err(Error::NotFound(_))), "{nothing:?}");
    assert_eq!(keys_of(&host.store).await, strange);
}

/// A store in which deletes fail once the given number is used up.
struct Dying {
    inner: MemoryStore,
    deletes: AtomicU64,
}

#[async_trait]
impl Passing for Dying {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn delete(&self, key: &str) -> StoreResult<()> {
        if self.deletes.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            return Err(StoreError::Unreachable("interrupted".into()));
        }
        self.inner.delete(key).await
    }
}
