//! A store whose requests wait for their turn.
//!
//! Never changes a request but in one way: a ranged read for which nobody waits may be done in
//! pieces, so that a read that somebody waits for gets in between. Objects are immutable, so the
//! pieces fit together.

use std::{fmt, future::Future, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

use super::{Direction, Outcome, Permit, Priority, Scheduler, StoreUse, Wish};
use crate::store::{DiskRoom, Listed, Put, SharedStore, Store, StoreError, StoreResult, Undeleted};

/// Time for one try besides the transfer of what is under way. What a client waits for is
/// bounded by its [`crate::store::Retry`], whose patience includes the time it waits here.
const TRY_LIMIT: Duration = Duration::from_secs(60);
/// The slowest link that is taken for alive, for all requests of a direction together.
const LINK_BYTES_PER_S: u64 = 64 << 10;

/// One store for one class of requests.
pub(super) struct Scheduled {
    inner: SharedStore,
    scheduler: Arc<Scheduler>,
    place: usize,
    class: Priority,
    used: StoreUse,
}

/// Body bytes of an answer, and whether its latency says what the store bears.
type Size = (u64, bool);

impl Scheduled {
    pub(super) fn new(
        inner: SharedStore,
        scheduler: Arc<Scheduler>,
        place: usize,
        class: Priority,
        used: StoreUse,
    ) -> Scheduled {
        Scheduled { inner, scheduler, place, class, used }
    }

    /// Whether a read that is refused counts as an absence of the store: then one at a time finds out whether that has passed.
    fn rides_out(&self) -> bool {
        self.class == Priority::Read && self.used.ride_out.is_on()
    }

    async fn admit(&self, direction: Direction, bytes: u64, divisible: bool) -> StoreResult<Permit> {
        let wish = Wish { class: self.class, direction, bytes, divisible };
        self.scheduler.admit(self.place, wish).await
    }

    /// Does an admitted request and says how it went.
    async fn run<T>(
        &self,
        permit: Permit,
        request: impl Future<Output = StoreResult<T>>,
        size: impl FnOnce(&T) -> Size,
    ) -> StoreResult<T> {
        let answer = match self.scheduler.serves_client(self.class) {
            true => request.await,
            false => {
                let transfer = Duration::from_secs(permit.slot().bytes_before / LINK_BYTES_PER_S);
                let limit = TRY_LIMIT + transfer;
                let silence = || Err(StoreError::Unreachable(format!("no answer in {} s", limit.as_secs())));
                self.scheduler.env.timeout(limit, request).await.unwrap_or_else(silence)
            }
        };
        permit.end(match &answer {
            Ok(done) => {
                let (bytes, measured) = size(done);
                Outcome::Answered { bytes, measured }
            }
            Err(_) if self.used.is_beside => Outcome::Dropped,
            Err(StoreError::Unreachable(why)) => Outcome::Unreachable(why.clone()),
            Err(StoreError::Refused(why)) if self.rides_out() => Outcome::Unreachable(why.clone()),
            Err(_) => Outcome::Answered { bytes: 0, measured: false },
        });
        answer
    }

    /// A request with hardly any body, such as a listing.
    async fn small<T>(&self, request: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
        let permit = self.admit(Direction::Down, 0, false).await?;
        self.run(permit, request, |_| (0, false)).await
    }

    /// One piece of a range, as long as the permit allows, and where it ends.
    async fn piece(&self, key: &str, range: &Range<u64>, divisible: bool) -> StoreResult<(Bytes, u64)> {
        let permit = self.admit(Direction::Down, range.end - range.start, divisible).await?;
        let end = range.start + permit.slot().bytes;
        let request = self.inner.get_range(key, range.start..end);
        let bytes = self.run(permit, request, |bytes| (bytes.len() as u64, true)).await?;
        Ok((bytes, end))
    }
}

#[async_trait]
impl Store for Scheduled {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        let bytes = body.len() as u64;
        let permit = self.admit(Direction::Up, bytes, false).await?;
        self.run(permit, self.inner.put(key, body), |()| (bytes, true)).await
    }

    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        let bytes = body.len() as u64;
        let permit = self.admit(Direction::Up, bytes, false).await?;
        // A refusal may come before the body was sent: its latency says nothing.
        self.run(permit, self.inner.put_if_absent(key, body), |put| (bytes, *put == Put::Created)).await
    }

    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        let permit = self.admit(Direction::Down, 0, false).await?;
        self.run(permit, self.inner.get(key, bytes_max), |bytes| (bytes.len() as u64, true)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        if range.is_empty() {
            return self.inner.get_range(key, range).await;
        }
        let divisible = self.class >= Priority::Ahead;
        let (first, end) = self.piece(key, &range, divisible).await?;
        if end == range.end || range.start + (first.len() as u64) < end {
            return Ok(first); // all of it, or all there is
        }
        let mut out = BytesMut::with_capacity((range.end - range.start) as usize);
        out.extend_from_slice(&first);
        let mut at = end;
        while at < range.end {
            let (bytes, end) = self.piece(key, &(at..range.end), divisible).await?;
            out.extend_from_slice(&bytes);
            if at + (bytes.len() as u64) < end {
                break; // the object ends here
            }
            at = end;
        }
        Ok(out.freeze())
    }

    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        self.small(self.inner.size(key)).await
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        self.small(self.inner.list_after(prefix, after, count_max)).await
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        self.small(self.inner.list_dirs(prefix)).await
    }

    async fn delete(&self, key: &str) -> StoreResult<()> {
        self.small(self.inner.delete(key)).await
    }

    fn deletes_at_once(&self) -> usize {
        self.inner.deletes_at_once()
    }

    async fn delete_many(&self, keys: &[String]) -> StoreResult<Vec<Undeleted>> {
        self.small(self.inner.delete_many(keys)).await
    }

    async fn room(&self) -> StoreResult<Option<DiskRoom>> {
        self.inner.room().await
    }

    fn keeps_versions(&self) -> bool {
        self.inner.keeps_versions()
    }

    fn url(&self) -> String {
        self.inner.url()
    }
}

impl fmt::Debug for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduled").field("inner", &self.inner).field("class", &self.class).finish()
    }
}
