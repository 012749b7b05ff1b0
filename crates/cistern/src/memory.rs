//! Memory that is not needed any more, back to the system; and what becomes of a daemon where the system has none.

use std::{fs, time::Duration};

/// How much less likely than others a daemon is ended when memory runs out: -1000 would be never.
const OOM_SCORE: &str = "-900";
/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`, since Linux 5.6.
const SET_IO_FLUSHER: libc::c_int = 57;
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// By now threads that had nothing to do since have ended (tokio keeps them for ten seconds), and what they held can be
/// given back too.
const THREADS_END: Duration = Duration::from_secs(15);

/// Gives back what was let go: at once, and once more when the threads that came for it are gone. The allocator keeps it
/// for a while, and looks again only when somebody asks it for memory, which an idle daemon does not.
pub fn give_back_after_start() {
    give_back();
    tokio::spawn(async {
        tokio::time::sleep(THREADS_END).await;
        give_back();
    });
}

fn give_back() {
    // SAFETY: may be called at any time from any thread; it touches nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Memory of this process that is resident; `None` where the system does not say.
pub fn resident_bytes() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: it takes a number and gives one.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(pages * page_bytes)
}

/// For a process on which a block device of this host may stand: an allocation of it never waits until dirty pages are written, which may be
/// those of its own device, and it is among the last to be ended when memory runs out. Where the system does not allow that, it stays as it
/// was. Holds for threads that are started afterwards.
pub fn expect_own_device() {
    // SAFETY: it takes numbers alone and changes flags of this thread.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
    // Who started it may have chosen something.
    if fs::read_to_string(OOM_SCORE_FILE).is_ok_and(|score| score.trim() == "0") {
        let _ = fs::write(OOM_SCORE_FILE, OOM_SCORE);
    }
}
