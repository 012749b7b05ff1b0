//! Room in the store that is held back from whatever could wait.
//!
//! A directory lies on a disk of some size. If clients filled that to its last byte, nothing could ever be cleaned: garbage is
//! deleted behind entries and checkpoints that are stored first, and a slot that was given out for a segment without room holds
//! up everything behind it. So what clients write goes to the store only while more than what is held back stays free, and
//! what is moved by the cleaner, which gives room back after the grace only, while more than half of that does. The rest is for what is
//! small, or makes room: operations on snapshots, entries without data, new runs of the map, checkpoints. Merges of the map leave a quarter of it to those:
//! what they replace goes after the grace.
//!
//! A copy of what another volume has gives nothing back, so it leaves twice as much free: what clients write goes first.
//!
//! A store with a quota does not say how much room it has; it refuses a put. Then there is a **shortage**: data goes there one segment at a
//! time, small ones at first, after rests that grow while they are refused, and only while the [reserve](super::reserve) is whole, which goes there first. What
//! is small and makes room is put at once, and takes the reserve where it is refused.
//!
//! Asked before a slot is given out, never behind, and for each entry: a round of the cleaner has several. What was promised room
//! counts as taken until it is committed, for all flows and for all volumes of the daemon.

use std::{future::Future, time::Duration};

use crate::{
    Error, Result,
    store::{DiskRoom, Promise, StoreResult},
    units::SEGMENT_DATA_BYTES_MAX,
};

use super::append::LogWriter;

const MIB: u64 = 1 << 20;
/// Of the whole.
const HELD_BACK_PART: u64 = 32;
const HELD_BACK_MIN: u64 = 64 * MIB;
const HELD_BACK_MAX: u64 = 256 * MIB;
/// Of a small disk not more than this part.
const HELD_BACK_PART_MAX: u64 = 4;
/// Room is short when less than this is free beside what is held back, and less than this part of the whole.
const SHORT_BYTES: u64 = 2 * SEGMENT_DATA_BYTES_MAX as u64;
const SHORT_PART: u64 = 8;

/// A merge that writes no more goes on whatever is free.
const SMALL_MERGE_BYTES: u64 = MIB;

/// Data that is tried first where a put was refused.
const TRIED_BYTES_MIN: u64 = MIB;
/// Rests between tries.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
/// After so long without a refusal there is no shortage any more.
const SHORTAGE_MAX: Duration = Duration::from_secs(600);

/// What is known of a store that refused a put for lack of room.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomShortage {
    refused_at: Duration,
    /// Nothing that could wait is tried before.
    until: Duration,
    rest: Duration,
    /// How much is tried at once.
    bytes_max: u64,
}

/// Who would take room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomFor {
    /// What clients wrote.
    Written,
    /// What is moved, so that other segments can go.
    Moved,
    /// What is copied from other volumes.
    Copied,
    /// What clients wrote, with discards of more than that.
    Discarding,
    /// Runs of the map that replace others.
    Merged,
}

impl LogWriter {
    /// Puts something small that makes room or has to be there first: where it is refused for lack of room, once more without the reserve.
    pub async fn making_room<T, F>(&self, put: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        match put().await.map_err(Error::from) {
            Err(e @ Error::NoRoom(_)) => {
                self.lacked_room();
                tracing::debug!(error = %e, "the reserve goes");
                self.reserve().give_up().await?;
                Ok(put().await?)
            }
            done => done,
        }
    }

    /// A put was refused for lack of room.
    pub(super) fn lacked_room(&self) {
        let now = self.env().now();
        let mut shortage = self.shortage();
        let (until, rest) = match *shortage {
            Some(known) if now < known.until => (known.until, known.rest), // it was on its way by then
            Some(known) => (now + known.rest, (known.rest * 2).min(REST_MAX)),
            None => (now + REST_MIN, REST_MIN * 2),
        };
        *shortage = Some(RoomShortage { refused_at: now, until, rest, bytes_max: TRIED_BYTES_MIN });
    }

    /// There was room for so many bytes of data.
    pub(super) fn had_room(&self, bytes: u64) {
        let mut shortage = self.shortage();
        if let Some(known) = &mut *shortage {
            known.rest = REST_MIN;
            if bytes >= known.bytes_max / 2 {
                known.bytes_max *= 2;
            }
            if known.bytes_max > SEGMENT_DATA_BYTES_MAX as u64 {
                *shortage = None;
            }
        }
    }

    /// Something was deleted.
    pub fn room_was_made(&self) {
        if let Some(known) = &mut *self.shortage() {
            (known.until, known.rest) = (self.env().now(), REST_MIN);
        }
    }

    /// What is known of a shortage that is not long past.
    fn known_shortage(&self) -> Option<RoomShortage> {
        let mut shortage = self.shortage();
        let now = self.env().now();
        *shortage = shortage.filter(|known| now.saturating_sub(known.refused_at) < SHORTAGE_MAX);
        *shortage
    }

    /// Whether a put was refused for lack of room, and not long ago.
    pub fn is_shortage(&self) -> bool {
        self.known_shortage().is_some()
    }

    /// Whether another segment may go there while `bytes` of data are on their way: not where that could exceed a quota by more than is kept for that.
    pub async fn may_send_beside(&self, bytes: u64) -> bool {
        bytes == 0
            || bytes <= self.reserve().flight_bytes_max()
            || matches!(self.store().room().await, Ok(Some(_)))
    }

    /// Bytes of the largest segment that is to be tried, of `bytes` at most.
    pub fn segment_bytes(&self, bytes: u64) -> u64 {
        self.known_shortage().map_or(bytes, |known| known.bytes_max.min(bytes))
    }

    /// Keeps a reserve for so much that is stored, where the store does not say how much room it has.
    pub async fn keep_reserve(&self, stored_bytes: u64) -> Result<()> {
        match self.store().room().await {
            Ok(None) => {
                let may_grow = !self.is_shortage();
                self.noting(self.reserve().keep(stored_bytes, may_grow)).await
            }
            _ => Ok(()),
        }
    }

    async fn noting<T>(&self, put: impl Future<Output = Result<T>>) -> Result<T> {
        put.await.inspect_err(|e| {
            if matches!(e, Error::NoRoom(_)) {
                self.note_trouble(e);
                self.lacked_room();
            }
        })
    }

    /// Whether something that could wait may be tried in a shortage. Puts a part of the reserve where that is not whole.
    async fn may_try(&self, known: RoomShortage, what: RoomFor, bytes: u64) -> bool {
        let is_alone = self.promised().bytes() <= bytes;
        let fits = match what {
            RoomFor::Written | RoomFor::Discarding | RoomFor::Merged => true,
            RoomFor::Moved | RoomFor::Copied => bytes <= known.bytes_max,
        };
        is_alone
            && fits
            && self.env().now() >= known.until
            && self.noting(self.reserve().grow()).await.unwrap_or(false)
    }

    /// Room for `bytes` more beside everything on its way, if the store has it; kept until that is dropped. A store that does not say
    /// has any. What is known of garbage comes with merges, so they are in no shortage held up, and a small one not on a full disk either.
    pub async fn take_room(&self, what: RoomFor, bytes: u64) -> Option<Promise> {
        let promise = self.promised().promise(bytes);
        if what == RoomFor::Merged && bytes <= SMALL_MERGE_BYTES {
            return Some(promise);
        }
        if let Some(known) = self.known_shortage()
            && what != RoomFor::Merged
            && !self.may_try(known, what, bytes).await
        {
            return None;
        }
        let Ok(Some(room)) = self.store().room().await else { return Some(promise) };
        let allowed = allow(room, what, self.promised().bytes());
        if let Err(e) = &allowed
            && what == RoomFor::Written
        {
            self.note_trouble(e);
        }
        allowed.is_ok().then_some(promise)
    }

    /// Whether so many bytes of what clients write would wait. Says nothing of it.
    pub async fn lacks_room(&self, bytes: u64) -> bool {
        let room = self.store().room().await;
        self.is_shortage() || matches!(room, Ok(Some(room)) if allow(room, RoomFor::Written, bytes).is_err())
    }

    /// Whether there is so little room that what clients write waits, or soon will.
    pub async fn is_room_short(&self) -> bool {
        let room = self.store().room().await;
        let short_bytes = |room: DiskRoom| SHORT_BYTES.min(room.total_bytes / SHORT_PART);
        self.is_shortage()
            || matches!(room, Ok(Some(room)) if allow(room, RoomFor::Written, short_bytes(room)).is_err())
    }
}

/// # Errors
/// `NoRoom`, as for a disk that is full already.
fn allow(room: DiskRoom, what: RoomFor, bytes: u64) -> Result<()> {
    let all = (room.total_bytes / HELD_BACK_PART)
        .clamp(HELD_BACK_MIN, HELD_BACK_MAX)
        .min(room.total_bytes / HELD_BACK_PART_MAX);
    let held_back = match what {
        RoomFor::Written => all,
        RoomFor::Moved => all / 2,
        RoomFor::Copied => all * 2,
        RoomFor::Discarding => all / 4 * 3,
        RoomFor::Merged => all / 4,
    };
    match room.free_bytes >= held_back + bytes {
        true => Ok(()),
        false => Err(Error::NoRoom(format!(
            "the file system of the store is nearly full: {} MiB are free, and {} are held back for cleaning. Make room there, remove \
             snapshots (`cistern rm URL@NAME`) or clones, or discard what is not needed (`fstrim`, `blkdiscard`)",
            room.free_bytes / MIB,
            all / MIB
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(total_mib: u64, free_mib: u64) -> DiskRoom {
        DiskRoom { free_bytes: free_mib * MIB, total_bytes: total_mib * MIB }
    }

    /// What is held back is a part of the disk within bounds, and the cleaner may go on when clients must wait.
    #[test]
    fn clients_wait_first() {
        for (total, held_back) in [(100, 25), (1000, 64), (4096, 128), (1 << 20, 256)] {
            for (what, enough) in [(RoomFor::Written, held_back + 16), (RoomFor::Moved, held_back / 2 + 17)] {
                assert!(allow(disk(total, enough), what, 16 * MIB).is_ok(), "{total} {what:?}");
            }
            assert!(allow(disk(total, held_back + 15), RoomFor::Written, 16 * MIB).is_err(), "{total}");
            assert!(allow(disk(total, held_back * 2 + 15), RoomFor::Copied, 16 * MIB).is_err(), "{total}");
            assert!(allow(disk(total, held_back / 2 + 15), RoomFor::Moved, 16 * MIB).is_err(), "{total}");
            assert!(allow(disk(total, held_back / 4 + 15), RoomFor::Merged, 16 * MIB).is_err(), "{total}");
        }
        let said = allow(disk(1000, 70), RoomFor::Written, 16 * MIB).expect_err("too little").to_string();
        assert!(said.contains("70 MiB are free, and 64 are held back"), "{said}");
    }
}
