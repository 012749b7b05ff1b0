//! When to seal the next segment, how large it is, and how much its upload hurries: pure decisions.

use std::time::Duration;

use crate::{
    segment::{self, DATA_BYTES_MIN},
    units::BLOCK_BYTES,
};

/// Sealing begins at this share of the greatest age, so that the upload ends within it.
const SEAL_AGE_SHARE: (u32, u32) = (3, 4);
/// A segment is at most this part of the room for dirty data: space comes back in small pieces
/// where there is little of it, and writes need not stop and go.
const SEGMENT_PART: u64 = 16;
const _: () = assert!(SEAL_AGE_SHARE.0 < SEAL_AGE_SHARE.1, "there is time to upload what is sealed");

/// Bytes of block data after which a segment is full, with so much room for dirty data and so much memory.
pub fn segment_bytes(room_bytes: u64, memory_bytes: u64) -> u64 {
    (room_bytes / SEGMENT_PART).clamp(DATA_BYTES_MIN, segment::data_bytes_max(memory_bytes))
}

/// What is overwritten within a range of the journal never reaches the store, so a segment is made of as many bytes of the journal as
/// leave of each other what fills it: at most this many times as many, because they are in memory while it is packed,
const RANGE_SEGMENTS: u64 = 4;
/// and at most this part of the room for dirty data, because it all comes back at once.
const RANGE_PART: u64 = 8;

/// Bytes of block data in the journal that go into one segment at most.
pub fn range_bytes(room_bytes: u64, memory_bytes: u64) -> u64 {
    let segment_bytes = segment_bytes(room_bytes, memory_bytes);
    (room_bytes / RANGE_PART).clamp(segment_bytes, RANGE_SEGMENTS * segment_bytes)
}

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct PackSituation {
    /// Journal blocks appended and not packed.
    pub unpacked_blocks: u64,
    /// Age of the oldest of them.
    pub unpacked_age: Duration,
    /// Somebody waits for some of them to be committed.
    pub wanted: bool,
    /// The user holds write-back.
    pub paused: bool,
    /// Time until the rate allows another segment.
    pub budget_wait: Duration,
    pub dirty_age_max: Duration,
    pub segment_bytes: u64,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Seal,
    /// Nothing until something changes.
    Wait,
    /// Nothing until something changes, or at most for this long.
    WaitFor(Duration),
}

/// Decides. Age and wishes override the rate; a pause overrides everything.
pub fn decide(s: &PackSituation) -> Decision {
    if s.unpacked_blocks == 0 || s.paused {
        return Decision::Wait;
    }
    let seal_age = s.dirty_age_max * SEAL_AGE_SHARE.0 / SEAL_AGE_SHARE.1;
    if s.wanted || s.unpacked_age >= seal_age {
        return Decision::Seal;
    }
    let until_old = seal_age - s.unpacked_age;
    match s.unpacked_blocks * BLOCK_BYTES as u64 >= s.segment_bytes {
        true if s.budget_wait.is_zero() => Decision::Seal,
        true => Decision::WaitFor(until_old.min(s.budget_wait)),
        false => Decision::WaitFor(until_old),
    }
}

/// Shares of the room in use from which on uploads hurry, and at which they hurry as much as they can: writes are slowed
/// from there.
const HURRY_FILL: (f64, f64) = (0.4375, 0.5);
/// The same as shares of the greatest age: the promise of an age is kept by going faster in time, not by a flood at its end.
const HURRY_AGE: (f64, f64) = (0.5, 0.875);

const _: () = assert!(HURRY_FILL.0 < HURRY_FILL.1 && HURRY_AGE.0 < HURRY_AGE.1, "hurry grows");

/// How far commits are behind what was written.
#[derive(Clone, Copy, Debug)]
pub struct CommitLag {
    pub dirty_bytes: u64,
    pub room_bytes: u64,
    /// Age of the oldest write that is not committed.
    pub oldest: Duration,
    pub dirty_age_max: Duration,
    /// Somebody waits for a commit.
    pub wanted: bool,
}

/// How little time there is to give way to others on the same disk: from 0 to 1.
pub fn hurry(p: &CommitLag) -> f64 {
    if p.wanted {
        return 1.0;
    }
    let between = |(from, to): (f64, f64), share: f64| ((share - from) / (to - from)).clamp(0.0, 1.0);
    let fill = p.dirty_bytes as f64 / p.room_bytes.max(1) as f64;
    let age = p.oldest.as_secs_f64() / p.dirty_age_max.as_secs_f64().max(f64::EPSILON);
    between(HURRY_FILL, fill).max(between(HURRY_AGE, age))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SEGMENT_DATA_BYTES_MAX;

    const IDLE: PackSituation = PackSituation {
        unpacked_blocks: 1,
        unpacked_age: Duration::from_secs(1),
        wanted: false,
        paused: false,
        budget_wait: Duration::ZERO,
        dirty_age_max: Duration::from_secs(30),
        segment_bytes: SEGMENT_DATA_BYTES_MAX as u64,
    };
    const FULL: PackSituation =
        PackSituation { unpacked_blocks: (SEGMENT_DATA_BYTES_MAX / BLOCK_BYTES) as u64, ..IDLE };

    /// A little data waits for company, but not beyond its age; full segments and waiters go at once.
    #[test]
    fn seals_when_full_old_or_wanted() {
        assert_eq!(decide(&IDLE), Decision::WaitFor(Duration::from_millis(21_500)));
        assert_eq!(decide(&PackSituation { unpacked_age: Duration::from_secs(23), ..IDLE }), Decision::Seal);
        assert_eq!(decide(&FULL), Decision::Seal);
        assert_eq!(decide(&PackSituation { wanted: true, ..IDLE }), Decision::Seal);
    }

    /// The rate holds a full segment back, but never one that is old or waited for.
    #[test]
    fn the_rate_yields_to_age_and_wishes() {
        let held = PackSituation { budget_wait: Duration::from_secs(5), ..FULL };
        assert_eq!(decide(&held), Decision::WaitFor(Duration::from_secs(5)));
        assert_eq!(decide(&PackSituation { wanted: true, ..held }), Decision::Seal);
        assert_eq!(decide(&PackSituation { unpacked_age: Duration::from_secs(23), ..held }), Decision::Seal);
    }

    /// While there is room and time uploads give way; not to keep somebody waiting, nor beyond the promised age.
    #[test]
    fn hurries_before_it_is_late() {
        let calm = CommitLag {
            dirty_bytes: 30,
            room_bytes: 100,
            oldest: Duration::from_secs(15),
            dirty_age_max: Duration::from_secs(30),
            wanted: false,
        };
        assert_eq!(hurry(&calm), 0.0);
        assert_eq!(hurry(&CommitLag { dirty_bytes: 50, ..calm }), 1.0);
        assert!((0.1..0.9).contains(&hurry(&CommitLag { dirty_bytes: 47, ..calm })));
        assert_eq!(hurry(&CommitLag { wanted: true, ..calm }), 1.0);
        assert!((0.4..0.6).contains(&hurry(&CommitLag { oldest: Duration::from_millis(20_600), ..calm })));
        assert_eq!(hurry(&CommitLag { oldest: Duration::from_secs(27), ..calm }), 1.0);
        assert_eq!(hurry(&CommitLag { dirty_age_max: Duration::ZERO, ..calm }), 1.0);
    }

    /// An empty journal or a pause means waiting for an event, without a timer.
    #[test]
    fn waits_without_timer_when_nothing_can_be_done() {
        assert_eq!(decide(&PackSituation { unpacked_blocks: 0, wanted: true, ..IDLE }), Decision::Wait);
        assert_eq!(decide(&PackSituation { paused: true, wanted: true, ..FULL }), Decision::Wait);
    }

    /// Little room makes small segments, and so does little memory.
    #[test]
    fn segments_fit_the_room() {
        assert_eq!(segment_bytes(3 << 30, 256 << 20), SEGMENT_DATA_BYTES_MAX as u64);
        assert_eq!(segment_bytes(96 << 20, 256 << 20), 6 << 20);
        assert_eq!(segment_bytes(0, 256 << 20), DATA_BYTES_MIN);
        assert_eq!(segment_bytes(3 << 30, 64 << 20), 4 << 20);
        assert_eq!(segment_bytes(3 << 30, 0), DATA_BYTES_MIN);
    }

    /// What goes into one segment may be more than it holds, but no large part of the room.
    #[test]
    fn ranges_fit_the_room() {
        assert_eq!(range_bytes(3 << 30, 256 << 20), 64 << 20);
        assert_eq!(range_bytes(256 << 20, 256 << 20), 32 << 20);
        assert_eq!(range_bytes(96 << 20, 256 << 20), 12 << 20);
        assert_eq!(range_bytes(0, 256 << 20), DATA_BYTES_MIN);
        assert_eq!(range_bytes(3 << 30, 64 << 20), 16 << 20);
    }
}
