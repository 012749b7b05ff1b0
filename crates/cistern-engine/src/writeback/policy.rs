//! When to seal the next segment: a pure decision.

use std::time::Duration;

use crate::units::{BLOCK_BYTES, SEGMENT_DATA_BYTES_MAX};

/// Blocks of journal after which a segment is full.
const SEGMENT_BLOCKS: u64 = (SEGMENT_DATA_BYTES_MAX / BLOCK_BYTES) as u64;
/// Sealing begins at this share of the greatest age, so that the upload ends within it.
const SEAL_AGE_SHARE: (u32, u32) = (3, 4);

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Journal blocks appended and not packed.
    pub unpacked_blocks: u64,
    /// Age of the oldest of them.
    pub unpacked_age: Duration,
    /// Somebody waits for some of them to be committed.
    pub wanted: bool,
    /// There is room in the upload window.
    pub window_open: bool,
    pub dirty_age_max: Duration,
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

/// Decides.
pub fn decide(s: &Situation) -> Decision {
    if s.unpacked_blocks == 0 || !s.window_open {
        return Decision::Wait;
    }
    let seal_age = s.dirty_age_max * SEAL_AGE_SHARE.0 / SEAL_AGE_SHARE.1;
    if s.wanted || s.unpacked_blocks >= SEGMENT_BLOCKS || s.unpacked_age >= seal_age {
        return Decision::Seal;
    }
    Decision::WaitFor(seal_age - s.unpacked_age)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Situation = Situation {
        unpacked_blocks: 1,
        unpacked_age: Duration::from_secs(1),
        wanted: false,
        window_open: true,
        dirty_age_max: Duration::from_secs(30),
    };

    /// A little data waits for company, but not beyond its age; full segments and waiters go at once.
    #[test]
    fn seals_when_full_old_or_wanted() {
        assert_eq!(decide(&IDLE), Decision::WaitFor(Duration::from_millis(21_500)));
        assert_eq!(decide(&Situation { unpacked_age: Duration::from_secs(23), ..IDLE }), Decision::Seal);
        assert_eq!(decide(&Situation { unpacked_blocks: SEGMENT_BLOCKS, ..IDLE }), Decision::Seal);
        assert_eq!(decide(&Situation { wanted: true, ..IDLE }), Decision::Seal);
    }

    /// A full window or an empty journal means waiting for an event, without a timer.
    #[test]
    fn waits_without_timer_when_nothing_can_be_done() {
        assert_eq!(decide(&Situation { window_open: false, wanted: true, ..IDLE }), Decision::Wait);
        assert_eq!(decide(&Situation { unpacked_blocks: 0, wanted: true, ..IDLE }), Decision::Wait);
    }
}
