//! The disk of the state directory: its room, and whether it keeps what it says it keeps.
//!
//! That cannot be proven from here, but told by the time that a sync takes: nothing is durable faster than the medium can take it.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::Finding;
use crate::{
    cli::{Context, bench::alone::sync_time},
    quantity::ByteSize,
};

/// Free space in the state directory below which a journal is small.
const STATE_FREE_MIN: u64 = 1 << 30;
/// What `statfs` says of a file system in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// How long syncs are timed.
const TIMED: Duration = Duration::from_millis(500);
/// What half of the syncs of a rotating disk exceed: at 15,000 turns a minute half a turn is 2 ms.
const ROTATING: Duration = Duration::from_millis(1);
/// What half of the syncs of a disk with a cache that forgets exceed: programming a page of flash takes longer.
const FLASH: Duration = Duration::from_micros(100);
/// What nothing behind a bus does faster.
const BUS: Duration = Duration::from_micros(5);

/// Whether it survives a restart, and how much fits.
pub fn room(state_dir: &Path) -> Finding {
    const WHAT: &str = "state directory";
    let shown = state_dir.display();
    let Some(there) = existing(state_dir) else {
        return Finding::bad(WHAT, format!("{shown} cannot be"), "--state-dir says another one");
    };
    let (kind, free_bytes) = match file_system(there) {
        Ok(found) => found,
        Err(e) => return Finding::bad(WHAT, format!("{shown}: {e}"), "--state-dir says another one"),
    };
    let free = ByteSize(free_bytes);
    if kind == TMPFS_MAGIC {
        return Finding::bad(
            WHAT,
            format!("{shown} is in memory: a journal there is lost with the next restart"),
            "--state-dir on a disk you trust",
        );
    }
    match free_bytes {
        0..STATE_FREE_MIN => Finding::note(
            WHAT,
            format!("{shown}: {free} are free, so journals are small and writes soon as slow as the upload"),
            "a larger disk, and --journal-size",
        ),
        _ => Finding::ok(WHAT, format!("{shown}, {free} free")),
    }
}

/// Where it will be, if it is not there yet.
fn existing(state_dir: &Path) -> Option<&Path> {
    state_dir.ancestors().find(|path| path.exists())
}

/// Whether a flush of the journal's disk can be true.
pub async fn honesty(context: &Context, state_dir: &Path) -> Finding {
    const WHAT: &str = "journal disk";
    let Some(there) = existing(state_dir) else {
        return Finding::bad(WHAT, "there is none to look at", "--state-dir says another one");
    };
    let name = format!("doctor-{}", context.env.uuid().simple());
    let took = match sync_time(there, name, TIMED).await {
        Ok(took) => took,
        Err(failure) => {
            return Finding::bad(
                WHAT,
                failure.text,
                "run it as the user who serves; or --state-dir says another directory",
            );
        }
    };
    let shown = format!("a sync takes {:.2} ms", took.as_secs_f64() * 1000.0);
    match doubt(took, Medium::of(there)) {
        None => Finding::ok(WHAT, shown),
        Some(doubt) => Finding::note(
            WHAT,
            format!("{shown}: {doubt}"),
            "what was flushed may be gone after a power cut, unless a battery or capacitors keep the cache that answers; in a guest: cache=none or \
             writeback on its host, never unsafe",
        ),
    }
}

/// What is known of the medium below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Medium {
    rotates: Option<bool>,
    /// Whether it says that it has a cache that has to be flushed.
    forgets: Option<bool>,
}

impl Medium {
    /// What the kernel knows of the disk; of network and stacked file systems that is nothing.
    fn of(directory: &Path) -> Medium {
        let Ok(metadata) = directory.metadata() else { return Medium::default() };
        let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let read = |name: &str| {
            // A partition has no queue of its own.
            let queues = [device.join("queue"), device.join("../queue")];
            queues.iter().find_map(|queue| fs::read_to_string(queue.join(name)).ok())
        };
        Medium {
            rotates: read("rotational").map(|text| text.trim() == "1"),
            forgets: read("write_cache").map(|text| text.trim() == "write back"),
        }
    }
}

/// Why a sync in this time cannot have reached the medium, if so.
fn doubt(took: Duration, medium: Medium) -> Option<&'static str> {
    match medium {
        _ if took < BUS => Some("faster than any disk"),
        Medium { rotates: Some(true), .. } if took < ROTATING => Some("faster than a disk turns"),
        Medium { rotates: Some(false), forgets: Some(true) } if took < FLASH => {
            Some("faster than flash takes what a cache that has to be flushed holds")
        }
        _ => None,
    }
}

/// Kind of a file system, and its free bytes for this user.
fn file_system(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: zeros are a statfs, and the call fills it in for a path that lives through it.
    let (result, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut found), found)
    };
    match result {
        0 => Ok((found.f_type as u64, found.f_bavail * found.f_bsize as u64)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is too fast for its medium is doubted; what says that it has no cache, and what nothing is known of, is believed.
    #[test]
    fn physics() {
        let medium = |rotates, forgets| Medium { rotates, forgets };
        let us = Duration::from_micros;
        for (took, medium, is_doubted) in [
            (us(8000), medium(Some(true), Some(true)), false),
            (us(300), medium(Some(true), Some(true)), true),
            (us(300), medium(Some(true), Some(false)), true),
            (us(700), medium(Some(false), Some(true)), false),
            (us(30), medium(Some(false), Some(true)), true),
            (us(30), medium(Some(false), Some(false)), false),
            (us(30), medium(None, None), false),
            (us(2), medium(None, None), true),
        ] {
            assert_eq!(doubt(took, medium).is_some(), is_doubted, "{took:?} {medium:?}");
        }
    }

    /// A directory in memory is bad for a journal, wherever below it that will be.
    #[test]
    fn memory_is_no_disk() {
        let found = room(Path::new("/dev/shm/cistern/of/nobody"));
        assert!(found.verdict == super::super::Verdict::Bad, "{found:?}");
        assert!(found.text.contains("in memory"), "{found:?}");
    }
}
