//! What is sent arrives: as a whole or not at all, whatever was written, discarded or resized between snapshots.

use std::{io::Cursor, sync::Arc};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    env::{Env, real::RealEnv},
    share::{SHARE_PART_BLOCKS, Share},
    snapshot::{ReceivedState, Receiving},
    stream::{StreamHeader, StreamReader, StreamWriter},
    units::SnapshotId,
    volume::{Collect, Overwrite, Receiver, Volume},
};
use futures_util::FutureExt;
use proptest::prelude::*;
use steps::{SIZE_MAX, content, do_steps, host, in_runtime, sent, show, status, steps};
use volume_support::{Host, MIB, close, noise};

#[path = "volume_support/steps.rs"]
mod steps;
mod volume_support;

/// The stream of a snapshot, from another one on.
async fn stream(host: &Host, to: &str, from: Option<&str>) -> Vec<u8> {
    share_stream(host, to, from, (Share::ALL, 0)).await
}

/// That of a share, from a block on.
async fn share_stream(host: &Host, to: &str, from: Option<&str>, share: (Share, u64)) -> Vec<u8> {
    let (header, records) = sent(host, to, from, share).await;
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
    receive_shares(volume, &[stream], overwrite).await
}

/// Receives all shares, a record of each in turn. What breaks one of them comes up when all that the others have is there.
async fn receive_shares(volume: &Arc<Volume>, streams: &[&[u8]], overwrite: Overwrite) -> Result<bool> {
    let begun: Result<Vec<_>> =
        streams.iter().map(|stream| StreamReader::begin(Cursor::new(*stream))).collect();
    let (mut readers, headers): (Vec<_>, Vec<StreamHeader>) = begun?.into_iter().unzip();
    let name = headers[0].to.name.clone();
    let Some((receiver, mut shares)) = Receiver::begin(volume, &headers, &name, overwrite).await? else {
        return Ok(false);
    };
    let (mut left, mut broken) = ((0..readers.len()).collect::<Vec<_>>(), None);
    while !left.is_empty() {
        let mut more = Vec::new();
        for n in left {
            match readers[n].next_record() {
                Ok(Some(record)) => {
                    shares[n].record(record).await?;
                    more.push(n);
                }
                Ok(None) => {}
                Err(e) => broken = Some(e),
            }
        }
        left = more;
    }
    broken.map_or(Ok(()), Err)?;
    receiver.end(shares).await?;
    Ok(true)
}

/// Bytes of segments that came to the store since the volume was opened.
async fn written_bytes(volume: &Volume) -> u64 {
    volume.drain().await.expect("in the store");
    volume.status().space.expect("it is open for writing").counters.written_bytes
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

/// The streams of some shares of b since a, of which the first ones are cut.
async fn shares_of_b(from: &Host, tos: &[(Share, u64)], base: Option<&str>) -> Vec<Vec<u8>> {
    let mut streams = Vec::new();
    for to in tos {
        streams.push(share_stream(from, "b", base, *to).await);
    }
    streams
}

/// A source of three parts and some more, with snapshots a and b: holes, data, zeroes, changes in every part, and its end odd.
async fn large_source(env: &Env) -> Host {
    const PART: u64 = SHARE_PART_BLOCKS * steps::BLOCK;
    let from = host(env, 3 * PART).await;
    let volume = from.open().await;
    for part in 0..3 {
        volume.write(part * PART, noise(part, MIB as usize), false).await.expect("written");
        volume.write((part + 1) * PART - MIB, noise(part + 5, MIB as usize), false).await.expect("written");
    }
    volume.snapshot("a").await.expect("made");
    volume.resize(3 * PART + 5 * 512, false).await.expect("resized");
    for part in 0..3 {
        volume.write(part * PART + MIB / 2, noise(part + 9, MIB as usize), false).await.expect("written");
        volume.trim((part + 1) * PART - MIB / 2, MIB / 4, false).await.expect("trimmed");
    }
    volume.zero(PART - 8192, 16384, true, false).await.expect("zeroed");
    volume.write(3 * PART + 512, noise(20, 1024), false).await.expect("written");
    volume.snapshot("b").await.expect("made");
    close(volume).await;
    from
}

/// Shares are received together, in any number, and show what the snapshot shows; of those that broke the rest is enough, wherever each broke, after
/// the loss of the host too. What was received before is not written again, if there was time to say how far it came.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_received_before_it_broke_is_enough() {
    let env = RealEnv::start();
    let from = large_source(&env).await;
    let expected = content(&*show(&from, "b").await).await;
    let (told, killed) = (true, false);
    for (count, base, lose_the_disk, ends) in [
        (1, Some("a"), true, told),
        (3, None, true, told),
        (3, Some("a"), false, told),
        (1, None, false, killed),
        (3, Some("a"), true, killed),
    ] {
        let mut to = host(&env, MIB).await;
        let target = to.open().await;
        if base.is_some() {
            receive(&target, &stream(&from, "a", None).await, Overwrite::Nothing).await.expect("received");
        }
        let starts: Vec<(Share, u64)> = Share::each(count).map(|share| (share, 0)).collect();
        let streams = shares_of_b(&from, &starts, base).await;
        let cut: Vec<&[u8]> = streams
            .iter()
            .enumerate()
            // One of several is whole.
            .map(|(n, stream)| if n == 1 { &stream[..] } else { &stream[..stream.len() * (n + 2) / (n + 4)] })
            .collect();
        receive_shares(&target, &cut, Overwrite::Nothing).await.expect_err("it is cut");
        if ends == told {
            target.resume_token().await.expect("told").expect("it can go on");
        }
        drop(target);
        let _lost = lose_the_disk.then(|| to.replace_disk());
        let target = loop {
            let options = cistern_engine::volume::OpenOptions { take_over: lose_the_disk, ..to.options() };
            match Volume::open_to_receive(options).await {
                Err(Error::Locked(_)) => tokio::task::yield_now().await, // the crash is not over
                opened => break opened.expect("opened"),
            }
        };
        let Some(token) = target.resume_token().await.expect("told") else {
            assert!(ends == killed && lose_the_disk, "of what is not in the store nothing is known");
            let streams: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
            assert!(receive_shares(&target, &streams, Overwrite::Nothing).await.expect("received"));
            assert_eq!(content(&target).await, expected);
            close(target).await;
            continue;
        };
        assert_eq!(token.to, status(&*show(&from, "b").await, "b").id);
        assert_eq!(token.places.len(), count as usize);
        assert!(ends == killed || token.places.iter().any(|place| *place > 0), "{token}");
        let goes_on: Vec<(Share, u64)> = Share::each(count).zip(token.places.clone()).collect();
        let mut behind = goes_on.clone();
        behind[0].1 += 1;
        let wrong = shares_of_b(&from, &behind, base).await;
        let wrong: Vec<&[u8]> = wrong.iter().map(Vec::as_slice).collect();
        let refused =
            receive_shares(&target, &wrong, Overwrite::Nothing).await.expect_err("something is missing");
        assert!(refused.to_string().contains("goes on at block"), "{refused}");
        let rest = shares_of_b(&from, &goes_on, base).await;
        let twice: usize = streams.iter().map(Vec::len).sum::<usize>();
        let again = rest.iter().map(Vec::len).sum::<usize>() + cut.iter().map(|cut| cut.len()).sum::<usize>();
        assert!(
            ends == killed || again < twice + rest.len() * (66_000 + 700),
            "a record of each share is sent twice at most: {again} {twice}"
        );
        let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
        assert!(receive_shares(&target, &rest, Overwrite::Nothing).await.expect("received"));
        close(target).await;
        assert_eq!(content(&*show(&to, "b").await).await, expected);
        close(to.open().await).await;
    }
}

/// The same stream once more, from its beginning, writes only what did not come before; another one goes back first. What is put
/// back below a receive, and a size that is set, count for nothing that was received.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_where_it_broke() {
    let env = RealEnv::start();
    let (from, [full, difference, whole]) = source(&env).await;
    let to = host(&env, MIB).await;
    let target = to.open().await;
    receive(&target, &full, Overwrite::Nothing).await.expect("received");
    // The end is written, so putting it back is the last that happens before the stream.
    target.write(4 * MIB, noise(50, 512), false).await.expect("written");
    receive_or_stop(&target, &difference[..700], Overwrite::All).await.expect_err("it is cut");
    let token = target.resume_token().await.expect("told").expect("it began");
    assert_eq!(token.places, [0], "nothing came");
    receive_or_stop(&target, &difference[..difference.len() - 100], Overwrite::All)
        .await
        .expect_err("it is cut");
    let token = target.resume_token().await.expect("told").expect("it began");
    assert!(token.places[0] > 0);
    let written = written_bytes(&target).await;
    receive_or_stop(&target, &difference, Overwrite::All).await.expect("received");
    assert!(written_bytes(&target).await - written <= 75_000, "what came is not written again");
    assert_eq!(content(&target).await, content(&*show(&from, "b").await).await);
    close(target).await;

    let other = host(&env, MIB).await;
    let target = other.open().await;
    receive_or_stop(&target, &whole[..whole.len() / 2], Overwrite::Nothing).await.expect_err("it is cut");
    receive(&target, &full, Overwrite::Nothing).await.expect("another one begins anew");
    assert_eq!(content(&target).await, content(&*show(&from, "a").await).await);
    assert!(target.resume_token().await.expect("told").is_none());
    let late = share_stream(&from, "b", Some("a"), (Share::ALL, 5)).await;
    let refused = receive_or_stop(&target, &late, Overwrite::Nothing).await.expect_err("nothing came before");
    assert!(refused.to_string().contains("goes on at block 5"), "{refused}");
    close(target).await;
}

/// Who is stopped while it puts back what was there leaves nothing to go on with: not all of what came is there any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_return_that_is_interrupted() {
    let env = RealEnv::start();
    let (from, [full, difference, _]) = source(&env).await;
    let to = host(&env, MIB).await;
    let target = to.open().await;
    receive(&target, &full, Overwrite::Nothing).await.expect("received");
    receive_or_stop(&target, &difference[..difference.len() - 100], Overwrite::Nothing)
        .await
        .expect_err("it is cut");
    assert!(target.resume_token().await.expect("told").is_some());
    let mut back = Box::pin(target.go_back());
    while target.resume_token().await.expect("told").is_some() {
        assert!((&mut back).now_or_never().is_none(), "it says so before it is done");
    }
    assert!(target.receiving().is_some(), "it says so before anything is put back");
    drop(back);
    receive_or_stop(&target, &difference, Overwrite::Nothing).await.expect("from its beginning");
    assert_eq!(content(&target).await, content(&*show(&from, "b").await).await);
    close(target).await;
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
        let written = written_bytes(&target).await;
        receive(&target, &whole, overwrite).await.expect("told to");
        assert_eq!(content(&target).await, expected);
        let written = written_bytes(&target).await - written;
        // What compresses counts for little.
        let expected = if overwrite == Overwrite::All { MIB + MIB / 2 } else { MIB };
        assert!((expected..expected + 50_000).contains(&written), "{overwrite:?}: {written} {expected}");
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
    let what = Receiving { of, base: None, shares: 1 };
    volume.begin_receive(what).await.expect("begun");
    volume.end_receive(of, made()).await.expect_err("the name is taken");
    assert_eq!(volume.receiving(), Some(what));
    volume.go_back().await.expect("back");
    assert!(volume.receiving().is_none() && volume.snapshots().len() == 1);
    close(volume).await;
}
