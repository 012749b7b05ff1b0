//! Which stores a probe accepted in the last hour.
//!
//! One line in the state directory for each bucket: when, by which version of cistern, and what tells the bucket from others.
//! A refusal is never kept, and removes what was kept. What cannot be read or written counts as not known: then the
//! store is probed again. Directories are probed every time, which takes no time.

use std::{
    fs::{DirBuilder, File},
    io::Read,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_engine::store::{Variables, Verdict};

use crate::{atomic_file::replace_file, place::VolumeUrl};

const FILE_NAME: &str = "probed-stores";
/// How long an acceptance counts: long enough to make many volumes, short beside the life of a server's version.
const KEPT: Duration = Duration::from_secs(3600);
/// Bytes of the longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Another version may ask for other rules.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is known of the store of one volume.
pub(super) struct KeptVerdicts {
    path: Option<PathBuf>,
    /// `None` for a directory.
    store: Option<String>,
}

impl KeptVerdicts {
    pub fn of(state_dir: Option<&Path>, volume: &VolumeUrl) -> KeptVerdicts {
        let store = Variables::of_process().identity(&volume.url);
        KeptVerdicts { path: state_dir.map(|dir| dir.join(FILE_NAME)), store }
    }

    /// How long ago the store was accepted, if that counts still.
    pub fn age(&self, now_ms: u64) -> Option<Duration> {
        let store = self.store.as_ref()?;
        let kept = self.read(now_ms).into_iter().find(|kept| &kept.store == store)?;
        Some(Duration::from_millis(now_ms - kept.at_ms))
    }

    /// Keeps an acceptance, and forgets one that has turned out wrong.
    pub fn note(&self, now_ms: u64, verdict: &Verdict) {
        let (Some(path), Some(store)) = (&self.path, &self.store) else { return };
        let before = self.read(now_ms);
        let mut kept: Vec<KeptLine> = before.into_iter().filter(|kept| &kept.store != store).collect();
        if *verdict == Verdict::Ok {
            kept.push(KeptLine { at_ms: now_ms, store: store.clone() });
        }
        let text: String =
            kept.iter().map(|kept| format!("{} {VERSION} {}\n", kept.at_ms, kept.store)).collect();
        let made =
            path.parent().map_or(Ok(()), |dir| DirBuilder::new().recursive(true).mode(0o700).create(dir));
        if let Err(e) = made.and_then(|()| replace_file(path, text.as_bytes())) {
            tracing::debug!(path = %path.display(), error = %e, "what the probe found is not kept");
        }
    }

    /// Those that count.
    fn read(&self, now_ms: u64) -> Vec<KeptLine> {
        let mut text = String::new();
        let read = self.path.as_ref().and_then(|path| File::open(path).ok());
        let read = read.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok());
        let lines = read.map(|_| text.lines()).into_iter().flatten();
        lines.filter_map(KeptLine::parse).filter(|kept| kept.counts(now_ms)).collect()
    }
}

struct KeptLine {
    at_ms: u64,
    store: String,
}

impl KeptLine {
    fn parse(line: &str) -> Option<KeptLine> {
        let mut parts = line.splitn(3, ' ');
        let (at_ms, version, store) = (parts.next()?, parts.next()?, parts.next()?);
        (version == VERSION).then_some(KeptLine { at_ms: at_ms.parse().ok()?, store: store.to_owned() })
    }

    /// One from the future does not: a clock was set.
    fn counts(&self, now_ms: u64) -> bool {
        now_ms.checked_sub(self.at_ms).is_some_and(|age| age < KEPT.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const NOW_MS: u64 = 1_790_000_000_000;

    fn refused() -> Verdict {
        Verdict::Refused { reason: String::new(), advice: String::new() }
    }

    /// An acceptance counts for an hour, for its store and this version, and until a probe says otherwise; a refusal is not kept.
    #[test]
    fn an_acceptance_counts_for_an_hour() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("made/by/need").join(FILE_NAME);
        let of = |store: &str| KeptVerdicts { path: Some(path.clone()), store: Some(store.to_owned()) };
        let (one, other) = (of("s3://b http://one:9000"), of("s3://b http://other:9000"));
        assert_eq!(one.age(NOW_MS), None);
        one.note(NOW_MS, &Verdict::Ok);
        other.note(NOW_MS + 5000, &Verdict::Ok);
        assert_eq!(one.age(NOW_MS + 5000), Some(Duration::from_secs(5)));
        assert_eq!(one.age(NOW_MS + HOUR_MS - 1), Some(Duration::from_millis(HOUR_MS - 1)));
        for wrong_ms in [NOW_MS + HOUR_MS, NOW_MS - 1] {
            assert_eq!(one.age(wrong_ms), None);
        }
        other.note(NOW_MS + 6000, &refused());
        assert_eq!((other.age(NOW_MS + 6000), one.age(NOW_MS + 6000).is_some()), (None, true));
        let text = std::fs::read_to_string(&path).expect("written");
        std::fs::write(&path, text.replace(VERSION, "0.0.0")).expect("written");
        assert_eq!(one.age(NOW_MS + 6000), None);
    }

    /// What is no such file is not known: nothing fails, and the next acceptance replaces it. A directory is never known.
    #[test]
    fn what_cannot_be_read_is_not_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE_NAME);
        let of =
            |store: Option<&str>| KeptVerdicts { path: Some(path.clone()), store: store.map(str::to_owned) };
        for bytes in [&b"\xff\xfe"[..], b"1790000000000", b"x y z", b""] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(of(Some("z")).age(NOW_MS), None);
            of(Some("z")).note(NOW_MS, &Verdict::Ok);
            assert!(of(Some("z")).age(NOW_MS).is_some());
        }
        of(None).note(NOW_MS, &Verdict::Ok);
        assert_eq!(of(None).age(NOW_MS), None);
        let nowhere = KeptVerdicts { path: Some("/proc/nowhere/x".into()), store: Some("z".into()) };
        nowhere.note(NOW_MS, &Verdict::Ok);
        assert_eq!(nowhere.age(NOW_MS), None);
    }
}
