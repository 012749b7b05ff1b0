//! The host: versions, clock, memory, limits.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Finding;
use crate::{control, kernel::Cgroup, quantity::ByteSize};

/// Bytes that a daemon takes beside what `--memory` says and half of it: at least so much for requests, and some for itself.
const REQUESTS_MIN: u64 = 42 << 20;
const ITSELF: u64 = 64 << 20;
/// Open files below which many connections and uploads do not fit.
const FILES_MIN: u64 = 4096;
/// Locked memory below which older kernels refuse io_uring.
const LOCKED_MIN: u64 = 8 << 20;
/// Bit of `CAP_IPC_LOCK` among the capabilities.
const CAP_IPC_LOCK: u32 = 14;
/// What `adjtimex` gives for a clock that nothing synchronizes.
const TIME_ERROR: i32 = 5;

/// This program, the kernel, and daemons that are of another version than this program.
pub async fn versions(state_dir: &Path) -> Vec<Finding> {
    const WHAT: &str = "version";
    let own = env!("CARGO_PKG_VERSION");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut findings = vec![Finding::ok(WHAT, format!("cistern {own}, Linux {}", kernel.trim()))];
    let daemons = match control::daemons(state_dir).await {
        Ok(daemons) => daemons,
        Err(failure) => {
            let hint = failure.hint.unwrap_or_else(|| "run it as the user who serves, or as root".to_owned());
            findings.push(Finding::note(WHAT, failure.text, hint));
            return findings;
        }
    };
    for daemon in daemons {
        match daemon.status().await {
            Ok(status) if status.version == own => {}
            Ok(status) => {
                let names: Vec<&str> = status.volumes.iter().map(|served| served.name.as_str()).collect();
                let text = format!(
                    "process {} serves {} and is of version {}",
                    status.pid,
                    names.join(", "),
                    status.version
                );
                findings.push(Finding::note(
                    WHAT,
                    text,
                    "stop it and serve again; `cistern up NAME --restart` does it below a mounted filesystem",
                ));
            }
            Err(failure) => findings.push(Finding::note(
                WHAT,
                failure.text,
                "is it of another version, or ending? `cistern status` asks again",
            )),
        }
    }
    findings
}

/// Whether something keeps the clock right: stores refuse requests of a clock that is wrong by a quarter of an hour.
pub fn clock() -> Finding {
    // SAFETY: zeros are a timex that changes nothing, and the call fills it in.
    let (state, found) = unsafe {
        let mut found: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut found), found)
    };
    judge_clock(state, found.esterror)
}

/// `state` is what `adjtimex` gives, `error_us` what the clock is off by, as estimated.
fn judge_clock(state: i32, error_us: i64) -> Finding {
    const WHAT: &str = "clock";
    match state {
        TIME_ERROR => Finding::note(
            WHAT,
            "nothing says that it keeps it right; clouds refuse requests of a clock that is off by a quarter of an hour, and snapshots have its time",
            "chrony or systemd-timesyncd; `timedatectl` shows it. In a guest or a container its host may do it",
        ),
        0.. => Finding::ok(WHAT, format!("kept right, to {:.1} ms or so", error_us as f64 / 1000.0)),
        _ => Finding::note(WHAT, "the kernel does not say whether it is right", "`timedatectl` may"),
    }
}

/// Whether a daemon with this `--memory` fits.
pub fn memory(memory_bytes: u64) -> Finding {
    judge_memory(memory_bytes, limit_of(Cgroup::of(std::process::id())), available())
}

/// `limit`: of the control group; `available`: what the host can give without swapping.
fn judge_memory(memory_bytes: u64, limit: Option<u64>, available: Option<u64>) -> Finding {
    const WHAT: &str = "memory";
    let needed = memory_bytes + (memory_bytes / 2).max(REQUESTS_MIN) + ITSELF;
    let wanted =
        format!("a daemon with --memory {} takes up to {}", ByteSize(memory_bytes), ByteSize(needed));
    match (limit, available) {
        (Some(limit), _) if limit < needed => Finding::bad(
            WHAT,
            format!("{wanted}, and the control group of this process allows {}", ByteSize(limit)),
            "a higher limit (MemoryMax= of a unit, --memory of a container), or a smaller --memory",
        ),
        (_, Some(available)) if available < needed => Finding::note(
            WHAT,
            format!("{wanted}, and {} are available now", ByteSize(available)),
            "a smaller --memory, or fewer others on this host",
        ),
        (_, Some(available)) => Finding::ok(WHAT, format!("{wanted}; {} are available", ByteSize(available))),
        (_, None) => Finding::ok(WHAT, wanted),
    }
}

/// The lowest limit of a control group and of those above it.
fn limit_of(group: Option<Cgroup>) -> Option<u64> {
    let path = group?.to_string();
    let directory = PathBuf::from(format!("/sys/fs/cgroup{path}"));
    let above = directory.ancestors().take_while(|above| above.starts_with("/sys/fs/cgroup"));
    let limits = above.filter_map(|above| fs::read_to_string(above.join("memory.max")).ok());
    limits.filter_map(|text| text.trim().parse().ok()).min()
}

fn available() -> Option<u64> {
    let all = fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Open files and locked memory.
pub fn limits() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let may_lock = capabilities >> CAP_IPC_LOCK & 1 == 1;
    judge_limits(hard(libc::RLIMIT_NOFILE), hard(libc::RLIMIT_MEMLOCK).filter(|_| !may_lock))
}

/// The hard limits; none where there is no limit.
fn judge_limits(files: Option<u64>, locked: Option<u64>) -> Finding {
    const WHAT: &str = "limits";
    if let Some(files) = files.filter(|files| *files < FILES_MIN) {
        return Finding::note(
            WHAT,
            format!("{files} open files are allowed: connections and uploads together may be more"),
            format!("`ulimit -Hn {FILES_MIN}`, LimitNOFILE= of a unit"),
        );
    }
    if let Some(locked) = locked.filter(|locked| *locked < LOCKED_MIN) {
        return Finding::note(
            WHAT,
            format!("{} of memory may be locked: kernels before 5.12 may refuse io_uring", ByteSize(locked)),
            "LimitMEMLOCK=8M of a unit; without io_uring cached reads take more CPU, and --ublk does not work",
        );
    }
    let shown = |limit: Option<u64>| limit.map_or("any number of".to_owned(), |limit| limit.to_string());
    Finding::ok(WHAT, format!("{} open files", shown(files)))
}

fn hard(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills in a limit that lives through it.
    let rc = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (rc == 0 && limit.rlim_max != libc::RLIM_INFINITY).then_some(limit.rlim_max)
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn verdict(finding: &Finding) -> Verdict {
        match finding.verdict {
            Verdict::Ok => assert!(finding.hint.is_none(), "{finding:?}"),
            _ => assert!(finding.hint.as_ref().is_some_and(|hint| !hint.is_empty()), "{finding:?}"),
        }
        finding.verdict
    }

    /// A limit below what a daemon takes ends it one day; a full host may have room by then.
    #[test]
    fn memory_is_compared() {
        let mib = |n: u64| Some(n << 20);
        let judged = |limit, available| verdict(&judge_memory(256 << 20, limit, available));
        assert_eq!(judged(None, mib(8000)), Verdict::Ok);
        assert_eq!(judged(mib(512), mib(8000)), Verdict::Ok);
        assert_eq!(judged(mib(400), mib(8000)), Verdict::Bad);
        assert_eq!(judged(None, mib(300)), Verdict::Note);
        assert_eq!(judged(None, None), Verdict::Ok);
    }

    /// A clock that nothing keeps is a note, in the words of who is refused by a cloud.
    #[test]
    fn the_clock_is_judged() {
        assert_eq!(verdict(&judge_clock(0, 1500)), Verdict::Ok);
        assert!(judge_clock(0, 1500).text.contains("1.5 ms"));
        assert_eq!(verdict(&judge_clock(TIME_ERROR, 16_000_000)), Verdict::Note);
        assert_eq!(verdict(&judge_clock(-1, 0)), Verdict::Note);
    }

    /// Few open files, and little locked memory for who is not root, are notes.
    #[test]
    fn limits_are_judged() {
        assert_eq!(verdict(&judge_limits(None, None)), Verdict::Ok);
        assert_eq!(verdict(&judge_limits(Some(1 << 20), Some(8 << 20))), Verdict::Ok);
        assert_eq!(verdict(&judge_limits(Some(1024), None)), Verdict::Note);
        assert_eq!(verdict(&judge_limits(Some(1 << 20), Some(64 << 10))), Verdict::Note);
    }
}
