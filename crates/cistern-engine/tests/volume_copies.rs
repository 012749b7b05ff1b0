//! State that was copied: a state directory, a snapshot of a machine, a clone of a running one. Two writers then believe
//! that they are one and the same.

mod volume_support;

use std::{
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error,
    codec::{Compression, KeySource},
    env::real::RealEnv,
    log::{VolumeKeys, read_identity},
    segment::{Entry, JournalRange, SegmentBuilder, Slot, Tail, read_tail},
    store::{MemoryStore, Put, Store, StoreError, StoreResult},
    units::{Chain, JournalPos, Mark, SealNonce, Seq},
    volume::{OpenOptions, Volume, admin},
};
use volume_support::{
    Host, MIB, close, is_own_below, noise,
    passing::{Passing, Through},
    read,
};

async fn host() -> Host {
    Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), 64 * MIB, KeySource::None).await
}

/// A disk with what the journal of `host` holds on its disk now: what a snapshot has, or a crash leaves.
fn copy_of_disk(host: &Host) -> tempfile::TempDir {
    let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let state = copy.path().join("state");
    std::fs::create_dir(&state).expect("a directory");
    std::fs::copy(Path::new(&host.state().describe()).join("journal"), state.join("journal"))
        .expect("copied");
    copy
}

/// What the journal on the disk of `host` holds.
async fn exported(host: &Host) -> Vec<(u64, Vec<u8>)> {
    let volume = admin::info(&host.env, &host.store, &host.key).await.expect("looked at").volume;
    let mut writes = Vec::new();
    let mut visit = |item| {
        if let admin::JournalItem::Write { offset, data } = item {
            writes.push((offset, data.to_vec()));
        }
        Ok(())
    };
    admin::journal_export(&host.env, &host.state(), volume, &mut visit).await.expect("exported");
    writes
}

async fn assert_refused(host: &Host) {
    match Volume::open(host.options()).await {
        Err(Error::StaleJournal(text)) => {
            assert!(text.contains("journal export") && text.contains("journal discard"), "{text}");
        }
        other => panic!("expected a refusal, got {:?}", other.map(|_| ())),
    }
}

/// A state directory was copied, and both sides went on from there, each for itself: neither's writes are put behind
/// the other's. Whoever comes second is refused, keeps its journal, and is told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn copies_that_went_on_are_never_joined() {
    let mut host = host().await;
    let original = host.open().await;
    original.write(0, noise(1, 4096), true).await.expect("written");
    original.drain().await.expect("drained");
    let copied = copy_of_disk(&host);
    for n in 0..3 {
        original.write(MIB * (1 + n), noise(100 + n, 4096), true).await.expect("written");
    }
    let crashed = copy_of_disk(&host);

    host.put_back(copied);
    let copy = host.open().await;
    copy.write(MIB, noise(200, 4096), true).await.expect("written");
    copy.drain().await.expect("drained"); // now as far as the first write of the original
    drop(copy);

    host.put_back(crashed);
    assert_refused(&host).await;
    let kept = exported(&host).await;
    for n in 0..3 {
        assert!(kept.contains(&(MIB * (1 + n), noise(100 + n, 4096).to_vec())), "flushed write {n} is gone");
    }
    admin::journal_discard(&host.env, &host.state()).await.expect("discarded");
    let volume = Volume::open(OpenOptions { take_over: true, ..host.options() }).await.expect("opened");
    assert_eq!(read(&volume, MIB, 4096).await, noise(200, 4096));
    assert_eq!(read(&volume, 2 * MIB, 4096).await, vec![0; 4096], "the original's second write");
    close(volume).await;
}

/// The copy went further than the original had come: that does not make the original's journal an older copy. Its flushed
/// write is nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_ahead_deletes_nothing() {
    let mut host = host().await;
    let original = host.open().await;
    original.write(0, noise(1, 4096), true).await.expect("written");
    original.drain().await.expect("drained");
    let copied = copy_of_disk(&host);
    original.write(MIB, noise(100, 4096), true).await.expect("written");
    let crashed = copy_of_disk(&host);

    host.put_back(copied);
    let copy = host.open().await;
    for n in 0..4 {
        copy.write(8 * MIB + n * 4096, noise(200, 4096), true).await.expect("written");
    }
    copy.drain().await.expect("drained");
    drop(copy);

    host.put_back(crashed);
    assert_refused(&host).await;
    assert!(exported(&host).await.contains(&(MIB, noise(100, 4096).to_vec())));
}

/// A copy that was opened and closed without a write is in nobody's way: what the original flushed follows what the store has.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_wrote_nothing_costs_nothing() {
    let mut host = host().await;
    let original = host.open().await;
    original.write(0, noise(1, 4096), true).await.expect("written");
    original.drain().await.expect("drained");
    let copied = copy_of_disk(&host);
    original.write(MIB, noise(100, 4096), true).await.expect("written");
    let crashed = copy_of_disk(&host);

    host.put_back(copied);
    close(host.open().await).await;
    host.put_back(crashed);
    let again = host.open().await;
    assert_eq!(read(&again, 0, 4096).await, noise(1, 4096));
    assert_eq!(read(&again, MIB, 4096).await, noise(100, 4096));
    close(again).await;
}

/// A journal all of which is in the store, and more that came after: it is not needed, and is kept all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_set_aside() {
    let mut host = host().await;
    let original = host.open().await;
    original.write(0, noise(1, 4096), true).await.expect("written");
    original.drain().await.expect("drained");
    let (one, two) = (copy_of_disk(&host), copy_of_disk(&host));
    original.write(0, noise(2, 4096), true).await.expect("written");
    original.drain().await.expect("drained");

    host.put_back(one);
    match Volume::open(host.options()).await {
        Err(Error::InUse { host, .. }) => assert!(host.starts_with("here (the name of this host)"), "{host}"),
        other => panic!("expected a refusal, got {:?}", other.map(|_| ())),
    }
    let state = host.state().describe();
    let kept = |number| Path::new(&state).join(format!("journal.kept-{number}"));
    assert!(kept(1).exists() && !Path::new(&state).join("journal").exists());
    let second = Path::new(&host.state().describe()).join("journal");
    std::fs::copy(two.path().join("state/journal"), second).expect("copied");
    let volume = Volume::open(OpenOptions { take_over: true, ..host.options() }).await.expect("opened");
    assert_eq!(read(&volume, 0, 4096).await, noise(2, 4096));
    close(volume).await;
    assert!(kept(1).exists() && kept(2).exists());
}

/// The host is killed and has what was on its disk.
fn kill(host: &mut Host, volume: Arc<Volume>) {
    let disk = copy_of_disk(host);
    drop(volume);
    host.put_back(disk);
}

async fn assert_in_use(host: &Host) {
    match Volume::open(host.options()).await {
        Err(Error::InUse { host, .. }) => assert!(host.starts_with("here"), "{host}"),
        other => panic!("expected to be asked, got {:?}", other.map(|_| ())),
    }
}

/// Which of two copies took the volume last is known before it has stored anything: the other one does not take it back
/// without being told to, and whoever was killed comes back as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_its_own_copys_alone() {
    let mut host = host().await;
    let original = host.open().await;
    original.write(0, noise(1, 4096), true).await.expect("written");
    original.drain().await.expect("drained");
    let (copied, crashed) = (copy_of_disk(&host), copy_of_disk(&host));

    host.put_back(copied);
    drop(host.open().await);
    let of_the_copy = copy_of_disk(&host);
    host.put_back(crashed);
    assert_in_use(&host).await;
    host.put_back(of_the_copy);
    for _ in 0..3 {
        let volume = host.open().await;
        kill(&mut host, volume);
    }
    let volume = host.open().await;
    assert_eq!(read(&volume, 0, 4096).await, noise(1, 4096));
    close(volume).await;
}

/// A state directory restored from a backup that is older than the last opening is not the one that has the volume open, also
/// if nothing was written since. It may be told to take over, and has lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_before_the_last_opening_is_asked() {
    let mut host = host().await;
    let original = host.open().await;
    original.write(0, noise(1, 4096), true).await.expect("written");
    let backup = copy_of_disk(&host);
    kill(&mut host, original);
    let original = host.open().await;

    host.put_back(backup);
    assert_in_use(&host).await;
    let volume = Volume::open(OpenOptions { take_over: true, ..host.options() }).await.expect("opened");
    assert_eq!(read(&volume, 0, 4096).await, noise(1, 4096));
    close(volume).await;
    drop(original);
}

/// A store in memory that answers no put of the log: so many are lost with their object, and as many more arrive and lose
/// their reply.
struct Mute {
    inner: MemoryStore,
    lost: AtomicU64,
    unanswered: AtomicU64,
}

#[async_trait]
impl Passing for Mute {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let one_of = |left: &AtomicU64| left.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        let lost = || Err(StoreError::Unreachable("no reply".into()));
        if is_own_below("log/", key) && one_of(&self.lost) {
            return lost();
        }
        let put = self.inner.put_if_absent(key, body).await;
        if is_own_below("log/", key) && one_of(&self.unanswered) { lost() } else { put }
    }
}

/// However many claims came to nothing, and though the one that arrived was never answered: the host that has the volume comes
/// back without being asked. So it does with a superblock that rotted.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_knows_its_claim_after_lost_replies() {
    let store = Through::new(Mute { inner: MemoryStore::new(), lost: 0.into(), unanswered: 0.into() });
    let mut host = Host::with_volume(RealEnv::start(), store.clone(), 64 * MIB, KeySource::None).await;
    for (lost, unanswered) in [(12, 1), (0, 3)] {
        let volume = host.open().await;
        volume.write(0, noise(lost, 4096), true).await.expect("written");
        kill(&mut host, volume);
        store.lost.store(lost, SeqCst);
        store.unanswered.store(unanswered, SeqCst);
        for n in 0..lost + unanswered {
            let opened = Volume::open(host.options()).await.map(|_| ());
            assert!(matches!(opened, Err(Error::Unreachable(_))), "attempt {n}: {opened:?}");
        }
        let volume = host.open().await;
        assert_eq!(read(&volume, 0, 4096).await, noise(lost, 4096));
        kill(&mut host, volume);
        for slot in [0, 8] {
            let path = Path::new(&host.state().describe()).join("journal");
            let journal = std::fs::File::options().write(true).open(path).expect("a journal");
            journal.write_all_at(&[0xA5], slot * 4096 + 50).expect("damaged");
            let volume = host.open().await;
            kill(&mut host, volume);
        }
    }
}

/// The segment that a clone of this host's process sealed for entry 2 of the log, where its epoch begins: as long as the one
/// that a write of `data` to the first block makes here.
async fn segment_of_a_clone(host: &Host, data: Bytes) -> Bytes {
    let identity = read_identity(&host.env, host.store.as_ref()).await.expect("created");
    let keys = VolumeKeys::unlock(&host.env, host.own().await.as_ref(), &identity, &host.key)
        .await
        .expect("unlocked");
    let claim = host.own().await.get("log/0000000000000001", 1 << 20).await.expect("claimed");
    let read = read_tail(keys.key.as_deref(), keys.volume, Seq(1), claim.len() as u64, &claim);
    let Ok(Tail::Whole(head, Entry::Claim(claim))) = read else { panic!("{read:?}") };
    let to = Mark { pos: JournalPos(claim.start.pos.0 + 2), chain: Chain(77) };
    let range = JournalRange { journal: claim.journal, from: claim.start, to };
    let nonce = SealNonce([7; 8]);
    let slot = Slot {
        volume: keys.volume,
        epoch: head.epoch,
        seq: Seq(2),
        salt: head.salt,
        nonce,
        checkpoint: None,
    };
    let size_bytes = claim.size_bytes;
    let mut builder = SegmentBuilder::written(keys.key.as_deref(), slot, range, size_bytes, Compression::Lz4);
    builder.data(0, &data);
    builder.finish().body
}

/// A machine was cloned while it ran. Both sides have the epoch, its salt and the next seq; whose object came second is
/// told so, though the two are alike in everything but content, and stops. Started again, it is refused: the store
/// went on without it. Nothing it flushed is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_that_comes_second_stops() {
    for key in [KeySource::None, KeySource::KeyFile(vec![7; 32])] {
        let store = Arc::new(MemoryStore::new());
        let host = Host::with_volume(RealEnv::start(), store, 64 * MIB, key).await;
        let volume = host.open().await;
        volume.write(0, noise(1, 4096), true).await.expect("written");
        let theirs = segment_of_a_clone(&host, noise(2, 4096)).await;
        let put = host.own().await.put_if_absent("log/0000000000000002", theirs.clone()).await;
        assert_eq!(put.expect("stored"), Put::Created);

        let lost = volume.drain().await;
        assert!(matches!(lost, Err(Error::Copied { seq: 2 })), "{lost:?}");
        let stopped = volume.status().latched.expect("it shows");
        assert!(stopped.contains("another copy of this writer"), "{stopped}");
        assert!(volume.write(0, noise(3, 4096), false).await.is_err());
        let report = volume.close(Duration::from_secs(1)).await;
        assert!(!report.clean && report.journal_bytes_left > 0, "{report:?}");

        assert_refused(&host).await;
        assert_eq!(exported(&host).await, [(0, noise(1, 4096).to_vec())]);
        let reader = host.open_read_only(None).await;
        assert_eq!(read(&reader, 0, 4096).await, noise(2, 4096));
    }
}

/// A copy of this writer went on, or its successor did, and nothing of it lies where this one would put the next segment: a drain
/// does not say that everything is in the store, nothing is put there, and the volume stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_somebody_went_on_for_stops() {
    for (epoch, why) in [(1, "another copy of this writer"), (2, "fenced")] {
        let host = host().await;
        let volume = host.open().await;
        volume.write(0, noise(1, 4096), true).await.expect("written");
        let theirs = format!("checkpoint/{epoch:016x}-{:016x}", 9);
        host.own().await.put(&theirs, Bytes::from_static(b"as good as any")).await.expect("stored");
        let lost = volume.drain().await;
        assert!(matches!(lost, Err(Error::Copied { seq: 9 } | Error::Fenced { .. })), "{lost:?}");
        let stopped = volume.status().latched.expect("it shows");
        assert!(stopped.contains(why), "{stopped}");
        assert!(volume.write(0, noise(3, 4096), false).await.is_err());
        let report = volume.close(Duration::from_secs(1)).await;
        assert!(!report.clean && report.journal_bytes_left > 0, "{report:?}");
        let log = host.own().await.list_after("log/", "", 10).await.expect("listed");
        assert_eq!(log.len(), 1, "the claim alone: {log:?}");
    }
}
