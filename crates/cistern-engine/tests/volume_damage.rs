//! Damage in the store, and replies that are damaged on their way: what is bad fails alone and is named, what
//! is sound is never refused, and nothing else waits for either.

mod volume_support;

use std::{
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
    store::{Listed, MemoryStore, Put, Store, StoreError, StoreResult, Stores},
    volume::{OpenOptions, Volume, admin},
};
use tokio::sync::watch;
use volume_support::{
    Host, MIB, close, is_own_below, noise, own_name,
    passing::{Passing, Through},
    read,
};

const BLOCK: u64 = 4096;

/// What becomes of the next reply to a ranged GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Flipped,
    Short,
    Missing,
}

/// A store in memory that can be made to misbehave below a prefix.
struct Trying {
    inner: Arc<MemoryStore>,
    /// The next ranged GET below a prefix gets this.
    reply: Mutex<Option<(&'static str, Reply)>>,
    /// Puts below this prefix are refused.
    refused: Mutex<Option<&'static str>>,
    /// The first put of every name below this prefix is done, and its reply is lost.
    lost: Mutex<Option<&'static str>>,
    /// Ranged GETs never end.
    hangs: bool,
    /// Every put that was tried.
    puts: watch::Sender<Vec<(String, Bytes)>>,
}

impl Trying {
    fn over(inner: Arc<MemoryStore>, hangs: bool) -> Arc<Through<Trying>> {
        let (reply, refused, lost) = Default::default();
        Through::new(Trying { inner, reply, refused, lost, hangs, puts: watch::Sender::new(Vec::new()) })
    }

    fn new() -> Arc<Through<Trying>> {
        Self::over(Arc::new(MemoryStore::new()), false)
    }

    /// The names and bodies of the objects below a prefix.
    async fn objects(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let listed = self.inner.list_after("", "", 10_000).await.expect("listed");
        for listed in listed.into_iter().filter(|listed| is_own_below(prefix, &listed.key)) {
            let body = self.inner.get(&listed.key, 1 << 27).await.expect("there");
            found.push((listed.key, body.to_vec()));
        }
        found
    }

    /// The same objects in another store.
    async fn copy(&self) -> Arc<MemoryStore> {
        let copy = Arc::new(MemoryStore::new());
        for Listed { key, .. } in self.inner.list_after("", "", 10_000).await.expect("listed") {
            let body = self.inner.get(&key, 1 << 27).await.expect("there");
            copy.put(&key, body).await.expect("put");
        }
        copy
    }

    async fn newest_checkpoint(&self) -> String {
        self.objects("checkpoint/").await.pop().expect("there is one").0
    }

    /// Waits until so many puts of names below a prefix were tried.
    async fn tried(&self, prefix: &str, count: usize) {
        let matching =
            |puts: &Vec<(String, Bytes)>| puts.iter().filter(|(key, _)| is_own_below(prefix, key)).count();
        self.puts.subscribe().wait_for(|puts| matching(puts) >= count).await.expect("the store lives");
    }
}

fn is_below(prefix: &Mutex<Option<&'static str>>, key: &str) -> bool {
    prefix.lock().expect("not poisoned").is_some_and(|prefix| is_own_below(prefix, key))
}

#[async_trait]
impl Passing for Trying {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let mut is_first = true;
        self.puts.send_modify(|puts| {
            is_first = puts.iter().all(|(tried, _)| tried != key);
            puts.push((key.to_owned(), body.clone()));
        });
        if is_below(&self.refused, key) {
            return Err(StoreError::Refused("403, as told".into()));
        }
        let put = self.inner.put_if_absent(key, body).await?;
        match is_first && is_below(&self.lost, key) {
            true => Err(StoreError::Unreachable("the reply was lost".into())),
            false => Ok(put),
        }
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let bytes = self.inner.get_range(key, range).await?;
        let reply = self.reply.lock().expect("not poisoned").take_if(|(prefix, _)| is_own_below(prefix, key));
        match reply {
            None => Ok(bytes),
            Some((_, Reply::Short)) => Ok(bytes.slice(..bytes.len() / 2)),
            Some((_, Reply::Missing)) => Err(StoreError::NotFound(key.into())),
            Some((_, Reply::Flipped)) => {
                let mut bytes = bytes.to_vec();
                bytes.iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
                Ok(bytes.into())
            }
        }
    }
}

async fn host(store: &Arc<Through<Trying>>) -> Host {
    Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await
}

/// The objects that a volume knows to be damaged.
fn named(volume: &Volume) -> Vec<String> {
    volume.status().damage.objects.into_iter().map(|damaged| damaged.object).collect()
}

/// So many segments, each with a write to the same few blocks.
async fn segments(volume: &Volume, count: u64) {
    for n in 0..count {
        volume.write(n % 8 * BLOCK, noise(1000 + n, BLOCK as usize), false).await.expect("written");
        volume.drain().await.expect("drained");
    }
}

/// Runs what would not end if something held it up.
async fn without_end_is_a_failure<T>(work: impl Future<Output = T>) -> T {
    RealEnv::start().timeout(Duration::from_secs(900), work).await.expect("something holds it up")
}

/// One damaged, cut or missing reply, with a sound store: the read that met it gets the right bytes, and so
/// does every later one, with and without a chunk cache, and after a restart with the same cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_reply_heals() {
    for prefix in ["map/", "log/"] {
        for reply in [Reply::Flipped, Reply::Short, Reply::Missing] {
            for cached in [true, false] {
                let what = format!("{reply:?} of {prefix}, cached: {cached}");
                let store = Trying::new();
                let mut host = host(&store).await;
                let volume = host.open().await;
                for n in 0..64 {
                    volume.write(n * 16 * BLOCK, noise(n, BLOCK as usize), false).await.expect("written");
                }
                close(volume).await;
                host.replace_disk();
                for round in 0..2 {
                    let cache = if cached { Some(host.cache("cache").await) } else { None };
                    let options = OpenOptions { cache: cache.clone(), ..host.options() };
                    let volume = Volume::open(options).await.expect("opened");
                    if round == 0 {
                        *store.reply.lock().expect("not poisoned") = Some((prefix, reply));
                    }
                    for n in 0..64 {
                        let right = read(&volume, n * 16 * BLOCK, BLOCK).await == noise(n, BLOCK as usize);
                        assert!(right, "{what}: block {n} in round {round}");
                    }
                    assert_eq!(*store.reply.lock().expect("not poisoned"), None, "{what}");
                    assert_eq!(named(&volume), Vec::<String>::new(), "{what}");
                    close(volume).await;
                    if let Some(cache) = cache {
                        cache.close().await;
                        // The volume's tasks let go of it in their own time.
                        while Arc::strong_count(&cache) > 1 {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            }
        }
    }
}

/// A bit of a run at rest is wrong: what only it knows cannot be read and the run is named, everything else
/// goes on, through hundreds of segments and the merges they bring. When the object is put right, the volume
/// says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_run_holds_up_nothing() {
    let store = Trying::new();
    let host = host(&store).await;
    let volume = host.open().await;
    volume.write(0, noise(1, 16 * BLOCK as usize), false).await.expect("written");
    close(volume).await;
    let runs: Vec<_> = store.objects("map/").await;
    let (name, sound) = runs.into_iter().find(|(_, body)| !body.starts_with(b"cistern")).expect("a run");
    let mut damaged = sound.clone();
    damaged[20] ^= 1;
    store.put(&name, damaged.into()).await.expect("damaged");

    let volume = host.open().await;
    without_end_is_a_failure(segments(&volume, 400)).await;
    for n in 0..8 {
        assert_eq!(read(&volume, n * BLOCK, BLOCK).await, noise(1392 + n, BLOCK as usize));
    }
    let failed = volume.read(12 * BLOCK, BLOCK).await.expect_err("only the damaged run knows it");
    assert!(matches!(failed, Error::Corrupt { .. }), "{failed}");
    assert_eq!(named(&volume), [own_name(&name)]);
    assert_eq!((volume.status().latched, volume.status().store_error), (None, None));

    store.put(&name, sound.into()).await.expect("put right");
    assert_eq!(
        read(&volume, 0, 16 * BLOCK).await[12 * BLOCK as usize..],
        noise(1, 16 * BLOCK as usize)[12 * BLOCK as usize..]
    );
    assert_eq!(named(&volume), Vec::<String>::new());
    close(volume).await;
}

/// A segment with a wrong bit or none at all is named, with what is wrong, until it reads well again; the
/// frames beside the damage are read as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_segment_is_named() {
    let store = Trying::new();
    let host = host(&store).await;
    let volume = host.open().await;
    let data = noise(1, 64 * BLOCK as usize);
    volume.write(0, data.clone(), false).await.expect("written");
    close(volume).await;
    let (name, sound) =
        store.objects("log/").await.into_iter().max_by_key(|(_, body)| body.len()).expect("one");
    let mut flipped = sound.clone();
    flipped[BLOCK as usize * 2] ^= 1;
    let volume = host.open().await;
    for damaged in [Some(flipped), None] {
        match damaged {
            Some(body) => store.put(&name, body.into()).await.expect("damaged"),
            None => store.delete(&name).await.expect("deleted"),
        }
        let volume = host.open_read_only(None).await;
        volume.read(0, 16 * BLOCK).await.expect_err("it is damaged");
        volume.read(0, 16 * BLOCK).await.expect_err("it is damaged");
        let report = volume.status().damage;
        let object = report.objects.first().expect("one");
        assert_eq!((object.object.as_str(), object.failures, report.objects.len()), (own_name(&name), 2, 1));
        store.put(&name, sound.clone().into()).await.expect("put right");
        assert_eq!(read(&volume, 0, data.len() as u64).await, data);
        assert_eq!(named(&volume), Vec::<String>::new());
    }
    close(volume).await;
}

/// A usage object with a wrong bit stays named by the checkpoints, is named to the user, and keeps nothing from
/// being written or released.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_usage_object_holds_up_nothing() {
    let store = Trying::new();
    let host = host(&store).await;
    let mut seen = Vec::new();
    let mut bad = String::new();
    for n in 0..40 {
        let volume = host.open().await;
        volume.write(n * BLOCK, noise(n, BLOCK as usize), false).await.expect("written");
        let report = volume.close(Duration::from_secs(60)).await;
        assert!(report.clean, "stop {n}: {report:?}");
        seen.extend(named(&volume));
        if n == 3 {
            let objects = store.objects("map/").await;
            let (name, mut body) =
                objects.into_iter().find(|(_, body)| body.starts_with(b"cistern")).expect("one");
            *body.last_mut().expect("not empty") ^= 1;
            store.put(&name, body.into()).await.expect("damaged");
            bad = own_name(&name).to_owned();
        }
    }
    assert!(!seen.is_empty() && seen.iter().all(|name| *name == bad), "{seen:?}, damaged is {bad}");
    let report = admin::check(
        &host.env,
        &host.store,
        &host.key,
        admin::Checked { data: true, space: true },
        &|_, _| {},
    )
    .await
    .expect("checked");
    assert!(report.faults.len() == 1 && report.faults[0].contains(&bad), "{:?}", report.faults);
    let usage_objects = report.objects - store.objects("log/").await.len() as u64;
    assert!(usage_objects < 20, "the sound ones are joined, there are {usage_objects}");
}

/// The table of snapshots and their roots lie twice: whichever of these objects is damaged or gone, a check names it, the volume opens for
/// writing, and it and its snapshot show what they must. Where both copies are damaged, a reader shows the volume, and its snapshots are not
/// known, rather than none.
#[tokio::test(flavor = "multi_thread")]
async fn what_leads_to_snapshots_lies_twice() {
    let store = Trying::new();
    let mut host = host(&store).await;
    let volume = host.open().await;
    let (then, now) = (noise(1, MIB as usize), noise(2, MIB as usize));
    volume.write(0, then.clone(), false).await.expect("written");
    volume.snapshot("a").await.expect("made");
    volume.write(0, now.clone(), false).await.expect("written");
    close(volume).await;
    let (mut copies, without) = (0, store.copy().await);
    for (key, sound) in store.objects("map/").await {
        let mut flipped = sound.clone();
        flipped[sound.len() / 2] ^= 1;
        for damaged in [Some(flipped), None] {
            let copied = store.copy().await;
            match damaged {
                Some(body) => copied.put(&key, body.into()).await.expect("damaged"),
                None => copied.delete(&key).await.expect("deleted"),
            }
            host.store = copied;
            host.replace_disk();
            let what = admin::Checked { data: true, space: true };
            let report =
                admin::check(&host.env, &host.store, &host.key, what, &|_, _| {}).await.expect("checked");
            if !report.faults.iter().any(|fault| fault.contains("one of its two copies")) {
                continue; // another object
            }
            copies += 1;
            without.put(&key, vec![0; sound.len()].into()).await.expect("damaged");
            assert_eq!(report.faults.len(), 1, "nothing else suffers: {:?}", report.faults);
            let volume = host.open().await;
            assert!(read(&volume, 0, MIB).await == now);
            assert!(read(&volume.open_snapshot("a").await.expect("shown"), 0, MIB).await == then);
            close(volume).await;
        }
    }
    assert_eq!(copies, 8, "of the table two objects, of the root two, each flipped and gone");
    host.store = without;
    let reader = host.open_read_only(None).await;
    assert!(read(&reader, 0, MIB).await == now);
    let known = reader.known_snapshots();
    assert!(matches!(known, Err(Error::Corrupt { .. })), "{:?}", known.map(|all| all.len()));
    close(reader).await;
}

/// A store that takes segments and refuses runs, or checkpoints: commits go on, the trouble shows, and once it
/// ends the newest checkpoint is there.
#[tokio::test(flavor = "multi_thread")]
async fn refused_checkpoints_hold_up_no_commit() {
    for refused in ["map/", "checkpoint/"] {
        let store = Trying::new();
        let host = host(&store).await;
        let volume = host.open().await;
        *store.refused.lock().expect("not poisoned") = Some(refused);
        without_end_is_a_failure(segments(&volume, 400)).await;
        let status = volume.status();
        assert!(status.store_error.is_some_and(|e| e.contains("403")) && status.latched.is_none());
        assert!(store.objects("checkpoint/").await.is_empty());
        *store.refused.lock().expect("not poisoned") = None;
        for n in 0..8 {
            assert_eq!(read(&volume, n * BLOCK, BLOCK).await, noise(1392 + n, BLOCK as usize));
        }
        close(volume).await;
        assert!(own_name(&store.newest_checkpoint().await) > "checkpoint/0000000000000001-0000000000000190");
    }
}

/// What the store refuses of an upload shows for as long as it does, also between two tries, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_shows_until_it_ends() {
    let store = Trying::new();
    let host = host(&store).await;
    let volume = host.open().await;
    *store.refused.lock().expect("not poisoned") = Some("log/");
    volume.write(0, noise(7, BLOCK as usize), false).await.expect("written");
    let (drained, ()) = tokio::join!(volume.drain(), async {
        while !volume.status().store_refuses {
            tokio::task::yield_now().await;
        }
        for _ in 0..1000 {
            let status = volume.status();
            assert!(status.store_refuses && status.store_error.is_some_and(|e| e.contains("403")));
            tokio::task::yield_now().await;
        }
        *store.refused.lock().expect("not poisoned") = None;
    });
    drained.expect("the store takes it now");
    let status = volume.status();
    assert!(!status.store_refuses && status.store_error.is_some());
    close(volume).await;
}

/// A merge that never ends, because the store of low priority does not answer, holds up no checkpoint.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_without_end_holds_up_no_checkpoint() {
    let store = Trying::new();
    let host = host(&store).await;
    let volume = host.open().await;
    segments(&volume, 8).await;
    close(volume).await;
    let shared = Trying::over(store.inner.clone(), true);
    let stores = Stores { background: shared, ..Stores::same(store.clone()) };
    let volume = Volume::open(OpenOptions { stores, ..host.options() }).await.expect("opened");
    without_end_is_a_failure(async {
        segments(&volume, 400).await;
        store.tried("checkpoint/", 1 + 400 / 48).await;
    })
    .await;
    let report = volume.close(Duration::from_secs(60)).await;
    assert!(report.clean, "{report:?}");
}

/// A checkpoint whose reply was lost is sent again as it was, whatever merges have done meanwhile: what the
/// store has under a name is what its writer knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_sent_again_as_it_was() {
    let store = Trying::new();
    let host = host(&store).await;
    *store.lost.lock().expect("not poisoned") = Some("checkpoint/");
    let volume = host.open().await;
    without_end_is_a_failure(async {
        segments(&volume, 50).await;
        store.tried("checkpoint/", 2).await;
    })
    .await;
    *store.lost.lock().expect("not poisoned") = None;
    close(volume).await;
    let puts = store.puts.borrow().clone();
    let mut attempts = puts.iter().filter(|(key, _)| is_own_below("checkpoint/", key));
    let (first, second) = (attempts.next().expect("one"), attempts.next().expect("another"));
    assert_eq!(first, second);
}
