//! How soon a difference of a large volume is there: `send_bench DIR [EXTENTS [CHANGED]]`.
//!
//! A volume of 50 TiB whose map holds EXTENTS extents of 64 KiB (10 million). CHANGED blocks of 4 KiB (a thousandth of what is mapped) are written at random
//! behind a snapshot, with another one behind them; then the difference is read, through a store that takes 20 ms for every request. DIR is for the journal.

#![allow(clippy::disallowed_methods)] // a measuring program, not the engine

#[path = "support/generated.rs"]
mod generated;
#[path = "support/options.rs"]
mod support;
#[path = "support/slow.rs"]
mod through;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::KeySource,
    disk::RealDisk,
    env::real::RealEnv,
    share::Share,
    space::Bound,
    store::{MemoryStore, SharedStore, Stores},
    units::Seq,
    volume::{ReadOnlyOptions, SentSince, Volume},
};
use futures_util::{TryStreamExt, stream};
use generated::{BLOCK, FRAME_BLOCKS, Generated, Random, generate};

const VOLUME_BYTES: u64 = 50 << 40;
/// Writes that wait for each other's group of the journal.
const WRITERS: usize = 64;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(dir) = arguments.first() else {
        eprintln!("send_bench DIR [EXTENTS [CHANGED]]");
        std::process::exit(2);
    };
    let number = |n: usize| arguments.get(n).map(|text| text.parse::<u64>().expect("a number"));
    let extents = number(1).unwrap_or(10_000_000);
    let changed = number(2).unwrap_or(extents * FRAME_BLOCKS / 1000);
    let (env, store): (_, SharedStore) = (RealEnv::start(), Arc::new(MemoryStore::new()));
    let Generated { map_bytes, runs } =
        generate(&env, &store, VOLUME_BYTES, extents, |_| Seq(1), Vec::new()).await?;
    let disk = Arc::new(RealDisk::create(dir.as_ref()).expect("a directory"));
    let options = support::options(&env, Stores::same(store.clone()), disk);
    let volume = Volume::open(cistern_engine::volume::OpenOptions {
        cleaning: Bound::Ratio(f64::INFINITY).into(),
        ..options
    })
    .await?;
    volume.snapshot("a").await?;
    let mut random = Random(5);
    let places = (0..changed).map(|_| random.below(VOLUME_BYTES / BLOCK) * BLOCK);
    let data = Bytes::from(vec![7; BLOCK as usize]);
    let writes = stream::iter(places.map(|at| Ok::<_, Error>(volume.write(at, data.clone(), false))));
    writes.try_buffer_unordered(WRITERS).try_for_each(async |()| Ok(())).await?;
    volume.snapshot("b").await?;
    volume.drain().await?;
    let at = volume.snapshot_named("a").and_then(|a| a.at).expect("in the store");
    volume.close(std::time::Duration::from_secs(600)).await;
    drop(volume);

    let before = resident_mib("VmRSS");
    std::fs::write("/proc/self/clear_refs", "5").expect("its peak is forgotten");
    let slow = through::slow(&store);
    let began = Instant::now();
    let shown = Volume::open_read_only(ReadOnlyOptions {
        env: env.clone(),
        stores: Stores::same(slow.clone()),
        cache: None,
        key: KeySource::None,
        memory_bytes: 128 << 20,
        snapshot: Some("b".into()),
    })
    .await?;
    let opened = began.elapsed();
    let mut sending = shown.send(SentSince::Position(at, None), Share::ALL, 0);
    let (mut first, mut blocks) = (None, 0);
    while let Some(record) = sending.next().await? {
        if record.data_bytes() > 0 {
            first.get_or_insert_with(|| (began.elapsed(), slow.requests.load(Relaxed)));
            blocks += record.extent.len;
        }
    }
    let (first, requests) = first.expect("something changed");
    println!(
        "{extents} extents, map of {} MiB in {runs} runs; {blocks} of {changed} blocks: opened after {:.0} ms, the first data after {:.0} ms and {requests} requests; \
         all of it after {:.1} s and {} requests; memory {:.0} MiB before, {:.0} MiB at most",
        map_bytes >> 20,
        opened.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64(),
        slow.requests.load(Relaxed),
        before,
        resident_mib("VmHWM"),
    );
    Ok(())
}

fn resident_mib(what: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let kib: f64 = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).expect("a number");
    kib / 1024.0
}
