//! Memory that is not needed any more, back to the system.

use std::time::Duration;

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
