//! What is sent arrives: as a whole or not at all, whatever was written, discarded or resized between snapshots.

use std::{io::Cursor, sync::Arc};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    env::{Env, real::RealEnv},
    snapshot::ReceivedState,
    stats::IoKind,
    stream::{StreamReader, StreamWriter},
    units::SnapshotId,
    volume::{Collect, Overwrite, Receiver, Volume},
};
use proptest::prelude::*;
use steps::{SIZE_MAX, content, do_steps, host, in_runtime, sent, show, steps};
use volume_support::{Host, MIB, close, noise};

#[path = "volume_support/steps.rs"]
mod steps;
mod volume_support;

/// The stream of a snapshot, from another one on.
async fn stream(host: &Host, to: &str, from: Option<&str>) -> Vec<u8> {
    let (header, records) = sent(host, to, from).await;
    let mut writer = StreamWriter::begin(Vec::new(), &header).expect("memory");
    records.iter().for_each(|record| writer.record(record).expect("memory"));
    writer.finish().expect("memory").1
}

/// Receives as the command does: what does not come to its end is gone back on. Whether anything was received.
async fn receive(volume: &Arc<Volume>, stream: &[u8], overwrite: Overwrite) -> Result<bool> {
    let received = receive_or_stop(volume, stream, overwrite).await;
    if received.is_err() {
        volume.go_back().await.expect("back");
    }
    received
}

async fn receive_or_stop(volume: &Arc<Volume>, stream: &[u8], overwrite: Overwrite) -> Result<bool> {
    let (mut reader, header) = StreamReader::begin(Cursor::new(stream))?;
    let name = header.to.name.clone();
    let Some(mut receiver) = Receiver::begin(volume, header, &name, overwrite).await? else {
        return Ok(false);
    };
    while let Some(record) = reader.next_record()? {
        receiver.record(record).await?;
    }
    receiver.end().await?;
    Ok(true)
}

fn written_bytes(volume: &Volume) -> u64 {
    let at = IoKind::ALL.iter().position(|kind| *kind == IoKind::Write).expect("listed");
    volume.io_stats().kinds[at].bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// The first snapshot as a full stream and every later one as a difference, into a volume of another size: each shows there what it shows
    /// here, bytes, holes and size. And all of it as one difference over the first.
    #[test]
    fn what_is_sent_arrives(steps in steps(), size in 1..SIZE_MAX / 512, other in 1..SIZE_MAX / 512) {
        in_runtime(async {
            let env = RealEnv::start();
            let (from, to, far) = (host(&env, size * 512).await, host(&env, other * 512).await, host(&env, 512).await);
            let source = from.open().await;
            let made = do_steps(&source, &steps).await;
            close(source).await;
            let (target, third) = (to.open().await, far.open().await);
            for n in 0..made {
                let base = n.checked_sub(1).map(|base| format!("s{base}"));
                let sent = stream(&from, &format!("s{n}"), base.as_deref()).await;
                assert!(receive(&target, &sent, Overwrite::Nothing).await.expect("received"));
                assert!(!receive(&target, &sent, Overwrite::Nothing).await.expect("known"), "twice is once");
                if n == 0 {
                    receive(&third, &sent, Overwrite::Nothing).await.expect("received");
                }
            }
            let last = format!("s{}", made - 1);
            if made > 1 {
                let sent = stream(&from, &last, Some("s0")).await;
                assert!(receive(&third, &sent, Overwrite::Nothing).await.expect("received"));
            }
            let expected = content(&*show(&from, &last).await).await;
            assert_eq!(content(&target).await, expected);
            assert_eq!(content(&third).await, expected);
            close(target).await;
            close(third).await;
            for n in 0..made {
                let name = format!("s{n}");
                assert_eq!(content(&*show(&to, &name).await).await, content(&*show(&from, &name).await).await);
            }
        });
    }
}

/// A source with snapshots a and b, and their streams: a full one of a, the difference to b, a full one of b.
async fn source(env: &Env) -> (Host, [Vec<u8>; 3]) {
    let from = host(env, 4 * MIB + 512).await;
    let volume = from.open().await;
    volume.write(0, noise(1, MIB as usize), false).await.expect("written");
    volume.write(3 * MIB, Bytes::from(vec![5; MIB as usize]), false).await.expect("written");
    volume.snapshot("a").await.expect("made");
    volume.write(MIB / 2, noise(2, MIB as usize), false).await.expect("written");
    volume.trim(3 * MIB, MIB / 2, false).await.expect("trimmed");
    volume.resize(6 * MIB, false).await.expect("resized");
    volume.snapshot("b").await.expect("made");
    volume.write(0, noise(3, 2 * MIB as usize), false).await.expect("written");
    close(volume).await;
    let streams =
        [stream(&from, "a", None).await, stream(&from, "b", Some("a")).await, stream(&from, "b", None).await];
    (from, streams)
}

/// A stream that breaks anywhere leaves the volume as it was, with the snapshots that it had, and the next one is received all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_changes_nothing() {
    let env = RealEnv::start();
    let (from, [full, difference, _]) = source(&env).await;
    let to = host(&env, MIB).await;
    let target = to.open().await;
    let empty = content(&target).await;
    for cut in [0, 100, 700, full.len() / 2, full.len() - 1] {
        receive(&target, &full[..cut], Overwrite::Nothing).await.expect_err("it is not whole");
        assert_eq!((content(&target).await, target.snapshots()), (empty.clone(), vec![]), "{cut}");
    }
    receive(&target, &full, Overwrite::Nothing).await.expect("received");
    target.drain().await.expect("in the store");
    let before = (content(&target).await, target.snapshots());
    assert_eq!(before.0, content(&*show(&from, "a").await).await);
    for at in [150, 700, difference.len() / 2, difference.len() - 1] {
        let mut bad = difference.clone();
        bad[at] ^= 1;
        receive(&target, &bad, Overwrite::Nothing).await.expect_err("it is damaged");
        assert_eq!((content(&target).await, target.snapshots()), before, "{at}");
    }
    receive(&target, &difference, Overwrite::Nothing).await.expect("what was gone back on is as the base");
    assert_eq!(content(&target).await, content(&*show(&from, "b").await).await);
    close(target).await;
}

/// A host that dies while it receives leaves a volume that nobody opens and of which nobody sees more than its snapshots; on the same host
/// and on another one the stream is received again, or gone back on.
#[tokio::test(flavor = "multi_thread")]
async fn who_dies_while_receiving_left_nothing_half() {
    let env = RealEnv::start();
    let (from, [full, difference, _]) = source(&env).await;
    for (lose_the_disk, drained) in [(false, false), (false, true), (true, true)] {
        let mut to = host(&env, MIB).await;
        let target = to.open().await;
        receive(&target, &full, Overwrite::Nothing).await.expect("received");
        let before = content(&target).await;
        receive_or_stop(&target, &difference[..difference.len() - 10], Overwrite::Nothing)
            .await
            .expect_err("it is cut");
        if drained {
            target.drain().await.expect("in the store");
        }
        drop(target);
        let _lost = lose_the_disk.then(|| to.replace_disk());
        let options = || cistern_engine::volume::OpenOptions { take_over: lose_the_disk, ..to.options() };
        let refused = loop {
            match Volume::open(options()).await.map(drop).expect_err("it is not complete") {
                Error::Locked(_) => tokio::task::yield_now().await, // the crash is not over
                refused => break refused,
            }
        };
        assert!(matches!(refused, Error::Unfinished), "{refused}");
        assert_eq!(content(&*to.open_read_only(None).await).await, before, "it does not count yet");
        assert_eq!(content(&*show(&to, "a").await).await, before);

        let target = Volume::open_to_receive(options()).await.expect("opened");
        target.go_back().await.expect("back");
        assert_eq!(content(&target).await, before);
        receive_or_stop(&target, &difference[..difference.len() - 10], Overwrite::Nothing)
            .await
            .expect_err("it is cut");
        close(target).await;
        let target = Volume::open_to_receive(to.options()).await.expect("opened");
        assert!(target.receiving().is_some());
        receive(&target, &difference, Overwrite::Nothing).await.expect("received");
        assert_eq!(content(&target).await, content(&*show(&from, "b").await).await);
        close(target).await;
        close(to.open().await).await;
    }
}

/// What does not continue what is there is refused and changes nothing: a difference whose base is not there, one whose base was written over,
/// a full one over data. Told to, it overwrites; compared, it writes only what differs.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_fits_or_is_told_to() {
    let env = RealEnv::start();
    let (from, [full, difference, whole]) = source(&env).await;
    let expected = content(&*show(&from, "b").await).await;
    let to = host(&env, 6 * MIB).await;
    let target = to.open().await;
    let refused = receive(&target, &difference, Overwrite::All).await.expect_err("no base");
    assert!(refused.to_string().contains("does not have"), "{refused}");
    receive(&target, &full, Overwrite::Nothing).await.expect("received");
    target.write(MIB, noise(9, 5000), false).await.expect("written");
    target.trim(0, 8192, false).await.expect("trimmed");
    let before = content(&target).await;
    let refused = receive(&target, &difference, Overwrite::Nothing).await.expect_err("written to");
    assert!(refused.to_string().contains("written to"), "{refused}");
    let refused = receive(&target, &whole, Overwrite::Nothing).await.expect_err("not empty");
    assert!(matches!(refused, Error::NotEmpty(_)), "{refused}");
    receive(&target, &difference[..difference.len() - 1], Overwrite::All).await.expect_err("cut");
    assert_eq!(content(&target).await, before, "also what was written since the base");
    target.write(MIB, noise(9, 5000), false).await.expect("as it was");
    receive(&target, &difference, Overwrite::All).await.expect("told to");
    assert_eq!(content(&target).await, expected);
    assert_eq!(target.snapshots().len(), 2);
    close(target).await;

    for overwrite in [Overwrite::All, Overwrite::Differing] {
        let to = host(&env, 5 * MIB).await;
        let target = to.open().await;
        target.write(0, noise(1, MIB as usize), false).await.expect("half of it is right");
        target.write(2 * MIB, noise(8, MIB as usize), false).await.expect("this is not");
        let written = written_bytes(&target);
        receive(&target, &whole, overwrite).await.expect("told to");
        assert_eq!(content(&target).await, expected);
        let written = written_bytes(&target) - written;
        let differing = MIB + MIB / 2;
        assert_eq!(written, if overwrite == Overwrite::All { differing + MIB / 2 } else { differing });
        close(target).await;
    }
}

/// The base may be a bookmark at either end, and the source may have been cleaned since: only births count.
#[tokio::test(flavor = "multi_thread")]
async fn a_bookmark_is_base_enough() {
    let env = RealEnv::start();
    let (from, [full, ..]) = source(&env).await;
    let expected = content(&*show(&from, "b").await).await;
    let volume = from.open().await;
    volume.leave_bookmark("a").await.expect("left");
    for tag in 0..8 {
        volume.write(tag * MIB / 4, noise(20 + tag, MIB as usize), false).await.expect("written");
        volume.drain().await.expect("in the store");
    }
    volume.snapshot("c").await.expect("made");
    volume.drain().await.expect("in the store");
    let mut rounds = 0;
    while volume.collect(Collect::Clean { ratio: 1.05 }).await.is_ok_and(|step| step.next.is_some())
        && rounds < 50
    {
        rounds += 1;
    }
    let last = content(&volume).await;
    close(volume).await;
    let to = host(&env, MIB).await;
    let target = to.open().await;
    receive(&target, &full, Overwrite::Nothing).await.expect("received");
    target.leave_bookmark("a").await.expect("left");
    let sent = stream(&from, "b", Some("a")).await;
    receive(&target, &sent, Overwrite::Nothing).await.expect("received");
    assert_eq!(content(&target).await, expected);
    let again = receive(&target, &full, Overwrite::All).await.expect_err("it was here");
    assert!(matches!(again, Error::Exists(_)), "{again}");
    assert_eq!(content(&target).await, expected);
    let sent = stream(&from, "c", Some("b")).await;
    receive(&target, &sent, Overwrite::Nothing).await.expect("received");
    assert_eq!(content(&target).await, last);
    close(target).await;
}

/// Between two snapshots the volume was rolled back: what either changed behind the fork is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_between_is_sent() {
    let env = RealEnv::start();
    let (from, [_, _, whole]) = source(&env).await;
    let volume = from.open().await;
    volume.roll_back("a", "left").await.expect("rolled back");
    drop(volume);
    let volume = from.open().await;
    volume.write(2 * MIB, noise(30, MIB as usize), false).await.expect("written");
    volume.snapshot("c").await.expect("made");
    let expected = content(&volume).await;
    close(volume).await;
    let to = host(&env, MIB).await;
    let target = to.open().await;
    receive(&target, &whole, Overwrite::Nothing).await.expect("received");
    receive(&target, &stream(&from, "c", Some("b")).await, Overwrite::Nothing).await.expect("received");
    assert_eq!(content(&target).await, expected);
    close(target).await;
}

/// What was received is sent on under the same identity: to a third place, and back to where it came from.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_received_is_sent_on() {
    let env = RealEnv::start();
    let (from, [full, ..]) = source(&env).await;
    let middle = host(&env, MIB).await;
    let target = middle.open().await;
    receive(&target, &full, Overwrite::Nothing).await.expect("received");
    target.write(0, noise(40, 8192), false).await.expect("written");
    target.snapshot("there").await.expect("made");
    close(target).await;
    let far = host(&env, MIB).await;
    let third = far.open().await;
    receive(&third, &stream(&middle, "a", None).await, Overwrite::Nothing).await.expect("received");
    let back = stream(&middle, "there", Some("a")).await;
    receive(&third, &back, Overwrite::Nothing).await.expect("received");
    let expected = content(&*show(&middle, "there").await).await;
    assert_eq!(content(&third).await, expected);
    close(third).await;
    let source = from.open().await;
    let refused = receive(&source, &back, Overwrite::Nothing).await.expect_err("b came behind a");
    assert!(refused.to_string().contains("written to"), "{refused}");
    receive(&source, &back, Overwrite::All).await.expect("told to");
    assert_eq!(content(&source).await, expected);
    close(source).await;
}

/// Ending what was not begun, or under a name that is taken, ends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_needs_a_beginning() {
    let env = RealEnv::start();
    let to = host(&env, MIB).await;
    let volume = to.open().await;
    let of = SnapshotId(env.uuid());
    let made = || ReceivedState { name: "x".into(), made_ms: 1 };
    volume.end_receive(of, made()).await.expect_err("not begun");
    volume.go_back().await.expect("nothing to do");
    volume.snapshot("x").await.expect("made");
    volume.begin_receive(of).await.expect("begun");
    volume.end_receive(of, made()).await.expect_err("the name is taken");
    assert_eq!(volume.receiving(), Some(of));
    volume.go_back().await.expect("back");
    assert!(volume.receiving().is_none() && volume.snapshots().len() == 1);
    close(volume).await;
}
