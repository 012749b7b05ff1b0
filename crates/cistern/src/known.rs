//! Which volumes this host has seen encrypted.
//!
//! Whoever can write to a bucket can put an unencrypted volume in the place of an encrypted one, and would be sent
//! what is written from then on in plain. So the state directory remembers: one line with id and URL for each volume
//! that was opened with a key. A volume that is known by either is never opened without encryption, and none is
//! created in its place by the way. Lines go with `cistern rm`, or by hand.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use cistern_engine::{store::StoreUrl, units::VolumeId};

use crate::{
    atomic_file::replace_file,
    failure::{Failure, Kind, Outcome},
};

const FILE_NAME: &str = "encrypted-volumes";
/// Bytes of the longest file that is read: some ten thousand volumes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The list of one state directory.
pub struct Known {
    path: PathBuf,
}

impl Known {
    pub fn of(state_dir: &Path) -> Known {
        Known { path: state_dir.join(FILE_NAME) }
    }

    /// Refuses an unencrypted volume at `url` where an encrypted one is known, or one with the id of an encrypted one.
    pub fn refuse_plain(&self, url: &StoreUrl, id: Option<VolumeId>) -> Outcome {
        let (id, url) = (id.map(|id| id.to_string()), url.to_string());
        let known = |line: &Line| line.url == escape(&url) || Some(&line.id) == id.as_ref();
        if !self.read()?.iter().any(known) {
            return Ok(());
        }
        let text = format!(
            "{url} is known on this host as an encrypted volume, and the store shows it without encryption: somebody \
             may have replaced it. Nothing was written"
        );
        Err(Failure::new(Kind::Key, text).hint(format!(
            "if it was created anew without encryption on purpose, remove its line from {}",
            self.path.display()
        )))
    }

    /// From now on this volume is known as encrypted.
    pub fn remember(&self, url: &StoreUrl, id: VolumeId) -> Outcome {
        let line = Line { id: id.to_string(), url: escape(&url.to_string()) };
        if self.read()?.contains(&line) {
            return Ok(());
        }
        let append = || {
            let mut file =
                OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
            // A full disk or a crash may have cut the last line off, which must not swallow this one.
            let cut = if ends_with_a_line(&file)? { "" } else { "\n" };
            file.write_all(format!("{cut}{} {}\n", line.id, line.url).as_bytes())?;
            file.sync_all()?;
            fs::File::open(self.path.parent().unwrap_or(&self.path))?.sync_all()
        };
        append().map_err(|e| Failure::io(format!("cannot write {}", self.path.display()), &e))
    }

    /// The volume was removed.
    pub fn forget(&self, url: &StoreUrl) -> Outcome {
        let (url, lines) = (escape(&url.to_string()), self.read()?);
        if !lines.iter().any(|line| line.url == url) {
            return Ok(());
        }
        let kept =
            lines.iter().filter(|line| line.url != url).map(|line| format!("{} {}\n", line.id, line.url));
        let text: String = kept.collect();
        let replaced = replace_file(&self.path, text.as_bytes());
        replaced.map_err(|e| Failure::io(format!("cannot write {}", self.path.display()), &e))
    }

    fn read(&self) -> Outcome<Vec<Line>> {
        let failed = |e: std::io::Error| Failure::io(format!("cannot read {}", self.path.display()), &e);
        let file = match fs::File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        Ok(text.lines().filter_map(Line::parse).collect())
    }
}

fn ends_with_a_line(file: &fs::File) -> std::io::Result<bool> {
    let bytes = file.metadata()?.len();
    let mut last = *b"\n";
    if let Some(at) = bytes.checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    Ok(last == *b"\n")
}

#[derive(PartialEq, Eq)]
struct Line {
    id: String,
    /// Escaped: a path may hold a line break.
    url: String,
}

impl Line {
    fn parse(text: &str) -> Option<Line> {
        let (id, url) = text.split_once(' ')?;
        Some(Line { id: id.to_owned(), url: url.to_owned() })
    }
}

fn escape(url: &str) -> String {
    url.escape_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that was cut off, as a full disk leaves it, takes none of those behind it along.
    #[test]
    fn a_line_that_was_cut_off_stays_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (known, url) = (Known::of(dir.path()), StoreUrl::parse("s3://b/tank").expect("a URL"));
        fs::write(&known.path, "00000000-0000-0000-0000-000000000009 s3://b/po").expect("written");
        let id = VolumeId(uuid::Uuid::from_u128(1));
        known.remember(&url, id).expect("kept");
        assert_eq!(known.refuse_plain(&url, Some(id)).expect_err("known").kind, Kind::Key);
    }

    /// A volume is known by its place and by its id, until it is removed, and others are not.
    #[test]
    fn a_volume_is_known_by_place_and_id() {
        let dir = tempfile::tempdir().expect("a directory");
        let known = Known::of(dir.path());
        let url = |text: &str| StoreUrl::parse(text).expect("a URL");
        let id = |n| VolumeId(uuid::Uuid::from_u128(n));
        let (here, there) = (url("s3://b/tank"), url("s3://b/pool"));
        known.refuse_plain(&here, Some(id(1))).expect("nothing is known");
        for _ in 0..2 {
            known.remember(&here, id(1)).expect("kept");
        }
        known.remember(&url("/srv/a b\nc/pool"), id(2)).expect("kept");
        assert_eq!(known.read().expect("readable").len(), 2);
        for (url, id) in [(&here, Some(id(7))), (&here, None), (&there, Some(id(1)))] {
            assert_eq!(known.refuse_plain(url, id).expect_err("known").kind, Kind::Key);
        }
        known.refuse_plain(&there, Some(id(7))).expect("another volume");
        known.forget(&here).expect("forgotten");
        known.refuse_plain(&here, Some(id(1))).expect("forgotten");
        known.refuse_plain(&url("/srv/a b\nc/pool"), None).expect_err("known still");
    }
}
