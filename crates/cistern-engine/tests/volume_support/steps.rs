//! What is done to a volume between snapshots, what a snapshot shows, and what is sent of it.

#![allow(dead_code)] // each test binary uses a part

use std::sync::Arc;

use bytes::Bytes;
use cistern_engine::{
    codec::{Compression, KeySource, crc32c},
    env::Env,
    share::Share,
    store::MemoryStore,
    stream::{StreamHeader, StreamRecord, StreamState},
    volume::{ReadOnlyOptions, SentSince, SnapshotStatus, Volume},
};
use proptest::prelude::*;

use crate::volume_support::{Host, MIB, noise, read};

pub const BLOCK: u64 = 4096;
/// Sizes are below this.
pub const SIZE_MAX: u64 = 8 * MIB;

pub async fn host(env: &Env, size_bytes: u64) -> Host {
    Host::with_volume(env.clone(), Arc::new(MemoryStore::new()), size_bytes, KeySource::None).await
}

pub async fn show(host: &Host, snapshot: &str) -> Arc<Volume> {
    let (env, stores, key) = (host.env.clone(), host.stores(), host.key.clone());
    let snapshot = Some(snapshot.to_owned());
    let options = ReadOnlyOptions { env, stores, cache: None, key, memory_bytes: 64 * MIB, snapshot };
    Volume::open_read_only(options).await.expect("shown")
}

pub fn status(volume: &Volume, name: &str) -> SnapshotStatus {
    volume.snapshots().into_iter().find(|snapshot| snapshot.name == name).expect("there")
}

/// What is sent of a share of a snapshot from a block on, since another one.
pub async fn sent(
    host: &Host,
    to: &str,
    from: Option<&str>,
    share: (Share, u64),
) -> (StreamHeader, Vec<StreamRecord>) {
    let shown = show(host, to).await;
    let state = |name: &str| StreamState { id: status(&shown, name).id, name: name.into() };
    let header = StreamHeader {
        volume: shown.id(),
        to: state(to),
        base: from.map(state),
        size_bytes: shown.size_bytes(),
        made_ms: status(&shown, to).made_ms,
        compression: Compression::Lz4,
        share: share.0,
        from: share.1,
    };
    let since = match from {
        None => SentSince::Beginning,
        Some(from) => {
            let at = status(&shown, from).at.expect("in the store");
            let aside = if shown.goes_on_from(at) { None } else { Some(show(host, from).await) };
            SentSince::Position(at, aside)
        }
    };
    let (mut sending, mut records) = (shown.send(since, share.0, share.1), Vec::new());
    while let Some(record) = sending.next().await.expect("sent") {
        records.push(record);
    }
    (header, records)
}

/// Size, checksums of blocks that are not zero, and what the ranges are.
pub type Content = (u64, Vec<(usize, u32)>, Vec<(u64, String)>);

/// What a volume or a snapshot shows.
pub async fn content(volume: &Volume) -> Content {
    let size = volume.size_bytes();
    // Where a volume ends within a block, what is behind is zeroed: that block may be data then.
    let whole = size / BLOCK * BLOCK;
    let (mut kinds, mut at) = (Vec::<(u64, String)>::new(), 0);
    while at < whole {
        for (len, kind) in volume.ranges(at, whole - at, 1000).await.expect("ranges") {
            let kind = format!("{kind:?}");
            match kinds.last_mut() {
                Some((before, same)) if *same == kind => *before += len,
                _ => kinds.push((len, kind)),
            }
            at += len;
        }
    }
    let bytes = read(volume, 0, size).await;
    let blocks = bytes.chunks(BLOCK as usize).enumerate();
    let zeroes = [0; BLOCK as usize];
    let sums = blocks.filter(|(_, block)| *block != &zeroes[..block.len()]);
    (size, sums.map(|(n, block)| (n, crc32c(block))).collect(), kinds)
}

#[derive(Clone, Debug)]
pub enum Step {
    Write { at: u64, len: u64, tag: u64 },
    Fill { at: u64, len: u64 },
    Trim { at: u64, len: u64 },
    Zero { at: u64, len: u64 },
    Resize { to: u64 },
    Snapshot,
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..SIZE_MAX / 512, 1..600_u64).prop_map(|(at, len)| (at * 512, len * 512));
    let step = prop_oneof![
        6 => (range(), 0..1000_u64).prop_map(|((at, len), tag)| Step::Write { at, len, tag }),
        2 => range().prop_map(|(at, len)| Step::Fill { at, len }),
        3 => range().prop_map(|(at, len)| Step::Trim { at, len: len * 4 }),
        2 => range().prop_map(|(at, len)| Step::Zero { at, len }),
        2 => (1..SIZE_MAX / 512).prop_map(|sectors| Step::Resize { to: sectors * 512 }),
        3 => Just(Step::Snapshot),
    ];
    proptest::collection::vec(step, 5..30)
}

/// Does the steps, and makes snapshots s0, s1 and so on.
pub async fn do_steps(volume: &Volume, steps: &[Step]) -> usize {
    let mut made = 0;
    for step in steps {
        let within = |at: u64, len: u64| (at, len.min(volume.size_bytes().saturating_sub(at)));
        match *step {
            Step::Resize { to } => volume.resize(to, true).await.expect("resized"),
            Step::Snapshot => {
                volume.snapshot(&format!("s{made}")).await.expect("made");
                made += 1;
            }
            Step::Write { at, len, .. }
            | Step::Fill { at, len }
            | Step::Trim { at, len }
            | Step::Zero { at, len }
                if within(at, len).1 > 0 =>
            {
                let (at, len) = within(at, len);
                match *step {
                    Step::Write { tag, .. } => volume.write(at, noise(tag, len as usize), false).await,
                    Step::Fill { .. } => volume.write(at, Bytes::from(vec![7; len as usize]), false).await,
                    Step::Trim { .. } => volume.trim(at, len, false).await,
                    _ => volume.zero(at, len, true, false).await,
                }
                .expect("done");
            }
            _ => {}
        }
    }
    volume.snapshot(&format!("s{made}")).await.expect("made");
    made + 1
}

pub fn in_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads").block_on(future)
}
