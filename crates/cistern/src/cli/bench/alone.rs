//! What the local disk and the store do by themselves, asked as the journal and write-back ask them.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cistern_engine::{
    disk::AlignedBuf,
    stats::Latencies,
    store::{LIST_MAX, SharedStore, delete_all},
};

use super::load::{LoadBounds, LoadOrder, LoadRequest, LoadResult, LoadShape, run_load};
use crate::{
    cli::local_disk::UnnamedFile,
    failure::{Failure, Kind, Outcome},
};

/// Bytes of a full segment, about.
pub const SEGMENT_BYTES: u64 = 16 << 20;
/// Bytes of the file that is written, again and again.
const FILE_BYTES: u64 = 64 << 20;
/// Small objects at most: each is a request that is paid for, and the median of fewer is as good.
const SMALL_OBJECTS_MAX: u64 = 200;

/// A file in the state directory.
pub struct DiskAlone {
    file: Arc<UnnamedFile>,
    data: Arc<AlignedBuf>,
}

impl DiskAlone {
    /// Makes it. Blocks for as long as it takes to write 64 MiB.
    pub async fn make(directory: &Path, name: String, random: Bytes) -> Outcome<DiskAlone> {
        let at = directory.to_owned();
        let made = tokio::task::spawn_blocking(move || UnnamedFile::make(&at, &name, FILE_BYTES)).await;
        let made = made.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        let what = || format!("cannot measure the disk of the state directory {}", directory.display());
        let file = made.map_err(|e| Failure::io(what(), &e))?;
        let mut data = AlignedBuf::zeroed(random.len());
        data.copy_from_slice(&random);
        Ok(DiskAlone { file: Arc::new(file), data: Arc::new(data) })
    }

    /// Writes one behind the other, with a sync behind so many bytes, in which the last of them has its time.
    pub async fn write(
        &self,
        request_bytes: u64,
        sync_bytes: u64,
        bounds: LoadBounds,
    ) -> Outcome<LoadResult> {
        let (file, data) = (self.file.clone(), self.data.clone());
        let written = move || write(&file, &data[..request_bytes as usize], sync_bytes, bounds);
        let written = tokio::task::spawn_blocking(written).await;
        let written = written.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        written.map_err(|e| Failure::io("cannot write to the disk of the state directory", &e))
    }
}

fn write(
    file: &UnnamedFile,
    data: &[u8],
    sync_bytes: u64,
    bounds: LoadBounds,
) -> std::io::Result<LoadResult> {
    let (latencies, begin, len) = (Latencies::default(), Instant::now(), data.len() as u64);
    let (mut requests, mut unsynced) = (0, 0);
    let requests_max = (bounds.bytes / len).max(1);
    loop {
        let is_last = requests + 1 >= requests_max || begin.elapsed() >= bounds.time;
        let begun = Instant::now();
        file.write(LoadOrder::Sequential.offset(requests, len, file.bytes()), data)?;
        (requests, unsynced) = (requests + 1, unsynced + len);
        if unsynced >= sync_bytes || is_last {
            file.sync()?;
            unsynced = 0;
        }
        latencies.record(begun.elapsed());
        if is_last {
            let (time, latency) = (begin.elapsed(), latencies.snapshot());
            return Ok(LoadResult { requests, bytes: requests * len, time, latency });
        }
    }
}

/// Objects of the store.
pub struct StoreAlone {
    store: SharedStore,
    /// Those that can be read, with their sizes.
    objects: Arc<Vec<(String, u64)>>,
}

impl StoreAlone {
    /// Puts objects of the size of a segment, and small ones one at a time: a commit of little takes as long. They lie below a prefix, and the large ones
    /// stay for reading.
    pub async fn put(
        store: &SharedStore,
        prefix: &str,
        bounds: LoadBounds,
        depth: u32,
        body: Bytes,
    ) -> Outcome<(StoreAlone, LoadResult, LoadResult)> {
        let put = |name: &'static str, body: Bytes| {
            let (store, prefix) = (store.clone(), prefix.to_owned());
            move |LoadRequest { number, .. }: LoadRequest| {
                let (store, key, body) = (store.clone(), key(&prefix, name, number), body.clone());
                async move { Ok(store.put_if_absent(&key, body).await.map(drop)?) }
            }
        };
        let small_bytes = 4096;
        let shape = LoadShape { depth: 1, request_bytes: small_bytes };
        let few = LoadBounds { bytes: bounds.bytes.min(SMALL_OBJECTS_MAX * small_bytes), ..bounds };
        let small = run_load(shape, few, put("small", body.slice(..small_bytes as usize))).await?;
        let keys: Vec<String> = (0..small.requests).map(|n| key(prefix, "small", n)).collect();
        delete_all(store.as_ref(), &keys).await; // what stays goes with the rest
        let shape = LoadShape { depth, request_bytes: SEGMENT_BYTES };
        let large = run_load(shape, bounds, put("large", body)).await?;
        let objects = (0..large.requests).map(|n| (key(prefix, "large", n), SEGMENT_BYTES)).collect();
        Ok((StoreAlone { store: store.clone(), objects: Arc::new(objects) }, small, large))
    }

    /// Objects that are there, of at least so many bytes; `None` if there is none of them.
    pub async fn find(store: &SharedStore, bytes_min: u64) -> Outcome<Option<StoreAlone>> {
        let listed = store.list_after("", "", LIST_MAX).await?;
        let large = listed.into_iter().filter(|listed| listed.bytes >= bytes_min);
        let objects: Vec<(String, u64)> = large.map(|listed| (listed.key, listed.bytes)).collect();
        let found = StoreAlone { store: store.clone(), objects: Arc::new(objects) };
        Ok(Some(found).filter(|found| !found.objects.is_empty()))
    }

    /// Reads ranges of the objects, in some order.
    pub async fn get(&self, shape: LoadShape, order: LoadOrder, bounds: LoadBounds) -> Outcome<LoadResult> {
        let (store, objects) = (self.store.clone(), self.objects.clone());
        let len = shape.request_bytes;
        let all: u64 = objects.iter().map(|(_, bytes)| bytes / len).sum();
        run_load(shape, bounds, move |request| {
            let (store, objects) = (store.clone(), objects.clone());
            let mut place = order.offset(request.number, 1, all);
            async move {
                for (key, bytes) in objects.iter() {
                    let places = bytes / len;
                    if place < places {
                        let got = store.get_range(key, place * len..(place + 1) * len).await?;
                        return match got.len() as u64 == len {
                            true => Ok(()),
                            false => Err(Failure::new(Kind::Store, format!("{key} is shorter than it was"))),
                        };
                    }
                    place -= places;
                }
                Ok(())
            }
        })
        .await
    }
}

fn key(prefix: &str, name: &str, number: u64) -> String {
    format!("{prefix}{name}/{number}")
}

/// How long a sync of the disk takes, behind a write of 4 KiB: half of them at most so long. Writes for at most the time.
pub async fn sync_time(directory: &Path, name: String, time: Duration) -> Outcome<Duration> {
    let disk = DiskAlone::make(directory, name, Bytes::from(vec![1; 4096])).await?;
    let result = disk.write(4096, 4096, LoadBounds { time, bytes: u64::MAX }).await?;
    Ok(Duration::from_micros(result.latency.p50_us.unwrap_or(0)))
}
