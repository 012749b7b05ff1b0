//! Objects that are kept open: a read of one costs no look-up of its path, and where the calling thread
//! has a ring of its own ([`crate::uring`]) no second thread.
//!
//! Objects never change, so an open one reads as its name would, with two exceptions for which no
//! entry is older than [`KEPT_MAX`]: a file that was put in the place of a damaged one by hand, and a file system
//! that was mounted over this one.

use std::{
    fs::File,
    hash::{BuildHasherDefault, DefaultHasher},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use quick_cache::{UnitWeighter, sync::Cache};

use crate::{store::memory::clip, uring};

/// Objects kept open: the segments of a working set of 16 GiB.
const OPEN_MAX: usize = 1024;
/// How long one is used without looking at its name again.
const KEPT_MAX: Duration = Duration::from_secs(60);
/// The longest read in the calling thread: more is worth a thread that copies it.
const HERE_BYTES_MAX: u64 = 256 << 10;

/// An open object.
pub(super) struct OpenObject {
    pub file: Arc<File>,
    pub bytes: u64,
    pub since: Duration,
}

/// The open objects of one root.
pub(super) struct OpenObjects(
    Cache<String, Arc<OpenObject>, UnitWeighter, BuildHasherDefault<DefaultHasher>>,
);

impl OpenObjects {
    pub fn new() -> OpenObjects {
        let (weighter, hasher, lifecycle) = Default::default();
        OpenObjects(Cache::with(OPEN_MAX, OPEN_MAX as u64, weighter, hasher, lifecycle))
    }

    pub fn get(&self, key: &str, now: Duration) -> Option<Arc<OpenObject>> {
        self.0.get(key).filter(|open| now.saturating_sub(open.since) < KEPT_MAX)
    }

    pub fn keep(&self, key: &str, object: OpenObject) -> Arc<OpenObject> {
        let object = Arc::new(object);
        self.0.insert(key.to_owned(), object.clone());
        object
    }

    /// The next read looks at the name.
    pub fn forget(&self, key: &str) {
        self.0.remove(key);
    }
}

impl OpenObject {
    /// Reads in the calling thread; `None` where it cannot, or where something is in the way that another
    /// read will name.
    pub async fn read_here(&self, range: &Range<u64>) -> Option<Bytes> {
        let range = clip(range, self.bytes);
        let len = range.end - range.start;
        if len == 0 || len > HERE_BYTES_MAX {
            return None;
        }
        let (read, buf) = uring::start(&self.file, range.start, len as usize)?.await.ok()?;
        (read as u64 == len).then(|| Bytes::from_owner(buf))
    }
}
