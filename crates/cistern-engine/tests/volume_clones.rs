//! Clones: volumes that begin as a snapshot of another one and share with it what neither overwrites, whatever either of them does.

#[path = "store_support/own_time.rs"]
mod own_time;
mod volume_support;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cistern_engine::{
    Error,
    codec::KeySource,
    env::real::RealEnv,
    store::{MemoryStore, Pages, Store},
    volume::{
        Collect, ReadOnlyOptions, Volume, admin, begin_clone, finish_clone,
        trash::{self, Removal, TrashDeletion},
    },
};
use own_time::hurried_env;
use volume_support::{
    Host, MIB, bucket::Bucket, close, narrow::Narrow, noise, passing::Through, read, refusing::Refusing,
};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 600;
/// Far more than any of it takes.
const HANG: Duration = Duration::from_secs(900);

/// What every block is: by which write, and the how manieth block of that.
type Content = Vec<(u64, u64)>;

fn bucket() -> Bucket {
    Bucket(Arc::new(MemoryStore::new()))
}

/// Small numbers, the same for a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

async fn show(host: &Host, name: Option<&str>) -> Arc<Volume> {
    let options = ReadOnlyOptions {
        env: host.env.clone(),
        stores: host.stores(),
        cache: None,
        key: host.key.clone(),
        memory_bytes: 64 * MIB,
        snapshot: name.map(str::to_owned),
    };
    Volume::open_read_only(options).await.expect("shown")
}

async fn shows(volume: &Volume, content: &Content, what: &str) {
    let found = read(volume, 0, BLOCKS * BLOCK).await;
    let mut written: BTreeMap<u64, bytes::Bytes> = BTreeMap::new();
    for (block, &(write, index)) in content.iter().enumerate() {
        let data = &found[block * BLOCK as usize..][..BLOCK as usize];
        let is_right = match write {
            0 => data.iter().all(|byte| *byte == 0),
            _ => {
                let all = written.entry(write).or_insert_with(|| noise(write, 64 * BLOCK as usize));
                data == &all[(index * BLOCK) as usize..][..BLOCK as usize]
            }
        };
        assert!(is_right, "{what}: block {block} is not what write {write} made of it");
    }
}

/// No contradiction between accounts, roots and objects, and everything can be read.
async fn check(host: &Host, what: &str) {
    let checked = admin::Checked { data: true, space: true };
    let report =
        admin::check(&host.env, &host.stores(), &host.key, checked, &|_, _| {}).await.expect("checked");
    assert_eq!(report.faults, Vec::<String>::new(), "{what}");
}

async fn objects(store: &dyn Store, prefix: &str) -> usize {
    let (mut pages, mut count) = (Pages::of(store, prefix), 0);
    while let Some(page) = pages.next_page().await.expect("listed") {
        count += page.len();
    }
    count
}

/// Removes a volume for good.
async fn remove(host: &Host) {
    let removal = Removal { keep: Duration::ZERO, force: false, host: "here".into() };
    trash::remove(&host.env, &host.store, &host.key, removal).await.expect("removed");
    let deletion = TrashDeletion { host: "here".into(), only_if_over: false, untold: false };
    trash::delete(&host.env, &host.stores(), &deletion, &|_, _| {}).await.expect("deleted");
}

/// A volume and what it must show.
struct Lived {
    host: Host,
    volume: Arc<Volume>,
    now: Content,
    snapshots: BTreeMap<String, Content>,
    /// Removed snapshots may have some.
    has_clones: bool,
}

impl Lived {
    async fn new(host: Host, now: Content) -> Lived {
        let volume = host.open_anew().await;
        Lived { host, volume, now, snapshots: BTreeMap::new(), has_clones: false }
    }

    /// Something happens to it.
    async fn step(&mut self, dice: &mut Dice, step: u64, what: &str) {
        let volume = &self.volume;
        match dice.roll(20) {
            0..=8 => {
                let most = if dice.roll(6) == 0 { 64 } else { 5 };
                let len = 1 + dice.roll(most);
                let from = dice.roll(BLOCKS - len);
                if dice.roll(8) == 0 {
                    volume.trim(from * BLOCK, len * BLOCK, false).await.expect("trimmed");
                    (from..from + len).for_each(|block| self.now[block as usize] = (0, 0));
                } else {
                    let data = noise(step, 64 * BLOCK as usize).slice(..(len * BLOCK) as usize);
                    volume.write(from * BLOCK, data, false).await.expect("written");
                    (from..from + len).for_each(|block| self.now[block as usize] = (step, block - from));
                }
            }
            9..=10 => {
                let name = format!("s{step}");
                volume.snapshot(&name).await.expect("made");
                self.snapshots.insert(name, self.now.clone());
            }
            11 => {
                if let Some(name) = self.snapshots.keys().nth(dice.roll(4) as usize).cloned() {
                    volume.remove_snapshot(&name).await.expect("removed");
                    self.snapshots.remove(&name);
                }
            }
            12..=13 => volume.drain().await.expect("drained"),
            14 if dice.roll(4) == 0 => {
                let part = Collect::Adopt { offset: 0, len: BLOCKS * BLOCK };
                volume.collect(part).await.expect("adopted");
            }
            14 if dice.roll(2) == 0 => self.roll_back(dice, step).await,
            14..=16 => _ = volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned"),
            17 if dice.roll(2) == 0 => {
                volume.flush().await.expect("flushed");
                let host = &self.host;
                self.volume = {
                    // A crash: the writer goes before another comes.
                    let crashed = std::mem::replace(&mut self.volume, show(host, None).await);
                    drop(crashed);
                    host.open_anew().await
                };
            }
            18 => {
                volume.drain().await.expect("drained");
                if let Some((name, content)) = self.snapshots.iter().nth(dice.roll(4) as usize) {
                    shows(&*show(&self.host, Some(name)).await, content, &format!("{what}: {name}")).await;
                }
            }
            _ => {
                volume.drain().await.expect("drained");
                check(&self.host, what).await;
                shows(volume, &self.now, what).await;
            }
        }
    }
}

impl Lived {
    /// It goes on from one of its snapshots, and what it was is a snapshot.
    async fn roll_back(&mut self, dice: &mut Dice, step: u64) {
        let picked = self.snapshots.iter().nth(dice.roll(6) as usize).map(|(n, c)| (n.clone(), c.clone()));
        let Some((name, content)) = picked else { return };
        let left = format!("l{step}");
        self.volume.roll_back(&name, &left).await.expect("rolled back");
        self.snapshots.insert(left, std::mem::replace(&mut self.now, content));
        self.volume = {
            let closed = std::mem::replace(&mut self.volume, show(&self.host, None).await);
            drop(closed);
            self.host.open_anew().await
        };
    }

    /// Nothing that it shows is of what it was made of, or rolled back to.
    async fn flatten(&self) {
        let mut at = 0;
        loop {
            let part = Collect::Adopt { offset: at, len: BLOCKS * BLOCK - at };
            match self.volume.collect(part).await.expect("adopted").next {
                Some(next) => at = next,
                None => break,
            }
        }
        while self.volume.collect(Collect::LetGo).await.expect("nothing is of before").next.is_some() {}
    }
}

/// One history of volumes that are cloned, and of their clones, by a seed.
async fn live(seed: u64, bucket: Bucket, key: KeySource) {
    let mut dice = Dice(seed);
    let first = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let mut all = vec![Lived::new(first, vec![(0, 0); BLOCKS as usize]).await];
    let mut of: Vec<Option<usize>> = vec![None];
    for step in 1..=400 {
        let at = dice.roll(all.len() as u64) as usize;
        let what = format!("seed {seed}, step {step}, volume {at}");
        let picked = all[at].snapshots.iter().nth(dice.roll(4) as usize).map(|(n, c)| (n.clone(), c.clone()));
        match picked {
            Some((name, content)) if all.len() < 5 && dice.roll(12) == 0 => {
                let new = format!("v{}", all.len());
                let from = &all[at];
                let host = bucket
                    .clone_of(
                        (&from.host, &format!("../v{at}")),
                        &from.volume,
                        &name,
                        (RealEnv::start(), &new),
                    )
                    .await;
                all.push(Lived::new(host, content).await);
                of.push(Some(at));
                all[at].has_clones = true;
            }
            _ => all[at].step(&mut dice, step, &what).await,
        }
    }
    for (at, lived) in all.iter().enumerate() {
        lived.volume.drain().await.expect("drained");
        lived.volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned");
        let what = format!("seed {seed}: volume {at}");
        shows(&lived.volume, &lived.now, &what).await;
        for (name, content) in &lived.snapshots {
            shows(&*show(&lived.host, Some(name)).await, content, &format!("{what}: {name}")).await;
        }
        check(&lived.host, &what).await;
    }
    // They go from the youngest on; each lets go of what was kept for it.
    while all.len() > 1 {
        let Lived { host, volume, has_clones, .. } = all.pop().expect("some are left");
        let parent = of.pop().flatten().expect("it is a clone");
        if has_clones {
            volume.forget_removed_clones().await.expect("forgotten");
        }
        close(volume).await;
        remove(&host).await;
        assert_eq!(objects(host.store.as_ref(), "").await, 0, "seed {seed}");
        let parent = &all[parent];
        assert_eq!(parent.volume.forget_removed_clones().await.expect("forgotten"), 1, "seed {seed}");
        check(&parent.host, &format!("seed {seed}: without a clone")).await;
    }
    let Lived { host, volume, now, snapshots, .. } = &all[0];
    for name in snapshots.keys() {
        volume.remove_snapshot(name).await.expect("removed");
    }
    all[0].flatten().await;
    volume.forget_removed_clones().await.expect("those go one after the other");
    volume.drain().await.expect("drained");
    volume.forget_removed_clones().await.expect("and those");
    assert_eq!(volume.snapshots(), [], "seed {seed}: nothing keeps a snapshot");
    volume.drain().await.expect("drained");
    shows(volume, now, "alone").await;
    check(host, "alone").await;
}

/// Volumes are cloned, and clones of them; all of them are written, cleaned, crashed, and make and remove snapshots: each shows what it must at
/// every time, and when clones are gone nothing is kept for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_shows_its_own() {
    for seed in 1..=6 {
        let key = if seed % 2 == 0 { KeySource::KeyFile(vec![7; 32]) } else { KeySource::None };
        live(seed, bucket(), key).await;
    }
}

/// The same where the store does one request at a time: nobody waits for a request while it has begun another and does not go on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_at_a_time_is_enough() {
    for seed in 1..=3 {
        let bucket = Bucket(Through::new(Narrow::new()));
        let lived = RealEnv::start().timeout(HANG, live(seed, bucket, KeySource::None)).await;
        lived.expect("it waits for itself");
    }
}

/// What the volume moved and deleted since a clone was opened is found where it is now; the clone never has it in its accounts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_outlives_what_its_source_does() {
    let (bucket, key) = (bucket(), KeySource::None);
    let host = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let volume = host.open_anew().await;
    let mut content = vec![(0, 0); BLOCKS as usize];
    for (write, from) in (1..).zip((0..BLOCKS).step_by(50)) {
        volume
            .write(from * BLOCK, noise(write, 64 * BLOCK as usize).slice(..50 * BLOCK as usize), false)
            .await
            .expect("written");
        volume.drain().await.expect("drained");
        (from..from + 50).for_each(|block| content[block as usize] = (write, block - from));
    }
    // What nobody sees any more lies beside what the clone sees, so that is worth moving.
    for block in (0..BLOCKS).filter(|block| block % 4 > 1) {
        volume.write(block * BLOCK, noise(200 + block, BLOCK as usize), false).await.expect("written");
        content[block as usize] = (200 + block, 0);
    }
    volume.snapshot("s").await.expect("made");
    let cloned = bucket.clone_of((&host, "../v0"), &volume, "s", (RealEnv::start(), "v1")).await;
    let clone = cloned.open_anew().await;
    // One block is read, so the volume is open there as of now.
    assert_eq!(read(&clone, 0, BLOCK).await, noise(1, BLOCK as usize));
    volume.remove_snapshot("s").await.expect("hidden");
    assert_eq!(volume.snapshots().len(), 1, "it is kept for the clone");
    for from in (0..BLOCKS).filter(|block| block % 3 > 0) {
        volume.write(from * BLOCK, noise(1000 + from, BLOCK as usize), false).await.expect("written");
    }
    for _ in 0..4 {
        volume.drain().await.expect("drained");
        volume.collect(Collect::Clean { ratio: 1.0 }).await.expect("cleaned");
        volume.collect(Collect::Retire).await.expect("retired");
    }
    shows(&clone, &content, "the clone").await;
    check(&cloned, "the clone").await;
    check(&host, "the volume").await;
    // All of it is overwritten: nothing of it is needed any more, and nothing of the other volume's is deleted.
    let before = objects(host.store.as_ref(), "").await;
    for round in 0..6 {
        for from in (0..BLOCKS).step_by(20) {
            let write = 5000 + round * 100 + from;
            clone.write(from * BLOCK, noise(write, 20 * BLOCK as usize), false).await.expect("written");
            (from..from + 20).for_each(|block| content[block as usize] = (write, block - from));
        }
        clone.collect(Collect::Retire).await.expect("covered");
    }
    close(clone).await;
    check(&cloned, "overwritten").await;
    assert_eq!(objects(host.store.as_ref(), "").await, before);
    close(volume).await;
}

/// What a clone shares lies with the volume it was made of, and the check of the clone reads it there: what is damaged or gone is
/// named, of what the clone shows and of what only a snapshot of it shows. Once a client has met it, `status` names it too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_reads_what_a_clone_shares() {
    let (bucket, key) = (bucket(), KeySource::None);
    let host = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let volume = host.open_anew().await;
    for write in 0..2 {
        let data = noise(write, 64 * BLOCK as usize);
        volume.write(write * 64 * BLOCK, data, false).await.expect("written");
        volume.drain().await.expect("drained");
    }
    volume.snapshot("s").await.expect("made");
    let cloned = bucket.clone_of((&host, "../v0"), &volume, "s", (RealEnv::start(), "v1")).await;
    close(volume).await;
    let clone = cloned.open_anew().await;
    clone.snapshot("before").await.expect("made");
    clone.write(64 * BLOCK, noise(9, 64 * BLOCK as usize), false).await.expect("written");
    close(clone).await;
    check(&cloned, "sound").await;

    let place = bucket.place("v0");
    let (mut pages, mut segments) = (Pages::of(place.as_ref(), ""), Vec::new());
    while let Some(page) = pages.next_page().await.expect("listed") {
        let large = page.into_iter().filter(|listed| listed.bytes > 64 * BLOCK);
        segments.extend(large.map(|listed| listed.key).filter(|key| key.contains("/log/")));
    }
    assert_eq!(segments.len(), 2, "each write made one");
    for key in &segments {
        let sound = place.get(key, MIB).await.expect("read");
        let mut flipped = sound.to_vec();
        flipped[32 * BLOCK as usize] ^= 1;
        for (damaged, data) in [(Some(flipped), true), (None, true), (None, false)] {
            match damaged {
                Some(body) => place.put(key, body.into()).await.expect("damaged"),
                None => place.delete(key).await.expect("deleted"),
            }
            let what = admin::Checked { data, space: false };
            let report = admin::check(&cloned.env, &cloned.stores(), &cloned.key, what, &|_, _| {}).await;
            let faults = report.expect("checked").faults;
            let name = key.rsplit('/').next().expect("a name");
            assert!(faults.iter().any(|fault| fault.contains(name)), "{key} is damaged: {faults:?}");
            let shown = show(&cloned, Some("before")).await;
            let mut failed = 0;
            for block in 0..128 {
                failed += u64::from(shown.read(block * BLOCK, BLOCK).await.is_err());
            }
            let damaged = shown.status().damage.objects;
            assert!(failed > 0, "{key} is damaged");
            assert!(damaged.iter().any(|damaged| damaged.object.contains(name)), "{key}: {damaged:?}");
            place.put(key, sound.clone()).await.expect("mended");
        }
    }
    check(&cloned, "mended").await;
}

/// A clone that is flattened needs nothing of the volume it was made of, once no snapshot of before is left: that one may be removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flattened_clone_stands_by_itself() {
    let (bucket, key) = (bucket(), KeySource::KeyFile(vec![7; 32]));
    let host = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let volume = host.open_anew().await;
    let mut content: Content = (0..BLOCKS).map(|block| (1 + block / 60, block % 60)).collect();
    for write in 1..=BLOCKS / 60 {
        let data = noise(write, 64 * BLOCK as usize).slice(..60 * BLOCK as usize);
        volume.write((write - 1) * 60 * BLOCK, data, false).await.expect("written");
        volume.drain().await.expect("drained");
    }
    volume.snapshot("s").await.expect("made");
    let cloned = bucket.clone_of((&host, "../v0"), &volume, "s", (RealEnv::start(), "v1")).await;
    let clone = cloned.open_anew().await;
    clone.write(100 * BLOCK, noise(99, 64 * BLOCK as usize), false).await.expect("written");
    (100..164).for_each(|block| content[block as usize] = (99, block - 100));
    clone.snapshot("before").await.expect("made");
    clone.drain().await.expect("drained");

    let mut next = Some(0);
    while let Some(at) = next {
        let part = Collect::Adopt { offset: at, len: BLOCKS * BLOCK - at };
        next = clone.collect(part).await.expect("adopted").next;
    }
    let refused = loop {
        match clone.collect(Collect::LetGo).await {
            Ok(step) => assert!(step.next.is_some(), "a snapshot is of before"),
            Err(e) => break e,
        }
    };
    assert!(matches!(&refused, Error::Invalid(text) if text.contains("snapshots of before")), "{refused}");
    assert_eq!(volume.forget_removed_clones().await.expect("looked"), 0);
    shows(&*show(&cloned, Some("before")).await, &content, "the snapshot of before").await;
    clone.remove_snapshot("before").await.expect("removed");
    clone.snapshot("behind").await.expect("made");
    clone.drain().await.expect("drained");
    while clone.collect(Collect::LetGo).await.expect("nothing is of before").next.is_some() {}

    assert_eq!(volume.forget_removed_clones().await.expect("forgotten"), 1);
    volume.remove_snapshot("s").await.expect("removed");
    assert_eq!(volume.snapshots(), []);
    close(volume).await;
    remove(&host).await;
    check(&cloned, "flattened").await;
    close(clone).await;
    let alone = bucket.host(RealEnv::start(), "v1", &key);
    shows(&*alone.open_anew().await, &content, "on another host").await;
    shows(&*show(&alone, Some("behind")).await, &content, "its snapshot").await;
}

/// Flattening is cut off while no checkpoint that says so can be stored, and is begun again: the volume that the clone was made of is not told
/// before two checkpoints do without it. Till then the clone in the store needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_is_told_of_nothing_that_is_not_stored() {
    let store = Through::new(Refusing::new("/checkpoint/"));
    let (bucket, key) = (Bucket(store.clone()), KeySource::None);
    let host = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let volume = host.open_anew().await;
    volume.write(0, noise(1, 64 * BLOCK as usize), false).await.expect("written");
    volume.snapshot("s").await.expect("made");
    let mut cloned = bucket.clone_of((&host, "../v0"), &volume, "s", (RealEnv::start(), "v1")).await;
    cloned.env = hurried_env();
    let clone = cloned.open_anew().await;
    clone.write(100 * BLOCK, noise(2, 64 * BLOCK as usize), false).await.expect("written");
    clone.drain().await.expect("drained");
    let adopt = Collect::Adopt { offset: 0, len: BLOCKS * BLOCK };
    assert_eq!(clone.collect(adopt).await.expect("adopted").next, None);
    clone.collect(Collect::Retire).await.expect("covered");

    let flatten = async || while clone.collect(Collect::LetGo).await.expect("no end of it").next.is_some() {};
    store.set(true);
    for _ in 0..2 {
        tokio::select! {
            () = flatten() => panic!("no checkpoint says that it is flattened"),
            () = store.refused(8) => {}
        }
    }
    assert_eq!(volume.forget_removed_clones().await.expect("looked"), 0, "the clone in the store needs it");
    store.set(false);
    flatten().await;
    assert_eq!(volume.forget_removed_clones().await.expect("forgotten"), 1);
    close(volume).await;
    remove(&host).await;
    assert_eq!(read(&clone, 0, 64 * BLOCK).await, noise(1, 64 * BLOCK as usize));
    close(clone).await;
    check(&cloned, "flattened").await;
}

/// Whatever the making of a clone is interrupted by leaves something that can not be opened, and can be removed: then nothing is kept for it.
#[tokio::test]
async fn what_was_begun_can_be_removed() {
    let (bucket, key) = (bucket(), KeySource::KeyFile(vec![7; 32]));
    let host = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let volume = host.open_anew().await;
    volume.write(0, noise(1, BLOCK as usize), false).await.expect("written");
    volume.snapshot("s").await.expect("made");
    for is_kept in [false, true] {
        let to = bucket.place("v1");
        let id = begin_clone(&host.env, &host.store, &to, &key, "../v0").await.expect("begun");
        let cloned = bucket.host(RealEnv::start(), "v1", &key);
        let is_taken = begin_clone(&host.env, &host.store, &to, &key, "../v0").await;
        assert!(matches!(is_taken, Err(Error::Exists(_))), "{is_taken:?}");
        if is_kept {
            volume.keep_for_clone("s", id, "../v1").await.expect("kept");
        } else {
            let unkept = finish_clone(&host.env, &host.store, &to, &key, "here").await;
            assert!(matches!(unkept, Err(Error::Invalid(_))), "{unkept:?}");
        }
        let Err(refused) = Volume::open(cloned.options()).await else { panic!("it has no state") };
        assert!(refused.to_string().contains("clone"), "{refused}");
        volume.remove_snapshot("s").await.expect("removed");
        assert_eq!(volume.snapshots().len(), usize::from(is_kept), "hidden, or gone");
        remove(&cloned).await;
        assert_eq!(objects(to.as_ref(), "").await, 0);
        volume.forget_removed_clones().await.expect("forgotten");
        assert_eq!(volume.snapshots(), []);
        assert_eq!(objects(host.own().await.as_ref(), "released/").await, 0, "its note has served");
        volume.snapshot("s").await.expect("made");
    }
    close(volume).await;
}

/// A volume with clones is not removed, and a wrong secret clones nothing.
#[tokio::test]
async fn what_clones_need_is_not_removed() {
    let (bucket, key) = (bucket(), KeySource::KeyFile(vec![7; 32]));
    let host = bucket.with_volume(&RealEnv::start(), "v0", BLOCKS * BLOCK, &key).await;
    let volume = host.open_anew().await;
    volume.write(0, noise(1, BLOCK as usize), false).await.expect("written");
    volume.snapshot("s").await.expect("made");
    let wrong = KeySource::KeyFile(vec![8; 32]);
    let refused = begin_clone(&host.env, &host.store, &bucket.place("v1"), &wrong, "../v0").await;
    assert!(matches!(refused, Err(Error::Key(_))), "{refused:?}");
    assert_eq!(objects(bucket.place("v1").as_ref(), "").await, 0, "nothing was put");
    bucket.clone_of((&host, "../v0"), &volume, "s", (RealEnv::start(), "v1")).await;
    volume.remove_snapshot("s").await.expect("hidden");
    close(volume).await;
    let removal = Removal { keep: Duration::ZERO, force: false, host: "here".into() };
    let refused = trash::remove(&host.env, &host.store, &key, removal).await.map(|_| ());
    let Err(Error::Invalid(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("../v1"), "{text}");
}
