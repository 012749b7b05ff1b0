//! The chunk cache after restarts and crashes: what it had, or nothing, but never other bytes.
//!
//! The disk is one in memory that remembers every write, so that a crash can happen at each of them.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    cache::{Admission, CHUNK_BYTES, CacheKey, ChunkCache, PIECE_BYTES},
    disk::{Disk, DiskFile},
    env::Env,
};

mod store_support;

use store_support::real_env;

const MIB: u64 = 1 << 20;
/// What survives of a write that a crash interrupts is a number of such units.
const SECTOR_BYTES: usize = 512;

type Contents = BTreeMap<String, Vec<u8>>;

#[derive(Clone)]
struct Write {
    file: String,
    offset: usize,
    data: Vec<u8>,
}

#[derive(Default)]
struct Inner {
    files: Contents,
    writes: Vec<Write>,
}

/// A directory in memory; clones are the same one.
#[derive(Clone, Default)]
struct LogDisk(Arc<Mutex<Inner>>);

struct LogFile {
    disk: LogDisk,
    name: String,
}

impl LogDisk {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().expect("not poisoned"))
    }

    fn of(files: Contents) -> LogDisk {
        LogDisk(Arc::new(Mutex::new(Inner { files, writes: Vec::new() })))
    }

    fn file(&self, name: &str) -> Arc<dyn DiskFile> {
        Arc::new(LogFile { disk: self.clone(), name: name.to_owned() })
    }
}

#[async_trait]
impl DiskFile for LogFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let write = Write { file: self.name.clone(), offset: offset as usize, data: data.to_vec() };
        self.disk.with(|disk| {
            apply(&mut disk.files, &write, write.data.len());
            disk.writes.push(write);
        });
        Ok(())
    }
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.disk.with(|disk| {
            let bytes = disk.files[&self.name].get(offset as usize..offset as usize + out.len());
            let gone = || Error::Io { what: self.name.clone(), cause: "it is cut off".to_owned() };
            bytes.map(|bytes| out.copy_from_slice(bytes)).ok_or_else(gone)
        })
    }
    async fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.disk.with(|disk| disk.files[&self.name].len() as u64)
    }
    fn is_direct(&self) -> bool {
        false
    }
}

#[async_trait]
impl Disk for LogDisk {
    async fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        match self.with(|disk| disk.files.contains_key(name)) {
            true => Ok(self.file(name)),
            false => Err(Error::NotFound(name.to_owned())),
        }
    }
    async fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        self.with(|disk| disk.files.insert(name.to_owned(), vec![0; bytes as usize]));
        Ok(self.file(name))
    }
    async fn rename(&self, _from: &str, _to: &str) -> Result<()> {
        unreachable!("the cache renames nothing")
    }
    async fn names(&self, _beginning: &str) -> Result<Vec<String>> {
        unreachable!("the cache looks for no names")
    }
    async fn remove(&self, name: &str) -> Result<()> {
        self.with(|disk| disk.files.remove(name));
        Ok(())
    }
    fn lock(&self, _name: &str) -> Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }
    fn describe(&self) -> String {
        "test".to_owned()
    }
}

/// Applies the first `bytes` bytes of a write.
fn apply(files: &mut Contents, write: &Write, bytes: usize) {
    let file = files.get_mut(&write.file).expect("files that are written exist");
    file[write.offset..write.offset + bytes].copy_from_slice(&write.data[..bytes]);
}

fn key(number: u64) -> CacheKey {
    CacheKey::new([9; 16], number)
}

/// The bytes that object `number` has at a range, for ever.
fn content(number: u64, range: Range<u64>) -> Bytes {
    range.map(|at| (at / 4096 * 31 + at * 7 + number * 101 + (at >> 9)) as u8).collect::<Vec<u8>>().into()
}

async fn open(env: &Env, disk: &LogDisk, bytes: u64) -> Arc<ChunkCache> {
    ChunkCache::open(env.clone(), Arc::new(disk.clone()), bytes).await.expect("a cache")
}

async fn fill(cache: &ChunkCache, objects: Range<u64>, admission: Admission) {
    for object in objects {
        let end = CHUNK_BYTES as u64 - object % 3 * 5000;
        cache.fill(key(object), 0, content(object, 0..end), admission);
        cache.get(key(object), 0..100).await;
    }
}

/// The pieces of the first chunk of the objects that are here. Each has the right bytes.
async fn pieces_here(cache: &ChunkCache, objects: Range<u64>) -> usize {
    let mut here = 0;
    for object in objects {
        for piece in 0..(CHUNK_BYTES / PIECE_BYTES) as u64 {
            let range = piece * 4096..piece * 4096 + 1000;
            if let Some(bytes) = cache.get(key(object), range.clone()).await {
                assert!(bytes == content(object, range), "wrong bytes of object {object}, piece {piece}");
                here += 1;
            }
        }
    }
    here
}

/// What a closed cache had it has again when it is opened, and still knows what is hot.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_everything() {
    let (env, disk) = (real_env(), LogDisk::default());
    let cache = open(&env, &disk, 4 * MIB).await;
    fill(&cache, 0..20, Admission::Demand).await;
    fill(&cache, 20..40, Admission::Written).await;
    cache.close().await;
    let (before, hot) = (pieces_here(&cache, 0..40).await, cache.hot(4 * MIB));
    let last = disk.with(|disk| disk.files["chunks.index"].clone());
    drop(cache);
    let cache = open(&env, &disk, 4 * MIB).await;
    assert_eq!(disk.with(|disk| disk.files["chunks.index"].clone()), last, "opening writes nothing");
    let again = cache.hot(4 * MIB);
    assert!(again.len() >= 20 && again.len() <= hot.len());
    assert_eq!(pieces_here(&cache, 0..40).await, before);
    let stats = cache.stats();
    assert_eq!((stats.chunks_used, stats.faults, stats.stale), (40, 0, 0));
}

/// A crash at any write, whatever later writes survived it, and whatever was torn: the bytes that come back
/// are the objects'. Nothing of it counts as a fault of the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_gives_no_wrong_bytes() {
    let (env, disk) = (real_env(), LogDisk::default());
    let cache = open(&env, &disk, MIB).await;
    fill(&cache, 0..16, Admission::Demand).await;
    cache.close().await;
    drop(cache);
    let begin = disk.with(|disk| {
        disk.writes.clear();
        disk.files.clone()
    });
    let cache = open(&env, &disk, MIB).await;
    fill(&cache, 16..40, Admission::Demand).await;
    fill(&cache, 40..60, Admission::Written).await;
    cache.close().await;
    drop(cache);
    let writes = disk.with(|disk| disk.writes.clone());
    assert!(writes.iter().any(|write| write.file == "chunks.index"));
    let (mut here, mut stale) = (0, 0);
    for crash in 0..=writes.len() {
        for pattern in 0..4 {
            let mut files = begin.clone();
            for (n, write) in writes.iter().enumerate() {
                // Before the crash all writes survive, or (nothing is synced) every second or third of
                // them is lost; at the crash a part of one does.
                let lost = pattern > 1 && n % pattern == 0;
                match n.cmp(&crash) {
                    std::cmp::Ordering::Less if !lost => apply(&mut files, write, write.data.len()),
                    std::cmp::Ordering::Equal if pattern % 2 == 1 => {
                        let sectors = write.data.len() / SECTOR_BYTES;
                        apply(&mut files, write, (crash % sectors + 1) * SECTOR_BYTES);
                    }
                    _ => {}
                }
            }
            let cache = open(&env, &LogDisk::of(files), MIB).await;
            here += pieces_here(&cache, 0..60).await;
            let stats = cache.stats();
            assert_eq!((stats.faults, stats.off), (0, false), "crash at write {crash}");
            stale += stats.stale;
        }
    }
    assert!(here > 0 && stale > 0, "{here} pieces survived, {stale} chunks were stale");
}

/// An index that is damaged, foreign, of another version, cut off, gone, or of a cache of another size
/// leads to an empty cache that works.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_fit_is_not_used() {
    let (env, disk) = (real_env(), LogDisk::default());
    let cache = open(&env, &disk, MIB).await;
    fill(&cache, 0..15, Admission::Demand).await;
    cache.close().await;
    drop(cache);
    let sound = disk.with(|disk| disk.files.clone());
    type Damage = fn(&mut Contents);
    let damages: [(&str, Damage); 6] = [
        ("magic", |files| files.get_mut("chunks.index").expect("there")[0] ^= 1),
        ("version", |files| files.get_mut("chunks.index").expect("there")[8] += 1),
        ("header", |files| files.get_mut("chunks.index").expect("there")[100] ^= 1),
        ("page", |files| files.get_mut("chunks.index").expect("there")[5000] ^= 1),
        ("cut off", |files| files.get_mut("chunks.index").expect("there").truncate(4096)),
        ("gone", |files| _ = files.remove("chunks.index")),
    ];
    for (name, damage) in damages {
        let mut files = sound.clone();
        damage(&mut files);
        works_from_empty(&env, &LogDisk::of(files), MIB, name).await;
    }
    works_from_empty(&env, &LogDisk::of(sound.clone()), 2 * MIB, "another size").await;
    let mut other = sound.clone();
    let theirs = LogDisk::default();
    drop(open(&env, &theirs, MIB).await);
    let index = theirs.with(|disk| disk.files["chunks.index"].clone());
    other.insert("chunks.index".to_owned(), index);
    works_from_empty(&env, &LogDisk::of(other), MIB, "another cache's").await;
}

async fn works_from_empty(env: &Env, disk: &LogDisk, bytes: u64, name: &str) {
    let cache = open(env, disk, bytes).await;
    assert_eq!(cache.stats().chunks_used, 0, "{name}");
    assert_eq!(pieces_here(&cache, 0..15).await, 0, "{name}");
    fill(&cache, 0..10, Admission::Demand).await;
    cache.close().await;
    drop(cache);
    let cache = open(env, disk, bytes).await;
    assert!(pieces_here(&cache, 0..10).await >= 140, "{name}");
}

/// A slab that was exchanged behind the index gives misses, no faults, and is filled anew.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchanged_slab_is_misses() {
    let (env, disk) = (real_env(), LogDisk::default());
    let cache = open(&env, &disk, MIB).await;
    fill(&cache, 0..15, Admission::Demand).await;
    cache.close().await;
    drop(cache);
    disk.with(|disk| disk.files.get_mut("chunks").expect("there").fill(0x55));
    let cache = open(&env, &disk, MIB).await;
    assert_eq!(pieces_here(&cache, 0..15).await, 0);
    let stats = cache.stats();
    assert_eq!((stats.stale, stats.faults, stats.chunks_used), (15, 0, 0));
    fill(&cache, 0..5, Admission::Demand).await;
    assert!(pieces_here(&cache, 0..5).await > 70);
}
