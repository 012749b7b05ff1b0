//! Reads of the local disk through a ring: what is there, for whoever still waits.
#![allow(clippy::disallowed_methods)] // the threads are what is tested

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use bytes::Bytes;
use cistern_engine::{
    cache::{Admission, CacheKey, ChunkCache},
    disk::{AlignedBuf, Disk, DiskFile, RealDisk},
    env::{BoxFuture, real::RealEnv},
    uring::use_ring_on_this_thread,
};
use futures_util::future::{Future, MaybeDone, join_all, maybe_done};
use tempfile::TempDir;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

type Read = BoxFuture<Option<AlignedBuf>>;

/// A file whose blocks say which they are.
async fn numbered() -> (TempDir, Arc<dyn DiskFile>) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let disk = RealDisk::open(dir.path()).expect("a directory");
    let file = disk.create("numbered", BLOCKS * BLOCK).await.expect("create");
    for n in 0..BLOCKS {
        file.write_at(n * BLOCK, &[n as u8; BLOCK as usize]).await.expect("write");
    }
    (dir, file)
}

fn start(file: &Arc<dyn DiskFile>, block: u64, blocks: u64) -> Option<Read> {
    file.read_without_blocking(block * BLOCK, (blocks * BLOCK) as usize)
}

fn is_right(read: &AlignedBuf, block: u64) -> bool {
    read.chunks(BLOCK as usize).zip(block..).all(|(data, n)| data.iter().all(|&byte| byte == n as u8))
}

/// A thread with a ring reads what is in the file, many reads at once and one after the other, and no more at
/// once than fit; a thread that did not ask has none.
#[tokio::test]
async fn a_ring_reads_what_is_there() {
    let (_dir, file) = numbered().await;
    assert!(start(&file, 0, 1).is_none(), "nobody asked");
    use_ring_on_this_thread();
    for round in 0..20 {
        let places: Vec<(u64, u64)> = (0..100).map(|n| ((n * 7 + round) % 60, 1 + n % 4)).collect();
        let reads = places.iter().map(|&(block, blocks)| start(&file, block, blocks).expect("there is room"));
        for (read, (block, blocks)) in join_all(reads).await.into_iter().zip(places) {
            let read = read.expect("read");
            assert!(read.len() as u64 == blocks * BLOCK && is_right(&read, block));
        }
        assert!(is_right(&start(&file, round, 1).expect("room").await.expect("read"), round));
    }
    let many: Vec<Read> = (0..1000).map_while(|_| start(&file, 5, 1)).collect();
    assert!((100..1000).contains(&many.len()), "{}", many.len());
    assert!(join_all(many).await.into_iter().all(|read| is_right(&read.expect("read"), 5)));
    assert!(start(&file, BLOCKS, 1).is_none() && start(&file, 1 << 50, 1).is_none(), "outside");
}

/// Polls once.
async fn poll_once(read: &mut Pin<Box<MaybeDone<Read>>>) {
    poll_fn(|cx| {
        let _ = read.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// Whoever stops waiting, before its read was submitted or after, takes nobody else's answer with it, and its
/// place is used again. Of the reads here a batch is submitted before anybody waits, the rest is not.
#[tokio::test]
async fn readers_that_go_away_harm_nobody() {
    let (_dir, file) = numbered().await;
    use_ring_on_this_thread();
    for round in 0..500u64 {
        let place = |n: u64| (n * 5 + round) % BLOCKS;
        let mut reads: Vec<_> = (0..12)
            .map(|n| (n, Box::pin(maybe_done(start(&file, place(n), 1).expect("there is room")))))
            .collect();
        for (n, read) in &mut reads {
            for _ in 0..(round / 3 + *n) % 4 {
                poll_once(read).await;
            }
        }
        // Some go away; each of the others waits in a task of its own.
        reads.retain(|(n, _)| round >> (n % 8) & 1 == 0);
        let tasks: Vec<_> = reads
            .into_iter()
            .map(|(n, mut read)| {
                let wait = async move {
                    read.as_mut().await;
                    read.as_mut().take_output().flatten()
                };
                (n, tokio::spawn(wait))
            })
            .collect();
        for (n, task) in tasks {
            let read = task.await.expect("no panic").expect("read");
            assert!(is_right(&read, place(n)), "round {round}, read {n}");
        }
    }
}

/// A thread that ends while the kernel still reads waits for it, and a new one starts afresh.
#[test]
fn threads_end_with_reads_under_way() {
    for _ in 0..50 {
        let thread = std::thread::spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let (_dir, file) = numbered().await;
                use_ring_on_this_thread();
                let mut reads: Vec<_> = (0..50)
                    .map(|n| Box::pin(maybe_done(start(&file, n, 1).expect("there is room"))))
                    .collect();
                for read in &mut reads {
                    poll_once(read).await;
                }
                poll_once(&mut reads[7]).await;
            });
        });
        thread.join().expect("no panic");
    }
}

/// The chunk cache gives the same through a ring: ranges in one chunk and in several, and nothing once the
/// bytes on the disk are not those that were written.
#[tokio::test]
async fn the_cache_reads_through_a_ring() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).expect("a directory"));
    let cache = ChunkCache::open(RealEnv::start(), disk.clone(), 2 << 20).await.expect("a cache");
    let (key, data) =
        (CacheKey::new([7; 16], 1), Bytes::from_iter((0..300_000u32).map(|n| (n / 4096 * 3 + n) as u8)));
    cache.fill(key, 0, data.clone(), Admission::Demand);
    cache.close().await;
    use_ring_on_this_thread();
    for range in [0..1, 5000..9000, 65_000..66_000, 0..200_000, 0..300_000, 299_999..300_000] {
        let found = cache.get(key, range.clone()).await.expect("it is there");
        assert!(found[..] == data[range.start as usize..range.end as usize], "{range:?}");
    }
    let slab = disk.open("chunks").await.expect("the slab");
    slab.write_at(0, &vec![0x5a; slab.len() as usize]).await.expect("write");
    assert!(cache.get(key, 5000..9000).await.is_none());
    assert!(cache.get(key, 65_000..66_000).await.is_none());
    assert!(cache.get(key, 0..1).await.is_none(), "and the chunk is gone");
}
