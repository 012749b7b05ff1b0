//! What comes from elsewhere arrives: as a whole or not at all, wherever its bytes begin and end. Differences that rbd itself wrote among it.

use std::{fs, io::Cursor, path::Path, sync::Arc};

use aws_lc_rs::digest;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    env::{Env, real::RealEnv},
    share::Share,
    stream::{Patch, PatchContent, RbdReader, RbdWriter},
    volume::{ForeignReceiver, ForeignState, Overwrite, Volume},
};
use proptest::prelude::*;
use steps::{BLOCK, Content, SIZE_MAX, content, do_steps, host, in_runtime, sent, show, steps};
use volume_support::{Host, MIB, close, noise, read};

#[path = "volume_support/steps.rs"]
mod steps;
mod volume_support;

/// The difference, as `cistern send --format rbd` writes it.
async fn rbd(host: &Host, to: &str, from: Option<&str>) -> Vec<u8> {
    let (header, records) = sent(host, to, from, (Share::ALL, 0)).await;
    let mut writer = RbdWriter::begin(Vec::new(), &header).expect("memory");
    records.iter().for_each(|record| writer.record(record).expect("memory"));
    writer.finish().expect("memory").1
}

/// Imports as the command does: what does not come to its end is gone back on.
async fn import(volume: &Arc<Volume>, stream: &[u8], overwrite: Overwrite) -> Result<()> {
    let imported = import_or_stop(volume, stream, overwrite).await;
    if imported.is_err() {
        volume.go_back().await.expect("back");
    }
    imported
}

async fn import_or_stop(volume: &Arc<Volume>, stream: &[u8], overwrite: Overwrite) -> Result<()> {
    let (mut reader, header) = RbdReader::begin(Cursor::new(stream))?;
    let name = header.to.unwrap_or_else(|| "import".into());
    let state = ForeignState { name, base: header.from, size_bytes: header.size_bytes };
    let mut receiver = ForeignReceiver::begin(volume, &state, overwrite).await?;
    while let Some(patch) = reader.next_patch()? {
        receiver.patch(patch).await?;
    }
    receiver.end().await.map(drop)
}

/// For each block whether it is a hole.
fn holes(content: &Content) -> Vec<bool> {
    let blocks = |(len, kind): &(u64, String)| vec![kind == "Hole"; (len / BLOCK) as usize];
    content.2.iter().flat_map(blocks).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// Through the format of rbd, which knows neither checksums nor ids, each snapshot shows what it shows here: bytes, size, and every hole a hole.
    #[test]
    fn what_goes_through_rbd_arrives(steps in steps(), size in 1..SIZE_MAX / 512, other in 1..SIZE_MAX / 512) {
        in_runtime(async {
            let env = RealEnv::start();
            let (from, to) = (host(&env, size * 512).await, host(&env, other * 512).await);
            let source = from.open().await;
            let made = do_steps(&source, &steps).await;
            close(source).await;
            let target = to.open().await;
            for n in 0..made {
                let base = n.checked_sub(1).map(|base| format!("s{base}"));
                let stream = rbd(&from, &format!("s{n}"), base.as_deref()).await;
                import(&target, &stream, Overwrite::Nothing).await.expect("imported");
            }
            close(target).await;
            for n in 0..made {
                let name = format!("s{n}");
                let here = content(&*show(&from, &name).await).await;
                let there = content(&*show(&to, &name).await).await;
                assert_eq!((there.0, &there.1), (here.0, &here.1), "{name}");
                for (block, (there, here)) in holes(&there).iter().zip(holes(&here)).enumerate() {
                    assert!(*there || !here, "{name}: block {block} was a hole");
                }
            }
        });
    }

    /// Patches in any order, over each other and at any byte, are what they are in a plain array.
    #[test]
    fn patches_lie_where_they_belong(
        size in 1..MIB,
        patches in proptest::collection::vec((0..MIB, 1..100_000_u64, 0..4_u8), 0..20),
        full in any::<bool>(),
    ) {
        in_runtime(async {
            let env = RealEnv::start();
            let to = host(&env, MIB).await;
            let target = to.open().await;
            let volume_bytes = size.next_multiple_of(512);
            let mut expected = vec![0; volume_bytes as usize];
            let mut base = None;
            if !full {
                let before = noise(77, MIB as usize);
                target.write(0, before.clone(), false).await.expect("written");
                target.snapshot("before").await.expect("made");
                expected[..size as usize].copy_from_slice(&before[..size as usize]);
                base = Some("before".to_owned());
            }
            let state = ForeignState { name: "after".into(), base, size_bytes: size };
            let mut receiver = ForeignReceiver::begin(&target, &state, Overwrite::Nothing).await.expect("begun");
            for (n, (at, len, kind)) in patches.iter().enumerate() {
                let offset = at % size;
                let len = (*len).min(size - offset);
                let data = match kind {
                    0 => Bytes::from(vec![0; len as usize]),
                    // Zero but for its middle, so that there are blocks of either kind.
                    1 => {
                        let mut data = vec![0; len as usize];
                        data[len as usize / 2] = 1;
                        Bytes::from(data)
                    }
                    _ => noise(n as u64, len as usize),
                };
                let place = offset as usize..(offset + len) as usize;
                let content = match kind {
                    3 => {
                        expected[place].fill(0);
                        PatchContent::Zeroes(len)
                    }
                    _ => {
                        expected[place].copy_from_slice(&data);
                        PatchContent::Data(data)
                    }
                };
                receiver.patch(Patch { offset, content }).await.expect("patched");
            }
            receiver.end().await.expect("ended");
            close(target).await;
            let after = show(&to, "after").await;
            assert_eq!(after.size_bytes(), volume_bytes);
            assert!(read(&after, 0, volume_bytes).await == expected, "it is another content");
        });
    }
}

fn of_ceph(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rbd").join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Size and SHA-256 of what `rbd export` gave of each snapshot (`rbd/README.md`).
const EXPORTED: [(&str, u64, &str); 5] = [
    ("monday", 200_000, "8fb4256851afb53aa576318705f5b20e5fa6b63079785896f1d19ca62591ef13"),
    ("tuesday", 300_001, "6baa101d7acfbaf393dd869f64e2d5befa9d4231f7253a1e585982359ead8a60"),
    ("wednesday", 150_000, "be5e0301b79114c5f2eb4f1400ee956571fd87beffbd7a67740c5cd7044a660d"),
    ("one", 1 << 20, "b1d334618ecd08df9731100a84ab1402e3000c1c785b8ba50a49f30f77ae5cae"),
    ("two", 1 << 20, "1e66d7db8d3e1731ba073a90b998f735db1a04bd57ac02b61528defd4ccc98d1"),
];

/// Asserts that a snapshot shows what rbd exported of one.
async fn assert_is_of_ceph(to: &Host, snapshot: &str, exported: &str) {
    let (_, size, sum) = *EXPORTED.iter().find(|(name, ..)| *name == exported).expect("listed");
    let shown = show(to, snapshot).await;
    assert_eq!(shown.size_bytes(), size.next_multiple_of(512), "{snapshot}");
    let all = read(&shown, 0, shown.size_bytes()).await;
    let (image, behind) = all.split_at(size as usize);
    assert!(behind.iter().all(|byte| *byte == 0), "{snapshot}: what lies behind the image is zero");
    let found = digest::digest(&digest::SHA256, image);
    let found: String = found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, sum, "{snapshot}");
}

/// What Ceph's own tools wrote is what they export: images of odd sizes that grow and shrink, unaligned data, stripes, what was merged, and a
/// head without a name.
#[tokio::test(flavor = "multi_thread")]
async fn what_ceph_wrote_is_what_it_exports() {
    let env = RealEnv::start();
    for (chain, last) in [
        (&["monday.diff", "monday-tuesday.diff", "tuesday-wednesday.diff"][..], "wednesday"),
        (&["monday.diff", "monday-wednesday.diff"], "wednesday"),
        (&["merged-tuesday.diff", "tuesday-wednesday.diff"], "wednesday"),
        (&["one.diff", "one-two.diff"], "two"),
    ] {
        let to = host(&env, 512).await;
        let target = to.open().await;
        for diff in chain {
            import(&target, &of_ceph(diff), Overwrite::Nothing).await.expect("imported");
        }
        let made: Vec<String> = target.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        close(target).await;
        assert_eq!((made.len(), made.iter().any(|name| name == last)), (chain.len(), true), "{made:?}");
        for name in made {
            assert_is_of_ceph(&to, &name, &name).await;
        }
    }
    let to = host(&env, 512).await;
    let target = to.open().await;
    import(&target, &of_ceph("head.diff"), Overwrite::Nothing).await.expect("imported");
    close(target).await;
    assert_is_of_ceph(&to, "import", "wednesday").await;
}

async fn monday(env: &Env) -> (Host, Arc<Volume>) {
    let to = host(env, 512).await;
    let target = to.open().await;
    import(&target, &of_ceph("monday.diff"), Overwrite::Nothing).await.expect("imported");
    target.drain().await.expect("in the store");
    (to, target)
}

/// A difference that is cut, also right before its end record, changes nothing, and the whole one is imported all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_cut_changes_nothing() {
    let env = RealEnv::start();
    let (to, target) = monday(&env).await;
    let before = (content(&target).await, target.snapshots());
    let difference = of_ceph("monday-tuesday.diff");
    for cut in [5, 40, 3000, difference.len() - 1] {
        let cut_off =
            import(&target, &difference[..cut], Overwrite::Nothing).await.expect_err("it is not whole");
        assert!(matches!(cut_off, Error::Corrupt { .. }), "{cut_off}");
        assert_eq!((content(&target).await, target.snapshots()), before, "{cut}");
    }
    import(&target, &difference, Overwrite::Nothing).await.expect("imported");
    close(target).await;
    assert_is_of_ceph(&to, "tuesday", "tuesday").await;
}

/// What does not continue what is there is refused and changes nothing: no snapshot of that name, a name that is taken, one that was written over, data
/// in the way. Told to, it overwrites, and nothing of what was there shines through.
#[tokio::test(flavor = "multi_thread")]
async fn it_fits_or_is_told_to() {
    let env = RealEnv::start();
    let (to, target) = monday(&env).await;
    let refused = async |diff: &str| {
        let refused = import(&target, &of_ceph(diff), Overwrite::Nothing).await;
        refused.expect_err("it does not fit").to_string()
    };
    assert!(refused("tuesday-wednesday.diff").await.contains("snapshot tuesday"));
    assert!(refused("monday.diff").await.contains("another snapshot with the name monday"));
    assert!(refused("merged-tuesday.diff").await.contains("not empty"));
    target.write(5, noise(4, 100_000), false).await.expect("written");
    assert!(refused("monday-tuesday.diff").await.contains("written to since"));
    assert_eq!(target.snapshots().len(), 1);
    import(&target, &of_ceph("monday-tuesday.diff"), Overwrite::All).await.expect("overwritten");
    target.resize(MIB, false).await.expect("resized");
    target.write(0, noise(5, MIB as usize), false).await.expect("written");
    import(&target, &of_ceph("one.diff"), Overwrite::All).await.expect("overwritten");
    close(target).await;
    assert_is_of_ceph(&to, "tuesday", "tuesday").await;
    assert_is_of_ceph(&to, "one", "one").await;
}

/// An image that shrinks within a sector leaves nothing there that comes back when it grows.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_shrink_took_away_does_not_come_back() {
    let env = RealEnv::start();
    let to = host(&env, 512).await;
    let target = to.open().await;
    for (n, size) in [1000, 600, 1000].into_iter().enumerate() {
        let base = n.checked_sub(1).map(|base| format!("s{base}"));
        let state = ForeignState { name: format!("s{n}"), base, size_bytes: size };
        let mut receiver = ForeignReceiver::begin(&target, &state, Overwrite::Nothing).await.expect("begun");
        if n == 0 {
            let content = PatchContent::Data(Bytes::from(vec![7; 1000]));
            receiver.patch(Patch { offset: 0, content }).await.expect("patched");
        }
        receiver.end().await.expect("ended");
    }
    let expected = [vec![7; 600], vec![0; 424]].concat();
    assert!(read(&target, 0, 1024).await == expected, "what lay behind 600 bytes is gone");
    close(target).await;
}
