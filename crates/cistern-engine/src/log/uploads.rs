//! How many entries are uploaded at once: as many as end within a few seconds on this link.
//!
//! What is sealed beyond that waits for its turn, so that the link never waits for a seal. Three turnstiles, all first come,
//! first served. Invariants: there are as many turns as the limit says, and [`SEALED_AHEAD`] vacancies more; what
//! is made of much more than its body is so for few entries at once, however many are on their way ([`Sealing`]).

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

/// Memory of a volume for which it may upload one entry: its body, and what of the volume's memory is not for entries.
const MEMORY_BYTES_PER_UPLOAD: u64 = 64 << 20;
/// Memory of a volume for which it may seal one entry: what that is made of, the bases of its sectors, and its body.
const MEMORY_BYTES_PER_SEAL: u64 = 128 << 20;
/// One is sealed while what the next one is made of is read.
const SEALS_MIN: usize = 2;

/// How many entries may be on their way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Uploaded.
    uploads: usize,
    /// Made.
    seals: usize,
}

impl WindowSize {
    /// Of a volume with so much memory.
    pub fn new(memory_bytes: u64) -> WindowSize {
        let most = |per: u64| usize::try_from(memory_bytes / per).unwrap_or(usize::MAX);
        WindowSize {
            uploads: most(MEMORY_BYTES_PER_UPLOAD).clamp(*UPLOADS.start(), *UPLOADS.end()),
            seals: most(MEMORY_BYTES_PER_SEAL).clamp(SEALS_MIN, VACANCIES_MAX),
        }
    }
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
    seals: Arc<Semaphore>,
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
    sealing: Option<Sealing>,
}

/// The right to make one entry, from what it is made of to its body. Belongs to who seals it, once it is offered.
pub(super) struct Sealing {
    _permit: OwnedSemaphorePermit,
}

impl Vacancy {
    /// The right to make the entry, for the first time: where its slot is lost it has to wait for another.
    pub(super) fn take_sealing(&mut self) -> Option<Sealing> {
        self.sealing.take()
    }
}

/// The right to upload one entry.
pub(super) struct Upload<'a> {
    uploads: &'a Uploads,
    turn: OwnedSemaphorePermit,
}

impl Uploads {
    /// Begins with as few as may be, and never has more at once than `most` says.
    pub fn new(most: WindowSize) -> Arc<Uploads> {
        debug_assert!(UPLOADS.contains(&most.uploads), "a number of uploads");
        let uploads = *UPLOADS.start();
        Arc::new(Uploads {
            vacancies: Arc::new(Semaphore::new(uploads + SEALED_AHEAD)),
            turns: Arc::new(Semaphore::new(uploads)),
            seals: Arc::new(Semaphore::new(most.seals)),
            limit: Ranked::new(Rank::Log, Limit { uploads, surplus: 0 }),
            most: most.uploads,
        })
    }

    fn locked(&self) -> Locked<'_, Limit> {
        self.limit.lock()
    }

    /// How many may be under way now.
    pub fn limit(&self) -> usize {
        self.locked().uploads
    }

    /// Waits for room in the window and for the right to make what comes there. Who comes first goes first.
    pub async fn vacancy(self: &Arc<Uploads>) -> Vacancy {
        let permit = self.vacancies.clone().acquire_owned().await.expect("never closed");
        let mut vacancy = Vacancy { uploads: self.clone(), permit: Some(permit), sealing: None };
        vacancy.sealing = Some(self.sealing().await);
        vacancy
    }

    /// Waits for the right to make an entry. Who comes first goes first.
    pub async fn sealing(&self) -> Sealing {
        Sealing { _permit: self.seals.clone().acquire_owned().await.expect("never closed") }
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
        let uploads = Uploads::new(WindowSize::new(u64::MAX));
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

    /// While as many entries are made as may be, the next one is not even begun: what it is made of is read when one of them is sealed.
    #[tokio::test]
    async fn few_are_made_at_once() {
        let uploads = Uploads::new(WindowSize { uploads: 6, seals: 2 });
        let (mut first, second) = (uploads.vacancy().await, uploads.vacancy().await);
        assert_eq!(uploads.vacancies.available_permits(), 1);
        let mut third = Box::pin(uploads.vacancy());
        assert!((&mut third).now_or_never().is_none());
        drop(first.take_sealing());
        assert!(first.take_sealing().is_none(), "it is for one making");
        let third = third.now_or_never().expect("the first one is sealed");
        assert_eq!((uploads.seals.available_permits(), uploads.vacancies.available_permits()), (0, 0));
        drop((first, second, third));
        assert_eq!((uploads.seals.available_permits(), uploads.vacancies.available_permits()), (2, 3));
    }

    /// A volume with little memory makes and uploads less at once, however quick the link is.
    #[tokio::test]
    async fn little_memory_has_few_uploads() {
        let most = [16, 64, 128, 192, 256, 512, 4096].map(|mib: u64| WindowSize::new(mib << 20));
        assert_eq!(most.map(|most| most.uploads), [2, 2, 2, 3, 4, 6, 6]);
        assert_eq!(most.map(|most| most.seals), [2, 2, 2, 2, 2, 4, 7]);
        let uploads = Uploads::new(WindowSize::new(192 << 20));
        for _ in 0..10 {
            uploads.turn().await.ended(Duration::from_millis(10));
        }
        assert_eq!(uploads.limit(), 3);
    }
}
