//! How many segments are uploaded at once: as many as end within a few seconds on this link.
//!
//! What is sealed beyond that waits for its turn, so that the link never waits for a seal.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::writeback::policy::{UPLOADS, uploads_after};

/// The turnstile before the store.
pub struct Uploads {
    slots: Arc<Semaphore>,
    limit: Mutex<usize>,
}

/// The right to upload one segment.
pub struct Upload<'a> {
    uploads: &'a Uploads,
    slot: OwnedSemaphorePermit,
}

impl Uploads {
    pub fn new() -> Uploads {
        let limit = *UPLOADS.start();
        Uploads { slots: Arc::new(Semaphore::new(limit)), limit: Mutex::new(limit) }
    }

    /// How many may be under way now.
    pub fn limit(&self) -> usize {
        *self.limit.lock().expect("no panic under this lock")
    }

    /// Waits for a turn. Who comes first goes first.
    pub async fn turn(&self) -> Upload<'_> {
        let slot = self.slots.clone().acquire_owned().await.expect("never closed");
        Upload { uploads: self, slot }
    }
}

impl Upload<'_> {
    /// The upload ended after `took`.
    pub fn ended(self, took: Duration) {
        let mut limit = self.uploads.limit.lock().expect("no panic under this lock");
        let next = uploads_after(*limit, took);
        match next.cmp(&limit) {
            std::cmp::Ordering::Less => self.slot.forget(),
            std::cmp::Ordering::Greater => self.uploads.slots.add_permits(1),
            std::cmp::Ordering::Equal => {}
        }
        *limit = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The turns handed out follow the limit, in both directions.
    #[tokio::test]
    async fn turns_follow_the_limit() {
        let uploads = Uploads::new();
        for _ in 0..10 {
            uploads.turn().await.ended(Duration::from_millis(10));
        }
        assert_eq!((uploads.limit(), uploads.slots.available_permits()), (6, 6));
        for _ in 0..10 {
            uploads.turn().await.ended(Duration::from_secs(60));
        }
        assert_eq!((uploads.limit(), uploads.slots.available_permits()), (2, 2));
    }
}
