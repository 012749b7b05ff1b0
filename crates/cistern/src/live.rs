//! Settings of a volume that `cistern set`, `pause` and `resume` change, and the file that keeps them.
//!
//! The file lies beside the volume's journal; `docs/format/settings.md` specifies it. It is replaced
//! as a whole, durably, before a change takes effect. A damaged one is an error and never read as
//! "nothing set": it may be what asks for `writethrough`.

use std::{fs, io::ErrorKind, path::Path, time::Duration};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    atomic_file::replace_file,
    config::{ModeSetting, SettingSource},
    failure::{Failure, Kind, Outcome},
    quantity::{ByteSize, SpaceBound, Span},
    schedule::Schedule,
};

/// The file in the state directory of a volume.
pub const FILE_NAME: &str = "settings";
const HEADER: &str = "# cistern settings 1. Written by `cistern set`, `pause` and `resume`: use those.\n";
const CHECKSUM: &str = "crc32c = ";
/// Bytes of the longest file that is read: far more than all settings take.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What was set. What was not comes from the command line, the settings file or the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Kept {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeSetting>,
    /// Bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_rate: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_rate: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dirty_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dirty_age_ms: Option<u64>,
    /// Stored bytes per live byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space_bound: Option<SpaceBound>,
    /// Bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_rate: Option<u64>,
    /// When snapshots are made by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_snapshot: Option<Schedule>,
    /// Since when write-back is paused, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_since_ms: Option<u64>,
}

/// One change; `None` takes a setting back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    Mode(Option<ModeSetting>),
    UploadRate(Option<u64>),
    DownloadRate(Option<u64>),
    MaxDirtyBytes(Option<u64>),
    MaxDirtyAgeMs(Option<u64>),
    SpaceBound(Option<SpaceBound>),
    GcRate(Option<u64>),
    AutoSnapshot(Option<Schedule>),
    Paused(bool),
}

/// One setting as it is in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingStatus {
    pub name: String,
    pub value: String,
    pub from: SettingSource,
}

/// The names that `set` knows.
pub const NAMES: [&str; 8] = [
    "mode",
    "upload-rate",
    "download-rate",
    "max-dirty-bytes",
    "max-dirty-age",
    "space-bound",
    "gc-rate",
    "auto-snapshot",
];
/// The value that takes a setting back.
const UNSET: &str = "default";

/// Parses `NAME=VALUE`; for clap.
pub fn parse_change(text: &str) -> Result<Change, String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("'{text}' is not a change: write NAME=VALUE"))?;
    let value = Some(value.trim()).filter(|value| *value != UNSET);
    let size = || value.map(|v| v.parse::<ByteSize>().map(|size| size.0)).transpose();
    match name.trim() {
        "mode" => {
            let mode = value.map(|v| ModeSetting::from_str(v, false)).transpose();
            mode.map(Change::Mode).map_err(|_| {
                format!(
                    "'{}' is not a mode: writeback, writethrough or writearound",
                    value.unwrap_or_default()
                )
            })
        }
        "upload-rate" => rate(size()?).map(Change::UploadRate),
        "download-rate" => rate(size()?).map(Change::DownloadRate),
        "max-dirty-bytes" => size().map(Change::MaxDirtyBytes),
        "max-dirty-age" => {
            let span = value.map(str::parse::<Span>).transpose()?;
            Ok(Change::MaxDirtyAgeMs(span.map(|span| span.0.as_millis() as u64)))
        }
        "space-bound" => value.map(str::parse).transpose().map(Change::SpaceBound),
        "gc-rate" => match size()? {
            Some(0) => Err("a rate of 0 would never end; space-bound=none stops cleaning".into()),
            rate => Ok(Change::GcRate(rate)),
        },
        "auto-snapshot" => match value {
            Some("none") => Ok(Change::AutoSnapshot(None)),
            value => value.map(str::parse).transpose().map(Change::AutoSnapshot),
        },
        other => Err(format!("'{other}' cannot be set while serving; these can: {}", NAMES.join(", "))),
    }
}

fn rate(bytes_per_s: Option<u64>) -> Result<Option<u64>, String> {
    match bytes_per_s {
        Some(0) => Err("a rate of 0 would never end; `cistern pause` holds the uploads".into()),
        rate => Ok(rate),
    }
}

impl Kept {
    /// These settings after a change at a time of the wall clock.
    pub fn after(&self, changes: &[Change], wall_ms: u64) -> Kept {
        let mut kept = self.clone();
        for change in changes {
            match change.clone() {
                Change::Mode(mode) => kept.mode = mode,
                Change::UploadRate(rate) => kept.upload_rate = rate,
                Change::DownloadRate(rate) => kept.download_rate = rate,
                Change::MaxDirtyBytes(bytes) => kept.max_dirty_bytes = bytes,
                Change::MaxDirtyAgeMs(age) => kept.max_dirty_age_ms = age,
                Change::SpaceBound(bound) => kept.space_bound = bound,
                Change::GcRate(rate) => kept.gc_rate = rate,
                Change::AutoSnapshot(schedule) => kept.auto_snapshot = schedule,
                Change::Paused(false) => kept.paused_since_ms = None,
                Change::Paused(true) => kept.paused_since_ms = kept.paused_since_ms.or(Some(wall_ms)),
            }
        }
        kept
    }

    pub fn max_dirty_age(&self) -> Option<Duration> {
        self.max_dirty_age_ms.map(Duration::from_millis)
    }

    /// What is set, as people write it.
    pub fn describe(&self) -> Vec<String> {
        let size = |name: &str, bytes: Option<u64>| bytes.map(|b| format!("{name}={}", ByteSize(b)));
        [
            self.mode.map(|mode| format!("mode={}", mode.name())),
            size("upload-rate", self.upload_rate),
            size("download-rate", self.download_rate),
            size("max-dirty-bytes", self.max_dirty_bytes),
            self.max_dirty_age().map(|age| format!("max-dirty-age={}", Span(age))),
            self.space_bound.map(|bound| format!("space-bound={bound}")),
            size("gc-rate", self.gc_rate),
            self.auto_snapshot.as_ref().map(|schedule| format!("auto-snapshot={schedule}")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Reads what is kept in a volume's state directory; nothing is set where there is no file.
    pub fn load(directory: &Path) -> Outcome<Kept> {
        let path = directory.join(FILE_NAME);
        let bytes = match fs::metadata(&path) {
            Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(damaged(&path, "it is too long")),
            Ok(_) => fs::read(&path),
            Err(e) => Err(e),
        };
        match bytes {
            Ok(bytes) => decode(&bytes).map_err(|why| damaged(&path, &why)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Kept::default()),
            Err(e) => Err(Failure::io(format!("the settings {} cannot be read", path.display()), &e)),
        }
    }

    /// Keeps these settings; durable on return. What would not be read back is refused, and what was kept before stays.
    pub fn save(&self, directory: &Path) -> Outcome {
        let path = directory.join(FILE_NAME);
        let bytes = encode(self).and_then(|bytes| match decode(&bytes)? == *self {
            true if bytes.len() as u64 <= FILE_BYTES_MAX => Ok(bytes),
            true => Err("they are too long".to_owned()),
            false => Err("they would be read as others".to_owned()),
        });
        let bytes = bytes.map_err(|why| {
            Failure::new(Kind::Usage, format!("the settings cannot be kept in {}: {why}", path.display()))
        })?;
        replace_file(&path, &bytes)
            .map_err(|e| Failure::io(format!("the settings cannot be kept in {}", path.display()), &e))
    }
}

fn damaged(path: &Path, why: &str) -> Failure {
    let text = format!("the settings {} are damaged: {why}", path.display());
    Failure::new(Kind::Corrupt, text).hint(
        "they may ask for a stronger mode than the command line does. Remove the file, start with the --mode you \
         mean, and set again what else was set",
    )
}

/// # Errors
/// A number that the format has not.
fn encode(kept: &Kept) -> Result<Vec<u8>, String> {
    let body = format!("{HEADER}{}", toml::to_string(kept).map_err(|e| e.to_string())?);
    let crc = crc32c(body.as_bytes());
    Ok(format!("{body}{CHECKSUM}\"{crc:08x}\"\n").into_bytes())
}

fn decode(bytes: &[u8]) -> Result<Kept, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let at = text.rfind(CHECKSUM).ok_or("its end is missing")?;
    let (body, end) = text.split_at(at);
    if end != format!("{CHECKSUM}\"{:08x}\"\n", crc32c(body.as_bytes())) {
        return Err("its checksum is wrong".into());
    }
    if !body.starts_with(HEADER) {
        return Err("it is of an unknown version".into());
    }
    toml::from_str(body).map_err(|e| e.message().to_owned())
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Kept {
        Kept {
            mode: Some(ModeSetting::Writethrough),
            upload_rate: Some(10 << 20),
            max_dirty_age_ms: Some(5000),
            paused_since_ms: None,
            ..Kept::default()
        }
    }

    /// What is kept is read back, and a directory without a file has nothing set.
    #[test]
    fn kept_settings_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(Kept::load(dir.path()), Ok(Kept::default()));
        some().save(dir.path()).expect("saved");
        assert_eq!(Kept::load(dir.path()), Ok(some()));
        Kept::default().save(dir.path()).expect("saved over");
        assert_eq!(Kept::load(dir.path()), Ok(Kept::default()));
        let bounds = ["1.5", "2", "none", "auto"].map(|bound| format!("space-bound={bound}"));
        for change in bounds.iter().map(String::as_str).chain(["auto-snapshot=15m:8,1M:12"]) {
            let kept = some().after(&[parse_change(change).expect("a change")], 0);
            kept.save(dir.path()).expect("saved");
            assert_eq!(Kept::load(dir.path()), Ok(kept));
        }
    }

    /// The largest numbers come back as well.
    #[test]
    fn the_largest_numbers_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        for change in [Change::UploadRate(Some(u64::MAX)), Change::MaxDirtyAgeMs(Some(u64::MAX))] {
            let kept = some().after(&[change], 0);
            kept.save(dir.path()).expect("saved");
            assert_eq!(Kept::load(dir.path()), Ok(kept));
        }
    }

    /// Whatever byte changes or is missing, the file is refused: it never reads as something else.
    #[test]
    fn damage_never_passes() {
        let good = encode(&some()).expect("plain values");
        for at in 0..good.len() {
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_err(), "flipped at {at}");
        }
        assert!(decode(b"").is_err());
    }

    /// Changes are written as people write them, and refused with what would be right.
    #[test]
    fn changes_people_write() {
        assert_eq!(parse_change("mode=writethrough"), Ok(Change::Mode(Some(ModeSetting::Writethrough))));
        assert_eq!(parse_change("mode=default"), Ok(Change::Mode(None)));
        assert_eq!(parse_change("upload-rate=10M"), Ok(Change::UploadRate(Some(10 << 20))));
        assert_eq!(parse_change("gc-rate=1M"), Ok(Change::GcRate(Some(1 << 20))));
        assert_eq!(parse_change("auto-snapshot=none"), Ok(Change::AutoSnapshot(None)));
        assert_eq!(parse_change("max-dirty-age=5s"), Ok(Change::MaxDirtyAgeMs(Some(5000))));
        for wrong in [
            "mode",
            "mode=fast",
            "upload-rate=0",
            "journal-size=1G",
            "max-dirty-age=5",
            "space-bound=1",
            "space-bound=NaN",
            "gc-rate=0",
            "auto-snapshot=often",
        ] {
            assert!(parse_change(wrong).is_err(), "{wrong}");
        }
    }

    /// A second pause does not move the time of the first.
    #[test]
    fn a_pause_keeps_its_beginning() {
        let paused = Kept::default().after(&[Change::Paused(true)], 7).after(&[Change::Paused(true)], 9);
        assert_eq!(paused.paused_since_ms, Some(7));
        assert_eq!(paused.after(&[Change::Paused(false)], 9).paused_since_ms, None);
    }
}
