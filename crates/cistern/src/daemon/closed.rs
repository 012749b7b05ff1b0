//! What is said of a volume that was written to and could not be closed with everything in the store.

use std::path::Path;

use cistern_engine::volume::{CloseReport, Volume};

use crate::{
    config::Resolved,
    failure::{Failure, Kind, Outcome},
    place::COMMAND_PATIENCE,
};

/// Closes a volume that a command has opened with [`open_once`](super::open_once). `done` says what the command did, such as `resized`.
///
/// # Errors
/// As for [`closed`].
pub async fn close_once(settings: &Resolved, volume: &Volume, done: &str) -> Outcome {
    let report = volume.close(COMMAND_PATIENCE).await;
    closed(&settings.state_dir, volume, &report, done)
}

/// Whether what a command did with a volume is in the store.
///
/// # Errors
/// `Stopped` where the volume is not this host's any more; `NotClean` where something is left for the next opening. Both say where what was
/// acknowledged is.
pub fn closed(state_dir: &Path, volume: &Volume, report: &CloseReport, done: &str) -> Outcome {
    if report.clean {
        return Ok(());
    }
    let why = report.reason.as_deref().unwrap_or("unknown");
    let is_left = report.journal_bytes_left > 0;
    let (kind, text) = match (volume.status().latched.is_some(), is_left) {
        (true, true) => (Kind::Stopped, format!("{done} on this host, and not in the store: {why}")),
        (true, false) => (Kind::Stopped, format!("{done}; then the volume stopped: {why}")),
        (false, true) => (Kind::NotClean, format!("{done} here, but not in the store yet: {why}")),
        (false, false) => (Kind::NotClean, format!("{done}, but the volume is not released: {why}")),
    };
    let hint = match (kind, is_left) {
        (Kind::Stopped, true) => format!(
            "do it again where the volume is now; `cistern journal export {} --output FILE` saves what clients wrote here before, if any of \
             that is left",
            volume.id()
        ),
        (Kind::Stopped, _) => journal_hint(state_dir, volume, report.journal_bytes_left),
        (_, true) => "the journal holds it; the next `cistern serve` on this host brings it there".to_owned(),
        (_, false) => {
            "the next `cistern serve` on this host goes on; another host needs --take-over".to_owned()
        }
    };
    Err(Failure::new(kind, text).hint(hint))
}

/// Where what a stopped volume has acknowledged is, of which so many bytes are in the journal and not in the store.
pub fn journal_hint(state_dir: &Path, volume: &Volume, left_bytes: u64) -> String {
    let id = volume.id();
    match left_bytes {
        0 => {
            "the journal of this host holds nothing of it: the store had answered that everything was stored"
                .to_owned()
        }
        _ => format!(
            "its journal is in {}: `cistern journal export {id} --output FILE` saves what it holds, without the store",
            state_dir.join(id.to_string()).display()
        ),
    }
}
