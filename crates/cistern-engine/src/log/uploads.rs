//! How many entries are uploaded at once: as many as end within a few seconds on this link.
//!
//! What is sealed beyond that waits for its turn, so that the link never waits for a seal. Two turnstiles, both first come,
//! first served. Invariants: there are as many turns as the limit says, and [`SEALED_AHEAD`] vacancies more.

use std::{cmp::Ordering, ops::RangeInclusive, sync::Arc, time::Duration};

use crate::rank::{Locked, Rank, Ranked};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Entries uploaded at once, at least and at most. One alone would leave the link idle for a
/// round trip after each.
pub const UPLOADS: RangeInclusive<usize> = 2..=6;
/// Entries sealed ahead of those on their way. Each of either holds what it is made of or its body:
/// 16 MiB or a little more.
const SEALED_AHEAD: usize = 1;
/// Entries that are on their way or about to be, at most.
pub(super) const VACANCIES_MAX: usize = *UPLOADS.end() + SEALED_AHEAD;
/// An upload that takes longer than this shares its link with too many: fewer of them end sooner,
/// and journal space comes back evenly.
const UPLOAD_SLOW: Duration = Duration::from_secs(4);
/// An upload that takes less than this leaves room for another beside it.
const UPLOAD_QUICK: Duration = Duration::from_secs(2);

/// Memory of a volume for which it may upload one entry: what an entry is made of and its body, and what packs it.
const MEMORY_BYTES_PER_UPLOAD: u64 = 64 << 20;

/// How many entries may be uploaded at once by a volume with so much memory.
pub fn uploads_max(memory_bytes: u64) -> usize {
    let most = usize::try_from(memory_bytes / MEMORY_BYTES_PER_UPLOAD).unwrap_or(usize::MAX);
    most.clamp(*UPLOADS.start(), *UPLOADS.end())
}

/// How many entries to upload at once after one took `took` with `now` at once.
pub fn uploads_after(now: usize, took: Duration) -> usize {
    let next = match took {
        t if t > UPLOAD_SLOW => now - 1,
        t if t < UPLOAD_QUICK => now + 1,
        _ => now,
    };
    next.clamp(*UPLOADS.start(), *UPLOADS.end())
}

/// The turnstiles before the window and before the store.
pub(super) struct Uploads {
    vacancies: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    limit: Ranked<Limit>,
    /// The limit is never more.
    most: usize,
}

struct Limit {
    uploads: usize,
    /// Vacancies that are in use and not to be filled again.
    surplus: usize,
}

/// Room for one entry in the window. Free again when it is dropped.
pub struct Vacancy {
    uploads: Arc<Uploads>,
    permit: Option<OwnedSemaphorePermit>,
}

/// The right to upload one entry.
pub(super) struct Upload<'a> {
    uploads: &'a Uploads,
    turn: OwnedSemaphorePermit,
}

impl Uploads {
    /// Begins with as few as may be, and never has more than `most` at once.
    pub fn new(most: usize) -> Arc<Uploads> {
        debug_assert!(UPLOADS.contains(&most), "a number of uploads");
        let uploads = *UPLOADS.start();
        Arc::new(Uploads {
            vacancies: Arc::new(Semaphore::new(uploads + SEALED_AHEAD)),
            turns: Arc::new(Semaphore::new(uploads)),
            limit: Ranked::new(Rank::Log, Limit { uploads, surplus: 0 }),
            most,
        })
    }

    fn locked(&self) -> Locked<'_, Limit> {
        self.limit.lock()
    }

    /// How many may be under way now.
    pub fn limit(&self) -> usize {
        self.locked().uploads
    }

    /// Waits for room in the window. Who comes first goes first.
    pub async fn vacancy(self: &Arc<Uploads>) -> Vacancy {
        let permit = self.vacancies.clone().acquire_owned().await.expect("never closed");
        Vacancy { uploads: self.clone(), permit: Some(permit) }
    }

    /// Waits for a turn. Who comes first goes first.
    pub async fn turn(&self) -> Upload<'_> {
        let turn = self.turns.clone().acquire_owned().await.expect("never closed");
        Upload { uploads: self, turn }
    }
}

impl Upload<'_> {
    /// The upload ended after `took`.
    pub fn ended(self, took: Duration) {
        let Uploads { vacancies, turns, .. } = self.uploads;
        let mut limit = self.uploads.locked();
        debug_assert!(
            limit.uploads + limit.surplus <= *UPLOADS.end(),
            "surplus is what was taken back: no more"
        );
        let next = uploads_after(limit.uploads, took).min(self.uploads.most);
        match next.cmp(&limit.uploads) {
            Ordering::Less => {
                self.turn.forget();
                limit.surplus += 1 - vacancies.forget_permits(1);
            }
            Ordering::Greater => {
                turns.add_permits(1);
                match limit.surplus.checked_sub(1) {
                    Some(less) => limit.surplus = less,
                    None => vacancies.add_permits(1),
                }
            }
            Ordering::Equal => {}
        }
        limit.uploads = next;
    }
}

impl Drop for Vacancy {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut limit = self.uploads.locked();
        if let Some(less) = limit.surplus.checked_sub(1) {
            limit.surplus = less;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Slow uploads become fewer and quick ones more, within bounds.
    #[test]
    fn uploads_fit_the_link() {
        let many = (0..20).fold(2, |n, _| uploads_after(n, Duration::from_millis(100)));
        let few = (0..20).fold(6, |n, _| uploads_after(n, Duration::from_secs(60)));
        assert_eq!((few, many), (*UPLOADS.start(), *UPLOADS.end()));
        assert_eq!(uploads_after(4, Duration::from_secs(3)), 4);
    }

    /// What may be under way and in the window follows the limit, in both directions, also where the window is full.
    #[tokio::test]
    async fn turnstiles_follow_the_limit() {
        let uploads = Uploads::new(6);
        let free = |uploads: &Uploads| {
            (uploads.limit(), uploads.turns.available_permits(), uploads.vacancies.available_permits())
        };
        for _ in 0..10 {
            uploads.turn().await.ended(Duration::from_millis(10));
        }
        assert_eq!(free(&uploads), (6, 6, 7));
        let mut full: Vec<Vacancy> = Vec::new();
        while let Some(vacancy) = uploads.vacancy().now_or_never() {
            full.push(vacancy);
        }
        assert_eq!(full.len(), 7);
        for _ in 0..10 {
            uploads.turn().await.ended(Duration::from_secs(60));
        }
        assert_eq!(free(&uploads), (2, 2, 0));
        full.drain(..4);
        assert_eq!(free(&uploads), (2, 2, 0), "three are in use still");
        uploads.turn().await.ended(Duration::from_millis(10));
        assert_eq!(free(&uploads), (3, 3, 1));
        drop(full);
        assert_eq!(free(&uploads), (3, 3, 4));
    }

    /// A volume with little memory uploads less at once, however quick the link is.
    #[tokio::test]
    async fn little_memory_has_few_uploads() {
        let most = [16, 64, 128, 192, 256, 4096].map(|mib: u64| uploads_max(mib << 20));
        assert_eq!(most, [2, 2, 2, 3, 4, 6]);
        let uploads = Uploads::new(3);
        for _ in 0..10 {
            uploads.turn().await.ended(Duration::from_millis(10));
        }
        assert_eq!(uploads.limit(), 3);
    }
}
