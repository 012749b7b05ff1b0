//! What a volume keeps about itself does not grow with how many snapshots it has.

mod volume_support;

use std::{collections::BTreeSet, sync::Arc};

use cistern_engine::{
    codec::KeySource,
    env::real::RealEnv,
    log::{
        Committed, VolumeKeys, keys, read_committed, read_identity_anywhere,
        roots::{HeldBlocks, SnapshotTable, decode_roots},
    },
    map::SeenBy,
    store::MemoryStore,
    units::Seq,
    volume::{Collect, admin},
};
use volume_support::{Host, close, noise, read};

const BLOCK: u64 = 4096;

async fn committed(host: &Host) -> (VolumeKeys, Committed) {
    let identity = read_identity_anywhere(host.store.as_ref()).await.expect("it is there");
    let keys = VolumeKeys { volume: identity.volume, key: None };
    let committed =
        read_committed(&host.env, host.own().await.as_ref(), &keys, identity.size_at_creation()).await;
    (keys, committed.expect("read"))
}

/// How many rows are stored of who sees what.
async fn stored_rows(host: &Host) -> usize {
    let (keys, state) = committed(host).await;
    let mut rows: BTreeSet<(Seq, SeenBy)> = BTreeSet::new();
    for object in &state.checkpoint.expect("there is one").held {
        let body = host.own().await.get(&keys::run(object.id), 64 << 20).await.expect("read");
        let held: Vec<HeldBlocks> = decode_roots(None, keys.volume, object.id, &body).expect("decoded");
        rows.extend(held.iter().map(|row| (row.segment, row.seen_by)));
    }
    rows.len()
}

/// No contradiction between accounts, roots and objects, and everything can be read.
async fn check(host: &Host) {
    let checked = admin::Checked { data: true, space: true };
    let report =
        admin::check(&host.env, &host.stores(), &host.key, checked, &|_, _| {}).await.expect("checked");
    assert_eq!(report.faults, Vec::<String>::new());
}

/// Many snapshots of a volume that is overwritten here and there: what is stored of who sees what stays within its bound, every
/// snapshot shows what it showed, and without them the volume is as any other.
#[tokio::test(flavor = "multi_thread")]
async fn what_snapshots_hold_has_few_rows() {
    const BLOCKS: u64 = 4096;
    const SNAPSHOTS: usize = 160;
    const ROWS_MAX: usize = 4096; // of a small volume
    let mut most = 0;
    let size_bytes = BLOCKS * BLOCK;
    let host =
        Host::with_volume(RealEnv::start(), Arc::new(MemoryStore::new()), size_bytes, KeySource::None).await;
    let volume = host.open_anew().await;
    let (mut content, mut shown, mut x) =
        (vec![0_u64; BLOCKS as usize], Vec::new(), 88_172_645_463_325_252_u64);
    for snapshot in 0..SNAPSHOTS {
        for _ in 0..300 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let block = x % BLOCKS;
            content[block as usize] = x;
            volume.write(block * BLOCK, noise(x, BLOCK as usize), false).await.expect("written");
        }
        volume.snapshot(&format!("s{snapshot}")).await.expect("made");
        shown.push(content.clone());
        volume.drain().await.expect("drained");
        volume.collect(Collect::Retire).await.expect("a checkpoint");
        let rows = stored_rows(&host).await;
        assert!(rows <= ROWS_MAX, "{rows} rows with {snapshot} snapshots");
        most = most.max(rows);
    }
    assert!(most > ROWS_MAX * 9 / 10, "{most} rows: there was nothing to join");
    close(volume).await;
    let volume = host.open_anew().await;
    for snapshot in [0, SNAPSHOTS / 2, SNAPSHOTS - 1] {
        let there = volume.open_snapshot(&format!("s{snapshot}")).await.expect("opened");
        for (block, tag) in shown[snapshot].iter().enumerate().step_by(37) {
            let expected =
                if *tag == 0 { vec![0; BLOCK as usize].into() } else { noise(*tag, BLOCK as usize) };
            assert!(
                read(&there, block as u64 * BLOCK, BLOCK).await == expected,
                "s{snapshot}, block {block}"
            );
        }
    }
    // Half of them go while it knows what it joined, the others when it knows only what it stored.
    for snapshot in (1..SNAPSHOTS).step_by(2) {
        volume.remove_snapshot(&format!("s{snapshot}")).await.expect("removed");
    }
    volume.drain().await.expect("drained");
    volume.collect(Collect::Retire).await.expect("a checkpoint");
    close(volume).await;
    let volume = host.open_anew().await;
    for snapshot in (0..SNAPSHOTS).step_by(2) {
        volume.remove_snapshot(&format!("s{snapshot}")).await.expect("removed");
    }
    for _ in 0..4 {
        volume.write(0, noise(7, BLOCK as usize), false).await.expect("written");
        volume.drain().await.expect("drained");
        volume.collect(Collect::Clean { ratio: 1.2 }).await.expect("cleaned");
        volume.collect(Collect::Retire).await.expect("a checkpoint");
    }
    let (keys, state) = committed(&host).await;
    let table = state.snapshot_table(host.own().await.as_ref(), &keys).await.expect("read");
    assert_eq!(table, SnapshotTable::default(), "nothing is left of them");
    close(volume).await;
    check(&host).await;
}
