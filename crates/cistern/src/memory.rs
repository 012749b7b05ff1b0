//! Memory that is not needed any more, back to the system.

/// Gives back what was let go: the allocator keeps it for a while, and looks again only when somebody asks it for
/// memory. For the end of what takes much and is followed by quiet.
pub fn give_back() {
    // SAFETY: may be called at any time from any thread; it touches nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
}
