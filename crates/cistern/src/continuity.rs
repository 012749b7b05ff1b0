//! Whether this host alone has had a volume since it last looked: what a device of the kernel needs to go on with it.
//!
//! Every claim of a volume takes the next epoch. So a file beside the journal keeps the epoch of the last opening here, with an id. An opening with
//! the very next epoch keeps the id; any other, or none that is known, draws a new one: somebody else may have written in between, and nobody who
//! has cached what was there before may go on. An opening that dies behind its claim and before the file is written costs a new id as well: that
//! is the safe side.

use std::{
    fs,
    io::Result,
    path::{Path, PathBuf},
};

use cistern_engine::volume::VolumeStatus;
use serde::{Deserialize, Serialize};

use crate::{atomic_file::replace_file, failure::is_full};

const FILE_NAME: &str = "continuity.json";

#[derive(Serialize, Deserialize)]
struct LastOpening {
    id: String,
    epoch: u64,
    /// Where the volume was.
    #[serde(default)]
    url: String,
}

/// Notes that the volume at `url` was opened with this epoch, in the directory of what this host has of it. Gives the id, `new` if it is another
/// one now.
///
/// Where the disk has no room the file stays as it was, and the next opening draws a new id: so this one may go on.
///
/// # Errors
/// Any other of writing the file: then the volume must not be served.
pub fn note_opening(directory: &Path, url: &str, epoch: u64, new: String) -> Result<String> {
    let path = directory.join(FILE_NAME);
    let last = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<LastOpening>(&text).ok());
    let id = match last {
        Some(last) if last.epoch.checked_add(1) == Some(epoch) => last.id,
        _ => new,
    };
    let this = serde_json::to_vec(&LastOpening { id: id.clone(), epoch, url: url.to_owned() })?;
    match replace_file(&path, &this) {
        Err(e) if is_full(&e) => {
            tracing::warn!(file = %path.display(), error = %e, "the disk of the state directory is full: devices and clients \
                that outlive this daemon will not go on with the next one");
        }
        written => written?,
    }
    Ok(id)
}

/// The directory of a volume of this host that was at `url` when it was opened last, if there is one: an empty place where it was is no
/// place for a new one, because a file system that is not mounted looks like that.
pub fn opened_at(state_dir: &Path, url: &str) -> Option<PathBuf> {
    let was_there = |directory: &PathBuf| {
        let text = fs::read(directory.join(FILE_NAME)).ok()?;
        let last = serde_json::from_slice::<LastOpening>(&text).ok()?;
        Some(last.url == url)
    };
    let entries = fs::read_dir(state_dir).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|directory| was_there(directory) == Some(true))
}

/// What a device says that shows a served volume, and a connection that outlives its daemon: which one, which of its histories (they differ
/// behind a rollback), since when this host alone has it, and which export. A volume that is only read is what it was when it was opened.
pub fn identity(status: &VolumeStatus, continuity: Option<&str>, name: &str) -> String {
    let branch = status.branch.map_or_else(|| "-".to_owned(), |branch| branch.to_string());
    let life = continuity.map_or_else(|| format!("at-{}", status.seq), str::to_owned);
    format!("cistern:{}:{branch}:{life}:{name}", status.volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One opening after the other is one life; an epoch between them was somebody else's, and a file that is damaged or gone proves nothing.
    #[test]
    fn another_epoch_in_between_is_another_life() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let note = |epoch, new: &str| {
            note_opening(directory.path(), "/srv/tank", epoch, new.into()).expect("written")
        };
        assert_eq!(note(4, "a"), "a");
        assert_eq!(note(5, "b"), "a");
        assert_eq!(note(6, "c"), "a");
        assert_eq!(note(8, "d"), "d");
        assert_eq!(note(9, "e"), "d");
        assert_eq!(note(9, "f"), "f");
        fs::write(directory.path().join(FILE_NAME), "{").expect("damaged");
        assert_eq!(note(10, "g"), "g");
        fs::remove_file(directory.path().join(FILE_NAME)).expect("removed");
        assert_eq!(note(11, "h"), "h");
    }
}
