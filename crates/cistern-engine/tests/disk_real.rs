//! The local disk as the engine sees it, on the real filesystem of the build directory and, for
//! the way without O_DIRECT, on a tmpfs where there is one.

use std::fs;

use cistern_engine::{
    Error,
    disk::{AlignedBuf, Disk, RealDisk},
};
use tempfile::TempDir;

const BLOCK: usize = 4096;

fn scratch() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory")
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 7) ^ (i * seed)) as u8).collect()
}

async fn round_trip(disk: &RealDisk) {
    let file = disk.create("data", 8 << 20).await.expect("create");
    assert_eq!(file.len(), 8 << 20);
    // Unaligned memory, longer than the bounce buffer.
    let odd = pattern((1 << 20) + 3 * BLOCK + 1, 3);
    file.write_at(BLOCK as u64, &odd[1..]).await.expect("write");
    // Several aligned parts at once, more than one system call takes.
    let mut aligned = AlignedBuf::zeroed(1500 * BLOCK);
    aligned.copy_from_slice(&pattern(1500 * BLOCK, 5));
    let parts: Vec<&[u8]> = aligned.chunks(BLOCK).collect();
    file.write_vectored_at(2 << 20, &parts).await.expect("vectored write");
    // And unaligned ones.
    file.write_vectored_at(0, &[&odd[1..1 + BLOCK]]).await.expect("vectored write of odd memory");
    file.sync().await.expect("sync");
    drop(file);

    let file = disk.open("data").await.expect("open");
    let mut out = vec![0; odd.len() - 1];
    file.read_at(BLOCK as u64, &mut out).await.expect("read");
    assert!(out == odd[1..]);
    let mut out = AlignedBuf::zeroed(aligned.len());
    file.read_at(2 << 20, &mut out).await.expect("read");
    assert!(out[..] == aligned[..]);
    let mut out = vec![1; BLOCK];
    file.read_at((8 << 20) - BLOCK as u64, &mut out).await.expect("read");
    assert!(out.iter().all(|&b| b == 0), "reserved space reads as zeroes");
}

/// What is written is read back, from memory of any alignment, in one or many parts.
#[tokio::test]
async fn reads_what_was_written() {
    let dir = scratch();
    round_trip(&RealDisk::open(dir.path()).expect("open")).await;
}

/// The same on a tmpfs: where O_DIRECT is missing, or emulated, nothing changes for the caller.
#[tokio::test]
async fn reads_what_was_written_on_tmpfs() {
    let dir = TempDir::new_in("/dev/shm").expect("a tmpfs at /dev/shm");
    round_trip(&RealDisk::open(dir.path()).expect("open")).await;
}

/// Requests that are not whole blocks inside the file are refused and change nothing.
#[tokio::test]
async fn refuses_what_is_not_whole_blocks_inside() {
    let dir = scratch();
    let disk = RealDisk::open(dir.path()).expect("open");
    let file = disk.create("data", BLOCK as u64).await.expect("create");
    let mut out = vec![0; 2 * BLOCK];
    assert!(matches!(file.read_at(0, &mut out).await, Err(Error::Invalid(_))));
    assert!(matches!(file.read_at(u64::MAX - 4095, &mut out).await, Err(Error::Invalid(_))));
    assert!(matches!(file.write_at(BLOCK as u64, &out[..BLOCK]).await, Err(Error::Invalid(_))));
    assert!(matches!(file.write_at(1, &out[..BLOCK]).await, Err(Error::Invalid(_))));
    assert!(matches!(file.write_at(0, &out[..100]).await, Err(Error::Invalid(_))));
    assert!(matches!(disk.create("odd", 5).await, Err(Error::Invalid(_))));
}

/// Names are plain: nothing can escape from the directory.
#[tokio::test]
async fn refuses_names_that_are_paths() {
    let dir = scratch();
    let disk = RealDisk::open(dir.path()).expect("open");
    for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "ü", &"x".repeat(200)] {
        assert!(matches!(disk.open(name).await, Err(Error::Invalid(_))), "{name:?}");
        assert!(matches!(disk.create(name, 0).await, Err(Error::Invalid(_))), "{name:?}");
        assert!(matches!(disk.lock(name), Err(Error::Invalid(_))), "{name:?}");
    }
}

/// A missing file, a missing directory and an existing file have errors of their own.
#[tokio::test]
async fn tells_missing_from_existing() {
    let dir = scratch();
    assert!(matches!(RealDisk::open(&dir.path().join("none")), Err(Error::NotFound(_))));
    let disk = RealDisk::create(&dir.path().join("a/b")).expect("create both");
    RealDisk::create(&dir.path().join("a/b")).expect("create again");
    assert!(matches!(disk.open("data").await, Err(Error::NotFound(_))));
    disk.create("data", 0).await.expect("create");
    assert!(matches!(disk.create("data", 0).await, Err(Error::Exists(_))));
    disk.rename("data", "other").await.expect("rename");
    disk.remove("data").await.expect("removing nothing is fine");
    disk.open("other").await.expect("open under the new name");
    disk.remove("other").await.expect("remove");
    assert!(matches!(disk.open("other").await, Err(Error::NotFound(_))));
}

/// A disk that cannot hold the file says so at creation, and leaves nothing behind.
#[tokio::test]
async fn a_file_larger_than_the_disk_is_refused_at_creation() {
    let dir = scratch();
    let disk = RealDisk::open(dir.path()).expect("open");
    let more_than_any_test_disk = 15 << 40;
    let refused = disk.create("data", more_than_any_test_disk).await;
    assert!(matches!(refused, Err(Error::Full(_))), "{:?}", refused.err());
    assert!(matches!(disk.open("data").await, Err(Error::NotFound(_))));
}

/// A lock has one holder, also inside one process, and is free once its guard is gone.
#[test]
fn a_lock_has_one_holder() {
    let dir = scratch();
    let disk = RealDisk::open(dir.path()).expect("open");
    let guard = disk.lock("lock").expect("lock");
    assert!(matches!(disk.lock("lock"), Err(Error::Locked(_))));
    assert!(matches!(RealDisk::open(dir.path()).expect("open").lock("lock"), Err(Error::Locked(_))));
    drop(guard);
    disk.lock("lock").expect("lock again");
}

/// Data of a file that was deleted under us would be lost: the next sync says so, and the file
/// stays stopped.
#[tokio::test]
async fn a_deleted_file_stops_at_the_next_sync() {
    let dir = scratch();
    let disk = RealDisk::open(dir.path()).expect("open");
    let file = disk.create("data", BLOCK as u64).await.expect("create");
    file.sync().await.expect("sync");
    fs::remove_file(dir.path().join("data")).expect("remove");
    assert!(matches!(file.sync().await, Err(Error::Io { .. })));
    assert!(file.sync().await.is_err());
    assert!(file.write_at(0, &[0; BLOCK]).await.is_err());
}
