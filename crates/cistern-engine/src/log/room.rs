//! Room in the store that is held back from whatever could wait.
//!
//! A directory lies on a disk of some size. If clients filled that to its last byte, nothing could ever be cleaned: garbage is
//! deleted behind entries and checkpoints that are stored first, and a slot that was given out for a segment without room holds
//! up everything behind it. So what clients write goes to the store only while more than what is held back stays free, and
//! what is moved by the cleaner, which gives room back after the grace only, while more than half of that does. The rest is for what is
//! small, or makes room: operations on snapshots, entries without data, runs of the map, checkpoints.
//!
//! A copy of what another volume has gives nothing back, so it leaves twice as much free: what clients write goes first.
//!
//! Asked before a slot is given out, never behind, and for each entry: a round of the cleaner has several. What was promised room
//! counts as taken until it is committed, for all flows and for all volumes of the daemon.

use crate::{
    Error, Result,
    store::{DiskRoom, Promise},
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
}

impl LogWriter {
    /// Room for `bytes` more beside everything on its way, if the store has it; kept until that is dropped. A store that does not say
    /// has any.
    pub async fn take_room(&self, what: RoomFor, bytes: u64) -> Option<Promise> {
        let promise = self.promised().promise(bytes);
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
        matches!(room, Ok(Some(room)) if allow(room, RoomFor::Written, bytes).is_err())
    }

    /// Whether there is so little room that what clients write waits, or soon will.
    pub async fn is_room_short(&self) -> bool {
        let room = self.store().room().await;
        let short_bytes = |room: DiskRoom| SHORT_BYTES.min(room.total_bytes / SHORT_PART);
        matches!(room, Ok(Some(room)) if allow(room, RoomFor::Written, short_bytes(room)).is_err())
    }
}

/// # Errors
/// `Unreachable`, as for a disk that is full already: it can be cured while clients wait.
fn allow(room: DiskRoom, what: RoomFor, bytes: u64) -> Result<()> {
    let all = (room.total_bytes / HELD_BACK_PART)
        .clamp(HELD_BACK_MIN, HELD_BACK_MAX)
        .min(room.total_bytes / HELD_BACK_PART_MAX);
    let held_back = match what {
        RoomFor::Written => all,
        RoomFor::Moved => all / 2,
        RoomFor::Copied => all * 2,
        RoomFor::Discarding => all / 4 * 3,
    };
    match room.free_bytes >= held_back + bytes {
        true => Ok(()),
        false => Err(Error::Unreachable(format!(
            "the file system of the store is nearly full: {} MiB are free, and {} are held back for cleaning. Make room there, remove \
             snapshots (`cistern rm URL@NAME`), or discard what is not needed (`fstrim`, `blkdiscard`)",
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
        }
        let said = allow(disk(1000, 70), RoomFor::Written, 16 * MIB).expect_err("too little").to_string();
        assert!(said.contains("70 MiB are free, and 64 are held back"), "{said}");
    }
}
