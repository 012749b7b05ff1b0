//! What can be set while a volume is open, and what write-back shows of itself.
//!
//! Never decides what is kept over a restart: whoever opens the volume does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    space::Cleaning,
    units::BLOCK_BYTES,
    volume::{Mode, Volume, pacing::ThrottleStatus, write::Writer},
    writeback::pi,
};

/// Why something does not end while write-back is paused.
pub(super) const PAUSED: &str =
    "write-back is paused: nothing is uploaded until it is resumed. What was flushed is in the journal";

/// A change of settings; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveSettings {
    pub mode: Option<Mode>,
    pub dirty_age_max: Option<Duration>,
    pub dirty_bytes_max: Option<u64>,
    /// Holds write-back: nothing is uploaded but what is on its way, whatever its age. Not
    /// possible in `Mode::Writethrough`, where every FLUSH would wait.
    pub paused: Option<bool>,
    /// How much may be stored for what is live, and how fast that is seen to.
    pub cleaning: Option<Cleaning>,
}

/// How write-back and the throttle of writes are controlled at one moment. Rates are of journal bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WriteBackStatus {
    pub paused: bool,
    pub dirty_bytes: u64,
    pub target_bytes: u64,
    /// Bytes a second that are packed and uploaded.
    pub rate_bytes_per_s: u64,
    /// The rate does not count: a drain, a full journal or the greatest age asks for all there is.
    pub unlimited: bool,
    pub proportional_bytes_per_s: i64,
    pub integral_bytes_per_s: i64,
    /// By how much the last update changed the rate.
    pub change_bytes_per_s: i64,
    /// Milliseconds until the next update.
    pub next_ms: u64,
    /// Segments that may be uploaded at once.
    pub uploads_max: u64,
    pub dirty_age_max_ms: u64,
    pub dirty_bytes_max: u64,
    pub throttle: ThrottleStatus,
}

impl Volume {
    /// Whether a change can be made now.
    ///
    /// # Errors
    /// `ReadOnly`; `PausedWritethrough` for a pause in `Mode::Writethrough`, or the other way round.
    pub fn may_set(&self, change: &LiveSettings) -> Result<()> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let mode = change.mode.unwrap_or(*writer.mode.borrow());
        let paused = change.paused.unwrap_or(writer.control.is_paused());
        check(mode, paused)
    }

    /// Makes a change, in effect on return. After a switch to `Mode::Writethrough` every reply to a
    /// FLUSH means the store; what was acknowledged before is there once [`Volume::drain`] returns.
    ///
    /// # Errors
    /// As [`Volume::may_set`].
    pub fn set(&self, change: LiveSettings) -> Result<()> {
        self.may_set(&change)?;
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let journal_bytes = writer.core.journal.capacity_blocks() * BLOCK_BYTES as u64;
        writer.control.tune(|tuning| {
            tuning.dirty_age_max = change.dirty_age_max.unwrap_or(tuning.dirty_age_max);
            tuning.room_bytes =
                change.dirty_bytes_max.map_or(tuning.room_bytes, |bytes| bytes.min(journal_bytes));
        });
        if let Some(paused) = change.paused {
            writer.control.pause(paused);
        }
        writer.core.pacer.set_room(writer.control.tuning().room_bytes);
        if let Some(cleaning) = change.cleaning {
            writer.space.set_cleaning(cleaning);
        }
        if let Some(mode) = change.mode {
            writer.core.admit_written(mode != Mode::Writearound);
            writer.mode.send_replace(mode);
        }
        Ok(())
    }
}

/// Whether mode and pause go together.
pub(super) fn check(mode: Mode, paused: bool) -> Result<()> {
    match mode == Mode::Writethrough && paused {
        true => Err(Error::PausedWritethrough),
        false => Ok(()),
    }
}

pub(super) fn write_back_status(writer: &Writer, dirty_bytes: u64) -> WriteBackStatus {
    let (tuning, shown, now) = (writer.control.tuning(), writer.control.shown(), writer.env.now());
    let goal = tuning.goal();
    WriteBackStatus {
        paused: writer.control.is_paused(),
        dirty_bytes,
        target_bytes: goal.target_bytes,
        rate_bytes_per_s: shown.rate.rate_bytes_per_s as u64,
        unlimited: dirty_bytes >= goal.unlimited_bytes,
        proportional_bytes_per_s: shown.rate.proportional_bytes_per_s as i64,
        integral_bytes_per_s: shown.rate.integral_bytes_per_s as i64,
        change_bytes_per_s: shown.rate.change_bytes_per_s as i64,
        next_ms: (shown.updated + pi::INTERVAL).saturating_sub(now).as_millis() as u64,
        uploads_max: shown.uploads_max as u64,
        dirty_age_max_ms: tuning.dirty_age_max.as_millis() as u64,
        dirty_bytes_max: tuning.room_bytes,
        throttle: writer.core.pacer.status(),
    }
}
