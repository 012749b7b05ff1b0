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

/// `mi_option_purge_delay` of `mimalloc.h`: milliseconds after which memory that was let go is given back.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// As long as it lives, memory that is let go goes back to the system at once: for a start, which needs much and many
/// kinds of it for a moment, and for [`keep_near`]. One at a time. Otherwise the allocator keeps it for a while, in the thread that let it go, and looks again
/// only when somebody asks it for memory, which an idle daemon does not.
pub struct GiveBackAtOnce {
    usual_delay_ms: libc::c_long,
}

impl GiveBackAtOnce {
    pub fn begin() -> GiveBackAtOnce {
        // SAFETY: options are plain numbers that may be read and set at any time.
        unsafe {
            let usual_delay_ms = libmimalloc_sys::mi_option_get(PURGE_DELAY);
            libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
            GiveBackAtOnce { usual_delay_ms }
        }
    }
}

impl Drop for GiveBackAtOnce {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, self.usual_delay_ms) };
        give_back();
        tokio::spawn(async {
            tokio::time::sleep(THREADS_END).await;
            give_back();
        });
    }
}

fn give_back() {
    // SAFETY: may be called at any time from any thread; it touches nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// How often is looked whether memory should be given back at once: while it may be soon, and otherwise.
const LOOK_NEAR: Duration = Duration::from_millis(20);
const LOOK_FAR: Duration = Duration::from_millis(500);
/// Less than this may be taken and let go between two looks, so nothing is looked for there: all memory is given back at once.
const SMALL_BYTES: u64 = 200 << 20;
/// What is still resident after so many looks, which are ten seconds, is in use.
const LOOKS_MAX: u32 = 500;

/// Has memory given back at once, for as long as it runs, while more than about `bytes` are resident: a disk that is written at
/// 1 GB/s makes it 20 MB more before that is noticed. By itself the allocator takes memory
/// that it never had before rather than what was let go within the last second: where writes and the cleaner let go 300 MB/s,
/// three quarters of what was resident was not in use. Always at once would cost large writes half as much processor time again.
pub async fn keep_near(bytes: u64) {
    if bytes < SMALL_BYTES {
        let _as_long_as_it_runs = GiveBackAtOnce::begin();
        return std::future::pending().await;
    }
    let (mut ceiling, mut frugal) = (Ceiling::new(bytes), None);
    let mut look = LOOK_FAR;
    loop {
        tokio::time::sleep(look).await;
        let Some(resident) = resident_bytes() else { continue };
        look = if resident > bytes / 2 { LOOK_NEAR } else { LOOK_FAR };
        match (ceiling.is_passed_by(resident), frugal.is_some()) {
            (true, false) => {
                // First what was let go before: without a delay the allocator does not look for that any more. It takes tens of
                // milliseconds, in which whoever is served should not wait.
                let _ = tokio::task::spawn_blocking(give_back).await;
                frugal = Some(GiveBackAtOnce::begin());
            }
            (false, true) => frugal = None,
            _ => {}
        }
    }
}

/// From where on memory is given back, and until when.
struct Ceiling {
    wanted_bytes: u64,
    /// Above what is wanted where more than that is in use: looking for it again and again gives nothing.
    bytes: u64,
    /// Looks since it was passed.
    passed: Option<u32>,
}

impl Ceiling {
    fn new(wanted_bytes: u64) -> Ceiling {
        Ceiling { wanted_bytes, bytes: wanted_bytes, passed: None }
    }

    /// Whether memory should be given back now. Once it is passed, until an eighth less is resident or nothing helps.
    fn is_passed_by(&mut self, resident_bytes: u64) -> bool {
        let below = |bytes: u64| resident_bytes < bytes - bytes / 8;
        if below(self.wanted_bytes) {
            self.bytes = self.wanted_bytes;
        }
        self.passed = match self.passed {
            None => (resident_bytes > self.bytes).then_some(0),
            Some(_) if below(self.bytes) => None,
            Some(LOOKS_MAX) => {
                self.bytes = resident_bytes + self.wanted_bytes / 8;
                None
            }
            Some(looks) => Some(looks + 1),
        };
        self.passed.is_some()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is passed holds until clearly less is resident; where that does not come the ceiling goes up to above what is in
    /// use, and down again when that was let go.
    #[test]
    fn the_ceiling_lies_above_what_is_in_use() {
        let mut ceiling = Ceiling::new(80);
        assert_eq!(
            [80, 81, 75, 70, 69, 80].map(|bytes| ceiling.is_passed_by(bytes)),
            [false, true, true, true, false, false]
        );
        let looks = (0..=LOOKS_MAX).take_while(|_| ceiling.is_passed_by(100)).count();
        assert_eq!(looks, LOOKS_MAX as usize + 1);
        assert_eq!([100, 110, 111].map(|bytes| ceiling.is_passed_by(bytes)), [false, false, true]);
        assert_eq!([60, 81].map(|bytes| ceiling.is_passed_by(bytes)), [false, true]);
    }

    /// The number is that of the delay, whose default is a second; while somebody wants memory back at once it is 0, and
    /// then what it was.
    #[tokio::test]
    async fn the_delay_is_nought_for_a_while() {
        // SAFETY: it reads a number.
        let delay_ms = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(delay_ms(), 1000);
        let frugal = GiveBackAtOnce::begin();
        assert_eq!(delay_ms(), 0);
        drop(frugal);
        assert_eq!(delay_ms(), 1000);
    }
}
