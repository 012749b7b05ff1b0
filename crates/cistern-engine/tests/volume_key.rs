//! The secret of a volume: what changes it, and what never brings the old one back.

mod volume_support;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use async_trait::async_trait;
use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Put, Store, StoreError, StoreResult},
    volume::{OpenOptions, Volume, admin},
};
use volume_support::{
    Host, MIB, close, noise,
    passing::{Passing, Through},
    read,
};

const OBJECT_MAX: u64 = 1 << 20;

fn secret(n: u8) -> KeySource {
    KeySource::KeyFile(vec![n; 32])
}

async fn encrypted(store: Arc<Through<Watched>>) -> Host {
    let host = Host::with_volume(RealEnv::start(), store, 64 * MIB, secret(1)).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 4096), false).await.expect("written");
    close(volume).await;
    host
}

async fn change(host: &Host, old: u8, new: u8) -> Result<(), Error> {
    admin::change_key(&host.env, &host.store, &secret(old), &secret(new)).await
}

/// Whether the volume opens with this secret, and is the one that was written.
async fn opens(host: &Host, n: u8) -> bool {
    match Volume::open(OpenOptions { key: secret(n), ..host.options() }).await {
        Ok(volume) => {
            assert!(read(&volume, 0, 4096).await == noise(1, 4096));
            close(volume).await;
            true
        }
        Err(Error::Key(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

async fn keys_of(host: &Host) -> Vec<String> {
    let listed = host.own().await.list_after("keys/", "", 100).await.expect("listed");
    listed.into_iter().map(|l| l.key).collect()
}

/// A key that was changed stays changed, whatever put of an earlier one arrives late; and with the old secret there
/// is nothing in the store any more that it opens.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_put_never_brings_back_the_old_secret() {
    let store = Watched::new();
    let host = encrypted(store.clone()).await;
    let store = host.own().await;
    let first = store.get("keys/0000000000000001", OBJECT_MAX).await.expect("the first");
    change(&host, 1, 2).await.expect("changed");
    assert_eq!(keys_of(&host).await, ["keys/0000000000000002"]);
    let second = store.get("keys/0000000000000002", OBJECT_MAX).await.expect("the second");
    change(&host, 2, 3).await.expect("changed");
    for (name, late) in [("keys/0000000000000001", first), ("keys/0000000000000002", second)] {
        assert_eq!(store.put_if_absent(name, late).await.expect("an answer"), Put::Created);
        assert!(opens(&host, 3).await && !opens(&host, 1).await && !opens(&host, 2).await, "{name}");
    }
    change(&host, 3, 4).await.expect("changed");
    assert_eq!(keys_of(&host).await, ["keys/0000000000000004"], "what is outranked goes");
    assert!(opens(&host, 4).await);
}

/// In the whole life of a volume nothing is ever written over: no put that comes late can change what is there.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_ever_replaced() {
    let store = Watched::new();
    let host = encrypted(store.clone()).await;
    change(&host, 1, 2).await.expect("changed");
    assert!(opens(&host, 2).await);
    let asked = store.asked.lock().expect("sound").clone();
    let replaced: Vec<_> = asked.iter().filter(|line| line.starts_with("put ")).collect();
    assert!(replaced.is_empty(), "{replaced:?}");
}

/// Wherever a change is interrupted, exactly one of the two secrets holds, and with that one it can be done again.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_change_leaves_one_secret() {
    for requests in 0.. {
        let store = Watched::new();
        let host = encrypted(store.clone()).await;
        store.left.store(requests, SeqCst);
        let changed = change(&host, 1, 2).await;
        store.left.store(u64::MAX, SeqCst);
        let holds = [opens(&host, 1).await, opens(&host, 2).await];
        assert!(holds[0] != holds[1], "after {requests} requests: {holds:?}");
        if changed.is_ok() {
            assert!(requests > 3 && holds[1], "done within {requests} requests");
            return;
        }
        change(&host, if holds[0] { 1 } else { 2 }, 3).await.expect("changed now");
        assert!(opens(&host, 3).await && !opens(&host, 1).await && !opens(&host, 2).await);
        assert_eq!(keys_of(&host).await.len(), 1);
    }
}

/// Of two changes at once one holds and says so; the other one's secret opens nothing, and it says that.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_changes_at_once_one_holds() {
    for _ in 0..20 {
        let store = Watched::new();
        let host = encrypted(store.clone()).await;
        let (two, three) = tokio::join!(change(&host, 1, 2), change(&host, 1, 3));
        let holds = [opens(&host, 2).await, opens(&host, 3).await];
        assert_eq!(holds, [two.is_ok(), three.is_ok()], "{two:?} {three:?}");
        assert!(holds[0] != holds[1] && !opens(&host, 1).await);
    }
}

/// Another volume's key that was copied here, with a higher number, does not hide this volume's.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_volume_hides_nothing() {
    let removed = Watched::new();
    let before = encrypted(removed.clone()).await;
    change(&before, 1, 9).await.expect("changed");
    let late = before.own().await.get("keys/0000000000000002", OBJECT_MAX).await.expect("the second");
    let store = Watched::new();
    let host = encrypted(store.clone()).await;
    host.own().await.put_if_absent("keys/0000000000000002", late).await.expect("it arrives");
    assert!(opens(&host, 1).await && !opens(&host, 9).await);
    change(&host, 1, 3).await.expect("changed");
    assert!(opens(&host, 3).await && !opens(&host, 9).await);
}

/// Opening an encrypted volume takes a listing, a question for a newer one than is listed, and a read for its key; one that is not encrypted takes
/// none.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_key_costs() {
    for (key, expected) in [(KeySource::None, 0), (secret(1), 3)] {
        let store = Watched::new();
        let host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, key).await;
        store.asked.lock().expect("sound").clear();
        let volume = host.open().await;
        let asked = store.asked.lock().expect("sound").clone();
        assert_eq!(asked.iter().filter(|line| line.contains("/keys/")).count(), expected, "{asked:?}");
        close(volume).await;
    }
}

/// A secret for a volume that shows itself unencrypted is not ignored: nothing would be sealed with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_needless_secret_is_refused() {
    let host = Host::with_volume(RealEnv::start(), Watched::new(), 64 * MIB, KeySource::None).await;
    let refused = Volume::open(OpenOptions { key: secret(1), ..host.options() }).await;
    let text = refused.err().expect("refused").to_string();
    assert!(text.contains("is not encrypted") && text.contains("replaced"), "{text}");
}

/// A store that keeps what it was asked, and stops answering after a number of requests.
struct Watched {
    inner: MemoryStore,
    asked: Mutex<Vec<String>>,
    left: AtomicU64,
}

impl Watched {
    fn new() -> Arc<Through<Watched>> {
        let (asked, left) = (Mutex::default(), AtomicU64::new(u64::MAX));
        Through::new(Watched { inner: MemoryStore::new(), asked, left })
    }
}

#[async_trait]
impl Passing for Watched {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn before(&self, request: &str, key: &str) -> StoreResult<()> {
        self.asked.lock().expect("sound").push(format!("{request} {key}"));
        match self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Unreachable("interrupted".into())),
        }
    }
}
