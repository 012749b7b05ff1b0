//! What is said of a volume that was written to and could not be closed with everything in the store.

use cistern_engine::volume::{CloseReport, Volume};

use crate::{
    failure::{Failure, Kind, Outcome},
    place::COMMAND_PATIENCE,
};

/// Where what a stopped volume has acknowledged is, of which nothing is left in the journal.
pub const ALL_STORED: &str =
    "the journal of this host holds nothing of it: the store had answered that everything was stored";

/// Closes a volume that a command has opened with [`open_once`](super::open_once). `done` says what the command did, such as `resized`.
///
/// # Errors
/// As for [`closed`].
pub async fn close_once(volume: &Volume, done: &str) -> Outcome {
    let report = volume.close(COMMAND_PATIENCE).await;
    closed(volume, &report, done)
}

/// Whether what a command did with a volume is in the store.
///
/// # Errors
/// `Stopped` where the volume is not this host's any more; `NotClean` where something is left for the next opening. Both say where what was
/// acknowledged is.
pub fn closed(volume: &Volume, report: &CloseReport, done: &str) -> Outcome {
    if report.clean {
        return Ok(());
    }
    let why = report.reason.as_deref().unwrap_or("unknown");
    let (kind, text, hint) = match (volume.status().latched.is_some(), report.journal_bytes_left > 0) {
        (true, true) => (
            Kind::Stopped,
            format!("{done} on this host, and not in the store: {why}"),
            format!(
                "do it again where the volume is now; `cistern journal export {} --output FILE` saves what clients wrote here before, if any \
                 of that is left",
                volume.id()
            ),
        ),
        (true, false) => {
            (Kind::Stopped, format!("{done}; then the volume stopped: {why}"), ALL_STORED.to_owned())
        }
        (false, true) => (
            Kind::NotClean,
            format!("{done} here, but not in the store yet: {why}"),
            "the journal holds it; the next `cistern serve` on this host brings it there".to_owned(),
        ),
        (false, false) => (
            Kind::NotClean,
            format!("{done}, but the volume is not released: {why}"),
            "the next `cistern serve` on this host goes on; another host needs --take-over".to_owned(),
        ),
    };
    Err(Failure::new(kind, text).hint(hint))
}
