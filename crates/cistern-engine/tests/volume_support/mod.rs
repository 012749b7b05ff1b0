//! What the tests of whole volumes share: a host with a disk of its own, one volume, and bytes to write.

#![allow(dead_code)] // each test binary uses a part

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cistern_engine::{
    Error,
    cache::ChunkCache,
    codec::{Compression, KeySource},
    disk::{Disk, RealDisk},
    env::Env,
    journal::Recoveries,
    log::{GRACE, own_store, read_identity_anywhere},
    price::Tariff,
    space::{Bound, SPACE_BOUND},
    store::{OtherPlaces, SharedStore, Stores},
    volume::{CreateOptions, Mode, OpenOptions, Piece, ReadOnlyOptions, Volume},
};

pub mod bucket;
pub mod narrow;
#[path = "../store_support/passing.rs"]
pub mod passing;
pub mod refusing;

pub const MIB: u64 = 1 << 20;

/// A host, and the volume that its store holds.
pub struct Host {
    pub env: Env,
    pub store: SharedStore,
    pub key: KeySource,
    /// Of other volumes, where there are any.
    pub others: Option<Arc<dyn OtherPlaces>>,
    directory: tempfile::TempDir,
}

impl Host {
    pub async fn with_volume(env: Env, store: SharedStore, size_bytes: u64, key: KeySource) -> Host {
        let options = CreateOptions { size_bytes, compression: Compression::Lz4, key: key.clone() };
        Volume::create(&env, &store, options).await.expect("created");
        Host::of_volume(env, store, key)
    }

    /// The same for a volume whose log has slots that are free as soon as nothing needs what is in them.
    pub async fn with_free_slots(env: Env, store: SharedStore, size_bytes: u64, key: KeySource) -> Host {
        let options = CreateOptions { size_bytes, compression: Compression::Lz4, key: key.clone() };
        Volume::create_with_slot_grace(&env, &store, options, Duration::ZERO).await.expect("created");
        Host::of_volume(env, store, key)
    }

    /// A host for a volume that is there.
    pub fn of_volume(env: Env, store: SharedStore, key: KeySource) -> Host {
        Host { env, store, key, others: None, directory: tempdir() }
    }

    pub fn stores(&self) -> Stores {
        let stores = Stores::same(self.store.clone());
        match &self.others {
            Some(others) => stores.with_others(others.clone()),
            None => stores,
        }
    }

    /// The volume's own objects.
    pub async fn own(&self) -> SharedStore {
        let identity = read_identity_anywhere(self.store.as_ref()).await.expect("an identity");
        own_store(&self.store, identity.volume)
    }

    /// Another host with an empty disk takes this one's place; gives the disk that was.
    pub fn replace_disk(&mut self) -> tempfile::TempDir {
        std::mem::replace(&mut self.directory, tempdir())
    }

    /// A host comes back with the disk it had.
    pub fn put_back(&mut self, disk: tempfile::TempDir) {
        self.directory = disk;
    }

    /// A directory of this host.
    pub fn disk(&self, name: &str) -> Arc<dyn Disk> {
        Arc::new(RealDisk::create(&self.directory.path().join(name)).expect("a directory"))
    }

    pub fn state(&self) -> Arc<dyn Disk> {
        self.disk("state")
    }

    /// A chunk cache with this name.
    pub async fn cache(&self, name: &str) -> Arc<ChunkCache> {
        ChunkCache::open(self.env.clone(), self.disk(name), 64 * MIB).await.expect("a cache")
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions {
            env: self.env.clone(),
            stores: self.stores(),
            state: self.state(),
            cache: None,
            key: self.key.clone(),
            mode: Mode::Writeback,
            journal_bytes: 128 * MIB,
            dirty_age_max: Duration::from_secs(3600),
            dirty_bytes_max: 128 * MIB,
            paused: false,
            memory_bytes: 128 * MIB,
            recoveries: Recoveries::new(1),
            host: "here".into(),
            take_over: false,
            grace: GRACE,
            grace_alone: GRACE,
            cleaning: Bound::Ratio(SPACE_BOUND).into(),
            tariff: Tariff::default(),
        }
    }

    pub async fn open(&self) -> Arc<Volume> {
        Volume::open(self.options()).await.expect("opened")
    }

    /// Opens it once whatever crashed has let go of it. Nothing stays for the sake of readers.
    pub async fn open_anew(&self) -> Arc<Volume> {
        loop {
            match Volume::open(OpenOptions { grace: Duration::ZERO, ..self.options() }).await {
                Err(cistern_engine::Error::Locked(_)) => tokio::task::yield_now().await, // the crash is not over
                opened => return opened.expect("opened"),
            }
        }
    }

    pub async fn open_with(&self, cache: Arc<ChunkCache>) -> Arc<Volume> {
        let options = OpenOptions { cache: Some(cache), ..self.options() };
        Volume::open(options).await.expect("opened")
    }

    pub async fn open_read_only(&self, cache: Option<Arc<ChunkCache>>) -> Arc<Volume> {
        let (env, key) = (self.env.clone(), self.key.clone());
        let stores = self.stores();
        let options = ReadOnlyOptions { env, stores, cache, key, memory_bytes: 128 * MIB, snapshot: None };
        Volume::open_read_only(options).await.expect("opened read-only")
    }
}

fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

pub async fn try_read(volume: &Volume, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    for piece in volume.read(offset, len).await? {
        match piece {
            Piece::Data(data) => out.extend_from_slice(&data),
            Piece::Zeroes(n) => out.resize(out.len() + n as usize, 0),
        }
    }
    Ok(out)
}

pub async fn read(volume: &Volume, offset: u64, len: u64) -> Vec<u8> {
    try_read(volume, offset, len).await.expect("read")
}

/// Bytes that do not compress and differ for every tag.
pub fn noise(tag: u64, len: usize) -> Bytes {
    let mut x = (tag + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Closes a volume, which must leave everything in the store.
pub async fn close(volume: Arc<Volume>) {
    let report = volume.close(Duration::from_secs(60)).await;
    assert!(report.clean, "{report:?}");
}

/// What a volume calls an object that has this key at its place.
pub fn own_name(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, own)| own)
}

/// Whether a key of a volume's place is below a prefix of the names of its own objects, or is that name.
pub fn is_own_below(prefix: &str, key: &str) -> bool {
    key == prefix || own_name(key).starts_with(prefix)
}
