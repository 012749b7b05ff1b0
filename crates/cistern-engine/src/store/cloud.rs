//! Objects in a cloud: S3 and compatible servers, Google Cloud Storage, Azure.
//!
//! Owns the requests' shape, their time limits and the sorting of answers by recourse. The
//! client library's own retries are off: [`super::Retry`] decides, by our clock. No type of the
//! library leaves this module.
//!
//! A request ends at the latest when its limit is over; what it was to write may still arrive
//! afterwards, as with every network.

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    client::{HttpError, HttpErrorKind},
    list::{PaginatedListOptions, PaginatedListStore},
    path::Path,
};

use super::{
    Listed, PagedNames, Put, Store, StoreError, StoreResult, Undeleted,
    key::{check_dir, check_key, check_prefix},
    memory::too_long,
};
use crate::env::Env;

mod answer;
mod client;
mod keys;
mod listing;
mod profile;
mod sort;
mod standstill;
mod variables;

use answer::{Answer, watched};
use keys::Doubt;
use listing::ListingWalk;
use sort::{Asked, Sorted};
use standstill::{Sent, Standstill};
pub use variables::Variables;

/// Time for a request besides the transfer of its body: name lookup, connection, credentials, a
/// busy server.
const LIMIT_BASE: Duration = Duration::from_secs(30);
/// The slowest link that is taken for alive, in bytes per second for all requests together.
const LINK_BYTES_PER_S: u64 = 64 << 10;
/// Keys of one page of a listing: what the clouds give at most.
const PAGE_KEYS_MAX: usize = 1000;
/// Objects that are asked for at least where the prefix is a character short: digits end our names.
const NEIGHBOURS: usize = 16;
/// Objects of one bulk delete: what S3 takes at most.
const BULK_KEYS_MAX: usize = 1000;
/// Names that one listing of directories may give.
const DIRS_MAX: usize = 100_000;
/// Bodies from this size on are sent from a thread that may be busy: signing hashes them, which
/// takes about a millisecond per MiB and must not hold up the requests beside it.
const HASH_INLINE_BYTES_MAX: u64 = 128 << 10;

/// What this module asks of a client library's store.
trait Library: ObjectStore + PaginatedListStore {}
impl<T: ObjectStore + PaginatedListStore> Library for T {}

/// A bucket, and the prefix in it that is the root of this store.
#[derive(Clone)]
pub struct CloudStore {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    library: Arc<dyn Library>,
    /// The same store, whose deletions go in bulk; where there are such.
    bulk: Option<Arc<dyn Library>>,
    /// Empty, or ends in `/`.
    root: String,
    /// The library leaves an object out of a listing whose name is the prefix itself: for Azure it takes it for a directory.
    loses_prefix: bool,
    /// Every refusal has a code: an emulator of Google's says with the status alone that an object is not there.
    has_codes: bool,
    url: String,
    /// Body bytes of all requests under way.
    in_flight: Arc<AtomicU64>,
    standstill: Standstill,
    /// Of the keys.
    doubt: Doubt,
    /// An answer named the version of an object.
    keeps_versions: AtomicBool,
}

/// Counts a request's bytes for as long as it lives.
struct InFlight(Arc<AtomicU64>, u64);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Relaxed);
    }
}

impl Inner {
    fn path(&self, key: &str) -> StoreResult<Path> {
        Path::parse(format!("{}{key}", self.root)).map_err(|e| StoreError::Refused(e.to_string()))
    }

    /// Runs one request within its limit. `bytes` is what its bodies may come to.
    async fn ask<T: Send + 'static>(
        &self,
        asked: Asked<'_>,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, Sorted> {
        self.ask_watched(asked, bytes, request).await.map(|(out, _)| out)
    }

    /// The same; gives what was seen beneath the library too.
    ///
    /// All of a request, from its signature to the last byte of its answer, is one task of the runtime to which the
    /// connections belong: whoever asked is woken once, and need not be of that runtime.
    async fn ask_watched<T: Send + 'static>(
        &self,
        asked: Asked<'_>,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<(T, Option<Answer>), Sorted> {
        let before = self.in_flight.fetch_add(bytes, Relaxed);
        let counted = InFlight(self.in_flight.clone(), bytes);
        let limit = LIMIT_BASE + Duration::from_secs(before.saturating_add(bytes) / LINK_BYTES_PER_S);
        let sent = self.standstill.sent();
        let env = self.env.clone();
        let exchange = async move {
            let _counted = counted;
            env.timeout(limit, watched(request)).await
        };
        let answered = match asked.what == "PUT" && bytes > HASH_INLINE_BYTES_MAX {
            true => self.env.blocking(exchange).await,
            false => self.env.beside("request", exchange).await,
        };
        match answered {
            Some((Ok(out), answer)) => match self.stood_still(&sent, answer.as_ref()) {
                None => Ok((out, answer)),
                Some(still) => Err(StoreError::Unreachable(format!(
                    "{asked}: this machine stood still for {} s, by the store's clock",
                    still.as_secs()
                ))
                .into()),
            },
            Some((Err(e), answer)) => {
                if let Some(Answer::Status { status: 400 | 401 | 403, .. }) = answer {
                    self.doubt.raise(self.env.now());
                }
                Err(sort::sort(asked, answer.map(|answer| answer.with_code(self.has_codes)), &e))
            }
            None => {
                Err(StoreError::Unreachable(format!("{asked}: no answer in {} s", limit.as_secs())).into())
            }
        }
    }

    fn stood_still(&self, sent: &Sent, answer: Option<&Answer>) -> Option<Duration> {
        self.standstill.answered(sent, answer?.date_s()?, self.env.now())
    }

    async fn put(&self, key: &str, body: Bytes, mode: PutMode) -> Result<(), Sorted> {
        check_key(key)?;
        let asked = Asked { what: "PUT", key, condition: mode == PutMode::Create };
        let (path, bytes) = (self.path(key)?, body.len() as u64);
        let options = PutOptions { mode, ..PutOptions::default() };
        let library = self.library.clone();
        let request = async move { library.put_opts(&path, PutPayload::from(body), options).await };
        let done = self.ask(asked, bytes, request).await?;
        self.note_version(done.version.as_deref());
        Ok(())
    }

    /// Begins a read and collects its body, which is at most `bytes_max` long.
    async fn read(&self, key: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Fetched, Sorted> {
        check_key(key)?;
        let path = self.path(key)?;
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let asked = Asked { what: "GET", key, condition: false };
        let library = self.library.clone();
        let request = async move {
            let found = library.get_opts(&path, options).await?;
            let meta = found.meta.clone();
            Ok((meta, collect(found, bytes_max).await?))
        };
        let (meta, body) = self.ask(asked, bytes_max, request).await?;
        self.note_version(meta.version.as_deref());
        let body = body.map_err(|bytes| too_long(key, bytes, bytes_max))?;
        Ok(Fetched { body, object_bytes: meta.size })
    }

    /// A bucket whose versioning is suspended calls all versions `null`, and on GCS every object has a generation.
    fn note_version(&self, version: Option<&str>) {
        if version.is_some_and(|version| version != "null") && self.url.starts_with("s3://") {
            self.keeps_versions.store(true, Relaxed);
        }
    }

    /// Deletes in bulk.
    async fn delete_many(&self, bulk: &Arc<dyn Library>, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        assert!(keys.len() <= BULK_KEYS_MAX, "one request, whose answer is looked at");
        keys.iter().try_for_each(|key| check_key(key))?;
        let paths = keys.iter().map(|key| self.path(key)).collect::<StoreResult<Vec<_>>>()?;
        let bytes = paths.iter().map(|path| path.as_ref().len() as u64).sum();
        let bulk = bulk.clone();
        let request = async move {
            let mut done = bulk.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
            while done.try_next().await?.is_some() {}
            Ok(())
        };
        let asked = Asked { what: "POST", key: "?delete", condition: false };
        let ((), answer) =
            self.ask_watched(asked, bytes, request).await.map_err(|sorted| match sorted.into() {
                StoreError::NotFound(_) => StoreError::Refused(format!("{asked}: 404")),
                other => other,
            })?;
        match answer {
            Some(Answer::Deletion { deleted, faults, .. }) => {
                sort::undeleted(asked, keys, &self.root, &deleted, faults)
            }
            _ => Err(StoreError::Refused(format!("{asked}: not the answer to a deletion"))),
        }
    }

    /// Lists objects in pages of at most `page_keys`.
    async fn list_after(
        &self,
        prefix: &str,
        after: &str,
        count_max: usize,
        page_keys: usize,
    ) -> StoreResult<Vec<Listed>> {
        check_prefix(prefix)?;
        let mut walk = ListingWalk::new((!after.is_empty()).then(|| format!("{}{after}", self.root)));
        let is_shortened = self.loses_prefix && !prefix.is_empty() && !prefix.ends_with('/');
        let (asked, keys_min) = match is_shortened {
            true => (&prefix[..prefix.len() - 1], NEIGHBOURS),
            false => (prefix, 1),
        };
        let page_keys = page_keys.clamp(keys_min, PAGE_KEYS_MAX);
        let mut found: Vec<Listed> = Vec::new();
        while found.len() < count_max {
            let max_keys = Some((count_max - found.len()).clamp(keys_min, page_keys));
            let options = PaginatedListOptions { max_keys, ..walk.options() };
            let begin = walk.begins_behind().and_then(|begin| begin.strip_prefix(&self.root));
            let begin = begin.unwrap_or(after).to_owned();
            let page = self.page(asked, &mut walk, options).await?;
            for object in page.objects {
                // Some servers ignore start-after, and directory markers are no objects of ours.
                if object.key > begin && object.key.starts_with(prefix) && check_key(&object.key).is_ok() {
                    push_ascending(&mut found, object)?;
                }
            }
            if !page.goes_on {
                break;
            }
        }
        found.truncate(count_max);
        Ok(found)
    }

    /// Lists directories, in pages of the size that the store chooses or of at most `page_names`.
    async fn list_dirs(&self, prefix: &str, page_names: Option<usize>) -> StoreResult<Vec<String>> {
        check_dir(prefix)?;
        let (mut names, mut walk) = (Vec::new(), ListingWalk::new(None));
        loop {
            let options =
                PaginatedListOptions { delimiter: Some("/".into()), max_keys: page_names, ..walk.options() };
            let page = self.page(prefix, &mut walk, options).await?;
            names.extend(page.dirs.iter().filter_map(|dir| dir.strip_prefix(prefix).map(str::to_owned)));
            if names.len() > DIRS_MAX {
                return Err(StoreError::Refused(format!("more than {DIRS_MAX} directories in {prefix:?}")));
            }
            if !page.goes_on {
                break;
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The next page of a walk, which goes on behind it.
    async fn page(
        &self,
        prefix: &str,
        walk: &mut ListingWalk,
        options: PaginatedListOptions,
    ) -> StoreResult<Page> {
        let full = format!("{}{prefix}", self.root);
        let asked = Asked { what: "LIST", key: prefix, condition: false };
        let library = self.library.clone();
        let request = async move {
            let prefix = (!full.is_empty()).then_some(full.as_str());
            library.list_paginated(prefix, options).await
        };
        let (page, answer) = self.ask_watched(asked, 0, request).await?;
        let Some(Answer::Page { end, .. }) = answer else {
            return Err(StoreError::Refused(format!("{asked}: not the answer to a listing")));
        };
        let strip = |path: &Path| path.as_ref().strip_prefix(&self.root).map(str::to_owned);
        let objects = page.result.objects.iter();
        let objects: Vec<Listed> =
            objects.filter_map(|o| Some(Listed { key: strip(&o.location)?, bytes: o.size })).collect();
        let dirs: Vec<String> = page.result.common_prefixes.iter().filter_map(strip).collect();
        // Behind a directory comes the next name behind all that lies in it.
        let names = objects.iter().map(|o| o.key.clone()).chain(dirs.iter().map(|dir| format!("{dir}0")));
        let last = names.max().map(|last| format!("{}{last}", self.root));
        let goes_on = walk.goes_on(asked, last, page.page_token, end)?;
        Ok(Page { objects, dirs, goes_on })
    }
}

/// A part of an object, and the length of the whole.
struct Fetched {
    body: Bytes,
    object_bytes: u64,
}

/// One page of a listing, with keys relative to the root.
struct Page {
    objects: Vec<Listed>,
    dirs: Vec<String>,
    goes_on: bool,
}

/// The body of an object (which has an ETag, unlike a page of something in between), or the length that is more than `bytes_max`.
async fn collect(got: GetResult, bytes_max: u64) -> object_store::Result<Result<Bytes, u64>> {
    if got.meta.e_tag.is_none() {
        return Err(generic(io::Error::other("no ETag")));
    }
    let announced = got.range.end.saturating_sub(got.range.start);
    if announced > bytes_max {
        return Ok(Err(announced));
    }
    let mut stream = got.into_stream();
    let mut out = BytesMut::with_capacity(announced as usize);
    while let Some(part) = stream.next().await {
        out.extend_from_slice(&part?);
        if out.len() as u64 > announced {
            return Ok(Err(out.len() as u64));
        }
    }
    match out.len() as u64 == announced {
        true => Ok(Ok(out.freeze())),
        false => Err(broken_off()),
    }
}

/// A body that ended before its announced length without the connection noticing.
fn broken_off() -> object_store::Error {
    generic(HttpError::new(HttpErrorKind::Interrupted, io::Error::from(io::ErrorKind::UnexpectedEof)))
}

fn generic(source: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic { store: "body", source: Box::new(source) }
}

#[async_trait]
impl Store for CloudStore {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        Ok(self.inner.put(key, body, PutMode::Overwrite).await?)
    }

    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        match self.inner.put(key, body, PutMode::Create).await {
            Ok(()) => Ok(Put::Created),
            Err(Sorted::Exists) => Ok(Put::Exists),
            Err(other) => Err(other.into()),
        }
    }

    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        Ok(self.inner.read(key, None, bytes_max).await?.body)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let len = range.end - range.start;
        match self.inner.read(key, Some(range), len).await {
            Err(Sorted::BeyondEnd) => Ok(Bytes::new()),
            done => Ok(done?.body),
        }
    }

    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        // The answer to a read of the first byte tells the length. Why a HEAD is refused, a store cannot say.
        match self.inner.read(key, Some(0..1), 1).await {
            Err(Sorted::BeyondEnd) => Ok(Some(0)),
            done => match done.map_err(StoreError::from) {
                Ok(found) => Ok(Some(found.object_bytes)),
                Err(StoreError::NotFound(_)) => Ok(None),
                Err(e) => Err(e),
            },
        }
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.inner.list_after(prefix, after, count_max, PAGE_KEYS_MAX).await
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.inner.list_dirs(prefix, None).await
    }

    async fn list_in_pages(
        &self,
        prefix: &str,
        what: PagedNames,
        page_names: usize,
    ) -> StoreResult<Vec<String>> {
        match what {
            PagedNames::Objects => {
                let listed = self.inner.list_after(prefix, "", PAGE_KEYS_MAX, page_names).await?;
                Ok(listed.into_iter().map(|listed| listed.key).collect())
            }
            PagedNames::Directories => self.inner.list_dirs(prefix, Some(page_names)).await,
        }
    }

    async fn delete(&self, key: &str) -> StoreResult<()> {
        check_key(key)?;
        let path = self.inner.path(key)?;
        let asked = Asked { what: "DELETE", key, condition: false };
        let library = self.inner.library.clone();
        let request = async move { library.delete(&path).await };
        match self.inner.ask(asked, 0, request).await.map_err(StoreError::from) {
            Err(StoreError::NotFound(_)) => Ok(()),
            done => done,
        }
    }

    fn deletes_at_once(&self) -> usize {
        self.inner.bulk.as_ref().map_or(1, |_| BULK_KEYS_MAX)
    }

    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        let Some(bulk) = &self.inner.bulk else {
            let done = stream::iter(keys).then(|key| async move {
                self.delete(key).await.err().map(|why| Undeleted { key: key.clone(), why })
            });
            return Ok(done.filter_map(std::future::ready).collect().await);
        };
        self.inner.delete_many(bulk, keys).await
    }

    fn keeps_versions(&self) -> bool {
        self.inner.keeps_versions.load(Relaxed)
    }
    fn url(&self) -> String {
        self.inner.url.clone()
    }
}

/// Adds to a listing whose order everything above relies on.
fn push_ascending(found: &mut Vec<Listed>, object: Listed) -> StoreResult<()> {
    if found.last().is_some_and(|last| last.key >= object.key) {
        return Err(StoreError::Refused(format!(
            "the store lists {} behind {}: a store must list names in ascending order \
             (directory buckets of S3 Express do not)",
            object.key,
            found.last().map_or("", |last| last.key.as_str())
        )));
    }
    found.push(object);
    Ok(())
}

impl fmt::Debug for CloudStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CloudStore").field(&self.inner.url).finish()
    }
}
